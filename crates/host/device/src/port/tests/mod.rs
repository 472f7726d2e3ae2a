//! Ports: the paths of frames, the results that a writer gets, and the decisions of a hook.

mod hook;
mod paths;
mod room;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pagewire_mem::{CopyLedger, CopyReason, Frag, FragVec, PacketBuf};
use pagewire_testkit::built;
use pagewire_testkit::frames::{Headers, bytes_of, ip};

use super::*;
use pagewire_mem::link::Medium;

/// Headers as far as IPv4.
fn headers() -> Headers {
    ip([[2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1]], [[10, 0, 0, 2].into(), [10, 0, 0, 1].into()], 64)
}

/// A UDP datagram over IPv4 and Ethernet, `len` bytes long in all, at least 42.
fn udp_frame(len: usize) -> Vec<u8> {
    built!(headers().udp(9, 9), &(42..len).map(|i| i as u8).collect::<Vec<_>>())
}

/// A TCP segment over IPv4 and Ethernet, `len` bytes long in all, at least 54.
fn tcp_frame(len: usize) -> Vec<u8> {
    built!(headers().tcp(9, 9, 0, 0), &(54..len).map(|i| i as u8).collect::<Vec<_>>())
}

fn config() -> PortConfig {
    PortConfig::new(Medium::Ethernet)
}

/// A wake-up that counts how often it comes.
fn counted() -> (Wake, Arc<AtomicUsize>) {
    let woken = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&woken);
    let wake = move || _ = count.fetch_add(1, Ordering::Relaxed);
    (Arc::new(wake), woken)
}

const VHOST: WriteFlags = WriteFlags { nonblock: true, zerocopy: false };
const ZEROCOPY: WriteFlags = WriteFlags { nonblock: true, zerocopy: true };

/// A port, and the queue, ledger and consumers around it.
struct Bench {
    port: Port,
    out: VecDeque<PacketBuf>,
    ledger: CopyLedger,
    /// Packets that somebody keeps.
    held: Vec<PacketBuf>,
}

impl Bench {
    fn new(config: PortConfig) -> Self {
        let port = Port::new(config).unwrap();
        Self { port, out: VecDeque::new(), ledger: CopyLedger::new(), held: Vec::new() }
    }

    /// Somebody keeps what is in line.
    fn hold(&mut self) {
        self.held.extend(self.out.drain(..));
    }

    fn write(&mut self, frame: &[u8], how: WriteFlags) -> Result<Path, PortError> {
        self.write_with(&mut BytesSource::new(frame), how, Offload::default())
    }

    fn write_with<S: FrameSource>(
        &mut self,
        source: &mut S,
        how: WriteFlags,
        offload: Offload,
    ) -> Result<Path, PortError> {
        self.port.write(source, how, offload, &mut self.out, &mut self.ledger)
    }

    /// The bytes of the next packet for the stack.
    fn next(&mut self) -> Vec<u8> {
        bytes_of(&self.out.pop_front().expect("a packet for the stack"))
    }

    /// Frames that wait for the guest.
    fn for_guest(&mut self) -> Vec<Vec<u8>> {
        let mut out = VecDeque::new();
        self.port.poll_transmit(&mut out);
        out.iter().map(bytes_of).collect()
    }

    fn dropped(&self, reason: PortDrop) -> u64 {
        self.port.counters().dropped(reason)
    }

    /// Checks that all memory is home once everything made of it is dropped.
    fn assert_nothing_leaks(mut self) {
        self.out.clear();
        self.port.poll_transmit(&mut self.out);
        self.out.clear();
        self.port.carver.abandon();
        self.port.end_turn();
        let audit = self.port.pool_audit();
        assert!(audit.is_conserved() && audit.out == 0, "{audit:?}");
        assert_eq!(self.port.charged(), 0);
    }
}

/// A writer whose memory ends early.
struct Short(Vec<u8>, usize);

impl FrameSource for Short {
    fn len(&self) -> usize {
        self.1
    }

    fn copy_out(&mut self, offset: usize, into: &mut [u8]) -> Result<(), Fault> {
        let have = self.0.get(offset..).unwrap_or_default();
        let n = have.len().min(into.len());
        into[..n].copy_from_slice(&have[..n]);
        if n < into.len() { Err(Fault) } else { Ok(()) }
    }

    fn take_frags(&mut self, from: usize, _: usize) -> Option<FragVec> {
        let frag = Frag::from_bytes(bytes::Bytes::copy_from_slice(self.0.get(from..)?));
        Some(FragVec::from_iter([frag]))
    }
}
