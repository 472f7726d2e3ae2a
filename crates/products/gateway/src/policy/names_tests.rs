//! The table of names, in virtual time.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use pagewire::services::Instant;

use super::{Names, Resolved};
use crate::limits::{
    DENIED_NAMES, NAME_GRACE, NAME_TIME, NAMED_ADDRESSES, NAMED_BYTES, NAMES_OF_ADDRESS,
};
use crate::request::Name;

fn answer(names: &[&str], addresses: &[(&str, u64)]) -> Resolved {
    Resolved {
        names: names.iter().map(|name| name.parse().unwrap()).collect(),
        addresses: addresses
            .iter()
            .map(|(addr, ttl)| (addr.parse().unwrap(), Duration::from_secs(*ttl)))
            .collect(),
    }
}

fn of(names: &mut Names, now: Instant, address: &str) -> Vec<String> {
    names.of(now, address.parse().unwrap()).iter().map(Name::to_string).collect()
}

/// The `n`th of many addresses.
fn address(n: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from_bits(0xc000_0000 + n as u32))
}

/// Learns a name of the `n`th address.
fn learn(names: &mut Names, now: Instant, n: usize) {
    let addresses = vec![(address(n), Duration::from_secs(60))];
    names.learn(now, &Resolved { names: vec!["x.org".parse().unwrap()], addresses });
}

const START: Instant = Instant::from_millis(1000);

#[test]
fn each_address_of_an_answer_has_each_of_its_names() {
    let mut names = Names::default();
    names.learn(
        START,
        &answer(&["www.example.org", "cdn.net"], &[("192.0.2.1", 9), ("fd00::1", 9)]),
    );
    for address in ["192.0.2.1", "fd00::1"] {
        assert_eq!(of(&mut names, START, address), ["www.example.org", "cdn.net"]);
    }
    assert!(of(&mut names, START, "192.0.2.2").is_empty());
}

#[test]
fn the_latest_name_comes_first_and_none_comes_twice() {
    let mut names = Names::default();
    names.learn(START, &answer(&["a.org"], &[("192.0.2.1", 9)]));
    names.learn(START, &answer(&["b.org"], &[("192.0.2.1", 9)]));
    assert_eq!(of(&mut names, START, "192.0.2.1"), ["b.org", "a.org"]);
    names.learn(START, &answer(&["a.org"], &[("192.0.2.1", 9)]));
    assert_eq!(of(&mut names, START, "192.0.2.1"), ["a.org", "b.org"]);
}

#[test]
fn a_name_outlives_its_time_by_the_grace_and_lasts_for_the_least_time() {
    let mut names = Names::default();
    names.learn(START, &answer(&["short.org"], &[("192.0.2.1", 0)]));
    names.learn(START, &answer(&["long.org"], &[("192.0.2.1", 3600)]));
    let just = Duration::from_millis(1);
    assert_eq!(of(&mut names, START + NAME_TIME - just, "192.0.2.1").len(), 2);
    assert_eq!(of(&mut names, START + NAME_TIME, "192.0.2.1"), ["long.org"]);
    let end = START + Duration::from_secs(3600) + NAME_GRACE;
    assert_eq!(of(&mut names, end - just, "192.0.2.1"), ["long.org"]);
    assert!(of(&mut names, end, "192.0.2.1").is_empty());
    assert!(names.is_empty());
}

#[test]
fn the_oldest_address_makes_way() {
    let mut names = Names::default();
    for n in 0..NAMED_ADDRESSES {
        learn(&mut names, START, n);
    }
    // Asked for again: no longer the oldest.
    learn(&mut names, START, 0);
    learn(&mut names, START, NAMED_ADDRESSES);
    assert_eq!(names.len(), NAMED_ADDRESSES);
    assert_eq!(names.of(START, address(0)).len(), 1);
    assert_eq!(names.of(START, address(1)).len(), 0);
    assert_eq!(names.of(START, address(2)).len(), 1);
}

#[test]
fn the_names_of_an_address_have_a_limit() {
    let mut names = Names::default();
    for n in 0..2 * NAMES_OF_ADDRESS {
        names.learn(START, &answer(&[&format!("n{n}.org")], &[("192.0.2.1", 60)]));
    }
    let all = of(&mut names, START, "192.0.2.1");
    assert_eq!(all.len(), NAMES_OF_ADDRESS);
    assert_eq!(all[0], format!("n{}.org", 2 * NAMES_OF_ADDRESS - 1));
}

#[test]
fn no_answer_is_believed_for_longer_than_a_week() {
    let mut names = Names::default();
    names.learn(START, &answer(&["x.org"], &[("192.0.2.1", u64::from(u32::MAX))]));
    let week = Duration::from_secs(7 * 86_400);
    assert!(of(&mut names, START + week, "192.0.2.1").is_empty());
}

#[test]
fn an_address_whose_names_ran_out_is_as_new_when_it_is_learned_again() {
    let mut names = Names::default();
    learn(&mut names, START, 0);
    let later = START + NAME_TIME;
    assert!(names.of(later, address(0)).is_empty());
    assert_eq!((names.order.len(), names.known.len(), names.bytes), (0, 0, 0));
    for n in (1..NAMED_ADDRESSES).chain([0]) {
        learn(&mut names, later, n);
    }
    learn(&mut names, later, NAMED_ADDRESSES);
    // The latest stays, and the oldest went.
    assert_eq!(names.of(later, address(0)).len(), 1);
    assert_eq!(names.of(later, address(1)).len(), 0);
    assert_eq!(names.order.len(), names.known.len());
}

#[test]
fn long_names_are_remembered_for_fewer_addresses() {
    let mut names = Names::default();
    let long = |n: usize| {
        let label = "x".repeat(60);
        format!("n{n:06}.{label}.{label}.{label}")
    };
    for n in 0..NAMED_ADDRESSES {
        for _ in 0..4 {
            let name = long(names.next as usize);
            names.learn(START, &answer(&[&name], &[(&address(n).to_string(), 60)]));
        }
        assert!(names.bytes <= NAMED_BYTES);
    }
    assert!(names.len() < NAMED_ADDRESSES && names.len() > NAMED_ADDRESSES / 4);
    let counted: usize = names.known.values().map(super::names::Known::bytes).sum();
    assert_eq!(counted, names.bytes);
    assert_eq!(names.of(START, address(NAMED_ADDRESSES - 1)).len(), 4);
}

#[test]
fn a_denied_name_is_remembered_for_good_until_there_is_no_room() {
    let mut names = Names::default();
    let name: Name = "mx.evil.net".parse().unwrap();
    for n in 0..DENIED_NAMES {
        names.deny(&name, [address(n)].into_iter(), |_| false).unwrap();
    }
    assert_eq!(&*names.denied(address(7)), &[name.clone()][..]);
    // A known name needs no room, nor does a name that another one stands for.
    names.deny(&name, [address(7)].into_iter(), |_| false).unwrap();
    let other: Name = "mx2.evil.net".parse().unwrap();
    names.deny(&other, [address(7)].into_iter(), |known| *known == name).unwrap();
    assert!(names.deny(&other, [address(7)].into_iter(), |_| false).is_err());
    assert!(names.deny(&name, [address(DENIED_NAMES)].into_iter(), |_| false).is_err());
    assert!(names.denied(address(DENIED_NAMES)).is_empty());
}
