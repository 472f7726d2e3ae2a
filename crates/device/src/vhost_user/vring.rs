//! One ring of a guest, from the device's side: what was taken, what was given back, what is held.
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
use super::events::{Events, Line};
use super::held::Returns;
use super::limits::HELD_SHARE;
use super::memory::Memory;
use super::ring::{Ring, avail_bytes, desc_bytes, used_bytes};
use super::standing::Standing;

/// Where the front end says that a ring lies, in its own addresses.
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
    /// The front end lets it run.
    pub(super) enabled: bool,
    pub(super) event_index: bool,
    standing: Arc<Standing>,
    /// There while the ring is started.
    ring: Option<Ring>,
    /// It lied; nothing moves until it is set up anew.
    broken: bool,
    next_avail: u16,
    next_used: u16,
    published: u16,
    held: Held,
    /// What was held when it was stopped, in case it goes on.
    parked: Option<Parked>,
    kick: Option<OwnedFd>,
    /// How the guest is interrupted.
    call: Line,
    /// How the front end is told of a broken ring.
    error: Line,
}

/// Descriptors that fragments hold.
struct Held {
    /// Of each head, how many descriptors its chain has; 0: it is not held.
    heads: Vec<u16>,
    /// Heads.
    count: u16,
    /// Their descriptors. Chains of a guest that lies may share some.
    descriptors: usize,
    returns: Arc<Returns>,
}

struct Parked {
    size: u16,
    addresses: Option<Addresses>,
    next_avail: u16,
    next_used: u16,
    held: Held,
}

impl Vring {
    pub(super) fn new(standing: &Arc<Standing>) -> Self {
        Self {
            size: 0,
            addresses: None,
            enabled: false,
            event_index: false,
            standing: Arc::clone(standing),
            ring: None,
            broken: false,
            next_avail: 0,
            next_used: 0,
            published: 0,
            held: Held::none(standing),
            parked: None,
            kick: None,
            call: Line::default(),
            error: Line::default(),
        }
    }

    /// The ring, if frames may move.
    pub(super) fn running(&self) -> Option<&Ring> {
        self.usable().filter(|_| self.enabled)
    }

    /// The ring, if it is started and believed. What a guest sends by one that is disabled is to be
    /// taken all the same, and discarded.
    pub(super) fn usable(&self) -> Option<&Ring> {
        self.ring.as_ref().filter(|_| !self.broken)
    }

    /// Whether it was started, whether or not it may run.
    pub(super) fn is_started(&self) -> bool {
        self.ring.is_some()
    }

    /// Sets where the next available head is, before the start.
    pub(super) fn set_base(&mut self, base: u16) {
        self.next_avail = base;
    }

    /// Starts the ring, or goes on where it was stopped. `None`: it does not lie in memory that was
    /// shared.
    pub(super) fn start(&mut self, memory: &Memory) -> Option<()> {
        let ring = self.resolve(memory)?;
        self.next_used = ring.used_index();
        self.published = self.next_used;
        // A guest that was only stopped finds its ring as it was, with what we still hold. One that
        // began anew has other counts (both zero; and then nothing can be in flight that counts).
        let same = |parked: &Parked| {
            (parked.size, parked.addresses) == (self.size, self.addresses)
                && (parked.next_avail, parked.next_used) == (self.next_avail, self.next_used)
        };
        self.held = match self.parked.take().filter(same) {
            Some(parked) => parked.held,
            None => Held::new(self.size, &self.standing),
        };
        self.ring = Some(ring);
        self.broken = false;
        Some(())
    }

    /// Finds a ring that runs in memory that changed.
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

    /// Stops the ring; returns where it would go on.
    pub(super) fn stop(&mut self, events: &Events) -> u16 {
        if let Some(ring) = self.ring.take() {
            // What came back by now still finds its way.
            self.drain_into(&ring);
            if self.published != self.next_used {
                ring.set_used_index(self.next_used);
                self.call.signal(&self.standing.signals);
            }
            self.parked = Some(Parked {
                size: self.size,
                addresses: self.addresses,
                next_avail: self.next_avail,
                next_used: self.next_used,
                held: std::mem::replace(&mut self.held, Held::none(&self.standing)),
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
            // Refused only for want of memory; then the bell's next ring makes the device look.
            let _ = events.watch(kick.as_fd());
        }
    }

    /// Takes the descriptor by which the guest is interrupted.
    pub(super) fn set_call(&mut self, call: Option<OwnedFd>) {
        // What was published until now was told by another one, or by none: QEMU starts a ring with
        // a descriptor that it does not look at, and names the guest's afterwards. A guest that
        // missed its event is not told again, and one that is told for nothing only looks.
        self.call.set(call);
        self.call.signal(&self.standing.signals);
    }

    /// Whether a signal was refused by the kernel and is to be sent again.
    pub(super) fn owes_signal(&self) -> bool {
        self.call.is_owed() || self.error.is_owed()
    }

    /// Sends again what the kernel refused.
    pub(super) fn retry_signals(&mut self, counters: &mut VhostCounters) {
        let signals = &self.standing.signals;
        counters.calls += u64::from(self.call.retry(signals));
        self.error.retry(signals);
    }

    /// Takes the descriptor by which the front end is told of a broken ring.
    pub(super) fn set_error(&mut self, error: Option<OwnedFd>) {
        self.error.set(error);
    }

    /// How many heads wait. A guest whose index ran too far ahead is not believed again.
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

    /// The head that waits `ahead` behind the first one, which there must be.
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

    /// Takes the first `n` heads that wait.
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

    /// Marks a head as held, with the descriptors of its chain, at least one; the list it comes back
    /// by.
    pub(super) fn hold(&mut self, head: u16, descriptors: u16) -> &Arc<Returns> {
        if let Some(held) = self.held.heads.get_mut(usize::from(head)).filter(|held| **held == 0) {
            *held = descriptors.max(1);
            self.held.count += 1;
            self.held.descriptors += usize::from(*held);
        }
        &self.held.returns
    }

    /// It is not held after all: nothing was made that would give it back.
    pub(super) fn unhold(&mut self, head: u16) {
        self.held.release(head);
    }

    /// Whether so many descriptors more may be held.
    pub(super) fn may_hold(&self, descriptors: u16) -> bool {
        let limit = self.running().map_or(0, |ring| ring.size() / HELD_SHARE);
        let held = self.held.descriptors + usize::from(descriptors);
        held <= usize::from(limit) && self.held.returns.may_hold()
    }

    /// Heads held now.
    pub(super) fn held(&self) -> u16 {
        self.held.count
    }

    /// Gives back what fragments let go of; returns how many heads.
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

    /// Gives back everything that fragments hold: the device is going, or hangs up, and a front end that
    /// connects later counts from what came back.
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

    /// Makes what was given back visible, and interrupts the guest if it wants to hear of it.
    pub(super) fn publish(&mut self, counters: &mut VhostCounters) {
        let Some(ring) = &self.ring else { return };
        let (old, new) = (self.published, self.next_used);
        if old == new {
            return;
        }
        ring.set_used_index(new);
        self.published = new;
        if self.call.is_there() && ring.wants_call(old, new, self.event_index) {
            match self.call.signal(&self.standing.signals) {
                true => counters.calls += 1,
                false => counters.calls_refused += 1,
            }
        }
    }

    /// Asks to be kicked for the heads behind the first `ahead` that wait, and for what comes back.
    /// `true`: there is something already.
    pub(super) fn arm(&mut self, ahead: u16) -> bool {
        let Some(ring) = self.usable() else { return false };
        let from = self.next_avail.wrapping_add(ahead);
        ring.ask_kick(from, self.event_index);
        let waits = ring.avail_index() != from;
        waits || (self.held.count > 0 && self.held.returns.await_one())
    }

    /// Need not be kicked.
    pub(super) fn disarm(&mut self) {
        if let Some(ring) = self.usable() {
            ring.spare_kick(self.next_avail, self.event_index);
        }
    }

    /// The ring lied: nothing moves until it is set up anew.
    fn fail(&mut self) {
        self.broken = true;
        self.error.signal(&self.standing.signals);
    }
}

impl Held {
    /// Of a ring that is not there.
    fn none(standing: &Standing) -> Self {
        let returns = Returns::new(0, &standing.bell, None);
        Self { heads: Vec::new(), count: 0, descriptors: 0, returns }
    }

    /// Of a ring of `size`, nothing yet.
    fn new(size: u16, standing: &Standing) -> Self {
        let heads = vec![0; usize::from(size)];
        let share = standing.allowance.ring(standing.pairs);
        let returns = Returns::new(size, &standing.bell, share);
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
