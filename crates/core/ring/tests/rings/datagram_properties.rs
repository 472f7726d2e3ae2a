//! Any datagrams come, and an honest application does anything in any order: each is reported as it was
//! sent, in order, and every buffer comes home.

use proptest::prelude::*;

use crate::support::*;

#[derive(Clone, Debug)]
enum Step {
    Send { sender: usize, len: usize },
    Receive { copy: bool, limit: u64, multishot: bool },
    Cancel,
    GiveBack { n: usize },
    Unregister,
    Pass { ms: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let len = prop_oneof![
        1 => Just(0usize),
        4 => 1..600usize,
        6 => 600..1473usize,
        1 => 1473..65_507usize
    ];
    let limit = prop_oneof![3 => Just(0u64), 1 => 1..2000u64];
    prop_oneof![
        12 => (0..3usize, len).prop_map(|(sender, len)| Step::Send { sender, len }),
        4 => (prop::bool::weighted(0.2), limit, any::<bool>())
            .prop_map(|(copy, limit, multishot)| Step::Receive { copy, limit, multishot }),
        1 => Just(Step::Cancel),
        3 => (1..60usize).prop_map(|n| Step::GiveBack { n }),
        1 => Just(Step::Unregister),
        6 => (1..20u64).prop_map(|ms| Step::Pass { ms }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn datagrams_are_reported_as_they_were_sent(
        seed in any::<u64>(),
        entries in prop_oneof![Just(64u32), Just(4096)],
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let rings = EngineConfig {
            entries,
            ..EngineConfig::new(config(2))
        };
        // No loss: what is dropped is dropped here, and counted.
        let mut world = World::with(seed, "delay=1ms", rings);
        let mut group = Some(world.register(1));
        let handle = world.receive_datagrams(group.unwrap());
        world.app.returns = false;
        let senders = [(); 3].map(|()| world.datagram_sender());
        let ports = senders.map(|socket| {
            world.sim.node(world.client).stack.local_addr(socket).unwrap().port()
        });
        // The oracle: a queue.
        let mut sent: VecDeque<(u16, u64, usize)> = VecDeque::new();
        let mut total = 0;
        // The hosts meet before: packets that wait for an address are few, fragments many.
        let meet = (0..3).map(|sender| Step::Send { sender, len: 1 });
        for step in meet.chain([Step::Pass { ms: 10 }]).chain(steps) {
            match step {
                Step::Send { sender, len } => {
                    world.send_datagram(senders[sender], &Stream(STREAM).bytes(total, len));
                    sent.push_back((ports[sender], total, len));
                    total += 100_000;
                }
                Step::Receive { copy, limit, multishot } => {
                    let group = group.filter(|_| !copy).unwrap_or(COPY_GROUP);
                    let receive = Submission::receive(handle, group, limit, RECEIVE);
                    world.app.submit(if multishot { receive.multishot() } else { receive });
                }
                Step::Cancel => world.app.submit(Submission::cancel(handle, RECEIVE, 9)),
                Step::GiveBack { n } => world.app.give_back(n),
                Step::Unregister => {
                    if let Some(group) = group.take() {
                        world.unregister(group);
                    }
                }
                Step::Pass { ms } => world.pass(Duration::from_millis(ms)),
            }
            world.turn();
        }
        world.app.returns = true;
        world.app.give_back_all();
        // Past the time that fragments wait for others: what was received before it goes first.
        let receive = Submission::receive(handle, COPY_GROUP, 0, RECEIVE).multishot();
        world.app.submit(receive);
        world.pass(Duration::from_secs(1));
        world.app.submit(receive);
        world.pass(Duration::from_secs(1));
        let count = sent.len() as u64;
        let counters = world.engine.counters();
        prop_assert_eq!(counters.datagrams, world.app.datagrams.len() as u64);
        prop_assert_eq!(counters.datagrams + counters.datagrams_dropped, count);
        for got in &world.app.datagrams {
            let of = (got.from.port(), got.completion.length as usize);
            let is = |(port, at, len): &(u16, u64, usize)| {
                (*port, *len) == of && got.bytes == Stream(STREAM).bytes(*at, got.bytes.len())
            };
            // In order; those in between were dropped.
            while sent.pop_front().is_some_and(|one| !is(&one)) {
                prop_assert!(!sent.is_empty(), "{of:?} was never sent, or not in this order");
            }
        }
        prop_assert_eq!(counters.fills_refused(), 0);
        if let Some(group) = group {
            world.bring_home(group);
        } else {
            world.pass(Duration::from_millis(10));
        }
    }
}
