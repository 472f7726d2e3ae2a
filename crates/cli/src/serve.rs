//! `pagewire serve`: the file server on a network of its own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pagewire::{Host, TcpListener};

use crate::args::ServeOptions;
use crate::failure::{Failure, reason, say};
use crate::http::server::Server;
use crate::limits::{BACKLOG, MAX_CONNECTIONS, SHUTDOWN_TIME, THREAD_STACK};
use crate::{net, signals, sys};

/// Runs until an interrupt.
pub(crate) fn run(options: &ServeOptions) -> Result<(), Failure> {
    let directory = &options.dir;
    let server = Server::new(directory, options.copy_below).map_err(|e| {
        let hint = "name a directory that you may read";
        Failure::because(directory.display(), format!("{}; {hint}", reason(&e)))
    })?;
    let opened = net::open(&options.net)?;
    let service = Service { zerocopy: true, ..Service::new(server) };

    let report = {
        let (report, service) = (opened.report.clone(), service.clone());
        move || service.print_stats(&report)
    };
    let stop = signals::watch(report)?;
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

    while stop.proceed() {
        std::thread::park_timeout(Duration::from_millis(100));
    }
    service.stop(&opened.host);
    if options.net.stats {
        service.print_stats(&opened.report);
    }
    Ok(())
}

/// A server and the connections that it has.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) server: Arc<Server>,
    /// Files are sent with completions.
    zerocopy: bool,
    active: Arc<AtomicUsize>,
}

impl Service {
    pub(crate) fn new(server: Server) -> Self {
        Self { server: Arc::new(server), zerocopy: false, active: Arc::default() }
    }

    /// Listens, and serves what comes, on threads of their own.
    pub(crate) fn listen(&self, host: &Host, on: SocketAddr) -> Result<(), Failure> {
        let failed = |e: std::io::Error| {
            let hint = match e.kind() {
                std::io::ErrorKind::AddrInUse => "; choose another with --port",
                _ => "",
            };
            Failure::because(format!("listening on {on}"), reason(&e) + hint)
        };
        let listener = host.listen_with(on, BACKLOG).map_err(failed)?;
        listener.set_zerocopy(self.zerocopy).map_err(failed)?;
        let service = self.clone();
        let thread = std::thread::Builder::new().name("accept".into()).stack_size(THREAD_STACK);
        thread.spawn(move || service.accept(&listener)).map_err(failed)?;
        Ok(())
    }

    fn accept(&self, listener: &TcpListener) {
        loop {
            let mut connection = match listener.accept() {
                Ok((connection, _)) => connection,
                // The connection was gone before we took it, or the host is.
                Err(_) if self.server.stopping.load(Ordering::Relaxed) => return,
                Err(_) => {
                    std::thread::park_timeout(Duration::from_millis(10));
                    continue;
                }
            };
            // A response leaves in as few segments as it has room for: head and content are queued
            // at once, and the last piece must not wait for an acknowledgement.
            let _ = connection.set_nodelay(true);
            let active = Active::new(&self.active);
            if active.count > MAX_CONNECTIONS {
                self.server.refuse(&mut connection);
                continue;
            }
            let server = Arc::clone(&self.server);
            let serve = move || {
                let _active = active;
                server.serve(&mut connection);
            };
            let thread = std::thread::Builder::new().name("serve".into()).stack_size(THREAD_STACK);
            // No thread to be had: the closure is dropped, and the connection with it.
            if thread.spawn(serve).is_err() {
                self.server.counters.refused.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Takes no more requests, and lets running responses finish for a while.
    pub(crate) fn stop(&self, host: &Host) {
        self.server.stopping.store(true, Ordering::Relaxed);
        let deadline = Instant::now() + SHUTDOWN_TIME;
        while self.active.load(Ordering::Relaxed) > 0 && Instant::now() < deadline {
            std::thread::park_timeout(Duration::from_millis(5));
        }
        host.drain(
            deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(50)),
        );
    }

    fn print_stats(&self, report: &net::Report) {
        let mut text = String::from("server\n");
        let counters = self.server.counters.report();
        for (name, value) in counters.into_iter().chain([("pages_lost", sys::lost_pages())]) {
            text.push_str(&format!("  {name:<24} {value}\n"));
        }
        eprint!("{text}{report}");
    }
}

/// Counts a connection for as long as it lives.
struct Active {
    all: Arc<AtomicUsize>,
    /// How many there were with this one.
    count: usize,
}

impl Active {
    fn new(all: &Arc<AtomicUsize>) -> Self {
        let count = all.fetch_add(1, Ordering::Relaxed) + 1;
        Self { all: Arc::clone(all), count }
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.all.fetch_sub(1, Ordering::Relaxed);
    }
}
