use std::net::IpAddr;

use super::{Credentials, Handshake, Next, ProxyKind, Refused, Target, TargetHost};
use crate::limits::VIA_HEAD;

fn named(name: &str, port: u16) -> Target {
    Target { host: TargetHost::Name(name.parse().unwrap()), port }
}

fn addressed(address: &str, port: u16) -> Target {
    Target { host: TargetHost::Address(address.parse::<IpAddr>().unwrap()), port }
}

fn credentials() -> Credentials {
    "us:pass".parse().unwrap()
}

/// Takes what the handshake sends, one byte at a time.
fn sent(handshake: &mut Handshake) -> Vec<u8> {
    let mut all = Vec::new();
    while let Next::Send(bytes) = handshake.next() {
        all.push(bytes[0]);
        handshake.note_sent(1);
    }
    all
}

/// Shows the handshake these bytes, in pieces of `piece`. Returns how many it has taken.
fn answer(handshake: &mut Handshake, bytes: &[u8], piece: usize) -> usize {
    let mut at = 0;
    while handshake.next() == Next::Receive && at < bytes.len() {
        let end = bytes.len().min(at + piece);
        let taken = handshake.take(&bytes[at..end]);
        assert!(taken > 0, "a handshake that wants bytes takes some");
        at += taken;
    }
    at
}

/// A handshake of SOCKS5 whose proxy has asked for no credentials.
fn socks5(target: &Target) -> (Handshake, Vec<u8>) {
    let mut handshake = Handshake::new(ProxyKind::Socks5, target, None);
    assert_eq!(sent(&mut handshake), [5, 1, 0]);
    assert_eq!(handshake.next(), Next::Receive);
    assert_eq!(answer(&mut handshake, &[5, 0], 2), 2);
    let request = sent(&mut handshake);
    (handshake, request)
}

fn connect(answered: &[u8], piece: usize) -> (Handshake, usize) {
    let mut handshake = Handshake::new(ProxyKind::Http, &named("a.example", 443), None);
    sent(&mut handshake);
    let taken = answer(&mut handshake, answered, piece);
    (handshake, taken)
}

#[test]
fn socks5_asks_for_names_as_names_and_for_addresses_of_both_versions() {
    let (_, request) = socks5(&named("a.example", 443));
    assert_eq!(request, [&[5, 1, 0, 3, 9][..], b"a.example", &[1, 187]].concat());
    let (_, request) = socks5(&addressed("203.0.113.7", 80));
    assert_eq!(request, [5, 1, 0, 1, 203, 0, 113, 7, 0, 80]);
    let (_, request) = socks5(&addressed("2001:db8::7", 80));
    let v6 = "2001:db8::7".parse::<std::net::Ipv6Addr>().unwrap().octets();
    assert_eq!(request, [&[5, 1, 0, 4][..], &v6, &[0, 80]].concat());
}

#[test]
fn socks5_takes_the_reply_and_no_byte_of_the_server() {
    let bound: [&[u8]; 3] = [&[1, 0, 0, 0, 0], &[4; 17], &[3, 4, b'h', b'o', b's', b't']];
    for bound in bound {
        let reply = [&[5, 0, 0], bound, &[1, 2]].concat();
        let all = [&reply[..], b"SSH-2.0-server"].concat();
        for piece in [1, 2, 5, all.len()] {
            let (mut handshake, _) = socks5(&named("a.example", 22));
            assert_eq!(answer(&mut handshake, &all, piece), reply.len());
            assert_eq!(handshake.next(), Next::Done);
            assert_eq!(handshake.take(b"SSH"), 0);
        }
    }
}

#[test]
fn socks5_shows_credentials_to_a_proxy_that_asks_for_them_only() {
    let new = || {
        let mut handshake =
            Handshake::new(ProxyKind::Socks5, &addressed("203.0.113.7", 80), Some(&credentials()));
        assert_eq!(sent(&mut handshake), [5, 2, 0, 2]);
        handshake
    };
    let mut asks = new();
    answer(&mut asks, &[5, 2], 2);
    assert_eq!(sent(&mut asks), [&[1, 2][..], b"us", &[4], b"pass"].concat());
    answer(&mut asks, &[1, 0], 1);
    assert_eq!(sent(&mut asks).len(), 10);
    let mut asks_not = new();
    answer(&mut asks_not, &[5, 0], 2);
    assert_eq!(sent(&mut asks_not)[..2], [5, 1]);
    let mut refuses = new();
    answer(&mut refuses, &[5, 2], 2);
    sent(&mut refuses);
    answer(&mut refuses, &[1, 1], 2);
    assert_eq!(refuses.next(), Next::Refused(Refused::Credentials));
}

#[test]
fn socks5_says_why_there_is_no_connection() {
    let replies = [
        (1, Refused::HostUnreachable),
        (2, Refused::Prohibited),
        (3, Refused::NetUnreachable),
        (4, Refused::HostUnreachable),
        (5, Refused::Destination),
        (6, Refused::HostUnreachable),
        (7, Refused::Prohibited),
        (8, Refused::Prohibited),
        (99, Refused::HostUnreachable),
    ];
    for (reply, why) in replies {
        let (mut handshake, _) = socks5(&named("a.example", 443));
        // Some proxies close behind the first bytes.
        answer(&mut handshake, &[5, reply], 2);
        assert_eq!(handshake.next(), Next::Refused(why), "{reply}");
    }
    let methods: [(&[u8], _); 4] = [
        (&[5, 0xff], Refused::Credentials),
        // The method was not offered.
        (&[5, 2], Refused::Broken),
        (&[4, 0], Refused::Broken),
        (b"HT", Refused::Broken),
    ];
    for (method, why) in methods {
        let mut handshake = Handshake::new(ProxyKind::Socks5, &named("a.example", 443), None);
        sent(&mut handshake);
        answer(&mut handshake, method, 2);
        assert_eq!(handshake.next(), Next::Refused(why), "{method:?}");
    }
    let (mut handshake, _) = socks5(&named("a.example", 443));
    answer(&mut handshake, &[5, 0, 0, 9, 0], 5);
    assert_eq!(handshake.next(), Next::Refused(Refused::Broken), "a strange kind of address");
    let (mut handshake, _) = socks5(&named("a.example", 443));
    answer(&mut handshake, &[5, 0], 2);
    handshake.end();
    assert_eq!(handshake.next(), Next::Refused(Refused::Broken), "the stream ended");
}

#[test]
fn connect_asks_for_names_as_names_and_for_addresses_of_both_versions() {
    let requests = [
        (named("a.example", 443), "a.example:443"),
        (addressed("203.0.113.7", 80), "203.0.113.7:80"),
        (addressed("2001:db8::7", 80), "[2001:db8::7]:80"),
    ];
    for (target, text) in requests {
        let mut handshake = Handshake::new(ProxyKind::Http, &target, None);
        let request = format!("CONNECT {text} HTTP/1.1\r\nHost: {text}\r\n\r\n");
        assert_eq!(String::from_utf8(sent(&mut handshake)).unwrap(), request);
        assert_eq!(handshake.next(), Next::Receive);
    }
    let target = named("a.example", 443);
    let mut handshake = Handshake::new(ProxyKind::Http, &target, Some(&credentials()));
    let request = String::from_utf8(sent(&mut handshake)).unwrap();
    assert!(request.ends_with("\r\nProxy-Authorization: Basic dXM6cGFzcw==\r\n\r\n"), "{request}");
}

#[test]
fn connect_takes_the_head_and_no_byte_of_the_server() {
    let heads = [
        "HTTP/1.1 200 Connection established\r\n\r\n",
        "HTTP/1.0 200 OK\r\nVia: x\r\n\r\n",
        "HTTP/1.1 200\r\n\r\n",
        "HTTP/1.1 299 Odd\nVia: x\n\n",
        // The lengths of a tunnel's head mean nothing.
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
    ];
    for head in heads {
        let all = format!("{head}SSH-2.0-server\r\n\r\n");
        for piece in [1, 3, all.len()] {
            let (mut handshake, taken) = connect(all.as_bytes(), piece);
            assert_eq!((taken, handshake.next()), (head.len(), Next::Done), "{head:?}");
            assert_eq!(handshake.take(b"\r\n"), 0);
        }
    }
}

#[test]
fn connect_says_why_there_is_no_connection() {
    let codes = [
        (302, Refused::Prohibited),
        (400, Refused::Prohibited),
        (401, Refused::Credentials),
        (403, Refused::Prohibited),
        (404, Refused::HostUnreachable),
        (405, Refused::Prohibited),
        (407, Refused::Credentials),
        (500, Refused::HostUnreachable),
        (502, Refused::Destination),
        (503, Refused::HostUnreachable),
        (504, Refused::HostUnreachable),
        (101, Refused::Broken),
        (999, Refused::Broken),
    ];
    for (code, why) in codes {
        let head = format!("HTTP/1.1 {code} Words\r\nX: y\r\n\r\n");
        let (handshake, _) = connect(head.as_bytes(), head.len());
        assert_eq!(handshake.next(), Next::Refused(why), "{code}");
    }
    for strange in [
        "SSH-2.0-x\r\n\r\n",
        "\r\n\r\n\r\n",
        "HTTP/1.1 20\r\n\r\n",
        "HTTP/1.1 200 OK\r\n: x\r\n\r\n",
    ] {
        let (handshake, _) = connect(strange.as_bytes(), 1);
        assert_eq!(handshake.next(), Next::Refused(Refused::Broken), "{strange:?}");
    }
}

#[test]
fn a_head_without_an_end_is_given_up() {
    let mut endless = b"HTTP/1.1 200 OK\r\nX: ".to_vec();
    endless.resize(2 * VIA_HEAD, b'x');
    let (handshake, taken) = connect(&endless, 1024);
    assert_eq!((taken, handshake.next()), (VIA_HEAD, Next::Refused(Refused::Broken)));
    let interim = b"HTTP/1.1 100 Continue\r\n\r\n".repeat(VIA_HEAD / 20);
    let (handshake, taken) = connect(&interim, interim.len());
    assert_eq!((taken, handshake.next()), (VIA_HEAD, Next::Refused(Refused::Broken)));
    let (mut handshake, _) = connect(b"HTTP/1.1 200 OK\r\n", 1024);
    handshake.end();
    assert_eq!(handshake.next(), Next::Refused(Refused::Broken));
}
