//! Sockets by kind: typed ids, and handles that borrow one socket and what its verbs work with.

use std::collections::VecDeque;
use std::sync::Arc;

use pagewire_mem::{CompletionQueue, Instant, Returns};
use pagewire_tcp::{Connection, Env, TcpError};

use super::errors::error_from;
use super::table::SocketId;
use super::tcp::TcpSocket;
use super::udp::UdpSocket;
use super::zerocopy::ZeroCopyConfig;
use super::{Socket, Sockets};
use crate::TcpInfo;
use crate::error::Error;
use crate::event::Readiness;
use crate::limits::STARVED_CHECK;
use crate::net::{Mem, Net};
use crate::stack::{Core, Stack};

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub(super) SocketId);

        impl From<$name> for SocketId {
            fn from(id: $name) -> Self {
                id.0
            }
        }

        impl PartialEq<SocketId> for $name {
            fn eq(&self, other: &SocketId) -> bool {
                self.0 == *other
            }
        }

        impl PartialEq<$name> for SocketId {
            fn eq(&self, other: &$name) -> bool {
                *self == other.0
            }
        }
    )*};
}

ids! {
    /// Names a connection of one stack, see [`Stack::tcp`].
    TcpId
    /// Names a datagram socket of one stack, see [`Stack::udp`].
    UdpId
    /// Names a listener of one stack, see [`Stack::listener`].
    ListenerId
}

impl TcpId {
    /// Where the socket is in the table.
    pub(crate) fn index(self) -> u32 {
        self.0.index()
    }
}

/// A connection, and what its verbs work with.
pub struct Tcp<'a> {
    pub(super) id: SocketId,
    pub(super) socket: &'a mut TcpSocket,
    pub(super) mem: &'a mut Mem,
    pub(super) work: &'a mut Work,
}

/// A datagram socket, and what its verbs work with.
pub struct Udp<'a> {
    pub(super) id: SocketId,
    pub(super) socket: &'a mut UdpSocket,
    pub(super) net: &'a mut Net,
    pub(super) mem: &'a mut Mem,
    pub(super) work: &'a mut Work,
}

/// A listener, and what its verbs work with.
pub struct Listener<'a> {
    pub(super) id: SocketId,
    pub(super) core: &'a mut Core,
}

/// What verbs leave to be done, and what they share.
pub(crate) struct Work {
    /// Connections that may have something to send, each once; entries may be stale.
    pub(crate) dirty: VecDeque<u32>,
    /// Sockets whose readiness may have grown, each once; entries may be stale.
    pub(crate) unchecked: VecDeque<u32>,
    /// Connections whose owners wait for pages to write into.
    pub(crate) starved: Vec<u32>,
    /// When to look whether there are some.
    pub(crate) starved_until: Instant,
    pub(crate) zerocopy: ZeroCopyConfig,
    /// Zero-copy sends whose memory was let go.
    pub(crate) completions: Arc<CompletionQueue>,
    /// What applications kept and gave back.
    pub(crate) returns: Arc<Returns>,
}

/// Sockets by kind.
impl Stack {
    /// The connection that `id` names.
    ///
    /// # Errors
    /// `NoSuchSocket` if it is closed.
    #[inline]
    pub fn tcp(&mut self, id: TcpId) -> Result<Tcp<'_>, Error> {
        self.core.drain_completions();
        self.core.tcp(id.0)
    }

    /// What is known of a connection, for those who only look.
    ///
    /// # Errors
    /// `NoSuchSocket` if it is closed.
    pub fn info(&self, id: TcpId) -> Result<TcpInfo, Error> {
        match self.core.sockets.table.get(id.0)? {
            Socket::Tcp(socket) => Ok(socket.conn.info()),
            _ => Err(Error::NoSuchSocket),
        }
    }

    /// The datagram socket that `id` names.
    ///
    /// # Errors
    /// `NoSuchSocket` if it is closed.
    #[inline]
    pub fn udp(&mut self, id: UdpId) -> Result<Udp<'_>, Error> {
        self.core.drain_completions();
        self.core.udp(id.0)
    }

    /// The listener that `id` names.
    ///
    /// # Errors
    /// `NoSuchSocket` if it is closed.
    pub fn listener(&mut self, id: ListenerId) -> Result<Listener<'_>, Error> {
        match self.core.sockets.table.get(id.0)? {
            Socket::Listener(_) => Ok(Listener { id: id.0, core: &mut self.core }),
            _ => Err(Error::InvalidInput),
        }
    }

    /// As [`tcp`](Self::tcp), for owners of sockets of any kind.
    ///
    /// # Errors
    /// `NotConnected` for a listener, `NotSupported` for a datagram socket, `NoSuchSocket`.
    #[inline]
    pub fn as_tcp(&mut self, id: SocketId) -> Result<Tcp<'_>, Error> {
        self.tcp(TcpId(id))
    }

    /// As [`udp`](Self::udp), for owners of sockets of any kind.
    ///
    /// # Errors
    /// `NotSupported` for a socket of another kind, `NoSuchSocket`.
    #[inline]
    pub fn as_udp(&mut self, id: SocketId) -> Result<Udp<'_>, Error> {
        self.udp(UdpId(id))
    }

    /// As [`listener`](Self::listener), for owners of sockets of any kind.
    ///
    /// # Errors
    /// `InvalidInput` for a socket of another kind, `NoSuchSocket`.
    pub fn as_listener(&mut self, id: SocketId) -> Result<Listener<'_>, Error> {
        self.listener(ListenerId(id))
    }

    /// The id of a connection.
    ///
    /// # Errors
    /// `NotConnected` for a listener, `NotSupported` for a datagram socket, `NoSuchSocket`.
    pub fn tcp_id(&self, id: SocketId) -> Result<TcpId, Error> {
        match self.core.sockets.table.get(id)? {
            Socket::Tcp(_) => Ok(TcpId(id)),
            Socket::Listener(_) => Err(Error::NotConnected),
            Socket::Udp(_) => Err(Error::NotSupported),
            Socket::TimeWait(_) => Err(Error::NoSuchSocket),
        }
    }

    /// The id of a datagram socket.
    ///
    /// # Errors
    /// `NotSupported` for a socket of another kind, `NoSuchSocket`.
    pub fn udp_id(&self, id: SocketId) -> Result<UdpId, Error> {
        match self.core.sockets.table.get(id)? {
            Socket::Udp(_) => Ok(UdpId(id)),
            _ => Err(Error::NotSupported),
        }
    }

    /// The id of a listener.
    ///
    /// # Errors
    /// `InvalidInput` for a socket of another kind, `NoSuchSocket`.
    pub fn listener_id(&self, id: SocketId) -> Result<ListenerId, Error> {
        match self.core.sockets.table.get(id)? {
            Socket::Listener(_) => Ok(ListenerId(id)),
            _ => Err(Error::InvalidInput),
        }
    }
}

impl Core {
    #[inline]
    pub(crate) fn tcp(&mut self, id: SocketId) -> Result<Tcp<'_>, Error> {
        let Self { mem, sockets: Sockets { table, work, .. }, .. } = self;
        match table.get_mut(id)? {
            Socket::Tcp(socket) => Ok(Tcp { id, socket, mem, work }),
            Socket::Listener(_) => Err(Error::NotConnected),
            Socket::Udp(_) => Err(Error::NotSupported),
            Socket::TimeWait(_) => Err(Error::NoSuchSocket),
        }
    }

    #[inline]
    fn udp(&mut self, id: SocketId) -> Result<Udp<'_>, Error> {
        let Self { net, mem, sockets: Sockets { table, work, .. } } = self;
        match table.get_mut(id)? {
            Socket::Udp(socket) => Ok(Udp { id, socket, net, mem, work }),
            _ => Err(Error::NotSupported),
        }
    }
}

impl Work {
    /// The connection at `index` may send, and nothing else has changed.
    #[inline]
    pub(super) fn queue_send(&mut self, index: u32, socket: &mut TcpSocket) {
        if !core::mem::replace(&mut socket.dirty, true) {
            self.dirty.push_back(index);
        }
    }

    /// The socket at `index` may be ready for more.
    #[inline]
    pub(super) fn queue_report(&mut self, index: u32, unchecked: &mut bool) {
        if !core::mem::replace(unchecked, true) {
            self.unchecked.push_back(index);
        }
    }
}

impl Tcp<'_> {
    /// Something happened: it may send, and be ready for more.
    #[inline]
    pub(super) fn touch(&mut self) {
        let index = self.id.index();
        self.work.queue_send(index, self.socket);
        self.work.queue_report(index, &mut self.socket.unchecked);
    }

    /// One verb: what it makes possible is marked, what it used up is noted, so that becoming ready
    /// again is a change that [`poll_event`](Stack::poll_event) reports.
    pub(super) fn with<T>(
        &mut self,
        now: Instant,
        verb: impl FnOnce(&mut Connection, &mut Env<'_>) -> Result<T, TcpError>,
    ) -> Result<T, Error> {
        let done = self.socket.work(self.mem, now, verb);
        self.note_used_up();
        if done.as_ref().err() != Some(&TcpError::WouldBlock) {
            self.touch();
        }
        done.map_err(error_from)
    }

    /// As [`with`](Self::with), for verbs that do nothing but queue: while what is queued waits for
    /// company, there is nothing to look after.
    pub(super) fn with_sender<T>(
        &mut self,
        now: Instant,
        verb: impl FnOnce(&mut Connection, &mut Env<'_>) -> Result<T, TcpError>,
    ) -> Result<T, Error> {
        match self.socket.work(self.mem, now, verb) {
            Ok(done) => {
                self.after_queueing();
                Ok(done)
            }
            Err(error) => {
                self.note_used_up();
                if error != TcpError::WouldBlock {
                    self.touch();
                }
                Err(error_from(error))
            }
        }
    }

    /// Something was queued: it is looked after, unless it waits for company.
    pub(super) fn after_queueing(&mut self) {
        if !self.socket.conn.is_coalescing() {
            if self.socket.reported.contains(Readiness::WRITABLE) && !self.socket.conn.is_writable()
            {
                self.socket.reported &= !Readiness::WRITABLE;
            }
            self.touch();
        }
    }

    fn note_used_up(&mut self) {
        self.socket.reported &= self.socket.readiness();
    }

    /// There was room, but no page for a copy: the connection waits for pages.
    pub(super) fn starve(&mut self, now: Instant) {
        self.socket.reported &= !Readiness::WRITABLE;
        if !core::mem::replace(&mut self.socket.starved, true) {
            self.work.starved.push(self.id.index());
            self.work.starved_until = now + STARVED_CHECK;
        }
    }
}

impl Udp<'_> {
    /// Its readiness may have grown.
    pub(super) fn check_later(&mut self) {
        self.work.queue_report(self.id.index(), &mut self.socket.unchecked);
    }
}
