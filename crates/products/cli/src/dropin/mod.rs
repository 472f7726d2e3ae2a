//! The names of other programs: `slirp4netns`, `pasta`, `passt`, and `pesto`, which talks to a running one.
//!
//! ```text
//!   argv[0] is a name, or the first word is:   options of that program  --words-->  pagewire gateway …
//!                                                                                    pagewire run … -- COMMAND
//! ```
//!
//! A name is a translation: [`answer`] takes the words of that program, and gives the words of ours, which the
//! same parser and the same code then execute in this process. It reads nothing but its arguments and
//! [`Machine`]. Read [`slirp4netns`] first; [`pasta`] and [`passt`] share [`shared`] and [`ports`].

mod getopt;
mod passt;
mod pasta;
mod pesto;
mod ports;
mod shared;
mod slirp4netns;
#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Command;

use crate::limits::PASST_SOCKETS;

/// What the command does in place of the program of its name.
pub(crate) enum Start {
    /// It executes these words of its own.
    Words(Vec<OsString>),
    /// It is done.
    End(ExitCode),
}

/// Takes the place of another program, if the words of the command line say so.
pub(crate) fn by_name(words: &[OsString]) -> Option<Start> {
    let (program, rest) = find(words)?;
    Some(match answer(program, rest, &Machine::OURS) {
        Answer::Words(words, note) => {
            note.iter().for_each(|note| eprintln!("{note}"));
            Start::Words(words)
        }
        Answer::Text(text) => {
            crate::failure::say(text.trim_end());
            Start::End(ExitCode::SUCCESS)
        }
        Answer::Client(request) => Start::End(match request.run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => fail(program, &why),
        }),
        Answer::Refusal(why) => Start::End(fail(program, &why)),
    })
}

/// The options of each name.
pub(crate) fn commands() -> Vec<(String, Command)> {
    let options = |program| match program {
        Program::Slirp4netns => getopt::command::<slirp4netns::Options>(),
        Program::Pasta => getopt::command::<pasta::Options>(),
        Program::Passt => getopt::command::<passt::Options>(),
        Program::Pesto => getopt::command::<pesto::Options>(),
    };
    Program::ALL.map(|program| (program.name().to_owned(), options(program))).into()
}

/// One line. All of these programs end with status 1, whatever is wrong.
fn fail(program: Program, why: &str) -> ExitCode {
    let line: String = why.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    eprintln!("{}: {line}", program.name());
    ExitCode::FAILURE
}

/// The program whose place is taken, and its words.
fn find(words: &[OsString]) -> Option<(Program, &[OsString])> {
    let (own, rest) = words.split_first()?;
    let by_file = Path::new(own).file_name().and_then(Program::of_file);
    by_file.map(|program| (program, rest)).or_else(|| {
        let (first, rest) = rest.split_first()?;
        Some((Program::of_word(first)?, rest))
    })
}

/// A program whose place is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    Slirp4netns,
    Pasta,
    Passt,
    Pesto,
}

impl Program {
    const ALL: [Self; 4] = [Self::Slirp4netns, Self::Pasta, Self::Passt, Self::Pesto];

    fn name(self) -> &'static str {
        match self {
            Self::Slirp4netns => "slirp4netns",
            Self::Pasta => "pasta",
            Self::Passt => "passt",
            Self::Pesto => "pesto",
        }
    }

    fn of_word(word: &OsStr) -> Option<Self> {
        Self::ALL.into_iter().find(|program| word == program.name())
    }

    /// By the name of a file, such as the binaries for newer processors that distributions have.
    fn of_file(name: &OsStr) -> Option<Self> {
        let name = name.to_str()?;
        Self::of_word(OsStr::new(name.strip_suffix(".avx2").unwrap_or(name)))
    }
}

/// What comes of a command line.
enum Answer {
    /// Words of `pagewire`, and a line for the user.
    Words(Vec<OsString>, Option<String>),
    /// Help, or the version.
    Text(String),
    /// A request to a running gateway.
    Client(pesto::Request),
    /// A line that says what is wrong, and what to do.
    Refusal(String),
}

fn answer(program: Program, words: &[OsString], machine: &Machine) -> Answer {
    let answered = match program {
        Program::Slirp4netns => slirp4netns::answer(words),
        Program::Pasta => pasta::answer(words, machine),
        Program::Passt => passt::answer(words, machine),
        Program::Pesto => pesto::answer(words),
    };
    answered.unwrap_or_else(|early| match early {
        getopt::Early::Text(text) => Answer::Text(text),
        getopt::Early::Refusal(why) => Answer::Refusal(why),
    })
}

/// What a translation asks of the machine.
struct Machine {
    /// The search list of /etc/resolv.conf.
    search: fn() -> Vec<String>,
    /// The user's shell.
    shell: fn() -> OsString,
    /// The first socket of passt's default names at which nobody listens.
    socket: fn() -> Option<PathBuf>,
}

impl Machine {
    const OURS: Self = Self { search, shell, socket };
}

fn search() -> Vec<String> {
    let text = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    search_of(&text)
}

/// The last `search` or `domain` line counts (resolv.conf(5)).
fn search_of(text: &str) -> Vec<String> {
    let list = |line: &str| {
        let mut words = line.split_whitespace().map(str::to_owned);
        let keyword = words.next()?;
        matches!(keyword.as_str(), "search" | "domain").then(|| words.collect())
    };
    text.lines().filter_map(list).next_back().unwrap_or_default()
}

fn shell() -> OsString {
    std::env::var_os("SHELL").filter(|shell| !shell.is_empty()).unwrap_or_else(|| "/bin/sh".into())
}

fn socket() -> Option<PathBuf> {
    let paths = (1..=PASST_SOCKETS).map(|n| PathBuf::from(format!("/tmp/passt_{n}.socket")));
    paths.into_iter().find(|path| is_free(path))
}

/// Whether a socket can be bound here: there is nothing, or a socket of ours at which nobody listens.
fn is_free(path: &Path) -> bool {
    match UnixStream::connect(path).map_err(|e| e.kind()) {
        Err(ErrorKind::NotFound) => true,
        Err(ErrorKind::ConnectionRefused) => {
            let ours = rustix::process::geteuid().as_raw();
            let file = fs::symlink_metadata(path);
            file.is_ok_and(|file| file.file_type().is_socket() && file.uid() == ours)
        }
        _ => false,
    }
}

/// A line of `--version`, by which callers tell versions apart. `of` is the version whose options are known.
fn version(program: Program, of: &str) -> String {
    let name = program.name();
    let own = env!("CARGO_PKG_VERSION");
    format!("{name} {of}\npagewire {own}, with the options of that {name}\n")
}

/// The version of passt, pasta and pesto whose options are known. Callers look for a date.
const PASST: &str = "2026_07_28.0";

/// Words of `pagewire`.
struct Words(Vec<OsString>);

impl Words {
    fn of(command: &str) -> Self {
        Self(vec!["pagewire".into(), command.into()])
    }

    fn flag(&mut self, option: &str) {
        self.0.push(option.into());
    }

    /// Whether there is such a word.
    fn has(&self, is_one: impl Fn(&str) -> bool) -> bool {
        self.0.iter().filter_map(|word| word.to_str()).any(is_one)
    }

    /// An option with its value in one word, which may begin with a hyphen.
    fn set(&mut self, option: &str, value: impl AsRef<OsStr>) {
        let mut word = OsString::from(option);
        word.push("=");
        word.push(value);
        self.0.push(word);
    }
}
