//! Copies that a caller makes without the stack: pages are lent and queued when they are filled, and received
//! bytes are taken to be copied.

use std::time::Duration;

use pagewire_mem::{CopyLedger, CopyReason, Frag, FragVec};
use pagewire_stack::{
    Error, Filled, Readiness, RecvFlags, SendFlags, SocketOption, TcpConfig, TcpId, ToCopy,
};

use crate::common::{A, Pair, Verbs, pattern, ready};

const V4: &str = "10.0.0.2:80";
/// Pages that the stack's writer keeps for the next copy.
const RUN: usize = 16;
const MS: Duration = Duration::from_millis(1);

/// Copies the front of `data` into pages that the stack lends.
fn copy(p: &mut Pair, id: TcpId, data: &[u8]) -> Result<(FragVec, CopyLedger), Error> {
    let (now, mut copied) = (p.now, CopyLedger::new());
    let (mut pages, room) = p.a.tcp(id)?.lend_pages(now, data.len())?;
    let n = pages.spare_of(room).put(data, &mut copied, CopyReason::AppWrite);
    assert_eq!(n, room.min(data.len()));
    Ok((pages.commit_all(n).collect(), copied))
}

fn queue(p: &mut Pair, id: TcpId, copies: &mut (FragVec, CopyLedger)) -> Result<usize, Error> {
    let (frags, copied) = (&mut copies.0, &mut copies.1);
    p.a.tcp(id)?.send(p.now, Filled { frags, copied }, SendFlags::empty())
}

fn write(p: &mut Pair, id: TcpId, data: &[u8]) -> Result<usize, Error> {
    let mut copies = copy(p, id, data)?;
    queue(p, id, &mut copies)
}

fn read(p: &mut Pair, id: TcpId, max: usize) -> Result<Vec<u8>, Error> {
    let (now, mut frags) = (p.now, Vec::new());
    let n = p.b.tcp(id)?.recv(now, ToCopy { max, into: &mut frags }, RecvFlags::empty())?;
    let (mut bytes, mut at, mut counted) = (vec![0; n], 0, CopyLedger::new());
    for frag in frags {
        at += frag.copy_to(0, &mut bytes[at..], &mut counted, CopyReason::AppRead);
    }
    assert_eq!(at, n);
    Ok(bytes)
}

#[test]
fn a_stream_is_copied_once_on_each_side_and_counted_by_host_and_connection() {
    let data = pattern(1_000_000);
    let mut p = Pair::new();
    let (client, server, _) = p.connect(V4);
    p.a.tcp(client).unwrap().set_option(p.now, SocketOption::CountCopies(true)).unwrap();
    let (mut sent, mut got) = (0, Vec::new());
    p.until("the transfer", |p| {
        while sent < data.len()
            && let Some(n) = ready(write(p, client, &data[sent..]))
        {
            sent += n;
        }
        while let Some(bytes) = ready(read(p, server, 100_000)) {
            got.extend(bytes);
        }
        got.len() == data.len()
    });
    assert!(got == data);
    let len = data.len() as u64;
    assert_eq!(p.a.ledger().get(CopyReason::AppWrite), len);
    assert_eq!(p.b.ledger().get(CopyReason::AppRead), len);
    assert_eq!((p.a.ledger().ours(), p.b.ledger().ours()), (len, len));
    assert_eq!(p.a.tcp(client).unwrap().ledger().unwrap().get(CopyReason::AppWrite), len);
    p.run(Duration::from_secs(1));
    assert!(p.a.pool_audit().out <= RUN, "{:?}", p.a.pool_audit());
}

#[test]
fn pages_that_are_not_sent_are_free_again() {
    let mut p = Pair::new();
    let (client, _, _) = p.connect(V4);
    drop(p.a.tcp(client).unwrap().lend_pages(p.now, 60_000).unwrap());
    drop(copy(&mut p, client, &pattern(60_000)).unwrap());
    p.run(MS);
    assert!(p.a.pool_audit().out <= RUN, "{:?}", p.a.pool_audit());
    assert_eq!(p.a.tcp(client).unwrap().queued_send(), (0, 0));
}

#[test]
fn no_more_is_lent_than_there_is_room_for_and_what_another_write_took_is_refused() {
    let mut p = Pair::with_tcp(TcpConfig { send_buffer: 64 << 10, ..TcpConfig::default() });
    let (client, server, _) = p.connect(V4);
    p.carry = Some(Box::new(|_, _| false));
    let data = pattern(1 << 20);
    let mut first = copy(&mut p, client, &data).unwrap();
    let mut second = copy(&mut p, client, &data).unwrap();
    let room: usize = first.0.iter().map(Frag::len).sum();
    assert!(room < 256 << 10, "{room}");
    assert_eq!(queue(&mut p, client, &mut first), Ok(room));
    assert_eq!(queue(&mut p, client, &mut second), Err(Error::WouldBlock));
    assert_eq!(p.a.tcp(client).unwrap().lend_pages(p.now, 1).unwrap_err(), Error::WouldBlock);
    p.events.clear();
    p.carry = None;
    let mut got = 0;
    p.until("the rest", |p| {
        got += ready(read(p, server, 1 << 20)).map_or(0, |bytes| bytes.len());
        got == room
    });
    p.run(MS);
    assert!(p.reported(A, client, Readiness::WRITABLE) > 0);
}

#[test]
fn without_pages_it_waits_for_them() {
    let mut p = Pair::changed(|a, _| a.memory = 1 << 20);
    let (client, server, _) = p.connect(V4);
    let (held, _) = p.a.copy_in(&vec![7; 4 << 20]);
    assert_eq!(write(&mut p, client, b"x"), Err(Error::WouldBlock));
    p.flush();
    p.events.clear();
    drop(held);
    p.run(100 * MS);
    assert!(p.reported(A, client, Readiness::WRITABLE) > 0);
    assert_eq!(ready(write(&mut p, client, b"x")), Some(1));
    p.run(MS);
    assert_eq!(read(&mut p, server, 9).unwrap(), b"x");
}

#[test]
fn a_connection_that_cannot_send_lends_nothing() {
    let mut p = Pair::new();
    let early = p.a.connect(p.now, V4.parse().unwrap(), None).unwrap();
    assert_eq!(write(&mut p, early, b"early"), Err(Error::WouldBlock));
    let mut p = Pair::new();
    let (client, server, _) = p.connect(V4);
    let mut copies = copy(&mut p, client, b"late").unwrap();
    p.a.shutdown(p.now, client, std::net::Shutdown::Write).unwrap();
    assert_eq!(queue(&mut p, client, &mut copies), Err(Error::BrokenPipe));
    assert_eq!(write(&mut p, client, b"later"), Err(Error::BrokenPipe));
    p.run(MS);
    assert_eq!(read(&mut p, server, 9), Ok(Vec::new()), "the end of the stream");
}

#[test]
fn a_caller_that_waits_goes_on_when_the_connection_is_writable_or_fails() {
    let mut p = Pair::with_tcp(TcpConfig { send_buffer: 256 << 10, ..TcpConfig::default() });
    let (client, server, _) = p.connect(V4);
    let goes_on = |p: &mut Pair| p.a.tcp(client).unwrap().wait_for_room();
    assert!(goes_on(&mut p));
    p.carry = Some(Box::new(|_, _| false));
    while p.a.readiness(client).unwrap().contains(Readiness::WRITABLE) {
        write(&mut p, client, &pattern(10_000)).unwrap();
    }
    assert!(goes_on(&mut p), "nothing is in flight, so nothing would make the connection writable");
    p.flush();
    assert!(!goes_on(&mut p));
    assert!(p.a.tcp(client).unwrap().lend_pages(p.now, 1 << 20).unwrap().1 > 0, "there is room");
    p.flush();
    p.events.clear();
    p.carry = None;
    assert!(!goes_on(&mut p));
    p.until("room", |p| {
        let _ = read(p, server, 1 << 20);
        p.reported(A, client, Readiness::WRITABLE) > 0
    });
    assert!(goes_on(&mut p));
    p.a.shutdown(p.now, client, std::net::Shutdown::Write).unwrap();
    assert!(goes_on(&mut p));
}
