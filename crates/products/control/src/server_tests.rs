//! Clients that are slow, in virtual time.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::time::Duration;

use super::*;
use crate::snapshot::MemoryFile;

fn view() -> View {
    View {
        hosts: Mutex::default(),
        sections: Vec::new(),
        firewall: None,
        began: Instant::now(),
        memory: MemoryFile::open(),
        command: Vec::new(),
    }
}

/// A client, and its end of the connection.
fn client(now: Instant) -> (Client, UnixStream) {
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    ours.set_nonblocking(true).expect("a flag");
    (Client::new(ours.into(), Kind::Control, now), theirs)
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_request_in_single_bytes_has_no_more_time_than_another() {
    let (view, start) = (view(), Instant::now());
    let (mut client, mut theirs) = client(start);
    assert_eq!(client.until, None, "silence between requests has no limit");
    for (n, byte) in br#"{"ask":"#.iter().enumerate() {
        theirs.write_all(&[*byte]).expect("room");
        assert!(client.serve(&view, false, start + SECOND * n as u32) == Fate::Stays);
        assert_eq!(client.until, Some(start + STALL), "after {n} s");
    }
}

#[test]
fn a_whole_request_may_be_followed_by_silence_and_a_part_of_the_next_may_not() {
    let (view, start) = (view(), Instant::now());
    let (mut client, mut theirs) = client(start);
    theirs.write_all(b"{\"ask\":\"info\"}\n").expect("room");
    assert!(client.serve(&view, false, start) == Fate::Stays);
    assert_eq!(client.until, None);
    theirs.write_all(b"{\"ask\":\"info\"}\n{").expect("room");
    assert!(client.serve(&view, false, start + SECOND) == Fate::Stays);
    assert_eq!(client.until, Some(start + SECOND + STALL));
    theirs.write_all(b"\"ask\":\"info\"}\n").expect("room");
    assert!(client.serve(&view, false, start + SECOND * 2) == Fate::Stays);
    assert_eq!(client.until, None);
}

#[cfg(feature = "prometheus")]
#[test]
fn a_listener_on_all_addresses_answers_to_the_machine_s_name_also_on_loopback() {
    use std::io::Read;
    for (at, expected) in [("127.0.0.1:0", "421"), ("0.0.0.0:0", "200")] {
        let listener = TcpListener::bind(at).expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let is_loopback = is_loopback(&listener);
        let mut theirs = std::net::TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        let (ours, _) = listener.accept().expect("a client");
        let now = Instant::now();
        let mut client = Client::new(ours.into(), Kind::Metrics, now);
        theirs.write_all(b"GET /metrics HTTP/1.1\r\nHost: machine:9464\r\n\r\n").expect("room");
        let _ = client.serve(&view(), is_loopback, now);
        drop(client);
        let mut text = String::new();
        theirs.read_to_string(&mut text).expect("an answer");
        assert!(text.starts_with(&format!("HTTP/1.1 {expected}")), "{at}: {text}");
    }
}
