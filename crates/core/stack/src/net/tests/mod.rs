//! Kit for tests of the network layer in virtual time: one [`Host`] whose frames are inspected, or two that
//! talk.
//!
//! Frames come from `etherparse`'s builder, which knows nothing of our code, and are damaged from
//! there.

mod arp;
mod expected;
mod fragments;
mod groups;
mod hostile;
mod icmp;
mod ipv4;
mod ipv6;
mod ndp;
mod output;
mod routes;
mod strays;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use etherparse::{IpHeaders, PacketBuilder, PacketBuilderStep};
use pagewire_device::{Capabilities, HeaderSplit, Medium, offload};
use pagewire_mem::{
    CopyLedger, CopyReason, Frag, Instant, MAX_FRAGS, PacketBuf, PagePool, PageWriter,
};

use super::wire::ethernet::Mac;
use super::{IcmpKind, LinkConfig, Mem, Net, NetConfig, Outgoing, QuotedPacket, TooLong, protocol};
use crate::counters::DropReason;
use crate::error::Error;
use pagewire_tcp::Shared;
use pagewire_testkit::built;
use pagewire_testkit::frames::{
    arp as arp_packet, bytes_of as flat, fix_v4, payload_of, received as rx_packet,
};

/// Our station and the peer's.
const US: [u8; 6] = [2, 0, 0, 0, 0, 1];
const PEER: [u8; 6] = [2, 0, 0, 0, 0, 2];
const STRANGER: [u8; 6] = [2, 0, 0, 0, 0, 9];

const US_V4: [u8; 4] = [10, 0, 0, 1];
const PEER_V4: [u8; 4] = [10, 0, 0, 2];

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn v6(text: &str) -> [u8; 16] {
    text.parse::<std::net::Ipv6Addr>().unwrap().octets()
}

fn capabilities() -> Capabilities {
    Capabilities { header_split: HeaderSplit::None, ..Capabilities::offloading(US, 1500) }
}

fn config() -> NetConfig {
    let addresses = vec!["10.0.0.1/24".parse().unwrap(), "fd00::1/64".parse().unwrap()];
    NetConfig {
        first_link: LinkConfig::new(capabilities(), addresses),
        secret: [7; 32],
        loopback_by_reference: false,
        looped_copy: false,
        shard: None,
        announce: false,
        reverse_path_check: true,
    }
}

/// An input for the sockets, with its packet.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "few of them, in tests")]
enum Inbound {
    Transport(Received),
    IcmpError { about: QuotedPacket, kind: IcmpKind },
}

#[derive(Debug)]
struct Received {
    ip: super::Received,
    packet: PacketBuf,
}

impl std::ops::Deref for Received {
    type Target = super::Received;

    fn deref(&self) -> &super::Received {
        &self.ip
    }
}

impl Inbound {
    fn new(inbound: super::Inbound, packet: PacketBuf) -> Self {
        match inbound {
            super::Inbound::Transport(ip) | super::Inbound::Echo(ip) => {
                Self::Transport(Received { ip, packet })
            }
            super::Inbound::IcmpError { about, kind } => Self::IcmpError { about, kind },
        }
    }
}

/// A host under test.
struct Host {
    net: Net,
    now: Instant,
}

impl Host {
    fn new() -> Self {
        Self::with(config())
    }

    fn with(config: NetConfig) -> Self {
        let now = Instant::from_millis(1_000);
        let pool = PagePool::new("test", 4 << 20).unwrap();
        let mem = Mem::new(pool, Shared::default());
        Self { net: Net::new(now, &config, mem).unwrap(), now }
    }

    fn changed(change: impl FnOnce(&mut NetConfig)) -> Self {
        let mut config = config();
        change(&mut config);
        Self::with(config)
    }

    /// The second of two hosts: the peer's addresses.
    fn peer() -> Self {
        Self::changed(|config| {
            config.first_link.capabilities.mac = PEER;
            config.first_link.addresses =
                vec!["10.0.0.2/24".parse().unwrap(), "fd00::2/64".parse().unwrap()];
        })
    }

    /// A host that already knows the peer's station for both families.
    fn acquainted() -> Self {
        let mut host = Self::new();
        host.meet();
        host
    }

    /// A host that knows the peer's IPv4 station, and has not used it yet.
    fn acquainted_v4() -> Self {
        let mut host = Self::new();
        host.receive(&arp_packet(1, PEER, PEER_V4, [0; 6], US_V4));
        host.sent();
        host
    }

    fn meet(&mut self) {
        self.receive(&arp_packet(1, PEER, PEER_V4, [0; 6], US_V4));
        self.receive(&solicitation(PEER, "fd00::2", "fd00::1", 255));
        self.sent();
    }

    fn receive(&mut self, frame: &[u8]) -> Option<Inbound> {
        self.receive_split(frame, frame.len().min(128))
    }

    /// The first `head` bytes land in the head, the rest in fragments.
    fn receive_split(&mut self, frame: &[u8], head: usize) -> Option<Inbound> {
        self.receive_packet(rx_packet(frame, head))
    }

    fn receive_packet(&mut self, mut packet: PacketBuf) -> Option<Inbound> {
        let outcome = self.net.handle_frame(self.now, 0, &mut packet);
        let inbound = outcome.unwrap_or_else(|reason| {
            self.net.counters.drop_one(reason);
            None
        });
        Some(Inbound::new(inbound?, packet))
    }

    fn refuse(&mut self, received: Received) {
        let Received { ip, packet } = received;
        self.net.send_port_unreachable(self.now, &ip, packet);
    }

    fn receive_transport(&mut self, frame: &[u8]) -> Received {
        match self.receive(frame) {
            Some(Inbound::Transport(received)) => received,
            other => panic!("no transport packet: {other:?}\n{}", self.net.counters),
        }
    }

    /// The frame is dropped, for this one reason and no other.
    fn refuses(&mut self, frame: &[u8], reason: DropReason) {
        self.refuses_split(frame, frame.len().min(128), reason);
    }

    fn refuses_split(&mut self, frame: &[u8], head: usize, reason: DropReason) {
        let before = self.net.counters.clone();
        let got = self.receive_split(frame, head);
        assert!(got.is_none(), "taken instead of {}: {got:?}", reason.name());
        let new: Vec<_> = self
            .net
            .counters
            .iter_drops()
            .filter(|(r, n)| *n > before.drops(*r))
            .map(|(r, _)| r.name())
            .collect();
        assert_eq!(new, [reason.name()]);
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.net.handle_timeout(self.now);
    }

    /// Frames that the host has sent since the last call, as they are on the wire.
    fn sent(&mut self) -> Vec<Vec<u8>> {
        self.sent_packets().into_iter().map(on_wire).collect()
    }

    fn sent_packets(&mut self) -> VecDeque<PacketBuf> {
        let mut out = VecDeque::new();
        self.net.poll_transmit(0, &mut out);
        out
    }

    fn sent_one(&mut self) -> Vec<u8> {
        let mut sent = self.sent();
        assert_eq!(sent.len(), 1, "{sent:02x?}");
        sent.remove(0)
    }

    fn drops(&self, reason: DropReason) -> u64 {
        self.net.counters.drops(reason)
    }

    fn send_udp(&mut self, dst: IpAddr, payload: &[u8]) -> Result<(), Error> {
        let src = self.net.source_for(dst, 0)?;
        let packet = udp_packet(payload);
        self.send(src, dst, protocol::UDP, Some(6), packet)
    }

    fn send(
        &mut self,
        src: IpAddr,
        dst: IpAddr,
        protocol: u8,
        checksum_offset: Option<u16>,
        packet: PacketBuf,
    ) -> Result<(), Error> {
        let out = Outgoing {
            src,
            dst,
            protocol,
            ecn: 0,
            dont_fragment: protocol == protocol::TCP,
            too_long: match protocol {
                protocol::TCP => TooLong::RefusedByLink,
                _ => TooLong::CutToPath,
            },
            hop_limit: None,
            by: None,
            checksum_offset,
            packet,
        };
        self.net.send(self.now, out)
    }

    fn poll_inbound(&mut self) -> Option<Inbound> {
        let mut packet = PacketBuf::for_rx();
        let inbound = self.net.poll_inbound(self.now, &mut packet)?;
        Some(Inbound::new(inbound, packet))
    }

    /// Checks that all pages are back once packets are dropped.
    fn no_page_is_lost(&mut self) {
        self.net.mem.writer.abandon();
        self.net.mem.pool.drain();
        let audit = self.net.mem.pool.audit();
        assert!(audit.is_conserved() && audit.out == 0, "{audit:?}");
    }
}

/// Carries frames to and fro until both are silent; returns what each hands up.
fn converse(a: &mut Host, b: &mut Host) -> (Vec<Inbound>, Vec<Inbound>) {
    let (mut to_a, mut to_b) = (vec![], vec![]);
    for _ in 0..100 {
        let (from_a, from_b) = (a.sent(), b.sent());
        if from_a.is_empty() && from_b.is_empty() {
            return (to_a, to_b);
        }
        to_b.extend(from_a.iter().filter_map(|frame| b.receive(frame)));
        to_a.extend(from_b.iter().filter_map(|frame| a.receive(frame)));
    }
    panic!("they talk for ever");
}

fn udp_packet(payload: &[u8]) -> PacketBuf {
    let mut packet = PacketBuf::for_tx();
    let header = super::wire::udp::Header {
        src_port: 1000,
        dst_port: 2000,
        len: (8 + payload.len()) as u16,
        checksum: 0,
    };
    packet.push(8).unwrap().copy_from_slice(&header.emit());
    for part in payload.chunks(4096) {
        packet.push_frag(Frag::from_bytes(Bytes::copy_from_slice(part))).unwrap();
    }
    packet
}

/// The bytes of a frame on the wire, after the device has computed checksums.
fn on_wire(mut packet: PacketBuf) -> Vec<u8> {
    offload::complete_checksum(&mut packet, &mut CopyLedger::new()).unwrap();
    flat(&packet)
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

fn of_peer_v4() -> PacketBuilderStep<IpHeaders> {
    PacketBuilder::ethernet2(PEER, US).ipv4(PEER_V4, US_V4, 64)
}

fn of_peer_v6() -> PacketBuilderStep<IpHeaders> {
    PacketBuilder::ethernet2(PEER, US).ipv6(v6("fd00::2"), v6("fd00::1"), 64)
}

fn udp_v4(payload: &[u8]) -> Vec<u8> {
    built!(of_peer_v4().udp(2000, 1000), payload)
}

fn udp_v6(payload: &[u8]) -> Vec<u8> {
    built!(of_peer_v6().udp(2000, 1000), payload)
}

fn tcp_v4(payload: &[u8]) -> Vec<u8> {
    built!(
        of_peer_v4()
            .tcp(2000, 1000, 12345, 4000)
            .ack(1)
            .options_raw(&[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2])
            .unwrap(),
        payload
    )
}

fn echo_v4(payload: &[u8]) -> Vec<u8> {
    built!(of_peer_v4().icmpv4_echo_request(3, 4), payload)
}

fn echo_v6(payload: &[u8]) -> Vec<u8> {
    built!(of_peer_v6().icmpv6_echo_request(3, 4), payload)
}

/// A neighbour solicitation for `target` to the solicited-node group.
fn solicitation(mac: [u8; 6], src: &str, target: &str, hop_limit: u8) -> Vec<u8> {
    let group = super::wire::ndp::solicited_node(target.parse().unwrap());
    let mut payload = v6(target).to_vec();
    payload.extend([1, 1]);
    payload.extend(mac);
    let dst = Mac::for_multicast(group.into()).0;
    icmpv6(mac, dst, src, &group.to_string(), hop_limit, (135, 0, 0), &payload)
}

/// A neighbour advertisement to our unicast address.
fn advertisement(mac: [u8; 6], target: &str, flags: u8) -> Vec<u8> {
    let mut payload = v6(target).to_vec();
    payload.extend([2, 1]);
    payload.extend(mac);
    let word = u32::from(flags) << 24;
    icmpv6(mac, US, target, "fd00::1", 255, (136, 0, word), &payload)
}

fn icmpv6(
    src_mac: [u8; 6],
    dst_mac: [u8; 6],
    src: &str,
    dst: &str,
    hop_limit: u8,
    (kind, code, word): (u8, u8, u32),
    payload: &[u8],
) -> Vec<u8> {
    built!(
        PacketBuilder::ethernet2(src_mac, dst_mac).ipv6(v6(src), v6(dst), hop_limit).icmpv6_raw(
            kind,
            code,
            word.to_be_bytes()
        ),
        payload
    )
}

fn icmpv4(dst_mac: [u8; 6], (kind, code, word): (u8, u8, u32), payload: &[u8]) -> Vec<u8> {
    built!(
        PacketBuilder::ethernet2(PEER, dst_mac).ipv4(PEER_V4, US_V4, 64).icmpv4_raw(
            kind,
            code,
            word.to_be_bytes()
        ),
        payload
    )
}

/// Changes an IPv4 frame and makes its header checksum right again.
fn with_v4_header(mut frame: Vec<u8>, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    change(&mut frame[14..]);
    fix_v4(&mut frame);
    frame
}

/// An IPv6 frame with extension headers in front of a UDP datagram; `first` names the first.
fn with_extensions(first: u8, extensions: &[u8]) -> Vec<u8> {
    let mut frame = udp_v6(b"payload");
    let len = u16::from_be_bytes([frame[18], frame[19]]) + extensions.len() as u16;
    frame[18..20].copy_from_slice(&len.to_be_bytes());
    frame[20] = first;
    frame.splice(54..54, extensions.iter().copied());
    frame
}
