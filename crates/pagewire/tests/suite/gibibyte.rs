//! A gibibyte sent by reference: nothing of it is copied by this stack, and all of it completes.

use std::io::Read;
use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use pagewire::{Host, Pair, TcpStream};

const TOTAL: usize = 1 << 30;
const PIECE: usize = 1 << 20;

/// A limit on waits: a test that hangs is to fail.
const LIMIT: Option<Duration> = Some(Duration::from_secs(60));

fn builder(device: impl pagewire::Device + 'static, address: &str) -> pagewire::Builder {
    // The user's limit on locked memory may be small where tests run.
    Host::builder().device(device).address(address).zerocopy_memory(1 << 30)
}

/// Sends it, from memory that is used again and again, and waits until all of it has completed.
fn send_all(conn: &TcpStream) {
    conn.set_read_timeout(LIMIT).unwrap();
    conn.set_write_timeout(LIMIT).unwrap();
    conn.set_zerocopy(true).unwrap();
    let memory = Bytes::from(vec![7; 16 * PIECE]);
    let (mut told, mut copied) = (0, false);
    for i in 0..TOTAL / PIECE {
        let at = i * PIECE % memory.len();
        assert_eq!(conn.send_zc(memory.slice(at..at + PIECE)).unwrap().bytes, PIECE);
        for done in conn.completions() {
            told += *done.ids.end() as usize - *done.ids.start() as usize + 1;
            copied |= done.copied;
        }
    }
    while let Some(done) = conn.wait_completion().unwrap() {
        told += *done.ids.end() as usize - *done.ids.start() as usize + 1;
        copied |= done.copied;
    }
    assert_eq!((told, copied), (TOTAL / PIECE, false));
}

#[test]
fn a_gibibyte_over_the_pair_link_is_copied_by_neither_side() {
    // On one thread, so that nothing can wait unread until its sender wants it back.
    let (left, right) = Pair::new(Default::default()).unwrap();
    let server = builder(left, "10.0.0.1/24").manual().start().unwrap();
    let client = builder(right, "10.0.0.2/24").manual().start().unwrap();
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
            told += *done.ids.end() as usize - *done.ids.start() as usize + 1;
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
fn with_root_a_gibibyte_to_a_kernel_socket_over_a_tap_is_copied_by_the_kernel_only() {
    if !pagewire_testing::can(&[pagewire_testing::Need::Tap]) {
        return;
    }
    // Removed when the host is dropped, also when the test fails.
    let name = format!("pwg{}", std::process::id());
    let tap = pagewire::Tap::builder(name).host_address("10.213.83.1/24");
    let client = builder(tap.open().unwrap(), "10.213.83.2/24").start().unwrap();
    let listener = TcpListener::bind("10.213.83.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    let reader = thread::spawn(move || {
        let (mut peer, _) = listener.accept().unwrap();
        peer.set_read_timeout(LIMIT).unwrap();
        let (mut buffer, mut got) = (vec![0; 1 << 20], 0);
        while got < TOTAL {
            match peer.read(&mut buffer).unwrap() {
                0 => break,
                n => got += n,
            }
        }
        assert_eq!(got, TOTAL);
    });
    send_all(&client.connect_timeout(to, Duration::from_secs(10)).unwrap());
    reader.join().unwrap();
    assert_eq!(client.stats().ledger.ours(), 0, "{}", client.stats());
}
