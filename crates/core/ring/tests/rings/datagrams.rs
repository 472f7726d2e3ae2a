//! Datagram sockets on rings: each row of the contract, each error, each lie that is theirs alone.

use pagewire_stack::limits::{UDP_RECEIVE_BYTES, UDP_RECEIVE_DATAGRAMS};

use crate::support::*;

const CLIENT: [u8; 4] = [10, 0, 0, 2];

fn bytes(n: usize, from: u64) -> Vec<u8> {
    Stream(STREAM).bytes(from, n)
}

fn sender(world: &World, socket: pagewire_stack::UdpId) -> SocketAddr {
    let local = world.sim.node(world.client).stack.local_addr(socket).unwrap();
    SocketAddr::from((CLIENT, local.port()))
}

given! {
    let (mut world, group) = World::registered(4);

    steered_datagrams_land_in_the_region_and_each_has_a_completion {
        let handle = world.receive_datagrams(group);
        let senders = [world.datagram_sender(), world.datagram_sender()];
        let mut expected = Vec::new();
        for n in 0..300 {
            let (from, len) = (senders[n % 2], 600 + n * 2);
            world.send_datagram(from, &bytes(len, n as u64 * 5000));
            expected.push((sender(&world, from), bytes(len, n as u64 * 5000)));
            if n % 10 == 0 {
                world.pass(Duration::from_millis(2));
            }
        }
        world.run_to_datagrams(300);
        for (got, (from, bytes)) in world.app.datagrams.iter().zip(&expected) {
            assert_eq!((got.from, &got.bytes), (*from, bytes));
            assert_eq!(
                (got.completion.length as usize, got.copied, got.completion.handle),
                (bytes.len(), 0, handle)
            );
            assert!(got.completion.has(Completion::MORE) && !got.completion.has(Completion::TRUNCATED));
        }
        // The copy ledger: the card's writes into the region, and nothing of ours.
        let total: usize = expected.iter().map(|(_, bytes)| bytes.len()).sum();
        let ledger = *world.sim.node(world.server).stack.ledger();
        assert_eq!(ledger.get(CopyReason::DeviceRx), total as u64);
        assert_eq!(ledger.ours(), 0, "{ledger:?}");
        let counters = world.engine.counters();
        assert_eq!((counters.zc_bytes, counters.copy_bytes), (total as u64, 0));
        assert_eq!((counters.datagrams, counters.datagrams_truncated), (300, 0));
        world.bring_home(group);
    }
    a_receive_once_takes_one_datagram_and_the_rest_waits {
        let handle = world.bind();
        let from = world.datagram_sender();
        for n in 0..3 {
            world.send_datagram(from, &[n; 1000]);
        }
        world.pass(Duration::from_millis(100));
        for n in 0..3 {
            assert_eq!(world.app.datagrams.len(), usize::from(n), "nothing without a receive");
            world.app.submit(Submission::receive(handle, group, 0, RECEIVE));
            world.turn();
            let got = world.app.datagrams.last().unwrap();
            assert_eq!(got.bytes, [n; 1000]);
            assert_eq!(
                (got.completion.has(Completion::NONEMPTY), got.completion.has(Completion::MORE)),
                (n < 2, false)
            );
        }
    }
    a_datagram_that_came_in_fragments_is_one_completion {
        world.receive_datagrams(group);
        let from = world.datagram_sender();
        for len in [1473, 10_000, 65_507] {
            world.send_datagram(from, &bytes(len, 3));
            world.run(|world| !world.app.datagrams.is_empty());
            let got = world.app.datagrams.pop().unwrap();
            assert!(got.bytes == bytes(len, 3), "{len}");
            // Only the first fragment has the port that the rule names.
            assert!(got.copied > 0 && got.copied < len, "{} of {len} copied", got.copied);
        }
        world.bring_home(group);
    }
}

#[test]
fn datagrams_of_another_port_or_protocol_stay_on_the_default_queue() {
    let mut world = World::new(102, "delay=1ms");
    // The rule that `register` makes is for TCP.
    let group = world.register(4);
    let handle = world.bind();
    world.app.submit(Submission::receive(handle, group, 0, RECEIVE).multishot());
    let from = world.datagram_sender();
    world.send_datagram(from, &bytes(1400, 0));
    world.run_to_datagrams(1);
    assert_eq!(world.app.datagrams[0].copied, 1400);
    let memory = world.sim.node_mut(world.server).steering.memory_mut(1).unwrap();
    assert_eq!(memory.level().placed(), 0);
}

given! {
    let (mut world, group) = World::registered(1);

    an_empty_datagram_is_a_completion_without_entries {
        world.receive_datagrams(group);
        let from = world.datagram_sender();
        for bytes in [&[][..], b"something", &[]] {
            world.send_datagram(from, bytes);
        }
        world.run_to_datagrams(3);
        for (got, len) in world.app.datagrams.iter().zip([0, 9, 0]) {
            assert_eq!(
                (got.completion.result, got.completion.length, got.completion.entries),
                (len, len as u32, u32::from(len > 0))
            );
            assert!(got.completion.has(Completion::MORE), "no end: {:?}", got.completion);
            assert_eq!(got.from, sender(&world, from));
        }
    }
    what_is_beyond_the_limit_of_a_datagram_is_lost_and_reported {
        let handle = world.receive_datagrams(group);
        let from = world.datagram_sender();
        let cases =
            [(1000, 1400, 1000), (1400, 1400, 1400), (1401, 1400, 1400), (1, 700, 1), (0, 1400, 1400)];
        for (limit, len, delivered) in cases {
            world.answer(Submission::cancel(handle, RECEIVE, 0));
            world.app.submit(Submission::receive(handle, group, limit, RECEIVE).multishot());
            world.app.datagrams.clear();
            world.send_datagram(from, &bytes(len, 0));
            world.send_datagram(from, &bytes(600, 7));
            world.run_to_datagrams(2);
            let [first, second] = &world.app.datagrams[..] else { panic!("two") };
            assert_eq!(first.bytes, bytes(delivered, 0));
            assert_eq!(first.completion.length as usize, len);
            // The next begins with its own first byte.
            assert_eq!(second.bytes, bytes(600.min(if limit == 0 { 600 } else { limit as usize }), 7));
        }
        assert!(world.engine.counters().datagrams_truncated >= 3);
        world.bring_home(group);
    }
    unregistering_waits_for_the_last_datagram_and_the_socket_goes_on_by_copy {
        world.receive_datagrams(group);
        world.app.returns = false;
        let from = world.datagram_sender();
        world.send_datagram(from, &bytes(1000, 1));
        world.run_to_datagrams(1);
        world.unregister(group);
        world.send_datagram(from, &bytes(1000, 2));
        world.run_to_datagrams(2);
        assert_eq!([0, 1].map(|n| world.app.datagrams[n].copied), [0, 1000]);
        world.pass(Duration::from_secs(1));
        let gone = |world: &World| world.app.notices.iter()
            .any(|n| n.has(Completion::UNREGISTERED));
        assert!(!gone(&world), "a buffer is out");
        world.app.give_back_all();
        world.run(|world| gone(world));
        assert_eq!(world.register(1), group, "queue and number are free again");
    }
    a_socket_with_a_peer_takes_from_it_alone_and_hears_of_its_errors {
        let handle = world.receive_datagrams(group);
        let (peer, other) = (world.datagram_sender(), world.datagram_sender());
        let to = sender(&world, peer);
        let connect = Submission::new(Op::Connect, handle, 0);
        assert_eq!(world.answer(connect.to(to)).result, 0);
        world.send_datagram(other, &[1; 1000]);
        world.send_datagram(peer, &[2; 1000]);
        world.run_to_datagrams(1);
        assert_eq!((world.app.datagrams[0].from, world.app.datagrams[0].bytes[0]), (to, 2));

        // The peer goes away: what is sent is refused, and that ends the receive.
        let (now, client) = (world.sim.now(), world.client);
        world.sim.node_mut(client).stack.close(now, peer);
        let out = world.register_send(&[]);
        world.app.submit(Submission::send(handle, out, 0, 100, 80));
        world.run(|world| world.app.others.len() == 2);
        let result = |user_data| {
            let done = world.app.others.iter().find(|done| done.user_data == user_data).unwrap();
            (done.result, done.flags & (Completion::MORE | Completion::DATAGRAM))
        };
        assert_eq!((result(80), result(RECEIVE)), ((100, 0), (-111, 0)), "ECONNREFUSED");

        // Reported once: the next receive goes on, and without a peer from anybody.
        assert_eq!(world.answer(connect).result, 0);
        world.app.submit(Submission::receive(handle, group, 0, RECEIVE));
        world.send_datagram(other, &[3; 1000]);
        world.run_to_datagrams(2);
        assert_eq!(world.app.datagrams[1].bytes[0], 3);
    }
    a_cancel_and_a_close_end_a_receive {
        let handle = world.receive_datagrams(group);
        assert_eq!(world.answer(Submission::cancel(handle, RECEIVE, 0)).result, 0);
        assert_eq!(world.app.last_result(), Some((RECEIVE, -125)));
        let from = world.datagram_sender();
        world.send_datagram(from, &[5; 1000]);
        world.pass(Duration::from_millis(10));
        world.app.submit(Submission::receive(handle, group, 0, RECEIVE).multishot());
        world.run_to_datagrams(1);
        assert_eq!(world.app.datagrams[0].bytes, [5; 1000], "a cancel loses nothing");
        assert_eq!(world.answer(Submission::new(Op::Close, handle, 0)).result, 0);
        assert_eq!(world.app.last_result(), Some((RECEIVE, -125)));
        // The port is free again.
        world.bind();
    }
}

#[test]
fn memory_of_a_sender_on_this_machine_is_reported_where_it_is() {
    let mut world = World::new(108, "delay=1ms");
    let (group, whole) = world.lend(1 << 16, 64);
    let handle = world.bind();
    let from = world.datagram_sender();
    world.app.submit(Submission::receive(handle, group, 0, 99).multishot());
    world.turn();
    let mut next = 0;
    for n in 0..40 {
        let len = 600 + n * 20;
        let (now, client) = (world.sim.now(), world.client);
        let stack = &mut world.sim.node_mut(client).stack;
        let part = FragVec::from_iter([whole.slice(next..next + len)]);
        stack.udp(from).unwrap().send(now, part, Some(at(PORT))).unwrap();
        // The support's own check needs a view; there is none of lent memory.
        let mut entry = None;
        while entry.is_none() {
            world.engine_turn();
            if let Some(done) = world.app.ends.completions.pop() {
                assert_eq!((done.result as usize, done.entries), (len, 1));
                entry = world.app.ends.entries.pop();
            } else {
                world.sim.step().unwrap();
            }
        }
        let entry = entry.unwrap();
        assert_eq!((entry.group, entry.offset as usize, entry.len as usize), (group, next, len));
        world.app.fill(group, entry.fill());
        next += len;
    }
    world.turn();
    let ledger = *world.sim.node(world.server).stack.ledger();
    assert_eq!((ledger.ours(), ledger.get(CopyReason::DeviceRx)), (0, 0), "nobody copied");
    assert_eq!(world.engine.delivered(group), 0);
}

/// UDP has no window to close. A datagram for which the region has no buffer is copied; without a buffer
/// of the copy group it waits in the socket's queue; without room there it is dropped and counted.
#[test]
fn without_buffers_datagrams_are_copied_then_wait_then_are_dropped_and_counted() {
    let mut world = World::with(110, "delay=1ms", EngineConfig::new(config(1)));
    let group = world.register(1);
    world.receive_datagrams(group);
    world.app.returns = false;
    let from = world.datagram_sender();
    let total = 3000;
    for n in 0..total {
        world.send_datagram(from, &bytes(1400, n));
        if n % 20 == 0 {
            world.pass(Duration::from_millis(2));
        }
    }
    world.pass(Duration::from_secs(1));
    let delivered = world.app.datagrams.len() as u64;
    let (by_reference, copied): (Vec<_>, Vec<_>) =
        world.app.datagrams.iter().partition(|got| got.copied == 0);
    assert!(
        by_reference.len() > 100 && copied.len() > 100,
        "{} {}",
        by_reference.len(),
        copied.len()
    );
    // The application holds no more than it has registered.
    assert!(delivered * 1400 <= 2 * GROUP as u64);
    assert!(world.engine.counters().copy_waits > 0 && world.engine.is_stuck());
    world.app.returns = true;
    world.app.give_back_all();
    world.pass(Duration::from_secs(1));
    let queued = world.app.datagrams.len() as u64 - delivered;
    assert!(queued * 1400 <= UDP_RECEIVE_BYTES as u64 && queued > 20, "{queued} waited");
    // The next datagram reports those that were lost.
    world.send_datagram(from, b"last");
    world.pass(Duration::from_millis(10));
    let last = world.app.datagrams.last().unwrap();
    assert_eq!(last.bytes, b"last");
    let dropped = total + 1 - world.app.datagrams.len() as u64;
    assert!(dropped > 0);
    assert_eq!(u64::from(last.completion.dropped), dropped);
    assert_eq!(world.engine.counters().datagrams_dropped, dropped);
    // In order, though not all of them, and each whole.
    let mut at = 0;
    for got in &world.app.datagrams[..world.app.datagrams.len() - 1] {
        at += (at..total).position(|n| got.bytes == bytes(1400, n)).expect("one that was sent")
            as u64
            + 1;
    }
    world.bring_home(group);
}

#[test]
fn the_number_of_datagrams_that_wait_is_bounded_even_if_they_are_empty() {
    let mut world = World::new(111, "delay=1ms");
    let handle = world.bind();
    let from = world.datagram_sender();
    // The two hosts meet.
    world.send_datagram(from, &[]);
    world.pass(Duration::from_millis(10));
    for _ in 0..100 {
        for _ in 0..100 {
            world.send_datagram(from, &[]);
        }
        world.pass(Duration::from_millis(2));
    }
    world.app.submit(Submission::receive(handle, COPY_GROUP, 0, RECEIVE).multishot());
    world.pass(Duration::from_millis(10));
    let came = world.app.datagrams.len();
    assert!(came <= UDP_RECEIVE_DATAGRAMS && came > 1000, "{came}");
    assert_eq!(world.engine.counters().datagrams_dropped as usize, 10_001 - came);
}

#[test]
fn datagrams_leave_from_registered_memory() {
    let mut world = World::new(113, "delay=1ms");
    let out = world.register_send(&bytes(GROUP, 0));
    let handle = world.bind();
    let peer = world.datagram_sender();
    let to = sender(&world, peer);
    let cases = [(0, 1000), (5000, 1472), (100, 0), (9, 20_000), (0, 65_507)];
    for (n, (offset, len)) in cases.into_iter().enumerate() {
        world.app.submit(Submission::send(handle, out, offset, len, 70 + n as u64).to(to));
    }
    let mut got = Vec::new();
    world.run(|world| {
        while let Ok((frags, from)) = world.client().recv_from(peer, pagewire_stack::Datagram) {
            let mut bytes = Vec::new();
            let mut ledger = pagewire_mem::CopyLedger::new();
            frags.iter().for_each(|frag| frag.for_each_piece(&mut ledger, |b| bytes.extend(b)));
            got.push((from, bytes));
        }
        got.len() == cases.len() && world.app.others.len() == cases.len()
    });
    for ((from, got), (offset, len)) in got.iter().zip(cases) {
        assert_eq!((*from, got), (at(PORT), &bytes(len as usize, offset.into())));
    }
    let mut results: Vec<_> = world.app.others.iter().map(|d| (d.user_data, d.result)).collect();
    results.sort_unstable();
    assert_eq!(results, [(70, 1000), (71, 1472), (72, 0), (73, 20_000), (74, 65_507)]);
}

#[test]
fn each_error_has_its_number() {
    let mut world = World::new(116, "delay=1ms");
    world.send(u64::MAX, 1000);
    world.run(|world| world.app.accepted.len() == 1);
    let handle = world.bind();
    let out = world.register_send(&[]);
    let (stream, listener) = (world.app.accepted[0], world.listener);
    let to = SocketAddr::from((CLIENT, 9));
    let bind = |on: &str| Submission::bind(on.parse().unwrap(), 0);
    let new = |op, target| Submission::new(op, target, 0);
    let receive = |group| Submission::receive(handle, group, 0, 0);
    let send = |len| Submission::send(handle, out, 0, len, 0);
    let no_family = Address { family: 5, ..Address::new(to) };
    let cases = [
        (bind("10.0.0.1:7000"), -98, "EADDRINUSE"),
        (bind("10.0.0.77:7000"), -99, "EADDRNOTAVAIL"),
        (new(Op::Bind, 0), -22, "no address"),
        (Submission { address: no_family, ..new(Op::Bind, 0) }, -22, "no such family"),
        (bind("10.0.0.1:7002").multishot(), -22, "EINVAL"),
        (Submission { reserved_word: 1, ..bind("10.0.0.1:7002") }, -22, "EINVAL"),
        (new(Op::Nop, 0).to(to), -22, "an address that is not wanted"),
        (receive(0).to(to), -22, "an address that is not wanted"),
        (receive(9), -22, "no such group"),
        (new(Op::Shutdown, handle), -95, "EOPNOTSUPP"),
        (new(Op::Accept, handle), -22, "no listener"),
        (new(Op::Connect, stream).to(to), -106, "EISCONN"),
        (new(Op::Connect, listener).to(to), -95, "EOPNOTSUPP"),
        (new(Op::Connect, handle ^ 1 << 40).to(to), -9, "EBADF"),
        (new(Op::Connect, handle).to(SocketAddr::from((CLIENT, 0))), -22, "port 0"),
        (new(Op::Connect, handle).to("[fd00::1]:9".parse().unwrap()), -101, "ENETUNREACH"),
        (Submission::send(stream, out, 0, 10, 0).to(to), -22, "a stream has one peer"),
        (send(10), -89, "EDESTADDRREQ"),
        (send(65_508).to(to), -90, "EMSGSIZE"),
        (send(10).to(SocketAddr::from(([255; 4], 9))), -13, "EACCES"),
        (Submission { group: 7, ..send(10) }.to(to), -22, "no such memory"),
        (Submission::send(handle, out, u32::MAX, 10, 0).to(to), -14, "EFAULT"),
    ];
    for (submission, errno, what) in cases {
        assert_eq!(world.answer(submission).result, errno, "{what}: {submission:?}");
    }
    world.app.submit(receive(0));
    assert_eq!(world.answer(receive(0)).result, -16, "EBUSY");
}

/// A datagram's entries are in one completion, so a ring that never holds them all cuts it off.
#[test]
fn a_datagram_of_more_pieces_than_the_ring_has_entries_is_cut_off_and_reported() {
    let rings = EngineConfig { entries: 2, ..EngineConfig::new(config(1)) };
    let mut world = World::with(117, "delay=1ms", rings);
    let handle = world.bind();
    world.app.submit(Submission::receive(handle, COPY_GROUP, 0, RECEIVE).multishot());
    let from = world.datagram_sender();
    for len in [1000, 40_000, 1000] {
        world.send_datagram(from, &bytes(len, 0));
    }
    world.run_to_datagrams(3);
    for (got, len) in world.app.datagrams.iter().zip([1000, 40_000, 1000]) {
        assert_eq!(got.completion.length, len);
        assert_eq!(got.bytes, bytes(got.bytes.len(), 0));
        assert!(got.bytes.len() == len as usize || got.bytes.len() >= 4096, "{:?}", got.completion);
    }
}

/// A stream takes whatever room there is; a datagram needs all of it at once.
#[test]
fn streams_do_not_overtake_a_datagram_that_waits_for_room() {
    let rings = EngineConfig { entries: 32, ..EngineConfig::new(config(1)) };
    let mut world = World::with(118, "delay=1ms", rings);
    let group = world.register(8);
    let datagrams = world.receive_datagrams(COPY_GROUP);
    assert_ne!(datagrams, 0);
    for _ in 0..4 {
        world.send(u64::MAX, 50_000);
    }
    world.receive_on_all(group, 4);
    let from = world.datagram_sender();
    // The application reads one completion, and so a few entries, at a time.
    let look = |world: &mut World, until: Instant| {
        while world.sim.now() < until {
            let now = world.sim.now();
            for sender in &mut world.senders {
                let stack = &mut world.sim.node_mut(sender.node).stack;
                let _ = stack.send(now, sender.socket, &bytes(20_000, 0));
            }
            world.sim.node_mut(world.server).steering.drain();
            world.engine_turn();
            if let Some(done) = world.app.ends.completions.pop() {
                for _ in 0..done.entries {
                    let entry = world.app.ends.entries.pop().unwrap();
                    world.app.fill(entry.group, entry.fill());
                }
                if done.has(Completion::DATAGRAM) {
                    return Some(done);
                }
            }
            world.app.ends.completions.release();
            world.app.ends.entries.release();
            world.sim.step().unwrap();
        }
        None
    };
    for _ in 0..20 {
        world.send_datagram(from, &bytes(30_000, 0));
        let until = world.sim.now() + Duration::from_secs(5);
        let done = look(&mut world, until).expect("its turn");
        assert_eq!((done.result, done.has(Completion::TRUNCATED)), (30_000, false));
    }
    assert!(world.engine.counters().ring_waits > 0, "there was no room: {:?}", world.engine);
}

/// A receive that was cancelled while it waited for room does not keep others from it.
#[test]
fn a_cancelled_receive_leaves_the_queue_for_room() {
    let mut world = World::with(119, "delay=1ms", EngineConfig::new(config(1)));
    let handle = world.receive_datagrams(COPY_GROUP);
    world.app.returns = false;
    let from = world.datagram_sender();
    for n in 0..10 {
        world.send_datagram(from, &bytes(60_000, n));
        world.pass(Duration::from_millis(10));
    }
    assert!(world.engine.counters().copy_waits > 0, "too little for another of 60,000");
    world.send(100, 100);
    world.receive_on_all(COPY_GROUP, 1);
    world.pass(Duration::from_secs(1));
    assert_eq!(world.flow().received, 0, "it waits its turn");
    assert_eq!(world.answer(Submission::cancel(handle, RECEIVE, 0)).result, 0);
    world.pass(Duration::from_secs(1));
    assert_eq!(world.flow().received, 100);
}

#[test]
fn datagrams_without_room_for_their_completions_cost_nothing() {
    let rings = EngineConfig { completions: 8, ..EngineConfig::new(config(4)) };
    let mut world = World::with(120, "delay=1ms", rings);
    let group = world.register(4);
    world.receive_datagrams(group);
    let from = world.datagram_sender();
    for n in 0..50 {
        world.send_datagram(from, &bytes(1000, n));
    }
    // Nobody reads the rings.
    for _ in 0..200 {
        world.engine_turn();
        if world.sim.poll_timeout().unwrap().is_none() {
            break;
        }
        world.sim.step().unwrap();
    }
    let waits = world.engine.counters().ring_waits;
    assert!(waits > 0 && world.engine.is_stuck());
    for _ in 0..100 {
        assert!(!world.engine_turn());
    }
    assert_eq!(world.engine.counters().ring_waits, waits, "nobody was looked at in vain");
    world.run_to_datagrams(50);
    world.bring_home(group);
}
