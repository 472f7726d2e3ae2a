//! The assignment of addresses, by a server for 10.0.0.1/24 that gives 10.0.0.10 to .12.

use std::net::Ipv4Addr;

use pagewire_mem::Instant;
use pagewire_testkit::given;
use proptest::prelude::*;
use smoltcp::wire::DhcpMessageType as Kind;

use super::server::{Answer, Request, Server};
use super::*;

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const NOBODY: Ipv4Addr = Ipv4Addr::UNSPECIFIED;
const ANNA: [u8; 6] = [2, 0, 0, 0, 0, 1];
const BERT: [u8; 6] = [2, 0, 0, 0, 0, 2];

fn host(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, last)
}

fn server() -> Server {
    let config = DhcpConfig::network(SERVER, 24).and_then(|c| c.range(host(10), host(12)));
    Server::new(config.expect("settings"), 1500)
}

fn asks(client: [u8; 6], kind: Kind) -> Request {
    Request { kind, client, has: NOBODY, wants: None, server: None, relay: NOBODY }
}

fn wants(client: [u8; 6], kind: Kind, address: Ipv4Addr) -> Request {
    Request { wants: Some(address), ..asks(client, kind) }
}

fn at(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

/// Offer and request, as most clients do it.
fn obtain(server: &mut Server, now: Instant, client: [u8; 6]) -> Option<Ipv4Addr> {
    let Some(Answer::Offer(address)) = server.handle(now, &asks(client, Kind::Discover)) else {
        return None;
    };
    let request = Request { server: Some(SERVER), ..wants(client, Kind::Request, address) };
    assert_eq!(server.handle(now, &request), Some(Answer::Ack(address)));
    Some(address)
}

given! {
    let mut server = server();

    an_offer_that_is_chosen_becomes_a_lease {
        assert_eq!(obtain(&mut server, at(0), ANNA), Some(host(10)));
        assert_eq!(obtain(&mut server, at(0), BERT), Some(host(11)));
        let leases: Vec<_> = server.leases().collect();
        assert_eq!(
            leases,
            [
                DhcpLease { client: ANNA, address: host(10) },
                DhcpLease { client: BERT, address: host(11) }
            ]
        );
    }
    a_client_that_asks_again_gets_the_same_address_even_after_its_lease {
        assert_eq!(obtain(&mut server, at(0), ANNA), Some(host(10)));
        assert_eq!(obtain(&mut server, at(1), ANNA), Some(host(10)));
        assert_eq!(obtain(&mut server, at(100_000), ANNA), Some(host(10)));
        assert_eq!(server.leases().count(), 1);
    }
    an_address_that_was_never_given_goes_out_before_one_that_ran_out {
        obtain(&mut server, at(0), ANNA);
        assert_eq!(obtain(&mut server, at(100_000), BERT), Some(host(11)));
    }
    a_wish_is_granted_if_the_address_is_free_and_in_range {
        let offer = |server: &mut Server, client, address| {
            server.handle(at(0), &wants(client, Kind::Discover, address))
        };
        assert_eq!(offer(&mut server, ANNA, host(12)), Some(Answer::Offer(host(12))));
        assert_eq!(offer(&mut server, BERT, host(12)), Some(Answer::Offer(host(10))));
        assert_eq!(offer(&mut server, [2; 6], SERVER), Some(Answer::Offer(host(11))));
    }
    an_offer_that_is_not_taken_up_goes_to_the_next {
        for last in 1..=3 {
            assert!(server.handle(at(0), &asks([2, last, 0, 0, 0, 0], Kind::Discover)).is_some());
        }
        assert_eq!(server.handle(at(1), &asks(ANNA, Kind::Discover)), None);
        assert_eq!(server.counters.exhausted, 1);
        assert_eq!(obtain(&mut server, at(31), ANNA), Some(host(10)));
    }
    choosing_another_server_frees_what_we_offered {
        server.handle(at(0), &asks(ANNA, Kind::Discover));
        let other = Request { server: Some(host(2)), ..wants(ANNA, Kind::Request, host(99)) };
        assert_eq!(server.handle(at(0), &other), None);
        assert_eq!(server.counters.ignored, 1);
        assert_eq!(obtain(&mut server, at(0), BERT), Some(host(10)));
    }
    an_address_of_somebody_else_or_of_another_network_is_refused {
        obtain(&mut server, at(0), ANNA);
        for address in [host(10), host(13), SERVER, Ipv4Addr::new(192, 168, 0, 7)] {
            let request = wants(BERT, Kind::Request, address);
            assert_eq!(server.handle(at(1), &request), Some(Answer::Nak), "{address}");
        }
        assert_eq!(server.counters.naks, 4);
        assert_eq!(server.leases().count(), 1);
    }
    a_renewal_lengthens_the_lease {
        for client in [ANNA, BERT, [2; 6]] {
            obtain(&mut server, at(0), client);
        }
        let renews = Request { has: host(10), ..asks(ANNA, Kind::Request) };
        assert_eq!(server.handle(at(3000), &renews), Some(Answer::Ack(host(10))));
        // The others' leases have run out at 3600 s, this one has not.
        assert_eq!(obtain(&mut server, at(3700), [4; 6]), Some(host(11)));
        assert_eq!(obtain(&mut server, at(3700), [6; 6]), Some(host(12)));
        assert_eq!(obtain(&mut server, at(3700), [8; 6]), None);
    }
    an_offer_does_not_shorten_a_lease {
        obtain(&mut server, at(0), ANNA);
        server.handle(at(1), &asks(ANNA, Kind::Discover));
        let request = wants(BERT, Kind::Request, host(10));
        assert_eq!(server.handle(at(60), &request), Some(Answer::Nak));
    }
    a_release_frees_only_the_senders_own_address {
        obtain(&mut server, at(0), ANNA);
        let release = |client| Request { has: host(10), ..asks(client, Kind::Release) };
        assert_eq!(server.handle(at(0), &release(BERT)), None);
        assert_eq!(server.leases().count(), 1);
        assert_eq!(server.handle(at(0), &release(ANNA)), None);
        assert_eq!(server.leases().count(), 0);
        assert_eq!(obtain(&mut server, at(0), BERT), Some(host(10)));
    }
    a_declined_address_rests {
        obtain(&mut server, at(0), ANNA);
        server.handle(at(0), &wants(BERT, Kind::Decline, host(10)));
        assert_eq!((server.counters.declines, server.counters.ignored), (0, 1));
        server.handle(at(0), &wants(ANNA, Kind::Decline, host(10)));
        assert_eq!(server.counters.declines, 1);
        assert_eq!(obtain(&mut server, at(1), ANNA), Some(host(11)));
        assert_eq!(
            server.handle(at(1), &wants(BERT, Kind::Request, host(10))),
            Some(Answer::Nak),
            "it rests for everybody"
        );
        assert_eq!(
            server.handle(at(601), &wants(BERT, Kind::Request, host(10))),
            Some(Answer::Ack(host(10)))
        );
    }
    who_has_an_address_is_told_the_rest {
        let inform = Request { has: host(77), ..asks(ANNA, Kind::Inform) };
        assert_eq!(server.handle(at(0), &inform), Some(Answer::Inform));
        assert_eq!(server.leases().count(), 0);
    }
    what_is_not_for_us_gets_no_answer {
        let relayed = Request { relay: host(2), ..asks(ANNA, Kind::Discover) };
        assert_eq!(server.handle(at(0), &relayed), None);
        for kind in [Kind::Offer, Kind::Ack, Kind::Nak, Kind::Unknown(77)] {
            assert_eq!(server.handle(at(0), &asks(ANNA, kind)), None);
        }
        assert_eq!(server.counters.ignored, 5);
        for client in [[0; 6], [0xff; 6], [1, 0, 0x5e, 0, 0, 1]] {
            assert_eq!(server.handle(at(0), &asks(client, Kind::Discover)), None);
        }
        assert_eq!(server.handle(at(0), &asks(ANNA, Kind::Request)), None, "for no address at all");
        assert_eq!(server.counters.malformed, 4);
    }
}

#[test]
fn the_only_address_of_a_range_belongs_to_whoever_asks_last() {
    let config = DhcpConfig::network(SERVER, 24).and_then(|c| c.range(host(15), host(15)));
    let mut server = Server::new(config.expect("settings"), 1500);
    assert_eq!(obtain(&mut server, at(0), ANNA), Some(host(15)));
    assert_eq!(obtain(&mut server, at(1), BERT), Some(host(15)));
    let leases: Vec<_> = server.leases().collect();
    assert_eq!(leases, [DhcpLease { client: BERT, address: host(15) }]);
    // Unless somebody uses it without having asked.
    server.handle(at(2), &wants(BERT, Kind::Decline, host(15)));
    assert_eq!(obtain(&mut server, at(3), ANNA), None);
}

#[test]
fn a_client_from_before_a_restart_keeps_its_address_if_nobody_has_it() {
    // INIT-REBOOT names the address as a wish, RENEWING and REBINDING have it.
    let mut restarted = server();
    assert_eq!(
        restarted.handle(at(0), &wants(ANNA, Kind::Request, host(11))),
        Some(Answer::Ack(host(11)))
    );
    let renews = Request { has: host(12), ..asks(BERT, Kind::Request) };
    assert_eq!(restarted.handle(at(0), &renews), Some(Answer::Ack(host(12))));
    let late = Request { has: host(12), ..asks([2; 6], Kind::Request) };
    assert_eq!(restarted.handle(at(1), &late), Some(Answer::Nak));
}

#[test]
fn settings_that_cannot_work_are_refused() {
    let network = |prefix| DhcpConfig::network(SERVER, prefix);
    let wide = network(8).expect("settings");
    // The server's own address is the first of the network, and not given.
    assert_eq!((wide.first, wide.last), (host(2), Ipv4Addr::new(10, 0, 1, 1)));
    let narrow = network(30).expect("settings");
    assert_eq!((narrow.first, narrow.last), (host(2), host(2)));
    for prefix in [31, 32, 33, 255] {
        assert!(matches!(network(prefix), Err(DeviceError::Config(_))), "{prefix}");
    }
    for (first, last) in [
        (host(10), host(9)),
        (SERVER, SERVER),
        (host(0), host(9)),
        (host(10), host(255)),
        (Ipv4Addr::new(10, 0, 1, 1), Ipv4Addr::new(10, 0, 1, 9)),
    ] {
        let refused = network(24).and_then(|c| c.range(first, last));
        assert!(matches!(refused, Err(DeviceError::Config(_))), "{first} {last}");
    }
    let many = DhcpConfig { dns: vec![SERVER; 4], ..wide.clone() }.checked();
    assert!(matches!(many, Err(DeviceError::Config(_))), "{many:?}");
    let domain = DhcpConfig { search: vec![String::new()], ..wide.clone() }.checked();
    assert!(matches!(domain, Err(DeviceError::Config(_))), "{domain:?}");
    let long = wide.range(host(2), Ipv4Addr::new(10, 0, 1, 2));
    assert!(matches!(long, Err(DeviceError::Config(_))), "{long:?}");
}

#[test]
fn one_client_may_have_a_network_without_the_server() {
    let apart = Ipv4Addr::new(192, 0, 2, 5);
    for (client, prefix) in [(apart, 32), (apart, 31), (apart, 24), (host(0), 31)] {
        let config = DhcpConfig::host(SERVER, client, prefix).expect("settings");
        assert_eq!(obtain(&mut Server::new(config, 1500), at(0), ANNA), Some(client), "{prefix}");
    }
    let edge = Ipv4Addr::new(192, 0, 2, 255);
    for (client, prefix) in [(SERVER, 32), (edge, 24), (apart, 33), (apart, 255)] {
        let refused = DhcpConfig::host(SERVER, client, prefix);
        assert!(matches!(refused, Err(DeviceError::Config(_))), "{client}/{prefix}");
    }
    let config = DhcpConfig::host(SERVER, apart, 24).expect("settings");
    let two = DhcpConfig { last: Ipv4Addr::new(192, 0, 2, 6), ..config }.checked();
    assert!(matches!(two, Err(DeviceError::Config(_))), "{two:?}");
}

fn any_request() -> impl Strategy<Value = Request> {
    let client = (0..8u8).prop_map(|n| [n & !1, 0, 0, 0, 0, n]);
    let address = prop_oneof![Just(NOBODY), (0..16u8).prop_map(host)];
    let maybe = proptest::option::of((8..14u8).prop_map(host));
    let server = proptest::option::of((1..3u8).prop_map(host));
    let relay = prop_oneof![9 => Just(NOBODY), 1 => Just(host(3))];
    (0..10u8, client, address, maybe, server, relay).prop_map(
        |(kind, client, has, wants, server, relay)| Request {
            kind: Kind::from(kind),
            client,
            has,
            wants,
            server,
            relay,
        },
    )
}

proptest! {
    /// Whatever is asked in whatever order: an address is granted to one client at a time, only
    /// those of the range are, and a client has at most one.
    #[test]
    fn no_address_is_granted_twice(requests in proptest::collection::vec((any_request(), 0..2000u64), 1..200)) {
        let mut server = server();
        let mut now = 0;
        let mut granted: Vec<(Ipv4Addr, [u8; 6], u64)> = Vec::new();
        for (request, later) in requests {
            now += later;
            let answer = server.handle(at(now), &request);
            if let Some(Answer::Offer(address) | Answer::Ack(address)) = answer {
                prop_assert!((host(10)..=host(12)).contains(&address));
                let taken = granted.iter().find(|(a, client, until)| {
                    *a == address && *client != request.client && *until > now
                });
                prop_assert!(taken.is_none(), "{request:?} was given {address} of {taken:?}");
            }
            match (request.kind, answer) {
                (_, Some(Answer::Ack(address))) => {
                    granted.retain(|(_, client, _)| *client != request.client);
                    granted.push((address, request.client, now + 3600));
                }
                // Given back, or not wanted any more.
                (Kind::Release | Kind::Decline, _) => {
                    granted.retain(|(_, client, _)| *client != request.client);
                }
                _ => {}
            }
            prop_assert!(server.leases().count() <= 3);
        }
    }
}
