//! Variant of steps R1 and S6, over a Unix datagram socket: a frame is a datagram.
//!
//! This is what vfkit, and libkrun for gvproxy, speak. The guest's side begins with the four bytes
//! `VFKT` in a datagram of their own: its sender is the peer from then on, until another one greets.
//! A peer has to have bound its socket, or nothing could be sent to it.

#[cfg(any(test, feature = "testing"))]
pub(crate) mod fuzzing;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use pagewire_mem::{CopyLedger, Instant, PacketBuf};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketType, sockopt};

use crate::limits::{MAX_LINK_HEADER, SOCKET_BURST, SOCKET_RETRY, SOCKET_SEND_BUFFER};
use crate::port::limits::MIN_ETHERNET;
use crate::settings::LinkSettings;
use crate::socket::{self, PlainCard, card_methods};
use crate::socket_path::{SocketFile, bind_anew, path_of};
use crate::socket_sys::{self, Name, Pieces};
use crate::{Device, DeviceCounters, DeviceError};
use pagewire_mem::link::Capabilities;

/// The greeting, which a guest's side sends first.
const GREETING: &[u8] = b"VFKT";

/// A link over a Unix datagram socket, to vfkit, libkrun or another program that runs a guest.
///
/// Until a peer has greeted, the link is down: frames to send are dropped and counted, and what comes
/// from others is dropped, too ([`rx_dropped_malformed`](DeviceCounters::rx_dropped_malformed)).
///
/// ```no_run
/// use pagewire_device::DatagramLink;
/// let link = DatagramLink::builder().mtu(1500).bind("/tmp/pw.sock")?;
/// # Ok::<(), pagewire_device::DeviceError>(())
/// ```
#[derive(Debug)]
pub struct DatagramLink {
    _file: Option<SocketFile>,
    socket: UnixDatagram,
    peer: Option<Name>,
    /// When to try again what found no room.
    retry_at: Option<Instant>,
    card: PlainCard,
}

/// Settings of a [`DatagramLink`].
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct DatagramLinkBuilder {
    settings: LinkSettings,
}

pagewire_mem::setters! {
    DatagramLinkBuilder:
    /// Largest IP packet in bytes, 576 to 65,535 (at least 1,280 for IPv6); 1,500 by default.
    mtu(mtu: usize): settings.mtu = Some(mtu);
    /// The stack's link address, a unicast one; by default derived from the socket's path.
    mac(mac: [u8; 6]): settings.mac = Some(mac);
    /// Memory to receive into, in bytes; 16 MiB by default, at least 1 MiB. Touched only as used.
    pool_bytes(bytes: usize): settings.pool_bytes = Some(bytes);
}

impl DatagramLinkBuilder {
    /// Binds a socket at `path`. The device's drop removes it, unless the process has given up the
    /// right to by then (a sandbox). A socket that nobody has open is replaced.
    ///
    /// # Errors
    /// [`DeviceError::Config`] for invalid settings, [`DeviceError::System`] if the system refuses.
    pub fn bind(self, path: impl AsRef<Path>) -> Result<DatagramLink, DeviceError> {
        let path = path.as_ref();
        let card = PlainCard::new("datagram", &self.settings, path)?;
        let socket = bind_anew(path, SocketType::DGRAM)
            .map_err(|e| system(&format!("bind {}", path.display()), e))?;
        Ok(DatagramLink::over(Some(SocketFile(path.to_owned())), socket.into(), card))
    }

    /// As [`bind`](Self::bind), with a socket that somebody else has bound and has open, too, such as a
    /// service manager: its file stays. Calls of the socket do not block from then on.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub fn adopt(self, socket: UnixDatagram) -> Result<DatagramLink, DeviceError> {
        let adopted = || -> io::Result<_> {
            socket.set_nonblocking(true)?;
            Ok(path_of(&socket.local_addr()?))
        };
        let path = adopted().map_err(|e| system("use a socket that was passed", e))?;
        let card = PlainCard::new("datagram", &self.settings, &path)?;
        Ok(DatagramLink::over(None, socket, card))
    }
}

impl DatagramLink {
    /// Settings of a link.
    pub fn builder() -> DatagramLinkBuilder {
        DatagramLinkBuilder::default()
    }

    fn over(file: Option<SocketFile>, socket: UnixDatagram, card: PlainCard) -> Self {
        // A wish: the system's limit is usually less.
        let _ = sockopt::set_socket_send_buffer_size(&socket, SOCKET_SEND_BUFFER);
        Self { _file: file, socket, peer: None, retry_at: None, card }
    }

    /// Whether a peer has greeted.
    pub fn is_up(&self) -> bool {
        self.peer.is_some()
    }

    /// Bytes of the longest frame.
    fn longest(&self) -> usize {
        MAX_LINK_HEADER + self.card.capabilities.mtu
    }

    /// Takes one datagram: `Ok(None)`, it was no frame of the peer's.
    fn take_one(&mut self, ledger: &mut CopyLedger) -> io::Result<Option<PacketBuf>> {
        let longest = self.longest();
        self.card.counters.syscalls += 1;
        if !self.card.writer.reserve(&mut self.card.pool, longest) {
            rustix::net::recv(&self.socket, &mut [0; 1], RecvFlags::DONTWAIT)?;
            self.card.counters.rx_dropped_memory += 1;
            return Ok(None);
        }
        let got = socket_sys::receive_from(self.socket.as_fd(), &mut self.card.writer, longest)?;
        let mut frags = pagewire_mem::FragVec::new();
        let mut left = got.len;
        while left > 0 {
            let frag = self.card.writer.commit(left);
            left -= frag.len();
            frag.append_to(&mut frags);
        }
        let bytes = || frags.iter().flat_map(|frag| frag.as_slice().unwrap_or_default());
        if got.len == GREETING.len() && bytes().eq(GREETING) && got.from.is_named() {
            self.peer = Some(got.from);
            return Ok(None);
        }
        let is_frame = got.len >= MIN_ETHERNET && !got.cut;
        if !is_frame || self.peer.as_ref() != Some(&got.from) {
            self.card.counters.rx_dropped_malformed += 1;
            return Ok(None);
        }
        Ok(self.card.received(frags, got.len, ledger))
    }

    /// Sends one frame to the peer.
    fn send(&self, packet: &PacketBuf, peer: &Name) -> io::Result<()> {
        let mut pieces = Pieces::new();
        pieces.push(packet.head());
        for frag in packet.frags() {
            pieces.push_frag(frag, 0);
        }
        pieces.send_to(self.socket.as_fd(), peer).map(drop)
    }
}

impl Device for DatagramLink {
    fn transmit(
        &mut self,
        now: Instant,
        frames: &mut VecDeque<PacketBuf>,
        ledger: &mut CopyLedger,
    ) -> Result<(), DeviceError> {
        self.retry_at = None;
        self.card.finish(frames, ledger);
        while let (Some(packet), Some(peer)) = (frames.front(), self.peer) {
            self.card.counters.syscalls += 1;
            match self.send(packet, &peer).map_err(|e| errno(&e)) {
                Ok(()) => self.card.note_sent(packet, ledger),
                Err(Errno::INTR) => continue,
                // The peer's queue is full. Nothing announces its room to a socket that is not
                // connected, and one that were could not be greeted by the next peer.
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => {
                    self.retry_at = Some(now + SOCKET_RETRY);
                    return Ok(());
                }
                Err(Errno::CONNREFUSED | Errno::NOENT | Errno::NOTCONN | Errno::PERM) => {
                    self.peer = None;
                    break;
                }
                Err(_) => self.card.counters.tx_dropped_error += 1,
            }
            frames.pop_front();
        }
        if self.peer.is_none() {
            self.card.drop_unsent(frames);
        }
        Ok(())
    }

    fn receive(
        &mut self,
        _now: Instant,
        frames: &mut VecDeque<PacketBuf>,
        max: usize,
        ledger: &mut CopyLedger,
    ) -> Result<usize, DeviceError> {
        self.card.pool.drain();
        let mut count = 0;
        // A flood of what is no frame ends the burst, too.
        for _ in 0..max.min(SOCKET_BURST) {
            match self.take_one(ledger) {
                Ok(Some(packet)) => {
                    frames.push_back(packet);
                    count += 1;
                }
                Ok(None) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(system("receive", e)),
            }
        }
        Ok(count)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.retry_at
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    card_methods!();
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

fn system(what: &str, source: io::Error) -> DeviceError {
    socket::system("datagram", what, source)
}
