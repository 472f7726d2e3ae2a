//! The state machine of RFC 9293 section 3.3.2 as a table.
//!
//! ```text
//!                CLOSED --active open--> SYN-SENT --SYN,ACK--> ESTABLISHED
//!                   |                       | SYN                 ^   |
//!                passive open               v                     |   | close
//!                   v                    SYN-RECEIVED --ACK-------+   v
//!                LISTEN --SYN--------------^   | close         FIN-WAIT-1 --ACK of FIN--> FIN-WAIT-2
//!                                              +------------------> | FIN                    | FIN
//!     ESTABLISHED --FIN--> CLOSE-WAIT --close--> LAST-ACK           v                        v
//!                                    ACK of FIN --> CLOSED       CLOSING --ACK of FIN--> TIME-WAIT
//!                                                                               2 MSL --> CLOSED
//! ```
//!
//! A segment that is several events takes them in the order of section 3.10.7.4.

use core::fmt;

/// The state of a connection (RFC 9293 section 3.3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum State {
    /// No connection.
    #[default]
    Closed,
    /// Waiting for a SYN: the stack's listeners, never a [`Connection`](crate::Connection).
    Listen,
    /// We sent a SYN.
    SynSent,
    /// SYNs were exchanged; ours is not acknowledged.
    SynReceived,
    /// Data flows.
    Established,
    /// We closed; our FIN is not acknowledged.
    FinWait1,
    /// We closed, the peer knows, and may go on sending.
    FinWait2,
    /// The peer closed; we may go on sending.
    CloseWait,
    /// Both closed at once; our FIN is not acknowledged.
    Closing,
    /// The peer closed first, then we; our FIN is not acknowledged.
    LastAck,
    /// Both closed; waiting until no segment of this connection is left in the network.
    TimeWait,
}

/// An event of the state machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Event {
    /// The application connects.
    OpenActive,
    /// The application listens.
    OpenPassive,
    /// A SYN without an acknowledgement of ours.
    Syn,
    /// A SYN that acknowledges ours.
    SynAck,
    /// Our SYN is acknowledged by a segment without SYN.
    AckOfSyn,
    /// The application closes its sending direction.
    Close,
    /// The peer's FIN, everything before it received.
    Fin,
    /// Our FIN is acknowledged.
    AckOfFin,
    /// An acceptable reset, or ours.
    Reset,
    /// The state has timed out: no retries left, 2 MSL passed, or FIN-WAIT-2 too long.
    Expire,
}

impl State {
    /// Every state.
    pub const ALL: [Self; 11] = [
        Self::Closed,
        Self::Listen,
        Self::SynSent,
        Self::SynReceived,
        Self::Established,
        Self::FinWait1,
        Self::FinWait2,
        Self::CloseWait,
        Self::Closing,
        Self::LastAck,
        Self::TimeWait,
    ];

    /// The state after `event`, or `None` where the event cannot happen.
    pub const fn on(self, event: Event) -> Option<Self> {
        use Event as E;
        use State as S;
        Some(match (self, event) {
            (S::Closed, E::OpenActive) => S::SynSent,
            (S::Closed, E::OpenPassive) => S::Listen,
            (S::Listen, E::OpenActive) => S::SynSent,
            (S::Listen, E::Syn) => S::SynReceived,
            (S::SynSent, E::Syn) => S::SynReceived,
            (S::SynSent, E::SynAck) => S::Established,
            (S::SynReceived, E::AckOfSyn) => S::Established,
            (S::SynReceived | S::Established, E::Close) => S::FinWait1,
            (S::Established, E::Fin) => S::CloseWait,
            (S::FinWait1, E::AckOfFin) => S::FinWait2,
            (S::FinWait1, E::Fin) => S::Closing,
            (S::FinWait2, E::Fin) => S::TimeWait,
            (S::Closing, E::AckOfFin) => S::TimeWait,
            (S::CloseWait, E::Close) => S::LastAck,
            (S::LastAck, E::AckOfFin) => S::Closed,
            (S::Listen | S::SynSent, E::Close) => S::Closed,
            (S::Closed | S::Listen, E::Reset | E::Expire) => return None,
            (_, E::Reset | E::Expire) => S::Closed,
            _ => return None,
        })
    }

    /// Whether both sides have agreed on sequence numbers (RFC 9293 section 3.5.2, group 3).
    pub const fn is_synchronized(self) -> bool {
        !matches!(self, Self::Closed | Self::Listen | Self::SynSent | Self::SynReceived)
    }

    /// Whether the peer may still send us data.
    pub const fn can_receive(self) -> bool {
        matches!(self, Self::Established | Self::FinWait1 | Self::FinWait2)
    }

    /// Whether the application may send data.
    pub const fn can_send(self) -> bool {
        matches!(self, Self::Established | Self::CloseWait)
    }

    /// Whether segments with data or FIN may leave.
    pub const fn may_transmit(self) -> bool {
        matches!(
            self,
            Self::Established | Self::CloseWait | Self::FinWait1 | Self::Closing | Self::LastAck
        )
    }

    /// The name in the RFC.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Closed => "CLOSED",
            Self::Listen => "LISTEN",
            Self::SynSent => "SYN-SENT",
            Self::SynReceived => "SYN-RECEIVED",
            Self::Established => "ESTABLISHED",
            Self::FinWait1 => "FIN-WAIT-1",
            Self::FinWait2 => "FIN-WAIT-2",
            Self::CloseWait => "CLOSE-WAIT",
            Self::Closing => "CLOSING",
            Self::LastAck => "LAST-ACK",
            Self::TimeWait => "TIME-WAIT",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Event {
    /// Every event.
    pub const ALL: [Self; 10] = [
        Self::OpenActive,
        Self::OpenPassive,
        Self::Syn,
        Self::SynAck,
        Self::AckOfSyn,
        Self::Close,
        Self::Fin,
        Self::AckOfFin,
        Self::Reset,
        Self::Expire,
    ];
}

#[cfg(test)]
#[path = "tests/state.rs"]
mod tests;
