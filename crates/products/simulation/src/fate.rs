//! What can happen, as the digest numbers it and as people read it.

use std::fmt;

/// What happened to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Fate {
    /// Its host sent it.
    Sent,
    /// Its host received it.
    Arrived,
    /// By chance.
    Lost,
    /// The queue for the bandwidth had no room.
    QueueFull,
    /// The queue for the bandwidth was too long for too long.
    Early,
    /// The line had no room.
    LineFull,
    /// The path is cut.
    Cut,
    /// The link flapped.
    Broken,
    /// The path is held; the packet waits.
    Held,
    /// It arrives twice.
    Duplicated,
    /// A bit is flipped.
    Corrupted,
    /// Marked as one that experienced congestion.
    Marked,
    /// Others overtake it.
    Reordered,
    /// Longer than the path takes; the sender is told.
    TooBig,
    /// Longer than the path takes; nobody is told.
    BlackHole,
    /// No host has the address.
    NoHost,
    /// Its host has no power.
    Down,
}

impl Fate {
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

    /// The fate of this number in the digest.
    pub(crate) fn of(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|&fate| fate as u8 == number)
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

/// As timelines and captures say it.
impl fmt::Display for Fate {
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
pub(crate) enum Kind {
    Action = 0x80,
    Panic = 0x82,
    End = 0x83,
    Start = 0x84,
}

impl Kind {
    /// In words, before a host's name, for the number of a kind.
    pub(crate) fn words(number: u8) -> &'static str {
        match number {
            n if n == Self::Action as u8 => "an order",
            n if n == Self::Panic as u8 => "a panic on",
            n if n == Self::End as u8 => "the end of",
            _ => "the start of",
        }
    }
}
