//! Frames through a port into a stack.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use pagewire_device::port::{
    Fault, FrameSource, Offload, RawFrame, SendBuffer, Verdict, WriteFlags,
};
use pagewire_device::{Capabilities, HeaderSplit, Medium, Port, PortConfig};
use pagewire_mem::{CopyLedger, FragVec, Instant, Region};
use pagewire_stack::{Stack, StackConfig};

use super::{BURST, SINK, datagram};
use crate::args::PortPath;
use crate::failure::Failure;
use crate::sys::thread_time;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const US: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

/// Frames that lie side by side in the writer's memory, as in a ring.
const SLOTS: usize = 256;

/// The send buffer of the accounted way: what virtual machines set where they limit it, and more than
/// a burst.
const SEND_BUFFER: usize = 1 << 20;

/// Takes `frames` frames of `len` bytes and says how long that took.
pub(super) fn round(
    path: PortPath,
    len: usize,
    frames: u64,
    stats: bool,
) -> Result<Duration, Failure> {
    let failed = |e: &dyn std::fmt::Display| Failure::Failed(e.to_string());
    let mut config = PortConfig::new(Medium::Ethernet);
    if path == PortPath::Accounted {
        config.send_buffer = SendBuffer::Bytes(SEND_BUFFER);
    }
    let mut port = Port::new(config).map_err(|e| failed(&e))?;
    match path {
        PortPath::HookPass => port.set_hook(Some(Box::new(|frame: &mut RawFrame<'_>| {
            if is_for_the_sink(frame) { Verdict::Pass } else { Verdict::Drop }
        }))),
        PortPath::HookDrop => port.set_hook(Some(Box::new(|frame: &mut RawFrame<'_>| {
            if is_for_the_sink(frame) { Verdict::Drop } else { Verdict::Pass }
        }))),
        PortPath::Build | PortPath::Accounted | PortPath::KernelTap => {}
    }
    let addresses = vec![format!("{US}/24").parse().map_err(|e| failed(&e))?];
    let config = StackConfig::new(capabilities(), addresses, [7; 32]);
    let mut stack = Stack::new(Instant::ZERO, config).map_err(|e| failed(&e))?;
    let sink = stack.udp_bind(SocketAddr::from((US, SINK))).map_err(|e| failed(&e))?;
    let mut memory = Memory::new(&datagram(MAC, len)).map_err(|e| failed(&e))?;
    let mut line = VecDeque::with_capacity(BURST);
    let how = WriteFlags { nonblock: true, zerocopy: false };

    let mut ledger = CopyLedger::new();
    let (mut written, mut arrived, mut bytes) = (0, 0, 0);
    let started = thread_time();
    while written < frames {
        let burst = (BURST as u64).min(frames - written);
        // One moment for a burst, as a driver has it.
        let now = Instant::from_nanos(written * 100);
        for _ in 0..burst {
            let offload = Offload::default();
            let taken = port.write(&mut memory.next(), how, offload, &mut line, &mut ledger);
            taken.map_err(|e| failed(&e))?;
        }
        written += burst;
        stack.handle_frames(now, &mut line);
        while let Ok((payload, _from)) = stack.udp_recv_from(now, sink) {
            arrived += 1;
            bytes += payload.iter().map(|frag| frag.len() as u64).sum::<u64>();
        }
        stack.end_turn();
        port.end_turn();
    }
    let time = thread_time() - started;

    stack.ledger_mut().add(&ledger);
    let payload = (len as u64).saturating_sub(42);
    let expected = if path == PortPath::HookDrop { 0 } else { frames };
    if (arrived, bytes) != (expected, expected * payload) {
        let text = format!("{arrived} of {expected} frames arrived: {:?}", stack.counters());
        return Err(Failure::Failed(text));
    }
    if stats {
        let ours = stack.ledger().ours();
        eprintln!("{path:?} {len}: {:?}, {ours} bytes copied by the stack", port.counters());
    }
    Ok(time)
}

/// What a filter does at least: look at the protocol and the port.
fn is_for_the_sink(frame: &RawFrame<'_>) -> bool {
    let at = |at: usize, what: &[u8]| frame.data().get(at..at + what.len()) == Some(what);
    at(12, &[8, 0]) && at(23, &[17]) && at(36, &SINK.to_be_bytes())
}

/// Memory that the writer may change at any time, with a frame in every slot.
struct Memory {
    region: Region,
    len: usize,
    slot: usize,
    next: usize,
}

impl Memory {
    fn new(frame: &[u8]) -> Result<Self, pagewire_mem::MemError> {
        let slot = frame.len().next_multiple_of(2048);
        let region = Region::memfd_shared("pagewire-guest", SLOTS * slot)?;
        for i in 0..SLOTS {
            region.copy_shared_in(i * slot, frame);
        }
        Ok(Self { region, len: frame.len(), slot, next: 0 })
    }

    /// The frame in the next slot.
    fn next(&mut self) -> Written<'_> {
        let at = self.next * self.slot;
        self.next = (self.next + 1) % SLOTS;
        Written { memory: self, at }
    }
}

struct Written<'a> {
    memory: &'a Memory,
    at: usize,
}

impl FrameSource for Written<'_> {
    fn len(&self) -> usize {
        self.memory.len
    }

    fn copy_out(&mut self, offset: usize, into: &mut [u8]) -> Result<(), Fault> {
        let copied = self.memory.region.copy_shared_out(self.at + offset, into);
        if copied == into.len() { Ok(()) } else { Err(Fault) }
    }

    fn take_frags(&mut self, _from: usize, _max: usize) -> Option<FragVec> {
        None
    }
}

fn capabilities() -> Capabilities {
    Capabilities {
        medium: Medium::Ethernet,
        mac: MAC,
        mtu: 9000,
        max_super_frame: 9000,
        rx_checksum: true,
        tx_checksum: false,
        tso_v4: false,
        tso_v6: false,
        max_frags: pagewire_mem::MAX_FRAGS,
        header_split: HeaderSplit::None,
        queues: 1,
        by_reference: false,
    }
}
