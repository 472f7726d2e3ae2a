//! Zero-copy sends with notifications: one test for each row of the contract.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pagewire_mem::{CopyReason, Frag, FragVec, PageBudget};
use pagewire_stack::{
    Chunks, Coalescing, Error, ErrorEntry, ErrorOrigin, Readiness, StackConfig, TcpId, ZeroCopyCall,
};

use crate::common::zerocopy::{
    bytes, connected, copied, done, opted_in, read, send_to, settle, try_send,
};
use crate::common::{A, B, Pair, Verbs, addr, capabilities, config, pattern, plain};

/// Sends `frags` from A by reference, all of it, and says under which id.
fn send(p: &mut Pair, id: TcpId, frags: impl IntoIterator<Item = Frag>) -> Option<u32> {
    try_send(p, id, frags).unwrap()
}

fn pair_with(change: impl FnOnce(&mut StackConfig)) -> Pair {
    Pair::changed(|a, _| change(a))
}

#[test]
fn a_send_completes_under_its_id_once_the_peer_has_the_data_and_nobody_holds_it() {
    let (mut p, client, server) = connected();
    assert_eq!(send(&mut p, client, [bytes(4000)]), Some(0));
    p.run(Duration::from_millis(100));
    assert_eq!(p.a.poll_error_queue(client), None, "the peer has not read it: it holds the bytes");
    assert_eq!(read(&mut p, server), pattern(4000));
    assert_eq!(p.a.poll_error_queue(client), done(0, 0));
    assert_eq!(p.a.poll_error_queue(client), None);
    let entry = done(0, 0).unwrap();
    assert_eq!((entry.errno(), entry.origin()), (0, ErrorOrigin::ZeroCopy));
}

#[test]
fn a_release_after_the_last_look_of_a_turn_stays_pending() {
    let (mut p, client, server) = connected();
    send(&mut p, client, [bytes(4000)]);
    p.run(Duration::from_millis(100));
    let mut held = Vec::new();
    let all = Chunks { max: 4000, into: &mut held };
    assert_eq!(p.b.recv(p.now, server, all), Ok(4000));
    p.run(Duration::from_millis(100));
    while p.a.poll_event().is_some() {}
    // Another thread drops it between the last report of a driver's turn and the turn's end.
    drop(held);
    p.a.end_turn();
    assert!(
        p.a.completions().is_pending(),
        "a driver that looks before it sleeps would not see it"
    );
    assert!(p.a.poll_event().is_some());
    assert_eq!(p.a.poll_error_queue(client), done(0, 0));
}

#[test]
fn a_socket_that_has_not_opted_in_copies_and_gives_no_id() {
    let mut p = Pair::new();
    let (client, server, _) = p.connect("10.0.0.2:80");
    assert_eq!(send(&mut p, client, [bytes(4000), bytes(10)]), None);
    assert_eq!(p.a.ledger().get(CopyReason::AppWrite), 4010);
    assert_eq!(settle(&mut p, server).len(), 4010);
    assert_eq!(p.a.poll_error_queue(client), None);
}

#[test]
fn opting_out_again_ends_ids_but_not_the_notifications_of_earlier_sends() {
    let (mut p, client, server) = connected();
    assert_eq!(send(&mut p, client, [bytes(100)]), Some(0));
    p.a.set_zerocopy(client, false).unwrap();
    assert_eq!(send(&mut p, client, [bytes(100)]), None);
    settle(&mut p, server);
    assert_eq!(p.a.poll_error_queue(client), done(0, 0));
    assert_eq!(p.a.poll_error_queue(client), None);
}

#[test]
fn accepted_sockets_inherit_the_setting_of_their_listener() {
    let mut p = Pair::new();
    let to: SocketAddr = "10.0.0.2:80".parse().unwrap();
    let listener = p.b.listen(to, 1).unwrap();
    p.b.set_zerocopy(listener, true).unwrap();
    p.a.connect(p.now, to, None).unwrap();
    p.run(Duration::from_millis(10));
    let (server, _) = p.b.accept(listener).unwrap();
    assert_eq!(p.b.zerocopy(server), Ok(true));
}

#[test]
fn ids_count_calls_not_bytes_and_failed_or_empty_calls_take_none() {
    let (mut p, client, server) = connected();
    assert_eq!(send(&mut p, client, []), None);
    assert_eq!(send(&mut p, client, [Frag::empty()]), None);
    assert_eq!(send(&mut p, client, (0..40).map(|_| bytes(1))), Some(0));
    assert_eq!(settle(&mut p, server).len(), 40);
    p.a.shutdown(p.now, client, std::net::Shutdown::Write).unwrap();
    assert_eq!(try_send(&mut p, client, [bytes(1)]), Err(Error::BrokenPipe));
    assert_eq!(p.a.poll_error_queue(client), done(0, 0));
}

#[test]
fn a_send_before_the_connection_is_there_takes_no_id() {
    let mut p = Pair::new();
    let to: SocketAddr = "10.0.0.2:80".parse().unwrap();
    p.b.listen(to, 1).unwrap();
    let client = p.a.connect(p.now, to, None).unwrap();
    p.a.set_zerocopy(client, true).unwrap();
    assert_eq!(try_send(&mut p, client, [bytes(1)]), Err(Error::WouldBlock));
    p.run(Duration::from_millis(10));
    assert_eq!(send(&mut p, client, [bytes(1)]), Some(0));
}

#[test]
fn a_call_that_waits_for_room_has_one_id_however_many_tries_it_takes() {
    let (mut p, client, server) = connected();
    let (mut frags, mut call) = (FragVec::from_iter([bytes(20 << 20)]), ZeroCopyCall::new());
    let (mut tries, mut got) = (0, 0);
    while !frags.is_empty() {
        tries += usize::from(p.a.send(p.now, client, (&mut frags, &mut call)).is_ok());
        assert_eq!(call.id(), Some(0));
        p.run(Duration::from_millis(1));
        got += read(&mut p, server).len();
    }
    assert!(tries > 2);
    got += settle(&mut p, server).len();
    assert_eq!(got, 20 << 20);
    assert_eq!(p.a.poll_error_queue(client), None, "the call is not over");
    drop(call);
    assert_eq!(p.a.poll_error_queue(client), done(0, 0));
    assert_eq!(send(&mut p, client, [bytes(1)]), Some(1));
}

#[test]
fn consecutive_completions_of_one_kind_become_one_range_and_plain_sends_do_not_break_it() {
    let (mut p, client, server) = connected();
    for id in 0..3 {
        assert_eq!(send(&mut p, client, [bytes(4000)]), Some(id));
    }
    p.a.send(p.now, client, b"plain").unwrap();
    assert_eq!(send(&mut p, client, [bytes(4000)]), Some(3));
    settle(&mut p, server);
    assert_eq!(p.a.poll_error_queue(client), done(0, 3));
    assert_eq!(p.a.poll_error_queue(client), None);
}

#[test]
fn readiness_shows_that_the_error_queue_is_not_empty_and_every_completion_is_an_event() {
    let (mut p, client, server) = connected();
    for _ in 0..2 {
        send(&mut p, client, [bytes(4000)]);
        settle(&mut p, server);
        let told = p.reported(A, client, Readiness::ERROR_QUEUE);
        assert!(told > 0, "the completion was not reported");
        p.events.clear();
        assert!(p.a.readiness(client).unwrap().contains(Readiness::ERROR_QUEUE));
        assert!(!p.a.readiness(client).unwrap().contains(Readiness::ERROR));
        assert_eq!(p.a.take_error(client), None, "a notification is no error");
    }
    assert_eq!(p.a.poll_error_queue(client), done(0, 1));
    assert!(!p.a.readiness(client).unwrap().contains(Readiness::ERROR_QUEUE));
}

#[test]
fn a_packet_that_loops_back_is_copied_and_says_so() {
    let mut p = Pair::new();
    let to: SocketAddr = "10.0.0.1:80".parse().unwrap();
    let listener = p.a.listen(to, 1).unwrap();
    let client = p.a.connect(p.now, to, None).unwrap();
    p.a.set_zerocopy(client, true).unwrap();
    p.run(Duration::from_millis(10));
    let (server, _) = p.a.accept(listener).unwrap();
    assert_eq!(send(&mut p, client, [bytes(4000)]), Some(0));
    p.run(Duration::from_millis(100));
    assert_eq!(p.a.poll_error_queue(client), copied(0, 0), "though nobody has read it");
    assert_eq!(p.a.tcp(server).map(|tcp| tcp.queued()), Ok(4000));
}

#[test]
fn a_device_that_cannot_gather_gets_copies_and_the_completion_says_so() {
    for max_frags in [0, 1] {
        let mut caps = plain(1);
        caps.max_frags = max_frags;
        let mut p = Pair::with(config(caps, 1), config(plain(2), 2));
        let (client, server) = opted_in(&mut p);
        p.carry = Some(Box::new(move |_, frame| {
            assert!(frame.frags().len() <= 1);
            assert!(max_frags > 0 || frame.head().is_empty() || frame.frags().is_empty());
            true
        }));
        let two: Vec<u8> = [pattern(4000), pattern(3000)].concat();
        assert_eq!(send(&mut p, client, [bytes(4000), bytes(3000)]), Some(0));
        assert_eq!(settle(&mut p, server), two);
        assert_eq!(p.a.poll_error_queue(client), copied(0, 0));
        assert!(p.a.ledger().get(CopyReason::DeviceLinearize) > 0);
    }
}

#[test]
fn frames_that_count_as_looped_carry_private_copies() {
    let mut p = pair_with(|a| a.zerocopy.looped_copy = true);
    let (client, server) = opted_in(&mut p);
    assert_eq!(send(&mut p, client, [bytes(4000)]), Some(0));
    p.run(Duration::from_millis(100));
    assert_eq!(p.a.poll_error_queue(client), copied(0, 0), "though nobody has read it");
    assert_eq!(read(&mut p, server), pattern(4000));
}

#[test]
fn notifications_unread_and_to_come_are_bounded() {
    let mut p = pair_with(|a| a.zerocopy.notification_bytes = 1000);
    let (client, server) = opted_in(&mut p);
    assert_eq!(send(&mut p, client, [bytes(1)]), Some(0));
    assert_eq!(try_send(&mut p, client, [bytes(1)]), Err(Error::TooManyNotifications));
    settle(&mut p, server);
    assert_eq!(try_send(&mut p, client, [bytes(1)]), Err(Error::TooManyNotifications), "unread");
    assert_eq!(p.a.poll_error_queue(client), done(0, 0));
    assert_eq!(send(&mut p, client, [bytes(1)]), Some(1), "no gap");
    assert_eq!(Error::TooManyNotifications.errno(), 105);
}

#[test]
fn pages_held_are_bounded_across_stacks_and_charged_until_completion() {
    let pages = Arc::new(PageBudget::new(16));
    let mut p = Pair::changed(|a, b| {
        (a.zerocopy.pages, b.zerocopy.pages) = (Arc::clone(&pages), Arc::clone(&pages));
    });
    let (client, server) = opted_in(&mut p);
    assert_eq!(try_send(&mut p, client, [bytes(61_440)]), Err(Error::TooManyPagesHeld));
    assert_eq!(send(&mut p, client, [bytes(61_439)]), Some(0), "no gap");
    assert_eq!(pages.used(), 16);
    p.b.set_zerocopy(server, true).unwrap();
    let mut one = FragVec::from_iter([bytes(1)]);
    let other = p.b.send(p.now, server, (&mut one, &mut ZeroCopyCall::new()));
    assert_eq!(other, Err(Error::TooManyPagesHeld), "the user is the same");
    settle(&mut p, server);
    assert_eq!(pages.used(), 0);
    assert_eq!(Error::TooManyPagesHeld.errno(), 105);
}

/// A connection to a peer that takes 4,000 bytes and reads nothing, with four sends of 2,000.
fn half_sent() -> (Pair, TcpId, TcpId) {
    let (mut a, mut b) = (config(capabilities(1), 1), config(capabilities(2), 2));
    a.zerocopy.looped_copy = true;
    // Three segments.
    b.tcp.recv_buffer = 5000;
    let mut p = Pair::with(a, b);
    let (client, server) = opted_in(&mut p);
    for id in 0..4 {
        assert_eq!(send(&mut p, client, [bytes(2000)]), Some(id));
        // Each a segment of its own.
        p.flush();
    }
    (p, client, server)
}

#[test]
fn a_reset_completes_what_was_never_sent_first_and_everything_once() {
    let (mut p, client, server) = half_sent();
    // No acknowledgement comes back, only the reset.
    p.carry = Some(Box::new(|side, frame| side == B && frame.head()[14 + 20 + 13] & 4 != 0));
    p.run(Duration::from_micros(10));
    assert_eq!(p.a.poll_error_queue(client), None);
    p.b.abort(p.now, server);
    p.run(Duration::from_millis(1));
    assert_eq!(p.a.poll_error_queue(client), done(2, 3), "never sent: never copied");
    assert_eq!(p.a.poll_error_queue(client), copied(0, 1));
    assert_eq!(p.a.poll_error_queue(client), None);
    assert_eq!(p.a.take_error(client), Some(Error::ConnectionReset));
    assert_eq!(try_send(&mut p, client, [bytes(1)]), Err(Error::BrokenPipe));
}

#[test]
fn a_timeout_and_an_abort_complete_everything_once() {
    for abort in [false, true] {
        let (mut p, client, _) = half_sent();
        p.carry = Some(Box::new(|_, _| false));
        if abort {
            p.a.abort(p.now, client);
        }
        p.run(Duration::from_secs(3600));
        let mut seen = Vec::new();
        while let Some(ErrorEntry::ZeroCopy(n)) = p.a.poll_error_queue(client) {
            seen.extend(n.lo..=n.hi);
        }
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2, 3]);
    }
}

#[test]
fn eighteen_pieces_leave_as_seventeen_and_one_both_pushed() {
    let mut p = pair_with(|a| a.zerocopy.coalescing = Coalescing::Linux);
    let (client, server) = opted_in(&mut p);
    let seen = p.watch(|side, frame| {
        let sent = side == A && frame.frag_len() > 0;
        sent.then(|| (frame.frag_len(), frame.head()[14 + 20 + 13] & 8 != 0))
    });
    let all = Bytes::from(pattern(18));
    let pieces = (0..18).map(|i| Frag::from_bytes(all.slice(i..=i)));
    assert_eq!(send(&mut p, client, pieces), Some(0));
    assert_eq!(settle(&mut p, server), pattern(18));
    assert_eq!(*seen.borrow(), [(17, true), (1, true)]);
    assert_eq!(p.a.poll_error_queue(client), done(0, 0));
}

#[test]
fn datagrams_have_ids_and_completions_of_their_own() {
    let mut p = Pair::met();
    let (client, server) = p.datagram_sockets("0.0.0.0");
    let to = Some(addr("10.0.0.2:53"));
    let send = |p: &mut Pair, len| send_to(&mut p.a, p.now, client, [bytes(len)], to);
    assert_eq!(send(&mut p, 600), Ok((600, None)), "not opted in");
    p.a.set_zerocopy(client, true).unwrap();
    assert_eq!(send(&mut p, 0), Ok((0, None)));
    assert_eq!(send(&mut p, 70_000), Err(Error::MessageTooLong));
    assert_eq!(send(&mut p, 600), Ok((600, Some(0))));
    assert_eq!(send(&mut p, 600), Ok((600, Some(1))));
    p.run(Duration::from_millis(1));
    assert_eq!(p.a.poll_error_queue(client), None, "the receiver holds them");
    while p.b.recv_from(server, pagewire_stack::Datagram).is_ok() {}
    p.flush();
    assert!(p.a.readiness(client).unwrap().contains(Readiness::ERROR_QUEUE));
    assert_eq!(p.a.poll_error_queue(client), done(0, 1));
}

/// Memory of the test's own, as a program lends it.
fn lent(memory: &mut [u8]) -> Frag {
    let at = std::ptr::NonNull::from(&mut *memory).cast::<u8>();
    // SAFETY: each test keeps the vector until the send is complete, or has closed the socket and
    // run the wire dry; it writes it through raw pointers only.
    unsafe { Frag::lent(at, memory.len()) }
}

#[test]
fn writing_to_a_buffer_in_flight_changes_data_only() {
    for device in [capabilities, plain] {
        let mut p = Pair::with(config(device(1), 1), config(device(2), 2));
        let (client, server) = opted_in(&mut p);
        let mut memory = pattern(200_000);
        let at = memory.as_mut_ptr();
        let frag = lent(&mut memory);
        let (mut frags, mut call) = (FragVec::from_iter([frag]), ZeroCopyCall::new());
        let mut drops = 0;
        p.carry = Some(Box::new(move |_, frame| {
            // Some is lost, so that it is sent again after it has changed.
            drops += usize::from(frame.frag_len() > 0);
            drops % 20 != 3
        }));
        let mut got = 0;
        for round in 0..20_000_usize {
            let _ = p.a.send(p.now, client, (&mut frags, &mut call));
            p.run(Duration::from_millis(1));
            // SAFETY: inside the vector.
            let byte = unsafe { at.add(round * 97 % 200_000) };
            // SAFETY: valid, and nobody has a reference to the vector.
            unsafe { byte.write_volatile(round as u8) };
            got += read(&mut p, server).len();
            if got == 200_000 {
                break;
            }
        }
        assert_eq!(got, 200_000, "every byte arrives, whatever it is by then");
        drop(call);
        p.run(Duration::from_millis(500));
        assert_eq!(p.a.poll_error_queue(client), done(0, 0));
        assert!(p.a.readiness(client).unwrap().contains(Readiness::CONNECTED));
        // A checksum made before a byte changed is wrong: that frame is dropped and sent again.
        let harmless = |(reason, n): (pagewire_stack::DropReason, u64)| {
            n == 0 || reason.name().contains("checksum")
        };
        assert!(p.b.counters().iter_drops().all(harmless), "{:?}", p.b.counters());
    }
}

#[test]
fn memory_that_was_lent_can_be_freed_when_the_socket_is_closed() {
    let (mut p, client, server) = connected();
    let mut memory = pattern(100_000);
    assert_eq!(send(&mut p, client, [lent(&mut memory)]), Some(0));
    p.a.close(p.now, client);
    // Were it still referred to, this is what would arrive.
    memory.fill(0);
    drop(memory);
    assert!(settle(&mut p, server) == pattern(100_000));
}

#[test]
fn what_a_receiver_does_not_read_in_time_is_given_back() {
    let (mut p, client, server) = connected();
    assert_eq!(send(&mut p, client, [bytes(100_000)]), Some(0));
    p.run(Duration::from_millis(900));
    assert_eq!(p.a.poll_error_queue(client), None);
    p.run(Duration::from_millis(200));
    assert_eq!(p.a.poll_error_queue(client), copied(0, 0));
    assert_eq!(p.b.ledger().get(CopyReason::LoopPrivate), 100_000);
    assert!(read(&mut p, server) == pattern(100_000));
    // Data that is read in time is not copied, however long the connection lives.
    for _ in 0..30 {
        send(&mut p, client, [bytes(10_000)]);
        p.run(Duration::from_millis(300));
        read(&mut p, server);
    }
    assert_eq!(p.b.ledger().get(CopyReason::LoopPrivate), 100_000);
    p.run(Duration::from_secs(2));
    let next = p.b.poll_timeout();
    assert!(next.is_none_or(|at| at > p.now + Duration::from_secs(60)), "nothing is due: {next:?}");
}

#[test]
fn what_is_not_read_in_time_is_given_back_by_a_receiver_that_is_short_of_pages_itself() {
    let mut b = config(capabilities(2), 2);
    b.memory = 2 << 20;
    b.tcp.recv_buffer_initial = 48 << 10;
    b.tcp.send_buffer_initial = b.tcp.send_buffer;
    let mut a = config(capabilities(1), 1);
    // On this link, what was received and not read is in the pages of its sender.
    (a.tcp.recv_buffer, a.tcp.recv_buffer_initial) = (4 << 10, 4 << 10);
    let mut p = Pair::with(a, b);
    let (client, server) = opted_in(&mut p);
    // The receiver has as much to send as it may, and its peers do not read either.
    let (writes, now) = (vec![7; 1 << 20], p.now);
    let others: Vec<_> = (0..12).map(|n| p.connect(&format!("10.0.0.2:{}", 100 + n)).1).collect();
    for _ in 0..100 {
        for id in &others {
            while p.b.send(now, *id, &writes).is_ok() {}
        }
        p.run(Duration::from_millis(1));
    }
    let pool = p.b.pool_audit();
    assert!(pool.free < pool.total / 2, "{pool:?}");
    assert_eq!(send(&mut p, client, [bytes(40_000)]), Some(0));
    p.run(Duration::from_secs(2));
    assert_eq!(p.a.poll_error_queue(client), copied(0, 0));
    assert!(read(&mut p, server) == pattern(40_000));
}

#[test]
fn a_deadline_can_be_switched_off() {
    let mut p = Pair::changed(|_, b| b.zerocopy.received_deadline = None);
    let (client, _server) = opted_in(&mut p);
    send(&mut p, client, [bytes(100_000)]);
    p.run(Duration::from_secs(3600));
    assert_eq!(p.a.poll_error_queue(client), None);
}

#[test]
fn sends_share_a_completion_while_the_earlier_is_unsent_and_others_share_no_segment() {
    let mut p = pair_with(|a| {
        a.zerocopy.coalescing = Coalescing::Linux;
        a.tcp.send_buffer_initial = a.tcp.send_buffer;
    });
    let (client, server) = opted_in(&mut p);
    let sent = |side, len| (side == A && len > 0).then_some(len);
    let seen = p.watch(move |side, frame| sent(side, frame.frag_len()));
    // Nothing leaves before the wire is flushed: the second call joins the first, up to 512 KiB.
    for id in 0..2 {
        assert_eq!(send(&mut p, client, [bytes(10_000)]), Some(id));
    }
    assert_eq!(p.a.sends_outstanding(client), Ok(1));
    assert_eq!(send(&mut p, client, [bytes(520_000)]), Some(2));
    assert_eq!(p.a.sends_outstanding(client), Ok(2), "too much for one");
    p.flush();
    assert!(!seen.borrow().is_empty());
    assert_eq!(settle(&mut p, server).len(), 540_000);
    let mut at = 0;
    let ends: Vec<_> = seen.borrow().iter().map(|n| (at += n, at).1).collect();
    assert!(ends.contains(&20_000), "a segment ends where the completion does: {ends:?}");
    assert_eq!(p.a.poll_error_queue(client), done(0, 2));
}

#[test]
fn linux_merges_ranges_of_different_kind_and_the_older_flag_wins() {
    for (coalescing, first) in
        [(Coalescing::Linux, copied(0, 1)), (Coalescing::SameKind, copied(0, 0))]
    {
        let mut p = pair_with(|a| a.zerocopy.coalescing = coalescing);
        let (client, server) = opted_in(&mut p);
        send(&mut p, client, [bytes(10_000)]);
        p.run(Duration::from_millis(1100));
        read(&mut p, server);
        send(&mut p, client, [bytes(10_000)]);
        p.run(Duration::from_millis(100));
        read(&mut p, server);
        assert_eq!(p.a.poll_error_queue(client), first);
    }
}

#[test]
fn what_goes_along_with_a_syn_is_copied_and_the_rest_of_the_call_is_not() {
    use pagewire_stack::{FastOpenConfig, FastOpenMode, SocketOption};
    let mut p = Pair::met();
    let mode = FastOpenMode::CLIENT.union(FastOpenMode::SERVER);
    p.a.fast_open().configure(FastOpenConfig { mode, ..FastOpenConfig::default() });
    p.b.fast_open().configure(FastOpenConfig { mode, ..FastOpenConfig::default() });
    let to: SocketAddr = "10.0.0.2:80".parse().unwrap();
    let listener = p.b.listen(to, 16).unwrap();
    p.b.listener(listener).unwrap().set_option(SocketOption::FastOpen(8)).unwrap();
    for warm in [false, true] {
        let config = p.a.default_config();
        let by = pagewire_stack::ConnectOptions {
            config: Some(config),
            fast_open: Some(false),
            ..Default::default()
        };
        let client = p.a.connect(p.now, to, by).unwrap();
        p.a.set_zerocopy(client, true).unwrap();
        let (mut frags, mut call) = (FragVec::from_iter([bytes(5000)]), ZeroCopyCall::new());
        let first = p.a.send(p.now, client, (&mut frags, &mut call));
        if !warm {
            assert_eq!((first, call.id()), (Err(Error::WouldBlock), None), "no cookie, no id");
            p.run(Duration::from_millis(100));
            p.a.close(p.now, client);
            let (server, _) = p.b.accept(listener).unwrap();
            p.b.close(p.now, server);
            p.run(Duration::from_millis(100));
            continue;
        }
        let with_syn = first.unwrap();
        assert!((1000..1461).contains(&with_syn), "{with_syn}");
        assert_eq!(p.a.ledger().get(CopyReason::AppWrite), with_syn as u64);
        p.run(Duration::from_millis(100));
        let rest = p.a.send(p.now, client, (&mut frags, &mut call));
        assert_eq!((rest, call.id()), (Ok(5000 - with_syn), Some(0)));
        assert_eq!(p.a.ledger().get(CopyReason::AppWrite), with_syn as u64);
        drop(call);
        p.run(Duration::from_millis(100));
        let (server, _) = p.b.accept(listener).unwrap();
        assert_eq!(settle(&mut p, server), pattern(5000));
        assert_eq!(p.a.poll_error_queue(client), copied(0, 0), "one id for all of it");
        assert_eq!(p.a.poll_error_queue(client), None);
    }
}

#[test]
fn a_datagram_that_nobody_reads_in_time_is_given_back() {
    let mut p = Pair::met();
    let (client, server) = p.datagram_sockets("0.0.0.0");
    let to = Some(addr("10.0.0.2:53"));
    p.a.set_zerocopy(client, true).unwrap();
    for wait in [600, 500] {
        send_to(&mut p.a, p.now, client, [bytes(1000)], to).unwrap();
        p.run(Duration::from_millis(wait));
    }
    assert_eq!(p.a.poll_error_queue(client), copied(0, 0), "the first has waited for a second");
    p.run(Duration::from_millis(2000));
    assert_eq!(p.a.poll_error_queue(client), copied(1, 1));
    for _ in 0..2 {
        let (frags, _) = p.b.recv_from(server, pagewire_stack::Datagram).unwrap();
        assert_eq!(frags[0].as_slice(), Some(&pattern(1000)[..]));
    }
}

#[test]
fn a_copy_that_finds_no_page_waits_for_one() {
    let mut a = config(capabilities(1), 1);
    a.memory = 1 << 20;
    a.tcp.send_buffer = 4 << 20;
    let mut p = Pair::with(a, config(capabilities(2), 2));
    let (client, server, _) = p.connect("10.0.0.2:80");
    let (mut frags, mut call) = (FragVec::from_iter([bytes(3 << 20)]), ZeroCopyCall::new());
    let mut got = 0;
    let mut starved = false;
    while got < 3 << 20 {
        // As much as there are pages for: less than the send buffer takes.
        while !frags.iter().all(Frag::is_empty) {
            match p.a.send(p.now, client, (&mut frags, &mut call)) {
                Ok(n) => assert!(n > 0),
                Err(error) => {
                    assert_eq!(error, Error::WouldBlock);
                    starved = true;
                    break;
                }
            }
        }
        p.run(Duration::from_millis(1));
        got += read(&mut p, server).len();
    }
    assert!(starved);
}
