//! The memory of an idle connection: heap bytes, counted by the allocator of this test program.

#[path = "suite/common/mod.rs"]
mod common;

use std::time::Duration;

use common::{A, B, Pair, Verbs, capabilities, config};
use pagewire_testkit::heap::{Counting, live};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const CONNECTIONS: usize = 100_000;

/// The goal is 512 bytes.
const LIMIT: usize = 760;

#[test]
fn a_hundred_thousand_idle_connections_cost_at_most_760_bytes_each() {
    let (mut a, mut b) = (config(capabilities(1), 1), config(capabilities(2), 2));
    // Every connection has something to be read at the same time, and keeps it.
    (a.memory, b.memory) = (1 << 30, 1 << 30);
    let mut p = Pair::with(a, b);
    p.meet();
    // A remote port has room for 28,232 ephemeral ones.
    let ports = 4;
    let listeners: Vec<_> =
        (0..ports).map(|i| p.b.listen(([10, 0, 0, 2], 80 + i).into(), 4096).unwrap()).collect();
    let before = live();
    let (mut clients, mut servers) = (Vec::new(), Vec::new());
    clients.reserve_exact(CONNECTIONS);
    servers.reserve_exact(CONNECTIONS);
    let ids = live() - before;
    while clients.len() < CONNECTIONS {
        for i in 0..2000u16 {
            let to = ([10, 0, 0, 2], 80 + i % ports).into();
            clients.push(p.a.connect(p.now, to, None).unwrap());
        }
        p.until("all handshakes", |p| {
            for listener in &listeners {
                while let Ok((server, _)) = p.b.accept(*listener) {
                    servers.push(server);
                }
            }
            servers.len() == clients.len()
        });
    }
    // The connections have not always been idle: each has carried something in both directions.
    let words = [(A, &clients, B, &servers), (B, &servers, A, &clients)];
    let mut buf = [0; 256];
    for (from, senders, to, receivers) in words {
        for batch in senders.chunks(1000) {
            for id in batch {
                let now = p.now;
                assert_eq!(p.stack(from).send(now, *id, &[7; 200]), Ok(200));
            }
            p.run(Duration::from_millis(1));
        }
        p.run(Duration::from_millis(50));
        for id in receivers {
            let now = p.now;
            assert_eq!(p.stack(to).recv(now, *id, &mut buf[..]), Ok(200));
        }
    }
    p.run(Duration::from_secs(10));
    assert_eq!(p.a.socket_count(), CONNECTIONS);
    assert_eq!(p.b.socket_count(), CONNECTIONS + usize::from(ports));
    // Neighbours are forgotten some time; connections have nothing to wait for.
    let quiet_until = p.now + Duration::from_secs(300);
    assert!(p.a.poll_timeout().is_none_or(|at| at > quiet_until), "idle connections wake nobody");

    p.shrink();
    let both = live() - before - ids;
    let with_a = live();
    drop(p.a);
    let (a, b) = (with_a - live(), both - (with_a - live()));
    for (name, bytes) in [("the side that connected", a), ("the side that listened", b)] {
        let each = bytes.div_ceil(CONNECTIONS);
        println!("{CONNECTIONS} idle connections, {name}: {each} bytes each");
        assert!(each <= LIMIT, "{each} bytes for an idle connection, at most {LIMIT}");
    }
}

/// Stacks of each host of a pair.
const SHARDS: usize = 1;
