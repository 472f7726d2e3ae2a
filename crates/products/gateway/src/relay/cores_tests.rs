//! A guest of several cores, in virtual time: flows spread, and what holds for the guest holds for all its cores together.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use pagewire::services::{Error, ListenerId, RecvFlags, SocketBind, TcpId};

use crate::context::{FlowRecord, Ruling};
use crate::dns::OwnNames;
use crate::limits::{
    CONNECTS_BURST, DENIAL_LINES_BURST, DENIALS_REMEMBERED, DESTINATIONS_BURST, DIALS,
    DIALS_PER_DESTINATION, DNS_BURST, LEAVES_BURST,
};
use crate::policy::{Resolved, Rules};
use crate::request::{Ask, Direction, GuestId, How, Protocol, Record, Verdict};
use crate::world::{SILENT, Settings, World};

const CORES: usize = 3;

fn world(settings: Settings) -> World {
    World::on_cores(settings, CORES)
}

/// Has the guest begin connections to this number of hosts, without waiting for any.
fn begin(world: &mut World, hosts: u32, port: u16) -> Vec<TcpId> {
    let to = (1..=hosts).map(|n| SocketAddr::from(((0xc633_6400 + n).to_be_bytes(), port)));
    let mut all = Vec::new();
    for (nth, to) in to.enumerate() {
        all.push(world.guest.connect(world.now, to, None).unwrap());
        // The guest's stack holds few packets until it knows its router.
        if nth % 32 == 0 {
            world.settle();
        }
    }
    world.settle();
    all
}

fn is_spread(all: &[usize]) -> bool {
    all.len() == CORES && all.iter().all(|n| *n > 0)
}

/// The sum of something over all cores.
fn sum(world: &mut World, of: impl Fn(&super::Relay) -> u64) -> u64 {
    world.shards().map(|(_, relay)| of(relay)).sum()
}

#[test]
fn connections_spread_over_the_cores_and_carry_data_both_ways() {
    let mut world = world(Settings::default());
    let all = begin(&mut world, 30, 80);
    assert!(is_spread(&world.spread()), "{:?}", world.spread());
    for id in &all {
        let to = world.guest.remote_addr(*id).unwrap();
        let nth = world.dialled().iter().position(|dialled| *dialled == to).unwrap();
        world.say(*id, b"question");
        let mut far = world.far(nth);
        let mut room = [0; 16];
        assert_eq!(far.read(&mut room).unwrap(), 8, "connection {nth}");
        far.write_all(b"answer").unwrap();
        world.settle();
        let mut tcp = world.guest.tcp(*id).unwrap();
        assert_eq!(tcp.recv(world.now, &mut room[..], RecvFlags::empty()), Ok(6));
    }
    let mut flows: Vec<u64> = Vec::new();
    let now = world.now;
    world.shards().for_each(|(_, relay)| flows.extend(relay.flows(now).iter().map(|f| f.flow)));
    flows.sort_unstable();
    assert_eq!(flows, (1..=30).collect::<Vec<u64>>(), "no number is given twice");
}

#[test]
fn the_limit_of_connections_holds_for_all_cores_together_and_an_end_makes_room_on_any() {
    let mut world = world(Settings { connections: Some(10), ..Settings::default() });
    let all = begin(&mut world, 40, 80);
    assert_eq!(world.spread().iter().sum::<usize>(), 10);
    assert_eq!(world.dialled().len(), 10);
    // Whatever core the connections are on that end.
    for id in all {
        world.guest.abort(world.now, id);
        world.guest.close(world.now, id);
        world.pass(Duration::from_millis(150));
        assert!(world.spread().iter().sum::<usize>() <= 10);
    }
    assert!(world.dialled().len() > 25, "{}", world.dialled().len());
    assert_eq!(world.spread(), [0; CORES]);
}

#[test]
fn dials_to_the_silent_are_as_many_as_those_of_one_core() {
    let mut world = world(Settings::default());
    begin(&mut world, 2 * DIALS as u32, SILENT);
    let dialled = world.dialled().len();
    assert!((DIALS / 2..=DIALS).contains(&dialled), "{dialled}");
    // To one host.
    let mut world = self::world(Settings::default());
    for _ in 0..4 * DIALS_PER_DESTINATION {
        let to = SocketAddr::from(([203, 0, 113, 1], SILENT));
        world.guest.connect(world.now, to, None).unwrap();
        world.settle();
    }
    let dialled = world.dialled().len();
    assert!((DIALS_PER_DESTINATION / 2..=DIALS_PER_DESTINATION).contains(&dialled), "{dialled}");
}

#[test]
fn rates_are_those_of_one_guest() {
    let mut world = world(Settings::default());
    let now = world.now;
    let grants = |world: &mut World, mut take: Box<dyn FnMut(&mut super::Relay) -> bool>| {
        let mut granted = 0;
        for _ in 0..2 * CONNECTS_BURST {
            for (_, relay) in world.shards() {
                granted += u32::from(take(relay));
            }
        }
        granted
    };
    let dials = grants(&mut world, Box::new(move |relay| relay.dials.may_forward(now, 0)));
    assert_eq!(dials, CONNECTS_BURST);
    let destinations = Box::new(move |relay: &mut super::Relay| {
        let may = relay.context.may_add_destination(now);
        may.then(|| relay.context.count_destination(now)).is_some()
    });
    assert_eq!(grants(&mut world, destinations), DESTINATIONS_BURST);
    let refused = sum(&mut world, |relay| relay.counters().destinations_refused);
    assert_eq!(refused, u64::from(2 * CONNECTS_BURST * CORES as u32 - DESTINATIONS_BURST));
    let there: SocketAddr = "203.0.113.1:80".parse().unwrap();
    let leaves = Box::new(move |relay: &mut super::Relay| {
        let time_wait = relay.context.whole.time_wait.clone();
        time_wait.check(now, there).is_ok().then(|| time_wait.note(now, there)).is_some()
    });
    assert_eq!(grants(&mut world, leaves), LEAVES_BURST);
}

/// A query for the address of a name.
fn query(id: u16, name: &str) -> Vec<u8> {
    let mut message = [&id.to_be_bytes()[..], &[1, 0, 0, 1, 0, 0, 0, 0, 0, 0]].concat();
    for label in name.split('.') {
        message.push(label.len() as u8);
        message.extend_from_slice(label.as_bytes());
    }
    message.extend_from_slice(&[0, 0, 1, 0, 1]);
    message
}

/// Has the guest ask for a name, from this port. Returns the code of the answer.
fn resolve(world: &mut World, port: u16, name: &str) -> u8 {
    let from = SocketAddr::from(([10, 0, 2, 15], port));
    let socket = world.guest.bind_udp(from, SocketBind::default()).unwrap();
    let to: SocketAddr = "10.0.2.2:53".parse().unwrap();
    world.guest.udp(socket).unwrap().send(world.now, &query(port, name)[..], Some(to)).unwrap();
    world.settle();
    let mut answer = [0; 512];
    world.guest.udp(socket).unwrap().recv(&mut answer[..], RecvFlags::empty()).unwrap();
    world.guest.close(world.now, socket);
    answer[3] & 0xf
}

#[test]
fn a_name_that_one_core_resolves_permits_connections_on_all_and_another_permits_none() {
    let mut names = OwnNames::default();
    names.add("git".parse().unwrap(), "192.168.1.5".parse().unwrap());
    names.add("other".parse().unwrap(), "192.168.1.6".parse().unwrap());
    let rules = Rules::default().allow("tcp:git:80-200".parse().unwrap());
    let mut world = world(Settings { rules, names, ..Settings::default() });
    let connect = |world: &mut World, host: u8| {
        let ports = 80..110;
        let to = ports.map(|port| SocketAddr::from(([192, 168, 1, host], port)));
        let all: Vec<TcpId> =
            to.map(|to| world.guest.connect(world.now, to, None).unwrap()).collect();
        world.settle();
        all.into_iter().filter(|id| world.error(*id).is_none()).count()
    };
    assert_eq!(connect(&mut world, 5), 0, "nobody has asked");
    assert_eq!(resolve(&mut world, 4000, "git"), 0);
    assert_eq!(connect(&mut world, 5), 30);
    assert!(is_spread(&world.spread()), "{:?}", world.spread());
    resolve(&mut world, 4001, "other");
    assert_eq!(connect(&mut world, 6), 0);
}

#[test]
fn queries_of_all_cores_have_one_rate() {
    let mut names = OwnNames::default();
    names.add("git".parse().unwrap(), "192.168.1.5".parse().unwrap());
    let mut world = world(Settings { names, ..Settings::default() });
    for port in 4000..4040 {
        assert_eq!(resolve(&mut world, port, "git"), 0);
    }
    let asked: Vec<u64> = world.shards().map(|(_, relay)| relay.dns_counters().queries).collect();
    assert!(asked.iter().all(|n| *n > 0) && asked.iter().sum::<u64>() == 40, "{asked:?}");
    let (now, memory) = (world.now, world.relay.context.whole.memory.clone());
    let all = (0..2 * DNS_BURST).filter(|_| memory.may_ask(now)).count();
    assert_eq!(all, DNS_BURST as usize);
    let (_, other) = &mut world.others[0];
    assert!(!other.context.whole.memory.may_ask(now));
}

#[test]
fn refusals_of_all_cores_are_counted_together_and_have_one_rate_of_records() {
    let rules = Rules::default().allow("192.0.2.1".parse().unwrap());
    let mut world = world(Settings { rules, ..Settings::default() });
    let all = 3 * u64::from(DENIAL_LINES_BURST);
    begin(&mut world, all as u32, 80);
    let asked: Vec<u64> = world.shards().map(|(_, relay)| relay.counters().denied).collect();
    assert!(asked.iter().all(|n| *n > 0) && asked.iter().sum::<u64>() == all, "{asked:?}");
    let denied: Vec<_> = world.shards().map(|(_, relay)| relay.denied()).collect();
    assert!(denied.iter().all(|one| *one == denied[0]));
    assert_eq!(denied[0].addresses, DENIALS_REMEMBERED, "as many as are counted");
    let written = world.verdicts().len() as u64;
    assert!(u64::from(DENIAL_LINES_BURST) <= written && written < all, "{written}");
    world.pass(Duration::from_secs(120));
    let records = world.records.lock().unwrap();
    let sums = records.iter().filter_map(|record| match record {
        Record::Denials { count, .. } => Some(*count),
        _ => None,
    });
    assert_eq!(sums.collect::<Vec<u64>>(), [all - written], "one sum of all cores");
}

#[test]
fn new_rules_end_what_they_forbid_on_every_core() {
    let mut world = world(Settings::default());
    let all = begin(&mut world, 30, 80);
    assert!(is_spread(&world.spread()));
    let ruling = Ruling::of(Rules::default().deny("198.51.100.0/28".parse().unwrap()));
    let now = world.now;
    let set =
        |(stack, relay): (&mut _, &mut super::Relay)| relay.set_rules(now, stack, ruling.clone());
    let ended: usize = world.shards().map(set).sum();
    assert_eq!(ended, 15);
    world.settle();
    let left = all.into_iter().filter(|id| world.error(*id).is_none()).count();
    assert_eq!(left, 15);
    assert_eq!(world.ends(), [How::Prohibited; 15]);
}

/// Has the first core connect clients of a published port from their own addresses.
fn welcome(world: &mut World, ports: std::ops::Range<u16>) -> Vec<UnixStream> {
    let to: SocketAddr = "10.0.2.15:80".parse().unwrap();
    let clients = ports.map(|port| {
        let client = SocketAddr::from(([192, 0, 2, 7], port));
        let (near, far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        far.set_nonblocking(true).unwrap();
        let mut ask = Ask::new(GuestId(1), Protocol::Tcp, client, to);
        ask.direction = Direction::In;
        let record = FlowRecord::new(world.now, port.into(), ask);
        let (now, ends) = (world.now, (Some(client), to));
        world.relay.go_by_link(now, &mut world.gateway, near.into(), ends, record);
        far
    });
    clients.collect()
}

fn accept_all(world: &mut World, listener: ListenerId) -> Vec<(TcpId, SocketAddr)> {
    let mut all = Vec::new();
    while let Ok(one) = world.guest.listener(listener).and_then(|mut it| it.accept()) {
        all.push(one);
    }
    all
}

#[test]
fn clients_of_published_ports_keep_their_addresses_on_the_core_that_the_guests_answers_reach() {
    let mut world = world(Settings::default());
    let listener = world.guest.listen("10.0.2.15:80".parse().unwrap(), 64).unwrap();
    let mut clients = welcome(&mut world, 4000..4030);
    world.settle();
    assert!(is_spread(&world.spread()), "{:?}", world.spread());
    let served = accept_all(&mut world, listener);
    assert_eq!(served.len(), 30);
    for (id, from) in served {
        assert_eq!(from.ip().to_string(), "192.0.2.7");
        let client = &mut clients[usize::from(from.port() - 4000)];
        client.write_all(b"question").unwrap();
        world.settle();
        let mut room = [0; 16];
        let mut tcp = world.guest.tcp(id).unwrap();
        assert_eq!(tcp.recv(world.now, &mut room[..], RecvFlags::empty()), Ok(8));
        world.say(id, b"answer");
        assert_eq!(client.read(&mut room).unwrap(), 6);
    }
}

#[test]
fn a_client_on_its_way_to_another_core_counts_and_is_judged_again_there() {
    let mut world = world(Settings::default());
    let listener = world.guest.listen("10.0.2.15:80".parse().unwrap(), 64).unwrap();
    let clients = welcome(&mut world, 4000..4030);
    // Those of the first core are on it already.
    let tally = world.relay.context.tally.clone();
    let sent = tally.others(crate::tally::Item::Connections);
    assert_eq!(sent + world.relay.connections(), 30);
    let ruling = Ruling::of(Rules::default().deny("from:192.0.2.7".parse().unwrap()));
    let now = world.now;
    for (stack, relay) in world.shards() {
        relay.set_rules(now, stack, ruling.clone());
    }
    world.settle();
    assert_eq!((world.spread(), accept_all(&mut world, listener).len()), (vec![0; CORES], 0));
    assert_eq!(world.ends(), [How::Prohibited; 30]);
    assert_eq!(tally.others(crate::tally::Item::Connections), 0);
    assert!(clients.into_iter().all(|mut client| client.read(&mut [0]).is_ok_and(|n| n == 0)));
}

#[test]
fn clients_on_their_way_end_with_the_guest() {
    let mut world = world(Settings::default());
    welcome(&mut world, 4000..4030);
    let now = world.now;
    for (stack, relay) in world.shards() {
        relay.end_all(now, stack);
    }
    assert_eq!(world.ends(), [How::Removed; 30]);
    // Who comes later is reset, too.
    let clients = welcome(&mut world, 5000..5010);
    let own = world.relay.connections();
    assert_eq!(world.ends().len(), 40 - own);
    assert!(own < 10 && clients.len() == 10);
}

#[test]
fn a_socket_for_datagrams_has_all_peers_of_a_port_of_the_guest() {
    let far: Vec<UdpSocket> = (0..12).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
    let loopback = |ask: &Ask| {
        let to = SocketAddr::from(([127, 0, 0, 1], ask.to.port()));
        Some(if ask.to == to { Verdict::Allow } else { Verdict::To(to) })
    };
    let settings = Settings { judge: Some(Arc::new(loopback)), ..Settings::default() };
    let mut world = world(settings);
    let mut opened = Vec::new();
    for port in 4000..4012 {
        let from = SocketAddr::from(([10, 0, 2, 15], port));
        let socket = world.guest.bind_udp(from, SocketBind::default()).unwrap();
        for far in &far {
            let to = SocketAddr::from(([203, 0, 113, 1], far.local_addr().unwrap().port()));
            let mut udp = world.guest.udp(socket).unwrap();
            udp.send(world.now, &b"hello"[..], Some(to)).unwrap();
        }
        world.settle();
        let heard = far.iter().map(|far| {
            far.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            far.recv_from(&mut [0; 16]).unwrap().1
        });
        let mut sources: Vec<SocketAddr> = heard.collect();
        sources.dedup();
        assert_eq!(sources.len(), 1, "all from one socket");
        opened.extend(sources);
    }
    let spread: Vec<usize> = world.shards().map(|(_, relay)| relay.udp().len()).collect();
    assert!(is_spread(&spread) && spread.iter().sum::<usize>() == 12, "{spread:?}");
}

#[test]
fn where_a_panic_has_broken_the_names_nothing_is_permitted() {
    let mut world = world(Settings::default());
    let names = vec!["good.example".parse().unwrap()];
    let addresses = vec![("203.0.113.1".parse().unwrap(), Duration::from_secs(60))];
    world.relay.context.dns.names().learn(world.now, &Resolved { names, addresses });
    world.relay.context.whole.memory.break_it();
    let all = begin(&mut world, 10, 80);
    world.pass(Duration::from_secs(1));
    assert_eq!(world.dialled(), []);
    assert!(all.into_iter().all(|id| world.error(id) != Some(Error::ConnectionRefused)));
    assert!(sum(&mut world, |relay| relay.counters().undecided) > 0);
}
