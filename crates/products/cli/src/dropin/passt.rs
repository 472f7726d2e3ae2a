//! `passt`, with the options of July 2026: the network of a virtual machine.

use std::ffi::OsString;

use clap::Parser;

use crate::dropin::getopt::{self, Early};
use crate::dropin::ports::Which;
use crate::dropin::shared::{Shared, Told, specs};
use crate::dropin::{Answer, Machine, PASST, Program, Words, version};

/// Unprivileged network of a virtual machine, by pagewire.
#[derive(Debug, Parser)]
#[command(
    name = "passt",
    version = "",
    disable_help_flag = true,
    disable_version_flag = true,
    override_usage = "passt [OPTION]...",
    after_help = "It runs `pagewire gateway`; see docs/DROP-INS.md for what differs.\n\nExit status: 0 when SIGTERM or \
                  SIGINT ends it or, with --one-off or --fd, its guest has gone; 1 otherwise (one line says \
                  why).\n\nSee also: pagewire-gateway(1), pagewire-pesto(1)"
)]
pub(super) struct Options {
    #[command(flatten)]
    shared: Shared,

    /// Unix socket of the guest [default: the first free of /tmp/passt_1.socket and so on]
    #[arg(short, long, visible_alias = "socket-path", value_name = "PATH")]
    socket: Option<OsString>,

    /// The guest shares its memory (vhost-user)
    #[arg(long)]
    vhost_user: bool,

    /// Print what vhost-user has, as JSON
    #[arg(long)]
    print_capabilities: bool,

    /// Not supported, other than none: guests do not move with their connections
    #[arg(long, value_name = "PATH")]
    repair_path: Option<String>,

    /// Not supported
    #[arg(long)]
    migrate_exit: bool,

    /// Not supported
    #[arg(long)]
    migrate_no_linger: bool,

    /// The guest is at this open descriptor, a connected socket; ends with it
    #[arg(short = 'F', long, value_name = "FD")]
    fd: Option<String>,

    /// End after the first guest
    #[arg(short = '1', long)]
    one_off: bool,

    /// Do not name a name server by DHCP and router advertisements
    #[arg(long)]
    no_dhcp_dns: bool,

    /// Do not name a search list by DHCP and router advertisements
    #[arg(long)]
    no_dhcp_search: bool,

    #[arg(hide = true)]
    operands: Vec<OsString>,
}

pub(super) fn answer(words: &[OsString], machine: &Machine) -> Result<Answer, Early> {
    let options: Options = getopt::parse(words, &version(Program::Passt, PASST))?;
    if options.print_capabilities {
        return Ok(Answer::Text("{\n  \"type\": \"net\"\n}".into()));
    }
    options.check()?;
    let (words, socket) = options.words(machine)?;
    let note = socket.filter(|_| !options.shared.quiet);
    Ok(Answer::Words(
        words,
        note.map(|path| format!("UNIX domain socket bound at {}", path.display())),
    ))
}

impl Options {
    fn check(&self) -> Result<(), Early> {
        self.shared.check()?;
        let repairs = self.repair_path.as_deref().is_some_and(|path| path != "none");
        if repairs || self.migrate_exit || self.migrate_no_linger {
            return Err("migration is not supported: leave out --repair-path, --migrate-exit and \
                        --migrate-no-linger"
                .into());
        }
        if self.fd.is_some() && self.socket.is_some() {
            return Err("--fd and --socket exclude each other".into());
        }
        match self.operands.first() {
            Some(word) => {
                Err(format!("unexpected argument '{}'; see passt --help", word.display()).into())
            }
            None => Ok(()),
        }
    }

    /// The words of `pagewire gateway`, and the socket if none was named.
    fn words(
        &self,
        machine: &Machine,
    ) -> Result<(Vec<OsString>, Option<std::path::PathBuf>), Early> {
        let (shared, mut found) = (&self.shared, None);
        let mut words = Words::of("gateway");
        words.set("--link", if self.vhost_user { "vhost-user" } else { "stream" });
        match (&self.fd, &self.socket) {
            (Some(fd), _) => {
                let number = fd.parse::<u32>();
                let number = number
                    .map_err(|_| format!("--fd {fd}: give the number of an open descriptor"))?;
                words.set("--fd", number.to_string());
            }
            (None, Some(path)) => words.set("--socket", path),
            (None, None) => {
                let path = (machine.socket)()
                    .ok_or("no path of /tmp/passt_*.socket is free: give --socket")?;
                words.set("--socket", &path);
                found = Some(path);
            }
        }
        if self.one_off && self.fd.is_none() {
            words.flag("--one-off");
        }
        let addressing = shared.addressing()?;
        shared.put_addresses(&addressing, &mut words)?;
        shared.put_mapped(&addressing, &mut words)?;
        let told = if self.no_dhcp_dns { Told::NotByDhcp } else { Told::ByDhcp };
        shared.put_names(told, &mut words)?;
        if !self.no_dhcp_search {
            shared.put_search(Some(machine.search), &mut words);
        }
        shared.put_refusals(&mut words);
        shared.put_sources(&mut words)?;
        for (option, given) in
            [("--tcp-ports", &shared.tcp_ports), ("--udp-ports", &shared.udp_ports)]
        {
            let follows = |which: &Which| matches!(which, Which::Auto { .. });
            if specs(option, given, "none")?.iter().any(|spec| follows(&spec.which)) {
                return Err(format!("{option}: auto is for pasta; name the ports").into());
            }
        }
        shared.put_ports(&addressing, "none", &mut words)?;
        shared.put_process(&mut words)?;
        shared.put_service(&mut words)?;
        Ok((words.0, found))
    }
}
