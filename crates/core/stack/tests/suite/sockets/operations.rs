//! Random sequences of operations: nothing panics, no page is lost, and every open socket can be closed.

use std::net::Shutdown;
use std::time::Duration;

use pagewire_stack::{BindOptions, RecvFlags, SendFlags, SocketId, SocketOption, TcpConfig};
use proptest::prelude::*;

use crate::common::{A, B, Pair, Side, capabilities, config, plain};

#[derive(Clone, Debug)]
enum Op {
    Listen { port: u16, backlog: usize },
    Connect { port: u16 },
    Accept(usize),
    Write(usize, usize),
    Read(usize, usize),
    Chunks(usize, usize),
    Shutdown(usize, bool),
    Close(usize),
    Abort(usize),
    NoDelay(usize, bool),
    Bind { port: u16 },
    SendTo { socket: usize, port: u16, len: usize },
    RecvFrom(usize),
    Wait(u32),
    Lose(u8),
}

fn op() -> impl Strategy<Value = (bool, Op)> {
    let id = || 0..24usize;
    let port = || 1..4u16;
    let op = prop_oneof![
        2 => (port(), 0..4usize).prop_map(|(port, backlog)| Op::Listen { port, backlog }),
        4 => port().prop_map(|port| Op::Connect { port }),
        4 => id().prop_map(Op::Accept),
        6 => (id(), 0..40_000usize).prop_map(|(i, n)| Op::Write(i, n)),
        6 => (id(), 0..40_000usize).prop_map(|(i, n)| Op::Read(i, n)),
        2 => (id(), 0..40_000usize).prop_map(|(i, n)| Op::Chunks(i, n)),
        1 => (id(), any::<bool>()).prop_map(|(i, w)| Op::Shutdown(i, w)),
        1 => id().prop_map(Op::Close),
        1 => id().prop_map(Op::Abort),
        1 => (id(), any::<bool>()).prop_map(|(i, on)| Op::NoDelay(i, on)),
        1 => port().prop_map(|port| Op::Bind { port }),
        2 => (id(), port(), 0..9000usize)
            .prop_map(|(socket, port, len)| Op::SendTo { socket, port, len }),
        2 => id().prop_map(Op::RecvFrom),
        8 => (0..2_000_000u32).prop_map(Op::Wait),
        1 => any::<u8>().prop_map(Op::Lose),
    ];
    (any::<bool>(), op)
}

fn apply(p: &mut Pair, ids: &mut Vec<(Side, SocketId)>, side: Side, op: Op) {
    let now = p.now;
    let to = |port: u16| match side {
        A => ([10, 0, 0, 2], port).into(),
        B => ([10, 0, 0, 1], port).into(),
    };
    let pick = |ids: &[(Side, SocketId)], i: usize| ids.get(i % ids.len().max(1)).copied();
    match op {
        Op::Listen { port, backlog } => {
            let local = ([0, 0, 0, 0], port).into();
            ids.extend(p.stack(side).listen(local, backlog).ok().map(|id| (side, id.into())));
        }
        Op::Connect { port } => {
            let id = p.stack(side).connect(now, to(port), None);
            ids.extend(id.ok().map(|id| (side, id.into())));
        }
        Op::Bind { port } => {
            let id = p.stack(side).bind_udp(([0, 0, 0, 0], port).into(), BindOptions::default());
            ids.extend(id.ok().map(|id| (side, id.into())));
        }
        Op::Wait(ns) => p.run(Duration::from_nanos(u64::from(ns))),
        Op::Lose(share) => {
            let mut n = u32::from(share);
            p.carry = Some(Box::new(move |_, _| {
                n = n.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                n >> 24 >= u32::from(share) / 4
            }));
        }
        Op::Accept(i)
        | Op::Write(i, _)
        | Op::Read(i, _)
        | Op::Chunks(i, _)
        | Op::Shutdown(i, _)
        | Op::Close(i)
        | Op::Abort(i)
        | Op::NoDelay(i, _)
        | Op::SendTo { socket: i, .. }
        | Op::RecvFrom(i) => {
            // Whatever kind of socket it is, or was.
            let Some((side, id)) = pick(ids, i) else { return };
            let stack = p.stack(side);
            match op {
                Op::Accept(_) => {
                    ids.extend(
                        stack
                            .as_listener(id)
                            .and_then(|mut listener| listener.accept())
                            .ok()
                            .map(|(id, _)| (side, id.into())),
                    );
                }
                Op::Write(_, n) => {
                    let _ = stack
                        .as_tcp(id)
                        .and_then(|mut tcp| tcp.send(now, &vec![7; n], SendFlags::empty()));
                }
                Op::Read(_, n) => {
                    let _ = stack
                        .as_tcp(id)
                        .and_then(|mut tcp| tcp.recv(now, &mut vec![0; n][..], RecvFlags::empty()));
                }
                Op::Chunks(_, n) => {
                    let _ = stack.as_tcp(id).and_then(|mut tcp| {
                        tcp.recv(
                            now,
                            pagewire_stack::Chunks { max: n, into: &mut Vec::new() },
                            RecvFlags::empty(),
                        )
                    });
                }
                Op::Shutdown(_, true) => {
                    let _ = stack.as_tcp(id).and_then(|mut tcp| tcp.shutdown(now, Shutdown::Write));
                }
                Op::Shutdown(_, false) => {
                    let _ = stack.as_tcp(id).and_then(|mut tcp| tcp.shutdown(now, Shutdown::Read));
                }
                Op::Close(_) => stack.close(now, id),
                Op::Abort(_) => stack.abort(now, id),
                Op::NoDelay(_, on) => {
                    let _ = stack
                        .as_tcp(id)
                        .and_then(|mut tcp| tcp.set_option(now, SocketOption::NoDelay(on)));
                }
                Op::SendTo { port, len, .. } => {
                    let _ = stack
                        .as_udp(id)
                        .and_then(|mut udp| udp.send(now, &vec![7; len], Some(to(port))));
                }
                Op::RecvFrom(_) => {
                    let _ = stack
                        .as_udp(id)
                        .and_then(|mut udp| udp.recv(pagewire_stack::Datagram, RecvFlags::empty()));
                }
                _ => {}
            }
        }
    }
}

fn run(offload: bool, ops: Vec<(bool, Op)>) {
    let capabilities = if offload { capabilities } else { plain };
    let (mut a, mut b) = (config(capabilities(1), 1), config(capabilities(2), 2));
    // Little of everything, so that limits are met.
    for config in [&mut a, &mut b] {
        config.memory = 1 << 20;
        config.tcp = TcpConfig { recv_buffer: 50_000, send_buffer: 50_000, ..TcpConfig::default() };
    }
    let mut p = Pair::with(a, b);
    let mut ids = Vec::new();
    // Something to talk to from the start; the rest is chance.
    for (side, port) in [(A, 1), (A, 2), (B, 1), (B, 2)] {
        apply(&mut p, &mut ids, side, Op::Listen { port, backlog: 2 });
        apply(&mut p, &mut ids, side, Op::Bind { port });
    }
    for (first, op) in ops {
        apply(&mut p, &mut ids, if first { A } else { B }, op);
    }
    p.carry = None;
    for (side, id) in ids {
        let now = p.now;
        p.stack(side).close(now, id);
    }
    p.run(Duration::from_secs(3600));
    for stack in [&mut p.a, &mut p.b] {
        assert_eq!(stack.socket_count(), 0);
        assert!(stack.is_quiet());
        assert!(stack.poll_event().is_none());
        stack.end_turn();
        let audit = stack.pool_audit();
        assert!(audit.is_conserved() && audit.out <= 64, "{audit:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_operations_ends_with_everything_released(
        offload in any::<bool>(),
        ops in prop::collection::vec(op(), 1..400),
    ) {
        run(offload, ops);
    }
}
