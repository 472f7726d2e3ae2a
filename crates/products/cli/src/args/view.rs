//! Options of observation: those by which a command is observed, and those of `ss` and `top`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// How other programs observe a running command.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Observation options")]
pub(crate) struct ViewOptions {
    /// Unix socket at which `pagewire ss`, `top` and `ctl` ask; none: no socket. Where a path
    /// is given, `ctl` may publish ports of a guest [default: PID.sock in $XDG_RUNTIME_DIR/pagewire, of
    /// root in /run/pagewire]
    #[arg(long, value_name = "PATH|none")]
    pub(crate) control: Option<PathBuf>,

    /// Address and port of this machine where a Prometheus server finds /metrics, as in 127.0.0.1:9464.
    /// Whoever can connect can read them
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) metrics: Option<SocketAddr>,
}

/// How counters are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StatsFormat {
    /// Lines for people
    Text,
    /// One line of JSON, as over the control socket
    Json,
}

/// The process that is observed.
#[derive(Clone, Debug, Args)]
pub(crate) struct Target {
    /// The process: its number, or the path of its control socket [default: all that run, of ctl the only one]
    #[arg(long, value_name = "PATH|PID", global = true)]
    pub(crate) control: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct SsOptions {
    #[command(flatten)]
    pub(crate) target: Target,

    /// TCP only
    #[arg(short, long, conflicts_with = "udp")]
    pub(crate) tcp: bool,

    /// UDP only
    #[arg(short, long)]
    pub(crate) udp: bool,

    /// Sockets that listen, or are not connected, only
    #[arg(short, long, conflicts_with = "all")]
    pub(crate) listening: bool,

    /// These and the others [default: the others only]
    #[arg(short, long)]
    pub(crate) all: bool,

    /// Flows of gateways' guests in the place of sockets: their names, bytes, ages; processes without a
    /// gateway are left out
    #[arg(short, long, conflicts_with_all = ["listening", "all"])]
    pub(crate) guests: bool,

    /// JSON: a list of processes with their sockets, or flows
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TopOptions {
    #[command(flatten)]
    pub(crate) target: Target,
}

#[derive(Debug, Args)]
pub(crate) struct CtlOptions {
    #[command(flatten)]
    pub(crate) target: Target,

    /// JSON: the answer of the process
    #[arg(long, global = true)]
    pub(crate) json: bool,

    #[command(subcommand)]
    pub(crate) verb: CtlVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CtlVerb {
    /// Permit what the rule matches; if it is the first permission, nothing else from now on
    Allow {
        /// The rule, as of --allow
        rule: String,
    },
    /// Forbid what the rule matches, and end its flows
    Deny {
        /// The rule, as of --deny
        rule: String,
    },
    /// Take a permission or a denial back
    Remove {
        /// The rule, as `rules` shows it
        rule: String,
    },
    /// Show the rules
    Rules,
    /// Show the flows of the guest: their numbers, names, bytes
    Flows,
    /// Show what was refused most frequently, and the rule that permits it
    Refused,
    /// Publish a port of the guest
    Publish {
        /// The port, as of --publish
        port: String,
    },
    /// Close a published port; clients that are connected stay
    Unpublish {
        /// The port, as it was published
        port: String,
    },
    /// End a flow, on both sides at once
    Kill {
        /// The number of the flow, as `flows` and the log have it
        flow: u64,
    },
    /// Read the rules again: the options and the files of --rules; what was changed since is forgotten
    Reload,
}

pub(super) const CTL_EXAMPLES: &str = "\
Examples:
  pagewire ctl refused
      what the guest of the only gateway of this user was refused, and the rule that would permit it
  pagewire ctl allow 'registry.example:443'
  pagewire ctl flows
  pagewire ctl --control 4711 kill 17

Changes are taken from the network namespace of the gateway itself alone: a guest cannot make one.";

pub(super) const SS_EXAMPLES: &str = "\
Examples:
  pagewire ss
      the connections of all pagewire processes of this user, or, for root, of all users
  pagewire ss -tl --control 4711
      where process 4711 listens
  pagewire ss -a --json | jq '.[].sockets[].tcp.rtt_us'
  pagewire ss -g
      what the guests of all gateways are connected to, with the names that they resolved and showed

Under each connection: congestion control, timeout (rto, ms), round-trip time and its variation (rtt,
ms), segment size, congestion window (cwnd, segments), bytes, segments, retransmissions, what waits,
and of what it has sent and received, how much was copied, where that is counted (serve).";

pub(super) const TOP_EXAMPLES: &str = "\
Examples:
  pagewire top
      of the pagewire process that runs
  pagewire top --control 4711
      of process 4711

Keys: q quit, s next column to sort by, r reverse, / filter, f flows of a gateway's guests or connections, p pause,
arrows and pages scroll, ? help.";
