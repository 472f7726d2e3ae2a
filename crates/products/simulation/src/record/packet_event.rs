//! The kinds of events in a run, with their numbers in the digest and their words in timelines.

use std::fmt;

/// An event in the life of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum PacketEvent {
    Sent,
    Arrived,
    /// The packet was lost by chance.
    Lost,
    /// The queue for the bandwidth had no room.
    QueueFull,
    /// The queue for the bandwidth was too long for too long.
    Early,
    /// The line had no room.
    LineFull,
    Cut,
    /// The link flapped.
    Broken,
    /// The path is held; the packet waits.
    Held,
    Duplicated,
    Corrupted,
    /// Marked as one that experienced congestion.
    Marked,
    Reordered,
    /// The packet is longer than the path's MTU; the sender gets an ICMP error.
    TooBig,
    /// The packet is longer than the path's MTU; the sender gets no error.
    BlackHole,
    /// No host has the address.
    NoHost,
    /// The destination has no power.
    Down,
}

impl PacketEvent {
    const ALL: [Self; 17] = [
        Self::Sent,
        Self::Arrived,
        Self::Lost,
        Self::QueueFull,
        Self::Early,
        Self::LineFull,
        Self::Cut,
        Self::Broken,
        Self::Held,
        Self::Duplicated,
        Self::Corrupted,
        Self::Marked,
        Self::Reordered,
        Self::TooBig,
        Self::BlackHole,
        Self::NoHost,
        Self::Down,
    ];

    /// The event of this number in the digest.
    pub(crate) fn of(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|&event| event as u8 == number)
    }

    /// Whether the packet goes no further.
    pub(crate) fn is_loss(self) -> bool {
        !matches!(
            self,
            Self::Sent
                | Self::Arrived
                | Self::Held
                | Self::Duplicated
                | Self::Corrupted
                | Self::Marked
                | Self::Reordered
        )
    }
}

/// The words in timelines and captures.
impl fmt::Display for PacketEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sent => "sent",
            Self::Arrived => "arrived",
            Self::Lost => "lost by chance",
            Self::QueueFull => "lost: the queue is full",
            Self::Early => "lost: the queue is long",
            Self::LineFull => "lost: the line is full",
            Self::Cut => "lost: the path is cut",
            Self::Broken => "lost: the link is broken",
            Self::Held => "held",
            Self::Duplicated => "duplicated",
            Self::Corrupted => "corrupted",
            Self::Marked => "marked: congestion",
            Self::Reordered => "delayed, others overtake it",
            Self::TooBig => "lost: too long for the path, the sender is told",
            Self::BlackHole => "lost: too long for the path, nobody is told",
            Self::NoHost => "lost: no host has this address",
            Self::Down => "lost: the host is down",
        })
    }
}

/// Kinds of other events in the digest.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RunEvent {
    Action = 0x80,
    Panic = 0x82,
    End = 0x83,
    Start = 0x84,
}

impl RunEvent {
    /// The words for the number of a kind, before a host's name.
    pub(crate) fn words(number: u8) -> &'static str {
        match number {
            n if n == Self::Action as u8 => "an order",
            n if n == Self::Panic as u8 => "a panic on",
            n if n == Self::End as u8 => "the end of",
            _ => "the start of",
        }
    }
}
