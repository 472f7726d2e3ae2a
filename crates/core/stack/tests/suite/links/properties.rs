//! Whatever happens on two links: pages are conserved, and what arrives was sent.

use std::time::Duration;

use proptest::prelude::*;

use super::world::*;
use crate::common::Verbs;

/// Pages that a writer takes from the pool at once.
const WRITER_PAGES: usize = 16;

/// A step of the test.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A connection between two of the three, some bytes each way, and its end.
    Exchange {
        from: usize,
        to: usize,
        v6: bool,
        len: usize,
    },
    /// Bytes that nobody reads, and the sender goes.
    Abandon {
        from: usize,
        len: usize,
    },
    /// A frame of noise, its head like a packet's.
    Noise {
        link: usize,
        kind: u8,
        seed: u64,
        len: usize,
    },
    /// Passing packets on is switched.
    Switch(bool),
    /// The eastern link is taken away, and put back.
    Replace,
    Pass(u16),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0usize..3, 1usize..3, any::<bool>(), 1usize..60_000).prop_map(
            |(from, by, v6, len)| Step::Exchange { from, to: (from + by) % 3, v6, len }
        ),
        2 => (0usize..3, 1usize..60_000).prop_map(|(from, len)| Step::Abandon { from, len }),
        4 => (0usize..2, 0u8..4, any::<u64>(), 0usize..2000)
            .prop_map(|(link, kind, seed, len)| Step::Noise { link, kind, seed, len }),
        1 => any::<bool>().prop_map(Step::Switch),
        1 => Just(Step::Replace),
        2 => (0u16..5000).prop_map(Step::Pass),
    ]
}

/// Where the others are reached.
fn address(stack: usize, v6: bool, port: u16) -> String {
    let host = match (stack, v6) {
        (LEFT, false) => "10.0.0.2",
        (MIDDLE, false) => "10.0.1.1",
        (_, false) => "10.0.1.2",
        (LEFT, true) => "[fd00::2]",
        (MIDDLE, true) => "[fd01::1]",
        (_, true) => "[fd01::2]",
    };
    format!("{host}:{port}")
}

struct Run {
    world: World,
    config: pagewire_stack::StackConfig,
    port: u16,
    /// Replacing the link breaks the wire: the right peer is out of reach.
    cut_off: bool,
}

impl Run {
    fn apply(&mut self, step: Step) {
        let world = &mut self.world;
        match step {
            Step::Exchange { from, to, v6, len } => {
                self.port += 1;
                let both_sides = from != MIDDLE && to != MIDDLE;
                let east = from == RIGHT || to == RIGHT;
                let reachable = (!both_sides || self.config.ip_forwarding)
                    && !(self.cut_off && (east || to == MIDDLE));
                if !reachable {
                    let at = addr(&address(to, v6, self.port));
                    if let Ok(id) = world.stacks[from].connect(world.now, at, None) {
                        world.run(Duration::from_millis(100));
                        world.stacks[from].abort(world.now, id);
                        world.stacks[from].close(world.now, id);
                    }
                    return;
                }
                let at = addr(&address(to, v6, self.port));
                let (near, far) = world.connect((from, to), at);
                world.exchange((from, near), (to, far), len);
                world.stacks[from].close(world.now, near);
                world.stacks[to].close(world.now, far);
            }
            Step::Abandon { from, len } => {
                let to = if from == LEFT { RIGHT } else { LEFT };
                let (at, now) = (addr(&address(to, false, 9)), world.now);
                if let Ok(id) = world.stacks[from].connect(now, at, None) {
                    let _ = world.stacks[from].send(now, id, &vec![1; len]);
                    world.run(Duration::from_millis(1));
                    world.stacks[from].close(world.now, id);
                }
            }
            Step::Noise { link, kind, seed, len } => {
                if link < world.middle().links().count() {
                    let frame = noise(link, kind, seed, len);
                    world.inject(MIDDLE, link, &frame);
                }
            }
            Step::Switch(on) => {
                self.config.ip_forwarding = on;
                world.middle().reconfigure(&self.config);
            }
            Step::Replace => {
                let east = world.link(1);
                assert!(world.middle().remove_link(east));
                let (now, link) = (world.now, self.config.links[0].clone());
                world.middle().add_link(now, &link).unwrap();
                self.cut_off = true;
            }
            Step::Pass(ms) => world.run(Duration::from_millis(ms.into())),
        }
        self.world.flush();
        self.world.pages_are_conserved();
    }
}

fn noise(link: usize, kind: u8, mut seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as u8
    };
    let station = [2, 0, 0, 0, 0, if link == 0 { 1 } else { 3 }];
    let mut frame = [&station[..], &LEFT_MAC].concat();
    match kind {
        0 => frame.extend([8, 0, 0x45]),
        1 => frame.extend([0x86, 0xdd, 0x60]),
        2 => frame.extend([8, 6]),
        _ => {}
    }
    frame.extend((0..len).map(|_| bytes()));
    frame
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn pages_are_conserved_whatever_happens(
        steps in proptest::collection::vec(step(), 1..24),
        able_east: bool,
    ) {
        let config = middle();
        let east = if able_east { able } else { plain };
        let world = World::three_with(config.clone(), able, east);
        let mut config = config;
        config.links[0].capabilities = east(3);
        let mut run = Run { world, config, port: 1000, cut_off: false };
        run.world.meet();
        for step in steps {
            run.apply(step);
        }
        // Everybody goes: all pages come home, but those that each stack writes into next.
        run.world.run(Duration::from_secs(600));
        run.world.pages_are_conserved();
        for stack in &run.world.stacks {
            prop_assert!(stack.pool_audit().out <= WRITER_PAGES, "{:?}", stack.pool_audit());
        }
    }
}
