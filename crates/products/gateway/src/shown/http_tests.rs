//! Heads of requests: the name, the end of the body, and heads that servers could read in two ways.

use super::http::*;
use super::*;

fn read(text: &str) -> Result<Option<(Head, usize)>, Unreadable> {
    head(text.as_bytes())
}

fn body_of(lines: &str) -> Result<Body, Unreadable> {
    let text = format!("POST /a HTTP/1.1\r\nHost: a.org\r\n{lines}\r\n");
    read(&text).map(|read| read.unwrap().0.body)
}

#[test]
fn a_request_shows_the_name_of_its_host_line() {
    for host in ["example.org", "EXAMPLE.org", "example.org:8080", "example.org.", "example.org:"] {
        let text = format!("GET / HTTP/1.1\r\nhOST: {host}\r\nAccept: */*\r\n\r\nmore");
        let (head, n) = read(&text).unwrap().unwrap();
        assert_eq!((head.name.as_str(), n), ("example.org", text.len() - 4));
        assert_eq!((head.body, head.upgrade), (Body::Bytes(0), false));
    }
}

#[test]
fn a_request_in_pieces_needs_its_last_byte() {
    let text = "GET /x HTTP/1.1\r\nHost: a.org\r\n\r\n";
    for end in 0..text.len() {
        assert_eq!(read(&text[..end]), Ok(None));
    }
}

#[test]
fn a_whole_address_counts_and_must_have_the_same_host() {
    let of = |target: &str| read(&format!("GET {target} HTTP/1.1\r\nHost: a.org\r\n\r\n"));
    for target in ["http://a.org/x", "http://a.org", "http://A.org:80/?q", "*", "/x?y"] {
        assert!(of(target).is_ok(), "{target}");
    }
    for target in [
        "http://b.org/",
        "http://a.org@b.org/",
        "b.org:443",
        "x",
        "http://b.org#a.org",
        "//b.org/",
        "http://a.org?@b.org/",
        "/#x",
    ] {
        assert_eq!(of(target), Err(Unreadable), "{target}");
    }
}

#[test]
fn a_request_to_a_proxy_is_unreadable() {
    assert_eq!(read("CONNECT a.org:443 HTTP/1.1\r\nHost: a.org\r\n\r\n"), Err(Unreadable));
    assert_eq!(read("CONNECT / HTTP/1.1\r\nHost: a.org\r\n\r\n"), Err(Unreadable));
}

#[test]
fn heads_that_servers_could_read_in_two_ways_are_unreadable() {
    for text in [
        "GET / HTTP/1.1\r\nHost: a.org\r\nHost: b.org\r\n\r\n",
        "GET / HTTP/1.1\r\nAccept: x\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a.org\nHost: b.org\r\n\r\n",
        "GET / HTTP/1.1\nHost: a.org\r\n\r\n",
        "GET / HTTP/1.1\r\nHost : a.org\r\n\r\n",
        "GET / HTTP/1.1\r\nX: y\r\n Host: b.org\r\nHost: a.org\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a.org, b.org\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a.org\r\nUpgrade: h2c\r\nUpgrade: websocket\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a.org\0b.org\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a.org:80:b.org\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: user@a.org\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: \r\n\r\n",
        "GET / HTTP/1.1\r\nHost: [::1]\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: b\u{fc}cher.example\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "GET /\r\n\r\n",
    ] {
        assert_eq!(read(text), Err(Unreadable), "{text:?}");
    }
}

#[test]
fn a_body_ends_where_its_length_or_its_last_chunk_says() {
    assert_eq!(body_of(""), Ok(Body::Bytes(0)));
    assert_eq!(body_of("Content-Length: 12\r\n"), Ok(Body::Bytes(12)));
    assert_eq!(body_of("Transfer-Encoding: Chunked\r\n"), Ok(Body::Chunked));
}

#[test]
fn a_body_whose_end_is_not_certain_is_unreadable() {
    for lines in [
        "Content-Length: 1\r\nContent-Length: 2\r\n",
        "Content-Length: 1, 1\r\n",
        "Content-Length: +1\r\n",
        "Content-Length: -1\r\n",
        "Content-Length: 0x1\r\n",
        "Content-Length: 18446744073709551616\r\n",
        "Content-Length:\r\n",
        "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: xchunked\r\n",
    ] {
        assert_eq!(body_of(lines), Err(Unreadable), "{lines:?}");
    }
    for method in ["GET", "HEAD", "OPTIONS", "TRACE"] {
        let text = format!("{method} / HTTP/1.1\r\nHost: a.org\r\nContent-Length: 1\r\n\r\n");
        assert_eq!(read(&text), Err(Unreadable), "{method}");
    }
    let old = "POST / HTTP/1.0\r\nHost: a.org\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(read(old), Err(Unreadable));
}

#[test]
fn a_wish_for_websocket_is_seen_and_no_other() {
    let wish = |protocol: &str| {
        let lines = format!("Host: a.org\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n");
        read(&format!("GET / HTTP/1.1\r\n{lines}\r\n")).unwrap().unwrap().0.upgrade
    };
    assert!(wish("websocket") && wish("WebSocket"));
    // Requests of HTTP/2 would follow, for any name.
    assert!(!wish("h2c") && !wish("websocket, h2c") && !wish("x"));
}

#[test]
fn a_chunk_has_as_many_bytes_as_its_line_says() {
    assert_eq!(chunk(b"1f;name=value\r\nmore"), Ok(Some((31, 15))));
    assert_eq!(chunk(b"0\r\n"), Ok(Some((0, 3))));
    assert_eq!(chunk(b"1F"), Ok(None));
    assert_eq!(chunk(b"5 \t\r\n"), Ok(Some((5, 5))));
    for line in [
        "\r\n",
        "5\x0c\r\n",
        "-1\r\n",
        "0x1\r\n",
        "1 f\r\n",
        "1\n",
        "1\r2\r\n",
        "fffffffffffffffff\r\n",
    ] {
        assert_eq!(chunk(line.as_bytes()), Err(Unreadable), "{line:?}");
    }
}
