//! Heap bytes that connections cost the gateway, counted by the allocator of this test program.

#[path = "suite/support/mod.rs"]
mod support;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use pagewire::services::{ListenerId, Readiness, TcpId};
use pagewire::{Host, Pair};
use pagewire_gateway::{Gateway, GuestConfig};
use pagewire_testkit::heap::{Counting, live};
use rustix::net::sockopt;
use support::{eventually, server, to_loopback};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Idle connections at once.
const IDLE: usize = 1000;

/// Bytes of one idle connection, beside what the kernel's socket takes.
const LIMIT: usize = 2048;

/// Connections that come and go.
const PASSING: usize = 100_000;

/// Number of these at once.
const BATCH: usize = 100;

/// A guest whose stack is in this program, too.
struct World {
    inside: Host,
    // Behind the host, which ends first.
    _gateway: pagewire_gateway::Guest,
    server: TcpListener,
    at: SocketAddr,
}

fn world() -> World {
    let (device, inner) = Pair::new().unwrap();
    let config = GuestConfig::new().network("10.0.2.2/24").unwrap();
    let gateway = Gateway::builder().judge(to_loopback).start().add(device, config).unwrap();
    let inside = Host::builder().device(inner).address("10.0.2.15/24").gateway("10.0.2.2");
    let inside = inside.shutdown_limit(Duration::ZERO).start().unwrap();
    let (server, at) = server();
    rustix::net::listen(&server, 4096).unwrap();
    World { inside, _gateway: gateway, server, at }
}

impl World {
    /// Opens `n` connections, and returns both ends.
    fn open(&self, n: usize) -> (Vec<TcpId>, Vec<TcpStream>) {
        let connect = |_| self.inside.with_stack(|stack, now| stack.connect(now, self.at, None));
        let inner: Vec<TcpId> = (0..n).map(|i| connect(i).unwrap()).collect();
        let outer = (0..n).map(|_| self.server.accept().unwrap().0).collect();
        for id in &inner {
            eventually(|| {
                let ready = self.inside.with_stack(|stack, _| stack.readiness(*id)).unwrap();
                ready.contains(Readiness::CONNECTED)
            });
        }
        (inner, outer)
    }

    /// Ends them by resets of the far ends, which leave nothing behind anywhere.
    fn reset(&self, (inner, outer): (Vec<TcpId>, Vec<TcpStream>)) {
        for stream in outer {
            sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
        }
        for id in inner {
            eventually(|| self.inside.with_stack(|stack, _| stack.take_error(id)).is_some());
            self.inside.with_stack(|stack, now| stack.close(now, id));
        }
    }
}

/// Bytes of one end of an idle connection between two hosts: what the guest's side costs.
fn guests_side() -> usize {
    let (left, right) = Pair::new().unwrap();
    let a = Host::builder().device(left).address("10.0.2.2/24").start().unwrap();
    let b = Host::builder().device(right).address("10.0.2.15/24").start().unwrap();
    let to = "10.0.2.2:80".parse().unwrap();
    let listener: ListenerId = a.with_stack(|stack, _| stack.listen(to, 4096)).unwrap();
    let mut cost = 0;
    for _ in 0..2 {
        let before = live();
        let mut ids = Vec::with_capacity(IDLE);
        ids.extend((0..IDLE).map(|_| b.with_stack(|s, now| s.connect(now, to, None)).unwrap()));
        let mut accepted = Vec::with_capacity(IDLE);
        eventually(|| {
            a.with_stack(|stack, _| {
                while let Ok((id, _)) = stack.listener(listener).and_then(|mut l| l.accept()) {
                    accepted.push(id);
                }
            });
            accepted.len() == IDLE
        });
        cost = (live() - before) / IDLE / 2;
        for (host, ids) in [(&a, accepted), (&b, ids)] {
            host.with_stack(|stack, now| {
                for id in ids {
                    stack.abort(now, id);
                    stack.close(now, id);
                }
            });
        }
        eventually(|| b.with_stack(|stack, _| stack.socket_count()) == 0);
    }
    cost
}

#[test]
fn an_idle_connection_costs_two_kilobytes_and_one_that_is_over_nothing() {
    let guests = guests_side();
    let world = world();
    // Tables grow to what is used at once, and stay.
    world.reset(world.open(IDLE));
    let before = live();
    let connections = world.open(IDLE);
    let each = (live() - before) / IDLE;
    assert!(each - guests <= LIMIT, "{each} bytes each, of which {guests} are the guest's");
    world.reset(connections);
    let after_some = live();
    for _ in 0..PASSING / BATCH {
        world.reset(world.open(BATCH));
    }
    let grown = live().saturating_sub(after_some.max(before));
    assert!(grown < 64 << 10, "{PASSING} connections left {grown} bytes");
}
