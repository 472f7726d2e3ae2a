//! Tests of heads and content that come in pieces.

use std::io::{self, ErrorKind};
use std::time::Duration;

use pagewire::memory::CopyLedger;

use crate::http::client;
use crate::http::message::body::{Body, BodyError, Framing};
use crate::http::message::inbox::{HeadError, Inbox, Transfer};
use crate::http::message::request::{self, Method};
use crate::http::testing::Script;
use crate::limits::{MAX_HEAD, MAX_HEADERS, MAX_TARGET};

const LONG: Duration = Duration::from_secs(3600);

fn read_head(script: &mut Script, inbox: &mut Inbox) -> Result<Vec<u8>, HeadError> {
    inbox.read_head(script, LONG, LONG, || Ok(true))
}

#[test]
fn a_head_ends_at_its_empty_line_however_it_is_cut() {
    let head = b"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let next = b"HEAD /b HTTP/1.1\nHost: a\n\n";
    let both = [&head[..], next].concat();
    for transfer in [Transfer::Copy, Transfer::Reference] {
        for mut script in [Script::trickle(&both), Script::new([&both[..]])] {
            let mut inbox = Inbox::new(transfer);
            assert_eq!(read_head(&mut script, &mut inbox).unwrap(), head);
            assert_eq!(read_head(&mut script, &mut inbox).unwrap(), next);
            assert!(matches!(read_head(&mut script, &mut inbox), Err(HeadError::Ended)));
        }
    }
}

#[test]
fn a_head_beyond_the_limit_says_whether_its_first_line_is_to_blame() {
    let line = vec![b'a'; MAX_HEAD + 1];
    let mut inbox = Inbox::new(Transfer::Reference);
    let long = read_head(&mut Script::new([&line[..]]), &mut inbox);
    assert!(matches!(long, Err(HeadError::LongLine)));
    let fields = [b"GET / HTTP/1.1\r\n", &line[..]].concat();
    let mut inbox = Inbox::new(Transfer::Reference);
    let long = read_head(&mut Script::new([&fields[..]]), &mut inbox);
    assert!(matches!(long, Err(HeadError::TooLong)));
    // Exactly the limit is allowed.
    let exact = [&line[..MAX_HEAD - 4], b"\r\n\r\n"].concat();
    let mut inbox = Inbox::new(Transfer::Reference);
    assert_eq!(read_head(&mut Script::new([&exact[..]]), &mut inbox).unwrap().len(), MAX_HEAD);
}

#[test]
fn a_wait_for_a_head_ends_by_time_by_the_peer_or_by_request() {
    let mut slow = Script::new([&b"GET / HT"[..]]);
    slow.incoming.extend(std::iter::repeat_n(Err(ErrorKind::TimedOut), 3));
    let ended =
        Inbox::new(Transfer::Reference).read_head(&mut slow, LONG, Duration::ZERO, || Ok(true));
    assert!(matches!(ended, Err(HeadError::Slow)));
    let mut idle = Script::default();
    idle.incoming.push_back(Err(ErrorKind::TimedOut));
    let ended =
        Inbox::new(Transfer::Reference).read_head(&mut idle, Duration::ZERO, LONG, || Ok(true));
    assert!(matches!(ended, Err(HeadError::Idle)));
    let mut cut = Script::new([&b"GET / HT"[..]]);
    let ended = read_head(&mut cut, &mut Inbox::new(Transfer::Reference));
    assert!(matches!(ended, Err(HeadError::Cut)));
    let stopped =
        Inbox::new(Transfer::Reference).read_head(&mut Script::default(), LONG, LONG, || Ok(false));
    assert!(matches!(stopped, Err(HeadError::Stopped)));
    // A head that has begun is still read when we are asked to stop.
    let mut begun = Script::new([&b"GET"[..], b" / HTTP/1.1\r\n\r\n"]);
    let mut ticks = 0;
    let head = Inbox::new(Transfer::Reference).read_head(&mut begun, LONG, LONG, || {
        ticks += 1;
        Ok(ticks == 1)
    });
    assert!(head.is_ok());
}

/// Status of the answer to a malformed or hostile request; 200 if it makes sense.
fn verdict(head: &[u8]) -> u16 {
    request::parse(head).map_or_else(|reject| reject.status.0, |_| 200)
}

#[test]
fn a_hostile_head_gets_its_status() {
    let many = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: y\r\n".repeat(MAX_HEADERS));
    let target = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "a".repeat(MAX_TARGET));
    let target_exact = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "a".repeat(MAX_TARGET - 1));
    let with = |fields: &str| format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n");
    for (head, expected) in [
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), 200),
        ("GET / HTTP/1.0\r\n\r\n".into(), 200),
        ("GET http://a/x HTTP/1.1\r\nHost: a\r\n\r\n".into(), 200),
        ("GET HTTP://a HTTP/1.1\r\nHost: a\r\n\r\n".into(), 200),
        (with("Content-Length: 65536"), 200),
        (with("Transfer-Encoding: Chunked"), 200),
        (target_exact, 200),
        // The request line.
        ("GET / HTTP/1.1\r\n\r\n".into(), 400),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n".into(), 400),
        ("GET /\r\n\r\n".into(), 400),
        ("GET\r\n\r\n".into(), 400),
        ("\r\n\r\n".into(), 400),
        ("GET  / HTTP/1.1\r\nHost: a\r\n\r\n".into(), 400),
        ("GET a HTTP/1.1\r\nHost: a\r\n\r\n".into(), 400),
        ("GET * HTTP/1.1\r\nHost: a\r\n\r\n".into(), 400),
        ("GET a:80 HTTP/1.1\r\nHost: a\r\n\r\n".into(), 400),
        ("GET https://a/ HTTP/1.1\r\nHost: a\r\n\r\n".into(), 400),
        ("GET http:// HTTP/1.1\r\nHost: a\r\n\r\n".into(), 400),
        ("GET http:///x HTTP/1.1\r\nHost: a\r\n\r\n".into(), 400),
        ("GET /#x HTTP/1.1\r\nHost: a\r\n\r\n".into(), 400),
        ("G\0T / HTTP/1.1\r\nHost: a\r\n\r\n".into(), 400),
        ("GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n".into(), 400),
        ("GET / HTTP/1.1 x\r\nHost: a\r\n\r\n".into(), 400),
        ("GET / HTTQ/1.1\r\nHost: a\r\n\r\n".into(), 400),
        ("GET / HTTP/2.0\r\nHost: a\r\n\r\n".into(), 505),
        ("PRI * HTTP/2.0\r\n\r\n".into(), 505),
        ("GET / HTTP/1.9\r\nHost: a\r\n\r\n".into(), 505),
        ("GET / HTTP/0.9\r\n\r\n".into(), 505),
        ("POST / HTTP/1.1\r\nHost: a\r\n\r\n".into(), 405),
        ("DELETE /x HTTP/1.1\r\nHost: a\r\n\r\n".into(), 405),
        ("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n".into(), 405),
        ("BREW / HTTP/1.1\r\nHost: a\r\n\r\n".into(), 501),
        ("get / HTTP/1.1\r\nHost: a\r\n\r\n".into(), 501),
        (target, 414),
        // Fields.
        (many, 431),
        (with("No colon"), 400),
        (with("Space : before"), 400),
        (with(" folded: line"), 400),
        (with("X: a\r\n folded"), 400),
        (with("X: a\0b"), 400),
        (with("X: a\rb"), 400),
        (with(": nameless"), 400),
        // Lengths that hide a second request.
        (with("Content-Length: 1\r\nContent-Length: 1"), 400),
        (with("Content-Length: 1\r\nContent-Length: 2"), 400),
        (with("Content-Length: 1, 1"), 400),
        (with("Content-Length: +1"), 400),
        (with("Content-Length: -1"), 400),
        (with("Content-Length: 0x1"), 400),
        (with("Content-Length:"), 400),
        (with("Content-Length: 1\r\nTransfer-Encoding: chunked"), 400),
        (with("Transfer-Encoding: chunked, chunked"), 501),
        (with("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity"), 501),
        (with("Transfer-Encoding: gzip"), 501),
        (with("Transfer-Encoding: xchunked"), 501),
        ("GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n".into(), 400),
        (with("Content-Length: 65537"), 413),
        (with("Content-Length: 99999999999999999999999"), 413),
    ] {
        assert_eq!(verdict(head.as_bytes()), expected, "{head:?}");
    }
    let not_text = b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: \xff\r\n\r\n";
    assert_eq!(verdict(not_text), 400);
}

#[test]
fn a_connection_persists_as_rfc_9112_section_9_3_says() {
    let keeps = |head: &str| request::parse(head.as_bytes()).unwrap().keep_alive;
    assert!(keeps("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert!(!keeps("GET / HTTP/1.1\r\nHost: a\r\nConnection: foo, Close\r\n\r\n"));
    assert!(!keeps("GET / HTTP/1.0\r\n\r\n"));
    assert!(keeps("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n"));
    assert!(!keeps("GET / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\r\n"));
}

#[test]
fn a_request_keeps_what_the_server_needs() {
    let head = b"HEAD http://h:1/a%20b?q HTTP/1.1\r\nhost: x\r\nRANGE: bytes=1-\r\n\
                 If-None-Match: \"a\"\r\nIf-None-Match: \"b\"\r\nIf-Range: \"c\"\r\n\r\n";
    let request = request::parse(head).unwrap();
    assert_eq!(request.method, Method::Head);
    assert_eq!(request.path, "/a%20b");
    assert_eq!(request.range.as_deref(), Some("bytes=1-"));
    assert_eq!(request.conditions.if_none_match.as_deref(), Some("\"a\", \"b\""));
    assert_eq!(request.conditions.if_range.as_deref(), Some("\"c\""));
    let two = b"GET / HTTP/1.1\r\nHost: a\r\nRange: bytes=1-\r\nRange: bytes=2-\r\n\r\n";
    assert_eq!(request::parse(two).unwrap().range, None);
}

fn read_body(framing: Framing, script: &mut Script) -> (Vec<u8>, Result<(), BodyError>) {
    let (mut inbox, mut body) = (Inbox::new(Transfer::Reference), Body::new(framing));
    let mut bytes = Vec::new();
    loop {
        match body.next(script, &mut inbox) {
            Ok(Some(f)) => f.for_each_piece(&mut CopyLedger::new(), |p| bytes.extend_from_slice(p)),
            Ok(None) => return (bytes, Ok(())),
            Err(BodyError::Io(e)) if e.kind() == ErrorKind::TimedOut => {}
            Err(e) => return (bytes, Err(e)),
        }
    }
}

#[test]
fn chunked_content_is_decoded_however_it_is_cut() {
    let chunked =
        b"4\r\nWiki\r\n6;ext=\"x\"\r\npedia \r\nB \r\nin \r\nchunks\r\n0\r\nTrailer: x\r\n\r\n";
    let (bytes, end) = read_body(Framing::Chunked, &mut Script::new([&chunked[..]]));
    end.unwrap();
    assert_eq!(bytes, b"Wikipedia in \r\nchunks");
    // The same, one byte at a time with a timeout before each.
    let mut script = Script::default();
    for byte in chunked.chunks(1) {
        script.incoming.extend([Err(ErrorKind::TimedOut), Ok(byte.to_vec())]);
    }
    let (bytes, end) = read_body(Framing::Chunked, &mut script);
    end.unwrap();
    assert_eq!(bytes, b"Wikipedia in \r\nchunks");
}

#[test]
fn malformed_chunks_are_errors() {
    for chunked in [
        "x\r\n",
        "\r\n",
        "-1\r\n",
        "+1\r\na\r\n0\r\n\r\n",
        "0x1\r\na\r\n0\r\n\r\n",
        "1 1\r\n",
        "1\r\nab\r\n0\r\n\r\n",
        "FFFFFFFFFFFFFFFFF\r\n",
        "1\r\na\r\n;\r\n",
    ] {
        let (_, end) = read_body(Framing::Chunked, &mut Script::new([chunked.as_bytes()]));
        assert!(matches!(end, Err(BodyError::Chunk(_))), "{chunked:?}: {end:?}");
    }
    for chunked in
        ["", "1", "1\r\n", "1\r\na", "1\r\na\r\n", "1\r\na\r\n0\r\n", "0\r\nTrailer: x\r\n"]
    {
        let (_, end) = read_body(Framing::Chunked, &mut Script::new([chunked.as_bytes()]));
        assert!(matches!(end, Err(BodyError::Cut)), "{chunked:?}: {end:?}");
    }
    let long = format!("1;{}\r\n", "x".repeat(10_000));
    let (_, end) = read_body(Framing::Chunked, &mut Script::new([long.as_bytes()]));
    assert!(matches!(end, Err(BodyError::Io(_))));
}

#[test]
fn content_ends_by_its_length_or_with_the_connection() {
    let (bytes, end) = read_body(Framing::Length(3), &mut Script::trickle(b"abcdef"));
    assert!(end.is_ok() && bytes == b"abc");
    let (bytes, end) = read_body(Framing::Length(7), &mut Script::trickle(b"abcdef"));
    assert!(matches!(end, Err(BodyError::Cut)) && bytes == b"abcdef");
    let (bytes, end) = read_body(Framing::UntilClose, &mut Script::trickle(b"abcdef"));
    assert!(end.is_ok() && bytes == b"abcdef");
    let (bytes, end) = read_body(Framing::Length(0), &mut Script::default());
    assert!(end.is_ok() && bytes.is_empty());
}

#[test]
fn a_response_says_how_its_content_is_framed() {
    let framing = |head: &str| client::parse(head.as_bytes()).map(|r| r.framing).map_err(drop);
    assert_eq!(framing("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"), Ok(Framing::Length(5)));
    assert_eq!(framing("HTTP/1.0 200 OK\r\n\r\n"), Ok(Framing::UntilClose));
    assert_eq!(framing("HTTP/1.1 304 X\r\nContent-Length: 5\r\n\r\n"), Ok(Framing::Length(0)));
    let both = "HTTP/1.1 200\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(framing(both), Ok(Framing::Chunked));
    assert_eq!(framing("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n"), Err(()));
    assert_eq!(framing("HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n"), Err(()));
    assert_eq!(framing("SSH-2.0-x\r\n\r\n"), Err(()));
}

#[test]
fn responses_before_the_final_one_are_passed_over() {
    let stream =
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 206 P\r\nContent-Length: 2\r\n\
                   Content-Range: bytes 5-6/9\r\n\r\nab";
    let (mut script, mut inbox) = (Script::trickle(stream), Inbox::new(Transfer::Reference));
    let response = client::read_response(&mut script, &mut inbox, || true).unwrap();
    assert_eq!(response.status, 206);
    let range = response.content_range.unwrap();
    assert_eq!((range.part, range.total), (Some((5, 7)), Some(9)));
}

#[test]
fn only_strong_validators_are_used_to_resume() {
    let validator = |fields: &str| {
        let head = format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n");
        client::parse(head.as_bytes()).unwrap().validator_for_ranges().map(str::to_owned)
    };
    let date = "Date: Mon, 12 Jan 1970 13:46:41 GMT";
    let modified = "Last-Modified: Mon, 12 Jan 1970 13:46:40 GMT";
    assert_eq!(validator("ETag: \"a\"").as_deref(), Some("\"a\""));
    assert_eq!(validator("ETag: W/\"a\""), None);
    assert_eq!(validator(&format!("ETag: W/\"a\"\r\n{date}\r\n{modified}")), None);
    assert_eq!(
        validator(&format!("{date}\r\n{modified}")).as_deref(),
        modified.strip_prefix("Last-Modified: ")
    );
    assert_eq!(validator(&format!("{}\r\n{modified}", date.replace(":41", ":40"))), None);
    assert_eq!(validator(modified), None);
}

#[test]
fn a_deadline_holds_within_a_chunk_line_that_trickles() {
    let mut script = Script::trickle(b"1;extension=without-an-end");
    let (mut inbox, mut body) = (Inbox::new(Transfer::Reference), Body::new(Framing::Chunked));
    inbox.set_deadline(Some(std::time::Instant::now()));
    let ended = body.next(&mut script, &mut inbox);
    assert!(matches!(ended, Err(BodyError::Io(e)) if e.kind() == ErrorKind::TimedOut));
    assert_eq!(script.incoming.len(), 26, "not one more wait");
    // Without it, the line goes on where it was.
    inbox.set_deadline(None);
    assert!(matches!(body.next(&mut script, &mut inbox), Err(BodyError::Cut)));
}

#[test]
fn errors_of_the_connection_pass_through() {
    let mut script = Script::default();
    script.incoming.push_back(Err(ErrorKind::ConnectionReset));
    let head = read_head(&mut script, &mut Inbox::new(Transfer::Reference));
    assert!(
        matches!(head, Err(HeadError::Failed(e)) if e.kind() == io::ErrorKind::ConnectionReset)
    );
}
