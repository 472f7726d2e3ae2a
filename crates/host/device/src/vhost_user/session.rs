//! The settings of a front end: features, memory, rings. Messages change it on the control thread,
//! the device uses it on its own; one lock, taken once per burst and once per message.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{
    Error, GpuBackend, Result, VhostUserBackendReqHandlerMut, VhostUserProtocolFeatures,
};

use super::counters::VhostCounters;
use super::events::Events;
use super::features;
use super::limits::{GUEST_HEADER, MAX_MEMORY_REGIONS, MAX_QUEUE_SIZE};
use super::memory::{Announced, Memory, MemoryError};
use super::port_state::PortState;
use super::vring::{Addresses, Vring};
use crate::limits::VNET_HEADER;
use crate::port::PortCounters;

/// The state that both threads share.
pub(super) struct Session {
    offered: u64,
    pub(super) features: u64,
    protocol: u64,
    pub(super) memory: Memory,
    /// The guest receives by even ones and sends by odd ones.
    pub(super) vrings: Vec<Vring>,
    pub(super) counters: VhostCounters,
    pub(super) connected: bool,
    /// No front end will connect any more.
    pub(super) spent: bool,
    pub(super) events: Arc<Events>,
    pub(super) port_state: Arc<PortState>,
    /// The port's counts, as of the last burst.
    pub(super) port: PortCounters,
    /// The last refusal, in words.
    pub(super) refused: Option<String>,
}

impl Session {
    /// Whether a signal to a guest or a front end was refused by the kernel.
    pub(super) fn has_pending_signals(&self) -> bool {
        self.vrings.iter().any(Vring::owes_signal)
    }

    pub(super) fn retry_signals(&mut self) {
        let Self { vrings, counters, .. } = self;
        vrings.iter_mut().for_each(|vring| vring.retry_signals(counters));
    }

    pub(super) fn new(offered: u64, events: &Arc<Events>, port_state: &Arc<PortState>) -> Self {
        Self {
            offered,
            features: 0,
            protocol: 0,
            memory: Memory::new(&port_state.allowance),
            vrings: (0..2 * port_state.pairs).map(|_| Vring::new(port_state)).collect(),
            counters: VhostCounters::default(),
            connected: false,
            spent: false,
            events: Arc::clone(events),
            port_state: Arc::clone(port_state),
            port: PortCounters::default(),
            refused: None,
        }
    }

    /// A front end has connected.
    pub(super) fn begin(&mut self) {
        self.end();
        self.connected = true;
        self.counters.sessions += 1;
    }

    /// Returns all held descriptors to the guest, while the front end is still there.
    pub(super) fn surrender(&mut self) {
        for vring in &mut self.vrings {
            vring.surrender(&mut self.counters);
        }
    }

    /// The front end is gone: its rings are not used again. Memory that fragments hold stays mapped.
    pub(super) fn end(&mut self) {
        for vring in &mut self.vrings {
            vring.stop(&self.events);
            *vring = Vring::new(&self.port_state);
        }
        self.memory = Memory::new(&self.port_state.allowance);
        (self.features, self.protocol) = (0, 0);
        self.connected = false;
        self.port_state.wake.wake();
    }

    pub(super) fn spend(&mut self) {
        self.spent = true;
        self.port_state.wake.wake();
    }

    pub(super) fn has(&self, feature: u64) -> bool {
        self.features & feature != 0
    }

    /// Whether the front end may ask for answers.
    pub(super) fn replies(&self) -> bool {
        self.protocol & VhostUserProtocolFeatures::REPLY_ACK.bits() != 0
    }

    /// Bytes of the virtio header in front of each frame (Virtio 1.2, section 5.1.6.1).
    pub(super) fn header_len(&self) -> usize {
        let whole = self.has(features::VERSION_1) || self.has(features::MRG_RXBUF);
        if whole { GUEST_HEADER } else { VNET_HEADER }
    }

    /// Buffers in the receive ring of a pair; `None`: it does not run.
    pub(super) fn waiting(&mut self, pair: usize) -> Option<u16> {
        let Self { vrings, counters, .. } = self;
        let vring = vrings.get_mut(2 * pair)?;
        let waiting = vring.waiting(counters);
        vring.running().map(|_| waiting)
    }

    fn vring(&mut self, index: u32) -> Result<&mut Vring> {
        self.vrings.get_mut(index as usize).ok_or(Error::InvalidParam)
    }

    /// Takes the eventfd of a message.
    fn event_fd(&mut self, fd: Option<File>) -> Result<Option<OwnedFd>> {
        let Some(fd) = fd else { return Ok(None) };
        match self.port_state.signals.take(OwnedFd::from(fd)) {
            Some(fd) => Ok(Some(fd)),
            None => {
                self.counters.bad_event_fds += 1;
                Err(Error::IncorrectFds)
            }
        }
    }

    /// Replaces the memory and finds the rings there.
    fn replace_memory(&mut self, memory: std::result::Result<Memory, MemoryError>) -> Result<()> {
        let memory = match memory {
            Ok(memory) => memory,
            Err(error) => {
                self.counters.bad_memory += 1;
                self.refused = Some(error.to_string());
                return Err(Error::InvalidParam);
            }
        };
        self.memory = memory;
        for vring in &mut self.vrings {
            if vring.rebind(&self.memory).is_none() {
                self.counters.bad_rings += 1;
                return Err(Error::InvalidParam);
            }
        }
        Ok(())
    }

    fn refuse<T>(&self) -> Result<T> {
        Err(Error::InvalidOperation("not offered by this device"))
    }
}

fn announced(region: &VhostUserMemoryRegion) -> Announced {
    Announced {
        guest: region.guest_phys_addr,
        user: region.user_addr,
        len: region.memory_size,
        offset: region.mmap_offset,
    }
}

impl VhostUserBackendReqHandlerMut for Session {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.reset_device()
    }

    fn reset_device(&mut self) -> Result<()> {
        for vring in &mut self.vrings {
            vring.stop(&self.events);
            vring.enabled = false;
        }
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.offered)
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        if features & !self.offered != 0 {
            return Err(Error::InvalidParam);
        }
        self.features = features;
        let event_index = self.has(features::EVENT_IDX);
        for vring in &mut self.vrings {
            vring.event_index = event_index;
        }
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<u64>>> {
        let mut memory = Memory::new(&self.port_state.allowance);
        let mut each = regions.iter().zip(files);
        let added = each.try_for_each(|(region, file)| memory.add(announced(region), file));
        self.replace_memory(added.map(|()| memory))?;
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let size = u16::try_from(num).ok().filter(|&n| n.is_power_of_two() && n <= MAX_QUEUE_SIZE);
        let vring = self.vring(index)?;
        match size.filter(|_| !vring.is_started()) {
            Some(size) => vring.size = size,
            None => {
                self.counters.bad_rings += 1;
                return Err(Error::InvalidParam);
            }
        }
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        desc: u64,
        used: u64,
        avail: u64,
        _log: u64,
    ) -> Result<()> {
        let vring = self.vrings.get_mut(index as usize).ok_or(Error::InvalidParam)?;
        vring.addresses = Some(Addresses { desc, avail, used });
        if vring.rebind(&self.memory).is_none() {
            self.counters.bad_rings += 1;
            return Err(Error::InvalidParam);
        }
        Ok(())
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let base = u16::try_from(base).map_err(|_| Error::InvalidParam)?;
        let vring = self.vring(index)?;
        if vring.is_started() {
            return Err(Error::InvalidParam);
        }
        vring.set_base(base);
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let vring = self.vrings.get_mut(index as usize).ok_or(Error::InvalidParam)?;
        let base = vring.stop(&self.events);
        Ok(VhostUserVringState::new(index, u32::from(base)))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let fd = self.event_fd(fd)?;
        let enable = !self.has(features::PROTOCOL_FEATURES);
        let vring = self.vrings.get_mut(usize::from(index)).ok_or(Error::InvalidParam)?;
        // Front ends take "The ring starts when a kick is received" to mean the kick's descriptor.
        if !vring.is_started() && vring.start(&self.memory).is_none() {
            self.counters.bad_rings += 1;
            return Err(Error::InvalidParam);
        }
        vring.set_kick(fd, &self.events);
        vring.enabled |= enable;
        self.port_state.wake.wake();
        Ok(())
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let fd = self.event_fd(fd)?;
        self.vring(u32::from(index))?.set_call(fd);
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let fd = self.event_fd(fd)?;
        self.vring(u32::from(index))?.set_error(fd);
        Ok(())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(features::protocol())
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        if features & !features::protocol().bits() != 0 {
            return Err(Error::InvalidParam);
        }
        self.protocol = features;
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        // For a network device, pairs (as QEMU and DPDK count).
        Ok(self.vrings.len() as u64 / 2)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.vring(index)?.enabled = enable;
        self.port_state.wake.wake();
        Ok(())
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(MAX_MEMORY_REGIONS as u64)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<u64>> {
        let announced = announced(region);
        if self.memory.add_again(&announced, self.vrings.len() / 2) {
            return Ok(None);
        }
        let mut memory = self.memory.clone();
        let added = memory.add(announced, file);
        self.replace_memory(added.map(|()| memory))?;
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let mut memory = self.memory.clone();
        let (guest, user) = (region.guest_phys_addr, region.user_addr);
        let removed = memory.remove(guest, user, region.memory_size);
        self.replace_memory(removed.map(|()| memory))
    }

    fn get_config(&mut self, _at: u32, _len: u32, _flags: VhostUserConfigFlags) -> Result<Vec<u8>> {
        self.refuse()
    }

    fn set_config(&mut self, _at: u32, _buf: &[u8], _flags: VhostUserConfigFlags) -> Result<()> {
        self.refuse()
    }

    fn set_gpu_socket(&mut self, _gpu: GpuBackend) -> Result<()> {
        self.refuse()
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        self.refuse()
    }

    fn get_inflight_fd(&mut self, _at: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        self.refuse()
    }

    fn set_inflight_fd(&mut self, _at: &VhostUserInflight, _file: File) -> Result<()> {
        self.refuse()
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _fd: File,
    ) -> Result<Option<File>> {
        self.refuse()
    }

    fn check_device_state(&mut self) -> Result<()> {
        self.refuse()
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        self.refuse()
    }

    fn set_log_base(&mut self, _log: &VhostUserLog, _file: File) -> Result<()> {
        self.refuse()
    }
}
