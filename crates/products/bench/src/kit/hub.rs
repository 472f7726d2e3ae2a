//! A hub in user space: devices whose frames go to each other, on a thread of their own. With a
//! fault wrapper around one of them, two kernels have the path of a host on a wrapped device.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pagewire::Device;
use pagewire::device::{PacketBuf, offload};
use pagewire::memory::CopyLedger;
use pagewire::services::Instant;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::failure::{Because, Failure};

/// Most frames taken from one device in a turn.
const BURST: usize = 64;

/// Frames kept for a device that has no room; more are lost, as on any bridge.
const MAX_QUEUED: usize = 1000;

/// Longest sleep of the hub before it checks whether it should stop.
const LONGEST_SLEEP: Duration = Duration::from_millis(20);

struct HubPort {
    device: Box<dyn Device>,
    /// A duplicate of the device's descriptor, so that the device is not borrowed.
    wait: Option<OwnedFd>,
    queue: VecDeque<PacketBuf>,
}

/// Moves frames between `devices` until `stop` is set.
pub(crate) fn run(devices: Vec<Box<dyn Device>>, stop: &AtomicBool) -> Result<(), Failure> {
    let mut ports: Vec<HubPort> = Vec::new();
    for device in devices {
        let wait = device.wait_fd().map(|fd| fd.try_clone_to_owned()).transpose();
        let wait = wait.because("a device's descriptor")?;
        ports.push(HubPort { device, wait, queue: VecDeque::new() });
    }
    let started = std::time::Instant::now();
    let clock = || Instant::from_nanos(started.elapsed().as_nanos() as u64);
    let mut hub = Hub { ports, stations: HashMap::new(), ledger: CopyLedger::new() };
    let mut burst = VecDeque::new();
    while !stop.load(Ordering::Relaxed) {
        let now = clock();
        if !hub.turn(now, &mut burst).because("the hub")? {
            hub.sleep(clock());
        }
    }
    Ok(())
}

struct Hub {
    ports: Vec<HubPort>,
    /// Where each station was last seen.
    stations: HashMap<[u8; 6], usize>,
    ledger: CopyLedger,
}

impl Hub {
    /// Whether anything moved.
    fn turn(
        &mut self,
        now: Instant,
        burst: &mut VecDeque<PacketBuf>,
    ) -> Result<bool, pagewire::device::DeviceError> {
        let mut moved = false;
        for from in 0..self.ports.len() {
            let Some(port) = self.ports.get_mut(from) else { break };
            moved |= port.device.receive(now, burst, BURST, &mut self.ledger)? > 0;
            for frame in burst.drain(..) {
                self.pass(from, frame);
            }
        }
        for port in &mut self.ports {
            // Even with nothing to send: the wrapper's frames may be due.
            let waiting = port.queue.len();
            port.device.transmit(now, &mut port.queue, &mut self.ledger)?;
            moved |= port.queue.len() < waiting;
        }
        Ok(moved)
    }

    fn pass(&mut self, from: usize, mut frame: PacketBuf) {
        let (to, source) = match frame.head() {
            [a, b, c, d, e, f, g, h, i, j, k, l, ..] => {
                ([*a, *b, *c, *d, *e, *f], [*g, *h, *i, *j, *k, *l])
            }
            _ => return,
        };
        self.stations.insert(source, from);
        offload::send_on(&mut frame);
        match self.stations.get(&to).copied() {
            Some(port) if port == from => {}
            Some(port) => self.queue(port, frame),
            None => {
                for port in (0..self.ports.len()).filter(|port| *port != from) {
                    self.queue(port, frame.clone());
                }
            }
        }
    }

    fn queue(&mut self, to: usize, frame: PacketBuf) {
        if let Some(port) = self.ports.get_mut(to)
            && port.queue.len() < MAX_QUEUED
        {
            port.queue.push_back(frame);
        }
    }

    /// Waits until a device has a frame, or a delayed one is due.
    fn sleep(&mut self, now: Instant) {
        let due = self.ports.iter().filter_map(|port| port.device.poll_timeout()).min();
        let wait = due.map_or(LONGEST_SLEEP, |at| at.saturating_since(now).min(LONGEST_SLEEP));
        let mut ready = wait.is_zero();
        for port in &mut self.ports {
            ready |= port.device.arm();
        }
        if !ready {
            let timeout = Timespec { tv_sec: 0, tv_nsec: wait.subsec_nanos().into() };
            let fds = self.ports.iter().filter_map(|port| port.wait.as_ref());
            let mut fds: Vec<_> = fds.map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
            // A failure only makes the next turn early.
            let _ = poll(&mut fds, Some(&timeout));
        }
        for port in &mut self.ports {
            port.device.disarm();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagewire::Pair;

    fn frame(to: u8, from: u8) -> PacketBuf {
        let mut frame = PacketBuf::for_tx();
        let head = frame.push(60).expect("room");
        head.fill(0);
        (head[5], head[11]) = (to, from);
        frame
    }

    #[test]
    fn frames_go_everywhere_until_a_station_was_seen_and_then_only_there() {
        let (mut outer, mut inner) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            let (a, b) = Pair::new().expect("a pair");
            outer.push(a);
            inner.push(HubPort { device: Box::new(b), wait: None, queue: VecDeque::new() });
        }
        let mut hub = Hub { ports: inner, stations: HashMap::new(), ledger: CopyLedger::new() };
        let (mut ledger, mut burst) = (CopyLedger::new(), VecDeque::new());
        let mut pass = |outer: &mut Vec<pagewire::device::PairEnd>, at: usize, frame: PacketBuf| {
            let mut frames = VecDeque::from([frame]);
            outer[at].transmit(Instant::ZERO, &mut frames, &mut ledger).expect("open");
            assert!(hub.turn(Instant::ZERO, &mut burst).expect("open"));
            let mut arrived = |end: &mut pagewire::device::PairEnd| {
                let mut frames = VecDeque::new();
                end.receive(Instant::ZERO, &mut frames, 10, &mut ledger).expect("open")
            };
            outer.iter_mut().map(&mut arrived).collect::<Vec<_>>()
        };
        assert_eq!(pass(&mut outer, 0, frame(2, 1)), [0, 1, 1], "nobody knows 2");
        assert_eq!(pass(&mut outer, 1, frame(1, 2)), [1, 0, 0]);
        assert_eq!(pass(&mut outer, 2, frame(2, 3)), [0, 1, 0]);
    }
}
