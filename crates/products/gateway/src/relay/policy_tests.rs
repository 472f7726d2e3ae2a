//! Flows about which a policy is asked: what is asked, what waits, and what follows from each answer.

use std::future::Future;
use std::io::Read;
use std::net::UdpSocket;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use pagewire::services::{Error, SocketBind};

use crate::asking::{Opinion, PolicySettings};
use crate::context::Ruling;
use crate::limits::{
    HELD_DATAGRAMS, POLICY_QUESTIONS, POLICY_QUESTIONS_BURST, POLICY_QUESTIONS_PER_SECOND,
};
use crate::policy::{Resolved, Rules};
use crate::request::{Ask, How, Protocol, Verdict};
use crate::world::{Settings, World};

const ONE: &str = "203.0.113.1:80";
const OTHER: &str = "203.0.113.2:80";
const LIMIT: Duration = Duration::from_secs(5);

/// The questions so far, which tests answer.
#[derive(Clone, Default)]
struct Desk(Arc<Mutex<Vec<Question>>>);

struct Question {
    flow: u64,
    ask: Ask,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    opinion: Option<Opinion>,
    waker: Option<Waker>,
    ended: bool,
}

struct Waits(Arc<Mutex<State>>);

impl Future for Waits {
    type Output = Opinion;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Opinion> {
        let mut state = self.0.lock().unwrap();
        state.waker = Some(context.waker().clone());
        state.opinion.clone().map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.lock().unwrap().ended = true;
    }
}

impl Desk {
    fn settings(&self, rules: Rules, otherwise: Verdict) -> Settings {
        let questions = Arc::clone(&self.0);
        let policy = move |flow, ask| {
            let state = Arc::<Mutex<State>>::default();
            questions.lock().unwrap().push(Question { flow, ask, state: Arc::clone(&state) });
            Waits(state)
        };
        let policy = PolicySettings { policy: Arc::new(policy), limit: LIMIT, otherwise };
        Settings { rules, policy: Some(policy), ..Settings::default() }
    }

    fn world(rules: Rules) -> (Self, World) {
        let desk = Self::default();
        let world = World::new(desk.settings(rules, Verdict::Prohibit));
        (desk, world)
    }

    fn asked(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    fn has_ended(&self, nth: usize) -> bool {
        self.0.lock().unwrap()[nth].state.lock().unwrap().ended
    }

    fn answer(&self, world: &mut World, nth: usize, opinion: Opinion) {
        let waker = {
            let questions = self.0.lock().unwrap();
            let mut state = questions[nth].state.lock().unwrap();
            state.opinion = Some(opinion);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        world.settle();
    }
}

fn rules(allow: &[&str], deny: &[&str]) -> Rules {
    let rules = allow.iter().fold(Rules::default(), |all, rule| all.allow(rule.parse().unwrap()));
    deny.iter().fold(rules, |all, rule| all.deny(rule.parse().unwrap()))
}

fn learn(world: &mut World, name: &str) {
    let addresses = vec![("203.0.113.1".parse().unwrap(), Duration::from_secs(600))];
    let answer = Resolved { names: vec![name.parse().unwrap()], addresses };
    world.relay.context.dns.names().learn(world.now, &answer);
}

fn allow() -> Opinion {
    Opinion::verdict(Verdict::Allow)
}

fn is_open(world: &World) -> bool {
    world.relay.flows(world.now).iter().any(|flow| flow.open)
}

fn request(host: &str) -> Vec<u8> {
    format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes()
}

fn received(world: &World) -> usize {
    world.far(0).read(&mut [0; 4096]).unwrap_or(0)
}

fn set(world: &mut World, rules: Rules) -> usize {
    let ended = world.relay.set_rules(world.now, &mut world.gateway, Ruling::of(rules));
    world.settle();
    ended
}

#[test]
fn a_connection_waits_for_the_answer_and_is_dialled_after_it() {
    let (desk, mut world) = Desk::world(Rules::default());
    let id = world.connect(ONE);
    world.pass(Duration::from_secs(3));
    assert_eq!((world.dialled().len(), world.error(id)), (0, None));
    {
        let questions = desk.0.lock().unwrap();
        assert_eq!(questions.len(), 1, "a repeated SYN is no other question");
        let Question { flow, ask, .. } = &questions[0];
        assert_eq!((*flow, ask.protocol, ask.to), (1, Protocol::Tcp, ONE.parse().unwrap()));
    }
    desk.answer(&mut world, 0, allow());
    assert_eq!(world.dialled(), [ONE.parse().unwrap()]);
    assert!(is_open(&world));
    assert_eq!(world.verdicts(), [Verdict::Allow]);
}

#[test]
fn each_verdict_is_the_guests_answer() {
    for (verdict, error) in [
        (Verdict::Refuse, Error::ConnectionRefused),
        (Verdict::Prohibit, Error::HostUnreachable),
        (Verdict::Unreachable, Error::NetworkUnreachable),
    ] {
        let (desk, mut world) = Desk::world(Rules::default());
        let id = world.connect(ONE);
        desk.answer(&mut world, 0, Opinion::verdict(verdict));
        assert_eq!(world.error(id), Some(error), "{verdict:?}");
        assert_eq!((world.verdicts(), world.dialled().len()), (vec![verdict], 0));
    }
}

#[test]
fn without_an_opinion_the_rules_decide() {
    for (rules, opens) in [(Rules::default(), true), (rules(&["198.51.100.1"], &[]), false)] {
        let (desk, mut world) = Desk::world(rules);
        world.connect(ONE);
        desk.answer(&mut world, 0, Opinion::rules());
        assert_eq!(is_open(&world), opens);
    }
}

#[test]
fn without_an_answer_in_time_the_stated_verdict_holds() {
    for (otherwise, opens) in [(Verdict::Prohibit, false), (Verdict::Allow, true)] {
        let desk = Desk::default();
        let mut world = World::new(desk.settings(Rules::default(), otherwise));
        world.connect(ONE);
        world.pass(LIMIT - Duration::from_millis(1));
        assert!(world.verdicts().is_empty());
        world.pass(Duration::from_millis(1));
        assert_eq!((world.verdicts(), is_open(&world)), (vec![otherwise], opens));
        assert!(desk.has_ended(0), "the future is dropped");
        assert_eq!(world.relay.counters().questions_unanswered, 1);
    }
}

#[test]
fn nobody_is_asked_about_what_rules_decide() {
    let (desk, mut world) = Desk::world(rules(&["203.0.113.1"], &["203.0.113.2"]));
    for to in [ONE, OTHER, "127.0.0.1:80", "169.254.169.254:80", "[::1]:80"] {
        // The guest's own stack refuses some.
        let _ = world.guest.connect(world.now, to.parse().unwrap(), None);
        world.settle();
    }
    assert_eq!((desk.asked(), world.dialled()), (0, vec![ONE.parse().unwrap()]));
    let (desk, mut world) = Desk::world(rules(&["203.0.113.9"], &[]).audit());
    world.connect(ONE);
    assert_eq!((desk.asked(), is_open(&world)), (0, true), "an audit asks nobody");
}

#[test]
fn a_guest_that_gives_up_ends_the_question() {
    let (desk, mut world) = Desk::world(Rules::default());
    let id = world.connect(ONE);
    assert_eq!(world.relay.context.desk.as_ref().unwrap().open(), 1);
    let flow = desk.0.lock().unwrap()[0].flow;
    assert!(world.relay.kill(world.now, &mut world.gateway, flow));
    world.settle();
    assert!(desk.has_ended(0));
    assert_eq!(world.relay.context.desk.as_ref().unwrap().open(), 0);
    assert_eq!((world.ends(), world.error(id)), (vec![How::Killed], Some(Error::HostUnreachable)));
}

#[test]
fn flows_with_one_question_share_its_answer() {
    let (desk, mut world) = Desk::world(Rules::default());
    for to in [ONE, ONE, ONE, OTHER] {
        world.connect(to);
    }
    assert_eq!(desk.asked(), 2);
    desk.answer(&mut world, 0, allow());
    assert_eq!(world.dialled(), [ONE.parse().unwrap(); 3]);
    // The answer was for those that waited.
    world.connect(ONE);
    assert_eq!(desk.asked(), 3);
}

#[test]
fn an_answer_is_kept_for_the_time_that_it_says() {
    let (desk, mut world) = Desk::world(Rules::default());
    world.connect(ONE);
    desk.answer(&mut world, 0, allow().keep(Duration::from_secs(60)));
    world.pass(Duration::from_secs(59));
    world.connect(ONE);
    assert_eq!((desk.asked(), world.dialled().len()), (1, 2));
    world.pass(Duration::from_secs(1));
    world.connect(ONE);
    assert_eq!(desk.asked(), 2);
}

#[test]
fn beyond_the_limit_of_questions_the_stated_verdict_holds() {
    let (desk, mut world) = Desk::world(Rules::default());
    for n in 0..=POLICY_QUESTIONS {
        world.connect(&format!("203.0.113.1:{}", 1000 + n));
    }
    assert_eq!((desk.asked(), world.verdicts()), (POLICY_QUESTIONS, vec![Verdict::Prohibit]));
    assert_eq!(world.relay.counters().questions_refused, 1);
}

#[test]
fn a_flood_of_questions_is_answered_by_the_stated_verdict() {
    let policy = |_, _| std::future::ready(allow());
    let (limit, otherwise) = (LIMIT, Verdict::Refuse);
    let policy = Some(PolicySettings { policy: Arc::new(policy), limit, otherwise });
    let mut world = World::new(Settings { policy, ..Settings::default() });
    let permitted = |world: &mut World, all: u32| {
        let from = "10.0.2.15:4000".parse().unwrap();
        let to = |n: u32| ([203, 0, 113, 1], 1000 + n as u16).into();
        let flows =
            (0..all).map(|n| world.relay.context.judge(world.now, Protocol::Tcp, from, to(n)));
        flows.map(|judged| u32::from(judged.at_once().to.is_ok())).sum::<u32>()
    };
    assert_eq!(permitted(&mut world, POLICY_QUESTIONS_BURST + 5), POLICY_QUESTIONS_BURST);
    assert_eq!(world.relay.counters().questions_refused, 5);
    world.now += Duration::from_secs(1);
    let more = permitted(&mut world, 2 * POLICY_QUESTIONS_PER_SECOND);
    assert_eq!(more, POLICY_QUESTIONS_PER_SECOND);
}

#[test]
fn a_permitted_connection_shows_one_of_the_names_that_were_asked() {
    for (host, passes) in [("good.example", true), ("evil.example", false)] {
        let (desk, mut world) = Desk::world(rules(&["198.51.100.1"], &[]));
        learn(&mut world, "good.example");
        let id = world.connect(ONE);
        assert_eq!(desk.0.lock().unwrap()[0].ask.names[0].as_str(), "good.example");
        desk.answer(&mut world, 0, allow());
        // A name that the guest looks up later was no part of the question.
        learn(&mut world, "evil.example");
        world.say(id, &request(host));
        assert_eq!((received(&world) > 0, world.error(id).is_none()), (passes, passes), "{host}");
    }
}

#[test]
fn an_answer_may_permit_some_of_the_names() {
    let some = || allow().names(["good.example".parse().unwrap(), "x.example".parse().unwrap()]);
    for (host, passes) in [("good.example", true), ("evil.example", false), ("x.example", false)] {
        let (desk, mut world) = Desk::world(rules(&["198.51.100.1"], &[]));
        learn(&mut world, "good.example");
        learn(&mut world, "evil.example");
        let id = world.connect(ONE);
        desk.answer(&mut world, 0, some());
        world.say(id, &request(host));
        assert_eq!(world.error(id).is_none(), passes, "{host}");
    }
    // An address with none of the names.
    let (desk, mut world) = Desk::world(rules(&["198.51.100.1"], &[]));
    learn(&mut world, "evil.example");
    let id = world.connect(ONE);
    desk.answer(&mut world, 0, some());
    assert!(world.error(id).is_some() && world.dialled().is_empty());
}

#[test]
fn where_the_address_decides_a_connection_shows_what_it_likes() {
    let (desk, mut world) = Desk::world(rules(&["198.51.100.1"], &["bad.example"]));
    learn(&mut world, "good.example");
    for (n, host) in ["evil.example", "bad.example"].into_iter().enumerate() {
        let id = world.connect(ONE);
        desk.answer(&mut world, n, allow().by_address());
        world.say(id, &request(host));
        assert_eq!(world.error(id).is_none(), host == "evil.example", "a denial holds: {host}");
    }
}

#[test]
fn new_rules_end_a_flow_that_the_policy_permits_only_by_a_denial() {
    let (desk, mut world) = Desk::world(rules(&["198.51.100.1"], &[]));
    learn(&mut world, "good.example");
    let id = world.connect(ONE);
    desk.answer(&mut world, 0, allow());
    world.say(id, &request("good.example"));
    assert_eq!(set(&mut world, rules(&["198.51.100.2"], &[])), 0);
    assert_eq!(set(&mut world, rules(&["other.example"], &[])), 0);
    world.say(id, &request("good.example"));
    assert_eq!((desk.asked(), world.error(id)), (1, None));
    assert_eq!(set(&mut world, rules(&[], &["good.example"])), 1);
    assert_eq!(world.error(id), Some(Error::ConnectionReset));
}

#[test]
fn an_answer_does_not_overrule_a_denial_that_has_come_meanwhile() {
    let (desk, mut world) = Desk::world(Rules::default());
    let (one, other) = (world.connect(ONE), world.connect(OTHER));
    assert_eq!(set(&mut world, rules(&["198.51.100.1"], &["203.0.113.1"])), 1);
    assert_eq!((world.error(one), world.error(other)), (Some(Error::HostUnreachable), None));
    assert!(desk.has_ended(0));
    desk.answer(&mut world, 1, allow());
    assert_eq!(world.dialled(), [OTHER.parse().unwrap()]);
}

#[test]
fn the_first_datagrams_wait_for_the_answer() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    server.set_nonblocking(true).unwrap();
    let there = server.local_addr().unwrap();
    let desk = Desk::default();
    let settings = desk.settings(Rules::default(), Verdict::Prohibit);
    // Loopback is a closed destination of rules, and none of the program's judge.
    let judge = move |ask: &Ask| (ask.to == there).then_some(Verdict::Allow);
    let mut world = World::new(Settings { judge: Some(Arc::new(judge)), ..settings });
    let socket = world.guest.bind_udp("0.0.0.0:4000".parse().unwrap(), SocketBind::default());
    let socket = socket.unwrap();
    let sent = HELD_DATAGRAMS + 2;
    for n in 0..sent {
        let to = "203.0.113.1:53".parse().unwrap();
        world.guest.udp(socket).unwrap().send(world.now, &[n as u8][..], Some(to)).unwrap();
        world.settle();
    }
    assert_eq!((desk.asked(), world.relay.udp().len()), (1, 0));
    assert_eq!(world.relay.counters().datagrams_lost, 2, "those beyond the limit");
    desk.answer(&mut world, 0, Opinion::verdict(Verdict::To(there)));
    let mut got = Vec::new();
    let mut room = [0; 8];
    while let Ok(n) = server.recv(&mut room) {
        got.extend_from_slice(&room[..n]);
    }
    assert_eq!(got, (0..HELD_DATAGRAMS as u8).collect::<Vec<_>>(), "in order");
}

#[test]
fn datagrams_that_the_policy_prohibits_are_answered_by_icmp() {
    let (desk, mut world) = Desk::world(Rules::default());
    let socket = world.guest.bind_udp("0.0.0.0:4000".parse().unwrap(), SocketBind::default());
    let socket = socket.unwrap();
    let to = "203.0.113.1:53".parse().unwrap();
    world.guest.udp(socket).unwrap().send(world.now, &[1][..], Some(to)).unwrap();
    world.settle();
    desk.answer(&mut world, 0, Opinion::verdict(Verdict::Prohibit));
    assert_eq!((world.verdicts(), world.relay.udp().len()), (vec![Verdict::Prohibit], 0));
    assert_eq!(world.relay.counters().datagrams_out, 0);
}

#[test]
fn an_address_that_rules_map_leads_on_where_the_policy_permits_it() {
    for restricted in [false, true] {
        let mapped =
            Rules::default().map("203.0.113.1".parse().unwrap(), "127.0.0.1".parse().unwrap());
        let mapped = if restricted { mapped.restrict() } else { mapped };
        let (desk, mut world) = Desk::world(mapped);
        world.connect(ONE);
        desk.answer(&mut world, 0, allow());
        let to = "127.0.0.1:80".parse().unwrap();
        assert_eq!((world.dialled(), world.verdicts()), (vec![to], vec![Verdict::To(to)]));
        assert_eq!(desk.asked(), 1);
    }
}

#[test]
fn a_removed_guest_leaves_no_question() {
    let (desk, mut world) = Desk::world(Rules::default());
    world.connect(ONE);
    let socket = world.guest.bind_udp("0.0.0.0:4000".parse().unwrap(), SocketBind::default());
    let to = Some("203.0.113.1:53".parse().unwrap());
    world.guest.udp(socket.unwrap()).unwrap().send(world.now, &[1][..], to).unwrap();
    world.settle();
    assert_eq!(desk.asked(), 2);
    world.relay.end_all(world.now, &mut world.gateway);
    assert!(desk.has_ended(0) && desk.has_ended(1));
    assert_eq!(world.relay.poll_timeout(), None);
}
