//! The network and its clock.
//!
//! ```text
//!   node 0 --up--> [        ] --down--> node 1
//!          <-down- [ switch ] <--up---
//!   node 2 --up--> [        ] ...
//! ```
//!
//! Every node has one link to a switch that learns where stations are, as a real one does. A link
//! is two bad paths (loss, delay, rate and so on, see [`FaultConfig`]), one each way. Nothing here
//! reads a clock or a random source: time moves from event to event, and a seed decides the rest,
//! so a simulation is the same every time.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::path::Path;

use pagewire_device::{
    FaultConfig, FaultCounters, FaultDirection, FaultPath, FaultRng, Medium, PcapConfig,
    PcapDirection, PcapInterface, PcapWriter, hand_over,
};
use pagewire_mem::{CopyLedger, Instant, PacketBuf, PoolAudit};

use crate::limits::{
    MAX_BURSTS_PER_TURN, MAX_STATIONS, MAX_TURNS, MAX_TURNS_AT_ONE_MOMENT, MIN_DELAY,
};
use crate::node::Node;

/// Names a node of one simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeId(usize);

/// How a simulation fails.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SimError {
    /// Virtual time stands still while the nodes talk.
    #[error("livelock: {turns} turns at {at:?} and no end")]
    Livelock {
        /// The moment.
        at: Instant,
        /// Turns made at it.
        turns: u64,
    },
    /// Nothing will ever happen again, and what was waited for has not.
    #[error("deadlock: nothing is due after {at:?}, and what was waited for has not happened")]
    Deadlock {
        /// The moment.
        at: Instant,
    },
    /// What was waited for took too long.
    #[error("not done by {limit:?}")]
    TooLong {
        /// The limit.
        limit: Instant,
    },
    /// A page was lost, or counted twice.
    #[error("{node:?} does not conserve its pages: {audit:?}")]
    Pages {
        /// Whose.
        node: NodeId,
        /// The counts.
        audit: PoolAudit,
    },
    /// An oracle of the scenario says no.
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
    ports: Vec<Port<N>>,
    /// Where each station was last seen.
    stations: HashMap<[u8; 6], usize>,
    turns: u64,
    turns_now: u64,
    capture: Option<PcapWriter<File>>,
    /// Copies that paths make (damage, snapshots for checksums).
    ledger: CopyLedger,
    burst: VecDeque<PacketBuf>,
}

struct Port<N> {
    node: N,
    up: FaultPath,
    down: FaultPath,
    /// The node acted, or was acted on, and must be asked what it has to send.
    touched: bool,
    interface: Option<PcapInterface>,
}

impl<N: Node> Sim<N> {
    /// An empty network. All that is random in it follows from `seed`.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            random: FaultRng::new(seed),
            now: Instant::ZERO,
            ports: Vec::new(),
            stations: HashMap::new(),
            turns: 0,
            turns_now: 0,
            capture: None,
            ledger: CopyLedger::new(),
            burst: VecDeque::new(),
        }
    }

    /// Plugs a node in, over a link with these faults: [`FaultDirection::Transmit`] is away from
    /// the node. The seed in `faults` counts together with the simulation's, and a link takes at
    /// least a microsecond each way.
    pub fn add(&mut self, node: N, faults: FaultConfig) -> Result<NodeId, SimError> {
        let mut path = |direction: FaultDirection| {
            let touched = faults.on == FaultDirection::Both || faults.on == direction;
            let config = if touched { faults } else { FaultConfig::default() };
            let seed = self.random.next_u64() ^ faults.seed;
            let delay = config.delay.max(MIN_DELAY);
            FaultPath::new(FaultConfig { seed, delay, ..config }, Medium::Ethernet)
        };
        let (up, down) = (path(FaultDirection::Transmit), path(FaultDirection::Receive));
        let id = NodeId(self.ports.len());
        let interface = match &mut self.capture {
            Some(capture) => {
                Some(capture.add_interface(&format!("node{}", id.0), Medium::Ethernet)?)
            }
            None => None,
        };
        self.ports.push(Port { node, up, down, touched: true, interface });
        Ok(id)
    }

    /// Writes what every node sends and receives to a pcapng file, one interface for each. Call it
    /// before nodes are added.
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

    /// Random numbers that follow from the seed, for scenarios.
    pub fn random(&mut self) -> &mut FaultRng {
        &mut self.random
    }

    /// A node, to look at.
    pub fn node(&self, id: NodeId) -> &N {
        &self.ports[id.0].node
    }

    /// A node, to act on. Whatever it has to send then leaves with the next [`step`](Self::step).
    pub fn node_mut(&mut self, id: NodeId) -> &mut N {
        let port = &mut self.ports[id.0];
        port.touched = true;
        &mut port.node
    }

    /// All nodes.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> + use<N> {
        (0..self.ports.len()).map(NodeId)
    }

    /// What the node's link did: away from the node, and towards it.
    pub fn faults(&self, id: NodeId) -> (FaultCounters, FaultCounters) {
        let port = &self.ports[id.0];
        (port.up.counters(), port.down.counters())
    }

    /// Frames that are on the way.
    pub fn in_flight(&self) -> usize {
        self.ports.iter().map(|port| port.up.in_flight() + port.down.in_flight()).sum()
    }

    /// Lets every node send that was acted on. Then, when the next thing happens; `None`: nothing
    /// ever will.
    pub fn poll_timeout(&mut self) -> Result<Option<Instant>, SimError> {
        for at in 0..self.ports.len() {
            self.transmit(at)?;
        }
        for at in 0..self.ports.len() {
            self.switch(at);
        }
        if self.ports.iter().any(|port| port.touched) {
            return Ok(Some(self.now));
        }
        let due = self.ports.iter().flat_map(|port| {
            [port.up.poll_timeout(), port.down.poll_timeout(), port.node.poll_timeout()]
        });
        Ok(due.flatten().min())
    }

    /// Moves the clock to the next event and lets happen what is due; `false`: nothing ever will.
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
        for at in 0..self.ports.len() {
            self.deliver(at)?;
            self.transmit(at)?;
        }
        for at in 0..self.ports.len() {
            self.switch(at);
        }
        self.check_pages()?;
        Ok(true)
    }

    /// Steps until `done` says so, asked after every step.
    ///
    /// # Errors
    /// [`SimError::TooLong`] once the clock has reached `limit`, and everything that
    /// [`step`](Self::step) finds.
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

    /// Hands a node what has arrived for it, and tells it if its time has come.
    fn deliver(&mut self, at: usize) -> Result<(), SimError> {
        let Self { now, ledger, capture, ports, .. } = self;
        let Some(port) = ports.get_mut(at) else { return Ok(()) };
        while let Some(mut frame) = port.down.poll(*now, ledger) {
            if let (Some(capture), Some(interface)) = (capture.as_mut(), port.interface) {
                capture.record(interface, *now, PcapDirection::In, &frame, ledger)?;
            }
            // Only here: frames travel as they were sent, so that a path can cut them and complete
            // their sums.
            hand_over(&mut frame);
            port.node.handle_frame(*now, frame);
            port.touched = true;
        }
        if port.node.poll_timeout().is_some_and(|due| due <= *now) {
            port.node.handle_timeout(*now);
            port.touched = true;
        }
        Ok(())
    }

    /// Takes what a node has to send, and puts it on the node's link.
    fn transmit(&mut self, at: usize) -> Result<(), SimError> {
        let Self { now, ledger, capture, ports, burst, .. } = self;
        let Some(port) = ports.get_mut(at) else { return Ok(()) };
        if !std::mem::take(&mut port.touched) {
            return Ok(());
        }
        for _ in 0..MAX_BURSTS_PER_TURN {
            let more = port.node.poll_transmit(*now, burst);
            for frame in burst.drain(..) {
                if let (Some(capture), Some(interface)) = (capture.as_mut(), port.interface) {
                    capture.record(interface, *now, PcapDirection::Out, &frame, ledger)?;
                }
                port.up.handle(*now, frame, ledger);
            }
            port.touched = more;
            if !more {
                break;
            }
        }
        port.node.end_turn();
        Ok(())
    }

    /// Passes on what has come up a node's link.
    fn switch(&mut self, from: usize) {
        let Self { now, ledger, ports, stations, .. } = self;
        while let Some(frame) = ports.get_mut(from).and_then(|port| port.up.poll(*now, ledger)) {
            let address = |at: usize| frame.head().get(at..at + 6)?.try_into().ok();
            let (to, source): (Option<[u8; 6]>, Option<[u8; 6]>) = (address(0), address(6));
            if let Some(source) = source.filter(|mac| mac[0] & 1 == 0)
                && stations.len() < MAX_STATIONS
            {
                stations.insert(source, from);
            }
            match to.and_then(|mac| stations.get(&mac)).copied() {
                Some(port) if port == from => {}
                Some(port) => ports[port].down.handle(*now, frame, ledger),
                // Broadcast, multicast, or not seen yet.
                None => {
                    for (_, port) in ports.iter_mut().enumerate().filter(|(at, _)| *at != from) {
                        port.down.handle(*now, frame.clone(), ledger);
                    }
                }
            }
        }
    }

    /// The oracle that is always on.
    fn check_pages(&self) -> Result<(), SimError> {
        for (at, port) in self.ports.iter().enumerate() {
            if let Some(audit) = port.node.pool_audit()
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
