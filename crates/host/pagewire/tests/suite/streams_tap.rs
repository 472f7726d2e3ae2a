//! Streams between a host on a tap and sockets of the kernel: received payload lands in adjacent
//! pages, and sent payload arrives whole. In a network namespace that goes with the test; needs
//! root.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv6Addr, TcpListener, TcpStream};
use std::thread;

use bytes::Bytes;
use pagewire::memory::CopyReason;
use pagewire::tcp::TcpConfig;
use pagewire::{Host, SocketOption, Tap};
use pagewire_testkit::{Need, Netns, can};

use crate::support::PATIENCE;

/// Runs a test for each version of IP and each case, with a new host on a tap; gives it the
/// addresses of the host and of the kernel, and a name for messages. A case is an MTU, and whether
/// connections have time stamps.
fn on_taps(cases: &[(usize, bool)], test: impl Fn(Host, IpAddr, IpAddr, &str) + Send + Sync) {
    if !can(&[Need::Tap]) {
        return;
    }
    Netns::new().inside(|| {
        for (v6, &(mtu, timestamps)) in
            [false, true].into_iter().flat_map(|v6| cases.iter().map(move |c| (v6, c)))
        {
            let tap =
                Tap::builder("pwtest0").mtu(mtu).host_addresses(["10.77.0.1/24", "fd77::1/64"]);
            let host = Host::builder().device(tap.open().expect("tap"));
            let host = host.address("10.77.0.2/24").address("fd77::2/64");
            let host = host.tcp_config(TcpConfig { timestamps, ..TcpConfig::default() });
            // A tap queues a thousand frames and drops the others: a window of less than that in
            // the smallest full segments keeps a kernel that sends them one by one from losing
            // some on a busy machine.
            let host = host.tcp_option(SocketOption::RecvBuffer(704 << 10)).start().expect("host");
            let at = |n| match v6 {
                false => [10, 77, 0, n as u8].into(),
                true => Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, n).into(),
            };
            test(host, at(2), at(1), &format!("v6 {v6}, mtu {mtu}, time stamps {timestamps}"));
        }
    });
}

/// A byte of a stream, by its place.
fn pattern(at: usize) -> u8 {
    (at ^ (at >> 8) ^ (at >> 16)) as u8
}

#[test]
fn bulk_from_a_kernel_socket_lands_aligned_in_adjacent_pages() {
    const TOTAL: usize = 64 << 20;
    // Usual frames; payload of whole pages; the largest frames; with and without time stamps.
    let cases = [(1500, true), (1500, false), (4096 + 52, true), (9000, true), (65_000, true)];
    on_taps(&cases, |host, ours, _, what| {
        let listener = host.listen((ours, 9000)).expect("listen");
        let writer = thread::spawn(move || {
            let mut socket = TcpStream::connect((ours, 9000)).expect("connect");
            for at in (0..TOTAL).step_by(256 << 10) {
                let bytes: Vec<u8> = (at..at + (256 << 10)).map(pattern).collect();
                socket.write_all(&bytes).expect("write");
            }
        });
        let (stream, _) = listener.accept().expect("accept");
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        let (mut got, mut end, mut breaks) = (0, None, 0);
        while got < TOTAL {
            let chunks = stream.recv_chunks(1 << 20).expect("receive");
            assert!(!chunks.is_empty(), "the stream ended after {got} bytes, {what}");
            for chunk in chunks {
                let bytes = chunk.as_slice().expect("private memory");
                assert!(
                    bytes.iter().enumerate().all(|(i, &byte)| byte == pattern(got + i)),
                    "{what}"
                );
                let range = bytes.as_ptr_range();
                breaks += usize::from(end != Some(range.start));
                (end, got) = (Some(range.end), got + bytes.len());
            }
        }
        writer.join().expect("writer");
        let stats = host.stats();
        let (device, what) = (stats.device, format!("{what}: {stats}"));
        assert!(device.rx_payload_bytes >= TOTAL as u64, "{what}");
        assert!(device.rx_aligned_bytes * 100 >= device.rx_payload_bytes * 99, "{what}");
        assert!(device.rx_mispredicted <= 1, "{what}");
        assert_eq!(device.rx_dropped_memory + device.rx_dropped_malformed, 0, "{what}");
        // The stream is in a few long runs: at most one break per group of pages.
        assert!(breaks <= TOTAL / (256 << 10) + 8, "{breaks} breaks, {what}");
        assert_eq!(stats.ledger.get(CopyReason::DeviceRx), device.rx_payload_bytes, "{what}");
        assert!(stats.ledger.ours() < 4096, "{what}");
        assert!(host.pool_audits().iter().all(|audit| audit.is_conserved()), "{what}");
    });
}

#[test]
fn a_kernel_socket_receives_super_frames_of_any_length_whole() {
    const TOTAL: usize = 16 << 20;
    let source = Bytes::from((0..TOTAL).map(pattern).collect::<Vec<u8>>());
    on_taps(&[(1500, true), (9000, true), (65_000, true)], |host, _, kernels, what| {
        let listener = TcpListener::bind((kernels, 9000)).expect("listen");
        let reader = thread::spawn(move || {
            let mut all = Vec::new();
            listener.accept().expect("accept").0.read_to_end(&mut all).expect("read");
            all
        });
        let stream = host.connect((kernels, 9000)).expect("connect");
        // Odd sizes and offsets.
        let (mut at, mut n) = (0, 1);
        while at < TOTAL {
            n = (n * 7 + 3) % 64_000;
            let size = n.min(TOTAL - at);
            assert_eq!(stream.send(source.slice(at..at + size)).expect("send"), size, "{what}");
            at += size;
        }
        stream.shutdown(std::net::Shutdown::Write).expect("shutdown");
        assert!(reader.join().expect("reader") == source, "{what}");
        let stats = host.stats();
        let device = stats.device;
        assert!(device.tx_frames * 4096 < TOTAL as u64, "{what}: {stats}");
        assert_eq!(device.tx_dropped_error + device.tx_dropped_full, 0, "{what}: {stats}");
        // One copy of each byte, and of what was sent again.
        let copied = stats.ledger.get(CopyReason::DeviceTx);
        assert!((TOTAL as u64..TOTAL as u64 * 11 / 10).contains(&copied), "{what}: {stats}");
        assert_eq!(stats.ledger.ours(), 0, "{what}: {stats}");
    });
}
