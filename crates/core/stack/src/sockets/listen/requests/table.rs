//! The table of SYNs that wait for the application's answer; `mod.rs` works with it.

use core::time::Duration;
use std::collections::VecDeque;
use std::net::SocketAddr;

use hashbrown::HashTable;
use pagewire_mem::Instant;
use pagewire_tcp::TcpHeader;
use siphasher::sip::SipHasher13;

use crate::error::Error;
use crate::limits::{REQUEST_FIRST_WAIT, REQUEST_LEAST_GAP, REQUEST_LONGEST_GAP, SYN_REQUESTS};
use crate::net::LinkId;
use crate::sockets::ids::SocketId;
use crate::sockets::tuple::Tuple;

/// Names a request of one listener. Never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId {
    index: u32,
    generation: u32,
}

/// A SYN that waits for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SynRequest {
    /// For `Listener::answer`.
    pub id: RequestId,
    /// The link that it came by.
    pub link: LinkId,
    /// The sender.
    pub from: SocketAddr,
    /// The destination: any address.
    pub to: SocketAddr,
    /// Hop limit or time to live of the SYN's packet.
    pub hop_limit: u8,
    /// When it came.
    pub at: Instant,
}

/// An event of a listener's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SynEvent {
    /// A new one.
    New(SynRequest),
    /// A request that was shown is over before it was answered.
    Cancelled(RequestId, Cancel),
}

/// Why a request is over before it was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cancel {
    /// The sender reset it, or has begun another connection from the port.
    Reset,
    /// No further SYN came in time.
    GaveUp,
    /// The device of the link is gone for good, or the link was removed.
    LinkLost,
}

/// The requests of one listener.
pub(crate) struct Requests {
    link: LinkId,
    hasher: SipHasher13,
    slots: Vec<RequestSlot>,
    free: Vec<u32>,
    /// Slots in use, by the keyed hash of their tuples.
    table: HashTable<u32>,
    /// Requests not shown yet, oldest first.
    fresh: VecDeque<RequestId>,
    /// Requests that were answered with silence, oldest first; entries may be stale.
    silent: VecDeque<RequestId>,
    /// Shown requests that are over.
    ended: VecDeque<(RequestId, Cancel)>,
    /// Accepted connections whose handshakes may be incomplete, oldest first.
    pub(crate) half_open: VecDeque<SocketId>,
}

struct RequestSlot {
    /// Generation of the request in the slot, or of the next one to be there.
    generation: u32,
    request: Option<PendingSyn>,
}

pub(crate) struct PendingSyn {
    pub(crate) tuple: Tuple,
    /// The newest SYN.
    pub(crate) syn: TcpHeader,
    /// The ECN bits of its IP header, and the hop limit of the first.
    pub(crate) ecn: u8,
    pub(crate) hop_limit: u8,
    stage: RequestStage,
    /// When the first came, and the newest.
    first: Instant,
    last: Instant,
    /// The longest time between two.
    gap: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RequestStage {
    Fresh,
    Shown,
    /// The answer was silence.
    Silent,
}

impl PendingSyn {
    pub(crate) fn new(
        now: Instant,
        tuple: Tuple,
        syn: &TcpHeader,
        (ecn, hop_limit): (u8, u8),
    ) -> Self {
        let (syn, stage, gap) = (*syn, RequestStage::Fresh, Duration::ZERO);
        Self { tuple, syn, ecn, hop_limit, stage, first: now, last: now, gap }
    }

    /// Notes that its SYN has come again.
    pub(crate) fn repeat(&mut self, now: Instant, syn: &TcpHeader, ecn: u8) {
        self.gap = self.gap.max(now.saturating_since(self.last));
        (self.last, self.syn, self.ecn) = (now, *syn, ecn);
    }

    /// When the sender has given up, unless a further SYN comes.
    ///
    /// > RFC 6298 section 5.5: The host MUST set RTO <- RTO * 2 ("back off the timer").
    ///
    /// Linux repeats the first SYNs each second before it doubles. The moment only moves on: a SYN that
    /// the network has doubled does not bring it nearer.
    pub(crate) fn lapses_at(&self) -> Instant {
        let gap = self.gap.clamp(REQUEST_LEAST_GAP, REQUEST_LONGEST_GAP);
        (self.first + REQUEST_FIRST_WAIT).max(self.last + 2 * gap + REQUEST_LEAST_GAP)
    }
}

impl Requests {
    pub(crate) fn new(link: LinkId, hasher: SipHasher13) -> Self {
        Self {
            link,
            hasher,
            slots: Vec::new(),
            free: Vec::new(),
            table: HashTable::new(),
            fresh: VecDeque::new(),
            silent: VecDeque::new(),
            ended: VecDeque::new(),
            half_open: VecDeque::new(),
        }
    }

    /// Whether [`poll`](Self::poll) returns something.
    pub(crate) fn has_event(&self) -> bool {
        !self.fresh.is_empty() || !self.ended.is_empty()
    }

    pub(crate) fn poll(&mut self) -> Option<SynEvent> {
        // The end of an old request comes before the beginning of the one in its place.
        if let Some((id, why)) = self.ended.pop_front() {
            return Some(SynEvent::Cancelled(id, why));
        }
        let (id, link) = (self.fresh.pop_front()?, self.link);
        let request = self.slots.get_mut(id.index as usize)?.request.as_mut()?;
        request.stage = RequestStage::Shown;
        let (from, to) = (request.tuple.remote_addr(), request.tuple.local_addr());
        let (hop_limit, at) = (request.hop_limit, request.first);
        Some(SynEvent::New(SynRequest { id, link, from, to, hop_limit, at }))
    }

    /// The slots that there are, used or not.
    pub(crate) fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    pub(crate) fn at_mut(&mut self, index: u32) -> Option<&mut PendingSyn> {
        self.slots.get_mut(index as usize)?.request.as_mut()
    }

    pub(crate) fn at(&self, index: u32) -> Option<&PendingSyn> {
        self.slots.get(index as usize)?.request.as_ref()
    }

    pub(crate) fn find(&self, tuple: &Tuple) -> Option<u32> {
        let hash = tuple.hash(&self.hasher);
        self.table.find(hash, |&i| self.at(i).is_some_and(|r| r.tuple == *tuple)).copied()
    }

    /// Adds a request; `false` if there is no room.
    pub(crate) fn insert(&mut self, request: PendingSyn) -> bool {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() >= SYN_REQUESTS => match self.evict_silent() {
                Some(index) => index,
                None => return false,
            },
            None => {
                self.slots.push(RequestSlot { generation: 0, request: None });
                self.slots.len() as u32 - 1
            }
        };
        let hasher = self.hasher;
        let hash_now = request.tuple.hash(&hasher);
        let Some(slot) = self.slots.get_mut(index as usize) else { return false };
        slot.request = Some(request);
        self.fresh.push_back(RequestId { index, generation: slot.generation });
        let Self { table, slots, .. } = self;
        let tuple = |i: u32| slots.get(i as usize).and_then(|s| s.request.as_ref());
        table.insert_unique(hash_now, index, |&i| tuple(i).map_or(0, |r| r.tuple.hash(&hasher)));
        true
    }

    /// Frees the slot of the request that was answered with silence first: if its SYNs go on, they
    /// ask again. Those that were not answered stay.
    fn evict_silent(&mut self) -> Option<u32> {
        while let Some(id) = self.silent.pop_front() {
            if self.is_silent(id) && self.remove(id.index).is_some() {
                return self.free.pop();
            }
        }
        None
    }

    fn is_silent(&self, id: RequestId) -> bool {
        let slot = self.slots.get(id.index as usize).filter(|s| s.generation == id.generation);
        slot.and_then(|s| s.request.as_ref()).is_some_and(|r| r.stage == RequestStage::Silent)
    }

    /// The request that was shown under this id and not answered.
    pub(crate) fn shown(&mut self, id: RequestId) -> Result<&mut PendingSyn, Error> {
        let slot = self.slots.get_mut(id.index as usize).filter(|s| s.generation == id.generation);
        let request = slot.and_then(|slot| slot.request.as_mut());
        request.filter(|r| r.stage == RequestStage::Shown).ok_or(Error::NoSuchSocket)
    }

    pub(crate) fn silence(&mut self, id: RequestId) -> Result<(), Error> {
        self.shown(id)?.stage = RequestStage::Silent;
        if self.silent.len() >= 2 * SYN_REQUESTS {
            let mut all = core::mem::take(&mut self.silent);
            all.retain(|&id| self.is_silent(id));
            self.silent = all;
        }
        self.silent.push_back(id);
        Ok(())
    }

    /// Takes out a shown request for its answer.
    pub(crate) fn take_shown(&mut self, id: RequestId) -> Result<PendingSyn, Error> {
        self.shown(id)?;
        self.remove(id.index).ok_or(Error::NoSuchSocket)
    }

    pub(crate) fn remove(&mut self, index: u32) -> Option<PendingSyn> {
        let slot = self.slots.get_mut(index as usize)?;
        let request = slot.request.take()?;
        let hash = request.tuple.hash(&self.hasher);
        if let Ok(entry) = self.table.find_entry(hash, |&i| i == index) {
            entry.remove();
        }
        if request.stage == RequestStage::Fresh {
            self.fresh.retain(|id| id.index != index);
        }
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(index);
        Some(request)
    }

    /// Ends a request without an answer; `false`: there is none.
    pub(crate) fn cancel(&mut self, index: u32, why: Cancel) -> bool {
        let generation = self.slots.get(index as usize).map_or(0, |slot| slot.generation);
        let Some(request) = self.remove(index) else { return false };
        if request.stage == RequestStage::Shown {
            self.ended.push_back((RequestId { index, generation }, why));
        }
        true
    }

    /// Ends all requests.
    pub(crate) fn cancel_all(&mut self, why: Cancel) {
        for index in 0..self.slots.len() as u32 {
            self.cancel(index, why);
        }
    }

    /// When the request in a slot lapses, if there is one.
    pub(crate) fn lapses_at(&self, index: u32) -> Option<Instant> {
        self.at(index).map(PendingSyn::lapses_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_small() {
        let slot = size_of::<RequestSlot>();
        println!("{slot} bytes");
        assert!(slot <= 192, "{slot}");
    }
}
