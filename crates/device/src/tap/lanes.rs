//! Byte path, step R1 on a tap: the queues of one device, each with pages of its own.
//!
//! [`super::steer`] says which flow is to come by which; here they are attached and read in turns.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use pagewire_mem::{PAGE_SIZE, PacketBuf, PageWriter};
use rustix::event::epoll;

use super::limits::{LANE_BURST, LANE_BYTES, SPARE_LANES};
use super::predict::Predictor;
use super::steer::Steering;
use super::sys;

/// Where the payload of one queue's frames lands, and the guess of how long their headers are.
#[derive(Debug)]
pub(super) struct Lane {
    /// Where the kernel puts payload.
    pub(super) bulk: PageWriter,
    pub(super) predictor: Predictor,
    /// Its pages are of memory that was registered.
    pub(super) registered: bool,
}

impl Lane {
    pub(super) fn new() -> Self {
        Self { bulk: PageWriter::new(), predictor: Predictor::new(), registered: false }
    }
}

/// The queues of a tap: the first, and spare ones of which the first few are attached.
#[derive(Debug)]
pub(super) struct TapQueues {
    first: (OwnedFd, Lane),
    spare: Vec<(OwnedFd, Lane)>,
    steering: Steering,
    /// Readable when any attached queue is; only where there are spare ones.
    ready: Option<OwnedFd>,
    /// The lane to read next.
    next: usize,
    /// Spare lanes by which nothing has left since they were given to a flow, one bit each: its frames
    /// still come by the first.
    unused: u32,
    /// Something left by such a lane, and older frames of its flow may still be in the first queue:
    /// they come before those in its own.
    moving: bool,
}

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
        let steering = Steering::new(spare.len());
        let lane = |(i, fd)| {
            // Places far apart, so that each finds the next pages free when it gets there.
            let home = (i + 1) * (LANE_BYTES / PAGE_SIZE);
            (fd, Lane { bulk: PageWriter::at_home(home), ..Lane::new() })
        };
        let spare = spare.into_iter().enumerate().map(lane).collect();
        let first = (first, Lane::new());
        Ok(Self { first, spare, steering, ready, next: 0, unused: 0, moving: false })
    }

    /// What to wait on for frames of any queue.
    pub(super) fn wait_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_ref().unwrap_or(&self.first.0).as_fd()
    }

    /// The queue by which a frame is to leave.
    pub(super) fn fd_for(&mut self, packet: &PacketBuf) -> BorrowedFd<'_> {
        let lane = self.steering.lane_of(packet);
        self.moving |= self.unused & bit(lane) != 0;
        self.unused &= !bit(lane);
        let spare = lane.checked_sub(1).and_then(|i| self.spare.get(i));
        spare.unwrap_or(&self.first).0.as_fd()
    }

    /// Reads up to `max` frames with `read` (`None`: one was dropped), from all queues in turns, until
    /// all are empty. Dropped frames count as well: a flood of them ends the burst.
    pub(super) fn read_each(
        &mut self,
        max: usize,
        mut read: impl FnMut(BorrowedFd<'_>, &mut Lane) -> io::Result<Option<PacketBuf>>,
        mut take: impl FnMut(PacketBuf),
    ) -> io::Result<()> {
        let (mut left, mut empty) = (max, 0);
        while left > 0 && empty < self.steering.lanes() {
            let lanes = self.steering.lanes();
            let at = if self.moving { 0 } else { self.next % lanes };
            let burst = if lanes == 1 { left } else { left.min(LANE_BURST) };
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
                    Ok(Some(packet)) => {
                        if let Some(lane) = self.steering.note(at, &packet) {
                            self.open(lane, packet.head().len());
                        }
                        take(packet);
                    }
                }
                came += 1;
            }
            left -= came;
            let drained = came < burst;
            self.moving &= !(drained && at == 0);
            if drained || !self.moving {
                self.next = at + 1;
            }
            empty = if drained { empty + 1 } else { 0 };
        }
        Ok(())
    }

    /// Attaches the queue of a lane that a flow was just given, whose headers are so long.
    fn open(&mut self, lane: usize, headers: usize) {
        self.unused |= bit(lane);
        let Some((fd, lane)) = lane.checked_sub(1).and_then(|i| self.spare.get_mut(i)) else {
            return;
        };
        lane.predictor = Predictor::for_headers(headers);
        lane.bulk.align();
        let Some(ready) = &self.ready else { return };
        // One that was another flow's before is attached.
        let attached = match sys::set_attached(fd.as_fd(), true) {
            Err(e) if e.raw_os_error() != Some(libc::EINVAL) => Err(e),
            _ => watch(ready, fd),
        };
        if attached.is_err() {
            // Frames come by the first queue, as they did.
            self.steering.give_up();
        }
    }
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
