//! [`Failure`]: why a measurement gave no results, as text that the command prints.

use std::error::Error;
use std::fmt::Display;
use std::path::PathBuf;

use pagewire::device::DeviceError;

/// Why a measurement gave no results.
#[derive(Debug)]
pub enum Failure {
    /// The text says what is wrong, and what to do.
    Failed(String),
    /// Options contradict each other; the text says what to do.
    Usage(String),
    /// No port for virtual machines could be made at this path.
    Socket(PathBuf, DeviceError),
}

impl Failure {
    /// A failure: what was tried, and why it failed.
    pub(crate) fn because(what: impl Display, why: impl Display) -> Self {
        Self::Failed(format!("{what}: {why}"))
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Failed(text) | Self::Usage(text) => f.write_str(text),
            Self::Socket(path, error) => write!(f, "{}: {error}", path.display()),
        }
    }
}

/// Errors that need no context.
impl<E: Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Errors that need the context of what was tried.
pub(crate) trait Because<T> {
    fn because(self, what: impl Display) -> Result<T, Failure>;
}

impl<T, E: Display> Because<T> for Result<T, E> {
    fn because(self, what: impl Display) -> Result<T, Failure> {
        self.map_err(|why| Failure::because(what, why))
    }
}

/// Prints results. A closed standard output is no failure: the work was done.
pub(crate) fn say(text: impl Display) {
    use std::io::Write;
    let _ = writeln!(std::io::stdout().lock(), "{text}");
}
