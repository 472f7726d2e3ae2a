//! Tests of ranges, validators and paths, as tables.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::http::message::request::Conditions;
use crate::http::site::conditional::{Decision, Validators};
use crate::http::site::listing::escape;
use crate::http::site::path::RequestPath;
use crate::http::site::range::{Selection, select};

#[test]
fn a_range_selects_what_rfc_9110_section_14_says() {
    let part = |first, end| Selection::Part { first, end };
    let huge = "bytes=99999999999999999999999-";
    let huge_last = "bytes=5-99999999999999999999999";
    for (value, len, expected) in [
        ("bytes=0-0", 10, part(0, 1)),
        ("bytes=0-9", 10, part(0, 10)),
        ("bytes=0-10", 10, part(0, 10)),
        ("bytes=9-", 10, part(9, 10)),
        ("bytes=3-5", 10, part(3, 6)),
        ("BYTES = 3-5 ", 10, part(3, 6)),
        ("bytes=-1", 10, part(9, 10)),
        ("bytes=-10", 10, part(0, 10)),
        ("bytes=-11", 10, part(0, 10)),
        (huge_last, 10, part(5, 10)),
        ("bytes=-99999999999999999999999", 10, part(0, 10)),
        // Beyond the end, or of nothing.
        ("bytes=10-", 10, Selection::Unsatisfiable),
        ("bytes=10-20", 10, Selection::Unsatisfiable),
        (huge, 10, Selection::Unsatisfiable),
        ("bytes=-0", 10, Selection::Unsatisfiable),
        ("bytes=0-", 0, Selection::Unsatisfiable),
        ("bytes=0-0", 0, Selection::Unsatisfiable),
        ("bytes=-5", 0, Selection::Whole),
        // Ignored: invalid, several, other units.
        ("bytes=5-3", 10, Selection::Whole),
        ("bytes=", 10, Selection::Whole),
        ("bytes=-", 10, Selection::Whole),
        ("bytes", 10, Selection::Whole),
        ("", 10, Selection::Whole),
        ("bytes=a-b", 10, Selection::Whole),
        ("bytes=+1-2", 10, Selection::Whole),
        ("bytes=--1", 10, Selection::Whole),
        ("bytes=1--2", 10, Selection::Whole),
        ("bytes=0x1-2", 10, Selection::Whole),
        ("bytes=0-1,3-4", 10, Selection::Whole),
        ("bytes=0-1,", 10, Selection::Whole),
        ("lines=0-1", 10, Selection::Whole),
        ("bytes=1-2-3", 10, Selection::Whole),
    ] {
        assert_eq!(select(value, len), expected, "{value:?} of {len}");
    }
}

/// Validators of a file changed at second 1,000,000, requested at second 1,000,100.
fn validators() -> Validators {
    let changed = 1_000_000_500_000_000;
    Validators::new(10, changed, changed, 7, UNIX_EPOCH + Duration::from_secs(1_000_100))
}

const CHANGED: &str = "Mon, 12 Jan 1970 13:46:40 GMT";
const BEFORE: &str = "Mon, 12 Jan 1970 13:46:39 GMT";
const AFTER: &str = "Mon, 12 Jan 1970 13:46:41 GMT";

#[test]
fn conditions_are_decided_in_the_order_of_rfc_9110_section_13_2_2() {
    let v = validators();
    let tag = v.etag.clone();
    let weak = format!("W/{tag}");
    assert_eq!(v.last_modified().as_deref(), Some(CHANGED));
    let s = |text: &str| Some(text.to_owned());
    use Decision::{Failed, NotModified, Proceed};
    type Row = (Option<String>, Option<String>, Option<String>, Option<String>, Decision);
    // If-Match, If-Unmodified-Since, If-None-Match, If-Modified-Since
    let rows: [Row; 21] = [
        (None, None, None, None, Proceed),
        (s(&tag), None, None, None, Proceed),
        (s("*"), None, None, None, Proceed),
        (s("\"other\""), None, None, None, Failed),
        (s(&weak), None, None, None, Failed),
        (s(&format!("\"a\", {tag}")), None, None, None, Proceed),
        (None, s(CHANGED), None, None, Proceed),
        (None, s(AFTER), None, None, Proceed),
        (None, s(BEFORE), None, None, Failed),
        (None, s("garbage"), None, None, Proceed),
        (s(&tag), s(BEFORE), None, None, Proceed),
        (None, None, s(&tag), None, NotModified),
        (None, None, s(&weak), None, NotModified),
        (None, None, s("*"), None, NotModified),
        (None, None, s("\"other\""), None, Proceed),
        (None, None, s("\"a,b\" , W/\"c\",,\t"), None, Proceed),
        (None, None, s("\"other\""), s(AFTER), Proceed),
        (None, None, None, s(CHANGED), NotModified),
        (None, None, None, s(AFTER), NotModified),
        (None, None, None, s(BEFORE), Proceed),
        (None, None, None, s("yesterday"), Proceed),
    ];
    for (if_match, if_unmodified_since, if_none_match, if_modified_since, expected) in rows {
        let c = Conditions {
            if_match,
            if_none_match,
            if_modified_since,
            if_unmodified_since,
            if_range: None,
        };
        assert_eq!(v.decide(&c), expected, "{c:?}");
    }
}

#[test]
fn a_range_holds_only_for_exactly_this_state() {
    let v = validators();
    for (value, expected) in [
        (None, true),
        (Some(v.etag.clone()), true),
        (Some(format!("W/{}", v.etag)), false),
        (Some("\"other\"".into()), false),
        (Some(CHANGED.into()), true),
        (Some(BEFORE.into()), false),
        (Some(AFTER.into()), false),
        (Some("garbage".into()), false),
        (Some(String::new()), false),
    ] {
        let c = Conditions { if_range: value.clone(), ..Conditions::default() };
        assert_eq!(v.range_holds(&c), expected, "{value:?}");
    }
}

#[test]
fn a_file_that_has_just_changed_has_only_weak_validators() {
    let changed = 1_000_000_500_000_000;
    let now = UNIX_EPOCH + Duration::from_nanos(changed as u64 + 1_000_000);
    let v = Validators::new(10, changed, changed, 7, now);
    assert!(v.etag.starts_with("W/\""));
    for value in [v.etag.clone(), v.etag.trim_start_matches("W/").to_owned(), CHANGED.to_owned()] {
        let c = Conditions { if_range: Some(value.clone()), ..Conditions::default() };
        assert!(!v.range_holds(&c), "{value}");
    }
    let c = Conditions { if_none_match: Some(v.etag.clone()), ..Conditions::default() };
    assert_eq!(v.decide(&c), Decision::NotModified);
}

#[test]
fn times_that_http_cannot_say_are_left_out() {
    let now = SystemTime::now();
    assert_eq!(Validators::new(1, -5, -5, 1, now).last_modified(), None);
    let future = i128::from(i64::MAX) * 1_000_000_000;
    let v = Validators::new(1, future, future, 1, now);
    assert_eq!(v.last_modified(), Some(httpdate::fmt_http_date(now)));
}

#[test]
fn a_hostile_path_is_refused_before_the_kernel_sees_it() {
    for raw in [
        "/..",
        "/../",
        "/a/../../b",
        "/%2e%2e/",
        "/%2E%2e",
        "/.%2e/x",
        "/a/%2e./b",
        "/a/..",
        "/%00",
        "/a%00.html",
        "/a%2fb",
        "/%2F",
        "/%",
        "/%2",
        "/%zz",
        "/a%g0",
        "/..%2f..%2fetc/passwd",
    ] {
        let reject = RequestPath::decode(raw).expect_err(raw);
        assert_eq!(reject.status.0, 400, "{raw}");
    }
}

#[test]
fn a_harmless_path_is_decoded_once() {
    for (raw, url, name, is_directory) in [
        ("/", "/", "", true),
        ("//", "/", "", true),
        ("//evil.example/x", "/evil%2Eexample/x/", "x", false),
        ("/a", "/a/", "a", false),
        ("/a/", "/a/", "a", true),
        ("/./a/.", "/a/", "a", true),
        ("/a//b", "/a/b/", "b", false),
        ("/%61%20b", "/a%20b/", "a b", false),
        ("/%252e%252e", "/%252e%252e/", "%2e%2e", false),
        ("/...", "/.../", "...", false),
        ("/a\\..\\b", "/a%5C..%5Cb/", "a\\..\\b", false),
    ] {
        let path = RequestPath::decode(raw).expect(raw);
        let url = url.replace("%2E", ".");
        assert_eq!(path.as_directory_url(), url, "{raw}");
        assert_eq!(path.file_name(), name.as_bytes(), "{raw}");
        assert_eq!(path.is_directory, is_directory, "{raw}");
    }
}

#[test]
fn text_in_an_index_cannot_become_markup() {
    assert_eq!(
        escape("<a href=\"x\" id='y'>&"),
        "&lt;a href=&quot;x&quot; id=&#39;y&#39;&gt;&amp;"
    );
}
