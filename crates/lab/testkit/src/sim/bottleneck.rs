//! Many flows through one bottleneck: each flow's share of it, and the losses.
//!
//! ```text
//!   group 0 --delay--\
//!   group 1 --delay--- [switch] --loss--> queue --rate--> receiver
//!   ...               /
//! ```
//!
//! A group is one stack with some flows and a delay of its own. Every flow always has more to send.
//! Links of groups are ten times as fast as the bottleneck, so that a burst arrives as one.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use pagewire_device::{Aqm, Chance, FaultConfig, FaultCounters, FaultDirection, FaultRng};
use pagewire_mem::{Frag, FragVec, Instant};
use pagewire_stack::{Event, ListenerId, SendFlags, Stack, TcpConfig, TcpId};

use super::limits::{BOTTLENECK_STARTS, MEMORY};
use super::network::{NodeId, Sim, SimError};
use super::station::{App, Station};
use super::verbs::Verbs;

/// Flows that begin at one stack.
#[derive(Clone, Debug)]
pub struct Group {
    /// The number of flows.
    pub flows: usize,
    /// Their round trip without queueing.
    pub round_trip: Duration,
    /// When the first begins; the others follow within a second.
    pub begins: Duration,
    /// Settings of their connections.
    pub tcp: TcpConfig,
}

/// A bottleneck and its flows.
#[derive(Clone, Debug)]
pub struct Bottleneck {
    /// Determines everything random.
    pub seed: u64,
    /// Bits in a second.
    pub rate: u64,
    /// Packets that wait for it.
    pub buffer: usize,
    /// How the queue signals congestion.
    pub aqm: Aqm,
    /// Packets that are lost in front of the queue.
    pub loss: Chance,
    /// The senders.
    pub groups: Vec<Group>,
    /// Settings of the receiver's connections.
    pub receiver: TcpConfig,
    /// Time before the measurement.
    pub warm_up: Duration,
    /// Length of the measurement.
    pub length: Duration,
}

/// The result of a flow.
#[derive(Clone, Copy, Debug)]
pub struct FlowReport {
    /// Index of the flow's group.
    pub group: usize,
    /// Payload bytes that arrived in order during the measurement.
    pub bytes: u64,
    /// Retransmission timeouts, warm-up included.
    pub timeouts: u32,
    /// Fast recoveries, warm-up included.
    pub recoveries: u32,
}

/// The result of all flows.
#[derive(Clone, Debug)]
pub struct Shares {
    /// Each flow, group by group.
    pub flows: Vec<FlowReport>,
    /// Payload bytes of all flows that arrived in order, warm-up included.
    pub arrived: u64,
    /// Counts of the bottleneck, warm-up included.
    pub queue: FaultCounters,
    /// Rate, in bits a second, and length of the measurement.
    rate: u64,
    length: Duration,
}

/// Payload of a full packet: an MTU of 1,500 less 20 bytes of IPv4, 20 of TCP, 12 of timestamps.
const PAYLOAD: u64 = 1448;
/// Length of a full segment's Ethernet frame.
const FRAME: u64 = 1514;
const PORT: u16 = 7000;
/// Bytes given to a connection at once.
const PIECE: usize = 256 << 10;

impl Bottleneck {
    /// `flows` flows with this round trip over 20 Mbit/s and a drop-tail queue of one product of
    /// bandwidth and delay; 20 seconds, after 5.
    pub fn new(seed: u64, flows: usize, round_trip: Duration) -> Self {
        let rate = 20_000_000;
        let group = Group { flows, round_trip, begins: Duration::ZERO, tcp: TcpConfig::default() };
        let mut new = Self {
            seed,
            rate,
            buffer: 0,
            aqm: Aqm::None,
            loss: Chance::NEVER,
            groups: vec![group],
            receiver: TcpConfig::default(),
            warm_up: Duration::from_secs(5),
            length: Duration::from_secs(20),
        };
        new.buffer = new.packets_in(round_trip);
        new
    }

    /// Full packets that the bottleneck passes in this time; at least one.
    pub fn packets_in(&self, time: Duration) -> usize {
        (self.rate as f64 * time.as_secs_f64() / 8.0 / FRAME as f64).round().max(1.0) as usize
    }

    /// Runs the scenario.
    pub fn run(&self, capture: Option<&Path>) -> Result<Shares, SimError> {
        let mut sim = Sim::new(self.seed);
        if let Some(file) = capture {
            sim.capture(file)?;
        }
        let wrong = |e: &dyn std::fmt::Display| SimError::Oracle(e.to_string());
        let queue = FaultConfig {
            loss: self.loss,
            rate: Some(self.rate),
            limit: self.buffer,
            aqm: self.aqm,
            cut: true,
            on: FaultDirection::Receive,
            ..FaultConfig::default()
        };
        let mut config = sim.stack_config("10.0.0.1/16".parse().map_err(|e| wrong(&e))?);
        config.memory = MEMORY;
        config.tcp = self.receiver.clone();
        let stack = Stack::new(sim.now(), config).map_err(|e| wrong(&e))?;
        let sink = Program::Receiver(Receiver::default());
        let receiver = sim.add(Station::new(stack, sink), queue)?;
        let mut senders: Vec<NodeId> = Vec::new();
        for (number, group) in self.groups.iter().enumerate() {
            let access = FaultConfig {
                delay: group.round_trip / 2,
                rate: Some(self.rate * 10),
                limit: 65_536,
                cut: true,
                ..FaultConfig::default()
            };
            let address = format!("10.0.1.{}/16", number + 1);
            let mut config = sim.stack_config(address.parse().map_err(|e| wrong(&e))?);
            config.memory = MEMORY;
            config.tcp = group.tcp.clone();
            let stack = Stack::new(sim.now(), config).map_err(|e| wrong(&e))?;
            let program = Program::Sender(Sender::new(group, sim.random()));
            senders.push(sim.add(Station::new(stack, program), access)?);
        }
        let begins = Instant::ZERO + self.warm_up;
        sim.drive_bounded(begins)?;
        let before = arrivals(&sim, receiver);
        sim.drive_bounded(begins + self.length)?;
        let after = arrivals(&sim, receiver);
        let mut flows = Vec::new();
        for (group, &id) in senders.iter().enumerate() {
            let Station { stack, app, .. } = sim.node(id);
            let Program::Sender(sender) = app else { continue };
            for &socket in &sender.open {
                let from = stack.local_addr(socket).map_err(|e| wrong(&e))?;
                let bytes = |arrived: &HashMap<SocketAddr, u64>| {
                    arrived.get(&from).copied().unwrap_or_default()
                };
                let info = stack.info(socket).map_err(|e| wrong(&e))?;
                let bytes = bytes(&after) - bytes(&before);
                let (timeouts, recoveries) = (info.timeouts, info.recoveries);
                flows.push(FlowReport { group, bytes, timeouts, recoveries });
            }
        }
        let (_, queue) = sim.faults(receiver);
        let arrived = after.values().sum();
        Ok(Shares { flows, arrived, queue, rate: self.rate, length: self.length })
    }
}

fn arrivals(sim: &Sim<Station<Program>>, receiver: NodeId) -> HashMap<SocketAddr, u64> {
    match &sim.node(receiver).app {
        Program::Receiver(receiver) => receiver.arrived.clone(),
        Program::Sender(_) => HashMap::new(),
    }
}

impl Shares {
    /// The part of the link that was used for new payload; 1: all of it.
    pub fn utilisation(&self) -> f64 {
        let bytes: u64 = self.flows.iter().map(|flow| flow.bytes).sum();
        let wire = bytes as f64 * 8.0 * FRAME as f64 / PAYLOAD as f64;
        wire / (self.rate as f64 * self.length.as_secs_f64())
    }

    /// Jain's index of fairness (Jain, Chiu, Hawe, 1984): 1 if all are equal, 1/n if one has all.
    pub fn fairness(&self) -> f64 {
        let bytes = self.flows.iter().map(|flow| flow.bytes as f64);
        let (sum, squares) = bytes.fold((0.0, 0.0), |(s, q), b| (s + b, q + b * b));
        if squares == 0.0 { 0.0 } else { sum * sum / (squares * self.flows.len() as f64) }
    }

    /// The least and the most of a flow, in even shares.
    pub fn extremes(&self) -> (f64, f64) {
        let all: u64 = self.flows.iter().map(|flow| flow.bytes).sum();
        let even = (all as f64 / self.flows.len().max(1) as f64).max(1.0);
        let shares = self.flows.iter().map(|flow| flow.bytes as f64 / even);
        shares.fold((f64::MAX, 0.0), |(least, most), share| (share.min(least), share.max(most)))
    }

    /// A group's part of everything that arrived.
    pub fn part(&self, group: usize) -> f64 {
        let all: u64 = self.flows.iter().map(|flow| flow.bytes).sum();
        let own = self.flows.iter().filter(|flow| flow.group == group);
        own.map(|flow| flow.bytes).sum::<u64>() as f64 / all.max(1) as f64
    }

    /// The part of the sent packets that carried nothing new, about.
    pub fn sent_again(&self) -> f64 {
        let needed = self.arrived as f64 / PAYLOAD as f64;
        (1.0 - needed / self.queue.offered.max(1) as f64).max(0.0)
    }

    /// The part of the queue's packets that it lost.
    pub fn dropped(&self) -> f64 {
        let offered = self.queue.offered - self.queue.lost;
        (self.queue.lost_queue_full + self.queue.lost_early) as f64 / offered.max(1) as f64
    }

    /// The part of the queue's packets that it marked.
    pub fn marked(&self) -> f64 {
        let offered = self.queue.offered - self.queue.lost;
        self.queue.marked as f64 / offered.max(1) as f64
    }

    /// How long a packet waited for the rate, on average.
    pub fn waited(&self) -> Duration {
        let lost = self.queue.lost + self.queue.lost_queue_full + self.queue.lost_early;
        Duration::from_nanos(self.queue.waited_ns / (self.queue.offered - lost).max(1))
    }

    /// Timeouts of all flows.
    pub fn timeouts(&self) -> u32 {
        self.flows.iter().map(|flow| flow.timeouts).sum()
    }

    /// Fast recoveries of all flows.
    pub fn recoveries(&self) -> u32 {
        self.flows.iter().map(|flow| flow.recoveries).sum()
    }
}

#[derive(Debug)]
enum Program {
    Sender(Sender),
    Receiver(Receiver),
}

impl App for Program {
    fn turn(&mut self, now: Instant, stack: &mut Stack, events: &[Event]) {
        match self {
            Self::Sender(sender) => sender.turn(now, stack, events),
            Self::Receiver(receiver) => receiver.turn(now, stack, events),
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        match self {
            Self::Sender(sender) => sender.starts.last().copied(),
            Self::Receiver(_) => None,
        }
    }
}

#[derive(Debug)]
struct Sender {
    /// When the remaining flows begin, the next one last.
    starts: Vec<Instant>,
    open: Vec<TcpId>,
    /// The memory that is sent, again and again.
    piece: Frag,
}

impl Sender {
    fn new(group: &Group, random: &mut FaultRng) -> Self {
        let span = BOTTLENECK_STARTS.as_nanos() as u64;
        let mut later = || group.begins + Duration::from_nanos(random.below(span));
        let mut starts: Vec<Instant> = (0..group.flows).map(|_| Instant::ZERO + later()).collect();
        starts.sort_by(|a, b| b.cmp(a));
        Self { starts, open: Vec::new(), piece: Frag::from_bytes(Bytes::from(vec![7; PIECE])) }
    }

    fn turn(&mut self, now: Instant, stack: &mut Stack, events: &[Event]) {
        while self.starts.last().is_some_and(|&at| at <= now) {
            self.starts.pop();
            let to = SocketAddr::from(([10, 0, 0, 1], PORT));
            // A refusal shows as a missing flow.
            self.open.extend(stack.connect(now, to, None));
        }
        for event in events {
            loop {
                let mut piece = FragVec::new();
                piece.push(self.piece.clone());
                if !matches!(
                    stack.as_tcp(event.socket).and_then(|mut tcp| tcp.send(
                        now,
                        &mut piece,
                        SendFlags::empty()
                    )),
                    Ok(1..)
                ) {
                    break;
                }
            }
        }
    }
}

#[derive(Debug, Default)]
struct Receiver {
    listener: Option<ListenerId>,
    from: HashMap<TcpId, SocketAddr>,
    /// Payload bytes, by sender.
    arrived: HashMap<SocketAddr, u64>,
}

impl Receiver {
    fn turn(&mut self, now: Instant, stack: &mut Stack, events: &[Event]) {
        let Some(listener) = self.listener else {
            let on = SocketAddr::from(([10, 0, 0, 1], PORT));
            self.listener = stack.listen(on, 1024).ok();
            return;
        };
        let mut ready: Vec<TcpId> = events
            .iter()
            .filter_map(|event| stack.as_tcp(event.socket).map(|tcp| tcp.id()).ok())
            .collect();
        while let Ok((socket, from)) = stack.accept(listener) {
            self.from.insert(socket, from);
            ready.push(socket);
        }
        for socket in ready {
            let Some(from) = self.from.get(&socket) else { continue };
            let arrived = self.arrived.entry(*from).or_default();
            let mut chunks = Vec::new();
            while let Ok(n @ 1..) = stack.recv(
                now,
                socket,
                pagewire_stack::Chunks { max: usize::MAX, into: &mut chunks },
            ) {
                *arrived += n as u64;
                chunks.clear();
            }
        }
    }
}
