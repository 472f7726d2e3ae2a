//! `pagewire serve`: the file server on a network of its own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use pagewire::{Host, TcpListener, TcpOption};
use rustix::process::geteuid;

use crate::args::view::StatsFormat;
use crate::args::{NetLink, ServeOptions};
use crate::failure::{Failure, reason, say};
use crate::http::access::AccessLog;
use crate::http::server::Server;
use crate::limits::{BACKLOG, LAST_TIME, SHUTDOWN_TIME, THREAD_STACK};
use crate::places::{PlaceLimits, Places};
use crate::user::User;
use crate::view::{self, Asked};
use crate::{net, signals, sys};

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
    let asked = Asked::new(&options.net.view)?;
    let user = user(options)?;
    let mut opened = net::open_with(&options.net, None, user.as_ref())?;
    let limits = PlaceLimits::new(options.connections, options.connections_per_client);
    let (places, base) = (Places::new(limits), Service::new(server));
    let service = Service { zerocopy: true, count_copies: asked.is_asked(), places, ..base };

    let counted = Arc::clone(&service.server);
    let shown = opened.report.shown(&options.net).section("server", move || counts(&counted));
    let control = asked.start(shown)?;
    let print = {
        let (report, service, control) = (opened.report.clone(), service.clone(), control.handle());
        let format = options.net.stats.unwrap_or(StatsFormat::Text);
        move || view::print_stats(format, &control, || service.stats(&report))
    };
    let stop = signals::watch(print.clone())?;
    for addr in &opened.addresses {
        service.listen(&opened.host, SocketAddr::new(*addr, options.port))?;
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
    if geteuid().is_root() {
        eprintln!("pagewire: serve stays root; with --user NAME it gives that up");
    }
    let mut end = Ok(());
    while stop.proceed() && end.is_ok() {
        std::thread::park_timeout(Duration::from_millis(100));
        end = opened.look_after(&options.net);
    }
    if end.is_ok() {
        service.stop(&opened.host);
    }
    // Downloads that are still running end here with a reset.
    opened.host.shutdown(LAST_TIME);
    if options.net.stats.is_some() {
        print();
    }
    end
}

/// The user to be.
fn user(options: &ServeOptions) -> Result<Option<User>, Failure> {
    let Some(word) = &options.user else { return Ok(None) };
    let usage = |text: &str| Err(Failure::Usage(text.into()));
    match &options.net {
        net if net.link == NetLink::VhostUser => {
            usage("--user is for a tap, which takes root to open; run this as that user instead")
        }
        net if net.wait_for_device => {
            usage("--user and --wait-for-device: only root can open another tap later")
        }
        _ => User::find(word).map(Some),
    }
}

/// The counts of the file server, by name.
fn counts(server: &Server) -> Vec<(&'static str, u64)> {
    let mut all = server.counters.report();
    all.push(("pages_lost", sys::lost_pages()));
    all
}

/// A server and its connections.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) server: Arc<Server>,
    /// Files are sent with completions.
    zerocopy: bool,
    /// Copies are counted for each connection, too.
    count_copies: bool,
    places: Places,
}

impl Service {
    pub(crate) fn new(server: Server) -> Self {
        Self {
            server: Arc::new(server),
            zerocopy: false,
            count_copies: false,
            places: Places::default(),
        }
    }

    /// Listens, and serves connections, on threads of their own.
    pub(crate) fn listen(&self, host: &Host, on: SocketAddr) -> Result<(), Failure> {
        let failed = |e: std::io::Error| {
            let hint = match e.kind() {
                std::io::ErrorKind::AddrInUse => "; choose another with --port",
                _ => "",
            };
            Failure::because(format!("listening on {on}"), reason(&e) + hint)
        };
        self.places.report_crowded(&self.server.crowded);
        let listener = host.listen_with(on, BACKLOG).map_err(failed)?;
        listener.set_zerocopy(self.zerocopy).map_err(failed)?;
        let service = self.clone();
        let thread = std::thread::Builder::new().name("accept".into()).stack_size(THREAD_STACK);
        thread.spawn(move || service.accept(&listener)).map_err(failed)?;
        Ok(())
    }

    fn accept(&self, listener: &TcpListener) {
        loop {
            let (mut connection, from) = match listener.accept() {
                Ok(accepted) => accepted,
                // The connection is gone, or the host.
                Err(_) if self.server.stopping.load(Ordering::Relaxed) => return,
                Err(_) => {
                    std::thread::park_timeout(Duration::from_millis(10));
                    continue;
                }
            };
            // A response leaves in as few segments as it has room for: head and content are queued
            // at once, and the last piece must not wait for an acknowledgement.
            let _ = connection.set_nodelay(true);
            if self.count_copies {
                let _ = connection.set_option(TcpOption::CountCopies(true));
            }
            let place = match self.places.take(from.ip()) {
                Ok(place) => place,
                Err(full) => {
                    self.server.refuse(&mut connection, full);
                    continue;
                }
            };
            let server = Arc::clone(&self.server);
            let serve = move || {
                let _place = place;
                server.serve(&mut connection);
            };
            let thread = std::thread::Builder::new().name("serve".into()).stack_size(THREAD_STACK);
            // There is no thread: the closure is dropped, and the connection with it.
            if thread.spawn(serve).is_err() {
                self.server.counters.refused.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Takes no more requests, and lets running responses finish for a while.
    pub(crate) fn stop(&self, host: &Host) {
        self.server.stopping.store(true, Ordering::Relaxed);
        let deadline = Instant::now() + SHUTDOWN_TIME;
        while !self.places.is_empty() && Instant::now() < deadline {
            std::thread::park_timeout(Duration::from_millis(5));
        }
        host.drain(
            deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(50)),
        );
    }

    fn stats(&self, report: &net::Report) -> String {
        let mut text = String::from("server\n");
        for (name, value) in counts(&self.server) {
            text.push_str(&format!("  {name:<24} {value}\n"));
        }
        format!("{text}{report}")
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use pagewire::Pair;

    use super::*;

    #[test]
    fn a_client_with_as_many_connections_as_it_may_have_is_told_so_and_others_are_served() {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("one"), "1").expect("a file");
        let (left, right) = Pair::new(Default::default()).expect("a pair");
        let host = |device, ends: [&str; 2]| {
            let host = Host::builder().device(device).address(ends[0]).address(ends[1]);
            host.start().expect("a host")
        };
        let server = host(left, ["10.0.0.1/24", "fd77::1/64"]);
        let clients = host(right, ["10.0.0.2/24", "fd77::2/64"]);
        let files = Server::new(directory.path(), 0, 0).expect("a directory");
        let places = Places::new(PlaceLimits::new(3, Some(2)));
        let service = Service { places, ..Service::new(files) };
        // Over either, the client is another.
        let ends = ["10.0.0.1:80", "[fd77::1]:80"];
        for on in ends {
            service.listen(&server, on.parse().expect("an address")).expect("it listens");
        }
        let ask = |to: &str| {
            let mut stream = clients.connect(to).expect("a connection");
            stream.write_all(b"HEAD /one HTTP/1.1\r\nHost: a\r\n\r\n").expect("room");
            let mut status = [0; 12];
            stream.read_exact(&mut status).expect("an answer");
            (stream, String::from_utf8_lossy(&status).into_owned())
        };
        let held = [ask(ends[0]), ask(ends[0])];
        assert!(held.iter().all(|(_, status)| status == "HTTP/1.1 200"));
        assert_eq!(ask(ends[0]).1, "HTTP/1.1 503");
        let other = ask(ends[1]);
        assert_eq!(other.1, "HTTP/1.1 200");
        assert_eq!(ask(ends[1]).1, "HTTP/1.1 503", "all places are taken");
        let counters = &service.server.counters;
        let refused = [&counters.refused, &counters.refused_client];
        assert_eq!(refused.map(|c| c.load(Ordering::Relaxed)), [2, 1]);
    }
}
