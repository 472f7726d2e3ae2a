//! Zero-copy sends as programs see them, over the pair link, with real threads.

use std::io;
use std::sync::Arc;
use std::thread;

use bytes::Bytes;
use pagewire::memory::{CopyReason, Region};
use pagewire::services::Error;
use pagewire::{Completion, Sent};

use crate::support::{opted_in, receive};

#[test]
fn a_thread_that_waits_is_woken_when_another_lets_go_of_what_it_received() {
    let ends = opted_in(|host| host);
    assert_eq!(ends.near.send_zc(vec![7; 10_000]).unwrap(), Sent { bytes: 10_000, id: Some(0) });
    let peer = ends.far.clone();
    let (hold, held) = std::sync::mpsc::channel();
    let reader = thread::spawn(move || {
        let mut got = Vec::new();
        while got.iter().map(pagewire::Chunks::len).sum::<usize>() < 10_000 {
            got.push(peer.recv_chunks(1 << 20).unwrap());
        }
        held.recv().unwrap();
        drop(got);
    });
    assert_eq!(ends.near.completions().next(), None, "the reader holds it");
    let conn = ends.near.clone();
    let waiter = thread::spawn(move || conn.wait_completion());
    hold.send(()).unwrap();
    let done = waiter.join().unwrap().unwrap();
    assert_eq!(done, Some(Completion { ids: 0..=0, copied: false }));
    reader.join().unwrap();
    assert_eq!(ends.near.wait_completion().unwrap(), None, "nothing is outstanding");
}

#[test]
fn memory_is_filled_and_sent_again_but_not_before_its_completion() {
    const LEN: usize = 256 << 10;
    let ends = opted_in(|host| host);
    let mut peer = ends.far.clone();
    let mut region = Region::memfd("again", LEN).unwrap();
    for round in 1..=5 {
        region.bytes_mut().unwrap().fill(round);
        let sent = ends.near.send_zc(region.frag(0, LEN).unwrap()).unwrap();
        assert_eq!((sent.bytes, sent.id), (LEN, Some(u32::from(round) - 1)));
        // The peer has not read.
        let early = region.bytes_mut().map(|_| ()).unwrap_err().to_string();
        assert!(early.contains("wait for the completion"), "{early}");
        let mut bytes = vec![0; LEN];
        io::Read::read_exact(&mut peer, &mut bytes).unwrap();
        assert!(bytes.iter().all(|&byte| byte == round), "round {round}");
        let done = ends.near.wait_completion().unwrap().unwrap();
        assert_eq!((*done.ids.end(), done.copied), (u32::from(round) - 1, false));
    }
    assert_eq!(ends.client.stats().ledger.ours(), 0);
}

#[test]
fn a_socket_that_has_not_opted_in_copies() {
    let ends = opted_in(|host| host);
    ends.near.set_zerocopy(false).unwrap();
    assert_eq!(ends.near.send_zc(vec![7; 10_000]).unwrap(), Sent { bytes: 10_000, id: None });
    assert_eq!(ends.client.stats().ledger.get(CopyReason::AppWrite), 10_000);
}

#[test]
fn what_was_received_is_sent_on_without_a_copy() {
    let ends = opted_in(|host| host);
    ends.far.set_zerocopy(true).unwrap();
    ends.near.send_zc(vec![7; 100_000]).unwrap();
    let mut left = 100_000;
    while left > 0 {
        let chunks = ends.far.recv_chunks(1 << 20).unwrap();
        left -= chunks.len();
        ends.far.send_zc(chunks).unwrap();
    }
    receive(&ends.near, 100_000);
    assert_eq!(ends.near.wait_completion().unwrap().unwrap().ids, 0..=0);
    assert_eq!(ends.copied(), 0);
}

#[test]
fn memory_held_is_bounded_by_the_setting() {
    let ends = opted_in(|host| host.zerocopy_memory(64 << 10));
    let conn = &ends.near;
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
    let ends = opted_in(|host| host.notification_memory(704));
    let conn = &ends.near;
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

#[tokio::test]
async fn completions_can_be_awaited() -> io::Result<()> {
    use pagewire::net::TcpStream;

    let ends = opted_in(|host| host);
    let (near, far) = [&ends.near, &ends.far].map(|end| TcpStream::from(end.clone())).into();
    assert_eq!(near.send_zc(vec![7; 10_000]).await?.id, Some(0));
    let conn = TcpStream::from(ends.near.clone());
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
    let ends = opted_in(|host| host);
    let memory: Arc<[u8]> = vec![7; 1 << 20].into();
    // As much as there is room for: a part of it stays unsent.
    ends.near.set_nonblocking(true)?;
    let mut sends = 0;
    while let Ok(sent) = ends.near.send_zc(Bytes::from_owner(Arc::clone(&memory))) {
        assert_eq!(sent.id, Some(sends));
        sends += 1;
    }
    ends.near.set_nonblocking(false)?;
    assert!(sends > 0);
    ends.far.abort();
    drop(ends.far);
    let mut ids = Vec::new();
    while let Some(done) = ends.near.wait_completion()? {
        ids.extend(done.ids);
    }
    ids.sort_unstable();
    assert_eq!(ids, (0..sends).collect::<Vec<_>>());
    assert_eq!(Arc::strong_count(&memory), 1, "all of it is let go");
    Ok(())
}
