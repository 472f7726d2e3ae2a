//! openraft on simulated hosts that lose power, and a network that is cut and loses packets. Its
//! invariants hold for every seed: election safety, leader completeness, log matching, state machine
//! safety; clients see registers that are linearizable, and the cluster works again in the end. Two
//! bugs that are planted here are found: a vote that is not synced, and a leader that answers reads
//! without asking whether it still leads.
//!
//! `PAGEWIRE_SEEDS=1000` tries more seeds.

mod network;
mod node;
mod oracle;
mod store;
mod types;

use std::time::Duration;

use pagewire_simulation::{Control, FailureKind, Link, Result, Sim, SimRng};

use node::{Bugs, client, node};
use oracle::Oracle;
use store::Store;

/// Nodes of the cluster.
const NODES: u64 = 3;
/// Trouble ends then.
const CALM: Duration = Duration::from_secs(30);
/// The cluster has to work again by then.
const END: Duration = Duration::from_secs(60);

fn name(node: u64) -> String {
    format!("node{node}")
}

/// Plans trouble: each second or so, a node loses power or is cut off, and comes back.
fn plan(sim: &mut Sim, mut random: SimRng) {
    let mut at = Duration::from_secs(2);
    while at < CALM - Duration::from_secs(5) {
        let victim = name(1 + random.below(NODES));
        let back = at + Duration::from_millis(300 + random.below(4_000));
        if random.chance(0.5) {
            let again = victim.clone();
            sim.at(at, move |control: &Control| control.crash(victim.as_str()));
            sim.at(back, move |control: &Control| control.bounce(again.as_str()));
        } else {
            let others: Vec<_> = (1..=NODES).map(name).filter(|other| *other != victim).collect();
            let (again, rest) = (victim.clone(), others.clone());
            sim.at(at, move |control: &Control| control.partition(victim.as_str(), others));
            sim.at(back, move |control: &Control| control.repair(again.as_str(), rest));
        }
        at = back + Duration::from_millis(100 + random.below(1_000));
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
    if oracle.answered() < 50 {
        return Err(format!("only {} calls were answered", oracle.answered()).into());
    }
    Ok(())
}

fn builder() -> pagewire_simulation::Builder {
    let link = Link::new().latency(Duration::from_millis(5)).jitter(Duration::from_millis(3));
    Sim::builder().link(link.loss(0.05)).limit(2 * END)
}

#[test]
fn openraft_keeps_its_invariants() {
    builder().check(0..20, |sim| scenario(sim, Bugs::default())).assert();
}

#[test]
fn a_leader_that_serves_stale_reads_is_found() {
    let bugs = Bugs { serves_stale_reads: true, ..Bugs::default() };
    let check = builder().check(0..1000, move |sim| scenario(sim, bugs));
    let failure = check.failure().expect("a stale read within 1,000 seeds");
    assert!(failure.to_string().contains("register"), "{failure}");
}

#[test]
fn a_vote_that_is_not_synced_is_found() {
    let bugs = Bugs { forgets_votes: true, ..Bugs::default() };
    let check = builder().check(0..1000, move |sim| scenario(sim, bugs));
    let failure = check.failure().expect("a broken invariant within 1,000 seeds");
    assert_ne!(failure.kind, FailureKind::TooLong, "{failure}");
}
