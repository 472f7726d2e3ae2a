//! Futures over rings: completions are sorted to whoever waits for them.
//!
//! Rings have one application's end, and tasks are many. Whoever is polled takes all completions that
//! are there, keeps its own and wakes the owners of the others.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use pagewire_device::Rule;
use pagewire_mem::{Frag, Region, View};
use pagewire_ring::layout::{COPY_GROUP, NOTICE};
use pagewire_ring::{Completion, Entry, Op, QueueConfig, RegisterError, Submission};

use super::Rings;
use super::buf::RingBuf;

/// Rings for tasks of any executor. Cheap to clone.
///
/// ```
/// use pagewire::device::{Queues, Rule};
/// use pagewire::ring::{EngineConfig, QueueConfig};
/// use pagewire::{Host, Pair, Region};
///
/// let (left, right) = Pair::new(Default::default())?;
/// // A device with a second queue, to which memory can be given; a tap made here has its own.
/// let server = Host::builder().device(Queues::new(left, 2)).address("10.0.0.1/24").start()?;
/// let client = Host::builder().device(right).address("10.0.0.2/24").start()?;
///
/// let memory = |len| Region::memfd("example", len).map(QueueConfig::new);
/// let rings = server.rings(EngineConfig::new(memory(1 << 20)?))?.into_async();
/// let group = rings.register(1, memory(4 << 20)?, &[Rule::tcp_port(9000)])?;
/// let listener = rings.listen("10.0.0.1:9000")?;
///
/// let sender = client.connect("10.0.0.1:9000")?;
/// sender.send(vec![7; 100_000])?;
/// sender.shutdown(std::net::Shutdown::Write)?;
///
/// let total = tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
///     let stream = listener.accept().await?;
///     let mut total = 0;
///     loop {
///         let received = stream.receive(group, 1 << 20).await?;
///         if received.buffers.is_empty() {
///             return std::io::Result::Ok(total);
///         }
///         total += received.len;
///         // The buffers are dropped: the device may fill them again.
///     }
/// })?;
/// assert_eq!(total, 100_000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct AsyncRings(pub(super) Arc<Router>);

/// A listener on rings. Closed when it is dropped.
pub struct RingListener {
    rings: AsyncRings,
    handle: u64,
    local: SocketAddr,
}

/// A connection on rings. Closed when it is dropped.
pub struct RingStream {
    rings: AsyncRings,
    handle: u64,
}

/// What one receive brought, in stream order. Empty: the end of the stream.
#[derive(Debug, Default)]
pub struct Received {
    /// The pieces.
    pub buffers: Vec<RingBuf>,
    /// Bytes in all of them.
    pub len: usize,
}

/// Sorts completions.
pub(super) struct Router(Mutex<State>);

pub(super) struct State {
    rings: Rings,
    /// Operations that somebody waits for, by `user_data`.
    waits: HashMap<u64, Wait>,
    next: u64,
    lent: HashMap<u16, Frag>,
    views: HashMap<u16, View>,
    /// Of each open stream and datagram socket, what receives brought that nobody waited for any
    /// more, the oldest first.
    left: HashMap<u64, VecDeque<Brought>>,
    /// Pieces that found no room in their fill ring.
    unfilled: VecDeque<Entry>,
    /// Submissions that found no room.
    unsubmitted: VecDeque<Submission>,
    notices: VecDeque<Completion>,
    /// To be woken, and to be dropped, once nothing is locked.
    woken: Vec<Waker>,
    replaced: Vec<Waker>,
}

/// What an operation has brought: its completion, and the entries of that.
pub(super) type Brought = (Completion, Vec<Entry>);

/// The state, locked. Wakers are other people's code: they are called, and dropped, after the lock is
/// let go of, because a task may end in there, and give back what it had of these rings.
pub(super) struct Locked<'a> {
    /// Before `later`: fields are dropped in this order.
    state: MutexGuard<'a, State>,
    later: Later,
}

#[derive(Default)]
struct Later {
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
        self.later.woken = std::mem::take(&mut self.state.woken);
        self.later.replaced = std::mem::take(&mut self.state.replaced);
    }
}

impl Drop for Later {
    fn drop(&mut self) {
        self.woken.drain(..).for_each(Waker::wake);
        self.replaced.clear();
    }
}

#[derive(Default)]
struct Wait {
    done: Option<Brought>,
    waker: Option<Waker>,
    /// Nobody waits any more: what comes goes back.
    abandoned: bool,
    what: What,
}

/// What an operation brings, for whoever still wants it when nobody waits any more.
#[derive(Clone, Copy, Default)]
enum What {
    #[default]
    Nothing,
    /// A socket.
    Socket,
    /// The next bytes of this stream, or the next datagram of this socket.
    Bytes(u64),
}

impl Rings {
    /// The same for tasks.
    pub fn into_async(self) -> AsyncRings {
        let views = self.registered(COPY_GROUP).and_then(|copy| copy.view.clone());
        let state = State {
            rings: self,
            waits: HashMap::new(),
            next: 1,
            lent: HashMap::new(),
            views: views.map(|view| (COPY_GROUP, view)).into_iter().collect(),
            left: HashMap::new(),
            unfilled: VecDeque::new(),
            unsubmitted: VecDeque::new(),
            notices: VecDeque::new(),
            woken: Vec::new(),
            replaced: Vec::new(),
        };
        AsyncRings(Arc::new(Router(Mutex::new(state))))
    }
}

impl AsyncRings {
    /// As [`Rings::register`].
    ///
    /// # Errors
    /// [`RegisterError`].
    pub fn register(
        &self,
        queue: usize,
        config: QueueConfig,
        rules: &[Rule],
    ) -> Result<u16, RegisterError> {
        let mut state = self.0.state();
        let group = state.rings.register(queue, config, rules)?;
        // Nobody may have looked at the notice of the group that had the number before.
        state.lent.remove(&group);
        if let Some(view) = state.rings.registered(group).and_then(|found| found.view.clone()) {
            state.views.insert(group, view);
        }
        Ok(group)
    }

    /// As [`Rings::register_lent`].
    ///
    /// # Errors
    /// [`RegisterError`].
    pub fn register_lent(&self, memory: Frag) -> Result<u16, RegisterError> {
        let mut state = self.0.state();
        let group = state.rings.register_lent(memory.clone())?;
        state.views.remove(&group);
        state.lent.insert(group, memory);
        Ok(group)
    }

    /// As [`Rings::register_send`].
    ///
    /// # Errors
    /// [`RegisterError`].
    pub fn register_send(&self, region: Region) -> Result<u16, RegisterError> {
        self.0.state().rings.register_send(region)
    }

    /// As [`Rings::unregister_send`].
    ///
    /// # Errors
    /// [`RegisterError::NoGroup`].
    pub fn unregister_send(&self, group: u16) -> Result<(), RegisterError> {
        self.0.state().rings.unregister_send(group)
    }

    /// As [`Rings::unregister`].
    ///
    /// # Errors
    /// [`RegisterError::NoGroup`].
    pub fn unregister(&self, group: u16) -> Result<(), RegisterError> {
        self.0.state().rings.unregister(group)
    }

    /// A listener.
    ///
    /// # Errors
    /// As [`Rings::listen`].
    pub fn listen(&self, on: impl ToSocketAddrs) -> io::Result<RingListener> {
        let (handle, local) = self.0.state().rings.listen(on)?;
        Ok(RingListener { rings: self.clone(), handle, local })
    }

    /// Opens a connection, to the first of the addresses that answers.
    ///
    /// # Errors
    /// Those of the last address tried: `ConnectionRefused`, `TimedOut`, `NetworkUnreachable`,
    /// `InvalidInput` for port 0 or without an address.
    pub async fn connect(&self, to: impl ToSocketAddrs) -> io::Result<RingStream> {
        let mut last = io::Error::new(io::ErrorKind::InvalidInput, "no address to connect to");
        for to in to.to_socket_addrs()? {
            let (done, _) = self.run(Submission::connect(to, 0)).await;
            match result(&done) {
                Ok(_) => return Ok(RingStream::new(self, done.handle)),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The next notice: fill entries taken, buffers running short, a registration that is over.
    pub async fn notice(&self) -> Completion {
        poll_fn(|cx| {
            let mut state = self.0.state();
            loop {
                state.sort();
                if let Some(notice) = state.notices.pop_front() {
                    return Poll::Ready(notice);
                }
                if state.sleep(cx) {
                    return Poll::Pending;
                }
            }
        })
        .await
    }

    /// Counts so far.
    pub fn counters(&self) -> pagewire_ring::Counters {
        self.0.state().rings.counters()
    }

    /// Submits, and waits for the one completion.
    pub(super) async fn run(&self, submission: Submission) -> Brought {
        let user_data = self.0.state().begin(submission);
        let operation = Operation { rings: self, user_data, target: submission.target };
        poll_fn(|cx| self.0.state().poll(user_data, cx)).await.inspect_done(operation)
    }
}

impl AsyncRings {
    /// Buffers of entries that were just taken out of the ring.
    pub(super) fn buffers(&self, mut state: Locked<'_>, entries: Vec<Entry>) -> Vec<RingBuf> {
        let mut buffers = Vec::with_capacity(entries.len());
        for entry in entries {
            match state.bytes_of(entry) {
                Some(frag) => buffers.push(RingBuf::new(frag, entry, Arc::clone(&self.0))),
                None => state.give_back(entry),
            }
        }
        buffers
    }
}

/// An operation under way; dropped before its end, it is cancelled.
struct Operation<'a> {
    rings: &'a AsyncRings,
    user_data: u64,
    target: u64,
}

trait InspectDone: Sized {
    fn inspect_done(self, operation: Operation<'_>) -> Self;
}

impl InspectDone for Brought {
    fn inspect_done(self, operation: Operation<'_>) -> Self {
        std::mem::forget(operation);
        self
    }
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        let mut state = self.rings.0.state();
        match state.waits.remove(&self.user_data) {
            Some(Wait { done: Some((done, entries)), what, .. }) => {
                state.unwanted(what, done, entries);
            }
            Some(mut wait) => {
                state.replaced.extend(wait.waker.take());
                let abandoned = Wait { abandoned: true, ..wait };
                state.waits.insert(self.user_data, abandoned);
                let what = self.user_data;
                state.begin(Submission::cancel(self.target, what, 0));
            }
            None => {}
        }
    }
}

impl RingListener {
    /// The next connection.
    ///
    /// # Errors
    /// What the listener or the connection met.
    pub async fn accept(&self) -> io::Result<RingStream> {
        let (done, _) = self.rings.run(Submission::new(Op::Accept, self.handle, 0)).await;
        result(&done)?;
        Ok(RingStream::new(&self.rings, done.handle))
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }
}

impl RingStream {
    fn new(rings: &AsyncRings, handle: u64) -> Self {
        rings.0.open(handle);
        Self { rings: rings.clone(), handle }
    }

    /// What has arrived, up to `limit` bytes, once something has; by reference where it lies in a
    /// registered group and `group` names one.
    ///
    /// May be given up at any time (a timeout, a `select!`): what it had received is what the next
    /// receive returns, whatever that one's limit.
    ///
    /// # Errors
    /// What the connection met. `ResourceBusy` while another task receives.
    pub async fn receive(&self, group: u16, limit: usize) -> io::Result<Received> {
        if let Some(received) = self.left_over() {
            return Ok(received);
        }
        let submission = Submission::receive(self.handle, group, limit.max(1) as u64, 0);
        let (done, entries) = self.rings.run(submission).await;
        let mut state = self.rings.0.state();
        let mut all = state.bytes_left(self.handle);
        all.extend(entries);
        if all.is_empty() {
            drop(state);
            result(&done)?;
            return Ok(Received::default());
        }
        // The end, or an error, is told again to who asks again.
        Ok(self.received(state, all))
    }

    /// What an earlier receive has brought, if nobody waited for it any more.
    fn left_over(&self) -> Option<Received> {
        let mut state = self.rings.0.state();
        state.sort();
        let left = state.bytes_left(self.handle);
        (!left.is_empty()).then(|| self.received(state, left))
    }

    fn received(&self, state: Locked<'_>, entries: Vec<Entry>) -> Received {
        let buffers = self.rings.buffers(state, entries);
        Received { len: buffers.iter().map(RingBuf::len).sum(), buffers }
    }

    /// Sends `len` bytes from `offset` of a send group; returns how many, once the memory is the
    /// caller's again.
    ///
    /// # Errors
    /// What the connection met.
    pub async fn send(&self, group: u16, offset: u32, len: u32) -> io::Result<usize> {
        let submission = Submission::send(self.handle, group, offset, len, 0);
        let (done, _) = self.rings.run(submission).await;
        result(&done)
    }

    /// Ends the sending direction.
    ///
    /// # Errors
    /// What the connection met.
    pub async fn shutdown(&self) -> io::Result<()> {
        let (done, _) = self.rings.run(Submission::new(Op::Shutdown, self.handle, 0)).await;
        result(&done).map(|_| ())
    }
}

impl Drop for RingListener {
    fn drop(&mut self) {
        self.rings.0.close(self.handle);
    }
}

impl Drop for RingStream {
    fn drop(&mut self) {
        self.rings.0.close(self.handle);
    }
}

impl std::fmt::Debug for AsyncRings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AsyncRings").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for RingListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RingListener({})", self.local)
    }
}

impl std::fmt::Debug for RingStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RingStream({:#x})", self.handle)
    }
}

pub(super) fn result(done: &Completion) -> io::Result<usize> {
    usize::try_from(done.result).map_err(|_| io::Error::from_raw_os_error(-done.result))
}

impl Router {
    pub(super) fn state(&self) -> Locked<'_> {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Locked { state, later: Later::default() }
    }

    pub(super) fn give_back(&self, entry: Entry) {
        let mut state = self.state();
        state.give_back(entry);
        state.rings.flush();
    }

    /// What is received on a new socket may be left over.
    pub(super) fn open(&self, handle: u64) {
        self.state().left.insert(handle, VecDeque::new());
    }

    pub(super) fn close(&self, handle: u64) {
        let mut state = self.state();
        let left = state.left.remove(&handle).unwrap_or_default();
        left.into_iter().flat_map(|(_, entries)| entries).for_each(|e| state.give_back(e));
        state.begin(Submission::new(Op::Close, handle, 0));
    }
}

impl State {
    /// Submits under a new number; of closes and cancels nobody awaits the answer.
    fn begin(&mut self, submission: Submission) -> u64 {
        let user_data = self.next;
        self.next += 1;
        if self.next == NOTICE {
            self.next += 1;
        }
        let op = Op::from_number(submission.op);
        if !matches!(op, Some(Op::Close | Op::Cancel)) {
            let what = match op {
                Some(Op::Accept | Op::Bind) => What::Socket,
                Some(Op::Connect) if submission.target == 0 => What::Socket,
                Some(Op::Receive) => What::Bytes(submission.target),
                _ => What::Nothing,
            };
            self.waits.insert(user_data, Wait { what, ..Wait::default() });
        }
        self.unsubmitted.push_back(Submission { user_data, ..submission });
        self.move_on();
        user_data
    }

    /// Puts in what had no room.
    fn move_on(&mut self) {
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

    fn give_back(&mut self, entry: Entry) {
        if !self.rings.give_back(entry) {
            self.unfilled.push_back(entry);
        }
    }

    /// The answer to `user_data`, if it is there.
    fn poll(&mut self, user_data: u64, cx: &mut Context<'_>) -> Poll<(Completion, Vec<Entry>)> {
        loop {
            self.sort();
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

    /// What is left of a stream's bytes.
    fn bytes_left(&mut self, handle: u64) -> Vec<Entry> {
        let left = self.left.get_mut(&handle).map(std::mem::take).unwrap_or_default();
        left.into_iter().flat_map(|(_, entries)| entries).collect()
    }

    /// The oldest datagram that is left; behind it, `newest`.
    pub(super) fn datagram_left(
        &mut self,
        handle: u64,
        newest: Option<Brought>,
    ) -> Option<Brought> {
        let left = self.left.entry(handle).or_default();
        left.extend(newest);
        left.pop_front()
    }

    /// Takes all completions that are there.
    pub(super) fn sort(&mut self) {
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
                    self.unwanted(wait.unwrap_or_default().what, completion, entries);
                }
            }
        }
        self.move_on();
    }

    /// What came for somebody who waits no longer: bytes are for the socket's next receive, a new
    /// socket is closed.
    fn unwanted(&mut self, what: What, done: Completion, entries: Vec<Entry>) {
        match what {
            What::Bytes(handle) if let Some(left) = self.left.get_mut(&handle) => {
                // An empty datagram is one, too; an end or an error is told again to who asks again.
                if done.has(Completion::DATAGRAM) || !entries.is_empty() {
                    left.push_back((done, entries));
                }
                return;
            }
            What::Socket if done.result == 0 => {
                self.unsubmitted.push_back(Submission::new(Op::Close, done.handle, 0));
            }
            _ => {}
        }
        entries.into_iter().for_each(|entry| self.give_back(entry));
        self.move_on();
    }

    /// Has the task woken by the next completion; `false`: there is one already.
    fn sleep(&mut self, cx: &Context<'_>) -> bool {
        self.rings.waker.register(cx.waker());
        self.rings.ends.completions.arm()
    }

    /// The bytes of an entry that was just taken out of the ring.
    fn bytes_of(&self, entry: Entry) -> Option<Frag> {
        let (offset, len) = (entry.offset as usize, entry.len as usize);
        match self.lent.get(&entry.group) {
            Some(whole) => Some(whole.slice(offset..offset + len)),
            None => {
                let view = self.views.get(&entry.group)?;
                // SAFETY: the entry is as the engine wrote it: the rings are this value's alone,
                // made with it, and their memory is reached by nobody else. What it names was handed
                // out for it, and it is given back only when the buffer made of it is dropped.
                #[allow(unsafe_code)]
                unsafe {
                    view.delivered(offset, len)
                }
            }
        }
    }
}

/// Notices that nobody has asked for are forgotten beyond so many, the oldest first.
const MAX_NOTICES: usize = 1024;
