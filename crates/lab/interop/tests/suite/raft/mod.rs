//! openraft on simulated hosts that lose power, and a network that is cut and loses packets. Its
//! invariants hold for every seed: election safety, leader completeness, log matching, state machine
//! safety; clients see registers that are linearizable, and the cluster works again in the end. Two
//! planted bugs are found: a vote that is not synced, and a leader that answers reads without asking
//! whether it still leads. Run it optimised: the search for the first takes hundreds of seeds.
//!
//! `PAGEWIRE_SEEDS=1000` tries more seeds.

mod network;
mod node;
mod oracle;
mod store;
mod types;

use std::time::Duration;

use pagewire_simulation::{Control, Link, Result, Sim, SimRng};

use node::{Bugs, client, node};
use oracle::Oracle;
use store::Store;

/// Nodes of the cluster.
const NODES: u64 = 3;
/// Trouble ends then.
const CALM: Duration = Duration::from_secs(20);
/// The cluster has to work again by then.
const END: Duration = Duration::from_secs(40);
/// With fewer answers a run says little. Trouble may last nearly all the time, so there are few.
const FEWEST_ANSWERS: usize = 10;

fn name(node: u64) -> String {
    format!("node{node}")
}

fn lose_power(sim: &mut Sim, node: &str, at: Duration, back: Duration) {
    let (victim, again) = (node.to_owned(), node.to_owned());
    sim.at(at, move |control: &Control| control.crash(victim.as_str()));
    sim.at(back, move |control: &Control| control.bounce(again.as_str()));
}

fn cut(sim: &mut Sim, node: &str, others: &[String], at: Duration, back: Duration) {
    let (victim, again) = (node.to_owned(), node.to_owned());
    let (others, rest) = (others.to_vec(), others.to_vec());
    sim.at(at, move |control: &Control| control.partition(victim.as_str(), others));
    sim.at(back, move |control: &Control| control.repair(again.as_str(), rest));
}

/// Plans trouble: each second or so a node loses power; or is cut off; or two do not hear each other
/// while the third, which hears both and whose vote decides, loses power again and again.
fn plan(sim: &mut Sim, mut random: SimRng) {
    let ms = Duration::from_millis;
    let mut at = Duration::from_secs(2);
    while at < CALM - Duration::from_secs(5) {
        let victim = name(1 + random.below(NODES));
        let others: Vec<_> = (1..=NODES).map(name).filter(|other| *other != victim).collect();
        let back = at + ms(300 + random.below(4_000));
        match random.below(3) {
            0 => lose_power(sim, &victim, at, back),
            1 => cut(sim, &victim, &others, at, back),
            _ => {
                cut(sim, &others[0], &others[1..], at, back);
                let mut off = at + ms(random.below(500));
                while off < back {
                    let on = back.min(off + ms(50 + random.below(300)));
                    lose_power(sim, &victim, off, on);
                    off = on + ms(200 + random.below(1_000));
                }
            }
        }
        at = back + ms(100 + random.below(1_000));
    }
}

/// A cluster, clients that write and read all the time, and trouble from the seed.
fn scenario(sim: &mut Sim, bugs: Bugs) -> Result {
    let oracle = Oracle::default();
    let stores: Vec<_> = (0..NODES).map(|_| Store::new(bugs.forgets_votes)).collect();
    for (number, store) in (1..).zip(&stores) {
        let (store, oracle) = (store.clone(), oracle.clone());
        sim.host(&name(number), move || node(number, store.clone(), oracle.clone(), bugs));
    }
    let random = sim.rng();
    plan(sim, random);
    for number in 0..2 {
        sim.client(&format!("client{number}"), client(number, oracle.clone()));
    }
    let judge = oracle.clone();
    sim.invariant("raft", move |_| Ok(judge.verdict()?));
    sim.run()?;
    oracle.logs_match(&stores);
    oracle.verdict()?;
    oracle.judge_calls()?;
    if oracle.answered() < FEWEST_ANSWERS {
        return Err(format!("only {} calls were answered", oracle.answered()).into());
    }
    Ok(())
}

fn builder() -> pagewire_simulation::Builder {
    let link = Link::new().latency(Duration::from_millis(10)).jitter(Duration::from_millis(5));
    Sim::builder().link(link.loss(0.05)).limit(2 * END)
}

#[test]
fn openraft_keeps_its_invariants() {
    builder().check(0..5, |sim| scenario(sim, Bugs::default())).assert();
}

/// The report of the smallest seed that fails with these bugs.
fn find(bugs: Bugs) -> String {
    let check = builder().check(0..1000, move |sim| scenario(sim, bugs));
    check.failure().expect("a failure within 1,000 seeds").to_string()
}

#[test]
fn a_leader_that_serves_stale_reads_is_found() {
    let failure = find(Bugs { serves_stale_reads: true, ..Bugs::default() });
    assert!(failure.contains("register"), "{failure}");
}

#[test]
fn a_vote_that_is_not_synced_is_found() {
    let failure = find(Bugs { forgets_votes: true, ..Bugs::default() });
    let broken = ["two leaders", "lacks", "applied", "differ before", "register"];
    assert!(broken.iter().any(|what| failure.contains(what)), "{failure}");
}
