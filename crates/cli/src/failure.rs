//! How a command fails: one line that says what to do, and an exit status.

use std::fmt::Display;
use std::io;
use std::process::ExitCode;

/// Why a command did not succeed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Something was not as it must be; exit status 1. The text says what to do.
    Failed(String),
    /// An option's value makes no sense, or options contradict each other; exit status 2, as for
    /// those that clap refuses. The text says what to do.
    Usage(String),
    /// An interrupt was asked for and obeyed; exit status 130, as shells have it.
    Interrupted(String),
}

impl Failure {
    /// With what was tried in front of the reason.
    pub(crate) fn because(what: impl Display, why: impl Display) -> Self {
        Self::Failed(format!("{what}: {why}"))
    }

    /// A value that was given on the command line, and what is wrong with it.
    pub(crate) fn misused(what: impl Display, why: impl Display) -> Self {
        Self::Usage(format!("{what}: {why}"))
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
        eprintln!("pagewire: {}", without_numbers(&line));
        ExitCode::from(code)
    }
}

/// Prints results. Nobody reading them any more is no failure: the work was done.
pub(crate) fn say(text: impl Display) {
    use io::Write;
    let _ = writeln!(io::stdout().lock(), "{text}");
}

/// What the system said, in words.
pub(crate) fn reason(error: &io::Error) -> String {
    without_numbers(&error.to_string())
}

/// Error numbers say nothing that their words have not said.
fn without_numbers(text: &str) -> String {
    let mut parts = text.split(" (os error ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |line, part| line + part.split_once(')').map_or(part, |(_, rest)| rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_errors_are_said_in_words() {
        assert_eq!(reason(&io::Error::from_raw_os_error(2)), "No such file or directory");
        assert_eq!(without_numbers("a: b (os error 16); c"), "a: b; c");
        assert_eq!(without_numbers("a (b)"), "a (b)");
    }
}
