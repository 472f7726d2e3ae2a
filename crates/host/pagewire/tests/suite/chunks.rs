//! Received memory as `bytes` knows it.

use std::io::Write;

use bytes::Buf;

use crate::support::{joined, mapped_file};

#[test]
fn private_memory_becomes_bytes_without_a_copy() {
    let ends = joined();
    let memory = bytes::Bytes::from(vec![7; 5000]);
    let at = memory.as_ptr();
    ends.near.send(memory).expect("send");
    let mut chunks = ends.far.recv_chunks(10_000).expect("receive");
    assert_eq!(chunks.chunk().as_ptr(), at, "on a pair link it is the sender's memory");
    let head = chunks.copy_to_bytes(100);
    let rest = chunks.into_bytes();
    assert_eq!((head.as_ptr(), rest.as_ptr()), (at, at.wrapping_add(100)));
    assert_eq!((head.len(), rest.len()), (100, 4900));
    assert_eq!(ends.server.stats().ledger.ours(), 0);
}

#[test]
fn pieces_are_consumed_in_order_across_their_borders() {
    let ends = joined();
    let pieces: Vec<_> = (0..10u8).map(|i| bytes::Bytes::from(vec![i; 1000])).collect();
    let sent = pieces.concat();
    ends.near.send(pieces).expect("send");
    let mut got = Vec::new();
    while got.len() < sent.len() {
        let mut chunks = ends.far.recv_chunks(7777).expect("receive");
        let mut gather = [std::io::IoSlice::new(&[]); 16];
        let filled = chunks.chunks_vectored(&mut gather);
        assert_eq!(gather[..filled].iter().map(|s| s.len()).sum::<usize>(), chunks.remaining());
        while chunks.has_remaining() {
            let n = chunks.remaining().min(333);
            got.extend_from_slice(&chunks.copy_to_bytes(n));
        }
        assert!(chunks.is_empty());
    }
    assert_eq!(got, sent);
}

#[test]
fn memory_that_others_may_change_is_read_through_private_copies() {
    let ends = joined();
    let content: Vec<u8> = (0..50_000u32).map(|i| (i / 7) as u8).collect();
    let region = mapped_file(&content);
    ends.near.send(region.frag(0, content.len()).expect("frag")).expect("send");
    let mut got = Vec::new();
    while got.len() < content.len() {
        let mut chunks = ends.far.recv_chunks(1 << 20).expect("receive");
        while chunks.has_remaining() {
            let shown = chunks.chunk();
            // The same bytes each time, whoever writes the file meanwhile.
            assert_eq!(shown, chunks.chunk());
            let n = shown.len().min(999);
            got.extend_from_slice(&shown[..n]);
            chunks.advance(n);
        }
    }
    assert!(got == content);
}

#[test]
fn consumed_memory_opens_the_window_again() {
    let ends = joined();
    ends.far.set_recv_buffer_size(64 << 10).expect("option");
    let sender = std::thread::spawn({
        let near = ends.near.clone();
        move || (&near).write_all(&vec![9; 1 << 20])
    });
    let (mut kept, mut got) = (Vec::new(), 0);
    while got < 1 << 20 {
        let mut chunks = ends.far.recv_chunks(1 << 20).expect("receive");
        got += chunks.len();
        chunks.advance(chunks.len());
        // Kept, but nothing is left in it.
        kept.push(chunks);
    }
    sender.join().expect("thread").expect("write");
}
