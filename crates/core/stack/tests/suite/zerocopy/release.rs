//! The release of memory that was sent by reference: out of order, with uncooperative peers, with owners that
//! do not poll, and at the end of connections.

use std::cell::RefCell;
use std::net::SocketAddrV4;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pagewire_mem::{Frag, FragVec, PAGE_SIZE, PacketBuf, PageBudget};
use pagewire_stack::{
    Coalescing, Error, ErrorEntry, SocketOption, StackConfig, TcpId, ZeroCopyCall,
};
use pagewire_tcp::{Flags, TcpHeader, TcpOptions};

use crate::common::zerocopy::{Buffers, done, opted_in, read, settle, try_send};
use crate::common::{A, Pair, Verbs, forge, pattern};

/// Sends a buffer from A as a segment of its own.
fn send(p: &mut Pair, id: TcpId, frag: Frag) -> u32 {
    let call = try_send(p, id, [frag]).unwrap().unwrap();
    p.flush();
    call
}

fn connected_with(change: impl FnOnce(&mut StackConfig)) -> (Pair, TcpId, TcpId) {
    let mut p = Pair::changed(|a, _| change(a));
    p.meet();
    let (client, server) = opted_in(&mut p);
    (p, client, server)
}

fn connected() -> (Pair, TcpId, TcpId) {
    connected_with(|_| {})
}

/// The ids that are reported, in order.
fn ids(p: &mut Pair, client: TcpId) -> Vec<u32> {
    let mut all = Vec::new();
    while let Some(entry) = p.a.poll_error_queue(client) {
        let ErrorEntry::ZeroCopy(done) = entry else { panic!("{entry:?}") };
        all.extend(done.lo..=done.hi);
    }
    all
}

#[test]
fn a_retransmission_that_overtakes_has_the_later_sends_told_first() {
    let (mut p, client, server) = connected();
    // The first segment stays with the device, as if in a queue of its own.
    let held = Rc::new(RefCell::new(Vec::new()));
    let keep = Rc::clone(&held);
    p.carry = Some(Box::new(move |side, frame| {
        let first = side == A && frame.frag_len() > 0 && keep.borrow().is_empty();
        if first {
            keep.borrow_mut().extend(frame.frags().iter().cloned());
        }
        !first
    }));
    let buffers = Buffers::default();
    for id in 0..3 {
        assert_eq!(send(&mut p, client, buffers.make(1000)), id);
    }
    assert_eq!(settle(&mut p, server).len(), 3000);
    assert_eq!(p.a.poll_error_queue(client), done(1, 2), "the device still has the first");
    assert_eq!(p.a.poll_error_queue(client), None);
    assert_eq!(buffers.released(), 2);
    held.borrow_mut().clear();
    p.flush();
    assert_eq!(p.a.poll_error_queue(client), done(0, 0));
    assert_eq!(buffers.released(), 3);
}

#[test]
fn the_end_of_the_stream_changes_nothing() {
    let (mut p, client, server) = connected();
    let buffers = Buffers::default();
    send(&mut p, client, buffers.make(4000));
    p.a.shutdown(p.now, client, std::net::Shutdown::Write).unwrap();
    assert_eq!(settle(&mut p, server).len(), 4000);
    p.b.close(p.now, server);
    p.run(Duration::from_secs(1));
    assert_eq!(p.a.poll_error_queue(client), done(0, 0), "both sides have closed");
    assert_eq!(buffers.released(), 1);
}

#[test]
fn whoever_closes_is_told_nothing_and_every_buffer_is_released_once() {
    for linger in [None, Some(Duration::ZERO), Some(Duration::from_secs(3))] {
        for peer in ["reads", "resets", "is gone"] {
            let (mut p, client, server) = connected();
            let buffers = Buffers::default();
            for _ in 0..3 {
                send(&mut p, client, buffers.make(20_000));
            }
            p.a.tcp(client).unwrap().set_option(p.now, SocketOption::Linger(linger)).unwrap();
            if peer == "is gone" {
                p.carry = Some(Box::new(|_, _| false));
            }
            p.a.close(p.now, client);
            if linger != Some(Duration::ZERO) {
                assert_eq!(buffers.released(), 0, "the peer does not have it yet");
            }
            p.flush();
            assert_eq!(p.a.poll_error_queue(client), None);
            if peer == "resets" {
                p.b.abort(p.now, server);
            }
            let got = settle(&mut p, server);
            if peer == "reads" && linger != Some(Duration::ZERO) {
                assert!(got == pattern(20_000).repeat(3));
                assert_eq!(buffers.released(), 3, "the peer has everything");
            }
            p.b.close(p.now, server);
            p.run(Duration::from_secs(3600));
            assert_eq!(buffers.released(), 3, "{linger:?}, and the peer {peer}");
        }
    }
}

/// An acknowledgement of `ack` by the peer of `client`, with blocks of what has arrived beyond.
fn acknowledge(p: &mut Pair, last: &TcpHeader, ack: u32, blocks: &[(u32, u32)]) {
    let (from, to): (SocketAddrV4, SocketAddrV4) =
        ("10.0.0.2:80".parse().unwrap(), SocketAddrV4::new([10, 0, 0, 1].into(), last.src_port));
    let timestamps = last.options.timestamps.map(|(value, echo)| (echo, value));
    let sack = blocks.iter().map(|&(l, r)| (last.seq + l, last.seq + r)).collect();
    let header = TcpHeader {
        seq: last.ack,
        ack: last.seq + ack,
        flags: Flags::ACK,
        window: 60_000,
        options: TcpOptions { timestamps, sack, ..TcpOptions::default() },
        ..*last
    };
    p.a.handle_frame(p.now, forge::frame(1, from, to, header));
    p.flush();
}

/// Loses everything while the second is set; the first gets the header of the first segment with payload.
fn lose_all(p: &mut Pair) -> (Rc<RefCell<Option<TcpHeader>>>, Rc<RefCell<bool>>) {
    let (first, lost) = (Rc::new(RefCell::new(None)), Rc::new(RefCell::new(true)));
    let (seen, losing) = (Rc::clone(&first), Rc::clone(&lost));
    p.carry = Some(Box::new(move |side, frame: &PacketBuf| {
        if side == A && frame.frag_len() > 0 && seen.borrow().is_none() {
            *seen.borrow_mut() = forge::parse(frame).map(|(_, _, header)| header);
        }
        !*losing.borrow()
    }));
    (first, lost)
}

#[test]
fn a_peer_that_reneges_on_what_it_has_selectively_acknowledged_finds_it_all_still_there() {
    let (mut p, client, server) = connected();
    let (first, lost) = lose_all(&mut p);
    let buffers = Buffers::default();
    for id in 0..4 {
        assert_eq!(send(&mut p, client, buffers.make(1000)), id);
    }
    let header = first.borrow().unwrap();
    // "All but the first has arrived", in words that bind nobody (RFC 2018 section 8).
    acknowledge(&mut p, &header, 0, &[(1000, 4000)]);
    p.run(Duration::from_millis(20));
    assert_eq!((p.a.poll_error_queue(client), buffers.released()), (None, 0), "not acknowledged");
    // The first has come, and the others were thrown away.
    acknowledge(&mut p, &header, 1000, &[]);
    p.run(Duration::from_millis(1));
    assert_eq!((p.a.poll_error_queue(client), buffers.released()), (done(0, 0), 1));
    // A stream about which the peer lies comes to nothing; its end tells the rest.
    *lost.borrow_mut() = false;
    p.b.abort(p.now, server);
    p.run(Duration::from_secs(10));
    assert_eq!(ids(&mut p, client), [1, 2, 3]);
    assert_eq!(buffers.released(), 4);
    assert_eq!(p.a.take_error(client), Some(Error::ConnectionReset));
}

#[test]
fn what_a_peer_reneged_on_is_sent_again_from_the_same_memory() {
    let (mut p, client, server) = connected();
    let (first, lost) = lose_all(&mut p);
    let buffers = Buffers::default();
    for _ in 0..4 {
        send(&mut p, client, buffers.make(1000));
    }
    let header = first.borrow().unwrap();
    acknowledge(&mut p, &header, 0, &[(1000, 4000)]);
    p.run(Duration::from_millis(5));
    *lost.borrow_mut() = false;
    // The timer goes off with the first byte still missing, and nothing counts as received.
    let got = settle(&mut p, server);
    assert!(got == [pattern(1000), pattern(1000), pattern(1000), pattern(1000)].concat());
    assert_eq!(ids(&mut p, client), [0, 1, 2, 3]);
    assert_eq!(buffers.released(), 4);
}

#[test]
fn a_peer_that_never_acknowledges_holds_no_more_than_a_send_buffer_and_not_for_ever() {
    let budget = Arc::new(PageBudget::new(1 << 20));
    let (mut p, client, _) = connected_with(|a| a.zerocopy.pages = Arc::clone(&budget));
    // The peer answers ARP, and nothing else.
    p.carry = Some(Box::new(|_, frame| frame.head()[12..14] == [8, 6]));
    let buffers = Buffers::default();
    let mut sent = 0;
    let error = loop {
        let mut frags = FragVec::from_iter([buffers.make(PAGE_SIZE)]);
        let mut call = ZeroCopyCall::new();
        match p.a.send(p.now, client, (&mut frags, &mut call)) {
            Ok(_) => assert_eq!(call.id(), Some(sent)),
            Err(error) => break error,
        }
        sent += 1;
        p.run(Duration::from_millis(1));
        assert!(sent < 10_000, "there is no end to it");
    };
    assert!(matches!(error, Error::WouldBlock | Error::TooManyNotifications), "{error}");
    let most = p.a.default_config().send_buffer as usize / PAGE_SIZE;
    assert!((sent as usize) <= most, "{sent} pages");
    assert_eq!(budget.used(), 3 * sent as usize, "all of it is charged");
    p.run(Duration::from_secs(3600));
    let mut told = ids(&mut p, client);
    assert_ne!(told[0], 0, "first what was never sent");
    told.sort_unstable();
    assert_eq!(told, (0..sent).collect::<Vec<_>>(), "given up, and told");
    assert_eq!(p.a.take_error(client), Some(Error::TimedOut));
    assert_eq!((budget.used(), buffers.released()), (0, sent as usize + 1));
}

#[test]
fn an_owner_that_never_reads_its_notifications_runs_into_the_limit_and_not_into_memory() {
    let (mut p, client, server) = connected_with(|a| a.zerocopy.notification_bytes = 10 * 704);
    let buffers = Buffers::default();
    // Read in time and far too late, in turn: no two of them become one.
    for id in 0..10 {
        assert_eq!(send(&mut p, client, buffers.make(2000)), id);
        p.run(Duration::from_millis(if id % 2 == 0 { 100 } else { 2100 }));
        assert_eq!(read(&mut p, server).len(), 2000);
        p.run(Duration::from_millis(100));
    }
    for _ in 0..100 {
        let error = try_send(&mut p, client, [buffers.make(2000)]);
        assert_eq!(error, Err(Error::TooManyNotifications));
    }
    assert_eq!(buffers.released(), 110, "what was refused is not kept");
    // By copy it goes on, and with what is read it goes on without.
    assert_eq!(p.a.send(p.now, client, b"copied"), Ok(6));
    assert_eq!(p.a.poll_error_queue(client), done(0, 0));
    assert_eq!(send(&mut p, client, buffers.make(2000)), 10, "no id was lost");
    settle(&mut p, server);
    assert_eq!(ids(&mut p, client), (1..11).collect::<Vec<_>>());
}

#[test]
fn notifications_that_become_one_take_the_room_of_one() {
    for coalescing in [Coalescing::SameKind, Coalescing::Linux] {
        let (mut p, client, server) = connected_with(|a| {
            a.zerocopy.notification_bytes = 2 * 704;
            a.zerocopy.coalescing = coalescing;
        });
        let buffers = Buffers::default();
        for id in 0..1000 {
            assert_eq!(send(&mut p, client, buffers.make(100)), id);
            settle(&mut p, server);
        }
        assert_eq!(p.a.poll_error_queue(client), done(0, 999));
    }
}

/// Lengths of the fragments of each segment that A sends.
fn fragments(p: &mut Pair) -> Rc<RefCell<Vec<Vec<usize>>>> {
    p.watch(|side, frame| {
        let sent = side == A && frame.frag_len() > 0;
        sent.then(|| frame.frags().iter().map(Frag::len).collect())
    })
}

#[test]
fn a_contiguous_range_is_one_fragment_however_long_and_each_piece_is_its_own() {
    let (mut p, client, server) = connected();
    let seen = fragments(&mut p);
    let memory = Bytes::from(pattern(60_000));
    assert_eq!(send(&mut p, client, Frag::from_bytes(memory.clone())), 0);
    assert_eq!(settle(&mut p, server).len(), 60_000);
    assert!(seen.borrow().iter().all(|segment| segment.len() == 1), "{:?}", seen.borrow());
    seen.borrow_mut().clear();
    // Neighbours in memory, and still three pieces.
    let pieces = [0..100, 100..300, 300..1000].map(|part| Frag::from_bytes(memory.slice(part)));
    let (mut frags, mut call) = (FragVec::from_iter(pieces), ZeroCopyCall::new());
    assert_eq!(p.a.send(p.now, client, (&mut frags, &mut call)), Ok(1000));
    drop(call);
    assert_eq!(settle(&mut p, server).len(), 1000);
    assert_eq!(*seen.borrow(), [[100, 200, 700]]);
    assert_eq!(ids(&mut p, client), [0, 1]);
}

#[test]
fn sends_by_reference_and_by_copy_mix_in_any_order_and_arrive_in_theirs() {
    let (mut p, client, server) = connected();
    let (buffers, mut expected, mut next) = (Buffers::default(), Vec::new(), 0);
    for round in 0..40_usize {
        let data = pattern(round * 37 + 1);
        match round % 3 {
            0 => {
                assert_eq!(try_send(&mut p, client, [buffers.make(data.len())]), Ok(Some(next)));
                next += 1;
            }
            1 => assert_eq!(p.a.send(p.now, client, &data), Ok(data.len())),
            _ => {
                let mut frags = FragVec::from_iter([buffers.make(data.len())]);
                assert_eq!(p.a.send(p.now, client, &mut frags), Ok(data.len()));
            }
        }
        expected.extend(data);
    }
    assert!(settle(&mut p, server) == expected);
    assert_eq!(p.a.poll_error_queue(client), done(0, next - 1));
    assert_eq!(buffers.released(), 27);
}
