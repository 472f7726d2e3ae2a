//! Packets that are passed on from link to link (RFC 1812, RFC 8200).

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use etherparse::PacketBuilder;
use pagewire_device::Capabilities;
use pagewire_stack::limits::{NEIGHBOR_QUEUE_PACKETS, NEIGHBOR_QUEUE_TOTAL, NEIGHBORS_INCOMPLETE};
use pagewire_stack::{BindOptions, DropReason, Error};

use super::world::*;
use crate::common::Verbs;

/// Between the peers, over both IP versions.
const RIGHT_PEER: [&str; 2] = ["10.0.1.2:80", "[fd01::2]:80"];

/// A frame that the left peer sends to 10.0.1.2.
fn udp(ttl: u8) -> Vec<u8> {
    udp_frame("10.0.0.2", "10.0.1.2", ttl, &[7; 10])
}

fn udp_to(dst: &str) -> Vec<u8> {
    udp_frame("10.0.0.2", dst, 64, &[7; 10])
}

const LEFT_V4: [u8; 4] = [10, 0, 0, 2];
const RIGHT_V4: [u8; 4] = [10, 0, 1, 2];

/// Type and code of the ICMP errors that the left peer was sent.
fn errors_to_left(world: &World) -> Vec<(u8, u8)> {
    let sent = world.seen.iter().filter(|s| s.wire == WEST && s.from == MIDDLE);
    sent.filter_map(|s| match s.bytes.get(12..14)? {
        [8, 0] if s.bytes[23] == 1 => Some((s.bytes[34], s.bytes[35])),
        [0x86, 0xdd] if s.bytes[20] == 58 && s.bytes[54] < 128 => Some((s.bytes[54], s.bytes[55])),
        _ => None,
    })
    .collect()
}

#[test]
fn nothing_is_passed_on_unless_that_is_asked_for() {
    let mut config = middle();
    config.ip_forwarding = false;
    let mut world = World::three_with(config.clone(), able, able);
    world.meet();
    world.inject(MIDDLE, 0, &udp(64));
    assert_eq!(world.drops(MIDDLE, DropReason::Ipv4NotForUs), 1);
    assert_eq!(world.stacks[MIDDLE].counters().forwarded_packets, 0);
    // And it can be switched on and off while the stack runs.
    config.ip_forwarding = true;
    world.middle().reconfigure(&config);
    let (near, far) = world.connect((LEFT, RIGHT), addr(RIGHT_PEER[0]));
    world.exchange((LEFT, near), (RIGHT, far), 10_000);
    config.ip_forwarding = false;
    world.middle().reconfigure(&config);
    world.inject(MIDDLE, 0, &udp(64));
    assert_eq!(world.drops(MIDDLE, DropReason::Ipv4NotForUs), 2);
}

#[test]
fn an_icmp_message_that_a_device_vouched_for_is_passed_on_with_its_checksum() {
    let mut world = World::met();
    world.watch = true;
    let (from, to) = (LEFT_MAC, WEST_MAC);
    let mut v4 = Vec::new();
    let builder = PacketBuilder::ethernet2(from, to).ipv4(LEFT_V4, RIGHT_V4, 64);
    builder.icmpv4_echo_request(1, 2).write(&mut v4, &[7; 501]).unwrap();
    let v6 = ["fd00::2", "fd01::2"].map(|a| a.parse::<std::net::Ipv6Addr>().unwrap().octets());
    let mut request_v6 = Vec::new();
    let builder = PacketBuilder::ethernet2(from, to).ipv6(v6[0], v6[1], 64);
    builder.icmpv6_echo_request(1, 2).write(&mut request_v6, &[7; 501]).unwrap();
    for (frame, field) in [(v4, 36), (request_v6, 56)] {
        // A device that was left the checksum, and hands the frame to another of its machine.
        let mut open = frame.clone();
        open[field..field + 2].fill(0);
        let mut open = packet(&open);
        open.rx_checksum = pagewire_mem::RxChecksum::Valid;
        world.arrive(0, open);
        world.run(Duration::from_millis(1));
        let sent = world.seen.iter().find(|s| s.wire == EAST && s.from == MIDDLE).unwrap();
        assert_eq!(sent.bytes[field - 2..], frame[field - 2..], "complete, and else as it was");
        world.seen.clear();
    }
}

#[test]
fn streams_pass_both_ways_by_reference_and_super_frames_whole() {
    const LEN: usize = 1 << 20;
    for to in RIGHT_PEER {
        let mut world = World::met();
        world.watch = true;
        let before = world.stacks[MIDDLE].counters().rx_checksums_verified;
        let (near, far) = world.connect((LEFT, RIGHT), addr(to));
        world.exchange((LEFT, near), (RIGHT, far), LEN);
        let middle = &world.stacks[MIDDLE];
        assert_eq!(middle.ledger().ours(), 0, "nothing is copied");
        assert_eq!(middle.counters().rx_checksums_verified, before, "nothing is looked at");
        let counters = middle.counters();
        assert!(counters.forwarded_bytes > 2 * LEN as u64);
        assert_eq!(counters.tx_cut_in_software, 0);
        // As many frames out as in: super-frames stay in one piece.
        let supers = |wire, from| {
            let sent = |s: &&Seen| s.wire == wire && s.from == from && s.is_super;
            world.seen.iter().filter(sent).count()
        };
        assert!(supers(WEST, LEFT) > 10);
        assert_eq!(supers(WEST, LEFT), supers(EAST, MIDDLE));
        assert_eq!(supers(EAST, RIGHT), supers(WEST, MIDDLE));
        world.pages_are_conserved();
    }
}

#[test]
fn super_frames_are_cut_for_a_link_that_cannot() {
    // The second card gathers nothing, so whole frames are made for it.
    let flat = |mac| Capabilities { max_frags: 0, ..plain(mac) };
    for (to, gathers) in RIGHT_PEER.into_iter().flat_map(|to| [(to, true), (to, false)]) {
        let mut world = match gathers {
            true => World::three_with(middle(), able, plain),
            false => World::three_with(middle(), able, flat),
        };
        let (near, far) = world.connect((LEFT, RIGHT), addr(to));
        world.exchange((LEFT, near), (RIGHT, far), 500_000);
        let counters = world.stacks[MIDDLE].counters();
        if gathers {
            assert!(counters.tx_cut_in_software > 0);
            assert!(counters.tx_checksums_completed > 0, "checksums that were left open are taken");
            assert_eq!(world.stacks[MIDDLE].ledger().ours(), 0);
        }
    }
}

#[test]
fn super_frames_are_cut_into_shorter_ones_where_the_next_device_takes_only_those() {
    fn longest<const N: usize>(mac: u8) -> Capabilities {
        Capabilities { max_super_frame: N, ..able(mac) }
    }
    type Card = fn(u8) -> Capabilities;
    let ways: [(Card, Card); 4] = [
        (longest::<2_097_120>, longest::<100_000>),
        (longest::<65_535>, longest::<16_000>),
        (longest::<2_097_120>, longest::<65_535>),
        (longest::<2_097_120>, longest::<16_000>),
    ];
    for (before, behind) in ways {
        for to in RIGHT_PEER {
            let mut world = World::three_with(middle(), before, behind);
            world.meet();
            world.watch = true;
            let (near, far) = world.connect((LEFT, RIGHT), addr(to));
            world.exchange((LEFT, near), (RIGHT, far), 2_000_000);
            let counters = world.stacks[MIDDLE].counters();
            assert!(counters.tx_cut_in_software > 0);
            let supers = world.seen.iter().filter(|s| s.wire == EAST && s.from == MIDDLE);
            let supers = supers.filter(|s| s.is_super).count() as u64;
            assert!(supers > 10, "{supers}");
            // Only what is left over and no longer than a segment has its checksum taken here.
            assert!(counters.tx_checksums_completed < supers, "{counters:?}");
            assert_eq!(world.stacks[MIDDLE].ledger().ours(), 0);
            world.pages_are_conserved();
        }
    }
}

#[test]
fn the_hop_limit_falls_by_one_and_nothing_else_changes() {
    let mut world = World::met();
    world.watch = true;
    // Every checksum that a hop limit of 64 can meet, the wrap among them.
    for id in 0..=255u8 {
        let mut frame = udp(64);
        frame[18] = id;
        frame[19] = id ^ 0x5a;
        fix_v4(&mut frame);
        world.inject(MIDDLE, 0, &frame);
        world.flush();
        let out = world.seen.pop().unwrap();
        assert_eq!((out.wire, out.from), (EAST, MIDDLE));
        assert_eq!(sum(&out.bytes[14..34]), 0xffff, "the header's checksum is right");
        assert_eq!(out.bytes[22], 63);
        assert_eq!(out.bytes[34..], frame[34..]);
        let mut same = out.bytes[14..34].to_vec();
        (same[8], same[10], same[11]) = (64, frame[24], frame[25]);
        assert_eq!(same, frame[14..34]);
    }
}

#[test]
fn a_packet_whose_hop_limit_runs_out_is_dropped_and_its_sender_told() {
    let mut world = World::met();
    world.watch = true;
    for ttl in [0, 1] {
        world.inject(MIDDLE, 0, &udp(ttl));
    }
    world.inject(MIDDLE, 0, &udp_frame("fd00::2", "fd01::2", 1, &[7; 10]));
    world.flush();
    assert_eq!(world.drops(MIDDLE, DropReason::ForwardHopLimit), 3);
    assert_eq!(errors_to_left(&world), [(11, 0), (11, 0), (3, 0)]);
    // From the address of the link that it leaves by, and with what it is about.
    let told = &world.seen[1].bytes;
    assert_eq!(told[26..30], [10, 0, 0, 1]);
    assert_eq!(told[42..], udp(1)[14..]);
}

#[test]
fn path_mtu_discovery_works_through_it() {
    let narrow = |mac| Capabilities { mtu: 1280, ..able(mac) };
    // Wide, narrow, wide: neither end sees what lies between.
    let mut right = config(narrow(4), &["10.0.1.2/24"], &["10.0.1.1"]);
    right.links = vec![link(able(5), &["10.0.2.1/24"])];
    right.ip_forwarding = true;
    let far = config(able(6), &["10.0.2.2/24"], &["10.0.2.1"]);
    let mut narrowed = middle();
    narrowed.links[0].capabilities = narrow(3);
    narrowed.links[0].routes = vec![("10.0.2.0/24".parse().unwrap(), ip("10.0.1.2"))];
    let left = config(able(2), &["10.0.0.2/24"], &["10.0.0.1"]);
    let mut world = World::new(vec![left, narrowed, right, far]);
    world.join((LEFT, 0), (MIDDLE, 0), able(0));
    world.join((MIDDLE, 1), (RIGHT, 0), narrow(0));
    world.join((RIGHT, 1), (3, 0), able(0));
    let (near, other) = world.connect((LEFT, 3), addr("10.0.2.2:80"));
    assert_eq!(world.stacks[LEFT].tcp(near).map(|tcp| tcp.path_mtu()), Ok(1500));
    world.exchange((LEFT, near), (3, other), 200_000);
    assert_eq!(world.stacks[LEFT].tcp(near).map(|tcp| tcp.path_mtu()), Ok(1280));
    assert!(world.drops(MIDDLE, DropReason::ForwardTooBig) > 0);
    assert!(world.drops(RIGHT, DropReason::ForwardTooBig) > 0, "and the other way");
}

#[test]
fn without_a_route_on_the_sender_is_told() {
    let mut world = World::met();
    world.watch = true;
    world.inject(MIDDLE, 0, &udp_to("8.8.8.8"));
    world.flush();
    assert_eq!(world.drops(MIDDLE, DropReason::ForwardNoRoute), 1);
    assert_eq!(errors_to_left(&world), [(3, 0)]);
}

#[test]
fn a_neighbour_that_does_not_answer_is_reported_to_the_sender() {
    let mut world = World::three();
    let id = world.stacks[LEFT].connect(world.now, addr("10.0.1.77:80"), None).unwrap();
    world.run(Duration::from_secs(10));
    assert!(world.stacks[MIDDLE].counters().neighbors_failed > 0);
    assert!(world.drops(MIDDLE, DropReason::NeighborUnreachable) > 0);
    assert!(world.stacks[LEFT].counters().icmp_errors_received > 0);
    world.until("the end", |w| w.stacks[LEFT].take_error(id).is_some());
    world.pages_are_conserved();
}

#[test]
fn what_waits_for_a_neighbour_passes_when_it_answers() {
    let mut world = World::three();
    // Nobody knows anybody yet.
    let to = world.stacks[RIGHT].bind_udp(addr("0.0.0.0:53"), BindOptions::default()).unwrap();
    let from = world.stacks[LEFT].bind_udp(addr("0.0.0.0:0"), BindOptions::default()).unwrap();
    for n in 0..5 {
        world.stacks[LEFT].send_to(world.now, from, &[n; 700], Some(addr("10.0.1.2:53"))).unwrap();
    }
    world.run(Duration::from_millis(10));
    for n in 0..5 {
        let (datagram, _) = world.stacks[RIGHT].recv_from(to, pagewire_stack::Datagram).unwrap();
        assert_eq!(datagram.iter().map(|f| f.len()).sum::<usize>(), 700, "datagram {n}");
    }
    assert_eq!(
        world.stacks[RIGHT].recv_from(to, pagewire_stack::Datagram).err(),
        Some(Error::WouldBlock)
    );
}

#[test]
fn pings_pass_and_so_do_errors_about_what_was_passed_on() {
    let mut world = World::met();
    world.watch = true;
    let echo = PacketBuilder::ethernet2(LEFT_MAC, WEST_MAC)
        .ipv4(LEFT_V4, RIGHT_V4, 64)
        .icmpv4_echo_request(1, 2);
    let mut frame = Vec::new();
    echo.write(&mut frame, b"are you there?").unwrap();
    world.inject(MIDDLE, 0, &frame);
    world.run(Duration::from_millis(1));
    assert_eq!(world.stacks[RIGHT].counters().icmp_echo_answered, 1);
    assert_eq!(world.stacks[LEFT].counters().drops(DropReason::IcmpEchoReply), 1);
    // Nobody listens there: the peer's own error comes through.
    let id = world.stacks[LEFT].bind_udp(addr("0.0.0.0:0"), BindOptions::default()).unwrap();
    world.stacks[LEFT].udp(id).unwrap().connect(addr("10.0.1.2:7")).unwrap();
    world.stacks[LEFT].send_to(world.now, id, b"x", None).unwrap();
    world.run(Duration::from_millis(1));
    assert_eq!(world.stacks[LEFT].take_error(id), Some(Error::ConnectionRefused));
}

/// A link that stays in memory, with a longer MTU than others.
fn in_memory(mac: u8) -> Capabilities {
    Capabilities { mtu: 9000, max_super_frame: 2_097_120, ..able(mac) }
}

#[test]
fn super_frames_that_stay_in_memory_are_cut_for_every_kind_of_link() {
    fn joined(mac: u8) -> Capabilities {
        Capabilities { max_frags: 0, ..plain(mac) }
    }
    for behind in [able, plain, joined] {
        for to in RIGHT_PEER {
            let mut world = World::three_with(middle(), in_memory, behind);
            world.meet();
            let (near, far) = world.connect((LEFT, RIGHT), addr(to));
            let began = world.now;
            world.exchange((LEFT, near), (RIGHT, far), 3_000_000);
            let took = world.now.saturating_since(began);
            assert!(took < Duration::from_millis(100), "{took:?}");
            world.pages_are_conserved();
        }
    }
}

/// Somebody behind the middle takes no more than `mtu` of what the left peer sent last.
fn too_big(world: &World, mtu: u16) -> Vec<u8> {
    let mut sent = world.seen.iter().filter(|s| s.wire == WEST && s.from == LEFT && s.is_super);
    let quote = &sent.next_back().unwrap().bytes[14..14 + 28];
    let [high, low] = mtu.to_be_bytes();
    let builder = PacketBuilder::ethernet2(WEST_MAC, LEFT_MAC).ipv4([10, 0, 0, 1], LEFT_V4, 64);
    let mut frame = Vec::new();
    builder.icmpv4_raw(3, 4, [0, 0, high, low]).write(&mut frame, quote).unwrap();
    frame
}

#[test]
fn the_path_of_super_frames_that_stay_in_memory_may_get_narrower_in_mid_flight() {
    let mut world = World::three_with(middle(), in_memory, in_memory);
    world.meet();
    world.watch = true;
    let (near, far) = world.connect((LEFT, RIGHT), addr(RIGHT_PEER[0]));
    world.exchange((LEFT, near), (RIGHT, far), 3_000_000);
    let longest = |world: &World| world.seen.iter().map(|seen| seen.bytes.len()).max().unwrap();
    assert!(longest(&world) > 200_000);
    for mtu in [4000, 1500, 600] {
        let now = world.now;
        // Part of it is under way, and part is gathered.
        let sent = world.stacks[LEFT].send(now, near, &vec![mtu as u8; 400_000]).unwrap();
        world.flush();
        let more = world.stacks[LEFT].send(now, near, &vec![mtu as u8; 40_000]).unwrap();
        world.set_stuck(EAST, true);
        let frame = too_big(&world, mtu);
        world.inject(LEFT, 0, &frame);
        world.flush();
        world.set_stuck(EAST, false);
        let (mut left, mut buf) = (sent + more, vec![0; 100_000]);
        world.until("the rest", |w| {
            while let Ok(n) = w.stacks[RIGHT].recv(w.now, far, &mut buf[..]) {
                assert!(buf[..n].iter().all(|&b| b == mtu as u8));
                left -= n;
            }
            left == 0
        });
        assert!(world.now.saturating_since(now) < Duration::from_secs(1));
    }
    world.exchange((LEFT, near), (RIGHT, far), 1_000_000);
    world.pages_are_conserved();
}

#[test]
fn forwarded_packets_leave_half_of_what_waits_for_neighbours_to_our_own() {
    let at = |n: usize| [10, 0, 1, 100 + n as u8];
    let send = |world: &mut World, from, n: usize| {
        let to = SocketAddr::from((at(n), 2000));
        world.stacks[MIDDLE].send_to(world.now, from, b"ours", Some(to)).unwrap();
    };
    // The limit for one address, and the one for all together.
    for addresses in [1, NEIGHBOR_QUEUE_TOTAL / NEIGHBOR_QUEUE_PACKETS] {
        let mut world = World::met();
        let own = world.middle().bind_udp(addr("10.0.1.1:0"), BindOptions::default()).unwrap();
        for n in 0..addresses {
            for _ in 0..2 * NEIGHBOR_QUEUE_PACKETS {
                world.inject(MIDDLE, 0, &udp_to(&Ipv4Addr::from(at(n)).to_string()));
            }
        }
        let refused = world.drops(MIDDLE, DropReason::ForwardNeighborFull);
        let (waiting, each) = (addresses * NEIGHBOR_QUEUE_PACKETS / 2, NEIGHBOR_QUEUE_PACKETS / 2);
        assert_eq!(refused as usize, 2 * addresses * NEIGHBOR_QUEUE_PACKETS - waiting);
        for n in 0..addresses {
            (0..each).for_each(|_| send(&mut world, own, n));
        }
        assert_eq!(world.drops(MIDDLE, DropReason::NeighborQueueFull), 0);
        send(&mut world, own, 0);
        assert_eq!(world.drops(MIDDLE, DropReason::NeighborQueueFull), 1, "it was full");
    }
}

#[test]
fn forwarded_packets_for_strangers_leave_half_of_the_questions_to_our_own() {
    let mut world = World::met();
    let strangers: Vec<u8> = (10..=250).collect();
    for n in &strangers {
        world.inject(MIDDLE, 0, &udp_to(&format!("10.0.1.{n}")));
    }
    let refused = world.drops(MIDDLE, DropReason::ForwardNeighborFull) as usize;
    assert_eq!(strangers.len() - refused, NEIGHBORS_INCOMPLETE / 2);
}
