//! The control thread, which talks to the front end: applies one message at a time to the sessions
//! of the devices, and serves the next front end when one is gone. A front end that stalls stalls
//! only this thread.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
use super::front_end::FrontEnd;
use super::limits::{ENDING, RECONNECT};
use super::shared::Shared;
use crate::socket_path::Listener;
use crate::wake_event::WakeEvent;

/// Bytes of the message that enables a ring.
const EARLY_ENABLE: usize = 12 + 8;

/// Flags of a message: the protocol's version, an answer, an answer is wanted.
const VERSION: u32 = 1;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

/// The front ends of the devices, served one after another.
pub(super) struct FrontEnds {
    devices: Arc<[Arc<Shared>]>,
    link: Mutex<Link>,
    /// Rung to end the thread.
    end: WakeEvent,
}

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
    front_ends: Arc<FrontEnds>,
    thread: Option<JoinHandle<()>>,
    /// Closed by the thread when it ends.
    ended: Mutex<mpsc::Receiver<()>>,
}

impl FrontEnds {
    fn link(&self) -> MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Control {
    pub(super) fn start(devices: Arc<[Arc<Shared>]>, source: Source) -> io::Result<Self> {
        let (link, end) = (Mutex::default(), WakeEvent::new()?);
        let front_ends = Arc::new(FrontEnds { devices, link, end });
        let ours = Arc::clone(&front_ends);
        let (ends, ended) = mpsc::channel();
        let thread =
            std::thread::Builder::new().name("pagewire-vhost".into()).spawn(move || {
                ours.run(source);
                drop(ends);
            })?;
        Ok(Self { front_ends, thread: Some(thread), ended: Mutex::new(ended) })
    }

    /// The devices that the thread serves.
    pub(super) fn devices(&self) -> &Arc<[Arc<Shared>]> {
        &self.front_ends.devices
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let mut link = self.front_ends.link();
        link.ending = true;
        if let Some(stream) = &link.stream {
            // Ends a read that waits for the rest of a message.
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        drop(link);
        self.front_ends.end.wake();
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        match (ended.recv_timeout(ENDING), self.thread.take()) {
            (Err(RecvTimeoutError::Disconnected), Some(thread)) => drop(thread.join()),
            // The thread ends when it can.
            _ => {
                tracing::warn!("vhost-user: the thread for the socket is held up, and left behind")
            }
        }
    }
}

impl FrontEnds {
    fn run(&self, mut source: Source) {
        let Some(first) = self.devices.first() else { return };
        let mut pace = first.port_state.allowance.pace();
        while !self.ends_before_turn(first, &pace)
            && let Some(stream) = self.next(&mut source)
        {
            pace.note(Instant::now());
            self.serve(stream);
            if matches!(source, Source::Spent) {
                self.devices.iter().for_each(|device| device.session().spend());
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
    fn ends_before_turn(&self, device: &Shared, pace: &Pace) -> bool {
        let mut left = pace.wait(Instant::now());
        if left.is_zero() {
            return false;
        }
        device.session().counters.waited += 1;
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
    fn enables_early(&self, front_end: &Mutex<FrontEnd>, stream: &UnixStream) -> bool {
        let front_end = || front_end.lock().unwrap_or_else(PoisonError::into_inner);
        if front_end().has(features::PROTOCOL_FEATURES) {
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
        let done = front_end().set_vring_enable(index, state == 1).is_ok();
        if front_end().replies() && word(&message, 4) & NEED_REPLY != 0 {
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
        let Some(front_end) = FrontEnd::new(Arc::clone(&self.devices)) else { return };
        let front_end = Arc::new(Mutex::new(front_end));
        tracing::debug!(fd = stream.as_raw_fd(), "vhost-user: a front end connected");
        let mut handler = BackendReqHandler::from_stream(stream, Arc::clone(&front_end));
        let error = loop {
            if self.enables_early(&front_end, &early) {
                continue;
            }
            if let Err(error) = handler.handle_request() {
                break error;
            }
        };
        let refused = match error {
            Error::Disconnected | Error::SocketBroken(_) | Error::PartialMessage => None,
            error => Some(error.to_string()),
        };
        front_end.lock().unwrap_or_else(PoisonError::into_inner).end(refused);
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
