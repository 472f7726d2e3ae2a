//! A stack with a program on top, as one node of the network.

use std::collections::VecDeque;

use pagewire_device::Capabilities;
use pagewire_mem::{Instant, PacketBuf, PoolAudit};
use pagewire_stack::{Cidr, Event, Stack, StackConfig};

use super::limits::MEMORY;
use super::network::Sim;
use super::node::Node;

/// A program that uses a stack, called when there is something to do: it never waits.
pub trait App {
    /// Handles `events` of sockets, the time of [`poll_timeout`](Self::poll_timeout), or the start.
    /// Events report changes: continue with a socket until it returns `WouldBlock`.
    fn turn(&mut self, now: Instant, stack: &mut Stack, events: &[Event]);

    /// When the next turn is due although nothing happens.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
}

/// Programs as closures.
impl<F: FnMut(Instant, &mut Stack, &[Event])> App for F {
    fn turn(&mut self, now: Instant, stack: &mut Stack, events: &[Event]) {
        self(now, stack, events);
    }
}

/// A stack and its program.
#[derive(Debug)]
pub struct Station<A> {
    /// The stack.
    pub stack: Stack,
    /// The program.
    pub app: A,
    events: Vec<Event>,
    begun: bool,
}

impl<A: App> Station<A> {
    /// The program's first turn comes with the simulation's first step.
    pub fn new(stack: Stack, app: A) -> Self {
        Self { stack, app, events: Vec::new(), begun: false }
    }

    fn gather(&mut self) -> bool {
        while let Some(event) = self.stack.poll_event() {
            self.events.push(event);
        }
        !self.events.is_empty()
    }
}

impl<A: App> Node for Station<A> {
    fn handle_frame(&mut self, now: Instant, frame: PacketBuf) {
        self.stack.handle_frame(now, frame);
    }

    fn handle_timeout(&mut self, now: Instant) {
        if self.stack.poll_timeout().is_some_and(|at| at <= now) {
            self.stack.handle_timeout(now);
        }
    }

    fn poll_transmit(&mut self, now: Instant, out: &mut VecDeque<PacketBuf>) -> bool {
        let due = self.app.poll_timeout().is_some_and(|at| at <= now);
        if self.gather() || due || !self.begun {
            self.begun = true;
            self.app.turn(now, &mut self.stack, &self.events);
            self.events.clear();
        }
        // Sending may change a socket's readiness, and then the program has a turn.
        let more = self.stack.poll_transmit(now, out);
        self.gather() || more
    }

    fn poll_timeout(&self) -> Option<Instant> {
        [self.stack.poll_timeout(), self.app.poll_timeout()].into_iter().flatten().min()
    }

    fn end_turn(&mut self) {
        self.stack.end_turn();
    }

    fn pool_audit(&self) -> Option<PoolAudit> {
        Some(self.stack.pool_audit())
    }
}

/// A stack whose sockets are used from outside, between steps.
impl Node for Stack {
    fn handle_frame(&mut self, now: Instant, frame: PacketBuf) {
        self.handle_frame(now, frame);
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.handle_timeout(now);
    }

    fn poll_transmit(&mut self, now: Instant, out: &mut VecDeque<PacketBuf>) -> bool {
        self.poll_transmit(now, out)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.poll_timeout()
    }

    fn end_turn(&mut self) {
        self.end_turn();
    }

    fn pool_audit(&self) -> Option<PoolAudit> {
        Some(self.pool_audit())
    }
}

/// Stacks for a simulation.
impl<N: Node> Sim<N> {
    /// Settings of a stack with one address: Ethernet, an MTU of 1,500, checksums and segmentation
    /// left to the device, a small pool, and a link address and secrets from the seed.
    pub fn stack_config(&mut self, address: Cidr) -> StackConfig {
        let mut secret = [0; 32];
        for word in secret.chunks_exact_mut(8) {
            word.copy_from_slice(&self.random().next_u64().to_le_bytes());
        }
        let [a, b, c, ..] = self.random().next_u64().to_le_bytes();
        // Locally administered, unicast.
        let card = Capabilities::offloading([0x02, 0x50, 0x57, a, b, c], 1500);
        let capabilities = Capabilities { by_reference: true, ..card };
        let mut config = StackConfig::new(capabilities, vec![address], secret);
        config.memory = MEMORY;
        config
    }
}
