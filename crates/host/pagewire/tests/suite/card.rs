//! The double of a guest as the network card of another stack: what a guest's kernel would do is done
//! there. Examples use it, too.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use pagewire::Device;
use pagewire::device::{Capabilities, DeviceCounters, DeviceError, HeaderSplit, PacketBuf};
use pagewire::memory::CopyLedger;
use pagewire::services::Instant;
use pagewire_device::vhost_user::double::{Guest, GuestConfig};
use pagewire_testkit::frames::{bytes_of, received};
use pagewire_testkit::neighbours::Result;

/// A guest's network card: no offloads, frames of the usual length.
pub(crate) struct Card {
    guest: Guest,
    capabilities: Capabilities,
    interrupt: OwnedFd,
    /// Frames wait for buffers.
    blocked: bool,
}

impl Card {
    pub(crate) fn new(stream: UnixStream, mac: [u8; 6]) -> Result<Self> {
        let config = GuestConfig { offload: false, ..GuestConfig::default() };
        let guest = Guest::over(stream, config)?;
        let capabilities = Capabilities {
            max_super_frame: 1500,
            rx_checksum: false,
            tx_checksum: false,
            tso_v4: false,
            tso_v6: false,
            uso: false,
            max_frags: 16,
            header_split: HeaderSplit::None,
            ..Capabilities::offloading(mac, 1500)
        };
        let interrupt = guest.interrupt_fd()?;
        Ok(Self { guest, capabilities, interrupt, blocked: false })
    }
}

impl Device for Card {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn counters(&self) -> DeviceCounters {
        DeviceCounters::default()
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.interrupt.as_fd())
    }

    fn arm(&mut self) -> bool {
        self.guest.ask_interrupts();
        self.guest.has_received() || (self.blocked && self.guest.sendable() > 0)
    }

    fn disarm(&mut self) {
        self.guest.interrupts();
    }

    fn transmit(
        &mut self,
        _: Instant,
        frames: &mut VecDeque<PacketBuf>,
        _: &mut CopyLedger,
    ) -> std::result::Result<(), DeviceError> {
        while frames.front().is_some_and(|frame| self.guest.send(&bytes_of(frame))) {
            frames.pop_front();
        }
        self.blocked = !frames.is_empty();
        Ok(())
    }

    fn receive(
        &mut self,
        _: Instant,
        frames: &mut VecDeque<PacketBuf>,
        max: usize,
        _: &mut CopyLedger,
    ) -> std::result::Result<usize, DeviceError> {
        for n in 0..max {
            let Some(frame) = self.guest.receive() else { return Ok(n) };
            frames.push_back(received(&frame.bytes, 66));
        }
        Ok(max)
    }
}
