//! The seed of a run, from the environment, and helpers for reports of a failing seed.

// `pagewire-testkit` has this file, too, and shows it to others.
#![allow(unreachable_pub)]

use std::any::Any;
use std::path::{Path, PathBuf};

/// The environment variable that names a seed.
pub const SEED_VARIABLE: &str = "PAGEWIRE_SEED";

/// The seed in the environment, if there is one.
///
/// # Panics
/// If there is something else.
pub fn seed_from_env() -> Option<u64> {
    let text = std::env::var(SEED_VARIABLE).ok()?;
    match text.parse() {
        Ok(seed) => Some(seed),
        Err(_) => panic!("{SEED_VARIABLE}={text} is not a whole number below 2^64"),
    }
}

/// The text of a panic.
pub fn panic_text(panic: &(dyn Any + Send)) -> &str {
    if let Some(text) = panic.downcast_ref::<&str>() {
        text
    } else {
        panic.downcast_ref::<String>().map_or("something that is no text", String::as_str)
    }
}

/// Cargo's target directory: above the `deps` that tests run from. Elsewhere, the temporary one.
pub fn target_dir() -> PathBuf {
    let exe = std::env::current_exe().unwrap_or_default();
    let deps = exe.ancestors().find(|dir| dir.ends_with("deps"));
    deps.and_then(Path::parent).map_or_else(std::env::temp_dir, Path::to_owned)
}
