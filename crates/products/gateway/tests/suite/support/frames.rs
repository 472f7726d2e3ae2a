//! Frames made by hand, of a guest at 10.0.2.15.

use std::net::Ipv4Addr;

use pagewire_testkit::{built, frames};

pub const ME: [u8; 4] = [10, 0, 2, 15];
pub const MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x66];
pub const GATEWAY: [u8; 6] = [0x02, 0x50, 0x57, 0, 0, 1];

/// A number for each `i` that looks like chance.
pub fn scatter(i: u32) -> u32 {
    i.wrapping_mul(2_654_435_761).rotate_left(15).wrapping_mul(2_246_822_519)
}

/// An address of a network for measurements (RFC 2544), which nobody has.
pub fn anywhere(i: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0xc612_0000 | (scatter(i) & 0x1_ffff))
}

/// Tells the gateway who has our address.
pub fn arp() -> Vec<u8> {
    frames::arp(1, MAC, ME, [0; 6], [10, 0, 2, 2])
}

pub fn syn(from: [u8; 4], port: u16, to: Ipv4Addr, to_port: u16, seq: u32) -> Vec<u8> {
    let ip = frames::ip([MAC, GATEWAY], [from.into(), to.into()], 64);
    built!(ip.tcp(port, to_port, seq, 0xffff).syn(), &[])
}

/// A segment with data, and the numbers SEQ and ACK.
pub fn tcp(port: u16, to: (Ipv4Addr, u16), [seq, ack]: [u32; 2], data: &[u8]) -> Vec<u8> {
    let ip = frames::ip([MAC, GATEWAY], [ME.into(), to.0.into()], 64);
    built!(ip.tcp(port, to.1, seq, 0xffff).ack(ack).psh(), data)
}

pub fn datagram(port: u16, to: Ipv4Addr, to_port: u16, payload: &[u8]) -> Vec<u8> {
    let ip = frames::ip([MAC, GATEWAY], [ME.into(), to.into()], 64);
    built!(ip.udp(port, to_port), payload)
}

/// An echo request of 40 bytes, as many as a SYN has.
pub fn ping(to: Ipv4Addr, seq: u16) -> Vec<u8> {
    let ip = frames::ip([MAC, GATEWAY], [ME.into(), to.into()], 64);
    built!(ip.icmpv4_echo_request(1, seq), &[0; 12])
}
