//! The turn: devices -> stack -> flush -> wake. Between R1 and R2, and between S5 and S6, every
//! byte that enters or leaves a host passes here.
//!
//! The driver thread takes turns (`driver.rs`), or a thread that waits (`wait.rs`), under the lock.
//! [`Inner::turn`] receives a burst from each device; [`Inner::flush`] fires timers, sends output,
//! and reports events. Wakers are called when the lock is released.

use std::time::Duration;

use pagewire_mem::Instant;
use pagewire_stack::LinkId;

use crate::contain::contain;
use crate::devices::{LinkDevice, RECEIVE_BURST, RECEIVING, SENDING};
use crate::reentrancy::LockedCall;
#[cfg(feature = "rings")]
use crate::rings::serve::STUCK_RETRY;
use crate::service::AttachedService;
use crate::shared::Inner;

/// Rounds of receive and transmit in one turn, so that a flood cannot hold the lock for ever.
const ROUNDS_PER_TURN: usize = 4;

/// Rounds of output in one flush: more than any window holds. Further output is due at once.
const ROUNDS_PER_FLUSH: usize = 256;

/// Turns of services and rings in one flush: each answers what the last one's output changed.
const SERVICE_TURNS: usize = 16;

/// How long frames wait at most for a device that had no room and does not report when it has.
pub(crate) const BLOCKED_RETRY: Duration = Duration::from_millis(1);

/// How often unused memory goes back to the system: groups of pages that nobody took for so long.
const TRIM_INTERVAL: Duration = Duration::from_secs(1);

/// How often a device without a descriptor is polled while all threads sleep.
const POLLED_DEVICE: Duration = Duration::from_millis(1);

/// The frames that devices had in a round.
#[derive(Default)]
pub(crate) struct Received {
    /// Number of frames of the device that had the most.
    pub(crate) longest: usize,
    pub(crate) all: usize,
    /// Number of frames that a connection or a datagram socket has taken.
    pub(crate) taken: usize,
}

impl Inner {
    /// Receives, lets the stack work, sends. Returns whether anything came in.
    pub(crate) fn turn(&mut self, now: Instant) -> bool {
        self.follow_group(now);
        if self.failed {
            self.flush(now);
            return false;
        }
        self.waiters.fire(now);
        if now >= self.trim_at {
            self.trim(now);
        }
        let mut worked = false;
        (self.services_unpolled, self.services_worked) = (!self.services.is_empty(), false);
        for _ in 0..ROUNDS_PER_TURN {
            let received = self.receive(now);
            let strays = self.receive_strays(now, &received);
            worked |= received.longest + strays > 0;
            self.flush(now);
            if received.longest.max(strays) < RECEIVE_BURST {
                break;
            }
        }
        self.stack.end_turn();
        worked |= std::mem::take(&mut self.rings_worked);
        worked | self.services_worked
    }

    /// Gives memory that was not used for a while back to the system.
    #[cold]
    fn trim(&mut self, now: Instant) {
        self.stack.trim();
        self.devices.all.iter_mut().for_each(|link| link.device.trim());
        self.trim_at = now + TRIM_INTERVAL;
    }

    /// Receives a burst from each device into the stack.
    fn receive(&mut self, now: Instant) -> Received {
        let (devices, stack) = (&mut self.devices, &mut self.stack);
        let (mut received, mut lost) = (Received::default(), None);
        let (begin, end) = devices.all.split_at_mut(devices.first);
        for link in end.iter_mut().chain(begin).filter(|link| !link.lost) {
            match link.device.receive(now, &mut devices.rx, RECEIVE_BURST, stack.ledger_mut()) {
                Ok(n) => {
                    received.longest = received.longest.max(n);
                    received.all += n;
                    link.failures[RECEIVING] = 0;
                }
                Err(error) => lost = link.note_error(RECEIVING, &error).or(lost),
            }
            stack.set_receive_room(link.device.room().unwrap_or(usize::MAX));
            received.taken += stack.handle_frames_on(now, link.id, &mut devices.rx);
        }
        if devices.all.len() > 1 {
            // The room of one device says nothing about windows of the others' connections.
            stack.set_receive_room(usize::MAX);
        }
        devices.first = if devices.first + 1 < devices.all.len() { devices.first + 1 } else { 0 };
        if let Some(link) = lost {
            self.lose(now, link);
        }
        received
    }

    /// Fires timers, sends output, reports events, and sends what services make of these.
    pub(crate) fn flush(&mut self, now: Instant) {
        if self.failed {
            if !self.silent {
                self.report(now);
                self.serve_rings(now);
            }
            return;
        }
        if self.stack.poll_timeout().is_some_and(|at| at <= now) {
            self.stack.handle_timeout(now);
        }
        self.send(now);
        for _ in 0..SERVICE_TURNS {
            let served = self.report(now);
            if !self.serve_rings(now) && !served {
                return;
            }
            self.send(now);
        }
        // Further turns of services are due at once.
        self.unfinished = true;
    }

    /// Sends output, as far as the devices take it.
    fn send(&mut self, now: Instant) {
        for _ in 0..ROUNDS_PER_FLUSH {
            self.unfinished = self.transmit(now);
            if !self.unfinished || self.devices.are_all_blocked() {
                break;
            }
        }
        self.send_strays();
    }

    /// Sends a round of output: frames that a device had no room for go first, and until they have gone, no
    /// more are made for it. Returns whether there is more, for a device that may have room.
    fn transmit(&mut self, now: Instant) -> bool {
        let (devices, stack) = (&mut self.devices, &mut self.stack);
        // If no device has room, the first that gets room has to be tried again.
        let stuck = !devices.all.is_empty() && devices.all.iter().all(LinkDevice::is_blocked);
        let (mut more, mut freed, mut lost) = (stuck, false, None);
        for link in &mut devices.all {
            let blocked = link.is_blocked();
            if !blocked {
                more |= stack.poll_transmit_on(now, link.id, &mut link.tx);
            }
            if link.lost {
                link.tx.clear();
                continue;
            }
            // Output that loops back, or waits for its neighbour's address, leaves no frame.
            if link.tx.is_empty() && link.device.poll_timeout().is_none_or(|at| at > now) {
                continue;
            }
            match link.device.transmit(now, &mut link.tx, stack.ledger_mut()) {
                Ok(_) => link.failures[SENDING] = 0,
                Err(error) => {
                    lost = link.note_error(SENDING, &error).or(lost);
                    link.tx.clear();
                }
            }
            link.device.take_refused(&mut devices.refused);
            if !devices.refused.is_empty() {
                stack.handle_refused_on(now, link.id, &mut devices.refused);
                // The refused connection sets a timer.
                more = true;
            }
            freed |= blocked && !link.is_blocked();
        }
        if let Some(link) = lost {
            self.lose(now, link);
            // Connections fail with the link, which is to be reported.
            more = true;
        }
        let (links, stack) = (&self.devices.all, &self.stack);
        more || freed || links.iter().any(|link| !link.is_blocked() && stack.has_frames(link.id))
    }

    /// Fails a link whose device is gone for good.
    #[cold]
    #[inline(never)]
    fn lose(&mut self, now: Instant, link: LinkId) {
        // Others may have failed in the same round.
        let gone = self.devices.all.iter().filter(|l| l.lost && l.id != link).map(|l| l.id);
        for link in gone.chain([link]) {
            self.stack.handle_link_lost(now, link);
            // A packet of this link may be for any shard.
            self.exchange.iter().for_each(|exchange| exchange.member().lose(link));
        }
        self.devices.gather_fds();
        self.note_down();
    }

    /// Loses links that another shard has lost, a bit for each.
    #[cold]
    pub(crate) fn lose_links(&mut self, now: Instant, lost: u64) {
        if let Some(link) = self.devices.lose(lost) {
            self.lose(now, link);
        }
    }

    /// Reports events to the observer, rings, waits and services. Returns whether a service had a turn.
    fn report(&mut self, now: Instant) -> bool {
        while let Some(event) = self.stack.poll_event() {
            if let Some(observer) = &mut self.observer {
                let _call = LockedCall::of(self.host_id);
                contain(&self.panics.observers, "an observer", || observer(event));
            }
            #[cfg(feature = "rings")]
            self.rings.handle_event(event);
            self.waiters.handle_event(event.socket, event.gained);
            if !self.services.is_empty() {
                self.events.push(event);
            }
        }
        !self.services.is_empty() && self.serve(now)
    }

    /// Gives services that have something to do a turn. Returns whether one had.
    #[inline(never)]
    fn serve(&mut self, now: Instant) -> bool {
        let _call = LockedCall::of(self.host_id);
        let polled = std::mem::take(&mut self.services_unpolled) && self.poll_services();
        let is_due = |s: &AttachedService| s.poll_timeout(&self.panics).is_some_and(|at| at <= now);
        if self.events.is_empty() && !polled && !self.services.iter().any(is_due) {
            return false;
        }
        let (stack, events, panics) = (&mut self.stack, &self.events, &self.panics);
        // A service that panicked is not called again: its state is unknown.
        let before = self.services.len();
        let over = self.services.extract_if(.., |s| !s.turn(now, stack, events, panics));
        self.discarded.extend(over.map(|s| Box::new(s.service) as _));
        self.events.clear();
        if self.services.len() < before {
            self.note_services();
        }
        true
    }

    /// Polls the services; returns whether one has something to do.
    fn poll_services(&mut self) -> bool {
        let (services, panics) = (&mut self.services, &self.panics);
        // No short circuit: each service is polled once in each turn.
        let work = services.iter_mut().fold(false, |work, s| s.poll(panics) | work);
        self.services_worked = work;
        work
    }

    /// Updates the descriptors to wait on after services were attached or removed.
    pub(crate) fn note_services(&mut self) {
        let polled = self.services.iter().any(|service| service.polled);
        let fds = self.services.iter().filter_map(|service| service.fd.clone());
        self.devices.wait_on_services(fds, polled);
    }

    /// Serves the applications' rings. Returns whether there was anything to do.
    #[cfg(feature = "rings")]
    #[inline]
    fn serve_rings(&mut self, now: Instant) -> bool {
        let Self { stack, rings, waiters, .. } = self;
        let worked = !rings.is_empty() && rings.serve(now, stack, &mut waiters.ready);
        self.rings_worked |= worked;
        worked
    }

    #[cfg(not(feature = "rings"))]
    fn serve_rings(&mut self, _: Instant) -> bool {
        false
    }

    /// Whether a flush would move anything, timers that are due left out.
    pub(crate) fn has_output(&self) -> bool {
        !self.failed && (self.unfinished || self.devices.is_blocked() || !self.stack.is_at_rest())
    }

    /// When a turn is due although nothing comes in.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        if self.failed {
            return None;
        }
        if (self.unfinished && !self.devices.are_all_blocked()) || self.services_worked {
            return Some(Instant::ZERO);
        }
        // Without a list: while the driver sleeps, every send and receive of an application comes here.
        let first = earlier(self.stack.poll_timeout(), self.devices.poll_timeout());
        let first = earlier(first, self.waiters.sockets.next_timer());
        match self.services.is_empty() {
            true => first,
            false => earlier(first, self.services_timeout()),
        }
    }

    /// When a service wants its next turn.
    #[inline(never)]
    fn services_timeout(&self) -> Option<Instant> {
        let _call = LockedCall::of(self.host_id);
        self.services.iter().filter_map(|service| service.poll_timeout(&self.panics)).min()
    }

    /// How long a thread may sleep, at most `limit`, if no descriptor wakes it.
    pub(crate) fn longest_sleep(&self, now: Instant, limit: Duration) -> Duration {
        let deadline = self.deadline().map(|at| at.saturating_since(now));
        let polled = self.devices.are_polled().then_some(POLLED_DEVICE);
        [deadline, polled, self.retry()].into_iter().flatten().fold(limit, Duration::min)
    }

    /// When to retry output that found no room, where nothing reports that there is room again.
    pub(crate) fn retry(&self) -> Option<Duration> {
        let blocked = self.devices.is_blocked().then_some(BLOCKED_RETRY);
        #[cfg(feature = "rings")]
        let blocked = blocked.into_iter().chain(self.rings.is_stuck().then_some(STUCK_RETRY)).min();
        blocked
    }
}

/// The earlier of two times, of which either may be missing.
#[inline]
fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (one, other) => one.or(other),
    }
}
