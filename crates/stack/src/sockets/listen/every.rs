//! Sockets for every address and port of a transparent link
//! ([`LinkConfig::transparent`](crate::LinkConfig)). They get what no other socket takes, also at our own
//! addresses, and are over with their link.

use std::collections::{BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use pagewire_mem::Instant;

use super::requests::close_requests;
use super::socket::ListenerSocket;
use crate::error::Error;
use crate::event::Reporting;
use crate::limits::{DATAGRAM_EVERY_BYTES, MAX_SOCKETS};
use crate::net::{Flow, LinkId, Unreachable};
use crate::sockets::Sockets;
use crate::sockets::bind::table::ANY;
use crate::sockets::ids::{ListenerId, UdpId};
use crate::sockets::listen::requests::table::Requests;
use crate::sockets::table::Socket;
use crate::sockets::udp::socket::{DatagramKind, UdpSocket};
use crate::stack::{Core, Stack};

impl Stack {
    /// Listens at every address and port of a transparent link. SYNs that no other listener takes are
    /// shown before they are answered: [`Listener::poll_request`](crate::Listener::poll_request).
    ///
    /// # Errors
    /// `InvalidInput` if the link is not transparent or is gone, `AddressInUse` if it has such a
    /// listener, `TooManySockets`.
    pub fn listen_every(&mut self, link: LinkId) -> Result<ListenerId, Error> {
        check_every(&self.core, link)?;
        let sockets = &mut self.core.sockets;
        if sockets.tcp_binds.every.find(Some(link)).is_some() {
            return Err(Error::AddressInUse);
        }
        let listener = ListenerSocket {
            local: SocketAddr::new(ANY, 0),
            config: Arc::clone(&sockets.config),
            backlog: 0,
            half_open: BTreeSet::new(),
            queue: VecDeque::new(),
            fast_open: None,
            cookie_at: None,
            link: None,
            requests: Some(Box::new(Requests::new(link))),
            down: false,
            reporting: Reporting::default(),
        };
        let socket = Socket::Listener(Box::new(listener));
        let id = sockets.table.insert(socket, MAX_SOCKETS).ok_or(Error::TooManySockets)?;
        sockets.tcp_binds.every.insert(link, id.index());
        Ok(ListenerId(id))
    }

    /// A socket for datagrams, or echo requests, to every address and port of a transparent link that
    /// no other socket takes. [`Message`](crate::Message) takes them with both addresses; each send
    /// names its [source](crate::UdpTarget::source), which may be any. What it sends leaves by the
    /// link. With [`Udp::queue_errors`](crate::Udp::queue_errors) the errors that the network reports
    /// say which datagram they are [about](crate::QueuedError::about). Its queue is for all flows
    /// together, [`DATAGRAM_EVERY_BYTES`]: empty it in each turn.
    ///
    /// # Errors
    /// As [`listen_every`](Self::listen_every), for each kind of socket.
    pub fn bind_every(&mut self, link: LinkId, kind: DatagramKind) -> Result<UdpId, Error> {
        check_every(&self.core, link)?;
        let mut socket = UdpSocket::new(SocketAddr::new(ANY, 0), Some(link));
        (socket.every, socket.receive_bytes) = (Some(kind), DATAGRAM_EVERY_BYTES);
        let Sockets { udp_binds, echoes, table, .. } = &mut self.core.sockets;
        let every = match kind {
            DatagramKind::Udp => &mut udp_binds.every,
            DatagramKind::Echo => echoes,
        };
        if every.find(Some(link)).is_some() {
            return Err(Error::AddressInUse);
        }
        let socket = Socket::Udp(Box::new(socket));
        let id = table.insert(socket, MAX_SOCKETS).ok_or(Error::TooManySockets)?;
        every.insert(link, id.index());
        Ok(UdpId(id))
    }

    /// Tells the sender of a packet to another host that it could not be delivered: an ICMP error
    /// that quotes the flow's addresses, ports and sequence number. `from`: the address of the
    /// router that found out; `None`: the destination's own for `Port` and `Protocol`, else ours.
    ///
    /// Such errors do not count for the limits of ICMP errors that the stack sends by itself.
    ///
    /// # Errors
    /// `AddressFamily` if the addresses are of two versions, `AddressNotAvailable` if `from` is not
    /// ours and the sender is not behind a transparent link, `NetworkUnreachable` without a route,
    /// `WouldBlock` beyond [`REQUEST_ANSWERS_PER_SECOND`](crate::limits::REQUEST_ANSWERS_PER_SECOND).
    pub fn send_unreachable(
        &mut self,
        now: Instant,
        about: &Flow,
        why: Unreachable,
        from: Option<IpAddr>,
    ) -> Result<(), Error> {
        self.core.send_unreachable(now, about, why, from)
    }
}

impl Core {
    pub(crate) fn send_unreachable(
        &mut self,
        now: Instant,
        about: &Flow,
        why: Unreachable,
        from: Option<IpAddr>,
    ) -> Result<(), Error> {
        self.take_answer(now)?;
        self.net.send_unreachable(&mut self.mem, now, about, why, from)
    }

    /// A link is gone: its sockets for every address are over.
    pub(crate) fn close_every(&mut self, link: LinkId) {
        if let Some(index) = self.sockets.tcp_binds.every.remove_link(link) {
            close_requests(self, index);
        }
        let Sockets { udp_binds, echoes, .. } = &mut self.sockets;
        let gone = [udp_binds.every.remove_link(link), echoes.remove_link(link)];
        for index in gone.into_iter().flatten() {
            if let Some(socket) = self.sockets.table.udp_mut(index) {
                socket.down = true;
            }
            self.sockets.check_later(index);
        }
    }
}

fn check_every(core: &Core, link: LinkId) -> Result<(), Error> {
    core.refuse_if_down()?;
    if core.net.is_transparent(link) { Ok(()) } else { Err(Error::InvalidInput) }
}
