//! Templates of interfaces that `ip` has made, in a network namespace of the test's own.

use pagewire_testkit::{Need, Netns, can, ip as command};

use super::*;

/// A namespace in which each command of `ip` was run; `None`: this process may not make one.
fn with(commands: &str) -> Option<Netns> {
    if !can(&[Need::Root, Need::Program("ip")]) {
        return None;
    }
    let netns = Netns::new();
    netns.inside(|| {
        for words in commands.lines().map(str::trim).filter(|line| !line.is_empty()) {
            command(words);
        }
    });
    Some(netns)
}

fn found(netns: &Netns, name: Option<&str>, v4: bool) -> Option<Template> {
    netns.inside(|| Template::find(name, v4).expect("answers"))
}

fn texts(all: &[Cidr]) -> Vec<String> {
    all.iter().map(Cidr::to_string).collect()
}

#[test]
fn the_interface_of_the_best_default_route_is_the_template_for_each_version_of_ip() {
    let Some(netns) = with(
        "link add a0 type veth peer name a1
         link add b0 mtu 9000 type veth peer name b1
         link set a0 up
         link set a1 up
         link set b0 up
         link set b1 up
         addr add 198.51.100.77/24 dev a0
         addr add 203.0.113.77/32 dev b0
         addr add 203.0.113.78/32 dev b0
         addr add 2001:db8:1::77/64 dev a0 nodad
         addr add 2001:db8:1::78/64 dev a0 nodad preferred_lft 0
         route add default via 198.51.100.1 dev a0 metric 100
         route add default via 203.0.113.1 dev b0 onlink metric 50
         route add 192.0.2.128/25 via 203.0.113.9 dev b0 onlink
         route add 192.0.2.0/25 dev b0
         -6 route add default via fe80::1 dev a0
         -6 route add 2001:db8:9::/48 via fe80::9 dev a0",
    ) else {
        return;
    };
    let v4 = found(&netns, None, true).expect("a template");
    assert_eq!((&*v4.name, v4.mtu, v4.router), ("b0", 9000, "203.0.113.1".parse().ok()));
    assert_eq!(texts(&v4.addresses), ["203.0.113.77/32", "203.0.113.78/32"]);
    let mut routes: Vec<_> = v4.routes.iter().map(|(to, via)| (to.to_string(), *via)).collect();
    routes.sort();
    let expected = [
        ("192.0.2.0/25".to_owned(), None),
        ("192.0.2.128/25".to_owned(), Some("203.0.113.9".parse().expect("an address"))),
    ];
    assert_eq!(routes, expected);

    let v6 = found(&netns, None, false).expect("a template");
    assert_eq!((&*v6.name, v6.router), ("a0", "fe80::1".parse().ok()));
    assert_eq!(texts(&v6.addresses), ["2001:db8:1::77/64"], "neither link-local nor deprecated");
    assert_eq!(v6.routes.len(), 1);

    let named = found(&netns, Some("a0"), true).expect("a template");
    assert_eq!((&*named.name, named.router), ("a0", "198.51.100.1".parse().ok()));
    assert_eq!(texts(&named.addresses), ["198.51.100.77/24"]);
}

#[test]
fn the_heaviest_router_of_several_is_that_of_the_template() {
    let Some(netns) = with(
        "link add a0 type veth peer name a1
         link set a0 up
         link set a1 up
         addr add 198.51.100.77/24 dev a0
         route add default nexthop via 198.51.100.1 dev a0 weight 1 nexthop via 198.51.100.2 dev a0 weight 9",
    ) else {
        return;
    };
    let template = found(&netns, None, true).expect("a template");
    assert_eq!(template.router, "198.51.100.2".parse().ok());
}

#[test]
fn without_routes_addresses_or_the_interface_there_is_no_template() {
    let Some(netns) = with(
        "link set lo up
         link add a0 type veth peer name a1
         link set a0 up
         link set a1 up",
    ) else {
        return;
    };
    assert_eq!(found(&netns, None, true), None);
    assert_eq!(found(&netns, Some("a0"), true), None);
    assert_eq!(found(&netns, Some("none"), true), None);
    // A route of any kind shows the interface, and a link without a router is a template, too.
    netns.inside(|| command("addr add 198.51.100.77/24 dev a0"));
    let template = found(&netns, None, true).expect("a template");
    assert_eq!((&*template.name, template.router), ("a0", None));
}
