//! Floods of the first core's queue: frames without a connection or a socket, from many ends, so that each core is the
//! home of its share of them.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::ValueEnum;
use etherparse::{
    IpFragOffset, IpHeaders, IpNumber, Ipv4Extensions, Ipv4Header, PacketBuilder, TcpHeader,
    UdpHeader,
};
use pagewire::device::{FaultRng, PacketBuf, RxChecksum};

use super::stations::{SERVER_MAC, mac};
use crate::failure::{Because, Failure};
use crate::kit::hosts::{PORT, RIGHT};

/// The frames of a flood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum FloodKind {
    /// No flood
    None,
    /// UDP datagrams to ports without sockets
    Datagrams,
    /// TCP requests for connections to the server's port
    Syns,
    /// TCP segments of no connection
    Segments,
    /// First fragments of datagrams whose rest never comes
    Fragments,
}

/// A flood that comes in at a queue.
pub(super) struct Flood {
    frames: Vec<Vec<u8>>,
    next: usize,
    chance: FaultRng,
    runs: Arc<AtomicBool>,
}

/// Frames of a flood, which come again and again, from another port each time.
const FRAMES: usize = 4096;

/// The place of the sender's port in a frame.
const FROM_PORT: std::ops::Range<usize> = 34..36;

/// Bytes of payload in a frame.
const PAYLOAD: usize = 8;

/// No client has this number.
const ATTACKER: u8 = 0xff;

impl Flood {
    /// A flood that comes in as long as `runs` is set.
    pub(super) fn new(kind: FloodKind, runs: Arc<AtomicBool>) -> Result<Self, Failure> {
        let mut chance = FaultRng::new(2);
        let frames = (0..FRAMES).map(|_| frame(kind, &mut chance)).collect::<Result<_, _>>()?;
        Ok(Self { frames, next: 0, chance, runs })
    }

    /// Receives up to `max` frames; returns their number.
    pub(super) fn receive(&mut self, frames: &mut VecDeque<PacketBuf>, max: usize) -> usize {
        if !self.runs.load(Ordering::Relaxed) {
            return 0;
        }
        for _ in 0..max {
            let mut frame = PacketBuf::for_rx();
            frame.rx_checksum = RxChecksum::Valid;
            frame.append_bytes(self.frames.get(self.next).map_or(&[], |bytes| bytes));
            if let Some([high, low]) = frame.head_mut().get_mut(FROM_PORT) {
                [*high, *low] = (self.chance.below(1 << 16) as u16).to_be_bytes();
            }
            self.next = (self.next + 1) % self.frames.len().max(1);
            frames.push_back(frame);
        }
        max
    }
}

/// A frame from an end that is drawn.
fn frame(kind: FloodKind, chance: &mut FaultRng) -> Result<Vec<u8>, Failure> {
    let mut draw = |from: u16, to: u16| from + chance.below(u64::from(to - from)) as u16;
    let [a, b, c, _] = RIGHT.octets();
    let from = Ipv4Addr::new(a, b, c, draw(100, 200).to_le_bytes()[0]);
    let (from_port, number) = (draw(1024, u16::MAX), draw(0, u16::MAX));
    let protocol = match kind {
        FloodKind::None | FloodKind::Datagrams | FloodKind::Fragments => IpNumber::UDP,
        FloodKind::Syns | FloodKind::Segments => IpNumber::TCP,
    };
    let mut ip = Ipv4Header::new(PAYLOAD as u16, 64, protocol, from.octets(), RIGHT.octets())
        .because("a flood")?;
    ip.identification = number;
    ip.more_fragments = kind == FloodKind::Fragments;
    ip.fragment_offset = IpFragOffset::ZERO;
    let to = PacketBuilder::ethernet2(mac(ATTACKER), SERVER_MAC)
        .ip(IpHeaders::Ipv4(ip, Ipv4Extensions::default()));
    let (payload, mut frame) = ([0x55; PAYLOAD], Vec::new());
    match kind {
        FloodKind::None | FloodKind::Datagrams => to.udp(from_port, 9).write(&mut frame, &payload),
        FloodKind::Fragments => {
            // The length of the whole datagram, of which this is a part.
            let udp = UdpHeader {
                source_port: from_port,
                destination_port: 9,
                length: 1000,
                checksum: 0,
            };
            let mut start = udp.to_bytes().to_vec();
            start.extend(payload);
            to.write(&mut frame, IpNumber::UDP, &start)
        }
        FloodKind::Syns | FloodKind::Segments => {
            let mut tcp = TcpHeader::new(from_port, PORT, u32::from(number), 1000);
            let tcp_is_request = kind == FloodKind::Syns;
            (tcp.syn, tcp.ack) = (tcp_is_request, !tcp_is_request);
            to.tcp_header(tcp).write(&mut frame, if tcp_is_request { &[] } else { &payload })
        }
    }
    .because("a flood")?;
    Ok(frame)
}
