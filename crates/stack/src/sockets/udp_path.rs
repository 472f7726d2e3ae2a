//! Path MTU discovery seen from datagram sockets (RFC 1191, RFC 8201): what they learn of a path, what
//! they make of it, and who is told. See [`MtuDiscover`].

use std::net::IpAddr;

use super::path_mtu::MtuDiscover;
use super::table::SocketId;
use super::udp::{Ends, UdpSocket, udp_mut};
use crate::error::Error;
use crate::event::{ErrorOrigin, QueuedError};
use crate::net::wire::{ipv4, ipv6, udp};
use crate::net::{IcmpKind, TooLong};
use crate::stack::Stack;

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

impl Stack {
    /// What the socket does about the MTU of its paths, from now on.
    pub fn udp_set_mtu_discover(&mut self, id: SocketId, how: MtuDiscover) -> Result<(), Error> {
        udp_mut(self.sockets.table.get_mut(id)?)?.mtu_discover = how;
        Ok(())
    }

    /// The longest IP packet, in bytes, that reaches the socket's peer in one piece, as far as is known
    /// (`IP_MTU`). Less 28 bytes of headers, over IPv6 48, that is the longest datagram.
    ///
    /// # Errors
    /// `NotConnected`, `NoSuchSocket`.
    pub fn udp_path_mtu(&mut self, id: SocketId) -> Result<usize, Error> {
        let socket = udp_mut(self.sockets.table.get_mut(id)?)?;
        let (local, scope) = (socket.local.ip(), socket.scope);
        let remote = socket.remote.ok_or(Error::NotConnected)?.ip();
        let by = self.net.bound_link(socket.link)?;
        let local = match local.is_unspecified() {
            true => self.net.source_by(remote, scope, by)?,
            false => local,
        };
        Ok(self.net.link_limits(local, remote, by).0)
    }

    /// The longest IP packet that these ends may send in one piece.
    pub(super) fn udp_longest_packet(&self, ends: &Ends) -> usize {
        let (local, remote) = (ends.local.ip(), ends.remote.ip());
        match ends.mtu_discover.too_long() {
            TooLong::CutToPath | TooLong::RefusedByPath => {
                self.net.link_limits(local, remote, ends.by).0
            }
            TooLong::CutToLink | TooLong::RefusedByLink => {
                self.net.link_mtu(local, remote, ends.by)
            }
        }
    }

    /// A datagram of the socket was refused: if it was too long for its path, the error queue says how
    /// long it may be, as on Linux.
    pub(super) fn udp_refused(&mut self, id: SocketId, ends: &Ends, error: Error) -> Error {
        if error != Error::MessageTooLong {
            return error;
        }
        let mtu = self.udp_longest_packet(ends) as u32;
        let Ok(socket) = self.sockets.table.get_mut(id).and_then(udp_mut) else { return error };
        if let Some(errors) = &mut socket.errors {
            let (origin, to) = (ErrorOrigin::Local, Some(ends.remote));
            errors.push_entry(QueuedError { error, origin, mtu, to });
            self.sockets.check_later(id.index());
        }
        error
    }
}
