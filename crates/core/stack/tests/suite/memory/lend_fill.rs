//! `Lend` and `fill`: payload between a connection and a kernel's socket without a copy of ours. Received
//! bytes are shown in place, and pages are filled in place.

use std::time::Duration;

use pagewire_mem::{CopyLedger, CopyReason, FragVec};
use pagewire_stack::{Error, Lend, Parts, Readiness, RecvFlags, SendFlags, TcpConfig, TcpId};

use crate::common::{A, Pair, Verbs, pattern, ready};

const V4: &str = "10.0.0.2:80";
const MS: Duration = Duration::from_millis(1);
const NONE: RecvFlags = RecvFlags::empty();

/// Fills up to `max` bytes of `data`, as a system call would.
fn fill(p: &mut Pair, id: TcpId, max: usize, data: &[u8]) -> Result<usize, Error> {
    let (now, mut ledger) = (p.now, CopyLedger::new());
    let done = p.a.tcp(id)?.fill(now, max, |spare| {
        assert!(!spare.is_empty() && spare.len() <= max);
        assert_eq!(spare.runs().map(|(_, len)| len).sum::<usize>(), spare.len());
        spare.put(data, &mut ledger, CopyReason::SocketRx)
    });
    p.a.ledger_mut().add(&ledger);
    done
}

/// Takes up to `max` bytes, as a system call would that takes `most`.
fn take(
    p: &mut Pair,
    id: TcpId,
    max: usize,
    most: usize,
    flags: RecvFlags,
) -> Result<Vec<u8>, Error> {
    let (now, mut out, mut ledger) = (p.now, Vec::new(), CopyLedger::new());
    let give = |parts: Parts<'_>| {
        for (frag, len) in parts {
            assert!(len > 0 && len <= frag.len());
            let from = out.len();
            out.resize(from + len, 0);
            frag.copy_to(0, &mut out[from..], &mut ledger, CopyReason::SocketTx);
        }
        assert!(!out.is_empty() && out.len() <= max);
        out.truncate(most);
        out.len()
    };
    let n = p.b.tcp(id)?.recv(now, Lend { max, give }, flags)?;
    assert_eq!(n, out.len());
    p.b.ledger_mut().note(CopyReason::SocketTx, n);
    Ok(out)
}

#[test]
fn a_stream_goes_through_with_one_copy_on_each_side_which_is_not_ours() {
    let data = pattern(3_000_000);
    let mut p = Pair::new();
    let (client, server, _) = p.connect(V4);
    let (mut sent, mut got) = (0, Vec::new());
    p.until("the transfer", |p| {
        while sent < data.len()
            && let Some(n) = ready(fill(p, client, 256 << 10, &data[sent..]))
        {
            sent += n;
        }
        while let Some(bytes) = ready(take(p, server, 256 << 10, 100_000, NONE)) {
            assert!(!bytes.is_empty());
            got.extend(bytes);
        }
        got.len() == data.len()
    });
    assert!(got == data);
    assert_eq!(p.a.ledger().get(CopyReason::SocketRx), data.len() as u64);
    assert_eq!(p.b.ledger().get(CopyReason::SocketTx), data.len() as u64);
    assert_eq!((p.a.ledger().ours(), p.b.ledger().ours()), (0, 0));
    // Pages come back but for those that wait to be filled.
    p.run(Duration::from_secs(1));
    let audit = p.a.pool_audit();
    assert!(audit.out * 4096 <= 1 << 20, "{audit:?}");
}

#[test]
fn what_is_not_taken_stays_and_holds_the_sender_back() {
    let mut p = Pair::new();
    let (client, server, _) = p.connect(V4);
    let data = pattern(100_000);
    assert_eq!(ready(fill(&mut p, client, 1 << 20, &data[..40_000])), Some(40_000));
    p.run(MS);
    assert_eq!(take(&mut p, server, 1 << 20, 7, NONE).unwrap(), &data[..7]);
    assert_eq!(take(&mut p, server, 10, 99, NONE).unwrap(), &data[7..17], "no more than is wanted");
    assert_eq!(take(&mut p, server, 1 << 20, 0, NONE), Err(Error::WouldBlock), "nothing was taken");
    assert_eq!(p.b.tcp(server).unwrap().queued(), 40_000 - 17);
    assert!(p.b.readiness(server).unwrap().contains(Readiness::READABLE));
    let mut rest = vec![0; 40_000];
    let n = p.b.tcp(server).unwrap().recv(p.now, &mut rest[..], NONE).unwrap();
    assert_eq!(&rest[..n], &data[17..40_000]);
    assert_eq!(take(&mut p, server, 1 << 20, 1, NONE), Err(Error::WouldBlock));
}

#[test]
fn only_the_end_of_the_stream_is_zero() {
    let mut p = Pair::new();
    let (client, server, _) = p.connect(V4);
    assert_eq!(ready(fill(&mut p, client, 100, b"last")), Some(4));
    p.a.shutdown(p.now, client, std::net::Shutdown::Write).unwrap();
    p.run(MS);
    assert_eq!(take(&mut p, server, 100, 100, NONE).unwrap(), b"last");
    let never = |_: Parts<'_>| -> usize { panic!("there is nothing to give") };
    let end = p.b.tcp(server).unwrap().recv(p.now, Lend { max: 100, give: never }, NONE);
    assert_eq!(end, Ok(0));
    assert_eq!(fill(&mut p, client, 100, b"x"), Err(Error::BrokenPipe));
    let peek = p.b.tcp(server).unwrap().recv(p.now, Lend { max: 1, give: never }, RecvFlags::PEEK);
    assert_eq!(peek, Err(Error::InvalidInput));
}

#[test]
fn lent_bytes_end_before_an_urgent_byte() {
    let mut p = Pair::new();
    let (client, server, _) = p.connect(V4);
    let stop = RecvFlags::STOP_AT_URGENT;
    p.a.tcp(client).unwrap().send(p.now, b"before!", SendFlags::URGENT).unwrap();
    p.a.send(p.now, client, b"after").unwrap();
    p.run(MS);
    assert_eq!(take(&mut p, server, 100, 100, stop).unwrap(), b"before");
    assert_eq!(take(&mut p, server, 100, 100, stop), Err(Error::WouldBlock));
    assert!(p.b.tcp(server).unwrap().at_urgent_mark());
    assert_eq!(p.b.tcp(server).unwrap().read_urgent(p.now, NONE), Ok(b'!'));
    assert_eq!(take(&mut p, server, 100, 100, NONE).unwrap(), b"after");
}

#[test]
fn there_is_no_more_room_than_the_send_buffer_has_and_room_is_reported() {
    let mut p = Pair::with_tcp(TcpConfig { send_buffer: 64 << 10, ..TcpConfig::default() });
    let (client, server, _) = p.connect(V4);
    let data = pattern(1 << 20);
    p.carry = Some(Box::new(|_, _| false));
    let mut queued = 0;
    while let Some(n) = ready(fill(&mut p, client, 1 << 20, &data[queued..])) {
        queued += n;
    }
    assert!(queued > 0 && queued < 256 << 10, "{queued}");
    assert!(!p.a.readiness(client).unwrap().contains(Readiness::WRITABLE));
    p.events.clear();
    p.carry = None;
    let mut got = 0;
    p.until("the rest", |p| {
        got += ready(take(p, server, 1 << 20, 1 << 20, NONE)).map_or(0, |bytes| bytes.len());
        got == queued
    });
    p.run(MS);
    assert!(p.reported(A, client, Readiness::WRITABLE) > 0);
}

#[test]
fn a_reader_with_nothing_to_give_queues_nothing() {
    let mut p = Pair::new();
    let (client, _, _) = p.connect(V4);
    let before = p.a.counters().tx_tcp;
    assert_eq!(p.a.tcp(client).unwrap().fill(p.now, 1000, |_| 0), Ok(0));
    assert_eq!(p.a.tcp(client).unwrap().fill(p.now, 0, |_| 9), Ok(0));
    p.run(MS);
    assert_eq!(p.a.counters().tx_tcp, before);
    assert_eq!(p.a.tcp(client).unwrap().queued_send(), (0, 0));
}

#[test]
fn without_pages_it_waits_for_them() {
    let mut p = Pair::changed(|a, _| a.memory = 1 << 20);
    let (client, server, _) = p.connect(V4);
    let hold = vec![7; 4 << 20];
    let (held, _): (FragVec, usize) = p.a.copy_in(&hold);
    assert_eq!(fill(&mut p, client, 1000, b"x"), Err(Error::NoBuffers));
    p.flush();
    p.events.clear();
    drop(held);
    p.run(100 * MS);
    assert!(p.reported(A, client, Readiness::WRITABLE) > 0);
    assert_eq!(ready(fill(&mut p, client, 1000, b"x")), Some(1));
    p.run(MS);
    assert_eq!(take(&mut p, server, 9, 9, NONE).unwrap(), b"x");
}

#[test]
fn fills_before_the_handshake_is_complete_wait() {
    let mut p = Pair::new();
    let client = p.a.connect(p.now, V4.parse().unwrap(), None).unwrap();
    assert_eq!(fill(&mut p, client, 10, b"early"), Err(Error::WouldBlock));
}
