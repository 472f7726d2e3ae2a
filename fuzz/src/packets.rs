//! Packets between the stack of `frames.rs` and its peer, for the seeds.

use std::net::{Ipv4Addr, Ipv6Addr};

use pagewire_mem::checksum::Checksum;

pub(crate) const OURS: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub(crate) const PEER: [u8; 6] = [2, 0, 0, 0, 0, 2];
pub(crate) const OUR_V4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub(crate) const PEER_V4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
pub(crate) const OUR_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
pub(crate) const PEER_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);

/// The input, and with each field (position, width) one less, one more, 0 and all ones.
pub(crate) fn bent(input: &[u8], fields: &[(usize, usize)]) -> Vec<Vec<u8>> {
    let mut all = vec![input.to_vec()];
    for &(at, width) in fields {
        let Some(field) = input.get(at..at + width) else { continue };
        let value = field.iter().fold(0u16, |n, &b| n << 8 | u16::from(b));
        for value in [value.wrapping_sub(1), value.wrapping_add(1), 0, u16::MAX] {
            let mut input = input.to_vec();
            input[at..at + width].copy_from_slice(&value.to_be_bytes()[2 - width..]);
            all.push(input);
        }
    }
    all
}

pub(crate) fn prefixes(input: &[u8]) -> Vec<Vec<u8>> {
    [0, 1, input.len() / 2, input.len() - 1, input.len()].map(|n| input[..n].to_vec()).to_vec()
}

pub(crate) fn texts(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

pub(crate) fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).expect("digits"), 16);
    digits.chunks(2).map(|pair| byte(pair).expect("hex")).collect()
}

pub(crate) fn record(control: u8, frame: &[u8]) -> Vec<u8> {
    [&[control][..], &(frame.len() as u16).to_be_bytes(), frame].concat()
}

pub(crate) fn ether(ethertype: &[u8], packet: &[u8]) -> Vec<u8> {
    [&OURS[..], &PEER, ethertype, packet].concat()
}

pub(crate) fn frame4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    ether(&[8, 0], &ipv4(PEER_V4, protocol, 0x4000, payload))
}

pub(crate) fn frame6(next: u8, payload: &[u8]) -> Vec<u8> {
    ether(&[0x86, 0xdd], &ipv6(PEER_V6, next, payload))
}

pub(crate) fn arp(operation: u8) -> Vec<u8> {
    let head = [0, 1, 8, 0, 6, 4, 0, operation];
    [&head[..], &PEER, &PEER_V4.octets(), &OURS, &OUR_V4.octets()].concat()
}

/// From the peer to us.
pub(crate) fn ipv4(from: Ipv4Addr, protocol: u8, fragment: u16, payload: &[u8]) -> Vec<u8> {
    let mut packet = ipv4_with(&[], protocol, fragment, payload);
    packet[12..16].copy_from_slice(&from.octets());
    mend(&mut packet);
    packet
}

/// As an error quotes it.
pub(crate) fn ipv4_from_us(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = ipv4(OUR_V4, protocol, 0x4000, payload);
    packet[16..20].copy_from_slice(&PEER_V4.octets());
    mend(&mut packet);
    packet
}

pub(crate) fn ipv4_with(options: &[u8], protocol: u8, fragment: u16, payload: &[u8]) -> Vec<u8> {
    let header = 20 + options.len();
    let [l0, l1] = ((header + payload.len()) as u16).to_be_bytes();
    let [f0, f1] = fragment.to_be_bytes();
    let fixed = [0x40 | (header / 4) as u8, 0, l0, l1, 0, 1, f0, f1, 64, protocol, 0, 0];
    let ends = [PEER_V4.octets(), OUR_V4.octets()].concat();
    let mut packet = [&fixed[..], &ends, options, payload].concat();
    mend(&mut packet);
    packet
}

/// Makes an IPv4 header's checksum right.
pub(crate) fn mend(packet: &mut [u8]) {
    let end = usize::from(packet[0] & 15) * 4;
    packet[10..12].fill(0);
    let end = end.clamp(20, packet.len());
    let sum = sum(&packet[..end], 0);
    packet[10..12].copy_from_slice(&sum);
}

pub(crate) fn ipv6(from: Ipv6Addr, next: u8, payload: &[u8]) -> Vec<u8> {
    let [l0, l1] = (payload.len() as u16).to_be_bytes();
    // Neighbour discovery wants 255 hops.
    let fixed = [0x60, 0, 0, 0, l0, l1, next, 255];
    [&fixed[..], &from.octets(), &OUR_V6.octets(), payload].concat()
}

pub(crate) fn tcp(
    from: u16,
    to: u16,
    seq: u32,
    ack: u32,
    flags: u8,
    options: &[u8],
    data: &[u8],
) -> Vec<u8> {
    let mut options = options.to_vec();
    options.resize(options.len().next_multiple_of(4), 0);
    let offset = ((20 + options.len()) / 4 * 16) as u8;
    let ports = [from.to_be_bytes(), to.to_be_bytes()].concat();
    let numbers = [seq.to_be_bytes(), ack.to_be_bytes()].concat();
    let rest = [offset, flags, 0xea, 0x60, 0, 0, 0, 0];
    [&ports[..], &numbers, &rest, &options, data].concat()
}

pub(crate) fn udp(from: u16, to: u16, data: &[u8]) -> Vec<u8> {
    let len = (8 + data.len()) as u16;
    [from, to, len, 0]
        .map(u16::to_be_bytes)
        .concat()
        .into_iter()
        .chain(data.iter().copied())
        .collect()
}

pub(crate) fn icmp(kind: u8, code: u8, word: u32, data: &[u8]) -> Vec<u8> {
    [&[kind, code, 0, 0][..], &word.to_be_bytes(), data].concat()
}

pub(crate) fn ndp(kind: u8, flags: u8, target: Ipv6Addr, option: Option<u8>) -> Vec<u8> {
    let mut message = [&[kind, 0, 0, 0, flags, 0, 0, 0][..], &target.octets()].concat();
    if let Some(option) = option {
        message.extend([&[option, 1][..], &PEER].concat());
    }
    message
}

pub(crate) fn sum(bytes: &[u8], start: u16) -> [u8; 2] {
    let mut sum = Checksum::new();
    sum.add_bytes(bytes);
    sum.add_u16(start);
    sum.finish().to_be_bytes()
}

/// An ICMPv4 message with its checksum.
pub(crate) fn sum4(mut message: Vec<u8>) -> Vec<u8> {
    let sum = sum(&message, 0);
    message[2..4].copy_from_slice(&sum);
    message
}

/// What goes over IPv6, with its checksum at `at`.
pub(crate) fn sum6(mut payload: Vec<u8>, at: usize, next: u16) -> Vec<u8> {
    let pseudo = [&PEER_V6.octets()[..], &OUR_V6.octets(), &payload].concat();
    let sum = sum(&pseudo, next + payload.len() as u16);
    payload[at..at + 2].copy_from_slice(&sum);
    payload
}
