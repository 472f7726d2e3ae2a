//! What the stack passes on by itself while nothing but data goes, and where it stops doing so. A
//! forwarder that is taken away from its stack cannot have had a part in what happens meanwhile.

use std::net::Shutdown;

use bytes::Bytes;
use pagewire_mem::{CopyLedger, Frag, FragVec};
use pagewire_sim::{NodeId, Stream};
use pagewire_stack::{Error, SendFlags, SocketId};

use crate::peers::Program;
use crate::single::Line;

/// Takes the forwarder away from its stack.
fn part(line: &mut Line) -> Program {
    line.settle();
    std::mem::replace(&mut line.sim.node_mut(line.proxy).app, Program::Manual)
}

fn join(line: &mut Line, proxy: Program) {
    line.sim.node_mut(line.proxy).app = proxy;
}

/// What is sent at once of `len` bytes of a stream, from `at` on.
fn send(line: &mut Line, node: NodeId, id: SocketId, at: u64, len: usize) -> u64 {
    let (stack, now) = line.stack(node);
    let mut frags = FragVec::from_elem(Frag::from_bytes(Bytes::from(Stream(7).bytes(at, len))), 1);
    stack.tcp_send(now, id, &mut frags).unwrap_or(0) as u64
}

/// Checks what has come of the stream; `Err` at its end.
fn check(line: &mut Line, node: NodeId, id: SocketId, at: &mut u64) -> Result<(), Error> {
    let (stack, now) = line.stack(node);
    let mut chunks = Vec::new();
    match stack.tcp_recv_chunks(now, id, 40_000, &mut chunks) {
        Ok(0) => return Err(Error::BrokenPipe),
        Ok(_) | Err(Error::WouldBlock) => {}
        Err(error) => return Err(error),
    }
    for chunk in chunks {
        let piece = |piece: &[u8]| {
            Stream(7).check(*at, piece).expect("as sent");
            *at += piece.len() as u64;
        };
        chunk.for_each_piece(&mut CopyLedger::new(), piece);
    }
    Ok(())
}

/// Sends and receives until so many bytes have arrived.
fn pass(line: &mut Line, (from, ours): (NodeId, SocketId), (to, theirs): (NodeId, SocketId)) {
    const ALL: u64 = 3_000_000;
    let (mut sent, mut got) = (0, 0);
    while got < ALL {
        while sent < ALL {
            match send(line, from, ours, sent, 50_000.min((ALL - sent) as usize)) {
                0 => break,
                n => sent += n,
            }
        }
        let before = got;
        line.settle();
        while got < sent {
            let at = got;
            check(line, to, theirs, &mut got).expect("it stands");
            if got == at {
                break;
            }
        }
        assert!(got > before, "{got} bytes came, {sent} were sent");
    }
}

#[test]
fn data_flows_both_ways_and_nobody_asks_the_forwarder() {
    let mut line = Line::usual();
    let (client, server) = (line.client, line.server);
    let (ours, theirs) = line.connect();
    let proxy = part(&mut line);
    pass(&mut line, (client, ours), (server, theirs));
    pass(&mut line, (server, theirs), (client, ours));
    join(&mut line, proxy);
    let counters = line.proxy().counters();
    assert_eq!((counters.bytes_up, counters.bytes_down), (3_000_000, 3_000_000));
    let stack = &line.sim.node(line.proxy).stack;
    assert_eq!(stack.ledger().ours(), 0, "payload bytes copied by the proxy");
    line.settle();
    assert_eq!(line.sim.node(line.proxy).stack.receive_memory_used(), 0);
}

#[test]
fn data_flows_over_a_network_that_loses_and_nobody_asks_the_forwarder() {
    let faults = "loss=2%,reorder=2%,dup=1%,delay=1ms";
    let mut line = Line::new(Default::default(), faults, 48 << 20);
    let (client, server) = (line.client, line.server);
    let (ours, theirs) = line.connect();
    let proxy = part(&mut line);
    pass(&mut line, (client, ours), (server, theirs));
    join(&mut line, proxy);
    assert_eq!(line.proxy().counters().bytes_up, 3_000_000);
    assert_eq!(line.sim.node(line.proxy).stack.ledger().ours(), 0);
}

#[test]
fn one_way_flows_on_when_the_other_has_ended() {
    let mut line = Line::usual();
    let (client, server) = (line.client, line.server);
    let (ours, theirs) = line.connect();
    line.shutdown(client, ours);
    assert_eq!(line.read(server, theirs), Ok(Vec::new()), "the end");
    let proxy = part(&mut line);
    pass(&mut line, (server, theirs), (client, ours));
    join(&mut line, proxy);
    line.shutdown(server, theirs);
    assert_eq!(line.read(client, ours), Ok(Vec::new()), "the end");
    assert!(line.proxy().is_empty());
    assert_eq!(line.proxy().counters().bytes_down, 3_000_000);
}

#[test]
fn an_end_comes_behind_all_that_was_queued_before_it() {
    let mut line = Line::usual();
    let (client, server) = (line.client, line.server);
    let (ours, theirs) = line.connect();
    let mut sent = 0;
    // More than the proxy has room for, so that some of it waits on every side.
    loop {
        let n = send(&mut line, client, ours, sent, 60_000);
        sent += n;
        line.settle();
        if n == 0 {
            break;
        }
    }
    let (stack, now) = line.stack(client);
    stack.tcp_shutdown(now, ours, Shutdown::Write).expect("it stands");
    stack.close(now, ours);
    let mut got = 0;
    while check(&mut line, server, theirs, &mut got).is_ok() {
        line.settle();
    }
    assert_eq!(got, sent);
    line.abort(server, theirs);
    assert!(line.proxy().is_empty());
    assert_eq!(line.sim.node(line.proxy).stack.receive_memory_used(), 0);
}

#[test]
fn who_was_held_up_flows_again() {
    let mut line = Line::usual();
    let (client, server) = (line.client, line.server);
    let (ours, theirs) = line.connect();
    let (mut sent, mut got) = (0, 0);
    loop {
        let n = send(&mut line, client, ours, sent, 60_000);
        sent += n;
        line.settle();
        if n == 0 {
            break;
        }
    }
    while got < sent {
        check(&mut line, server, theirs, &mut got).expect("it stands");
        line.settle();
    }
    let proxy = part(&mut line);
    send(&mut line, client, ours, sent, 50_000);
    line.settle();
    while got < sent + 50_000 {
        let before = got;
        check(&mut line, server, theirs, &mut got).expect("it stands");
        assert!(got > before, "it does not flow");
    }
    join(&mut line, proxy);
}

#[test]
fn behind_an_urgent_byte_data_flows_again() {
    let mut line = Line::usual();
    let (client, server) = (line.client, line.server);
    let (ours, theirs) = line.connect();
    let mut urgent = FragVec::from_elem(Frag::from_static(b"!"), 1);
    let (stack, now) = line.stack(client);
    assert_eq!(stack.tcp_send_with(now, ours, &mut urgent, SendFlags::URGENT), Ok(1));
    line.write(client, ours, b"a");
    assert_eq!(line.read(server, theirs), Ok(b"!a".to_vec()));
    let proxy = part(&mut line);
    line.write(client, ours, b"b");
    assert_eq!(line.read(server, theirs), Ok(b"b".to_vec()));
    join(&mut line, proxy);
}

#[test]
fn a_reset_is_not_passed_on_by_itself_and_the_forwarder_is_told_of_it() {
    let mut line = Line::usual();
    let (client, server) = (line.client, line.server);
    for by_client in [true, false] {
        let (ours, theirs) = line.connect();
        line.write(client, ours, b"x");
        assert_eq!(line.read(server, theirs), Ok(b"x".to_vec()));
        let (by, reader) = match by_client {
            true => ((client, ours), (server, theirs)),
            false => ((server, theirs), (client, ours)),
        };
        line.write(by.0, by.1, b"last words");
        line.abort(by.0, by.1);
        let mut result = line.read(reader.0, reader.1);
        if result.is_ok() {
            result = line.read(reader.0, reader.1);
        }
        assert_eq!(result, Err(Error::ConnectionReset));
    }
    assert!(line.proxy().is_empty());
    assert_eq!(line.proxy().counters().broken, 2);
}
