//! The devices of a host: each is a link of its stack, with a queue of its own towards it.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use pagewire_device::{Device, DeviceError, Steering};
use pagewire_mem::{Instant, PacketBuf, PoolAudit};
use pagewire_stack::{LinkId, Stack};

use crate::stats::LinkStats;

/// Frames taken from a device at once: enough to share the cost of a turn, few enough that
/// acknowledgements leave while the data is still in cache.
pub(crate) const RECEIVE_BURST: usize = 64;

/// All devices of one host, in turns.
pub(crate) struct Devices {
    ports: Vec<Port>,
    /// Who is first in the next round.
    first: usize,
    rx: VecDeque<PacketBuf>,
    /// What a device has just refused.
    refused: VecDeque<PacketBuf>,
    /// Duplicates of the devices' descriptors, to wait on without the lock.
    fds: Arc<[Arc<OwnedFd>]>,
    /// What those counted that were there until the end.
    last: Vec<LinkStats>,
}

/// Ways of a device, each of which may fail by itself.
const RECEIVING: usize = 0;
const SENDING: usize = 1;

/// One of them.
struct Port {
    link: LinkId,
    device: Box<dyn Device>,
    /// `None` once the device is lost: its descriptor would be ready for ever.
    fd: Option<Arc<OwnedFd>>,
    /// It never had a descriptor.
    polled: bool,
    /// What the device had no room for yet.
    tx: VecDeque<PacketBuf>,
    /// The first failure.
    error: Option<String>,
    /// Failures in a row.
    failures: [u32; 2],
    /// It failed for good: nobody asks it any more.
    lost: bool,
}

/// Failures in a row of a device that does not say that it is gone for good, and is taken to be.
const MOST_FAILURES: u32 = 1000;

impl Devices {
    pub(crate) fn new() -> Self {
        Self {
            ports: Vec::new(),
            first: 0,
            rx: VecDeque::with_capacity(RECEIVE_BURST),
            refused: VecDeque::new(),
            fds: Arc::new([]),
            last: Vec::new(),
        }
    }

    /// One more.
    pub(crate) fn add(&mut self, link: LinkId, device: Box<dyn Device>) -> std::io::Result<()> {
        let fd = device.wait_fd().map(|fd| fd.try_clone_to_owned().map(Arc::new)).transpose()?;
        let (polled, tx) = (fd.is_none(), VecDeque::with_capacity(RECEIVE_BURST));
        self.ports.push(Port {
            link,
            device,
            fd,
            polled,
            tx,
            error: None,
            failures: [0; 2],
            lost: false,
        });
        self.gather_fds();
        Ok(())
    }

    /// Takes all out: the host is over. Their counts stay.
    pub(crate) fn close(&mut self) -> Vec<Box<dyn Device>> {
        self.last = self.stats();
        let gone = self.ports.drain(..).map(|port| port.device).collect();
        self.first = 0;
        self.gather_fds();
        gone
    }

    /// Takes one out.
    pub(crate) fn remove(&mut self, link: LinkId) -> Option<Box<dyn Device>> {
        let at = self.ports.iter().position(|port| port.link == link)?;
        let port = self.ports.remove(at);
        self.first = 0;
        self.gather_fds();
        Some(port.device)
    }

    fn gather_fds(&mut self) {
        self.fds = self.ports.iter().filter_map(|port| port.fd.clone()).collect();
    }

    // A turn.

    /// Receives from each device, a burst at most, and lets the stack work; returns the longest
    /// burst.
    pub(crate) fn receive(&mut self, now: Instant, stack: &mut Stack) -> usize {
        let mut longest = 0;
        let mut lost = None;
        let (begin, end) = self.ports.split_at_mut(self.first);
        for port in end.iter_mut().chain(begin).filter(|port| !port.lost) {
            match port.device.receive(now, &mut self.rx, RECEIVE_BURST, stack.ledger_mut()) {
                Ok(n) => {
                    longest = longest.max(n);
                    port.failures[RECEIVING] = 0;
                }
                Err(error) => lost = port.note_error(RECEIVING, &error).or(lost),
            }
            stack.handle_frames_on(now, port.link, &mut self.rx);
        }
        if let Some(link) = lost {
            self.lose(now, stack, link);
        }
        self.first = if self.first + 1 < self.ports.len() { self.first + 1 } else { 0 };
        longest
    }

    /// One round of output: what devices had no room for goes first, and until it has gone, no more
    /// is made for them. Whether there is more, for a device that may have room.
    pub(crate) fn transmit(&mut self, now: Instant, stack: &mut Stack) -> bool {
        // Of devices that all have no room, the first that has some is to be asked again.
        let stuck = !self.ports.is_empty() && self.ports.iter().all(Port::is_blocked);
        let (mut more, mut freed, mut lost) = (stuck, false, None);
        for port in &mut self.ports {
            let blocked = port.is_blocked();
            if !blocked {
                more |= stack.poll_transmit_on(now, port.link, &mut port.tx);
            }
            if port.lost {
                port.tx.clear();
                continue;
            }
            // Output that loops back to this host, or waits for its neighbour's address, leaves no
            // frame.
            if port.tx.is_empty() && port.device.poll_timeout().is_none_or(|at| at > now) {
                continue;
            }
            match port.device.transmit(now, &mut port.tx, stack.ledger_mut()) {
                Ok(_) => port.failures[SENDING] = 0,
                Err(error) => {
                    lost = port.note_error(SENDING, &error).or(lost);
                    port.tx.clear();
                }
            }
            port.device.take_refused(&mut self.refused);
            if !self.refused.is_empty() {
                stack.handle_refused_on(now, port.link, &mut self.refused);
                // Who was told has a timer to set.
                more = true;
            }
            freed |= blocked && !port.is_blocked();
        }
        // What fails with it is to be told of, and timers are to be set.
        if let Some(link) = lost {
            self.lose(now, stack, link);
            more = true;
        }
        let waits = |port: &Port| !port.is_blocked() && stack.has_frames(port.link);
        more || freed || self.ports.iter().any(waits)
    }

    /// The device of a link failed for good.
    #[cold]
    #[inline(never)]
    fn lose(&mut self, now: Instant, stack: &mut Stack, link: LinkId) {
        // Others may have failed in the same round.
        let gone: Vec<LinkId> =
            self.ports.iter().filter(|p| p.lost && p.link != link).map(|p| p.link).collect();
        for link in gone.into_iter().chain([link]) {
            stack.handle_link_lost(now, link);
        }
        self.gather_fds();
    }

    /// Whether no device is left that could take anything.
    pub(crate) fn are_all_lost(&self) -> bool {
        self.ports.iter().all(|port| port.lost)
    }

    /// Why the network is down, if it is: what the last device that failed said.
    pub(crate) fn cause(&self) -> Option<&str> {
        self.ports.iter().rev().find(|port| port.lost)?.error.as_deref()
    }

    /// Whether a wrapper holds frames back that it will pass on, such as one that plays a slow line.
    pub(crate) fn delays_frames(&self) -> bool {
        self.poll_timeout().is_some()
    }

    /// Whether frames wait for room in a device.
    pub(crate) fn is_blocked(&self) -> bool {
        self.ports.iter().any(Port::is_blocked)
    }

    /// Whether no device has room, where there is any.
    pub(crate) fn are_all_blocked(&self) -> bool {
        let mut alive = self.ports.iter().filter(|port| !port.lost).peekable();
        alive.peek().is_some() && alive.all(Port::is_blocked)
    }

    /// When a device wants a turn although nothing came in.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let alive = self.ports.iter().filter(|port| !port.lost);
        alive.filter_map(|port| port.device.poll_timeout()).min()
    }

    // Waiting.

    /// Arms the descriptors of all; `true`: some device has something already, do not wait.
    pub(crate) fn arm(&mut self) -> bool {
        self.ports.iter_mut().filter(|port| !port.lost).any(|port| port.device.arm())
    }

    pub(crate) fn disarm(&mut self) {
        self.ports.iter_mut().filter(|port| !port.lost).for_each(|port| port.device.disarm());
    }

    /// Their descriptors, to wait on without the lock.
    pub(crate) fn fds(&self) -> Arc<[Arc<OwnedFd>]> {
        Arc::clone(&self.fds)
    }

    /// Whether some device never had a descriptor to wait on.
    pub(crate) fn are_polled(&self) -> bool {
        self.ports.iter().any(|port| port.polled && !port.lost)
    }

    // Getters.

    /// Steering rules, of the first device that has any.
    pub(crate) fn steering(&mut self) -> Option<&mut Steering> {
        self.ports.iter_mut().find_map(|port| port.device.steering())
    }

    pub(crate) fn stats(&self) -> Vec<LinkStats> {
        let stats = |port: &Port| LinkStats {
            link: port.link,
            device: port.device.counters(),
            device_error: port.error.clone(),
        };
        self.last.iter().cloned().chain(self.ports.iter().map(stats)).collect()
    }

    pub(crate) fn pool_audits(&self) -> impl Iterator<Item = PoolAudit> {
        self.ports.iter().filter_map(|port| port.device.pool_audit())
    }
}

impl Port {
    fn is_blocked(&self) -> bool {
        !self.tx.is_empty()
    }

    /// Its link, if it is gone for good with this.
    fn note_error(&mut self, way: usize, error: &DeviceError) -> Option<LinkId> {
        let failures = &mut self.failures[way];
        *failures = failures.saturating_add(1);
        let gone = matches!(error, DeviceError::Closed) || *failures >= MOST_FAILURES;
        if self.error.is_none() || gone {
            tracing::warn!(%error, link = self.link.index(), gone, "device failed");
        }
        if self.error.is_none() {
            self.error = Some(error.to_string());
        }
        if !gone || self.lost {
            return None;
        }
        (self.lost, self.fd) = (true, None);
        self.tx.clear();
        Some(self.link)
    }
}
