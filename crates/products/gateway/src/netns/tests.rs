//! The settings of a network on their way to the helper.

use super::*;

fn network() -> InsideNetwork {
    InsideNetwork {
        tap: "pw0".into(),
        mtu: 1500,
        addresses: vec!["10.0.2.15/24".into(), "fd00:2::15/64".into()],
        routers: vec!["10.0.2.2".parse().unwrap(), "fd00:2::2".parse().unwrap()],
        routes: vec![
            ("192.0.2.0/24".parse().unwrap(), "10.0.2.9".parse().ok()),
            ("2001:db8::/32".parse().unwrap(), None),
        ],
        mac: Some([2, 0, 0xab, 0, 0, 1]),
        left_alone: true,
        resolvers: vec!["10.0.2.2".parse().unwrap()],
        search: vec!["a.test".into(), "b.test".into()],
    }
}

#[test]
fn what_is_told_to_the_helper_is_what_it_understands() {
    let whole = network();
    assert_eq!(InsideNetwork::decode(&whole.encode()), Some(whole));
    let least = InsideNetwork { tap: "pw0".into(), mtu: 1500, ..InsideNetwork::default() };
    assert_eq!(InsideNetwork::decode(&least.encode()), Some(least));
}

#[test]
fn what_it_does_not_understand_is_refused_as_a_whole() {
    for text in [
        "mtu many\n",
        "router nowhere\n",
        "tap\n",
        "route x\n",
        "mac 12\n",
        "left behind\n",
        "colour blue\n",
    ] {
        assert_eq!(InsideNetwork::decode(&(network().encode() + text)), None, "{text}");
    }
}
