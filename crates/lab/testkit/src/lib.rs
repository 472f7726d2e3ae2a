//! How tests report that they cannot run here. [`can`] checks what a test needs, [`skip`] is for what
//! only the test itself can find out:
//!
//! ```
//! use pagewire_testkit::{Need, can};
//!
//! # fn test() {
//! if !can(&[Need::Tap, Need::Program("curl")]) {
//!     return;
//! }
//! # }
//! ```
//!
//! A skipped test passes for `cargo test`. To show it, one line goes to standard error past the test
//! harness, which keeps what a passing test prints; another to the file that `PAGEWIRE_SKIPPED` names,
//! whose lines `make test` counts at its end. With `PAGEWIRE_REQUIRE_ALL=1` the test fails instead.

use std::ffi::OsString;
use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::panic::Location;
use std::path::Path;

use rustix::thread::CapabilitySet;

pub mod frames;
mod given;
pub mod heap;
pub mod neighbours;
mod netns;
#[cfg(feature = "sim")]
pub mod sim;

pub use netns::{Netns, command, ip};

/// Names the file that gets one line for each skip: the test, a tab, the reason.
pub const RECORD: &str = "PAGEWIRE_SKIPPED";
/// Makes every skip a failure, unless it is unset, empty or `0`.
pub const REQUIRE_ALL: &str = "PAGEWIRE_REQUIRE_ALL";

/// A need of a test that not every machine meets.
#[derive(Clone, Copy, Debug)]
pub enum Need<'a> {
    /// The rights to make network namespaces and to configure interfaces.
    Root,
    /// [`Need::Root`], and the device that taps are made from.
    Tap,
    /// A program in `PATH`.
    Program(&'a str),
}

impl Need<'_> {
    /// Why it is not met; `None` if it is.
    fn lacks(self) -> Option<String> {
        match self {
            Need::Root => (!is_root()).then(|| "needs root".to_owned()),
            Need::Tap => Need::Root.lacks().or_else(|| {
                // Opening it makes no interface. The file may exist without a driver.
                let opened = OpenOptions::new().read(true).write(true).open("/dev/net/tun");
                let error = opened.err()?;
                Some(format!("needs /dev/net/tun (modprobe tun): {error}"))
            }),
            Need::Program(name) => (!is_program(name)).then(|| format!("needs {name} in PATH")),
        }
    }
}

/// In a container, user 0 may lack the rights.
fn is_root() -> bool {
    let needed = CapabilitySet::NET_ADMIN | CapabilitySet::SYS_ADMIN;
    rustix::process::geteuid().is_root()
        && rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(needed))
}

fn is_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut files = std::env::split_paths(&path).map(|dir| dir.join(name));
    files.any(|file| rustix::fs::access(&file, rustix::fs::Access::EXEC_OK).is_ok())
}

/// Whether all needs are met. If not, this has called [`skip`], and the test returns.
///
/// # Panics
///
/// Where every test is required ([`REQUIRE_ALL`]) and a need is not met.
#[must_use]
#[track_caller]
pub fn can(needs: &[Need<'_>]) -> bool {
    let lacks = needs.iter().find_map(|need| need.lacks());
    if let Some(reason) = &lacks {
        skip(reason);
    }
    lacks.is_none()
}

/// Reports that the test which calls this is skipped, and why; the test then returns.
///
/// # Panics
///
/// Where every test is required ([`REQUIRE_ALL`]).
#[track_caller]
pub fn skip(reason: impl Display) {
    let reason = reason.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    let test = test_name(Location::caller());
    let required = std::env::var_os(REQUIRE_ALL).is_some_and(|v| !v.is_empty() && v != "0");
    assert!(!required, "every test is required ({REQUIRE_ALL}), but this one cannot run: {reason}");
    // The test harness keeps what the print macros write; this passes it.
    let _ = io::stderr().write_all(format!("SKIPPED {test}: {reason}\n").as_bytes());
    if let Some(file) = std::env::var_os(RECORD).filter(|file| !file.is_empty()) {
        let line = format!("{test}\t{reason}\n");
        record(&file, &line).unwrap_or_else(|e| panic!("{}: {e}", Path::new(&file).display()));
    }
}

/// Says on the terminal what the test that calls this waits for, past the test harness: for waits
/// that take longer than people expect, as that for a virtual machine.
#[track_caller]
pub fn waits_for(what: impl Display) {
    let test = test_name(Location::caller());
    let _ = io::stderr().write_all(format!("waiting {test}: for {what}\n").as_bytes());
}

/// In one write, because tests run at the same time.
fn record(file: &OsString, line: &str) -> io::Result<()> {
    OpenOptions::new().create(true).append(true).open(file)?.write_all(line.as_bytes())
}

/// The harness runs each test on a thread of its name, unless it has but one.
fn test_name(caller: &Location<'_>) -> String {
    let binary = std::env::current_exe().ok();
    let binary = binary.as_deref().and_then(Path::file_stem).unwrap_or_default().to_string_lossy();
    // Without the hash of the build.
    let binary = binary.rsplit_once('-').map_or(&*binary, |(name, _)| name);
    // Many crates call their test program `suite`.
    let binary = format!("{}::{binary}", std::env::var("CARGO_PKG_NAME").unwrap_or_default());
    match std::thread::current().name() {
        Some(test) if test != "main" => format!("{binary}::{test}"),
        _ => format!("{binary}::{}:{}", caller.file(), caller.line()),
    }
}
