//! Reports about groups, and their times: the state of RFC 3376 and RFC 3810 in virtual time, the codes of
//! messages, and hostile queries.

use proptest::prelude::*;

use super::groups::Groups;
use super::messages::{Query, Record, RecordKind, Report, Version, float8, float16};
use crate::error::Error;
use crate::limits::{GROUP_QUERY_SOURCES, LINK_GROUPS};
use crate::random::Random;
use core::time::Duration;
use pagewire_mem::Instant;
use std::net::IpAddr;

const T0: Instant = Instant::from_millis(1_000_000);
const ROOM: usize = 1476;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn groups() -> Groups {
    Groups::new(Random::new([9; 16]))
}

fn query(version: Version, group: Option<&str>, millis: u64) -> Query {
    Query {
        version,
        group: group.map(ip),
        sources: Vec::new(),
        max_delay: Duration::from_millis(millis),
        robustness: None,
        interval: None,
    }
}

fn record(kind: RecordKind, group: &str, sources: &[&str]) -> Record {
    Record { kind, group: ip(group), sources: sources.iter().map(|s| ip(s)).collect() }
}

/// All reports within a duration from `now` on, with the time since `now` of each.
fn said(groups: &mut Groups, now: Instant, for_: Duration) -> Vec<(Duration, Report)> {
    let mut said = Vec::new();
    let mut at = now;
    loop {
        while let Some(report) = groups.poll_transmit(at, ROOM) {
            said.push((at - now, report));
        }
        match groups.poll_at() {
            Some(next) if next <= now + for_ => at = at.max(next),
            _ => return said,
        }
    }
}

/// The records of all reports, at any time.
fn records(said: Vec<(Duration, Report)>) -> Vec<Record> {
    let records = said.into_iter().map(|(_, report)| match report {
        Report::Records(records) => records,
        other => panic!("{other:?}"),
    });
    records.flatten().collect()
}

/// A minute after the group was joined: no report is due any more.
fn settled(names: &[&str]) -> (Groups, Instant) {
    let mut groups = groups();
    for name in names {
        groups.join(T0, ip(name), false).unwrap();
    }
    said(&mut groups, T0, Duration::from_secs(60));
    (groups, T0 + Duration::from_secs(60))
}

#[test]
fn a_join_and_a_leave_are_said_at_once_and_again_within_a_second() {
    let mut groups = groups();
    for (joins, kind) in [(true, RecordKind::ToExclude), (false, RecordKind::ToInclude)] {
        let now = if joins { T0 } else { T0 + Duration::from_secs(60) };
        match joins {
            true => groups.join(now, ip("239.1.1.1"), false).unwrap(),
            false => groups.leave(now, ip("239.1.1.1")),
        }
        let said = said(&mut groups, now, Duration::from_secs(50));
        let times: Vec<_> = said.iter().map(|(at, _)| *at).collect();
        assert_eq!(times.len(), 2, "the robustness variable is 2");
        assert_eq!(times[0], Duration::ZERO);
        assert!(times[1] > Duration::ZERO && times[1] <= Duration::from_secs(1), "{times:?}");
        assert_eq!(records(said), vec![record(kind, "239.1.1.1", &[]); 2]);
        assert_eq!(groups.contains(ip("239.1.1.1")), joins);
    }
    assert_eq!(groups.poll_at(), None);
}

#[test]
fn a_group_is_joined_by_the_first_and_left_by_the_last() {
    let (mut groups, now) = settled(&["239.1.1.1"]);
    groups.join(now, ip("239.1.1.1"), false).unwrap();
    assert_eq!(groups.poll_at(), None, "it was said before");
    groups.leave(now, ip("239.1.1.1"));
    assert_eq!(groups.poll_at(), None, "one is left");
    groups.leave(now, ip("239.1.1.1"));
    assert_eq!(said(&mut groups, now, Duration::from_secs(9)).len(), 2);
    groups.leave(now, ip("239.1.1.1"));
    assert_eq!(groups.poll_at(), None);
}

#[test]
fn who_comes_back_before_leaving_was_said_twice_says_only_that() {
    let (mut groups, now) = settled(&["239.1.1.1"]);
    groups.leave(now, ip("239.1.1.1"));
    assert!(groups.poll_transmit(now, ROOM).is_some());
    groups.join(now, ip("239.1.1.1"), false).unwrap();
    let said = records(said(&mut groups, now, Duration::from_secs(9)));
    assert_eq!(said, vec![record(RecordKind::ToExclude, "239.1.1.1", &[]); 2]);
}

#[test]
fn a_general_query_is_answered_once_for_all_groups_within_the_time_that_it_gives() {
    let (mut groups, now) = settled(&["239.1.1.1", "224.0.0.1", "239.2.2.2"]);
    groups.handle_query(now, &query(Version::Current, None, 10_000));
    // Rule 1: another, sooner or later, needs no second answer.
    let first = groups.poll_at().unwrap();
    groups.handle_query(now, &query(Version::Current, None, 100_000));
    assert_eq!(groups.poll_at(), Some(first));
    let said = said(&mut groups, now, Duration::from_secs(200));
    assert_eq!(said.len(), 1);
    assert!(said[0].0 > Duration::ZERO && said[0].0 <= Duration::from_secs(10));
    let kind = RecordKind::IsExclude;
    // Never of all systems.
    assert_eq!(records(said), [record(kind, "239.1.1.1", &[]), record(kind, "239.2.2.2", &[])]);
}

#[test]
fn answers_come_at_times_that_differ_by_host() {
    let at = |key| {
        let mut groups = Groups::new(Random::new([key; 16]));
        groups.join(T0, ip("239.1.1.1"), true).unwrap();
        groups.handle_query(T0, &query(Version::Current, None, 10_000));
        groups.poll_at().unwrap()
    };
    let times: std::collections::HashSet<_> = (0..50).map(at).collect();
    assert!(times.len() > 45);
}

#[test]
fn a_query_about_a_group_is_answered_by_who_is_in_it() {
    let (mut groups, now) = settled(&["239.1.1.1"]);
    groups.handle_query(now, &query(Version::Current, Some("239.9.9.9"), 1000));
    assert_eq!(groups.poll_at(), None);
    groups.handle_query(now, &query(Version::Current, Some("239.1.1.1"), 1000));
    let said = said(&mut groups, now, Duration::from_secs(1));
    assert_eq!(records(said), [record(RecordKind::IsExclude, "239.1.1.1", &[])]);
}

#[test]
fn a_query_about_sources_is_answered_for_these_as_all_are_wanted() {
    let (mut groups, now) = settled(&["239.1.1.1"]);
    let mut about = query(Version::Current, Some("239.1.1.1"), 1000);
    about.sources = vec![ip("10.0.0.7"), ip("10.0.0.8")];
    groups.handle_query(now, &about);
    // Rule 5: a second query before the answer is answered together with the first.
    about.sources = vec![ip("10.0.0.8"), ip("10.0.0.9")];
    groups.handle_query(now, &about);
    let once = records(said(&mut groups, now, Duration::from_secs(1)));
    let all = ["10.0.0.7", "10.0.0.8", "10.0.0.9"];
    assert_eq!(once, [record(RecordKind::IsInclude, "239.1.1.1", &all)]);
    // Rule 4: about the group, and the answer is about all.
    groups.handle_query(now, &about);
    groups.handle_query(now, &query(Version::Current, Some("239.1.1.1"), 1000));
    let once = records(said(&mut groups, now, Duration::from_secs(1)));
    assert_eq!(once, [record(RecordKind::IsExclude, "239.1.1.1", &[])]);
}

#[test]
fn more_sources_than_are_kept_are_answered_with_the_whole_group() {
    let (mut groups, now) = settled(&["239.1.1.1"]);
    for n in 0..=GROUP_QUERY_SOURCES as u8 {
        let mut about = query(Version::Current, Some("239.1.1.1"), 1000);
        about.sources = vec![IpAddr::from([10, 0, 0, n])];
        groups.handle_query(now, &about);
    }
    let once = records(said(&mut groups, now, Duration::from_secs(1)));
    assert_eq!(once, [record(RecordKind::IsExclude, "239.1.1.1", &[])]);
}

#[test]
fn a_router_says_how_often_changes_are_said() {
    let (mut groups, now) = settled(&["239.1.1.1"]);
    let robust = Query { robustness: Some(4), ..query(Version::Current, Some("239.9.9.9"), 1000) };
    groups.handle_query(now, &robust);
    groups.leave(now, ip("239.1.1.1"));
    assert_eq!(said(&mut groups, now, Duration::from_secs(9)).len(), 4);
}

#[test]
fn a_router_that_no_longer_says_how_often_gets_the_defaults() {
    let (mut groups, now) = settled(&["239.1.1.1", "239.2.2.2"]);
    let interval = Some(Duration::from_secs(1000));
    let plain = query(Version::Current, Some("239.9.9.9"), 1000);
    let said_before = Query { robustness: Some(4), interval, ..plain.clone() };
    groups.handle_query(now, &said_before);
    groups.handle_query(now, &plain);
    groups.leave(now, ip("239.1.1.1"));
    assert_eq!(said(&mut groups, now, Duration::from_secs(9)).len(), 2);
    // An older router is remembered for two intervals of 125 seconds, and ten.
    groups.handle_query(now, &query(Version::Older, Some("239.9.9.9"), 1000));
    let later = now + Duration::from_secs(261);
    groups.leave(later, ip("239.2.2.2"));
    let last = records(said(&mut groups, later, Duration::from_secs(9)));
    assert_eq!(last, vec![record(RecordKind::ToInclude, "239.2.2.2", &[]); 2]);
}

#[test]
fn an_older_router_gets_reports_in_its_own_words_until_it_was_long_silent() {
    for (version, leaves) in [(Version::Older, true), (Version::Oldest, false)] {
        let (mut groups, now) = settled(&["239.1.1.1", "239.2.2.2"]);
        groups.handle_query(now, &query(version, None, 10_000));
        let one = |group, leaves| Report::One { version, group: ip(group), leaves };
        let mut answers: Vec<_> =
            said(&mut groups, now, Duration::from_secs(10)).into_iter().map(|(_, r)| r).collect();
        answers.sort_by_key(|report| format!("{report:?}"));
        assert_eq!(answers, [one("239.1.1.1", false), one("239.2.2.2", false)]);
        groups.leave(now, ip("239.1.1.1"));
        let left: Vec<_> =
            said(&mut groups, now, Duration::from_secs(30)).into_iter().map(|(_, r)| r).collect();
        assert_eq!(left, if leaves { vec![one("239.1.1.1", true)] } else { vec![] });
        // Twice 125 seconds and ten.
        let later = now + Duration::from_secs(260);
        groups.leave(later, ip("239.2.2.2"));
        let said = records(said(&mut groups, later, Duration::from_secs(9)));
        assert_eq!(said, vec![record(RecordKind::ToInclude, "239.2.2.2", &[]); 2]);
    }
}

#[test]
fn for_an_older_router_one_report_of_all_hosts_is_enough() {
    let (mut groups, now) = settled(&["239.1.1.1"]);
    groups.handle_query(now, &query(Version::Older, None, 10_000));
    groups.handle_report(now, ip("239.1.1.1"));
    assert_eq!(groups.poll_at(), None);
    // The current version hears every host.
    let (mut groups, now) = settled(&["239.1.1.1"]);
    groups.handle_query(now, &query(Version::Current, None, 10_000));
    groups.handle_report(now, ip("239.1.1.1"));
    assert!(groups.poll_at().is_some());
}

#[test]
fn what_was_to_be_said_is_not_when_an_older_router_shows() {
    let mut groups = groups();
    groups.join(T0, ip("239.1.1.1"), false).unwrap();
    assert!(groups.poll_transmit(T0, ROOM).is_some());
    groups.handle_query(T0, &query(Version::Older, Some("239.9.9.9"), 1000));
    assert_eq!(groups.poll_at(), None);
}

#[test]
fn groups_are_bounded_and_long_reports_are_several() {
    let mut groups = groups();
    for n in 0..LINK_GROUPS {
        let group = IpAddr::from([239, 1, (n >> 8) as u8, n as u8]);
        groups.join(T0, group, true).unwrap();
    }
    assert_eq!(groups.join(T0, ip("239.2.0.0"), true), Err(Error::NoBuffers));
    groups.handle_query(T0, &query(Version::Current, None, 1000));
    let said = said(&mut groups, T0, Duration::from_secs(1));
    let lens: Vec<_> =
        said.iter().map(|(_, report)| report.emit(ip("10.0.0.1")).bytes.len()).collect();
    assert_eq!(lens.iter().sum::<usize>(), LINK_GROUPS * 8 + lens.len() * 8);
    assert!(lens.len() == 2 && lens.iter().all(|&len| len <= ROOM), "{lens:?}");
}

#[test]
fn groups_that_no_router_passes_on_are_not_spoken_of() {
    let mut groups = groups();
    for group in ["224.0.0.1", "ff02::1", "ff01::5", "ff00::5"] {
        groups.join(T0, ip(group), false).unwrap();
        assert_eq!(groups.poll_at(), None, "{group}");
    }
}

#[test]
fn codes_are_exponents_beyond_what_they_can_say() {
    assert_eq!([0, 127, 128, 255].map(float8), [0, 127, 128, 31_744]);
    assert_eq!([0, 32_767, 32_768, 65_535].map(float16), [0, 32_767, 32_768, 8_387_584]);
}

#[test]
fn the_length_of_a_query_is_its_version() {
    let mut bytes = vec![0x11, 100, 0, 0, 239, 1, 1, 1];
    let about = |bytes: &[u8]| Query::parse_v4(bytes, bytes.len());
    let older = about(&bytes).unwrap();
    assert_eq!((older.version, older.group), (Version::Older, Some(ip("239.1.1.1"))));
    assert_eq!(older.max_delay, Duration::from_secs(10));
    bytes[1] = 0;
    assert_eq!(about(&bytes).unwrap().version, Version::Oldest);
    bytes.extend([0x0b, 60, 0, 1]);
    assert!(about(&bytes).is_err(), "its source is missing");
    bytes.extend([10, 0, 0, 9]);
    let current = about(&bytes).unwrap();
    assert_eq!((current.version, current.sources), (Version::Current, vec![ip("10.0.0.9")]));
    assert_eq!((current.robustness, current.interval), (Some(3), Some(Duration::from_secs(60))));
    assert!(about(&bytes[..10]).is_err());
    bytes[4] = 10;
    assert!(about(&bytes).is_err(), "that is no group");
}

proptest! {
    #[test]
    fn no_query_makes_us_say_more_than_one_round_of_answers(
        bytes in proptest::collection::vec(any::<u8>(), 0..80), v6: bool, beyond in 0usize..200,
    ) {
        let (mut groups, now) = match v6 {
            false => settled(&["239.1.1.1", "239.2.2.2"]),
            true => settled(&["ff05::1", "ff05::2"]),
        };
        let len = bytes.len() + beyond;
        let query = if v6 { Query::parse_v6(&bytes, len) } else { Query::parse_v4(&bytes, len) };
        if let Ok(query) = query {
            prop_assert!(query.sources.len() <= GROUP_QUERY_SOURCES);
            for _ in 0..3 {
                groups.handle_query(now, &query);
            }
            let said = said(&mut groups, now, Duration::from_secs(100_000));
            prop_assert!(said.len() <= 2);
        }
    }
}
