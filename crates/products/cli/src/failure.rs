//! How a command fails: one line with the reason and what to do, and an exit status.

use std::fmt::Display;
use std::io::{self, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::ExitCode;

use pagewire::StartError;
use pagewire::device::DeviceError;
use pagewire::services::StackError;

/// Why a command did not succeed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Exit status 1. The text says what is wrong, and what to do.
    Failed(String),
    /// An option makes no sense, or contradicts another; exit status 2. The text says what to do.
    Usage(String),
    /// The command was interrupted; exit status 130, as shells have it.
    Interrupted(String),
}

impl Failure {
    /// A failure: what was tried, and why it failed.
    pub(crate) fn because(what: impl Display, why: impl Display) -> Self {
        Self::Failed(format!("{what}: {why}"))
    }

    /// A value on the command line, and what is wrong with it.
    pub(crate) fn misused(what: impl Display, why: impl Display) -> Self {
        Self::Usage(format!("{what}: {why}"))
    }

    /// The text without the status.
    pub(crate) fn into_text(self) -> String {
        let (Self::Failed(text) | Self::Usage(text) | Self::Interrupted(text)) = self;
        text
    }

    /// Prints the line; returns the status.
    pub(crate) fn report(self) -> ExitCode {
        let (text, code) = match self {
            Self::Failed(text) => (text, 1),
            Self::Usage(text) => (text, 2),
            Self::Interrupted(text) => (text, 130),
        };
        // The report is one line, even if a reason has line ends.
        let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        complain!("pagewire: {}", without_numbers(&line));
        ExitCode::from(code)
    }
}

#[cfg(feature = "full")]
impl From<pagewire_bench::Failure> for Failure {
    fn from(failure: pagewire_bench::Failure) -> Self {
        match failure {
            pagewire_bench::Failure::Failed(text) => Self::Failed(text),
            pagewire_bench::Failure::Usage(text) => Self::Usage(text),
            pagewire_bench::Failure::Socket(path, error) => socket_failure(&path, error),
        }
    }
}

/// A device that could not be opened: because of its settings, or of the system.
impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Self {
        match error {
            DeviceError::Config(text) => Self::Usage(text),
            other => Self::Failed(other.to_string()),
        }
    }
}

/// A host that did not start: because of its settings, which are options here, or of the system.
impl From<StartError> for Failure {
    fn from(error: StartError) -> Self {
        let text = error.to_string();
        match error {
            StartError::Stack(StackError::Memory(_)) => Self::Failed(text),
            StartError::Address { .. } | StartError::Stack(_) | StartError::PayloadPages { .. } => {
                Self::Usage(text)
            }
            _ => Self::Failed(text),
        }
    }
}

/// A port that could not be made at `path`.
pub(crate) fn socket_failure(path: &Path, error: DeviceError) -> Failure {
    let socket = format!("--socket {}", path.display());
    match error {
        DeviceError::System { source, .. } => {
            Failure::because(socket, socket_reason(path, &source))
        }
        DeviceError::Config(text) => Failure::misused(socket, text),
        other => Failure::because(socket, other),
    }
}

/// Why a socket could not be made, and what to do about it.
pub(crate) fn socket_reason(path: &Path, error: &io::Error) -> String {
    let hint = match error.kind() {
        // A path that is too long, or has a zero byte.
        io::ErrorKind::InvalidInput => {
            "a Unix socket's path has at most 107 bytes; take a shorter one"
        }
        io::ErrorKind::AddrInUse
            if std::fs::symlink_metadata(path).is_ok_and(|m| !m.file_type().is_socket()) =>
        {
            "there is a file that is no socket; take another path"
        }
        io::ErrorKind::AddrInUse => "another program listens there; take another path",
        io::ErrorKind::PermissionDenied => "take a path in a directory that you may write to",
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            "take a path in a directory that exists"
        }
        _ => "take another path",
    };
    // The library's text for a long path is equivalent.
    if error.kind() == io::ErrorKind::InvalidInput {
        hint.to_owned()
    } else {
        format!("{}; {hint}", reason(error))
    }
}

/// Prints a line on standard error. Nobody may read that any more, which is no reason to end: `eprintln!` would.
macro_rules! complain {
    ($($text:tt)*) => {
        drop(std::io::Write::write_fmt(
            &mut std::io::stderr().lock(),
            format_args!("{}\n", format_args!($($text)*)),
        ))
    };
}
pub(crate) use complain;

/// Prints results. A closed standard output is no failure: the work was done.
pub(crate) fn say(text: impl Display) {
    let _ = writeln!(io::stdout().lock(), "{text}");
}

/// The system's error as text.
pub(crate) fn reason(error: &io::Error) -> String {
    without_numbers(&error.to_string())
}

/// A word of a command line, quoted if a shell would take it for a pattern.
pub(crate) fn word(text: &str) -> String {
    let is_pattern = text.contains(['[', '*', '?']);
    if is_pattern { format!("'{text}'") } else { text.to_owned() }
}

/// Text of somebody else as a terminal may have it: without what moves the cursor, changes the
/// terminal's mode or turns the order of what follows. A tab stays.
pub(crate) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                plain.extend(c.escape_unicode());
            }
            c if c.is_control() && c != '\t' => plain.extend(c.escape_default()),
            c => plain.push(c),
        }
    }
    plain
}

/// JSON in ASCII, where anything else can only be within strings. serde_json escapes what is below a
/// space, but terminals take U+009B, too, as the beginning of a command.
pub(crate) fn ascii(json: &str) -> String {
    let mut ascii = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '\n' | ' '..='~' => ascii.push(c),
            c => {
                let escape = |unit: &mut u16| format!("\\u{unit:04x}");
                ascii.extend(c.encode_utf16(&mut [0; 2]).iter_mut().map(escape));
            }
        }
    }
    ascii
}

/// Removes error numbers: the text says it already.
fn without_numbers(text: &str) -> String {
    let mut parts = text.split(" (os error ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |line, part| line + part.split_once(')').map_or(part, |(_, rest)| rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_others_cannot_command_a_terminal() {
        assert_eq!(plain("\ta\u{1b}[2J\n\u{9b}é\u{202e}"), "\ta\\u{1b}[2J\\n\\u{9b}é\\u{202e}");
        let json = serde_json::json!({ "a": "\u{1b}\u{9b}\u{7f}é\u{1f600}" });
        let text = ascii(&json.to_string());
        assert!(text.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{text}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).expect("JSON"), json);
    }

    #[test]
    fn system_errors_are_said_in_words() {
        assert_eq!(reason(&io::Error::from_raw_os_error(2)), "No such file or directory");
        assert_eq!(without_numbers("a: b (os error 16); c"), "a: b; c");
        assert_eq!(without_numbers("a (b)"), "a (b)");
    }
}
