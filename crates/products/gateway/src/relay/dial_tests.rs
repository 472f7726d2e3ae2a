//! Connections by a proxy, which the tests play.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pagewire::services::{Error, RecvFlags, TcpId};

use crate::context::Ruling;
use crate::dns::{OwnNames, Resolver};
use crate::limits::{DIALS_PER_DESTINATION, VIA_TIME};
use crate::policy::{Resolved, Rules};
use crate::relay::{Dial, Dialled};
use crate::request::{Ask, How, Record, Verdict};
use crate::via::{Proxy, ProxyUrl, Vias};
use crate::world::{Far, SILENT, Settings, World};

const SOCKS5: &str = "socks5://192.0.2.1:1080";
const HTTP: &str = "http://192.0.2.1:3128";
const OK: &str = "HTTP/1.1 200 OK\r\n\r\n";

fn proxy(url: &str) -> Option<Arc<Proxy>> {
    Some(Arc::new(Proxy::resolve(url.parse::<ProxyUrl>().unwrap()).unwrap()))
}

/// All flows go by this proxy.
fn all(url: &str) -> Vias {
    Vias::default().add(None, proxy(url)).unwrap()
}

fn world(url: &str) -> World {
    World::new(Settings { vias: all(url), ..Settings::default() })
}

/// What the proxy has received by now.
fn heard(world: &World, nth: usize) -> Vec<u8> {
    let mut bytes = [0; 1024];
    let n = world.far(nth).read(&mut bytes).unwrap();
    bytes[..n].to_vec()
}

fn say(world: &mut World, nth: usize, bytes: &[u8]) {
    world.far(nth).write_all(bytes).unwrap();
    world.settle();
}

fn has(world: &mut World, id: TcpId) -> Vec<u8> {
    let mut bytes = [0; 1024];
    let got = world.guest.tcp(id).unwrap().recv(world.now, &mut bytes[..], RecvFlags::empty());
    bytes[..got.unwrap_or_default()].to_vec()
}

fn is_connected(world: &World) -> bool {
    world.relay.counters().opened > 0
}

fn learn(world: &mut World, name: &str, address: &str) {
    let addresses = vec![(address.parse().unwrap(), Duration::from_secs(60))];
    let resolved = Resolved { names: vec![name.parse().unwrap()], addresses };
    world.relay.context.dns.names().learn(world.now, &resolved);
}

/// The destination in a request of CONNECT that the proxy has received.
fn asked(world: &World, nth: usize) -> String {
    let request = String::from_utf8(heard(world, nth)).unwrap();
    let target = request.strip_prefix("CONNECT ").unwrap().split(' ').next().unwrap();
    target.to_owned()
}

#[test]
fn the_guest_is_connected_when_the_proxy_says_so_and_has_each_byte_of_the_server() {
    let mut world = world(SOCKS5);
    let id = world.connect("203.0.113.1:22");
    assert_eq!(world.dialled(), ["192.0.2.1:1080".parse().unwrap()]);
    assert_eq!(heard(&world, 0), [5, 1, 0]);
    say(&mut world, 0, &[5]);
    say(&mut world, 0, &[0]);
    assert_eq!(heard(&world, 0), [5, 1, 0, 1, 203, 0, 113, 1, 0, 22]);
    assert!(!is_connected(&world));
    // The server speaks first, in the segment of the proxy's answer.
    say(&mut world, 0, &[&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0][..], b"SSH-2.0-x\r\n"].concat());
    assert!(is_connected(&world));
    assert_eq!(has(&mut world, id), b"SSH-2.0-x\r\n");
    world.say(id, b"SSH-2.0-y\r\n");
    assert_eq!(heard(&world, 0), b"SSH-2.0-y\r\n");
    assert_eq!(world.relay.counters().proxied, 1);
    let records = world.records.lock().unwrap();
    let opened = records.iter().find_map(|record| match record {
        Record::Opened { peer, via, .. } => Some((*peer, via.clone())),
        _ => None,
    });
    assert_eq!(opened, Some(("192.0.2.1:1080".parse().unwrap(), Some(SOCKS5.into()))));
}

#[test]
fn the_end_of_each_stream_passes_a_proxy() {
    let mut world = world(HTTP);
    let id = world.connect("203.0.113.1:80");
    assert_eq!(asked(&world, 0), "203.0.113.1:80");
    // The server's stream ends with the proxy's answer.
    world.far(0).write_all(format!("{OK}all of it").as_bytes()).unwrap();
    world.far(0).shutdown(std::net::Shutdown::Write).unwrap();
    world.settle();
    assert_eq!(has(&mut world, id), b"all of it");
    world.say(id, b"more");
    world.guest.tcp(id).unwrap().shutdown(world.now, std::net::Shutdown::Write).unwrap();
    world.settle();
    assert_eq!(heard(&world, 0), b"more");
    assert_eq!(heard(&world, 0), b"");
    assert_eq!(world.ends(), [How::Finished]);
}

#[test]
fn the_guest_learns_what_the_proxy_says_of_the_destination() {
    let answers = [
        ("HTTP/1.1 502 No\r\n\r\n", Error::ConnectionRefused, How::Refused),
        ("HTTP/1.1 403 No\r\n\r\n", Error::HostUnreachable, How::Prohibited),
        ("HTTP/1.1 504 No\r\n\r\n", Error::HostUnreachable, How::HostUnreachable),
        ("HTTP/1.1 407 No\r\n\r\n", Error::HostUnreachable, How::Prohibited),
        ("SSH-2.0-x\r\n\r\n", Error::NetworkUnreachable, How::NetUnreachable),
    ];
    for (answer, error, how) in answers {
        let mut world = world(HTTP);
        let id = world.connect("203.0.113.1:80");
        say(&mut world, 0, answer.as_bytes());
        assert_eq!((world.error(id), world.ends()), (Some(error), vec![how]), "{answer}");
        assert_eq!(world.relay.connections(), 0);
    }
    // The proxy resets the connection, or ends it within its answer.
    for reads in [false, true] {
        let mut world = world(HTTP);
        let id = world.connect("203.0.113.1:80");
        if reads {
            asked(&world, 0);
            say(&mut world, 0, b"HTTP/1.1 200 OK\r\n");
        }
        world.far.0.lock().unwrap().clear();
        world.settle();
        assert_eq!(world.error(id), Some(Error::NetworkUnreachable), "{reads}");
        assert_eq!(world.relay.counters().proxies_failed, 1);
    }
}

#[test]
fn a_proxy_has_a_time_to_answer() {
    for port in [80, SILENT] {
        let url = format!("http://192.0.2.1:{port}");
        let mut world = world(&url);
        world.connect("203.0.113.1:80");
        world.pass(VIA_TIME - Duration::from_secs(1));
        assert_eq!(world.relay.connections(), 1);
        world.pass(Duration::from_secs(2));
        assert_eq!((world.relay.connections(), world.ends()), (0, vec![How::PeerTimedOut]));
    }
}

#[test]
fn a_guest_that_gives_up_ends_the_request_to_the_proxy() {
    let mut world = world(HTTP);
    let id = world.connect("203.0.113.1:80");
    asked(&world, 0);
    world.guest.abort(world.now, id);
    // A request lapses when its SYNs stop.
    world.pass(VIA_TIME / 2);
    assert_eq!(heard(&world, 0), b"", "the proxy's connection has ended");
    assert_eq!(world.ends(), [How::GaveUp]);
}

/// Refuses the first dial.
struct Second(Mutex<bool>, Far);

impl Dial for Second {
    fn dial(&self, to: SocketAddr, ask: &Ask) -> io::Result<Dialled> {
        match std::mem::replace(&mut *self.0.lock().unwrap(), false) {
            true => Err(io::ErrorKind::ConnectionRefused.into()),
            false => self.1.dial(to, ask),
        }
    }
}

#[test]
fn a_proxy_is_tried_at_its_next_address_and_without_one_no_route_leads_on() {
    let mut one = Proxy::resolve(HTTP.parse().unwrap()).unwrap();
    let second: SocketAddr = "[2001:db8::1]:3128".parse().unwrap();
    one.addresses.push(second);
    let vias = Vias::default().add(None, Some(Arc::new(one))).unwrap();
    let mut world = World::new(Settings { vias, ..Settings::default() });
    world.relay.setup.dialler = Arc::new(Second(true.into(), world.far.clone()));
    world.connect("203.0.113.1:80");
    assert_eq!(world.dialled(), [second]);
    say(&mut world, 0, OK.as_bytes());
    assert!(is_connected(&world));
    let mut world = self::world(HTTP);
    world.relay.setup.dialler = Arc::new(Second(true.into(), world.far.clone()));
    let id = world.connect("203.0.113.1:80");
    assert_eq!(world.error(id), Some(Error::NetworkUnreachable));
}

#[test]
fn dials_count_for_the_destination_and_ports_for_the_proxy() {
    let mut world = world(HTTP);
    for _ in 0..=DIALS_PER_DESTINATION {
        world.connect("203.0.113.1:80");
    }
    assert_eq!(world.dialled().len(), DIALS_PER_DESTINATION, "one destination waits");
    let other = world.connect("203.0.113.2:80");
    assert_eq!(world.dialled().len(), DIALS_PER_DESTINATION + 1, "another does not");
    say(&mut world, DIALS_PER_DESTINATION, OK.as_bytes());
    world.guest.tcp(other).unwrap().shutdown(world.now, std::net::Shutdown::Write).unwrap();
    world.settle();
    world.far(DIALS_PER_DESTINATION).shutdown(std::net::Shutdown::Write).unwrap();
    world.settle();
    let waits = |to: &str| world.relay.context.whole.time_wait.len(world.now, to.parse().unwrap());
    assert_eq!((waits("192.0.2.1:3128"), waits("203.0.113.2:80")), (1, 0));
}

#[test]
fn the_proxy_is_told_the_latest_name() {
    let mut world = world(HTTP);
    learn(&mut world, "a.example", "203.0.113.1");
    learn(&mut world, "b.example", "203.0.113.1");
    world.connect("203.0.113.1:443");
    assert_eq!(asked(&world, 0), "b.example:443");
    world.connect("203.0.113.2:443");
    assert_eq!(asked(&world, 1), "203.0.113.2:443");
    // What others could take for an address, for themselves, or for a part of a URL.
    for name in ["10.0.0.1", "a.0x7f", "localhost", "a.localhost", "10.0.0.1:22#.a.example", "a@b"]
    {
        let nth = world.dialled().len();
        learn(&mut world, name, "203.0.113.3");
        world.connect("203.0.113.3:443");
        assert_eq!(asked(&world, nth), "203.0.113.3:443", "{name}");
    }
}

#[test]
fn a_flow_ends_when_rules_no_longer_permit_the_name_that_its_proxy_was_told() {
    let allow = |rules: &[&str]| {
        rules.iter().fold(Rules::default(), |all, rule| all.allow(rule.parse().unwrap()))
    };
    let rules = allow(&["tcp:a.example", "tcp:b.example"]);
    let mut world = World::new(Settings { rules, vias: all(HTTP), ..Settings::default() });
    learn(&mut world, "a.example", "203.0.113.1");
    learn(&mut world, "b.example", "203.0.113.1");
    world.connect("203.0.113.1:443");
    assert_eq!(asked(&world, 0), "b.example:443");
    say(&mut world, 0, OK.as_bytes());
    for (rules, ended) in [(allow(&["tcp:b.example"]), 0), (allow(&["tcp:a.example"]), 1)] {
        let (now, stack) = (world.now, &mut world.gateway);
        assert_eq!(world.relay.set_rules(now, stack, Ruling::of(rules)), ended);
    }
}

#[test]
fn the_proxy_is_told_no_name_that_does_not_permit_the_connection() {
    let rules = Rules::default()
        .allow("*.good.example".parse().unwrap())
        .allow("203.0.113.2".parse().unwrap());
    let mut names = OwnNames::default();
    names.add("own.good.example".parse().unwrap(), "203.0.113.4".parse().unwrap());
    let mut world = World::new(Settings { rules, names, vias: all(HTTP), ..Settings::default() });
    learn(&mut world, "a.good.example", "203.0.113.1");
    learn(&mut world, "evil.example", "203.0.113.1");
    // Whoever has the zone can lead its name anywhere.
    learn(&mut world, "evil.example", "203.0.113.2");
    learn(&mut world, "own.good.example", "203.0.113.4");
    for (to, told) in [
        ("203.0.113.1:443", "a.good.example:443"),
        ("203.0.113.2:443", "203.0.113.2:443"),
        // Others do not know a name of the gateway's own.
        ("203.0.113.4:443", "203.0.113.4:443"),
    ] {
        let nth = world.dialled().len();
        world.connect(to);
        assert_eq!(asked(&world, nth), told);
    }
    world.connect("192.0.2.1:3128");
    assert_eq!(world.dialled().len(), 3, "rules do not permit the proxy itself");
}

#[test]
fn datagrams_for_which_there_is_a_proxy_are_prohibited_and_others_are_not() {
    let vias = Vias::default().add("203.0.113.2".parse().ok(), None).unwrap();
    let vias = vias.add(None, proxy(SOCKS5)).unwrap();
    let mut world = World::new(Settings { vias, ..Settings::default() });
    let socket = world.guest.bind_udp("0.0.0.0:0".parse().unwrap(), Default::default()).unwrap();
    let to: SocketAddr = "203.0.113.1:443".parse().unwrap();
    world.guest.udp(socket).unwrap().send(world.now, b"x", Some(to)).unwrap();
    world.settle();
    assert_eq!(world.verdicts(), [Verdict::Prohibit]);
    let counters = world.relay.counters();
    assert_eq!((counters.denied, counters.no_way, counters.datagrams_out), (1, 1, 0));
    // No rule would change that.
    assert!(world.relay.denied().most.iter().all(|refusal| refusal.permission.is_none()));
    let from = "10.0.2.15:1".parse().unwrap();
    let direct = Ask::new(world.relay.context.guest, crate::request::Protocol::Udp, from, to);
    assert_eq!(world.relay.context.way(&direct, to), None);
    let to = "203.0.113.2:443".parse().unwrap();
    assert!(world.relay.context.way(&Ask { to, ..direct }, to).is_some());
}

/// The resolver's answer about a name, as records of A.
fn resolve(world: &mut World, name: &str, kind: u8) -> (u8, Vec<[u8; 4]>) {
    let socket = world.guest.bind_udp("0.0.0.0:0".parse().unwrap(), Default::default()).unwrap();
    let mut query = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        query.push(label.len() as u8);
        query.extend(label.as_bytes());
    }
    query.extend([0, 0, kind, 0, 1]);
    let server = Some("10.0.2.2:53".parse().unwrap());
    world.guest.udp(socket).unwrap().send(world.now, &query, server).unwrap();
    world.settle();
    let mut answer = [0; 512];
    let mut udp = world.guest.udp(socket).unwrap();
    let (len, _) = udp.recv(&mut answer[..], RecvFlags::empty()).unwrap();
    let records =
        answer[query.len()..len].chunks(16).map(|record| record[12..].try_into().unwrap());
    (answer[3] & 15, records.collect())
}

#[test]
fn without_a_resolver_a_name_has_an_address_that_stands_for_it() {
    let rules = Rules::default().allow("*.good.example".parse().unwrap());
    let resolver = Some(Resolver::Invented);
    let mut world =
        World::new(Settings { rules, resolver, vias: all(HTTP), ..Settings::default() });
    let (code, addresses) = resolve(&mut world, "a.good.example", 1);
    assert_eq!((code, addresses), (0, vec![[198, 18, 0, 1]]));
    assert_eq!(resolve(&mut world, "a.good.example", 28), (0, vec![]), "no IPv6 address");
    assert_eq!(resolve(&mut world, "evil.example", 1).0, 5, "a refused name");
    assert_eq!(resolve(&mut world, "10.0.0.1", 1).0, 5, "an address");
    assert_eq!(world.relay.dns_counters().answered, 0, "nobody was asked");
    // Names of answers are forgotten by then.
    world.pass(Duration::from_secs(86_400));
    let id = world.connect("198.18.0.1:443");
    assert_eq!(asked(&world, 0), "a.good.example:443");
    say(&mut world, 0, OK.as_bytes());
    world.say(id, b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n");
    assert_eq!(world.relay.counters().mismatched, 1, "the connection shows another name");
    for never_given in ["198.18.0.2:443", "198.19.255.1:443", "203.0.113.1:443"] {
        world.connect(never_given);
    }
    assert_eq!(world.dialled().len(), 1);
}

#[test]
fn an_address_that_stands_for_a_name_leads_nowhere_but_to_a_proxy() {
    let vias = Vias::default().add("b.example".parse().ok(), proxy(SOCKS5)).unwrap();
    let resolver = Some(Resolver::Invented);
    let mut world = World::new(Settings { resolver, vias, ..Settings::default() });
    for name in ["a.example", "b.example"] {
        assert_eq!(resolve(&mut world, name, 1).1.len(), 1);
    }
    for to in ["198.18.0.1:80", "198.18.0.2:80", "198.18.0.3:80"] {
        world.connect(to);
    }
    assert_eq!(world.dialled(), ["192.0.2.1:1080".parse().unwrap()]);
    assert_eq!(world.relay.counters().no_way, 2);
    let sent = Some("198.18.0.2:80".parse().unwrap());
    let socket = world.guest.bind_udp("0.0.0.0:0".parse().unwrap(), Default::default()).unwrap();
    world.guest.udp(socket).unwrap().send(world.now, b"x", sent).unwrap();
    world.settle();
    assert_eq!(world.relay.counters().no_way, 3);
}
