//! Rates of rules, in virtual time.

use std::io::{Read as _, Write as _};
use std::time::Duration;

use pagewire::services::{Error, RecvFlags, SendFlags, TcpId};

use crate::context::Ruling;
use crate::policy::{Resolved, Rules};
use crate::world::{Settings, World};

const SECOND: Duration = Duration::from_secs(1);

/// A guest under these permissions, which knows `good.example` at 203.0.113.1.
fn world(allow: &[&str]) -> World {
    world_on(1, allow)
}

/// The same, on so many cores.
fn world_on(cores: usize, allow: &[&str]) -> World {
    let rules =
        allow.iter().fold(Rules::default(), |rules, rule| rules.allow(rule.parse().unwrap()));
    let world = World::on_cores(Settings { rules, ..Settings::default() }, cores);
    let names = vec!["good.example".parse().unwrap()];
    let addresses = vec![("203.0.113.1".parse().unwrap(), Duration::from_secs(600))];
    world.relay.context.dns.names().learn(world.now, &Resolved { names, addresses });
    world
}

/// Has the guest send as much as it can on each connection for a second. Returns what arrives of each.
fn sent(world: &mut World, all: &[TcpId]) -> Vec<usize> {
    let mut received = vec![0; all.len()];
    for _ in 0..100 {
        for id in all {
            let mut tcp = world.guest.tcp(*id).unwrap();
            while tcp.send(world.now, &[7; 4096][..], SendFlags::empty()).is_ok() {}
        }
        world.pass(SECOND / 100);
        for (nth, sum) in received.iter_mut().enumerate() {
            let mut far = world.far(nth);
            let mut room = [0; 65_536];
            while let Ok(n) = far.read(&mut room) {
                *sum += n;
            }
        }
        world.settle();
    }
    received
}

#[test]
fn all_connections_of_a_permission_share_its_rate() {
    let mut world = world(&["203.0.113.0/24@8mbit", "198.51.100.1"]);
    let all = ["203.0.113.1:80", "203.0.113.2:80", "198.51.100.1:80"].map(|at| world.connect(at));
    let arrived = sent(&mut world, &all);
    let limited = arrived[0] + arrived[1];
    assert!((900_000..1_100_000).contains(&limited), "{arrived:?}");
    assert!(arrived[0].min(arrived[1]) > limited / 4, "both go on: {arrived:?}");
    assert!(arrived[2] > 3 * limited, "the other permission has no limit: {arrived:?}");
}

#[test]
fn connections_on_several_cores_share_the_rate_of_their_permission() {
    let mut world = world_on(3, &["203.0.113.0/24@8mbit"]);
    let all: Vec<TcpId> =
        (1..=12).map(|host| world.connect(&format!("203.0.113.{host}:80"))).collect();
    assert!(world.spread().iter().all(|n| *n > 0), "{:?}", world.spread());
    let arrived = sent(&mut world, &all);
    let sum: usize = arrived.iter().sum();
    // A burst of each core, at the most.
    assert!((900_000..1_300_000).contains(&sum), "{arrived:?}");
    assert!(arrived.iter().all(|n| *n > sum / 100), "all go on: {arrived:?}");
}

#[test]
fn the_rate_holds_for_what_the_guest_receives_by_itself() {
    let mut world = world(&["203.0.113.0/24@8mbit"]);
    let id = world.connect("203.0.113.1:80");
    let (mut far, mut received) = (world.far(0), 0);
    for _ in 0..100 {
        while far.write(&[7; 65_536]).is_ok() {}
        world.pass(SECOND / 100);
        let mut room = vec![0; 65_536];
        let mut tcp = world.guest.tcp(id).unwrap();
        loop {
            match tcp.recv(world.now, &mut room[..], RecvFlags::empty()) {
                Ok(n) => received += n,
                Err(Error::WouldBlock) => break,
                Err(error) => panic!("{error}"),
            }
        }
        world.settle();
    }
    assert!((900_000..1_100_000).contains(&received), "{received}");
}

#[test]
fn the_name_that_a_connection_shows_has_its_rate() {
    let mut world = world(&["good.example@8mbit", "203.0.113.1:81"]);
    let [slow, quick] = ["203.0.113.1:80", "203.0.113.1:81"].map(|at| world.connect(at));
    let head = b"POST / HTTP/1.1\r\nHost: good.example\r\nContent-Length: 100000000\r\n\r\n";
    world.say(slow, head);
    let arrived = sent(&mut world, &[slow, quick]);
    assert!((900_000..1_100_000).contains(&arrived[0]), "{arrived:?}");
    assert!(arrived[1] > 3 * arrived[0], "{arrived:?}");
    // Other rules take the limit away.
    let rules = Rules::default().allow("good.example".parse().unwrap());
    world.relay.set_rules(world.now, &mut world.gateway, Ruling::of(rules));
    let arrived = sent(&mut world, &[slow]);
    assert!(arrived[0] > 3_000_000, "{arrived:?}");
}

#[test]
fn a_denial_of_another_name_changes_no_rate() {
    let allow = ["good.example@8mbit", "203.0.113.1"];
    for denied in [None, Some("bad.example")] {
        let mut world = world(&allow);
        let rules = allow.iter().fold(Rules::default(), |all, one| all.allow(one.parse().unwrap()));
        let rules = denied.into_iter().fold(rules, |all, one| all.deny(one.parse().unwrap()));
        world.relay.set_rules(world.now, &mut world.gateway, Ruling::of(rules));
        let id = world.connect("203.0.113.1:80");
        let head = b"POST / HTTP/1.1\r\nHost: good.example\r\nContent-Length: 100000000\r\n\r\n";
        world.say(id, head);
        let arrived = sent(&mut world, &[id]);
        assert!(arrived[0] > 3_000_000, "the address permits it: {denied:?} {arrived:?}");
    }
}

#[test]
fn a_connection_below_its_rate_is_not_delayed_and_ends() {
    let mut world = world(&["203.0.113.0/24@8mbit"]);
    let id = world.connect("203.0.113.1:80");
    world.say(id, b"request");
    let mut room = [0; 16];
    assert_eq!(world.far(0).read(&mut room).unwrap(), 7);
    world.guest.close(world.now, id);
    world.settle();
    assert_eq!(world.far(0).read(&mut room).unwrap(), 0);
}
