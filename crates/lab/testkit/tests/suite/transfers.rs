//! Two stacks over networks good and bad, with every oracle on.

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use pagewire_device::{Chance, FaultConfig};
use pagewire_testkit::sim::{SimError, Transfer, run_seed, seed_from_env, transfer};

const COMMAND: &str = "cargo test -p pagewire-testkit seed_from_env";

const VARIED: &str = "cargo test -p pagewire-testkit varied_from_env";

fn random(seed: u64, capture: Option<&Path>) -> Result<(), SimError> {
    Transfer::random(seed).run(capture).map(drop)
}

fn varied(seed: u64, capture: Option<&Path>) -> Result<(), SimError> {
    Transfer::varied(seed).run(capture).map(drop)
}

type Scenario = fn(u64, Option<&Path>) -> Result<(), SimError>;

fn from_env(show: impl Fn(u64) -> Transfer, command: &str, scenario: Scenario) {
    if let Some(seed) = seed_from_env() {
        eprintln!("{:#?}", show(seed));
        match run_seed(seed, command, scenario) {
            Ok(()) => eprintln!("seed {seed} holds"),
            Err(failure) => panic!("{failure}"),
        }
    }
}

#[test]
fn seed_from_env_runs_alone() {
    from_env(Transfer::random, COMMAND, random);
}

#[test]
fn varied_from_env_runs_alone() {
    from_env(Transfer::varied, VARIED, varied);
}

#[test]
fn five_hundred_seeds_up_to_ten_percent_loss_hold_every_oracle() {
    run_seeds(0..500, COMMAND, random);
}

#[test]
fn six_hundred_seeds_with_all_settings_varied_hold_every_oracle() {
    run_seeds(0..600, VARIED, varied);
}

/// For the night: `PAGEWIRE_SEEDS=600..100000 cargo test -p pagewire-testkit -- --ignored`.
#[test]
#[ignore = "takes as long as PAGEWIRE_SEEDS says"]
fn a_range_of_seeds_from_the_environment_holds_every_oracle() {
    let text = std::env::var("PAGEWIRE_SEEDS").unwrap_or_else(|_| "600..5000".into());
    let (from, to) = text.split_once("..").expect("PAGEWIRE_SEEDS=first..beyond");
    let seeds: Range<u64> = from.parse().expect("a number")..to.parse().expect("a number");
    run_seeds(seeds.clone(), COMMAND, random);
    run_seeds(seeds, VARIED, varied);
}

fn run_seeds(seeds: Range<u64>, command: &str, scenario: Scenario) {
    // Two threads: what a small machine has.
    let middle = seeds.start + (seeds.end - seeds.start) / 2;
    let run = |seeds: Range<u64>| -> Vec<String> {
        let failed = seeds.filter_map(|seed| run_seed(seed, command, scenario).err());
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
