//! Header tables: bytes on the left, value on the right, then the round trip. `etherparse` is the
//! independent judge of what we emit.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etherparse::{
    ArpPacket, Ethernet2Header, Icmpv6Header, Ipv4Header, Ipv6FragmentHeader, Ipv6Header, UdpHeader,
};
use proptest::prelude::*;

use super::ethernet::Mac;
use super::{arp, ethernet, icmp, ipv4, ipv6, ndp, protocol, pseudo_header_sum, udp};
use crate::counters::DropReason;
use crate::net::QuotedPacket;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

const A: Mac = Mac([2, 0, 0, 0, 0, 1]);
const B: Mac = Mac([2, 0, 0, 0, 0, 2]);

#[test]
fn ethernet_header_table() {
    for (bytes, value) in [
        ("020000000002 020000000001 0800", Ok((B, A, ethernet::IPV4))),
        ("ffffffffffff 020000000001 0806", Ok((Mac::BROADCAST, A, ethernet::ARP))),
        ("020000000002 020000000001 0600", Ok((B, A, 0x0600))),
        ("020000000002 020000000001 05ff", Err(DropReason::EthernetLength)),
        ("020000000002 020000000001 8100", Err(DropReason::EthernetVlan)),
        ("020000000002 020000000001 88a8", Err(DropReason::EthernetVlan)),
        ("020000000002 030000000001 0800", Err(DropReason::EthernetSource)),
        ("020000000002 020000000001 08", Err(DropReason::EthernetTruncated)),
        ("", Err(DropReason::EthernetTruncated)),
    ] {
        let bytes = hex(bytes);
        let parsed = ethernet::Header::parse(&bytes);
        assert_eq!(parsed.map(|h| (h.dst, h.src, h.ethertype)), value, "{bytes:02x?}");
        if let Ok(header) = parsed {
            assert_eq!(header.emit()[..], bytes);
        }
    }
}

#[test]
fn group_addresses_map_to_stations() {
    let mac = |ip: &str| Mac::for_multicast(ip.parse().unwrap());
    assert_eq!(mac("224.0.0.1"), Mac([1, 0, 0x5e, 0, 0, 1]));
    assert_eq!(mac("239.255.1.2"), Mac([1, 0, 0x5e, 0x7f, 1, 2]));
    assert_eq!(mac("ff02::1:ff00:aabb"), Mac([0x33, 0x33, 0xff, 0, 0xaa, 0xbb]));
    assert_eq!(format!("{A:?}"), "02:00:00:00:00:01");
}

const V4: &str = "4500 0054 0102 4000 40 06 0000 0a000001 0a000002";

fn v4(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = hex(V4);
    change(&mut bytes);
    let len = (usize::from(bytes[0] & 15) * 4).clamp(20, bytes.len());
    bytes[10] = 0;
    bytes[11] = 0;
    let mut sum = pagewire_mem::checksum::Checksum::new();
    sum.add_bytes(&bytes[..len]);
    let sum = sum.finish().to_be_bytes();
    bytes[10..12].copy_from_slice(&sum);
    bytes
}

#[test]
fn ipv4_header_table() {
    let expected = ipv4::Header {
        header_len: 20,
        tos: 0,
        total_len: 84,
        id: 0x0102,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        ttl: 64,
        protocol: protocol::TCP,
        src: Ipv4Addr::new(10, 0, 0, 1),
        dst: Ipv4Addr::new(10, 0, 0, 2),
    };
    let bytes = v4(|_| ());
    assert_eq!(ipv4::Header::parse(&bytes, 84), Ok(expected));
    assert_eq!(expected.emit()[..], bytes);
    let last = v4(|b| b[6..8].copy_from_slice(&[0x20, 0x01]));
    let last = ipv4::Header::parse(&last, 84).unwrap();
    assert!(last.more_fragments && !last.dont_fragment && last.is_fragment());
    assert_eq!(last.fragment_offset, 8);
}

#[test]
fn ipv4_every_length_and_offset_field_one_less_exact_and_one_more() {
    let parse = |bytes: Vec<u8>, len| ipv4::Header::parse(&bytes, len).map(|h| h.total_len);
    // Version and header length.
    assert_eq!(parse(v4(|b| b[0] = 0x44), 84), Err(DropReason::Ipv4HeaderLength));
    assert_eq!(parse(v4(|b| b[0] = 0x46), 84), Err(DropReason::Ipv4HeaderLength));
    assert_eq!(parse(v4(|b| b[0] = 0x55), 84), Err(DropReason::Ipv4Version));
    assert_eq!(parse(v4(|b| b[0] = 0x35), 84), Err(DropReason::Ipv4Version));
    // Total length against the header, and against what arrived.
    assert_eq!(parse(v4(|b| b[3] = 19), 84), Err(DropReason::Ipv4TotalLengthSmall));
    assert_eq!(parse(v4(|b| b[3] = 20), 84), Ok(20));
    assert_eq!(parse(v4(|b| b[3] = 84), 84), Ok(84));
    assert_eq!(parse(v4(|b| b[3] = 85), 84), Err(DropReason::Ipv4TotalLengthBeyond));
    assert_eq!(parse(v4(|_| ()), 85), Ok(84), "padding is not part of the packet");
    // Flags, checksum, and every prefix of the header.
    assert_eq!(parse(v4(|b| b[6] |= 0x80), 84), Err(DropReason::Ipv4Flags));
    for at in 0..20 {
        let mut bytes = v4(|_| ());
        bytes[at] ^= if at == 0 { 0 } else { 0x10 };
        let parsed = parse(bytes, 84);
        assert_eq!(parsed.is_err(), at != 0, "byte {at}");
        assert!(at == 0 || parsed == Err(DropReason::Ipv4Checksum));
    }
    for len in 0..20 {
        let short = v4(|_| ())[..len].to_vec();
        assert_eq!(parse(short, len), Err(DropReason::Ipv4Truncated));
    }
}

#[test]
fn ipv4_options_are_walked_and_source_routes_refused() {
    let with = |options: &str| {
        let options = hex(options);
        let bytes = v4(|b| {
            b[0] = 0x40 + 5 + (options.len() / 4) as u8;
            b.extend(&options);
        });
        ipv4::Header::parse(&bytes, 84).map(|h| h.header_len)
    };
    assert_eq!(with("01010101"), Ok(24), "no-operation");
    assert_eq!(with("00ffffff"), Ok(24), "what lies behind the end of the list is not read");
    assert_eq!(with("94040000"), Ok(24), "router alert");
    assert_eq!(with("07040000"), Ok(24), "record route");
    assert_eq!(with("07030400"), Ok(24));
    assert_eq!(with("07000000"), Err(DropReason::Ipv4OptionLength));
    assert_eq!(with("07010000"), Err(DropReason::Ipv4OptionLength));
    assert_eq!(with("07050000"), Err(DropReason::Ipv4OptionLength), "one beyond the header");
    assert_eq!(with("01010107"), Err(DropReason::Ipv4OptionLength), "no length at all");
    assert_eq!(with("8304 0000"), Err(DropReason::Ipv4SourceRoute));
    assert_eq!(with("8904 0000"), Err(DropReason::Ipv4SourceRoute));
    assert_eq!(with(&"01".repeat(40)), Ok(60), "as many as the header takes");
}

const V6: &str = "60000000 0014 06 40 fd000000000000000000000000000001 \
                  fd000000000000000000000000000002";

#[test]
fn ipv6_header_table() {
    let expected = ipv6::Header {
        traffic_class: 0,
        flow_label: 0,
        payload_len: 20,
        next_header: protocol::TCP,
        hop_limit: 64,
        src: "fd00::1".parse().unwrap(),
        dst: "fd00::2".parse().unwrap(),
    };
    assert_eq!(ipv6::Header::parse(&hex(V6), 60), Ok(expected));
    assert_eq!(expected.emit()[..], hex(V6));
    assert_eq!(ipv6::Header::parse(&hex(V6), 61), Ok(expected), "padding");
    assert_eq!(
        ipv6::Header::parse(&hex(V6), 59),
        Err(DropReason::Ipv6PayloadLengthBeyond),
        "one byte less than it says"
    );
    for version in [0x00, 0x40, 0x50, 0x70] {
        let mut bytes = hex(V6);
        bytes[0] = version;
        assert_eq!(ipv6::Header::parse(&bytes, 60), Err(DropReason::Ipv6Version));
    }
    for len in 0..ipv6::LEN {
        let short = &hex(V6)[..len];
        assert_eq!(ipv6::Header::parse(short, len), Err(DropReason::Ipv6Truncated));
    }
    let mut jumbo = hex(V6);
    jumbo[4..7].copy_from_slice(&[0, 0, 0]);
    assert_eq!(ipv6::Header::parse(&jumbo, 60), Err(DropReason::Ipv6Jumbogram));
}

#[test]
fn ipv6_option_table() {
    use ipv6::OptionsVerdict::{Drop, Fine, Problem};
    for (bytes, verdict) in [
        ("3b00 0104 00000000", Fine),
        ("3b00 000000000000", Fine),
        ("3b00 0502 0000 0100", Fine),
        ("3b00 0104 000000ff", Fine),
        ("3b00 0105 00000000", Drop(DropReason::Ipv6OptionLength)),
        ("3b00 0103 000000 05", Drop(DropReason::Ipv6OptionLength)),
        ("3b00 1e04 00000000", Fine),
        ("3b00 5e04 00000000", Drop(DropReason::Ipv6Option)),
        ("3b00 9e04 00000000", Problem { at: 2, unicast_only: false }),
        ("3b00 00 de03 000000", Problem { at: 3, unicast_only: true }),
        ("3b01 0000000000000000 0000000000000000", Drop(DropReason::Ipv6ExtensionLimit)),
    ] {
        assert_eq!(ipv6::check_options(&hex(bytes)), verdict, "{bytes}");
    }
}

#[test]
fn neighbour_message_table() {
    let target = "fd00::2".parse().unwrap();
    let ask = "87 00 0000 00000000 fd000000000000000000000000000002 01 01 020000000001";
    let value = ndp::Message::Solicitation { target, source_mac: Some(A) };
    assert_eq!(ndp::Message::parse(&hex(ask)), Ok(value));
    let (bytes, len) = value.emit();
    assert_eq!(bytes[..len], hex(ask));
    let tell = "88 00 0000 60000000 fd000000000000000000000000000002 02 01 020000000002";
    let value = ndp::Message::Advertisement {
        router: false,
        solicited: true,
        overrides: true,
        target,
        target_mac: Some(B),
    };
    assert_eq!(ndp::Message::parse(&hex(tell)), Ok(value));
    let (bytes, len) = value.emit();
    assert_eq!(bytes[..len], hex(tell));

    let changed = |at: usize, value: u8| {
        let mut bytes = hex(ask);
        bytes[at] = value;
        ndp::Message::parse(&bytes)
    };
    assert_eq!(changed(1, 1), Err(DropReason::NdpCode));
    assert_eq!(changed(8, 0xff), Err(DropReason::NdpTarget));
    assert_eq!(changed(25, 0), Err(DropReason::NdpOption), "length zero");
    assert_eq!(changed(25, 2), Err(DropReason::NdpOption), "one unit beyond the end");
    assert_eq!(changed(26, 1), Err(DropReason::NdpOption), "a group as a station");
    assert_eq!(
        changed(24, 14),
        Ok(ndp::Message::Solicitation { target, source_mac: None }),
        "unknown options are skipped"
    );
    for len in 0..ndp::LEN {
        assert_eq!(ndp::Message::parse(&hex(ask)[..len]), Err(DropReason::NdpTruncated));
    }
    assert!(ndp::Message::parse(&hex(ask)[..ndp::LEN]).is_ok());
    for len in ndp::LEN + 1..ndp::MAX_LEN {
        assert_eq!(ndp::Message::parse(&hex(ask)[..len]), Err(DropReason::NdpOption));
    }
}

#[test]
fn addresses_derive_from_the_station() {
    let mac = Mac([0x52, 0x54, 0, 0x12, 0x34, 0x56]);
    assert_eq!(ndp::link_local(mac).to_string(), "fe80::5054:ff:fe12:3456");
    let group = ndp::solicited_node("fd00::aabb:ccdd".parse().unwrap());
    assert_eq!(group.to_string(), "ff02::1:ffbb:ccdd");
}

#[test]
fn udp_length_one_less_exact_and_one_more() {
    let with = |len: u16, port: u16| udp::Header { src_port: 7, dst_port: port, len, checksum: 0 };
    let parse = |header: udp::Header| udp::Header::parse(&header.emit(), 12).map(|h| h.len);
    assert_eq!(parse(with(7, 9)), Err(DropReason::UdpLength));
    assert_eq!(parse(with(8, 9)), Ok(8));
    assert_eq!(parse(with(12, 9)), Ok(12));
    assert_eq!(parse(with(13, 9)), Err(DropReason::UdpLength));
    assert_eq!(parse(with(0, 9)), Err(DropReason::UdpLength));
    assert_eq!(parse(with(12, 0)), Err(DropReason::UdpPort));
    assert_eq!(udp::Header::parse(&[0; 7], 7), Err(DropReason::UdpTruncated));
}

#[test]
fn what_an_error_quotes_is_read_as_far_as_it_goes() {
    let tcp = hex("1234 0050 01020304");
    let v4 = [hex(V4), tcp.clone()].concat();
    let about = QuotedPacket {
        src: "10.0.0.1".parse().unwrap(),
        dst: "10.0.0.2".parse().unwrap(),
        protocol: protocol::TCP,
        src_port: 0x1234,
        dst_port: 80,
        seq: 0x0102_0304,
    };
    assert_eq!(icmp::parse_quoted_v4(&v4), Ok(about));
    for len in 0..v4.len() {
        assert_eq!(icmp::parse_quoted_v4(&v4[..len]), Err(DropReason::IcmpTruncated));
    }
    let later = [hex(&V4.replace("4000 40", "0001 40")), tcp.clone()].concat();
    assert_eq!(icmp::parse_quoted_v4(&later), Err(DropReason::IcmpQuote));
    let v6 = [hex(V6), tcp.clone()].concat();
    let about =
        QuotedPacket { src: "fd00::1".parse().unwrap(), dst: "fd00::2".parse().unwrap(), ..about };
    assert_eq!(icmp::parse_quoted_v6(&v6), Ok(about));
    for len in 0..v6.len() {
        assert_eq!(icmp::parse_quoted_v6(&v6[..len]), Err(DropReason::IcmpTruncated));
    }
    // Behind a destination options header and a first fragment header.
    let mut chained = hex(&V6.replace("0014 06", "0024 3c"));
    chained.extend(hex("2c00 0104 00000000 0600 0001 00000007"));
    chained.extend(&tcp);
    assert_eq!(icmp::parse_quoted_v6(&chained), Ok(about));
}

fn addr4() -> impl Strategy<Value = Ipv4Addr> {
    any::<[u8; 4]>().prop_map(Into::into)
}

fn addr6() -> impl Strategy<Value = Ipv6Addr> {
    any::<[u8; 16]>().prop_map(Into::into)
}

proptest! {
    #[test]
    fn ethernet_round_trips_and_agrees_with_etherparse(
        dst in any::<[u8; 6]>(), mut src in any::<[u8; 6]>(), ethertype in 0x0600u16..,
    ) {
        prop_assume!(!matches!(ethertype, ethernet::VLAN | ethernet::SERVICE_VLAN));
        src[0] &= 0xfe;
        let header = ethernet::Header { dst: Mac(dst), src: Mac(src), ethertype };
        let bytes = header.emit();
        prop_assert_eq!(ethernet::Header::parse(&bytes), Ok(header));
        let (theirs, _) = Ethernet2Header::from_slice(&bytes).unwrap();
        prop_assert_eq!(theirs.destination, dst);
        prop_assert_eq!(theirs.source, src);
        prop_assert_eq!(theirs.ether_type.0, ethertype);
    }

    #[test]
    fn arp_round_trips_and_agrees_with_etherparse(
        request in any::<bool>(), a in any::<[u8; 6]>(), sender in addr4(),
        b in any::<[u8; 6]>(), target in addr4(),
    ) {
        let operation = if request { arp::Operation::Request } else { arp::Operation::Reply };
        let packet = arp::Packet { operation, sender_mac: Mac(a), sender, target_mac: Mac(b), target };
        let bytes = packet.emit();
        prop_assert_eq!(arp::Packet::parse(&bytes), Ok(packet));
        let theirs = etherparse::ArpPacketSlice::from_slice(&bytes).unwrap().to_packet();
        let theirs: ArpPacket = theirs;
        prop_assert_eq!(theirs.sender_protocol_addr(), &sender.octets()[..]);
        prop_assert_eq!(theirs.target_hw_addr(), &b[..]);
    }

    #[test]
    fn ipv4_round_trips_and_agrees_with_etherparse(
        tos in any::<u8>(), payload in 0u16..1000, id in any::<u16>(), df in any::<bool>(),
        mf in any::<bool>(), offset in 0u16..0x2000, ttl in any::<u8>(), protocol in any::<u8>(),
        src in addr4(), dst in addr4(),
    ) {
        let header = ipv4::Header {
            header_len: 20, tos, total_len: u32::from(20 + payload), id, dont_fragment: df,
            more_fragments: mf, fragment_offset: offset << 3, ttl, protocol, src, dst,
        };
        let bytes = header.emit();
        prop_assert_eq!(ipv4::Header::parse(&bytes, 20 + usize::from(payload)), Ok(header));
        let (theirs, _) = Ipv4Header::from_slice(&bytes).unwrap();
        prop_assert_eq!(theirs.calc_header_checksum(), theirs.header_checksum);
        prop_assert_eq!(theirs.total_len, 20 + payload);
        prop_assert_eq!(theirs.fragment_offset.value(), offset);
        prop_assert_eq!((theirs.dont_fragment, theirs.more_fragments), (df, mf));
        prop_assert_eq!((theirs.source, theirs.destination), (src.octets(), dst.octets()));
    }

    #[test]
    fn ipv6_round_trips_and_agrees_with_etherparse(
        traffic_class in any::<u8>(), flow_label in 0u32..1 << 20, payload_len in 1u16..,
        next_header in any::<u8>(), hop_limit in any::<u8>(), src in addr6(), dst in addr6(),
    ) {
        let header = ipv6::Header {
            traffic_class, flow_label, payload_len: payload_len.into(), next_header, hop_limit, src, dst,
        };
        let bytes = header.emit();
        let len = ipv6::LEN + usize::from(payload_len);
        prop_assert_eq!(ipv6::Header::parse(&bytes, len), Ok(header));
        let (theirs, _) = Ipv6Header::from_slice(&bytes).unwrap();
        prop_assert_eq!(theirs.traffic_class, traffic_class);
        prop_assert_eq!(theirs.flow_label.value(), flow_label);
        prop_assert_eq!(theirs.payload_length, payload_len);
        prop_assert_eq!(theirs.next_header.0, next_header);
        prop_assert_eq!((theirs.source, theirs.destination), (src.octets(), dst.octets()));
    }

    #[test]
    fn fragment_header_round_trips_and_agrees_with_etherparse(
        next_header in any::<u8>(), offset in 0u16..0x2000, more in any::<bool>(),
        id in any::<u32>(),
    ) {
        let header = ipv6::Fragment { next_header, offset: offset << 3, more, id };
        let bytes = header.emit();
        prop_assert_eq!(ipv6::Fragment::parse(&bytes), Ok(header));
        let (theirs, _) = Ipv6FragmentHeader::from_slice(&bytes).unwrap();
        prop_assert_eq!(theirs.fragment_offset.value(), offset);
        prop_assert_eq!((theirs.more_fragments, theirs.identification), (more, id));
    }

    #[test]
    fn udp_round_trips_and_agrees_with_etherparse(
        src_port in any::<u16>(), dst_port in 1u16.., len in 8u16.., checksum in any::<u16>(),
    ) {
        let header = udp::Header { src_port, dst_port, len, checksum };
        let bytes = header.emit();
        prop_assert_eq!(udp::Header::parse(&bytes, usize::from(len)), Ok(header));
        let (theirs, _) = UdpHeader::from_slice(&bytes).unwrap();
        prop_assert_eq!((theirs.source_port, theirs.destination_port), (src_port, dst_port));
        prop_assert_eq!((theirs.length, theirs.checksum), (len, checksum));
    }

    #[test]
    fn icmp_round_trips(kind in any::<u8>(), code in any::<u8>(), word in any::<u32>()) {
        let header = icmp::Header { kind, code, word };
        prop_assert_eq!(icmp::Header::parse(&header.emit()), Ok(header));
    }

    #[test]
    fn neighbour_messages_round_trip_and_etherparse_knows_their_type(
        target in addr6(), ask in any::<bool>(), flags in 0u8..8, mut mac in any::<[u8; 6]>(),
        with_mac in any::<bool>(),
    ) {
        prop_assume!(!target.is_multicast() && !target.is_unspecified());
        mac[0] = (mac[0] & 0xfe) | 2;
        let mac = with_mac.then_some(Mac(mac));
        let message = match ask {
            true => ndp::Message::Solicitation { target, source_mac: mac },
            false => ndp::Message::Advertisement {
                router: flags & 1 > 0, solicited: flags & 2 > 0, overrides: flags & 4 > 0,
                target, target_mac: mac,
            },
        };
        let (bytes, len) = message.emit();
        prop_assert_eq!(ndp::Message::parse(&bytes[..len]), Ok(message));
        let (theirs, _) = Icmpv6Header::from_slice(&bytes[..len]).unwrap();
        prop_assert_eq!(theirs.icmp_type.type_u8(), bytes[0]);
    }

    #[test]
    fn transport_checksums_agree_with_etherparse(
        src4 in addr4(), dst4 in addr4(), src6 in addr6(), dst6 in addr6(),
        payload in proptest::collection::vec(any::<u8>(), 0..100),
    ) {
        let header = UdpHeader {
            source_port: 1, destination_port: 2, length: 8 + payload.len() as u16, checksum: 0,
        };
        let bytes = [&header.to_bytes()[..], &payload].concat();
        let ours = |src: IpAddr, dst: IpAddr| {
            let mut sum = pagewire_mem::checksum::Checksum::new();
            sum.add_u16(pseudo_header_sum(src, dst, protocol::UDP, bytes.len()));
            sum.add_bytes(&bytes);
            match sum.finish() { 0 => 0xffff, sum => sum }
        };
        let theirs = header
            .calc_checksum_ipv4_raw(src4.octets(), dst4.octets(), &payload).unwrap();
        prop_assert_eq!(ours(src4.into(), dst4.into()), theirs);
        let theirs = header
            .calc_checksum_ipv6_raw(src6.octets(), dst6.octets(), &payload).unwrap();
        prop_assert_eq!(ours(src6.into(), dst6.into()), theirs);
    }

    #[test]
    fn no_parser_panics_on_arbitrary_bytes(
        bytes in proptest::collection::vec(any::<u8>(), 0..128), len in 0usize..70_000,
    ) {
        let _ = ethernet::Header::parse(&bytes);
        let _ = arp::Packet::parse(&bytes);
        let _ = ipv4::Header::parse(&bytes, len);
        let _ = ipv6::Header::parse(&bytes, len);
        let _ = ipv6::Fragment::parse(&bytes);
        let _ = ipv6::Extension::parse(&bytes);
        let _ = ipv6::check_options(&bytes);
        let _ = icmp::Header::parse(&bytes);
        let _ = icmp::parse_quoted_v4(&bytes);
        let _ = icmp::parse_quoted_v6(&bytes);
        let _ = ndp::Message::parse(&bytes);
        let _ = udp::Header::parse(&bytes, len);
    }
}
