//! Hosts that are treated badly: by their device, their peer or their program. Without threads, so
//! that nothing depends on a clock.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use pagewire::Instant;
use pagewire::device::PacketBuf;
use pagewire::device::{Capabilities, Device, DeviceCounters, DeviceError, Pair, PairConfig};
use pagewire::{CopyLedger, Host};

#[test]
fn a_turn_fills_the_room_that_the_device_has() {
    let (left, right) =
        Pair::new(PairConfig { queue_frames: 4, ..Default::default() }).expect("pair");
    let server =
        Host::builder().device(left).address("10.0.0.1/24").manual().start().expect("host");
    let client =
        Host::builder().device(right).address("10.0.0.2/24").manual().start().expect("host");
    let one = server.udp("10.0.0.1:53").expect("bind");
    let two = client.udp("10.0.0.2:53").expect("bind");
    one.set_nonblocking(true).expect("set");
    let receive = || {
        server.turn();
        std::iter::from_fn(|| one.recv(&mut [0; 9]).ok()).count()
    };
    two.send_to(b"resolve", "10.0.0.1:53").expect("send");
    for _ in 0..9 {
        client.turn();
        server.turn();
    }
    receive();
    for i in 0..20u8 {
        two.send_to(&[i], "10.0.0.1:53").expect("send");
    }
    assert_eq!(receive(), 4, "what the link held");
    for _ in 0..4 {
        client.turn();
        assert_eq!(receive(), 4, "one turn, all the room there was");
    }
}

/// A device whose other side has gone: its descriptor is ready for ever, as that of a tap whose
/// interface was deleted.
struct Gone {
    capabilities: Capabilities,
    ready: io::PipeReader,
}

impl Gone {
    fn new() -> Self {
        let (left, _right) = Pair::new(PairConfig::default()).expect("pair");
        // The writer is dropped: the reader polls as hung up.
        let (ready, _) = io::pipe().expect("pipe");
        Self { capabilities: left.capabilities().clone(), ready }
    }
}

impl Device for Gone {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn transmit(
        &mut self,
        _: Instant,
        _: &mut VecDeque<PacketBuf>,
        _: &mut CopyLedger,
    ) -> Result<(), DeviceError> {
        Err(DeviceError::Closed)
    }

    fn receive(
        &mut self,
        _: Instant,
        _: &mut VecDeque<PacketBuf>,
        _: usize,
        _: &mut CopyLedger,
    ) -> Result<usize, DeviceError> {
        Err(DeviceError::Closed)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.ready.as_fd())
    }

    fn counters(&self) -> DeviceCounters {
        DeviceCounters::default()
    }
}

#[test]
fn a_device_that_is_gone_is_not_waited_for_busily() {
    let host =
        Host::builder().device(Gone::new()).address("10.0.0.1/24").manual().start().expect("host");
    host.turn();
    // The announcements of a new address are the only timers; they are two seconds apart.
    let (limit, start) = (Duration::from_millis(20), std::time::Instant::now());
    host.wait_turn(limit);
    assert!(start.elapsed() >= limit, "woken at once by a descriptor that is always ready");
    assert!(host.stats().device_error.is_some_and(|e| e.contains("closed")));
}
