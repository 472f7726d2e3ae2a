//! The links of the cores: a pair for each, and one more by which some frames come to another core than their own.
//!
//! ```text
//!   client 0 ---- pair ----> queue 0 --> shard 0
//!          \----- pair ----> queue 1
//!   client 1 ---- pair ----> queue 1 --> shard 1
//!          \----- pair ----> queue 0
//! ```
//!
//! A client's frames go to the queue of its own core, but a given share of them to that of the next core, as from a
//! network card whose steering is wrong. What a shard sends goes to the client that it is addressed to, which is
//! nearly always that of its own core.
//!
//! Two other ways of the drawn frames ([`DrawnWay`]) tell the price of a stray from the price of this link. To draw
//! them and to put them behind the others has a price without any stray. And the way of a stray, from client 0 to
//! core 1 and back to core 0, has a price without any shard.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pagewire::device::{
    Capabilities, DeviceCounters, DeviceError, FaultRng, PacketBuf, PairConfig, PairEnd, RxChecksum,
};
use pagewire::memory::CopyLedger;
use pagewire::services::Instant;
use pagewire::{Device, Pair};

use super::flood::Flood;
use super::stations::{SERVER_MAC, mac};
use crate::failure::Failure;

/// Frames that a link between two cores holds.
const AWAY_FRAMES: usize = 4096;

/// The two ends of a core's link.
pub(super) struct CoreLink {
    pub(super) queue: LinkEnd,
    pub(super) client: LinkEnd,
    /// Frames that the queue itself passed on.
    pub(super) relayed: Arc<AtomicU64>,
}

/// An end of a core's link.
pub(super) struct LinkEnd {
    pair: PairEnd,
    away: Option<Away>,
    relay: Option<Relay>,
    /// Frames that come in beside those of the other end.
    pub(super) flood: Option<Flood>,
}

/// The way of the drawn frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DrawnWay {
    /// To the queue of the next core, whose shard passes them on.
    Strays,
    /// To the queue of the next core, which passes them on ([`Relay`]).
    Relay,
    /// To the queue of their own core, which takes them up one call later: as late as strays.
    Late,
    /// To the queue of their own core, behind the others.
    Own,
}

/// What passes the frames that came in at the wrong queue on to the right one, in place of the shards.
struct Relay {
    /// To the queue of the core before, whose client's strays come in here.
    to: PairEnd,
    /// From the queue of the next core.
    from: PairEnd,
    /// Frames that are passed on; empty in between.
    passing: VecDeque<PacketBuf>,
    relayed: Arc<AtomicU64>,
}

/// An end of a link to another core.
struct Away {
    pair: PairEnd,
    choice: Choice,
    way: DrawnWay,
    /// Frames for the other core, on their way through one call.
    leaving: VecDeque<PacketBuf>,
    /// Those behind the first of these that do not leave.
    staying: VecDeque<PacketBuf>,
    /// Those that came in and are late.
    late: VecDeque<PacketBuf>,
}

/// The frames that go to the other core.
enum Choice {
    /// A client's: a share of all.
    Strays(Strays),
    /// A queue's: those to the client of that core, which has this number.
    Client(u8),
}

/// Links for `count` cores. `percent` of the clients' frames come in at the next core's queue, if there are several;
/// `way`: where they go then.
pub(super) fn links(count: usize, percent: u8, way: DrawnWay) -> Result<Vec<CoreLink>, Failure> {
    let pair = |number, queue_frames| {
        let config = PairConfig { macs: [mac(number), SERVER_MAC], ..PairConfig::default() };
        Pair::with(PairConfig { queue_frames, ..config })
    };
    let queue_frames = PairConfig::default().queue_frames;
    let mut all = Vec::with_capacity(count);
    let mut from_previous = VecDeque::with_capacity(count);
    for number in (0..).take(count) {
        let (near, far) = pair(number, queue_frames)?;
        let mut client = LinkEnd::new(near);
        if count > 1 && percent > 0 {
            let (near, far) = pair(number, AWAY_FRAMES)?;
            let strays = Strays { percent, chance: FaultRng::new(number.into()) };
            client.away = Some(Away::new(near, Choice::Strays(strays), way));
            from_previous.push_back(Away::new(far, Choice::Client(number), way));
        }
        all.push(CoreLink { queue: LinkEnd::new(far), client, relayed: Arc::default() });
    }
    // The last core's strays come in at the first.
    if way != DrawnWay::Late
        && let Some(last) = from_previous.pop_back()
    {
        from_previous.push_front(last);
    }
    for (link, away) in all.iter_mut().zip(from_previous) {
        link.queue.away = Some(away);
    }
    if count > 1 && way == DrawnWay::Relay {
        add_relays(&mut all)?;
    }
    Ok(all)
}

/// Lets each queue pass frames on to that of the core before.
fn add_relays(links: &mut [CoreLink]) -> Result<(), Failure> {
    let pair = || Pair::with(PairConfig { queue_frames: AWAY_FRAMES, ..PairConfig::default() });
    let (mut to, mut from) = (VecDeque::new(), VecDeque::new());
    for _ in 0..links.len() {
        let (near, far) = pair()?;
        to.push_back(near);
        from.push_back(far);
    }
    // The relay of queue n + 1 ends at queue n.
    if let Some(first) = from.pop_front() {
        from.push_back(first);
    }
    for ((link, to), from) in links.iter_mut().zip(to).zip(from) {
        let relayed = Arc::clone(&link.relayed);
        link.queue.relay = Some(Relay { to, from, passing: VecDeque::new(), relayed });
    }
    Ok(())
}

/// Draws the frames that come in elsewhere.
struct Strays {
    percent: u8,
    chance: FaultRng,
}

impl Strays {
    fn draw(&mut self) -> bool {
        self.chance.below(100) < u64::from(self.percent)
    }
}

/// Whether a frame has an IPv4 packet. ARP stays on its own link: an answer goes back where the request came in.
fn has_ipv4(frame: &PacketBuf) -> bool {
    matches!(frame.head(), [_, _, _, _, _, _, _, _, _, _, _, _, 0x08, 0x00, ..])
}

impl Choice {
    fn takes(&mut self, frame: &PacketBuf) -> bool {
        match self {
            Self::Strays(strays) => has_ipv4(frame) && strays.draw(),
            Self::Client(number) => frame.head().starts_with(&mac(*number)),
        }
    }
}

impl Away {
    fn new(pair: PairEnd, choice: Choice, way: DrawnWay) -> Self {
        Self {
            pair,
            choice,
            way,
            leaving: VecDeque::new(),
            staying: VecDeque::new(),
            late: VecDeque::new(),
        }
    }

    /// Sends the frames that are for the other core. The others stay, in order.
    fn transmit(
        &mut self,
        now: Instant,
        frames: &mut VecDeque<PacketBuf>,
        ledger: &mut CopyLedger,
    ) -> Result<(), DeviceError> {
        // A frame is four cache lines long: those before the first that leaves are not moved.
        let Some(first) = frames.iter().position(|frame| self.choice.takes(frame)) else {
            return Ok(());
        };
        let mut rest = frames.drain(first..);
        self.leaving.extend(rest.next());
        for frame in rest {
            let to = if self.choice.takes(&frame) { &mut self.leaving } else { &mut self.staying };
            to.push_back(frame);
        }
        frames.append(&mut self.staying);
        if self.way == DrawnWay::Own {
            frames.append(&mut self.leaving);
        }
        self.pair.transmit(now, &mut self.leaving, ledger)?;
        // Without room they are lost, as in a full ring.
        self.leaving.clear();
        Ok(())
    }
}

impl Away {
    fn receive(
        &mut self,
        now: Instant,
        frames: &mut VecDeque<PacketBuf>,
        max: usize,
        ledger: &mut CopyLedger,
    ) -> Result<usize, DeviceError> {
        if self.way != DrawnWay::Late {
            return self.pair.receive(now, frames, max, ledger);
        }
        let count = self.late.len();
        frames.append(&mut self.late);
        self.pair.receive(now, &mut self.late, max, ledger)?;
        Ok(count)
    }
}

impl Relay {
    /// Passes on what the link to another core brings, and receives what another queue passed on.
    fn receive(
        &mut self,
        away: &mut Away,
        now: Instant,
        frames: &mut VecDeque<PacketBuf>,
        max: usize,
        ledger: &mut CopyLedger,
    ) -> Result<usize, DeviceError> {
        let count = away.pair.receive(now, &mut self.passing, max, ledger)?;
        self.relayed.fetch_add(count as u64, Ordering::Relaxed);
        self.to.transmit(now, &mut self.passing, ledger)?;
        self.passing.clear();
        let before = frames.len();
        let count = self.from.receive(now, frames, max, ledger)?;
        // No checksum is computed between the ends of a pair, and the second pair cannot know of the first.
        frames.iter_mut().skip(before).for_each(|frame| frame.rx_checksum = RxChecksum::Valid);
        Ok(count)
    }
}

impl LinkEnd {
    fn new(pair: PairEnd) -> Self {
        Self { pair, away: None, relay: None, flood: None }
    }
}

impl Device for LinkEnd {
    fn capabilities(&self) -> &Capabilities {
        self.pair.capabilities()
    }

    fn transmit(
        &mut self,
        now: Instant,
        frames: &mut VecDeque<PacketBuf>,
        ledger: &mut CopyLedger,
    ) -> Result<(), DeviceError> {
        if let Some(away) = &mut self.away {
            away.transmit(now, frames, ledger)?;
        }
        self.pair.transmit(now, frames, ledger)
    }

    fn receive(
        &mut self,
        now: Instant,
        frames: &mut VecDeque<PacketBuf>,
        max: usize,
        ledger: &mut CopyLedger,
    ) -> Result<usize, DeviceError> {
        let mut count = self.pair.receive(now, frames, max, ledger)?;
        if let Some(away) = &mut self.away {
            let max = max.saturating_sub(count);
            count += match &mut self.relay {
                Some(relay) => relay.receive(away, now, frames, max, ledger)?,
                None => away.receive(now, frames, max, ledger)?,
            };
        }
        if let Some(flood) = &mut self.flood {
            count += flood.receive(frames, max.saturating_sub(count));
        }
        Ok(count)
    }

    fn counters(&self) -> DeviceCounters {
        self.pair.counters()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(to: [u8; 6]) -> PacketBuf {
        let mut frame = PacketBuf::for_tx();
        let head = frame.push(60).expect("room");
        head.fill(0);
        head[..6].copy_from_slice(&to);
        head[12..14].copy_from_slice(&[0x08, 0x00]);
        frame
    }

    /// How many frames an end receives.
    fn received(end: &mut LinkEnd) -> usize {
        let mut frames = VecDeque::new();
        end.receive(Instant::ZERO, &mut frames, 1000, &mut CopyLedger::new()).expect("open")
    }

    fn send(end: &mut LinkEnd, frames: impl IntoIterator<Item = PacketBuf>) {
        let mut frames: VecDeque<_> = frames.into_iter().collect();
        end.transmit(Instant::ZERO, &mut frames, &mut CopyLedger::new()).expect("open");
        assert!(frames.is_empty());
    }

    #[test]
    fn the_given_share_of_frames_comes_in_at_the_next_core() {
        for (percent, expected) in [(0, 0..=0), (10, 3..=20), (50, 35..=65), (100, 100..=100)] {
            let mut links = links(3, percent, DrawnWay::Strays).expect("links");
            let [first, second, last] = &mut links[..] else { panic!("three") };
            send(&mut last.client, (0..100).map(|_| frame(SERVER_MAC)));
            let (away, home) = (received(&mut first.queue), received(&mut last.queue));
            assert!(expected.contains(&away), "{percent} %: {away}");
            assert_eq!((away + home, received(&mut second.queue)), (100, 0));
        }
    }

    #[test]
    fn a_core_alone_has_no_strays_whatever_is_asked_for() {
        let mut links = links(1, 50, DrawnWay::Relay).expect("links");
        send(&mut links[0].client, (0..100).map(|_| frame(SERVER_MAC)));
        assert_eq!(received(&mut links[0].queue), 100);
    }

    #[test]
    fn a_relay_brings_strays_back_to_the_queue_of_their_own_core() {
        let mut links = links(3, 100, DrawnWay::Relay).expect("links");
        let [first, second, last] = &mut links[..] else { panic!("three") };
        send(&mut last.client, (0..100).map(|_| frame(SERVER_MAC)));
        assert_eq!([received(&mut last.queue), received(&mut second.queue)], [0, 0]);
        assert_eq!((received(&mut first.queue), received(&mut last.queue)), (0, 100));
        let relayed = [&*first, second, last].map(|link| link.relayed.load(Ordering::Relaxed));
        assert_eq!(relayed, [100, 0, 0]);
    }

    #[test]
    fn what_a_shard_sends_comes_to_the_client_that_it_is_addressed_to() {
        let mut links = links(2, 1, DrawnWay::Strays).expect("links");
        send(&mut links[0].queue, [mac(0), mac(1), [0xff; 6]].map(frame));
        assert_eq!(
            links.iter_mut().map(|link| received(&mut link.client)).collect::<Vec<_>>(),
            [2, 1]
        );
    }
}
