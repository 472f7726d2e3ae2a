//! Rules that only write down what they refuse: everything passes, and the rules that would permit it are known.

use std::io::Read as _;
use std::time::Duration;

use crate::context::Ruling;
use crate::policy::{Resolved, Rules};
use crate::request::{How, Protocol, Record, Verdict};
use crate::world::{Settings, World};

/// A guest that knows `good.example` at 203.0.113.1, under rules that refuse nothing.
fn audited(rules: Rules) -> World {
    let world = World::new(Settings { rules: rules.audit(), ..Settings::default() });
    let names = vec!["good.example".parse().unwrap()];
    let addresses = vec![("203.0.113.1".parse().unwrap(), Duration::from_secs(600))];
    world.relay.context.dns.names().learn(world.now, &Resolved { names, addresses });
    world
}

fn received(world: &World, nth: usize) -> String {
    let mut room = [0; 4096];
    let n = world.far(nth).read(&mut room).unwrap_or(0);
    String::from_utf8_lossy(&room[..n]).into_owned()
}

/// The rules that would permit what the guest has done, and how often it did.
fn learned(world: &World) -> Vec<(String, u64)> {
    world.relay.learned().into_iter().map(|(rule, n)| (rule.to_string(), n)).collect()
}

/// The names that audited flows have shown, and the rules for them.
fn written(world: &World) -> Vec<(Option<String>, Option<String>)> {
    let audit = |record: &Record| match record {
        Record::Audit { shown, permission, .. } => {
            let name = shown.as_ref().and_then(|shown| shown.name.as_ref());
            Some((name.map(ToString::to_string), permission.clone()))
        }
        _ => None,
    };
    world.records.lock().unwrap().iter().filter_map(audit).collect()
}

fn pair(name: &str, n: u64) -> (String, u64) {
    (name.to_owned(), n)
}

#[test]
fn what_rules_refuse_passes_and_the_rule_for_it_is_learned() {
    let mut world = audited(Rules::default().restrict());
    for port in [80, 80, 8080] {
        let id = world.connect(&format!("203.0.113.1:{port}"));
        world.say(id, b"GET / HTTP/1.1\r\nHost: good.example\r\n\r\n");
    }
    assert!(received(&world, 0).starts_with("GET /"));
    let silent = world.connect("203.0.113.1:5432");
    let unnamed = world.connect("198.51.100.7:22");
    world.say(unnamed, b"SSH-2.0-x\r\n");
    assert_eq!((world.error(silent), world.error(unnamed)), (None, None));
    let rules = [
        pair("good.example:80", 2),
        pair("good.example:8080", 1),
        pair("tcp:good.example:5432", 1),
        pair("198.51.100.7:22/tcp", 1),
    ];
    let mut all = learned(&world);
    all.sort();
    let mut wanted = rules.to_vec();
    wanted.sort();
    assert_eq!(all, wanted);
    assert!(world.verdicts().iter().all(|verdict| *verdict == Verdict::Allow));
    assert_eq!(world.relay.counters().denied, 0);

    // The rules that were learned permit the same, and demand the same names.
    let learned = world
        .relay
        .learned()
        .into_iter()
        .fold(Rules::default(), |rules, (rule, _)| rules.allow(rule));
    let mut world = audited(learned);
    for port in [80, 8080] {
        let id = world.connect(&format!("203.0.113.1:{port}"));
        world.say(id, b"GET / HTTP/1.1\r\nHost: good.example\r\n\r\n");
    }
    world.connect("203.0.113.1:5432");
    world.connect("198.51.100.7:22");
    assert!(written(&world).is_empty());
    assert_eq!(world.relay.counters().audited, 0);
}

#[test]
fn an_audit_tells_what_a_permitted_names_address_was_used_for() {
    let mut world = audited(Rules::default().allow("good.example".parse().unwrap()));
    let id = world.connect("203.0.113.1:80");
    for host in ["good.example", "evil.example", "good.example"] {
        world.say(id, format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes());
    }
    assert_eq!(received(&world, 0).matches("GET").count(), 3);
    assert_eq!(world.error(id), None);
    // The name is none that the resolver gave: no rule by that name would permit the request.
    let by_address = Some("tcp:good.example:80".to_owned());
    assert_eq!(written(&world), [(Some("evil.example".to_owned()), by_address)]);
}

#[test]
fn a_denial_is_written_down_once_for_each_flow() {
    let mut world = audited(Rules::default().deny("203.0.113.0/24".parse().unwrap()));
    let id = world.connect("203.0.113.1:80");
    world.say(id, b"GET / HTTP/1.1\r\nHost: good.example\r\n\r\n");
    world.connect("203.0.113.9:80");
    world.relay.end_all(world.now, &mut world.gateway);
    assert_eq!(written(&world), [(Some("good.example".to_owned()), None), (None, None)]);
    assert_eq!(
        world.relay.denied().to_string(),
        "2 addresses would have been refused; the first: 203.0.113.1:80/tcp (good.example)"
    );
    assert_eq!(world.ends(), [How::Removed, How::Removed]);
}

#[test]
fn closed_addresses_stay_closed_in_an_audit() {
    let mut world = audited(Rules::default().restrict());
    for closed in ["169.254.169.254:80", "100.100.100.200:80"] {
        let id = world.connect(closed);
        assert!(world.error(id).is_some(), "{closed}");
    }
    assert!(world.dialled().is_empty() && learned(&world).is_empty());
    assert_eq!(world.relay.counters().denied, 2);
}

#[test]
fn an_audit_that_ends_by_other_rules_ends_what_these_forbid() {
    let mut world = audited(Rules::default().restrict());
    let [good, other] = ["203.0.113.1:80", "203.0.113.1:81"].map(|at| world.connect(at));
    world.say(good, b"GET / HTTP/1.1\r\nHost: good.example\r\n\r\n");
    world.say(other, b"anything\n");
    let rules = Rules::default().allow("good.example".parse().unwrap());
    assert_eq!(world.relay.set_rules(world.now, &mut world.gateway, Ruling::of(rules)), 1);
    world.settle();
    assert_eq!(world.error(good), None);
    assert!(world.error(other).is_some());
}

#[test]
fn clients_that_rules_refuse_come_in_and_are_written_down() {
    let mut world = audited(Rules::default().allow("from:192.0.2.0/24".parse().unwrap()));
    let (client, to) = ("198.51.100.9:1000".parse().unwrap(), "10.0.2.15:8080".parse().unwrap());
    let judged = world.relay.context.judge_client(world.now, Protocol::Tcp, client, to);
    assert_eq!(judged.to, Ok(to));
    assert_eq!(written(&world), [(None, Some("from:198.51.100.9:8080/tcp".to_owned()))]);
}

#[test]
fn a_permission_for_a_closed_address_that_is_taken_back_ends_its_flows_in_an_audit_too() {
    let rules = Rules::default().restrict().audit();
    let closed = "100.100.100.200:80";
    let mut world = audited(rules.clone().allow("100.100.100.200".parse().unwrap()));
    let [id, other] = [closed, "203.0.113.9:80"].map(|at| world.connect(at));
    assert_eq!(world.error(id), None);
    assert_eq!(world.relay.set_rules(world.now, &mut world.gateway, Ruling::of(rules)), 1);
    world.settle();
    assert!(world.error(id).is_some());
    assert_eq!(world.error(other), None);
}
