//! Frames that a device refused: the connections whose segments they were are told, and try again soon.

use std::collections::VecDeque;

use pagewire_mem::{Instant, PacketBuf};
use pagewire_tcp::Seq;

use super::demux::Tuple;
use crate::net::{LinkId, LinkIndex};
use crate::stack::{Core, Stack};

impl Stack {
    /// Frames from [`poll_transmit`](Self::poll_transmit) that the device (the first link's) refused
    /// for want of something that it may have soon, a queue or memory; in the order in which they were
    /// to be sent. They are lost, and are taken out of `frames`; but where that is known at once, a
    /// connection neither blames the path nor waits for its retransmission timeout. To be called before
    /// the next `poll_transmit`.
    pub fn handle_refused(&mut self, now: Instant, frames: &mut VecDeque<PacketBuf>) {
        self.core.refused_by(now, 0, frames);
    }

    /// The same for the device of this link.
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
        // The last first: what was sent behind a segment must be unsent before it can be.
        while let Some(frame) = frames.pop_back() {
            self.net.counters.tx_refused += 1;
            let Some((about, space)) = self.net.refused_segment(link, &frame) else { continue };
            let tuple = Tuple {
                local: about.src,
                remote: about.dst,
                local_port: about.src_port,
                remote_port: about.dst_port,
            };
            let sockets = &mut self.sockets;
            let Some(index) = sockets.demux.find(&sockets.table, &tuple) else { continue };
            let Some(socket) = sockets.table.tcp_mut(index) else { continue };
            socket.conn.handle_refused(now, Seq(about.seq), space);
            // Its timer has changed.
            sockets.touch_to_send(index);
        }
    }
}
