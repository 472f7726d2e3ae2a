use std::time::Duration;

pub(crate) use pagewire_simulation::net;
use pagewire_simulation::{Failure, FailureKind, Link, Report, Sim, TcpConfig};

#[path = "program.rs"]
mod program;

fn run(tcp: TcpConfig) -> Result<Report, Failure> {
    let link = Link::new().latency(Duration::from_millis(40));
    let mut sim = Sim::builder().link(link).tcp(tcp).build();
    sim.host("server", program::server);
    sim.client("client", program::client());
    sim.run()
}

#[test]
fn a_call_is_late_after_a_rest() {
    let failure = run(TcpConfig::default()).expect_err("the last call is late");
    assert_eq!(failure.kind, FailureKind::Client);
    assert!(failure.to_string().contains("late after a rest"), "{failure}");
}

#[test]
fn it_is_in_time_without_slow_start_after_idle() {
    let tcp = TcpConfig { slow_start_after_idle: false, ..TcpConfig::default() };
    run(tcp).unwrap();
}
