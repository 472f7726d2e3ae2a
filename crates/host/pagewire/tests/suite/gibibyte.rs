//! A gibibyte sent by reference: nothing of it is copied by this stack, and all of it completes.

use std::io::Read;
use std::net::TcpListener;
use std::thread;

use bytes::Bytes;
use pagewire::Completion;
use pagewire::memory::{CopyReason, Region};

use crate::support::{PATIENCE, manual_hosts, on_a_tap};

const TOTAL: usize = 1 << 30;
const PIECE: usize = 1 << 20;

#[test]
fn a_gibibyte_over_the_pair_link_is_copied_by_neither_side() {
    // On one thread, so that nothing can wait unread until its sender wants it back.
    let (server, client) = manual_hosts();
    let listener = server.listen("10.0.0.1:9000").unwrap();
    listener.set_nonblocking(true).unwrap();
    let conn = client.start_connect("10.0.0.1:9000".parse().unwrap()).unwrap();
    let accepted = (0..1000).find_map(|_| {
        client.turn();
        server.turn();
        listener.accept().ok()
    });
    let (peer, _) = accepted.expect("a connection");
    conn.set_zerocopy(true).unwrap();
    conn.set_nonblocking(true).unwrap();
    peer.set_nonblocking(true).unwrap();
    let memory = Bytes::from(vec![7; 16 * PIECE]);
    let (mut sent, mut sends, mut told, mut got) = (0, 0, 0, 0);
    let mut idle = 0;
    while told < sends || sent < TOTAL {
        client.turn();
        while sent < TOTAL {
            let at = sent % memory.len();
            let piece = memory.slice(at..(at + PIECE).min(memory.len()));
            match conn.send_zc(piece) {
                Ok(taken) => (sent, sends) = (sent + taken.bytes, sends + 1),
                Err(e) => {
                    assert_eq!(e.kind(), std::io::ErrorKind::WouldBlock);
                    break;
                }
            }
        }
        server.turn();
        let before = (got, told);
        while let Ok(chunks) = peer.recv_chunks(PIECE) {
            got += chunks.len();
        }
        for done in conn.completions() {
            assert!(!done.copied);
            told += done.ids.count();
        }
        idle = if (got, told) == before { idle + 1 } else { 0 };
        assert!(idle < 1_000_000, "stuck at {got} bytes, {told} of {sends} completed");
    }
    assert_eq!((sent, got), (TOTAL, TOTAL));
    for host in [&client, &server] {
        assert_eq!(host.stats().ledger.ours(), 0, "{}", host.stats());
    }
}

#[test]
fn a_gibibyte_through_a_tap_is_sent_without_a_copy_of_ours() {
    on_a_tap("10.78.0.1/24", "10.78.0.2/24", |host| {
        let listener = TcpListener::bind("10.78.0.1:9000").unwrap();
        let near = host.connect("10.78.0.1:9000").unwrap();
        let (mut far, _) = listener.accept().unwrap();
        far.set_read_timeout(Some(PATIENCE)).unwrap();
        near.set_read_timeout(Some(PATIENCE)).unwrap();
        near.set_write_timeout(Some(PATIENCE)).unwrap();
        near.set_zerocopy(true).unwrap();
        let region = Region::memfd("gibibyte", PIECE).unwrap();
        let sender = thread::spawn(move || {
            let mut told = 0;
            let mut count = |done: Completion| {
                assert!(!done.copied, "{done:?}");
                assert_eq!(*done.ids.start() as usize, told, "in order");
                told += done.ids.count();
            };
            for _ in 0..TOTAL / PIECE {
                near.send_zc(region.frag(0, PIECE).unwrap()).unwrap();
                near.completions().for_each(&mut count);
            }
            while let Some(done) = near.wait_completion().unwrap() {
                count(done);
            }
            told
        });
        let (mut got, mut buffer) = (0, vec![0; 1 << 20]);
        while got < TOTAL {
            let n = far.read(&mut buffer).unwrap();
            assert!(n > 0, "the stream ended after {got} bytes");
            got += n;
        }
        assert_eq!(sender.join().unwrap(), TOTAL / PIECE);
        let ledger = host.stats().ledger;
        assert_eq!(ledger.ours(), 0, "{ledger:?}");
        // The kernel's own copy at the boundary, counted and named as that.
        assert!(ledger.get(CopyReason::DeviceTx) >= TOTAL as u64, "{ledger:?}");
    });
}
