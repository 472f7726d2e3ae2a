//! The cost to the host of an application that does not read, asks for too much, or stops.

use crate::support::*;

const MIB: u64 = 1 << 20;

#[test]
fn submissions_that_cannot_be_answered_keep_nobody_awake() {
    let rings = EngineConfig { completions: 4, ..EngineConfig::new(config(1)) };
    let mut world = World::with(60, "delay=1ms", rings);
    for n in 0..20 {
        world.app.submit(Submission::new(Op::Nop, 0, 100 + n));
    }
    while world.engine_turn() {}
    assert!(world.engine.is_stuck(), "the driver checks again, later");
    assert!(world.engine.arm(), "and may sleep until then");
    world.engine.disarm();
    world.turn();
    let reported: Vec<u64> = world.app.others.iter().map(|done| done.user_data).collect();
    assert_eq!(reported, (100..120).collect::<Vec<u64>>());
    assert!(!world.engine.is_stuck());
}

/// Connections wait for room for completions, because nobody reads them, or for a buffer to copy
/// into, because none is given back.
#[test]
fn connections_without_room_for_completions_or_without_buffers_cost_nothing() {
    for (seed, completions, copies) in [(61, Some(32), false), (62, None, true)] {
        let rings = EngineConfig::new(config(if copies { 1 } else { 4 }));
        let completions = completions.unwrap_or(rings.completions);
        let mut world = World::with(seed, "delay=1ms", EngineConfig { completions, ..rings });
        let group = if copies { COPY_GROUP } else { world.register(4) };
        let flows = 24;
        for _ in 0..flows {
            world.send(200_000, 50_000);
        }
        world.app.returns = !copies;
        world.receive_on_all(group, flows);
        if copies {
            world.pass(Duration::from_secs(5));
        } else {
            world.pass_unread(Duration::from_secs(5), |_| ());
        }
        assert!(world.engine.is_stuck());
        let waits = |world: &World| {
            let counters = world.engine.counters();
            if copies { counters.copy_waits } else { counters.ring_waits }
        };
        let before = waits(&world);
        assert!(before > 0);
        for _ in 0..100 {
            assert!(!world.engine_turn() || copies);
        }
        assert_eq!(waits(&world), before, "no connection was checked in vain");
        world.app.returns = true;
        world.app.give_back_all();
        world.run_to_the_end();
        assert!(world.app.flows.values().all(|flow| flow.received == 200_000));
        if !copies {
            world.bring_home(group);
        }
    }
}

#[test]
fn a_limit_holds_for_what_an_earlier_receive_has_left() {
    let mut world = World::with(63, "delay=1ms", EngineConfig::new(config(1)));
    world.app.returns = false;
    world.send(MIB, 50_000);
    world.receive_on_all(COPY_GROUP, 1);
    // The application holds all buffers of the copy group.
    world.pass(Duration::from_secs(5));
    let handle = world.app.accepted[0];
    world.app.submit(Submission::cancel(handle, RECEIVE, 77));
    world.turn();
    world.app.returns = true;
    world.app.give_back_all();
    for limit in [1, 1000, 5000] {
        world.app.submit(Submission::receive(handle, COPY_GROUP, limit, RECEIVE));
        world.turn();
        let over = world.flow().over.last().copied().unwrap();
        assert_eq!(over.result as u64, limit);
        assert!(over.has(Completion::LIMIT) && over.has(Completion::NONEMPTY));
    }
    world.app.submit(Submission::receive(handle, COPY_GROUP, 0, RECEIVE).multishot());
    world.run(|world| world.flow().over.last().is_some_and(|over| over.result == 0));
    assert_eq!(world.flow().received, MIB);
}

#[test]
fn a_threshold_that_could_not_be_passed_again_is_refused() {
    let mut world = World::new(64, "delay=1ms");
    for threshold in [33, 64, usize::MAX] {
        let wrong = QueueConfig { threshold, ..config(1) };
        let error = world.engine.register_queue(1, wrong).unwrap_err();
        assert!(matches!(error, RegisterError::Threshold(n) if n == threshold), "{error}");
        assert_eq!(error.errno(), 22, "EINVAL");
    }
    // The highest: windows close early, and open again.
    let group = world.register_unposted(QueueConfig { threshold: 32, ..config(1) });
    world.app.post(group, 0..64);
    world.app.returns = false;
    world.send(4 * MIB, 50_000);
    world.receive_on_all(group, 1);
    world.pass(Duration::from_secs(10));
    assert!(world.engine.counters().squeezes > 0);
    world.app.returns = true;
    world.app.give_back_all();
    world.run_to_the_end();
    assert_eq!(world.flow().received, 4 * MIB);
    world.bring_home(group);
}

#[test]
fn submissions_are_taken_in_the_turn_in_which_a_send_is_over() {
    let mut world = World::new(65, "delay=1ms");
    let out = world.register_send(&[]);
    let handle = world.send_accepted(1, 1);
    world.app.submit(Submission::send(handle, out, 0, 1, 9));
    while !world.engine.let_go().is_pending() {
        world.engine_turn();
        world.sim.step().unwrap();
    }
    let taken = world.engine.counters().submissions;
    world.app.submit(Submission::new(Op::Nop, 0, 10));
    world.engine_turn();
    assert_eq!(world.engine.counters().submissions, taken + 1);
    world.turn();
    let reported: Vec<u64> = world.app.others.iter().map(|done| done.user_data).collect();
    assert_eq!(reported, [9, 10]);
}
