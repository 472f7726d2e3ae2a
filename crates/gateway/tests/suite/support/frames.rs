//! Frames made by hand, of a guest at 10.0.2.15.

use std::net::Ipv4Addr;

pub const ME: [u8; 4] = [10, 0, 2, 15];
pub const MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x66];
pub const GATEWAY: [u8; 6] = [0x02, 0x50, 0x57, 0, 0, 1];

/// Tells the gateway who has our address.
pub fn arp() -> Vec<u8> {
    let mut frame = [[0xff; 6], MAC].concat();
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend([&MAC[..], &ME, &[0; 6], &[10, 0, 2, 2]].concat());
    frame
}

pub fn ipv4(from: [u8; 4], to: Ipv4Addr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = [&GATEWAY[..], &MAC, &[8, 0]].concat();
    let len = (20 + payload.len()) as u16;
    let mut header = vec![0x45, 0];
    header.extend(len.to_be_bytes());
    header.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
    header.extend(from);
    header.extend(to.octets());
    let sum = sum_of(&header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    frame.extend(header);
    frame.extend(payload);
    frame
}

pub fn sum_of(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// A transport header's checksum, put at its place.
pub fn finish(
    from: [u8; 4],
    to: Ipv4Addr,
    protocol: u8,
    mut segment: Vec<u8>,
    at: usize,
) -> Vec<u8> {
    let mut pseudo = [&from[..], &to.octets(), &[0, protocol]].concat();
    pseudo.extend((segment.len() as u16).to_be_bytes());
    pseudo.extend(&segment);
    let sum = sum_of(&pseudo);
    segment[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    ipv4(from, to, protocol, &segment)
}

pub fn syn(from: [u8; 4], port: u16, to: Ipv4Addr, to_port: u16, seq: u32) -> Vec<u8> {
    tcp(from, port, (to, to_port), 2, [seq, 0], &[])
}

/// A segment of TCP without options, with its flags, and the numbers SEQ and ACK.
pub fn tcp(
    from: [u8; 4],
    port: u16,
    to: (Ipv4Addr, u16),
    flags: u8,
    numbers: [u32; 2],
    payload: &[u8],
) -> Vec<u8> {
    let mut segment = Vec::new();
    segment.extend(port.to_be_bytes());
    segment.extend(to.1.to_be_bytes());
    segment.extend(numbers.iter().flat_map(|number| number.to_be_bytes()));
    segment.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    segment.extend(payload);
    finish(from, to.0, 6, segment, 16)
}

pub fn datagram(port: u16, to: Ipv4Addr, to_port: u16, payload: &[u8]) -> Vec<u8> {
    let mut segment = Vec::new();
    segment.extend(port.to_be_bytes());
    segment.extend(to_port.to_be_bytes());
    segment.extend((8 + payload.len() as u16).to_be_bytes());
    segment.extend([0, 0]);
    segment.extend(payload);
    finish(ME, to, 17, segment, 6)
}
