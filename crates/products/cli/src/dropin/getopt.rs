//! Command lines as `getopt_long` reads them, by clap.
//!
//! Long options may be shortened, a value may begin with a hyphen, and the last of several counts. Messages
//! are those of `getopt_long`, because callers look for them: Podman goes on without an option if it reads
//! "unrecognized option".

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgMatches, Command, Error, Parser};

/// Why there are no options.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Early {
    /// Help or version: the text, for standard output.
    Text(String),
    /// What is wrong, in one line.
    Refusal(String),
}

impl From<String> for Early {
    fn from(why: String) -> Self {
        Self::Refusal(why)
    }
}

impl From<&str> for Early {
    fn from(why: &str) -> Self {
        Self::Refusal(why.to_owned())
    }
}

/// The options of a command line.
pub(super) fn parse<T: Parser>(words: &[OsString], version: &str) -> Result<T, Early> {
    let matches = matches::<T>(words, version)?;
    T::from_arg_matches(&matches).map_err(|error| Early::Refusal(said(&error, &command::<T>())))
}

/// The same, with the place of each option.
pub(super) fn matches<T: Parser>(words: &[OsString], version: &str) -> Result<ArgMatches, Early> {
    let mut command = command::<T>();
    let name = OsString::from(command.get_name());
    let all = [name].into_iter().chain(words.iter().cloned());
    command.try_get_matches_from_mut(all).map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp => Early::Text(error.to_string()),
        ErrorKind::DisplayVersion => Early::Text(version.to_owned()),
        _ => Early::Refusal(said(&error, &command)),
    })
}

/// The options, with the habits of `getopt_long`.
pub(super) fn command<T: Parser>() -> Command {
    let command = T::command().infer_long_args(true).args_override_self(true);
    command.mut_args(|arg| {
        let takes_one = arg.get_action().takes_values()
            && arg.get_num_args().is_none_or(|number| number.takes_values());
        match takes_one && !arg.is_positional() {
            true => arg.allow_hyphen_values(true),
            false => arg,
        }
    })
}

/// The error as `getopt_long` says it.
fn said(error: &Error, command: &Command) -> String {
    let given = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(text)) => text.as_str(),
        Some(ContextValue::Strings(all)) => all.first().map(String::as_str).unwrap_or_default(),
        _ => "",
    };
    // Behind the option stand a value, or the names of its values.
    let option = given.split(['=', ' ']).next().unwrap_or_default();
    let what = match error.kind() {
        ErrorKind::UnknownArgument => unknown(option, command),
        ErrorKind::InvalidValue => match option.strip_prefix("--") {
            Some(_) => format!("option '{option}' requires an argument"),
            None => format!("option requires an argument -- '{}'", option.trim_start_matches('-')),
        },
        ErrorKind::TooManyValues => format!("option '{option}' doesn't allow an argument"),
        _ => {
            let text = error.to_string();
            text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
        }
    };
    format!("{what}; see {} --help", command.get_name())
}

fn unknown(option: &str, command: &Command) -> String {
    let Some(word) = option.strip_prefix("--") else {
        return match option.strip_prefix('-') {
            Some(letters) => format!("invalid option -- '{letters}'"),
            None => format!("unexpected argument '{option}'"),
        };
    };
    let longs = command.get_arguments().filter_map(|arg| arg.get_long());
    let fits: Vec<String> =
        longs.filter(|l| l.starts_with(word)).map(|l| format!("'--{l}'")).collect();
    match fits.is_empty() {
        true => format!("unrecognized option '{option}'"),
        false => format!("option '{option}' is ambiguous; possibilities: {}", fits.join(" ")),
    }
}
