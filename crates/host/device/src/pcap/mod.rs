//! Captures: a wrapper that writes every frame of a device to a pcapng file, as Wireshark opens it,
//! and the writer below it. Read [`Pcap`] first.
//!
//! A capture shows the frames between the stack and the device: super-frames uncut, and transport
//! checksums that are left to the device incomplete (Wireshark's "checksum offload"). Only shared
//! payload is copied, through snapshots that are counted (`CopyReason::Snapshot`).
//!
//! `pcap-file` writes the section and the interface description. Its packet block needs the frame
//! in one piece, so the one here takes pieces.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use pagewire_mem::{CopyLedger, Instant, PacketBuf};
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::name_resolution::{
    Ipv4Record, Ipv6Record, NameResolutionBlock, Record,
};
use pcap_file::{DataLink, Endianness, PcapError};

use crate::device::{Device, DeviceError, forward_device, of_a_wire};
use crate::limits::{PCAP_BUFFER, PCAP_SNAPLEN};
use pagewire_mem::link::{Capabilities, Medium};

#[cfg(test)]
mod tests;

/// Settings of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PcapConfig {
    /// Bytes of each frame that are kept; its true length is always recorded.
    pub snaplen: u32,
    /// The zero of the stack's clock, as time since 1970-01-01 UTC. With zero, captures start in 1970.
    pub epoch: Duration,
}

impl Default for PcapConfig {
    fn default() -> Self {
        Self { snaplen: PCAP_SNAPLEN, epoch: Duration::ZERO }
    }
}

/// The direction of a captured frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PcapDirection {
    /// From the device to the stack.
    In,
    /// From the stack to the device.
    Out,
}

/// Counts of a capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PcapCounters {
    /// Frames written.
    pub frames: u64,
    /// Frames not written, because the file could not take them: all since the first error.
    pub lost: u64,
}

/// A device whose frames are written to a file. It offers no super-frame longer than an IP header
/// can express, because few tools read those; otherwise traffic passes unchanged, whatever happens
/// to the file: the first error ends the capture and is logged, and missing frames are counted.
pub struct Pcap<D, W: Write + Send> {
    device: D,
    capabilities: Capabilities,
    capture: Capture<W>,
    /// Recorded frames at the front of the caller's queue that the device had no room for.
    recorded: usize,
}

struct Capture<W: Write + Send> {
    /// `None` after an error.
    writer: Option<(PcapWriter<W>, PcapInterface)>,
    counters: PcapCounters,
}

impl<D: Device> Pcap<D, File> {
    /// Captures to a new file; an existing one is overwritten.
    pub fn create(device: D, path: impl AsRef<Path>, config: PcapConfig) -> io::Result<Self> {
        Self::new(device, File::create(path)?, config)
    }
}

impl<D: Device, W: Write + Send> Pcap<D, W> {
    /// Captures to `writer`, which need not be buffered.
    pub fn new(device: D, writer: W, config: PcapConfig) -> io::Result<Self> {
        let mut writer = PcapWriter::new(writer, config)?;
        let interface = writer.add_interface("pagewire", device.capabilities().medium)?;
        let capture =
            Capture { writer: Some((writer, interface)), counters: PcapCounters::default() };
        let capabilities = of_a_wire(device.capabilities());
        Ok(Self { device, capabilities, capture, recorded: 0 })
    }

    /// Counts of the capture.
    pub fn capture_counters(&self) -> PcapCounters {
        self.capture.counters
    }

    /// The device inside.
    pub fn get_ref(&self) -> &D {
        &self.device
    }
}

impl<W: Write + Send> Capture<W> {
    fn record<'a>(
        &mut self,
        now: Instant,
        direction: PcapDirection,
        frames: impl Iterator<Item = &'a PacketBuf>,
        ledger: &mut CopyLedger,
    ) {
        for frame in frames {
            let Some((writer, interface)) = &mut self.writer else {
                self.counters.lost += 1;
                continue;
            };
            match writer.record(*interface, now, direction, frame, ledger) {
                Ok(()) => self.counters.frames += 1,
                Err(error) => {
                    self.counters.lost += 1;
                    self.stop(&error);
                }
            }
        }
    }

    fn flush(&mut self) {
        if let Some((writer, _)) = &mut self.writer
            && let Err(error) = writer.flush()
        {
            self.stop(&error);
        }
    }

    fn stop(&mut self, error: &io::Error) {
        tracing::warn!(%error, "capture stopped: the file cannot be written; traffic goes on");
        // The buffered rest cannot be written either: dropping the writer would only try again.
        if let Some((writer, _)) = self.writer.take() {
            writer.abandon();
        }
    }
}

impl<D: Device, W: Write + Send> Device for Pcap<D, W> {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn transmit(
        &mut self,
        now: Instant,
        frames: &mut VecDeque<PacketBuf>,
        ledger: &mut CopyLedger,
    ) -> Result<(), DeviceError> {
        self.capture.record(now, PcapDirection::Out, frames.iter().skip(self.recorded), ledger);
        let result = self.device.transmit(now, frames, ledger);
        self.recorded = frames.len();
        result
    }

    fn receive(
        &mut self,
        now: Instant,
        frames: &mut VecDeque<PacketBuf>,
        max: usize,
        ledger: &mut CopyLedger,
    ) -> Result<usize, DeviceError> {
        let before = frames.len();
        let result = self.device.receive(now, frames, max, ledger);
        self.capture.record(now, PcapDirection::In, frames.iter().skip(before), ledger);
        result
    }

    fn arm(&mut self) -> bool {
        // Before a sleep: write, so that readers of the file see everything.
        self.capture.flush();
        self.device.arm()
    }

    forward_device! {
        self => self.device;
        take_refused poll_timeout wait_fd disarm counters steering pool_audit trim room
    }
}

/// Names an interface of one [`PcapWriter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PcapInterface(u32);

/// Writes pcapng: little-endian, one section, timestamps in nanoseconds.
pub struct PcapWriter<W: Write> {
    out: PcapNgWriter<BufWriter<W>>,
    config: PcapConfig,
    interfaces: u32,
}

impl<W: Write> PcapWriter<W> {
    /// Begins a file.
    pub fn new(writer: W, config: PcapConfig) -> io::Result<Self> {
        let buffered = BufWriter::with_capacity(PCAP_BUFFER, writer);
        let out = PcapNgWriter::with_endianness(buffered, Endianness::Little).map_err(to_io)?;
        Ok(Self { out, config, interfaces: 0 })
    }

    /// Describes an interface whose frames follow.
    pub fn add_interface(&mut self, name: &str, medium: Medium) -> io::Result<PcapInterface> {
        let block = InterfaceDescriptionBlock {
            linktype: match medium {
                Medium::Ethernet => DataLink::ETHERNET,
                Medium::Ip => DataLink::RAW,
            },
            snaplen: self.config.snaplen,
            options: vec![
                InterfaceDescriptionOption::IfName(name.into()),
                // Ten to the minus nine.
                InterfaceDescriptionOption::IfTsResol(9),
            ],
        };
        self.out.write_pcapng_block(block).map_err(to_io)?;
        self.interfaces += 1;
        Ok(PcapInterface(self.interfaces - 1))
    }

    /// Names addresses, for all readers of the file.
    pub fn add_names<'a>(
        &mut self,
        names: impl IntoIterator<Item = (IpAddr, &'a str)>,
    ) -> io::Result<()> {
        let records = names.into_iter().map(|(addr, name)| {
            let names = vec![name.into()];
            match addr {
                IpAddr::V4(addr) => {
                    Record::Ipv4(Ipv4Record { ip_addr: addr.octets().to_vec().into(), names })
                }
                IpAddr::V6(addr) => {
                    Record::Ipv6(Ipv6Record { ip_addr: addr.octets().to_vec().into(), names })
                }
            }
        });
        let block = NameResolutionBlock { records: records.collect(), options: Vec::new() };
        self.out.write_pcapng_block(block).map_err(to_io)?;
        Ok(())
    }

    /// Writes a frame.
    pub fn record(
        &mut self,
        interface: PcapInterface,
        now: Instant,
        direction: PcapDirection,
        frame: &PacketBuf,
        ledger: &mut CopyLedger,
    ) -> io::Result<()> {
        self.record_with_comment(interface, now, direction, frame, "", ledger)
    }

    /// Writes a frame with a comment that Wireshark shows beside it; an empty one is none. At most
    /// 65,535 bytes of it are kept.
    pub fn record_with_comment(
        &mut self,
        interface: PcapInterface,
        now: Instant,
        direction: PcapDirection,
        frame: &PacketBuf,
        comment: &str,
        ledger: &mut CopyLedger,
    ) -> io::Result<()> {
        let comment = comment.as_bytes();
        let comment = comment.get(..usize::from(u16::MAX)).unwrap_or(comment);
        let comment_padding = comment.len().next_multiple_of(4) - comment.len();
        let note = if comment.is_empty() { 0 } else { 4 + comment.len() + comment_padding };
        let kept = frame.len().min(self.config.snaplen as usize);
        let padding = kept.next_multiple_of(4) - kept;
        let time = (self.config.epoch + Duration::from_nanos(now.as_nanos())).as_nanos() as u64;
        let total = (PACKET_BLOCK_OVERHEAD + kept + padding + note) as u32;
        // pcapng section 4.3: type, total length, interface, time (high, low), both lengths.
        let before = [
            6,
            total,
            interface.0,
            (time >> 32) as u32,
            time as u32,
            kept as u32,
            frame.len() as u32,
        ];
        // Options: epb_flags (code 2, four bytes; 1 is inbound, 2 is outbound), end of options.
        let flags = match direction {
            PcapDirection::In => 1,
            PcapDirection::Out => 2,
        };
        let after = [2 | 4 << 16, flags, 0, total];

        let out = self.out.get_mut();
        write_words(out, &before)?;
        let head = frame.head();
        let in_head = kept.min(head.len());
        out.write_all(head.get(..in_head).unwrap_or_default())?;
        let (mut left, mut result) = (kept - in_head, Ok(()));
        for frag in frame.frags() {
            if left == 0 || result.is_err() {
                break;
            }
            let part = frag.slice(0..left);
            left -= part.len();
            part.for_each_piece(ledger, |piece| {
                if result.is_ok() {
                    result = out.write_all(piece);
                }
            });
        }
        result?;
        out.write_all([0; 3].get(..padding).unwrap_or_default())?;
        if note > 0 {
            // opt_comment is code 1.
            write_words(out, &[1 | (comment.len() as u32) << 16])?;
            out.write_all(comment)?;
            out.write_all([0; 3].get(..comment_padding).unwrap_or_default())?;
        }
        write_words(out, &after)
    }

    /// Flushes everything to the file.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.get_mut().flush()
    }

    /// Drops the writer without writing its buffer.
    fn abandon(self) {
        let _ = self.out.into_inner().into_parts();
    }
}

/// Bytes of a packet block besides the frame and its padding: 7 words before, 4 behind.
const PACKET_BLOCK_OVERHEAD: usize = 7 * 4 + 4 * 4;

fn write_words(out: &mut impl Write, words: &[u32]) -> io::Result<()> {
    words.iter().try_for_each(|word| out.write_all(&word.to_le_bytes()))
}

fn to_io(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => io::Error::other(other),
    }
}
