//! Variant of step R1, for several flows of a tap: queues of one device, each with its own pages.
//!
//! [`super::bulk_flows`] chooses a queue for each flow; this file attaches the queues, and reads them in turn.
//! A queue of the *tap* is a descriptor, by its index; a queue of the *interface* is a number that applications
//! give memory to.
//!
//! ```text
//!   queue 0             queue 0 of the interface, the default, and all its small frames
//!   queue 1, 2, …       one mapped flow of queue 0 each                        --> bulk_flows
//!   queue n, n-1, …     queues 1, 2, … of the interface, once they have memory  --> the rules
//! ```
//!
//! A queue of the interface that was given memory has a tap queue of its own, the last spare one: frames
//! of a flow that a rule steers there leave by that queue, so the kernel delivers the flow's data
//! there. The kernel forgets flows after three seconds of silence and picks any queue for unknown
//! ones. So misplaced payload is handled: other flows' payload in registered memory is moved out,
//! and counted (`CopyReason::Misplaced`); payload of a queue's flow that came by another queue stays
//! in place, to be copied above ([`Level::missed`](pagewire_mem::link::Level::missed)).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use pagewire_mem::{Instant, PAGE_SIZE, PacketBuf, PageWriter};
use rustix::event::{Timespec, epoll};

use super::bulk_flows::{BulkFlows, Way};
use super::limits::{MOVE_FRAMES, QUEUE_BURST, QUEUE_BYTES, QUEUE_IDLE, SPARE_QUEUES};
use super::predict::Predictor;
use super::sys;
use pagewire_mem::link::{Level, Steering};

/// The pages for the payload of one queue's frames, and the guess of their header length.
#[derive(Debug)]
pub(super) struct TapQueue {
    /// Where the kernel writes payload.
    pub(super) bulk: PageWriter,
    pub(super) predictor: Predictor,
    /// The queue of the interface whose memory it fills.
    pub(super) interface_queue: usize,
    /// The state of registered memory, if its pages are of that.
    pub(super) registered: Option<Arc<Level>>,
    /// Registered memory has too few pages: the tap's own are used meanwhile.
    pub(super) short: bool,
    /// Frames of the first queue that are still read before those of this one, at most: frames of the
    /// queue's flow may be among them, and are older.
    behind: usize,
}

impl TapQueue {
    pub(super) fn new() -> Self {
        let (bulk, predictor) = (PageWriter::new(), Predictor::new());
        Self { bulk, predictor, interface_queue: 0, registered: None, short: false, behind: 0 }
    }
}

/// The queues of a tap: the first, and spare ones of which the first few are attached.
#[derive(Debug)]
pub(super) struct TapQueues {
    first: (Arc<OwnedFd>, TapQueue),
    pub(super) spare: Vec<(Arc<OwnedFd>, TapQueue)>,
    pub(super) bulk_flows: BulkFlows,
    /// Readable when any attached queue is, and says which; only with spare queues.
    ready: Option<OwnedFd>,
    /// Attached queues, all read: the kernel may deliver anything there; and the index of the next.
    active: Vec<usize>,
    pub(super) next: usize,
    /// When queues without a flow are looked for next.
    tidy_at: Instant,
    /// Queues attached for queues of the interface, one bit each.
    attached: Arc<AtomicU32>,
    /// `changes` of the rules, when last read.
    seen: u64,
    /// Attaches (`true`) or detaches a queue.
    attach: SetAttached,
    /// Queues that wait for frames of the first queue ([`TapQueue::behind`]), one bit each.
    moving: u32,
}

/// Attaches a queue of a tap, or detaches it.
type SetAttached = fn(BorrowedFd<'_>, bool) -> io::Result<()>;

impl TapQueues {
    /// The queues `spare` are detached.
    pub(super) fn new(first: OwnedFd, spare: Vec<OwnedFd>) -> io::Result<Self> {
        let ready = if spare.is_empty() {
            None
        } else {
            let ready = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            watch(&ready, &first, 0)?;
            Some(ready)
        };
        let bulk_flows = BulkFlows::new(spare.len());
        let numbered = |(i, fd)| {
            // Far apart, so that each finds the next pages free.
            let home = (i + 1) * (QUEUE_BYTES / PAGE_SIZE);
            (Arc::new(fd), TapQueue { bulk: PageWriter::at_home(home), ..TapQueue::new() })
        };
        let spare = spare.into_iter().enumerate().map(numbered).collect();
        let first = (Arc::new(first), TapQueue::new());
        Ok(Self {
            first,
            spare,
            bulk_flows,
            ready,
            active: vec![0],
            next: 0,
            tidy_at: Instant::ZERO,
            attached: Arc::default(),
            seen: 0,
            attach: sys::set_attached,
            moving: 0,
        })
    }

    #[cfg(test)]
    pub(super) fn attach_by(&mut self, attach: SetAttached) {
        self.attach = attach;
    }

    /// Queues that can be given memory: the first, and each spare one.
    pub(super) fn interface_queues(&self) -> usize {
        1 + self.spare.len()
    }

    /// Attaches a future queue of the interface before it gets memory, or says why it cannot.
    pub(super) fn attacher(&self) -> impl FnMut(usize) -> io::Result<()> + Send + use<> {
        let (how, ready) = (self.attach, self.ready.as_ref().map(OwnedFd::try_clone));
        let fds: Vec<_> = self.spare.iter().map(|(fd, _)| Arc::clone(fd)).collect();
        let (ready, attached) = (ready.transpose(), Arc::clone(&self.attached));
        move |interface_queue| {
            let ready = match &ready {
                Ok(ready) => ready.as_ref(),
                Err(e) => return Err(e.kind().into()),
            };
            let slot = fds.len().checked_sub(interface_queue);
            // The first is attached.
            let Some((slot, fd)) = slot.and_then(|slot| Some((slot, fds.get(slot)?))) else {
                return Ok(());
            };
            attach(how, ready, fd, slot + 1)?;
            // Relaxed: one thread at a time uses the device.
            attached.fetch_or(bit(slot + 1), Ordering::Relaxed);
            Ok(())
        }
    }

    fn read_from(&mut self, index: usize) {
        if !self.active.contains(&index) {
            self.active.push(index);
        }
    }

    /// The tap queue of a queue of the interface, if that has its own.
    fn index_of(&self, interface_queue: usize) -> Option<usize> {
        let index = (self.spare.len() + 1).checked_sub(interface_queue)?;
        let spare = self.spare.get(index.checked_sub(1)?)?;
        (interface_queue > 0 && spare.1.interface_queue == interface_queue).then_some(index)
    }

    /// Gives a tap queue to queues of the interface that got memory, and takes it from those that lost theirs.
    pub(super) fn dedicate(&mut self, rules: &Steering) {
        if self.seen == rules.changes() {
            return;
        }
        self.seen = rules.changes();
        let spares = self.spare.len();
        // Also of one that lost its memory at once, because a rule was refused.
        let attached = self.attached.load(Ordering::Relaxed);
        for index in (1..=spares).filter(|&index| attached & bit(index) != 0) {
            self.read_from(index);
        }
        for interface_queue in 1..=spares {
            let index = spares + 1 - interface_queue;
            let Some((_, queue)) = self.spare.get_mut(index - 1) else { continue };
            let bound = rules.is_bound(interface_queue);
            // The memory has changed: release the reserved pages.
            queue.fill(None);
            if bound == (queue.interface_queue == interface_queue) {
                continue;
            }
            if bound {
                queue.interface_queue = interface_queue;
                queue.predictor = Predictor::new();
                self.bulk_flows.reserve(index);
            } else {
                queue.interface_queue = 0;
                self.bulk_flows.release(index);
            }
        }
    }

    /// The descriptor to wait on for frames of any queue.
    pub(super) fn wait_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_ref().unwrap_or(&self.first.0).as_fd()
    }

    /// The queue by which a frame is to leave. Its answers belong to `queue` of the interface.
    pub(super) fn fd_for(
        &mut self,
        now: Instant,
        packet: &PacketBuf,
        interface_queue: usize,
    ) -> BorrowedFd<'_> {
        let mixed = self.first.1.predictor.is_mixed();
        let index = match self.index_of(interface_queue) {
            Some(dedicated) => dedicated,
            None => match self.bulk_flows.way_of(now, packet, mixed) {
                Way::First => 0,
                Way::Own(index) => index,
                Way::New(index) => self.open(index),
            },
        };
        let spare = index.checked_sub(1).and_then(|i| self.spare.get(i));
        spare.unwrap_or(&self.first).0.as_fd()
    }

    /// Reads up to `max` frames with `read` (`None`: one was dropped), from the queues that have some, in
    /// turn, until all are empty. Dropped frames count as well: a flood of them ends the burst.
    pub(super) fn read_each(
        &mut self,
        max: usize,
        mut read: impl FnMut(BorrowedFd<'_>, &mut TapQueue) -> io::Result<Option<PacketBuf>>,
        mut take: impl FnMut(PacketBuf),
    ) -> io::Result<()> {
        let (mut left, mut more) = (max, true);
        while left > 0 && more {
            let waiting = self.waiting()?;
            if waiting & bit(0) == 0 {
                self.note_first(0, true);
            }
            more = false;
            let mut round = waiting & !self.moving;
            while round != 0 && left > 0 {
                // The turn goes on behind the queue that was read last.
                let behind = round & u32::MAX.checked_shl(self.next as u32).unwrap_or(0);
                let at = if behind == 0 { round } else { behind }.trailing_zeros() as usize;
                round &= !bit(at);
                self.next = at + 1;
                // Queues that wait for the first queue do not wait for the others, too.
                let hurry = at == 0 && self.moving != 0;
                let alone = hurry || self.active.len() == 1;
                let burst = if alone { left } else { left.min(QUEUE_BURST) };
                let came = self.read_burst(at, burst, &mut read, &mut take)?;
                left -= came;
                let drained = came < burst;
                more |= !drained || hurry;
                if hurry {
                    self.note_first(came, drained);
                }
            }
        }
        Ok(())
    }

    /// The attached queues that have frames, one bit each. A tap with one attached queue saves the call.
    fn waiting(&self) -> io::Result<u32> {
        let Some(ready) = self.ready.as_ref().filter(|_| self.active.len() > 1) else {
            return Ok(bit(0));
        };
        let mut queues = [WATCHED_NONE; 1 + SPARE_QUEUES];
        let count = epoll::wait(ready, &mut queues, Some(&NO_TIME))?;
        Ok(queues.iter().take(count).fold(0, |bits, queue| bits | bit(queue.data.u64() as usize)))
    }

    /// Reads up to `burst` frames from a queue; fewer if the queue has no more.
    fn read_burst(
        &mut self,
        at: usize,
        burst: usize,
        read: &mut impl FnMut(BorrowedFd<'_>, &mut TapQueue) -> io::Result<Option<PacketBuf>>,
        take: &mut impl FnMut(PacketBuf),
    ) -> io::Result<usize> {
        for came in 0..burst {
            let (fd, queue) = match at.checked_sub(1).and_then(|i| self.spare.get_mut(i)) {
                Some(spare) => spare,
                None => &mut self.first,
            };
            match read(fd.as_fd(), queue) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(came),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
                Ok(None) => {}
                Ok(Some(packet)) => take(packet),
            }
        }
        Ok(burst)
    }

    /// Notes that frames were read from the first queue.
    fn note_first(&mut self, frames: usize, drained: bool) {
        if self.moving == 0 {
            return;
        }
        for (index, (_, queue)) in (1..).zip(&mut self.spare) {
            queue.behind = if drained { 0 } else { queue.behind.saturating_sub(frames) };
            if queue.behind == 0 {
                self.moving &= !bit(index);
            }
        }
    }

    /// Attaches the queue that a flow just got. Returns the flow's queue: the first, if that fails.
    fn open(&mut self, index: usize) -> usize {
        let headers = self.first.1.predictor.header_len();
        let Some((fd, queue)) = index.checked_sub(1).and_then(|i| self.spare.get_mut(i)) else {
            return 0;
        };
        if !self.active.contains(&index) {
            if attach(self.attach, self.ready.as_ref(), fd, index).is_err() {
                // The flow's frames still come by the first queue; those of lower queues by theirs.
                self.bulk_flows.give_up_from(index);
                return 0;
            }
            self.active.push(index);
        }
        queue.predictor = Predictor::for_headers(headers);
        queue.bulk.align();
        queue.behind = MOVE_FRAMES;
        self.moving |= bit(index);
        index
    }

    /// Detaches queues that have no flow any more, so that the kernel need not classify frames for them. Only
    /// the one that was attached last goes: the kernel would give its number to the gap that another leaves.
    pub(super) fn tidy(&mut self, now: Instant) {
        if self.active.len() == 1 || now < self.tidy_at {
            return;
        }
        self.tidy_at = now + QUEUE_IDLE;
        // Frames in a detached queue would be lost.
        let waiting = self.waiting().unwrap_or(u32::MAX);
        while let Some(&index) = self.active.last()
            && let Some((fd, queue)) = index.checked_sub(1).and_then(|i| self.spare.get_mut(i))
            && self.bulk_flows.is_idle(now, index)
            && waiting & bit(index) == 0
            && (self.attach)(fd.as_fd(), false).is_ok()
        {
            queue.bulk.abandon();
            self.bulk_flows.release(index);
            self.moving &= !bit(index);
            self.attached.fetch_and(!bit(index), Ordering::Relaxed);
            self.active.pop();
            self.first.1.predictor.forget_turns();
        }
    }
}

/// Attaches a queue and watches it: both or neither. An earlier flow may have attached it.
fn attach(how: SetAttached, ready: Option<&OwnedFd>, fd: &OwnedFd, index: usize) -> io::Result<()> {
    match how(fd.as_fd(), true) {
        Err(e) if e.raw_os_error() != Some(libc::EINVAL) => return Err(e),
        _ => {}
    }
    let watched = ready.map_or(Ok(()), |ready| watch(ready, fd, index));
    if watched.is_err() {
        // Fails only for lack of memory: then it stays attached, and is not read.
        let _ = how(fd.as_fd(), false);
    }
    watched
}

const NO_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

const WATCHED_NONE: epoll::Event =
    epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };

const _: () = assert!(SPARE_QUEUES < 32, "a bit for each queue");

fn bit(index: usize) -> u32 {
    1_u32.checked_shl(index as u32).unwrap_or(0)
}

fn watch(ready: &OwnedFd, fd: &OwnedFd, index: usize) -> io::Result<()> {
    let data = epoll::EventData::new_u64(index as u64);
    match epoll::add(ready, fd, data, epoll::EventFlags::IN) {
        Err(rustix::io::Errno::EXIST) => Ok(()),
        done => Ok(done?),
    }
}
