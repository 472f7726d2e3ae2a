//! Path MTU discovery seen from datagram sockets (RFC 1191, RFC 8201): what they learn of a path, what
//! they make of it, and who is told. See [`MtuDiscover`].

use std::net::IpAddr;

use super::handles::Udp;
use super::path_mtu::MtuDiscover;
use super::udp::{Ends, UdpSocket};
use crate::error::Error;
use crate::event::{ErrorOrigin, QueuedError};
use crate::net::wire::{ipv4, ipv6, udp};
use crate::net::{IcmpKind, Net, TooLong};

impl UdpSocket {
    /// Whether a datagram of ours may have met with what an ICMP error says.
    ///
    /// A datagram has no sequence number that a forger would have to guess (RFC 5927), but a path can
    /// find too long only what is longer than what it takes. So nobody shortens the paths of who sends
    /// short datagrams, resolvers for one.
    pub(super) fn may_have_met(&self, kind: IcmpKind, remote: IpAddr) -> bool {
        let IcmpKind::PacketTooBig { mtu } = kind else { return true };
        let ip = if remote.is_ipv4() { ipv4::LEN } else { ipv6::LEN };
        ip + udp::LEN + usize::from(self.longest) > mtu
    }
}

impl Udp<'_> {
    /// What the socket does about the MTU of its paths, from now on.
    pub fn set_mtu_discover(&mut self, how: MtuDiscover) {
        self.socket.mtu_discover = how;
    }

    /// The longest IP packet, in bytes, that reaches the socket's peer in one piece, as far as is known
    /// (`IP_MTU`). Less 28 bytes of headers, over IPv6 48, that is the longest datagram.
    ///
    /// # Errors
    /// `NotConnected`, `NoSuchSocket`.
    pub fn path_mtu(&mut self) -> Result<usize, Error> {
        let socket = &mut *self.socket;
        let (local, scope) = (socket.local.ip(), socket.scope);
        let remote = socket.remote.ok_or(Error::NotConnected)?.ip();
        let by = self.net.bound_link(socket.link)?;
        let local = match local.is_unspecified() {
            true => self.net.source_by(remote, scope, by)?,
            false => local,
        };
        Ok(self.net.link_limits(local, remote, by).0)
    }

    /// A datagram of the socket was refused: if it was too long for its path, the error queue says how
    /// long it may be, as on Linux.
    pub(super) fn refused(&mut self, ends: &Ends, error: Error) -> Error {
        if error != Error::MessageTooLong {
            return error;
        }
        let mtu = longest_packet(self.net, ends) as u32;
        if let Some(errors) = &mut self.socket.errors {
            let (origin, to) = (ErrorOrigin::Local, Some(ends.remote));
            errors.push_entry(QueuedError { error, origin, mtu, to });
            self.check_later();
        }
        error
    }
}

/// The longest IP packet that these ends may send in one piece.
pub(super) fn longest_packet(net: &Net, ends: &Ends) -> usize {
    let (local, remote) = (ends.local.ip(), ends.remote.ip());
    match ends.mtu_discover.too_long() {
        TooLong::CutToPath | TooLong::RefusedByPath => net.link_limits(local, remote, ends.by).0,
        TooLong::CutToLink | TooLong::RefusedByLink => net.link_mtu(local, remote, ends.by),
    }
}
