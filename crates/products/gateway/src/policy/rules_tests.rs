//! Rules as text, and what they decide.

use std::net::SocketAddr;
use std::sync::Arc;

use super::rules::translated;
use super::{Reason, Rule, RuleError, Rules};
use crate::request::{
    Ask, Demand, Direction, GuestId, Judge, Name, Protocol, Shown, ShownBy, Verdict,
};

fn ask(protocol: Protocol, to: &str, names: &[&str]) -> Ask {
    let from = "10.0.2.15:4000".parse().unwrap();
    let names = names.iter().map(|name| name.parse().unwrap()).collect();
    Ask { names, ..Ask::new(GuestId(1), protocol, from, to.parse().unwrap()) }
}

fn tcp(to: &str) -> Ask {
    ask(Protocol::Tcp, to, &[])
}

fn rule(text: &str) -> Rule {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn allow(rules: &[&str]) -> Rules {
    rules.iter().fold(Rules::default(), |all, one| all.allow(rule(one)))
}

fn deny(rules: &[&str]) -> Rules {
    rules.iter().fold(Rules::default(), |all, one| all.deny(rule(one)))
}

const NO: Verdict = Verdict::Prohibit;
const YES: Verdict = Verdict::Allow;

#[test]
fn a_rule_means_what_it_says() {
    for (text, to, protocol, matches) in [
        ("10.0.0.0/8", "10.9.8.7:80", Protocol::Tcp, true),
        ("10.0.0.0/8", "11.9.8.7:80", Protocol::Tcp, false),
        ("10.0.0.0/8:53", "10.9.8.7:53", Protocol::Udp, true),
        ("10.0.0.0/8:53", "10.9.8.7:54", Protocol::Udp, false),
        ("10.0.0.0/8:53/udp", "10.9.8.7:53", Protocol::Tcp, false),
        ("10.0.0.0/8/tcp", "10.9.8.7:53", Protocol::Tcp, true),
        ("10.0.0.0/8:80-90", "10.9.8.7:80", Protocol::Tcp, true),
        ("10.0.0.0/8:80-90", "10.9.8.7:90", Protocol::Tcp, true),
        ("10.0.0.0/8:80-90", "10.9.8.7:91", Protocol::Tcp, false),
        ("10.1.2.3", "10.1.2.3:1", Protocol::Tcp, true),
        ("10.1.2.3:80/tcp", "10.1.2.3:80", Protocol::Tcp, true),
        ("10.1.2.3", "10.1.2.4:1", Protocol::Tcp, false),
        ("::/0:53", "[fd00::1]:53", Protocol::Udp, true),
        ("::/0:53", "1.1.1.1:53", Protocol::Udp, false),
        ("fd00::1", "[fd00::1]:53", Protocol::Udp, true),
        ("[fd00::1]:53", "[fd00::1]:53", Protocol::Udp, true),
        ("[fd00::1]:53", "[fd00::1]:54", Protocol::Udp, false),
        ("[fd00::/64]:53", "[fd00::9]:53", Protocol::Udp, true),
        ("fd00::/64", "[fd00:0:0:1::9]:53", Protocol::Udp, false),
        ("8.8.8.8/icmp", "8.8.8.8:0", Protocol::Echo, true),
        ("8.8.8.8", "8.8.8.8:0", Protocol::Echo, true),
        ("8.8.8.8:0-9", "8.8.8.8:0", Protocol::Echo, false),
        ("*.example.org", "10.1.2.3:1", Protocol::Tcp, false),
    ] {
        assert_eq!(rule(text).matches(&ask(protocol, to, &[])), matches, "{text} and {to}");
    }
}

#[test]
fn a_name_matches_what_our_resolver_called_the_destination() {
    for (text, name, matches) in [
        ("example.org", "example.org", true),
        ("EXAMPLE.org.", "example.org", true),
        ("example.org", "www.example.org", false),
        ("*.example.org", "www.example.org", true),
        ("*.example.org", "a.b.example.org", true),
        ("*.example.org", "example.org", false),
        ("*.example.org", "example.org.evil.net", false),
        ("*.example.org", "badexample.org", false),
        ("deb*.org", "debian.org", true),
        ("*a*b*", "xxaxxbxx", true),
        ("*a*b*", "xxbxxaxx", false),
        ("*", "anything.at.all", true),
    ] {
        let ask = ask(Protocol::Tcp, "192.0.2.1:443", &["other.net", name]);
        assert_eq!(rule(text).matches(&ask), matches, "{text} and {name}");
    }
    // Many stars take no exponential time.
    let pattern = "*a".repeat(60);
    let name = "b".repeat(60);
    let asked = ask(Protocol::Tcp, "192.0.2.1:443", &[&name]);
    assert!(!rule(&pattern).matches(&asked));
}

#[test]
fn a_faulty_rule_says_what_is_wrong() {
    for (text, error) in [
        ("", RuleError::Empty("".into())),
        (":53", RuleError::Empty(":53".into())),
        ("/udp", RuleError::Empty("/udp".into())),
        ("10.0.0.0/33", RuleError::What("10.0.0.0/33".into())),
        ("10.0.0/8", RuleError::What("10.0.0/8".into())),
        ("10.0.0.256", RuleError::What("10.0.0.256".into())),
        ("a b", RuleError::What("a b".into())),
        ("1.2.3.4:x", RuleError::Ports("x".into())),
        ("1.2.3.4:90-80", RuleError::Ports("90-80".into())),
        ("1.2.3.4:70000", RuleError::Ports("70000".into())),
        ("1.2.3.4:0", RuleError::Ports("0".into())),
        ("1.2.3.4:5/icmp", RuleError::EchoPorts("1.2.3.4:5/icmp".into())),
        ("1.2.3.4/sctp", RuleError::What("1.2.3.4/sctp".into())),
        ("tcp:a.org/udp", RuleError::Prefix("tcp:a.org/udp".into())),
        ("ssh:a.org/icmp", RuleError::Prefix("ssh:a.org/icmp".into())),
        ("tls:10.0.0.1", RuleError::NoName("tls:10.0.0.1".into())),
        ("ssh:host", RuleError::NoName("ssh:host".into())),
        ("ech:10.0.0.1", RuleError::NoName("ech:10.0.0.1".into())),
        ("ech:a.org/icmp", RuleError::Prefix("ech:a.org/icmp".into())),
        ("https://example.org", RuleError::Url("https://example.org".into())),
        ("ssh://git@example.org/", RuleError::Url("ssh://git@example.org/".into())),
        ("tcp:", RuleError::Empty("tcp:".into())),
        ("ftp:a.org", RuleError::Ports("a.org".into())),
    ] {
        assert_eq!(text.parse::<Rule>(), Err(error), "{text}");
    }
}

#[test]
fn text_and_rule_round_trip() {
    for text in [
        "10.0.0.0/8",
        "10.0.0.0/8:53/udp",
        "1.2.3.4:80-90/tcp",
        "[fd00::1]:53",
        "fd00::1",
        "tls:*.example.org:443",
        "http:example.org",
        "ssh:example.org",
        "ech:example.org",
        "ech:example.org:443/udp",
        "ssh:example.org:2222",
        "tcp:example.org:5432",
        "udp:example.org",
        "[fd00::/64]:53",
        "fd00::/64/icmp",
        "*.example.org:443/tcp",
        "host",
        "host:22",
    ] {
        assert_eq!(rule(text).to_string(), text);
        assert_eq!(rule(&rule(text).to_string()), rule(text));
    }
}

#[test]
fn without_rules_all_but_the_closed_addresses_is_open() {
    let rules = Rules::default();
    for to in ["1.1.1.1:53", "10.0.0.1:80", "192.168.1.1:22", "[2001:db8::1]:80", "[fd00::1]:1"] {
        assert_eq!(rules.judge(&tcp(to)), YES, "{to}");
    }
    for to in [
        "127.0.0.1:80",
        "127.1.2.3:80",
        "169.254.169.254:80",
        "0.0.0.0:80",
        "0.1.2.3:80",
        "224.0.0.1:80",
        "255.255.255.255:80",
        "240.0.0.1:80",
        "[::1]:80",
        "[::]:80",
        "[::ffff:127.0.0.1]:80",
        "[::ffff:8.8.8.8]:80",
        "[::127.0.0.1]:80",
        "[fe80::1]:80",
        "[fd00:ec2::254]:80",
        "[ff02::1]:80",
    ] {
        assert_eq!(rules.judge(&tcp(to)), NO, "{to}");
    }
}

#[test]
fn only_a_rule_inside_a_closed_range_opens_it() {
    let everything = allow(&["0.0.0.0/0", "::/0"]);
    for to in ["127.0.0.1:80", "169.254.169.254:80", "[::1]:80", "[fe80::1]:80"] {
        assert_eq!(everything.judge(&tcp(to)), NO, "{to}");
    }
    assert_eq!(everything.judge(&tcp("8.8.8.8:80")), YES);
    let metadata = allow(&["169.254.169.254:80/tcp"]);
    assert_eq!(metadata.judge(&tcp("169.254.169.254:80")), YES);
    assert_eq!(metadata.judge(&tcp("169.254.169.254:81")), NO);
    assert_eq!(metadata.judge(&tcp("169.254.169.253:80")), NO);
    // A name that leads to the loopback address opens nothing.
    let named = allow(&["*.example.org"]);
    let trick = ask(Protocol::Tcp, "127.0.0.1:80", &["www.example.org"]);
    assert_eq!(named.judge(&trick), NO);
    // Addresses that no host has stay closed.
    assert_eq!(allow(&["0.0.0.0"]).judge(&tcp("0.0.0.0:80")), NO);
    assert_eq!(allow(&["::ffff:127.0.0.1"]).judge(&tcp("[::ffff:127.0.0.1]:80")), NO);
}

#[test]
fn a_denial_wins_over_a_permission() {
    let rules = allow(&["10.0.0.0/8"]).deny(rule("10.0.0.0/24:22"));
    assert_eq!(rules.judge(&tcp("10.0.0.1:80")), YES);
    assert_eq!(rules.judge(&tcp("10.0.0.1:22")), NO);
    assert_eq!(rules.judge(&tcp("10.0.1.1:22")), YES);
}

#[test]
fn with_permissions_all_else_is_forbidden() {
    let rules = allow(&["*.example.org:443/tcp", "192.0.2.0/24"]);
    let named = |to, names: &[&str]| rules.judge(&ask(Protocol::Tcp, to, names));
    assert_eq!(named("198.51.100.1:443", &["www.example.org"]), YES);
    assert_eq!(named("198.51.100.1:80", &["www.example.org"]), NO);
    assert_eq!(named("198.51.100.1:443", &["www.example.net"]), NO);
    assert_eq!(named("198.51.100.1:443", &[]), NO);
    assert_eq!(named("192.0.2.1:9", &[]), YES);
    assert_eq!(rules.judge(&ask(Protocol::Echo, "198.51.100.1:0", &["www.example.org"])), NO);
    assert_eq!(rules.judge(&ask(Protocol::Echo, "192.0.2.1:0", &[])), YES);
}

#[test]
fn the_word_host_stands_for_the_gateways_machine() {
    let rules = deny(&["host"]);
    assert!(rules.asks_for_ours());
    assert!(!deny(&["10.0.0.0/8"]).asks_for_ours());
    let mut there = tcp("192.168.1.5:22");
    assert_eq!(rules.judge(&there), YES);
    there.ours = true;
    assert_eq!(rules.judge(&there), NO);
}

#[test]
fn a_mapped_address_leads_to_the_loopback_address_and_nothing_else_does() {
    let (gateway, loopback) = ("10.0.2.2".parse().unwrap(), "127.0.0.1".parse().unwrap());
    let rules = deny(&["10.0.2.2:22"]).map(gateway, loopback);
    let target: SocketAddr = "127.0.0.1:80".parse().unwrap();
    assert_eq!(rules.judge(&tcp("10.0.2.2:80")), Verdict::To(target));
    assert_eq!(rules.judge(&tcp("10.0.2.2:22")), NO);
    // Judged again: it stands.
    assert_eq!(rules.judge(&mapped("127.0.0.1:80")), YES);
    // With permissions, the mapped address is what they have to name.
    let rules = allow(&["10.0.2.2:80"]).map(gateway, loopback);
    assert_eq!(rules.judge(&tcp("10.0.2.2:80")), Verdict::To(target));
    assert_eq!(rules.judge(&tcp("10.0.2.2:81")), NO);
}

/// As the gateway asks again where the rules have led.
#[test]
fn a_mapped_address_may_be_link_local_and_leads_no_further_than_its_target() {
    let [double, host, loopback] = ["169.254.1.2", "198.51.100.7", "127.0.0.1"];
    let rules = Rules::default()
        .map(double.parse().unwrap(), host.parse().unwrap())
        .map(host.parse().unwrap(), loopback.parse().unwrap());
    let verdict = rules.judge(&tcp("169.254.1.2:80"));
    assert_eq!(verdict, Verdict::To("198.51.100.7:80".parse().unwrap()));
    assert_eq!(rules.judge(&mapped("198.51.100.7:80")), YES);
    assert_eq!(rules.judge(&tcp("169.254.1.3:80")), NO);
    assert_eq!(rules.judge(&tcp("[64:ff9b::a9fe:102]:80")), NO);
}

#[test]
fn a_name_that_strangers_chose_does_not_open_a_mapped_address() {
    for address in ["192.0.2.1", "203.0.113.9", "169.254.1.2"] {
        let rules = allow(&["*.example.org"]);
        let rules = rules.map(address.parse().unwrap(), "127.0.0.1".parse().unwrap());
        let asked = |names| ask(Protocol::Tcp, &format!("{address}:80"), names);
        assert_eq!(rules.judge(&asked(&["evil.example.org"])), NO, "{address}");
        let given = Arc::from(["evil.example.org".parse().unwrap()]);
        let asked = Ask { given, ..asked(&["evil.example.org"]) };
        assert!(matches!(rules.judge(&asked), Verdict::To(_)), "{address}");
    }
}

#[test]
fn a_denial_has_the_answer_that_it_was_given() {
    for answer in [Verdict::Refuse, NO, Verdict::Unreachable, Verdict::Drop] {
        let rules = Rules::default().deny_with(rule("203.0.113.9:80"), answer);
        assert_eq!(rules.judge(&tcp("203.0.113.9:80")), answer);
        assert_eq!(rules.judge(&tcp("203.0.113.9:81")), YES);
    }
    let rules = Rules::default().deny_with(rule("203.0.113.9:80"), YES);
    assert_eq!(rules.judge(&tcp("203.0.113.9:80")), NO);
}

fn mapped(to: &str) -> Ask {
    Ask { mapped: true, ..tcp(to) }
}

#[test]
fn the_target_of_a_mapping_stays_closed_to_those_who_name_it() {
    let address = "203.0.113.9".parse().unwrap();
    for target in ["169.254.169.254", "192.168.1.5", "127.0.0.1"] {
        let rules = allow(&["203.0.113.9:80/tcp"]).map(address, target.parse().unwrap());
        let there: SocketAddr = format!("{target}:80").parse().unwrap();
        assert_eq!(rules.judge(&tcp("203.0.113.9:80")), Verdict::To(there));
        assert_eq!(rules.judge(&mapped(&format!("{target}:80"))), YES, "{target}");
        assert_eq!(rules.judge(&tcp(&format!("{target}:80"))), NO, "{target}");
        assert_eq!(rules.judge(&tcp(&format!("{target}:22"))), NO, "{target}");
    }
    // Without permissions, what was open before is open, and no more.
    let rules = Rules::default().map(address, "169.254.169.254".parse().unwrap());
    assert_eq!(rules.judge(&tcp("169.254.169.254:80")), NO);
    // A denial of the target holds for those who are led there, too.
    let rules = deny(&["192.168.1.5:22"]).map(address, "192.168.1.5".parse().unwrap());
    assert_eq!(rules.judge(&mapped("192.168.1.5:22")), NO);
}

#[test]
fn a_name_opens_no_private_network_and_not_the_gateways_machine() {
    let rules = allow(&["*.example.org"]);
    let named = |to: &str| ask(Protocol::Tcp, to, &["www.example.org"]);
    assert_eq!(rules.judge(&named("198.51.100.1:80")), YES);
    assert_eq!(rules.judge(&named("[2001:db8::1]:80")), YES);
    for to in [
        "10.0.0.1:80",
        "172.16.0.1:80",
        "172.31.255.255:80",
        "192.168.1.1:80",
        "100.64.0.1:80",
        "[fd00::1]:80",
        "[fec0::1]:80",
        "192.0.0.1:80",
        "198.18.0.1:80",
        "198.19.255.255:80",
        "[64:ff9b::192.168.1.1]:80",
        "[2002:c0a8:101::1]:80",
    ] {
        assert_eq!(rules.judge(&named(to)), NO, "{to}");
    }
    assert!(rules.asks_for_ours());
    let ours = Ask { ours: true, ..named("198.51.100.1:80") };
    assert_eq!(rules.judge(&ours), NO);
    // A permission by address opens them.
    let both = allow(&["*.example.org", "192.168.1.0/24"]);
    assert_eq!(both.judge(&named("192.168.1.1:80")), YES);
    assert_eq!(both.judge(&named("10.0.0.1:80")), NO);
    assert_eq!(allow(&["*.example.org", "host"]).judge(&ours), YES);
    // A name that was given to the gateway itself opens them, too.
    let given = ["www.example.org".parse().unwrap()].into();
    assert_eq!(rules.judge(&Ask { given, ..named("10.0.0.1:80") }), YES);
    // A denial by name holds everywhere.
    assert_eq!(deny(&["*.example.org"]).judge(&named("10.0.0.1:80")), NO);
}

#[test]
fn where_clouds_tell_secrets_is_closed_unless_a_rule_names_it() {
    for address in [
        "169.254.169.254",
        "169.254.170.2",
        "168.63.129.16",
        "100.100.100.200",
        "192.0.0.192",
        "fd00:ec2::254",
        "fd00:ec2::23",
        "fd00:42::42",
        "fd20:ce::254",
        "fd00:c1::a9fe:a9fe",
    ] {
        let to = tcp(&SocketAddr::new(address.parse().unwrap(), 80).to_string());
        assert_eq!(Rules::default().judge(&to), NO, "{address}");
        assert_eq!(allow(&["0.0.0.0/0", "::/0"]).judge(&to), NO, "{address}");
        assert_eq!(allow(&[address]).judge(&to), YES, "{address}");
    }
    // Their neighbours are not.
    for to in [
        "168.63.129.17:80",
        "100.100.100.201:80",
        "192.0.0.193:80",
        "[fd20:ce::253]:80",
        "[fd00:ec3::23]:80",
    ] {
        assert_eq!(Rules::default().judge(&tcp(to)), YES, "{to}");
    }
}

#[test]
fn an_address_behind_a_translator_is_judged_as_what_it_is_there() {
    for inside in ["127.0.0.1", "169.254.169.254", "168.63.129.16", "0.0.0.0", "224.0.0.1"] {
        let [a, b, c, d] = inside.parse::<std::net::Ipv4Addr>().unwrap().octets();
        let tunnel = format!("[2002:{a:02x}{b:02x}:{c:02x}{d:02x}::1]:80");
        for to in [format!("[64:ff9b::{inside}]:80"), format!("[64:ff9b:1::{inside}]:80"), tunnel] {
            assert_eq!(Rules::default().judge(&tcp(&to)), NO, "{to}");
            assert_eq!(allow(&["::/0"]).judge(&tcp(&to)), NO, "{to}");
        }
    }
    let rules = deny(&["10.0.0.0/8:22"]);
    assert_eq!(rules.judge(&tcp("[64:ff9b::10.1.2.3]:22")), NO);
    assert_eq!(rules.judge(&tcp("[64:ff9b::10.1.2.3]:80")), YES);
    assert_eq!(rules.judge(&tcp("[2002:a01:203::1]:22")), NO);
    assert_eq!(rules.judge(&tcp("[64:ff9b::8.8.8.8]:22")), YES);
    // A permission is about the address as it was written.
    assert_eq!(allow(&["8.8.8.8"]).judge(&tcp("[64:ff9b::8.8.8.8]:22")), NO);
}

#[test]
fn every_address_that_a_translator_can_make_of_one_is_looked_at() {
    for (to, leads_to) in [
        // The example of RFC 6052 section 2.4, behind prefixes of 48, 56, 64 and 96 bits.
        ("64:ff9b:1:c000:2:2100::", &["192.0.2.33"][..]),
        ("64:ff9b:1:c0:0:221::", &["192.0.2.33"]),
        ("64:ff9b:1::c0:2:2100:0", &["192.0.2.33"]),
        ("64:ff9b:1::192.0.2.33", &["192.0.2.33"]),
        ("64:ff9b:1::", &["0.0.0.0"]),
        ("64:ff9b::192.0.2.33", &["192.0.2.33"]),
        ("2002:c000:221::1", &["192.0.2.33"]),
        // RFC 4380 section 4: the server, and the client behind its translator.
        ("2001:0:c000:221:8000:63bf:3fff:fdd2", &["192.0.2.33", "192.0.2.45"]),
        ("2001:db8::5efe:192.0.2.33", &["192.0.2.33"]),
        ("2001:db8::200:5efe:192.0.2.33", &["192.0.2.33"]),
        ("2001:db8::1", &[]),
        ("192.0.2.33", &[]),
    ] {
        let found: Vec<String> =
            translated(to.parse().unwrap()).map(|inner| inner.to_string()).collect();
        for inner in leads_to {
            assert!(found.iter().any(|one| one == inner), "{to}: {found:?}");
        }
        assert!(!leads_to.is_empty() || found.is_empty(), "{to}: {found:?}");
        if let ["192.0.2.33", ..] = leads_to {
            let rules = deny(&["192.0.2.33"]);
            let to = SocketAddr::new(to.parse().unwrap(), 80).to_string();
            assert_eq!(rules.judge(&tcp(&to)), NO, "{to}");
        }
    }
    // An ordinary address behind the longest prefix is none of the others.
    assert_eq!(Rules::default().judge(&tcp("[64:ff9b:1::8.8.8.8]:80")), YES);
    // Metadata addresses are closed behind each translator.
    for to in ["[64:ff9b:1:a9fe:a9:fe00::]:80", "[2001:db8::5efe:169.254.169.254]:80"] {
        assert_eq!(Rules::default().judge(&tcp(to)), NO, "{to}");
    }
}

#[test]
fn a_translator_with_a_prefix_of_its_own_is_one_when_it_is_named() {
    // The table of RFC 6052 section 2.4.
    for (prefix, to) in [
        ("2001:db8::/32", "2001:db8:c000:221::"),
        ("2001:db8:100::/40", "2001:db8:1c0:2:21::"),
        ("2001:db8:122::/48", "2001:db8:122:c000:2:2100::"),
        ("2001:db8:122:300::/56", "2001:db8:122:3c0:0:221::"),
        ("2001:db8:122:344::/64", "2001:db8:122:344:c0:2:2100::"),
        ("2001:db8:122:344::/96", "2001:db8:122:344::192.0.2.33"),
    ] {
        let ask = tcp(&SocketAddr::new(to.parse().unwrap(), 80).to_string());
        let rules = deny(&["192.0.2.0/24"]);
        assert_eq!(rules.judge(&ask), YES, "{to}");
        let rules = rules.nat64(prefix.parse().unwrap()).checked().unwrap();
        assert_eq!(rules.judge(&ask), NO, "{to}");
    }
    let rules = allow(&["*.example.org"]).nat64("2001:db8::/96".parse().unwrap());
    let named = |to: &str| ask(Protocol::Tcp, to, &["www.example.org"]);
    assert_eq!(rules.judge(&named("[2001:db8::8.8.8.8]:80")), YES);
    assert_eq!(rules.judge(&named("[2001:db8::10.0.0.1]:80")), NO);
    assert_eq!(rules.judge(&named("[2001:db8::169.254.169.254]:80")), NO);
    for wrong in ["192.0.2.0/24", "2001:db8::/60"] {
        let error = Rules::default().nat64(wrong.parse().unwrap()).checked().unwrap_err();
        assert!(error.to_string().contains("no prefix of NAT64"), "{error}");
    }
}

#[test]
fn a_denied_name_that_once_led_somewhere_is_denied_there() {
    let rules = deny(&["*.evil.net:25"]);
    let once = ["mx.evil.net".parse().unwrap()];
    let ask = |to| Ask { once: once.clone().into(), ..tcp(to) };
    assert_eq!(rules.judge(&ask("203.0.113.1:25")), NO);
    assert_eq!(rules.judge(&ask("203.0.113.1:80")), YES);
    // A permission does not outlive the name: it lapses with the name's time.
    let rules = allow(&["*.evil.net"]);
    assert_eq!(rules.judge(&ask("203.0.113.1:80")), NO);
    let [one, other]: [Name; 2] = ["a.evil.net".parse().unwrap(), "a.net".parse().unwrap()];
    let rules = deny(&["*.evil.net:25", "a.*:80"]);
    assert!(rules.denies_name(&one) && rules.denies_name(&other));
    assert!(rules.denies_as_much(&one, &other) && !rules.denies_as_much(&other, &one));
}

#[test]
fn a_denial_of_all_names_is_one_of_every_address() {
    let rules = deny(&["*:25", "**:26/tcp"]);
    for (to, verdict) in [
        ("93.184.216.34:25", NO),
        ("[2606:2800::1]:25", NO),
        ("93.184.216.34:26", NO),
        ("93.184.216.34:27", YES),
    ] {
        assert_eq!(rules.judge(&tcp(to)), verdict, "{to}");
    }
    // Nothing needs to be remembered for it.
    let name = "mx.evil.net".parse().unwrap();
    assert!(!rules.denies_name(&name) && !rules.denies_names());
    assert!(rules.deny(rule("*.evil.net:25")).denies_name(&name));
}

#[test]
fn what_comes_in_by_a_published_port_is_not_judged_by_rules() {
    let rules = allow(&["192.0.2.0/24"]);
    let ask = Ask { direction: Direction::In, ..tcp("10.0.2.15:80") };
    assert_eq!(rules.judge(&ask), YES);
    assert_eq!(Rules::offline().judge(&ask), NO);
}

#[test]
fn a_name_is_resolved_if_it_could_lead_somewhere() {
    let resolves = |rules: &Rules, name: &str| rules.resolves(&name.parse::<Name>().unwrap());
    let all = Rules::default();
    assert!(resolves(&all, "example.org"));
    let denied = deny(&["*.evil.net", "evil.net", "half.net:80", "udp.net/udp"]);
    assert!(!resolves(&denied, "www.evil.net"));
    assert!(!resolves(&denied, "EVIL.net."));
    assert!(resolves(&denied, "half.net"));
    assert!(resolves(&denied, "udp.net"));
    assert!(resolves(&denied, "example.org"));
    let named = allow(&["*.example.org:443"]);
    assert!(resolves(&named, "www.example.org"));
    assert!(!resolves(&named, "www.example.net"));
    // An address may have any name.
    let mixed = allow(&["*.example.org", "192.0.2.0/24"]);
    assert!(resolves(&mixed, "www.example.net"));
    assert!(!resolves(&Rules::offline(), "example.org"));
}

#[test]
fn the_number_of_rules_has_a_limit() {
    let many = |n: usize| (0..n).fold(Rules::default(), |all, _| all.deny(rule("10.0.0.1")));
    assert!(many(crate::limits::RULES).checked().is_ok());
    let error = many(crate::limits::RULES + 1).checked().unwrap_err();
    assert!(error.to_string().contains("at most"), "{error}");
}

/// The demand on a flow to port 443 of an address that has these names.
fn demand(rules: &Rules, names: &[&str]) -> Demand {
    let ask = ask(Protocol::Tcp, "198.51.100.1:443", names);
    assert_eq!(rules.judge(&ask), YES);
    rules.demand(&ask)
}

fn shows(rules: &Rules, names: &[&str], by: ShownBy, name: &str) -> bool {
    let shown = Shown { by, name: (!name.is_empty()).then(|| name.parse().unwrap()) };
    rules.permits_shown(&ask(Protocol::Tcp, "198.51.100.1:443", names), &shown)
}

#[test]
fn a_flow_that_only_a_name_permits_must_show_one() {
    for (rules, expected) in [
        (allow(&["a.org"]), Demand::PermittedName),
        (allow(&["*.org", "tls:a.org", "ssh:a.org:443"]), Demand::PermittedName),
        (allow(&["a.org", "198.51.100.0/24"]), Demand::Nothing),
        (allow(&["a.org", "198.51.100.1:80"]), Demand::PermittedName),
        (allow(&["a.org", "tcp:a.org"]), Demand::Nothing),
        (allow(&["a.org", "tcp:a.org:80"]), Demand::PermittedName),
        (allow(&["a.org", "tcp:b.org"]), Demand::PermittedName),
        (Rules::default(), Demand::Nothing),
        (deny(&["203.0.113.0/24"]), Demand::Nothing),
        (deny(&["b.org"]), Demand::NoDeniedName),
        // A denied name is forbidden at addresses, too, that are permitted.
        (allow(&["198.51.100.0/24"]).deny(rule("b.org")), Demand::NoDeniedName),
        (allow(&["tcp:a.org"]).deny(rule("b.org")), Demand::NoDeniedName),
        (allow(&["tls:a.org"]).deny(rule("b.org")), Demand::PermittedName),
    ] {
        assert_eq!(demand(&rules, &["a.org"]), expected, "{rules:?}");
    }
    // An echo request reaches no server, and clients of the guest's ports name nothing.
    let rules = allow(&["a.org"]);
    assert_eq!(rules.demand(&ask(Protocol::Echo, "198.51.100.1:0", &["a.org"])), Demand::Nothing);
    let client = Ask { direction: Direction::In, ..tcp("10.0.2.15:80") };
    assert_eq!(rules.demand(&client), Demand::Nothing);
}

#[test]
fn a_flow_may_show_a_permitted_name_that_leads_to_its_address() {
    let rules = allow(&["a.org", "*.cdn.example:443"]);
    let names = ["a.org", "x.cdn.example", "b.org"];
    for by in [ShownBy::Tls, ShownBy::Http, ShownBy::Quic] {
        assert!(shows(&rules, &names, by, "a.org"));
        assert!(shows(&rules, &names, by, "x.cdn.example"));
        // Not permitted; permitted for another address; none.
        assert!(!shows(&rules, &names, by, "b.org"));
        assert!(!shows(&rules, &names, by, "y.cdn.example"));
        assert!(!shows(&rules, &["b.org"], by, "a.org"));
        assert!(!shows(&rules, &names, by, ""));
    }
    for by in [ShownBy::EncryptedHello, ShownBy::Ssh, ShownBy::Unknown] {
        assert!(!shows(&rules, &names, by, "a.org"), "{by:?}");
    }
    assert!(!shows(&allow(&["a.org:80"]), &names, ShownBy::Tls, "a.org"));
}

#[test]
fn a_denial_asks_for_no_proof() {
    for text in ["tls:a.org", "http:a.org", "ech:*", "ssh:a.org"] {
        let is_wrong = |error| matches!(error, Err(RuleError::DeniedProof(_)));
        assert!(is_wrong(rule(text).check_denial()), "{text}");
    }
    for text in ["a.org", "tcp:a.org:443", "udp:a.org", "10.0.0.0/8", "host"] {
        assert_eq!(rule(text).check_denial(), Ok(()), "{text}");
    }
}

#[test]
fn a_prefix_says_by_what_the_name_is_shown() {
    let by = |text: &str| {
        let rules = allow(&[text]);
        [(ShownBy::Tls, "a.org"), (ShownBy::Http, "a.org"), (ShownBy::Ssh, "")]
            .map(|(by, name)| shows(&rules, &["a.org"], by, name))
    };
    assert_eq!(by("ech:a.org"), [true, false, false]);
    for (name, is_permitted) in [("a.org", true), ("b.org", false), ("", false)] {
        let names = ["a.org", "b.org"];
        let shows = shows(&allow(&["ech:a.org"]), &names, ShownBy::EncryptedHello, name);
        assert_eq!(shows, is_permitted, "{name}");
    }
    assert_eq!(by("tls:a.org"), [true, false, false]);
    assert_eq!(by("http:a.org"), [false, true, false]);
    assert_eq!(by("ssh:a.org:443"), [false, false, true]);
    assert_eq!(by("ssh:a.org"), [false, false, false]);
    assert_eq!(by("ssh:b.org:443"), [false, false, false]);
}

#[test]
fn a_denied_name_is_not_shown_whatever_is_permitted() {
    let rules = allow(&["*.org"]).deny(rule("b.org"));
    assert!(shows(&rules, &["a.org", "b.org"], ShownBy::Tls, "a.org"));
    assert!(!shows(&rules, &["a.org", "b.org"], ShownBy::Tls, "b.org"));
    let rules = allow(&["198.51.100.0/24"]).deny(rule("b.org"));
    assert!(!shows(&rules, &[], ShownBy::Tls, "b.org"));
    assert!(shows(&rules, &[], ShownBy::Tls, "c.org"));
    assert!(shows(&rules, &[], ShownBy::Unknown, ""));
    let rules = deny(&["b.org"]);
    assert!(!shows(&rules, &[], ShownBy::Tls, "b.org"));
    assert!(shows(&rules, &[], ShownBy::Tls, "c.org"));
    assert!(shows(&rules, &[], ShownBy::Unknown, ""));
    // A denial holds for what it names, whatever its prefix.
    assert!(!shows(&deny(&["tls:b.org"]), &[], ShownBy::Http, "b.org"));
}

#[test]
fn the_last_permission_that_is_taken_back_leaves_nothing_permitted() {
    let rule: Rule = "203.0.113.0/24".parse().unwrap();
    let name: Rule = "good.example".parse().unwrap();
    let rules = Rules::default().allow(rule.clone()).allow(name.clone()).deny(rule.clone());
    let rules = rules.without(&rule);
    assert_eq!(rules.permissions().collect::<Vec<_>>(), [&name]);
    assert_eq!(rules.prohibitions().count(), 0);
    let rules = rules.without(&name);
    assert!(rules.is_restricted() && rules.permissions().next().is_none());
    let (from, to) = ("10.0.2.15:1000".parse().unwrap(), "203.0.113.7:443".parse().unwrap());
    let ask = Ask::new(GuestId(1), Protocol::Tcp, from, to);
    assert_eq!(rules.judge(&ask), Verdict::Prohibit);
    assert!(!rules.resolves(&"good.example".parse().unwrap()));
    assert_eq!(Rules::default().judge(&ask), Verdict::Allow);
}

/// A client of the guest's port 8080.
fn client(from: &str) -> Ask {
    let from = from.parse().unwrap();
    Ask { from, direction: Direction::In, ..tcp("10.0.2.15:8080") }
}

#[test]
fn rules_for_clients_decide_about_published_ports() {
    let open = |rules: &Rules, from: &str| rules.judge(&client(from)) == YES;
    let office = allow(&["from:203.0.113.0/24:8080/tcp", "from:2001:db8::/32"]);
    for (from, permitted) in [
        ("203.0.113.9:5000", true),
        ("[::ffff:203.0.113.9]:5000", true),
        ("[2001:db8::9]:5000", true),
        ("198.51.100.9:5000", false),
        ("127.0.0.1:5000", false),
    ] {
        assert_eq!(open(&office, from), permitted, "{from}");
    }
    // The ports are the guest's, and not the client's.
    assert!(!open(&allow(&["from:0.0.0.0/0:80"]), "203.0.113.9:80"));
    assert!(!open(&allow(&["from:0.0.0.0/0:8080/udp"]), "203.0.113.9:80"));
    // A denial holds whatever is permitted, and without any permission.
    let but_one = office.deny(rule("from:203.0.113.9"));
    assert!(open(&but_one, "203.0.113.8:1") && !open(&but_one, "203.0.113.9:1"));
    let all_but_one = deny(&["from:203.0.113.9"]);
    assert!(open(&all_but_one, "198.51.100.9:1") && !open(&all_but_one, "203.0.113.9:1"));
    let silent = Rules::default().deny_with(rule("from:203.0.113.9"), Verdict::Drop);
    assert_eq!(silent.judge(&client("203.0.113.9:1")), Verdict::Drop);
}

#[test]
fn the_two_directions_have_nothing_to_do_with_each_other() {
    let name = "example.org".parse().unwrap();
    let inward = allow(&["from:203.0.113.0/24"]).deny(rule("from:198.51.100.0/24"));
    // For guests, nothing has changed.
    assert_eq!(inward.judge(&tcp("192.0.2.1:443")), YES);
    assert_eq!(inward.judge(&tcp("198.51.100.1:443")), YES);
    assert!(inward.resolves(&name) && inward.demand(&tcp("192.0.2.1:443")) == Demand::Nothing);
    assert!(!inward.has_names() && !inward.asks_for_ours());
    assert_eq!(inward.permission(&tcp("127.0.0.1:80"), None), None);
    // For clients neither.
    let outward = allow(&["203.0.113.0/24", "*.org"]).deny(rule("198.51.100.0/24"));
    assert_eq!(outward.judge(&client("198.51.100.9:1")), YES);
    let both = outward.allow(rule("from:203.0.113.1")).deny(rule("from:203.0.113.2"));
    assert_eq!(both.judge(&tcp("203.0.113.2:443")), YES);
    assert_eq!(both.judge(&tcp("192.0.2.1:443")), NO);
    // A network of clients is no address that could have any name.
    let named = allow(&["*.org", "from:10.0.0.0/8"]);
    assert!(named.resolves(&name) && !named.resolves(&"example.net".parse().unwrap()));
}

#[test]
fn clients_of_this_machine_are_one_client() {
    let refused = |rule: &str, from: &str| deny(&[rule]).judge(&client(from)) == NO;
    let permitted = |rule: &str, from: &str| allow(&[rule]).judge(&client(from)) == YES;
    // A socket that is bound to all addresses is judged once, for clients by loopback.
    for from in ["127.0.0.1:1", "127.9.9.9:1", "0.0.0.0:8080"] {
        for rule in ["from:127.0.0.0/8", "from:127.0.0.1", "from:127.0.0.7", "from:0.0.0.0/0"] {
            assert!(refused(rule, from) && permitted(rule, from), "{rule} and {from}");
        }
        for rule in ["from:::1", "from:10.0.0.0/8"] {
            assert!(!refused(rule, from) && !permitted(rule, from), "{rule} and {from}");
        }
    }
    assert!(refused("from:::1", "[::]:8080") && refused("from:::1", "[::1]:1"));
    assert!(!refused("from:127.0.0.1", "[::1]:1"));
    // A client by a Unix socket has the guest's address, and no port.
    assert!(refused("from:127.0.0.1", "10.0.2.15:0") && permitted("from:127.0.0.1", "10.0.2.15:0"));
    assert!(!refused("from:127.0.0.1", "10.0.2.15:7"));
}

#[test]
fn a_rule_for_clients_is_about_addresses() {
    for text in ["from:example.org", "from:*", "from:host", "from:tls:10.0.0.1", "from:from:1"] {
        let error = text.parse::<Rule>().unwrap_err();
        assert!(matches!(error, RuleError::Client(_) | RuleError::NoName(_)), "{text}: {error}");
    }
    for text in ["from:", "from::80", "from:10.0.0.0/99", "from:10.0.0.1:1/icmp"] {
        assert!(text.parse::<Rule>().is_err(), "{text}");
    }
    for (text, printed) in [
        ("from:10.0.0.0/8:8080/tcp", "from:10.0.0.0/8:8080/tcp"),
        ("from:tcp:10.0.0.1", "from:10.0.0.1/tcp"),
        ("from:[2001:db8::/32]:80-90", "from:[2001:db8::/32]:80-90"),
        ("from:::1", "from:::1"),
        // Such a name is no prefix.
        ("[from]:443", "[from]:443"),
        ("from", "[from]"),
    ] {
        assert_eq!(rule(text).to_string(), printed);
        assert_eq!(rule(printed), rule(text));
    }
}

#[test]
fn a_refused_client_has_the_rule_that_permits_it() {
    let rules = allow(&["from:10.0.0.0/8"]);
    let wanted = |rules: &Rules| rules.permission(&client("203.0.113.9:5000"), None);
    assert_eq!(wanted(&rules).unwrap().to_string(), "from:203.0.113.9:8080/tcp");
    assert_eq!(wanted(&rules.deny(rule("from:203.0.113.0/24"))), None);
    assert_eq!(wanted(&Rules::default()), None);
    let told = client("203.0.113.9:5000").destination();
    assert_eq!(told, "10.0.2.15:8080/tcp for 203.0.113.9");
}

#[test]
fn a_name_outside_of_ascii_is_taken_in_the_form_of_dns() {
    for (text, printed) in [
        ("bücher.example", "xn--bcher-kva.example"),
        ("*.BÜCHER.Example.:443/tcp", "*.xn--bcher-kva.example:443/tcp"),
        ("tls:bu\u{308}cher.example", "tls:xn--bcher-kva.example"),
        // Not as in IDNA 2003, where this was "fass.example".
        ("faß.example", "xn--fa-hia.example"),
        ("例え。テスト", "xn--r8jz45g.xn--zckzah"),
        ("\u{ff45}xample.org", "example.org"),
    ] {
        assert_eq!(rule(text).to_string(), printed, "{text}");
    }
    let rules = allow(&["*.bücher.example"]);
    assert!(rules.resolves(&"www.xn--bcher-kva.example".parse().unwrap()));
    assert!(!rules.resolves(&"www.bucher.example".parse().unwrap()));
    for wrong in [
        "b*ü.example",
        "ü\u{200b}\u{ff0f}.example",
        "-ü.example",
        "xn--ü.example",
        "\u{ff0a}.example",
        "ü:x.example",
        "\u{5d0}a.example",
        // No detour to an address, nor to a word that rules have.
        "\u{ff11}0.0.0.1",
        "\u{ff48}ost",
    ] {
        assert!(wrong.parse::<Rule>().is_err(), "{wrong}");
    }
}

#[test]
fn a_decision_says_which_rule_made_it() {
    let rules = allow(&["*.org:443", "tls:a.org", "tcp:b.org", "203.0.113.0/24", "169.254.1.1"])
        .deny(rule("c.org"))
        .deny(rule("203.0.113.9"))
        .allow(rule("from:10.0.0.0/8"));
    let to = |to: &str, names: &[&str]| rules.decide(&ask(Protocol::Tcp, to, names)).reason;
    assert_eq!(to("198.51.100.1:443", &["a.org"]), Reason::Permission(0));
    // A permission that asks for no proof has the last word.
    assert_eq!(to("198.51.100.1:443", &["b.org"]), Reason::Permission(2));
    assert_eq!(to("203.0.113.1:443", &["a.org"]), Reason::Permission(3));
    assert_eq!(to("203.0.113.9:443", &[]), Reason::Denial(1));
    assert_eq!(to("198.51.100.1:443", &["c.org"]), Reason::Denial(0));
    assert_eq!(to("198.51.100.1:80", &["d.org"]), Reason::NotPermitted);
    assert_eq!(to("127.0.0.1:80", &[]), Reason::Closed);
    assert_eq!(to("169.254.1.1:80", &[]), Reason::Permission(4));
    assert_eq!(to("0.0.0.0:80", &[]), Reason::NoHost);
    assert_eq!(rules.decide(&client("10.0.0.1:1")).reason, Reason::Permission(0));
    assert_eq!(rules.decide(&client("11.0.0.1:1")).reason, Reason::NotPermitted);
    assert_eq!(Rules::default().decide(&tcp("192.0.2.1:1")).reason, Reason::Open);
    assert_eq!(Rules::offline().decide(&tcp("192.0.2.1:1")).reason, Reason::Offline);
    let proofs = |names: &[&str]| rules.proofs(&ask(Protocol::Tcp, "198.51.100.1:443", names));
    assert_eq!(proofs(&["a.org"]), [0, 1]);
    assert_eq!(proofs(&["b.org"]), [0; 0]);
    let name =
        |name: &str| allow(&["*.org"]).deny(rule("c.*")).refusal_of_name(&name.parse().unwrap());
    assert_eq!(name("a.org"), None);
    assert_eq!(name("c.org"), Some(Reason::Denial(0)));
    assert_eq!(name("a.net"), Some(Reason::NotPermitted));
}

#[test]
fn a_permission_may_have_a_rate() {
    for text in [
        "example.org@8kbit",
        "10.0.0.0/8:80/tcp@10mbit",
        "ssh:a.org@1gbit",
        "[fd00::1]:9/udp@9999bit",
    ] {
        assert_eq!(rule(text).to_string(), text);
    }
    assert_eq!(rule("example.org@8000kbit").to_string(), "example.org@8mbit");
    for wrong in [
        "a.org@",
        "a.org@1bit",
        "a.org@-9mbit",
        "a.org@9",
        "a.org@10mb",
        "from:10.0.0.1@1mbit",
        "a.org@99999999999gbit",
    ] {
        assert!(wrong.parse::<Rule>().is_err(), "{wrong}");
    }
}
