//! Zero-copy sends: sends by reference that report when their memory has no reference left and may
//! be used again (Linux's MSG_ZEROCOPY). Read [`TcpStream::send_zc`] first.

use std::io;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::OnceLock;

use pagewire_mem::{Frag, FragVec, Instant, PAGE_SIZE, PageBudget};
use pagewire_stack::{Error, Notification, SendFlags, SocketId, Stack, Udp, ZeroCopyCall};

use crate::addr::{ToSocketAddrs, first};
use crate::buf::SendBuf;
use crate::error::io_error;
use crate::handle::Handle;
use crate::socket::Socket;
use crate::stream::TcpStream;
use crate::udp_socket::UdpSocket;
use crate::waiters::Interest;

/// The result of a zero-copy send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Bytes queued.
    pub bytes: usize,
    /// The number of the send, reported by its completion. `None`: no completion follows, because the
    /// socket has not opted in (the data was copied) or there was nothing to send.
    pub id: Option<u32>,
}

/// Sends whose memory has no reference left: it may be used again. For TCP that follows the
/// acknowledgement of the last byte. Completions usually come in order, but need not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The ids of the sends: one for each call, counted from 0 on each socket; 0 follows 4,294,967,295.
    pub ids: RangeInclusive<u32>,
    /// Whether data was copied on the way after all: the device could not gather, the packet was for
    /// this host itself, or a receiver on the pair link did not read it in time
    /// ([`Builder::received_deadline`](crate::Builder::received_deadline)).
    pub copied: bool,
}

/// The completions of a socket that are there now; see [`TcpStream::completions`].
pub struct Completions<'a> {
    host: &'a Handle,
    id: SocketId,
}

impl TcpStream {
    /// Opts in to zero-copy sends or out again, in which case [`send_zc`](Self::send_zc) copies. An
    /// accepted connection inherits its listener's setting.
    pub fn set_zerocopy(&self, on: bool) -> io::Result<()> {
        self.0.set_zerocopy(on)
    }

    /// Whether the socket has opted in.
    pub fn zerocopy(&self) -> io::Result<bool> {
        self.0.host.shared.lock().stack.zerocopy(self.0.id).map_err(io_error)
    }

    /// Queues memory by reference and waits until all of it is queued. The call completes as a whole:
    /// when no reference to its memory is left, its id is among [`completions`](Self::completions).
    /// Each piece of `buf` is a fragment; a packet has at most 17, so a few long pieces are better than
    /// many short ones.
    ///
    /// A call whose memory begins where the last call's ended is the cheapest (ranges of one
    /// [`Region`](crate::Region::frag), slices of one [`Frag`], but not two `Bytes`): while such calls
    /// fill a segment, or a super-frame on the pair link (unless
    /// [`set_nodelay`](TcpStream::set_nodelay) is on), each costs little more than a lock, and they
    /// complete together. Read completions from time to time, or sends will fail with `ENOBUFS`.
    ///
    /// On a non-blocking stream there may be room for a part only: the next call begins
    /// [`bytes`](Sent::bytes) further on, so keep a way to name the rest, such as the region or a clone.
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
    /// Those of [`send`](Self::send), and `ENOBUFS`: too many notifications are unread or outstanding,
    /// or too many pages are held ([`Builder::zerocopy_memory`](crate::Builder::zerocopy_memory)).
    /// If a part was queued before the error, the call succeeds with that part. A call that queues
    /// nothing takes no id.
    pub fn send_zc(&self, buf: impl Into<SendBuf>) -> io::Result<Sent> {
        self.send_all_zc(&mut buf.into().frags)
    }

    /// [`send_zc`](Self::send_zc) of memory that the caller keeps: addresses and lengths.
    ///
    /// # Safety
    /// Every piece is readable, and freed or unmapped only after its id was among
    /// [`completions`](Self::completions). If the connection is dropped first: after that (the host
    /// copies what the peer does not have yet), and after every receiver in this process that got the
    /// memory by reference has dropped it. No `&mut` to it exists until then. If bytes change meanwhile,
    /// either their old or their new value is sent; nothing else goes wrong.
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
        let (mut call, mut bytes) = (ZeroCopyCall::new(), 0);
        while frags.iter().any(|frag| !frag.is_empty()) {
            let sent = self.0.wait_clock(Interest::Write, |stack, clock| {
                let data = (&mut *frags, &mut call);
                stack.tcp(self.0.id)?.send(|| clock.now(), data, SendFlags::empty())
            });
            match sent {
                Ok(n) => bytes += n,
                Err(error) if bytes == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(Sent { bytes, id: call.id() })
    }

    /// The completions that are there now, oldest first; never waits. Each is returned once. Consecutive
    /// ones with the same [`copied`](Completion::copied) are merged.
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

    /// Sends a datagram by reference; its id is among [`completions`](Self::completions) when no
    /// reference to its memory is left. A datagram in more than 17 pieces is copied.
    ///
    /// # Errors
    /// Those of [`send_chunks_to`](Self::send_chunks_to), and `ENOBUFS` as for [`TcpStream::send_zc`].
    pub fn send_zc_to(&self, data: impl Into<SendBuf>, to: impl ToSocketAddrs) -> io::Result<Sent> {
        self.send_frags_zc(data.into(), Some(first(&to)?))
    }

    /// [`send_zc_to`](Self::send_zc_to) the address that the socket is connected to.
    pub fn send_zc(&self, data: impl Into<SendBuf>) -> io::Result<Sent> {
        self.send_frags_zc(data.into(), None)
    }

    /// [`send_zc_to`](Self::send_zc_to) of memory that the caller keeps.
    ///
    /// # Safety
    /// As for [`TcpStream::send_zc_raw`]; datagrams that the device has when the socket is dropped are
    /// not copied.
    #[allow(unsafe_code, reason = "the caller keeps memory that nothing here can")]
    pub unsafe fn send_zc_raw_to(
        &self,
        pieces: &[(std::ptr::NonNull<u8>, usize)],
        to: impl ToSocketAddrs,
    ) -> io::Result<Sent> {
        // SAFETY: the caller's promise, word by word.
        let lent = |&(at, len): &_| unsafe { Frag::lent(at, len) };
        self.send_frags_zc(pieces.iter().map(lent).collect(), Some(first(&to)?))
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
        self.0.wait(Interest::Write, |udp, now| send_datagram(udp, now, &data.frags, to))
    }
}

/// Sends a datagram by reference.
pub(crate) fn send_datagram(
    mut udp: Udp<'_>,
    now: Instant,
    data: &FragVec,
    to: Option<SocketAddr>,
) -> Result<Sent, Error> {
    let mut call = ZeroCopyCall::new();
    let bytes = udp.send(now, (data.clone(), &mut call), to)?;
    Ok(Sent { bytes, id: call.id() })
}

impl<Id: Copy + Into<SocketId>> Socket<Id> {
    pub(crate) fn set_zerocopy(&self, on: bool) -> io::Result<()> {
        self.host.shared.lock().stack.set_zerocopy(self.id, on).map_err(io_error)
    }

    fn completions(&self) -> Completions<'_> {
        Completions { host: &self.host, id: self.id.into() }
    }

    fn wait_completion(&self) -> io::Result<Option<Completion>> {
        self.wait_on(Interest::Completion, |stack, _| next(stack, self.id))
    }
}

impl From<Notification> for Completion {
    fn from(done: Notification) -> Self {
        // Only Linux's coalescing merges notifications where the numbers wrap.
        Self { ids: done.lo..=done.hi, copied: done.copied }
    }
}

/// The next completion; `None` if no send is outstanding, `WouldBlock` if one is.
pub(crate) fn next(
    stack: &mut Stack,
    id: impl Copy + Into<SocketId>,
) -> Result<Option<Completion>, Error> {
    match stack.poll_notification(id) {
        Some(done) => Ok(Some(done.into())),
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

/// The budget of all hosts of this process: `RLIMIT_MEMLOCK` when the first host started.
pub(crate) fn process_pages() -> Arc<PageBudget> {
    static PAGES: OnceLock<Arc<PageBudget>> = OnceLock::new();
    let limit = || {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock);
        let pages = |bytes| usize::try_from(bytes / PAGE_SIZE as u64).unwrap_or(usize::MAX);
        Arc::new(PageBudget::new(limit.current.map_or(usize::MAX, pages)))
    };
    Arc::clone(PAGES.get_or_init(limit))
}
