//! RFC 826, RFC 5227, and the neighbour cache behind both families (RFC 4861 section 7.3).

use super::*;
use crate::limits::{
    NEIGHBOR_DELAY, NEIGHBOR_QUEUE_PACKETS, NEIGHBOR_QUEUE_TOTAL, NEIGHBOR_REACHABLE,
    NEIGHBOR_UNUSED, NEIGHBORS, NEIGHBORS_INCOMPLETE, NEIGHBORS_PASSIVE,
};
use crate::net::IcmpKind;

const SECOND: Duration = Duration::from_secs(1);
const REQUEST: u8 = 1;
const REPLY: u8 = 2;

fn is_request_for(frame: &[u8], target: [u8; 4]) -> bool {
    frame[..6] == [0xff; 6] && frame[12..14] == [8, 6] && frame[21] == 1 && frame[38..42] == target
}

#[test]
fn a_request_for_our_address_is_answered_to_its_sender() {
    let mut host = Host::new();
    host.receive(&arp_packet(REQUEST, PEER, PEER_V4, [0; 6], US_V4));
    let mut expected = arp_packet(REPLY, US, US_V4, PEER, PEER_V4);
    expected[..6].copy_from_slice(&PEER);
    assert_eq!(host.sent_one(), expected);
    assert_eq!(host.net.counters.total_drops(), 0);
}

#[test]
fn a_request_for_another_address_is_neither_answered_nor_learned_from() {
    let mut host = Host::new();
    host.refuses(
        &arp_packet(REQUEST, STRANGER, [10, 0, 0, 9], [0; 6], [10, 0, 0, 3]),
        DropReason::ArpNotForUs,
    );
    host.refuses(
        &arp_packet(REQUEST, STRANGER, [10, 0, 0, 9], [0; 6], [10, 0, 0, 9]),
        DropReason::ArpNotForUs,
    );
    host.refuses(&arp_packet(REPLY, STRANGER, [10, 0, 0, 9], US, US_V4), DropReason::ArpNotForUs);
    assert_eq!(host.sent().len(), 0);
    assert_eq!(host.net.links.at(0).neighbors.len(), 0);
}

#[test]
fn a_link_that_stands_for_others_answers_for_them_and_neither_for_the_asker_nor_for_a_neighbour() {
    let mut host = Host::changed(|config| {
        (config.first_link.transparent, config.first_link.proxy_arp) = (true, true);
    });
    let asked = |target: [u8; 4]| arp_packet(REQUEST, PEER, PEER_V4, [0; 6], target);
    for target in [[10, 0, 0, 77], [192, 0, 2, 1]] {
        host.receive(&asked(target));
        let mut expected = arp_packet(REPLY, US, target, PEER, PEER_V4);
        expected[..6].copy_from_slice(&PEER);
        assert_eq!(host.sent_one(), expected);
    }
    // RFC 5227 section 2.1.1: a probe, whose sender wants the address for itself.
    let probe = arp_packet(REQUEST, STRANGER, [0; 4], [0; 6], [10, 0, 0, 78]);
    host.refuses(&probe, DropReason::ArpNotForUs);
    // An announcement of the asker's own address.
    host.receive(&asked(PEER_V4));
    // Another guest on the link, which the peer asks for.
    host.receive(&arp_packet(REQUEST, STRANGER, [10, 0, 0, 9], [0; 6], US_V4));
    assert_eq!(host.sent().len(), 1);
    host.receive(&asked([10, 0, 0, 9]));
    for target in [[127, 0, 0, 1], [10, 0, 0, 255], [224, 0, 0, 1], [0, 0, 0, 0]] {
        host.receive(&asked(target));
    }
    assert_eq!(host.sent().len(), 0);
}

#[test]
fn malformed_packets_are_refused_with_their_reasons() {
    let mut host = Host::new();
    let good = arp_packet(REQUEST, PEER, PEER_V4, [0; 6], US_V4);
    for (at, value, reason) in [
        (14, 1, DropReason::ArpHardware),
        (15, 6, DropReason::ArpHardware),
        (16, 0x86, DropReason::ArpProtocol),
        (18, 5, DropReason::ArpHardware),
        (18, 7, DropReason::ArpHardware),
        (19, 3, DropReason::ArpProtocol),
        (19, 5, DropReason::ArpProtocol),
        (21, 0, DropReason::ArpOperation),
        (21, 3, DropReason::ArpOperation),
        (22, 1, DropReason::ArpSender),
        (28, 127, DropReason::ArpSender),
        (28, 224, DropReason::ArpSender),
        (29, 9, DropReason::ArpSender),
        (31, 255, DropReason::ArpSender),
    ] {
        let mut bad = good.clone();
        bad[at] = value;
        host.refuses(&bad, reason);
    }
    for len in 14..42 {
        host.refuses(&good[..len], DropReason::ArpTruncated);
        host.refuses_split(&good[..len], 14, DropReason::ArpTruncated);
    }
    assert!(host.receive_split(&good, 3).is_none());
    assert_eq!(host.sent().len(), 1, "padded or scattered, the good one is answered");
}

#[test]
fn a_probe_for_our_address_is_answered() {
    let mut host = Host::new();
    host.receive(&arp_packet(REQUEST, STRANGER, [0; 4], [0; 6], US_V4));
    assert_eq!(host.sent().len(), 1);
    host.refuses(
        &arp_packet(REQUEST, STRANGER, [0; 4], [0; 6], [10, 0, 0, 7]),
        DropReason::ArpNotForUs,
    );
    assert_eq!(host.net.links.at(0).neighbors.len(), 0);
}

#[test]
fn another_station_with_our_address_is_counted_and_answered_with_one_defence_in_ten_seconds() {
    let mut host = Host::new();
    let conflict = arp_packet(REQUEST, STRANGER, US_V4, [0; 6], US_V4);
    host.refuses(&conflict, DropReason::ArpConflict);
    let defence = host.sent_one();
    assert!(is_request_for(&defence, US_V4));
    assert_eq!(defence[28..32], US_V4, "an announcement names us as sender and target");
    host.refuses(&conflict, DropReason::ArpConflict);
    host.now += Duration::from_millis(9_999);
    host.refuses(&conflict, DropReason::ArpConflict);
    assert_eq!(host.sent().len(), 0);
    host.now += Duration::from_millis(1);
    host.refuses(&conflict, DropReason::ArpConflict);
    assert_eq!(host.sent().len(), 1);
    assert_eq!(host.net.counters.address_conflicts, 4);
}

#[test]
fn addresses_are_announced_twice_at_the_start() {
    let mut host = Host::changed(|c| c.announce = true);
    let mut at = vec![];
    for _ in 0..10 {
        let Some(due) = host.net.poll_timeout() else { break };
        host.now = due;
        host.pass(Duration::ZERO);
        // Reports about groups, of the solicited-node groups, go to all routers that do MLDv2.
        let mut sent = host.sent();
        sent.retain(|frame| frame[..6] != [0x33, 0x33, 0, 0, 0, 0x16]);
        if !sent.is_empty() {
            at.push((due.as_millis(), sent.len()));
        }
    }
    // Three packets: an ARP announcement, and one advertisement each for the given and the derived IPv6 address.
    assert_eq!(at, [(1000, 3), (3000, 3)]);
}

#[test]
fn packets_wait_for_the_answer_and_go_out_in_order() {
    let mut host = Host::new();
    host.send_udp(ip("10.0.0.2"), b"one").unwrap();
    host.send_udp(ip("10.0.0.2"), b"two").unwrap();
    assert!(is_request_for(&host.sent_one(), PEER_V4), "one request, no packet");
    host.receive(&arp_packet(REPLY, PEER, PEER_V4, US, US_V4));
    let sent = host.sent();
    assert_eq!(sent.len(), 2);
    assert!(sent[0].ends_with(b"one") && sent[1].ends_with(b"two"));
    for frame in &sent {
        assert_eq!((&frame[..6], &frame[6..12]), (&PEER[..], &US[..]));
    }
    host.send_udp(ip("10.0.0.2"), b"three").unwrap();
    assert!(host.sent_one().ends_with(b"three"), "known from now on");
}

#[test]
fn requests_are_repeated_each_second_and_given_up_after_three() {
    let mut host = Host::new();
    host.send_udp(ip("10.0.0.2"), b"lost").unwrap();
    let start = host.now;
    let mut at = vec![];
    let mut polled = start;
    for _ in 0..10 {
        for frame in host.sent() {
            assert!(is_request_for(&frame, PEER_V4));
            at.push((polled - start).as_millis());
        }
        let Some(due) = host.net.poll_timeout() else { break };
        if host.net.has_inbound() {
            break;
        }
        polled = due;
        host.now = due;
        host.pass(Duration::ZERO);
    }
    assert_eq!(at, [0, 1000, 2000]);
    assert_eq!((host.now - start).as_millis(), 3000);
    assert_eq!(host.drops(DropReason::NeighborUnreachable), 1);
    let Some(Inbound::IcmpError { about, kind }) = host.poll_inbound() else { panic!() };
    assert_eq!(kind, IcmpKind::HostUnreachable);
    assert_eq!((about.dst, about.dst_port, about.src_port), (ip("10.0.0.2"), 2000, 1000));
    assert_eq!(
        (host.net.links.at(0).neighbors.len(), host.net.links.at(0).neighbors.queued()),
        (0, 0)
    );
}

#[test]
fn a_neighbours_queue_is_bounded_and_the_oldest_packet_goes_first() {
    let mut host = Host::new();
    for i in 0..NEIGHBOR_QUEUE_PACKETS + 3 {
        host.send_udp(ip("10.0.0.2"), &[i as u8]).unwrap();
    }
    assert_eq!(host.drops(DropReason::NeighborQueueFull), 3);
    host.sent();
    host.receive(&arp_packet(REPLY, PEER, PEER_V4, US, US_V4));
    let sent = host.sent();
    assert_eq!(sent.len(), NEIGHBOR_QUEUE_PACKETS);
    assert_eq!(sent[0].last(), Some(&3));
}

/// Made-up addresses, none of them the peer's.
fn made_up(i: u32) -> [u8; 4] {
    let [_, b, c, d] = (i + 256).to_be_bytes();
    [10, b, c, d]
}

#[test]
fn a_flood_of_unanswered_addresses_is_bounded_and_spares_who_answered() {
    let mut host = Host::changed(|c| c.first_link.addresses = vec!["10.0.0.1/8".parse().unwrap()]);
    host.receive(&arp_packet(REQUEST, PEER, PEER_V4, [0; 6], US_V4));
    host.send_udp(ip("10.0.0.2"), b"x").unwrap();
    for i in 0..10_000u32 {
        host.send_udp(IpAddr::from(made_up(i)), b"flood").unwrap();
        if i % 1000 == 0 {
            host.sent();
        }
    }
    assert_eq!(host.net.links.at(0).neighbors.len(), NEIGHBORS_INCOMPLETE + 1);
    assert!(host.net.links.at(0).neighbors.queued() <= NEIGHBOR_QUEUE_TOTAL);
    assert_eq!(host.drops(DropReason::NeighborEvicted), 10_000 - NEIGHBORS_INCOMPLETE as u64);
    host.sent();
    host.send_udp(ip("10.0.0.2"), b"x").unwrap();
    assert_eq!(host.sent_one()[..6], PEER);
}

#[test]
fn who_waits_for_a_neighbour_that_makes_room_for_others_is_told() {
    let mut host = Host::changed(|c| c.first_link.addresses = vec!["10.0.0.1/8".parse().unwrap()]);
    for i in 0..=NEIGHBORS_INCOMPLETE as u32 {
        host.send_udp(IpAddr::from(made_up(i)), b"x").unwrap();
    }
    assert_eq!(host.drops(DropReason::NeighborEvicted), 1);
    assert_eq!(host.net.poll_timeout(), Some(host.now), "at once");
    host.pass(Duration::ZERO);
    let Some(Inbound::IcmpError { about, kind }) = host.poll_inbound() else { panic!() };
    assert_eq!((about.dst, kind), (ip("10.0.1.0"), IcmpKind::HostUnreachable));
    assert_eq!(host.drops(DropReason::NeighborUnreachable), 0, "counted once");
    assert!(host.net.poll_timeout() > Some(host.now));
}

/// A host on a large network that talks to one peer, which has answered.
fn in_a_large_network() -> Host {
    let mut host = Host::changed(|c| c.first_link.addresses[0] = "10.0.0.1/8".parse().unwrap());
    host.send_udp(ip("10.0.0.2"), b"x").unwrap();
    host.receive(&arp_packet(REPLY, PEER, PEER_V4, US, US_V4));
    host.send_udp(ip("10.0.0.2"), b"x").unwrap();
    host.sent();
    host
}

#[test]
fn a_flood_of_askers_fills_its_own_room_only_and_voids_no_cached_hop() {
    let mut host = in_a_large_network();
    let generation = host.net.generation(0);
    for i in 0..5_000 {
        host.receive(&arp_packet(REQUEST, STRANGER, made_up(i), [0; 6], US_V4));
        let source = format!("fd00::{:x}:{:x}", 1 + i / 1000, i % 1000);
        host.receive(&solicitation(STRANGER, &source, "fd00::1", 255));
        assert_eq!(host.sent().len(), 2, "each is answered all the same");
    }
    assert_eq!(host.net.links.at(0).neighbors.len(), NEIGHBORS_PASSIVE + 1);
    assert_eq!(host.net.generation(0), generation);
    host.send_udp(ip("10.0.0.2"), b"x").unwrap();
    assert_eq!(host.sent_one()[..6], PEER);
}

#[test]
fn a_flood_of_askers_whom_we_answer_above_spares_who_has_proved_to_be_there() {
    let mut host = in_a_large_network();
    let generation = host.net.generation(0);
    for i in 0..5_000 {
        host.receive(&arp_packet(REQUEST, STRANGER, made_up(i), [0; 6], US_V4));
        host.send_udp(IpAddr::from(made_up(i)), b"an answer").unwrap();
        assert!(host.sent().len() >= 2);
    }
    let neighbors = &host.net.links.at(0).neighbors;
    assert!(neighbors.len() <= NEIGHBORS, "{}", neighbors.len());
    assert_eq!(host.net.generation(0), generation);
    host.send_udp(ip("10.0.0.2"), b"x").unwrap();
    assert_eq!(host.sent_one()[..6], PEER, "never asked for again");
}

#[test]
fn who_asks_is_remembered_again_once_a_flood_is_over() {
    let mut host = in_a_large_network();
    for i in 0..3_000 {
        host.receive(&arp_packet(REQUEST, STRANGER, made_up(i), [0; 6], US_V4));
    }
    host.sent();
    host.receive(&arp_packet(REQUEST, STRANGER, [10, 200, 0, 1], [0; 6], US_V4));
    host.sent();
    host.send_udp(ip("10.200.0.1"), b"x").unwrap();
    assert_eq!(host.sent_one()[..6], STRANGER, "the last one needs not be asked for");
}

#[test]
fn nobody_who_has_proved_to_be_there_goes_for_a_newcomer() {
    let mut host = in_a_large_network();
    for i in 0..NEIGHBORS as u32 - 1 {
        host.send_udp(IpAddr::from(made_up(i)), b"x").unwrap();
        host.receive(&arp_packet(REPLY, STRANGER, made_up(i), US, US_V4));
        host.sent();
    }
    host.send_udp(ip("10.200.0.1"), b"x").unwrap();
    assert_eq!(host.sent().len(), 0);
    assert_eq!(host.drops(DropReason::NeighborTableFull), 1);
    // In time they have to prove it again, and until then they may go.
    host.now += NEIGHBOR_REACHABLE;
    host.send_udp(ip("10.200.0.1"), b"x").unwrap();
    assert!(is_request_for(&host.sent_one(), [10, 200, 0, 1]));
    assert_eq!(host.net.links.at(0).neighbors.len(), NEIGHBORS);
}

#[test]
fn entries_in_use_go_in_turns_and_the_one_that_was_used_since_is_passed_over() {
    let mut host = in_a_large_network();
    for i in 0..NEIGHBORS as u32 - 1 {
        host.receive(&arp_packet(REQUEST, STRANGER, made_up(i), [0; 6], US_V4));
        host.send_udp(IpAddr::from(made_up(i)), b"x").unwrap();
    }
    host.sent();
    host.now += NEIGHBOR_REACHABLE;
    host.send_udp(ip("10.0.0.2"), b"x").unwrap();
    host.sent();
    host.send_udp(ip("10.200.0.1"), b"x").unwrap();
    assert!(is_request_for(&host.sent_one(), [10, 200, 0, 1]));
    assert_eq!(host.net.counters.neighbors_evicted, 1);
    host.send_udp(ip("10.0.0.2"), b"x").unwrap();
    assert_eq!(host.sent_one()[..6], PEER);
    host.send_udp(IpAddr::from(made_up(0)), b"x").unwrap();
    assert!(is_request_for(&host.sent_one(), made_up(0)), "the first of the others went");
}

#[test]
fn packets_that_wait_for_all_neighbours_together_are_bounded_and_those_who_came_first_stay() {
    let mut host = Host::new();
    let neighbours = (NEIGHBOR_QUEUE_TOTAL / NEIGHBOR_QUEUE_PACKETS) as u8;
    for last in 0..neighbours {
        for _ in 0..NEIGHBOR_QUEUE_PACKETS {
            host.send_udp(IpAddr::from([10, 0, 0, 10 + last]), b"waits").unwrap();
        }
    }
    let queued = |host: &Host| host.net.links.at(0).neighbors.queued();
    let queued_and_dropped =
        |host: &Host| (queued(host), host.drops(DropReason::NeighborQueueFull));
    assert_eq!(queued_and_dropped(&host), (NEIGHBOR_QUEUE_TOTAL, 0));
    // Another neighbour gets a request, but the packet finds no room.
    host.sent();
    host.send_udp(ip("10.0.0.2"), b"too many").unwrap();
    assert!(is_request_for(&host.sent_one(), PEER_V4));
    assert_eq!(queued_and_dropped(&host), (NEIGHBOR_QUEUE_TOTAL, 1));
    host.receive(&arp_packet(REPLY, PEER, PEER_V4, US, US_V4));
    assert_eq!(host.sent().len(), 0, "nothing of it had waited");
    // Whoever waits already makes room for its own later packet.
    host.send_udp(ip("10.0.0.10"), b"later").unwrap();
    assert_eq!(queued_and_dropped(&host), (NEIGHBOR_QUEUE_TOTAL, 2));
    host.receive(&arp_packet(REPLY, STRANGER, [10, 0, 0, 10], US, US_V4));
    let sent = host.sent();
    assert_eq!(sent.len(), NEIGHBOR_QUEUE_PACKETS);
    assert!(sent.last().is_some_and(|frame| frame.ends_with(b"later")));
    // There is room again.
    host.send_udp(ip("10.0.0.99"), b"fits").unwrap();
    assert_eq!(queued(&host), NEIGHBOR_QUEUE_TOTAL - NEIGHBOR_QUEUE_PACKETS + 1);
}

#[test]
fn an_answer_is_believed_for_thirty_seconds_then_checked_with_the_station_itself() {
    let mut host = Host::new();
    host.send_udp(ip("10.0.0.2"), b"x").unwrap();
    host.receive(&arp_packet(REPLY, PEER, PEER_V4, US, US_V4));
    host.sent();
    host.pass(NEIGHBOR_REACHABLE);
    assert_eq!(host.sent().len(), 0, "nobody talks to it: nothing is checked");
    host.send_udp(ip("10.0.0.2"), b"x").unwrap();
    assert_eq!(host.sent_one()[..6], PEER, "stale, but used");
    host.pass(NEIGHBOR_DELAY);
    let probe = host.sent_one();
    assert_eq!((&probe[..6], probe[21]), (&PEER[..], 1), "a request to the station alone");
    host.receive(&arp_packet(REPLY, PEER, PEER_V4, US, US_V4));
    host.pass(SECOND * 5);
    assert_eq!(host.sent().len(), 0);
}

#[test]
fn a_stale_neighbour_that_does_not_answer_is_asked_for_anew() {
    let mut host = Host::acquainted_v4();
    host.send_udp(ip("10.0.0.2"), b"x").unwrap();
    host.sent();
    host.pass(NEIGHBOR_DELAY);
    let mut probes = host.sent().len();
    for _ in 0..3 {
        host.pass(SECOND);
        probes += host.sent().len();
    }
    assert_eq!(probes, 3);
    assert_eq!(host.net.counters.neighbors_failed, 1);
    host.send_udp(ip("10.0.0.2"), b"x").unwrap();
    assert!(is_request_for(&host.sent_one(), PEER_V4));
}

#[test]
fn proof_from_above_spares_the_probe() {
    let mut host = Host::acquainted_v4();
    host.send_udp(ip("10.0.0.2"), b"x").unwrap();
    host.sent();
    host.net.handle_reachable(host.now, (ip("10.0.0.1"), ip("10.0.0.2")));
    host.pass(NEIGHBOR_DELAY * 2);
    assert_eq!(host.sent().len(), 0);
}

#[test]
fn a_station_that_changed_is_used_at_once() {
    let mut host = Host::acquainted_v4();
    host.send_udp(ip("10.0.0.2"), b"x").unwrap();
    assert_eq!(host.sent_one()[..6], PEER);
    // A gratuitous announcement.
    host.receive(&arp_packet(REQUEST, STRANGER, PEER_V4, [0; 6], PEER_V4));
    host.send_udp(ip("10.0.0.2"), b"x").unwrap();
    assert_eq!(host.sent_one()[..6], STRANGER, "the cached hop is not used any more");
}

#[test]
fn an_entry_that_nobody_uses_is_forgotten() {
    let mut host = Host::acquainted_v4();
    assert_eq!(host.net.links.at(0).neighbors.len(), 1);
    host.pass(NEIGHBOR_UNUSED);
    assert_eq!(host.net.links.at(0).neighbors.len(), 0);
    assert_eq!(host.net.poll_timeout(), None);
}

#[test]
fn two_hosts_find_each_other_in_both_families() {
    for dst in ["10.0.0.2", "fd00::2", "fe80::ff:fe00:2"] {
        let (mut a, mut b) = (Host::new(), Host::peer());
        a.send_udp(ip(dst), b"hello").unwrap();
        let (to_a, to_b) = converse(&mut a, &mut b);
        assert!(to_a.is_empty());
        let [Inbound::Transport(got)] = &to_b[..] else { panic!("{to_b:?}") };
        assert_eq!(payload_of(got.packet.frags()), b"hello");
        assert_eq!(a.net.counters.total_drops() + b.net.counters.total_drops(), 0);
    }
}
