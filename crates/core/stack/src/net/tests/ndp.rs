//! RFC 4861: solicitations, advertisements, and the rules of their validity.

use super::*;

const ROUTER: u8 = 0x80;
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;

#[test]
fn a_solicitation_for_our_address_is_answered() {
    let mut host = Host::new();
    host.receive(&solicitation(PEER, "fd00::2", "fd00::1", 255));
    let answer = host.sent_one();
    assert_eq!(answer[..6], PEER);
    assert_eq!(answer[21], 255, "hop limit");
    assert_eq!((answer[54], answer[58]), (136, SOLICITED | OVERRIDE));
    assert_eq!(answer[62..78], v6("fd00::1"));
    assert_eq!(answer[80..86], US);
    assert_eq!(host.net.counters.total_drops(), 0);
}

#[test]
fn whoever_passes_packets_on_says_that_it_is_a_router() {
    type Change = fn(&mut Host);
    let transparent: Change = |host| host.net.links.at_mut(0).transparent = true;
    let forwarding: Change = |host| host.net.set_forwarding(true);
    for change in [transparent, forwarding] {
        let mut host = Host::changed(|config| config.announce = true);
        change(&mut host);
        host.pass(Duration::ZERO);
        let mut advertisements = host.sent();
        advertisements.retain(|frame| frame[12..14] == [0x86, 0xdd] && frame[54] == 136);
        assert!(!advertisements.is_empty());
        assert!(advertisements.iter().all(|frame| frame[58] == ROUTER | OVERRIDE));
        host.receive(&solicitation(PEER, "fd00::2", "fd00::1", 255));
        assert_eq!(host.sent_one()[58], ROUTER | SOLICITED | OVERRIDE);
    }
}

#[test]
fn a_link_that_stands_for_others_answers_solicitations_for_them_but_no_probes() {
    let mut host = Host::changed(|config| {
        (config.first_link.transparent, config.first_link.proxy_arp) = (true, true);
    });
    host.receive(&solicitation(PEER, "fd00::2", "fd00::7:77", 255));
    let answer = host.sent_one();
    assert_eq!((answer[..6].to_vec(), answer[54]), (PEER.to_vec(), 136));
    assert_eq!(answer[62..78], v6("fd00::7:77"));
    assert_eq!(answer[80..86], US);
    host.receive(&solicitation(PEER, "fd00::2", "fd00::2", 255));
    host.receive(&solicitation(PEER, "::", "fd00::7:78", 255));
    host.receive(&solicitation(PEER, "fd00::2", "fe80::7:78", 255));
    assert_eq!(host.sent().len(), 0);
}

#[test]
fn a_network_without_an_address_of_ours_is_on_the_link_if_a_route_says_so() {
    let mut host = Host::changed(|config| {
        config.first_link.addresses = vec!["fe80::1/64".parse().unwrap()];
        config.first_link.routes = vec![("2001:db8::/64".parse().unwrap(), ip("::"))];
    });
    let ask = solicitation(PEER, "2001:db8::2", "fe80::1", 255);
    host.receive(&ask);
    assert_eq!(host.sent_one()[62..78], v6("fe80::1"));
    host.refuses(&solicitation(PEER, "2001:db9::2", "fe80::1", 255), DropReason::NdpSource);
}

#[test]
fn invalid_messages_are_refused_with_their_reasons() {
    let mut host = Host::new();
    let ask = |hop_limit| solicitation(PEER, "fd00::2", "fd00::1", hop_limit);
    for hop_limit in [0, 1, 64, 254] {
        host.refuses(&ask(hop_limit), DropReason::NdpHopLimit);
    }
    let group = [0x33, 0x33, 0xff, 0, 0, 1];
    let message = |src: &str, dst: &str, code: u8, payload: &[u8]| {
        icmpv6(PEER, group, src, dst, 255, (135, code, 0), payload)
    };
    let dst = "ff02::1:ff00:1";
    let target = v6("fd00::1");
    let with = |option: &[u8]| [&target[..], option].concat();
    host.refuses(&message("fd00::2", dst, 1, &target), DropReason::NdpCode);
    for len in 0..16 {
        host.refuses(&message("fd00::2", dst, 0, &target[..len]), DropReason::NdpTruncated);
    }
    host.refuses(&message("fd00::2", dst, 0, &with(&[1])), DropReason::NdpOption);
    host.refuses(&message("fd00::2", dst, 0, &with(&[1, 0])), DropReason::NdpOption);
    host.refuses(
        &message("fd00::2", dst, 0, &with(&[1, 2, 2, 0, 0, 0, 0, 2])),
        DropReason::NdpOption,
    );
    host.refuses(&message("fd00::2", dst, 0, &with(&[0; 200])), DropReason::HeadTooLong);
    host.refuses(&message("fd00::2", dst, 0, &v6("ff02::1")), DropReason::NdpTarget);
    // From the unspecified address: only to the solicited-node group, and without an option.
    host.refuses(&message("::", dst, 0, &with(&[1, 1, 2, 0, 0, 0, 0, 2])), DropReason::NdpSource);
    host.refuses(&message("::", "ff02::1", 0, &target), DropReason::NdpSource);
    host.refuses(&message("fd00::2", dst, 0, &v6("fd00::7")), DropReason::NdpNotForUs);
    // Not on our link.
    host.refuses(&message("2001:db8::2", dst, 0, &target), DropReason::NdpSource);
    assert_eq!(host.sent().len(), 0);
    assert_eq!(host.net.links.at(0).neighbors.len(), 0);
}

#[test]
fn another_node_that_checks_our_address_is_told_and_counted() {
    let mut host = Host::new();
    let group = [0x33, 0x33, 0xff, 0, 0, 1];
    let probe = icmpv6(STRANGER, group, "::", "ff02::1:ff00:1", 255, (135, 0, 0), &v6("fd00::1"));
    host.receive(&probe);
    let answer = host.sent_one();
    assert_eq!(answer[..6], [0x33, 0x33, 0, 0, 0, 1]);
    assert_eq!((answer[54], answer[58]), (136, OVERRIDE), "not solicited");
    assert_eq!(host.net.counters.address_conflicts, 1);
}

#[test]
fn an_advertisement_nobody_asked_for_is_not_learned() {
    let mut host = Host::new();
    host.refuses(&advertisement(PEER, "fd00::2", SOLICITED | OVERRIDE), DropReason::NdpNotForUs);
    assert_eq!(host.net.links.at(0).neighbors.len(), 0);
    let mut own = advertisement(STRANGER, "fd00::1", OVERRIDE);
    own[22..38].copy_from_slice(&v6("fd00::9"));
    let own = icmpv6(STRANGER, US, "fd00::9", "fd00::1", 255, (136, 0, 0x2000_0000), &own[62..]);
    host.refuses(&own, DropReason::NdpConflict);
    assert_eq!(host.net.counters.address_conflicts, 1);
}

#[test]
fn the_flags_decide_whether_another_station_replaces_the_known_one() {
    let known = || {
        let mut host = Host::new();
        host.send_udp(ip("fd00::2"), b"x").unwrap();
        let ask = host.sent_one();
        assert_eq!(ask[..6], [0x33, 0x33, 0xff, 0, 0, 2]);
        assert_eq!((ask[21], ask[54]), (255, 135));
        host.receive(&advertisement(PEER, "fd00::2", SOLICITED));
        assert_eq!(host.sent_one()[..6], PEER);
        host
    };
    let station = |host: &mut Host| {
        host.send_udp(ip("fd00::2"), b"x").unwrap();
        let frame = host.sent_one();
        <[u8; 6]>::try_from(&frame[..6]).unwrap()
    };
    let mut host = known();
    host.receive(&advertisement(STRANGER, "fd00::2", 0));
    assert_eq!(station(&mut host), PEER, "no override: kept, but checked");
    host.pass(crate::limits::NEIGHBOR_DELAY);
    let probe = host.sent_one();
    assert_eq!((&probe[..6], probe[54]), (&PEER[..], 135));
    assert_eq!(probe[38..54], v6("fd00::2"), "a probe goes to the address itself");

    let mut host = known();
    host.receive(&advertisement(STRANGER, "fd00::2", OVERRIDE));
    assert_eq!(station(&mut host), STRANGER);
}

#[test]
fn router_messages_and_redirects_are_counted_and_ignored() {
    let mut host = Host::new();
    let message = |kind: u8| {
        icmpv6(PEER, US, "fe80::ff:fe00:2", "fe80::ff:fe00:1", 255, (kind, 0, 0), &[0; 32])
    };
    host.refuses(&message(133), DropReason::NdpRouterSolicitation);
    host.refuses(&message(134), DropReason::NdpRouterAdvertisement);
    host.refuses(&message(137), DropReason::IcmpRedirect);
    assert_eq!(host.net.source_for(ip("2001:db8::1"), 0), Err(Error::NetworkUnreachable));
}
