//! A [`Path`], one direction of a link: a line with faults, which can be cut or held.

use std::collections::VecDeque;

use pagewire_device::{FaultCounters, FaultPath, FaultRng, Medium};
use pagewire_mem::{Instant, PacketBuf};

use crate::events::queue::SourceId;
use crate::network::link::Link;
use crate::record::packet_event::PacketEvent;
use crate::record::recorder::Recorder;
use crate::{HostId, SimTime};

/// The part of the way between two hosts that a path is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Stage {
    /// From a host, to all others.
    Uplink(HostId),
    /// From one host to one other.
    Between(HostId, HostId),
    /// From all others, to a host.
    Downlink(HostId),
}

impl Stage {
    /// The hosts at the ends, where there is a single one.
    fn ends(self) -> (Option<HostId>, Option<HostId>) {
        match self {
            Self::Uplink(from) => (Some(from), None),
            Self::Between(from, to) => (Some(from), Some(to)),
            Self::Downlink(to) => (None, Some(to)),
        }
    }
}

pub(crate) struct Path {
    pub(crate) stage: Stage,
    pub(crate) source: SourceId,
    link: Link,
    /// The link that was set for this path; `None`: the path has the default link.
    own: Option<Link>,
    /// Number of slow links that have not ended; meanwhile the link is the last of these.
    slow: u32,
    line: FaultPath,
    /// Packets are lost where they enter and where they leave.
    cut: bool,
    /// Packets wait at the end. A packet that leaves is lost nevertheless if the path is cut then.
    held: bool,
    waiting: VecDeque<PacketBuf>,
    random: FaultRng,
    broken: bool,
    /// Packets that waited and were released: they leave the path next.
    released: VecDeque<PacketBuf>,
}

impl Path {
    pub(crate) fn new(stage: Stage, source: SourceId, link: Link, seed: u64) -> Self {
        Self {
            stage,
            source,
            link,
            own: None,
            slow: 0,
            line: FaultPath::new(link.line(seed), Medium::Ip),
            cut: false,
            held: false,
            waiting: VecDeque::new(),
            random: FaultRng::new(!seed),
            broken: false,
            released: VecDeque::new(),
        }
    }

    pub(crate) fn link(&self) -> &Link {
        &self.link
    }

    /// Changes the link for packets that enter from now on.
    fn set_link(&mut self, link: Link) {
        self.link = link;
        self.line.reconfigure(link.line(0));
        self.broken &= link.flaps.is_some();
    }

    /// Sets the path's own link. It takes effect at the end of slow links.
    pub(crate) fn set_own(&mut self, link: Link) {
        self.own = Some(link);
        if self.slow == 0 {
            self.set_link(link);
        }
    }

    /// Takes the new default link, unless the path has a link of its own.
    pub(crate) fn note_default(&mut self, default: Link) {
        if self.slow == 0 && self.own.is_none() {
            self.set_link(default);
        }
    }

    /// Sets a slow link, until [`recover`](Self::recover) was called as often.
    pub(crate) fn make_slow(&mut self, link: Link) {
        self.slow += 1;
        self.set_link(link);
    }

    /// Ends a slow link; the path has its usual link again once all slow links have ended.
    pub(crate) fn recover(&mut self, default: Link) {
        self.slow = self.slow.saturating_sub(1);
        if self.slow == 0 {
            self.set_link(self.own.unwrap_or(default));
        }
    }

    /// Cuts the path: packets on the way are lost when they would arrive.
    pub(crate) fn cut(&mut self) {
        self.cut = true;
    }

    /// Ends a cut; a hold stays.
    pub(crate) fn repair(&mut self) {
        (self.cut, self.broken) = (false, false);
    }

    /// Lets packets wait at the end of the path.
    pub(crate) fn hold(&mut self) {
        self.held = true;
    }

    /// Ends a hold: packets that wait leave the path at once, in order. A cut stays.
    pub(crate) fn release(&mut self) {
        self.held = false;
        self.released.append(&mut self.waiting);
    }

    /// The words for what keeps packets from coming through.
    pub(crate) fn obstacle(&self) -> Option<&'static str> {
        match (self.cut, self.held) {
            (false, false) => None,
            (true, false) => Some("cut"),
            (false, true) => Some("held"),
            (true, true) => Some("cut and held"),
        }
    }

    /// When [`poll`](Self::poll) has work.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        if self.released.is_empty() { self.line.poll_timeout() } else { Some(Instant::ZERO) }
    }

    /// Lets a packet enter. `Some`: the packet is longer than the link's MTU, which the sender is to learn.
    pub(crate) fn handle(
        &mut self,
        now: SimTime,
        frame: PacketBuf,
        record: &mut Recorder,
    ) -> Option<(usize, PacketBuf)> {
        let (from, to) = self.stage.ends();
        if self.cut {
            record.frame(now, PacketEvent::Cut, from, to, &frame);
            return None;
        }
        if let Some(flaps) = self.link.flaps {
            self.broken = flaps.is_broken(self.broken, &mut self.random);
            if self.broken {
                record.frame(now, PacketEvent::Broken, from, to, &frame);
                return None;
            }
        }
        if wire_len(&frame) > self.link.mtu {
            if self.link.hole {
                record.frame(now, PacketEvent::BlackHole, from, to, &frame);
                return None;
            }
            if may_not_be_fragmented(&frame) {
                record.frame(now, PacketEvent::TooBig, from, to, &frame);
                return Some((self.link.mtu, frame));
            }
        }
        let before = self.line.counters();
        // A copy of the headers and references, for the listeners of the record.
        let copy = self.may_change().then(|| frame.clone());
        self.line.handle(now.into(), frame, &mut record.ledger);
        if let Some(frame) = copy {
            for event in events_between(&before, &self.line.counters()) {
                record.frame(now, event, from, to, &frame);
            }
        }
        None
    }

    /// The next packet that leaves the path by `now`.
    pub(crate) fn poll(&mut self, now: SimTime, record: &mut Recorder) -> Option<PacketBuf> {
        let (from, to) = self.stage.ends();
        loop {
            let released = self.released.pop_front();
            let waited = released.is_some();
            let frame = match released {
                Some(frame) => frame,
                None => self.line.poll(now.into(), &mut record.ledger)?,
            };
            if self.held && !waited {
                record.frame(now, PacketEvent::Held, from, to, &frame);
                self.waiting.push_back(frame);
            } else if self.cut {
                record.frame(now, PacketEvent::Cut, from, to, &frame);
            } else {
                return Some(frame);
            }
        }
    }

    /// Whether the line does more than delay packets.
    fn may_change(&self) -> bool {
        use pagewire_device::Chance;
        let faults = &self.link.faults;
        let chances = [faults.loss, faults.duplicate, faults.reorder, faults.corrupt];
        chances.iter().any(|&chance| chance != Chance::NEVER) || faults.rate.is_some()
    }
}

/// Bytes of a packet on the wire; for a super-frame, of one of its segments.
fn wire_len(frame: &PacketBuf) -> usize {
    match frame.gso {
        Some(gso) => usize::from(gso.header_len) + usize::from(gso.size),
        None => frame.len(),
    }
}

/// IPv6, or IPv4 with "don't fragment" (RFC 791 section 3.1).
fn may_not_be_fragmented(frame: &PacketBuf) -> bool {
    match frame.head() {
        [0x40..=0x4f, _, _, _, _, _, flags, ..] => flags & 0x40 != 0,
        _ => true,
    }
}

/// The events between two readings of the line's counters.
fn events_between(
    before: &FaultCounters,
    after: &FaultCounters,
) -> impl Iterator<Item = PacketEvent> + use<> {
    let since = after.since(before);
    let pairs = [
        (PacketEvent::Lost, since.lost),
        (PacketEvent::QueueFull, since.lost_queue_full),
        (PacketEvent::Early, since.lost_early),
        (PacketEvent::LineFull, since.lost_line_full),
        (PacketEvent::Duplicated, since.duplicated),
        (PacketEvent::Corrupted, since.corrupted),
        (PacketEvent::Marked, since.marked),
        (PacketEvent::Reordered, since.reordered),
    ];
    pairs.into_iter().filter(|(_, n)| *n > 0).map(|(event, _)| event)
}
