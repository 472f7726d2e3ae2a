//! Entry points of the fuzz targets: a guest's memory, and a front end's messages, of any bytes.

use std::collections::VecDeque;
use std::fs::File;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use pagewire_mem::{CopyLedger, Gso, GsoKind, PacketBuf, Region, TxChecksum};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use vhost::vhost_user::BackendReqHandler;

use super::allowance::{Allowance, FrontEndLimits};
use super::double::layout;
use super::events::Events;
use super::features;
use super::front_end::FrontEnd;
use super::limits::MAX_FRAME;
use super::memory::Announced;
use super::port_state::PortState;
use super::receive::Receiver;
use super::session::Session;
use super::shared::Shared;
use super::transmit::Sender;
use super::vring::Addresses;
use super::window::Window;
use crate::DeviceCounters;
use crate::port::limits::MIN_POOL_BYTES;
use crate::port::{Port, PortConfig};
use crate::wake_event::WakeEvent;
use pagewire_mem::link::Medium;

/// Bytes of the fuzzed guest's memory.
const MEMORY: usize = 1 << 16;
/// Where the guest has it, and where the front end does.
const GUEST: u64 = 0x1000;
const USER: u64 = 0x7000_0000;
/// Descriptors of each ring.
const SIZE: u16 = 16;
/// Bytes for each ring: its three parts.
const RING: usize = 1024;

/// The device without its threads.
struct Bench {
    session: Session,
    window: Window,
    receiver: Receiver,
    sender: Sender,
    counters: DeviceCounters,
    ledger: CopyLedger,
}

impl Bench {
    fn new(features: u64, pairs: usize) -> Option<Self> {
        let wake = Arc::new(WakeEvent::new().ok()?);
        let events = Arc::new(Events::new(&wake).ok()?);
        let mut config = PortConfig::new(Medium::Ethernet);
        config.pool_bytes = MIN_POOL_BYTES;
        let receiver = Receiver::new(Port::new(config).ok()?, 200);
        let allowance = Allowance::new(FrontEndLimits::default(), false);
        let port_state = PortState::new(&wake, [pairs; 2], &allowance, false).ok()?;
        let mut session = Session::new(&events, &port_state);
        session.features = features & features::offered(pairs);
        let region = Region::memfd_shared("fuzz", MEMORY).ok()?;
        let file = File::from(region.fd()?.try_clone_to_owned().ok()?);
        let about = Announced { guest: GUEST, user: USER, len: MEMORY as u64, offset: 0 };
        session.memory.add(about, file).ok()?;
        let window = Window::over(region)?;
        let (sender, counters, ledger) =
            (Sender::new(), DeviceCounters::default(), CopyLedger::new());
        Some(Self { session, window, receiver, sender, counters, ledger })
    }

    /// Starts a ring in the memory as the guest left it.
    fn start(&mut self, index: usize) -> Option<()> {
        let event_index = self.session.has(features::EVENT_IDX);
        let Session { vrings, memory, events, .. } = &mut self.session;
        let vring = vrings.get_mut(index)?;
        let base = vring.stop(events);
        vring.set_base(base);
        let [desc, avail, used] = layout(index * RING, SIZE).map(|at| USER + at as u64);
        (vring.size, vring.addresses) = (SIZE, Some(Addresses { desc, avail, used }));
        vring.event_index = event_index;
        vring.enabled = true;
        vring.start(memory)
    }
}

/// Runs a device over memory that `data` writes, between its bursts, at any place. Received frames
/// have the length of a frame and lie in the guest's memory or in this process's; no page is lost,
/// and each held descriptor is given back. Does nothing if no memory is available.
pub fn virtqueue(data: &[u8]) {
    let Some((&[features, kept], mut rest)) = data.split_first_chunk::<2>() else { return };
    let bits = [
        features::INDIRECT_DESC,
        features::EVENT_IDX,
        features::MRG_RXBUF,
        features::VERSION_1,
        features::GUEST_CSUM,
        features::GUEST_TSO4,
        features::GUEST_USO4,
        features::GUEST_USO6,
    ];
    let chosen = (0..).zip(bits).filter(|(at, _)| features >> at & 1 != 0);
    let Some(mut bench) = Bench::new(chosen.fold(0, |all, (_, bit)| all | bit), 1) else { return };
    let (mut frames, mut held) = (VecDeque::new(), VecDeque::new());
    let _ = (bench.start(0), bench.start(1));
    // Each step: an action, an address in units of 8 bytes, a length, and that number of bytes.
    while let Some((&[what, low, high, len], after)) = rest.split_first_chunk::<4>() {
        let (bytes, next) = after.split_at(usize::from(len).min(after.len()));
        rest = next;
        let at = usize::from(u16::from_le_bytes([low, high])) * 8 % MEMORY;
        bench.window.write(at, bytes);
        let counts = (&mut bench.counters, &mut bench.ledger);
        match what % 4 {
            0 => {}
            1 => {
                bench.receiver.receive(&mut bench.session, 0, 64, counts, &mut frames);
            }
            2 => {
                let mut packet = PacketBuf::for_tx();
                let head = bytes.get(..bytes.len().min(60)).unwrap_or_default();
                if let Some(room) = packet.push(head.len()) {
                    room.copy_from_slice(head);
                }
                let payload = bytes::Bytes::from(bytes.repeat(usize::from(high)));
                let _ = packet.push_frag(payload.into());
                packet.tx_checksum = match what & 4 {
                    0 => TxChecksum::Done,
                    _ => TxChecksum::Partial { start: u16::from(low), offset: 6 },
                };
                if what & 8 != 0 {
                    let (size, header_len) = (u16::from(low) + 1, head.len() as u16);
                    packet.gso = Some(Gso { kind: GsoKind::Udp, size, header_len });
                }
                let mut out = VecDeque::from([packet]);
                bench.sender.send_all(&mut bench.session, &mut out, counts.0, counts.1);
            }
            _ => drop(bench.start(usize::from(what >> 2) % 2)),
        }
        for packet in frames.drain(..) {
            assert!((14..=MAX_FRAME).contains(&packet.len()), "no frame");
            held.push_back(packet);
        }
        while held.len() > usize::from(kept) {
            held.pop_front();
        }
    }
    drop(held);
    bench.receiver.port.end_turn();
    assert!(bench.receiver.port.pool_audit().is_conserved(), "a page was lost");
    for vring in &mut bench.session.vrings {
        vring.drain();
        assert_eq!(vring.held(), 0, "a descriptor is still held");
    }
}

/// Sends two devices the messages in `data`: code, flags, ancillary data, length, body. A front end
/// that sends invalid messages is disconnected; no other harm is done. The messages' socket is the
/// kernel's, their parser is the library's. Does nothing if no descriptor is available.
pub fn messages(data: &[u8]) {
    let (Some(bench), Some(other)) = (Bench::new(0, 2), Bench::new(0, 1)) else { return };
    let Ok((ours, theirs)) = UnixStream::pair() else { return };
    let memory = bench.session.memory.clone();
    let sessions = [bench.session, other.session];
    let devices: Arc<[_]> = sessions.map(|session| Arc::new(Shared::new(session))).into();
    let Some(mut front_end) = FrontEnd::new(Arc::clone(&devices)) else { return };
    if front_end.replace_memory(Ok(memory)).is_err() {
        return;
    }
    let front_end = Arc::new(Mutex::new(front_end));
    let mut rest = data;
    // Bytes that the kernel would not take without a reader are left out.
    let mut room = 1 << 14;
    while let Some((&[code, flags, along, len], after)) = rest.split_first_chunk::<4>() {
        let (body, next) = after.split_at(usize::from(len).min(after.len()));
        rest = next;
        if body.len() + 12 > room || !tell(&theirs, code, flags, along, body) {
            break;
        }
        room -= body.len() + 12;
    }
    // Ends a message that is shorter than announced.
    let _ = theirs.shutdown(std::net::Shutdown::Write);
    let mut handler = BackendReqHandler::from_stream(ours, Arc::clone(&front_end));
    while handler.handle_request().is_ok() {}
    // Bursts do no harm, with any setup.
    let (mut frames, mut counters) = (VecDeque::new(), DeviceCounters::default());
    let mut ledger = CopyLedger::new();
    for (device, mut receiver) in devices.iter().zip([bench.receiver, other.receiver]) {
        let mut session = device.session();
        for pair in 0..2 {
            receiver.receive(&mut session, pair, 64, (&mut counters, &mut ledger), &mut frames);
        }
        let _ = session.stop(1);
    }
    let mut front_end = front_end.lock().unwrap_or_else(PoisonError::into_inner);
    front_end.end(None);
}

/// Sends one message; the lowest bits of `along` select the ancillary data.
fn tell(to: &UnixStream, code: u8, flags: u8, along: u8, body: &[u8]) -> bool {
    let event = || eventfd(0, EventfdFlags::NONBLOCK).ok();
    let memory = || {
        let region = Region::memfd_shared("fuzz", MEMORY).ok()?;
        region.fd()?.try_clone_to_owned().ok()
    };
    let fds: Vec<OwnedFd> = match along % 8 {
        0..=2 => Vec::new(),
        3 | 4 => event().into_iter().collect(),
        5 => memory().into_iter().collect(),
        6 => [memory(), memory()].into_iter().flatten().collect(),
        _ => File::open("/dev/null").ok().map(OwnedFd::from).into_iter().collect(),
    };
    let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !borrowed.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&borrowed)) {
        return false;
    }
    // Some have a wrong length.
    let len = if along & 0x80 == 0 { body.len() } else { usize::from(along) * 16 };
    let header = [u32::from(code), u32::from(flags), len as u32].map(u32::to_le_bytes);
    let bytes = [header.as_flattened(), body].concat();
    sendmsg(to, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
        == Ok(bytes.len())
}
