//! [`Vring`]: a ring of a guest, from the device's side, with the heads taken, given back and held.
//!
//! ```text
//!        driver's available index
//!   next_avail      |
//!       |  waiting  |
//!   ----+-----------+-----       taken: used at once, or held by fragments until the last goes
//!       published   next_used
//!   --------+-----------+--      entries between are written, and published once per burst
//! ```

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::counters::VhostCounters;
use super::events::{Events, PeerEvent};
use super::limits::HELD_SHARE;
use super::memory::Memory;
use super::port_state::PortState;
use super::returned::ReturnedHeads;
use super::virtqueue::{Ring, avail_bytes, desc_bytes, used_bytes};

/// The addresses of a ring, in the front end's own terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Addresses {
    pub(super) desc: u64,
    pub(super) avail: u64,
    pub(super) used: u64,
}

/// A ring, set up by messages and then walked.
pub(super) struct Vring {
    pub(super) size: u16,
    pub(super) addresses: Option<Addresses>,
    /// The front end has enabled it.
    pub(super) enabled: bool,
    pub(super) event_index: bool,
    port_state: Arc<PortState>,
    /// Present while the ring is started.
    ring: Option<Ring>,
    /// The ring was invalid; nothing moves until it is set up anew.
    broken: bool,
    next_avail: u16,
    next_used: u16,
    published: u16,
    held: HeldHeads,
    /// The state of a stopped ring, in case it continues.
    parked: Option<Parked>,
    kick: Option<OwnedFd>,
    /// Interrupts the guest.
    call: PeerEvent,
    /// Signals a broken ring to the front end.
    error: PeerEvent,
}

/// Descriptors that fragments hold.
struct HeldHeads {
    /// For each head, the number of descriptors of its chain; 0: it is not held.
    heads: Vec<u16>,
    count: u16,
    /// Their descriptors. Chains of a hostile guest may share some.
    descriptors: usize,
    returns: Arc<ReturnedHeads>,
}

struct Parked {
    size: u16,
    addresses: Option<Addresses>,
    next_avail: u16,
    next_used: u16,
    held: HeldHeads,
}

impl Vring {
    pub(super) fn new(port_state: &Arc<PortState>) -> Self {
        Self {
            size: 0,
            addresses: None,
            enabled: false,
            event_index: false,
            port_state: Arc::clone(port_state),
            ring: None,
            broken: false,
            next_avail: 0,
            next_used: 0,
            published: 0,
            held: HeldHeads::none(port_state),
            parked: None,
            kick: None,
            call: PeerEvent::default(),
            error: PeerEvent::default(),
        }
    }

    /// The ring, if frames may move.
    pub(super) fn running(&self) -> Option<&Ring> {
        self.usable().filter(|_| self.enabled)
    }

    /// The ring, if it is started and valid. Frames by a disabled ring are taken, and discarded.
    pub(super) fn usable(&self) -> Option<&Ring> {
        self.ring.as_ref().filter(|_| !self.broken)
    }

    /// Whether it was started, enabled or not.
    pub(super) fn is_started(&self) -> bool {
        self.ring.is_some()
    }

    /// Sets the position of the next available head, before the start.
    pub(super) fn set_base(&mut self, base: u16) {
        self.next_avail = base;
    }

    /// Starts the ring, or continues where it was stopped. `None`: it does not lie in shared memory.
    pub(super) fn start(&mut self, memory: &Memory) -> Option<()> {
        let ring = self.resolve(memory)?;
        self.next_used = ring.used_index();
        self.published = self.next_used;
        // A guest that was only stopped finds its ring unchanged, with the held heads. One that was
        // restarted has other counts (both zero; and then nothing can be in flight that counts).
        let same = |parked: &Parked| {
            (parked.size, parked.addresses) == (self.size, self.addresses)
                && (parked.next_avail, parked.next_used) == (self.next_avail, self.next_used)
        };
        self.held = match self.parked.take().filter(same) {
            Some(parked) => parked.held,
            None => HeldHeads::new(self.size, &self.port_state),
        };
        self.ring = Some(ring);
        self.broken = false;
        Some(())
    }

    /// Finds a running ring in changed memory.
    pub(super) fn rebind(&mut self, memory: &Memory) -> Option<()> {
        if self.ring.is_some() {
            self.ring = None;
            self.ring = Some(self.resolve(memory)?);
        }
        Some(())
    }

    fn resolve(&self, memory: &Memory) -> Option<Ring> {
        let at = self.addresses?;
        let desc = memory.part(at.desc, desc_bytes(self.size))?;
        let avail = memory.part(at.avail, avail_bytes(self.size))?;
        let used = memory.part(at.used, used_bytes(self.size))?;
        Ring::new(&desc, &avail, &used, self.size)
    }

    /// Stops the ring; returns the position at which it would continue.
    pub(super) fn stop(&mut self, events: &Events) -> u16 {
        if let Some(ring) = self.ring.take() {
            // Heads that came back by now are still returned.
            self.drain_into(&ring);
            if self.published != self.next_used {
                ring.set_used_index(self.next_used);
                self.call.signal(&self.port_state.signals);
            }
            self.parked = Some(Parked {
                size: self.size,
                addresses: self.addresses,
                next_avail: self.next_avail,
                next_used: self.next_used,
                held: std::mem::replace(&mut self.held, HeldHeads::none(&self.port_state)),
            });
        }
        self.set_kick(None, events);
        self.next_avail
    }

    /// Takes the descriptor by which the guest kicks.
    pub(super) fn set_kick(&mut self, kick: Option<OwnedFd>, events: &Events) {
        if let Some(old) = std::mem::replace(&mut self.kick, kick) {
            events.forget(old.as_fd());
        }
        if let Some(kick) = &self.kick {
            // Fails only for lack of memory; then the wake's next ring wakes the device.
            let _ = events.watch(kick.as_fd());
        }
    }

    pub(super) fn set_call(&mut self, call: Option<OwnedFd>) {
        // Earlier entries were signalled on another descriptor, or on none, as by QEMU at the
        // start. A needless interrupt only makes the guest check its ring.
        self.call.set(call);
        self.call.signal(&self.port_state.signals);
    }

    /// Whether the kernel refused a signal that is to be sent again.
    pub(super) fn owes_signal(&self) -> bool {
        self.call.is_pending() || self.error.is_pending()
    }

    pub(super) fn retry_signals(&mut self, counters: &mut VhostCounters) {
        let signals = &self.port_state.signals;
        counters.calls += u64::from(self.call.retry(signals));
        self.error.retry(signals);
    }

    pub(super) fn set_error(&mut self, error: Option<OwnedFd>) {
        self.error.set(error);
    }

    /// How many heads wait. If the guest's index ran too far ahead, the ring is broken.
    pub(super) fn waiting(&mut self, counters: &mut VhostCounters) -> u16 {
        let Some(ring) = self.usable() else { return 0 };
        let waiting = ring.avail_index().wrapping_sub(self.next_avail);
        if waiting > ring.size() {
            counters.bad_avail_index += 1;
            self.fail();
            return 0;
        }
        waiting
    }

    /// The waiting head at position `ahead`, which must exist.
    pub(super) fn peek(&mut self, ahead: u16, counters: &mut VhostCounters) -> Option<u16> {
        let head = self.usable()?.avail_entry(self.next_avail.wrapping_add(ahead));
        match self.held.heads.get(usize::from(head)) {
            Some(0) => return Some(head),
            Some(_) => counters.head_in_flight += 1,
            None => counters.bad_head += 1,
        }
        self.fail();
        None
    }

    /// Takes the first `n` waiting heads.
    pub(super) fn advance(&mut self, n: u16) {
        self.next_avail = self.next_avail.wrapping_add(n);
    }

    /// Gives a head back, with `len` bytes written; visible with the next `publish`.
    pub(super) fn give_back(&mut self, head: u16, len: u32) {
        if let Some(ring) = &self.ring {
            ring.set_used_entry(self.next_used, head, len);
            self.next_used = self.next_used.wrapping_add(1);
        }
    }

    /// Marks a head as held, with its chain's descriptors; returns the list by which it comes back.
    pub(super) fn hold(&mut self, head: u16, descriptors: u16) -> &Arc<ReturnedHeads> {
        if let Some(held) = self.held.heads.get_mut(usize::from(head)).filter(|held| **held == 0) {
            *held = descriptors.max(1);
            self.held.count += 1;
            self.held.descriptors += usize::from(*held);
        }
        &self.held.returns
    }

    /// Undoes [`hold`](Self::hold): nothing was made that would give the head back.
    pub(super) fn unhold(&mut self, head: u16) {
        self.held.release(head);
    }

    /// Whether `descriptors` more descriptors may be held.
    pub(super) fn may_hold(&self, descriptors: u16) -> bool {
        let limit = self.running().map_or(0, |ring| ring.size() / HELD_SHARE);
        let held = self.held.descriptors + usize::from(descriptors);
        held <= usize::from(limit) && self.held.returns.may_hold()
    }

    pub(super) fn held(&self) -> u16 {
        self.held.count
    }

    /// Gives back the heads that fragments have dropped; returns how many.
    pub(super) fn drain(&mut self) -> u16 {
        let before = self.held.count;
        if before > 0
            && let Some(ring) = self.ring.take()
        {
            self.drain_into(&ring);
            self.ring = Some(ring);
        }
        before - self.held.count
    }

    /// Gives back everything that fragments hold, when the device ends or hangs up.
    pub(super) fn surrender(&mut self, counters: &mut VhostCounters) {
        self.drain();
        let held = std::mem::take(&mut self.held.heads);
        if self.usable().is_some() {
            for (head, _) in held.iter().enumerate().filter(|(_, held)| **held > 0) {
                self.give_back(head as u16, 0);
            }
            self.publish(counters);
        }
        self.held.heads = vec![0; held.len()];
        (self.held.count, self.held.descriptors) = (0, 0);
    }

    fn drain_into(&mut self, ring: &Ring) {
        let Self { held, next_used, .. } = self;
        let returns = Arc::clone(&held.returns);
        returns.drain(|head| {
            if held.release(head) {
                ring.set_used_entry(*next_used, head, 0);
                *next_used = next_used.wrapping_add(1);
            }
        });
    }

    /// Publishes returned heads, and interrupts the guest if it wants that.
    pub(super) fn publish(&mut self, counters: &mut VhostCounters) {
        let Some(ring) = &self.ring else { return };
        let (old, new) = (self.published, self.next_used);
        if old == new {
            return;
        }
        ring.set_used_index(new);
        self.published = new;
        if self.call.is_there() && ring.wants_call(old, new, self.event_index) {
            match self.call.signal(&self.port_state.signals) {
                true => counters.calls += 1,
                false => counters.calls_refused += 1,
            }
        }
    }

    /// Asks to be kicked for heads behind the first `ahead` that wait, and for those that come
    /// back. `true`: there is one already.
    pub(super) fn arm(&mut self, ahead: u16) -> bool {
        let Some(ring) = self.usable() else { return false };
        let from = self.next_avail.wrapping_add(ahead);
        ring.ask_kick(from, self.event_index);
        let waits = ring.avail_index() != from;
        waits || (self.held.count > 0 && self.held.returns.await_one())
    }

    /// Asks for no kicks.
    pub(super) fn disarm(&mut self) {
        if let Some(ring) = self.usable() {
            ring.spare_kick(self.next_avail, self.event_index);
        }
    }

    fn fail(&mut self) {
        self.broken = true;
        self.error.signal(&self.port_state.signals);
    }
}

impl HeldHeads {
    /// The state without a ring.
    fn none(port_state: &PortState) -> Self {
        let returns = ReturnedHeads::new(0, &port_state.wake, None);
        Self { heads: Vec::new(), count: 0, descriptors: 0, returns }
    }

    /// The state of a ring of `size` without held heads.
    fn new(size: u16, port_state: &PortState) -> Self {
        let heads = vec![0; usize::from(size)];
        let share = port_state.allowance.ring(port_state.port_pairs);
        let returns = ReturnedHeads::new(size, &port_state.wake, share);
        Self { heads, count: 0, descriptors: 0, returns }
    }

    /// Holds a head no more; `false`: it was not held.
    fn release(&mut self, head: u16) -> bool {
        let held = self.heads.get_mut(usize::from(head)).map_or(0, std::mem::take);
        self.count -= u16::from(held > 0);
        self.descriptors -= usize::from(held);
        held > 0
    }
}
