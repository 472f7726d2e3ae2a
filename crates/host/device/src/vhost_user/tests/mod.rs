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
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::net::UnixStream;

use pagewire_mem::{CopyLedger, CopyReason, Instant, PacketBuf};
use pagewire_testkit::built;
use pagewire_testkit::frames::{bytes_of as all_bytes, ip, to_send as packet};

use super::double::{Guest, GuestConfig};
use super::{VhostMonitor, VhostUser, VhostUserBuilder};
use crate::Device;
use crate::ends::receive;

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

/// The stations of two guests.
const STATIONS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
/// Their addresses.
const ENDS: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1))];

/// A frame of `len` bytes, at least 42: UDP over IPv4, each payload byte another.
fn udp(len: usize) -> Vec<u8> {
    let payload: Vec<u8> = (0..len - 42).map(|i| (i * 7 + len) as u8).collect();
    built!(ip(STATIONS, ENDS, 64).udp(1000, 2000), &payload)
}

/// A TCP segment with `payload` bytes: 54 bytes of headers over IPv4, 74 over IPv6.
fn tcp(v6: bool, payload: usize) -> Vec<u8> {
    let payload: Vec<u8> = (0..payload).map(|i| (i * 13 + i / 256) as u8).collect();
    let ends = if v6 { [[1; 16].into(), [2; 16].into()] } else { ENDS };
    built!(ip(STATIONS, ends, 64).tcp(1000, 2000, 1, 1024), &payload)
}

/// The virtio header of a super-frame of TCP with segments of `size` bytes.
fn tso(v6: bool, size: u16) -> [u8; 12] {
    let (kind, headers, start) = if v6 { (4, 74u16, 54u16) } else { (1, 54, 34) };
    let [h0, h1] = headers.to_le_bytes();
    let [s0, s1] = size.to_le_bytes();
    let [c0, c1] = start.to_le_bytes();
    [1, kind, h0, h1, s0, s1, c0, c1, 16, 0, 0, 0]
}
