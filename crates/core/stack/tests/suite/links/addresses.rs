//! Addresses of stacks with several links: which are ours on a link, and by which link packets leave.

use std::net::SocketAddr;
use std::time::Duration;

use pagewire_device::Capabilities;
use pagewire_stack::limits::{CONGESTED_FRAMES, SEGMENTS_PER_CONNECTION};
use pagewire_stack::{BindOptions, DropReason, Error, LinkId, Stack};

use super::world::*;
use crate::common::Verbs;

fn scoped(text: &str, port: u16, scope: u32) -> SocketAddr {
    std::net::SocketAddrV6::new(text.parse().unwrap(), port, 0, scope).into()
}

#[test]
fn connections_over_each_link_share_one_space_of_ports() {
    let mut world = World::three();
    let any = "0.0.0.0:80".parse().unwrap();
    let listener = world.middle().listen(any, 8).unwrap();
    // The same ports on both sides: addresses tell the connections apart.
    let from = |text: &str| Some(addr(text));
    let west = world.stacks[LEFT].connect(world.now, addr("10.0.0.1:80"), from("10.0.0.2:5000"));
    let east = world.stacks[RIGHT].connect(world.now, addr("10.0.1.1:80"), from("10.0.1.2:5000"));
    let mut accepted = Vec::new();
    world.until("two connections", |w| {
        accepted.extend(w.middle().accept(listener));
        accepted.len() == 2
    });
    for (peer, near) in [(LEFT, west.unwrap()), (RIGHT, east.unwrap())] {
        let ours = world.stacks[peer].local_addr(near).unwrap();
        let (far, _) = *accepted.iter().find(|(_, from)| *from == ours).unwrap();
        world.exchange((peer, near), (MIDDLE, far), 50_000);
    }
    world.pages_are_conserved();
}

#[test]
fn an_address_is_ours_whatever_link_a_packet_to_it_comes_by() {
    let mut config = middle();
    config.ip_forwarding = false;
    let mut world = World::three_with(config, able, able);
    for at in ["10.0.1.1:80", "[fd01::1]:80"] {
        let (near, far) = world.connect((LEFT, MIDDLE), addr(at));
        world.exchange((LEFT, near), (MIDDLE, far), 10_000);
    }
}

#[test]
fn stations_are_told_only_of_addresses_of_their_own_link() {
    let mut world = World::three();
    let ask = |target: [u8; 4]| {
        let mut frame = vec![0xff; 6];
        frame.extend(LEFT_MAC);
        frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
        frame.extend(LEFT_MAC);
        frame.extend([10, 0, 0, 2, 0, 0, 0, 0, 0, 0]);
        frame.extend(target);
        frame
    };
    world.inject(MIDDLE, 0, &ask([10, 0, 1, 1]));
    assert_eq!(world.drops(MIDDLE, DropReason::ArpNotForUs), 1);
    assert_eq!(world.stacks[MIDDLE].counters().tx_arp, 0);
    world.inject(MIDDLE, 0, &ask([10, 0, 0, 1]));
    assert_eq!(world.stacks[MIDDLE].counters().tx_arp, 1);
}

#[test]
fn packets_are_from_the_address_of_the_link_that_they_leave_by() {
    let mut world = World::three();
    for (to, from) in [
        ("10.0.0.9:1", "10.0.0.1"),
        ("10.0.1.9:1", "10.0.1.1"),
        ("[fd00::9]:1", "fd00::1"),
        ("[fd01::9]:1", "fd01::1"),
    ] {
        let id = world.stacks[MIDDLE].connect(world.now, addr(to), None).unwrap();
        assert_eq!(world.middle().local_addr(id).unwrap().ip(), ip(from), "to {to}");
    }
}

#[test]
fn routes_and_gateways_are_a_links_own() {
    let mut config = middle();
    config.links[0].gateways = vec![ip("10.0.1.2")];
    config.links[0].routes = vec![("172.16.0.0/12".parse().unwrap(), ip("10.0.1.2"))];
    config.routes = vec![("172.16.5.0/24".parse().unwrap(), ip("10.0.0.2"))];
    let mut world = World::three_with(config, able, able);
    for (to, from) in
        [("8.8.8.8:1", "10.0.1.1"), ("172.17.1.1:1", "10.0.1.1"), ("172.16.5.1:1", "10.0.0.1")]
    {
        let id = world.stacks[MIDDLE].connect(world.now, addr(to), None).unwrap();
        assert_eq!(world.middle().local_addr(id).unwrap().ip(), ip(from), "to {to}");
    }
}

#[test]
fn segments_are_as_long_as_the_outgoing_link_takes() {
    let wide = |mac| Capabilities { mtu: 9000, ..able(mac) };
    let mut world = World::three_with(middle(), able, wide);
    let (west, _) = world.connect((MIDDLE, LEFT), addr("10.0.0.2:80"));
    let (east, _) = world.connect((MIDDLE, RIGHT), addr("10.0.1.2:80"));
    assert_eq!(world.middle().tcp(west).map(|tcp| tcp.path_mtu()), Ok(1500));
    assert_eq!(world.middle().tcp(east).map(|tcp| tcp.path_mtu()), Ok(9000));
    assert_eq!(world.middle().path_mtu(ip("10.0.1.2")), 9000);
}

#[test]
fn the_same_link_local_address_is_another_host_on_each_link() {
    // Both peers have this one, beside what their stations give them.
    const PEER: &str = "fe80::9";
    let both = ["10.0.0.1/24", "fd00::1/64"];
    let mut middle = config(able(1), &both, &[]);
    middle.links = vec![link(able(3), &["10.0.1.1/24", "fd01::1/64"])];
    let left = config(able(2), &["10.0.0.2/24", "fe80::9/64"], &[]);
    let right = config(able(4), &["10.0.1.2/24", "fe80::9/64"], &[]);
    let mut world = World::new(vec![left, middle, right]);
    world.join((LEFT, 0), (MIDDLE, 0), able(0));
    world.join((MIDDLE, 1), (RIGHT, 0), able(0));
    let links: Vec<LinkId> = world.middle().links().collect();
    for (link, peer) in links.into_iter().zip([LEFT, RIGHT]) {
        let at = scoped(PEER, 80, link.scope_id());
        let (near, far) = world.connect((MIDDLE, peer), at);
        world.exchange((MIDDLE, near), (peer, far), 10_000);
        assert_eq!(world.middle().remote_addr(near), Ok(at));
        let SocketAddr::V6(ours) = world.middle().local_addr(near).unwrap() else { panic!() };
        assert_eq!(ours.scope_id(), link.scope_id());
        assert!(ours.ip().is_unicast_link_local());
    }
}

#[test]
fn a_socket_without_its_link_local_peer_hears_the_other_links_again() {
    let mut world = World::three();
    let ours = world.middle().bind_udp(addr("[::]:53"), BindOptions::default()).unwrap();
    let link = world.link(0);
    let socket = world.middle().udp(ours);
    let mut socket = socket.unwrap();
    socket.connect(scoped("fe80::9", 53, link.scope_id())).unwrap();
    socket.disconnect();
    let is_local = |a: &pagewire_stack::Cidr| a.to_string().starts_with("fe80");
    let link = world.link(1);
    let to = world.middle().link_addresses(link).find(is_local).unwrap();
    let to = SocketAddr::new(to.addr(), 53);
    let asks = world.stacks[RIGHT].bind_udp(addr("[::]:1000"), BindOptions::default()).unwrap();
    world.stacks[RIGHT].send_to(world.now, asks, b"is it you?", Some(to)).unwrap();
    world.until("the question", |w| w.middle().recv_from(ours, pagewire_stack::Datagram).is_ok());
}

#[test]
fn an_answer_to_a_link_local_address_goes_back_by_its_link() {
    let mut world = World::three();
    let ours = world.middle().bind_udp(addr("[::]:53"), BindOptions::default()).unwrap();
    let link = world.link(1);
    let is_local = |a: &pagewire_stack::Cidr| a.to_string().starts_with("fe80");
    let to = world.middle().link_addresses(link).find(is_local).unwrap();
    let to = SocketAddr::new(to.addr(), 53);
    let asks = world.stacks[RIGHT].bind_udp(addr("[::]:1000"), BindOptions::default()).unwrap();
    world.stacks[RIGHT].send_to(world.now, asks, b"who are you?", Some(to)).unwrap();
    let mut from = None;
    world.until("the question", |w| {
        from = w.middle().recv_from(ours, pagewire_stack::Datagram).ok().map(|(_, from)| from);
        from.is_some()
    });
    let from = from.unwrap();
    let SocketAddr::V6(asker) = from else { panic!("{from}") };
    assert_eq!(asker.scope_id(), link.scope_id(), "it says which link");
    world.stacks[MIDDLE].send_to(world.now, ours, b"the middle", Some(from)).unwrap();
    world
        .until("the answer", |w| w.stacks[RIGHT].recv_from(asks, pagewire_stack::Datagram).is_ok());
}

#[test]
fn links_with_the_same_station_have_different_link_local_addresses() {
    let mut config = middle();
    config.links[0].capabilities.mac = config.capabilities.mac;
    let stack = Stack::new(pagewire_mem::Instant::ZERO, config).unwrap();
    let mut local: Vec<_> = stack.addresses().iter().map(|a| a.addr()).collect();
    local.retain(|a| a.to_string().starts_with("fe80"));
    assert_eq!(local.len(), 2);
    assert_ne!(local[0], local[1]);
}

#[test]
fn a_faulty_link_is_refused_and_nothing_has_changed() {
    let mut world = World::three();
    let before = world.middle().addresses().to_vec();
    let mut refused = |change: fn(&mut pagewire_stack::LinkConfig)| {
        let mut link = link(able(9), &["10.0.2.1/24"]);
        change(&mut link);
        let error = world.stacks[MIDDLE].add_link(world.now, &link).unwrap_err().to_string();
        assert_eq!(world.middle().addresses(), before, "{error}");
        error
    };
    assert!(refused(|l| l.addresses = vec!["10.0.0.1/8".parse().unwrap()]).contains("twice"));
    assert!(refused(|l| l.addresses.clear()).contains("at least one"));
    assert!(refused(|l| l.gateways = vec![ip("10.0.0.2")]).contains("10.0.0.2"), "another's");
    assert!(refused(|l| l.capabilities.mtu = 100).contains("576"));
    let mut added = 2;
    let error = loop {
        let network = format!("10.9.{added}.1/24");
        match world.stacks[MIDDLE].add_link(world.now, &link(able(9), &[&network])) {
            Ok(_) => added += 1,
            Err(error) => break error.to_string(),
        }
    };
    assert_eq!(added, pagewire_stack::limits::MAX_LINKS);
    assert!(error.contains("links"), "{error}");
}

#[test]
fn a_removed_link_takes_its_addresses_routes_and_packets_along() {
    let mut world = World::three();
    let (near, _far) = world.connect((MIDDLE, RIGHT), addr("10.0.1.2:80"));
    let east = world.link(1);
    // These wait for a neighbour.
    let id = world.middle().bind_udp(addr("0.0.0.0:0"), BindOptions::default()).unwrap();
    world.stacks[MIDDLE].send_to(world.now, id, b"x", Some(addr("10.0.1.77:1"))).unwrap();
    assert!(world.middle().remove_link(east));
    assert!(!world.middle().remove_link(east), "only once");
    let lost = world.drops(MIDDLE, DropReason::LinkRemoved);
    assert_eq!(lost, 2, "the datagram, and the question who has its address");
    assert_eq!(world.middle().links().count(), 1);
    assert_eq!(world.middle().link_addresses(east).count(), 0);
    let gone = world.stacks[MIDDLE].connect(world.now, addr("10.0.1.2:80"), None);
    assert_eq!(gone, Err(Error::NetworkUnreachable));
    // Frames of a removed link are dropped and counted.
    let frame = pagewire_mem::PacketBuf::for_rx();
    world.stacks[MIDDLE].handle_frame_on(world.now, east, frame);
    assert_eq!(world.drops(MIDDLE, DropReason::LinkRemoved), lost + 1);
    // The connection finds no way out, and ends as if nobody answered.
    world.stacks[MIDDLE].send(world.now, near, b"anybody there?").unwrap();
    world.run(Duration::from_secs(3600));
    assert!(world.middle().take_error(near).is_some());
    world.pages_are_conserved();
    // Another link in its place is another link.
    let again = world.stacks[MIDDLE].add_link(world.now, &link(able(3), &["10.0.1.1/24"])).unwrap();
    assert!(again != east && again.index() == east.index());
    assert_eq!(world.middle().link_addresses(east).count(), 0);
}

#[test]
fn a_device_that_takes_nothing_does_not_hold_up_the_others() {
    let mut world = World::three();
    let (west, left) = world.connect((MIDDLE, LEFT), addr("10.0.0.2:80"));
    let (east, right) = world.connect((MIDDLE, RIGHT), addr("10.0.1.2:80"));
    world.set_stuck(WEST, true);
    let now = world.now;
    let sent = world.middle().send(now, west, &[1; 200_000]).unwrap();
    world.exchange((MIDDLE, east), (RIGHT, right), 300_000);
    world.set_stuck(WEST, false);
    let mut received = 0;
    world.until("the rest", |w| {
        while let Ok(n) = w.stacks[LEFT].recv(w.now, left, &mut [0; 4096]) {
            received += n;
        }
        received == sent
    });
}

#[test]
fn connections_wait_for_a_device_that_takes_nothing_instead_of_filling_its_queue() {
    const CONNECTIONS: usize = 60;
    const LEN: usize = 12_000;
    let mut world = World::three_with(middle(), plain, plain);
    let ends = world.connections(CONNECTIONS);
    world.set_stuck(WEST, true);
    let now = world.now;
    for &(near, _) in &ends {
        assert_eq!(world.middle().send(now, near, &[1; LEN]), Ok(LEN));
    }
    // Another link's turn makes output for all, again and again.
    world.run(Duration::from_millis(100));
    let west = world.link(0);
    let (now, mut frames) = (world.now, std::collections::VecDeque::new());
    let more = world.middle().poll_transmit_on(now, west, &mut frames);
    let most = CONGESTED_FRAMES + SEGMENTS_PER_CONNECTION;
    assert!((CONGESTED_FRAMES..=most).contains(&frames.len()), "{} frames wait", frames.len());
    assert!(more, "those that waited have their turn now");
    // (What was taken here is lost, and sent again.)
    world.set_stuck(WEST, false);
    let mut received = 0;
    world.until("everything", |w| {
        for &(_, far) in &ends {
            while let Ok(n) = w.stacks[LEFT].recv(w.now, far, &mut [0; 4096]) {
                received += n;
            }
        }
        received == CONNECTIONS * LEN
    });
    assert_eq!(world.drops(MIDDLE, DropReason::OutQueueFull), 0);
}
