//! Endpoints in virtual time: lifetime, peers, filtering, and new clients.

use super::*;
use crate::limits::UDP_PEERS;
use crate::request::{Ask, GuestId, Protocol, Record};
use crate::source::Source;
use crate::world::{Settings, lone_context};

const START: Instant = Instant::from_millis(1000);
const JUST: Duration = Duration::from_millis(1);

fn guest() -> SocketAddr {
    "10.0.2.15:4000".parse().unwrap()
}

fn judged(at: SocketAddr) -> JudgedFlow {
    JudgedFlow { flow: 1, ask: Ask::new(GuestId(1), Protocol::Udp, guest(), at), to: Ok(at) }
}

/// An endpoint of the guest that has sent to these.
fn endpoint(context: &Context, to: &[&str]) -> Endpoint {
    let mut endpoint = Endpoint::new(START, guest(), &Source::default()).unwrap();
    for to in to {
        let to = to.parse().unwrap();
        endpoint.add(START, judged(to), (to, to), false, context);
        endpoint.note_sent(START, to, 1);
    }
    endpoint
}

fn receive(endpoint: &mut Endpoint, now: Instant, from: &str) -> Option<String> {
    endpoint.source_of(now, from.parse().unwrap(), 1).map(|source| source.to_string())
}

#[test]
fn an_answered_question_to_a_name_server_lasts_ten_seconds_and_all_else_five_minutes() {
    let (context, _) = lone_context(Settings::default());
    for (to, answered, limit) in [
        (&["203.0.113.1:53"][..], true, UDP_DNS),
        (&["203.0.113.1:53"], false, UDP_IDLE),
        (&["203.0.113.1:443"], true, UDP_IDLE),
        (&["203.0.113.1:443"], false, UDP_IDLE),
        (&["203.0.113.1:53", "203.0.113.1:443"], true, UDP_IDLE),
    ] {
        let mut endpoint = endpoint(&context, to);
        if answered {
            assert!(receive(&mut endpoint, START, to[0]).is_some());
        }
        assert!(!endpoint.is_over(START + limit - JUST), "{to:?} {answered}");
        assert!(endpoint.is_over(START + limit), "{to:?} {answered}");
    }
}

#[test]
fn what_is_sent_or_heard_renews_the_time() {
    let (context, _) = lone_context(Settings::default());
    let mut endpoint = endpoint(&context, &["203.0.113.1:443"]);
    let half = START + UDP_IDLE / 2;
    receive(&mut endpoint, half, "203.0.113.1:443").unwrap();
    assert!(!endpoint.is_over(half + UDP_IDLE - JUST));
    assert!(endpoint.is_over(half + UDP_IDLE));
    endpoint.note_sent(half + UDP_LEAST, "203.0.113.1:443".parse().unwrap(), 1);
    assert!(!endpoint.is_over(half + UDP_IDLE));
    // A question that was asked again is open again.
    let mut dns = self::endpoint(&context, &["203.0.113.1:53"]);
    receive(&mut dns, START, "203.0.113.1:53").unwrap();
    dns.note_sent(START + JUST, "203.0.113.1:53".parse().unwrap(), 1);
    assert!(!dns.is_over(START + JUST + UDP_DNS));
}

#[test]
fn an_endpoint_makes_room_after_its_least_time_and_a_published_one_never() {
    let (context, _) = lone_context(Settings::default());
    let own = endpoint(&context, &["203.0.113.1:443"]);
    assert!(!own.may_go(START + UDP_LEAST - JUST));
    assert!(own.may_go(START + UDP_LEAST));
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().into();
    let published = Endpoint::published(START, guest(), socket).unwrap();
    let never = START + Duration::from_secs(86_400);
    assert!(!published.may_go(never) && !published.is_over(never));
}

#[test]
fn the_peer_that_was_used_least_recently_makes_room() {
    let (context, records) = lone_context(Settings::default());
    let to = |n: usize| SocketAddr::from(([203, 0, 113, 1], 1000 + n as u16));
    let mut endpoint = endpoint(&context, &[]);
    for n in 0..UDP_PEERS {
        endpoint.add(START, judged(to(n)), (to(n), to(n)), false, &context);
    }
    // In use: it moves towards the end.
    assert!(endpoint.peer(to(0)).is_some());
    endpoint.add(START, judged(to(UDP_PEERS)), (to(UDP_PEERS), to(UDP_PEERS)), false, &context);
    assert_eq!(endpoint.counts().peers, UDP_PEERS);
    assert!(endpoint.peer(to(0)).is_some());
    assert!(endpoint.peer(to(1)).is_none());
    assert!(endpoint.peer(to(UDP_PEERS)).is_some());
    // With too many in all, one makes room also where there are few.
    endpoint.add(START, judged(to(9999)), (to(9999), to(9999)), true, &context);
    assert_eq!(endpoint.counts().peers, UDP_PEERS);
    let closed = |record: &Record| matches!(record, Record::Closed { .. });
    assert_eq!(records.lock().unwrap().iter().filter(|record| closed(record)).count(), 2);
}

#[test]
fn the_guest_hears_addresses_that_it_has_sent_to_by_the_names_that_it_has_for_them() {
    let (context, _) = lone_context(Settings::default());
    let mut endpoint = endpoint(&context, &["203.0.113.1:53"]);
    let (asked, at) = ("192.0.2.1:80".parse().unwrap(), "127.0.0.1:8080".parse().unwrap());
    endpoint.add(START, judged(asked), (asked, at), false, &context);
    for (from, source) in [
        ("203.0.113.1:53", Some("203.0.113.1:53")),
        // Another port of the same address (address-dependent filtering).
        ("203.0.113.1:54", Some("203.0.113.1:54")),
        ("203.0.113.2:53", None),
        ("127.0.0.1:8080", Some("192.0.2.1:80")),
        ("127.0.0.1:8081", Some("192.0.2.1:8081")),
    ] {
        assert_eq!(receive(&mut endpoint, START, from).as_deref(), source, "{from}");
    }
    assert_eq!(endpoint.alias(at), Some(asked));
    assert_eq!(endpoint.alias("127.0.0.1:8081".parse().unwrap()), None);
}

/// A client of the guest's published port, whom the guest calls `called`.
fn client(flow: u64, at: SocketAddr) -> JudgedFlow {
    let mut ask = Ask::new(GuestId(1), Protocol::Udp, at, guest());
    ask.direction = Direction::In;
    JudgedFlow { flow, ask, to: Ok(guest()) }
}

#[test]
fn of_two_clients_that_the_guest_calls_the_same_the_later_has_the_answer() {
    let (context, records) = lone_context(Settings::default());
    let own = "203.0.113.1:443".parse().unwrap();
    let mut endpoint = endpoint(&context, &["203.0.113.1:443"]);
    let called = "10.0.2.2:5000".parse().unwrap();
    let [first, second] = ["127.0.0.1:5000", "127.0.0.2:5000"].map(|at| at.parse().unwrap());
    for (flow, at) in [(2, first), (3, second), (4, first)] {
        endpoint.add_client(START, client(flow, at), (called, at), false, &context);
        assert!(endpoint.peer(called).is_none(), "the guest means the later client");
        assert!(endpoint.answer(START, called, false, &context));
        assert_eq!(endpoint.peer(called).map(|peer| peer.at), Some(at));
        assert_eq!(endpoint.counts(), Counts { peers: 2, new_clients: 0 });
    }
    let closed = |record: &Record| match record {
        Record::Closed { flow, .. } => Some(*flow),
        _ => None,
    };
    let closed: Vec<u64> = records.lock().unwrap().iter().filter_map(closed).collect();
    assert_eq!(closed, [2, 3]);
    // No client takes the alias of a destination that the guest has chosen.
    endpoint.add_client(START, client(5, first), (own, first), false, &context);
    assert_eq!(endpoint.peer(own).map(|peer| peer.at), Some(own));
}

#[test]
fn clients_without_an_answer_count_apart_from_peers_and_are_forgotten() {
    let (context, _) = lone_context(Settings::default());
    let mut endpoint = endpoint(&context, &["203.0.113.1:443"]);
    for n in 0..10 {
        let at = SocketAddr::from(([198, 51, 100, n], 4000));
        endpoint.add_client(START, client(n.into(), at), (at, at), false, &context);
    }
    assert_eq!(endpoint.counts(), Counts { peers: 1, new_clients: 10 });
    assert!(receive(&mut endpoint, START + UDP_IDLE / 2, "198.51.100.3:4000").is_some());
    endpoint.expire_clients(START + UDP_IDLE - JUST);
    assert_eq!(endpoint.counts().new_clients, 10);
    endpoint.expire_clients(START + UDP_IDLE);
    assert_eq!(endpoint.counts(), Counts { peers: 1, new_clients: 1 });
    assert!(!endpoint.is_new_client("198.51.100.3:4000".parse().unwrap()));
}
