//! [`Service`]: a file server on a host, with a thread that accepts for each address on each core, and one for each
//! connection. `serve` and `demo` start it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use pagewire::{BindOptions, Host, SocketOption, TcpListener};

use crate::failure::{Failure, reason};
use crate::http::server::Server;
use crate::http::server::permits::Permits;
use crate::limits::{BACKLOG, SHUTDOWN_TIME, THREAD_STACK};

/// A server and its connections.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) server: Arc<Server>,
    /// Files are sent with completions.
    pub(crate) zerocopy: bool,
    /// Copies are counted for each connection, too.
    pub(crate) count_copies: bool,
    pub(crate) permits: Permits,
}

impl Service {
    pub(crate) fn new(server: Server) -> Self {
        Self {
            server: Arc::new(server),
            zerocopy: false,
            count_copies: false,
            permits: Permits::default(),
        }
    }

    /// Serves the connections of an address, on threads of their own. `listen` gives the listener of each core there.
    pub(crate) fn listen(
        &self,
        on: SocketAddr,
        listen: impl FnOnce(SocketAddr, &BindOptions) -> io::Result<Vec<TcpListener>>,
    ) -> Result<(), Failure> {
        let failed = |e: io::Error| {
            let hint = match e.kind() {
                io::ErrorKind::AddrInUse => "; choose another with --port",
                _ => "",
            };
            Failure::because(format!("listening on {on}"), reason(&e) + hint)
        };
        self.permits.report_crowded(&self.server.crowded);
        let options = BindOptions::new().backlog(BACKLOG);
        for listener in listen(on, &options).map_err(failed)? {
            listener.set_zerocopy(self.zerocopy).map_err(failed)?;
            let service = self.clone();
            let thread = std::thread::Builder::new().name("accept".into()).stack_size(THREAD_STACK);
            thread.spawn(move || service.accept(&listener)).map_err(failed)?;
        }
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
                let _ = connection.set_option(SocketOption::CountCopies(true));
            }
            let permit = match self.permits.take(from.ip()) {
                Ok(permit) => permit,
                Err(full) => {
                    self.server.refuse(&mut connection, full);
                    continue;
                }
            };
            let server = Arc::clone(&self.server);
            let serve = move || {
                let _permit = permit;
                server.serve(&mut connection);
            };
            let thread = std::thread::Builder::new().name("serve".into()).stack_size(THREAD_STACK);
            // There is no thread: the closure is dropped, and the connection with it.
            if thread.spawn(serve).is_err() {
                self.server.counters.refused.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Takes no more requests, and lets running responses finish for a while. `hosts` are those of each core.
    pub(crate) fn stop(&self, hosts: &[Host]) {
        self.server.stopping.store(true, Ordering::Relaxed);
        let deadline = Instant::now() + SHUTDOWN_TIME;
        while !self.permits.is_empty() && Instant::now() < deadline {
            std::thread::park_timeout(Duration::from_millis(5));
        }
        let deadline = deadline.max(Instant::now() + Duration::from_millis(50));
        for host in hosts {
            host.drain(deadline.saturating_duration_since(Instant::now()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use pagewire::Pair;

    use super::*;
    use crate::http::server::permits::PermitLimits;

    #[test]
    fn a_client_with_as_many_connections_as_it_may_have_is_told_so_and_others_are_served() {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("one"), "1").expect("a file");
        let (left, right) = Pair::new().expect("a pair");
        let host = |device, ends: [&str; 2]| {
            let host = Host::builder().device(device).address(ends[0]).address(ends[1]);
            host.start().expect("a host")
        };
        let server = host(left, ["10.0.0.1/24", "fd77::1/64"]);
        let clients = host(right, ["10.0.0.2/24", "fd77::2/64"]);
        let files = Server::new(directory.path(), 0, 0).expect("a directory");
        let permits = Permits::new(PermitLimits::new(3, Some(2)));
        let service = Service { permits, ..Service::new(files) };
        // Over either, the client is another.
        let ends = ["10.0.0.1:80", "[fd77::1]:80"];
        for on in ends {
            let on = on.parse().expect("an address");
            let listen = |on, options: &BindOptions| Ok(vec![server.listen_with(on, options)?]);
            service.listen(on, listen).expect("it listens");
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
        assert_eq!(ask(ends[1]).1, "HTTP/1.1 503", "all permits are taken");
        let counters = &service.server.counters;
        let refused = [&counters.refused, &counters.refused_client];
        assert_eq!(refused.map(|c| c.load(Ordering::Relaxed)), [2, 1]);
    }
}
