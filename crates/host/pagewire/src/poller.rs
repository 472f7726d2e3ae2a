//! Who polls the devices of a host: the driver, or a waiting thread that leads. A state machine without a clock,
//! under the host's lock.
//!
//! ```text
//!                   a thread begins to wait                     the leader has its answer
//!   Driver, Armed --------------------------> Led(leader) -----------------------------> Left
//!      ^                                         ^   a follower or the next wait leads    |
//!      |                                         \----------------------------------------|
//!      \------------ nobody has led for `GRACE`, or somebody called the driver ----------/
//! ```
//!
//! A leader polls, then sleeps on the devices itself: a frame costs one wake-up. Other waiting threads follow:
//! they sleep until the leader's turn wakes them. A leader that leaves calls a follower that has just gone to sleep,
//! unless the next wait of a thread is expected sooner than the follower would be awake. The driver stays out
//! meanwhile: it looks seldom, and rests while one leader stays.

use std::collections::VecDeque;
use std::time::Duration;

use pagewire_mem::Instant;

/// How long after its leader left the driver takes the devices: the time of a thread for its next wait.
const GRACE: Duration = Duration::from_micros(200);

/// The longest time between two looks of the driver at threads that lead in turns, and so the longest wait of a
/// frame after the last of them left. Each look takes a core from somebody.
const LONGEST_WATCH: Duration = Duration::from_micros(800);

/// Followers that may be called to lead; the others are woken by leaders' turns alone.
const MOST_FOLLOWERS: usize = 8;

/// The time that a thread needs to wake up, about.
const WAKE_UP: Duration = Duration::from_micros(20);

/// How long after a thread went to sleep its answer is expected soon.
const SOON: Duration = Duration::from_millis(10);

/// The poller of a host's devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Poller {
    /// The driver, awake.
    Driver,
    /// The driver, asleep on the devices.
    Armed,
    /// A waiting thread, awake or asleep on the devices.
    Led,
    /// Nobody: the last leader left at this time.
    Left(Instant),
}

/// The poller, and those who may be the next. `F` wakes a follower, and `K` is the name of a wait.
#[derive(Debug)]
pub(crate) struct Polling<K, F> {
    poller: Poller,
    /// Threads that have led.
    terms: u64,
    /// The time between a leader's leave and the next wait of a thread that was not called: the longest of the
    /// last ones.
    absence: Duration,
    /// When the last leader left, until that next wait.
    left: Option<Instant>,
    /// The follower that was called.
    called: Option<K>,
    /// Threads that followed last, the newest at the end.
    followers: VecDeque<(K, F, Instant)>,
    watch: Watch,
}

/// The driver's view of the leaders while it stays out.
#[derive(Debug)]
struct Watch {
    /// `Polling::terms` at the last look.
    seen: u64,
    interval: Duration,
    /// The driver looks no more until it is called.
    rests: bool,
}

/// What the driver does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// It takes a turn.
    Poll,
    /// It stays out, and looks again after this time.
    StayOut(Duration),
    /// It stays out until it is called.
    Rest,
}

/// Whom a leader calls as it leaves.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Successor<F> {
    /// Nobody: a thread that comes back, or the driver's next look.
    Any,
    Follower(F),
    /// The driver, which rests.
    Driver,
}

impl<K: Copy + PartialEq, F> Polling<K, F> {
    pub(crate) fn new() -> Self {
        let watch = Watch { seen: 0, interval: GRACE, rests: false };
        Self {
            poller: Poller::Driver,
            terms: 0,
            absence: GRACE,
            left: None,
            called: None,
            followers: VecDeque::new(),
            watch,
        }
    }

    /// Makes a thread that waits the leader, unless another one is.
    pub(crate) fn lead(&mut self, name: K, now: Instant) -> bool {
        if self.called != Some(name)
            && let Some(left) = self.left.take()
        {
            // A follower that nobody calls waits for as long: one long absence counts at once, for a while.
            let absence = now.saturating_since(left).min(GRACE);
            self.absence = absence.max((self.absence * 15 + absence) / 16);
        }
        if self.poller == Poller::Led {
            return false;
        }
        (self.poller, self.terms) = (Poller::Led, self.terms + 1);
        true
    }

    /// Whether a thread leads.
    pub(crate) fn is_led(&self) -> bool {
        self.poller == Poller::Led
    }

    /// A thread goes to sleep, because another one leads.
    pub(crate) fn follow(&mut self, name: K, wakes: F, now: Instant) {
        self.forget(name);
        if self.followers.len() == MOST_FOLLOWERS {
            self.followers.pop_front();
        }
        self.followers.push_back((name, wakes, now));
    }

    /// A follower is awake.
    pub(crate) fn forget(&mut self, name: K) {
        if let Some(at) = self.followers.iter().position(|(other, ..)| *other == name) {
            self.followers.remove(at);
        }
    }

    /// The leader goes, and calls its successor when the lock is released.
    pub(crate) fn leave(&mut self, now: Instant) -> Successor<F> {
        (self.poller, self.left) = (Poller::Left(now), Some(now));
        if self.absence < WAKE_UP && !self.watch.rests {
            return Successor::Any;
        }
        self.successor(now)
    }

    /// Whom a follower calls that has its answer while nobody polls.
    pub(crate) fn successor(&mut self, now: Instant) -> Successor<F> {
        if !matches!(self.poller, Poller::Left(_)) {
            return Successor::Any;
        }
        // Those before the newest have slept for longer.
        if let Some((name, wakes, since)) = self.followers.pop_back()
            && now < since + SOON
        {
            self.called = Some(name);
            return Successor::Follower(wakes);
        }
        self.followers.clear();
        match std::mem::take(&mut self.watch.rests) {
            true => Successor::Driver,
            false => Successor::Any,
        }
    }

    /// The driver polls from now on, whoever did.
    pub(crate) fn drive(&mut self) {
        self.poller = Poller::Driver;
        self.watch = Watch { seen: self.terms, interval: GRACE, rests: false };
    }

    /// The driver goes to sleep on the devices.
    pub(crate) fn arm(&mut self) {
        self.poller = Poller::Armed;
    }

    /// The driver is awake. `called`: somebody woke it for a turn.
    pub(crate) fn look(&mut self, now: Instant, called: bool) -> Look {
        self.watch.rests = false;
        match self.poller {
            Poller::Driver | Poller::Armed => {}
            Poller::Left(_) if called => {}
            Poller::Left(since) if now >= since + GRACE => {}
            Poller::Led if self.terms == self.watch.seen => {
                self.watch.rests = true;
                return Look::Rest;
            }
            Poller::Led | Poller::Left(_) => {
                let more = self.terms > self.watch.seen + 1;
                let next = if more { self.watch.interval * 2 } else { GRACE };
                self.watch.interval = next.min(LONGEST_WATCH);
                self.watch.seen = self.terms;
                return Look::StayOut(self.watch.interval);
            }
        }
        self.drive();
        Look::Poll
    }
}

#[cfg(test)]
#[path = "poller_tests.rs"]
mod tests;
