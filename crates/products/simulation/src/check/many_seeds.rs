//! [`Check`]: a scenario with many seeds, several at a time; the smallest seed that fails is run again and reported.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use crate::seeds::{panic_text, seed_from_env, target_dir};

use crate::builder::Builder;
use crate::check::jobs::{self, JobPermit};
use crate::record::comparison::RunComparison;
use crate::report::outcome::{Failure, FailureDetails, FailureKind, Repeats, Report};
use crate::sim::Sim;
use crate::{Result, SimTime};

/// The outcomes of many seeds.
#[derive(Debug)]
#[must_use = "a failure is only reported: call `assert`"]
pub struct Check {
    /// Reports of the seeds that went well, by seed.
    pub reports: Vec<Report>,
    /// Seeds that failed, by seed: the first is the smallest that fails. Larger ones were not started
    /// after it was known.
    pub failures: Vec<Failure>,
}

impl Check {
    /// Seeds that were run.
    pub fn seeds_run(&self) -> usize {
        self.reports.len() + self.failures.len()
    }

    /// The smallest seed that fails, if one does.
    pub fn failure(&self) -> Option<&Failure> {
        self.failures.first()
    }

    /// Panics with the smallest seed that fails, if one does, and if there were no seeds.
    ///
    /// # Panics
    /// See above.
    #[track_caller]
    pub fn assert(self) {
        assert!(self.seeds_run() > 0, "no seed was run, so nothing was checked");
        if let Some(failure) = self.failures.first() {
            let seeds = match self.seeds_run() {
                1 => "1 seed was run".to_owned(),
                count => format!("{count} seeds were run"),
            };
            panic!("{failure}\n  ({seeds})");
        }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.failure() {
            Some(failure) => fmt::Display::fmt(failure, f),
            None => write!(f, "{} seeds, none failed", self.seeds_run()),
        }
    }
}

impl Sim {
    /// Runs many seeds with the default settings: see [`Builder::check`].
    pub fn check(
        seeds: impl IntoIterator<Item = u64>,
        scenario: impl Fn(&mut Sim) -> Result + Sync,
    ) -> Check {
        Self::builder().check(seeds, scenario)
    }
}

/// The advice where two runs of a seed differ.
const WHY: &str = "the scenario depends on more than its seed: `select!` (write `biased;`), the order of a \
                   HashMap, std::time, random numbers of the system, statics, or threads. If only \
                   random bytes differ, as those of TLS do: Builder::digest_payload(false)";

/// Whether two runs failed in the same way. The time that a thread slept is real time, which differs from
/// run to run.
fn is_same(one: &Failure, other: &Failure) -> bool {
    let slept = matches!(one.kind, FailureKind::Blocked | FailureKind::RealSocket);
    one.kind == other.kind && (slept || one.what == other.what)
}

impl Builder {
    /// Runs `scenario` for each of `seeds`, several at a time, each on a thread of its own. The
    /// smallest seed that fails is run once more, with a capture and a timeline; if that run is not
    /// the same, the scenario depends on more than its seed, and the failure says so
    /// ([`FailureDetails::repeats`]). Panics are printed by that run only.
    ///
    /// With `PAGEWIRE_SEED` in the environment only that seed is run, with `PAGEWIRE_SEEDS=1000` so
    /// many from the smallest of `seeds` on, with `PAGEWIRE_SEEDS=5000..6000` those.
    /// `PAGEWIRE_JOBS` is how many run at the same time in all checks of the process, besides the
    /// first of each; by default as many as there are processors, and fewer if nextest runs other
    /// tests beside this one. `PAGEWIRE_TWICE=1` runs each twice:
    /// [`twice`](Self::twice).
    pub fn check(
        self,
        seeds: impl IntoIterator<Item = u64>,
        scenario: impl Fn(&mut Sim) -> Result + Sync,
    ) -> Check {
        let mut seeds: Vec<u64> = match seed_from_env() {
            Some(seed) => vec![seed],
            None => seeds.into_iter().collect(),
        };
        seeds.sort_unstable();
        seeds.dedup();
        if let (Some(&first), None) = (seeds.first(), seed_from_env())
            && let Some(asked) = jobs::seeds(first)
        {
            seeds = asked.collect();
        }
        let mut check = self.run_all(&seeds, jobs::jobs(), &scenario);
        check.reports.sort_by_key(|report| report.seed);
        check.failures.sort_by_key(|failure| failure.seed);
        if let Some(first) = check.failures.first_mut() {
            *first = self.again(first.clone(), &scenario);
        }
        check
    }

    fn run_all(
        &self,
        seeds: &[u64],
        jobs: usize,
        scenario: &(impl Fn(&mut Sim) -> Result + Sync),
    ) -> Check {
        let (next, smallest) = (AtomicUsize::new(0), AtomicU64::new(u64::MAX));
        let check = Mutex::new(Check { reports: Vec::new(), failures: Vec::new() });
        // Several seeds cannot write to one file.
        let quiet = Self { capture: None, timeline: None, quiet: true, ..self.clone() };
        let twice = self.twice.unwrap_or_else(jobs::twice);
        let is_over = || next.load(Relaxed) >= seeds.len();
        let work = |first: bool| {
            loop {
                let job = if first { None } else { JobPermit::wait(jobs, is_over) };
                let seed = seeds.get(next.fetch_add(1, Relaxed));
                let Some(&seed) = seed.filter(|_| first || job.is_some()) else { break };
                if seed > smallest.load(Relaxed) {
                    continue;
                }
                let builder = quiet.clone().seed(seed);
                let run =
                    || if twice { builder.run_twice(scenario) } else { builder.run(scenario) };
                // No state of a run that panicked is used again.
                let result = catch_unwind(AssertUnwindSafe(run))
                    .unwrap_or_else(|panic| Err(self.panicked(seed, panic_text(&*panic))));
                let mut check = check.lock().unwrap_or_else(PoisonError::into_inner);
                match result {
                    Ok(report) => check.reports.push(report),
                    Err(failure) => {
                        smallest.fetch_min(seed, Relaxed);
                        check.failures.push(failure);
                    }
                }
            }
        };
        std::thread::scope(|scope| {
            for number in 0..jobs.min(seeds.len()) {
                scope.spawn(move || work(number == 0));
            }
        });
        check.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn run_twice(
        self,
        scenario: &(impl Fn(&mut Sim) -> Result + Sync),
    ) -> std::result::Result<Report, Failure> {
        let comparison = RunComparison::default();
        let builder = Self { comparison: Some(comparison.clone()), ..self };
        let first = builder.clone().run(scenario)?;
        comparison.rewind(first.digest, first.events);
        let other = |what: String, of: Failure| {
            let FailureDetails { what: failed, details, .. } = &*of;
            let mut details = details.clone();
            if of.kind != FailureKind::NotDeterministic {
                details.insert(0, format!("the first run did not fail; the second: {failed}"));
            }
            details.insert(0, WHY.to_owned());
            let kind = FailureKind::NotDeterministic;
            Failure(Box::new(FailureDetails { what, kind, details, repeats: Repeats::No, ..*of.0 }))
        };
        match builder.clone().run(scenario) {
            Ok(second) => match comparison.end(second.digest, second.events) {
                None => Ok(second),
                Some(what) => Err(other(what, builder.no_failure(second))),
            },
            Err(failure) => {
                let same = "its second run failed, and the first did not".to_owned();
                Err(other(comparison.parted().unwrap_or(same), failure))
            }
        }
    }

    /// The failure about a run that had none itself.
    fn no_failure(&self, report: Report) -> Failure {
        let mut failure = self.panicked(report.seed, "");
        failure.0.kind = FailureKind::NotDeterministic;
        failure.0.at = SimTime::ZERO.after(report.elapsed);
        failure.0.digest = report.digest;
        failure
    }

    /// Runs a failing seed again, with everything recorded.
    fn again(
        &self,
        mut first: Failure,
        scenario: &(impl Fn(&mut Sim) -> Result + Sync),
    ) -> Failure {
        let builder =
            Self { comparison: None, ..self.clone() }.seed(first.seed).recorded(first.seed);
        let second = catch_unwind(AssertUnwindSafe(|| builder.run(scenario)))
            .unwrap_or_else(|panic| Err(self.panicked(first.seed, panic_text(&*panic))));
        let (repeats, differs) = match &second {
            // The difference is known already; the files are of some run.
            _ if first.kind == FailureKind::NotDeterministic => (Repeats::No, None),
            Ok(report) => (
                Repeats::No,
                Some(format!(
                    "when it was run again, it did not fail; digests {} and {}",
                    first.digest, report.digest
                )),
            ),
            Err(second) if !is_same(second, &first) => (
                Repeats::No,
                Some(format!("when it was run again, it failed at {}: {}", second.at, second.what)),
            ),
            Err(second) if second.digest != first.digest => (
                Repeats::OtherDigest,
                Some(format!(
                    "when it was run again, it failed in the same way, and not all was the same: \
                     digests {} and {}",
                    first.digest, second.digest
                )),
            ),
            // The second failure is the same, and has the files.
            Err(second) => {
                let mut second = second.clone();
                second.0.repeats = Repeats::Same;
                return second;
            }
        };
        (first.0.capture, first.0.timeline) = match second {
            Ok(report) => (report.capture, report.timeline),
            Err(second) => (second.0.capture, second.0.timeline),
        };
        first.0.repeats = repeats;
        if let Some(differs) = differs {
            first.0.details.splice(0..0, [differs, WHY.to_owned()]);
        }
        first
    }

    /// The settings with a capture and a timeline of this seed, as far as these can be written.
    fn recorded(mut self, seed: u64) -> Self {
        let dir = self.artifacts.clone().unwrap_or_else(target_dir);
        // Where that is not possible, the failure says that the files cannot be written.
        let _ = std::fs::create_dir_all(&dir);
        let name = dir.join(format!("pagewire-{}", self.test.file_stem()));
        let capture = self.capture.unwrap_or_else(|| name.with_extension("pcapng"));
        let timeline = self.timeline.unwrap_or_else(|| name.with_extension("timeline.txt"));
        self.capture = Some(with_seed(&capture, seed));
        self.timeline = Some(with_seed(&timeline, seed));
        self.lenient = true;
        self
    }

    /// The failure of a scenario that panicked itself, outside of any task.
    fn panicked(&self, seed: u64, text: &str) -> Failure {
        Failure(Box::new(FailureDetails {
            seed,
            kind: FailureKind::Panic,
            host: None,
            at: SimTime::ZERO,
            what: format!("the scenario panicked: {text}"),
            details: Vec::new(),
            digest: crate::record::digest::Digester::default().digest(),
            repeats: Repeats::Unknown,
            command: self.test.command(),
            capture: None,
            timeline: None,
        }))
    }
}

/// The file's name with the seed in front of its ending.
fn with_seed(file: &Path, seed: u64) -> PathBuf {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let (stem, ending) = name.split_once('.').map_or((&*name, None), |(a, b)| (a, Some(b)));
    match ending {
        Some(ending) => file.with_file_name(format!("{stem}-seed-{seed}.{ending}")),
        None => file.with_file_name(format!("{stem}-seed-{seed}")),
    }
}
