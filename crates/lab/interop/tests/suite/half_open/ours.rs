use std::time::Duration;

pub(crate) use pagewire_simulation::net;
use pagewire_simulation::{Failure, FailureKind, Link, Report, Sim};

#[path = "program.rs"]
mod program;

/// The server loses power at 100 ms, while it works, and is back at 1 s.
fn run(patience: Option<Duration>) -> Result<Report, Failure> {
    let link = Link::new().latency(Duration::from_millis(20));
    let mut sim = Sim::builder().link(link).build();
    sim.host("server", program::server);
    sim.client("client", program::client(patience));
    sim.at(Duration::from_millis(100), |control| control.crash("server"));
    sim.at(Duration::from_secs(1), |control| control.bounce("server"));
    sim.run()
}

#[test]
fn a_client_without_read_timeout_hangs_after_a_power_failure() {
    let failure = run(None).expect_err("the client waits for ever");
    assert_eq!(failure.kind, FailureKind::NoProgress);
    let report = failure.to_string();
    assert!(report.contains("client") && report.contains("waits to read"), "{report}");
}

#[test]
fn a_client_with_a_read_timeout_asks_again() {
    run(Some(Duration::from_secs(5))).unwrap();
}
