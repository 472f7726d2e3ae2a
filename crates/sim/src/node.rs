//! What the simulator needs of something that speaks on its network.

use std::collections::VecDeque;

use pagewire_mem::{Instant, PacketBuf, PoolAudit};

/// One station: inputs are `handle_*`, outputs are `poll_*`, time is an argument.
pub trait Node {
    /// A frame has arrived.
    fn handle_frame(&mut self, now: Instant, frame: PacketBuf);

    /// Time has come to [`poll_timeout`](Self::poll_timeout), or passed it.
    fn handle_timeout(&mut self, now: Instant);

    /// Appends frames to be sent, a bounded number; `true`: there are more.
    fn poll_transmit(&mut self, now: Instant, out: &mut VecDeque<PacketBuf>) -> bool;

    /// When [`handle_timeout`](Self::handle_timeout) is due although nothing comes in.
    fn poll_timeout(&self) -> Option<Instant>;

    /// Ends a turn: everything that came in was handled, everything to be sent was taken.
    fn end_turn(&mut self) {}

    /// Pages of the node's pool, where it has one: they must be conserved after every turn.
    fn pool_audit(&self) -> Option<PoolAudit> {
        None
    }
}
