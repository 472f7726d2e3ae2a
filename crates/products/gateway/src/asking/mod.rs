//! Questions to a policy of the embedding program about flows that rules leave open.
//!
//! ```text
//!   flow --> judge --> rules --+--> permission, denial, closed: decided
//!                              +--> open, or not permitted --> policy --> opinion
//!                                                                |
//!                                  the flow waits, the guest has no answer yet
//! ```
//!
//! [`Desk`] has the open questions of one guest: a flow [asks](Desk::ask), and is judged once more after
//! [`Desk::turn`] has returned its question. Flows with the same protocol, destination and names share a question. The
//! guest's thread polls the policy's futures; their wakers ring an eventfd in the guest's epoll set.
//!
//! `held.rs` has the datagrams that wait meanwhile. `socket.rs` is a policy that asks another program by a socket, in
//! the lines of `lines.rs`.

mod held;
mod lines;
mod socket;

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use pagewire::services::Instant;
use rustix::event::{EventfdFlags, eventfd};

use crate::limits::{POLICY_ANSWERS, POLICY_KEEP, POLICY_QUESTIONS};
use crate::rate::SharedRate;
use crate::request::{Ask, Name, Owed, Protocol, Verdict};
use crate::tally::{Item, Tally};

pub(crate) use held::{Held, Waiting};
#[cfg(feature = "testing")]
pub(crate) use lines::{Lines, read_answer};
pub use socket::SocketPolicy;

/// Decides about flows of guests that rules neither permit by a permission nor forbid by a denial, and that are to no
/// closed address (loopback, link-local, metadata). A closure that returns a future is a policy.
///
/// A flow waits for the opinion: a connection without an answer to its SYN, datagrams in a short queue.
pub trait Policy: Send + Sync {
    /// Begins a question about `flow`, whose number is that of its [records](crate::Record). The call and each poll of
    /// the future happen on the guest's thread, so neither may block. A guest of several cores has a thread for each:
    /// each may ask the same question once. The future is dropped when its time is over, or
    /// when the guest gives up.
    fn decide(&self, flow: u64, ask: Ask) -> Pin<Box<dyn Future<Output = Opinion> + Send>>;
}

impl<F, T> Policy for F
where
    F: Fn(u64, Ask) -> T + Send + Sync,
    T: Future<Output = Opinion> + Send + 'static,
{
    fn decide(&self, flow: u64, ask: Ask) -> Pin<Box<dyn Future<Output = Opinion> + Send>> {
        Box::pin(self(flow, ask))
    }
}

/// The opinion of a [`Policy`] about a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Opinion {
    pub(crate) says: Says,
    pub(crate) shows: Shows,
    /// The time for which the same question has the same answer.
    pub(crate) keep: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Says {
    Verdict(Verdict),
    Rules,
    Otherwise,
}

/// What a flow must show that an opinion permits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shows {
    /// The address decides.
    pub(crate) nothing: bool,
    /// The names of which the flow must show one; `None`: those of its address.
    pub(crate) names: Option<Arc<[Name]>>,
    /// The ClientHello that shows the name may be an encrypted one.
    pub(crate) encrypted: bool,
}

impl Shows {
    /// What a flow whose address has these names must show; `None`: its address has none of the opinion's names.
    pub(crate) fn owed(&self, names: &Arc<[Name]>) -> Option<Owed> {
        let encrypted = self.encrypted;
        let names = match &self.names {
            _ if self.nothing => return Some(Owed::default()),
            None => Arc::clone(names),
            Some(some) => names.iter().filter(|name| some.contains(name)).cloned().collect(),
        };
        (self.names.is_none() || !names.is_empty()).then_some(Owed { names, encrypted })
    }
}

impl Opinion {
    fn says(says: Says) -> Self {
        Self { says, shows: Shows::default(), keep: Duration::ZERO }
    }

    /// The flow gets this verdict. Where [`Verdict::Allow`] permits a flow whose address has names, the flow must show
    /// one of these names by TLS, HTTP or QUIC.
    pub fn verdict(verdict: Verdict) -> Self {
        Self::says(Says::Verdict(verdict))
    }

    /// The policy has no opinion: the rules decide.
    pub fn rules() -> Self {
        Self::says(Says::Rules)
    }

    /// The policy cannot say: the flow gets the verdict that is stated for want of an answer.
    pub fn otherwise() -> Self {
        Self::says(Says::Otherwise)
    }

    /// The address decides: a permitted flow may show what it likes.
    pub fn by_address(mut self) -> Self {
        self.shows.nothing = true;
        self
    }

    /// A permitted flow must show one of these names. A flow to an address that has none of them is forbidden.
    pub fn names(mut self, names: impl IntoIterator<Item = Name>) -> Self {
        self.shows.names = Some(names.into_iter().collect());
        self
    }

    /// A permitted flow may show its name by an encrypted ClientHello, as browsers send it. The server may find another
    /// name in the encrypted part.
    pub fn encrypted(mut self) -> Self {
        self.shows.encrypted = true;
        self
    }

    /// The same question has this answer for `time`, up to [`POLICY_KEEP`].
    pub fn keep(mut self, time: Duration) -> Self {
        self.keep = time;
        self
    }
}

/// A policy with its time.
#[derive(Clone)]
pub(crate) struct PolicySettings {
    pub(crate) policy: Arc<dyn Policy>,
    /// The time that an opinion may take.
    pub(crate) limit: Duration,
    /// The verdict for want of an opinion.
    pub(crate) otherwise: Verdict,
}

/// The number of a question, which one guest never gives twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct QuestionId(u64);

/// The state of a question after a flow has asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// The rules decide.
    Rules,
    /// The policy has decided.
    Decided { verdict: Verdict, shows: Shows },
    /// The flow is to ask again when [`Desk::turn`] has returned this question.
    Waits(QuestionId),
}

/// The questions of one guest.
pub(crate) struct Desk {
    settings: PolicySettings,
    bell: Arc<OwnedFd>,
    open: HashMap<Key, OpenQuestion>,
    /// Answers of this turn, for the flows that have waited for them.
    fresh: HashMap<Key, Opinion>,
    /// Answers that hold for longer, each until its time.
    kept: HashMap<Key, (Opinion, Instant)>,
    last: u64,
    rate: SharedRate,
    tally: Tally,
    counted: Counted,
}

/// Counts of questions.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counted {
    pub(crate) asked: u64,
    pub(crate) unanswered: u64,
    pub(crate) unasked: u64,
}

/// The parts of a flow that make two questions the same.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    protocol: Protocol,
    to: SocketAddr,
    names: Arc<[Name]>,
}

impl Key {
    fn of(ask: &Ask) -> Self {
        Self { protocol: ask.protocol, to: ask.to, names: Arc::clone(&ask.names) }
    }
}

struct OpenQuestion {
    id: QuestionId,
    future: Pin<Box<dyn Future<Output = Opinion> + Send>>,
    ring: Arc<Ring>,
    until: Instant,
    /// Number of flows that wait.
    waiting: usize,
}

/// The waker of one question.
struct Ring {
    rung: AtomicBool,
    bell: Arc<OwnedFd>,
}

impl Wake for Ring {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            let _ = rustix::io::write(&*self.bell, &1_u64.to_ne_bytes());
        }
    }
}

impl Desk {
    /// # Errors
    /// The process has no descriptor left.
    pub(crate) fn new(
        settings: PolicySettings,
        rate: SharedRate,
        tally: Tally,
    ) -> io::Result<Self> {
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (open, fresh, kept) = (HashMap::new(), HashMap::new(), HashMap::new());
        let counted = Counted::default();
        Ok(Self { settings, bell, open, fresh, kept, last: 0, rate, tally, counted })
    }

    /// The descriptor, which is readable while a future is to be polled.
    pub(crate) fn wait_fd(&self) -> &OwnedFd {
        &self.bell
    }

    pub(crate) fn counted(&self) -> Counted {
        self.counted
    }

    #[cfg(test)]
    pub(crate) fn open(&self) -> usize {
        self.open.len()
    }

    /// Asks about a flow, unless the answer is known.
    pub(crate) fn ask(&mut self, now: Instant, flow: u64, ask: &Ask) -> Asked {
        let key = Key::of(ask);
        if let Some(opinion) = self.fresh.get(&key) {
            return self.decided(opinion.clone());
        }
        match self.kept.get(&key) {
            Some((opinion, until)) if now < *until => return self.decided(opinion.clone()),
            Some(_) => drop(self.kept.remove(&key)),
            None => {}
        }
        if let Some(open) = self.open.get_mut(&key) {
            open.waiting += 1;
            return Asked::Waits(open.id);
        }
        let is_full = self.tally.is_full(Item::Questions, self.open.len(), POLICY_QUESTIONS);
        if is_full || self.rate.take(now).is_err() {
            self.counted.unasked += 1;
            return self.decided(Opinion::otherwise());
        }
        self.counted.asked += 1;
        self.last += 1;
        let future = self.settings.policy.decide(flow, ask.clone());
        let ring = Arc::new(Ring { rung: AtomicBool::new(true), bell: Arc::clone(&self.bell) });
        let (id, until) = (QuestionId(self.last), now + self.settings.limit);
        let mut open = OpenQuestion { id, future, ring, until, waiting: 1 };
        match open.poll() {
            Some(opinion) => {
                self.keep(now, &key, opinion.clone());
                self.decided(opinion)
            }
            None => {
                self.open.insert(key, open);
                Asked::Waits(id)
            }
        }
    }

    fn decided(&self, opinion: Opinion) -> Asked {
        match opinion.says {
            Says::Rules => Asked::Rules,
            Says::Verdict(verdict) => Asked::Decided { verdict, shows: opinion.shows },
            Says::Otherwise => {
                Asked::Decided { verdict: self.settings.otherwise, shows: Shows::default() }
            }
        }
    }

    fn keep(&mut self, now: Instant, key: &Key, opinion: Opinion) {
        let time = opinion.keep.min(POLICY_KEEP);
        if time.is_zero() {
            return;
        }
        let most = self.tally.part_of(POLICY_ANSWERS);
        if self.kept.len() >= most {
            self.kept.retain(|_, (_, until)| now < *until);
        }
        if self.kept.len() < most {
            self.kept.insert(key.clone(), (opinion, now + time));
        }
    }

    /// Notes that a flow waits no longer. A question that nobody waits for ends.
    pub(crate) fn release(&mut self, id: QuestionId) {
        self.open.retain(|_, open| {
            open.waiting -= usize::from(open.id == id);
            open.waiting > 0
        });
    }

    /// Polls the futures that have been woken, and ends those whose time is over. Returns the questions with an answer,
    /// which holds until [`end_turn`](Self::end_turn).
    pub(crate) fn turn(&mut self, now: Instant) -> Vec<QuestionId> {
        let _ = rustix::io::read(&*self.bell, &mut [0; 8]);
        let mut answered: Vec<(Key, Opinion)> = Vec::new();
        for (key, open) in &mut self.open {
            let opinion = open.poll().or_else(|| {
                let is_late = open.until <= now;
                self.counted.unanswered += u64::from(is_late);
                is_late.then(Opinion::otherwise)
            });
            answered.extend(opinion.map(|opinion| (key.clone(), opinion)));
        }
        let mut ids = Vec::new();
        for (key, opinion) in answered {
            self.keep(now, &key, opinion.clone());
            ids.extend(self.open.remove(&key).map(|open| open.id));
            self.fresh.insert(key, opinion);
        }
        ids
    }

    /// Forgets the answers that hold for one turn.
    pub(crate) fn end_turn(&mut self) {
        self.fresh.clear();
    }

    /// Notes how many questions are open.
    pub(crate) fn note_in_use(&self) {
        self.tally.note(Item::Questions, self.open.len());
    }

    /// Ends all questions.
    pub(crate) fn clear(&mut self) {
        self.open.clear();
    }

    /// The time when [`turn`](Self::turn) is due without a waker.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.open.values().map(|open| open.until).min()
    }
}

impl OpenQuestion {
    /// Polls the future, if its waker has been called since the last time.
    fn poll(&mut self) -> Option<Opinion> {
        if !self.ring.rung.swap(false, Ordering::AcqRel) {
            return None;
        }
        let waker = Waker::from(Arc::clone(&self.ring));
        match self.future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(opinion) => Some(opinion),
            Poll::Pending => None,
        }
    }
}
