//! Variant of step R1, for several flows of a tap: queues of one device, each with its own pages.
//!
//! [`super::bulk_flows`] chooses a queue for each flow; here they are attached and read in turn.
//!
//! ```text
//!   lane 0              queue 0 of the interface, the default, and all its small frames
//!   lane 1, 2, …        one bulk flow of queue 0 each                          --> bulk_flows
//!   lane n, n-1, …      queues 1, 2, … of the interface, once they have memory  --> the rules
//! ```
//!
//! A queue of the interface that was given memory has a lane of its own, the last spare one: frames
//! of a flow that a rule steers there leave by that lane, so the kernel delivers the flow's data
//! there. The kernel forgets flows after three seconds of silence and picks any lane for unknown
//! ones. So misplaced payload is handled: other flows' payload in registered memory is moved out,
//! and counted (`CopyReason::Misplaced`); payload of a queue's flow that came by another lane stays
//! in place, to be copied above ([`Level::missed`](pagewire_mem::link::Level::missed)).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use pagewire_mem::{PAGE_SIZE, PacketBuf, PageWriter};
use rustix::event::epoll;

use super::bulk_flows::BulkFlows;
use super::limits::{LANE_BURST, LANE_BYTES, MOVE_FRAMES, SPARE_LANES};
use super::predict::Predictor;
use super::sys;
use pagewire_mem::link::{Level, Steering};

/// The pages for the payload of one queue's frames, and the guess of their header length.
#[derive(Debug)]
pub(super) struct Lane {
    /// Where the kernel writes payload.
    pub(super) bulk: PageWriter,
    pub(super) predictor: Predictor,
    /// The queue of the interface whose memory it fills.
    pub(super) queue: usize,
    /// The state of registered memory, if its pages are of that.
    pub(super) registered: Option<Arc<Level>>,
    /// Registered memory has too few pages: the tap's own are used meanwhile.
    pub(super) short: bool,
    /// Frames of the first queue that are still read before those of this one, at most: frames of the
    /// lane's flow may be among them, which are older.
    behind: usize,
}

impl Lane {
    pub(super) fn new() -> Self {
        let (bulk, predictor) = (PageWriter::new(), Predictor::new());
        Self { bulk, predictor, queue: 0, registered: None, short: false, behind: 0 }
    }
}

/// The queues of a tap: the first, and spare ones of which the first few are attached.
#[derive(Debug)]
pub(super) struct TapQueues {
    first: (Arc<OwnedFd>, Lane),
    pub(super) spare: Vec<(Arc<OwnedFd>, Lane)>,
    pub(super) bulk_flows: BulkFlows,
    /// Readable when any attached queue is; only with spare queues.
    ready: Option<OwnedFd>,
    /// Attached lanes, all read: the kernel may deliver anything there; and the index of the next.
    active: Vec<usize>,
    pub(super) next: usize,
    /// Lanes attached for queues of the interface, one bit each.
    attached: Arc<AtomicU32>,
    /// `changes` of the rules, when last read.
    seen: u64,
    /// Attaches (`true`) or detaches a queue.
    attach: SetAttached,
    /// Spare lanes that have sent nothing for their flow yet, one bit each.
    unused: u32,
    /// Lanes that wait for frames of the first queue ([`Lane::behind`]), one bit each.
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
            watch(&ready, &first)?;
            Some(ready)
        };
        let bulk_flows = BulkFlows::new(spare.len());
        let lane = |(i, fd)| {
            // Far apart, so that each finds the next pages free.
            let home = (i + 1) * (LANE_BYTES / PAGE_SIZE);
            (Arc::new(fd), Lane { bulk: PageWriter::at_home(home), ..Lane::new() })
        };
        let spare = spare.into_iter().enumerate().map(lane).collect();
        let first = (Arc::new(first), Lane::new());
        Ok(Self {
            first,
            spare,
            bulk_flows,
            ready,
            active: vec![0],
            next: 0,
            attached: Arc::default(),
            seen: 0,
            attach: sys::set_attached,
            unused: 0,
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
        move |queue| {
            let ready = match &ready {
                Ok(ready) => ready.as_ref(),
                Err(e) => return Err(e.kind().into()),
            };
            let slot = fds.len().checked_sub(queue);
            // The first is attached.
            let Some((slot, fd)) = slot.and_then(|slot| Some((slot, fds.get(slot)?))) else {
                return Ok(());
            };
            attach(how, ready, fd)?;
            // Relaxed: one thread at a time uses the device.
            attached.fetch_or(bit(slot + 1), Ordering::Relaxed);
            Ok(())
        }
    }

    fn read_lane(&mut self, lane: usize) {
        if !self.active.contains(&lane) {
            self.active.push(lane);
        }
    }

    /// The lane of a queue of the interface, if it has its own.
    fn lane_of_queue(&self, queue: usize) -> Option<usize> {
        let lane = (self.spare.len() + 1).checked_sub(queue)?;
        let spare = self.spare.get(lane.checked_sub(1)?)?;
        (queue > 0 && spare.1.queue == queue).then_some(lane)
    }

    /// Gives a lane to queues that got memory, and takes it from those that lost theirs.
    pub(super) fn dedicate(&mut self, rules: &Steering) {
        if self.seen == rules.changes() {
            return;
        }
        self.seen = rules.changes();
        let spares = self.spare.len();
        // Also of one that lost its memory at once, because a rule was refused.
        let attached = self.attached.load(Ordering::Relaxed);
        for lane in (1..=spares).filter(|&lane| attached & bit(lane) != 0) {
            self.read_lane(lane);
        }
        for queue in 1..=spares {
            let lane = spares + 1 - queue;
            let Some((_, place)) = self.spare.get_mut(lane - 1) else { continue };
            let bound = rules.is_bound(queue);
            // Its memory has changed: release the reserved pages.
            place.fill(None);
            if bound == (place.queue == queue) {
                continue;
            }
            if bound {
                place.queue = queue;
                place.predictor = Predictor::new();
                self.bulk_flows.reserve(lane);
            } else {
                place.queue = 0;
                self.bulk_flows.release(lane);
            }
        }
    }

    /// The descriptor to wait on for frames of any queue.
    pub(super) fn wait_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_ref().unwrap_or(&self.first.0).as_fd()
    }

    /// The queue by which a frame is to leave. Its answers belong to `queue` of the interface.
    pub(super) fn fd_for(&mut self, packet: &PacketBuf, queue: usize) -> BorrowedFd<'_> {
        let dedicated = self.lane_of_queue(queue);
        let lane = dedicated.unwrap_or_else(|| self.bulk_flows.lane_of(packet));
        let spare = lane.checked_sub(1).and_then(|i| self.spare.get_mut(i));
        if self.unused & bit(lane) != 0
            && let Some((_, place)) = spare
        {
            self.unused &= !bit(lane);
            self.moving |= bit(lane);
            place.behind = MOVE_FRAMES;
        }
        let spare = lane.checked_sub(1).and_then(|i| self.spare.get(i));
        spare.unwrap_or(&self.first).0.as_fd()
    }

    /// Reads up to `max` frames with `read` (`None`: one was dropped; beside a frame, the queue of
    /// the interface that its flow belongs to), from all lanes in turn, until all are empty.
    /// Dropped frames count as well: a flood of them ends the burst.
    pub(super) fn read_each(
        &mut self,
        max: usize,
        mut read: impl FnMut(BorrowedFd<'_>, &mut Lane) -> io::Result<Option<(PacketBuf, usize)>>,
        mut take: impl FnMut(PacketBuf),
    ) -> io::Result<()> {
        let (mut left, mut empty) = (max, 0);
        while left > 0 && empty < self.active.len() {
            let lanes = self.active.len().max(1);
            let turn = self.next % lanes;
            let at = self.active.get(turn).copied().unwrap_or(0);
            self.next = turn + 1;
            if self.moving & bit(at) != 0 {
                empty += 1;
                continue;
            }
            // Lanes that wait for the first queue do not wait for the others, too.
            let hurry = at == 0 && self.moving != 0;
            let burst = if lanes == 1 || hurry { left } else { left.min(LANE_BURST) };
            let mut came = 0;
            while came < burst {
                let (fd, lane) = match at.checked_sub(1).and_then(|i| self.spare.get_mut(i)) {
                    Some(spare) => spare,
                    None => &mut self.first,
                };
                match read(fd.as_fd(), lane) {
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(e),
                    Ok(None) => {}
                    Ok(Some((packet, queue))) => {
                        if queue == 0
                            && let Some(lane) = self.bulk_flows.note(at, &packet)
                        {
                            self.open(lane, packet.head().len());
                        }
                        take(packet);
                    }
                }
                came += 1;
            }
            left -= came;
            let drained = came < burst;
            let moved = hurry && self.note_first(came, drained);
            empty = match drained {
                // Lanes that were passed over have their turn.
                true if moved => 1,
                true => empty + 1,
                false => 0,
            };
        }
        Ok(())
    }

    /// So many frames were read from the first queue. Returns whether a lane waits no longer.
    fn note_first(&mut self, frames: usize, drained: bool) -> bool {
        let before = self.moving;
        for (lane, (_, place)) in (1..).zip(&mut self.spare) {
            place.behind = if drained { 0 } else { place.behind.saturating_sub(frames) };
            if place.behind == 0 {
                self.moving &= !bit(lane);
            }
        }
        self.moving != before
    }

    /// Attaches the queue of a lane that a flow just got, whose headers are so long.
    fn open(&mut self, lane: usize, headers: usize) {
        let Some((fd, _)) = lane.checked_sub(1).and_then(|i| self.spare.get(i)) else { return };
        if !self.active.contains(&lane) {
            if attach(self.attach, self.ready.as_ref(), fd).is_err() {
                // Its frames still come by the first queue; those of lanes below by theirs.
                self.bulk_flows.give_up_from(lane);
                return;
            }
            self.read_lane(lane);
        }
        let Some((_, place)) = lane.checked_sub(1).and_then(|i| self.spare.get_mut(i)) else {
            return;
        };
        self.unused |= bit(lane);
        place.predictor = Predictor::for_headers(headers);
        place.bulk.align();
    }
}

/// Attaches a queue and watches it: both or neither. An earlier flow may have attached it.
fn attach(how: SetAttached, ready: Option<&OwnedFd>, fd: &OwnedFd) -> io::Result<()> {
    match how(fd.as_fd(), true) {
        Err(e) if e.raw_os_error() != Some(libc::EINVAL) => return Err(e),
        _ => {}
    }
    let watched = ready.map_or(Ok(()), |ready| watch(ready, fd));
    if watched.is_err() {
        // Fails only for lack of memory: then it stays attached, and is not read.
        let _ = how(fd.as_fd(), false);
    }
    watched
}

const _: () = assert!(SPARE_LANES < 32, "a bit for each lane");

fn bit(lane: usize) -> u32 {
    1_u32.checked_shl(lane as u32).unwrap_or(0)
}

fn watch(ready: &OwnedFd, fd: &OwnedFd) -> io::Result<()> {
    let data = epoll::EventData::new_u64(0);
    match epoll::add(ready, fd, data, epoll::EventFlags::IN) {
        Err(rustix::io::Errno::EXIST) => Ok(()),
        done => Ok(done?),
    }
}
