//! What becomes of sockets when their owner leaves, or their device does.
//!
//! A kernel closes what a process leaves behind: it delivers what is queued, and in the end resets
//! what is left. A process that has the stack in itself must do that before it is gone:
//! [`Stack::close_all`], then turns as always while [`Stack::leftovers`] says that something is
//! under way, and [`Stack::abort_all`] when there is no more time.

use pagewire_mem::Instant;
use pagewire_tcp::{State, TcpError};

use super::ids::SocketId;
use super::socket::Socket;
use super::tcp::Owner;
use crate::error::Error;
use crate::net::LinkId;
use crate::stack::{Core, Stack};

/// Why there is nothing for sockets to do any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Down {
    /// There is.
    No,
    /// No device is left. Another one ends that.
    Lost,
    /// The stack was shut down, or given up.
    Closed,
}

/// What closed connections still wait for; see [`Stack::leftovers`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// Connections whose data, or whose end, the peer has not acknowledged.
    pub undelivered: usize,
    /// Connections that are closed on our side only: the peer may still send.
    pub half_closed: usize,
    /// Packets wait for a device, or for a neighbour's answer.
    pub packets: bool,
}

/// Leaving.
impl Stack {
    /// Closes every socket, as a kernel does at the end of a process: what is queued is still
    /// delivered, a connection with received data that nobody has read is reset, and so are those
    /// that nobody has accepted. Sockets cannot be made any more. Returns how many connections there
    /// were, those that were closed before and deliver included, and how many of them were reset.
    /// Attempts to connect without an answer are none yet, and gone without a word.
    pub fn close_all(&mut self, now: Instant) -> (usize, usize) {
        self.core.sockets.down = Down::Closed;
        let (connections, resetting) = self.core.open_connections();
        let owned: Vec<SocketId> = self
            .core
            .sockets
            .table
            .iter()
            .filter_map(|(index, socket)| {
                let owned = match socket {
                    Socket::Tcp(socket) => socket.owner == Owner::App,
                    Socket::Listener(_) | Socket::Udp(_) => true,
                    Socket::TimeWait(_) => false,
                };
                owned.then(|| self.core.sockets.table.id_of(index)).flatten()
            })
            .collect();
        for id in owned {
            self.close(now, id);
        }
        let (_, after) = self.core.open_connections();
        (connections, after.saturating_sub(resetting))
    }

    /// Resets every connection whose peer has not acknowledged all that it was sent, and our end;
    /// returns how many. The resets leave with the next output.
    ///
    /// A peer that has acknowledged all (FIN-WAIT-2, TIME-WAIT) is left alone: it may not have read all
    /// of it yet, and a reset has many kernels throw away what is unread. What it still sends is
    /// answered by a reset for as long as this stack is driven.
    pub fn abort_all(&mut self, now: Instant) -> usize {
        let _ = now;
        let all = self.core.sockets.table.iter().filter_map(|(index, socket)| match socket {
            Socket::Tcp(socket) => awaits_peer(socket.conn.state()).then_some(index),
            _ => None,
        });
        let all: Vec<u32> = all.collect();
        all.iter().for_each(|&index| self.core.tcp_abort(index));
        all.len()
    }

    /// What closed connections still wait for. Walks all sockets.
    pub fn leftovers(&self) -> Leftovers {
        let mut left = Leftovers { packets: self.core.net.has_waiting(), ..Leftovers::default() };
        left.packets |= !self.core.sockets.work.dirty.is_empty();
        for (_, socket) in self.core.sockets.table.iter() {
            let Socket::Tcp(socket) = socket else { continue };
            left.undelivered += usize::from(!socket.is_quiet());
            left.half_closed += usize::from(socket.conn.state() == State::FinWait2);
        }
        left
    }
}

impl Core {
    /// Connections that are open, and those whose reset waits to be sent.
    fn open_connections(&self) -> (usize, usize) {
        let mut counts = (0, 0);
        for (_, socket) in self.sockets.table.iter() {
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

/// Whether something of a connection that we have closed is not acknowledged.
fn awaits_peer(state: State) -> bool {
    !matches!(state, State::Closed | State::FinWait2 | State::TimeWait)
}

/// Devices that are gone.
impl Stack {
    /// The device of a link is gone for good. Connections over it fail with `NetworkDown` at once, and
    /// so does whatever is to be sent there; received data stays to be read. When no link is left that
    /// has a device, every socket fails, until [`add_link`](Self::add_link) brings one. `false`: there
    /// is no such link.
    pub fn handle_link_lost(&mut self, now: Instant, link: LinkId) -> bool {
        let Some(index) = self.core.net.find_link(link) else { return false };
        self.core.sockets.resume(index);
        let over = |stack: &Core, socket: &Socket| {
            let (ends, bound) = match socket {
                Socket::Tcp(socket) => ((socket.tuple.local, socket.tuple.remote), socket.bound()),
                Socket::Udp(socket) => match socket.remote {
                    Some(remote) => ((socket.local.ip(), remote.ip()), socket.link),
                    None => return false,
                },
                Socket::Listener(_) | Socket::TimeWait(_) => return false,
            };
            let by = stack.net.bound_link(bound).unwrap_or(None);
            stack.net.way_of(now, ends, by) == Some(index)
        };
        let table = self.core.sockets.table.iter();
        let lost = table.filter(|(_, socket)| over(&self.core, socket)).map(|(index, _)| index);
        let lost: Vec<u32> = lost.collect();
        if self.core.net.handle_link_lost(index) {
            self.core.fail_all(Down::Lost);
        } else {
            lost.iter().for_each(|&index| self.core.fail_socket(index, false));
        }
        true
    }

    /// Nothing can be sent or received any more, whatever devices there are: every socket fails with
    /// `NetworkDown`.
    pub fn handle_network_down(&mut self) {
        for link in self.core.net.link_indices() {
            self.core.net.handle_link_lost(link);
            self.core.sockets.resume(link);
        }
        self.core.fail_all(Down::Closed);
    }

    /// Forgets every socket, where not even [`handle_network_down`](Self::handle_network_down) got to its
    /// end: something is wrong in here, so that what there is is not even dropped.
    pub fn forget_all(&mut self) {
        let sockets = &mut self.core.sockets;
        sockets.down = Down::Closed;
        core::mem::forget(core::mem::take(&mut sockets.table));
        (sockets.work.dirty, sockets.work.unchecked) = Default::default();
        (sockets.held_up, sockets.work.starved) = Default::default();
    }

    /// Whether no socket can do anything any more: no device is left, or the stack was shut down.
    pub fn is_down(&self) -> bool {
        self.core.sockets.down != Down::No
    }
}

impl Core {
    /// For verbs that make sockets.
    pub(super) fn refuse_if_down(&self) -> Result<(), Error> {
        if self.sockets.down != Down::No { Err(Error::NetworkDown) } else { Ok(()) }
    }

    /// A link with a device came: sockets that wait for the network may work again.
    pub(crate) fn revive(&mut self) {
        if self.sockets.down != Down::Lost {
            return;
        }
        self.sockets.down = Down::No;
        for index in self.sockets.table.indices() {
            match self.sockets.table.at_mut(index) {
                Some(Socket::Listener(listener)) => listener.down = false,
                Some(Socket::Udp(socket)) => socket.down = false,
                _ => continue,
            }
            self.sockets.check_later(index);
        }
    }

    fn fail_all(&mut self, why: Down) {
        if self.sockets.down != Down::Closed {
            self.sockets.down = why;
        }
        for index in self.sockets.table.indices() {
            self.fail_socket(index, true);
        }
    }

    /// The way of the socket at `index` is gone; `all`: and every other way with it.
    fn fail_socket(&mut self, index: u32, all: bool) {
        match self.sockets.table.at_mut(index) {
            Some(Socket::Tcp(socket)) => {
                socket.conn.fail(TcpError::NetworkDown);
                self.sockets.touch(index);
            }
            Some(Socket::Udp(socket)) => {
                // What has come is still received, and then the error for as long as it lasts.
                match all {
                    true => socket.down = true,
                    false => socket.error = Some(Error::NetworkDown),
                }
                self.sockets.check_later(index);
            }
            Some(Socket::Listener(listener)) if all => {
                listener.down = true;
                self.sockets.check_later(index);
            }
            Some(Socket::Listener(_) | Socket::TimeWait(_)) | None => {}
        }
    }
}
