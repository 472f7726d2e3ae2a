//! The wrapper on a pair: a client's frames at one end, the stack at the other.

use std::collections::VecDeque;
use std::net::Ipv4Addr;

use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use pagewire_mem::RxChecksum;
use pagewire_testkit::frames::{bytes_of, ip, received as frame};
use pagewire_testkit::{built, given};
use proptest::prelude::*;
use smoltcp::wire::{DhcpMessageType as Kind, DhcpPacket, DhcpRepr, EthernetAddress};

use super::*;
use crate::ends::{receive, send};
use crate::pair::{Pair, PairEnd};

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const CLIENT: [u8; 6] = [0x52, 0x54, 0, 0, 0, 9];
const BROADCAST: Ipv4Addr = Ipv4Addr::BROADCAST;

struct Link {
    server: Dhcp<PairEnd>,
    client: PairEnd,
    ledger: CopyLedger,
}

impl Link {
    fn new() -> Self {
        let (server, client) = Pair::new().expect("a pair");
        let config = DhcpConfig::network(SERVER, 24).expect("settings");
        let server = Dhcp::new(server, config).expect("a server");
        Self { server, client, ledger: CopyLedger::new() }
    }

    /// Sends frames as a client, has the other end receive, and returns what came to its stack and
    /// what came back.
    fn send(
        &mut self,
        frames: impl IntoIterator<Item = PacketBuf>,
    ) -> (Vec<PacketBuf>, Vec<Vec<u8>>) {
        assert!(send(&mut self.client, Instant::ZERO, frames).is_empty());
        let stack = receive(&mut self.server, Instant::ZERO);
        let back = receive(&mut self.client, Instant::ZERO);
        (stack, back.iter().map(bytes_of).collect())
    }

    /// Sends a client's request, of which the stack sees nothing; returns the only answer.
    fn ask(&mut self, request: &[u8]) -> Heard {
        let (stack, back) = self.send([frame(request, 42)]);
        assert_eq!((stack.len(), back.len()), (0, 1));
        hear(&back[0], self.server.capabilities().mac)
    }
}

fn discover() -> DhcpRepr<'static> {
    DhcpRepr {
        message_type: Kind::Discover,
        transaction_id: 0x1234_5678,
        secs: 0,
        client_hardware_address: EthernetAddress(CLIENT),
        client_ip: Ipv4Addr::UNSPECIFIED,
        your_ip: Ipv4Addr::UNSPECIFIED,
        server_ip: Ipv4Addr::UNSPECIFIED,
        router: None,
        subnet_mask: None,
        relay_agent_ip: Ipv4Addr::UNSPECIFIED,
        broadcast: false,
        requested_ip: None,
        client_identifier: Some(EthernetAddress(CLIENT)),
        server_identifier: None,
        parameter_request_list: Some(&[1, 3, 26]),
        dns_servers: None,
        max_size: None,
        lease_duration: None,
        renew_duration: None,
        rebind_duration: None,
        additional_options: &[],
    }
}

fn message(repr: &DhcpRepr<'_>) -> Vec<u8> {
    let mut message = vec![0; repr.buffer_len()];
    repr.emit(&mut DhcpPacket::new_unchecked(&mut message[..])).expect("room");
    message
}

fn udp(from: Ipv4Addr, to: Ipv4Addr, ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
    built!(ip([CLIENT, [0xff; 6]], [from.into(), to.into()], 64).udp(ports.0, ports.1), payload)
}

fn asks(repr: &DhcpRepr<'_>) -> Vec<u8> {
    udp(repr.client_ip, BROADCAST, (68, 67), &message(repr))
}

struct Heard {
    ethernet: [u8; 6],
    to: Ipv4Addr,
    message: Vec<u8>,
}

/// Takes an answer apart, judged by another implementation.
fn hear(bytes: &[u8], mac: [u8; 6]) -> Heard {
    let sliced = SlicedPacket::from_ethernet(bytes).expect("sound headers");
    let Some(NetSlice::Ipv4(ip)) = sliced.net else { panic!("no IPv4") };
    let Some(TransportSlice::Udp(udp)) = sliced.transport else { panic!("no UDP") };
    let header = ip.header().to_header();
    assert_eq!(header.header_checksum, header.calc_header_checksum());
    assert_eq!((udp.source_port(), udp.destination_port()), (67, 68));
    let sum = udp.to_header().calc_checksum_ipv4(&header, udp.payload()).expect("a length");
    assert_eq!(udp.checksum(), sum);
    assert_eq!(bytes[6..12], mac, "from the device's link address");
    assert_eq!(header.source, SERVER.octets());
    assert!(udp.payload().len() >= 300, "RFC 1542 section 2.1");
    Heard {
        ethernet: bytes[..6].try_into().expect("6 bytes"),
        to: header.destination.into(),
        message: udp.payload().to_vec(),
    }
}

/// The contents of an answer, as a client reads them.
#[derive(Debug, PartialEq)]
struct Said {
    kind: Kind,
    transaction: u32,
    client: [u8; 6],
    yours: Ipv4Addr,
    mask: Option<Ipv4Addr>,
    lease: Option<u32>,
    mtu: Option<Vec<u8>>,
}

fn said(message: &[u8]) -> Said {
    let packet = DhcpPacket::new_checked(message).expect("a message");
    let read = DhcpRepr::parse(&packet).expect("a message");
    assert_eq!(read.server_identifier, Some(SERVER));
    assert_eq!(read.client_identifier, Some(EthernetAddress(CLIENT)), "RFC 6842: it is repeated");
    Said {
        kind: read.message_type,
        transaction: read.transaction_id,
        client: read.client_hardware_address.0,
        yours: read.your_ip,
        mask: read.subnet_mask,
        lease: read.lease_duration,
        mtu: packet.options().find(|o| o.kind == 26).map(|o| o.data.to_vec()),
    }
}

given! {
    let mut link = Link::new();

    a_client_gets_an_address_in_four_frames_of_which_the_stack_sees_none {
        let mtu = link.server.capabilities().mtu as u16;
        let offer = link.ask(&asks(&discover()));
        let expected = Said {
            kind: Kind::Offer,
            transaction: 0x1234_5678,
            client: CLIENT,
            yours: Ipv4Addr::new(10, 0, 0, 2),
            mask: Some(Ipv4Addr::new(255, 255, 255, 0)),
            lease: Some(3600),
            mtu: Some(mtu.to_be_bytes().to_vec()),
        };
        assert_eq!(said(&offer.message), expected);
        // RFC 2131 section 4.1: to the address that it gets, at its link address.
        assert_eq!((offer.ethernet, offer.to), (CLIENT, expected.yours));

        let request = DhcpRepr {
            message_type: Kind::Request,
            requested_ip: Some(expected.yours),
            server_identifier: Some(SERVER),
            ..discover()
        };
        let ack = link.ask(&asks(&request));
        assert_eq!(said(&ack.message), Said { kind: Kind::Ack, ..expected });
        let watch = link.server.watch();
        let counters = watch.counters();
        assert_eq!((counters.offers, counters.acks), (1, 1));
        let lease = DhcpLease { client: CLIENT, address: Ipv4Addr::new(10, 0, 0, 2) };
        assert_eq!(watch.leases(), [lease]);
    }
    a_client_that_cannot_take_unicast_is_answered_by_broadcast {
        let repr = DhcpRepr { broadcast: true, ..discover() };
        let offer = link.ask(&asks(&repr));
        assert_eq!((offer.ethernet, offer.to), ([0xff; 6], BROADCAST));
    }
    a_renewal_is_answered_to_the_address_that_the_client_has {
        let has = Ipv4Addr::new(10, 0, 0, 77);
        let repr = DhcpRepr { message_type: Kind::Request, client_ip: has, ..discover() };
        let bytes = udp(has, SERVER, (68, 67), &message(&repr));
        let ack = link.ask(&bytes);
        assert_eq!((ack.ethernet, ack.to), (CLIENT, has));
        assert_eq!(said(&ack.message).yours, has);
    }
    a_refusal_goes_to_all_and_configures_nothing {
        let wrong = Some(Ipv4Addr::new(192, 168, 7, 7));
        let repr = DhcpRepr { message_type: Kind::Request, requested_ip: wrong, ..discover() };
        let nak = link.ask(&asks(&repr));
        assert_eq!((nak.ethernet, nak.to), ([0xff; 6], BROADCAST));
        let said = said(&nak.message);
        assert_eq!((said.kind, said.yours), (Kind::Nak, Ipv4Addr::UNSPECIFIED));
        assert_eq!((said.mask, said.lease, said.mtu), (None, None, None));
    }
    what_is_no_request_reaches_the_stack_unchanged_and_in_order {
        let payload = message(&discover());
        let mut fragment = asks(&discover());
        fragment[20] |= 0x20;
        let mut options = asks(&discover());
        options[14] = 0x46;
        let others = [
            udp(Ipv4Addr::UNSPECIFIED, Ipv4Addr::new(10, 0, 0, 7), (68, 67), &payload),
            udp(Ipv4Addr::UNSPECIFIED, BROADCAST, (68, 68), &payload),
            fragment,
            options,
            vec![0; 14],
            vec![0xff; 60],
        ];
        let request = asks(&discover());
        let sent = others.iter().flat_map(|other| [frame(other, 42), frame(&request, 42)]);
        let (stack, back) = link.send(sent.collect::<Vec<_>>());
        assert_eq!(stack.iter().map(bytes_of).collect::<Vec<_>>(), others);
        assert_eq!(back.len(), others.len());
    }
}

#[test]
fn resolvers_and_domains_are_sent_to_those_who_are_configured() {
    let (server, client) = Pair::new().expect("a pair");
    let dns = vec![SERVER, Ipv4Addr::new(10, 0, 0, 9)];
    // The last one does not fit any more.
    let long = [["x"; 60].concat(), ["y"; 60].concat(), ["z"; 60].concat()].join(".");
    let search = vec!["internal".to_owned(), "a.test".to_owned(), long.clone(), long];
    let config = DhcpConfig::network(SERVER, 24).expect("settings");
    let server =
        Dhcp::new(server, DhcpConfig { dns: dns.clone(), search, ..config }).expect("sound");
    let mut link = Link { server, client, ledger: CopyLedger::new() };
    let message = link.ask(&asks(&discover())).message;
    let packet = DhcpPacket::new_checked(&message[..]).expect("a message");
    let repr = DhcpRepr::parse(&packet).expect("a message");
    assert_eq!(repr.dns_servers.expect("resolvers").as_slice(), dns);
    let name = packet.options().find(|option| option.kind == 15).expect("a domain");
    assert_eq!(name.data, b"internal");
    let list = packet.options().find(|option| option.kind == 119).expect("a search list").data;
    assert!(list.starts_with(b"\x08internal\0\x01a\x04test\0\x3cxxx"));
    assert_eq!(list.len(), 10 + 8 + 3 * 61 + 1);

    let wrong = Some(Ipv4Addr::new(192, 168, 7, 7));
    let repr = DhcpRepr { message_type: Kind::Request, requested_ip: wrong, ..discover() };
    let message = link.ask(&asks(&repr)).message;
    let packet = DhcpPacket::new_checked(&message[..]).expect("a message");
    assert!(packet.options().all(|option| option.kind != 6 && option.kind != 15), "a refusal");
}

#[test]
fn a_client_whose_router_is_outside_of_its_network_gets_a_route_to_it() {
    let routes = |client, prefix| {
        let (server, far) = Pair::new().expect("a pair");
        let config = DhcpConfig::host(SERVER, client, prefix).expect("settings");
        let config = DhcpConfig { router: Some(SERVER), ..config };
        let server = Dhcp::new(server, config).expect("sound");
        let mut link = Link { server, client: far, ledger: CopyLedger::new() };
        let message = link.ask(&asks(&discover())).message;
        let packet = DhcpPacket::new_checked(&message[..]).expect("a message");
        let routes = packet.options().find(|option| option.kind == 121);
        routes.map(|option| option.data.to_vec())
    };
    let [a, b, c, d] = SERVER.octets();
    let both = vec![32, a, b, c, d, 0, 0, 0, 0, 0, a, b, c, d];
    assert_eq!(routes(Ipv4Addr::new(192, 0, 2, 5), 32), Some(both));
    let [.., last] = SERVER.octets();
    assert_eq!(routes(Ipv4Addr::new(a, b, c, last + 4), 24), None);
}

#[test]
fn headers_may_lie_anywhere() {
    let bytes = asks(&discover());
    for head in [0, 13, 14, 42, 66, 128] {
        let mut link = Link::new();
        let (stack, back) = link.send([frame(&bytes, head)]);
        assert_eq!((stack.len(), back.len()), (0, 1), "{head}");
    }
}

#[test]
fn damaged_requests_are_counted_and_forgotten() {
    let whole = asks(&discover());
    let with_a_bit_flipped = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        bytes
    };
    let damaged = [
        ("checksum of IPv4", with_a_bit_flipped(24)),
        ("checksum of UDP", with_a_bit_flipped(50)),
        ("cut", whole[..200].to_vec()),
        ("headers only", whole[..42].to_vec()),
        ("no DHCP", udp(Ipv4Addr::UNSPECIFIED, BROADCAST, (68, 67), &[0; 300])),
        ("too long", udp(Ipv4Addr::UNSPECIFIED, BROADCAST, (68, 67), &[0; 1473])),
    ];
    let mut link = Link::new();
    for (n, (what, bytes)) in damaged.iter().enumerate() {
        let (stack, back) = link.send([frame(bytes, 42)]);
        assert_eq!((stack.len(), back.len()), (0, 0), "{what}");
        assert_eq!(link.server.watch().counters().malformed, n as u64 + 1, "{what}");
    }
}

#[test]
fn a_checksum_that_the_device_vouches_for_is_believed() {
    // A guest leaves it to its card: what is in the field is the pseudo-header's sum.
    let mut bytes = asks(&discover());
    bytes[40] ^= 0x55;
    let mut link = Link::new();
    let mut unfinished = frame(&bytes, 42);
    unfinished.rx_checksum = RxChecksum::Valid;
    let mut frames = VecDeque::from([unfinished]);
    link.server.0.sort(Instant::ZERO, &mut frames, 0, &mut link.ledger);
    assert_eq!((frames.len(), link.server.0.answers.len()), (0, 1));
}

#[test]
fn answers_that_find_no_room_wait_and_are_bounded() {
    let (server, mut client) =
        Pair::with(crate::PairConfig { queue_frames: 4, ..Default::default() }).expect("a pair");
    let config = DhcpConfig::network(SERVER, 24).expect("settings");
    let mut server = Dhcp::new(server, config).expect("a server");
    let now = Instant::ZERO;
    for _ in 0..100 {
        send(&mut client, now, [frame(&asks(&discover()), 42)]);
        assert!(receive(&mut server, now).is_empty());
    }
    // Four are in the device, the limit waits, the rest was not answered.
    assert_eq!(server.0.answers.len(), DHCP_MAX_ANSWERS);
    assert_eq!(server.watch().counters().unanswered, (100 - 4 - DHCP_MAX_ANSWERS) as u64);
    // A frame of the stack waits behind them, and all come out in order.
    let mut stack = VecDeque::from([frame(&[7; 60], 42)]);
    let mut back = Vec::new();
    for _ in 0..100 {
        stack = send(&mut server, now, stack);
        back.extend(receive(&mut client, now));
    }
    assert!(stack.is_empty() && server.0.answers.is_empty());
    assert_eq!(back.len(), 4 + DHCP_MAX_ANSWERS + 1);
    assert_eq!(back.last().map(bytes_of), Some(vec![7; 60]));
}

#[test]
fn a_capture_inside_records_every_frame_once() {
    let (server, mut client) =
        Pair::with(crate::PairConfig { queue_frames: 2, ..Default::default() }).expect("a pair");
    let capture = crate::Pcap::new(server, Vec::new(), Default::default()).expect("a capture");
    let config = DhcpConfig::network(SERVER, 24).expect("settings");
    let mut server = Dhcp::new(capture, config).expect("a server");
    let now = Instant::ZERO;
    // Two frames of the stack fill the link, two more and an answer wait.
    let mut stack = send(&mut server, now, (0..4).map(|n| frame(&[n; 60], 42)));
    send(&mut client, now, [frame(&asks(&discover()), 42)]);
    assert!(receive(&mut server, now).is_empty());
    let mut back = Vec::new();
    for _ in 0..4 {
        back.extend(receive(&mut client, now));
        stack = send(&mut server, now, stack);
    }
    assert_eq!(back.len(), 5);
    assert_eq!(server.get_ref().capture_counters().frames, 1 + 5);
}

proptest! {
    /// Bytes of any kind in a request's place: no panic, and never more than one answer.
    #[test]
    fn any_bytes_are_survived(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..700),
        edits in proptest::collection::vec((0..340usize, any::<u8>()), 0..6),
        mutate in any::<bool>(),
        head in 0..128usize,
    ) {
        let mut link = Link::new();
        let request = if mutate {
            let mut request = asks(&discover());
            for (at, value) in edits {
                if let Some(byte) = request.get_mut(at) {
                    *byte = value;
                }
            }
            request
        } else {
            // Believed to be sound as far as the headers of UDP.
            bytes.truncate(600);
            udp(Ipv4Addr::UNSPECIFIED, BROADCAST, (68, 67), &bytes)
        };
        let mut arrived = frame(&request, head);
        arrived.rx_checksum = RxChecksum::Valid;
        let mut frames = VecDeque::from([arrived]);
        let before = link.server.0.answers.len();
        if frames.iter_mut().any(|f| link.server.0.responder().wants(f)) {
            link.server.0.sort(Instant::ZERO, &mut frames, 0, &mut link.ledger);
        }
        prop_assert!(link.server.0.answers.len() <= before + 1);
    }
}
