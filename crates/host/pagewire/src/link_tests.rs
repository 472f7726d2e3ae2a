//! Links of a host: forms of addresses, names, and sockets in pages.

use std::net::{IpAddr, Ipv4Addr};

use pagewire_device::{Pair, PairConfig};

use super::*;
use crate::Host;

#[test]
fn an_address_is_text_a_cidr_or_an_address_and_bits() {
    let (left, _left) = Pair::new().unwrap();
    let (right, _right) = Pair::new().unwrap();
    let second = Link::new(right).address((Ipv4Addr::new(10, 0, 1, 1), 24));
    let host = Host::builder().device(left).address("10.0.0.1/24".to_owned());
    let host = host.address("fd77::1/64".parse::<Cidr>().unwrap()).link(second).manual();
    let host = host.start().unwrap();
    for address in ["10.0.0.1/24", "fd77::1/64", "10.0.1.1/24"] {
        assert!(host.addresses().contains(&address.parse().unwrap()), "{address}");
    }
}

#[test]
fn the_start_names_the_first_address_that_is_none() {
    let (left, _left) = Pair::new().unwrap();
    let (right, _right) = Pair::new().unwrap();
    let host = Host::builder().device(left).address("10.0.0.1").address("nonsense");
    let error = host.manual().start().unwrap_err().to_string();
    assert!(error.contains(r#"address "10.0.0.1": "#), "{error}");

    let host = Host::builder().device(right).address((IpAddr::from([10, 0, 0, 1]), 33));
    let error = host.manual().start().unwrap_err().to_string();
    assert!(error.contains(r#"address "10.0.0.1/33": "#), "{error}");
}

#[test]
fn a_host_names_its_links_and_their_addresses() {
    let (left, _left) = Pair::with(PairConfig { mtu: 1500, ..Default::default() }).unwrap();
    let (right, _right) = Pair::with(PairConfig { mtu: 9000, ..Default::default() }).unwrap();
    let boxed: Box<dyn Device> = Box::new(left);
    let host = Host::builder().device(boxed).address("10.0.0.1/24");
    let host = host.link(Link::new(right).address("10.0.1.1/24")).manual().start().unwrap();

    let links = host.links();
    let [first, second] = links[..] else { panic!("{links:?}") };
    assert_eq!(host.link_name(first).as_deref(), Some("link1"));
    assert_eq!(host.link_addresses(second), ["10.0.1.1/24".parse().unwrap()]);
    assert_eq!((host.mtu(first), host.mtu(second)), (Some(1500), Some(9000)));

    assert!(host.remove_link(second).is_some());
    assert_eq!((host.link_name(second), host.mtu(second)), (None, None));
    assert_eq!(host.links(), [first]);
}

#[test]
fn a_host_shows_its_sockets_in_pages() {
    let (left, _left) = Pair::new().unwrap();
    let host = Host::builder().device(left).address("10.0.0.1/24").manual().start().unwrap();
    let _listeners: Vec<_> =
        (1..=5).map(|port| host.listen((Ipv4Addr::new(10, 0, 0, 1), port)).unwrap()).collect();
    let _datagrams = host.udp("10.0.0.1:9").unwrap();
    let counts = host.socket_counts();
    assert_eq!((counts.listeners, counts.datagrams, counts.connections), (5, 1, 0));

    let (mut from, mut ports) = (Some(0), Vec::new());
    while let Some(first) = from {
        let page = host.sockets(first, 2);
        ports.extend(page.sockets.iter().map(|socket| socket.local.port()));
        from = page.next;
    }
    ports.sort_unstable();
    assert_eq!(ports, [1, 2, 3, 4, 5, 9]);
}
