//! Zero-copy sends through a tap to a socket of the kernel's, in a network namespace that goes with
//! the test. Needs root.

use std::io::Read;
use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use pagewire::{CopyReason, Host, Region, Tap};

const LIMIT: Option<Duration> = Some(Duration::from_secs(60));

/// Runs `f` on a thread with a network namespace of its own.
fn in_namespace(f: impl FnOnce() + Send + 'static) {
    if !pagewire_testing::can(&[pagewire_testing::Need::Tap]) {
        return;
    }
    pagewire_testing::Netns::new().inside(f);
}

#[test]
fn a_gibibyte_through_a_tap_is_sent_without_a_copy_of_ours() {
    // Unoptimised, a sixteenth says the same.
    const LEN: usize = 1 << 20;
    const PIECES: usize = if cfg!(debug_assertions) { 64 } else { 1024 };
    in_namespace(|| {
        let tap = Tap::builder("pwzc0").host_address("10.78.0.1/24").open().unwrap();
        let host = Host::builder().device(tap).address("10.78.0.2/24").zerocopy_memory(1 << 30);
        let host = host.start().unwrap();
        let listener = TcpListener::bind("10.78.0.1:9000").unwrap();
        let near = host.connect("10.78.0.1:9000").unwrap();
        let (mut far, _) = listener.accept().unwrap();
        far.set_read_timeout(LIMIT).unwrap();
        near.set_read_timeout(LIMIT).unwrap();
        near.set_write_timeout(LIMIT).unwrap();
        near.set_zerocopy(true).unwrap();
        let region = Region::memfd("gibibyte", LEN).unwrap();
        let sender = thread::spawn(move || {
            let mut told = 0;
            let mut count = |done: pagewire::Completion| {
                assert!(!done.copied, "{done:?}");
                assert_eq!(*done.ids.start() as usize, told, "in order");
                told += done.ids.count();
            };
            for _ in 0..PIECES {
                near.send_zc(region.frag(0, LEN).unwrap()).unwrap();
                near.completions().for_each(&mut count);
            }
            while let Some(done) = near.wait_completion().unwrap() {
                count(done);
            }
            told
        });
        let (mut got, mut buffer) = (0, vec![0; 1 << 20]);
        while got < PIECES * LEN {
            let n = far.read(&mut buffer).unwrap();
            assert!(n > 0, "the stream ended after {got} bytes");
            got += n;
        }
        assert_eq!(sender.join().unwrap(), PIECES);
        let ledger = host.stats().ledger;
        assert_eq!(ledger.ours(), 0, "{ledger:?}");
        // The kernel's own copy at the boundary, counted and named as that.
        assert!(ledger.get(CopyReason::DeviceTx) >= (PIECES * LEN) as u64, "{ledger:?}");
    });
}
