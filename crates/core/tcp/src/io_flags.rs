//! Flags of a call that sends or receives (`send(2)`, `recv(2)`).

bitflags::bitflags! {
    /// How data is sent.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SendFlags: u8 {
        /// More data follows: a segment that is not full waits for it, until an acknowledgement
        /// arrives or a timer fires (Linux's `MSG_MORE`).
        const MORE = 1;
        /// The last byte ends a record: no segment, retransmitted or not, holds bytes before and
        /// after its end (Linux's `MSG_EOR`). Only if all data was queued.
        const END_OF_RECORD = 2;
        /// The last byte is urgent (RFC 9293 section 3.8.5, `MSG_OOB`).
        const URGENT = 4;
    }
}

bitflags::bitflags! {
    /// How data is received.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct RecvFlags: u8 {
        /// The data stays in the queue (`MSG_PEEK`).
        const PEEK = 1;
        /// Stops before an urgent byte out of line instead of skipping it, for `splice(2)`.
        const STOP_AT_URGENT = 2;
    }
}
