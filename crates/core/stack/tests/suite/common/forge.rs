//! Kit for forged frames: Ethernet, IPv4 and a TCP segment, as a stranger would make them.
#![allow(dead_code, reason = "each program uses what it needs")]

use std::collections::VecDeque;
use std::net::SocketAddrV4;

use pagewire_mem::checksum::Checksum;
use pagewire_mem::{Frag, Instant, PacketBuf, RxChecksum};
use pagewire_stack::Stack;
use pagewire_tcp::{Flags, Seq, TcpHeader, TcpOptions};

const ETHERNET: usize = 14;
const IPV4: usize = 20;

/// A frame with this segment. Its TCP checksum counts as verified by the device. The ports of
/// `header` are overwritten.
pub(crate) fn frame(
    to_mac: u8,
    from: SocketAddrV4,
    to: SocketAddrV4,
    header: TcpHeader,
) -> PacketBuf {
    let header = TcpHeader { src_port: from.port(), dst_port: to.port(), ..header };
    let mut frame = PacketBuf::for_rx();
    let len = header.len();
    let room = frame.append(ETHERNET + IPV4 + len).expect("headers fit");
    let (ethernet, rest) = room.split_at_mut(ETHERNET);
    ethernet.copy_from_slice(&[2, 0, 0, 0, 0, to_mac, 2, 0, 0, 0, 0, 99, 8, 0]);
    let (ip, tcp) = rest.split_at_mut(IPV4);
    header.emit(tcp);
    write_ip(ip, from, to, len);
    frame.rx_checksum = RxChecksum::Valid;
    frame
}

/// The same with a payload.
pub(crate) fn with_payload(
    to_mac: u8,
    from: SocketAddrV4,
    to: SocketAddrV4,
    header: TcpHeader,
    payload: Frag,
) -> PacketBuf {
    let (tcp, len) = (header.len(), payload.len());
    let mut frame = frame(to_mac, from, to, header);
    write_ip(&mut frame.head_mut()[ETHERNET..ETHERNET + IPV4], from, to, tcp + len);
    frame.push_frag(payload).expect("one fragment fits");
    frame
}

/// The header of a SYN with all options that Linux's has.
pub(crate) fn syn(seq: u32, stamp: u32) -> TcpHeader {
    let options = TcpOptions {
        mss: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: Some((stamp, 0)),
        ..TcpOptions::default()
    };
    TcpHeader { seq: Seq(seq), flags: Flags::SYN, window: 65_535, options, ..TcpHeader::default() }
}

/// The end that nobody has, and the SYN that it sends: what a flood is made of.
pub(crate) fn stranger(rng: &mut Rng) -> (SocketAddrV4, TcpHeader) {
    let r = rng.next();
    let ip = [198, 18 + (r & 1) as u8, (r >> 8) as u8, (r >> 16) as u8];
    let from = SocketAddrV4::new(ip.into(), 1024 + (r >> 32) as u16 % 60_000);
    (from, syn((r >> 24) as u32, r as u32))
}

fn write_ip(ip: &mut [u8], from: SocketAddrV4, to: SocketAddrV4, payload: usize) {
    let total = (IPV4 + payload) as u16;
    ip.copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    ip[2..4].copy_from_slice(&total.to_be_bytes());
    ip[12..16].copy_from_slice(&from.ip().octets());
    ip[16..20].copy_from_slice(&to.ip().octets());
    let mut sum = Checksum::new();
    sum.add_bytes(ip);
    ip[10..12].copy_from_slice(&sum.finish().to_be_bytes());
}

/// The segment in a frame that a stack sent over IPv4, if it is one: ends and header.
pub(crate) fn parse(frame: &PacketBuf) -> Option<(SocketAddrV4, SocketAddrV4, TcpHeader)> {
    let head = frame.head();
    if head.get(12..14)? != [8, 0] || *head.get(14 + 9)? != 6 {
        return None;
    }
    let addr = |at: usize| <[u8; 4]>::try_from(&head[at..at + 4]).expect("four bytes");
    let (header, _) = TcpHeader::parse(&head[ETHERNET + IPV4..]).ok()?;
    let from = SocketAddrV4::new(addr(26).into(), header.src_port);
    let to = SocketAddrV4::new(addr(30).into(), header.dst_port);
    Some((from, to, header))
}

/// Headers of the segments that a stack has to send over IPv4.
pub(crate) fn sent(stack: &mut Stack, now: Instant) -> Vec<TcpHeader> {
    let mut out = VecDeque::new();
    while stack.poll_transmit(now, &mut out) {}
    out.iter().filter_map(|frame| parse(frame).map(|(_, _, header)| header)).collect()
}

/// Numbers that look random, the same in every run.
#[derive(Clone, Debug)]
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    /// The next.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Puts the TCP checksum in, and leaves it to be verified.
pub(crate) fn sum(frame: &mut PacketBuf) {
    let head = frame.head_mut();
    // The pseudo-header: addresses, protocol and length.
    let mut sum = Checksum::new();
    sum.add_bytes(&head[ETHERNET + 12..]);
    sum.add_u16(6);
    sum.add_u16((head.len() - ETHERNET - IPV4) as u16);
    let at = ETHERNET + IPV4 + 16;
    head[at..at + 2].copy_from_slice(&sum.finish().to_be_bytes());
    frame.rx_checksum = RxChecksum::Unknown;
}
