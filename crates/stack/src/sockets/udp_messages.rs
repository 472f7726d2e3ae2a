//! Byte path, step R7 for datagrams, with what their packets said: which address of ours they were to,
//! by which link they came, and several of one size as one (what Linux calls `UDP_GRO`).

use std::net::{IpAddr, SocketAddr};

use pagewire_mem::{FragVec, Instant};

use super::table::SocketId;
use super::udp::{UdpSocket, append, udp_mut};
use crate::error::Error;
use crate::limits::{UDP_MAX_PAYLOAD_V4, UDP_MAX_SEGMENTS};
use crate::net::LinkId;
use crate::stack::Stack;

/// A datagram, or several, and what their packets said.
#[derive(Clone, Debug)]
pub struct UdpMessage {
    /// The payload.
    pub payload: FragVec,
    /// The sender.
    pub from: SocketAddr,
    /// The address that it was sent to: one of ours, or of a group or all hosts.
    pub to: IpAddr,
    /// The link that it came by; of what we sent to ourselves, the first.
    pub link: LinkId,
    /// Payload bytes of each datagram but the last, which may be shorter, where there are several.
    pub segment: Option<u16>,
}

impl UdpSocket {
    /// How many datagrams at the front of the queue may be taken as one of at most `room` bytes: those
    /// of one sender to one address, all of one size but the last.
    fn alike(&self, room: usize) -> usize {
        let most = if self.joins { UDP_MAX_SEGMENTS } else { 1 };
        let mut queue = self.queue.iter();
        let Some(first) = queue.next() else { return 0 };
        let (mut found, mut total) = (1, first.len());
        let ends = (first.from, first.to, first.link);
        for next in queue.take(most - 1) {
            let len = next.len();
            total += len;
            let fits = len > 0 && len <= first.len() && total <= room.min(UDP_MAX_PAYLOAD_V4);
            if !fits || (next.from, next.to, next.link) != ends {
                break;
            }
            found += 1;
            if len < first.len() {
                break;
            }
        }
        found
    }
}

impl Stack {
    /// Whether datagrams may be sent to all hosts of a network (`SO_BROADCAST`); off by default.
    pub fn udp_set_broadcast(&mut self, id: SocketId, on: bool) -> Result<(), Error> {
        udp_mut(self.sockets.table.get_mut(id)?)?.broadcast = on;
        Ok(())
    }

    /// Whether [`udp_recv_message`](Self::udp_recv_message) hands out several datagrams as one
    /// (`UDP_GRO`); off by default.
    pub fn udp_set_join(&mut self, id: SocketId, on: bool) -> Result<(), Error> {
        udp_mut(self.sockets.table.get_mut(id)?)?.joins = on;
        Ok(())
    }

    /// Takes the oldest datagram by reference, with what its packet said. If the socket
    /// [joins](Self::udp_set_join) them, those behind it too that are from the same sender to the same
    /// address and as long, the last one perhaps shorter: as many as are in `room` bytes.
    ///
    /// # Errors
    /// As [`udp_recv_from`](Self::udp_recv_from).
    pub fn udp_recv_message(
        &mut self,
        now: Instant,
        id: SocketId,
        room: usize,
    ) -> Result<UdpMessage, Error> {
        let _ = now;
        let (taken, mut message) = self.udp_message(id, room)?;
        let socket = udp_mut(self.sockets.table.get_mut(id)?)?;
        for datagram in socket.queue.drain(..taken) {
            socket.queued_bytes -= datagram.charge;
            self.mem.shared.receive.charge_datagrams(datagram.charge, 0);
            append(&mut message.payload, datagram.payload);
        }
        socket.reported &= socket.readiness();
        Ok(message)
    }

    /// The same, and it stays in the queue.
    ///
    /// # Errors
    /// As [`udp_recv_from`](Self::udp_recv_from).
    pub fn udp_peek_message(&mut self, id: SocketId, room: usize) -> Result<UdpMessage, Error> {
        let (seen, mut message) = self.udp_message(id, room)?;
        let socket = udp_mut(self.sockets.table.get_mut(id)?)?;
        for datagram in socket.queue.iter().take(seen) {
            append(&mut message.payload, datagram.payload.clone());
        }
        Ok(message)
    }

    /// How many datagrams are next, and all about them but the payload.
    fn udp_message(&mut self, id: SocketId, room: usize) -> Result<(usize, UdpMessage), Error> {
        let socket = udp_mut(self.sockets.table.get_mut(id)?)?;
        if let Some(error) = socket.take_error() {
            return Err(error);
        }
        let alike = socket.alike(room);
        let Some(first) = socket.queue.front() else {
            socket.reported &= socket.readiness();
            return Err(socket.nothing());
        };
        let segment = (alike > 1).then_some(first.len() as u16);
        let (from, to, link) = (first.from, first.to, self.net.link_id(first.link));
        Ok((alike, UdpMessage { payload: FragVec::new(), from, to, link, segment }))
    }
}
