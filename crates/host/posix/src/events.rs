//! [`Events`]: the events that a file is ready for, with Linux's bits.

bitflags::bitflags! {
    /// Events of poll and epoll, with the numbers that both have.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Events: u32 {
        /// Data, the end of the stream, or a connection to accept.
        const IN = 0x1;
        /// Urgent data.
        const PRI = 0x2;
        /// Room to send, or sending would fail at once.
        const OUT = 0x4;
        /// An error, or an entry in the error queue.
        const ERR = 0x8;
        /// Both directions are closed.
        const HUP = 0x10;
        /// No such descriptor.
        const NVAL = 0x20;
        /// As [`IN`](Self::IN).
        const RDNORM = 0x40;
        /// Never of a socket.
        const RDBAND = 0x80;
        /// As [`OUT`](Self::OUT).
        const WRNORM = 0x100;
        /// Room to send a datagram.
        const WRBAND = 0x200;
        /// The peer has closed its direction, or this side reads no more.
        const RDHUP = 0x2000;
        /// epoll: of several instances, wake one.
        const EXCLUSIVE = 1 << 28;
        /// epoll: keep the machine awake; means nothing here.
        const WAKEUP = 1 << 29;
        /// epoll: report once, then no more until modified.
        const ONESHOT = 1 << 30;
        /// epoll: report changes, not states.
        const EDGE = 1 << 31;
    }
}

impl Events {
    /// Reported whether asked for or not.
    pub(crate) const ALWAYS: Self = Self::ERR.union(Self::HUP).union(Self::NVAL);
    pub(crate) const READ: Self = Self::IN.union(Self::RDNORM);
    pub(crate) const WRITE: Self = Self::OUT.union(Self::WRNORM);

    /// Itself if `condition` holds, otherwise nothing.
    pub(crate) fn when(self, condition: bool) -> Self {
        if condition { self } else { Self::empty() }
    }
}
