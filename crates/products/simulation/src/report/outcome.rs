//! The outcome of a run: a report, or a failure that says how to repeat the run.

use std::fmt;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::seeds::SEED_VARIABLE;

use crate::record::digest::Digest;
use crate::record::recorder::Counts;
use crate::{SimTime, TWICE_VARIABLE};

/// A run that went well.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Simulated time.
    pub elapsed: Duration,
    /// The hash over what happened between the hosts: [`Digest`] has the list.
    pub digest: Digest,
    /// Events in the digest.
    pub events: u64,
    /// Counts of packets and of runs.
    pub counts: Counts,
    /// Oddities that are no failure: tasks that still ran when their program ended, for
    /// instance.
    pub warnings: Vec<String>,
    /// Every packet, if it was captured.
    pub capture: Option<PathBuf>,
    /// The timeline, if it was recorded.
    pub timeline: Option<PathBuf>,
}

/// Result of a second run of a failing seed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Repeats {
    /// There was no second run.
    #[default]
    Unknown,
    /// The second run was the same.
    Same,
    /// The second run failed in the same way with another digest: other bytes, or other times.
    OtherDigest,
    /// The second run did not fail, or failed in another way.
    No,
}

/// Why a run failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureKind {
    /// A client returned an error.
    Client,
    /// A host returned an error.
    Host,
    /// A task panicked.
    Panic,
    /// An invariant does not hold.
    Invariant,
    /// The scenario itself returned an error.
    Scenario,
    /// Clients were not done at the limit of simulated time.
    TooLong,
    /// Clients wait, and nothing happens any more: no packet, and no timer for more than two minutes.
    NoProgress,
    /// Tasks wake each other for ever while time stands still. Tasks of one host are stopped after five
    /// seconds of real time ([`Builder::turn_limit`](crate::Builder::turn_limit)), so how often they ran differs from run to run; nothing before does.
    Spinning,
    /// A task blocked its thread.
    Blocked,
    /// A real socket was used, or what else of tokio needs a kernel: signals, processes, descriptors.
    RealSocket,
    /// A thread that is not the simulation's woke a task, and
    /// [`ForeignThreads::Fail`](crate::ForeignThreads::Fail) is set, as by default.
    ForeignThread,
    /// A program moved its runtime's clock, or ran the simulation inside of another runtime; a client
    /// of one future was bounced; a run had hosts and no client.
    Misuse,
    /// Tasks still ran when their program ended, and [`Leaks::Fail`](crate::Leaks::Fail) is set.
    Leak,
    /// Two runs of one seed differ, and the first does not fail:
    /// [`Builder::twice`](crate::Builder::twice).
    NotDeterministic,
}

/// A run that failed: what happened, where and when, and the command that repeats it. Prints all of
/// it, also with `{:?}`, so that `unwrap` in a test shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct Failure(pub(crate) Box<FailureDetails>);

impl Deref for Failure {
    type Target = FailureDetails;

    fn deref(&self) -> &FailureDetails {
        &self.0
    }
}

/// The contents of a [`Failure`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailureDetails {
    /// The seed.
    pub seed: u64,
    /// The kind.
    pub kind: FailureKind,
    /// The host that failed, if one did.
    pub host: Option<String>,
    /// The simulated time.
    pub at: SimTime,
    /// The error in words.
    pub what: String,
    /// Further lines: which task waits for what, for instance.
    pub details: Vec<String>,
    /// The hash over what happened between the hosts up to the failure.
    pub digest: Digest,
    /// Whether a second run of the seed was the same. `details` say how it differs.
    pub repeats: Repeats,
    /// The command that repeats it, without the seed in its environment.
    pub command: String,
    /// The capture of the failing run, if it was captured.
    pub capture: Option<PathBuf>,
    /// The timeline, if it was recorded.
    pub timeline: Option<PathBuf>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FailureDetails { seed, kind, host, at, what, details, command, .. } = &**self;
        let FailureDetails { capture, timeline, .. } = &**self;
        write!(f, "seed {seed} failed at {at}")?;
        if let Some(host) = host {
            write!(f, " on `{host}`")?;
        }
        write!(f, ": {what}")?;
        for line in details {
            write!(f, "\n  {line}")?;
        }
        let twice = match kind {
            FailureKind::NotDeterministic => format!("{TWICE_VARIABLE}=1 "),
            _ => String::new(),
        };
        write!(f, "\n  again:    {twice}{SEED_VARIABLE}={seed} {command}")?;
        if let Some(file) = capture {
            write!(f, "\n  capture:  {}", file.display())?;
        }
        if let Some(file) = timeline {
            write!(f, "\n  timeline: {}", file.display())?;
        }
        Ok(())
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Failure {}

/// The test that runs on this thread, by the name that cargo knows, where that can be found out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TestName {
    /// The name that the test harness gives the test's thread.
    pub(crate) name: Option<String>,
}

impl TestName {
    pub(crate) fn current() -> Self {
        let name = std::thread::current().name().map(str::to_owned);
        Self { name: name.filter(|name| name != "main") }
    }

    pub(crate) fn command(&self) -> String {
        let package = std::env::var("CARGO_PKG_NAME").ok();
        let exe = std::env::current_exe().unwrap_or_default();
        let root = std::env::var("CARGO_MANIFEST_DIR").map(PathBuf::from).unwrap_or_default();
        command(package.as_deref(), &exe, &root, self.name.as_deref())
    }

    /// A name for files that no other test has: the package, the test's program, and the test.
    pub(crate) fn file_stem(&self) -> String {
        let package = std::env::var("CARGO_PKG_NAME").ok();
        let exe = std::env::current_exe().unwrap_or_default();
        file_stem(package.as_deref(), &exe, self.name.as_deref())
    }
}

fn file_stem(package: Option<&str>, exe: &Path, test: Option<&str>) -> String {
    let target = target(exe);
    let is_lib = package.is_some_and(|package| package.replace('-', "_") == target);
    let target = if is_lib { None } else { Some(&*target) };
    let parts: Vec<&str> = [package, target, test].into_iter().flatten().collect();
    let name = parts.join("-");
    let letters = name.chars().map(|c| match c {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '_' => c,
        _ => '-',
    });
    // Far below what file systems take, with the seed and the ending.
    letters.take(200).collect()
}

/// The name of a test's program, to which cargo adds a hash.
fn target(exe: &Path) -> String {
    let stem = exe.file_stem().unwrap_or_default().to_string_lossy();
    stem.rsplit_once('-').map_or(&*stem, |(target, _)| target).to_owned()
}

fn command(package: Option<&str>, exe: &Path, root: &Path, test: Option<&str>) -> String {
    let Some(package) = package else { return exe.display().to_string() };
    let target = target(exe);
    let mut line = format!("cargo test -p {package}");
    if root.join("tests").join(format!("{target}.rs")).is_file()
        || root.join("tests").join(&target).join("main.rs").is_file()
    {
        line += &format!(" --test {target}");
    } else if target == package.replace('-', "_")
        && root.join("src/lib.rs").is_file()
        && !root.join("src/main.rs").is_file()
    {
        // Elsewhere cargo looks for the test in the library and in all programs.
        line += " --lib";
    }
    if let Some(test) = test {
        line += &format!(" -- --exact {test}");
    }
    line
}

#[cfg(test)]
#[path = "outcome_tests.rs"]
mod tests;
