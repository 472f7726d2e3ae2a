//! Autoconfiguration: a kernel in a namespace of its own configures itself behind a gateway, and resolves names.

use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use pagewire::Tap;
use pagewire_gateway::{Autoconf, AutoconfConfig, Gateway, GuestConfig, OwnNames, Resolver};
use pagewire_testkit::frames::dns_query;
use pagewire_testkit::{Need, Netns, can, ip};

use crate::support::PATIENCE;

/// The type of records with addresses of IPv6 (RFC 3596).
const AAAA: u16 = 28;

const GATEWAY: Ipv6Addr = Ipv6Addr::new(0xfd00, 2, 0, 0, 0, 0, 0, 2);

/// The output of `ip`, once it has all of these parts.
#[track_caller]
fn shows(arguments: &str, all: &[&str]) -> String {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let text = ip(arguments);
        if all.iter().all(|part| text.contains(part)) {
            return text;
        }
        assert!(Instant::now() < deadline, "ip {arguments} shows {text}, not {all:?}");
        thread::park_timeout(Duration::from_millis(50));
    }
}

#[test]
fn a_kernel_gets_an_address_a_route_and_answers_from_the_resolver_by_itself() {
    if !can(&[Need::Tap, Need::Program("ip")]) {
        return;
    }
    Netns::new().inside(|| {
        let tap = Tap::builder("guest0").open().unwrap();
        let mut config = AutoconfConfig::new("fd00:2::2/64".parse().unwrap());
        config.dns.push(GATEWAY);
        let device = Autoconf::new(tap, config).unwrap();
        let watch = device.watch();
        let mut names = OwnNames::default();
        names.add_word("gateway", IpAddr::V6(GATEWAY)).unwrap();
        let gateway = Gateway::builder().names(names).resolver(Resolver::None).start();
        let settings = GuestConfig::new().network("fd00:2::2/64").unwrap();
        let _guest = gateway.add(device, settings).unwrap();
        ip("link set guest0 up");

        shows("-6 route show default", &["via fe80::", "dev guest0 proto ra"]);
        shows("-6 address show dev guest0 -tentative", &["inet6 fd00:2::", "dynamic"]);
        assert!(watch.counters().solicited + watch.counters().advertisements > 0);

        let socket = UdpSocket::bind("[::]:0").unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.send_to(&dns_query(7, "gateway", AAAA), (GATEWAY, 53)).unwrap();
        let mut answer = [0; 512];
        let (len, from) = socket.recv_from(&mut answer).unwrap();
        assert_eq!(from.ip(), IpAddr::V6(GATEWAY));
        assert_eq!(answer[len - 16..len], GATEWAY.octets());

        // The kernel asks its router whether it is there, and keeps the route: the answer is a router's.
        let route = shows("-6 route show default", &["via fe80::"]);
        let router = route.split(' ').nth(2).expect("default via ROUTER");
        ip(&format!("-6 neighbor change {router} dev guest0 router nud probe"));
        shows(&format!("-6 neighbor show {router}"), &["REACHABLE"]);
        shows("-6 route show default", &["via fe80::"]);
    });
}
