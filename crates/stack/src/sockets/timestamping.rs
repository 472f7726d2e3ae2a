//! When data left and when it arrived: Linux's `SO_TIMESTAMPING` for what TCP sends, by software.
//!
//! Whoever writes may ask to be told about the last byte of what was written: when it left for the
//! first time, and when the peer acknowledged it. Answers go into the error queue, in order.

use std::collections::VecDeque;

use pagewire_mem::Instant;
use pagewire_tcp::{Connection, Seq};

use super::handles::Tcp;
use super::tcp::Extra;
use crate::event::{TxMoment, TxTimestamp};
use crate::limits::TIMESTAMPS_PENDING;

bitflags::bitflags! {
    /// Which moments of a byte are reported.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct TxTimestamping: u8 {
        /// It enters the queue of packets to be sent (`SOF_TIMESTAMPING_TX_SCHED`).
        const SCHEDULED = 1 << 0;
        /// It is handed to the device (`SOF_TIMESTAMPING_TX_SOFTWARE`).
        const SENT = 1 << 1;
        /// The peer has acknowledged it (`SOF_TIMESTAMPING_TX_ACK`).
        const ACKNOWLEDGED = 1 << 2;
    }
}

/// The bytes of one connection that somebody wants to hear of.
pub(crate) struct Timestamps {
    kinds: TxTimestamping,
    /// Bytes are numbered from here: what was not acknowledged first when it was asked for.
    base: Seq,
    /// Last bytes of writes, oldest first.
    pending: VecDeque<Pending>,
}

struct Pending {
    last: Seq,
    kinds: TxTimestamping,
    sent: bool,
}

impl Timestamps {
    fn una(conn: &Connection) -> Seq {
        Seq(conn.send_end().get().wrapping_sub(conn.queued_send() as u32))
    }

    /// What is known by now about the bytes asked for.
    fn poll(&mut self, now: Instant, conn: &Connection, mut report: impl FnMut(TxTimestamp)) {
        let (next, una) = (conn.send_next(), Self::una(conn));
        let base = self.base;
        let mut tell = |entry: &Pending, kind: TxTimestamping, moment| {
            if entry.kinds.contains(kind) {
                report(TxTimestamp { moment, byte: entry.last.since(base), at: now });
            }
        };
        for entry in self.pending.iter_mut().filter(|entry| !entry.sent && entry.last.lt(next)) {
            entry.sent = true;
            tell(entry, TxTimestamping::SCHEDULED, TxMoment::Scheduled);
            tell(entry, TxTimestamping::SENT, TxMoment::Sent);
        }
        while let Some(entry) =
            self.pending.front().filter(|entry| entry.sent && entry.last.lt(una))
        {
            tell(entry, TxTimestamping::ACKNOWLEDGED, TxMoment::Acknowledged);
            self.pending.pop_front();
        }
    }
}

impl Extra {
    /// Reports what is known by now.
    pub(super) fn poll_timestamps(&mut self, now: Instant, conn: &Connection) {
        let Some(timestamps) = &mut self.timestamps else { return };
        let errors = self.errors.get_or_insert_default();
        timestamps.poll(now, conn, |found| errors.timestamp(found));
    }
}

impl Tcp<'_> {
    /// Has the moments of sent bytes reported from now on, for those that
    /// [`stamp`](Self::stamp) names; none: no more. Bytes are numbered from the first one
    /// that is not acknowledged now.
    pub fn set_timestamping(&mut self, kinds: TxTimestamping) {
        let socket = &mut *self.socket;
        let base = Timestamps::una(&socket.conn);
        let extra = socket.extra.get_or_insert_default();
        match &mut extra.timestamps {
            Some(timestamps) if !kinds.is_empty() => timestamps.kinds = kinds,
            place => {
                *place = (!kinds.is_empty())
                    .then(|| Box::new(Timestamps { kinds, base, pending: VecDeque::new() }));
            }
        }
    }

    /// Asks for the moments of the byte that was written last. Where many are asked for that the
    /// peer has not acknowledged, the oldest are forgotten.
    pub fn stamp(&mut self, now: Instant) {
        let socket = &mut *self.socket;
        let (end, conn) = (socket.conn.send_end(), &socket.conn);
        if conn.queued_send() == 0 {
            return;
        }
        let Some(extra) = &mut socket.extra else { return };
        if let Some(timestamps) = &mut extra.timestamps {
            let last = Seq(end.get().wrapping_sub(1));
            if timestamps.pending.len() >= TIMESTAMPS_PENDING {
                timestamps.pending.pop_front();
            }
            let kinds = timestamps.kinds;
            timestamps.pending.push_back(Pending { last, kinds, sent: false });
        }
        extra.poll_timestamps(now, conn);
        self.touch();
    }
}
