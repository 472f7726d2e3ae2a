//! Frames that a device refused: reports them to their connections, which try again soon.

use std::collections::VecDeque;

use pagewire_mem::{Instant, PacketBuf};
use pagewire_tcp::Seq;

use super::tuple::Tuple;
use crate::net::{LinkId, LinkIndex};
use crate::stack::{Core, Stack};

impl Stack {
    /// Frames from [`poll_transmit_on`](Self::poll_transmit_on) that the device of this link
    /// refused because it lacked something that it may have soon, a queue or memory; in the order
    /// in which they were to be sent. They are lost, and are taken out of `frames`. A connection
    /// that learns this at once neither blames the path nor waits for its retransmission timeout.
    /// Call it before the next `poll_transmit_on`.
    pub fn handle_refused_on(
        &mut self,
        now: Instant,
        link: LinkId,
        frames: &mut VecDeque<PacketBuf>,
    ) {
        match self.core.net.find_link(link) {
            Some(index) => self.core.refused_by(now, index, frames),
            None => frames.clear(),
        }
    }
}

impl Core {
    fn refused_by(&mut self, now: Instant, link: LinkIndex, frames: &mut VecDeque<PacketBuf>) {
        // The last first: a segment can be unsent only after those behind it.
        while let Some(frame) = frames.pop_back() {
            self.net.counters.tx_refused += 1;
            let Some((about, space)) = self.net.refused_segment(link, &frame) else { continue };
            let tuple = Tuple::quoted(&about);
            let sockets = &mut self.sockets;
            let Some(index) = sockets.demux.find(&sockets.table, &tuple) else { continue };
            let Some(socket) = sockets.table.tcp_mut(index) else { continue };
            socket.conn.handle_refused(now, Seq(about.seq), space);
            // Its timer has changed.
            sockets.touch_to_send(index);
        }
    }
}
