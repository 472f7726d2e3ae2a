//! Frames: bytes that `etherparse` builds, which knows nothing of our code, packets of bytes, and bytes
//! of packets.

use std::net::IpAddr;

use bytes::Bytes;
use etherparse::{IpHeaders, PacketBuilder, PacketBuilderStep};
use pagewire_mem::{CopyLedger, Frag, HEAD_CAPACITY, PacketBuf};

/// The frame that a builder of `etherparse` makes around a payload; [`ip`] is where one begins.
#[macro_export]
macro_rules! built {
    ($builder:expr, $payload:expr) => {{
        let mut frame = Vec::new();
        $builder.write(&mut frame, $payload).expect("a vector takes everything");
        frame
    }};
}

/// A frame's headers as far as IP.
pub type Headers = PacketBuilderStep<IpHeaders>;

/// A frame's headers as far as IP, between two stations and two addresses of the same version.
pub fn ip([from, to]: [[u8; 6]; 2], [source, target]: [IpAddr; 2], hops: u8) -> Headers {
    let ethernet = PacketBuilder::ethernet2(from, to);
    match (source, target) {
        (IpAddr::V4(source), IpAddr::V4(target)) => {
            ethernet.ipv4(source.octets(), target.octets(), hops)
        }
        (IpAddr::V6(source), IpAddr::V6(target)) => {
            ethernet.ipv6(source.octets(), target.octets(), hops)
        }
        _ => panic!("{source} and {target} are of two versions"),
    }
}

/// An ARP message to everybody: 1 is a question, 2 an answer.
pub fn arp(
    operation: u8,
    sender_mac: [u8; 6],
    sender: [u8; 4],
    target_mac: [u8; 6],
    target: [u8; 4],
) -> Vec<u8> {
    let head = [8, 6, 0, 1, 8, 0, 6, 4, 0, operation];
    [&[0xff; 6][..], &sender_mac, &head, &sender_mac, &sender, &target_mac, &target].concat()
}

/// A DNS query for records of one type, with recursion desired (RFC 1035 section 4.1).
pub fn dns_query(id: u16, name: &str, kind: u16) -> Vec<u8> {
    let mut message = id.to_be_bytes().to_vec();
    message.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.split('.').filter(|label| !label.is_empty()) {
        message.push(label.len() as u8);
        message.extend_from_slice(label.as_bytes());
    }
    message.push(0);
    message.extend(kind.to_be_bytes());
    message.extend([0, 1]);
    message
}

/// The sum of 16-bit words, which is 0xffff if a checksum in them is right.
pub fn sum(bytes: &[u8]) -> u16 {
    let word = |word: &[u8]| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0));
    let sum: u32 = bytes.chunks(2).map(word).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    (sum + (sum >> 16)) as u16
}

/// Makes the checksum of an IPv4 header right.
pub fn fix_v4(frame: &mut [u8]) {
    let len = (usize::from(frame[14] & 15) * 4).clamp(20, frame.len() - 14);
    frame[24..26].fill(0);
    let checksum = !sum(&frame[14..14 + len]);
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
}

/// A received packet: `head` bytes of the frame in the head, or as many as fit, the rest in pages.
pub fn received(frame: &[u8], head: usize) -> PacketBuf {
    let mut packet = PacketBuf::for_rx();
    let (head, rest) = frame.split_at(head.min(frame.len()).min(HEAD_CAPACITY));
    packet.append(head.len()).expect("room for the head").copy_from_slice(head);
    for part in rest.chunks(4096) {
        packet.push_frag(Bytes::copy_from_slice(part).into()).expect("room for a fragment");
    }
    packet
}

/// A packet to be sent: `head` bytes of the frame in the head, the rest in one fragment.
pub fn to_send(frame: &[u8], head: usize) -> PacketBuf {
    let mut packet = PacketBuf::for_tx();
    let (head, rest) = frame.split_at(head.min(frame.len()));
    packet.push(head.len()).expect("room for the head").copy_from_slice(head);
    packet.push_frag(Bytes::copy_from_slice(rest).into()).expect("room for a fragment");
    packet
}

/// A packet's head and its fragments, one behind the other.
pub fn bytes_of(packet: &PacketBuf) -> Vec<u8> {
    [packet.head(), &payload_of(packet.frags())].concat()
}

/// The bytes of fragments, one behind the other.
pub fn payload_of(frags: &[Frag]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for frag in frags {
        frag.for_each_piece(&mut CopyLedger::new(), |piece| bytes.extend_from_slice(piece));
    }
    bytes
}
