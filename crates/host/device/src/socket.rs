//! Code that the links over Unix sockets share: capabilities, the pool, and software offload.

use std::collections::VecDeque;
use std::io;
use std::path::Path;

use pagewire_mem::{
    CopyLedger, CopyReason, FragVec, HEAD_CAPACITY, MAX_FRAGS, PacketBuf, PagePool, PageWriter,
    TxChecksum,
};

use crate::limits::{MAX_MTU, MIN_MTU, SOCKET_MIN_POOL_BYTES, SOCKET_POOL_BYTES};
use crate::port::header_len;
use crate::settings::{LinkSettings, pool};
use crate::{DeviceCounters, DeviceError, socket_path};
use pagewire_mem::link::{Capabilities, HeaderSplit, Medium, offload};

/// An Ethernet card without any offload, and its memory to receive into.
#[derive(Debug)]
pub(crate) struct PlainCard {
    pub(crate) capabilities: Capabilities,
    pub(crate) counters: DeviceCounters,
    pub(crate) pool: PagePool,
    pub(crate) writer: PageWriter,
}

impl PlainCard {
    /// A card on a link at `path`; `link` says of what kind.
    pub(crate) fn new(
        link: &'static str,
        settings: &LinkSettings,
        path: &Path,
    ) -> Result<Self, DeviceError> {
        settings.check(link, MIN_MTU..=MAX_MTU, SOCKET_MIN_POOL_BYTES)?;
        let mtu = settings.mtu.unwrap_or(1500);
        let mac = settings.mac.unwrap_or_else(|| socket_path::derive_mac(path));
        let pool_bytes = settings.pool_bytes.unwrap_or(SOCKET_POOL_BYTES);
        let capabilities = Capabilities {
            max_super_frame: mtu,
            rx_checksum: false,
            tx_checksum: false,
            tso_v4: false,
            tso_v6: false,
            uso: false,
            max_frags: MAX_FRAGS,
            header_split: HeaderSplit::None,
            ..Capabilities::offloading(mac, mtu)
        };
        Ok(Self {
            capabilities,
            counters: DeviceCounters::default(),
            pool: pool(link, "pagewire-socket", pool_bytes)?,
            writer: PageWriter::new(),
        })
    }

    /// The packet of a frame in our pages, counted: its headers move to the head. `None`: too many
    /// pieces.
    pub(crate) fn received(
        &mut self,
        frags: FragVec,
        len: usize,
        ledger: &mut CopyLedger,
    ) -> Option<PacketBuf> {
        let Some(packet) = packet(frags, len) else {
            self.counters.rx_dropped_memory += 1;
            return None;
        };
        self.counters.rx_frames += 1;
        self.counters.rx_bytes += len as u64;
        self.counters.rx_payload_bytes += packet.frag_len() as u64;
        ledger.note(CopyReason::DeviceRx, packet.frag_len());
        Some(packet)
    }

    /// Finishes in software what a wrapper or a forwarding host left to the device.
    pub(crate) fn finish(&mut self, frames: &mut VecDeque<PacketBuf>, ledger: &mut CopyLedger) {
        let is_plain = |packet: &PacketBuf| {
            packet.gso.is_none() && matches!(packet.tx_checksum, TxChecksum::Done)
        };
        if frames.iter().all(is_plain) {
            return;
        }
        for packet in std::mem::take(frames) {
            if offload::segment(packet, frames, ledger).is_err() {
                self.counters.tx_dropped_error += 1;
            }
        }
    }

    /// Counts a frame that the socket took.
    pub(crate) fn note_sent(&mut self, packet: &PacketBuf, ledger: &mut CopyLedger) {
        self.counters.tx_frames += 1;
        self.counters.tx_bytes += packet.len() as u64;
        ledger.note(CopyReason::DeviceTx, packet.frag_len());
    }

    /// Drops frames that have no peer.
    pub(crate) fn drop_unsent(&mut self, frames: &mut VecDeque<PacketBuf>) {
        self.counters.tx_dropped_closed += frames.len() as u64;
        frames.clear();
    }
}

fn packet(frags: FragVec, len: usize) -> Option<PacketBuf> {
    let mut front = [0; HEAD_CAPACITY];
    let bytes = frags.iter().flat_map(|frag| frag.as_slice().unwrap_or_default());
    let shown = front.iter_mut().zip(bytes).map(|(to, from)| *to = *from).count();
    let (headers, _) = header_len(Medium::Ethernet, front.get(..shown)?, len);
    let mut packet = PacketBuf::for_rx();
    for frag in frags {
        packet.push_frag(frag).ok()?;
    }
    packet.linearize(headers).then_some(packet)
}

/// Methods of [`Device`](crate::Device) that a [`PlainCard`] in the field `card` answers.
macro_rules! card_methods {
    () => {
        fn capabilities(&self) -> &Capabilities {
            &self.card.capabilities
        }

        fn counters(&self) -> DeviceCounters {
            self.card.counters
        }

        fn pool_audit(&self) -> Option<pagewire_mem::PoolAudit> {
            Some(self.card.pool.audit())
        }

        fn trim(&mut self) {
            self.card.pool.trim();
        }

        fn room(&self) -> Option<usize> {
            Some($crate::device::room(&self.card.pool))
        }
    };
}
pub(crate) use card_methods;

/// The system refused; `link` begins the text.
pub(crate) fn system(link: &str, what: &str, source: io::Error) -> DeviceError {
    let hint = match source.kind() {
        io::ErrorKind::AddrInUse => " (another program has it open: take another path)",
        _ => "",
    };
    DeviceError::System { what: format!("{link}: {what}{hint}"), source }
}
