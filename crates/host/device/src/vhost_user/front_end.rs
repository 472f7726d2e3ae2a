//! A connected front end: what it has set for all devices of the port, and whom its messages go to
//! ([`FrontEnd`]). Settings of all go to each [`Session`], those of a ring to the session that has it.

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

use super::features;
use super::limits::MAX_MEMORY_REGIONS;
use super::memory::{Announced, Memory, MemoryError};
use super::session::Session;
use super::shared::Shared;
use super::vring::Addresses;

/// A front end, from when it connects.
pub(super) struct FrontEnd {
    /// Those of the port: pairs are dealt to them in turns.
    devices: Arc<[Arc<Shared>]>,
    /// Number of queue pairs of all.
    pairs: usize,
    offered: u64,
    features: u64,
    protocol: u64,
    memory: Memory,
    /// The last refusal, in words.
    refused: Option<String>,
}

impl FrontEnd {
    /// Begins a session of each device. There is at least one.
    pub(super) fn new(devices: Arc<[Arc<Shared>]>) -> Option<Self> {
        let pairs = devices.iter().map(|device| device.port_state.pairs).sum();
        let memory = Memory::new(&devices.first()?.port_state.allowance);
        let offered = features::offered(pairs);
        let (features, protocol, refused) = (0, 0, None);
        let front_end = Self { devices, pairs, offered, features, protocol, memory, refused };
        front_end.first(|session| session.counters.sessions += 1);
        // The first last: it says whether a front end is connected.
        front_end.devices.iter().rev().for_each(|device| device.session().begin());
        Some(front_end)
    }

    /// Ends the sessions. `error`: why the front end is disconnected, which is still there then.
    pub(super) fn end(&mut self, error: Option<String>) {
        let refused = error.map(|error| self.refused.take().unwrap_or(error));
        if let Some(why) = &refused {
            tracing::warn!("vhost-user: the front end was disconnected: {why}");
            self.first(|session| {
                session.counters.bad_messages += 1;
                session.refused = Some(why.clone());
            });
        }
        self.memory = self.memory.emptied();
        for device in self.devices.iter().rev() {
            let mut session = device.session();
            if refused.is_some() {
                // The front end counts from what is returned when it reconnects.
                session.surrender();
            }
            session.end();
        }
    }

    pub(super) fn has(&self, feature: u64) -> bool {
        self.features & feature != 0
    }

    /// Whether the front end may ask for answers.
    pub(super) fn replies(&self) -> bool {
        self.protocol & VhostUserProtocolFeatures::REPLY_ACK.bits() != 0
    }

    /// Changes the session that counts what belongs to no ring.
    fn first(&self, change: impl FnOnce(&mut Session)) {
        if let Some(device) = self.devices.first() {
            change(&mut device.session());
        }
    }

    /// Changes the session that has a ring, which has another number there.
    fn ring<T>(
        &self,
        index: u32,
        change: impl FnOnce(&mut Session, usize) -> Option<T>,
    ) -> Result<T> {
        let (pair, side) = (index as usize / 2, index as usize % 2);
        if pair >= self.pairs {
            return Err(Error::InvalidParam);
        }
        let count = self.devices.len().max(1);
        let device = self.devices.get(pair % count).ok_or(Error::InvalidParam)?;
        change(&mut device.session(), pair / count * 2 + side).ok_or(Error::InvalidParam)
    }

    /// Changes a ring's session by an eventfd.
    fn ring_fd(
        &self,
        index: u8,
        fd: Option<File>,
        change: impl FnOnce(&mut Session, usize, Option<OwnedFd>) -> Option<()>,
    ) -> Result<()> {
        let mut is_event = true;
        let changed = self.ring(u32::from(index), |session, at| match session.event_fd(fd) {
            Ok(fd) => change(session, at, fd),
            Err(()) => {
                is_event = false;
                None
            }
        });
        if is_event { changed } else { Err(Error::IncorrectFds) }
    }

    /// Replaces the memory of all devices.
    pub(super) fn replace_memory(
        &mut self,
        memory: std::result::Result<Memory, MemoryError>,
    ) -> Result<()> {
        match memory {
            Ok(memory) => self.memory = memory,
            Err(error) => {
                let why = error.to_string();
                self.refused = Some(why.clone());
                self.first(|session| {
                    session.counters.bad_memory += 1;
                    session.refused = Some(why);
                });
                return Err(Error::InvalidParam);
            }
        }
        for device in self.devices.iter() {
            device.session().replace_memory(&self.memory).ok_or(Error::InvalidParam)?;
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

impl VhostUserBackendReqHandlerMut for FrontEnd {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.reset_device()
    }

    fn reset_device(&mut self) -> Result<()> {
        self.devices.iter().for_each(|device| device.session().reset());
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
        self.devices.iter().for_each(|device| device.session().set_features(features));
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<u64>>> {
        let mut memory = self.memory.emptied();
        let mut each = regions.iter().zip(files);
        let added = each.try_for_each(|(region, file)| memory.add(announced(region), file));
        self.replace_memory(added.map(|()| memory))?;
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        self.ring(index, |session, at| session.set_size(at, num))
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
        let addresses = Addresses { desc, avail, used };
        self.ring(index, |session, at| session.set_addresses(at, addresses))
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let base = u16::try_from(base).map_err(|_| Error::InvalidParam)?;
        self.ring(index, |session, at| {
            let vring = session.vring(at).filter(|vring| !vring.is_started())?;
            vring.set_base(base);
            Some(())
        })
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let base = self.ring(index, Session::stop)?;
        Ok(VhostUserVringState::new(index, u32::from(base)))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        self.ring_fd(index, fd, Session::set_kick)
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        self.ring_fd(index, fd, |session, at, fd| session.vring(at).map(|ring| ring.set_call(fd)))
    }

    fn set_vring_err(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        self.ring_fd(index, fd, |session, at, fd| session.vring(at).map(|ring| ring.set_error(fd)))
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
        Ok(self.pairs as u64)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.ring(index, |session, at| session.enable(at, enable))
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
        if self.memory.add_again(&announced, self.pairs) {
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
