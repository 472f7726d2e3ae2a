//! What owners of sockets need that behave as Linux's descriptors do.

use pagewire_mem::{CopyReason, FragVec};

use super::Socket;
use super::table::SocketId;
use super::tcp::TcpSocket;
use crate::error::Error;
use crate::net::Mem;
use crate::stack::Stack;

/// What a socket's packets carry in their IP headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketMarks {
    /// Type of service (RFC 791) or traffic class (RFC 8200). A stream's two lowest bits are those
    /// of congestion notification (RFC 3168), and not the owner's.
    pub traffic_class: u8,
    /// Time to live or hop limit; `None`: the stack's.
    pub hop_limit: Option<u8>,
}

/// The bits of congestion notification.
const ECN: u8 = 0b11;

impl TcpSocket {
    /// What is marked on a segment whose two bits of congestion notification are `ecn`.
    pub(super) fn marked(&self, ecn: u8) -> (u8, Option<u8>) {
        let marks = self.extra.as_ref().map_or(PacketMarks::default(), |extra| extra.marks);
        (ecn | (marks.traffic_class & !ECN), marks.hop_limit)
    }
}

impl Stack {
    /// Sets what the packets of a connection or a datagram socket carry in their IP headers.
    ///
    /// # Errors
    /// `NotSupported` for a listener.
    pub fn set_packet_marks(
        &mut self,
        id: impl Into<SocketId>,
        marks: PacketMarks,
    ) -> Result<(), Error> {
        let id = id.into();
        match self.core.sockets.table.get_mut(id)? {
            Socket::Tcp(socket) => socket.extra.get_or_insert_default().marks = marks,
            Socket::Udp(socket) => socket.marks = marks,
            Socket::Listener(_) | Socket::TimeWait(_) => return Err(Error::NotSupported),
        }
        Ok(())
    }

    /// From now on, everything that arrives for the socket is an [`Event`](crate::Event), not only
    /// the first since it was last used up: for owners that are told of edges.
    pub fn report_arrivals(&mut self, id: impl Into<SocketId>) {
        let id = id.into();
        match self.core.sockets.table.get_mut(id) {
            Ok(Socket::Tcp(socket)) => socket.every_arrival = true,
            Ok(Socket::Listener(socket)) => socket.every_arrival = true,
            Ok(Socket::Udp(socket)) => socket.every_arrival = true,
            Ok(Socket::TimeWait(_)) | Err(_) => {}
        }
    }

    /// A copy of `data` in pages of the stack, as much as there are pages for, and how many bytes
    /// that is.
    pub fn copy_in(&mut self, data: &[u8]) -> (FragVec, usize) {
        let Mem { pool, writer, ledger, .. } = &mut self.core.mem;
        writer.write(pool, data, ledger, CopyReason::AppWrite)
    }
}
