//! How a command fails: one line that says what to do, and an exit status.

use std::fmt::Display;
use std::io;
use std::process::ExitCode;

/// Why a command did not succeed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Something was not as it must be; exit status 1. The text says what to do.
    Failed(String),
    /// The options contradict each other; exit status 2, as for those that clap refuses.
    Usage(String),
    /// An interrupt was asked for and obeyed; exit status 130, as shells have it.
    Interrupted(String),
}

impl Failure {
    /// With what was tried in front of the reason.
    pub(crate) fn because(what: impl Display, why: impl Display) -> Self {
        Self::Failed(format!("{what}: {why}"))
    }

    /// The line and the status.
    pub(crate) fn report(self) -> ExitCode {
        let (text, code) = match self {
            Self::Failed(text) => (text, 1),
            Self::Usage(text) => (text, 2),
            Self::Interrupted(text) => (text, 130),
        };
        // One line, whatever the reasons were made of.
        let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        eprintln!("pagewire: {line}");
        ExitCode::from(code)
    }
}

/// What the system said, in words, without the number.
pub(crate) fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    match (error.raw_os_error(), text.rfind(" (os error")) {
        (Some(_), Some(at)) => text.get(..at).unwrap_or(&text).to_owned(),
        _ => text,
    }
}
