//! Packets on their way to another shard ([`Stray`]), and those that wait to leave ([`Strays`]).

use std::collections::VecDeque;

use pagewire_mem::PacketBuf;

use crate::limits::{STRAY_BACKLOG, STRAY_BACKLOG_BYTES};
use crate::net::input::extensions::ReceivedPart;
use crate::net::input::received::Inbound;
use crate::net::neighbors::NeighborNews;

/// A packet that another shard of the host has to handle: from [`Stack::poll_stray`](crate::Stack::poll_stray) of one
/// to [`Stack::handle_stray`](crate::Stack::handle_stray) of the other.
pub struct Stray {
    pub(crate) kind: StrayKind,
    pub(crate) packet: PacketBuf,
}

/// How far the shard that received a stray has come with it.
pub(crate) enum StrayKind {
    /// To the sockets.
    Inbound(Inbound),
    /// To the reassembly of the datagram that it is a fragment of.
    Fragment(Box<ReceivedPart>),
    /// Done: what it says of a neighbour. The packet is empty.
    Neighbor(NeighborNews),
}

impl Stray {
    /// Bytes of memory that the payload pins.
    pub fn pinned(&self) -> usize {
        self.packet.frag_len()
    }
}

impl std::fmt::Debug for Stray {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stray").field("len", &self.packet.len()).finish_non_exhaustive()
    }
}

/// Strays with the shards that they are for, up to [`STRAY_BACKLOG`] with [`STRAY_BACKLOG_BYTES`] of payload.
#[derive(Default)]
pub(crate) struct Strays {
    queue: VecDeque<(usize, Stray)>,
    bytes: usize,
}

impl Strays {
    /// Adds a stray; `false`: there is no room.
    pub(crate) fn push(&mut self, to: usize, stray: Stray) -> bool {
        let bytes = self.bytes + stray.packet.frag_len();
        let has_room = self.queue.len() < STRAY_BACKLOG && bytes <= STRAY_BACKLOG_BYTES;
        if has_room {
            self.bytes = bytes;
            self.queue.push_back((to, stray));
        }
        has_room
    }

    /// Whether there is room for what can be said again: a part is for packets alone.
    pub(crate) fn has_room_for_news(&self) -> bool {
        self.queue.len() < STRAY_BACKLOG / 4
    }

    pub(crate) fn pop(&mut self) -> Option<(usize, Stray)> {
        let (to, stray) = self.queue.pop_front()?;
        self.bytes -= stray.packet.frag_len();
        Some((to, stray))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}
