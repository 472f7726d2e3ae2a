//! A guest's stack, a gateway's stack with a resolver, and resolvers of the real kernel on the
//! loopback address. The stacks' time is virtual; what the kernel does is waited for.

use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use pagewire::services::{Event, Instant, RecvFlags, SendFlags, SocketBind, Stack, TcpId, UdpId};
use pagewire_testkit::frames::dns_query as query;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use simple_dns::rdata::{A, CNAME, RData, SVCB, SVCParam};
use simple_dns::{CLASS, Packet, RCODE, ResourceRecord};

use super::{DeniedName, DnsConfig, DnsServer, Resolver};
use crate::limits::{
    DENIED_NAMES, DNS_ADDRESSES, DNS_BURST, DNS_CLIENT_TIME, DNS_CLIENTS, DNS_DENIED,
    DNS_IN_FLIGHT, DNS_QUERY, DNS_TIME, DNS_TRY_TIME,
};
use crate::policy::Rules;
use crate::world::{carry, stack};

const GATEWAY: &str = "10.0.2.2:53";

/// Longest wait for the real kernel.
const REAL: Duration = Duration::from_secs(10);

struct World {
    guest: Stack,
    gateway: Stack,
    server: DnsServer,
    now: Instant,
}

fn config(resolvers: &[SocketAddr]) -> DnsConfig {
    DnsConfig {
        on: vec!["10.0.2.2".parse().unwrap(), "fd00:2::2".parse().unwrap()],
        resolver: Resolver::At(resolvers.to_vec()),
        ..DnsConfig::default()
    }
}

/// As [`config`], with a rule that denies this.
fn denying(rule: &str, resolvers: &[SocketAddr]) -> DnsConfig {
    let rules = Rules::default().deny(rule.parse().unwrap());
    DnsConfig { rules: Arc::new(rules), ..config(resolvers) }
}

impl World {
    fn new(config: DnsConfig) -> Self {
        let guest = stack(15, ["10.0.2.15/24", "fd00:2::15/64"], |_| {});
        let mut gateway = stack(2, ["10.0.2.2/24", "fd00:2::2/64"], |_| {});
        let server = DnsServer::open(&mut gateway, config).unwrap();
        Self { guest, gateway, server, now: Instant::from_millis(1000) }
    }

    /// Carries frames and events until nothing more happens.
    fn settle(&mut self) {
        for _ in 0..1000 {
            let carried = carry(self.now, &mut self.guest, &mut self.gateway)
                + carry(self.now, &mut self.gateway, &mut self.guest);
            while self.guest.poll_event().is_some() {}
            let mut events: Vec<Event> = Vec::new();
            events.extend(std::iter::from_fn(|| self.gateway.poll_event()));
            let due = self.server.poll_timeout().is_some_and(|at| at <= self.now);
            if carried == 0
                && events.is_empty()
                && !due
                && !is_readable(&self.server, Duration::ZERO)
            {
                return;
            }
            self.server.turn(self.now, &mut self.gateway, &events);
            self.guest.end_turn();
            self.gateway.end_turn();
        }
        panic!("it never settles");
    }

    fn wait(&mut self) {
        assert!(is_readable(&self.server, REAL), "no resolver answered");
        self.settle();
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.guest.handle_timeout(self.now);
        self.gateway.handle_timeout(self.now);
        self.settle();
    }

    fn socket(&mut self) -> UdpId {
        self.guest.bind_udp("0.0.0.0:0".parse().unwrap(), SocketBind::default()).unwrap()
    }

    fn send(&mut self, socket: UdpId, message: &[u8]) {
        let to: SocketAddr = GATEWAY.parse().unwrap();
        self.guest.udp(socket).unwrap().send(self.now, message, Some(to)).unwrap();
        self.settle();
    }

    fn ask(&mut self, socket: UdpId, id: u16, name: &str, kind: u16) {
        self.send(socket, &query(id, name, kind));
    }

    fn answer(&mut self, socket: UdpId) -> Option<Vec<u8>> {
        let mut buffer = [0; 4096];
        let taken = self.guest.udp(socket).unwrap().recv(&mut buffer[..], RecvFlags::empty());
        taken.ok().map(|(n, _)| buffer[..n].to_vec())
    }

    fn rcode(&mut self, socket: UdpId) -> Option<RCODE> {
        let answer = self.answer(socket)?;
        Some(Packet::parse(&answer).unwrap().rcode())
    }

    fn client(&mut self) -> TcpId {
        let id = self.guest.connect(self.now, GATEWAY.parse().unwrap(), None).unwrap();
        self.settle();
        id
    }

    /// The bytes received on a connection; `None`: it is over.
    fn read(&mut self, id: TcpId) -> Option<Vec<u8>> {
        let mut buffer = [0; 4096];
        match self.guest.tcp(id).unwrap().recv(self.now, &mut buffer[..], RecvFlags::empty()) {
            Ok(0) => None,
            Ok(n) => Some(buffer[..n].to_vec()),
            Err(pagewire::services::Error::WouldBlock) => Some(Vec::new()),
            Err(_) => None,
        }
    }

    fn write(&mut self, id: TcpId, bytes: &[u8]) {
        self.guest.tcp(id).unwrap().send(self.now, bytes, SendFlags::empty()).unwrap();
        self.settle();
    }
}

fn is_readable(server: &DnsServer, wait: Duration) -> bool {
    let fd = server.wait_fd();
    let time = Timespec { tv_sec: wait.as_secs() as _, tv_nsec: wait.subsec_nanos() as _ };
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, Some(&time)).unwrap() > 0
}

fn with_length(message: &[u8]) -> Vec<u8> {
    [&(message.len() as u16).to_be_bytes(), message].concat()
}

fn reply(message: &[u8], address: [u8; 4]) -> Vec<u8> {
    reply_of(message, &[address])
}

fn reply_of(message: &[u8], addresses: &[[u8; 4]]) -> Vec<u8> {
    let packet = Packet::parse(message).unwrap();
    let name = packet.questions[0].qname.clone();
    let mut reply = packet.clone().into_reply();
    for address in addresses {
        let data = RData::A(A { address: u32::from_be_bytes(*address) });
        reply.answers.push(ResourceRecord::new(name.clone(), CLASS::IN, 60, data));
    }
    reply.build_bytes_vec_compressed().unwrap()
}

struct Fake(UdpSocket);

impl Fake {
    fn new() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(REAL)).unwrap();
        Self(socket)
    }

    fn address(&self) -> SocketAddr {
        self.0.local_addr().unwrap()
    }

    fn next(&self) -> (Vec<u8>, SocketAddr) {
        let mut buffer = [0; 4096];
        let (n, from) = self.0.recv_from(&mut buffer).expect("a query");
        (buffer[..n].to_vec(), from)
    }

    fn answer(&self, address: [u8; 4]) {
        let (message, from) = self.next();
        self.0.send_to(&reply(&message, address), from).unwrap();
    }

    fn is_silent(&self) -> bool {
        self.0.set_nonblocking(true).unwrap();
        let silent = self.0.recv_from(&mut [0; 1]).is_err();
        self.0.set_nonblocking(false).unwrap();
        silent
    }
}

/// A resolver, a world that asks it, and a socket of the guest's.
fn with_resolver() -> (Fake, World, UdpId) {
    let fake = Fake::new();
    let mut world = World::new(config(&[fake.address()]));
    let socket = world.socket();
    (fake, world, socket)
}

fn names_of(world: &mut World, address: &str) -> Vec<String> {
    let address: IpAddr = address.parse().unwrap();
    world.server.names().of(world.now, address).iter().map(|name| name.to_string()).collect()
}

#[test]
fn a_query_is_forwarded_and_what_it_says_is_remembered() {
    let (fake, mut world, socket) = with_resolver();
    world.ask(socket, 7, "www.Example.org", 1);
    assert_eq!(world.answer(socket), None);
    fake.answer([192, 0, 2, 7]);
    world.wait();
    let answer = world.answer(socket).unwrap();
    let packet = Packet::parse(&answer).unwrap();
    assert_eq!(packet.id(), 7);
    assert_eq!(packet.answers.len(), 1);
    assert_eq!(names_of(&mut world, "192.0.2.7"), ["www.example.org"]);
    assert_eq!(world.server.counters().answered, 1);
    assert_eq!(world.server.poll_timeout(), None);
}

#[test]
fn identifiers_and_ports_are_not_the_guests_and_differ() {
    let (fake, mut world, socket) = with_resolver();
    let mut seen = std::collections::BTreeSet::new();
    for id in 0..16 {
        world.ask(socket, 7, &format!("n{id}.org"), 1);
        let (message, from) = fake.next();
        seen.insert((message[0], message[1], from.port()));
        assert_eq!(message[2..], query(7, &format!("n{id}.org"), 1)[2..]);
    }
    assert!(seen.len() > 14, "{seen:?}");
    assert!(!seen.iter().all(|(high, low, _)| (*high, *low) == (0, 7)));
}

#[test]
fn by_tcp_several_queries_of_one_connection_are_answered_in_turn() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut world = World::new(config(&[listener.local_addr().unwrap()]));
    let client = world.client();
    let both = [with_length(&query(1, "a.org", 1)), with_length(&query(2, "b.org", 1))].concat();
    // In two pieces: a message may come in any.
    world.write(client, &both[..5]);
    world.write(client, &both[5..]);
    let resolver = std::thread::spawn(move || {
        use std::io::{Read, Write};
        for host in [1, 2] {
            let (mut stream, _) = listener.accept().unwrap();
            let mut message = [0; 2 + 12 + 7 + 4];
            stream.read_exact(&mut message).unwrap();
            let answer = with_length(&reply(&message[2..], [192, 0, 2, host]));
            stream.write_all(&answer).unwrap();
        }
    });
    // The answers may come together.
    let mut came = Vec::new();
    for (id, host) in [(1, 1), (2, 2)] {
        let answer = loop {
            if let Some((length, rest)) = came.split_first_chunk::<2>()
                && let Some(answer) = rest.get(..u16::from_be_bytes(*length).into())
            {
                break answer.to_vec();
            }
            let more = world.read(client).expect("open");
            if more.is_empty() {
                world.wait();
            }
            came.extend(more);
        };
        came.drain(..2 + answer.len());
        let packet = Packet::parse(&answer).unwrap();
        assert_eq!(packet.id(), id);
        assert_eq!(names_of(&mut world, &format!("192.0.2.{host}")).len(), 1);
    }
    resolver.join().unwrap();
    // The guest ends: the gateway does, too.
    world.guest.tcp(client).unwrap().shutdown(world.now, std::net::Shutdown::Write).unwrap();
    world.settle();
    assert_eq!(world.read(client), None);
}

#[test]
fn an_own_name_is_answered_here() {
    let fake = Fake::new();
    let mut config = config(&[fake.address()]);
    config.own.add_word("gateway", "10.0.2.2".parse().unwrap()).unwrap();
    let mut world = World::new(config);
    let socket = world.socket();
    for name in ["gateway", "GATEWAY.internal"] {
        world.ask(socket, 1, name, 1);
        let answer = world.answer(socket).unwrap();
        let packet = Packet::parse(&answer).unwrap();
        assert_eq!(packet.answers[0].rdata, RData::A(A { address: 0x0a00_0202 }));
    }
    assert!(fake.is_silent());
    assert_eq!(world.server.counters().own, 2);
    assert_eq!(names_of(&mut world, "10.0.2.2").len(), 2);
}

#[test]
fn a_forbidden_name_is_not_asked_for() {
    let fake = Fake::new();
    for (denied, code) in
        [(DeniedName::Refused, RCODE::Refused), (DeniedName::NxDomain, RCODE::NameError)]
    {
        let config = denying("*.evil.net", &[fake.address()]);
        let mut world = World::new(DnsConfig { denied, ..config });
        let socket = world.socket();
        world.ask(socket, 1, "www.evil.net", 1);
        assert_eq!(world.rcode(socket), Some(code));
        // A name that rules cannot read is none that they permit.
        world.ask(socket, 1, "www.ev il.net", 1);
        assert_eq!(world.rcode(socket), Some(code));
        assert!(fake.is_silent());
        assert_eq!(world.server.counters().denied, 2);
    }
}

#[test]
fn names_that_no_rule_is_about_are_resolved_where_a_policy_judges_flows() {
    for resolves_open in [false, true] {
        let fake = Fake::new();
        let rules = Rules::default().allow("good.net".parse().unwrap());
        let rules = Arc::new(rules.deny("*.evil.net".parse().unwrap()));
        let config = DnsConfig { rules, resolves_open, ..config(&[fake.address()]) };
        let mut world = World::new(config);
        let socket = world.socket();
        world.ask(socket, 1, "www.evil.net", 1);
        assert_eq!(world.rcode(socket), Some(RCODE::Refused), "a denial holds");
        world.ask(socket, 2, "other.net", 1);
        if resolves_open {
            fake.next();
        } else {
            assert_eq!(world.rcode(socket), Some(RCODE::Refused));
            assert!(fake.is_silent());
        }
    }
}

#[test]
fn without_resolvers_only_own_names_are_known() {
    let mut config = DnsConfig { resolver: Resolver::None, ..config(&[]) };
    config.own.add_word("gateway", "10.0.2.2".parse().unwrap()).unwrap();
    let mut world = World::new(config);
    let socket = world.socket();
    world.ask(socket, 1, "example.org", 1);
    assert_eq!(world.rcode(socket), Some(RCODE::Refused));
    world.ask(socket, 1, "gateway", 1);
    assert_eq!(world.rcode(socket), Some(RCODE::NoError));
}

#[test]
fn a_silent_resolver_is_asked_twice_and_then_given_up() {
    let (fake, mut world, socket) = with_resolver();
    world.ask(socket, 1, "example.org", 1);
    fake.next();
    world.pass(DNS_TRY_TIME - Duration::from_millis(1));
    assert!(fake.is_silent());
    world.pass(Duration::from_millis(1));
    fake.next();
    assert_eq!(world.answer(socket), None);
    world.pass(DNS_TIME - DNS_TRY_TIME);
    assert_eq!(world.rcode(socket), Some(RCODE::ServerFailure));
    assert!(fake.is_silent());
    assert_eq!(world.server.poll_timeout(), None);
    assert_eq!(world.server.counters().failed, 1);
    assert_eq!(world.server.counters().attempts_failed, 2);
}

#[test]
fn a_resolver_that_is_down_is_known_at_once_and_may_come_back() {
    let address = Fake::new().address();
    let mut world = World::new(config(&[address]));
    let socket = world.socket();
    world.ask(socket, 1, "example.org", 1);
    let mut code = world.rcode(socket);
    while code.is_none() {
        world.wait();
        code = world.rcode(socket);
    }
    assert_eq!(code, Some(RCODE::ServerFailure));
    let back = Fake(UdpSocket::bind(address).unwrap());
    back.0.set_read_timeout(Some(REAL)).unwrap();
    world.ask(socket, 2, "example.org", 1);
    back.answer([192, 0, 2, 1]);
    world.wait();
    assert_eq!(world.rcode(socket), Some(RCODE::NoError));
}

#[test]
fn the_next_resolver_is_asked_and_the_one_that_answered_stays_the_first() {
    let (silent, good) = (Fake::new(), Fake::new());
    let mut world = World::new(config(&[silent.address(), good.address()]));
    let socket = world.socket();
    world.ask(socket, 1, "example.org", 1);
    silent.next();
    world.pass(DNS_TRY_TIME);
    good.answer([192, 0, 2, 1]);
    world.wait();
    assert_eq!(world.rcode(socket), Some(RCODE::NoError));
    world.ask(socket, 2, "example.org", 1);
    good.answer([192, 0, 2, 1]);
    world.wait();
    assert_eq!(world.rcode(socket), Some(RCODE::NoError));
    assert!(silent.is_silent());
}

#[test]
fn a_resolver_that_failed_leaves_the_question_to_the_next() {
    let (bad, good) = (Fake::new(), Fake::new());
    let mut world = World::new(config(&[bad.address(), good.address()]));
    let socket = world.socket();
    let fail = |fake: &Fake| {
        let (mut message, from) = fake.next();
        (message[2], message[3]) = (0x81, 0x82);
        fake.0.send_to(&message, from).unwrap();
    };
    world.ask(socket, 1, "example.org", 1);
    fail(&bad);
    world.wait();
    fail(&good);
    world.wait();
    // Both failed: the guest gets the last answer.
    assert_eq!(world.rcode(socket), Some(RCODE::ServerFailure));
    assert_eq!(world.server.counters().answered, 1);
}

#[test]
fn an_answer_to_another_question_is_none() {
    let (fake, mut world, socket) = with_resolver();
    world.ask(socket, 1, "example.org", 1);
    let (message, from) = fake.next();
    let mut other = message.clone();
    other[13] = b'f';
    let mut forged = reply(&message, [6, 6, 6, 6]);
    forged[0] ^= 1;
    for lie in [reply(&other, [6, 6, 6, 6]), forged, message.clone(), vec![1, 2, 3]] {
        fake.0.send_to(&lie, from).unwrap();
        world.wait();
        assert_eq!(world.answer(socket), None);
    }
    assert_eq!(world.server.counters().strange, 4);
    fake.0.send_to(&reply(&message, [192, 0, 2, 1]), from).unwrap();
    world.wait();
    assert_eq!(world.rcode(socket), Some(RCODE::NoError));
    assert!(names_of(&mut world, "6.6.6.6").is_empty());
}

#[test]
fn a_stranger_cannot_answer_in_the_resolvers_place() {
    let (fake, stranger) = (Fake::new(), Fake::new());
    let mut world = World::new(config(&[fake.address()]));
    let socket = world.socket();
    world.ask(socket, 1, "example.org", 1);
    let (message, from) = fake.next();
    // The kernel refuses it: it is a message to a connected socket from somebody else.
    let _ = stranger.0.send_to(&reply(&message, [6, 6, 6, 6]), from);
    assert!(!is_readable(&world.server, Duration::from_millis(20)));
    assert_eq!(world.answer(socket), None);
}

#[test]
fn queries_on_their_way_have_a_limit_beyond_which_they_fail_at_once() {
    let (_fake, mut world, socket) = with_resolver();
    for id in 0..DNS_IN_FLIGHT as u16 {
        world.ask(socket, id, "example.org", 1);
    }
    assert_eq!(world.answer(socket), None);
    world.ask(socket, 9999, "example.org", 1);
    assert_eq!(world.rcode(socket), Some(RCODE::ServerFailure));
    // These queries end, and there is room.
    world.pass(DNS_TRY_TIME);
    world.pass(DNS_TRY_TIME);
    while world.answer(socket).is_some() {}
    world.ask(socket, 1, "example.org", 1);
    assert_eq!(world.answer(socket), None);
}

#[test]
fn nonsense_is_answered_by_an_error_or_not_at_all() {
    let (fake, mut world, socket) = with_resolver();
    let good = query(1, "example.org", 1);
    world.send(socket, &good[..20]);
    assert_eq!(world.rcode(socket), Some(RCODE::FormatError));
    world.send(socket, &[0; 3]);
    assert_eq!(world.answer(socket), None);
    let long = [good.clone(), vec![0; DNS_QUERY]].concat();
    world.send(socket, &long);
    assert_eq!(world.rcode(socket), Some(RCODE::FormatError));
    world.ask(socket, 1, "example.org", 252);
    assert_eq!(world.rcode(socket), Some(RCODE::Refused));
    // An answer to nobody's question: two resolvers must not talk to each other for ever.
    world.send(socket, &reply(&good, [6, 6, 6, 6]));
    assert_eq!(world.answer(socket), None);
    assert!(fake.is_silent());
    assert_eq!(world.server.counters().malformed, 5);
}

#[test]
fn tcp_clients_have_a_limit_and_silent_ones_a_time() {
    let mut world = World::new(config(&[]));
    let clients: Vec<TcpId> = (0..DNS_CLIENTS).map(|_| world.client()).collect();
    let more = world.client();
    assert_eq!(world.read(more), None);
    assert_eq!(world.server.counters().clients_refused, 1);
    assert!(clients.iter().all(|id| world.read(*id).is_some()));
    world.pass(DNS_CLIENT_TIME);
    assert!(clients.iter().all(|id| world.read(*id).is_none()));
    let next = world.client();
    assert!(world.read(next).is_some());
}

#[test]
fn a_query_by_tcp_that_is_too_long_ends_the_connection() {
    let mut world = World::new(config(&[]));
    let client = world.client();
    world.write(client, &0xffff_u16.to_be_bytes());
    world.write(client, &vec![0; DNS_QUERY]);
    assert_eq!(world.read(client), None);
    assert_eq!(world.server.poll_timeout(), None);
}

#[test]
fn a_closed_server_leaves_its_port_to_others() {
    let mut world = World::new(config(&[]));
    let client = world.client();
    world.server.close(world.now, &mut world.gateway);
    world.settle();
    assert_eq!(world.read(client), None);
    assert!(DnsServer::open(&mut world.gateway, config(&[])).is_ok());
}

#[test]
fn an_answer_is_for_the_connection_that_asked_and_not_for_the_next_in_its_place() {
    use std::io::{Read, Write};
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut world = World::new(config(&[listener.local_addr().unwrap()]));
    let first = world.client();
    let message = with_length(&query(1, "a.org", 1));
    world.write(first, &message);
    let (mut resolver, _) = listener.accept().unwrap();
    world.settle();
    let mut asked = vec![0; message.len()];
    resolver.read_exact(&mut asked).unwrap();
    world.guest.abort(world.now, first);
    world.settle();
    // The new client has the slot of the first one, and has asked nothing.
    let next = world.client();
    resolver.write_all(&with_length(&reply(&asked[2..], [192, 0, 2, 1]))).unwrap();
    world.wait();
    assert_eq!(world.read(next), Some(Vec::new()));
    assert_eq!((world.server.counters().answered, world.server.counters().unsent), (1, 1));
}

#[test]
fn several_silent_resolvers_take_no_longer_than_one() {
    let fakes = [Fake::new(), Fake::new(), Fake::new()];
    let mut world = World::new(config(&fakes.each_ref().map(Fake::address)));
    let socket = world.socket();
    world.ask(socket, 1, "example.org", 1);
    let (mut passed, mut code) = (Duration::ZERO, None);
    while code.is_none() && passed <= DNS_TIME + DNS_TRY_TIME {
        world.pass(DNS_TRY_TIME);
        passed += DNS_TRY_TIME;
        code = world.rcode(socket);
    }
    assert_eq!((code, passed), (Some(RCODE::ServerFailure), DNS_TIME));
    assert!(fakes[2].is_silent());
}

#[test]
fn queries_have_a_rate_beyond_which_they_fail_at_once() {
    let (fake, mut world, socket) = with_resolver();
    for id in 0..DNS_BURST as u16 {
        world.ask(socket, id, "example.org", 1);
        fake.answer([192, 0, 2, 1]);
        world.wait();
        assert_eq!(world.rcode(socket), Some(RCODE::NoError), "{id}");
    }
    world.ask(socket, 9999, "example.org", 1);
    assert_eq!(world.rcode(socket), Some(RCODE::ServerFailure));
    assert!(fake.is_silent());
    world.pass(Duration::from_millis(10));
    world.ask(socket, 1, "example.org", 1);
    fake.next();
}

#[test]
fn refused_names_are_told_and_those_beyond_counted() {
    let mut world = World::new(denying("*.evil.net", &[]));
    let socket = world.socket();
    world.ask(socket, 1, "www.evil.net", 1);
    world.ask(socket, 1, "www.ev il.net", 1);
    let (names, more) = world.server.take_refused();
    assert_eq!((names[0].as_ref().unwrap().as_str(), &names[1], more), ("www.evil.net", &None, 0));
    for id in 0..DNS_DENIED as u16 + 5 {
        world.ask(socket, id, "www.evil.net", 1);
    }
    let (names, more) = world.server.take_refused();
    assert_eq!((names.len(), more), (DNS_DENIED, 5));
    assert_eq!(world.server.take_refused(), Default::default());
}

/// Asks, and answers as `make` does; returns the answer that the guest gets.
fn answer_by(
    world: &mut World,
    fake: &Fake,
    (name, kind): (&str, u16),
    make: impl Fn(&[u8]) -> Vec<u8>,
) -> Vec<u8> {
    let socket = world.socket();
    world.ask(socket, 1, name, kind);
    let (message, from) = fake.next();
    fake.0.send_to(&make(&message), from).unwrap();
    world.wait();
    world.answer(socket).unwrap()
}

#[test]
fn keys_by_which_clients_would_hide_names_are_left_out_where_names_count() {
    let service = |mandatory: &[u16]| {
        let mut it = SVCB::new(1, simple_dns::Name::new(".").unwrap());
        it.set_param(SVCParam::Port(8443));
        it.set_param(SVCParam::Ech(vec![1, 2, 3].into()));
        if !mandatory.is_empty() {
            it.set_mandatory(mandatory.iter().copied());
        }
        it
    };
    let record = |data| {
        let name = simple_dns::Name::new("www.good.net").unwrap();
        ResourceRecord::new(name, CLASS::IN, 60, data)
    };
    let make = |message: &[u8]| {
        let mut reply = Packet::parse(message).unwrap().into_reply();
        reply.set_flags(simple_dns::PacketFlag::AUTHENTIC_DATA);
        reply.answers.push(record(RData::A(A { address: 0xc000_0201 })));
        reply.answers.push(record(RData::HTTPS(service(&[]).into())));
        reply.answers.push(record(RData::SVCB(service(&[3, 5]))));
        reply.name_servers.push(record(RData::SVCB(service(&[3]))));
        reply.additional_records.push(record(RData::HTTPS(service(&[]).into())));
        reply.build_bytes_vec_compressed().unwrap()
    };
    // For each kind of question and rules: parameters, and the numbers of records.
    let seen = |rules: Rules, kind: u16| {
        let fake = Fake::new();
        let mut world = World::new(DnsConfig { rules: rules.into(), ..config(&[fake.address()]) });
        let bytes = answer_by(&mut world, &fake, ("www.good.net", kind), make);
        let packet = Packet::parse(&bytes).unwrap();
        let sections = [&packet.answers, &packet.name_servers, &packet.additional_records];
        let has_keys = |record: &ResourceRecord<'_>| match &record.rdata {
            RData::SVCB(it) => it.get_param(5).is_some(),
            RData::HTTPS(it) => it.get_param(5).is_some(),
            _ => false,
        };
        let keys = sections.iter().flat_map(|all| all.iter()).filter(|it| has_keys(it)).count();
        let is_signed = packet.has_flags(simple_dns::PacketFlag::AUTHENTIC_DATA);
        (sections.map(Vec::len), keys, is_signed)
    };
    let allow = |rule: &str| Rules::default().allow(rule.parse().unwrap());
    for kind in [1, 64, 65, 255] {
        let bare = ([2, 1, 1], 0, false);
        for rules in [
            allow("www.good.net"),
            allow("ech:*.good.net"),
            Rules::default().deny("b.org".parse().unwrap()),
            Rules::default().audit(),
        ] {
            assert_eq!(seen(rules.clone(), kind), bare, "{kind} {rules:?}");
        }
        for rules in [Rules::default(), allow("0.0.0.0/0"), allow("tcp:www.good.net")] {
            assert_eq!(seen(rules.clone(), kind), ([3, 1, 1], 4, true), "{kind} {rules:?}");
        }
    }
}

#[test]
fn a_question_about_a_service_at_a_port_is_judged_by_the_name_of_its_host() {
    let rules = Rules::default().allow("www.good.net".parse().unwrap());
    for (question, is_asked) in [
        (("_8443._https.www.good.net", 65), true),
        (("_8443._https.www.evil.net", 65), false),
        (("_8443._https.www.good.net", 1), false),
        (("_data._https.www.good.net", 65), false),
        (("_99999._https.www.good.net", 65), false),
        (("x._8443._https.www.good.net", 65), false),
    ] {
        let fake = Fake::new();
        let rules = rules.clone().into();
        let mut world = World::new(DnsConfig { rules, ..config(&[fake.address()]) });
        let socket = world.socket();
        world.ask(socket, 1, question.0, question.1);
        assert_eq!(!fake.is_silent(), is_asked, "{question:?}");
        let (refused, _) = world.server.take_refused();
        let refused: Vec<&str> = refused.iter().flatten().map(|name| name.as_str()).collect();
        let expected = match question {
            ("_8443._https.www.evil.net", 65) => vec!["www.evil.net"],
            (name, _) if !is_asked => vec![name],
            _ => vec![],
        };
        assert_eq!(refused, expected);
    }
}

#[test]
fn an_answer_that_may_lead_past_a_denial_is_withheld() {
    let fake = Fake::new();
    let mut world = World::new(denying("*.evil.net:25", &[fake.address()]));
    let with = |name: &'static str, data: RData<'static>| {
        move |message: &[u8]| {
            let mut reply = Packet::parse(message).unwrap().into_reply();
            let name = simple_dns::Name::new(name).unwrap();
            reply.answers.push(ResourceRecord::new(name, CLASS::IN, 60, data.clone()));
            reply.build_bytes_vec_compressed().unwrap()
        }
    };
    let https = |target: &'static str| {
        RData::HTTPS(SVCB::new(1, simple_dns::Name::new(target).unwrap()).into())
    };
    let alias = RData::CNAME(CNAME(simple_dns::Name::new("a.evil.net").unwrap()));
    // Cut in its only record.
    let cut = |message: &[u8]| {
        let mut bytes = reply(message, [192, 0, 2, 1]);
        bytes.truncate(bytes.len() - 3);
        bytes
    };
    let cut_by_udp = |message: &[u8]| {
        let mut bytes = cut(message);
        bytes[2] |= 2;
        bytes
    };
    let mut ask = |question: (&str, u16), make: &dyn Fn(&[u8]) -> Vec<u8>| {
        let bytes = answer_by(&mut world, &fake, question, make);
        let packet = Packet::parse(&bytes).unwrap();
        (packet.rcode(), packet.answers.len(), bytes[2] & 2 != 0)
    };
    // Hints for a service are left out, and the name is still answered.
    let nothing = (RCODE::NoError, 0, false);
    assert_eq!(ask(("www.evil.net", 65), &with("www.evil.net", https("."))), nothing);
    assert_eq!(ask(("www.good.net", 65), &with("www.good.net", https("www.evil.net"))), nothing);
    let whole = (RCODE::NoError, 1, false);
    assert_eq!(ask(("www.good.net", 65), &with("www.good.net", https("."))), whole);
    // No address is an answer, too.
    assert_eq!(ask(("www.evil.net", 28), &with("www.evil.net", alias)), whole);
    assert_eq!(ask(("www.evil.net", 1), &cut), (RCODE::Refused, 0, false));
    assert_eq!(ask(("www.evil.net", 1), &cut_by_udp), (RCODE::NoError, 0, true));
    // The aliases of an answer that cannot be read are not known.
    assert_eq!(ask(("www.good.net", 1), &cut), (RCODE::Refused, 0, false));
}

#[test]
fn without_denials_of_names_every_answer_is_passed_on() {
    let fake = Fake::new();
    let mut world = World::new(config(&[fake.address()]));
    let cut = |message: &[u8]| reply(message, [192, 0, 2, 1])[..message.len() + 5].to_vec();
    let answer = answer_by(&mut world, &fake, ("www.evil.net", 1), cut);
    assert!(Packet::parse(&answer).is_err());
}

#[test]
fn a_denial_of_all_names_needs_no_memory() {
    let fake = Fake::new();
    let mut world = World::new(denying("*:25", &[fake.address()]));
    let name = "full.net".parse().unwrap();
    let all = (0..DENIED_NAMES as u32).map(|n| IpAddr::V4(n.into()));
    world.server.names().deny(&name, all, |_| false).unwrap();
    assert_eq!(rcode_for(&mut world, &fake, "mx.evil.net", &[[192, 0, 2, 1]]), RCODE::NoError);
    assert_eq!(world.server.counters().denials_full, 0);
}

/// Asks for a name, and answers with these addresses; returns the code that the guest gets.
fn rcode_for(world: &mut World, fake: &Fake, name: &str, addresses: &[[u8; 4]]) -> RCODE {
    let answer = answer_by(world, fake, (name, 1), |message| reply_of(message, addresses));
    Packet::parse(&answer).unwrap().rcode()
}

#[test]
fn a_name_with_a_denial_is_told_as_long_as_its_addresses_can_be_remembered() {
    let fake = Fake::new();
    let mut world = World::new(denying("*.evil.net:25", &[fake.address()]));
    let address = |n: usize| (0xc633_0000_u32 + n as u32).to_be_bytes();
    assert_eq!(rcode_for(&mut world, &fake, "mx.evil.net", &[address(0)]), RCODE::NoError);
    assert_eq!(world.server.names().denied(address(0).into()).len(), 1);
    // Another name of the same denial needs no room.
    assert_eq!(rcode_for(&mut world, &fake, "mx2.evil.net", &[address(0)]), RCODE::NoError);
    assert_eq!(world.server.names().denied(address(0).into()).len(), 1);
    // The answer has more addresses than are read.
    let many: Vec<[u8; 4]> = (1..=DNS_ADDRESSES + 1).map(address).collect();
    assert_eq!(rcode_for(&mut world, &fake, "many.evil.net", &many), RCODE::Refused);
    assert_eq!(rcode_for(&mut world, &fake, "many.good.net", &many), RCODE::NoError);
    let name = "mx.evil.net".parse().unwrap();
    let all = (1000..).map(|n| address(n).into());
    let _ = world.server.names().deny(&name, all.take(DENIED_NAMES), |_| false);
    assert_eq!(world.server.counters().denials_full, 0);
    assert_eq!(rcode_for(&mut world, &fake, "last.evil.net", &[address(9)]), RCODE::Refused);
    assert_eq!(world.server.counters().denials_full, 1);
    assert_eq!(rcode_for(&mut world, &fake, "last.good.net", &[address(9)]), RCODE::NoError);
}
