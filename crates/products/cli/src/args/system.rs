//! Options of the commands that install this program, or say whether it can work here.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use clap_complete::Shell;

#[derive(Debug, Args)]
pub(crate) struct CheckOptions {
    /// Finds one thing out by doing it, which changes this process
    #[arg(long, hide = true, value_enum)]
    pub(crate) probe: Option<Probe>,
}

/// What a process tries on itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Probe {
    /// A user namespace, and in it a network namespace
    Namespaces,
    /// Giving up files
    Files,
}

pub(super) const CHECK_EXAMPLES: &str = "\
Exit status: 0 `pagewire run` works, 1 it does not.";

#[derive(Debug, Args)]
pub(crate) struct CompletionsOptions {
    /// The shell
    pub(crate) shell: Shell,

    /// The command that is completed
    #[arg(default_value = "pagewire")]
    pub(crate) name: String,
}

pub(super) const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  pagewire completions bash >~/.local/share/bash-completion/completions/pagewire
  pagewire completions zsh >~/.zfunc/_pagewire
  pagewire completions fish >~/.config/fish/completions/pagewire.fish";

#[derive(Debug, Args)]
pub(crate) struct ManOptions {
    /// The directory, which must exist
    pub(crate) dir: PathBuf,
}
