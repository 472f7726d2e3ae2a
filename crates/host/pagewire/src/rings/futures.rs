//! Futures over rings, which have one application end but many tasks: a task that is polled takes
//! all completions, keeps its own and wakes the owners of the others.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;

use pagewire_device::Rule;
use pagewire_mem::{Frag, Region};
use pagewire_ring::{Completion, Entry, Op, QueueConfig, RegisterError, Submission};

use super::Rings;
use super::buf::RingBuf;
use super::router::{Locked, OperationResult, Router};
use pagewire_sockets::{ToSocketAddrs, resolve};

/// Rings for tasks of any executor. Cheap to clone.
///
/// ```
/// use pagewire::device::{Queues, Rule};
/// use pagewire::memory::Region;
/// use pagewire::rings::{EngineConfig, QueueConfig};
/// use pagewire::{Host, Pair};
///
/// let (left, right) = Pair::new()?;
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

/// A listener on rings. A drop closes it.
pub struct RingListener {
    rings: AsyncRings,
    handle: u64,
    local: SocketAddr,
}

/// A connection on rings. A drop closes it.
pub struct RingStream {
    rings: AsyncRings,
    handle: u64,
}

/// The bytes of one receive, in stream order. Empty: the end of the stream.
#[derive(Debug, Default)]
pub struct Received {
    /// The pieces.
    pub buffers: Vec<RingBuf>,
    /// Bytes in all of them.
    pub len: usize,
}

impl Rings {
    /// Rings for tasks.
    pub fn into_async(self) -> AsyncRings {
        AsyncRings(Router::new(self))
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
        // The notice of an earlier group with this number may not have been read.
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

    /// Listens on the first usable address.
    ///
    /// # Errors
    /// As [`Rings::listen`].
    pub fn listen(&self, on: impl ToSocketAddrs) -> io::Result<RingListener> {
        let (handle, local) = self.0.state().rings.listen(on)?;
        Ok(RingListener { rings: self.clone(), handle, local })
    }

    /// Opens a connection to the first address that answers.
    ///
    /// # Errors
    /// The error of the last address tried: `ConnectionRefused`, `TimedOut`, `NetworkUnreachable`,
    /// `InvalidInput` for port 0 or without an address.
    pub async fn connect(&self, to: impl ToSocketAddrs) -> io::Result<RingStream> {
        let (found, mut last) = (resolve(&self.0.host, to).await?, None);
        for to in found {
            let (done, _) = self.run(Submission::connect(to, 0)).await;
            match result(&done) {
                Ok(_) => return Ok(RingStream::new(self, done.handle)),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| io::ErrorKind::InvalidInput.into()))
    }

    /// The next notice: fill entries taken, buffers running short, a registration that is over.
    pub async fn notice(&self) -> Completion {
        poll_fn(|cx| {
            let mut state = self.0.state();
            loop {
                state.take_completions();
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
    pub(super) async fn run(&self, submission: Submission) -> OperationResult {
        let user_data = self.0.state().begin(submission);
        let operation = Operation { rings: self, user_data, target: submission.target };
        let result = poll_fn(|cx| self.0.state().poll(user_data, cx)).await;
        std::mem::forget(operation);
        result
    }
}

impl AsyncRings {
    /// Makes buffers of entries that were just taken from the ring.
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

/// An operation under way; a drop before its end cancels it.
struct Operation<'a> {
    rings: &'a AsyncRings,
    user_data: u64,
    target: u64,
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        self.rings.0.abandon(self.user_data, self.target);
    }
}

impl RingListener {
    /// Accepts the next connection.
    ///
    /// # Errors
    /// The error of the listener or the connection.
    pub async fn accept(&self) -> io::Result<RingStream> {
        let (done, _) = self.rings.run(Submission::new(Op::Accept, self.handle, 0)).await;
        result(&done)?;
        Ok(RingStream::new(&self.rings, done.handle))
    }

    /// The listener's address.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }
}

impl RingStream {
    fn new(rings: &AsyncRings, handle: u64) -> Self {
        rings.0.open(handle);
        Self { rings: rings.clone(), handle }
    }

    /// The next bytes, up to `limit`; by reference if they lie in the registered group `group`.
    ///
    /// The future may be dropped at any time (a timeout, a `select!`): the next receive returns the bytes
    /// that it had received, whatever its limit.
    ///
    /// # Errors
    /// The error of the connection. `ResourceBusy` while another task receives.
    pub async fn receive(&self, group: u16, limit: usize) -> io::Result<Received> {
        if let Some(received) = self.left_over() {
            return Ok(received);
        }
        let submission = Submission::receive(self.handle, group, limit.max(1) as u64, 0);
        let (done, entries) = self.rings.run(submission).await;
        let mut state = self.rings.0.state();
        let mut all = state.take_undelivered_bytes(self.handle);
        all.extend(entries);
        if all.is_empty() {
            drop(state);
            result(&done)?;
            return Ok(Received::default());
        }
        // The next receive reports the end, or an error, again.
        Ok(self.received(state, all))
    }

    /// The bytes of an earlier receive whose future was dropped.
    fn left_over(&self) -> Option<Received> {
        let mut state = self.rings.0.state();
        state.take_completions();
        let left = state.take_undelivered_bytes(self.handle);
        (!left.is_empty()).then(|| self.received(state, left))
    }

    fn received(&self, state: Locked<'_>, entries: Vec<Entry>) -> Received {
        let buffers = self.rings.buffers(state, entries);
        Received { len: buffers.iter().map(RingBuf::len).sum(), buffers }
    }

    /// Sends `len` bytes from `offset` of a send group; how many, once the memory is free again.
    ///
    /// # Errors
    /// The error of the connection.
    pub async fn send(&self, group: u16, offset: u32, len: u32) -> io::Result<usize> {
        let submission = Submission::send(self.handle, group, offset, len, 0);
        let (done, _) = self.rings.run(submission).await;
        result(&done)
    }

    /// Ends the sending direction.
    ///
    /// # Errors
    /// The error of the connection.
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
