//! Variant of step R1, for several bulk flows of a tap: flows whose data is mapped are received by queues of
//! their own.
//!
//! Payload fills pages without holes only if the driver knows its flow before it reads. The order
//! of frames does not tell, and a wrong guess is expensive: a super-frame's length is no multiple
//! of the page, so it would have to be copied to its flow's pages.
//!
//! But the kernel delivers a flow to the queue of a tap that last sent for it. So a tap that was
//! made here has spare queues, detached until they are needed. A flow whose application maps what it receives
//! ([`PacketBuf::maps`]) gets a spare queue while bulk flows take turns on the first one: from then on its
//! acknowledgements leave there, its data arrives there, and that queue's [`TapQueue`](super::TapQueue) reads
//! it behind its last payload.
//!
//! ```text
//!   queue 0  everything: copying readers, a single mapped flow, small frames  --> pages of queue 0
//!   queue 1  one mapped flow                                                  --> pages of queue 1
//!   …
//! ```
//!
//! Copying readers gain nothing from adjacent pages, and queues cost them: eight such flows took 1.17 times the
//! CPU time of one with queues of their own, and 1.01 times with the first for all. Frames that the kernel
//! puts elsewhere (it forgets flows after three seconds of silence) cost alignment, never correctness.

use pagewire_mem::{Instant, PacketBuf};

use super::limits::QUEUE_IDLE;
use super::predict::FlowKey;
use pagewire_mem::link::headers::{self, Transport};

/// The flows that have spare queues.
#[derive(Debug)]
pub(super) struct BulkFlows {
    /// Slot `i` is queue `i + 1`'s.
    slots: Vec<Slot>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    key: Option<FlowKey>,
    /// When a frame last left by the queue.
    last: Instant,
    /// Reserved for flows with rules.
    reserved: bool,
}

impl Slot {
    fn is_idle(&self, now: Instant) -> bool {
        !self.reserved && (self.key.is_none() || now.saturating_since(self.last) > QUEUE_IDLE)
    }
}

/// The queue by which a frame is to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The first queue.
    First,
    /// The flow's own queue.
    Own(usize),
    /// The queue that the flow gets with the frame.
    New(usize),
}

impl BulkFlows {
    pub(super) fn new(spare: usize) -> Self {
        Self { slots: vec![Slot::default(); spare] }
    }

    /// Reserves a queue for flows with rules: a flow that has it goes back to queue 0.
    pub(super) fn reserve(&mut self, queue: usize) {
        if let Some(slot) = queue.checked_sub(1).and_then(|slot| self.slots.get_mut(slot)) {
            *slot = Slot { reserved: true, ..Slot::default() };
        }
    }

    pub(super) fn release(&mut self, queue: usize) {
        if let Some(slot) = queue.checked_sub(1).and_then(|slot| self.slots.get_mut(slot)) {
            *slot = Slot::default();
        }
    }

    /// Queues from this one on are not available any more; flows keep lower ones.
    pub(super) fn give_up_from(&mut self, queue: usize) {
        self.slots.truncate(queue.saturating_sub(1));
    }

    /// Whether a queue has neither a rule nor a flow that sends. Of one that is not available any more, a rule
    /// is not known.
    pub(super) fn is_idle(&self, now: Instant, queue: usize) -> bool {
        let slot = queue.checked_sub(1).and_then(|slot| self.slots.get(slot));
        slot.is_some_and(|slot| slot.is_idle(now))
    }

    /// The queue by which a frame is to leave, so that its flow's data arrives there. `mixed`: bulk flows take
    /// turns on the first queue.
    #[inline]
    pub(super) fn way_of(&mut self, now: Instant, packet: &PacketBuf, mixed: bool) -> Way {
        if !packet.maps || self.slots.is_empty() {
            return Way::First;
        }
        self.way_of_mapped(now, packet, mixed).unwrap_or(Way::First)
    }

    fn way_of_mapped(&mut self, now: Instant, packet: &PacketBuf, mixed: bool) -> Option<Way> {
        let layout = headers::parse(packet.head()).ok()?;
        if layout.transport != Transport::Tcp {
            return None;
        }
        let key = FlowKey::of_answer(packet.head(), &layout)?;
        if let Some((at, slot)) =
            self.slots.iter_mut().enumerate().find(|(_, slot)| slot.key == Some(key))
        {
            slot.last = now;
            return Some(Way::Own(at + 1));
        }
        if !mixed {
            return None;
        }
        let at = self.slots.iter().position(|slot| slot.is_idle(now))?;
        *self.slots.get_mut(at)? = Slot { key: Some(key), last: now, reserved: false };
        Some(Way::New(at + 1))
    }
}

#[cfg(test)]
#[path = "bulk_flows_tests.rs"]
mod tests;
