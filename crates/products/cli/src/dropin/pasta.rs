//! `pasta`, with the options of July 2026: the network of a namespace, or of a program.

use std::ffi::OsString;

use clap::Parser;

use crate::args::host::link_address;
use crate::dropin::getopt::{self, Early};
use crate::dropin::shared::{Addressing, Shared, Told, specs};
use crate::dropin::{Answer, Machine, PASST, Program, Words, version};

/// Unprivileged network of a namespace, by pagewire. Without PID and --netns, it runs the command, or a shell,
/// in namespaces of its own.
#[derive(Debug, Parser)]
#[command(
    name = "pasta",
    version = "",
    disable_help_flag = true,
    disable_version_flag = true,
    override_usage = "pasta [OPTION]... [COMMAND] [ARGS]...\n       pasta [OPTION]... PID\n       \
                      pasta [OPTION]... --netns [PATH|NAME]",
    after_help = "It runs `pagewire gateway` or `pagewire run`; see docs/DROP-INS.md for what differs.\n\nExit status: a \
                  COMMAND's own, 126 or 127 if it cannot be executed, 125 if there is no network for it; otherwise 0 \
                  when the namespace has gone, or SIGTERM or SIGINT ends it; 1 for anything else, also for mistakes \
                  in the options (one line says why).\n\nSee also: pagewire-gateway(1), pagewire-run(1), \
                  pagewire-pesto(1)"
)]
pub(super) struct Options {
    #[command(flatten)]
    shared: Shared,

    /// Name of the tap in the namespace [default: that of this machine's interface]
    #[arg(short = 'I', long, value_name = "NAME")]
    ns_ifname: Option<OsString>,

    /// TCP ports of the namespace's loopback that lead to this machine's [default: auto]
    #[arg(short = 'T', long, value_name = "SPEC")]
    tcp_ns: Vec<String>,

    /// UDP ports of the namespace's loopback that lead to this machine's [default: auto]
    #[arg(short = 'U', long, value_name = "SPEC")]
    udp_ns: Vec<String>,

    /// Clients of this machine's loopback reach the loopback of the namespace
    #[arg(long)]
    host_lo_to_ns_lo: bool,

    /// User namespace to enter
    #[arg(long, value_name = "NSPATH")]
    userns: Option<OsString>,

    /// Network namespace: a path, or a name of /run/netns
    #[arg(long, value_name = "PATH|NAME")]
    netns: Option<OsString>,

    /// Has no effect: a user namespace is entered where that is needed
    #[arg(long)]
    netns_only: bool,

    /// Stay when the namespace's file is removed
    #[arg(long)]
    no_netns_quit: bool,

    /// Give the namespace its addresses and routes
    #[arg(long)]
    config_net: bool,

    /// Not supported without --address and --gateway, which have the same effect
    #[arg(long)]
    no_copy_routes: bool,

    /// Not supported without --address, which has the same effect
    #[arg(long)]
    no_copy_addrs: bool,

    /// MAC address of the tap in the namespace
    #[arg(long, value_name = "ADDR")]
    ns_mac_addr: Option<String>,

    /// Clients of this machine's loopback reach the guest over the tap
    #[arg(long)]
    no_splice: bool,

    /// Nothing but the loopback's ports
    #[arg(long)]
    splice_only: bool,

    /// Name the name server by DHCP and router advertisements
    #[arg(long)]
    dhcp_dns: bool,

    /// Name the search list by DHCP and router advertisements
    #[arg(long)]
    dhcp_search: bool,

    /// Not supported: the tap is made here
    #[arg(short = 'F', long, value_name = "FD")]
    fd: Option<String>,

    #[arg(hide = true, trailing_var_arg = true)]
    operands: Vec<OsString>,
}

/// IPv4 but loopback: what a namespace with --splice-only does not reach.
const BUT_LOOPBACK: [&str; 8] = [
    "0.0.0.0/2",
    "64.0.0.0/3",
    "96.0.0.0/4",
    "112.0.0.0/5",
    "120.0.0.0/6",
    "124.0.0.0/7",
    "126.0.0.0/8",
    "128.0.0.0/1",
];

/// Whose network it is.
enum Whose {
    Process(u32),
    Namespace(OsString),
    Command(Vec<OsString>),
}

pub(super) fn answer(words: &[OsString], machine: &Machine) -> Result<Answer, Early> {
    let options: Options = getopt::parse(words, &version(Program::Pasta, PASST))?;
    options.check()?;
    Ok(Answer::Words(options.words(machine)?, None))
}

impl Options {
    fn check(&self) -> Result<(), Early> {
        self.shared.check()?;
        if self.fd.is_some() {
            return Err(
                "--fd is not supported: leave it out, and the tap is made in the namespace".into(),
            );
        }
        if self.host_lo_to_ns_lo && self.no_splice {
            return Err("--host-lo-to-ns-lo and --no-splice exclude each other".into());
        }
        if self.splice_only && self.no_splice {
            return Err("--splice-only and --no-splice exclude each other".into());
        }
        if self.userns.is_some() && self.netns_only {
            return Err("--userns and --netns-only exclude each other".into());
        }
        Ok(())
    }

    fn whose(&self, machine: &Machine) -> Result<Whose, Early> {
        let number = |word: &OsString| word.to_str().and_then(|text| text.parse().ok());
        match (&self.netns, self.operands.as_slice()) {
            (Some(_), [_, ..]) => Err("--netns, and a PID or a COMMAND, exclude each other".into()),
            (Some(path), []) if path.as_encoded_bytes().contains(&b'/') => {
                Ok(Whose::Namespace(path.clone()))
            }
            (Some(name), []) => {
                let mut path = OsString::from("/run/netns/");
                path.push(name);
                Ok(Whose::Namespace(path))
            }
            (None, [one]) if number(one).is_some_and(|id: u32| id > 0) => {
                Ok(Whose::Process(number(one).unwrap_or_default()))
            }
            (None, _) if self.userns.is_some() => Err("--userns needs --netns, or a PID".into()),
            (None, []) => Ok(Whose::Command(vec![(machine.shell)()])),
            (None, command) => Ok(Whose::Command(command.to_vec())),
        }
    }

    /// The words of `pagewire gateway`, or of `pagewire run` for a command.
    fn words(&self, machine: &Machine) -> Result<Vec<OsString>, Early> {
        let shared = &self.shared;
        let whose = self.whose(machine)?;
        let mut words = match &whose {
            Whose::Command(_) => {
                let mut words = Words::of("run");
                words.flag("--map-root-user");
                words
            }
            Whose::Process(_) | Whose::Namespace(_) => {
                let mut words = Words::of("gateway");
                words.set("--link", "tap");
                words
            }
        };
        match &whose {
            Whose::Process(id) => words.set("--netns", id.to_string()),
            Whose::Namespace(path) => words.set("--netns", path),
            Whose::Command(_) => {}
        }
        let has_command = matches!(whose, Whose::Command(_));
        self.put_namespace(has_command, &mut words)?;
        let mut splices = self.host_lo_to_ns_lo;
        if self.splice_only {
            splices = true;
            self.put_nothing_else(&mut words);
            shared.put_ports(&Addressing::NONE, "auto", &mut words)?;
        } else {
            self.put_network(has_command, machine, &mut words)?;
        }
        // Ports come later by pesto.
        let has_ports = words.has(|word| word.starts_with("--publish=") && !word.ends_with("/udp"));
        let has_ports = has_ports || shared.conf_path.is_some();
        if splices {
            words.flag("--loopback");
        } else if has_ports && !self.no_splice {
            words.flag("--splice");
        }
        for (option, given, udp) in
            [("--tcp-ns", &self.tcp_ns, false), ("--udp-ns", &self.udp_ns, true)]
        {
            for spec in specs(option, given, "auto")? {
                for value in spec.forwarded(udp).map_err(|why| format!("{option}: {why}"))? {
                    words.set("--forward", value);
                }
            }
        }
        shared.put_process(&mut words)?;
        match whose {
            Whose::Command(command) => {
                self.check_command()?;
                words.flag("--");
                words.0.extend(command);
            }
            _ => shared.put_service(&mut words)?,
        }
        Ok(words.0)
    }

    /// The namespace, and the tap in it.
    fn put_namespace(&self, has_command: bool, words: &mut Words) -> Result<(), Early> {
        if let Some(path) = &self.userns {
            words.set("--userns", path);
        }
        if self.no_netns_quit && !has_command {
            words.flag("--keep");
        }
        // Without --config-net, the lo is up and nothing else is.
        if !has_command && (!self.config_net || self.splice_only) {
            words.flag("--no-configure");
        }
        if let Some(mac) = &self.ns_mac_addr {
            link_address(mac).map_err(|why| format!("--ns-mac-addr {mac}: {why}"))?;
            words.set("--tap-mac", mac);
        }
        Ok(())
    }

    fn put_network(
        &self,
        has_command: bool,
        machine: &Machine,
        words: &mut Words,
    ) -> Result<(), Early> {
        let shared = &self.shared;
        let addressing = shared.addressing()?;
        if (self.no_copy_routes || self.no_copy_addrs) && addressing.copies() {
            return Err("--no-copy-routes and --no-copy-addrs are not supported: name the address \
                        with --address and the router with --gateway, or one IP version with -4 or -6"
                .into());
        }
        match &self.ns_ifname {
            Some(name) => words.set("--tap", name),
            // Otherwise the tap has the name of the interface that is copied.
            None if !addressing.copies() => words.set("--tap", "tap0"),
            None => {}
        }
        shared.put_addresses(&addressing, words)?;
        shared.put_mapped(&addressing, words)?;
        let serves = !has_command && !self.config_net;
        let told = match () {
            () if has_command => Told::ByFile,
            () if !serves => Told::Not,
            () if self.dhcp_dns => Told::ByDhcp,
            () => Told::NotByDhcp,
        };
        shared.put_names(told, words)?;
        let own = (self.dhcp_search && serves).then_some(machine.search);
        shared.put_search(own, words);
        shared.put_refusals(words);
        shared.put_sources(words)?;
        shared.put_ports(&addressing, "auto", words)
    }

    /// Loopback only: a tap that leads nowhere.
    fn put_nothing_else(&self, words: &mut Words) {
        words.set("--tap", self.ns_ifname.clone().unwrap_or_else(|| "tap0".into()));
        words.set("--addr", "169.254.2.2/16");
        words.set("--guest", "169.254.2.1");
        words.set("--dns", "none");
        BUT_LOOPBACK.iter().for_each(|network| words.set("--deny", network));
    }

    /// What `pagewire run` has not.
    fn check_command(&self) -> Result<(), Early> {
        let shared = &self.shared;
        let given = [
            (shared.log_file.is_some() || shared.log_size.is_some(), "--log-file"),
            (shared.pid.is_some(), "--pid"),
            (shared.conf_path.is_some(), "--conf-path"),
        ];
        match given.into_iter().find(|(given, _)| *given) {
            Some((_, option)) => Err(format!(
                "{option} is not supported with a COMMAND: start it with PID or --netns"
            )
            .into()),
            None => Ok(()),
        }
    }
}
