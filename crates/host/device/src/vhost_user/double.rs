//! A test double of a guest: the front end's side of the protocol and a driver over real
//! virtqueues, in memory of its own that it shares. `pagewire bench port` generates frames with it,
//! and tests use it in place of a virtual machine.
//!
//! ```text
//!   memory: [transmit ring][receive ring][transmit buffers ...][receive buffers ...]
//! ```
//!
//! A guest has one queue pair and one thread. Every transmit buffer is one descriptor that holds the virtio header
//! and the frame; [`Guest::send_super`] makes a chain of pages behind a header, as a kernel would.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use pagewire_mem::{MemError, PAGE_SIZE, Region};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use vhost::vhost_user::message::VhostUserHeaderFlag;
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::EventFd;

use super::features;
use super::limits::{GUEST_HEADER, MAX_QUEUE_PAIRS, MAX_QUEUE_SIZE};
use super::virtqueue::{
    DESC_NEXT, DESC_WRITE, Desc, Part, Ring, avail_bytes, desc_bytes, used_bytes,
};
use super::window::Window;

/// Where the guest's memory begins, in its own addresses.
pub(super) const GUEST_BASE: u64 = 0x1_0000_0000;

/// Where additional memory begins.
const BESIDE_BASE: u64 = 0x9_0000_0000;

/// Bytes set aside for a ring of the largest size, in pages: descriptors, available and used ring.
const RING_BYTES: usize = 8 * PAGE_SIZE;

/// Settings of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestConfig {
    /// Descriptors in each ring: a power of two, 2 to 1,024.
    pub queue_size: u16,
    /// Bytes of each transmit buffer, the virtio header included; rounded up to pages.
    pub send_buffer: usize,
    /// Bytes of each receive buffer, the virtio header included; rounded up to a cache line.
    pub receive_buffer: usize,
    /// Whether receive buffers may be merged, indirect tables and event indices are used, and
    /// checksums and super-frames are left to the other side.
    pub mergeable: bool,
    /// See [`mergeable`](Self::mergeable).
    pub indirect: bool,
    /// See [`mergeable`](Self::mergeable).
    pub event_index: bool,
    /// See [`mergeable`](Self::mergeable).
    pub offload: bool,
}

impl Default for GuestConfig {
    fn default() -> Self {
        Self {
            queue_size: 256,
            send_buffer: PAGE_SIZE,
            receive_buffer: 2048,
            mergeable: true,
            indirect: true,
            event_index: true,
            offload: true,
        }
    }
}

/// Why a guest cannot be connected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GuestError {
    /// An invalid setting.
    #[error("guest: {0}")]
    Config(&'static str),
    /// No memory to share.
    #[error("guest: memory: {0}")]
    Memory(#[from] MemError),
    /// The socket, or an eventfd.
    #[error("guest: {0}")]
    System(#[from] io::Error),
    /// The back end refused.
    #[error("guest: the back end refused: {0}")]
    Refused(#[from] vhost::Error),
}

/// A frame that the guest received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestFrame {
    /// The virtio header.
    pub header: [u8; GUEST_HEADER],
    /// The frame.
    pub bytes: Vec<u8>,
    /// The number of its buffers.
    pub buffers: u16,
}

/// Memory that a guest has shared in addition to its own.
#[derive(Debug)]
pub struct Beside {
    memory: Region,
}

impl Beside {
    fn info(&self) -> VhostUserMemoryRegionInfo {
        VhostUserMemoryRegionInfo {
            guest_phys_addr: BESIDE_BASE,
            memory_size: self.memory.len() as u64,
            userspace_addr: self.memory.span().start as u64,
            mmap_offset: 0,
            mmap_handle: self.memory.fd().map_or(-1, |fd| fd.as_raw_fd()),
        }
    }
}

/// The driver's side of one ring.
pub(super) struct Driver {
    pub(super) ring: Ring,
    /// Free descriptors.
    free: Vec<u16>,
    /// The buffers of each head that the device has, as many as its chain has.
    chains: Vec<Vec<u16>>,
    pub(super) next_avail: u16,
    next_used: u16,
    kicked: u16,
    /// Offset of buffer 0 in the window, and the length of each.
    buffers: usize,
    buffer_len: usize,
    kick: EventFd,
    call: EventFd,
}

/// A guest with one queue pair, connected to a back end.
pub struct Guest {
    pub(super) window: Window,
    pub(super) frontend: Frontend,
    pub(super) transmit: Driver,
    pub(super) receive: Driver,
    pub(super) features: u64,
    config: GuestConfig,
}

impl Guest {
    /// Connects a guest to the back end that listens at `path`.
    ///
    /// # Errors
    /// [`GuestError`]: the settings, the system, or the back end.
    pub fn connect(path: impl AsRef<Path>, config: GuestConfig) -> Result<Self, GuestError> {
        Self::over(UnixStream::connect(path)?, config)
    }

    /// As [`connect`](Self::connect), over a socket whose other end the back end has.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn over(stream: UnixStream, config: GuestConfig) -> Result<Self, GuestError> {
        let size = config.queue_size;
        if !size.is_power_of_two() || !(2..=MAX_QUEUE_SIZE).contains(&size) {
            return Err(GuestError::Config("queue_size is a power of two from 2 to 1,024"));
        }
        let send = config.send_buffer.max(1).next_multiple_of(PAGE_SIZE);
        let receive = config.receive_buffer.max(GUEST_HEADER).next_multiple_of(64);
        let (sends, receives) = (usize::from(size) * send, usize::from(size) * receive);
        let len = (2 * RING_BYTES + sends + receives).next_multiple_of(PAGE_SIZE);
        let window = Window::over(Region::memfd_shared("pagewire-guest", len)?)
            .ok_or(GuestError::Config("memory that cannot be shared"))?;
        let transmit = Driver::new(&window, 0, size, (2 * RING_BYTES, send))?;
        let receive = Driver::new(&window, RING_BYTES, size, (2 * RING_BYTES + sends, receive))?;
        let frontend = Frontend::from_stream(stream, 2 * MAX_QUEUE_PAIRS as u64);
        let features = config.features();
        let mut guest = Self { window, frontend, transmit, receive, features, config };
        guest.negotiate()?;
        guest.share()?;
        guest.start([0, 0])?;
        guest.post_all();
        Ok(guest)
    }

    /// Negotiates features.
    pub(super) fn negotiate(&mut self) -> Result<(), GuestError> {
        let Self { frontend, features, .. } = self;
        let offered = frontend.get_features()?;
        *features &= offered;
        frontend.set_owner()?;
        let protocol = frontend.get_protocol_features()?;
        frontend.set_protocol_features(protocol)?;
        // From here on every message is answered after it was handled.
        frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        frontend.set_features(*features)?;
        Ok(())
    }

    /// The memory, as the front end announces it.
    pub(super) fn memory(&self) -> VhostUserMemoryRegionInfo {
        VhostUserMemoryRegionInfo {
            guest_phys_addr: GUEST_BASE,
            memory_size: self.window.len() as u64,
            userspace_addr: self.window.user(),
            mmap_offset: 0,
            mmap_handle: self.window.fd().map_or(-1, |fd| fd.as_raw_fd()),
        }
    }

    pub(super) fn share(&mut self) -> Result<(), GuestError> {
        self.frontend.set_mem_table(&[self.memory()])?;
        Ok(())
    }

    /// Starts both rings at the given positions.
    pub(super) fn start(&mut self, [receive, transmit]: [u32; 2]) -> Result<(), GuestError> {
        self.start_ring(0, &self.receive, RING_BYTES, receive as u16)?;
        self.start_ring(1, &self.transmit, 0, transmit as u16)
    }

    /// Starts the ring at `at`, at a given position.
    pub(super) fn start_ring(
        &self,
        index: usize,
        driver: &Driver,
        at: usize,
        base: u16,
    ) -> Result<(), GuestError> {
        let (mut frontend, user) = (self.frontend.clone(), self.window.user());
        let size = driver.ring.size();
        frontend.set_vring_num(index, size)?;
        frontend.set_vring_base(index, base)?;
        let [desc, avail, used] = layout(at, size).map(|at| user + at as u64);
        let config = VringConfigData {
            queue_max_size: size,
            queue_size: size,
            flags: 0,
            desc_table_addr: desc,
            used_ring_addr: used,
            avail_ring_addr: avail,
            log_addr: None,
        };
        frontend.set_vring_addr(index, &config)?;
        frontend.set_vring_call(index, &driver.call)?;
        frontend.set_vring_kick(index, &driver.kick)?;
        frontend.set_vring_enable(index, true)?;
        Ok(())
    }

    /// Sets the eventfds that interrupt the guest, while the rings run.
    #[cfg(test)]
    pub(super) fn plug_interrupts(&self) -> Result<(), GuestError> {
        let frontend = self.frontend.clone();
        frontend.set_vring_call(0, &self.receive.call)?;
        Ok(frontend.set_vring_call(1, &self.transmit.call)?)
    }

    /// Stops both rings; returns their positions.
    ///
    /// # Errors
    /// [`GuestError::Refused`].
    pub fn stop(&mut self) -> Result<[u32; 2], GuestError> {
        Ok([self.frontend.get_vring_base(0)?, self.frontend.get_vring_base(1)?])
    }

    /// Continues both rings at the positions where they were stopped.
    ///
    /// # Errors
    /// [`GuestError::Refused`].
    pub fn resume(&mut self, bases: [u32; 2]) -> Result<(), GuestError> {
        self.start(bases)
    }

    /// Puts the same frame into every transmit buffer, for [`blast`](Self::blast). `false`: it does
    /// not fit.
    pub fn load(&mut self, frame: &[u8]) -> bool {
        let fits = GUEST_HEADER + frame.len() <= self.transmit.buffer_len;
        for index in (0..self.transmit.ring.size()).filter(|_| fits) {
            self.fill(index, [0; GUEST_HEADER], frame);
        }
        fits
    }

    /// Makes up to `max` of the loaded frames available, as far as buffers are free, and kicks if
    /// the back end wants it; returns how many.
    pub fn blast(&mut self, max: usize) -> usize {
        self.transmit.reclaim();
        let n = max.min(self.transmit.free.len());
        for _ in 0..n {
            let Some(head) = self.transmit.free.pop() else { break };
            self.transmit.post(head);
        }
        self.kick();
        n
    }

    /// Sends one frame in one buffer, without checksum information; `false`: no buffer is free.
    pub fn send(&mut self, frame: &[u8]) -> bool {
        self.send_with([0; GUEST_HEADER], frame)
    }

    /// As [`send`](Self::send), with a virtio header.
    pub fn send_with(&mut self, header: [u8; GUEST_HEADER], frame: &[u8]) -> bool {
        self.transmit.reclaim();
        if GUEST_HEADER + frame.len() > self.transmit.buffer_len {
            return false;
        }
        let Some(head) = self.transmit.free.pop() else { return false };
        self.fill(head, header, frame);
        self.transmit.post(head);
        self.kick();
        true
    }

    /// Puts a frame behind its virtio header into a transmit buffer, which it fits.
    pub(super) fn fill(&self, index: u16, header: [u8; GUEST_HEADER], frame: &[u8]) {
        let at = self.transmit.buffer(index);
        self.window.write(at, &header);
        self.window.write(at + GUEST_HEADER, frame);
        self.transmit.describe(index, GUEST_HEADER + frame.len());
    }

    /// Sends one frame as a chain: the virtio header, the frame's first `headers` bytes, and the
    /// rest in buffers of up to `part` bytes. `false`: too few buffers are free.
    pub fn send_super(
        &mut self,
        header: [u8; GUEST_HEADER],
        frame: &[u8],
        headers: usize,
        part: usize,
    ) -> bool {
        self.transmit.reclaim();
        let (front, rest) = frame.split_at_checked(headers).unwrap_or((frame, &[]));
        let part = part.clamp(1, self.transmit.buffer_len);
        let parts: Vec<&[u8]> = [&header[..], front].into_iter().chain(rest.chunks(part)).collect();
        if parts.len() > self.transmit.free.len() {
            return false;
        }
        let at = self.transmit.free.len() - parts.len();
        let chain = self.transmit.free.split_off(at);
        for (place, (&index, bytes)) in chain.iter().zip(parts).enumerate() {
            let at = self.transmit.buffer(index);
            self.window.write(at, bytes);
            let next = chain.get(place + 1).copied();
            let flags = if next.is_some() { DESC_NEXT } else { 0 };
            let (addr, len) = (GUEST_BASE + at as u64, bytes.len() as u32);
            let desc = Desc { addr, len, flags, next: next.unwrap_or(0) };
            self.transmit.ring.set_desc(index, desc);
        }
        let Some((&head, rest)) = chain.split_first() else { return false };
        if let Some(slot) = self.transmit.chains.get_mut(usize::from(head)) {
            *slot = rest.to_vec();
        }
        self.transmit.post(head);
        self.kick();
        true
    }

    /// Transmit buffers that are free now.
    pub fn sendable(&mut self) -> usize {
        self.transmit.reclaim();
        self.transmit.free.len()
    }

    /// Takes the next received frame, and makes its buffers available again.
    pub fn receive(&mut self) -> Option<GuestFrame> {
        let (mut header, mut bytes, mut buffers) = ([0; GUEST_HEADER], Vec::new(), 0);
        let mut want = 1;
        while buffers < want {
            let Some((head, len)) = self.receive.used() else { break };
            let mut part = vec![0; len];
            let at = self.receive.buffer(head);
            self.window.read(at, &mut part);
            if buffers == 0 {
                let (front, rest) = part.split_first_chunk()?;
                header = *front;
                let [.., low, high] = header;
                want = if self.config.mergeable { u16::from_le_bytes([low, high]) } else { 1 };
                bytes.extend_from_slice(rest);
            } else {
                bytes.extend_from_slice(&part);
            }
            buffers += 1;
            self.receive.offer(head);
        }
        if buffers == 0 {
            return None;
        }
        if self.receive.wants_kick(self.config.event_index) {
            let _ = self.receive.kick.write(1);
        }
        Some(GuestFrame { header, bytes, buffers })
    }

    /// Interrupts since the last call, of the receive ring and of the transmit ring.
    pub fn interrupts(&mut self) -> [u64; 2] {
        [&self.receive.call, &self.transmit.call].map(|call| call.read().unwrap_or(0))
    }

    /// A descriptor that is readable when there was an interrupt of the receive ring.
    ///
    /// # Errors
    /// Where the system has no descriptor left.
    pub fn interrupt_fd(&self) -> io::Result<OwnedFd> {
        typed(&self.receive.call)
    }

    /// Whether a frame was received.
    pub fn has_received(&self) -> bool {
        self.receive.ring.used_index() != self.receive.next_used
    }

    /// Asks for an interrupt when the next frame is received, and when the next buffer comes back.
    pub fn ask_interrupts(&mut self) {
        for driver in [&self.receive, &self.transmit] {
            driver.ring.ask_call(Some(driver.next_used), self.config.event_index);
        }
    }

    /// Shares additional memory, and sends one frame that lies there.
    ///
    /// # Errors
    /// Errors of the system or the back end.
    pub fn send_from_beside(&mut self, frame: &[u8]) -> Result<Beside, GuestError> {
        let len = (GUEST_HEADER + frame.len()).next_multiple_of(PAGE_SIZE);
        let memory = Region::memfd_shared("pagewire-beside", len)?;
        memory.copy_shared_in(GUEST_HEADER, frame)?;
        self.transmit.reclaim();
        let Some(head) = self.transmit.free.pop() else {
            return Err(GuestError::Config("no descriptor is free"));
        };
        let beside = Beside { memory };
        if let Err(error) = self.frontend.add_mem_region(&beside.info()) {
            self.transmit.free.push(head);
            return Err(error.into());
        }
        let len = (GUEST_HEADER + frame.len()) as u32;
        self.transmit.ring.set_desc(head, Desc { addr: BESIDE_BASE, len, flags: 0, next: 0 });
        self.transmit.post(head);
        self.kick();
        Ok(beside)
    }

    /// Removes additional memory, whether or not its frame is still held.
    ///
    /// # Errors
    /// [`GuestError::Refused`].
    pub fn take_back(&mut self, beside: &Beside) -> Result<(), GuestError> {
        Ok(self.frontend.remove_mem_region(&beside.info())?)
    }

    /// Plays a front end that tries to block its back end: makes a write to the eventfds that
    /// interrupt the guest wait while the counter is full, and fills them.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn jam_interrupts(&self) -> io::Result<()> {
        [&self.receive.call, &self.transmit.call].into_iter().try_for_each(jam)
    }

    fn kick(&mut self) {
        if self.transmit.wants_kick(self.config.event_index) {
            let _ = self.transmit.kick.write(1);
        }
    }

    /// Makes every receive buffer available.
    fn post_all(&mut self) {
        while let Some(head) = self.receive.free.pop() {
            self.receive.offer(head);
        }
        if self.receive.wants_kick(self.config.event_index) {
            let _ = self.receive.kick.write(1);
        }
    }
}

impl GuestConfig {
    fn features(&self) -> u64 {
        let when = |on: bool, bits: u64| if on { bits } else { 0 };
        features::VERSION_1
            | features::PROTOCOL_FEATURES
            | when(self.mergeable, features::MRG_RXBUF)
            | when(self.indirect, features::INDIRECT_DESC)
            | when(self.event_index, features::EVENT_IDX)
            | when(
                self.offload,
                features::CSUM
                    | features::GUEST_CSUM
                    | features::GUEST_TSO4
                    | features::GUEST_TSO6
                    | features::GUEST_ECN
                    | features::HOST_TSO4
                    | features::HOST_TSO6
                    | features::HOST_ECN
                    | features::GUEST_USO4
                    | features::GUEST_USO6
                    | features::HOST_USO,
            )
    }
}

/// The same open file, as a typed descriptor.
fn typed(event: &EventFd) -> io::Result<OwnedFd> {
    let ours = pidfd_open(getpid(), PidfdFlags::empty())?;
    Ok(pidfd_getfd(&ours, event.as_raw_fd(), PidfdGetfdFlags::empty())?)
}

/// Fills an eventfd, on which writes block from now on.
pub(super) fn jam(event: &EventFd) -> io::Result<()> {
    let same = typed(event)?;
    rustix::io::ioctl_fionbio(&same, true)?;
    // Reset first: a counter takes one less than its largest value.
    let _ = event.read();
    event.write(u64::MAX - 1)?;
    Ok(rustix::io::ioctl_fionbio(same, false)?)
}

/// The offsets of the three parts of a ring: descriptors, available, used.
pub(super) fn layout(at: usize, size: u16) -> [usize; 3] {
    let avail = at + desc_bytes(size);
    [at, avail, (avail + avail_bytes(size)).next_multiple_of(64)]
}

impl Driver {
    pub(super) fn new(
        window: &Window,
        at: usize,
        size: u16,
        (buffers, buffer_len): (usize, usize),
    ) -> Result<Self, GuestError> {
        let [desc, avail, used] =
            layout(at, size).map(|offset| Part { window: window.clone(), offset });
        debug_assert!(used.offset + used_bytes(size) <= at + RING_BYTES);
        let ring = Ring::new(&desc, &avail, &used, size);
        let driver = Self {
            ring: ring.ok_or(GuestError::Config("rings do not fit"))?,
            free: (0..size).rev().collect(),
            chains: vec![Vec::new(); usize::from(size)],
            next_avail: 0,
            next_used: 0,
            kicked: 0,
            buffers,
            buffer_len,
            kick: EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)?,
            call: EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)?,
        };
        for index in 0..size {
            driver.describe(index, buffer_len);
        }
        Ok(driver)
    }

    /// The offset of a descriptor's buffer in the window.
    pub(super) fn buffer(&self, index: u16) -> usize {
        self.buffers + usize::from(index) * self.buffer_len
    }

    /// Writes a descriptor of one buffer to be read.
    pub(super) fn describe(&self, index: u16, len: usize) {
        let addr = GUEST_BASE + self.buffer(index) as u64;
        self.ring.set_desc(index, Desc { addr, len: len as u32, flags: 0, next: 0 });
    }

    /// Makes a chain available.
    pub(super) fn post(&mut self, head: u16) {
        self.ring.set_avail_entry(self.next_avail, head);
        self.next_avail = self.next_avail.wrapping_add(1);
    }

    /// Makes a buffer to receive into available.
    pub(super) fn offer(&mut self, head: u16) {
        let addr = GUEST_BASE + self.buffer(head) as u64;
        let len = self.buffer_len as u32;
        self.ring.set_desc(head, Desc { addr, len, flags: DESC_WRITE, next: 0 });
        self.post(head);
    }

    /// The next used entry: its head, and the bytes written, at most a buffer's.
    fn used(&mut self) -> Option<(u16, usize)> {
        if self.ring.used_index() == self.next_used {
            return None;
        }
        let (head, len) = self.ring.used_entry(self.next_used);
        self.next_used = self.next_used.wrapping_add(1);
        Some((head as u16, (len as usize).min(self.buffer_len)))
    }

    /// Takes back the descriptors that the device has used.
    fn reclaim(&mut self) {
        while let Some((head, _)) = self.used() {
            if let Some(chain) = self.chains.get_mut(usize::from(head)) {
                self.free.append(chain);
            }
            self.free.push(head);
        }
    }

    /// Publishes posted chains; returns whether the device wants a kick.
    pub(super) fn wants_kick(&mut self, event_index: bool) -> bool {
        if self.kicked == self.next_avail {
            return false;
        }
        self.ring.set_avail_index(self.next_avail);
        let old = std::mem::replace(&mut self.kicked, self.next_avail);
        self.ring.wants_kick(old, self.next_avail, event_index)
    }
}
