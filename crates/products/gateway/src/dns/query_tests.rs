//! DNS messages: parsing queries and answers, and building answers.

use std::net::IpAddr;
use std::time::Duration;

use pagewire_testkit::frames::dns_query;
use simple_dns::rdata::{A, AAAA, CNAME, RData};
use simple_dns::{CLASS, Name as WireName, Packet, RCODE, ResourceRecord};

use crate::limits::{DNS_ADDRESSES, DNS_ALIASES, DNS_RECORDS};

use super::query::{AnsweredAddresses, BadQuery, Code, Query, id, refuse, set_id};

/// A query with recursion desired, and the OPT record of EDNS.
fn query(name: &str, kind: u16) -> Vec<u8> {
    let mut bytes = dns_query(0x1234, name, kind);
    bytes[11] = 1;
    bytes.extend_from_slice(&[0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]);
    bytes
}

/// A query's message, and what is read from it.
fn asked(name: &str, kind: u16) -> (Vec<u8>, Query) {
    let message = query(name, kind);
    let asked = Query::parse(&message).unwrap();
    (message, asked)
}

/// The answer of a resolver, with these records.
fn answer(message: &[u8], records: &[(&str, u32, RData<'static>)]) -> Vec<u8> {
    let packet = Packet::parse(message).unwrap();
    let mut reply = packet.into_reply();
    for (name, ttl, data) in records {
        let name = WireName::new(name).unwrap();
        reply.answers.push(ResourceRecord::new(name, CLASS::IN, *ttl, data.clone()));
    }
    reply.build_bytes_vec_compressed().unwrap()
}

fn a(addr: &str) -> RData<'static> {
    let addr: std::net::Ipv4Addr = addr.parse().unwrap();
    RData::A(A { address: addr.to_bits() })
}

fn aaaa(addr: &str) -> RData<'static> {
    let addr: std::net::Ipv6Addr = addr.parse().unwrap();
    RData::AAAA(AAAA { address: addr.to_bits() })
}

fn cname(name: &'static str) -> RData<'static> {
    RData::CNAME(CNAME(WireName::new(name).unwrap()))
}

#[test]
fn of_a_very_long_answer_a_part_is_remembered() {
    let (message, asked) = asked("many.example.org", 1);
    let addresses: Vec<_> = (0..4000).map(|n| format!("192.0.{}.{}", n / 256, n % 256)).collect();
    let records: Vec<_> = addresses.iter().map(|at| ("many.example.org", 9, a(at))).collect();
    let resolved = asked.resolved(&answer(&message, &records));
    assert!(resolved.more_addresses);
    assert_eq!(resolved.addresses.len(), DNS_ADDRESSES);
    // An alias behind `DNS_RECORDS` records is not followed.
    let mut records = vec![("other.example.org", 9, a("192.0.2.1")); DNS_RECORDS];
    records.push(("many.example.org", 9, a("192.0.2.2")));
    let resolved = asked.resolved(&answer(&message, &records));
    assert!(resolved.addresses.is_empty() && resolved.more_names);
}

#[test]
fn a_query_is_read() {
    let query = Query::parse(&query("WWW.Example.org", 28)).unwrap();
    assert_eq!(query.name.unwrap().as_str(), "www.example.org");
    assert_eq!((query.kind, query.class), (28, 1));
}

#[test]
fn a_query_for_a_type_that_nobody_knows_is_a_query() {
    assert_eq!(Query::parse(&query("example.org", 65_280)).unwrap().kind, 65_280);
}

#[test]
fn the_root_and_names_that_are_no_hosts_have_no_name_for_rules() {
    assert_eq!(Query::parse(&query("", 2)).unwrap().name, None);
    assert_eq!(Query::parse(&query("a b.org", 1)).unwrap().name, None);
    let mut dotted = query("axb.org", 1);
    dotted[14] = b'.';
    assert_eq!(Query::parse(&dotted).unwrap().name, None);
}

#[test]
fn what_is_no_query_is_ignored_or_refused() {
    let good = query("example.org", 1);
    assert!(Query::parse(&good).is_ok());
    for len in 0..12 {
        assert_eq!(Query::parse(&good[..len]), Err(BadQuery::Ignored));
    }
    let malformed = Err(BadQuery::Answered(Code::FormErr));
    // Up to the question's end: 13 bytes of name, 4 of type and class.
    for len in 12..12 + 17 {
        assert_eq!(Query::parse(&good[..len]), malformed, "{len} bytes");
    }
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        Query::parse(&bytes)
    };
    // An answer; an update; no question; two; a pointer; more records than bytes.
    assert_eq!(with(2, 0x81), Err(BadQuery::Ignored));
    assert_eq!(with(2, 0x29), Err(BadQuery::Answered(Code::NotImp)));
    assert_eq!(with(5, 0), malformed);
    assert_eq!(with(5, 2), malformed);
    assert_eq!(with(12, 0xc0), malformed);
    assert_eq!(with(6, 255), malformed);
}

#[test]
fn a_name_has_at_most_255_bytes() {
    let label = "a".repeat(63);
    let name = |last: usize| format!("{label}.{label}.{label}.{}", "b".repeat(last));
    // 3 * 64 + 62 + 1.
    assert!(Query::parse(&query(&name(61), 1)).is_ok());
    assert_eq!(Query::parse(&query(&name(62), 1)), Err(BadQuery::Answered(Code::FormErr)));
}

#[test]
fn an_answer_belongs_to_its_query_by_identifier_and_question() {
    let (sent, asked) = asked("example.org", 1);
    let good = answer(&sent, &[("example.org", 60, a("192.0.2.1"))]);
    assert!(asked.is_answered_by(&sent, &good));
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        asked.is_answered_by(&sent, &bytes)
    };
    assert!(with(13, b'E'), "another case");
    assert!(!with(13, b'x'), "another name");
    assert!(!with(0, 0x13), "another identifier");
    assert!(!with(2, 1), "a query");
    assert!(!with(2, 0xa8), "another operation");
    assert!(!with(5, 2), "two questions");
    assert!(!with(12 + 13 + 1, 28), "another type");
    assert!(!with(5, 0), "no question, but no error");
    assert!(!asked.is_answered_by(&sent, &good[..20]), "cut");
    assert!(
        asked.is_answered_by(&sent, &refuse(&sent, Code::FormErr)),
        "an error without question"
    );
}

#[test]
fn an_error_repeats_the_question_and_nothing_else() {
    let (message, query) = asked("example.org", 1);
    for (code, found) in [
        (Code::ServFail, RCODE::ServerFailure),
        (Code::NxDomain, RCODE::NameError),
        (Code::Refused, RCODE::Refused),
    ] {
        let bytes = query.answer(&message, code);
        let reply = Packet::parse(&bytes).unwrap();
        assert_eq!(reply.rcode(), found);
        assert_eq!(reply.id(), 0x1234);
        assert_eq!(reply.questions[0].qname.to_string(), "example.org");
        assert!(reply.opt().is_none() && reply.answers.is_empty());
        assert!(query.is_answered_by(&message, &bytes));
    }
    assert_eq!(refuse(&message, Code::NotImp).len(), 12);
}

#[test]
fn an_own_name_leads_to_addresses_of_the_version_asked_for() {
    let all: Vec<IpAddr> = vec!["10.0.2.2".parse().unwrap(), "fd00::2".parse().unwrap()];
    let answers = |kind| {
        let message = query("gateway", kind);
        let bytes = Query::parse(&message).unwrap().lead_to(&message, &all);
        let reply = Packet::parse(&bytes).unwrap();
        assert_eq!((reply.rcode(), reply.id()), (RCODE::NoError, 0x1234));
        assert!(reply.answers.iter().all(|record| record.name.to_string() == "gateway"));
        reply.answers.iter().map(|record| record.rdata.clone().into_owned()).collect::<Vec<_>>()
    };
    assert_eq!(answers(1), [a("10.0.2.2")]);
    assert_eq!(answers(28), [aaaa("fd00::2")]);
    assert_eq!(answers(255).len(), 2);
    // There is such a name, but it has no mail server, and none of an unknown type.
    assert!(answers(15).is_empty());
    let message = query("gateway", 65_280);
    let bytes = Query::parse(&message).unwrap().lead_to(&message, &all);
    assert_eq!(bytes[2..12], [0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn the_aliases_of_a_name_lead_to_its_addresses_too() {
    let (message, asked) = asked("www.example.org", 1);
    let bytes = answer(
        &message,
        &[
            ("end.cdn.net", 30, a("192.0.2.1")),
            ("cdn.net", 60, cname("end.cdn.net")),
            ("www.example.org", 60, cname("CDN.net")),
            ("end.cdn.net", 40, a("192.0.2.2")),
            ("other.net", 40, a("192.0.2.3")),
            ("more.net", 40, cname("another.net")),
        ],
    );
    let resolved = asked.resolved(&bytes);
    assert!(!resolved.more_names && !resolved.more_addresses);
    let names: Vec<&str> = resolved.names.iter().map(|name| name.as_str()).collect();
    assert_eq!(names, ["www.example.org", "cdn.net", "end.cdn.net"]);
    let addresses = [("192.0.2.1", 30), ("192.0.2.2", 40)];
    let addresses = addresses.map(|(a, s)| (a.parse().unwrap(), Duration::from_secs(s)));
    assert_eq!(resolved.addresses, addresses);
}

#[test]
fn aliases_that_lead_to_each_other_end() {
    let (message, asked) = asked("a.org", 1);
    let circle = [("a.org", 1, cname("b.org")), ("b.org", 1, cname("a.org"))];
    let resolved = asked.resolved(&answer(&message, &circle));
    assert!(resolved.addresses.is_empty() && resolved.names.len() == 2 && !resolved.more_names);
}

#[test]
fn a_longer_chain_of_aliases_than_is_followed_is_said() {
    let (message, asked) = asked("n0.org", 1);
    for (aliases, cut) in [(DNS_ALIASES, false), (DNS_ALIASES + 1, true)] {
        let names: Vec<String> = (0..=aliases).map(|n| format!("n{n}.org")).collect();
        let alias =
            |pair: &[String]| RData::CNAME(CNAME(WireName::new_unchecked(&pair[1]).into_owned()));
        let mut records: Vec<_> =
            names.windows(2).map(|pair| (pair[0].as_str(), 9, alias(pair))).collect();
        records.push((names[aliases].as_str(), 9, a("192.0.2.1")));
        let found = asked.resolved(&answer(&message, &records));
        assert_eq!((found.more_names, found.addresses.is_empty()), (cut, cut), "{aliases}");
    }
}

#[test]
fn an_answer_that_cannot_be_read_teaches_nothing() {
    let (message, asked) = asked("a.org", 1);
    let good = answer(&message, &[("a.org", 1, a("192.0.2.1"))]);
    assert_eq!(asked.resolved(&good).addresses.len(), 1);
    for len in 0..good.len() {
        let found = asked.resolved(&good[..len]);
        assert!(found.addresses.is_empty(), "{len} bytes");
        assert!(found.more_names && found.more_addresses, "{len} bytes");
    }
    let text = query("a.org", 16);
    assert_eq!(Query::parse(&text).unwrap().resolved(&good), AnsweredAddresses::default());
}

#[test]
fn an_identifier_is_replaced_in_place() {
    let mut message = query("a.org", 1);
    set_id(&mut message, 0xabcd);
    assert_eq!(id(&message), 0xabcd);
    assert_eq!(id(&[]), 0);
    set_id(&mut [], 1);
}
