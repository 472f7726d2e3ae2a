//! Variant of steps R1 and S6, over a Unix stream socket: before each frame, its length.
//!
//! ```text
//!   0 length u32, big-endian | 4 Ethernet frame of `length` bytes | the next length …
//! ```
//!
//! This is what QEMU (`-netdev stream`), passt and libkrun speak. Frames are plain: without offloads,
//! each at most the MTU long.
//!
//! Received bytes fill pages of the device; `inbox` cuts frames out of them by reference. A frame
//! leaves with up to 63 others by one call, which gathers their pages. What the socket does not take
//! stays: the rest of a frame here, further ones with the caller.

#[cfg(any(test, feature = "testing"))]
pub(crate) mod fuzzing;
mod inbox;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use pagewire_mem::{CopyLedger, Instant, PacketBuf};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};

use inbox::{Inbox, Malformed};

use crate::limits::{ACCEPT_RETRY, MAX_SOCKET_FRAME, SOCKET_BURST, SOCKET_RETRY, STREAM_READ};
use crate::settings::LinkSettings;
use crate::socket::{self, PlainCard, card_methods};
use crate::socket_path::{Listener, bind_listener};
use crate::socket_sys::{self, Pieces};
use crate::{Device, DeviceCounters, DeviceError};
use pagewire_mem::link::Capabilities;

/// Bytes of the length before each frame.
pub(crate) const PREFIX: usize = 4;

/// Pieces of memory that a frame has at most: its length, its head and its fragments.
const FRAME_PIECES: usize = 2 + pagewire_mem::MAX_FRAGS;

/// A link over a Unix stream socket, to QEMU, libkrun or another program that runs a guest.
///
/// The link has one peer at a time. While there is none the link is down: frames to send are dropped and counted.
/// A peer that announces a frame of an impossible length is disconnected, and counted
/// ([`rx_dropped_malformed`](DeviceCounters::rx_dropped_malformed)).
///
/// ```no_run
/// use pagewire_device::StreamLink;
/// // qemu-system-x86_64 … -netdev stream,id=n0,server=off,addr.type=unix,addr.path=/tmp/pw.sock
/// let link = StreamLink::builder().mtu(1500).listen("/tmp/pw.sock")?;
/// # Ok::<(), pagewire_device::DeviceError>(())
/// ```
#[derive(Debug)]
pub struct StreamLink {
    source: Source,
    peer: Option<OwnedFd>,
    /// Readable when there is something to do; what it waits for at the peer.
    ready: OwnedFd,
    watched: EventFlags,
    inbox: Inbox,
    /// There were no pages to receive into.
    starved: bool,
    /// When to retry: for pages, or without a peer, to take one that could not be taken.
    retry_at: Option<Instant>,
    /// A frame that the socket took a part of, and how much of it, its length included.
    unfinished: Option<(PacketBuf, usize)>,
    /// Frames wait for room in the socket.
    blocked: bool,
    /// The first peer is the only one.
    one_peer: bool,
    card: PlainCard,
}

/// Where peers come from.
#[derive(Debug)]
enum Source {
    Listener(Listener),
    /// There was one only, and no other will come.
    Given,
}

/// Settings of a [`StreamLink`].
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct StreamLinkBuilder {
    settings: LinkSettings,
    one_peer: bool,
}

pagewire_mem::setters! {
    StreamLinkBuilder:
    /// Whether the first peer is the only one: the device is [closed](DeviceError::Closed) when that
    /// one goes; off by default.
    one_peer(on: bool): one_peer = on;
    /// Largest IP packet in bytes, 576 to 65,535 (at least 1,280 for IPv6); 1,500 by default.
    mtu(mtu: usize): settings.mtu = Some(mtu);
    /// The stack's link address, a unicast one; by default derived from the socket's path.
    mac(mac: [u8; 6]): settings.mac = Some(mac);
    /// Memory to receive into, in bytes; 16 MiB by default, at least 1 MiB. Touched only as used.
    pool_bytes(bytes: usize): settings.pool_bytes = Some(bytes);
}

impl StreamLinkBuilder {
    /// Listens at `path`, where one peer at a time may connect, and others after it. The device's
    /// drop removes the socket, unless the process has given up the right to by then (a sandbox). A
    /// socket without a listener is replaced.
    ///
    /// # Errors
    /// [`DeviceError::Config`] for invalid settings, [`DeviceError::System`] if the system refuses.
    pub fn listen(self, path: impl AsRef<Path>) -> Result<StreamLink, DeviceError> {
        let path = path.as_ref();
        let listener =
            bind_listener(path).map_err(|e| system(&format!("listen on {}", path.display()), e))?;
        self.wait(Listener::own(listener, path), path)
    }

    /// As [`listen`](Self::listen), at a socket that somebody else has bound and listens at, too, such as a
    /// service manager: its file stays. Calls of the socket do not block from then on.
    ///
    /// # Errors
    /// As [`listen`](Self::listen).
    pub fn adopt(self, listener: UnixListener) -> Result<StreamLink, DeviceError> {
        let adopted = Listener::adopt(listener);
        let (listener, path) =
            adopted.map_err(|e| system("listen on a socket that was passed", e))?;
        self.wait(listener, &path)
    }

    /// A link to the peer at the other end of a socket: [`DeviceError::Closed`] when that closes.
    ///
    /// # Errors
    /// As [`listen`](Self::listen).
    pub fn over(self, stream: UnixStream) -> Result<StreamLink, DeviceError> {
        let mut link = self.start(Source::Given, Path::new(""))?;
        let peer = stream.set_nonblocking(true).and_then(|()| link.join(stream.into()));
        peer.map_err(|e| system("wait for the peer", e))?;
        Ok(link)
    }

    fn wait(self, listener: Listener, path: &Path) -> Result<StreamLink, DeviceError> {
        let link = self.start(Source::Listener(listener), path)?;
        link.watch_listener().map_err(|e| system("wait for a peer", e))?;
        Ok(link)
    }

    fn start(self, source: Source, path: &Path) -> Result<StreamLink, DeviceError> {
        let card = PlainCard::new("stream", &self.settings, path)?;
        let ready = epoll::create(CreateFlags::CLOEXEC)
            .map_err(|e| system("make an epoll descriptor", e.into()))?;
        Ok(StreamLink {
            source,
            peer: None,
            ready,
            watched: EventFlags::empty(),
            inbox: Inbox::default(),
            starved: false,
            retry_at: None,
            unfinished: None,
            blocked: false,
            one_peer: self.one_peer,
            card,
        })
    }
}

/// The result of a read of the peer's socket.
enum Read {
    Some,
    Nothing,
    End,
}

impl StreamLink {
    /// Settings of a link.
    pub fn builder() -> StreamLinkBuilder {
        StreamLinkBuilder::default()
    }

    /// Whether a peer is connected.
    pub fn is_up(&self) -> bool {
        self.peer.is_some()
    }

    /// Begins with a peer.
    fn join(&mut self, peer: OwnedFd) -> io::Result<()> {
        self.watched = EventFlags::IN;
        epoll::add(&self.ready, &peer, EventData::new_u64(0), self.watched)?;
        self.peer = Some(peer);
        Ok(())
    }

    fn watch_listener(&self) -> io::Result<()> {
        let Source::Listener(Listener { socket: listener, .. }) = &self.source else {
            return Ok(());
        };
        Ok(epoll::add(&self.ready, listener, EventData::new_u64(0), EventFlags::IN)?)
    }

    /// Takes a peer that waits, if none is connected; others wait until it is gone.
    fn accept(&mut self, now: Instant) -> Result<bool, DeviceError> {
        if self.peer.is_some() {
            return Ok(true);
        }
        if let Some(at) = self.retry_at {
            if now < at {
                return Ok(false);
            }
            self.retry_at = None;
            self.watch_listener().map_err(|e| system("wait for a peer", e))?;
        }
        let Source::Listener(Listener { socket: listener, .. }) = &self.source else {
            return Err(DeviceError::Closed);
        };
        self.card.counters.syscalls += 1;
        let peer = match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(peer) => peer,
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return Ok(false),
            // The process or the system is short of them; the peer waits, and its socket would be
            // reported without end.
            Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                let unwatched = epoll::delete(&self.ready, listener);
                unwatched.map_err(|e| system("wait for a peer", e.into()))?;
                self.retry_at = Some(now + ACCEPT_RETRY);
                return Ok(false);
            }
            Err(e) => return Err(system("accept a peer", e.into())),
        };
        let unwatched = epoll::delete(&self.ready, listener).map_err(io::Error::from);
        let joined = unwatched.and_then(|()| self.join(peer));
        joined.map_err(|e| system("wait for a peer", e))?;
        if self.one_peer {
            self.source = Source::Given;
        }
        Ok(true)
    }

    /// Ends the session: what is unfinished in either direction is lost.
    fn disconnect(&mut self) {
        self.peer = None;
        self.inbox = Inbox::default();
        self.card.counters.tx_dropped_closed += u64::from(self.unfinished.take().is_some());
        (self.starved, self.retry_at, self.blocked) = (false, None, false);
        // Fails without memory only; the next peer is then found by a turn for another reason.
        let _ = self.watch_listener();
    }

    /// Waits for what there is to wait for.
    fn watch(&mut self) -> Result<(), DeviceError> {
        let Some(peer) = &self.peer else { return Ok(()) };
        let mut wanted = EventFlags::empty();
        wanted.set(EventFlags::IN, !self.starved);
        wanted.set(EventFlags::OUT, self.blocked);
        if wanted == self.watched {
            return Ok(());
        }
        self.card.counters.syscalls += 1;
        epoll::modify(&self.ready, peer, EventData::new_u64(0), wanted)
            .map_err(|e| system("wait for the peer", e.into()))?;
        self.watched = wanted;
        Ok(())
    }

    /// Receives once.
    fn read(&mut self, now: Instant) -> Read {
        let Some(peer) = &self.peer else { return Read::Nothing };
        self.starved = !self.card.writer.reserve(&mut self.card.pool, STREAM_READ)
            && self.card.writer.spare_runs().next().is_none();
        self.retry_at = self.starved.then(|| now + SOCKET_RETRY);
        if self.starved {
            return Read::Nothing;
        }
        self.card.counters.syscalls += 1;
        let (mut got, room) =
            match socket_sys::receive(peer.as_fd(), &mut self.card.writer, STREAM_READ) {
                Ok((0, _)) => return Read::End,
                Ok(received) => received,
                Err(e) => {
                    let again = [io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted];
                    return if again.contains(&e.kind()) { Read::Nothing } else { Read::End };
                }
            };
        // A socket that had more would have filled the room.
        let drained = got < room;
        while got > 0 {
            let frag = self.card.writer.commit(got);
            got -= frag.len();
            self.inbox.push(frag);
        }
        self.inbox.drained = drained;
        Read::Some
    }

    /// Moves whole frames that have arrived to the back of `frames`, until it holds `limit`.
    fn take_frames(
        &mut self,
        frames: &mut VecDeque<PacketBuf>,
        limit: usize,
        ledger: &mut CopyLedger,
    ) -> Result<(), Malformed> {
        while frames.len() < limit
            && let Some((frags, len)) = self.inbox.next()?
        {
            frames.extend(self.card.received(frags, len, ledger));
        }
        Ok(())
    }

    /// Sends what is unfinished and then frames, as far as the socket has room.
    fn send(&mut self, frames: &mut VecDeque<PacketBuf>, ledger: &mut CopyLedger) {
        while self.peer.is_some() {
            match self.send_some(frames, ledger) {
                Ok(true) => {}
                Ok(false) => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.blocked = true;
                    break;
                }
                // A bad address: memory behind a frame is gone, and the stream with it.
                Err(_) => self.disconnect(),
            }
        }
    }

    /// Sends as many frames as one call takes. `false`: there is no more room, or no more frame.
    fn send_some(
        &mut self,
        frames: &mut VecDeque<PacketBuf>,
        ledger: &mut CopyLedger,
    ) -> Result<bool, io::Error> {
        let Some(peer) = &self.peer else { return Ok(false) };
        let lengths: Vec<[u8; PREFIX]> = self
            .unfinished
            .iter()
            .map(|(packet, _)| packet)
            .chain(&*frames)
            .take(SOCKET_BURST)
            .map(|packet| (packet.len() as u32).to_be_bytes())
            .collect();
        let mut pieces = Pieces::new();
        let begun = self.unfinished.iter().map(|(packet, done)| (packet, *done));
        let fresh = frames.iter().map(|packet| (packet, 0));
        for ((packet, mut skip), length) in begun.chain(fresh).zip(&lengths) {
            if !pieces.has_room(FRAME_PIECES) {
                break;
            }
            for bytes in [&length[..], packet.head()] {
                pieces.push(bytes.get(skip..).unwrap_or_default());
                skip = skip.saturating_sub(bytes.len());
            }
            for frag in packet.frags() {
                pieces.push_frag(frag, skip);
                skip = skip.saturating_sub(frag.len());
            }
        }
        if pieces.is_empty() {
            // The sender may have given up what waited for room.
            self.blocked = false;
            return Ok(false);
        }
        self.card.counters.syscalls += 1;
        let (sent, whole) = (pieces.send(peer.as_fd())?, pieces.bytes());
        self.note_sent(sent, frames, ledger);
        self.blocked = sent < whole;
        Ok(!self.blocked)
    }

    /// Takes `sent` bytes off the front of the frames to send.
    fn note_sent(
        &mut self,
        mut sent: usize,
        frames: &mut VecDeque<PacketBuf>,
        ledger: &mut CopyLedger,
    ) {
        while sent > 0 {
            let begun = self.unfinished.take().or_else(|| Some((frames.pop_front()?, 0)));
            let Some((packet, done)) = begun else { return };
            let rest = PREFIX + packet.len() - done;
            if sent < rest {
                self.unfinished = Some((packet, done + sent));
                return;
            }
            sent -= rest;
            self.card.note_sent(&packet, ledger);
        }
    }
}

impl Device for StreamLink {
    fn transmit(
        &mut self,
        _now: Instant,
        frames: &mut VecDeque<PacketBuf>,
        ledger: &mut CopyLedger,
    ) -> Result<(), DeviceError> {
        self.card.finish(frames, ledger);
        let before = frames.len();
        frames.retain(|packet| packet.len() <= MAX_SOCKET_FRAME);
        self.card.counters.tx_dropped_error += (before - frames.len()) as u64;
        self.send(frames, ledger);
        if self.peer.is_none() {
            self.card.drop_unsent(frames);
        }
        self.watch()
    }

    fn receive(
        &mut self,
        now: Instant,
        frames: &mut VecDeque<PacketBuf>,
        max: usize,
        ledger: &mut CopyLedger,
    ) -> Result<usize, DeviceError> {
        if !self.accept(now)? {
            return Ok(0);
        }
        if self.unfinished.is_some() {
            // The host has nothing to transmit, and does not know of the rest.
            self.send(&mut VecDeque::new(), ledger);
        }
        self.card.pool.drain();
        let before = frames.len();
        let limit = before.saturating_add(max);
        loop {
            if let Err(Malformed) = self.take_frames(frames, limit, ledger) {
                self.card.counters.rx_dropped_malformed += 1;
                self.disconnect();
                break;
            }
            if frames.len() >= limit || std::mem::take(&mut self.inbox.drained) {
                break;
            }
            match self.read(now) {
                Read::Some => {}
                Read::Nothing => break,
                Read::End => {
                    self.disconnect();
                    break;
                }
            }
        }
        self.watch()?;
        Ok(frames.len() - before)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.retry_at
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.ready.as_fd())
    }

    fn arm(&mut self) -> bool {
        self.inbox.has_frame()
    }

    card_methods!();
}

fn system(what: &str, source: io::Error) -> DeviceError {
    socket::system("stream", what, source)
}
