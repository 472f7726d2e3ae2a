//! Questions as text, and the answers of rules.

use super::{Question, Reason, Rules};

fn answer(rules: &Rules, text: &str) -> Reason {
    let question: Question = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
    assert_eq!(question.to_string(), text);
    question.answer(rules).reason
}

#[test]
fn a_question_is_about_a_name_or_an_address_and_a_port() {
    let rules = [
        "*.org:443",
        "udp:db.org:53",
        "10.0.0.0/8:53/udp",
        "8.8.8.8/icmp",
        "bücher.example",
        "host:8080",
    ];
    let rules = rules.iter().fold(Rules::default(), |all, one| all.allow(one.parse().unwrap()));
    let rules = rules.allow("from:10.0.0.0/8:8080".parse().unwrap());
    let rules = rules.deny("evil.org".parse().unwrap()).deny("203.0.113.0/24".parse().unwrap());
    for (text, reason) in [
        ("a.org:443", Reason::Permission(0)),
        ("A.ORG.:443/udp", Reason::Permission(0)),
        ("a.org:80", Reason::NotPermitted),
        ("db.org:53/udp", Reason::Permission(1)),
        ("10.1.2.3:53/udp", Reason::Permission(2)),
        ("10.1.2.3:53", Reason::NotPermitted),
        ("8.8.8.8/icmp", Reason::Permission(3)),
        ("bücher.example:80", Reason::Permission(4)),
        ("evil.org:443", Reason::Denial(0)),
        ("a.org@203.0.113.9:443", Reason::Denial(1)),
        // A name does not lead into a private network.
        ("a.org@192.168.0.1:443", Reason::NotPermitted),
        ("a.org@[2606:2800::1]:443", Reason::Permission(0)),
        ("[::1]:443", Reason::Closed),
        ("host:8080", Reason::Permission(5)),
        ("host:8081", Reason::NotPermitted),
        ("from:10.1.2.3:8080", Reason::Permission(0)),
        ("from:11.1.2.3:8080", Reason::NotPermitted),
    ] {
        assert_eq!(answer(&rules, text), reason, "{text}");
    }
    // A name that is refused is never connected to.
    let named = Rules::default().allow("*.org".parse().unwrap());
    assert_eq!(answer(&named, "a.net:443"), Reason::NotPermitted);
    let question: Question = "a.org:443".parse().unwrap();
    assert_eq!(named.proofs(question.ask()), [0]);
}

#[test]
fn a_question_is_about_one_flow() {
    for text in [
        "",
        "a.org",
        "*.org:443",
        "a.org:80-90",
        "10.0.0.0/8:80",
        "tls:a.org:443",
        "a.org@b.org:80",
        "10.0.0.1@10.0.0.2:80",
        "a.org:80@10.0.0.1:80",
        "from:a.org:80",
        "@10.0.0.1:80",
        "x@from:10.0.0.1:80",
        "10.0.0.1:0",
        "10.0.0.1:80/icmp",
        "*@10.0.0.1:80",
        "..:80",
    ] {
        assert!(text.parse::<Question>().is_err(), "{text}");
    }
}
