//! The simulator's interface to a station.

use std::collections::VecDeque;

use pagewire_mem::{Instant, PacketBuf, PoolAudit};

/// A station on the network. Inputs are `handle_*`, outputs are `poll_*`, time is an argument.
pub trait Node {
    /// A frame has arrived.
    fn handle_frame(&mut self, now: Instant, frame: PacketBuf);

    /// The time of [`poll_timeout`](Self::poll_timeout) has come or passed.
    fn handle_timeout(&mut self, now: Instant);

    /// Appends frames to be sent, a bounded number; `true`: there are more.
    fn poll_transmit(&mut self, now: Instant, out: &mut VecDeque<PacketBuf>) -> bool;

    /// When [`handle_timeout`](Self::handle_timeout) is due although nothing comes in.
    fn poll_timeout(&self) -> Option<Instant>;

    /// Ends a turn: all frames were handled, all output was taken.
    fn end_turn(&mut self) {}

    /// The audit of the node's pool, if it has one: pages must be conserved after every turn.
    fn pool_audit(&self) -> Option<PoolAudit> {
        None
    }
}
