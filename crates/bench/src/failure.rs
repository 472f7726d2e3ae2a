//! Why a measurement failed, in words; the command prints them.

use std::error::Error;
use std::fmt::Display;
use std::path::PathBuf;

use pagewire_device::DeviceError;

/// Why a measurement gave no results.
#[derive(Debug)]
pub enum Failure {
    /// Something was not as it must be. The text says what to do.
    Failed(String),
    /// Options contradict each other. The text says what to do.
    Usage(String),
    /// No port for virtual machines could be made at this path.
    Socket(PathBuf, DeviceError),
}

impl Failure {
    /// With what was tried in front of the reason.
    pub(crate) fn because(what: impl Display, why: impl Display) -> Self {
        Self::Failed(format!("{what}: {why}"))
    }
}

/// Errors that say enough by themselves.
impl<E: Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Errors that need what was tried in front of them.
pub(crate) trait Because<T> {
    fn because(self, what: impl Display) -> Result<T, Failure>;
}

impl<T, E: Display> Because<T> for Result<T, E> {
    fn because(self, what: impl Display) -> Result<T, Failure> {
        self.map_err(|why| Failure::because(what, why))
    }
}

/// Prints results. Nobody reading them any more is no failure: the work was done.
pub(crate) fn say(text: impl Display) {
    use std::io::Write;
    let _ = writeln!(std::io::stdout().lock(), "{text}");
}
