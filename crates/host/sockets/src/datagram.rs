//! A received datagram with the addresses of its packet.

use std::net::{IpAddr, SocketAddr};

use pagewire_mem::Held;
use pagewire_stack::{LinkId, UdpId, UdpMessage};

use crate::buf::Chunks;
use crate::runtime::Runtime;
use crate::socket::Socket;

/// A datagram, or several, with the addresses of their packets.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Datagram {
    /// The payload, by reference.
    pub payload: Chunks,
    /// The sender.
    pub from: SocketAddr,
    /// The destination address: one of this host, of a group or of all hosts. Answers are sent from it
    /// (`send_from`), if it is this host's.
    pub to: IpAddr,
    /// The link by which it arrived; the first link for datagrams that the host sent to itself.
    pub link: LinkId,
    /// Bytes of each of several datagrams but the last, see `set_gro`.
    pub segment: Option<u16>,
}

impl Datagram {
    /// With its addresses as `socket` shows them.
    pub(crate) fn shown_by<R: Runtime>(mut self, socket: &Socket<R, UdpId>) -> Self {
        (self.from, self.to) = (socket.shown(self.from), socket.shown_ip(self.to));
        self
    }
}

impl From<UdpMessage> for Datagram {
    fn from(message: UdpMessage) -> Self {
        let UdpMessage { payload, from, to, link, segment, .. } = message;
        let payload = Chunks::new(payload.into_vec(), Held::default());
        Self { payload, from, to: to.ip(), link, segment }
    }
}
