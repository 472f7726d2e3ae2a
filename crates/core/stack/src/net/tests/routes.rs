//! Configuration, routes, source addresses, gateways.

use super::*;
use crate::error::StackError;
use crate::limits::GATEWAY_DEAD;

fn with(change: impl FnOnce(&mut NetConfig)) -> Result<Net, StackError> {
    let mut config = config();
    change(&mut config);
    let pool = PagePool::new("test", 1 << 20).unwrap();
    Net::new(Instant::ZERO, &config, Mem::new(pool, Shared::default()))
}

fn refused(change: impl FnOnce(&mut NetConfig)) -> String {
    match with(change) {
        Ok(_) => panic!("accepted"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_faulty_configuration_is_refused_and_says_what_to_change() {
    assert!(refused(|c| c.first_link.addresses.clear()).contains("at least one"));
    let address = |text: &str| refused(|c| c.first_link.addresses.push(text.parse().unwrap()));
    assert!(address("10.0.0.1/16").contains("twice"));
    assert!(address("10.1.0.255/24").contains("broadcast"));
    assert!(address("10.1.0.0/24").contains("network's own"));
    assert!(address("224.0.0.1/24").contains("multicast"));
    assert!(address("0.0.0.0/0").contains("no address"));
    assert!(address("127.0.0.1/8").contains("loopback"));
    assert!(refused(|c| c.first_link.gateways.push(ip("10.9.0.1"))).contains("10.9.0.1"));
    assert!(
        refused(|c| c.first_link.gateways.push(ip("10.0.0.1"))).contains("10.0.0.1"),
        "ourselves"
    );
    assert!(refused(|c| c.first_link.capabilities.mtu = 1279).contains("1280"));
    let many = |c: &mut NetConfig| {
        c.first_link.addresses =
            (1..40).map(|i| format!("10.0.{i}.1/24").parse().unwrap()).collect();
    };
    assert!(refused(many).contains("at most"));
    let routes = |c: &mut NetConfig| {
        let route = |i| (format!("172.16.{i}.0/24").parse().unwrap(), ip("10.0.0.2"));
        c.first_link.routes = (0..100).map(route).collect();
    };
    assert!(refused(routes).contains("routes"));
}

#[test]
fn the_longest_prefix_decides() {
    let mut config = config();
    config.first_link.gateways = vec![ip("10.0.0.2")];
    config.first_link.routes = vec![
        ("172.16.0.0/12".parse().unwrap(), ip("10.0.0.3")),
        ("172.16.5.0/24".parse().unwrap(), ip("10.0.0.4")),
    ];
    let mut host = Host::with(config);
    for (dst, via) in [
        ("8.8.8.8", [10, 0, 0, 2]),
        ("172.17.1.1", [10, 0, 0, 3]),
        ("172.16.5.1", [10, 0, 0, 4]),
        ("10.0.0.77", [10, 0, 0, 77]),
    ] {
        host.send_udp(ip(dst), b"x").unwrap();
        assert_eq!(host.sent_one()[38..42], via, "who is asked for on the way to {dst}");
    }
}

#[test]
fn without_a_route_the_network_is_unreachable() {
    let mut host = Host::new();
    assert_eq!(host.net.source_for(ip("8.8.8.8"), 0), Err(Error::NetworkUnreachable));
    assert_eq!(host.net.source_for(ip("2001:db8::1"), 0), Err(Error::NetworkUnreachable));
    let sent = host.send(ip("10.0.0.1"), ip("8.8.8.8"), protocol::UDP, None, udp_packet(b"x"));
    assert_eq!(sent, Err(Error::NetworkUnreachable));
    assert_eq!(host.drops(DropReason::NoRoute), 1);
}

#[test]
fn the_source_is_of_the_destinations_network_and_scope() {
    let net = with(|c| {
        c.first_link.addresses.push("192.168.1.5/24".parse().unwrap());
        c.first_link.addresses.push("2001:db8::5/64".parse().unwrap());
        c.first_link.gateways = vec![ip("192.168.1.1"), ip("2001:db8::1")];
    })
    .unwrap();
    for (dst, src) in [
        ("10.0.0.9", "10.0.0.1"),
        ("192.168.1.9", "192.168.1.5"),
        ("8.8.8.8", "192.168.1.5"),
        ("fd00::9", "fd00::1"),
        ("2001:db8::9", "2001:db8::5"),
        ("2a00::1", "2001:db8::5"),
        ("fe80::9", "fe80::ff:fe00:1"),
        ("ff02::1", "fe80::ff:fe00:1"),
        ("192.168.1.5", "192.168.1.5"),
        ("127.0.0.1", "127.0.0.1"),
    ] {
        assert_eq!(net.source_for(ip(dst), 0), Ok(ip(src)), "to {dst}");
    }
}

#[test]
fn ipv4_alone_makes_no_ipv6_address() {
    let net = with(|c| c.first_link.addresses.truncate(1)).unwrap();
    assert_eq!(net.addresses().len(), 1);
    assert_eq!(with(|_| ()).unwrap().addresses().len(), 3);
}

#[test]
fn frames_of_a_family_without_an_address_are_refused() {
    let mut host = Host::changed(|c| c.first_link.addresses.truncate(1));
    host.refuses(&udp_v6(b"x"), DropReason::EthernetType);
    let mut host = Host::changed(|c| c.first_link.addresses = c.first_link.addresses.split_off(1));
    host.refuses(&udp_v4(b"x"), DropReason::EthernetType);
    host.refuses(&arp_packet(1, PEER, PEER_V4, [0; 6], US_V4), DropReason::EthernetType);
}

#[test]
fn a_gateway_that_does_not_answer_is_passed_over_for_a_while() {
    let mut host = Host::changed(|c| c.first_link.gateways = vec![ip("10.0.0.2"), ip("10.0.0.3")]);
    let asked = |host: &mut Host| {
        host.send_udp(ip("8.8.8.8"), b"x").unwrap();
        host.sent().last().unwrap()[41]
    };
    assert_eq!(asked(&mut host), 2);
    for _ in 0..3 {
        host.pass(Duration::from_secs(1));
    }
    host.sent();
    assert_eq!(asked(&mut host), 3);
    host.pass(GATEWAY_DEAD);
    host.sent();
    host.pass(Duration::from_secs(3));
    host.sent();
    assert_eq!(asked(&mut host), 2, "the first is tried again");
}

#[test]
fn limits_of_a_destination_follow_the_device() {
    let limits = |change: fn(&mut NetConfig)| {
        with(change).unwrap().link_limits(ip("10.0.0.1"), ip("10.0.0.2"), None)
    };
    assert_eq!(limits(|_| ()), (1500, 65_535));
    assert_eq!(limits(|c| c.first_link.capabilities.max_super_frame = 20_000), (1500, 20_000));
    assert_eq!(
        limits(|c| c.first_link.capabilities.tso_v4 = false),
        (1500, 65_535),
        "cut in software"
    );
    assert_eq!(limits(|c| c.first_link.capabilities.mtu = 9000), (9000, 65_535));
    assert_eq!(
        limits(|c| {
            c.first_link.capabilities.medium = Medium::Ip;
            c.first_link.capabilities.tso_v4 = false;
        }),
        (1500, 1500)
    );
}
