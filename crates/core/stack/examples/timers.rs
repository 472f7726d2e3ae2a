//! Measures the cost of a timer with a thousand to a million of them set: nanoseconds for setting, moving,
//! clearing and expiring one.
//!
//! ```text
//! cargo run --release -p pagewire-stack --example timers
//! ```
//!
//! Deadlines are spread at random over two minutes, as those of connections are; each is set, moved
//! and cleared in random order. The number of steps does not depend on how many there are (a test
//! of the wheel counts them); what grows is the share of steps that miss the processor's caches.
//! Following a list of as many entries from one to the next in random order is measured beside it:
//! one such miss each.

use std::hint::black_box;
use std::time::Instant as WallClock;

use pagewire_mem::Instant;
use pagewire_stack::bench::Timers;

const SPREAD_MS: u64 = 120_000;

/// Operations measured for each figure, at least.
const OPERATIONS: usize = 4_000_000;

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

fn main() {
    println!(
        "{:>9} {:>8} {:>8} {:>8} {:>8} {:>8}  ns each",
        "timers", "set", "move", "clear", "expire", "list"
    );
    for n in [1_000, 10_000, 100_000, 1_000_000] {
        let [set, moved, clear, expire, list] = measure(n);
        println!("{n:>9} {set:>8.1} {moved:>8.1} {clear:>8.1} {expire:>8.1} {list:>8.1}");
    }
}

fn measure(n: usize) -> [f64; 5] {
    let mut rng = Rng(0x9e37_79b9_7f4a_7c15);
    let mut order: Vec<u32> = (0..n as u32).collect();
    for i in (1..n).rev() {
        order.swap(i, (rng.next() % (i as u64 + 1)) as usize);
    }
    let later: Vec<u64> = (0..n).map(|_| 1 + rng.next() % SPREAD_MS).collect();
    let rounds = OPERATIONS.div_ceil(n);
    let mut spent = [0.0; 5];
    let mut clock = |which: usize, work: &mut dyn FnMut()| {
        let begin = WallClock::now();
        work();
        spent[which] += begin.elapsed().as_nanos() as f64;
    };
    let mut timers = Timers::new(Instant::ZERO);
    let mut list = vec![[0u64; 2]; n];
    order.windows(2).for_each(|w| list[w[0] as usize] = [u64::from(w[1]), 0]);
    let first = u64::from(order[0]);
    let mut base = 0;
    // Once before, so that memory is there.
    order.iter().for_each(|&i| timers.set(i, Instant::from_millis(1)));
    order.iter().for_each(|&i| timers.clear(i));
    for _ in 0..rounds {
        let at = |i: usize, off: u64| Instant::from_millis(base + later[i] + off);
        clock(0, &mut || order.iter().enumerate().for_each(|(i, &t)| timers.set(t, at(i, 0))));
        clock(1, &mut || order.iter().enumerate().for_each(|(i, &t)| timers.set(t, at(i, 200))));
        clock(2, &mut || order.iter().for_each(|&t| timers.clear(t)));
        order.iter().enumerate().for_each(|(i, &t)| timers.set(t, at(i, 0)));
        let mut fired = 0;
        clock(3, &mut || {
            // As a driver: waits until the first is due.
            while let Some(due) = timers.next() {
                while timers.expire(due).is_some() {
                    fired += 1;
                }
            }
        });
        assert_eq!(fired, n);
        clock(4, &mut || {
            black_box((0..n).fold(first, |at, _| list[at as usize][0]));
        });
        base += SPREAD_MS + 2;
    }
    spent.map(|ns| ns / (rounds * n) as f64)
}
