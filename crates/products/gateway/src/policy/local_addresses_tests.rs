//! The kernel's answers about its own addresses.

use pagewire_testkit::{Need, Netns, can, ip};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::*;

const NOW: Instant = Instant::from_millis(1);

fn is_ours(local_addresses: &mut LocalAddresses, address: &str) -> Option<bool> {
    local_addresses.is_ours(NOW, address.parse().unwrap())
}

#[test]
fn this_machines_addresses_are_its_own_and_a_strangers_are_not() {
    let mut local_addresses = LocalAddresses::default();
    assert_eq!(is_ours(&mut local_addresses, "127.0.0.1"), Some(true));
    assert_eq!(is_ours(&mut local_addresses, "127.9.9.9"), Some(true));
    assert_eq!(is_ours(&mut local_addresses, "::1"), Some(true));
    // RFC 5737: documentation.
    assert_eq!(is_ours(&mut local_addresses, "192.0.2.1"), Some(false));
}

#[test]
fn every_address_of_an_interface_is_ours_the_second_of_a_network_too() {
    if !can(&[Need::Root, Need::Program("ip")]) {
        return;
    }
    Netns::new().inside(|| {
        ip("link set lo up");
        ip("link add near type veth peer name far");
        ip("link set near up");
        ip("link set far up");
        for address in ["192.0.2.10/24", "192.0.2.11/24", "198.51.100.1/32"] {
            ip(&format!("address add {address} dev near"));
        }
        for address in ["2001:db8::10/64", "2001:db8::11/64"] {
            ip(&format!("address add {address} dev near nodad"));
            // The kernel takes packets to it once the link has a carrier.
            while !ip("-6 route show table local").contains(address.trim_end_matches("/64")) {
                std::thread::yield_now();
            }
        }
        ip("route add local 203.0.113.0/24 dev lo");
        ip("route add unreachable 10.1.0.0/16");
        ip("route add prohibit 10.2.0.0/16");
        ip("route add blackhole 10.3.0.0/16");
        let mut local_addresses = LocalAddresses::default();
        for ours in [
            "192.0.2.10",
            "192.0.2.11",
            "192.0.2.255",
            "198.51.100.1",
            "203.0.113.77",
            "2001:db8::10",
            "2001:db8::11",
        ] {
            assert_eq!(is_ours(&mut local_addresses, ours), Some(true), "{ours}");
        }
        for other in ["192.0.2.12", "8.8.8.8", "10.1.0.1", "10.2.0.1", "2001:db8::12"] {
            assert_eq!(is_ours(&mut local_addresses, other), Some(false), "{other}");
        }
        assert_eq!(is_ours(&mut local_addresses, "10.3.0.1"), None);
    });
}

#[test]
fn a_question_needs_no_free_descriptor() {
    let mut local_addresses = LocalAddresses::default();
    let before = getrlimit(Resource::Nofile);
    let none = Rlimit { current: Some(0), ..before };
    setrlimit(Resource::Nofile, none).unwrap();
    let opened = std::net::UdpSocket::bind("127.0.0.1:0");
    let answer = is_ours(&mut local_addresses, "192.0.2.1");
    setrlimit(Resource::Nofile, before).unwrap();
    assert_eq!(opened.unwrap_err().raw_os_error(), Some(libc::EMFILE));
    assert_eq!(answer, Some(false));
}

#[test]
fn what_the_kernel_does_not_say_is_not_known() {
    let mut local_addresses = LocalAddresses::new(Arc::new(RouteSocket::unavailable()));
    assert_eq!(is_ours(&mut local_addresses, "192.0.2.1"), None);
    assert_eq!(is_ours(&mut local_addresses, "127.0.0.1"), Some(true));
    // The unknown answer is not cached either.
    assert_eq!(is_ours(&mut local_addresses, "192.0.2.1"), None);
}

#[test]
fn a_kernel_that_does_not_know_its_loopback_address_is_not_believed() {
    if !can(&[Need::Root]) {
        return;
    }
    // The loopback interface of a new namespace is down, so its address leads nowhere.
    Netns::new().inside(|| {
        let routes = RouteSocket::default();
        assert!(routes.check().is_err());
        let mut local_addresses = LocalAddresses::new(Arc::new(routes));
        assert_eq!(is_ours(&mut local_addresses, "192.0.2.1"), None);
    });
}

#[test]
fn an_answer_that_is_none_is_an_error() {
    let mut answer = encode_request("192.0.2.1".parse().unwrap(), 1);
    assert!(parse_reply(&answer).is_err());
    answer[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
    for (code, expected) in
        [(libc::ENETUNREACH, Some(false)), (libc::ENOBUFS, None), (libc::EINVAL, None)]
    {
        answer[HEADER..HEADER + 4].copy_from_slice(&(-code).to_ne_bytes());
        assert_eq!(parse_reply(&answer).ok(), expected);
    }
    assert!(parse_reply(&[]).is_err());
}

#[test]
fn what_is_remembered_has_a_limit() {
    let mut local_addresses = LocalAddresses::default();
    for n in 0..2 * OURS_DESTINATIONS as u32 {
        let address = IpAddr::V4((0xc000_0200 + n).into());
        local_addresses.is_ours(NOW, address);
        assert!(local_addresses.cache.len() <= OURS_DESTINATIONS);
    }
}
