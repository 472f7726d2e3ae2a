//! Shutdown of a stack: the process ends, or a device is lost.
//!
//! A kernel delivers what a process has queued even after its end. A process that contains the
//! stack has to do that itself: call [`Stack::close_all`], take turns while [`Stack::leftovers`]
//! has some, and call [`Stack::abort_all`] when the time is up.

use pagewire_mem::Instant;
use pagewire_tcp::{State, TcpError};

use super::Stack;
use crate::error::Error;
use crate::net::LinkId;
use crate::sockets::ids::SocketId;
use crate::sockets::table::Socket;
use crate::sockets::tcp::socket::Owner;
use crate::sockets::{Context, NetworkState};

/// Numbers of closed connections, by the event that they wait for; see [`Stack::leftovers`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// Connections with unacknowledged data or FIN.
    pub undelivered: usize,
    /// Connections that wait for the peer's FIN.
    pub half_closed: usize,
    /// Whether packets wait for a device or for a neighbour's answer.
    pub packets: bool,
}

impl Stack {
    /// Closes every socket, as a kernel does at the end of a process: connections deliver what is
    /// queued; those with unread data, or not accepted, are reset. No more sockets can be made.
    /// Returns the number of connections, including those that still deliver, and how many were
    /// reset. Attempts to connect without an answer do not count, and end silently.
    pub fn close_all(&mut self, now: Instant) -> (usize, usize) {
        self.cx.network = NetworkState::ShutDown;
        self.close_sockets(now)
    }

    /// Closes every socket and gives back every reserved address, as a kernel does when one process
    /// ends and the next one may start. Returns the same as [`close_all`](Self::close_all).
    pub fn end_process(&mut self, now: Instant) -> (usize, usize) {
        self.reservations().release_all();
        self.close_sockets(now)
    }

    fn close_sockets(&mut self, now: Instant) -> (usize, usize) {
        let (connections, resetting) = self.open_connections();
        let owned: Vec<SocketId> = self
            .cx
            .table
            .iter()
            .filter_map(|(index, socket)| {
                let owned = match socket {
                    Socket::Tcp(socket) => socket.owner == Owner::App,
                    Socket::Listener(_) | Socket::Udp(_) => true,
                    Socket::TimeWait(_) => false,
                };
                owned.then(|| self.cx.table.id_of(index)).flatten()
            })
            .collect();
        for id in owned {
            self.close(now, id);
        }
        let (_, after) = self.open_connections();
        (connections, after.saturating_sub(resetting))
    }

    /// Resets every connection with unacknowledged data or FIN; returns how many. The resets leave
    /// with the next output.
    ///
    /// A connection whose peer has acknowledged everything (FIN-WAIT-2, TIME-WAIT) is not reset:
    /// many kernels discard unread data on a reset.
    pub fn abort_all(&mut self, now: Instant) -> usize {
        let _ = now;
        let all = self.cx.table.iter().filter_map(|(index, socket)| match socket {
            Socket::Tcp(socket) => awaits_peer(socket.conn.state()).then_some(index),
            _ => None,
        });
        let all: Vec<u32> = all.collect();
        all.iter().for_each(|&index| self.cx.abort(index));
        all.len()
    }

    /// Counts closed connections by the event that they wait for. Walks all sockets.
    pub fn leftovers(&self) -> Leftovers {
        let mut left = Leftovers { packets: self.cx.net.has_waiting(), ..Leftovers::default() };
        left.packets |= !self.cx.work.tx_pending.is_empty();
        for (_, socket) in self.cx.table.iter() {
            let Socket::Tcp(socket) = socket else { continue };
            left.undelivered += usize::from(!socket.is_quiet());
            left.half_closed += usize::from(socket.conn.state() == State::FinWait2);
        }
        left
    }
}

impl Stack {
    /// Numbers of open connections, and of those whose reset waits to be sent.
    fn open_connections(&self) -> (usize, usize) {
        let mut counts = (0, 0);
        for (_, socket) in self.cx.table.iter() {
            let Socket::Tcp(socket) = socket else { continue };
            counts.0 += usize::from(is_open(socket.conn.state()));
            counts.1 +=
                usize::from(socket.conn.state() == State::Closed && !socket.conn.is_closed());
        }
        counts
    }
}

/// Whether the peer knows of the connection, and it is not over.
fn is_open(state: State) -> bool {
    !matches!(state, State::Closed | State::SynSent | State::TimeWait)
}

/// Whether a connection that we have closed has something unacknowledged.
fn awaits_peer(state: State) -> bool {
    !matches!(state, State::Closed | State::FinWait2 | State::TimeWait)
}

impl Stack {
    /// The device of a link is gone for good. Connections over it, and sends to it, fail with
    /// `NetworkDown` from now on; received data can still be read. When no device is left, every
    /// socket fails until [`add_link`](Self::add_link). `false`: there is no such link.
    pub fn handle_link_lost(&mut self, now: Instant, link: LinkId) -> bool {
        let Some(index) = self.cx.net.find_link(link) else { return false };
        self.cx.work.resume(index);
        let over = |cx: &Context, socket: &Socket| {
            let (ends, bound) = match socket {
                Socket::Tcp(socket) => ((socket.tuple.local, socket.tuple.remote), socket.bound()),
                Socket::Udp(socket) => match socket.remote {
                    Some(remote) => ((socket.local.ip(), remote.ip()), socket.link),
                    None => return false,
                },
                Socket::Listener(_) | Socket::TimeWait(_) => return false,
            };
            let by = cx.net.bound_link(bound).unwrap_or(None);
            cx.net.outgoing_link(now, ends, by) == Some(index)
        };
        let table = self.cx.table.iter();
        let lost = table.filter(|(_, socket)| over(&self.cx, socket)).map(|(index, _)| index);
        let lost: Vec<u32> = lost.collect();
        self.close_wildcards(link);
        if self.cx.net.handle_link_lost(index) {
            self.fail_all(NetworkState::NoDevice);
        } else {
            lost.iter().for_each(|&index| self.fail_socket(index, false));
        }
        true
    }

    /// Ends all sending and receiving: every socket fails with `NetworkDown`.
    pub fn handle_network_down(&mut self) {
        for link in self.cx.net.link_indices() {
            self.cx.net.handle_link_lost(link);
            self.cx.work.resume(link);
        }
        self.fail_all(NetworkState::ShutDown);
    }

    /// Forgets every socket without dropping it: for a stack in which even
    /// [`handle_network_down`](Self::handle_network_down) has panicked.
    pub fn forget_all(&mut self) {
        self.cx.network = NetworkState::ShutDown;
        core::mem::forget(core::mem::take(&mut self.cx.table));
        self.cx.work.clear();
    }

    /// Whether no socket can send or receive: no device is left, or the stack was shut down.
    pub fn is_down(&self) -> bool {
        self.cx.network != NetworkState::Up
    }
}

impl Stack {
    /// A link was added: ends [`NetworkState::NoDevice`].
    pub(super) fn revive(&mut self) {
        if self.cx.network != NetworkState::NoDevice {
            return;
        }
        self.cx.network = NetworkState::Up;
        for index in self.cx.table.indices() {
            match self.cx.table.at_mut(index) {
                // The link of such a listener is gone.
                Some(Socket::Listener(listener)) if listener.requests.is_some() => continue,
                Some(Socket::Listener(listener)) => listener.down = false,
                Some(Socket::Udp(socket)) if socket.wildcard.is_some() => continue,
                Some(Socket::Udp(socket)) => socket.down = false,
                _ => continue,
            }
            self.cx.check_later(index);
        }
    }

    /// A link is gone: its sockets for every address are over.
    pub(super) fn close_wildcards(&mut self, link: LinkId) {
        if let Some(index) = self.listeners.binds.wildcards.remove_link(link) {
            self.cx.close_requests(index);
        }
        self.udp.close_wildcards(&mut self.cx, link);
    }

    fn fail_all(&mut self, why: NetworkState) {
        if self.cx.network != NetworkState::ShutDown {
            self.cx.network = why;
        }
        for index in self.cx.table.indices() {
            self.fail_socket(index, true);
        }
    }

    /// The socket at `index` has lost its link; `all`: and there is no other.
    fn fail_socket(&mut self, index: u32, all: bool) {
        match self.cx.table.at_mut(index) {
            Some(Socket::Tcp(socket)) => {
                socket.conn.fail(TcpError::NetworkDown);
                self.cx.touch(index);
            }
            Some(Socket::Udp(socket)) => {
                // Received datagrams come before the error.
                match all {
                    true => socket.down = true,
                    false => socket.error = Some(Error::NetworkDown),
                }
                self.cx.check_later(index);
            }
            Some(Socket::Listener(listener)) if all => {
                listener.down = true;
                self.cx.close_requests(index);
                self.cx.check_later(index);
            }
            Some(Socket::Listener(_) | Socket::TimeWait(_)) | None => {}
        }
    }
}
