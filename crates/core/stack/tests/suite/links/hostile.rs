//! Attacks by a guest on one link: floods and forged packets must not harm other links.

use std::time::Duration;

use etherparse::PacketBuilder;
use pagewire_device::Capabilities;
use pagewire_device::limits::MIN_GSO_SIZE;
use pagewire_mem::{Gso, GsoKind, RxChecksum};
use pagewire_stack::limits::{
    FORWARD_OUT_FRAMES, ICMP_DESTINATION_BURST, ICMP_ERRORS_BURST, NEIGHBOR_QUEUE_TOTAL,
    NEIGHBORS_INCOMPLETE,
};
use pagewire_stack::{BindOptions, DropReason};

use super::world::*;
use crate::common::Verbs;

fn udp(src: &str, dst: &str) -> Vec<u8> {
    udp_frame(src, dst, 64, &[7; 10])
}

/// The frame is dropped for this reason, and nothing is sent because of it.
fn refused(world: &mut World, frame: &[u8], reason: DropReason) {
    let before = world.drops(MIDDLE, reason);
    let sent = world.stacks[MIDDLE].counters().tx_frames;
    world.inject(MIDDLE, 0, frame);
    world.flush();
    let counters = world.stacks[MIDDLE].counters();
    assert_eq!(counters.drops(reason), before + 1, "{}\n{counters}", reason.name());
    assert_eq!(counters.tx_frames, sent, "{}", reason.name());
}

#[test]
fn nobody_passes_for_somebody_on_another_link() {
    let mut world = World::met();
    let to_right = |src: &str| match src.contains(':') {
        false => udp(src, "10.0.1.2"),
        true => udp(src, "fd01::2"),
    };
    // The right peer, and strangers whom no route leads to.
    for src in ["10.0.1.2", "10.0.1.77", "fd01::2", "8.8.8.8", "2001:db8::1"] {
        refused(&mut world, &to_right(src), DropReason::SourceOtherLink);
    }
    // Us, and what no host is called.
    for src in ["10.0.0.1", "10.0.1.1", "fd00::1", "fd01::1", "0.0.0.0", "127.0.0.1", "::1"] {
        refused(&mut world, &to_right(src), DropReason::ForwardSource);
    }
    for src in ["224.0.0.1", "240.0.0.1", "10.0.0.255", "10.0.1.255", "255.255.255.255"] {
        refused(&mut world, &to_right(src), DropReason::ForwardSource);
    }
    for src in ["169.254.1.1", "fe80::2", "ff02::1", "::", "::ffff:10.0.0.2"] {
        refused(&mut world, &to_right(src), DropReason::ForwardSource);
    }
    // Nor towards us.
    refused(&mut world, &udp("10.0.1.2", "10.0.0.1"), DropReason::SourceOtherLink);
    refused(&mut world, &udp("fd01::2", "fd00::1"), DropReason::SourceOtherLink);
    refused(&mut world, &udp("10.0.1.2", "10.0.1.1"), DropReason::SourceOtherLink);
}

#[test]
fn a_way_that_was_found_good_is_good_from_its_own_link_only() {
    let mut world = World::three();
    let (near, far) = world.connect((LEFT, RIGHT), addr("10.0.1.2:80"));
    world.exchange((LEFT, near), (RIGHT, far), 1000);
    // The same addresses, but from the other side.
    let mut frame = udp("10.0.0.2", "10.0.1.2");
    let before = world.drops(MIDDLE, DropReason::SourceOtherLink);
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 3]);
    world.inject(MIDDLE, 1, &frame);
    assert_eq!(world.drops(MIDDLE, DropReason::SourceOtherLink), before + 1);
}

#[test]
fn the_check_of_sources_can_be_left_out() {
    let mut config = middle();
    config.reverse_path_check = false;
    let mut world = World::three_with(config, able, able);
    world.meet();
    world.inject(MIDDLE, 0, &udp("8.8.8.8", "10.0.1.2"));
    assert_eq!(world.stacks[MIDDLE].counters().forwarded_packets, 1);
}

#[test]
fn some_destinations_are_never_passed_on_to() {
    let mut world = World::met();
    for dst in ["0.0.0.1", "127.0.0.1", "169.254.1.1", "240.0.0.1", "10.0.1.255"] {
        // (Loopback addresses are refused as such.)
        refused(&mut world, &udp("10.0.0.2", dst), DropReason::ForwardDestination);
    }
    for dst in ["fe80::9", "::1", "::", "::ffff:10.0.1.2"] {
        refused(&mut world, &udp("fd00::2", dst), DropReason::ForwardDestination);
    }
    // Groups are nobody's to pass on.
    refused(&mut world, &udp("10.0.0.2", "224.0.0.251"), DropReason::Ipv4NotForUs);
    refused(&mut world, &udp("fd00::2", "ff0e::1"), DropReason::Ipv6NotForUs);
    // Nor is what was sent to all stations.
    let mut frame = udp("10.0.0.2", "10.0.1.2");
    frame[..6].fill(0xff);
    refused(&mut world, &frame, DropReason::ForwardLinkBroadcast);
}

#[test]
fn errors_are_limited_and_each_link_has_its_own_limit() {
    let mut world = World::met();
    let mut frame = udp("10.0.0.2", "8.8.8.8");
    for _ in 0..1000 {
        world.inject(MIDDLE, 0, &frame);
    }
    let counters = world.stacks[MIDDLE].counters();
    // (All to one host. How many all hosts get varies: nobody is to count on it.)
    assert_eq!(counters.icmp_errors_sent, u64::from(ICMP_DESTINATION_BURST));
    assert_eq!(counters.icmp_errors_withheld, 1000 - u64::from(ICMP_DESTINATION_BURST));
    for host in 3..=250 {
        for _ in 0..4 {
            world.inject(MIDDLE, 0, &udp(&format!("10.0.0.{host}"), "8.8.8.8"));
        }
    }
    let sent = world.stacks[MIDDLE].counters().icmp_errors_sent;
    let most = u64::from(ICMP_ERRORS_BURST);
    assert!((most / 2..2 * most).contains(&sent), "{sent}");
    // The other link's peers still get errors.
    frame = udp("10.0.1.2", "8.8.8.8");
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 3]);
    world.inject(MIDDLE, 1, &frame);
    assert_eq!(world.stacks[MIDDLE].counters().icmp_errors_sent, sent + 1);
}

#[test]
fn no_error_answers_an_error() {
    let mut world = World::met();
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(LEFT_MAC, WEST_MAC)
        .ipv4([10, 0, 0, 2], [8, 8, 8, 8], 64)
        .icmpv4_raw(3, 1, [0; 4])
        .write(&mut frame, &udp("8.8.8.8", "10.0.0.2")[14..])
        .unwrap();
    refused(&mut world, &frame, DropReason::ForwardNoRoute);
}

#[test]
fn a_flood_to_nobody_leaves_room_for_our_own() {
    let mut world = World::met();
    for n in 0..4 * NEIGHBORS_INCOMPLETE {
        let dst = format!("10.0.1.{}", 3 + n % 250);
        world.inject(MIDDLE, 0, &udp("10.0.0.2", &dst));
    }
    assert!(world.drops(MIDDLE, DropReason::ForwardNeighborFull) > 0);
    let waiting = world.stacks[MIDDLE].counters().forwarded_packets as usize;
    assert!(waiting <= NEIGHBOR_QUEUE_TOTAL / 2, "{waiting}");
    // Our own is still asked for, and gets there.
    let to = world.stacks[RIGHT].bind_udp(addr("0.0.0.0:53"), BindOptions::default()).unwrap();
    let id = world.middle().bind_udp(addr("0.0.0.0:0"), BindOptions::default()).unwrap();
    world.stacks[MIDDLE].send_to(world.now, id, b"x", Some(addr("10.0.1.2:53"))).unwrap();
    world.run(Duration::from_millis(10));
    assert!(world.stacks[RIGHT].recv_from(to, pagewire_stack::Datagram).is_ok());
    assert_eq!(world.drops(MIDDLE, DropReason::NeighborQueueFull), 0);
    world.run(Duration::from_secs(10));
    world.pages_are_conserved();
}

#[test]
fn what_waits_for_a_device_that_takes_nothing_is_bounded() {
    let mut world = World::met();
    world.set_stuck(EAST, true);
    for _ in 0..FORWARD_OUT_FRAMES + 100 {
        world.inject(MIDDLE, 0, &udp("10.0.0.2", "10.0.1.2"));
    }
    assert_eq!(world.drops(MIDDLE, DropReason::ForwardQueueFull), 100);
    // There is still room for what is ours, and for the other link.
    let (now, to) = (world.now, [Some(addr("10.0.1.2:53")), Some(addr("10.0.0.2:53"))]);
    let id = world.middle().bind_udp(addr("0.0.0.0:0"), BindOptions::default()).unwrap();
    for to in to {
        world.middle().send_to(now, id, b"x", to).unwrap();
    }
    assert_eq!(world.drops(MIDDLE, DropReason::OutQueueFull), 0);
}

#[test]
fn lies_about_super_frames_are_not_believed() {
    let mut world = World::met();
    let tcp = tcp_frame(8000, false);
    let mut offered = 0;
    for frame in [&tcp, &udp("10.0.0.2", "10.0.1.2")] {
        for size in [0, 1, 9, 1460, u16::MAX] {
            for header_len in [0, 54, 9000] {
                for checksum in [RxChecksum::Valid, RxChecksum::Unknown] {
                    for kind in [GsoKind::TcpV4, GsoKind::TcpV6, GsoKind::Udp] {
                        let mut packet = packet(frame);
                        packet.gso = Some(Gso { kind, size, header_len });
                        packet.rx_checksum = checksum;
                        world.arrive(0, packet);
                        // The wire checks what comes out.
                        world.flush();
                        offered += 1;
                    }
                }
            }
        }
    }
    let counters = world.stacks[MIDDLE].counters();
    let dropped = [
        DropReason::ForwardOffload,
        DropReason::ForwardTooBig,
        DropReason::OutOffload,
        DropReason::TcpChecksum,
    ];
    let dropped: u64 = dropped.into_iter().map(|reason| counters.drops(reason)).sum();
    assert_eq!(counters.forwarded_packets + dropped, offered, "{counters}");
    assert!(counters.drops(DropReason::ForwardOffload) > 0);
}

/// A super-frame of three datagrams of the left peer's for the right one.
fn three_datagrams(size: u16, divisible: bool) -> pagewire_mem::PacketBuf {
    let mut frame = udp_frame("10.0.0.2", "10.0.1.2", 64, &[7; 2500]);
    if divisible {
        frame[20] &= !0x40;
        // RFC 1624: a header word falls by 0x4000.
        let (sum, carry) = u16::from_be_bytes([frame[24], frame[25]]).overflowing_add(0x4000);
        frame[24..26].copy_from_slice(&(sum + u16::from(carry)).to_be_bytes());
    }
    let mut packet = packet(&frame[..42]);
    let payload = bytes::Bytes::copy_from_slice(&frame[42..]);
    packet.push_frag(pagewire_mem::Frag::from_bytes(payload)).unwrap();
    packet.gso = Some(Gso { kind: GsoKind::Udp, size, header_len: 42 });
    packet.rx_checksum = RxChecksum::Valid;
    packet
}

/// Datagrams that the right peer gets of one super-frame, by length.
fn passed_on(world: &mut World, packet: pagewire_mem::PacketBuf) -> Vec<usize> {
    let id = world.stacks[RIGHT].bind_udp(addr("0.0.0.0:2000"), BindOptions::default()).unwrap();
    world.arrive(0, packet);
    world.run(Duration::from_millis(10));
    let right = &mut world.stacks[RIGHT];
    let taken = std::iter::from_fn(|| right.recv_from(id, pagewire_stack::Datagram).ok());
    taken.map(|(payload, _)| payload.iter().map(|frag| frag.len()).sum()).collect()
}

#[test]
fn datagrams_of_a_super_frame_are_passed_on_whole_where_the_way_out_takes_it_and_cut_elsewhere() {
    for (east, frames) in [(able as fn(u8) -> Capabilities, 1), (plain, 3)] {
        let mut world = World::three_with(middle(), able, east);
        world.meet();
        let before = world.stacks[MIDDLE].counters().tx_frames;
        assert_eq!(passed_on(&mut world, three_datagrams(1000, true)), [1000, 1000, 500]);
        assert_eq!(world.stacks[MIDDLE].counters().tx_frames - before, frames);
        world.pages_are_conserved();
    }
}

#[test]
fn datagrams_of_a_super_frame_that_are_too_long_for_the_way_out_are_cut_or_refused_as_alone() {
    let narrow = |mac| Capabilities { mtu: 1280, ..plain(mac) };
    let mut world = World::three_with(middle(), able, narrow);
    world.meet();
    assert_eq!(passed_on(&mut world, three_datagrams(1400, true)), [1400, 1100]);
    assert_eq!(world.stacks[MIDDLE].counters().tx_fragments, 2);
    let mut world = World::three_with(middle(), able, narrow);
    world.meet();
    assert!(passed_on(&mut world, three_datagrams(1400, false)).is_empty());
    assert_eq!(world.drops(MIDDLE, DropReason::ForwardTooBig), 1);
    world.pages_are_conserved();
}

#[test]
fn a_super_frame_of_more_datagrams_than_any_call_sends_is_not_passed_on() {
    // 2,500 bytes in 128 datagrams take 20 bytes each.
    for (size, passed) in [(1, 0), (19, 0), (20, 125)] {
        let mut world = World::three_with(middle(), able, plain);
        world.meet();
        assert_eq!(passed_on(&mut world, three_datagrams(size, true)).len(), passed, "{size}");
    }
}

#[test]
fn a_wrong_checksum_is_not_made_right_by_cutting() {
    let mut world = World::three_with(middle(), able, plain);
    world.meet();
    let mut tcp = tcp_frame(8000, false);
    *tcp.last_mut().unwrap() ^= 1;
    let mut packet = packet(&tcp);
    packet.gso = Some(Gso { kind: GsoKind::TcpV4, size: 1460, header_len: 54 });
    world.arrive(0, packet);
    assert_eq!(world.drops(MIDDLE, DropReason::TcpChecksum), 1);
    assert_eq!(world.stacks[MIDDLE].counters().forwarded_packets, 0);
}

/// A TCP super-frame of the left peer's for the right one, in segments of `size` bytes.
fn super_frame(payload: usize, size: u16) -> pagewire_mem::PacketBuf {
    let tcp = tcp_frame(payload, true);
    let mut packet = packet(&tcp[..54]);
    let payload = bytes::Bytes::copy_from_slice(&tcp[54..]);
    packet.push_frag(pagewire_mem::Frag::from_bytes(payload)).unwrap();
    packet.gso = Some(Gso { kind: GsoKind::TcpV4, size, header_len: 54 });
    packet.rx_checksum = RxChecksum::Valid;
    packet
}

/// Frames that wait for the device to the east, taken out.
fn waiting_for_the_east(world: &mut World) -> std::collections::VecDeque<pagewire_mem::PacketBuf> {
    let (east, mut frames) = (world.link(1), std::collections::VecDeque::new());
    while world.stacks[MIDDLE].poll_transmit_on(world.now, east, &mut frames) {}
    frames
}

#[test]
fn a_super_frame_becomes_no_more_frames_than_the_queue_has_room_for_whatever_its_segments() {
    let mut world = World::three_with(middle(), able, plain);
    world.meet();
    world.set_stuck(EAST, true);
    waiting_for_the_east(&mut world);
    // 8,000 segments of the smallest size, again and again.
    for _ in 0..10 {
        world.arrive(0, super_frame(64_000, MIN_GSO_SIZE));
    }
    // Packets of our own still find room, ...
    let id = world.middle().bind_udp(addr("0.0.0.0:0"), BindOptions::default()).unwrap();
    world.stacks[MIDDLE].send_to(world.now, id, b"x", Some(addr("10.0.1.2:53"))).unwrap();
    assert_eq!(world.drops(MIDDLE, DropReason::OutQueueFull), 0);
    // ... because the strangers' share ended in the first of them. Each lost frame is counted once.
    assert_eq!(world.drops(MIDDLE, DropReason::ForwardQueueFull), 8000 - 1024 + 9);
    let frames = waiting_for_the_east(&mut world);
    assert_eq!(frames.len(), FORWARD_OUT_FRAMES + 1);
    // The first segments got through, none of them the last of the stream.
    let (tcp_flags, fin) = (47, 1);
    assert!(frames.iter().take(FORWARD_OUT_FRAMES).all(|f| f.head()[tcp_flags] & fin == 0));
    world.pages_are_conserved();
}

#[test]
fn super_frames_that_wait_for_a_neighbour_leave_room_for_our_own_when_it_answers() {
    let mut world = World::three_with(middle(), able, plain);
    world.run(Duration::from_millis(1));
    world.set_stuck(EAST, true);
    for _ in 0..10 {
        world.arrive(0, super_frame(64_000, MIN_GSO_SIZE));
    }
    // Asked for, the right peer says hello, which is all that gets through.
    world.set_stuck(EAST, false);
    world.until("the answer", |w| w.drops(MIDDLE, DropReason::ForwardQueueFull) > 0);
    assert_eq!(world.drops(MIDDLE, DropReason::ForwardQueueFull), 8000 - 1024 + 9);
    assert_eq!(world.drops(MIDDLE, DropReason::OutQueueFull), 0);
}

#[test]
fn nothing_is_cut_into_segments_smaller_than_any_connection_s() {
    let mut world = World::three_with(middle(), able, plain);
    world.meet();
    for size in 0..MIN_GSO_SIZE {
        world.arrive(0, super_frame(64_000, size));
    }
    let refused = world.drops(MIDDLE, DropReason::ForwardOffload);
    assert_eq!(refused, u64::from(MIN_GSO_SIZE));
    assert!(waiting_for_the_east(&mut world).is_empty());
}

#[test]
fn a_datagram_is_not_cut_at_all_where_there_is_no_room_for_all_fragments() {
    let mut world = World::three_with(middle(), |m| Capabilities { mtu: 9000, ..able(m) }, plain);
    world.meet();
    world.set_stuck(EAST, true);
    waiting_for_the_east(&mut world);
    let mut frame = udp_frame("10.0.0.2", "10.0.1.2", 64, &[7; 8000]);
    // May be cut: no DF, and the header's checksum with it.
    frame[20] = 0;
    fix_v4(&mut frame);
    // Six fragments each, so four frames' room is left.
    for _ in 0..FORWARD_OUT_FRAMES / 6 + 1 {
        world.inject(MIDDLE, 0, &frame);
    }
    assert_eq!(world.drops(MIDDLE, DropReason::ForwardQueueFull), 1);
    assert_eq!(waiting_for_the_east(&mut world).len(), FORWARD_OUT_FRAMES / 6 * 6);
}
