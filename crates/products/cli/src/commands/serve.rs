//! `pagewire serve`: the file server on a network of its own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use pagewire_gateway::sandbox::SandboxUser;
use rustix::process::geteuid;

use crate::args::{NetLink, ServeOptions};
use crate::failure::{Failure, reason, say};
use crate::http::server::Server;
use crate::http::server::access::AccessLog;
use crate::http::server::permits::{PermitLimits, Permits};
use crate::http::server::service::Service;
use crate::view::{self, Printed, ViewSockets};
use crate::{net, sys};

/// Runs until an interrupt.
pub(crate) fn run(options: &ServeOptions) -> Result<(), Failure> {
    let directory = &options.dir;
    let mut server = Server::new(directory, options.copy_below, options.min_rate).map_err(|e| {
        let hint = "name a directory that you may read";
        Failure::because(directory.display(), format!("{}; {hint}", reason(&e)))
    })?;
    if let Some(path) = &options.access_log {
        let failed = |e| Failure::because(format!("--access-log {}", path.display()), reason(&e));
        server.access = Some(AccessLog::open(path, options.access_format).map_err(failed)?);
    }
    let asked = ViewSockets::new(&options.net.view)?;
    let user = user(options)?;
    let mut opened = net::open(&options.net, options.cores.cores, None, user.as_ref())?;
    let limits = PermitLimits::new(options.connections, options.connections_per_client);
    let (permits, base) = (Permits::new(limits), Service::new(server));
    let service = Service { zerocopy: true, count_copies: asked.is_asked(), permits, ..base };

    let counted = Arc::clone(&service.server);
    let shown = opened.report.shown(&options.net).section("server", move || counts(&counted));
    let control = asked.start(shown)?;
    let (report, server) = (opened.report.clone(), Arc::clone(&service.server));
    let printed = Printed::new(options.net.stats, &control, move || stats(&server, &report));
    let stop = printed.watch()?;
    for addr in &opened.addresses {
        let on = SocketAddr::new(*addr, options.port);
        service.listen(on, |on, options| {
            Ok(opened.host.listen_with(on, options)?.shards().to_vec())
        })?;
    }
    for addr in &opened.addresses {
        let url = SocketAddr::new(*addr, options.port).to_string();
        say(format_args!(
            "serving {} at http://{}/",
            directory.display(),
            url.trim_end_matches(":80")
        ));
    }

    // Behind what may fail: a failure is one line.
    opened.warn(&options.net);
    if geteuid().is_root() {
        crate::failure::complain!("pagewire: serve stays root; with --user NAME it gives that up");
    }
    let mut end = Ok(());
    while !stop.is_set() && end.is_ok() {
        std::thread::park_timeout(Duration::from_millis(100));
        end = opened.check_device(&options.net);
    }
    if end.is_ok() {
        service.stop(opened.host.shards());
    }
    // Downloads that are still running end here with a reset.
    opened.end(&options.net);
    printed.at_end();
    end
}

/// The user to be.
fn user(options: &ServeOptions) -> Result<Option<SandboxUser>, Failure> {
    let Some(word) = &options.user else { return Ok(None) };
    let usage = |text: &str| Err(Failure::Usage(text.into()));
    match &options.net {
        net if net.link == NetLink::VhostUser => {
            usage("--user is for a tap, which takes root to open; run this as that user instead")
        }
        net if net.wait_for_device => {
            usage("--user and --wait-for-device: only root can open another tap later")
        }
        _ => crate::net::user::find(word).map(Some),
    }
}

/// The counts of the file server, by name.
fn counts(server: &Server) -> Vec<(&'static str, u64)> {
    let mut all = server.counters.report();
    all.push(("pages_lost", sys::lost_pages()));
    all
}

/// The counts of the file server and those of its host, as text.
fn stats(server: &Server, report: &net::Report) -> String {
    format!("{}{report}", view::part("server", counts(server).into_iter()))
}
