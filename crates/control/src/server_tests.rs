//! Clients that are slow, in virtual time.

use std::sync::Mutex;
use std::time::Duration;

use super::*;
use crate::snapshot::MemoryFile;

fn view() -> View {
    View {
        hosts: Mutex::default(),
        sections: Vec::new(),
        began: Instant::now(),
        memory: MemoryFile::open(),
        command: Vec::new(),
    }
}

/// A client, and its end of the connection.
fn client(now: Instant) -> (Client, UnixStream) {
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    ours.set_nonblocking(true).expect("a flag");
    (Client::new(Stream::Control(ours), now), theirs)
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_request_in_single_bytes_has_no_more_time_than_another() {
    let (view, start) = (view(), Instant::now());
    let (mut client, mut theirs) = client(start);
    assert_eq!(client.until, None, "silence between requests has no limit");
    for (n, byte) in br#"{"ask":"#.iter().enumerate() {
        theirs.write_all(&[*byte]).expect("room");
        assert!(client.serve(&view, start + SECOND * n as u32) == Fate::Stays);
        assert_eq!(client.until, Some(start + STALL), "after {n} s");
    }
}

#[test]
fn a_whole_request_may_be_followed_by_silence_and_a_part_of_the_next_may_not() {
    let (view, start) = (view(), Instant::now());
    let (mut client, mut theirs) = client(start);
    theirs.write_all(b"{\"ask\":\"info\"}\n").expect("room");
    assert!(client.serve(&view, start) == Fate::Stays);
    assert_eq!(client.until, None);
    theirs.write_all(b"{\"ask\":\"info\"}\n{").expect("room");
    assert!(client.serve(&view, start + SECOND) == Fate::Stays);
    assert_eq!(client.until, Some(start + SECOND + STALL));
    theirs.write_all(b"\"ask\":\"info\"}\n").expect("room");
    assert!(client.serve(&view, start + SECOND * 2) == Fate::Stays);
    assert_eq!(client.until, None);
}
