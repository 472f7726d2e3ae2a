//! Endpoints with sockets of the real kernel, on loopback addresses. The stacks' time is virtual.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use pagewire::services::{RecvFlags, SocketBind, UdpId};

use super::endpoint::Counts;
use crate::limits::{DESTINATIONS_BURST, UDP_ASKING, UDP_IDLE, UDP_PEERS, UDP_SWEEP};
use crate::policy::Rules;
use crate::publish::Publish;
use crate::request::{Ask, Direction, Verdict};
use crate::world::{Settings, World};

/// Leads each of these addresses to the loopback, and allows nothing else.
fn to_loopback(ask: &Ask) -> Option<Verdict> {
    let to = SocketAddr::from(([127, 0, 0, 1], ask.to.port()));
    Some(if ask.to == to { Verdict::Allow } else { Verdict::To(to) })
}

fn send(world: &mut World, socket: UdpId, to: SocketAddr) {
    // A report about an earlier datagram fails a call.
    while world.guest.udp(socket).unwrap().send(world.now, b"x", Some(to)).is_err() {}
    world.settle();
}

/// A world whose judge leads to the loopback, a socket of its guest, and a far end.
fn to_one_far_end() -> (World, UdpId, UdpSocket) {
    let judge = Some(Arc::new(to_loopback) as _);
    let mut world = World::new(Settings { judge, ..Settings::default() });
    let any = "0.0.0.0:0".parse().unwrap();
    let socket = world.guest.bind_udp(any, SocketBind::default()).unwrap();
    (world, socket, UdpSocket::bind("127.0.0.1:0").unwrap())
}

/// A guest's service whose port is published, and where clients find it.
fn published(world: &mut World) -> (UdpId, SocketAddr) {
    let local = "10.0.2.15:5353".parse().unwrap();
    let service = world.guest.bind_udp(local, SocketBind::default()).unwrap();
    let what: Publish = "127.0.0.1:0:5353/udp".parse().unwrap();
    let opened = what.open().unwrap();
    let there = opened[0].address().unwrap();
    world.relay.publish(world.now, &what, opened).unwrap();
    (service, there)
}

/// Clients that ask, and what the guest's service calls them.
fn ask(
    world: &mut World,
    service: UdpId,
    clients: &[UdpSocket],
    at: SocketAddr,
) -> Vec<SocketAddr> {
    let mut asked = Vec::new();
    for client in clients {
        client.send_to(b"?", at).unwrap();
        world.settle();
        while let Ok((_, from)) =
            world.guest.udp(service).unwrap().recv(&mut [0; 9][..], RecvFlags::empty())
        {
            asked.push(from);
        }
    }
    asked
}

fn clients(n: usize) -> Vec<UdpSocket> {
    let bind = |_| {
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.set_nonblocking(true).unwrap();
        client
    };
    (0..n).map(bind).collect()
}

#[test]
fn a_closed_endpoint_gives_its_peers_back() {
    let (mut world, socket, far) = to_one_far_end();
    let port = far.local_addr().unwrap().port();
    for n in 1..=5 {
        send(&mut world, socket, SocketAddr::from(([203, 0, 113, n], port)));
    }
    assert_eq!((world.relay.udp().len(), world.relay.udp().counts.peers), (1, 5));
    world.pass(UDP_IDLE + UDP_SWEEP);
    assert_eq!((world.relay.udp().len(), world.relay.udp().counts.peers), (0, 0));
}

#[test]
fn new_destinations_have_a_rate_and_known_ones_have_none() {
    let (mut world, socket, far) = to_one_far_end();
    let port = far.local_addr().unwrap().port();
    let to = |n: u32| SocketAddr::from(((0xcb00_0000 + n).to_be_bytes(), port));
    for n in 0..DESTINATIONS_BURST + 10 {
        send(&mut world, socket, to(n));
    }
    assert_eq!(world.relay.counters().destinations_refused, 10);
    // Datagrams that were not sent have no verdict.
    assert_eq!(world.verdicts().len(), DESTINATIONS_BURST as usize);
    let before = world.relay.counters().datagrams_out;
    send(&mut world, socket, to(DESTINATIONS_BURST - 1));
    assert_eq!(world.relay.counters().datagrams_out, before + 1);
    world.pass(Duration::from_millis(10));
    send(&mut world, socket, to(DESTINATIONS_BURST + 99));
    assert_eq!(world.relay.counters().datagrams_out, before + 2);
}

#[test]
fn every_client_that_asks_before_the_guest_answers_has_its_answer() {
    let rules = Rules::default().allow("192.0.2.1".parse().unwrap());
    let mut world = World::new(Settings { rules, ..Settings::default() });
    let (service, there) = published(&mut world);
    let clients = clients(UDP_PEERS + 88);
    let asked = ask(&mut world, service, &clients, there);
    assert_eq!(asked.len(), clients.len());
    for round in 0..2 {
        for &to in &asked {
            send(&mut world, service, to);
        }
        let answered = clients.iter().filter(|client| client.recv(&mut [0; 9]).is_ok());
        assert_eq!(answered.count(), clients.len(), "round {round}");
    }
    assert!(world.verdicts().iter().all(|verdict| *verdict == Verdict::Allow));
}

#[test]
fn clients_that_have_no_answer_do_not_push_out_one_that_has() {
    let mut world = World::new(Settings::default());
    let (service, there) = published(&mut world);
    let honest = clients(1);
    let asked = ask(&mut world, service, &honest, there);
    send(&mut world, service, asked[0]);
    assert!(honest[0].recv(&mut [0; 9]).is_ok());
    let before = world.verdicts().len();
    for _ in 0..2 {
        // More than have room, of ports that come and go.
        for chunk in 0..=(UDP_ASKING / 256) {
            let forged = clients(256);
            ask(&mut world, service, &forged, there);
            let Counts { peers, new_clients } = world.relay.udp().counts;
            assert!(peers <= 1 && new_clients <= UDP_ASKING, "chunk {chunk}");
        }
        ask(&mut world, service, &honest, there);
        send(&mut world, service, asked[0]);
        assert!(honest[0].recv(&mut [0; 9]).is_ok());
    }
    assert!(world.relay.counters().clients_forgotten > 0);
    world.pass(UDP_IDLE + UDP_SWEEP);
    assert_eq!(world.relay.udp().counts, Counts { peers: 1, new_clients: 0 });
    // The flood and the client have no further records.
    assert_eq!(world.verdicts().len(), before);
}

#[test]
fn a_client_with_the_port_of_an_answered_one_has_its_own_answer() {
    let mut world = World::new(Settings::default());
    let (service, there) = published(&mut world);
    let mut both = clients(1);
    let port = both[0].local_addr().unwrap().port();
    let Ok(second) = UdpSocket::bind(("127.0.0.2", port)) else { return };
    second.set_nonblocking(true).unwrap();
    both.push(second);
    for (client, other) in [(0, 1), (1, 0), (0, 1)] {
        let asked = ask(&mut world, service, &both[client..=client], there);
        send(&mut world, service, asked[0]);
        assert!(both[client].recv(&mut [0; 9]).is_ok(), "{client}");
        assert!(both[other].recv(&mut [0; 9]).is_err(), "{other}");
    }
}

#[test]
fn what_a_published_port_sends_to_others_than_clients_is_judged() {
    let rules = Rules::default().allow("192.0.2.1".parse().unwrap());
    let judge = |ask: &Ask| (ask.direction == Direction::In).then_some(Verdict::Allow);
    let settings = Settings { rules, judge: Some(Arc::new(judge)), ..Settings::default() };
    let mut world = World::new(settings);
    let (service, _) = published(&mut world);
    send(&mut world, service, "203.0.113.1:9".parse().unwrap());
    assert_eq!(world.verdicts(), [Verdict::Prohibit]);
    assert_eq!(world.relay.counters().datagrams_out, 0);
}
