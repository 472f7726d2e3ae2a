//! Payload is copied once each way, by the ledger of the gateway's side.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;

use pagewire::Host;
use pagewire::memory::{CopyLedger, CopyReason};

use crate::support::namespaces::{NEAR_V4, Outside, worlds};
use crate::support::{eventually, joined, pattern, world};

/// Bytes each way: many times what all queues hold.
const BYTES: usize = 64 << 20;

/// Bytes of each write.
const PIECE: usize = 64 << 10;

/// The longest payload that a tap packs: `pagewire_device`'s `SMALL_PAYLOAD`.
const SMALL: u64 = 512;

/// Copies that the kernel makes.
const REASONS: [CopyReason; 4] =
    [CopyReason::SocketTx, CopyReason::SocketRx, CopyReason::DeviceTx, CopyReason::DeviceRx];

fn send_all(mut to: impl Write) {
    let piece = pattern(PIECE);
    (0..BYTES / PIECE).for_each(|_| to.write_all(&piece).unwrap());
}

fn read_all(mut from: impl Read) {
    let (mut got, mut all) = (vec![0; PIECE], 0);
    loop {
        match from.read(&mut got).unwrap() {
            0 => break assert_eq!(all, BYTES),
            n => all += n,
        }
    }
}

/// Over the pair link the guest's pages come by reference: only the kernel's socket copies.
#[test]
fn in_this_process_the_kernels_sockets_make_the_only_copies() {
    let world = world();
    let (inner, outer) = joined(&world.inside);
    thread::scope(|scope| {
        scope.spawn(|| {
            send_all(&outer);
            outer.shutdown(Shutdown::Write).unwrap();
        });
        scope.spawn(|| read_all(&inner));
        scope.spawn(|| {
            send_all(&inner);
            inner.shutdown(Shutdown::Write).unwrap();
        });
        read_all(&outer);
    });
    let ledger = world.guest.host().stats().ledger;
    let [tx, rx, device_tx, device_rx] = REASONS.map(|reason| ledger.get(reason));
    assert_eq!([tx, rx, device_tx, device_rx], [BYTES as u64, BYTES as u64, 0, 0]);
    assert_few(&ledger);
}

/// Ends of bursts, of up to 512 bytes, are packed; nothing else is copied by us.
fn assert_few(ledger: &CopyLedger) {
    let ours = ledger.ours();
    assert_eq!(ours, ledger.get(CopyReason::SmallSegment), "{ledger:?}");
    assert!(ours < BYTES as u64 / 1000, "{ours} bytes were copied by us");
}

/// With the kernel's own stack as the guest, the tap copies, too: once each way.
#[test]
fn over_a_tap_each_byte_is_copied_by_the_tap_and_by_the_socket() {
    let outside = |outside: Outside, _| {
        let server = std::net::TcpListener::bind((NEAR_V4, 7)).unwrap();
        let (outer, _) = server.accept().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                send_all(&outer);
                outer.shutdown(Shutdown::Write).unwrap();
            });
            read_all(&outer);
        });
        eventually(|| outside.guest.connections() == 0);
        let host: &Host = outside.guest.host();
        let ledger = host.stats().ledger;
        let [tx, rx, device_tx, device_rx] = REASONS.map(|reason| ledger.get(reason));
        assert_eq!([tx, rx], [BYTES as u64; 2]);
        let (device, counters) = (host.stats().links[0].device, host.stats().counters);
        // The tap packs the ends of bursts as it receives them. Where bursts end is the guest's affair:
        // it never is in each frame.
        let (ours, small) = (ledger.ours(), ledger.get(CopyReason::SmallSegment));
        assert_eq!(ours, small, "{ledger:?}");
        assert!(
            small < device.rx_frames * SMALL / 2,
            "{small} bytes of {} frames",
            device.rx_frames
        );
        // The tap copied all its payload once. Only retransmitted payload was copied again.
        assert_eq!(device_rx, device.rx_payload_bytes);
        let again = |bytes: u64| bytes.checked_sub(BYTES as u64).expect("all of it");
        assert!(again(device_rx) == 0 || counters.total_drops() > 0, "{device_rx}: {counters:?}");
        assert!(again(device_tx) == 0 || counters.tcp_retransmits > 0, "{device_tx}: {counters:?}");
    };
    let inside = |_| {
        let inner = crate::support::connect((NEAR_V4, 7));
        thread::scope(|scope| {
            scope.spawn(|| {
                send_all(&inner);
                inner.shutdown(Shutdown::Write).unwrap();
            });
            read_all(&inner);
        });
        let _: TcpStream = inner;
    };
    worlds(outside, inside);
}
