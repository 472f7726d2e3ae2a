//! The devices of a host. Each is a link of the host's stack, with a queue of output of its own.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

#[cfg(feature = "rings")]
use pagewire_device::Steering;
use pagewire_device::{Device, DeviceError};
use pagewire_mem::{Instant, PacketBuf, PoolAudit};
use pagewire_stack::LinkId;

use crate::stats::LinkStats;

/// Frames taken from a device at once: enough to share the cost of a turn, few enough that
/// acknowledgements leave while the data is still in cache.
pub(crate) const RECEIVE_BURST: usize = 64;

/// The devices of one host; `turn.rs` receives and sends by them.
pub(crate) struct Devices {
    pub(crate) all: Vec<LinkDevice>,
    /// Index of the device that is first in the next round.
    pub(crate) first: usize,
    pub(crate) rx: VecDeque<PacketBuf>,
    /// Frames that a device has just refused.
    pub(crate) refused: VecDeque<PacketBuf>,
    /// Duplicates of the devices' descriptors, then of the services', to wait on without the lock.
    fds: Arc<[Arc<OwnedFd>]>,
    /// The descriptors of the services, and whether a service has one that cannot be waited on.
    services: Vec<Arc<OwnedFd>>,
    services_polled: bool,
    /// Counts of the devices that were there until the end.
    last: Vec<LinkStats>,
}

/// The directions of a device, each of which may fail by itself: indices of [`LinkDevice::failures`].
pub(crate) const RECEIVING: usize = 0;
pub(crate) const SENDING: usize = 1;

/// A link's device, its output queue and its failures.
pub(crate) struct LinkDevice {
    pub(crate) id: LinkId,
    pub(crate) device: Box<dyn Device>,
    /// `None` once the device is lost: its descriptor would be ready for ever.
    fd: Option<Arc<OwnedFd>>,
    /// The device never had a descriptor to wait on.
    polled: bool,
    /// Frames that the device had no room for yet.
    pub(crate) tx: VecDeque<PacketBuf>,
    /// The first failure.
    error: Option<String>,
    /// Failures in a row, by direction.
    pub(crate) failures: [u32; 2],
    /// The device failed for good and is not used any more.
    pub(crate) lost: bool,
}

/// The number of failures in a row after which a device counts as gone for good, although it does not report
/// that.
const MOST_FAILURES: u32 = 1000;

/// The bit of a link among those of a host, of which there are at most 32 (`MAX_LINKS`).
pub(crate) fn link_bit(link: LinkId) -> u64 {
    1 << link.index()
}

impl Devices {
    pub(crate) fn new() -> Self {
        Self {
            all: Vec::new(),
            first: 0,
            rx: VecDeque::with_capacity(RECEIVE_BURST),
            refused: VecDeque::new(),
            fds: Arc::new([]),
            services: Vec::new(),
            services_polled: false,
            last: Vec::new(),
        }
    }

    /// The MTU of a link, unless it was removed.
    pub(crate) fn mtu(&self, link: LinkId) -> Option<usize> {
        let device = self.all.iter().find(|device| device.id == link)?;
        Some(device.device.capabilities().mtu)
    }

    /// Adds the device of a link. Takes `device` unless it fails, so that the caller can drop it without the lock.
    pub(crate) fn add(
        &mut self,
        link: LinkId,
        device: &mut Option<Box<dyn Device>>,
    ) -> std::io::Result<()> {
        let fd = device.as_ref().and_then(|device| device.wait_fd());
        let fd = fd.map(|fd| fd.try_clone_to_owned().map(Arc::new)).transpose()?;
        let Some(device) = device.take() else { return Ok(()) };
        let (polled, tx) = (fd.is_none(), VecDeque::with_capacity(RECEIVE_BURST));
        self.all.push(LinkDevice {
            id: link,
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

    /// Removes all devices at the end of the host. Their counts stay.
    pub(crate) fn close(&mut self) -> Vec<Box<dyn Device>> {
        self.last = self.stats();
        let gone = self.all.drain(..).map(|link| link.device).collect();
        self.first = 0;
        self.gather_fds();
        gone
    }

    /// Removes the device of a link.
    pub(crate) fn remove(&mut self, link: LinkId) -> Option<Box<dyn Device>> {
        let at = self.all.iter().position(|device| device.id == link)?;
        let gone = self.all.remove(at);
        self.first = 0;
        self.gather_fds();
        Some(gone.device)
    }

    pub(crate) fn gather_fds(&mut self) {
        let devices = self.all.iter().filter_map(|link| link.fd.clone());
        self.fds = devices.chain(self.services.iter().cloned()).collect();
    }

    /// Adds the services' descriptors to those that are waited on.
    pub(crate) fn wait_on_services(
        &mut self,
        fds: impl Iterator<Item = Arc<OwnedFd>>,
        polled: bool,
    ) {
        (self.services, self.services_polled) = (fds.collect(), polled);
        self.gather_fds();
    }

    /// Marks links as lost, a bit for each; returns the last that was not.
    pub(crate) fn lose(&mut self, lost: u64) -> Option<LinkId> {
        let is_lost = |link: &&mut LinkDevice| !link.lost && lost & link_bit(link.id) != 0;
        let mut last = None;
        for link in self.all.iter_mut().filter(is_lost) {
            link.error
                .get_or_insert_with(|| "another core lost its queue of the device".to_owned());
            (link.lost, link.fd) = (true, None);
            link.tx.clear();
            last = Some(link.id);
        }
        last
    }

    pub(crate) fn are_all_lost(&self) -> bool {
        self.all.iter().all(|link| link.lost)
    }

    /// Why the network is down, if it is: the failure of the last device that was lost.
    pub(crate) fn cause(&self) -> Option<&str> {
        self.all.iter().rev().find(|link| link.lost)?.error.as_deref()
    }

    /// Whether a device delays frames that it will still send, as one that simulates a slow line does.
    pub(crate) fn delays_frames(&self) -> bool {
        self.poll_timeout().is_some()
    }

    /// Whether frames wait for room in a device.
    pub(crate) fn is_blocked(&self) -> bool {
        self.all.iter().any(LinkDevice::is_blocked)
    }

    /// Whether no device has room, where there is any.
    pub(crate) fn are_all_blocked(&self) -> bool {
        let mut alive = self.all.iter().filter(|link| !link.lost).peekable();
        alive.peek().is_some() && alive.all(LinkDevice::is_blocked)
    }

    /// When a device needs a turn although nothing came in.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let alive = self.all.iter().filter(|link| !link.lost);
        alive.filter_map(|link| link.device.poll_timeout()).min()
    }

    /// Arms the descriptors of all devices; `true`: a device has frames already, do not wait.
    pub(crate) fn arm(&mut self) -> bool {
        self.all.iter_mut().filter(|link| !link.lost).any(|link| link.device.arm())
    }

    pub(crate) fn disarm(&mut self) {
        self.all.iter_mut().filter(|link| !link.lost).for_each(|link| link.device.disarm());
    }

    /// The descriptors of the devices and services, to wait on without the lock.
    pub(crate) fn fds(&self) -> Arc<[Arc<OwnedFd>]> {
        Arc::clone(&self.fds)
    }

    /// Whether a device or service has no descriptor to wait on.
    pub(crate) fn are_polled(&self) -> bool {
        self.services_polled || self.all.iter().any(|link| link.polled && !link.lost)
    }

    /// Steering rules, of the first device that has any.
    #[cfg(feature = "rings")]
    pub(crate) fn steering(&mut self) -> Option<&mut Steering> {
        self.all.iter_mut().find_map(|link| link.device.steering())
    }

    pub(crate) fn stats(&self) -> Vec<LinkStats> {
        let stats = |link: &LinkDevice| LinkStats {
            link: link.id,
            device: link.device.counters(),
            device_error: link.error.clone(),
        };
        self.last.iter().cloned().chain(self.all.iter().map(stats)).collect()
    }

    pub(crate) fn pool_audits(&self) -> impl Iterator<Item = PoolAudit> {
        self.all.iter().filter_map(|link| link.device.pool_audit())
    }
}

impl LinkDevice {
    pub(crate) fn is_blocked(&self) -> bool {
        !self.tx.is_empty()
    }

    /// Notes a failure; returns the link if the device is gone for good with it.
    pub(crate) fn note_error(&mut self, direction: usize, error: &DeviceError) -> Option<LinkId> {
        let failures = &mut self.failures[direction];
        *failures = failures.saturating_add(1);
        let closed = matches!(error, DeviceError::Closed);
        let gone = closed || *failures >= MOST_FAILURES;
        if closed {
            // The usual end of a link, not a fault.
            tracing::info!(link = self.id.index(), "device closed by its other side");
        } else if self.error.is_none() || gone {
            tracing::warn!(%error, link = self.id.index(), gone, "device failed");
        }
        if self.error.is_none() {
            self.error = Some(error.to_string());
        }
        if !gone || self.lost {
            return None;
        }
        (self.lost, self.fd) = (true, None);
        self.tx.clear();
        Some(self.id)
    }
}
