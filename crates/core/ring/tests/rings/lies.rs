//! Each lie that an application can tell through its rings: counted, refused, without effect on any
//! other flow.

use std::sync::atomic::Ordering::Relaxed;

use crate::support::*;

const MIB: u64 = 1 << 20;

/// A flow runs by reference; in its middle the application tells `lie`. Every byte still arrives,
/// by reference, and every buffer comes home.
fn tell(seed: u64, lie: impl FnOnce(&mut World, u16, Entry)) -> Counters {
    let mut world = World::new(seed, "delay=1ms,loss=0.5%");
    let group = world.register(16);
    world.send(4 * MIB, 50_000);
    world.send(4 * MIB, 30_000);
    world.receive_on_all(group, 2);
    let mut entry = None;
    world.app.returns = false;
    world.run(|world| {
        entry = entry.or_else(|| world.app.held.iter().find(|e| e.group == group).copied());
        entry.is_some()
    });
    world.app.returns = true;
    world.app.give_back_all();
    world.turn();
    lie(&mut world, group, entry.unwrap());
    world.run_to_the_end();
    for flow in world.app.flows.values() {
        assert_eq!(flow.received, 4 * MIB);
        assert!(flow.reference * 100 >= flow.received * 99, "{flow:?}");
    }
    world.bring_home(group);
    world.engine.counters()
}

#[test]
fn a_buffer_that_was_never_delivered_is_refused() {
    let (mut world, group) = World::registered(1);
    world.turn();
    world.app.post(group, 5..6);
    world.pass(Duration::from_millis(1));
    world.send(MIB, 50_000);
    world.receive_on_all(group, 1);
    world.run_to_the_end();
    let counters = world.engine.counters();
    assert_eq!((counters.fills_not_held + counters.fills_stale, world.flow().received), (1, MIB));
}

#[test]
fn a_buffer_that_is_returned_twice_is_refused_the_second_time() {
    let counters = tell(21, |world, group, entry| {
        for _ in 0..3 {
            world.app.fill(group, entry.fill());
        }
    });
    assert_eq!(counters.fills_refused(), 3);
}

#[test]
fn a_stale_id_does_not_free_what_its_page_holds_now() {
    let counters = tell(22, |world, group, entry| {
        // The application has the page again, in a later turn, and still has what the earlier named.
        let again = |e: &Entry| {
            e.group == group && e.offset >> 12 == entry.offset >> 12 && e.buffer != entry.buffer
        };
        world.app.returns = false;
        world.run(|world| {
            let found = world.app.held.iter().any(again);
            if !found {
                world.app.give_back_all();
            }
            found
        });
        world.turn();
        let delivered = world.engine.delivered(group);
        world.app.fill(group, entry.fill());
        world.turn();
        assert!(world.engine.delivered(group) >= delivered, "nothing was taken for returned");
        world.app.returns = true;
        world.app.give_back_all();
    });
    assert_eq!(counters.fills_stale, 1);
    assert_eq!(counters.fills_refused(), 1);
}

#[test]
fn ids_beyond_the_region_are_refused() {
    let counters = tell(23, |world, group, _| {
        for buffer in [1024, 0x000f_ffff, u32::MAX] {
            world.app.fill(group, Fill { buffer, group });
        }
    });
    assert_eq!(counters.fills_out_of_range, 3);
}

#[test]
fn ids_of_another_group_are_refused() {
    let counters = tell(24, |world, group, entry| {
        world.app.fill(group, Fill { group: COPY_GROUP, ..entry.fill() });
        world.app.fill(group, Fill { group: 9, ..entry.fill() });
    });
    assert_eq!(counters.fills_foreign, 2);
}

#[test]
fn a_fill_ring_whose_tail_jumps_is_not_followed() {
    let counters = tell(25, |world, group, _| {
        let words = world.app.groups[&group].fill.words().clone();
        let before = words[TAIL_WORD].load(Relaxed);
        for tail in [before + 1_000_000, before.wrapping_sub(1), u64::MAX] {
            words[TAIL_WORD].store(tail, Relaxed);
            world.turn();
        }
        words[TAIL_WORD].store(before, Relaxed);
    });
    assert!(counters.jumps >= 1, "{counters:?}");
    assert_eq!(counters.fills_refused(), 0);
}

#[test]
fn heads_of_the_stacks_rings_that_jump_free_no_room() {
    let counters = tell(26, |world, _, _| {
        let ends = &world.app.ends;
        let rings = [ends.completions.words().clone(), ends.entries.words().clone()];
        for words in rings {
            let before = words[HEAD_WORD].load(Relaxed);
            words[HEAD_WORD].store(before ^ 0x8000_0000, Relaxed);
            world.turn();
            words[HEAD_WORD].store(u64::MAX - 1, Relaxed);
            world.turn();
            // Where it was before is where the application really is, or behind it.
            words[HEAD_WORD].store(before, Relaxed);
        }
    });
    assert_eq!(counters.fills_refused(), 0);
}

#[test]
fn what_the_stack_has_written_can_be_scribbled_over_without_harm_to_it() {
    tell(27, |world, group, _| {
        let rings = [
            world.app.ends.submissions.words().clone(),
            world.app.groups[&group].fill.words().clone(),
        ];
        for words in rings {
            // The stack's own index, in the memory of the application.
            words[HEAD_WORD].store(12_345, Relaxed);
        }
        for words in [world.app.ends.completions.words(), world.app.ends.entries.words()] {
            let tail = words[TAIL_WORD].load(Relaxed);
            words[TAIL_WORD].store(tail, Relaxed);
        }
    });
}

#[test]
fn submissions_that_make_no_sense_are_answered_with_an_error() {
    let (mut world, group) = World::registered(4);
    world.send(MIB, 50_000);
    world.receive_on_all(group, 1);
    world.run(|world| world.flow().received > 100_000);
    let (handle, listener) = (world.app.accepted[0], world.listener);
    let receive = Submission::receive(handle, group, 0, 0);
    let nop = Submission::new(Op::Nop, 0, 0);
    let cases = [
        (Submission { op: 200, ..nop }, -22),
        (Submission { flags: 0x80, ..nop }, -22),
        (Submission { reserved: 1, ..nop }, -22),
        (nop.multishot(), -22),
        (Submission { group: 1, ..nop }, -22),
        (Submission { group: 15, ..receive }, -22),
        (Submission { group: u16::MAX, ..receive }, -22),
        (Submission { target: 0, ..receive }, -9),
        (Submission { target: handle ^ 1 << 40, ..receive }, -9),
        (Submission { target: u64::MAX, ..receive }, -9),
        (Submission { target: listener, ..receive }, -95),
        (receive, -16),
        (Submission::new(Op::Accept, handle, 0), -22),
        (Submission::send(handle, 3, 0, 10, 0), -22),
        (nop, 0),
    ];
    for (submission, result) in cases {
        assert_eq!(world.answer(submission).result, result, "{submission:?}");
    }
    let memory = Region::memfd_shared("send", 4096).unwrap();
    let out = world.engine.register_send(memory).unwrap();
    for (offset, len) in [(4096, 1), (0, 4097), (u32::MAX, 1), (4000, 200)] {
        let send = Submission::send(handle, out, offset, len, 0);
        assert_eq!(world.answer(send).result, -14, "{offset}+{len}");
    }
    world.run_to_the_end();
    assert_eq!(world.flow().received, MIB);
    assert!(world.engine.counters().submissions_refused >= 17);
}

/// Room for four answers is left again and again, and a thousand sends are submitted each time.
#[test]
fn what_is_over_and_not_reported_yet_is_bounded() {
    let rings = EngineConfig { completions: 8, ..EngineConfig::new(config(1)) };
    let mut world = World::with(30, "delay=1ms", rings);
    let out = world.register_send(&[]);
    let handle = world.send_accepted(1, 1);
    let (mut reported, mut ended, mut buffer) = (0, false, vec![0; 65536]);
    for _ in 0..20 {
        while world.app.ends.submissions.push(Submission::send(handle, out, 0, 1, 9)).is_ok() {}
        world.app.ends.submissions.publish();
        // The peer reads and acknowledges; of its completions, half a ring is read.
        world.pass_unread(Duration::from_secs(2), |world| {
            let (now, socket) = (world.sim.now(), world.senders[0].socket);
            ended |= world.client().recv(now, socket, &mut buffer[..]) == Ok(0);
        });
        for _ in 0..4 {
            reported += u64::from(world.app.ends.completions.pop().is_some());
        }
        world.app.ends.completions.release();
    }
    let taken = world.engine.counters().submissions;
    assert!(reported > 40 && !ended, "{reported}");
    assert!(taken - reported < 1024 + 1024 + 16, "{taken} taken, {reported} reported");
}

#[test]
fn pieces_of_lent_memory_are_given_back_once() {
    let mut world = World::new(31, "delay=1ms");
    let (group, whole) = world.lend(1 << 20, 64);
    let (socket, handle) = world.connect();
    world.app.submit(Submission::receive(handle, group, 0, 99).multishot());
    let mut frags = FragVec::from_iter([whole]);
    let (mut first, mut got): (Option<Entry>, u64) = (None, 0);
    world.run(|world| {
        world.offer(socket, &mut frags);
        for done in std::mem::take(&mut world.app.others) {
            for _ in 0..done.entries {
                let entry = world.app.ends.entries.pop().unwrap();
                assert_eq!((entry.group, u64::from(entry.offset)), (group, got), "in order");
                got += u64::from(entry.len);
                first = first.or(Some(entry));
                // Each is returned twice, and the first again and again.
                for lie in [entry, entry, first.unwrap()] {
                    world.app.fill(group, lie.fill());
                }
                world.app.fill(group, Fill { buffer: u32::MAX, group });
            }
        }
        got == MIB
    });
    world.turn();
    let counters = world.engine.counters();
    assert_eq!(
        (counters.zc_bytes, counters.copy_bytes),
        (MIB, 0),
        "as it is in the sender's memory"
    );
    assert_eq!(world.engine.delivered(group), 0);
    assert_eq!(counters.fills_not_held, 3 * counters.entries);
}

/// Every operation that names a socket, with the handle of one that was closed and whose place another
/// has now.
#[test]
fn a_stale_handle_does_nothing_to_who_has_its_place_now() {
    let mut world = World::new(32, "delay=1ms");
    let stale = world.send_accepted(10, 10);
    world.app.submit(Submission::new(Op::Close, stale, 5));
    world.turn();
    world.senders.clear();
    world.send(10, 10);
    world.run(|world| world.app.accepted.len() == 2);
    let now = world.app.accepted[1];
    assert_eq!(now as u32, stale as u32, "the place is used again");
    world.app.submit(Submission::receive(now, COPY_GROUP, 0, RECEIVE).multishot());
    world.app.others.clear();
    let about = [
        Submission::receive(stale, COPY_GROUP, 0, 0),
        Submission::new(Op::Close, stale, 0),
        Submission::new(Op::Shutdown, stale, 0),
        Submission::new(Op::Accept, stale, 0),
        Submission::cancel(stale, RECEIVE, 0),
        Submission::send(stale, 0, 0, 1, 0),
    ];
    for submission in about {
        assert_eq!(world.answer(submission).result, -9, "EBADF: {submission:?}");
    }
    world.run(|world| !world.app.flows[&now].over.is_empty());
    let flow = &world.app.flows[&now];
    assert_eq!((flow.received, flow.over[0].result), (10, 0), "whole, to its end");
}

#[test]
fn a_stale_id_of_lent_memory_does_not_free_the_piece_that_has_its_place_now() {
    let mut world = World::new(33, "delay=1ms");
    let (group, whole) = world.lend(2 << 20, 64);
    let (socket, handle) = world.connect();
    let mut frags = FragVec::from_iter([whole]);
    let mut piece = |world: &mut World| {
        world.app.submit(Submission::receive(handle, group, 1000, 99));
        world.run(|world| {
            world.offer(socket, &mut frags);
            !world.app.others.is_empty()
        });
        assert_eq!(world.app.others.pop().map(|done| done.entries), Some(1));
        world.app.ends.entries.pop().unwrap()
    };
    let first = piece(&mut world);
    world.app.fill(group, first.fill());
    world.turn();
    let second = piece(&mut world);
    assert_eq!(first.buffer & 0xf_ffff, second.buffer & 0xf_ffff, "the place is used again");
    world.app.fill(group, first.fill());
    world.turn();
    assert_eq!(world.engine.delivered(group), 1, "what the application holds it still holds");
    assert_eq!(world.engine.counters().fills_not_held, 1);
    world.app.fill(group, second.fill());
    world.turn();
    assert_eq!(world.engine.delivered(group), 0);
}
