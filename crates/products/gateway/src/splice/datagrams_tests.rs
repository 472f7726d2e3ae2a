//! Clients of ports for datagrams, by sockets of the real kernel on this machine's loopback.

use std::cell::RefCell;
use std::net::UdpSocket;
use std::sync::atomic::AtomicUsize;

use super::*;
use crate::request::{GuestId, Protocol};

/// Makes ordinary sockets, and watches none: the tests say which are ready.
#[derive(Default)]
struct Made(RefCell<Vec<(usize, u32)>>);

impl Sockets for Made {
    fn open(&self, _: Far, _: bool) -> io::Result<OwnedFd> {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.set_nonblocking(true)?;
        Ok(socket.into())
    }

    fn watch_port(&self, _: usize, _: u32, _: &OwnedFd) -> io::Result<()> {
        Ok(())
    }

    fn watch_client(&self, slot: usize, serial: u32, _: &OwnedFd) -> io::Result<()> {
        self.0.borrow_mut().push((slot, serial));
        Ok(())
    }
}

/// A port whose service is at this address. Its clients have addresses of documentation.
struct World {
    datagrams: Datagrams,
    shared: Arc<Shared>,
    made: Made,
    port: usize,
    serial: u32,
    now: Instant,
}

fn world(to: SocketAddr, direction: Direction) -> World {
    let shared = Arc::<Shared>::default();
    let share = DescriptorShare { all: 10_000, guests: Arc::new(AtomicUsize::new(1)) };
    let mut datagrams = Datagrams::new(share, Arc::default(), Arc::clone(&shared), None);
    let made = Made::default();
    let socket: OwnedFd = UdpSocket::bind("127.0.0.1:0").unwrap().into();
    let mut ask = Ask::new(GuestId(1), Protocol::Udp, to, to);
    ask.direction = direction;
    let (reads, far) = (false, Far::Outside);
    let this = DatagramPort { number: 1, socket, _own: None, reads, to: (to, None), far, ask };
    let port = datagrams.serve(this, 1, &made).unwrap();
    World { datagrams, shared, made, port, serial: 1, now: Instant::now() }
}

impl World {
    /// A request of a client, and its answer.
    fn exchange(&mut self, service: &UdpSocket, client: u16) {
        assert!(self.ask(client));
        answer_one(service);
        self.take_answers(client);
    }

    fn ask(&mut self, client: u16) -> bool {
        let from = address(client);
        let World { datagrams, made, port, serial, now, .. } = self;
        datagrams.pass_on(*port, from, b"?", *now, made, serial);
        self.has(client)
    }

    fn has(&self, client: u16) -> bool {
        self.datagrams.by_address.contains_key(&(self.port, address(client)))
    }

    /// Takes the answers to this client.
    fn take_answers(&mut self, client: u16) {
        let at = self.datagrams.by_address[&(self.port, address(client))];
        let serial = self.datagrams.clients[at].serial;
        assert_eq!(self.datagrams.answer((at, serial), self.now), Left::Nothing);
        assert!(self.datagrams.clients[at].was_answered);
    }
}

fn address(client: u16) -> SocketAddr {
    ([192, 0, 2, 1], 1000 + client).into()
}

fn service() -> (UdpSocket, SocketAddr) {
    let service = UdpSocket::bind("127.0.0.1:0").unwrap();
    let at = service.local_addr().unwrap();
    (service, at)
}

fn answer_one(service: &UdpSocket) {
    let (_, from) = service.recv_from(&mut [0; 9]).unwrap();
    service.send_to(b"!", from).unwrap();
}

const ALL: u16 = UDP_PEERS as u16;

#[test]
fn clients_without_an_answer_make_room_and_others_stay() {
    let (service, at) = service();
    let mut world = world(at, Direction::In);
    world.exchange(&service, 0);
    for client in 1..2 * ALL {
        assert!(world.ask(client), "{client}");
    }
    assert!(world.has(0), "it talks");
    assert!(!world.has(1), "the oldest of those without an answer");
    assert_eq!(world.datagrams.clients.len(), UDP_PEERS);
    assert_eq!(world.shared.counts.exhausted.load(Ordering::Relaxed), 0);
}

#[test]
fn clients_of_a_resolver_make_room_once_they_have_their_answer() {
    let (service, at) = service();
    let mut world = world(at, Direction::In);
    for client in 0..ALL {
        world.exchange(&service, client);
    }
    assert!(!world.ask(ALL), "all of them talk");
    assert!(!world.ask(ALL));
    for (_, client) in &mut world.datagrams.clients {
        client.to.set_port(crate::dns::PORT);
    }
    // The next answers show what they are.
    for client in 0..2 {
        world.exchange(&service, client);
    }
    assert!(world.ask(0), "it asks again");
    assert!(world.ask(ALL));
    assert!(world.has(0) && !world.has(1));
    let World { datagrams, now, .. } = &mut world;
    datagrams.sweep(*now + UDP_DNS);
    assert!(datagrams.clients.len() <= 2, "they wait for an answer");
}

#[test]
fn those_that_were_silent_for_long_make_room_together() {
    let (service, at) = service();
    let mut world = world(at, Direction::In);
    for client in 0..ALL {
        world.exchange(&service, client);
    }
    assert!(!world.ask(ALL));
    world.now += UDP_LEAST;
    assert!(world.ask(1) && world.ask(ALL));
    assert_eq!(world.datagrams.clients.len(), 2);
}

#[test]
fn a_guest_has_new_destinations_at_their_rate() {
    let (_service, at) = service();
    let mut world = world(at, Direction::Out);
    let burst = DESTINATIONS_BURST as u16;
    let opened = (0..burst + 100).filter(|client| world.ask(*client)).count();
    assert!((burst.into()..=usize::from(burst) + 1).contains(&opened), "{opened}");
    let refused = world.shared.counts.destinations_refused.load(Ordering::Relaxed);
    assert!(refused >= 99, "{refused}");
    world.now += Duration::from_secs(1);
    assert!(world.ask(burst + 100));
}

#[test]
fn both_threads_take_descriptors_of_one_share() {
    let (_service, at) = service();
    let mut world = world(at, Direction::In);
    world.shared.others.store(9_998, Ordering::Relaxed);
    assert!(world.ask(0));
    // There is room for one, which the next one takes.
    assert!(world.ask(1) && !world.has(0));
    world.shared.others.store(0, Ordering::Relaxed);
    assert!(world.ask(0) && world.has(1));
}

#[test]
fn a_message_of_several_datagrams_is_taken_apart() {
    let (service, at) = service();
    let mut world = world(at, Direction::In);
    let mut room = [0; 9];
    for (bytes, segment, parts) in [
        (&b"aabbc"[..], Some(2), &[&b"aa"[..], b"bb", b"c"][..]),
        (b"aabbc", None, &[b"aabbc"]),
        (b"", None, &[b""]),
    ] {
        let datagram = Datagram { guest: at, from: address(0), bytes: bytes.to_vec(), segment };
        let World { datagrams, made, serial, now, .. } = &mut world;
        datagrams.pass_diverted(&datagram, *now, made, serial);
        for part in parts {
            let n = service.recv(&mut room).unwrap();
            assert_eq!(room[..n], **part);
        }
    }
}
