//! The control thread, which talks to the front end: applies one message at a time to the session
//! under its lock, and serves the next front end when one is gone. A front end that stalls stalls
//! only this thread: the device tries the session's lock, and is woken when it is free.

use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering, fence};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, recv, send,
    socket_with,
};
use vhost::vhost_user::message::FrontendReq;
use vhost::vhost_user::{BackendReqHandler, Error, VhostUserBackendReqHandlerMut};

use super::allowance::Pace;
use super::features;
use super::limits::{ENDING, LOOK, RECONNECT};
use super::port_state::PortState;
use super::session::Session;
use crate::socket_path::Listener;
use crate::wake_event::WakeEvent;

/// Bytes of the message that enables a ring.
const EARLY_ENABLE: usize = 12 + 8;

/// Flags of a message: the protocol's version, an answer, an answer is wanted.
const VERSION: u32 = 1;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

/// The state that both threads share.
pub(super) struct Shared {
    session: Arc<Mutex<Session>>,
    /// The device found the session in use, and is to be woken when it is free.
    wanted: AtomicBool,
    port_state: Arc<PortState>,
    link: Mutex<Link>,
    /// Rung to end the thread.
    end: WakeEvent,
}

/// The session, in use until this is dropped. Fields are dropped in order: first the lock.
pub(super) struct InUse<'a> {
    session: MutexGuard<'a, Session>,
    _wake: Wake<'a>,
}

/// Wakes the device, if it found the session in use meanwhile.
struct Wake<'a>(&'a Shared);

/// The connection that the thread serves.
#[derive(Default)]
struct Link {
    stream: Option<UnixStream>,
    ending: bool,
}

/// The origin of front ends.
pub(super) enum Source {
    /// Front ends connect to this socket.
    Listen(Listener),
    /// As `Listen`, for one front end.
    ListenOnce(Listener),
    /// The front end listens at this path.
    Connect(PathBuf),
    /// A connected front end, and no other.
    Stream(UnixStream),
    /// No further front end.
    Spent,
}

/// The thread; this value's drop ends it.
pub(super) struct Control {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Closed by the thread when it ends.
    ended: mpsc::Receiver<()>,
}

impl Shared {
    /// The session, for all but the device.
    pub(super) fn session(&self) -> InUse<'_> {
        // After a panic under the lock, fields are whole; their values are checked anyway.
        let session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        InUse { session, _wake: Wake(self) }
    }

    /// The session, for the device, which never waits: a message may take as long as its front end
    /// likes. `None`: it is in use, and the wake is rung when it is free.
    pub(super) fn try_session(&self) -> Option<MutexGuard<'_, Session>> {
        let try_lock = || match self.session.try_lock() {
            Ok(session) => Some(session),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        try_lock().or_else(|| {
            self.wanted.store(true, Ordering::Relaxed);
            // Pairs with the fence in `wake`. Here: set the word, fence, try the lock. There: unlock,
            // fence, read the word. So either the lock is free now, or its holder sees the word.
            fence(Ordering::SeqCst);
            try_lock()
        })
    }

    /// The session, for a device that ends: waits for it up to `limit`.
    pub(super) fn wait(&self, limit: Duration) -> Option<MutexGuard<'_, Session>> {
        let until = Instant::now() + limit;
        loop {
            let session = self.try_session();
            if session.is_some() || Instant::now() >= until {
                return session;
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Wakes the device after the session was in use.
    fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.wanted.load(Ordering::Relaxed) && self.wanted.swap(false, Ordering::Relaxed) {
            self.port_state.wake.wake();
        }
    }

    fn link(&self) -> MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Control {
    pub(super) fn start(session: Session, source: Source) -> io::Result<Self> {
        let port_state = Arc::clone(&session.port_state);
        let shared = Arc::new(Shared {
            session: Arc::new(Mutex::new(session)),
            wanted: AtomicBool::new(false),
            port_state,
            link: Mutex::default(),
            end: WakeEvent::new()?,
        });
        let ours = Arc::clone(&shared);
        let (ends, ended) = mpsc::channel();
        let thread =
            std::thread::Builder::new().name("pagewire-vhost".into()).spawn(move || {
                ours.run(source);
                drop(ends);
            })?;
        Ok(Self { shared, thread: Some(thread), ended })
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let mut link = self.shared.link();
        link.ending = true;
        if let Some(stream) = &link.stream {
            // Ends a read that waits for the rest of a message.
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        drop(link);
        self.shared.end.wake();
        match (self.ended.recv_timeout(ENDING), self.thread.take()) {
            (Err(RecvTimeoutError::Disconnected), Some(thread)) => drop(thread.join()),
            // The thread ends when it can.
            _ => {
                tracing::warn!("vhost-user: the thread for the socket is held up, and left behind")
            }
        }
    }
}

impl Deref for InUse<'_> {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.session
    }
}

impl DerefMut for InUse<'_> {
    fn deref_mut(&mut self) -> &mut Session {
        &mut self.session
    }
}

impl Drop for Wake<'_> {
    fn drop(&mut self) {
        self.0.wake();
    }
}

impl Shared {
    fn run(&self, mut source: Source) {
        let mut pace = self.port_state.allowance.pace();
        while !self.ends_before_turn(&pace)
            && let Some(stream) = self.next(&mut source)
        {
            pace.note(Instant::now());
            self.serve(stream);
            if matches!(source, Source::Spent) {
                self.session().spend();
            }
            // A front end that hangs up at once is not called again without a pause.
            if matches!(source, Source::Connect(_)) && self.ends_before(None) {
                break;
            }
        }
    }

    /// The next front end; `None`: there is none, or the device is gone.
    fn next(&self, source: &mut Source) -> Option<UnixStream> {
        loop {
            match source {
                Source::Listen(listener) | Source::ListenOnce(listener) => {
                    if self.ends_before(Some(listener.socket.as_fd())) {
                        return None;
                    }
                    match listener.socket.accept() {
                        Ok((stream, _)) => {
                            if let Source::ListenOnce(..) = source {
                                *source = Source::Spent;
                            }
                            return Some(stream);
                        }
                        // Usually out of descriptors: try again, but not at once.
                        Err(e) if e.kind() != io::ErrorKind::WouldBlock => {
                            if self.ends_before(None) {
                                return None;
                            }
                        }
                        Err(_) => {}
                    }
                }
                Source::Connect(path) => {
                    if let Ok(stream) = connect(path) {
                        return Some(stream);
                    }
                    if self.ends_before(None) {
                        return None;
                    }
                }
                Source::Spent => return None,
                Source::Stream(_) => {
                    let Source::Stream(stream) = std::mem::replace(source, Source::Spent) else {
                        return None;
                    };
                    return Some(stream);
                }
            }
        }
    }

    /// Waits until one more front end may connect; `true`: the device ended meanwhile.
    fn ends_before_turn(&self, pace: &Pace) -> bool {
        let first = pace.wait(Instant::now());
        if first.is_zero() {
            return false;
        }
        self.session().counters.waited += 1;
        let mut left = first;
        while !left.is_zero() {
            if self.ends_within(None, Some(left)) {
                return true;
            }
            left = pace.wait(Instant::now());
        }
        false
    }

    /// Waits until `fd` can be read, or for a moment; `true`: the device ended meanwhile.
    fn ends_before(&self, fd: Option<BorrowedFd<'_>>) -> bool {
        self.ends_within(fd, fd.is_none().then_some(RECONNECT))
    }

    /// Waits until `fd` can be read, for `pause` at most; `true`: the device ended meanwhile.
    fn ends_within(&self, fd: Option<BorrowedFd<'_>>, pause: Option<Duration>) -> bool {
        let mut fds = vec![PollFd::from_borrowed_fd(self.end.fd(), PollFlags::IN)];
        fds.extend(fd.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let pause = pause.and_then(|pause| Timespec::try_from(pause).ok());
        let _ = poll(&mut fds, pause.as_ref());
        self.link().ending
    }

    /// Handles the message that enables a ring before any features were chosen, which QEMU sends at
    /// its device's reset and the library refuses; `false`: the next message is another.
    fn enables_early(&self, stream: &UnixStream) -> bool {
        if self.session().has(features::PROTOCOL_FEATURES) {
            return false;
        }
        // Header: request, flags, bytes that follow; then the ring and its state.
        let mut message = [0; EARLY_ENABLE];
        let peek = RecvFlags::PEEK | RecvFlags::WAITALL;
        let request = FrontendReq::SET_VRING_ENABLE as u32;
        let word = |bytes: &[u8], at: usize| {
            let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
            word.map_or(0, u32::from_ne_bytes)
        };
        // A shorter message is another one; do not wait beyond its end.
        let (head, _) = message.split_at_mut(12);
        if !matches!(recv(stream, head, peek), Ok((_, 12)))
            || (word(&message, 0), word(&message, 8)) != (request, 8)
            || !matches!(recv(stream, &mut message[..], RecvFlags::WAITALL), Ok((_, EARLY_ENABLE)))
        {
            return false;
        }
        let (index, state) = (word(&message, 12), word(&message, 16));
        let mut session = self.session();
        let done = session.set_vring_enable(index, state == 1).is_ok();
        let replies = session.replies();
        drop(session);
        if replies && word(&message, 4) & NEED_REPLY != 0 {
            let words = [request, VERSION | REPLY, 8, u32::from(!done), 0];
            let reply: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            // A failed send means that it is gone, which the next message reports.
            let _ = send(stream, &reply, SendFlags::NOSIGNAL);
        }
        true
    }

    /// Serves one front end until it goes, or breaks the rules.
    fn serve(&self, stream: UnixStream) {
        let (Ok(ours), Ok(early)) = (stream.try_clone(), stream.try_clone()) else { return };
        {
            let mut link = self.link();
            if link.ending {
                return;
            }
            link.stream = Some(ours);
        }
        // The library's reads loop where a descriptor does not block.
        if stream.set_nonblocking(false).is_err() {
            return;
        }
        self.session().begin();
        tracing::debug!(fd = stream.as_raw_fd(), "vhost-user: a front end connected");
        let mut handler = BackendReqHandler::from_stream(stream, Arc::clone(&self.session));
        let error = loop {
            if self.enables_early(&early) {
                continue;
            }
            // The library has the session in use, and the device may want it.
            let handled = handler.handle_request();
            self.wake();
            if let Err(error) = handled {
                break error;
            }
        };
        let mut session = self.session();
        match error {
            Error::Disconnected | Error::SocketBroken(_) | Error::PartialMessage => {}
            error => {
                session.counters.bad_messages += 1;
                let why = session.refused.take().unwrap_or_else(|| error.to_string());
                tracing::warn!("vhost-user: the front end was disconnected: {why}");
                session.refused = Some(why);
                // The front end is still there, and counts from what is returned when it reconnects.
                session.surrender();
            }
        }
        session.end();
        drop(session);
        self.link().stream = None;
        tracing::debug!("vhost-user: the front end is gone");
    }
}

/// Connects to a front end, without waiting for one that does not accept.
pub(super) fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(UnixStream::from(socket))
}
