//! An honest application does anything in any order: it receives what was sent, and every buffer comes
//! home.

use proptest::prelude::*;

use crate::support::*;

#[derive(Clone, Debug)]
enum Step {
    Register { groups: usize },
    Unregister,
    Receive { flow: usize, copy: bool, limit: u64, multishot: bool },
    Cancel { flow: usize },
    GiveBack { n: usize },
    Pass { ms: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => (1..4usize).prop_map(|groups| Step::Register { groups }),
        1 => Just(Step::Unregister),
        4 => (0..3usize, prop::bool::weighted(0.2), prop_oneof![Just(0u64), 1..200_000u64], any::<bool>())
            .prop_map(|(flow, copy, limit, multishot)| Step::Receive { flow, copy, limit, multishot }),
        1 => (0..3usize).prop_map(|flow| Step::Cancel { flow }),
        4 => (1..400usize).prop_map(|n| Step::GiveBack { n }),
        4 => (1..300u64).prop_map(|ms| Step::Pass { ms }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn what_is_received_is_what_was_sent_and_buffers_are_conserved(
        seed in any::<u64>(),
        steps in prop::collection::vec(step(), 1..40),
        sizes in prop::collection::vec((1..1_500_000u64, 1..60_000usize), 3),
    ) {
        let mut world = World::new(seed, "loss=2%,reorder=1%,dup=1%,delay=2ms,cut=yes");
        for (total, piece) in &sizes {
            world.send(*total, *piece);
        }
        world.run(|world| world.app.accepted.len() == 3);
        world.app.returns = false;
        let handles = world.app.accepted.clone();
        let mut group = None;
        for step in steps {
            match step {
                Step::Register { groups } if group.is_none() => {
                    group = Some(world.register(groups));
                }
                Step::Unregister => {
                    if let Some(group) = group.take() {
                        world.unregister(group);
                    }
                }
                Step::Receive { flow, copy, limit, multishot } => {
                    let group = group.filter(|_| !copy).unwrap_or(COPY_GROUP);
                    let receive = Submission::receive(handles[flow], group, limit, RECEIVE);
                    world.app.submit(if multishot { receive.multishot() } else { receive });
                }
                Step::Cancel { flow } => {
                    world.app.submit(Submission::cancel(handles[flow], RECEIVE, 9));
                }
                Step::GiveBack { n } => world.app.give_back(n),
                Step::Pass { ms } => world.pass(Duration::from_millis(ms)),
                Step::Register { .. } => {}
            }
            world.turn();
        }
        // The remaining bytes come in any case.
        world.app.returns = true;
        world.app.give_back_all();
        let sent: Vec<u64> = sizes.iter().map(|(total, _)| *total).collect();
        let mut rounds = 0;
        loop {
            let ended = |world: &World| {
                world.app.flows.values().all(|flow| {
                    flow.over.last().is_some_and(|over| over.result == 0)
                })
            };
            if ended(&world) {
                break;
            }
            for handle in &handles {
                let group = group.unwrap_or(COPY_GROUP);
                world.app.submit(Submission::receive(*handle, group, 0, RECEIVE).multishot());
            }
            world.pass(Duration::from_secs(20));
            rounds += 1;
            prop_assert!(rounds < 50, "no end: {:?}", world.engine);
        }
        let mut received: Vec<u64> = world.app.flows.values().map(|flow| flow.received).collect();
        received.sort_unstable();
        let mut sent = sent;
        sent.sort_unstable();
        prop_assert_eq!(received, sent);
        prop_assert_eq!(world.engine.counters().fills_refused(), 0);
        if let Some(group) = group {
            world.unregister(group);
        }
        world.pass(Duration::from_millis(10));
        let registered = world.app.groups.keys().filter(|group| **group != COPY_GROUP).count();
        let gone = world.app.notices.iter().filter(|n| n.has(Completion::UNREGISTERED)).count();
        prop_assert!(gone >= registered, "{gone} of {registered}");
    }
}
