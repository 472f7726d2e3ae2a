//! `pesto`: the ports of a running pasta or passt, by the socket of its `--conf-path`.
//!
//! Options are commands, executed in their order: `-A -t 2000 -D -t 3000` adds a port and removes another.
//! Ports without `-A`, `-D` and `-C` replace all that are there.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{ArgAction, ArgMatches, Parser, value_parser};
use serde_json::{Value, json};

use crate::commands::api::ask;
use crate::commands::port_changes::{Change, PortSet, Step};
use crate::dropin::getopt::{self, Early};
use crate::dropin::ports::{Spec, Which};
use crate::dropin::{Answer, PASST, Program, version};
use crate::failure::say;
use crate::limits::{PORT_CHANGE_TIME, PORT_REQUEST};

/// Ports of a running pasta or passt of pagewire.
#[derive(Debug, Parser)]
#[command(
    name = "pesto",
    version = "",
    disable_help_flag = true,
    disable_version_flag = true,
    override_usage = "pesto [OPTION]... PATH",
    after_help = "Exit status: 0 when all changes are made, 1 when none is (one line says why).\n\nSee also: \
                  pagewire-pasta(1), pagewire-passt(1)"
)]
#[allow(dead_code, reason = "commands are read in their order, by their places")]
pub(super) struct Options {
    /// Add the ports that follow
    #[arg(short = 'A', long, action = ArgAction::Append, num_args = 0, default_missing_value = "true")]
    add: Vec<bool>,

    /// Remove the ports that follow
    #[arg(short = 'D', long, action = ArgAction::Append, num_args = 0, default_missing_value = "true")]
    delete: Vec<bool>,

    /// Remove all ports of a table: HOST
    #[arg(short = 'C', long, value_name = "PIF")]
    clear: Vec<String>,

    /// TCP ports: none, or [ADDR/]PORT[-PORT][:[TARGET/]PORT[-PORT]],~PORT[-PORT]; repeatable
    #[arg(short, long, value_name = "SPEC")]
    tcp_ports: Vec<String>,

    /// UDP ports, as --tcp-ports
    #[arg(short, long, value_name = "SPEC")]
    udp_ports: Vec<String>,

    /// Not supported: give them to pasta
    #[arg(short = 'T', long, value_name = "SPEC")]
    tcp_ns: Vec<String>,

    /// Not supported: give them to pasta
    #[arg(short = 'U', long, value_name = "SPEC")]
    udp_ns: Vec<String>,

    /// Print the ports before and after
    #[arg(short, long)]
    show: bool,

    /// Print requests
    #[arg(short, long)]
    debug: bool,

    /// Print this help
    #[arg(short, long, action = ArgAction::Help)]
    help: Option<bool>,

    /// Print the version
    #[arg(long, action = ArgAction::Version)]
    version: Option<bool>,

    #[arg(hide = true, value_parser = value_parser!(PathBuf))]
    path: Option<PathBuf>,
}

/// What a command line asks of a running gateway.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Request {
    path: PathBuf,
    steps: Vec<Step>,
    shows: bool,
    is_verbose: bool,
}

pub(super) fn answer(words: &[OsString]) -> Result<Answer, Early> {
    let matches = getopt::matches::<Options>(words, &version(Program::Pesto, PASST))?;
    Ok(Answer::Client(request(&matches)?))
}

/// The values of an option, each with its place in the command line.
fn placed(matches: &ArgMatches, option: &str) -> Vec<(usize, String)> {
    let places = matches.indices_of(option).into_iter().flatten();
    let values = matches.get_raw(option).into_iter().flatten();
    places.zip(values.map(|value| value.to_string_lossy().into_owned())).collect()
}

fn request(matches: &ArgMatches) -> Result<Request, Early> {
    for option in ["tcp_ns", "udp_ns"] {
        if matches.get_raw(option).is_some() {
            let text =
                "--tcp-ns and --udp-ns are not supported here: give them to pasta when it starts";
            return Err(text.into());
        }
    }
    let path = matches.get_one::<PathBuf>("path").cloned();
    let path = path.ok_or("give the socket, which is the --conf-path of the pasta that runs")?;
    let options = ["add", "delete", "clear", "tcp_ports", "udp_ports"];
    let mut given: Vec<(usize, &str, String)> = Vec::new();
    for option in options {
        given.extend(placed(matches, option).into_iter().map(|(at, value)| (at, option, value)));
    }
    given.sort_by_key(|(at, ..)| *at);
    let (mut steps, mut mode) = (Vec::new(), None);
    for (_, option, value) in given {
        match option {
            "add" | "delete" => mode = Some(option),
            "clear" if value.eq_ignore_ascii_case("host") => {
                steps.push(Step::Clear);
                mode = mode.or(Some("add"));
            }
            "clear" => {
                return Err(
                    format!("--clear {value}: the one table that changes here is HOST").into()
                );
            }
            _ => {
                if mode.is_none() {
                    steps.push(Step::Clear);
                    mode = Some("add");
                }
                let wanted = wanted(option == "udp_ports", &value)?;
                steps.push(match mode {
                    Some("delete") => Step::Delete(wanted),
                    _ => Step::Add(wanted),
                });
            }
        }
    }
    Ok(Request {
        shows: matches.get_flag("show") || steps.is_empty(),
        is_verbose: matches.get_flag("debug"),
        path,
        steps,
    })
}

fn wanted(udp: bool, text: &str) -> Result<PortSet, Early> {
    let spec = Spec::parse(text)?;
    let ports = match spec.which {
        Which::None => Vec::new(),
        Which::Ports(ports) => ports,
        Which::All { .. } | Which::Auto { .. } => {
            return Err(format!(
                "'{text}': name the ports; all and auto are for pasta when it starts"
            )
            .into());
        }
    };
    let ports = ports.iter().map(|ports| (ports.from.first, ports.from.last, ports.to)).collect();
    Ok(PortSet { udp, on: spec.on, ports, target: spec.target })
}

/// An entry of the list.
struct Entry {
    proto: String,
    host: SocketAddr,
    guest: SocketAddr,
}

impl Entry {
    fn of(value: &Value) -> Option<Self> {
        let address = |name: &str| value.get(name)?.as_str()?.parse::<IpAddr>().ok();
        let port = |name: &str| u16::try_from(value.get(name)?.as_u64()?).ok();
        Some(Self {
            proto: value.get("proto")?.as_str()?.to_owned(),
            host: (address("host_addr")?, port("host_port")?).into(),
            guest: (address("guest_addr")?, port("guest_port")?).into(),
        })
    }
}

impl Request {
    /// Executes the commands in their order: all of them, or none.
    pub(super) fn run(&self) -> Result<(), String> {
        if self.shows {
            self.show()?;
        }
        if self.steps.is_empty() {
            return Ok(());
        }
        let request = Change(self.steps.clone()).request();
        if request.to_string().len() >= PORT_REQUEST {
            return Err("these are too many at once: name fewer ports, or ranges".into());
        }
        self.ask(&request)?;
        if self.shows { self.show() } else { Ok(()) }
    }

    fn ask(&self, request: &Value) -> Result<Value, String> {
        if self.is_verbose {
            crate::failure::complain!("pesto: {request}");
        }
        ask(&self.path, request, PORT_CHANGE_TIME)
    }

    fn show(&self) -> Result<(), String> {
        let answer = self.ask(&json!({ "execute": "list_hostfwd" }))?;
        let list = |name| answer.get(name).and_then(Value::as_array).into_iter().flatten();
        say("HOST");
        for entry in list("entries").filter_map(Entry::of) {
            let (proto, host, guest) = (entry.proto.to_uppercase(), entry.host, entry.guest);
            say(format!(
                "  {proto} {}/{} => {}/{}",
                host.ip(),
                host.port(),
                guest.ip(),
                guest.port()
            ));
        }
        list("rules").filter_map(Value::as_str).for_each(|rule| say(format!("  {rule}")));
        Ok(())
    }
}
