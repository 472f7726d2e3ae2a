//! Software timestamps of bytes that TCP sends (Linux's `SO_TIMESTAMPING`): when the last byte of a
//! write first left, and when the peer acknowledged it. They go to the error queue.

use std::collections::VecDeque;

use pagewire_mem::Instant;
use pagewire_tcp::{Connection, Seq};

use crate::event::{TxMoment, TxTimestamp};
use crate::limits::TIMESTAMPS_PENDING;

bitflags::bitflags! {
    /// The timestamps of a byte that are reported.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct TxTimestamping: u8 {
        /// The byte enters the queue of packets to be sent (`SOF_TIMESTAMPING_TX_SCHED`).
        const SCHEDULED = 1 << 0;
        /// The byte is handed to the device (`SOF_TIMESTAMPING_TX_SOFTWARE`).
        const SENT = 1 << 1;
        /// The peer has acknowledged it (`SOF_TIMESTAMPING_TX_ACK`).
        const ACKNOWLEDGED = 1 << 2;
    }
}

pub(crate) struct TimestampRequests {
    pub(crate) kinds: TxTimestamping,
    /// Byte 0: the first byte that was not acknowledged at the first request.
    base: Seq,
    /// Last bytes of writes, oldest first.
    pending: VecDeque<TimestampRequest>,
}

struct TimestampRequest {
    last: Seq,
    kinds: TxTimestamping,
    sent: bool,
}

impl TimestampRequests {
    /// No requests; byte 0 is the first one that is not acknowledged now.
    pub(crate) fn new(kinds: TxTimestamping, conn: &Connection) -> Self {
        Self { kinds, base: Self::una(conn), pending: VecDeque::new() }
    }

    /// Requests timestamps of the last byte that was written.
    pub(crate) fn stamp(&mut self, conn: &Connection) {
        if self.pending.len() >= TIMESTAMPS_PENDING {
            self.pending.pop_front();
        }
        let last = Seq(conn.send_end().get().wrapping_sub(1));
        self.pending.push_back(TimestampRequest { last, kinds: self.kinds, sent: false });
    }

    fn una(conn: &Connection) -> Seq {
        Seq(conn.send_end().get().wrapping_sub(conn.queued_send() as u32))
    }

    /// Reports the timestamps that are known.
    pub(crate) fn poll(
        &mut self,
        now: Instant,
        conn: &Connection,
        mut report: impl FnMut(TxTimestamp),
    ) {
        let (next, una) = (conn.send_next(), Self::una(conn));
        let base = self.base;
        let mut tell = |entry: &TimestampRequest, kind: TxTimestamping, moment| {
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
