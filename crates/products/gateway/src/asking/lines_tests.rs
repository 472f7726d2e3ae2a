//! Questions and answers as lines.

use std::time::Duration;

use super::{Lines, read_answer, write_question};
use crate::asking::Opinion;
use crate::limits::{JUDGE_LINE, POLICY_KEEP};
use crate::request::{Ask, GuestId, Protocol, Verdict};

fn ask(protocol: Protocol, port: u16) -> Ask {
    let (from, to) = ("10.0.2.15:4000".parse().unwrap(), ([203, 0, 113, 1], port).into());
    Ask::new(GuestId(1), protocol, from, to)
}

#[test]
fn a_question_is_one_line_that_the_manual_shows() {
    let names = ["a.example".parse().unwrap(), "q\"\\.example".parse().unwrap()];
    let line = write_question(3, 17, &Ask { names: names.into(), ..ask(Protocol::Tcp, 443) });
    let value: serde_json::Value = serde_json::from_str(&line).unwrap();
    let expected = serde_json::json!({
        "id": 3, "guest": 1, "flow": 17, "protocol": "tcp", "from": "10.0.2.15:4000",
        "to": "203.0.113.1:443", "names": ["a.example", "q\"\\.example"],
    });
    assert_eq!(value, expected);
    assert_eq!(line.find('\n'), Some(line.len() - 1));
    let ping = write_question(4, 18, &ask(Protocol::Echo, 0));
    assert!(ping.contains(r#""protocol":"icmp""#) && ping.contains(r#""to":"203.0.113.1""#));
}

#[test]
fn an_answer_has_a_verdict_and_more_if_it_likes() {
    let read = |line: &str| read_answer(line.as_bytes());
    let allow = Opinion::verdict(Verdict::Allow);
    assert_eq!(read(r#"{"id":1,"verdict":"allow"}"#), Some((1, allow.clone())));
    assert_eq!(read(r#"{"verdict":"rules","id":2,"why":[{}]} "#), Some((2, Opinion::rules())));
    let full = read(r#"{"id":1,"verdict":"allow","shown":false,"for":0.5}"#);
    assert_eq!(full, Some((1, allow.clone().by_address().keep(Duration::from_millis(500)))));
    let named = read(r#"{"id":1,"verdict":"allow","shown":"ech","names":["a.example"]}"#);
    assert_eq!(named, Some((1, allow.encrypted().names(["a.example".parse().unwrap()]))));
    let long = read(r#"{"id":1,"verdict":"drop","for":1e300}"#);
    assert_eq!(long, Some((1, Opinion::verdict(Verdict::Drop).keep(POLICY_KEEP))));
}

#[test]
fn what_is_no_answer_means_nothing() {
    for line in [
        "",
        "allow",
        "[]",
        r#"{"id":1}"#,
        r#"{"id":-1,"verdict":"allow"}"#,
        r#"{"id":"1","verdict":"allow"}"#,
        r#"{"id":1,"verdict":"Allow"}"#,
        r#"{"id":1,"verdict":"allow","shown":"no"}"#,
        r#"{"id":1,"verdict":"allow","names":"a.example"}"#,
        r#"{"id":1,"verdict":"allow","names":["a.example",1]}"#,
        r#"{"id":1,"verdict":"allow","names":[""]}"#,
        r#"{"id":1,"verdict":"allow","for":-1}"#,
        r#"{"id":1,"verdict":"allow","for":"long"}"#,
    ] {
        assert_eq!(read_answer(line.as_bytes()), None, "{line}");
    }
}

#[test]
fn lines_are_whole_however_they_arrive_and_long_ones_are_left_out() {
    let long = "x".repeat(JUDGE_LINE + 1);
    let longest = "y".repeat(JUDGE_LINE);
    let text = format!("one\n{long}\ntwo\n{longest}\nrest");
    for size in [1, 7, 4096, text.len()] {
        let (mut lines, mut got) = (Lines::default(), Vec::new());
        for piece in text.as_bytes().chunks(size) {
            lines.take(piece, |line| got.push(String::from_utf8(line.to_vec()).unwrap()));
        }
        assert_eq!(got, ["one".to_owned(), "two".to_owned(), longest.clone()], "{size}");
    }
}
