//! The command line. [`demo`] has the options of the demonstration, [`host`] those of hosts,
//! [`guest`] those of the gateway, [`view`] those of observers, [`system`] those about the system,
//! `pagewire_bench` those of the measurements. Without the feature `full` there is the demonstration only.

#[cfg(all(test, feature = "full"))]
mod book_tests;
mod cores;
mod demo;
#[cfg(feature = "full")]
pub(crate) mod guest;
#[cfg(feature = "full")]
pub(crate) mod host;
#[cfg(feature = "full")]
pub(crate) mod system;
#[cfg(feature = "full")]
pub(crate) mod view;

use clap::{Parser, Subcommand};
#[cfg(feature = "full")]
use pagewire_bench::BenchOptions;

pub(crate) use demo::DemoOptions;
#[cfg(feature = "full")]
use guest::{GatewayOptions, RunOptions};
#[cfg(feature = "full")]
pub(crate) use host::{FetchOptions, NetLink, NetOptions, ProxyOptions, ServeOptions};
#[cfg(feature = "full")]
use system::{CheckOptions, CompletionsOptions, ManOptions};
#[cfg(feature = "full")]
use view::{CtlOptions, SsOptions, TopOptions};

/// A TCP/IP stack that moves pages instead of copying bytes: server, client, measurements.
#[derive(Debug, Parser)]
#[command(name = "pagewire", version, long_version = crate::version::LONG.as_str(), propagate_version = true, after_help = NAMES, after_long_help = EXAMPLES)]
pub(crate) struct Cli {
    #[cfg(feature = "full")]
    /// Say on standard error what goes on: -v connections and anomalies, -vv everything
    #[arg(short, long, global = true, action = clap::ArgAction::Count, conflicts_with = "log_level")]
    pub(crate) verbose: u8,

    #[cfg(feature = "full")]
    /// Messages on standard error: a level, and levels of parts of the program, as in info or
    /// warn,pagewire_control=debug; PAGEWIRE_LOG has the same meaning [default: warn]
    #[arg(long, global = true, value_name = "FILTER")]
    pub(crate) log_level: Option<String>,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[cfg(not(feature = "full"))]
const NAMES: &str = "";
#[cfg(feature = "full")]
const NAMES: &str = "\
In the place of other programs, by a link of that name or as first word: slirp4netns, pasta, passt, pesto";

#[cfg(not(feature = "full"))]
const EXAMPLES: &str = demo::DEMO_EXAMPLES;
#[cfg(feature = "full")]
const EXAMPLES: &str = "\
Examples:
  pagewire demo
      copies and references compared, in one process; needs no privilege
  pagewire serve --tap pw0 --addr 10.77.0.2/24 --host-addr 10.77.0.1/24 /srv/files
      then: curl -O http://10.77.0.2/name
  pagewire fetch --tap pw0 --addr 10.77.0.2/24 --host-addr 10.77.0.1/24 http://10.77.0.1:8000/name
  pagewire proxy --tap pw0 --addr 10.77.0.2/24 --host-addr 10.77.0.1/24 \\
                 --listen 10.77.0.2:80 --to 10.77.0.1:8000
  pagewire serve --link vhost-user --socket /tmp/pw.sock --addr 10.77.0.2/24 --dhcp /srv/files
      to a virtual machine, without privilege
  pagewire bench stream --link tap --json

  pagewire run --fault 'delay=50ms,loss=1%' -- curl -sS https://example.org/
      any program on a bad line, without privilege

In the place of other programs, by a link of that name or as first word, with their options:
  pagewire slirp4netns, pagewire pasta, pagewire passt, pagewire pesto

Exit status: 0 done, 1 failed (one line says why), 2 wrong usage (run: 125), 130 interrupted (but 0 if serve,
proxy or gateway was asked to stop). run: the program's, or 127 (there is no such program), 126 (it cannot be
executed), 125 (anything else).";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve a directory to a client in this process, by copy and by reference, and compare.
    ///
    /// Two hosts over the pair link; no privilege, nothing to install. Every file's SHA-256 is
    /// checked, outside of the timed parts. Exit status 1 if one disagrees.
    #[command(after_long_help = demo::DEMO_EXAMPLES)]
    Demo(DemoOptions),
    #[cfg(feature = "full")]
    /// Serve a directory over HTTP/1.1.
    ///
    /// Files are mapped and their pages sent by reference. Keep-alive, pipelining, HEAD, ranges,
    /// conditional requests, directory index. Any client on the kernel's side of the tap will do. An
    /// interrupt gives running downloads two seconds, and resets what is left; a second one ends it at
    /// once. When the tap is deleted, it says so and ends with status 1.
    #[command(after_long_help = host::SERVE_EXAMPLES)]
    Serve(ServeOptions),
    #[cfg(feature = "full")]
    /// Get a file over HTTP, receiving by reference.
    ///
    /// The content goes to FILE.part, and becomes FILE when it is complete. An interrupted
    /// download goes on where it stopped when the same command is run again, if the server says
    /// that its file is still the same (FILE.part.from keeps what it said).
    #[command(after_long_help = host::FETCH_EXAMPLES)]
    Fetch(FetchOptions),
    #[cfg(feature = "full")]
    /// Forward TCP connections to another address.
    ///
    /// The data of one side is sent on to the other by reference. Half-closed connections stay half
    /// open, a reset on one side resets the other, and no side can send more than the other takes.
    /// Urgent data stays in its place in the stream; its mark is not passed on. A client whose
    /// server cannot be reached is reset, and one line on standard error says why. The server sees
    /// connections from --addr. An interrupt closes the listeners, gives connections two seconds, and
    /// resets what is left; a second one ends it at once. When the tap is deleted, it says so and ends
    /// with status 1.
    #[command(after_long_help = host::PROXY_EXAMPLES)]
    Proxy(ProxyOptions),
    #[cfg(feature = "full")]
    /// Run a program whose network is this process: no root, no other tool.
    ///
    /// The program gets user, network and mount namespaces of its own. What it sends leaves by this
    /// process's sockets, so a capture, a bad line or a speed limit applies to all of it, and to
    /// nothing else. Static programs too: nothing is preloaded. Its user, directory, files, terminal,
    /// signals and exit status are as without this.
    ///
    /// This isolates the network only, and is no security boundary: the program has your user, your
    /// files, and those processes and Unix sockets with a path (Docker's, D-Bus) that your user may
    /// talk to, and each may lead past this network, also with --offline. Keep programs that you do
    /// not trust in a container or a virtual machine, with `pagewire gateway` as its network.
    ///
    /// Needs a /dev/net/tun that the user may open, as most systems have.
    #[command(after_long_help = guest::RUN_EXAMPLES)]
    Run(RunOptions),
    #[cfg(feature = "full")]
    /// Be the network of a guest: a virtual machine, a container.
    ///
    /// The guest's packets leave by this process's sockets, so neither of the two needs root. The guest
    /// sees the network as this machine does: closed ports are refused, networks without a route
    /// unreachable, silent hosts silent. It has an address by DHCP, or has it already (--netns). Says
    /// `ready` on standard error when guests are served. An interrupt ends it; so does the loss of the
    /// tap, with status 1.
    #[command(after_long_help = guest::GATEWAY_EXAMPLES)]
    Gateway(GatewayOptions),
    #[cfg(feature = "full")]
    /// Show the sockets of running pagewire processes, as `ss -ti` shows the kernel's.
    ///
    /// Asks the processes themselves, by their control sockets (--control of serve, proxy, fetch, gateway
    /// and run, or of any program that has one).
    #[command(after_long_help = view::SS_EXAMPLES)]
    Ss(SsOptions),
    #[cfg(feature = "full")]
    /// Watch a running pagewire process: throughput, drops, copies, connections, each second.
    #[command(after_long_help = view::TOP_EXAMPLES)]
    Top(TopOptions),
    #[cfg(feature = "full")]
    /// See and change a running gateway: rules, flows, published ports.
    ///
    /// Changes last until the gateway ends or reads its rules again. What a new rule forbids ends at once.
    #[command(after_long_help = view::CTL_EXAMPLES)]
    Ctl(CtlOptions),
    #[cfg(feature = "full")]
    /// Measure, with the kernel's sockets beside it.
    ///
    /// Kernel and Pagewire take turns within one run; medians of all rounds are printed, with the
    /// spread and with what was measured on.
    #[command(after_long_help = pagewire_bench::EXAMPLES)]
    Bench(BenchOptions),
    #[cfg(feature = "full")]
    /// Say what `run` and `gateway` need, what is missing, and how to fix it.
    ///
    /// Namespaces, the tap device and the sandbox are tried out, in processes that end at once.
    #[command(after_long_help = system::CHECK_EXAMPLES)]
    Check(CheckOptions),
    #[cfg(feature = "full")]
    /// Print completions for a shell.
    #[command(after_long_help = system::COMPLETIONS_EXAMPLES)]
    Completions(CompletionsOptions),
    #[cfg(feature = "full")]
    /// Write manual pages to a directory.
    #[command(hide = true)]
    Man(ManOptions),
}

#[cfg(all(test, feature = "full"))]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_measurement_shows_examples_and_takes_them() {
        let mut command = Cli::command();
        let bench = command.find_subcommand_mut("bench").expect("bench");
        let mut help = vec![bench.render_long_help().to_string()];
        for measurement in bench.get_subcommands_mut().filter(|c| c.get_name() != "help") {
            let text = measurement.render_long_help().to_string();
            let start = format!("Examples:\n  pagewire bench {}", measurement.get_name());
            assert!(text.contains(&start), "{text}");
            help.push(text);
        }
        for line in help.iter().flat_map(|text| text.lines()) {
            // The remark about an example stands apart.
            let example =
                line.strip_prefix("  pagewire ").and_then(|line| line.split("   ").next());
            if let Some(example) = example {
                let words = ["pagewire"].into_iter().chain(example.split_whitespace());
                assert!(Cli::try_parse_from(words).is_ok(), "{line}");
            }
        }
    }
}
