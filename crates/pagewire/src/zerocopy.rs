//! Byte path, steps S1 and S7, as programs see them: sends by reference that say when the memory may
//! be used again (the contract of Linux's MSG_ZEROCOPY).
//!
//! Every send by reference keeps its memory until it is let go; what is here also tells when. That
//! matters for memory that is to be used again rather than freed. Read [`TcpStream::send_zc`] first.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::OnceLock;

use pagewire_mem::{Frag, FragVec, PAGE_SIZE, PageBudget};
use pagewire_stack::{Error, Notification, SendFlags, SocketId, Stack, ZeroCopyCall};

use crate::buf::SendBuf;
use crate::handle::Handle;
use crate::shared::{Clock, Interest, io_error};
use crate::tcp::{Socket, TcpStream};
use crate::udp::{UdpSocket, first};

/// What a send took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Bytes.
    pub bytes: usize,
    /// The number under which the send completes. `None`: nothing will be told, because the socket
    /// has not opted in (the data was copied) or there was nothing to send.
    pub id: Option<u32>,
}

/// Sends whose memory nobody refers to any more: it may be used again.
///
/// That is neither "sent" nor "acknowledged"; for TCP it follows the acknowledgement of the last
/// byte. Completions usually come in order, but need not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Their ids: one for each call, counted from 0 on each socket; 0 follows 4,294,967,295.
    pub ids: RangeInclusive<u32>,
    /// Whether data was copied on the way after all: the device could not gather, the packet was for
    /// this host itself, or a receiver on the pair link kept it waiting
    /// ([`Builder::received_deadline`](crate::Builder::received_deadline)).
    pub copied: bool,
}

/// The completions of a socket that are there now; see [`TcpStream::completions`].
pub struct Completions<'a> {
    host: &'a Handle,
    id: SocketId,
}

impl TcpStream {
    /// Opts in to zero-copy sends (or out again). Without this, [`send_zc`](Self::send_zc) copies. A
    /// connection has what its listener had when it came
    /// ([`TcpListener::set_zerocopy`](crate::TcpListener::set_zerocopy)).
    pub fn set_zerocopy(&self, on: bool) -> io::Result<()> {
        self.0.set_zerocopy(on)
    }

    /// Whether the socket has opted in.
    pub fn zerocopy(&self) -> io::Result<bool> {
        self.0.host.shared.lock().stack.zerocopy(self.0.id).map_err(io_error)
    }

    /// Queues memory by reference and waits until all of it is queued. It completes as one: when
    /// nobody refers to it any more, its id is among [`completions`](Self::completions). Each piece
    /// of `buf` is a fragment; a packet has at most 17, so a few long pieces are better than many
    /// short ones.
    ///
    /// Calls that go on in memory where the last one ended (ranges of one
    /// [`Region`](crate::Region::frag), slices of one [`Frag`]; of two `Bytes` nobody knows it) are the
    /// cheapest: while they wait to become a full segment, or a full super-frame on the pair link
    /// (unless [`set_nodelay`](TcpStream::set_nodelay) is on), each costs little more than a lock, and
    /// they complete together. Read completions now and then, or sends will fail with `ENOBUFS`.
    ///
    /// On a non-blocking stream there may be room for a part only: what is sent next begins
    /// [`bytes`](Sent::bytes) further on, so keep a way to name it, such as the region or a clone.
    ///
    /// ```
    /// # use pagewire::{Host, Pair};
    /// # let (left, right) = Pair::new(Default::default())?;
    /// # let server = Host::builder().device(left).address("10.0.0.1/24").start()?;
    /// # let client = Host::builder().device(right).address("10.0.0.2/24").start()?;
    /// # let listener = server.listen("10.0.0.1:9000")?;
    /// let conn = client.connect("10.0.0.1:9000")?;
    /// # let (peer, _) = listener.accept()?;
    /// conn.set_zerocopy(true)?;
    /// let sent = conn.send_zc(vec![7; 100_000])?;
    /// # drop(std::thread::spawn(move || while peer.recv_chunks(1 << 20).is_ok_and(|c| !c.is_empty()) {}));
    /// let done = conn.wait_completion()?.expect("one is to come");
    /// assert_eq!((Some(*done.ids.start()), done.copied), (sent.id, false));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`send`](Self::send), and `ENOBUFS`: too many notifications are unread or to come,
    /// or too many pages are held ([`Builder::zerocopy_memory`](crate::Builder::zerocopy_memory)).
    /// If something was queued before the error, that is what is returned. A call that queues
    /// nothing takes no id.
    pub fn send_zc(&self, buf: impl Into<SendBuf>) -> io::Result<Sent> {
        let mut buf = buf.into();
        self.send_all_zc(&mut buf.frags)
    }

    /// [`send_zc`](Self::send_zc) of memory that the caller keeps: addresses and lengths.
    ///
    /// # Safety
    /// Every piece is readable, and freed or unmapped only after its id was among
    /// [`completions`](Self::completions). If the connection is dropped first: after that (the host
    /// makes copies of what the peer does not have yet), and after every receiver in this process
    /// that got it by reference has let go. Nobody forms a `&mut` to it until then. Bytes that are
    /// changed meanwhile may be sent as they were or as they are, nothing else goes wrong.
    #[allow(unsafe_code, reason = "the caller keeps memory that nothing here can")]
    pub unsafe fn send_zc_raw(
        &self,
        pieces: &[(std::ptr::NonNull<u8>, usize)],
    ) -> io::Result<Sent> {
        // SAFETY: the caller's promise, word by word.
        let lent = |&(at, len): &_| unsafe { Frag::lent(at, len) };
        self.send_all_zc(&mut pieces.iter().map(lent).collect())
    }

    fn send_all_zc(&self, frags: &mut FragVec) -> io::Result<Sent> {
        let (id, patience) = (self.0.id, self.0.patience(Interest::Write));
        let (mut call, mut bytes) = (ZeroCopyCall::new(), 0);
        while frags.iter().any(|frag| !frag.is_empty()) {
            let send = |stack: &mut Stack, clock: &Clock<'_>| {
                let data = (&mut *frags, &mut call);
                stack.tcp(id)?.send(|| clock.now(), data, SendFlags::empty())
            };
            match self.0.host.shared.wait_quick(id, Interest::Write, patience, send) {
                Ok(n) => bytes += n,
                Err(error) if bytes == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(Sent { bytes, id: call.id() })
    }

    /// The completions that are there now, oldest first; never waits. Each is given once. Those that
    /// follow each other and say the same of copies come as one.
    pub fn completions(&self) -> Completions<'_> {
        self.0.completions()
    }

    /// Waits for a completion, at most as long as for data
    /// ([`set_read_timeout`](Self::set_read_timeout)). `None`: no send is outstanding.
    ///
    /// # Errors
    /// `WouldBlock` on a non-blocking stream, `TimedOut`.
    pub fn wait_completion(&self) -> io::Result<Option<Completion>> {
        self.0.wait_completion()
    }
}

impl UdpSocket {
    /// Opts in to zero-copy sends (or out again); see [`TcpStream::set_zerocopy`].
    pub fn set_zerocopy(&self, on: bool) -> io::Result<()> {
        self.0.set_zerocopy(on)
    }

    /// Sends a datagram by reference; its id is among [`completions`](Self::completions) when
    /// nobody refers to the memory any more. One in more than 17 pieces is copied.
    ///
    /// # Errors
    /// Those of [`send_buf_to`](Self::send_buf_to), and `ENOBUFS` as for [`TcpStream::send_zc`].
    pub fn send_zc_to(&self, data: impl Into<SendBuf>, to: impl ToSocketAddrs) -> io::Result<Sent> {
        self.send_frags_zc(data.into(), Some(first(to)?))
    }

    /// [`send_zc_to`](Self::send_zc_to) where the socket is connected.
    pub fn send_zc(&self, data: impl Into<SendBuf>) -> io::Result<Sent> {
        self.send_frags_zc(data.into(), None)
    }

    /// [`send_zc_to`](Self::send_zc_to) of memory that the caller keeps.
    ///
    /// # Safety
    /// As for [`TcpStream::send_zc_raw`]; what is with the device when the socket is dropped is not
    /// copied.
    #[allow(unsafe_code, reason = "the caller keeps memory that nothing here can")]
    pub unsafe fn send_zc_raw_to(
        &self,
        pieces: &[(std::ptr::NonNull<u8>, usize)],
        to: impl ToSocketAddrs,
    ) -> io::Result<Sent> {
        // SAFETY: the caller's promise, word by word.
        let lent = |&(at, len): &_| unsafe { Frag::lent(at, len) };
        self.send_frags_zc(pieces.iter().map(lent).collect(), Some(first(to)?))
    }

    /// The completions that are there now; see [`TcpStream::completions`].
    pub fn completions(&self) -> Completions<'_> {
        self.0.completions()
    }

    /// Waits for a completion; see [`TcpStream::wait_completion`].
    pub fn wait_completion(&self) -> io::Result<Option<Completion>> {
        self.0.wait_completion()
    }

    fn send_frags_zc(&self, data: SendBuf, to: Option<SocketAddr>) -> io::Result<Sent> {
        let (id, patience) = (self.0.id, self.0.patience(Interest::Write));
        let (bytes, id) = self.0.host.wait(id, Interest::Write, patience, |stack, now| {
            stack.udp(id).and_then(|mut udp| {
                let mut call = ZeroCopyCall::new();
                let sent = udp.send(now, (data.frags.clone(), &mut call), to)?;
                Ok((sent, call.id()))
            })
        })?;
        Ok(Sent { bytes, id })
    }
}

impl<Id: Copy + Into<SocketId>> Socket<Id> {
    pub(crate) fn set_zerocopy(&self, on: bool) -> io::Result<()> {
        self.host.shared.lock().stack.set_zerocopy(self.id, on).map_err(io_error)
    }

    fn completions(&self) -> Completions<'_> {
        Completions { host: &self.host, id: self.id.into() }
    }

    fn wait_completion(&self) -> io::Result<Option<Completion>> {
        let (id, patience) = (self.id, self.patience(Interest::Read));
        let done =
            self.host.wait(id, Interest::Completion, patience, |stack, _| next(stack, id))?;
        Ok(done.map(Completion::from))
    }
}

impl From<Notification> for Completion {
    fn from(done: Notification) -> Self {
        // Not Linux's coalescing: no range goes across the end of the numbers.
        Self { ids: done.lo..=done.hi, copied: done.copied }
    }
}

/// The next notification; `None` if no send is outstanding, `WouldBlock` if one is to come.
pub(crate) fn next(
    stack: &mut Stack,
    id: impl Copy + Into<SocketId>,
) -> Result<Option<Notification>, Error> {
    match stack.poll_notification(id) {
        Some(done) => Ok(Some(done)),
        None if stack.sends_outstanding(id)? == 0 => Ok(None),
        None => Err(Error::WouldBlock),
    }
}

impl Iterator for Completions<'_> {
    type Item = Completion;

    fn next(&mut self) -> Option<Completion> {
        let mut inner = self.host.shared.lock();
        inner.stack.poll_notification(self.id).map(Completion::from)
    }
}

impl std::fmt::Debug for Completions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Completions").field(&self.id).finish()
    }
}

/// The budget of all hosts of this process: the user's `RLIMIT_MEMLOCK` as it was when the first
/// host started.
pub(crate) fn process_pages() -> Arc<PageBudget> {
    static PAGES: OnceLock<Arc<PageBudget>> = OnceLock::new();
    let limit = || {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock);
        let pages = |bytes| usize::try_from(bytes / PAGE_SIZE as u64).unwrap_or(usize::MAX);
        Arc::new(PageBudget::new(limit.current.map_or(usize::MAX, pages)))
    };
    Arc::clone(PAGES.get_or_init(limit))
}
