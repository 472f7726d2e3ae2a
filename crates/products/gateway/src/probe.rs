//! What this system lets a process do, found by doing it: for a report about a system.
//!
//! What is done here is never undone. So a process of its own does it, without other threads, in this order:
//! users, networks, files.

use std::fs;
use std::io;

use landlock::{ABI, Access, AccessFs, LandlockStatus, Ruleset, RulesetAttr, RulesetError};
use rustix::process::geteuid;
use rustix::thread::UnshareFlags;

use crate::netns::sys::unshare;

/// Makes a user namespace, of which this process is root.
///
/// # Errors
/// The system's.
pub fn users() -> io::Result<()> {
    let user = geteuid();
    unshare(UnshareFlags::NEWUSER)?;
    fs::write("/proc/self/uid_map", format!("0 {} 1\n", user.as_raw()))
}

/// Makes a network namespace. A system may permit [`users`] and leave them without the right to do so.
///
/// # Errors
/// The system's.
pub fn networks() -> io::Result<()> {
    unshare(UnshareFlags::NEWNET)
}

/// Gives up all files by Landlock. Returns the version of its interface: the kernel's, or the newest that
/// this code knows.
///
/// # Errors
/// There is no Landlock; the text says why.
pub fn files() -> Result<u32, String> {
    let restricted = || -> Result<LandlockStatus, RulesetError> {
        let rules = Ruleset::default().handle_access(AccessFs::from_all(ABI::V1))?.create()?;
        Ok(rules.restrict_self()?.landlock)
    };
    match restricted().map_err(|e| e.to_string())? {
        LandlockStatus::Available { effective_abi, .. } => Ok(effective_abi as u32),
        LandlockStatus::NotEnabled => Err("it is not enabled".to_owned()),
        _ => Err("this kernel has none".to_owned()),
    }
}
