//! Options of the commands that install this program, or say whether it can work here.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use clap_complete::Shell;
use pagewire_gateway::Question;

#[derive(Debug, Args)]
pub(crate) struct CheckOptions {
    /// Finds one thing out by doing it, which changes this process
    #[arg(long, hide = true, value_enum)]
    pub(crate) probe: Option<Probe>,

    #[command(subcommand)]
    pub(crate) what: Option<CheckWhat>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CheckWhat {
    /// Tell the mistakes of files with rules, as of --rules, and what the rules permit.
    ///
    /// Each mistake has its file, line and column.
    #[command(after_long_help = CHECK_RULES_EXAMPLES)]
    Rules(CheckRulesOptions),
}

#[derive(Debug, Args)]
pub(crate) struct CheckRulesOptions {
    /// The files, as one set of rules
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,

    /// Say whether a guest might reach this, by which rule, and what the connection must show: HOST:PORT, with
    /// /udp behind it for datagrams, or HOST/icmp. HOST is a name, an address or NAME@ADDRESS; from: in front: a
    /// client's address, and the guest's port; repeatable
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) would: Vec<Question>,
}

const CHECK_RULES_EXAMPLES: &str = "\
Examples:
  pagewire check rules agent.toml
  pagewire check rules agent.toml --would pypi.org:443 --would 10.0.0.5:53/udp

Exit status: 0 no mistake, and everything that was asked for is permitted; 1 otherwise; 2 wrong usage.";

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
