//! The contract of the rings (`crates/core/ring/src/lib.rs`), a test for each row.

use crate::support::*;

const MIB: u64 = 1 << 20;

#[test]
fn steered_flows_land_in_the_region_and_are_delivered_by_reference() {
    let (mut world, group) = World::registered(16);
    world.send(8 * MIB, 100_000);
    world.receive_on_all(group, 1);
    world.run_to_the_end();
    let flow = world.flow();
    assert_eq!(flow.received, 8 * MIB);
    assert!(flow.reference * 1000 >= flow.received * 998, "{flow:?}");
    let ledger = *world.sim.node(world.server).stack.ledger();
    assert_eq!(ledger.get(CopyReason::AppRead), flow.copied, "nothing else was copied for it");
    assert_eq!(world.engine.counters().zc_bytes, flow.reference);
    world.bring_home(group);
}

given! {
    let (mut world, group) = World::registered(4);

    flows_that_no_rule_names_stay_on_the_default_queue {
        let listener = world.server().listen(at(OTHER_PORT), 8).unwrap();
        world.ordinary_flow(listener, MIB);
        let level = world.sim.node_mut(world.server).steering.memory_mut(1).unwrap();
        assert_eq!((level.level().placed(), world.engine.delivered(group)), (0, 0));
    }
    a_receive_once_completes_once_and_the_rest_waits {
        world.send(20_000, 20_000);
        world.run(|world| world.app.accepted.len() == 1);
        world.pass(Duration::from_millis(100));
        let handle = world.app.accepted[0];
        world.app.submit(Submission::receive(handle, group, 5_000, RECEIVE));
        world.turn();
        let over = world.flow().over[0];
        assert_eq!((over.result, world.flow().received), (5_000, 5_000));
        assert!(over.has(Completion::NONEMPTY) && over.has(Completion::LIMIT));
        world.pass(Duration::from_millis(100));
        assert_eq!(world.flow().received, 5_000, "nothing without a receive");
        world.app.submit(Submission::receive(handle, group, 0, RECEIVE));
        world.turn();
        assert_eq!((world.flow().received, world.flow().over.len()), (20_000, 2));
    }
    the_end_of_the_stream_and_errors_are_completions {
        world.send(10_000, 10_000);
        world.receive_on_all(group, 1);
        world.run_to_the_end();
        let end = world.flow().over[0];
        assert_eq!((end.result, end.has(Completion::MORE)), (0, false));

        let (mut world, group) = World::registered(4);
        world.send(u64::MAX, 10_000);
        world.receive_on_all(group, 1);
        world.run(|world| world.flow().received > 100_000);
        let (now, socket) = (world.sim.now(), world.senders[0].socket);
        world.senders.clear();
        world.sim.node_mut(world.client).stack.abort(now, socket);
        world.run(|world| !world.flow().over.is_empty());
        assert_eq!(world.flow().over[0].result, -104, "ECONNRESET");
    }
    unregistering_waits_for_the_last_buffer_and_flows_fall_back_to_copies {
        world.app.returns = false;
        world.send(8 * MIB, 50_000);
        world.receive_on_all(group, 1);
        world.run(|world| world.flow().reference > MIB / 2);
        world.unregister(group);
        let reference = world.flow().reference;
        // All buffers but one come back.
        let position = world.app.held.iter().position(|entry| entry.group == group).unwrap();
        let last = world.app.held.remove(position).unwrap();
        world.app.returns = true;
        world.app.give_back_all();
        world.run(|world| !world.flow().over.is_empty());
        assert_eq!(world.flow().received, 8 * MIB);
        assert_eq!(world.flow().reference, reference, "nothing more by reference");
        let gone = |world: &World| world.app.notices.iter()
            .any(|n| n.has(Completion::UNREGISTERED));
        assert!(!gone(&world) && world.engine.delivered(group) == 1);
        world.app.fill(group, last.fill());
        world.run(|world| gone(world));
        // The queue and the number are free again.
        assert_eq!(world.register(4), group);
    }
}

#[test]
fn what_no_buffer_of_the_receives_group_can_have_is_copied_and_marked() {
    for (seed, what, has_queue, names_group, bytes, piece) in [
        (3, "without any queue", false, false, 3 * MIB, 50_000),
        (4, "a receive that names no group", true, false, MIB, 50_000),
        (6, "a small piece", true, true, 100, 100),
    ] {
        let mut world = World::new(seed, "delay=1ms");
        let group = if has_queue { world.register(4) } else { COPY_GROUP };
        world.send(bytes, piece);
        world.receive_on_all(if names_group { group } else { COPY_GROUP }, 1);
        world.run_to_the_end();
        let flow = world.flow();
        assert_eq!((flow.received, flow.reference, flow.copied), (bytes, 0, bytes), "{what}");
        assert_eq!(world.engine.counters().copy_bytes, bytes, "{what}");
    }
}

#[test]
fn data_from_before_the_registration_is_copied_and_marked() {
    let mut world = World::new(5, "delay=1ms");
    world.send(40_000, 40_000);
    world.pass(Duration::from_millis(100));
    let group = world.register(4);
    world.receive_on_all(group, 1);
    world.run(|world| world.flow().received == 40_000);
    assert_eq!(world.flow().copied, 40_000);
}

#[test]
fn a_multishot_receive_ends_at_its_limit() {
    let (mut world, group) = World::registered(8);
    let handle = world.send_accepted(2 * MIB, 50_000);
    world.app.submit(Submission::receive(handle, group, MIB, RECEIVE).multishot());
    world.run(|world| !world.flow().over.is_empty());
    assert_eq!(world.flow().received, MIB);
    assert!(world.flow().over[0].has(Completion::LIMIT));
}

#[test]
fn a_cancel_ends_a_receive_and_loses_nothing() {
    let (mut world, group) = World::registered(8);
    world.send(4 * MIB, 50_000);
    world.receive_on_all(group, 1);
    world.run(|world| world.flow().received > MIB);
    let handle = world.app.accepted[0];
    assert_eq!(world.answer(Submission::cancel(handle, RECEIVE, 0)).result, 0);
    assert_eq!(world.flow().over[0].result, -125, "ECANCELED");
    assert_eq!(world.answer(Submission::cancel(handle, RECEIVE, 0)).result, -2, "ENOENT");
    world.app.submit(Submission::receive(handle, group, 0, RECEIVE).multishot());
    world.run(|world| world.flow().over.len() == 2);
    assert_eq!(world.flow().received, 4 * MIB);
}

#[test]
fn a_page_in_several_entries_is_free_when_all_of_them_are_back() {
    let (mut world, group) = World::registered(1);
    world.app.returns = false;
    // Segments of 1,448 bytes lie side by side, so a page is in two or three of them; receives of
    // 700 bytes cut them again.
    let handle = world.send_accepted(20_000, 20_000);
    for _ in 0..20_000 / 700 {
        world.app.submit(Submission::receive(handle, group, 700, RECEIVE));
        let before = world.flow().over.len();
        world.run(|world| world.flow().over.len() > before);
    }
    let entries = world.app.held.len();
    let buffers: std::collections::HashSet<_> =
        world.app.held.iter().filter(|e| e.group == group).map(|entry| entry.buffer).collect();
    assert!(entries > 2 * buffers.len(), "{entries} entries of {} pages", buffers.len());
    assert_eq!(world.engine.delivered(group) + world.engine.delivered(COPY_GROUP), entries);
    world.app.submit(Submission::receive(handle, group, 0, RECEIVE).multishot());
    world.run(|world| world.flow().over.last().is_some_and(|over| over.result == 0));
    world.bring_home(group);
    assert_eq!(world.engine.counters().fills_refused(), 0);
}

#[test]
fn fill_entries_are_taken_as_they_are_needed_and_reported() {
    let setting = || QueueConfig { notify_every: 64, threshold: 16, ..config(4) };
    let mut world = World::with(13, "delay=1ms", EngineConfig::new(setting()));
    let group = world.register_unposted(setting());
    world.app.post(group, 0..256);
    world.turn();
    let fills = world.engine.counters().fills;
    assert!((128..256).contains(&fills), "half of a small region is cached: {fills}");
    world.send(4 * MIB, 50_000);
    world.receive_on_all(group, 1);
    world.run_to_the_end();
    let reported: i32 = world.app.notices.iter().map(|notice| notice.result).sum();
    let fills = world.engine.counters().fills as i32;
    assert!(reported > fills - 128 && reported <= fills, "{reported} of {fills}");
    assert!(world.app.notices.iter().all(|n| n.has(Completion::DRAINED)));
}

#[test]
fn drained_entries_are_reported_when_exactly_so_many_were_taken() {
    let mut world = World::new(20, "delay=1ms");
    let group =
        world.register_unposted(QueueConfig { notify_every: 24, threshold: 0, ..config(1) });
    world.app.post(group, 0..23);
    world.turn();
    assert_eq!((world.engine.counters().fills, world.app.notices.len()), (23, 0));
    world.app.post(group, 23..24);
    world.turn();
    let reported: Vec<_> = world.app.notices.iter().map(|n| (n.flags, n.result)).collect();
    assert_eq!(reported, [(Completion::DRAINED, 24)]);
}

#[test]
fn buffers_are_scarce_below_the_threshold_and_not_at_it() {
    let notices_of = |posted: u32| {
        let mut world = World::new(21, "delay=1ms");
        let group = world.register_unposted(QueueConfig { threshold: 16, ..config(1) });
        world.app.post(group, 0..posted);
        world.turn();
        let counters = world.engine.counters();
        let reported =
            world.app.notices.iter().filter(|notice| notice.has(Completion::LOW)).count();
        (reported, counters.low, counters.squeezes)
    };
    assert_eq!(notices_of(15), (1, 1, 1));
    assert_eq!(notices_of(16), (0, 0, 0));
}

#[test]
fn an_application_that_stops_returning_is_notified_stalls_only_its_flows_and_recovers() {
    let (mut world, group) = World::registered(1);
    world.app.returns = false;
    world.send(16 * MIB, 50_000);
    world.receive_on_all(group, 1);
    // A flow that is not the queue's.
    let listener = world.server().listen(at(OTHER_PORT), 8).unwrap();
    world.pass(Duration::from_secs(10));
    let stalled = world.flow().received;
    world.pass(Duration::from_secs(10));
    assert_eq!(world.flow().received, stalled, "everything it was given is gone");
    // The window was closed: beyond the region there is only what had been invited before, though
    // the copy group could take four times the region.
    let copied = world.flow().copied;
    assert!(copied <= 2 * u64::from(pagewire_ring::limits::MIN_WINDOW), "{copied} copied");
    assert!(stalled < 512 << 10, "{stalled}");
    let reported = |flag| world.app.notices.iter().any(|notice| notice.has(flag));
    assert!(reported(Completion::LOW) && reported(Completion::EMPTY), "{:?}", world.app.notices);
    assert!(world.engine.counters().squeezes > 0, "windows were closed");

    let begun = world.sim.now();
    world.ordinary_flow(listener, 16 * MIB);
    assert!(world.sim.now().saturating_since(begun) < Duration::from_secs(5), "undisturbed");

    world.app.returns = true;
    world.app.give_back_all();
    world.run(|world| !world.flow().over.is_empty());
    assert_eq!(world.flow().received, 16 * MIB);
    world.bring_home(group);
}

#[test]
fn flows_share_a_quarter_of_the_region_however_they_come() {
    let mut world = World::new(44, "delay=5ms");
    let group = world.register(16);
    let mut flows = 0;
    for _ in 0..8 {
        world.send(u64::MAX, 100_000);
        flows += 1;
        world.run(|world| world.app.accepted.len() == flows);
        let handle = world.app.accepted[flows - 1];
        world.app.submit(Submission::receive(handle, group, 0, RECEIVE).multishot());
        world.pass(Duration::from_millis(50));
    }
    world.pass(Duration::from_millis(300));
    let client = &world.sim.node(world.client).stack;
    let windows = world.senders.iter().map(|sender| client.info(sender.socket).unwrap());
    let windows: Vec<u64> = windows.map(|info| info.send_window.into()).collect();
    // Shares are made anew when the number of flows has doubled: then they fit exactly, and until
    // the next time there are less than twice as many.
    let (all, quarter) = (windows.iter().sum::<u64>(), 16 * GROUP as u64 / 4);
    assert!(all <= quarter && all > quarter / 2, "{all} of {quarter}: {windows:?}");
}

#[test]
fn without_buffers_data_that_was_invited_is_copied_not_lost() {
    let mut world = World::new(15, "delay=1ms");
    let group = world.register_unposted(config(4));
    world.send(MIB, 50_000);
    world.receive_on_all(group, 1);
    world.run_to_the_end();
    let flow = world.flow();
    assert_eq!((flow.received, flow.copied), (MIB, MIB));
    let memory = world.sim.node_mut(world.server).steering.memory_mut(1).unwrap();
    assert!(memory.level().missed() > 0);
}

#[test]
fn a_server_lives_on_rings_alone() {
    let mut world = World::new(17, "delay=1ms,loss=1%");
    let group = world.register(8);
    let answer = Stream(STREAM).bytes(0, 200_000);
    let out = world.register_send(&answer);
    world.send(MIB, 50_000);
    world.receive_on_all(group, 1);
    world.run_to_the_end();
    let handle = world.app.accepted[0];
    world.app.submit(Submission::send(handle, out, 0, 150_000, 5));
    world.app.submit(Submission::send(handle, out, 150_000, 50_000, 6));
    world.app.submit(Submission::new(Op::Shutdown, handle, 7));
    let (mut got, mut buffer, socket) = (Vec::new(), vec![0; 65536], world.senders[0].socket);
    let mut ended = false;
    world.run(|world| {
        let now = world.sim.now();
        match world.client().recv(now, socket, &mut buffer[..]) {
            Ok(0) => ended = true,
            Ok(n) => got.extend_from_slice(&buffer[..n]),
            Err(_) => {}
        }
        ended && world.app.others.len() == 3
    });
    assert_eq!(got, answer);
    let result = |user_data| {
        world.app.others.iter().find(|done| done.user_data == user_data).map(|done| done.result)
    };
    assert_eq!([result(5), result(6), result(7)], [Some(150_000), Some(50_000), Some(0)]);
    world.app.submit(Submission::new(Op::Close, handle, 8));
    world.app.submit(Submission::new(Op::Close, world.listener, 9));
    world.turn();
    let listening = world.app.others.iter().find(|done| done.user_data == ACCEPT);
    assert_eq!(listening.map(|done| done.result), Some(-125), "the accept was cancelled");
    assert_eq!(PORT, 7000);
}

#[test]
fn a_receive_waits_for_room_in_the_rings_and_loses_nothing() {
    let rings = EngineConfig { completions: 4, entries: 2, ..EngineConfig::new(config(4)) };
    let mut world = World::with(19, "delay=1ms", rings);
    let group = world.register(4);
    world.send(MIB, 50_000);
    world.receive_on_all(group, 1);
    world.run_to_the_end();
    assert_eq!(world.flow().received, MIB);
    assert!(world.engine.counters().ring_waits > 0);
}
