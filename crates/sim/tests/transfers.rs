//! Two stacks over networks good and bad, with every oracle on.

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use pagewire_device::{Chance, FaultConfig};
use pagewire_sim::{SimError, Transfer, run_seed, seed_from_env, transfer};

const COMMAND: &str = "cargo test -p pagewire-sim seed_from_env";

fn random(seed: u64, capture: Option<&Path>) -> Result<(), SimError> {
    Transfer::random(seed).run(capture).map(drop)
}

#[test]
fn seed_from_env_runs_alone() {
    if let Some(seed) = seed_from_env() {
        eprintln!("{:#?}", Transfer::random(seed));
        match run_seed(seed, COMMAND, random) {
            Ok(()) => eprintln!("seed {seed} holds"),
            Err(failure) => panic!("{failure}"),
        }
    }
}

#[test]
fn five_hundred_seeds_up_to_ten_percent_loss_hold_every_oracle() {
    run_seeds(0..500);
}

/// For the night: `PAGEWIRE_SEEDS=500..100000 cargo test -p pagewire-sim -- --ignored`.
#[test]
#[ignore = "takes as long as PAGEWIRE_SEEDS says"]
fn a_range_of_seeds_from_the_environment_holds_every_oracle() {
    let text = std::env::var("PAGEWIRE_SEEDS").unwrap_or_else(|_| "500..5000".into());
    let (from, to) = text.split_once("..").expect("PAGEWIRE_SEEDS=first..beyond");
    run_seeds(from.parse().expect("a number")..to.parse().expect("a number"));
}

fn run_seeds(seeds: Range<u64>) {
    // Two threads: what a small machine has.
    let middle = seeds.start + (seeds.end - seeds.start) / 2;
    let run = |seeds: Range<u64>| -> Vec<String> {
        let failed = seeds.filter_map(|seed| run_seed(seed, COMMAND, random).err());
        failed.map(|failure| failure.to_string()).take(3).collect()
    };
    let failures = std::thread::scope(|scope| {
        let other = scope.spawn(|| run(middle..seeds.end));
        let mut failures = run(seeds.start..middle);
        failures.extend(other.join().expect("a thread"));
        failures
    });
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn a_clean_link_loses_nothing_and_copies_nothing_by_reference() {
    let report = transfer(1, Transfer::new(1).faults, 4 << 20).expect("a transfer");
    assert_eq!(report.ledgers.map(|ledger| ledger.ours()), [0, 0]);
    assert!(report.time < Duration::from_secs(2), "{:?}", report.time);
}

#[test]
fn ten_percent_loss_both_ways_is_slow_and_whole() {
    let faults = FaultConfig {
        loss: Chance::percent(10),
        delay: Duration::from_millis(5),
        cut: true,
        ..FaultConfig::default()
    };
    let report = transfer(2, faults, 500_000).expect("a transfer");
    assert!(report.faults.iter().all(|way| way.lost > 0), "{:?}", report.faults);
}

#[test]
fn one_seed_is_the_same_transfer_again() {
    let run = |seed| {
        let report = Transfer::random(seed).run(None).expect("a transfer");
        (report.time, report.faults, report.ledgers)
    };
    assert_eq!(run(12), run(12));
}
