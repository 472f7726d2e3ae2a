//! Packets on their way to another shard ([`Stray`]), and those that wait to leave ([`Strays`]).

use std::collections::VecDeque;
use std::sync::Arc;

use pagewire_mem::{Frag, PacketBuf};

use crate::limits::{STRAY_BACKLOG, STRAY_BACKLOG_BYTES};
use crate::net::input::extensions::ReceivedPart;
use crate::net::input::received::Inbound;
use crate::net::strays::news::News;

/// A packet, or news, that another shard of the host has to handle: from
/// [`Stack::poll_strays`](crate::Stack::poll_strays) of one to [`Stack::handle_stray`](crate::Stack::handle_stray) of
/// the other.
pub struct Stray {
    pub(crate) kind: StrayKind,
    pub(crate) packet: PacketBuf,
}

/// How far the shard that received a stray has come with it.
pub(crate) enum StrayKind {
    /// To the sockets. The packet of an ICMP error is empty.
    Inbound(Inbound),
    /// To the reassembly of the datagram that it is a fragment of. `None`: it is there.
    Fragment(Option<Box<ReceivedPart>>),
    /// No packet, but what one shard tells all others.
    News(Arc<News>),
}

impl std::fmt::Debug for Stray {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stray").field("len", &self.packet.len()).finish_non_exhaustive()
    }
}

impl Stray {
    /// Whether this is no packet, but what one shard tells all others.
    pub fn is_news(&self) -> bool {
        matches!(self.kind, StrayKind::News(_))
    }

    /// Bytes of memory that the payload pins.
    pub fn pinned(&self) -> usize {
        pinned(&self.packet)
    }
}

/// Bytes of memory that a packet's payload pins.
fn pinned(packet: &PacketBuf) -> usize {
    packet.frags().iter().map(Frag::pinned).sum()
}

/// Strays that wait to leave, a queue for each shard that they are for. A flood for one shard takes no room of others.
/// News leave in front of packets: an answer to a packet may need them.
pub(crate) struct Strays {
    /// The other shards of the host, a bit for each.
    others: u32,
    news: News,
    /// News on their way, and the shards that they have not left for yet.
    leaving: (Arc<News>, u32),
    /// By shard.
    homes: Vec<HomeQueue>,
    /// The shards that strays wait for, a bit for each.
    waiting: u32,
}

/// Strays for one shard: up to [`STRAY_BACKLOG`], which keep up to [`STRAY_BACKLOG_BYTES`].
#[derive(Default)]
struct HomeQueue {
    queue: VecDeque<Stray>,
    pinned: usize,
}

impl Strays {
    /// `others`: the other shards of the host, a bit for each.
    pub(super) fn new(others: u32) -> Self {
        Self {
            others,
            news: News::default(),
            leaving: Default::default(),
            homes: Vec::new(),
            waiting: 0,
        }
    }

    /// Adds a packet, and leaves an empty one; `false`: there is no room, and the packet stays where it is.
    pub(crate) fn push(&mut self, to: usize, kind: StrayKind, packet: &mut PacketBuf) -> bool {
        if to >= self.homes.len() {
            self.homes.resize_with(to + 1, HomeQueue::default);
        }
        let Some(home) = self.homes.get_mut(to) else { return false };
        let pinned = home.pinned + pinned(packet);
        let has_room = home.queue.len() < STRAY_BACKLOG && pinned <= STRAY_BACKLOG_BYTES;
        if has_room {
            home.pinned = pinned;
            home.queue.push_back(Stray { kind, packet: packet.take() });
            self.waiting |= 1 << to;
        }
        has_room
    }

    /// News that wait, to add to; `None`: there are no others to tell.
    pub(super) fn news(&mut self) -> Option<&mut News> {
        (self.others != 0).then_some(&mut self.news)
    }

    /// Takes all strays for one shard; returns the shard. `into` is empty: its memory becomes that of the shard's queue.
    pub(crate) fn take(&mut self, into: &mut VecDeque<Stray>) -> Option<usize> {
        let (news, to) = &mut self.leaving;
        if *to == 0 && !self.news.is_empty() {
            // All news that wait leave as one stray for each shard.
            (*news, *to) = (Arc::new(std::mem::take(&mut self.news)), self.others);
        }
        let shard = (self.waiting | *to).trailing_zeros();
        let bit = 1u32.checked_shl(shard)?;
        if let Some(home) = self.homes.get_mut(shard as usize) {
            std::mem::swap(&mut home.queue, into);
            home.pinned = 0;
            self.waiting &= !bit;
        }
        if *to & bit != 0 {
            *to &= !bit;
            let kind = StrayKind::News(Arc::clone(news));
            into.push_front(Stray { kind, packet: PacketBuf::for_rx() });
        }
        Some(shard as usize)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting == 0 && self.leaving.1 == 0 && self.news.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use pagewire_mem::{CopyLedger, CopyReason, PAGE_SIZE, PagePool, PageWriter};

    use super::*;
    use crate::net::neighbors::NeighborClaim;

    #[test]
    fn strays_count_with_the_memory_that_they_keep_until_they_leave() {
        let mut pool = PagePool::new("test", 4 * PAGE_SIZE).unwrap();
        let (mut writer, mut ledger) = (PageWriter::new(), CopyLedger::new());
        let (payload, _) = writer.write(&mut pool, b"hello", &mut ledger, CopyReason::Icmp);
        let small = || packet(payload.iter().cloned());
        let large = |n| packet([Frag::from_bytes(Bytes::from(vec![0; n]))]);
        let mut strays = Strays::new(0);
        let push = |strays: &mut Strays, to, mut packet| strays.push(to, kind(), &mut packet);
        assert!(push(&mut strays, 1, small()));
        let with_the_page = STRAY_BACKLOG_BYTES - PAGE_SIZE;
        assert!(!push(&mut strays, 1, large(with_the_page + 1)), "a page is kept");
        assert!(push(&mut strays, 1, large(with_the_page)) && !push(&mut strays, 1, small()));
        assert!(push(&mut strays, 0, large(STRAY_BACKLOG_BYTES)), "for another shard");
        let mut taken = VecDeque::new();
        assert_eq!((strays.take(&mut taken), taken.drain(..).count()), (Some(0), 1));
        assert_eq!((strays.take(&mut taken), taken.drain(..).count()), (Some(1), 2));
        assert_eq!((strays.take(&mut taken), taken.len()), (None, 0));
        assert!(strays.is_empty() && push(&mut strays, 1, large(STRAY_BACKLOG_BYTES)));
    }

    #[test]
    fn news_leave_in_front_of_packets_once_for_each_other_shard() {
        let mut strays = Strays::new(0b1101);
        assert!(strays.push(2, kind(), &mut packet([])));
        let claim = NeighborClaim { mac: None, solicited: true, overrides: true, create: false };
        strays.news().expect("others").add_neighbor(0, [10, 0, 0, 9].into(), claim);
        let mut taken = VecDeque::new();
        for (shard, packets) in [(0, 0), (2, 1), (3, 0)] {
            assert_eq!(strays.take(&mut taken), Some(shard));
            assert!(taken.pop_front().expect("news").is_news());
            assert_eq!(taken.drain(..).filter(|stray| !stray.is_news()).count(), packets);
        }
        assert!(strays.take(&mut taken).is_none() && strays.is_empty());
    }

    fn packet(payload: impl IntoIterator<Item = Frag>) -> PacketBuf {
        let mut packet = PacketBuf::for_rx();
        payload.into_iter().for_each(|frag| packet.push_frag(frag).unwrap());
        packet
    }

    fn kind() -> StrayKind {
        let about = crate::net::QuotedPacket {
            src: "10.0.0.1".parse().unwrap(),
            dst: "10.0.0.2".parse().unwrap(),
            protocol: 17,
            src_port: 1,
            dst_port: 2,
            seq: 0,
        };
        let kind = crate::net::IcmpKind::PortUnreachable;
        StrayKind::Inbound(Inbound::IcmpError { about, kind })
    }
}
