//! The router of [`AsyncRings`](super::AsyncRings): hands the completions of rings to the tasks that wait for
//! them, and keeps the results of operations whose task is gone.

use std::collections::{HashMap, VecDeque};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use pagewire_mem::{Frag, View};
use pagewire_ring::layout::{COPY_GROUP, NOTICE};
use pagewire_ring::{Completion, Entry, Op, Submission};

use super::Rings;
use crate::host::Host;

/// Rings that many tasks share.
pub(super) struct Router {
    state: Mutex<State>,
    pub(super) host: Host,
}

/// The part of a [`Router`] that its lock guards.
pub(super) struct State {
    pub(super) rings: Rings,
    /// Operations that tasks wait for, by `user_data`.
    waits: HashMap<u64, PendingOperation>,
    next: u64,
    /// The memory of lent groups.
    pub(super) lent: HashMap<u16, Frag>,
    /// The views of the groups with shared memory.
    pub(super) views: HashMap<u16, View>,
    /// The results of abandoned receives of each open stream and datagram socket, oldest first.
    pub(super) undelivered: HashMap<u64, VecDeque<OperationResult>>,
    /// Entries that their fill ring had no room for.
    pub(super) unfilled: VecDeque<Entry>,
    /// Submissions that the ring had no room for.
    unsubmitted: VecDeque<Submission>,
    pub(super) notices: VecDeque<Completion>,
    /// Wakers to be called, and to be dropped, when the lock is released.
    woken: Vec<Waker>,
    replaced: Vec<Waker>,
}

/// The result of an operation: its completion and entries.
pub(super) type OperationResult = (Completion, Vec<Entry>);

/// The locked state. Wakers are the application's code: they are called, and dropped, after the lock is
/// released, because a task that ends there may give back its buffers of these rings.
pub(super) struct Locked<'a> {
    /// Before `after_unlock`: fields are dropped in this order.
    state: MutexGuard<'a, State>,
    after_unlock: AfterUnlock,
}

/// Wakers that are called, and dropped, by the drop of this value.
#[derive(Default)]
struct AfterUnlock {
    woken: Vec<Waker>,
    replaced: Vec<Waker>,
}

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.after_unlock.woken = std::mem::take(&mut self.state.woken);
        self.after_unlock.replaced = std::mem::take(&mut self.state.replaced);
    }
}

impl Drop for AfterUnlock {
    fn drop(&mut self) {
        self.woken.drain(..).for_each(Waker::wake);
        self.replaced.clear();
    }
}

/// An operation that was submitted, and its task.
#[derive(Default)]
struct PendingOperation {
    done: Option<OperationResult>,
    waker: Option<Waker>,
    /// The task waits no more: the result is kept for the next receive, or undone.
    abandoned: bool,
    kind: ResultKind,
}

/// The kind of an operation's result, which decides where the result goes if its task waits no more.
#[derive(Clone, Copy, Default)]
enum ResultKind {
    #[default]
    Nothing,
    /// A socket.
    Socket,
    /// The next bytes of this stream, or the next datagram of this socket.
    Bytes(u64),
}

impl Router {
    pub(super) fn new(rings: Rings) -> Arc<Self> {
        let views = rings.registered(COPY_GROUP).and_then(|copy| copy.view.clone());
        let host = rings.host.clone();
        let state = State {
            rings,
            waits: HashMap::new(),
            next: 1,
            lent: HashMap::new(),
            views: views.map(|view| (COPY_GROUP, view)).into_iter().collect(),
            undelivered: HashMap::new(),
            unfilled: VecDeque::new(),
            unsubmitted: VecDeque::new(),
            notices: VecDeque::new(),
            woken: Vec::new(),
            replaced: Vec::new(),
        };
        Arc::new(Self { state: Mutex::new(state), host })
    }

    /// Takes the lock; a thread with the host's lock takes it [once the host is unlocked](Self::when_unlocked).
    pub(super) fn state(&self) -> Locked<'_> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        Locked { state, after_unlock: AfterUnlock::default() }
    }

    /// Runs `op` once the host is unlocked: drops may come in code that the host calls under its lock. See
    /// [`Handle::when_unlocked`](crate::host::Handle::when_unlocked).
    fn when_unlocked(self: &Arc<Self>, op: impl FnOnce(&mut State) + Send + Sync + 'static) {
        let router = Arc::clone(self);
        self.host.handle().when_unlocked(move |_| op(&mut router.state()));
    }

    pub(super) fn give_back(self: &Arc<Self>, entry: Entry) {
        self.when_unlocked(move |state| {
            state.give_back(entry);
            state.rings.flush();
        });
    }

    /// Keeps results of abandoned receives of a new socket.
    pub(super) fn open(&self, handle: u64) {
        self.state().undelivered.insert(handle, VecDeque::new());
    }

    pub(super) fn close(self: &Arc<Self>, handle: u64) {
        self.when_unlocked(move |state| {
            let left = state.undelivered.remove(&handle).unwrap_or_default();
            left.into_iter().flat_map(|(_, entries)| entries).for_each(|e| state.give_back(e));
            state.begin(Submission::new(Op::Close, handle, 0));
        });
    }

    /// Cancels an operation on `target` whose task waits no more.
    pub(super) fn abandon(self: &Arc<Self>, user_data: u64, target: u64) {
        self.when_unlocked(move |state| match state.waits.remove(&user_data) {
            Some(PendingOperation { done: Some((done, entries)), kind, .. }) => {
                state.keep_abandoned(kind, done, entries);
            }
            Some(mut wait) => {
                state.replaced.extend(wait.waker.take());
                let abandoned = PendingOperation { abandoned: true, ..wait };
                state.waits.insert(user_data, abandoned);
                state.begin(Submission::cancel(target, user_data, 0));
            }
            None => {}
        });
    }
}

impl State {
    /// Submits under a new number; the answers to closes and cancels are ignored.
    pub(super) fn begin(&mut self, submission: Submission) -> u64 {
        let user_data = self.next;
        self.next += 1;
        if self.next == NOTICE {
            self.next += 1;
        }
        let op = Op::from_number(submission.op);
        if !matches!(op, Some(Op::Close | Op::Cancel)) {
            let kind = match op {
                Some(Op::Accept | Op::Bind) => ResultKind::Socket,
                Some(Op::Connect) if submission.target == 0 => ResultKind::Socket,
                Some(Op::Receive) => ResultKind::Bytes(submission.target),
                _ => ResultKind::Nothing,
            };
            self.waits.insert(user_data, PendingOperation { kind, ..PendingOperation::default() });
        }
        self.unsubmitted.push_back(Submission { user_data, ..submission });
        self.retry_queued();
        user_data
    }

    /// Retries submissions and fill entries that the rings had no room for.
    pub(super) fn retry_queued(&mut self) {
        while let Some(submission) = self.unsubmitted.pop_front() {
            if !self.rings.submit(submission) {
                self.unsubmitted.push_front(submission);
                break;
            }
        }
        for _ in 0..self.unfilled.len() {
            let Some(entry) = self.unfilled.pop_front() else { break };
            self.give_back(entry);
        }
        self.rings.flush();
    }

    pub(super) fn give_back(&mut self, entry: Entry) {
        if !self.rings.give_back(entry) {
            self.unfilled.push_back(entry);
        }
    }

    /// The result for `user_data`, if it is there.
    pub(super) fn poll(
        &mut self,
        user_data: u64,
        cx: &mut Context<'_>,
    ) -> Poll<(Completion, Vec<Entry>)> {
        loop {
            self.take_completions();
            if self.waits.get(&user_data).is_none_or(|wait| wait.done.is_some())
                && let Some(done) = self.waits.remove(&user_data).and_then(|wait| wait.done)
            {
                return Poll::Ready(done);
            }
            if let Some(wait) = self.waits.get_mut(&user_data) {
                self.replaced.extend(wait.waker.replace(cx.waker().clone()));
            }
            if self.sleep(cx) {
                return Poll::Pending;
            }
        }
    }

    /// Bytes of a stream's abandoned receives.
    pub(super) fn take_undelivered_bytes(&mut self, handle: u64) -> Vec<Entry> {
        let left = self.undelivered.get_mut(&handle).map(std::mem::take).unwrap_or_default();
        left.into_iter().flat_map(|(_, entries)| entries).collect()
    }

    /// Adds `newest` to the datagrams of abandoned receives, and removes the oldest.
    pub(super) fn next_undelivered_datagram(
        &mut self,
        handle: u64,
        newest: Option<OperationResult>,
    ) -> Option<OperationResult> {
        let left = self.undelivered.entry(handle).or_default();
        left.extend(newest);
        left.pop_front()
    }

    /// Takes all completions from the ring, and wakes their tasks.
    pub(super) fn take_completions(&mut self) {
        while let Some(completion) = self.rings.next_completion() {
            let mut entries = Vec::with_capacity(completion.entries as usize);
            for _ in 0..completion.entries {
                entries.extend(self.rings.next_entry());
            }
            if completion.user_data == NOTICE {
                if completion.has(Completion::UNREGISTERED) {
                    let group = completion.handle as u16;
                    if self.rings.registered(group).is_none() {
                        self.views.remove(&group);
                        self.lent.remove(&group);
                    }
                }
                self.notices.push_back(completion);
                if self.notices.len() > MAX_NOTICES {
                    self.notices.pop_front();
                }
                continue;
            }
            match self.waits.get_mut(&completion.user_data) {
                Some(wait) if !wait.abandoned => {
                    wait.done = Some((completion, entries));
                    self.woken.extend(wait.waker.take());
                }
                _ => {
                    let wait = self.waits.remove(&completion.user_data);
                    self.keep_abandoned(wait.unwrap_or_default().kind, completion, entries);
                }
            }
        }
        self.retry_queued();
    }

    /// Keeps the bytes of an abandoned operation for the next receive; closes a new socket.
    fn keep_abandoned(&mut self, kind: ResultKind, done: Completion, entries: Vec<Entry>) {
        match kind {
            ResultKind::Bytes(handle) if let Some(left) = self.undelivered.get_mut(&handle) => {
                // An empty datagram counts; an end or an error is reported again to the next receive.
                if done.has(Completion::DATAGRAM) || !entries.is_empty() {
                    left.push_back((done, entries));
                }
                return;
            }
            ResultKind::Socket if done.result == 0 => {
                self.unsubmitted.push_back(Submission::new(Op::Close, done.handle, 0));
            }
            _ => {}
        }
        entries.into_iter().for_each(|entry| self.give_back(entry));
        self.retry_queued();
    }

    /// Registers the task for the next completion; `false`: there is one already.
    pub(super) fn sleep(&mut self, cx: &Context<'_>) -> bool {
        self.rings.waker.register(cx.waker());
        self.rings.ends.completions.arm()
    }

    /// The bytes of an entry that was just taken from the ring.
    pub(super) fn bytes_of(&self, entry: Entry) -> Option<Frag> {
        let (offset, len) = (entry.offset as usize, entry.len as usize);
        match self.lent.get(&entry.group) {
            Some(whole) => Some(whole.slice(offset..offset + len)),
            None => {
                let view = self.views.get(&entry.group)?;
                // SAFETY: the entry is as the engine wrote it: the rings are this value's alone,
                // made with it, and no other code reaches their memory. The memory that the entry names was handed
                // out for it, and it is given back only when the buffer made of it is dropped.
                #[allow(unsafe_code)]
                unsafe {
                    view.delivered(offset, len)
                }
            }
        }
    }
}

/// Unread notices that are kept; the oldest are forgotten first.
const MAX_NOTICES: usize = 1024;
