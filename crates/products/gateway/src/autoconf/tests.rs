//! The wrapper on a pair: a guest's frames at one end, the stack at the other. Answers are judged
//! by `etherparse`, options that it does not know by hand.

use std::collections::VecDeque;

use etherparse::icmpv6::{NdpOptionSlice, NdpOptionsIterator};
use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use pagewire::Pair;
use pagewire::device::{PairConfig, PairEnd, RxChecksum};
use pagewire_testkit::built;
use pagewire_testkit::frames::{bytes_of, ip, received as frame};

use super::*;
use crate::limits::{RA_LIFETIME, RA_PREFERRED, RA_VALID};

const GUEST: [u8; 6] = [0x52, 0x54, 0, 0, 0, 9];
const GUEST_LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0x5054, 0xff, 0xfe00, 9);
const ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
const SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
const GIVEN: Ipv6Addr = Ipv6Addr::new(0xfd00, 2, 0, 0, 0, 0, 0, 0x15);

fn config() -> AutoconfConfig {
    let mut config = AutoconfConfig::new("fd00:2::2/64".parse().unwrap());
    config.dns = vec!["fd00:2::2".parse().unwrap()];
    config.search = vec!["internal".into()];
    config.guest = Some(GIVEN);
    config
}

struct Link {
    router: Autoconf<PairEnd>,
    guest: PairEnd,
    now: Instant,
    ledger: CopyLedger,
}

impl Link {
    fn new(config: AutoconfConfig) -> Self {
        let (router, guest) = Pair::new().unwrap();
        let first = usize::from(config.advertises);
        let router = Autoconf::new(router, config).unwrap();
        let mut link =
            Self { router, guest, now: Instant::from_millis(1), ledger: CopyLedger::new() };
        // The first advertisement, to all.
        assert_eq!(link.send([]).1.len(), first);
        link
    }

    /// Sends frames as the guest; returns what the stack gets, and what comes back.
    fn send(
        &mut self,
        frames: impl IntoIterator<Item = PacketBuf>,
    ) -> (Vec<PacketBuf>, Vec<Vec<u8>>) {
        let mut frames: VecDeque<_> = frames.into_iter().collect();
        self.guest.transmit(self.now, &mut frames, &mut self.ledger).unwrap();
        let (mut stack, mut back) = (VecDeque::new(), VecDeque::new());
        self.router.receive(self.now, &mut stack, 64, &mut self.ledger).unwrap();
        self.guest.receive(self.now, &mut back, 64, &mut self.ledger).unwrap();
        (stack.into(), back.iter().map(bytes_of).collect())
    }

    /// The answer to one frame, of which the stack sees nothing.
    fn ask(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        let (stack, mut back) = self.send([frame(bytes, 62)]);
        assert!(stack.is_empty() && back.len() <= 1);
        back.pop()
    }

    /// The answer to a DHCPv6 message: its type and its options.
    fn dhcp(&mut self, kind: u8, options: &[(u16, &[u8])]) -> (u8, Vec<(u16, Vec<u8>)>) {
        parsed(&self.ask(&dhcp(kind, options)).unwrap())
    }

    fn counts(&self) -> AutoconfCounters {
        self.router.watch().counters()
    }
}

fn solicitation_from(from: Ipv6Addr, hop_limit: u8, options: &[u8]) -> Vec<u8> {
    let ip = ip([GUEST, [0x33, 0x33, 0, 0, 0, 2]], [from.into(), ROUTERS.into()], hop_limit);
    built!(ip.icmpv6_raw(133, 0, [0; 4]), options)
}

fn solicitation() -> Vec<u8> {
    solicitation_from(GUEST_LINK_LOCAL, 255, &[1, 1, 0x52, 0x54, 0, 0, 0, 9])
}

/// A DHCPv6 message with these options.
fn dhcp(kind: u8, options: &[(u16, &[u8])]) -> Vec<u8> {
    let mut message = vec![kind, 1, 2, 3];
    message.extend(encoded(options));
    let addresses = [GUEST_LINK_LOCAL.into(), SERVERS.into()];
    built!(ip([GUEST, [0x33, 0x33, 0, 1, 0, 2]], addresses, 1).udp(546, 547), &message)
}

fn encoded(options: &[(u16, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (kind, data) in options {
        bytes.extend_from_slice(&kind.to_be_bytes());
        bytes.extend_from_slice(&(data.len() as u16).to_be_bytes());
        bytes.extend_from_slice(data);
    }
    bytes
}

fn options(mut bytes: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let mut found = Vec::new();
    while let Some((&[a, b, c, d], rest)) = bytes.split_first_chunk() {
        let (data, rest) = rest.split_at(usize::from(u16::from_be_bytes([c, d])));
        found.push((u16::from_be_bytes([a, b]), data.to_vec()));
        bytes = rest;
    }
    assert!(bytes.is_empty());
    found
}

/// A DHCPv6 answer: its type and its options.
fn parsed(bytes: &[u8]) -> (u8, Vec<(u16, Vec<u8>)>) {
    let sliced = SlicedPacket::from_ethernet(bytes).unwrap();
    let Some(NetSlice::Ipv6(ip)) = sliced.net else { panic!("no IPv6") };
    let Some(TransportSlice::Udp(udp)) = sliced.transport else { panic!("no UDP") };
    let (source, to) = (ip.header().source(), ip.header().destination());
    let sum = udp.to_header().calc_checksum_ipv6_raw(source, to, udp.payload()).unwrap();
    assert_eq!(udp.checksum(), sum);
    assert_eq!((udp.source_port(), udp.destination_port()), (547, 546));
    assert_eq!((&bytes[..6], Ipv6Addr::from(to)), (&GUEST[..], GUEST_LINK_LOCAL));
    assert_eq!(udp.payload()[1..4], [1, 2, 3]);
    (udp.payload()[0], options(&udp.payload()[4..]))
}

fn data(options: &[(u16, Vec<u8>)], kind: u16) -> Option<&[u8]> {
    options.iter().find(|(found, _)| *found == kind).map(|(_, data)| data.as_slice())
}

/// The addresses of an association, with their valid lifetimes.
fn given(ia: &[u8]) -> Vec<(Ipv6Addr, u32)> {
    let address = |(kind, data): (u16, Vec<u8>)| {
        assert_eq!(kind, 5);
        let valid = u32::from_be_bytes(data[20..24].try_into().unwrap());
        (Ipv6Addr::from(<[u8; 16]>::try_from(&data[..16]).unwrap()), valid)
    };
    options(&ia[12..]).into_iter().map(address).collect()
}

const CLIENT: (u16, &[u8]) = (1, &[0, 3, 0, 1, 0x52, 0x54, 0, 0, 0, 9]);
const IA: (u16, &[u8]) = (3, &[0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0]);

fn server_id(link: &Link) -> Vec<u8> {
    [&[0, 3, 0, 1][..], &link.router.capabilities().mac].concat()
}

#[test]
fn the_router_has_the_address_that_it_was_given() {
    let router = "fe80::2".parse().unwrap();
    let mut link = Link::new(AutoconfConfig { router: Some(router), ..config() });
    let answer = link.ask(&solicitation()).unwrap();
    let sliced = SlicedPacket::from_ethernet(&answer).unwrap();
    let Some(NetSlice::Ipv6(ip)) = sliced.net else { panic!("no IPv6") };
    assert_eq!(ip.header().source_addr(), router);
}

#[test]
fn what_is_switched_off_is_neither_sent_nor_answered() {
    let mut link = Link::new(AutoconfConfig { advertises: false, ..config() });
    assert!(link.ask(&solicitation()).is_none());
    assert_eq!(link.router.poll_timeout(), None);
    let mut link = Link::new(AutoconfConfig { dhcp: false, ..config() });
    // Neither M nor O.
    assert_eq!(link.ask(&solicitation()).unwrap()[14 + 40 + 5], 0);
}

#[test]
fn a_solicitation_is_answered_with_all_that_a_guest_needs() {
    let mut link = Link::new(config());
    let answer = link.ask(&solicitation()).unwrap();
    let mac = link.router.capabilities().mac;
    let sliced = SlicedPacket::from_ethernet(&answer).unwrap();
    let Some(NetSlice::Ipv6(ip)) = sliced.net else { panic!("no IPv6") };
    let Some(TransportSlice::Icmpv6(icmp)) = sliced.transport else { panic!("no ICMPv6") };
    assert_eq!(answer[..12], [GUEST, mac].concat());
    assert_eq!(ip.header().hop_limit(), 255);
    assert_eq!(ip.header().source_addr(), link_local(mac));
    assert_eq!(ip.header().destination_addr(), GUEST_LINK_LOCAL);
    assert!(icmp.is_checksum_valid(ip.header().source(), ip.header().destination()));
    assert_eq!(icmp.type_u8(), 134);
    // Hop limit, M and O, router lifetime.
    let body = &icmp.slice()[4..];
    assert_eq!(body[..2], [64, 0xc0]);
    assert_eq!(u64::from(u16::from_be_bytes([body[2], body[3]])), RA_LIFETIME.as_secs());
    let mut seen = 0;
    for option in NdpOptionsIterator::from_slice(&body[12..]) {
        seen += 1;
        match option.unwrap() {
            NdpOptionSlice::SourceLinkLayerAddress(address) => {
                assert_eq!(address.link_layer_address(), mac);
            }
            NdpOptionSlice::Mtu(mtu) => {
                assert_eq!(mtu.mtu() as usize, link.router.capabilities().mtu);
            }
            NdpOptionSlice::PrefixInformation(prefix) => {
                assert_eq!(Ipv6Addr::from(prefix.prefix()).to_string(), "fd00:2::");
                assert_eq!(prefix.prefix_length(), 64);
                assert!(prefix.on_link() && prefix.autonomous_address_configuration());
                assert_eq!(u64::from(prefix.valid_lifetime()), RA_VALID.as_secs());
                assert_eq!(u64::from(prefix.preferred_lifetime()), RA_PREFERRED.as_secs());
            }
            other => {
                let bytes = other.as_bytes();
                let rest = &bytes[8..];
                match bytes[0] {
                    // RFC 8106 section 5.1: one resolver. Section 5.2: one domain, padded.
                    25 => assert_eq!((bytes[1], rest), (3, &config().dns[0].octets()[..])),
                    31 => assert_eq!((bytes[1], rest), (3, &b"\x08internal\0\0\0\0\0\0\0"[..])),
                    kind => panic!("option {kind}"),
                }
            }
        }
    }
    assert_eq!(seen, 5);
    assert_eq!(link.counts().solicited, 1);
}

#[test]
fn the_prefix_of_a_guest_that_has_no_neighbours_is_not_advertised() {
    let network = Cidr::new(GIVEN.into(), 128).unwrap();
    let config = AutoconfConfig { guest: Some(GIVEN), ..AutoconfConfig::new(network) };
    let mut link = Link::new(config);
    let answer = link.ask(&solicitation()).unwrap();
    let body = &answer[14 + 40 + 4..];
    // By DHCPv6; options are the link address and the MTU.
    assert_eq!(body[1], 0xc0);
    let kinds = NdpOptionsIterator::from_slice(&body[12..]).map(|o| o.unwrap().as_bytes()[0]);
    assert_eq!(kinds.collect::<Vec<_>>(), [1, 5]);
    let id = server_id(&link);
    let (_, options) = link.dhcp(3, &[(1, b"guest"), (2, &id), (3, &[0; 12])]);
    assert_eq!(given(data(&options, 3).unwrap())[0].0, GIVEN);
}

#[test]
fn a_guest_without_an_address_is_answered_through_the_group() {
    let mut link = Link::new(config());
    let answer = link.ask(&solicitation_from(Ipv6Addr::UNSPECIFIED, 255, &[])).unwrap();
    assert_eq!(answer[..6], [0x33, 0x33, 0, 0, 0, 1]);
    assert_eq!(answer[38..54], Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1).octets());
}

#[test]
fn an_advertisement_goes_to_all_from_time_to_time() {
    let mut link = Link::new(config());
    assert_eq!(link.router.poll_timeout(), Some(link.now + RA_INTERVAL));
    link.now += RA_INTERVAL - std::time::Duration::from_millis(1);
    assert!(link.send([]).1.is_empty());
    link.now += std::time::Duration::from_millis(1);
    assert_eq!(link.send([]).1.len(), 1);
    assert_eq!(link.counts().advertisements, 2);
}

#[test]
fn an_invalid_solicitation_has_no_answer() {
    let mut link = Link::new(config());
    let routed = solicitation_from(GUEST_LINK_LOCAL, 64, &[]);
    let endless = solicitation_from(GUEST_LINK_LOCAL, 255, &[1, 0, 0, 0, 0, 0, 0, 0]);
    let long = solicitation_from(GUEST_LINK_LOCAL, 255, &[1, 2, 0, 0, 0, 0, 0, 0]);
    let mut damaged = solicitation();
    *damaged.last_mut().unwrap() ^= 1;
    let mut coded = solicitation();
    coded[14 + 40 + 1] = 1;
    let huge = solicitation_from(GUEST_LINK_LOCAL, 255, &[0; 1500]);
    for bytes in [routed, endless, long, damaged, coded, huge] {
        assert_eq!(link.ask(&bytes), None);
    }
    assert_eq!(link.counts().malformed, 6);
    assert_eq!(link.counts().solicited, 0);
}

#[test]
fn a_checksum_that_the_device_answers_for_is_not_computed() {
    let mut link = Link::new(config());
    let mut damaged = solicitation();
    damaged[14 + 40 + 2] ^= 1;
    let mut frame = frame(&damaged, 62);
    frame.rx_checksum = RxChecksum::Valid;
    let answer = link.router.0.responder_mut().handle(link.now, &frame, &mut link.ledger);
    assert!(answer.is_some());
}

#[test]
fn every_other_frame_passes_unchanged() {
    let mut link = Link::new(config());
    let headers = || ip([GUEST, [2; 6]], [GUEST_LINK_LOCAL.into(), GIVEN.into()], 64);
    let echo = built!(headers().icmpv6_echo_request(1, 2), &[7; 100]);
    let dns = built!(headers().udp(4000, 53), &[7; 100]);
    let arp = [&[0xff; 6][..], &GUEST, &[8, 6], &[0; 28]].concat();
    let short = vec![1, 2, 3];
    let all = [echo, dns, arp, short];
    let (stack, back) = link.send(all.iter().map(|bytes| frame(bytes, 20)));
    assert!(back.is_empty());
    assert_eq!(stack.iter().map(bytes_of).collect::<Vec<_>>(), all);
}

#[test]
fn dhcp_gives_the_one_address_in_four_messages() {
    let mut link = Link::new(config());
    let (kind, offered) = link.dhcp(1, &[CLIENT, IA]);
    assert_eq!(kind, 2);
    let id = server_id(&link);
    assert_eq!(data(&offered, 2), Some(&id[..]));
    assert_eq!(data(&offered, 1), Some(CLIENT.1));
    let ia = data(&offered, 3).unwrap();
    assert_eq!(ia[..4], [0, 0, 0, 7]);
    assert_eq!(given(ia), [(GIVEN, RA_VALID.as_secs() as u32)]);

    let (kind, granted) = link.dhcp(3, &[CLIENT, (2, &id), IA]);
    assert_eq!(kind, 7);
    assert_eq!(given(data(&granted, 3).unwrap())[0].0, GIVEN);
    assert_eq!(data(&granted, 23), Some(&config().dns[0].octets()[..]));
    assert_eq!(data(&granted, 24), Some(&b"\x08internal\0"[..]));
    assert_eq!((link.counts().offers, link.counts().replies), (1, 1));
}

#[test]
fn with_rapid_commit_two_messages_suffice() {
    let mut link = Link::new(config());
    let (kind, granted) = link.dhcp(1, &[CLIENT, IA, (14, &[])]);
    assert_eq!(kind, 7);
    assert_eq!(data(&granted, 14), Some(&[][..]));
    assert_eq!(given(data(&granted, 3).unwrap())[0].0, GIVEN);
}

#[test]
fn another_identifier_gets_the_address_too_and_a_second_association_none() {
    let mut link = Link::new(config());
    let id = server_id(&link);
    let other = (1, &[0, 2, 9, 9, 9, 9][..]);
    let second = (3, &[0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0][..]);
    let (_, granted) = link.dhcp(3, &[other, (2, &id), IA, second]);
    let all: Vec<_> = granted.iter().filter(|(kind, _)| *kind == 3).collect();
    assert_eq!(given(&all[0].1)[0].0, GIVEN);
    assert_eq!(options(&all[1].1[12..]), [(13, vec![0, 2])], "no addresses available");
}

#[test]
fn an_address_of_another_network_is_taken_back_when_it_is_renewed() {
    let mut link = Link::new(config());
    let id = server_id(&link);
    let old: Ipv6Addr = "2001:db8::9".parse().unwrap();
    let address = encoded(&[(5, &[&old.octets()[..], &[0; 8]].concat())]);
    let ia = [IA.1, &address].concat();
    let (_, renewed) = link.dhcp(5, &[CLIENT, (2, &id), (3, &ia)]);
    let valid = RA_VALID.as_secs() as u32;
    assert_eq!(given(data(&renewed, 3).unwrap()), [(GIVEN, valid), (old, 0)]);
    // Confirm: not on this link.
    assert_eq!(data(&link.dhcp(4, &[CLIENT, (3, &ia)]).1, 13), Some(&[0, 4][..]));
    let address = encoded(&[(5, &[&GIVEN.octets()[..], &[0; 8]].concat())]);
    let ia = [IA.1, &address].concat();
    assert_eq!(data(&link.dhcp(4, &[CLIENT, (3, &ia)]).1, 13), Some(&[0, 0][..]));
    assert_eq!(link.ask(&dhcp(4, &[CLIENT, IA])), None, "nothing to confirm");
}

#[test]
fn without_an_address_to_give_settings_are_told() {
    let mut link = Link::new(AutoconfConfig { guest: None, ..config() });
    let ia = data(&link.dhcp(1, &[CLIENT, IA]).1, 3).unwrap().to_vec();
    assert_eq!(options(&ia[12..]), [(13, vec![0, 2])]);
    let (kind, settings) = link.dhcp(11, &[(6, &[0, 23])]);
    assert_eq!(kind, 7);
    assert!(data(&settings, 23).is_some() && data(&settings, 1).is_none());
    // The advertisement says that there are settings, and no addresses.
    let answer = link.ask(&solicitation()).unwrap();
    assert_eq!(answer[14 + 40 + 5], 0x40);
}

#[test]
fn what_is_not_for_this_server_or_makes_no_sense_has_no_answer() {
    let mut link = Link::new(config());
    let id = server_id(&link);
    let other: (u16, &[u8]) = (2, &[0, 3, 0, 1, 9, 9, 9, 9, 9, 9]);
    for (message, why) in [
        (dhcp(3, &[CLIENT, other, IA]), "another server's"),
        (dhcp(12, &[CLIENT]), "a relay's"),
        (dhcp(2, &[CLIENT]), "a server's"),
    ] {
        assert_eq!(link.ask(&message), None, "{why}");
    }
    assert_eq!(link.counts().ignored, 3);
    for (message, why) in [
        (dhcp(1, &[IA]), "no client"),
        (dhcp(1, &[CLIENT, (2, &id), IA]), "a solicitation to one server"),
        (dhcp(3, &[CLIENT, IA]), "a request to no server"),
        (dhcp(11, &[IA]), "an association in an information request"),
        (dhcp(1, &[CLIENT, (3, &[0; 11])]), "a short association"),
        (dhcp(1, &[(1, &[0; 131])]), "a long identifier"),
    ] {
        assert_eq!(link.ask(&message), None, "{why}");
    }
    assert_eq!(link.counts().malformed, 6);
}

#[test]
fn a_release_and_a_decline_are_acknowledged() {
    let mut link = Link::new(config());
    let id = server_id(&link);
    for kind in [8, 9] {
        assert_eq!(data(&link.dhcp(kind, &[CLIENT, (2, &id), IA]).1, 13), Some(&[0, 0][..]));
    }
    assert_eq!(link.counts().declines, 1);
}

#[test]
fn answers_that_find_no_room_wait_and_are_bounded() {
    let small = PairConfig { queue_frames: 4, ..Default::default() };
    let (router, mut guest) = Pair::with(small).unwrap();
    let mut router = Autoconf::new(router, config()).unwrap();
    let (now, mut ledger) = (Instant::from_millis(1), CopyLedger::new());
    for _ in 0..2 * AUTOCONF_ANSWERS {
        let mut asked = VecDeque::from([frame(&solicitation(), 62)]);
        guest.transmit(now, &mut asked, &mut ledger).unwrap();
        router.receive(now, &mut VecDeque::new(), 64, &mut ledger).unwrap();
    }
    // Four are in the device, the first advertisement to all among them.
    let unanswered = router.watch().counters().unanswered as usize;
    assert_eq!(unanswered, AUTOCONF_ANSWERS - 3);
    let (mut back, mut stack) = (VecDeque::new(), VecDeque::new());
    for _ in 0..AUTOCONF_ANSWERS {
        guest.receive(now, &mut back, 64, &mut ledger).unwrap();
        router.transmit(now, &mut stack, &mut ledger).unwrap();
    }
    assert_eq!(back.len(), 4 + AUTOCONF_ANSWERS);
}

#[test]
fn settings_that_contradict_each_other_are_refused_with_a_reason() {
    let error = |config: AutoconfConfig| {
        let (device, _) = Pair::new().unwrap();
        Autoconf::new(device, config).err().expect("refused").to_string()
    };
    let network = |text: &str| AutoconfConfig::new(text.parse().unwrap());
    assert!(error(network("10.0.2.2/24")).contains("IPv6"));
    assert!(error(network("fd00:2::2/80")).contains("64 bits"));
    let outside = AutoconfConfig { guest: Some("fd00:3::1".parse().unwrap()), ..config() };
    assert!(error(outside).contains("another one of the network"));
    let own = AutoconfConfig { guest: Some("fd00:2::2".parse().unwrap()), ..config() };
    assert!(error(own).contains("another one of the network"));
    let domain = AutoconfConfig { search: vec!["a b".into()], ..config() };
    assert!(error(domain).contains("no name"));
    let many = AutoconfConfig { dns: vec![GIVEN; RESOLVERS + 1], ..config() };
    assert!(error(many).contains("too many"));
    let long = AutoconfConfig { search: vec!["a".into(); SEARCH_DOMAINS + 1], ..config() };
    assert!(error(long).contains("too long"));
    let router = AutoconfConfig { router: Some(GIVEN), ..config() };
    assert!(error(router).contains("link-local"));
}
