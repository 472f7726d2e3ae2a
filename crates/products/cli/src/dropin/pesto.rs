//! `pesto`: the ports of a running pasta or passt, by the socket of its `--conf-path`.
//!
//! Options are commands, executed in their order: `-A -t 2000 -D -t 3000` adds a port and removes another.
//! Ports without `-A`, `-D` and `-C` replace all that are there.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use clap::{ArgAction, ArgMatches, Parser, value_parser};
use serde_json::{Value, json};

use crate::commands::api::ask;
use crate::dropin::getopt::{self, Early};
use crate::dropin::ports::{Mapping, Spec, Which};
use crate::dropin::{Answer, PASST, Program, version};
use crate::failure::say;

/// Ports of a running pasta or passt of pagewire.
#[derive(Debug, Parser)]
#[command(
    name = "pesto",
    version = "",
    disable_help_flag = true,
    disable_version_flag = true,
    override_usage = "pesto [OPTION]... PATH"
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

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Clear,
    Add(Wanted),
    Delete(Wanted),
}

/// Ports of a specifier.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wanted {
    udp: bool,
    on: Option<IpAddr>,
    ports: Vec<Mapping>,
    target: Option<IpAddr>,
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

fn wanted(udp: bool, text: &str) -> Result<Wanted, Early> {
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
    Ok(Wanted { udp, on: spec.on, ports, target: spec.target })
}

impl Wanted {
    fn proto(&self) -> &'static str {
        if self.udp { "udp" } else { "tcp" }
    }

    /// Each port of this machine, and the guest's.
    fn pairs(&self) -> impl Iterator<Item = (u16, u16)> {
        let each = |ports: &Mapping| {
            let (first, to) = (ports.from.first, ports.to);
            (first..=ports.from.last).map(move |port| (port, to + (port - first)))
        };
        self.ports.iter().flat_map(each)
    }

    /// The addresses to listen at.
    fn hosts(&self) -> Vec<IpAddr> {
        match self.on {
            Some(address) => vec![address],
            None => vec![Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()],
        }
    }
}

/// An entry of the list.
struct Entry {
    id: u64,
    proto: String,
    host: SocketAddr,
    guest: SocketAddr,
}

impl Entry {
    fn of(value: &Value) -> Option<Self> {
        let address = |name: &str| value.get(name)?.as_str()?.parse::<IpAddr>().ok();
        let port = |name: &str| u16::try_from(value.get(name)?.as_u64()?).ok();
        Some(Self {
            id: value.get("id")?.as_u64()?,
            proto: value.get("proto")?.as_str()?.to_owned(),
            host: (address("host_addr")?, port("host_port")?).into(),
            guest: (address("guest_addr")?, port("guest_port")?).into(),
        })
    }
}

impl Request {
    /// Executes the commands in their order. What was added before a failure is taken back.
    pub(super) fn run(&self) -> Result<(), String> {
        if self.shows {
            self.show()?;
        }
        let mut added = Vec::new();
        for step in &self.steps {
            let done = match step {
                Step::Clear => self.clear(),
                Step::Add(wanted) => self.add(wanted, &mut added),
                Step::Delete(wanted) => self.delete(wanted),
            };
            if let Err(why) = done {
                for id in added {
                    let _ = self.remove(id);
                }
                return Err(why);
            }
        }
        match self.shows && !self.steps.is_empty() {
            true => self.show(),
            false => Ok(()),
        }
    }

    fn ask(&self, request: &Value) -> Result<Value, String> {
        if self.is_verbose {
            crate::failure::complain!("pesto: {request}");
        }
        ask(&self.path, request)
    }

    fn list(&self) -> Result<Vec<Entry>, String> {
        let answer = self.ask(&json!({ "execute": "list_hostfwd" }))?;
        let entries = answer.get("entries").and_then(Value::as_array);
        Ok(entries.into_iter().flatten().filter_map(Entry::of).collect())
    }

    fn show(&self) -> Result<(), String> {
        say("HOST");
        for entry in self.list()? {
            let (proto, host, guest) = (entry.proto.to_uppercase(), entry.host, entry.guest);
            say(format!(
                "  {proto} {}/{} => {}/{}",
                host.ip(),
                host.port(),
                guest.ip(),
                guest.port()
            ));
        }
        Ok(())
    }

    fn clear(&self) -> Result<(), String> {
        self.list()?.into_iter().try_for_each(|entry| self.remove(entry.id))
    }

    fn remove(&self, id: u64) -> Result<(), String> {
        self.ask(&json!({ "execute": "remove_hostfwd", "arguments": { "id": id } })).map(drop)
    }

    fn add(&self, wanted: &Wanted, added: &mut Vec<u64>) -> Result<(), String> {
        for (port, to) in wanted.pairs() {
            for (nth, host) in wanted.hosts().into_iter().enumerate() {
                let mut arguments = json!({
                    "proto": wanted.proto(), "host_addr": host.to_string(), "host_port": port, "guest_port": to,
                });
                if let (Some(target), Some(all)) = (wanted.target, arguments.as_object_mut()) {
                    all.insert("guest_addr".into(), target.to_string().into());
                }
                let answer = self.ask(&json!({ "execute": "add_hostfwd", "arguments": arguments }));
                match answer {
                    Ok(returned) => added.extend(returned.get("id").and_then(Value::as_u64)),
                    // The machine may lack IPv6.
                    Err(_) if nth > 0 => {}
                    Err(why) => return Err(format!("{host}/{port}: {why}")),
                }
            }
        }
        Ok(())
    }

    fn delete(&self, wanted: &Wanted) -> Result<(), String> {
        let list = self.list()?;
        for (port, to) in wanted.pairs() {
            let fits = |entry: &&Entry| {
                entry.proto == wanted.proto()
                    && wanted.hosts().contains(&entry.host.ip())
                    && (entry.host.port(), entry.guest.port()) == (port, to)
                    && wanted.target.is_none_or(|target| target == entry.guest.ip())
            };
            let found: Vec<u64> = list.iter().filter(fits).map(|entry| entry.id).collect();
            if found.is_empty() {
                return Err(format!("{} port {port} is not there", wanted.proto()));
            }
            found.into_iter().try_for_each(|id| self.remove(id))?;
        }
        Ok(())
    }
}
