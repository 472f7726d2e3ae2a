//! Cutting what is too long for the next link (RFC 791, RFC 1812 section 4.2.2.7).

use std::time::Duration;

use pagewire_device::Capabilities;
use pagewire_stack::{BindOptions, DropReason, MtuDiscover, SocketOption};

use super::world::*;
use crate::common::Verbs;

fn narrow(mac: u8) -> Capabilities {
    Capabilities { mtu: 1280, ..able(mac) }
}

#[test]
fn a_datagram_that_may_be_cut_is_and_arrives_whole() {
    for west in [able, plain] {
        let mut world = World::three_with(middle(), west, narrow);
        let to = world.stacks[RIGHT].bind_udp(addr("0.0.0.0:53"), BindOptions::default()).unwrap();
        let from = world.stacks[LEFT].bind_udp(addr("0.0.0.0:0"), BindOptions::default()).unwrap();
        // As Linux, a socket asks that its datagrams be not cut unless it says otherwise.
        world.stacks[LEFT].set_option(from, SocketOption::MtuDiscover(MtuDiscover::Dont)).unwrap();
        // The second is in fragments already when it gets there.
        for len in [1400, 4000] {
            let bytes: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
            let peer = Some(addr("10.0.1.2:53"));
            world.stacks[LEFT].send_to(world.now, from, &bytes, peer).unwrap();
            world.run(Duration::from_millis(10));
            let (frags, _) = world.stacks[RIGHT].recv_from(to, pagewire_stack::Datagram).unwrap();
            assert_eq!(payload_of(&frags), bytes);
        }
        assert!(world.stacks[MIDDLE].counters().tx_fragments >= 2 + 4);
        assert_eq!(world.drops(MIDDLE, DropReason::ForwardTooBig), 0);
        world.pages_are_conserved();
    }
}

#[test]
fn a_sender_of_datagrams_learns_of_a_narrow_link_from_the_router_and_cuts_them_itself() {
    for (to, local) in [("10.0.1.2:53", "0.0.0.0:53"), ("[fd01::2]:53", "[::]:53")] {
        let mut world = World::three_with(middle(), able, narrow);
        world.meet();
        let server = world.stacks[RIGHT].bind_udp(addr(local), BindOptions::default()).unwrap();
        let client = world.stacks[LEFT].bind_udp(addr("[::]:0"), BindOptions::default()).unwrap();
        let send = |world: &mut World| {
            world.stacks[LEFT].send_to(world.now, client, &[7; 1400], Some(addr(to))).unwrap();
            world.run(Duration::from_millis(10));
            world.stacks[RIGHT].recv_from(server, pagewire_stack::Datagram).is_ok()
        };
        assert!(!send(&mut world), "{to}: the router may not cut it");
        assert_eq!(world.drops(MIDDLE, DropReason::ForwardTooBig), 1);
        assert_eq!(world.stacks[LEFT].path_mtu(addr(to).ip()), 1280);
        assert!(send(&mut world), "{to}: cut where it was made");
        assert_eq!(world.drops(MIDDLE, DropReason::ForwardTooBig), 1);
    }
}

/// A world whose east is narrow, and that records all frames.
fn watched() -> World {
    let mut world = World::three_with(middle(), able, narrow);
    world.meet();
    world.watch = true;
    world
}

/// An IPv4 packet with options, in a frame from the left peer.
fn with_options(options: &[u8], flags: u16, payload: usize) -> Vec<u8> {
    assert!(options.len().is_multiple_of(4));
    let header_len = 20 + options.len();
    let mut ip = vec![0; header_len];
    ip[0] = 0x40 | (header_len / 4) as u8;
    ip[2..4].copy_from_slice(&((header_len + payload) as u16).to_be_bytes());
    ip[4..6].copy_from_slice(&[0x12, 0x34]);
    ip[6..8].copy_from_slice(&flags.to_be_bytes());
    (ip[8], ip[9]) = (64, 253);
    ip[12..16].copy_from_slice(&[10, 0, 0, 2]);
    ip[16..20].copy_from_slice(&[10, 0, 1, 2]);
    ip[20..].copy_from_slice(options);
    let sum = !sum(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut frame = [&WEST_MAC[..], &LEFT_MAC[..], &[8, 0]].concat();
    frame.extend(ip);
    frame.extend((0..payload).map(|i| (i * 3) as u8));
    frame
}

/// Header and payload of each IPv4 packet that went east.
fn parts(world: &mut World) -> Vec<(Vec<u8>, Vec<u8>)> {
    world.flush();
    let east = world.seen.drain(..).filter(|s| s.wire == EAST && s.from == MIDDLE);
    east.map(|s| {
        let (header, payload) = s.bytes[14..].split_at(usize::from(s.bytes[14] & 15) * 4);
        assert_eq!(sum(header), 0xffff, "the header's checksum");
        let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
        assert_eq!(total, header.len() + payload.len());
        assert!(total <= 1280);
        (header.to_vec(), payload.to_vec())
    })
    .collect()
}

fn flags(header: &[u8]) -> u16 {
    u16::from_be_bytes([header[6], header[7]])
}

#[test]
fn fragments_of_a_fragment_fit_where_it_was() {
    let mut world = watched();
    // Bytes 800 to 2280 of a datagram, more behind.
    let frame = with_options(&[], 0x2000 | 100, 1480);
    world.inject(MIDDLE, 0, &frame);
    let parts = parts(&mut world);
    assert_eq!(parts.len(), 2);
    assert_eq!(flags(&parts[0].0), 0x2000 | 100);
    assert_eq!(flags(&parts[1].0), 0x2000 | (100 + 1256 / 8), "more is still behind");
    assert!(parts.iter().all(|(header, _)| header[4..6] == [0x12, 0x34] && header[8] == 63));
    assert_eq!([&parts[0].1[..], &parts[1].1].concat(), frame[34..]);
}

#[test]
fn options_are_copied_to_later_fragments_only_if_they_say_so() {
    let mut world = watched();
    // Record route (7, not copied), a no-operation, router alert (148, copied).
    let options = [7, 7, 4, 0, 0, 0, 0, 1, 148, 4, 0, 0];
    world.inject(MIDDLE, 0, &with_options(&options, 0, 1460));
    let parts = parts(&mut world);
    assert_eq!(parts.len(), 2);
    assert_eq!(parts[0].0[20..], options);
    assert_eq!(parts[1].0[20..], [148, 4, 0, 0]);
    assert_eq!((flags(&parts[0].0), flags(&parts[1].0)), (0x2000, 1248 / 8));
    assert_eq!([&parts[0].1[..], &parts[1].1].concat().len(), 1460);
}

#[test]
fn what_may_not_be_cut_is_not() {
    let mut world = watched();
    world.inject(MIDDLE, 0, &with_options(&[], 0x4000, 1480));
    assert_eq!(world.drops(MIDDLE, DropReason::ForwardTooBig), 1);
    world.flush();
    let told = world.seen.iter().find(|s| s.wire == WEST).expect("the sender is told");
    assert_eq!(told.bytes[34..36], [3, 4]);
    assert_eq!(told.bytes[40..42], 1280u16.to_be_bytes(), "and how much goes");
    // IPv6 is never cut on the way.
    world.inject(MIDDLE, 0, &udp_frame("fd00::2", "fd01::2", 64, &[7; 1400]));
    assert_eq!(world.drops(MIDDLE, DropReason::ForwardTooBig), 2);
    world.flush();
    let mut told = world.seen.iter().filter(|s| s.wire == WEST && s.bytes[12..14] == [0x86, 0xdd]);
    let told = told.next_back().expect("the sender is told");
    assert_eq!((&told.bytes[54..56], &told.bytes[58..62]), (&[2, 0][..], &[0, 0, 5, 0][..]));
}

#[test]
fn a_super_frame_that_may_be_cut_is_made_of_shorter_segments() {
    let mut world = watched();
    let mut frame = tcp_frame(8000, false);
    // Without the flag that forbids cutting.
    frame[20] &= !0x40;
    fix_v4(&mut frame);
    let mut packet = packet(&frame[..54]);
    packet.push_frag(pagewire_mem::Frag::from_bytes(frame.split_off(54).into())).unwrap();
    packet.rx_checksum = pagewire_mem::RxChecksum::Valid;
    let kind = pagewire_mem::GsoKind::TcpV4;
    packet.gso = Some(pagewire_mem::Gso { kind, size: 1460, header_len: 54 });
    world.arrive(0, packet);
    // The wire checks that no segment is too long.
    world.flush();
    assert!(world.seen.iter().any(|s| s.wire == EAST && s.is_super && s.bytes.len() == 8054));
}
