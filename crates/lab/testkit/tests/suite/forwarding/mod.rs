//! A proxy between clients and servers, in virtual time.
//!
//! ```text
//!   clients (.1) ---- proxy (.2) ---- servers (.3)      each a stack, joined by a switch
//! ```

mod flowing;
mod hosts;
pub(crate) mod peers;
mod single;

use std::path::Path;
use std::time::Duration;

use pagewire_device::FaultConfig;
use pagewire_mem::Instant;
use pagewire_stack::{ForwardConfig, Forwarder, KeepAlive, Stack};
use pagewire_testkit::sim::{NodeId, Sim, SimError, Station, run_seed, seed_from_env};
use peers::{Peers, Plan, Program};

const COMMAND: &str = "cargo test -p pagewire-testkit --test suite forwarding_seed_from_env";

/// Bytes of receive memory of the proxy: far less than ten thousand windows.
const MEMORY: usize = 8 << 20;

/// A scenario: number of connections, faults, version of IP.
#[derive(Clone, Copy)]
struct Crowd {
    connections: u64,
    faults: &'static str,
    v6: bool,
    forward: ForwardConfig,
}

#[test]
fn forwarding_seed_from_env_runs_alone() {
    if let Some(seed) = seed_from_env() {
        let run = |seed, capture: Option<&Path>| few(seed).run(seed, capture).map(drop);
        run_seed(seed, COMMAND, run).unwrap_or_else(|failure| panic!("{failure}"));
    }
}

#[test]
fn ten_thousand_connections_get_every_byte_with_none_copied_in_bounded_memory() {
    let crowd = Crowd {
        connections: 10_000,
        faults: "loss=1%,dup=0.5%,delay=1ms",
        v6: false,
        forward: ForwardConfig::default(),
    };
    let report = crowd.run(1, None).unwrap_or_else(|error| panic!("{error}"));
    assert!(report.most_at_once > 9000, "{} at once", report.most_at_once);
    // Slow readers do press against the bound that is asserted after every step.
    assert!(report.most_memory > MEMORY / 4, "{} bytes at most", report.most_memory);
}

#[test]
fn every_byte_arrives_over_bad_networks_of_both_versions() {
    let run = |seed, capture: Option<&Path>| few(seed).run(seed, capture).map(drop);
    let failures: Vec<_> =
        (0..40).filter_map(|seed| run_seed(seed, COMMAND, run).err()).take(3).collect();
    let text: Vec<_> = failures.iter().map(ToString::to_string).collect();
    assert!(text.is_empty(), "{}", text.join("\n"));
}

#[test]
fn more_connections_than_there_may_be_wait_their_turn() {
    let forward = ForwardConfig { connections: 5, ..ForwardConfig::default() };
    let crowd = Crowd { connections: 200, faults: "delay=1ms", v6: false, forward };
    let report = crowd.run(1, None).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(report.most_at_once, 5);
}

/// Sixty connections over a network that may lose, duplicate and reorder.
fn few(seed: u64) -> Crowd {
    let faults = [
        "delay=1ms",
        "loss=5%,delay=3ms",
        "loss=2%,reorder=3%,dup=2%,delay=2ms",
        "loss=1%,corrupt=1%,delay=500us,jitter=200us",
    ];
    Crowd {
        connections: 60,
        faults: faults[seed as usize % faults.len()],
        v6: seed / 4 % 2 == 1,
        forward: ForwardConfig::default(),
    }
}

struct Report {
    most_at_once: u64,
    most_memory: usize,
}

impl Crowd {
    fn run(self, seed: u64, capture: Option<&Path>) -> Result<Report, SimError> {
        let mut sim = Sim::new(seed);
        if let Some(file) = capture {
            sim.capture(file)?;
        }
        let wait = self.forward.connections as u64 >= self.connections;
        let plans: Vec<(Instant, u64)> = (0..self.connections)
            .map(|n| (Instant::from_millis(n * 400 / self.connections), seed * 1_000_000 + n))
            .collect();
        // All clients connect before one speaks, if the limits admit all.
        let speak_at = if wait { Instant::from_millis(8000) } else { Instant::ZERO };
        let clients = Peers::clients(self.at(2, 80), self.at(2, 81), plans.clone(), speak_at);
        let clients = self.add(&mut sim, 1, Program::Peers(Box::new(clients)), "delay=100us")?;
        let proxy = Program::Proxy(Box::new(Forwarder::new(self.forward)));
        let proxy = self.add(&mut sim, 2, proxy, self.faults)?;
        let servers = Program::Peers(Box::new(Peers::servers(self.at(3, 8000), 4096)));
        let servers = self.add(&mut sim, 3, servers, "delay=100us")?;

        let now = sim.now();
        let Station { stack, app, .. } = sim.node_mut(proxy);
        // The second has nobody to forward to.
        for (port, upstream) in [(80, 8000), (81, 8001)] {
            let listener = stack.listen(self.at(2, port), 4096).expect("a port");
            let forwarder = app.proxy_mut();
            forwarder.listen(now, stack, listener, self.at(3, upstream)).expect("a listener");
        }

        let mut most_memory = 0;
        let ended = sim.run_until(Instant::from_millis(1_200_000), |sim| {
            for id in [clients, servers] {
                if let Some(what) = &sim.node(id).app.peers().wrong {
                    return Err(SimError::Oracle(what.clone()));
                }
            }
            let used = sim.node(proxy).stack.receive_memory_used();
            most_memory = most_memory.max(used);
            if used > MEMORY {
                return Err(SimError::Oracle(format!("{used} bytes of receive memory")));
            }
            let over = |id| sim.node(id).app.peers().is_done();
            Ok(over(clients) && over(servers) && sim.node(proxy).app.proxy().is_empty())
        });
        ended.map_err(|error| {
            let Station { app, .. } = sim.node(proxy);
            SimError::Oracle(format!("{error}: {:?}", app.proxy()))
        })?;

        let plans: Vec<Plan> = plans.iter().map(|(_, number)| Plan::of(*number)).collect();
        let polite: Vec<&Plan> = plans.iter().filter(|plan| plan.is_polite()).collect();
        let refused = plans.iter().filter(|plan| plan.is_refused()).count();
        let counters = sim.node(proxy).app.proxy().counters();
        let bytes: u64 = polite.iter().map(|plan| plan.bytes()).sum();
        for id in [clients, servers] {
            assert_eq!(sim.node(id).app.peers().polite, polite.len());
        }
        assert_eq!(sim.node(clients).app.peers().cut, plans.len() - polite.len());
        assert_eq!(counters.refused, refused as u64);
        let refusals = std::iter::from_fn(|| sim.node_mut(proxy).app.proxy_mut().poll_refusal());
        let refusals: Vec<_> = refusals.collect();
        assert!(refused == 0 || refusals.iter().all(|r| r.upstream == self.at(3, 8001)));
        assert_eq!(refusals.is_empty(), refused == 0);
        assert!(counters.bytes_up + counters.bytes_down >= bytes, "{counters:?}");
        assert_eq!(sim.node(proxy).stack.ledger().ours(), 0, "payload bytes copied by the proxy");

        self.wind_up(&mut sim, clients, proxy, servers)?;
        Ok(Report { most_at_once: counters.most_at_once, most_memory })
    }

    /// Nothing is left: no socket, no byte of receive memory, no page.
    fn wind_up(
        self,
        sim: &mut Sim<Station<Program>>,
        clients: NodeId,
        proxy: NodeId,
        servers: NodeId,
    ) -> Result<(), SimError> {
        let now = sim.now();
        let Station { stack, app, .. } = sim.node_mut(proxy);
        app.proxy_mut().stop_listening(now, stack);
        let Station { stack, app, .. } = sim.node_mut(servers);
        app.peers_mut().shut_down(now, stack);
        let all = [clients, proxy, servers];
        let limit = now + Duration::from_secs(1200);
        sim.run_until(limit, |sim| {
            Ok(sim.in_flight() == 0 && all.iter().all(|&id| sim.node(id).stack.socket_count() == 0))
        })?;
        assert_eq!(sim.node(proxy).stack.receive_memory_used(), 0);
        Ok(())
    }

    fn add(
        self,
        sim: &mut Sim<Station<Program>>,
        host: u8,
        app: Program,
        faults: &str,
    ) -> Result<NodeId, SimError> {
        let cidr = if self.v6 { format!("fd77::{host}/64") } else { format!("10.0.0.{host}/24") };
        let mut config = sim.stack_config(cidr.parse().expect("an address"));
        // A reset may be lost; keepalive probes then end the wait.
        let (idle, interval) = (Duration::from_secs(20), Duration::from_secs(5));
        config.tcp.keepalive = Some(KeepAlive { idle, interval, probes: 9 });
        config.memory = if matches!(app, Program::Proxy(_)) { MEMORY } else { 1 << 30 };
        let stack = Stack::new(sim.now(), config).expect("a stack");
        let faults = FaultConfig { cut: false, ..faults.parse().expect("faults") };
        sim.add(Station::new(stack, app), faults)
    }

    fn at(self, host: u8, port: u16) -> std::net::SocketAddr {
        let text = if self.v6 {
            format!("[fd77::{host}]:{port}")
        } else {
            format!("10.0.0.{host}:{port}")
        };
        text.parse().expect("an address")
    }
}
