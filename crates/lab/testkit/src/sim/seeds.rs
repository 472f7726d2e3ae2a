//! Running a scenario for many seeds, and reporting how to repeat a failure.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use super::SimError;

// The published crate `pagewire-simulation` owns this file.
#[path = "../../../../products/simulation/src/seeds.rs"]
mod seed;

pub use seed::{SEED_VARIABLE, panic_text, seed_from_env, target_dir};

/// A seed whose scenario failed: what happened, the command that repeats it, and its capture.
#[derive(Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The error or panic of the run.
    pub what: String,
    /// The command that repeats the run, with the seed in its environment.
    pub command: String,
    /// Every frame of the failing run.
    pub capture: Option<PathBuf>,
}

/// Runs `scenario` for `seed`. If it fails, or panics, it runs once more with a capture.
///
/// `scenario` takes the seed and the file to [`capture`](super::Sim::capture) to, if any. `command`
/// runs this seed alone, with [`SEED_VARIABLE`] set.
pub fn run_seed(
    seed: u64,
    command: &str,
    scenario: impl Fn(u64, Option<&Path>) -> Result<(), SimError>,
) -> Result<(), Failure> {
    let run = |capture: Option<&Path>| -> Result<(), String> {
        // The scenario starts anew each time; no state of a panicked run is used.
        match catch_unwind(AssertUnwindSafe(|| scenario(seed, capture))) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(panic) => Err(format!("panicked: {}", panic_text(&*panic))),
        }
    };
    let Err(what) = run(None) else { return Ok(()) };
    let file = target_dir().join(format!("pagewire-seed-{seed}.pcapng"));
    let again = run(Some(&file));
    let what = match again {
        Err(again) if again == what => what,
        Err(again) => format!("{what} (and when run again: {again})"),
        Ok(()) => {
            format!("{what} (but not when run again: the scenario depends on more than its seed)")
        }
    };
    let capture = file.is_file().then_some(file);
    Err(Failure { seed, what, command: command.to_owned(), capture })
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, what, command, capture } = self;
        write!(f, "seed {seed} failed: {what}\n  again:   {SEED_VARIABLE}={seed} {command}")?;
        match capture {
            Some(file) => write!(f, "\n  capture: {}", file.display()),
            None => write!(f, "\n  capture: none was written"),
        }
    }
}

impl std::error::Error for Failure {}
