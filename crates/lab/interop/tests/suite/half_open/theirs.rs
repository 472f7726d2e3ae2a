use std::time::Duration;

pub(crate) use turmoil::net;

#[allow(clippy::duplicate_mod)]
#[path = "program.rs"]
mod program;

/// As with ours.
fn run(patience: Option<Duration>) -> turmoil::Result {
    let mut sim = turmoil::Builder::new().simulation_duration(Duration::from_secs(60)).build();
    sim.host("server", program::server);
    sim.client("client", program::client(patience));
    let step_until = |sim: &mut turmoil::Sim<'_>, at| {
        while sim.elapsed() < at {
            sim.step().unwrap();
        }
    };
    step_until(&mut sim, Duration::from_millis(50));
    sim.crash("server");
    step_until(&mut sim, Duration::from_secs(1));
    sim.bounce("server");
    sim.run()
}

#[test]
fn turmoil_passes_it() {
    run(None).unwrap();
}

#[test]
fn turmoil_passes_the_mended_client_too() {
    run(Some(Duration::from_secs(5))).unwrap();
}
