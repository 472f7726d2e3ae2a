//! A port with the double of a guest at the other end of its socket: no root, no QEMU.

mod frames;
mod hostile;
mod lies;
mod messages;
mod port;
mod queues;
mod sending;
mod session;

use std::collections::VecDeque;
use std::os::unix::net::UnixStream;

use etherparse::PacketBuilder;
use pagewire_mem::{CopyLedger, CopyReason, Instant, PacketBuf};

use super::double::{Guest, GuestConfig};
use super::{VhostMonitor, VhostUser, VhostUserBuilder};
use crate::Device;

/// A port and a guest, plugged in.
struct Rig {
    device: VhostUser,
    monitor: VhostMonitor,
    guest: Guest,
    ledger: CopyLedger,
}

impl Rig {
    fn new(config: GuestConfig) -> Self {
        Self::with(VhostUser::builder(), config)
    }

    fn with(builder: VhostUserBuilder, config: GuestConfig) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let device = builder.over(ours).unwrap();
        let guest = Guest::over(theirs, config).unwrap();
        let monitor = device.monitor();
        Self { device, monitor, guest, ledger: CopyLedger::new() }
    }

    /// Everything that waits in the guest's transmit ring.
    fn receive(&mut self) -> Vec<PacketBuf> {
        let mut frames = VecDeque::new();
        let n = self.device.receive(Instant::ZERO, &mut frames, 1024, &mut self.ledger).unwrap();
        assert_eq!(n, frames.len());
        frames.into()
    }

    /// Sends frames to the guest; what is left.
    fn transmit(&mut self, frames: impl IntoIterator<Item = PacketBuf>) -> VecDeque<PacketBuf> {
        let mut frames = frames.into_iter().collect();
        self.device.transmit(Instant::ZERO, &mut frames, &mut self.ledger).unwrap();
        frames
    }

    /// Payload bytes copied at the device's boundary: receiving, sending.
    fn copied(&self) -> (u64, u64) {
        (self.ledger.get(CopyReason::DeviceRx), self.ledger.get(CopyReason::DeviceTx))
    }
}

/// A frame of `len` bytes, at least 42: UDP over IPv4, each payload byte another.
fn udp(len: usize) -> Vec<u8> {
    let payload: Vec<u8> = (0..len - 42).map(|i| (i * 7 + len) as u8).collect();
    let mut frame = Vec::new();
    PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
        .ipv4([10, 0, 0, 2], [10, 0, 0, 1], 64)
        .udp(1000, 2000)
        .write(&mut frame, &payload)
        .unwrap();
    assert_eq!(frame.len(), len);
    frame
}

/// A TCP segment with `payload` bytes: 54 bytes of headers over IPv4, 74 over IPv6.
fn tcp(v6: bool, payload: usize) -> Vec<u8> {
    let payload: Vec<u8> = (0..payload).map(|i| (i * 13 + i / 256) as u8).collect();
    let link = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
    let mut frame = Vec::new();
    let ip = if v6 {
        link.ipv6([1; 16], [2; 16], 64)
    } else {
        link.ipv4([10, 0, 0, 2], [10, 0, 0, 1], 64)
    };
    ip.tcp(1000, 2000, 1, 1024).write(&mut frame, &payload).unwrap();
    frame
}

/// The virtio header of a super-frame of TCP with segments of `size` bytes.
fn tso(v6: bool, size: u16) -> [u8; 12] {
    let (kind, headers, start) = if v6 { (4, 74u16, 54u16) } else { (1, 54, 34) };
    let [h0, h1] = headers.to_le_bytes();
    let [s0, s1] = size.to_le_bytes();
    let [c0, c1] = start.to_le_bytes();
    [1, kind, h0, h1, s0, s1, c0, c1, 16, 0, 0, 0]
}

/// All bytes of a packet, looked at through a copy that counts nowhere.
fn all_bytes(packet: &PacketBuf) -> Vec<u8> {
    let mut all = packet.head().to_vec();
    for frag in packet.frags() {
        let mut part = vec![0; frag.len()];
        frag.copy_to(0, &mut part, &mut CopyLedger::new(), CopyReason::AppRead);
        all.extend(part);
    }
    all
}

/// A packet to be sent: `headers` bytes in the head, the rest in one fragment.
fn packet(frame: &[u8], headers: usize) -> PacketBuf {
    let mut packet = PacketBuf::for_tx();
    packet.push(headers).unwrap().copy_from_slice(&frame[..headers]);
    let payload = bytes::Bytes::copy_from_slice(&frame[headers..]);
    packet.push_frag(payload.into()).unwrap();
    packet
}
