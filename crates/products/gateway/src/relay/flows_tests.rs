//! Flows while rules change: which of them end, and how both sides and the record see that.

use std::io::{Read, Write};
use std::time::Duration;

use pagewire::services::Error;
use pagewire::udp::UdpTarget;

use crate::context::Ruling;
use crate::limits::PROTOCOL_TIME;
use crate::policy::{Resolved, Rules};
use crate::request::{How, Protocol, Record, ShownBy};
use crate::world::{SILENT, Settings, World};

const ONE: &str = "203.0.113.1:80";
const OTHER: &str = "203.0.113.2:80";

fn rules(allow: &[&str], deny: &[&str]) -> Rules {
    let rules = Rules::default();
    let rules = allow.iter().fold(rules, |rules, rule| rules.allow(rule.parse().unwrap()));
    deny.iter().fold(rules, |rules, rule| rules.deny(rule.parse().unwrap()))
}

/// A guest that has looked up a name, and whose rules permit these.
fn named(allow: &[&str]) -> World {
    let world = World::new(Settings { rules: rules(allow, &[]), ..Settings::default() });
    let names = ["good.example", "fine.example"].map(|name| name.parse().unwrap()).to_vec();
    let addresses = vec![("203.0.113.1".parse().unwrap(), Duration::from_secs(600))];
    let answer = Resolved { names, addresses };
    world.relay.context.dns.names().learn(world.now, &answer);
    world
}

fn set(world: &mut World, rules: Rules) -> usize {
    let ended = world.relay.set_rules(world.now, &mut world.gateway, Ruling::of(rules));
    world.settle();
    ended
}

/// What the far end has received so far; `None`: its stream has ended.
fn received(world: &World, nth: usize) -> Option<String> {
    let mut room = [0; 4096];
    match world.far(nth).read(&mut room) {
        Ok(0) => None,
        Ok(n) => Some(String::from_utf8_lossy(&room[..n]).into_owned()),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Some(String::new()),
        Err(error) => panic!("{error}"),
    }
}

fn request(host: &str) -> Vec<u8> {
    format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes()
}

#[test]
fn a_new_denial_ends_what_it_forbids_and_nothing_else() {
    let mut world = World::new(Settings::default());
    let (one, other) = (world.connect(ONE), world.connect(OTHER));
    assert_eq!(set(&mut world, rules(&[], &["203.0.113.1"])), 1);
    assert_eq!((world.error(one), world.error(other)), (Some(Error::ConnectionReset), None));
    assert_eq!((received(&world, 0), received(&world, 1)), (None, Some(String::new())));
    assert_eq!(world.ends(), [How::Prohibited]);
    // The rules hold for new connections, too.
    let again = world.connect(ONE);
    assert_eq!(world.error(again), Some(Error::HostUnreachable));
}

#[test]
fn the_first_permission_ends_all_that_it_does_not_permit() {
    let mut world = World::new(Settings::default());
    let (one, other) = (world.connect(ONE), world.connect(OTHER));
    assert_eq!(set(&mut world, rules(&["203.0.113.2"], &[])), 1);
    assert_eq!((world.error(one), world.error(other)), (Some(Error::ConnectionReset), None));
    // The same rules again end nothing.
    assert_eq!(set(&mut world, rules(&["203.0.113.2"], &[])), 0);
}

#[test]
fn a_dial_that_new_rules_forbid_is_answered() {
    let mut world = World::new(Settings::default());
    let waits = world.connect(&format!("203.0.113.1:{SILENT}"));
    assert_eq!(world.relay.flows(world.now).iter().filter(|flow| flow.open).count(), 0);
    assert_eq!(set(&mut world, rules(&[], &["203.0.113.1"])), 1);
    assert_eq!(world.error(waits), Some(Error::HostUnreachable));
    assert_eq!(world.ends(), [How::Prohibited]);
    assert_eq!(world.relay.dials.in_flight(), 0);
}

#[test]
fn a_connection_goes_on_by_the_name_that_it_has_shown() {
    let mut world = named(&["good.example"]);
    let id = world.connect(ONE);
    world.say(id, &request("good.example"));
    assert_eq!(received(&world, 0), Some(String::from_utf8(request("good.example")).unwrap()));
    let [flow] = &world.relay.flows(world.now)[..] else { panic!("one flow") };
    let shown = flow.shown.clone().unwrap();
    assert_eq!((shown.by, shown.name.unwrap().as_str()), (ShownBy::Http, "good.example"));
    // Another rule permits the same name: the connection stays, and its next request is judged by that rule.
    assert_eq!(set(&mut world, rules(&["http:*.example"], &[])), 0);
    world.say(id, &request("fine.example"));
    assert_eq!(received(&world, 0), Some(String::from_utf8(request("fine.example")).unwrap()));
    assert_eq!(set(&mut world, rules(&["good.example"], &[])), 1);
    assert_eq!(world.error(id), Some(Error::ConnectionReset));
}

#[test]
fn a_request_behind_a_change_of_rules_is_judged_by_the_new_ones() {
    let mut world = named(&["good.example", "fine.example"]);
    let id = world.connect(ONE);
    for name in ["good.example", "fine.example"] {
        world.say(id, &request(name));
    }
    // The name that was shown last is permitted still, the one before is not.
    assert_eq!(set(&mut world, rules(&["fine.example"], &[])), 0);
    received(&world, 0);
    world.say(id, &request("good.example"));
    assert_eq!(received(&world, 0), None, "no byte of it went out");
    assert_eq!(world.ends(), [How::Prohibited]);
}

#[test]
fn a_connection_that_has_shown_nothing_ends_once_a_name_alone_permits_it() {
    let mut world = named(&[]);
    let id = world.connect(ONE);
    world.say(id, b"anything");
    assert_eq!(set(&mut world, rules(&["good.example"], &[])), 1);
    assert_eq!(world.error(id), Some(Error::ConnectionReset));
}

#[test]
fn a_connection_that_has_yet_to_show_its_name_may_wait_with_it() {
    let mut world = named(&["good.example"]);
    let id = world.connect(ONE);
    assert_eq!(set(&mut world, rules(&["fine.example"], &[])), 0);
    world.say(id, &request("good.example"));
    assert_eq!(received(&world, 0), None, "the new rules judge it");
}

#[test]
fn held_bytes_pass_once_no_name_is_asked_for() {
    let mut world = named(&["good.example"]);
    let id = world.connect(ONE);
    world.say(id, b"GET / HTT");
    assert_eq!(received(&world, 0), Some(String::new()));
    assert_eq!(set(&mut world, Rules::default()), 0);
    assert_eq!(received(&world, 0).as_deref(), Some("GET / HTT"));
    world.say(id, b"or something else");
    assert_eq!(received(&world, 0).as_deref(), Some("or something else"));
}

#[test]
fn a_denied_name_is_refused_at_a_permitted_address() {
    for allow in ["203.0.113.1", "tcp:good.example"] {
        for (host, passes) in [("fine.example", true), ("bad.example", false)] {
            let mut world = named(&[allow]);
            set(&mut world, rules(&[allow], &["bad.example"]));
            let id = world.connect(ONE);
            world.say(id, &request(host));
            assert_eq!(world.error(id).is_none(), passes, "{allow} {host}");
        }
    }
}

#[test]
fn bytes_that_tell_no_protocol_pass_soon_where_no_name_is_needed() {
    let denied = || rules(&["203.0.113.1"], &["bad.example:80"]);
    for bytes in [b"HELLO".as_slice(), b"S", &[22], &[22, 3, 1]] {
        let mut world = named(&["203.0.113.1"]);
        set(&mut world, denied());
        let id = world.connect(ONE);
        world.say(id, bytes);
        world.pass(PROTOCOL_TIME / 2);
        assert_eq!(received(&world, 0), Some(String::new()), "{bytes:?}");
        world.pass(PROTOCOL_TIME);
        assert_eq!(received(&world, 0).map(|it| it.len()), Some(bytes.len()), "{bytes:?}");
    }
    // What tells the protocol waits for its name.
    let mut world = named(&["203.0.113.1"]);
    set(&mut world, denied());
    let id = world.connect(ONE);
    world.say(id, b"GET / HTTP/1.1\r\n");
    world.pass(10 * PROTOCOL_TIME);
    assert_eq!(received(&world, 0), Some(String::new()));
    world.say(id, b"Host: bad.example\r\n\r\n");
    assert_eq!((received(&world, 0), world.ends()), (None, vec![How::Prohibited]));
    // Another port than that of the denial: nothing is looked at.
    let id = world.connect("203.0.113.1:81");
    world.say(id, b"HELLO");
    assert_eq!(received(&world, 1).as_deref(), Some("HELLO"));
}

#[test]
fn rules_forbid_datagrams_from_one_to_the_next() {
    let service = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    service.set_nonblocking(true).unwrap();
    let at = service.local_addr().unwrap();
    let opened = rules(&["203.0.113.9"], &[]).map("203.0.113.9".parse().unwrap(), at.ip());
    let mut world = World::new(Settings { rules: opened.clone(), ..Settings::default() });
    let socket =
        world.guest.bind_udp("10.0.2.15:9000".parse().unwrap(), Default::default()).unwrap();
    let to = format!("203.0.113.9:{}", at.port()).parse().unwrap();
    let target = UdpTarget { remote: Some(to), ..UdpTarget::default() };
    let send = |world: &mut World| {
        let mut udp = world.guest.udp(socket).unwrap();
        udp.send(world.now, &b"x"[..], target).unwrap();
        world.settle();
        service.recv(&mut [0; 8]).is_ok()
    };
    assert!(send(&mut world));
    let flows = world.relay.flows(world.now);
    assert_eq!((flows.len(), flows[0].ask.protocol, flows[0].bytes_out), (1, Protocol::Udp, 1));
    assert_eq!(set(&mut world, rules(&["192.0.2.1"], &[])), 1);
    assert!(!send(&mut world));
    assert_eq!(world.ends(), [How::Prohibited]);
    set(&mut world, opened);
    assert!(send(&mut world));
}

#[test]
fn a_flow_is_killed_by_its_number() {
    let mut world = World::new(Settings::default());
    let (one, other) = (world.connect(ONE), world.connect(OTHER));
    world.say(one, b"12345");
    world.far(1).write_all(b"123").unwrap();
    world.settle();
    let flows = world.relay.flows(world.now);
    let counted = |flow: &crate::FlowState| (flow.open, flow.bytes_out, flow.bytes_in);
    assert_eq!(flows.iter().map(counted).collect::<Vec<_>>(), [(true, 5, 0), (true, 0, 3)]);
    let number = flows.iter().find(|flow| flow.peer == ONE.parse().unwrap()).unwrap().flow;
    assert!(world.relay.kill(world.now, &mut world.gateway, number));
    world.settle();
    assert_eq!((world.error(one), world.error(other)), (Some(Error::ConnectionReset), None));
    assert!(!world.relay.kill(world.now, &mut world.gateway, number), "there is none left");
    let records = world.records.lock().unwrap();
    let closed = |record: &Record| matches!(record, Record::Closed { flow, how: How::Killed, .. } if *flow == number);
    assert!(records.iter().any(closed));
}

#[test]
fn a_gate_that_rules_have_opened_stays_no_way_around_the_next_rules() {
    let mut world = named(&["good.example"]);
    let id = world.connect(ONE);
    world.say(id, &request("good.example"));
    assert_eq!(set(&mut world, rules(&["good.example", "203.0.113.0/24"], &[])), 0);
    world.say(id, &request("evil.example"));
    // Nobody has looked since: the name that was shown before permits nothing any more.
    assert_eq!(set(&mut world, rules(&["good.example"], &[])), 1);
    assert_eq!(world.error(id), Some(Error::ConnectionReset));
}

#[test]
fn a_denied_name_has_the_addresses_that_it_led_to_before() {
    let mut world = named(&[]);
    assert_eq!(set(&mut world, rules(&[], &["good.example"])), 0);
    // Long after the name has lapsed.
    world.pass(Duration::from_secs(24 * 3600));
    let id = world.connect(ONE);
    assert_eq!(world.error(id), Some(Error::HostUnreachable));
}

#[test]
fn rules_that_take_the_place_of_others_stay_as_restricted() {
    let before = rules(&["good.example", "from:203.0.113.0/24"], &[]);
    let cut_off = Rules::default().restrict_like(&before);
    assert!(cut_off.is_restricted() && cut_off.are_clients_restricted());
    let open = Rules::default().restrict_like(&rules(&[], &["good.example"]));
    assert!(!open.is_restricted() && !open.are_clients_restricted());
}
