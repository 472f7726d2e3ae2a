//! Sockets that are bound to a link: they receive only what came by it, and send only by it.

use std::time::Duration;

use pagewire_stack::{
    BindOptions, ConnectOptions, DropReason, Error, LinkConfig, LinkId, ListenOptions, ListenerId,
    PortReservation, SocketOption, Stack, SynCookies, TcpId, UdpId,
};

use super::world::*;
use crate::common::Verbs;

const MS: Duration = Duration::from_millis(1);

/// A middle that passes nothing on: what comes for any of its addresses is its own.
fn host() -> World {
    let mut config = middle();
    config.ip_forwarding = false;
    let mut world = World::three_with(config, able, able);
    world.meet();
    world.watch = true;
    world
}

fn on(link: LinkId) -> BindOptions {
    BindOptions { link: Some(link), ..BindOptions::default() }
}

fn receive(stack: &mut Stack, id: UdpId) -> Option<Vec<u8>> {
    let mut buf = [0; 100];
    let (n, _) = stack.recv_from(id, &mut buf[..]).ok()?;
    Some(buf[..n].to_vec())
}

/// Sends a datagram from a peer to the middle.
fn tell(world: &mut World, from: usize, to: &str, text: &[u8]) {
    let now = world.now;
    let any = if to.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
    let id = world.stacks[from].bind_udp(addr(any), BindOptions::default()).unwrap();
    world.stacks[from].send_to(now, id, text, Some(addr(to))).unwrap();
    world.run(MS);
    world.stacks[from].close(now, id);
}

#[test]
fn datagram_sockets_of_two_links_have_the_same_address_and_get_what_came_by_theirs() {
    for (any, west, east) in
        [("0.0.0.0:67", "10.0.0.1:67", "10.0.1.1:67"), ("[::]:67", "[fd00::1]:67", "[fd01::1]:67")]
    {
        let mut world = host();
        let links = [world.link(0), world.link(1)];
        let ids = links.map(|link| world.middle().bind_udp(addr(any), on(link)).unwrap());
        let taken = world.middle().bind_udp(addr(any), on(links[0]));
        assert_eq!(taken, Err(Error::AddressInUse), "twice on one link");
        assert_eq!(
            world.middle().bind_udp(addr(any), BindOptions::default()),
            Err(Error::AddressInUse),
            "on any link"
        );
        tell(&mut world, LEFT, west, b"from the left");
        // Our address, whatever link it is on: but it came by the right one.
        tell(&mut world, RIGHT, west, b"from the right");
        tell(&mut world, RIGHT, east, b"and once more");
        let stack = world.middle();
        assert_eq!(receive(stack, ids[0]).as_deref(), Some(&b"from the left"[..]));
        assert_eq!(receive(stack, ids[0]), None);
        assert_eq!(receive(stack, ids[1]).as_deref(), Some(&b"from the right"[..]));
        assert_eq!(receive(stack, ids[1]).as_deref(), Some(&b"and once more"[..]));
    }
}

#[test]
fn what_comes_by_another_link_finds_an_unbound_socket_or_nobody() {
    let mut world = host();
    let (west, any) = (world.link(0), addr("0.0.0.0:67"));
    let bound = world.middle().bind_udp(any, on(west)).unwrap();
    tell(&mut world, RIGHT, "10.0.1.1:67", b"nobody");
    assert_eq!(world.drops(MIDDLE, DropReason::UdpNoSocket), 1);
    world.middle().set_option(bound, SocketOption::Link(None)).unwrap();
    tell(&mut world, RIGHT, "10.0.1.1:67", b"somebody");
    world.middle().set_option(bound, SocketOption::Link(Some(west))).unwrap();
    tell(&mut world, RIGHT, "10.0.1.1:67", b"nobody");
    // From ourselves, it comes by no link.
    let own = world.middle().bind_udp(addr("0.0.0.0:0"), BindOptions::default()).unwrap();
    world.stacks[MIDDLE].send_to(world.now, own, b"self", Some(addr("10.0.0.1:67"))).unwrap();
    world.run(MS);
    assert_eq!(receive(world.middle(), bound).as_deref(), Some(&b"somebody"[..]));
    assert_eq!(receive(world.middle(), bound), None);
}

/// Wires on which IPv4 packets from the middle with this protocol were seen.
fn wires(world: &World, protocol: u8) -> Vec<usize> {
    let ours = |s: &&Seen| s.from == MIDDLE && s.bytes[12..14] == [8, 0] && s.bytes[23] == protocol;
    world.seen.iter().filter(ours).map(|s| s.wire).collect()
}

#[test]
fn what_is_sent_leaves_by_the_link_and_not_by_the_route_and_others_keep_to_the_route() {
    let mut world = host();
    let east = world.link(1);
    let [bound, free] = [on(east), BindOptions::default()]
        .map(|options| world.middle().bind_udp(addr("0.0.0.0:0"), options).unwrap());
    let send = |world: &mut World, id, to: &str| {
        world.stacks[MIDDLE].send_to(world.now, id, b"hello", Some(addr(to))).unwrap();
        world.run(MS);
    };
    // The limited broadcast address: all hosts on the link.
    world.middle().set_option(bound, SocketOption::Broadcast(true)).unwrap();
    send(&mut world, bound, "255.255.255.255:9");
    assert_eq!(wires(&world, 17), [EAST]);
    world.seen.clear();
    // The route leads west: nobody answers there, and others are not led astray.
    for _ in 0..3 {
        send(&mut world, bound, "10.0.0.2:9");
        send(&mut world, free, "10.0.0.2:9");
    }
    assert_eq!(wires(&world, 17), [WEST; 3]);
    let asked = |s: &&Seen| s.wire == EAST && s.bytes[12..14] == [8, 6] && s.bytes[41] == 2;
    assert!(world.seen.iter().any(|s| asked(&s) && s.bytes[38..42] == [10, 0, 0, 2]));
    // IPv6 has to have a route.
    let six = world.middle().bind_udp(addr("[::]:0"), on(east)).unwrap();
    let sent = world.stacks[MIDDLE].send_to(world.now, six, b"hello", Some(addr("[fd00::2]:9")));
    assert_eq!(sent, Err(Error::NetworkUnreachable));
}

#[test]
fn a_gateway_of_the_link_is_used_where_another_link_has_the_route() {
    // Both links lead everywhere; the first one's gateway comes first.
    let mut config = config(able(1), &["10.0.0.1/24"], &["10.0.0.2"]);
    let mut second: LinkConfig = link(able(3), &["10.0.1.1/24"]);
    second.gateways = vec![ip("10.0.1.2")];
    config.links = vec![second];
    let mut world = World::three_with(config, able, able);
    world.watch = true;
    for (at, wire) in [(0, WEST), (1, EAST)] {
        let link = world.link(at);
        let id = world.middle().bind_udp(addr("0.0.0.0:0"), on(link)).unwrap();
        for _ in 0..3 {
            world.stacks[MIDDLE]
                .send_to(world.now, id, b"hello", Some(addr("192.0.2.9:9")))
                .unwrap();
            world.run(MS);
        }
        let from = [10, 0, at as u8, 1];
        let udp = |s: &&Seen| s.from == MIDDLE && s.bytes[23] == 17 && s.bytes[26..30] == from;
        let seen: Vec<_> = world.seen.iter().filter(udp).map(|s| s.wire).collect();
        assert_eq!(seen, [wire; 3], "from its own address");
    }
}

/// A listener of the middle for port 80, and what it has the port by.
fn listen(world: &mut World, options: BindOptions) -> (PortReservation, ListenerId) {
    let any = addr("0.0.0.0:80");
    let (id, local) = world.middle().reservations().reserve(any, options).unwrap();
    let options = ListenOptions { backlog: 8, reservation: Some(id), ..Default::default() };
    (id, world.middle().listen(local, options).unwrap())
}

/// A connection from a peer to a listener of the middle on a link: what became of it, and its end.
fn knock(world: &mut World, peer: usize, to: &str, link: Option<usize>) -> Option<TcpId> {
    // Earlier connections still have the port.
    let link = link.map(|at| world.link(at));
    let options = BindOptions { reuse: true, link, ..BindOptions::default() };
    let (reservation, listener) = listen(world, options);
    let near = world.stacks[peer].connect(world.now, addr(to), None).unwrap();
    world.run(100 * MS);
    let far = world.middle().accept(listener).ok().map(|(id, _)| id);
    if let Some(far) = far {
        world.exchange((peer, near), (MIDDLE, far), 50_000);
    }
    world.stacks[MIDDLE].close(world.now, listener);
    world.middle().reservations().release(reservation);
    far
}

#[test]
fn a_listener_takes_connections_that_come_by_its_link_only() {
    let mut world = host();
    assert!(knock(&mut world, LEFT, "10.0.0.1:80", Some(0)).is_some());
    assert!(knock(&mut world, LEFT, "10.0.0.1:80", Some(1)).is_none());
    assert!(knock(&mut world, RIGHT, "10.0.1.1:80", Some(0)).is_none());
    assert!(knock(&mut world, RIGHT, "10.0.1.1:80", Some(1)).is_some());
    assert!(knock(&mut world, RIGHT, "10.0.1.1:80", None).is_some());
    world.pages_are_conserved();
}

#[test]
fn a_listener_with_cookies_keeps_to_its_link_too() {
    let mut config = middle();
    config.ip_forwarding = false;
    config.syn_cookies = SynCookies::Always;
    let mut world = World::three_with(config, able, able);
    world.meet();
    assert!(knock(&mut world, LEFT, "10.0.0.1:80", Some(0)).is_some());
    assert!(knock(&mut world, LEFT, "10.0.0.1:80", Some(1)).is_none());
}

#[test]
fn a_connection_that_is_bound_takes_and_sends_segments_by_its_link_only() {
    let mut world = host();
    let far = {
        let west = world.link(0);
        let (_, listener) = listen(&mut world, on(west));
        let near = world.stacks[LEFT].connect(world.now, addr("10.0.0.1:80"), None).unwrap();
        world.run(10 * MS);
        let (far, _) = world.middle().accept(listener).unwrap();
        world.exchange((LEFT, near), (MIDDLE, far), 10_000);
        (near, far)
    };
    let (near, far) = far;
    world.seen.clear();
    // From now on it is the other link's: what the peer says is not for it, and what it says goes
    // where nobody hears it.
    let east = world.link(1);
    world.middle().set_option(far, SocketOption::Link(Some(east))).unwrap();
    world.stacks[LEFT].send(world.now, near, b"lost").unwrap();
    world.stacks[MIDDLE].send(world.now, far, b"lost").unwrap();
    world.run(100 * MS);
    assert!(world.drops(MIDDLE, DropReason::SocketOtherLink) > 0);
    assert_eq!(wires(&world, 6), Vec::<usize>::new());
    assert_eq!(world.middle().tcp(far).map(|tcp| tcp.queued()), Ok(0));
    // And back: both sides send again what was lost.
    let west = world.link(0);
    world.middle().set_option(far, SocketOption::Link(Some(west))).unwrap();
    world.run(Duration::from_secs(10));
    assert_eq!(world.middle().tcp(far).map(|tcp| tcp.queued()), Ok(4));
    assert_eq!(world.stacks[LEFT].tcp(near).map(|tcp| tcp.queued()), Ok(4));
    // In TIME-WAIT, without an owner, it still keeps to its link.
    world.stacks[MIDDLE].recv(world.now, far, pagewire_stack::Discard(4)).unwrap();
    world.stacks[LEFT].recv(world.now, near, pagewire_stack::Discard(4)).unwrap();
    world.stacks[MIDDLE].close(world.now, far);
    world.run(10 * MS);
    world.stacks[LEFT].close(world.now, near);
    world.run(10 * MS);
    assert!(!wires(&world, 6).contains(&EAST));
    world.run(Duration::from_secs(70));
    assert_eq!(world.middle().socket_count(), 1, "only the listener is left");
}

#[test]
fn a_connection_is_opened_by_the_link_that_it_is_to_be_bound_to() {
    let mut world = host();
    world.stacks[LEFT].listen(addr("0.0.0.0:80"), 8).unwrap();
    for (at, expected) in [(0, vec![WEST]), (1, vec![])] {
        world.seen.clear();
        let by = ConnectOptions { link: Some(world.link(at)), ..Default::default() };
        let id = world.stacks[MIDDLE].connect(world.now, addr("10.0.0.2:80"), by).unwrap();
        let local = world.middle().local_addr(id).unwrap().ip();
        assert_eq!(local, ip(["10.0.0.1", "10.0.1.1"][at]), "the link's own address");
        world.run(100 * MS);
        let mut wires = wires(&world, 6);
        wires.dedup();
        assert_eq!(wires, expected);
    }
}

#[test]
fn a_link_that_is_removed_leaves_who_was_bound_to_it_with_nothing() {
    let mut world = host();
    let east = world.link(1);
    let id = world.middle().bind_udp(addr("0.0.0.0:9"), on(east)).unwrap();
    world.middle().remove_link(east);
    let sent = world.stacks[MIDDLE].send_to(world.now, id, b"x", Some(addr("10.0.0.2:9")));
    assert_eq!(sent, Err(Error::NetworkDown));
    // Another one in its place is another one.
    let again = world.stacks[MIDDLE].add_link(world.now, &link(able(3), &["10.0.1.1/24"])).unwrap();
    assert_eq!(again.scope_id(), east.scope_id());
    let sent = world.stacks[MIDDLE].send_to(world.now, id, b"x", Some(addr("10.0.0.2:9")));
    assert_eq!(sent, Err(Error::NetworkDown));
    assert_eq!(
        world.middle().set_option(id, SocketOption::Link(Some(east))),
        Err(Error::InvalidInput)
    );
    assert_eq!(world.middle().set_option(id, SocketOption::Link(Some(again))), Ok(()));
    assert_eq!(world.middle().link_name(again).as_deref(), Some("link2"));
    assert_eq!(world.middle().link_name(east), None);
}
