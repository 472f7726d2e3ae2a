//! A host of several shards: whatever shard a frame comes to, the host answers as one stack would. In `sharded/` all
//! other tests run so; here are those of the shards themselves.

use std::collections::{HashSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use pagewire_mem::{Instant, PacketBuf, RxChecksum, TxChecksum};
use pagewire_stack::limits::STRAY_BACKLOG;
use pagewire_stack::{
    Answer, BindOptions, DatagramKind, DropReason, Error, EveryPort, Flow, LinkConfig, LinkId,
    ListenOptions, ListenerId, MtuDiscover, Shard, SocketOption, Stack, StackConfig, StackError,
    Stray, SynEvent, TcpId, UdpId, Unreachable,
};

use crate::common::gateway::{gateway, guest};
use crate::common::{Verbs, addr, capabilities, config, pattern, ready};

const SERVER: &str = "10.0.0.2:80";

/// Two hosts of several shards each. Frames cross in no time.
struct World {
    hosts: [Vec<Stack>; 2],
    now: Instant,
    assign: Box<dyn FnMut(usize) -> usize>,
    /// One of so many frames is lost.
    loses: Option<usize>,
    carried: usize,
}

impl World {
    /// `assign`: the shard that a frame comes to, by the number of shards.
    fn new(shards: [usize; 2], assign: impl FnMut(usize) -> usize + 'static) -> Self {
        let hosts = [(shards[0], 1), (shards[1], 2)];
        Self::of(hosts.map(|(n, host)| (n, config(capabilities(host), host))), assign)
    }

    /// The same of hosts with these settings.
    fn of(hosts: [(usize, StackConfig); 2], assign: impl FnMut(usize) -> usize + 'static) -> Self {
        let now = Instant::from_millis(1000);
        let host = |(n, config): (usize, StackConfig)| {
            let places = Shard::all(n, &config.secret).unwrap();
            let stack = |shard| {
                let mut config = config.clone();
                (config.shard, config.memory) = (Some(shard), 16 << 20);
                Stack::new(now, config).unwrap()
            };
            places.into_iter().map(stack).collect()
        };
        let hosts = hosts.map(host);
        let mut w = Self { hosts, now, assign: Box::new(assign), loses: None, carried: 0 };
        // The hosts learn each other's link addresses, so that no burst waits for them.
        let nobody = w.hosts[0][0].connect(now, addr("10.0.0.2:1"), None).unwrap();
        w.run(Duration::from_millis(10));
        w.hosts[0][0].close(w.now, nobody);
        w
    }

    /// Lets time pass.
    fn run(&mut self, for_: Duration) {
        let limit = self.now + for_;
        loop {
            while self.exchange() {}
            let timers = self.hosts.iter().flatten().filter_map(Stack::poll_timeout);
            let Some(next) = timers.min().filter(|at| *at <= limit) else { break };
            self.now = self.now.max(next);
            for stack in self.hosts.iter_mut().flatten() {
                stack.handle_timeout(self.now);
            }
        }
        self.now = limit;
    }

    /// Carries all frames and strays that are there; whether there were any.
    fn exchange(&mut self) -> bool {
        let mut any = false;
        for from in 0..2 {
            let mut frames = VecDeque::new();
            for stack in &mut self.hosts[from] {
                while stack.poll_transmit(self.now, &mut frames) {}
            }
            for frame in frames {
                any = true;
                self.carried += 1;
                if self.loses.is_none_or(|every| !self.carried.is_multiple_of(every)) {
                    self.deliver(1 - from, frame);
                }
            }
            any |= self.pass_strays(from);
            for stack in &mut self.hosts[from] {
                while stack.poll_event().is_some() {}
                stack.end_turn();
            }
        }
        any
    }

    fn deliver(&mut self, to: usize, mut frame: PacketBuf) {
        if frame.tx_checksum != TxChecksum::Done {
            (frame.tx_checksum, frame.rx_checksum) = (TxChecksum::Done, RxChecksum::Valid);
        }
        let host = &mut self.hosts[to];
        let shard = (self.assign)(host.len());
        host[shard].handle_frame(self.now, frame);
    }

    fn pass_strays(&mut self, host: usize) -> bool {
        let mut any = false;
        for from in 0..self.hosts[host].len() {
            for (to, mut stray) in strays_of(&mut self.hosts[host][from]) {
                assert_ne!(from, to, "a stray is for another shard");
                self.hosts[host][to].handle_stray(self.now, &mut stray);
                any = true;
            }
        }
        any
    }

    /// A listener on every shard of the second host.
    fn listen_on_all(&mut self, at: &str) -> Vec<ListenerId> {
        self.hosts[1].iter_mut().map(|stack| listen_with_all(stack, addr(at)).unwrap()).collect()
    }

    /// A connection between a shard of the first host and the one of the second that accepts it.
    fn connect(&mut self, from: usize, listeners: &[ListenerId]) -> (TcpId, usize, TcpId) {
        let client = self.hosts[0][from].connect(self.now, addr(SERVER), None).unwrap();
        self.run(Duration::from_secs(5));
        let accepted = listeners.iter().enumerate().find_map(|(shard, listener)| {
            Some((shard, self.hosts[1][shard].accept(*listener).ok()?.0))
        });
        let (to, server) = accepted.expect("a shard accepts the connection");
        (client, to, server)
    }

    /// Sends a stream from a socket of one stack to one of another, each (host, shard, socket).
    fn transfer(&mut self, from: (usize, usize, TcpId), to: (usize, usize, TcpId), data: &[u8]) {
        let (mut sent, mut got, mut buf) = (0, Vec::new(), vec![0; 65_536]);
        for _ in 0..100_000 {
            let now = self.now;
            while sent < data.len()
                && let Some(n) = ready(self.hosts[from.0][from.1].send(now, from.2, &data[sent..]))
            {
                sent += n;
            }
            while let Some(n) = ready(self.hosts[to.0][to.1].recv(now, to.2, &mut buf[..])) {
                got.extend_from_slice(&buf[..n]);
            }
            if got.len() == data.len() {
                break;
            }
            self.run(Duration::from_millis(5));
        }
        assert!(got == data, "the stream is not what was sent");
    }
}

fn listen_with_all(stack: &mut Stack, at: SocketAddr) -> Result<ListenerId, Error> {
    let options = BindOptions { every_shard: true, ..BindOptions::default() };
    let (reservation, _) = stack.reservations().reserve(at, options)?;
    let options = ListenOptions { reservation: Some(reservation), ..16_384.into() };
    stack.listen(at, options)
}

fn at_place(shard: &Shard, secret: [u8; 32]) -> Result<Stack, StackError> {
    let mut config = config(capabilities(1), 1);
    (config.shard, config.secret, config.memory) = (Some(shard.clone()), secret, 1 << 20);
    Stack::new(Instant::ZERO, config)
}

/// All strays of a stack, each with its shard.
fn strays_of(stack: &mut Stack) -> Vec<(usize, Stray)> {
    let (mut all, mut strays) = (Vec::new(), VecDeque::new());
    while let Some(to) = stack.poll_strays(&mut strays) {
        all.extend(strays.drain(..).map(|stray| (to, stray)));
    }
    all
}

#[test]
fn a_stray_is_taken_by_a_connection_or_a_datagram_socket_and_by_no_listener() {
    // All frames come in at the shard without sockets.
    let mut w = World::new([1, 2], |shards| shards - 1);
    let (at, any) = (addr("10.0.0.2:7"), BindOptions::default());
    w.hosts[1][0].bind_udp(at, any).unwrap();
    let listener = w.hosts[1][0].listen(addr(SERVER), 8).unwrap();
    let passes = |w: &mut World| -> Vec<bool> {
        let mut frames = VecDeque::new();
        while w.hosts[0][0].poll_transmit(w.now, &mut frames) {}
        frames.drain(..).for_each(|frame| w.deliver(1, frame));
        let strays = strays_of(&mut w.hosts[1][1]);
        strays
            .into_iter()
            .map(|(to, mut stray)| w.hosts[1][to].handle_stray(w.now, &mut stray))
            .collect()
    };
    let socket = w.hosts[0][0].bind_udp(addr("10.0.0.1:5000"), any).unwrap();
    w.hosts[0][0].send_to(w.now, socket, &pattern(9)[..], Some(at)).unwrap();
    assert_eq!(passes(&mut w), [true], "a datagram");
    let client = w.hosts[0][0].connect(w.now, addr(SERVER), None).unwrap();
    assert_eq!(passes(&mut w), [false], "a request for a connection");
    w.run(Duration::from_secs(1));
    w.hosts[1][0].accept(listener).unwrap();
    w.hosts[0][0].send(w.now, client, &pattern(9)[..]).unwrap();
    assert_eq!(passes(&mut w), [true], "a segment of a connection");
}

#[test]
fn a_place_has_one_stack_at_a_time() {
    let places = Shard::all(2, &[7; 32]).unwrap();
    let stack = at_place(&places[0], [7; 32]).unwrap();
    let error = at_place(&places[0], [7; 32]).err().unwrap();
    assert!(matches!(error, StackError::ShardTaken(0)), "{error}");
    let other = at_place(&places[1], [7; 32]).unwrap();
    drop((stack, other));
    // A stack that could not be built leaves its place free.
    let mut config = config(capabilities(1), 1);
    (config.shard, config.secret) = (Some(places[0].clone()), [7; 32]);
    config.links = vec![LinkConfig::new(capabilities(3), Vec::new())];
    assert!(matches!(Stack::new(Instant::ZERO, config), Err(StackError::NoAddress)));
    assert!(at_place(&places[0], [7; 32]).is_ok());
}

#[test]
fn a_shard_needs_the_secret_of_its_host() {
    let places = Shard::all(2, &[7; 32]).unwrap();
    let error = at_place(&places[0], [8; 32]).err().unwrap();
    assert!(matches!(error, StackError::ShardSecret), "{error}");
    assert!(at_place(&places[0], [7; 32]).is_ok());
}

/// Each shard in turns, by no pattern.
fn at_random() -> impl FnMut(usize) -> usize {
    let mut x = 0x9e37_79b9_u32;
    move |shards| {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        x as usize % shards
    }
}

#[test]
fn connections_to_a_listener_of_all_shards_spread_evenly_and_are_all_served() {
    const CONNECTIONS: usize = 10_000;
    let mut w = World::new([1, 8], at_random());
    let listeners = w.listen_on_all(SERVER);
    let mut served = [0; 8];
    for _ in 0..CONNECTIONS / 100 {
        let now = w.now;
        let mut clients: Vec<TcpId> =
            (0..100).map(|_| w.hosts[0][0].connect(now, addr(SERVER), None).unwrap()).collect();
        w.run(Duration::from_millis(100));
        for client in &clients {
            assert_eq!(w.hosts[0][0].send(w.now, *client, &b"?"[..]), Ok(1));
        }
        w.run(Duration::from_millis(10));
        for (shard, listener) in listeners.iter().enumerate() {
            while let Ok((server, _)) = w.hosts[1][shard].accept(*listener) {
                assert_eq!(w.hosts[1][shard].recv(w.now, server, &mut [0; 8][..]), Ok(1));
                assert_eq!(w.hosts[1][shard].send(w.now, server, &b"!"[..]), Ok(1));
                served[shard] += 1;
            }
        }
        w.run(Duration::from_millis(10));
        clients.retain(|client| w.hosts[0][0].recv(w.now, *client, &mut [0; 8][..]) != Ok(1));
        assert!(clients.is_empty(), "{} have no answer", clients.len());
    }
    assert_eq!(served.iter().sum::<usize>(), CONNECTIONS);
    let even = CONNECTIONS / 8;
    assert!(served.iter().all(|n| n.abs_diff(even) * 10 <= even), "{served:?}");
}

#[test]
fn streams_pass_intact_whatever_shard_a_frame_comes_to() {
    for number in 0..4 {
        for loses in [None, Some(37)] {
            let (mut random, mut next) = (at_random(), 0);
            let assign = move |shards: usize| {
                next += 1;
                match number {
                    0 => random(shards),
                    1 => 0,
                    2 => shards - 1,
                    _ => next % shards,
                }
            };
            let mut w = World::new([3, 3], assign);
            w.loses = loses;
            let listeners = w.listen_on_all(SERVER);
            for from in 0..3 {
                let (client, to, server) = w.connect(from, &listeners);
                let data = pattern(300_000 + number);
                w.transfer((0, from, client), (1, to, server), &data);
                w.transfer((1, to, server), (0, from, client), &data);
            }
        }
    }
}

#[test]
fn a_port_that_one_shard_has_bound_is_its_alone() {
    let mut w = World::new([1, 3], at_random());
    let listener = w.hosts[1][1].listen(addr(SERVER), 32).unwrap();
    for shard in [0, 2] {
        let stack = &mut w.hosts[1][shard];
        assert_eq!(stack.listen(addr(SERVER), 16), Err(Error::AddressInUse));
        assert_eq!(listen_with_all(stack, addr(SERVER)), Err(Error::AddressInUse));
    }
    for _ in 0..20 {
        w.hosts[0][0].connect(w.now, addr(SERVER), None).unwrap();
    }
    w.run(Duration::from_millis(10));
    let accepted: Vec<TcpId> = (0..20).map(|_| w.hosts[1][1].accept(listener).unwrap().0).collect();
    // Connections keep the port after their listener.
    w.hosts[1][1].close(w.now, listener);
    assert_eq!(w.hosts[1][0].listen(addr(SERVER), 16), Err(Error::AddressInUse));
    for connection in accepted {
        w.hosts[1][1].abort(w.now, connection);
    }
    w.run(Duration::from_millis(10));
    assert!(w.hosts[1][0].listen(addr(SERVER), 16).is_ok());
}

#[test]
fn no_shard_binds_a_port_that_connections_of_another_have() {
    let mut w = World::new([2, 1], at_random());
    let listener = w.hosts[1][0].listen(addr(SERVER), 16).unwrap();
    let client = w.hosts[0][0].connect(w.now, addr(SERVER), None).unwrap();
    w.run(Duration::from_millis(10));
    let port = w.hosts[0][0].local_addr(client).unwrap().port();
    let at = SocketAddr::new("10.0.0.1".parse().unwrap(), port);
    assert_eq!(w.hosts[0][1].listen(at, 16), Err(Error::AddressInUse));
    let (server, _) = w.hosts[1][0].accept(listener).unwrap();
    w.transfer((0, 0, client), (1, 0, server), &pattern(10_000));
}

#[test]
fn a_port_that_a_connection_drew_serves_other_shards_too() {
    let mut w = World::new([2, 1], at_random());
    for _ in 0..8 {
        let drew = w.hosts[0][0].connect(w.now, addr(SERVER), None).unwrap();
        let port = w.hosts[0][0].local_addr(drew).unwrap().port();
        let from = SocketAddr::new("10.0.0.1".parse().unwrap(), port);
        // Half of the peers hash to the other shard.
        let to = (1000..1032).map(|port| SocketAddr::new("10.0.0.2".parse().unwrap(), port));
        let connected =
            to.filter(|to| w.hosts[0][1].connect(w.now, *to, Some(from)).is_ok()).count();
        assert!((4..=28).contains(&connected), "{connected}");
    }
}

#[test]
fn a_datagram_socket_gets_its_answers_from_everywhere() {
    let mut w = World::new([3, 1], at_random());
    let servers = [53, 54, 55, 56].map(|port| {
        let at = SocketAddr::new("10.0.0.2".parse().unwrap(), port);
        (at, w.hosts[1][0].bind_udp(at, BindOptions::default()).unwrap())
    });
    for shard in 0..3 {
        let any = addr("0.0.0.0:0");
        let client = w.hosts[0][shard].bind_udp(any, BindOptions::default()).unwrap();
        for (at, server) in servers {
            w.hosts[0][shard].send_to(w.now, client, &b"?"[..], Some(at)).unwrap();
            w.run(Duration::from_millis(10));
            let mut buf = [0; 8];
            let (_, from) = w.hosts[1][0].recv_from(server, &mut buf[..]).unwrap();
            w.hosts[1][0].send_to(w.now, server, &b"!"[..], Some(from)).unwrap();
            w.run(Duration::from_millis(10));
            let answer = w.hosts[0][shard].recv_from(client, &mut buf[..]);
            assert_eq!(answer.map(|(_, from)| from), Ok(at));
        }
    }
}

#[test]
fn a_gateway_of_several_shards_takes_flows_to_every_port_by_hash() {
    const FLOWS: u16 = 60;
    let mut w = World::of([(1, guest()), (3, gateway())], at_random());
    // A connection from before is no obstacle, nor are sockets a reason to draw no ports.
    let before = w.hosts[1][2].connect(w.now, addr("10.0.0.1:7"), None);
    assert!(before.is_ok());
    let all = EveryPort { link: LinkId::FIRST, every_shard: true };
    let every: Vec<_> = w.hosts[1]
        .iter_mut()
        .map(|stack| {
            let datagrams = stack.bind_every(all, DatagramKind::Udp).unwrap();
            (stack.listen_every(all).unwrap(), datagrams)
        })
        .collect();
    for shard in 0..3 {
        assert_eq!(w.hosts[1][shard].listen_every(LinkId::FIRST), Err(Error::AddressInUse));
        assert!(w.hosts[1][shard].connect(w.now, addr("10.0.0.1:7"), None).is_ok(), "{shard}");
    }
    let mut clients = Vec::new();
    for port in 0..FLOWS {
        let to = SocketAddr::new("192.0.2.1".parse().unwrap(), 1000 + port);
        clients.push(w.hosts[0][0].connect(w.now, to, None).unwrap());
        let any = addr("0.0.0.0:0");
        let sender = w.hosts[0][0].bind_udp(any, BindOptions::default()).unwrap();
        w.hosts[0][0].send_to(w.now, sender, b"hello", Some(to)).unwrap();
    }
    w.run(Duration::from_millis(10));
    let (mut requests, mut received) = ([0; 3], [0; 3]);
    let mut servers = Vec::new();
    for (shard, (listener, datagrams)) in every.into_iter().enumerate() {
        let stack = &mut w.hosts[1][shard];
        while let Some(event) = stack.listener(listener).unwrap().poll_request() {
            let SynEvent::New(request) = event else { panic!("{event:?}") };
            let mut listener = stack.listener(listener).unwrap();
            let accepted = listener.answer(w.now, request.id, Answer::Accept).unwrap();
            servers.push((shard, accepted.unwrap()));
            requests[shard] += 1;
        }
        while stack.recv_from(datagrams, &mut [0; 8][..]).is_ok() {
            received[shard] += 1;
        }
    }
    w.run(Duration::from_secs(5));
    for counts in [requests, received] {
        assert_eq!(counts.iter().sum::<u16>(), FLOWS, "{counts:?}");
        assert!(counts.iter().all(|n| *n > FLOWS / 10), "{counts:?}");
    }
    for (shard, server) in servers {
        let peer = w.hosts[1][shard].remote_addr(server).unwrap();
        let is_its = |client: &&TcpId| w.hosts[0][0].local_addr(**client).unwrap() == peer;
        let client = *clients.iter().find(is_its).unwrap();
        w.transfer((0, 0, client), (1, shard, server), &pattern(5_000));
    }
}

#[test]
fn a_gateway_of_several_shards_has_all_datagrams_of_a_sender_on_one() {
    let mut w = World::of([(1, guest()), (3, gateway())], at_random());
    let all = EveryPort { link: LinkId::FIRST, every_shard: true };
    let bind = |stack: &mut Stack| stack.bind_every(all, DatagramKind::Udp).unwrap();
    let every: Vec<_> = w.hosts[1].iter_mut().map(bind).collect();
    let sender = w.hosts[0][0].bind_udp(addr("10.0.0.1:4000"), BindOptions::default()).unwrap();
    // To other hosts, and to the gateway itself.
    for (host, n) in [("192.0.2.1", 20), ("198.51.100.1", 20), ("10.0.0.2", 20)] {
        for port in 1000..1000 + n {
            let to = SocketAddr::new(host.parse().unwrap(), port);
            w.hosts[0][0].send_to(w.now, sender, b"hello", Some(to)).unwrap();
        }
    }
    w.run(Duration::from_millis(10));
    let home = w.hosts[1][0].home_of(&Flow::udp(addr("10.0.0.1:4000"), addr("203.0.113.1:9")));
    for (shard, socket) in every.into_iter().enumerate() {
        let got = std::iter::from_fn(|| w.hosts[1][shard].recv_from(socket, &mut [0; 8][..]).ok());
        assert_eq!(got.count(), if shard == home { 60 } else { 0 }, "shard {shard} of {home}");
    }
}

#[test]
fn a_flood_for_one_shard_takes_no_room_of_others() {
    let mut w = World::new([1, 3], |_| 0);
    let servers = [1, 2].map(|shard| {
        let at = SocketAddr::new("10.0.0.2".parse().unwrap(), 50 + shard as u16);
        (at, w.hosts[1][shard].bind_udp(at, BindOptions::default()).unwrap())
    });
    let client = w.hosts[0][0].bind_udp(addr("0.0.0.0:0"), BindOptions::default()).unwrap();
    let send = |w: &mut World, data: &[u8], to| {
        w.hosts[0][0].send_to(w.now, client, data, Some(to)).unwrap();
        let mut frames = VecDeque::new();
        while w.hosts[0][0].poll_transmit(w.now, &mut frames) {}
        frames.into_iter().for_each(|frame| w.deliver(1, frame));
    };
    // No turn of the first shard ends meanwhile.
    for _ in 0..STRAY_BACKLOG + 10 {
        send(&mut w, b"a flood.", servers[0].0);
    }
    send(&mut w, b"hello", servers[1].0);
    assert_eq!(w.hosts[1][0].counters().drops(DropReason::StrayBacklogFull), 10);
    w.pass_strays(1);
    let mut buf = [0; 8];
    let got = w.hosts[1][2].recv_from(servers[1].1, &mut buf[..]).map(|(n, _)| n);
    assert_eq!(got, Ok(5));
}

#[test]
fn news_of_many_neighbours_leave_as_one_stray_for_each_shard_and_take_no_room_of_packets() {
    let mut w = World::new([1, 32], |_| 0);
    let at = SocketAddr::new("10.0.0.2".parse().unwrap(), 53);
    let server = w.hosts[1][9].bind_udp(at, BindOptions::default()).unwrap();
    for _ in 0..3 {
        (3..=200).for_each(|host| w.deliver(1, arp_from(host, host)));
    }
    let flood = strays_of(&mut w.hosts[1][0]);
    assert_eq!(flood.len(), 31);
    for (to, mut stray) in flood {
        w.hosts[1][to].handle_stray(w.now, &mut stray);
    }
    // The last shard knows them all.
    let client = w.hosts[1][31].bind_udp(addr("0.0.0.0:0"), BindOptions::default()).unwrap();
    for host in [3, 200] {
        let to = SocketAddr::new([10, 0, 0, host].into(), 7);
        w.hosts[1][31].send_to(w.now, client, b"hello", Some(to)).unwrap();
    }
    assert_eq!(w.hosts[1][31].counters().tx_arp, 0);
    // News that wait do not keep packets from waiting.
    (3..=200).for_each(|host| w.deliver(1, arp_from(host, host)));
    let client = w.hosts[0][0].bind_udp(addr("0.0.0.0:0"), BindOptions::default()).unwrap();
    for _ in 0..STRAY_BACKLOG {
        let mut frames = VecDeque::new();
        w.hosts[0][0].send_to(w.now, client, b"a flood.", Some(at)).unwrap();
        while w.hosts[0][0].poll_transmit(w.now, &mut frames) {}
        frames.into_iter().for_each(|frame| w.deliver(1, frame));
    }
    w.pass_strays(1);
    assert_eq!(w.hosts[1][0].counters().drops(DropReason::StrayBacklogFull), 0);
    assert!(w.hosts[1][9].recv_from(server, &mut [0; 8][..]).is_ok());
}

#[test]
fn the_newest_news_of_a_neighbour_is_what_other_shards_learn() {
    let mut w = World::new([1, 2], |_| 0);
    w.deliver(1, arp_from(3, 3));
    w.deliver(1, arp_from(3, 99));
    w.pass_strays(1);
    let client = w.hosts[1][1].bind_udp(addr("0.0.0.0:0"), BindOptions::default()).unwrap();
    w.hosts[1][1].send_to(w.now, client, b"hello", Some(addr("10.0.0.3:7"))).unwrap();
    let mut frames = VecDeque::new();
    while w.hosts[1][1].poll_transmit(w.now, &mut frames) {}
    assert_eq!(frames[0].head()[..6], [2, 0, 0, 0, 0, 99]);
}

/// A request from a host's station for that of the second host.
fn arp_from(host: u8, station: u8) -> PacketBuf {
    arp(host, station, 2)
}

/// A host's request for the station of another.
fn arp_about(host: u8, about: u8) -> PacketBuf {
    arp(host, host, about)
}

fn arp(host: u8, station: u8, about: u8) -> PacketBuf {
    let station = [2, 0, 0, 0, 0, station];
    let mut frame = [0xff; 6].to_vec();
    frame.extend(station);
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend(station);
    frame.extend([10, 0, 0, host, 0, 0, 0, 0, 0, 0, 10, 0, 0, about]);
    let mut packet = PacketBuf::for_rx();
    packet.append(frame.len()).unwrap().copy_from_slice(&frame);
    packet
}

#[test]
fn an_error_for_another_shard_leaves_its_packet_behind() {
    let mut w = World::new([3, 1], |_| 0);
    let from = SocketAddr::new("10.0.0.1".parse().unwrap(), 7);
    let client = w.hosts[0][2].bind_udp(from, BindOptions::default()).unwrap();
    w.hosts[0][2].udp(client).unwrap().connect(addr("10.0.0.2:7")).unwrap();
    // The first finds out the peer's station.
    w.hosts[0][2].send_to(w.now, client, b"?", None).unwrap();
    w.run(Duration::from_millis(10));
    assert_eq!(w.hosts[0][2].take_error(client), Some(Error::ConnectionRefused));
    w.hosts[0][2].send_to(w.now, client, &pattern(500)[..], None).unwrap();
    let mut frames = VecDeque::new();
    for (from, to) in [((0, 2), 1), ((1, 0), 0)] {
        while w.hosts[from.0][from.1].poll_transmit(w.now, &mut frames) {}
        frames.drain(..).for_each(|frame| w.deliver(to, frame));
    }
    let (to, mut stray) = strays_of(&mut w.hosts[0][0]).pop().unwrap();
    assert_eq!((to, format!("{stray:?}")), (2, "Stray { len: 0, .. }".into()));
    w.hosts[0][2].handle_stray(w.now, &mut stray);
    assert_eq!(w.hosts[0][2].take_error(client), Some(Error::ConnectionRefused));
}

#[test]
fn no_two_shards_send_packets_with_the_same_identification_to_one_peer() {
    let mut w = World::new([3, 1], at_random());
    let to = addr("10.0.0.2:7");
    let mut ids: Vec<Vec<u16>> = Vec::new();
    for shard in 0..3 {
        let stack = &mut w.hosts[0][shard];
        let client = stack.bind_udp(addr("0.0.0.0:0"), BindOptions::default()).unwrap();
        stack.set_option(client, SocketOption::MtuDiscover(MtuDiscover::Dont)).unwrap();
        stack.send_to(w.now, client, b"?", Some(to)).unwrap();
        w.run(Duration::from_millis(10));
        let (stack, mut frames, mut of_shard) =
            (&mut w.hosts[0][shard], VecDeque::new(), Vec::new());
        // A shard has 21,845 identifications.
        for _ in 0..30_000 {
            stack.send_to(w.now, client, b"hello", Some(to)).unwrap();
            while stack.poll_transmit(w.now, &mut frames) {}
            let id_of = |frame: PacketBuf| u16::from_be_bytes([frame.head()[18], frame.head()[19]]);
            of_shard.extend(frames.drain(..).map(id_of));
        }
        ids.push(of_shard);
    }
    let sets: Vec<HashSet<u16>> = ids.iter().map(|ids| ids.iter().copied().collect()).collect();
    for (shard, set) in sets.iter().enumerate() {
        assert_eq!(set.len(), (1 << 16) / 3, "each is used before one comes again");
        assert!(sets[shard + 1..].iter().all(|other| other.is_disjoint(set)));
    }
}

#[test]
fn datagrams_that_leave_as_one_frame_have_identifications_of_their_shard_in_a_row() {
    let mut w = World::new([32, 1], at_random());
    let to = addr("10.0.0.2:7");
    let stack = &mut w.hosts[0][31];
    let client = stack.bind_udp(addr("0.0.0.0:0"), BindOptions::default()).unwrap();
    stack.set_option(client, SocketOption::MtuDiscover(MtuDiscover::Dont)).unwrap();
    stack.set_option(client, SocketOption::Segment(100)).unwrap();
    stack.send_to(w.now, client, b"?", Some(to)).unwrap();
    w.run(Duration::from_millis(10));
    let (stack, mut frames, mut ids) = (&mut w.hosts[0][31], VecDeque::new(), Vec::new());
    for _ in 0..1000 {
        stack.send_to(w.now, client, &pattern(700)[..], Some(to)).unwrap();
        while stack.poll_transmit(w.now, &mut frames) {}
        for frame in frames.drain(..) {
            let first = u16::from_be_bytes([frame.head()[18], frame.head()[19]]);
            assert_eq!(frame.gso.map(|gso| gso.size), Some(100));
            ids.extend(first..=first + 6);
        }
    }
    // The last shard has 2,048 of them.
    assert!(ids.iter().all(|id| *id >= 63_488));
    let latest =
        |at: usize| ids[..at].iter().rposition(|id| *id == ids[at]).map(|before| at - before);
    let again = (0..ids.len()).filter_map(latest).min();
    assert!(again.is_some_and(|distance| distance > 2000), "{again:?}");
}

#[test]
fn a_path_mtu_reaches_whichever_shard_sent_the_datagram_from_a_port_of_all() {
    let mut w = World::new([3, 1], at_random());
    let (from, to) = (addr("10.0.0.1:7"), addr("10.0.0.2:9"));
    let options = BindOptions { every_shard: true, ..BindOptions::default() };
    let bind = |stack: &mut Stack| stack.bind_udp(from, options).unwrap();
    let clients: Vec<UdpId> = w.hosts[0].iter_mut().map(bind).collect();
    w.hosts[1][0].bind_udp(to, BindOptions::default()).unwrap();
    for (shard, client) in clients.iter().enumerate() {
        w.hosts[0][shard].udp(*client).unwrap().connect(to).unwrap();
        w.hosts[0][shard].send_to(w.now, *client, b"?", None).unwrap();
    }
    w.run(Duration::from_millis(10));
    for (shard, client) in clients.iter().enumerate().filter(|(shard, _)| *shard != 1) {
        w.hosts[0][shard].send_to(w.now, *client, &pattern(1400)[..], None).unwrap();
    }
    w.run(Duration::from_millis(10));
    for mtu in [1200, 1000] {
        let why = Unreachable::TooBig { mtu };
        let about = Flow::udp(from, to);
        w.hosts[1][0].send_unreachable(w.now, &about, why, Some(to.ip())).unwrap();
    }
    w.run(Duration::from_millis(10));
    let path_mtu = |(shard, client): (usize, &UdpId)| {
        w.hosts[0][shard].udp(*client).unwrap().path_mtu().unwrap()
    };
    let known: Vec<usize> = clients.iter().enumerate().map(path_mtu).collect();
    assert_eq!(known, [1000, 1500, 1000], "a shard that sent nothing so long believes no report");
}

#[test]
fn no_shard_answers_for_a_host_that_another_knows_on_the_link() {
    let mut gateway = gateway();
    gateway.proxy_arp = true;
    let mut w = World::of([(1, guest()), (3, gateway)], |_| 0);
    let answers = |w: &mut World, about: u8| {
        let before = w.hosts[1][0].counters().tx_arp;
        w.deliver(1, arp_about(1, about));
        w.hosts[1][0].counters().tx_arp - before
    };
    assert_eq!(answers(&mut w, 9), 1, "the gateway stands for all hosts that nobody knows");
    let client = w.hosts[1][2].bind_udp(addr("10.0.0.2:7"), BindOptions::default()).unwrap();
    w.hosts[1][2].send_to(w.now, client, b"hello", Some(addr("10.0.0.9:7"))).unwrap();
    assert_eq!(answers(&mut w, 9), 0, "the last shard asks for its station");
    // Once the host is given up, the gateway stands for it again.
    w.run(Duration::from_secs(10));
    assert_eq!(answers(&mut w, 9), 1);
    w.hosts[1][2].send_to(w.now, client, b"hello", Some(addr("10.0.0.9:7"))).unwrap();
    assert_eq!(answers(&mut w, 9), 0);
    w.hosts[1].truncate(2);
    assert_eq!(answers(&mut w, 9), 1, "a stack that goes knows nobody");
}

#[test]
fn shards_of_one_host_speak_with_each_other() {
    let mut w = World::new([1, 3], at_random());
    let listener = w.hosts[1][2].listen(addr(SERVER), 16).unwrap();
    for from in 0..3 {
        let client = w.hosts[1][from].connect(w.now, addr(SERVER), None).unwrap();
        w.run(Duration::from_millis(10));
        let (server, _) = w.hosts[1][2].accept(listener).unwrap();
        let data = pattern(100_000);
        w.transfer((1, from, client), (1, 2, server), &data);
        w.transfer((1, 2, server), (1, from, client), &data);
    }
}

#[test]
fn a_packet_at_home_is_no_stray_and_one_shard_has_none() {
    let mut w = World::new([1, 2], |_| 0);
    let before: Vec<u64> = w.hosts[1].iter().map(|stack| stack.counters().strays_passed).collect();
    let listener = w.hosts[1][0].listen(addr(SERVER), 16).unwrap();
    let client = w.hosts[0][0].connect(w.now, addr(SERVER), None).unwrap();
    w.run(Duration::from_millis(10));
    let (server, _) = w.hosts[1][0].accept(listener).unwrap();
    w.transfer((0, 0, client), (1, 0, server), &pattern(100_000));
    let passed = |stack: &Stack| stack.counters().strays_passed;
    assert_eq!(w.hosts[1].iter().map(passed).collect::<Vec<_>>(), before);
    assert_eq!(passed(&w.hosts[0][0]), 0);
}
