//! Zero-copy sends as programs see them, over the pair link, with real threads.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use pagewire::services::Error;
use pagewire::{Completion, CopyReason, Host, Pair, Region, Sent, TcpStream};

/// A limit on waits: a test that hangs is to fail.
const LIMIT: Option<Duration> = Some(Duration::from_secs(60));

struct Ends {
    client: Host,
    server: Host,
    conn: TcpStream,
    peer: TcpStream,
}

fn connected() -> Ends {
    let (left, right) = Pair::new(Default::default()).unwrap();
    let server = Host::builder().device(left).address("10.0.0.1/24").start().unwrap();
    // The user's limit on locked memory may be small where tests run.
    let client = Host::builder().device(right).address("10.0.0.2/24").zerocopy_memory(1 << 30);
    let client = client.start().unwrap();
    let listener = server.listen("10.0.0.1:9000").unwrap();
    let conn = client.connect("10.0.0.1:9000").unwrap();
    let (peer, _) = listener.accept().unwrap();
    for end in [&conn, &peer] {
        end.set_read_timeout(LIMIT).unwrap();
        end.set_write_timeout(LIMIT).unwrap();
    }
    conn.set_zerocopy(true).unwrap();
    Ends { client, server, conn, peer }
}

#[test]
fn a_thread_that_waits_is_woken_when_another_lets_go_of_what_it_received() {
    let ends = connected();
    assert_eq!(ends.conn.send_zc(vec![7; 10_000]).unwrap(), Sent { bytes: 10_000, id: Some(0) });
    let peer = ends.peer.clone();
    let (hold, held) = std::sync::mpsc::channel();
    let reader = thread::spawn(move || {
        let mut got = Vec::new();
        while got.iter().map(pagewire::Chunks::len).sum::<usize>() < 10_000 {
            got.push(peer.recv_chunks(1 << 20).unwrap());
        }
        held.recv().unwrap();
        drop(got);
    });
    assert_eq!(ends.conn.completions().next(), None, "the reader holds it");
    let conn = ends.conn.clone();
    let waiter = thread::spawn(move || conn.wait_completion());
    hold.send(()).unwrap();
    let done = waiter.join().unwrap().unwrap();
    assert_eq!(done, Some(Completion { ids: 0..=0, copied: false }));
    reader.join().unwrap();
    assert_eq!(ends.conn.wait_completion().unwrap(), None, "nothing is outstanding");
}

#[test]
fn memory_is_filled_and_sent_again_but_not_before_its_completion() {
    const LEN: usize = 256 << 10;
    let ends = connected();
    let mut peer = ends.peer.clone();
    let mut region = Region::memfd("again", LEN).unwrap();
    for round in 1..=5 {
        region.bytes_mut().unwrap().fill(round);
        let sent = ends.conn.send_zc(region.frag(0, LEN).unwrap()).unwrap();
        assert_eq!((sent.bytes, sent.id), (LEN, Some(u32::from(round) - 1)));
        // The peer has not read.
        let early = region.bytes_mut().map(|_| ()).unwrap_err().to_string();
        assert!(early.contains("wait for the completion"), "{early}");
        let mut bytes = vec![0; LEN];
        io::Read::read_exact(&mut peer, &mut bytes).unwrap();
        assert!(bytes.iter().all(|&byte| byte == round), "round {round}");
        let done = ends.conn.wait_completion().unwrap().unwrap();
        assert_eq!((*done.ids.end(), done.copied), (u32::from(round) - 1, false));
    }
    assert_eq!(ends.client.stats().ledger.ours(), 0);
}

#[test]
fn a_socket_that_has_not_opted_in_copies() {
    let ends = connected();
    ends.conn.set_zerocopy(false).unwrap();
    assert_eq!(ends.conn.send_zc(vec![7; 10_000]).unwrap(), Sent { bytes: 10_000, id: None });
    assert_eq!(ends.client.stats().ledger.get(CopyReason::AppWrite), 10_000);
}

#[test]
fn what_was_received_is_sent_on_without_a_copy() {
    let ends = connected();
    ends.peer.set_zerocopy(true).unwrap();
    ends.conn.send_zc(vec![7; 100_000]).unwrap();
    let mut left = 100_000;
    while left > 0 {
        let chunks = ends.peer.recv_chunks(1 << 20).unwrap();
        left -= chunks.len();
        ends.peer.send_zc(chunks).unwrap();
    }
    let mut got = 0;
    while got < 100_000 {
        got += ends.conn.recv_chunks(1 << 20).unwrap().len();
    }
    assert_eq!(ends.conn.wait_completion().unwrap().unwrap().ids, 0..=0);
    assert_eq!(ends.client.stats().ledger.ours() + ends.server.stats().ledger.ours(), 0);
}

/// Pages that nobody may read or write.
struct NoAccess(NonNull<u8>, usize);

impl NoAccess {
    fn new(len: usize) -> Self {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        let (prot, flags) = (ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a null hint lets the kernel choose a free range.
        let at = unsafe { mmap_anonymous(std::ptr::null_mut(), len, prot, flags) }.unwrap();
        Self(NonNull::new(at.cast()).unwrap(), len)
    }
}

impl Drop for NoAccess {
    fn drop(&mut self) {
        // SAFETY: our own mapping; every send of it is complete, and every chunk dropped.
        unsafe { rustix::mm::munmap(self.0.as_ptr().cast(), self.1) }.unwrap();
    }
}

#[test]
fn pages_without_any_access_travel_over_the_pair_link() {
    let ends = connected();
    let memory = NoAccess::new(4 << 20);
    let peer = ends.peer.clone();
    let reader = thread::spawn(move || {
        let mut got = 0;
        while got < 4 << 20 {
            got += peer.recv_chunks(1 << 20).unwrap().len();
        }
    });
    let (at, len) = (memory.0, memory.1);
    // SAFETY: the memory stays until the completion below, nobody refers to it, and it need not be
    // read: the pair link passes it on.
    let sent = unsafe { ends.conn.send_zc_raw(&[(at, len)]) }.unwrap();
    assert_eq!(sent, Sent { bytes: 4 << 20, id: Some(0) });
    reader.join().unwrap();
    let done = ends.conn.wait_completion().unwrap();
    assert_eq!(done, Some(Completion { ids: 0..=0, copied: false }));

    let (a, b) = (ends.client.udp("10.0.0.2:0").unwrap(), ends.server.udp("10.0.0.1:53").unwrap());
    a.set_zerocopy(true).unwrap();
    a.set_read_timeout(LIMIT).unwrap();
    b.set_read_timeout(LIMIT).unwrap();
    // SAFETY: as above.
    let sent = unsafe { a.send_zc_raw_to(&[(at, 10_000)], "10.0.0.1:53") }.unwrap();
    assert_eq!(sent, Sent { bytes: 10_000, id: Some(0) });
    drop(b.recv_chunks_from().unwrap());
    assert_eq!(a.wait_completion().unwrap(), done);
}

#[test]
fn a_gibibyte_is_sent_without_a_copy_and_completes_whole() {
    // Unoptimised, a sixteenth says the same.
    let (pieces, len) = if cfg!(debug_assertions) { (64, 1 << 20) } else { (1024, 1 << 20) };
    let ends = connected();
    let region = Region::memfd("gibibyte", len).unwrap();
    let peer = ends.peer.clone();
    let reader = thread::spawn(move || {
        let mut got = 0;
        while got < pieces * len {
            got += peer.recv_chunks(1 << 20).unwrap().len();
        }
    });
    let mut completed = 0;
    for id in 0..pieces {
        let sent = ends.conn.send_zc(region.frag(0, len).unwrap()).unwrap();
        assert_eq!(sent, Sent { bytes: len, id: Some(id as u32) });
        completed += ends.conn.completions().map(check).sum::<usize>();
    }
    reader.join().unwrap();
    while completed < pieces {
        completed += ends.conn.wait_completion().unwrap().map(check).expect("more are to come");
    }
    let mut ledger = ends.client.stats().ledger;
    ledger.add(&ends.server.stats().ledger);
    assert_eq!(ledger.ours(), 0, "{ledger:?}");
}

fn check(done: Completion) -> usize {
    assert!(!done.copied);
    done.ids.count()
}

#[test]
fn memory_held_is_bounded_by_the_setting() {
    let (left, right) = Pair::new(Default::default()).unwrap();
    let server = Host::builder().device(left).address("10.0.0.1/24").start().unwrap();
    let client = Host::builder().device(right).address("10.0.0.2/24").zerocopy_memory(64 << 10);
    let client = client.start().unwrap();
    let listener = server.listen("10.0.0.1:9000").unwrap();
    let conn = client.connect("10.0.0.1:9000").unwrap();
    let _peer = listener.accept().unwrap();
    conn.set_zerocopy(true).unwrap();
    let error = conn.send_zc(vec![0; 61_440]).unwrap_err();
    assert_eq!(cause(&error), Some(Error::TooManyPagesHeld));
    assert_eq!(error.to_string(), "zero-copy sends hold too many pages");
    conn.send_zc(vec![0; 61_439]).unwrap();
}

/// The stack's error inside one of `std::io`.
fn cause(error: &std::io::Error) -> Option<Error> {
    error.get_ref().and_then(|inner| inner.downcast_ref().copied())
}

#[test]
fn too_many_notifications_are_told_from_too_many_pages() {
    let (left, right) = Pair::new(Default::default()).unwrap();
    let server = Host::builder().device(left).address("10.0.0.1/24").start().unwrap();
    let client = Host::builder().device(right).address("10.0.0.2/24").notification_memory(704);
    let client = client.zerocopy_memory(1 << 30).start().unwrap();
    let listener = server.listen("10.0.0.1:9000").unwrap();
    let conn = client.connect("10.0.0.1:9000").unwrap();
    let _peer = listener.accept().unwrap();
    conn.set_zerocopy(true).unwrap();
    let error = loop {
        if let Err(error) = conn.send_zc(vec![0; 100]) {
            break error;
        }
    };
    assert_eq!(cause(&error), Some(Error::TooManyNotifications));
    assert_eq!(cause(&error).unwrap().errno(), 105, "ENOBUFS");
    let text = "too many notifications of zero-copy sends unread or to come";
    assert_eq!(error.to_string(), text);
}

#[test]
fn a_vectored_send_takes_pieces_of_any_kind() {
    let ends = connected();
    let pieces: Vec<Bytes> = (0..40u8).map(|n| Bytes::from(vec![n; 100])).collect();
    assert_eq!(ends.conn.send_zc(pieces).unwrap().bytes, 4000);
    let mut got = Vec::new();
    while got.len() < 4000 {
        let chunks = ends.peer.recv_chunks(1 << 20).unwrap();
        chunks.for_each_piece(|piece| got.extend_from_slice(piece));
    }
    assert!(got.chunks(100).enumerate().all(|(n, piece)| piece == [n as u8; 100]));
    assert_eq!(ends.conn.wait_completion().unwrap().unwrap().ids, 0..=0);
}

#[test]
fn datagrams_complete_too() {
    let ends = connected();
    let (a, b) = (ends.client.udp("10.0.0.2:0").unwrap(), ends.server.udp("10.0.0.1:53").unwrap());
    a.set_zerocopy(true).unwrap();
    a.set_read_timeout(LIMIT).unwrap();
    b.set_read_timeout(LIMIT).unwrap();
    assert_eq!(
        a.send_zc_to(vec![1; 1000], "10.0.0.1:53").unwrap(),
        Sent { bytes: 1000, id: Some(0) }
    );
    drop(b.recv_chunks_from().unwrap());
    assert_eq!(a.wait_completion().unwrap(), Some(Completion { ids: 0..=0, copied: false }));
}

#[cfg(feature = "tokio")]
#[tokio::test]
async fn completions_can_be_awaited() -> io::Result<()> {
    use pagewire::net::TcpStream;

    let ends = connected();
    let (near, far) = [&ends.conn, &ends.peer].map(|end| TcpStream::from(end.clone())).into();
    assert_eq!(near.send_zc(vec![7; 10_000]).await?.id, Some(0));
    let conn = TcpStream::from(ends.conn.clone());
    let waiter = tokio::spawn(async move { conn.next_completion().await });
    let mut got = 0;
    while got < 10_000 {
        got += far.recv_chunks(1 << 20).await?.len();
    }
    let done = waiter.await??;
    assert_eq!(done, Some(Completion { ids: 0..=0, copied: false }));
    assert_eq!(near.next_completion().await?, None);
    Ok(())
}

#[test]
fn a_connection_that_ends_completes_everything() -> io::Result<()> {
    let ends = connected();
    let memory: Arc<[u8]> = vec![7; 1 << 20].into();
    // As much as there is room for: a part of it stays unsent.
    ends.conn.set_nonblocking(true)?;
    let mut sends = 0;
    while let Ok(sent) = ends.conn.send_zc(Bytes::from_owner(Arc::clone(&memory))) {
        assert_eq!(sent.id, Some(sends));
        sends += 1;
    }
    ends.conn.set_nonblocking(false)?;
    assert!(sends > 0);
    ends.peer.abort();
    drop(ends.peer);
    let mut ids = Vec::new();
    while let Some(done) = ends.conn.wait_completion()? {
        ids.extend(done.ids);
    }
    ids.sort_unstable();
    assert_eq!(ids, (0..sends).collect::<Vec<_>>());
    assert_eq!(Arc::strong_count(&memory), 1, "all of it is let go");
    Ok(())
}
