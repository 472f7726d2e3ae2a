//! How an application wants one send or one receive to be done (`send(2)`, `recv(2)`).

bitflags::bitflags! {
    /// How data is sent.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SendFlags: u8 {
        /// More will follow at once: what does not fill a segment waits for it, until an
        /// acknowledgement comes or a timer goes off (Linux's `MSG_MORE`).
        const MORE = 1;
        /// The last byte ends a record: no segment, retransmitted or not, holds bytes of both sides
        /// of it (Linux's `MSG_EOR`). Only if all of the data was taken.
        const END_OF_RECORD = 2;
        /// The last byte is urgent (RFC 9293 section 3.8.5, `MSG_OOB`).
        const URGENT = 4;
    }
}

bitflags::bitflags! {
    /// How data is received.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct RecvFlags: u8 {
        /// What is taken stays in the queue as well (`MSG_PEEK`).
        const PEEK = 1;
        /// Stop before an urgent byte that is not in line, with 0 if it is next, rather than step
        /// over it. For `splice(2)`.
        const STOP_AT_URGENT = 2;
    }
}
