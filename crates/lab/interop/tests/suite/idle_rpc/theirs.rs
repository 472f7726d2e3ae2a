use std::time::Duration;

pub(crate) use turmoil::net;

#[allow(clippy::duplicate_mod)]
#[path = "program.rs"]
mod program;

#[test]
fn turmoil_passes_it() {
    let latency = Duration::from_millis(40);
    let mut sim = turmoil::Builder::new()
        .simulation_duration(Duration::from_secs(120))
        .min_message_latency(latency)
        .max_message_latency(latency)
        .build();
    sim.host("server", program::server);
    sim.client("client", program::client());
    sim.run().unwrap();
}
