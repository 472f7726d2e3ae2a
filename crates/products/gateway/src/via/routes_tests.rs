use std::sync::Arc;

use super::{Credentials, Handshake, Proxy, ProxyError, ProxyKind, ProxyUrl, TargetHost, Via};
use super::{ViaError, Vias, Way};
use crate::limits::VIAS;
use crate::request::{Ask, GuestId, Protocol};

fn proxy(url: &str) -> Arc<Proxy> {
    Arc::new(Proxy::resolve(url.parse().unwrap()).unwrap())
}

/// The ways of these options.
fn vias(all: &[&str]) -> Vias {
    all.iter().fold(Vias::default(), |vias, text| {
        let Via { rule, proxy: url } = text.parse().unwrap();
        vias.add(rule, url.map(|url| proxy(&url.to_string()))).unwrap()
    })
}

fn ask(to: &str, names: &[&str]) -> Ask {
    let from = "10.0.2.15:4000".parse().unwrap();
    let mut ask = Ask::new(GuestId(1), Protocol::Tcp, from, to.parse().unwrap());
    ask.names = names.iter().map(|name| name.parse().unwrap()).collect();
    ask
}

/// The proxy of a flow and what it is asked for.
fn way(vias: &Vias, ask: &Ask) -> Option<(String, String)> {
    match vias.way(ask, ask.to, None) {
        Way::Direct => None,
        Way::Proxy(route) => Some((route.proxy.text.to_string(), route.target.to_string())),
    }
}

#[test]
fn the_first_way_that_matches_counts() {
    let vias = vias(&[
        "10.0.0.0/8=direct",
        "*.corp=http://192.0.2.1:3128",
        "0.0.0.0/0:22=direct",
        "socks5://192.0.2.2:1080",
    ]);
    assert_eq!(way(&vias, &ask("10.1.2.3:80", &["a.corp"])), None);
    let corp = way(&vias, &ask("203.0.113.1:443", &["a.corp", "b.example"])).unwrap();
    assert_eq!(corp, ("http://192.0.2.1:3128".into(), "203.0.113.1:443".into()));
    assert_eq!(way(&vias, &ask("203.0.113.1:22", &[])), None);
    // The latest name is what the guest means.
    let other = way(&vias, &ask("203.0.113.1:443", &["b.example", "a.corp"])).unwrap();
    assert_eq!(other.0, "socks5://192.0.2.2:1080");
    assert_eq!(way(&vias, &ask("[2001:db8::1]:80", &[])).unwrap().1, "[2001:db8::1]:80");
}

#[test]
fn a_name_is_told_in_place_of_the_address() {
    let ask = ask("203.0.113.1:443", &["a.example"]);
    let name = "a.example".parse().unwrap();
    let Way::Proxy(route) = vias(&["socks5://192.0.2.2:1080"]).way(&ask, ask.to, Some(&name))
    else {
        panic!("a proxy is chosen for all");
    };
    assert_eq!(route.target.host, TargetHost::Name(name));
    assert_eq!(route.target.to_string(), "a.example:443");
    assert!(matches!(route.handshake(), Handshake::Socks5(_)));
}

#[test]
fn what_settings_lead_to_this_machines_loopback_needs_no_proxy() {
    let ask = ask("10.0.2.2:80", &["host"]);
    let all = vias(&["http://192.0.2.1:3128"]);
    assert_eq!(all.way(&ask, "127.0.0.1:80".parse().unwrap(), None), Way::Direct);
    let Way::Proxy(route) = all.way(&ask, "203.0.113.1:80".parse().unwrap(), None) else {
        panic!("another machine is reached by the proxy");
    };
    assert_eq!(route.target.to_string(), "203.0.113.1:80");
}

#[test]
fn there_are_so_many_ways_at_most() {
    let rule = || Some("10.0.0.0/8".parse().unwrap());
    let full = (0..VIAS).try_fold(Vias::default(), |vias, _| vias.add(rule(), None)).unwrap();
    assert!(full.is_direct());
    assert!(full.add(rule(), None).is_err());
}

#[test]
fn urls_are_read_and_printed() {
    let texts = [
        ("socks5://127.0.0.1:1080", "socks5://127.0.0.1:1080"),
        ("socks5h://localhost:1080/", "socks5://localhost:1080"),
        ("HTTP://Proxy.Example:3128", "http://proxy.example:3128"),
        ("http://[2001:DB8::1]:8080", "http://[2001:db8::1]:8080"),
    ];
    for (text, printed) in texts {
        assert_eq!(text.parse::<ProxyUrl>().unwrap().to_string(), printed);
    }
    let wrong = [
        ("https://a.example:443", ProxyError::Tls),
        ("socks4://a.example:1080", ProxyError::Scheme),
        ("a.example:1080", ProxyError::Scheme),
        ("http://user:secret@a.example:80", ProxyError::Credentials),
        ("http://a.example", ProxyError::Place),
        ("http://a.example:0", ProxyError::Place),
        ("http://a.example:80/path", ProxyError::Place),
        ("http://:80", ProxyError::Place),
        ("http://2001:db8::1:80", ProxyError::Place),
        ("http://a b:80", ProxyError::Place),
    ];
    for (text, error) in wrong {
        assert_eq!(text.parse::<ProxyUrl>(), Err(error), "{text}");
        assert!(!error.to_string().contains("secret"));
    }
    let secret = "a.example=http://user:secret@a.example:80".parse::<Via>().unwrap_err();
    assert!(!secret.to_string().contains("secret"), "{secret}");
    assert_eq!("tls:a.example=direct".parse::<Via>(), Err(ViaError::Proof));
    assert!(matches!("!=direct".parse::<Via>(), Err(ViaError::Rule(_))));
    assert_eq!("direct".parse(), Ok(Via { rule: None, proxy: None }));
    assert_eq!("socks5://[::1]:1".parse::<ProxyUrl>().unwrap().kind, ProxyKind::Socks5);
}

#[test]
fn credentials_are_a_user_and_a_password_that_nothing_prints() {
    let secret: Credentials = "user:sec:ret".parse().unwrap();
    assert_eq!((secret.user(), secret.password()), (&b"user"[..], &b"sec:ret"[..]));
    let proxy = Proxy::resolve("http://192.0.2.1:80".parse().unwrap()).unwrap().credentials(secret);
    assert!(!format!("{proxy:?}").contains("sec"), "{proxy:?}");
    let long = format!("user:{}", "x".repeat(256));
    for wrong in ["user", ":x", "user:", "a\r\n:b", "a:b\n", &long] {
        assert!(wrong.parse::<Credentials>().is_err(), "{wrong:?}");
    }
}
