//! The server of the control socket: one thread, which sleeps in `poll` until a client asks, and never waits for one client.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, SocketFlags, accept_with, send};

#[cfg(feature = "prometheus")]
use crate::http;
use crate::limits::{CLIENTS, REQUEST_BYTES, RETRY, STALL};
use crate::protocol::{Answer, Ask};
use crate::view::View;

const READ_BYTES: usize = 4096;

pub(crate) struct Server {
    view: Arc<View>,
    control: Option<UnixListener>,
    metrics: Option<TcpListener>,
    /// Metrics are for this machine alone: `http.rs` says what follows.
    is_loopback: bool,
    /// Readable when the thread is to end.
    wakeup: Arc<OwnedFd>,
    clients: Vec<Client>,
}

/// The socket that a client has connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Control,
    Metrics,
}

/// A client that is connected. While `out` has something left, nothing more is read from it.
struct Client {
    stream: OwnedFd,
    kind: Kind,
    request: Vec<u8>,
    out: Vec<u8>,
    sent: usize,
    /// When it is closed unless something moves; a client of the control socket may be silent for as
    /// long as it likes between two requests.
    until: Option<Instant>,
    /// The connection ends once `out` is sent.
    last: bool,
}

/// Whether a client goes on.
#[derive(PartialEq, Eq)]
enum Fate {
    Stays,
    Goes,
}

impl Server {
    pub(crate) fn new(
        view: Arc<View>,
        control: Option<UnixListener>,
        metrics: Option<TcpListener>,
        wakeup: Arc<OwnedFd>,
    ) -> io::Result<Self> {
        if let Some(listener) = &metrics {
            listener.set_nonblocking(true)?;
        }
        let is_loopback = metrics.as_ref().is_some_and(is_loopback);
        Ok(Self { view, control, metrics, is_loopback, wakeup, clients: Vec::new() })
    }

    /// Runs until the thread is woken to end.
    pub(crate) fn run(&mut self) {
        while let Some(ready) = self.wait() {
            let now = Instant::now();
            for (client, ready) in self.clients.iter_mut().zip(ready) {
                if ready && client.serve(&self.view, self.is_loopback, now) == Fate::Goes {
                    client.last = true;
                    client.out.clear();
                    client.until = Some(now);
                }
            }
            self.clients.retain(|client| client.until.is_none_or(|until| until > now));
            self.accept(now);
        }
    }

    /// Waits for clients; which of them are ready, or `None` at the end.
    fn wait(&self) -> Option<Vec<bool>> {
        let mut fds = vec![PollFd::new(&self.wakeup, PollFlags::IN)];
        let wanted = |client: &Client| match client.out.is_empty() {
            true => PollFlags::IN,
            false => PollFlags::OUT,
        };
        fds.extend(self.clients.iter().map(|client| PollFd::new(&client.stream, wanted(client))));
        fds.extend(self.control.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
        fds.extend(self.metrics.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
        let first = self.clients.iter().filter_map(|client| client.until).min();
        let limit = first.map(|until| {
            // Rounded up: it is due when this returns.
            let left = until.saturating_duration_since(Instant::now());
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
        });
        match poll(&mut fds, limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            // `poll` fails for want of memory: the thread cannot work without it.
            Err(_) => return None,
        }
        let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
        if ready.next().unwrap_or(true) {
            return None;
        }
        Some(ready.take(self.clients.len()).collect())
    }

    fn accept(&mut self, now: Instant) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let control = self.control.iter().map(|l| (accept_with(l, flags), Kind::Control));
        let metrics = self.metrics.iter().map(|l| (accept_with(l, flags), Kind::Metrics));
        let accepted: Vec<(Result<OwnedFd, Errno>, Kind)> = control.chain(metrics).collect();
        let refused = |error: &Errno| !matches!(*error, Errno::AGAIN | Errno::INTR);
        if accepted.iter().any(|(stream, _)| stream.as_ref().is_err_and(refused)) {
            // There is no descriptor left: the client waits, and this thread must not spin meanwhile.
            std::thread::park_timeout(RETRY);
        }
        for (stream, kind) in accepted {
            let Ok(stream) = stream else { continue };
            let alike = |client: &&Client| client.kind == kind;
            if self.clients.iter().filter(alike).count() >= CLIENTS {
                let first = self.clients.iter().position(|client| alike(&client));
                // A guest's programs must not keep those out who may change its gateway.
                let firewall = self.view.firewall.as_deref();
                let is_strange = |client: &Client| {
                    client.kind == Kind::Control
                        && firewall
                            .is_some_and(|firewall| !firewall.may_change(client.stream.as_fd()))
                };
                let stranger = self.clients.iter().position(is_strange);
                match first.filter(|_| kind == Kind::Metrics).or(stranger) {
                    // A client that says nothing must not keep a Prometheus server out.
                    Some(first) => drop(self.clients.remove(first)),
                    // The drop closes one too many.
                    None => continue,
                }
            }
            self.clients.push(Client::new(stream, kind, now));
        }
    }
}

/// Whether it listens on an address of this machine alone; one that is not known is as if it were. A
/// connection from this machine to all addresses also has a loopback address (`127.0.1.1` by the machine's
/// name), and tells nothing.
fn is_loopback(listener: &TcpListener) -> bool {
    listener.local_addr().map_or(true, |at| at.ip().to_canonical().is_loopback())
}

impl Client {
    /// A client of a socket that does not block.
    fn new(stream: OwnedFd, kind: Kind, now: Instant) -> Self {
        let until = (kind == Kind::Metrics).then_some(now + STALL);
        Self { stream, kind, request: Vec::new(), out: Vec::new(), sent: 0, until, last: false }
    }

    /// Reads requests and sends answers, as far as that needs no waiting.
    fn serve(&mut self, view: &View, is_loopback: bool, now: Instant) -> Fate {
        match self.try_serve(view, is_loopback, now) {
            Ok(fate) => fate,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Fate::Stays,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Fate::Stays,
            Err(_) => Fate::Goes,
        }
    }

    fn try_serve(&mut self, view: &View, is_loopback: bool, now: Instant) -> io::Result<Fate> {
        if self.out.is_empty() {
            let mut room = [0; READ_BYTES];
            let n = rustix::io::read(&self.stream, &mut room)?;
            if n == 0 {
                return Ok(Fate::Goes);
            }
            self.request.extend_from_slice(room.get(..n).unwrap_or_default());
        }
        loop {
            if self.out.is_empty() && !self.answer(view, is_loopback) {
                // Only a whole request may be followed by silence.
                self.until = match self.kind {
                    Kind::Control if self.request.is_empty() => None,
                    _ => self.until.or(Some(now + STALL)),
                };
                return Ok(Fate::Stays);
            }
            self.until = Some(now + STALL);
            while let Some(rest) = self.out.get(self.sent..).filter(|rest| !rest.is_empty()) {
                self.sent += send(&self.stream, rest, SendFlags::NOSIGNAL)?;
            }
            if self.last {
                return Ok(Fate::Goes);
            }
            (self.out, self.sent) = (Vec::new(), 0);
        }
    }

    /// Makes the answer to the first request; `false` if there is none yet.
    #[cfg_attr(not(feature = "prometheus"), expect(unused_variables))]
    fn answer(&mut self, view: &View, is_loopback: bool) -> bool {
        match self.kind {
            Kind::Control => self.answer_line(view),
            #[cfg(feature = "prometheus")]
            Kind::Metrics => {
                let answer = http::answer(&self.request, is_loopback, || view.stats());
                let Some(answer) = answer else { return false };
                (self.out, self.last) = (answer, true);
                true
            }
            #[cfg(not(feature = "prometheus"))]
            Kind::Metrics => false,
        }
    }

    fn answer_line(&mut self, view: &View) -> bool {
        let end = self.request.iter().position(|byte| *byte == b'\n');
        let answer = match end {
            None if self.request.len() <= REQUEST_BYTES => return false,
            Some(end) if end < REQUEST_BYTES => {
                let line: Vec<u8> = self.request.drain(..=end).collect();
                match serde_json::from_slice::<Ask>(&line) {
                    Ok(ask) => view.answer(&ask, self.stream.as_fd()),
                    Err(error) => Answer::Error { text: format!("not understood: {error}") },
                }
            }
            _ => {
                self.last = true;
                let text =
                    format!("a request has at most {REQUEST_BYTES} bytes, and ends with its line");
                Answer::Error { text }
            }
        };
        match serde_json::to_vec(&answer) {
            Ok(text) => self.out = text,
            // The types of an answer have no values that JSON lacks.
            Err(_) => self.last = true,
        }
        self.out.push(b'\n');
        true
    }
}

#[path = "fuzzing.rs"]
#[cfg(feature = "testing")]
pub mod fuzzing;

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
