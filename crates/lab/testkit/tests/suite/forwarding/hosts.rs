//! The crowd on hosts that a pair link joins: clients and servers on one side, the proxy on the other.
//! Their clock is virtual: it moves on by as much for each turn, on however slow a machine.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pagewire::device::Fault;
use pagewire::proxy::{ForwardConfig, Proxy};
use pagewire::services::Service;
use pagewire::{Host, Pair};
use pagewire_mem::Instant;
use pagewire_stack::{Event, KeepAlive, Stack, TcpConfig};

use crate::forwarding::peers::{Peers, Plan};

const CONNECTIONS: u64 = 10_000;
const MEMORY: usize = 16 << 20;
const OUTSIDE: &str = "10.0.0.1/24";
const INSIDE: &str = "10.0.0.2/24";

/// Longest time for all of it.
const PATIENCE: Duration = Duration::from_secs(120);

/// The time of a turn of both hosts, with work and without.
const TURN: [Duration; 2] = [Duration::from_micros(100), Duration::from_millis(1)];

/// Both ends of every conversation, on one host.
#[derive(Clone)]
struct Ends(Arc<Mutex<[Peers; 2]>>);

impl Service for Ends {
    fn turn(&mut self, now: Instant, stack: &mut Stack, events: &[Event]) {
        for peers in self.0.lock().expect("no panics").iter_mut() {
            peers.turn(now, stack, events);
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let ends = self.0.lock().expect("no panics");
        ends.iter().filter_map(Peers::poll_timeout).min()
    }
}

#[test]
fn ten_thousand_connections_over_a_pair_that_loses_get_every_byte_with_none_copied() {
    let (left, right) = Pair::new().expect("a pair");
    let faults = "loss=0.3%,dup=0.2%,seed=3,cut=no".parse().expect("faults");
    // A reset may be lost; keepalive probes then end the wait.
    let (idle, interval) = (Duration::from_secs(1), Duration::from_secs(1));
    let keepalive = Some(KeepAlive { idle, interval, probes: 9 });
    let tcp = TcpConfig { keepalive, ..TcpConfig::default() };
    let outside = Host::builder().device(left).address(OUTSIDE).memory(1 << 30);
    let outside = outside.tcp_config(tcp);
    let clock = Arc::new(AtomicU64::new(0));
    let outside = outside.manual().clock(clock.clone()).start().expect("a host");
    let inside = Host::builder().device(Fault::new(right, faults)).address(INSIDE);
    let inside = inside.memory(MEMORY).manual().clock(clock.clone());
    let inside = inside.start().expect("a host");

    let proxy = Proxy::new(&inside, ForwardConfig { keepalive, ..ForwardConfig::default() });
    let address = |text: &str| text.parse().expect("an address");
    for (port, upstream) in [(80, "10.0.0.1:8000"), (81, "10.0.0.1:8001")] {
        let on = format!("10.0.0.2:{port}");
        proxy.listen(on, 4096, address(upstream)).expect("a port");
    }
    // Connections start one after the other: the last ACK of a handshake with a SYN cookie may be lost, and
    // then neither side would notice.
    let plans: Vec<_> = (0..CONNECTIONS).map(|n| (Instant::from_micros(n * 50), n)).collect();
    let all: Vec<Plan> = plans.iter().map(|(_, number)| Plan::of(*number)).collect();
    let polite = all.iter().filter(|plan| plan.is_polite()).count();
    let refused = all.iter().filter(|plan| plan.is_refused()).count() as u64;
    let clients =
        Peers::clients(address("10.0.0.2:80"), address("10.0.0.2:81"), plans, Instant::FAR);
    let ends =
        Ends(Arc::new(Mutex::new([clients, Peers::servers(address("10.0.0.1:8000"), 4096)])));
    outside.attach(ends.clone());

    let (mut speak, mut most_memory) = (false, 0);
    loop {
        let worked = outside.turn() | inside.turn();
        let passes = if worked { TURN[0] } else { TURN[1] };
        let now = clock.fetch_add(passes.as_nanos() as u64, Ordering::Relaxed);
        let used = inside.with_stack(|stack, _| stack.receive_memory_used());
        most_memory = most_memory.max(used);
        assert!(used <= MEMORY, "{used} bytes of receive memory");
        let counters = proxy.counters();
        // All clients connect before one speaks.
        if !speak && counters.connected + refused == CONNECTIONS {
            speak = true;
            outside.with_stack(|stack, now| {
                ends.0.lock().expect("no panics")[0].speak(now, stack);
            });
        }
        let over = ends.0.lock().expect("no panics").iter().all(|peers| {
            assert_eq!(peers.wrong, None);
            peers.is_done()
        });
        if over && proxy.is_empty() {
            break;
        }
        assert!(Duration::from_nanos(now) < PATIENCE, "not done: {counters:?}");
    }
    let ends = ends.0.lock().expect("no panics");
    assert_eq!(ends.each_ref().map(|peers| peers.polite), [polite; 2]);
    let counters = proxy.counters();
    assert_eq!(counters.refused, refused);
    assert!(counters.most_at_once >= CONNECTIONS - refused, "{counters:?}");
    assert_eq!(inside.stats().ledger.ours(), 0, "payload bytes copied by the proxy");
    let took = Duration::from_nanos(clock.load(Ordering::Relaxed));
    eprintln!("at most {most_memory} bytes held, {took:?}");
}
