//! A guest of several cores: what a guest of one core has, with a thread for each.

use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::sync::{Arc, OnceLock};

use pagewire::{Cores, Host, Pair};
use pagewire_gateway::{AddError, Ask, Gateway, Guest, GuestConfig, How, Rules};

use crate::support::{
    FAR, PATIENCE, World, allow_all, eventually, far, joined, pattern, rest, server, to_loopback,
    world_with,
};

fn world(config: impl FnOnce(GuestConfig) -> GuestConfig) -> World {
    world_with(|builder| builder.judge(to_loopback), |before| config(before.cores(3)))
}

fn known() -> World {
    let guest = "10.0.2.15".parse().unwrap();
    world_with(|builder| builder.judge(allow_all), |config| config.guest(guest).cores(3))
}

#[test]
fn much_data_passes_on_many_connections_and_the_counters_are_sums() {
    let world = world(|config| config);
    assert_eq!(world.guest.cores().shards().len(), 3);
    let all: Vec<_> = (0..24).map(|_| joined(&world.inside)).collect();
    std::thread::scope(|scope| {
        for (mut inner, mut outer) in all {
            scope.spawn(move || {
                outer.write_all(&pattern(100_000)).unwrap();
                drop(outer);
                assert!(rest(&mut inner) == pattern(100_000));
            });
        }
    });
    assert_eq!(world.journal.wait_for_ends(24).len(), 24);
    let counters = world.guest.counters();
    assert_eq!((counters.asked, counters.opened, counters.bytes_in), (24, 24, 2_400_000));
    let busy =
        world.guest.cores().shards().iter().filter(|s| s.stats().counters.tcp_passive_opens > 0);
    assert!(busy.count() > 1, "flows spread");
}

#[test]
fn connections_beyond_the_limit_wait_whatever_core_they_are_on() {
    let world = world(|config| config.connections(4));
    let (server, at) = server();
    let all: Vec<_> = (0..12).map(|_| world.inside.start_connect(at).unwrap()).collect();
    eventually(|| world.guest.counters().asked == 12);
    std::thread::scope(|scope| {
        for mut inner in all {
            scope.spawn(move || inner.read_exact(&mut [0]).unwrap());
        }
        for _ in 0..12 {
            assert!(world.guest.connections() <= 4);
            server.accept().unwrap().0.write_all(b"!").unwrap();
        }
    });
    assert_eq!(world.journal.wait_for_ends(12), [How::Finished; 12]);
}

#[test]
fn a_guest_that_is_removed_resets_the_connections_of_all_cores() {
    let World { inside, guest, gateway, journal } = world(|config| config);
    let all: Vec<_> = (0..12).map(|_| joined(&inside)).collect();
    eventually(|| guest.counters().opened == 12);
    drop(guest);
    assert_eq!((gateway.guests(), journal.ends()), (0, vec![How::Removed; 12]));
    for (_, mut outer) in all {
        assert!(outer.read(&mut [0]).is_err(), "a reset");
    }
}

#[test]
fn flows_of_all_cores_are_listed_and_killed() {
    let world = world(|config| config);
    let all: Vec<_> = (0..12).map(|_| joined(&world.inside)).collect();
    eventually(|| world.guest.counters().opened == 12);
    let flows: Vec<u64> = world.guest.flows().iter().map(|flow| flow.flow).collect();
    assert_eq!(flows, (1..=12).collect::<Vec<u64>>());
    for flow in 1..=6 {
        assert!(world.guest.kill(flow), "{flow}");
        assert!(!world.guest.kill(flow), "{flow}");
    }
    assert_eq!(world.journal.ends(), [How::Killed; 6]);
    drop(all);
}

#[test]
fn new_rules_end_flows_of_all_cores() {
    let rules = Rules::default().map(FAR.into(), [127, 0, 0, 1].into());
    let world = world_with(|builder| builder.rules(rules), |config| config.cores(3));
    let _all: Vec<_> = (0..12).map(|_| joined(&world.inside)).collect();
    eventually(|| world.guest.counters().opened == 12);
    let shards = world.guest.cores().shards().iter();
    assert!(shards.filter(|shard| shard.socket_counts().connections > 0).count() > 1);
    let deny = |rules: Rules| rules.deny("203.0.113.1".parse().unwrap());
    assert_eq!(world.guest.change_rules(deny), Ok(12));
    assert_eq!(world.journal.ends(), [How::Prohibited; 12]);
}

#[test]
fn published_ports_for_datagrams_reach_the_guest_on_whatever_core_and_answer_from_there() {
    let world = known();
    for port in 50..62 {
        let inner = world.inside.udp(("10.0.2.15", port)).unwrap();
        let what = format!("127.0.0.1:0:{port}/udp").parse().unwrap();
        let at = world.guest.publish(&what).unwrap()[0];
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.send_to(b"question", at).unwrap();
        let mut room = [0; 16];
        let (n, from) = inner.recv_from(&mut room).unwrap();
        assert_eq!(&room[..n], b"question");
        inner.send_to(b"answer", from).unwrap();
        let (n, answered) = client.recv_from(&mut room).unwrap();
        assert_eq!((&room[..n], answered), (&b"answer"[..], at));
        // The guest's port has one socket, and is free again afterwards.
        assert!(world.guest.publish(&format!("127.0.0.1:0:{port}/udp").parse().unwrap()).is_err());
        assert!(world.guest.unpublish(&what));
        eventually(|| world.guest.publish(&what).is_ok());
    }
}

#[test]
fn clients_of_a_published_port_are_served() {
    let world = known();
    let listener = world.inside.listen("10.0.2.15:80").unwrap();
    let at = world.guest.publish(&"127.0.0.1:0:80".parse().unwrap()).unwrap()[0];
    for _ in 0..12 {
        let mut client = TcpStream::connect(at).unwrap();
        let (mut served, _) = listener.accept().unwrap();
        client.write_all(b"question").unwrap();
        served.read_exact(&mut [0; 8]).unwrap();
        served.write_all(b"answer").unwrap();
        drop(served);
        assert_eq!(rest(client), b"answer");
    }
    assert_eq!(world.guest.counters().clients, 12);
}

#[test]
fn datagrams_of_many_ports_go_out_and_come_back() {
    let world = world(|config| config);
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    let at = far(server.local_addr().unwrap().port());
    let mut room = [0; 16];
    for _ in 0..24 {
        let inner = world.inside.udp("0.0.0.0:0").unwrap();
        inner.send_to(b"question", at).unwrap();
        let (_, from) = server.recv_from(&mut room).unwrap();
        server.send_to(b"answer", from).unwrap();
        let (n, answered) = inner.recv_from(&mut room).unwrap();
        assert_eq!((&room[..n], answered), (&b"answer"[..], at));
    }
    assert_eq!(world.guest.counters().endpoints_opened, 24);
}

#[test]
fn a_guest_has_a_core_at_least_and_no_more_than_a_host() {
    for cores in [0, Cores::MAX + 1] {
        let (device, _inner) = pagewire::Pair::new().unwrap();
        let config = GuestConfig::new().network("10.0.2.2/24").unwrap().cores(cores);
        let error = Gateway::builder().start().add(device, config).expect_err("refused");
        assert!(matches!(error, AddError::Host(_)), "{error}");
    }
}

#[test]
fn a_judge_that_changes_the_rules_of_its_own_guest_ends_the_guest_and_does_not_hang() {
    for cores in [1, 3] {
        let own = Arc::new(OnceLock::<Guest>::new());
        let of_judge = Arc::clone(&own);
        let judge = move |_: &Ask| {
            let _ = of_judge.get()?.set_rules(Rules::default());
            None
        };
        let gateway = Gateway::builder().judge(judge).start();
        let (outer, inner) = Pair::new().unwrap();
        let config = GuestConfig::new().network("10.0.2.2/24").unwrap().cores(cores);
        assert!(own.set(gateway.add(outer, config).unwrap()).is_ok());
        let inside = Host::builder().device(inner).address("10.0.2.15/24").gateway("10.0.2.2");
        let inside = inside.start().unwrap();
        let _asked = inside.start_connect("198.18.0.1:80".parse().unwrap()).unwrap();
        let guest = own.get().unwrap();
        eventually(|| guest.host().check().is_err());
    }
}
