//! A round of `bench port` by our port: frames go from a guest's ring through it into a stack.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use pagewire::bench::StackConfig;
use pagewire::bench::double::{Guest, GuestConfig};
use pagewire::device::{EarlyHook, FirstBytes, RawFrame, SendBuffer, Verdict, VhostUser};
use pagewire::services::{Instant, RecvFlags, SocketBind, Stack, UdpId};
use pagewire::{Device, LinkId};

use super::{BURST, MAC, PortPath, RECEIVER, SINK, datagram};
use crate::failure::Failure;
use crate::sys::thread_time;

/// Descriptors of the guest's ring: QEMU's default.
const RING: u16 = 256;

/// The send buffer that frames are charged to: a virtual machine's usual, more than a burst.
const SEND_BUFFER: usize = 1 << 20;

/// Bytes that the hook sees: more than the longest headers without options.
const FILTER_REACH: usize = 128;

/// Takes `frames` frames of `len` bytes from a guest; returns how much of this thread's time that
/// took. The guest, a test double, fills its ring in between, which does not count.
pub(super) fn round(
    path: PortPath,
    len: usize,
    frames: u64,
    stats: bool,
) -> Result<Duration, Failure> {
    let (mut device, mut guest) = plug(path, len)?;
    let (mut stack, sink) = stack(&device)?;
    let mut line = VecDeque::with_capacity(BURST);
    let (mut time, mut sent, mut arrived, mut bytes) = (Duration::ZERO, 0, 0, 0);
    while sent < frames {
        let batch = u64::from(RING).min(frames - sent);
        if guest.blast(batch as usize) as u64 != batch {
            let text = format!("the ring stands: {:?}", device.monitor().counters());
            return Err(Failure::Failed(text));
        }
        sent += batch;
        let started = thread_time();
        for _ in 0..batch.div_ceil(BURST as u64) {
            // The time is read once for a burst, as in a driver.
            let now = Instant::from_nanos(sent * 100);
            let received = device.receive(now, &mut line, BURST, stack.ledger_mut());
            received?;
            stack.handle_frames_on(now, LinkId::FIRST, &mut line);
            while let Ok((payload, _from)) = stack
                .udp(sink)
                .and_then(|mut udp| udp.recv(pagewire::services::OneDatagram, RecvFlags::empty()))
            {
                arrived += 1;
                bytes += payload.iter().map(|frag| frag.len() as u64).sum::<u64>();
            }
            stack.end_turn();
        }
        time += thread_time() - started;
    }
    let payload = (len as u64).saturating_sub(42);
    let expected = if path == PortPath::HookDrop { 0 } else { frames };
    if (arrived, bytes) != (expected, expected * payload) {
        let (counters, vhost) = (stack.counters(), device.monitor().counters());
        let text = format!("{arrived} of {expected} frames arrived: {counters:?} {vhost:?}");
        return Err(Failure::Failed(text));
    }
    let counters = *device.port().counters();
    let took = match path {
        PortPath::Accounted => counters.accounted,
        _ => counters.built,
    };
    if took != frames {
        return Err(Failure::Failed(format!("frames took another way: {counters:?}")));
    }
    if stats {
        let ours = stack.ledger().ours();
        eprintln!("{path:?} {len}: {counters:?}, {ours} bytes copied by the stack");
    }
    Ok(time)
}

/// A port, and a guest that has a frame in each of its buffers.
fn plug(path: PortPath, len: usize) -> Result<(VhostUser, Guest), Failure> {
    let (ours, theirs) = UnixStream::pair()?;
    // Frames of every length take the path that is measured.
    let mut builder = VhostUser::builder().mac(MAC).mtu(9000).by_reference_from(usize::MAX);
    if path == PortPath::Accounted {
        builder = builder.send_buffer(SendBuffer::Bytes(SEND_BUFFER));
    }
    let mut device = builder.over(ours)?;
    let send_buffer = len + 64;
    let config = GuestConfig { queue_size: RING, send_buffer, ..GuestConfig::default() };
    let mut guest = Guest::over(theirs, config)?;
    if !guest.load(&datagram(len)) {
        return Err(Failure::Failed(format!("{len} bytes do not fit a guest's buffer")));
    }
    // A filter on headers, as most are.
    let filter = |found, otherwise| {
        let look = move |frame: &mut RawFrame<'_>| {
            if is_for_the_sink(frame) { found } else { otherwise }
        };
        Some(Box::new(FirstBytes(FILTER_REACH, look)) as Box<dyn EarlyHook>)
    };
    device.port_mut().set_hook(match path {
        PortPath::HookPass => filter(Verdict::Pass, Verdict::Drop),
        PortPath::HookDrop => filter(Verdict::Drop, Verdict::Pass),
        PortPath::Build | PortPath::Accounted | PortPath::KernelTap => None,
    });
    Ok((device, guest))
}

/// A stack behind the port, and the socket that the frames are for.
fn stack(device: &VhostUser) -> Result<(Stack, UdpId), Failure> {
    let addresses = vec![format!("{RECEIVER}/24").parse()?];
    let config = StackConfig::new(device.capabilities().clone(), addresses, [7; 32]);
    let mut stack = Stack::new(Instant::ZERO, config)?;
    let sink = stack.bind_udp(SocketAddr::from((RECEIVER, SINK)), SocketBind::default())?;
    Ok((stack, sink))
}

/// The least work of a filter: it checks the protocol and the port.
fn is_for_the_sink(frame: &RawFrame<'_>) -> bool {
    let at = |at: usize, what: &[u8]| frame.data().get(at..at + what.len()) == Some(what);
    at(12, &[8, 0]) && at(23, &[17]) && at(36, &SINK.to_be_bytes())
}
