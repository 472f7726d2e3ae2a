//! The network and its clock.
//!
//! ```text
//!   node 0 --up--> [        ] --down--> node 1
//!          <-down- [ switch ] <--up---
//!   node 2 --up--> [        ] ...
//! ```
//!
//! Every node has one link to a switch that learns where stations are. A link is two bad paths, one
//! each way ([`FaultConfig`]). Nothing here reads a clock or a random source: time moves from event
//! to event, and a seed determines the rest, so a simulation repeats exactly.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use pagewire_device::{
    FaultConfig, FaultCounters, FaultDirection, FaultPath, FaultRng, Medium, PcapConfig,
    PcapDirection, PcapInterface, PcapWriter, hand_over,
};
use pagewire_mem::{CopyLedger, Instant, PacketBuf, PoolAudit};

use super::limits::{
    MAX_BURSTS_PER_TURN, MAX_STATIONS, MAX_TURNS, MAX_TURNS_AT_ONE_MOMENT, MIN_DELAY,
};
use super::node::Node;

/// Names a node of one simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeId(usize);

/// Why a simulation fails.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SimError {
    /// Virtual time stands still while the nodes send.
    #[error("livelock: {turns} turns at {at:?} and no end")]
    Livelock {
        /// The moment.
        at: Instant,
        /// Turns taken at that moment.
        turns: u64,
    },
    /// No event is left, and the awaited condition is not true.
    #[error("deadlock: nothing is due after {at:?}, and what was waited for has not happened")]
    Deadlock {
        /// The moment.
        at: Instant,
    },
    /// The awaited condition took too long.
    #[error("not done by {limit:?}")]
    TooLong {
        /// The limit.
        limit: Instant,
    },
    /// A page was lost, or counted twice.
    #[error("{node:?} does not conserve its pages: {audit:?}")]
    Pages {
        /// The node.
        node: NodeId,
        /// The counts.
        audit: PoolAudit,
    },
    /// An oracle of the scenario found an error.
    #[error("{0}")]
    Oracle(String),
    /// The capture cannot be written.
    #[error("capture: {0}")]
    Capture(#[from] io::Error),
}

/// A virtual network with a virtual clock.
pub struct Sim<N> {
    seed: u64,
    random: FaultRng,
    now: Instant,
    attached: Vec<Attachment<N>>,
    /// Where each station was last seen.
    stations: HashMap<[u8; 6], usize>,
    turns: u64,
    turns_now: u64,
    capture: Option<PcapWriter<File>>,
    /// Copies that paths make (damage, snapshots for checksums).
    ledger: CopyLedger,
    burst: VecDeque<PacketBuf>,
}

struct Attachment<N> {
    node: N,
    up: FaultPath,
    down: FaultPath,
    /// The node acted, or was used, and may have output.
    touched: bool,
    interface: Option<PcapInterface>,
}

impl<N: Node> Sim<N> {
    /// An empty network. `seed` determines everything random in it.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            random: FaultRng::new(seed),
            now: Instant::ZERO,
            attached: Vec::new(),
            stations: HashMap::new(),
            turns: 0,
            turns_now: 0,
            capture: None,
            ledger: CopyLedger::new(),
            burst: VecDeque::new(),
        }
    }

    /// Attaches a node, over a link with these faults: [`FaultDirection::Transmit`] is away from
    /// the node. A link delays at least a microsecond each way.
    pub fn add(&mut self, node: N, faults: FaultConfig) -> Result<NodeId, SimError> {
        let mut path = |direction: FaultDirection| {
            let touched = faults.on == FaultDirection::Both || faults.on == direction;
            let config = if touched { faults } else { FaultConfig::delayed(Duration::ZERO) };
            let seed = self.random.next_u64() ^ faults.seed;
            let delay = config.delay.max(MIN_DELAY);
            FaultPath::new(FaultConfig { seed, delay, ..config }, Medium::Ethernet)
        };
        let (up, down) = (path(FaultDirection::Transmit), path(FaultDirection::Receive));
        let id = NodeId(self.attached.len());
        let interface = match &mut self.capture {
            Some(capture) => {
                Some(capture.add_interface(&format!("node{}", id.0), Medium::Ethernet)?)
            }
            None => None,
        };
        self.attached.push(Attachment { node, up, down, touched: true, interface });
        Ok(id)
    }

    /// Writes what nodes send and receive to a pcapng file; to be called before nodes are added.
    pub fn capture(&mut self, path: &Path) -> Result<(), SimError> {
        self.capture = Some(PcapWriter::new(File::create(path)?, PcapConfig::default())?);
        Ok(())
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The virtual clock.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Random numbers from the seed, for scenarios.
    pub fn random(&mut self) -> &mut FaultRng {
        &mut self.random
    }

    /// A node.
    pub fn node(&self, id: NodeId) -> &N {
        &self.attached[id.0].node
    }

    /// A node, mutable. Its output is sent with the next [`step`](Self::step).
    pub fn node_mut(&mut self, id: NodeId) -> &mut N {
        let link = &mut self.attached[id.0];
        link.touched = true;
        &mut link.node
    }

    /// Iterates over all nodes, in the order of [`Sim::add`].
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> + use<N> {
        (0..self.attached.len()).map(NodeId)
    }

    /// Counts of the node's link: away from the node, and towards it.
    pub fn faults(&self, id: NodeId) -> (FaultCounters, FaultCounters) {
        let link = &self.attached[id.0];
        (link.up.counters(), link.down.counters())
    }

    /// Frames that are on the way.
    pub fn in_flight(&self) -> usize {
        self.attached.iter().map(|link| link.up.in_flight() + link.down.in_flight()).sum()
    }

    /// Sends the output of nodes that were used; returns the time of the next event, if any.
    pub fn poll_timeout(&mut self) -> Result<Option<Instant>, SimError> {
        for at in 0..self.attached.len() {
            self.transmit(at)?;
        }
        for at in 0..self.attached.len() {
            self.switch(at);
        }
        if self.attached.iter().any(|link| link.touched) {
            return Ok(Some(self.now));
        }
        let due = self.attached.iter().flat_map(|link| {
            [link.up.poll_timeout(), link.down.poll_timeout(), link.node.poll_timeout()]
        });
        Ok(due.flatten().min())
    }

    /// Moves the clock to the next event and handles what is due; `false`: there is no event.
    pub fn step(&mut self) -> Result<bool, SimError> {
        let Some(at) = self.poll_timeout()? else {
            self.check_pages()?;
            return Ok(false);
        };
        self.advance(at);
        self.turns_now += 1;
        self.turns += 1;
        if self.turns_now > MAX_TURNS_AT_ONE_MOMENT || self.turns > MAX_TURNS {
            return Err(SimError::Livelock { at: self.now, turns: self.turns_now });
        }
        for at in 0..self.attached.len() {
            self.deliver(at)?;
            self.transmit(at)?;
        }
        for at in 0..self.attached.len() {
            self.switch(at);
        }
        self.check_pages()?;
        Ok(true)
    }

    /// Steps until `done` is true, which is called after every step.
    ///
    /// # Errors
    /// [`SimError::TooLong`] once the clock has reached `limit`, and every error of
    /// [`step`](Self::step).
    pub fn run_until(
        &mut self,
        limit: Instant,
        mut done: impl FnMut(&mut Self) -> Result<bool, SimError>,
    ) -> Result<(), SimError> {
        loop {
            if done(self)? {
                return Ok(());
            }
            if self.poll_timeout()?.is_some_and(|at| at > limit) {
                return Err(SimError::TooLong { limit });
            }
            if !self.step()? {
                return Err(SimError::Deadlock { at: self.now });
            }
        }
    }

    /// Steps as long as anything is due by `until`, then moves the clock there.
    pub fn drive_bounded(&mut self, until: Instant) -> Result<(), SimError> {
        while self.poll_timeout()?.is_some_and(|at| at <= until) {
            self.step()?;
        }
        self.advance(until);
        Ok(())
    }

    fn advance(&mut self, to: Instant) {
        if to > self.now {
            self.now = to;
            self.turns_now = 0;
        }
    }

    /// Delivers arrived frames to a node, and its timeout.
    fn deliver(&mut self, at: usize) -> Result<(), SimError> {
        let Self { now, ledger, capture, attached, .. } = self;
        let Some(link) = attached.get_mut(at) else { return Ok(()) };
        while let Some(mut frame) = link.down.poll(*now, ledger) {
            if let (Some(capture), Some(interface)) = (capture.as_mut(), link.interface) {
                capture.record(interface, *now, PcapDirection::In, &frame, ledger)?;
            }
            // Only here: frames travel as they were sent, so that a path can cut them.
            hand_over(&mut frame);
            link.node.handle_frame(*now, frame);
            link.touched = true;
        }
        if link.node.poll_timeout().is_some_and(|due| due <= *now) {
            link.node.handle_timeout(*now);
            link.touched = true;
        }
        Ok(())
    }

    /// Takes a node's output, and puts it on the node's link.
    fn transmit(&mut self, at: usize) -> Result<(), SimError> {
        let Self { now, ledger, capture, attached, burst, .. } = self;
        let Some(link) = attached.get_mut(at) else { return Ok(()) };
        if !std::mem::take(&mut link.touched) {
            return Ok(());
        }
        for _ in 0..MAX_BURSTS_PER_TURN {
            let more = link.node.poll_transmit(*now, burst);
            for frame in burst.drain(..) {
                if let (Some(capture), Some(interface)) = (capture.as_mut(), link.interface) {
                    capture.record(interface, *now, PcapDirection::Out, &frame, ledger)?;
                }
                link.up.handle(*now, frame, ledger);
            }
            link.touched = more;
            if !more {
                break;
            }
        }
        link.node.end_turn();
        Ok(())
    }

    /// Forwards frames that arrived at the switch from a node's link.
    fn switch(&mut self, from: usize) {
        let Self { now, ledger, attached, stations, .. } = self;
        while let Some(frame) = attached.get_mut(from).and_then(|link| link.up.poll(*now, ledger)) {
            let address = |at: usize| frame.head().get(at..at + 6)?.try_into().ok();
            let (to, source): (Option<[u8; 6]>, Option<[u8; 6]>) = (address(0), address(6));
            if let Some(source) = source.filter(|mac| mac[0] & 1 == 0)
                && stations.len() < MAX_STATIONS
            {
                stations.insert(source, from);
            }
            match to.and_then(|mac| stations.get(&mac)).copied() {
                Some(link) if link == from => {}
                Some(link) => attached[link].down.handle(*now, frame, ledger),
                // Broadcast, multicast, or not seen yet.
                None => {
                    for (_, link) in attached.iter_mut().enumerate().filter(|(at, _)| *at != from) {
                        link.down.handle(*now, frame.clone(), ledger);
                    }
                }
            }
        }
    }

    /// Checks that pages are conserved: the oracle of every simulation.
    fn check_pages(&self) -> Result<(), SimError> {
        for (at, link) in self.attached.iter().enumerate() {
            if let Some(audit) = link.node.pool_audit()
                && !audit.is_conserved()
            {
                return Err(SimError::Pages { node: NodeId(at), audit });
            }
        }
        Ok(())
    }
}

impl<N> std::fmt::Debug for Sim<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sim").field("seed", &self.seed).field("now", &self.now).finish()
    }
}
