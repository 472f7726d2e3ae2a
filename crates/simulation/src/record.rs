//! Everything that happens passes here: for the digest, and for whoever else listens.

use std::fmt;
use std::net::IpAddr;

use pagewire_mem::{CopyLedger, PacketBuf};
use pagewire_stack::{Stack, TcpInfo};

use crate::digest::{Digest, Digester, Event};
use crate::packet::Summary;
use crate::tape::Tape;
use crate::{HostId, SimTime};

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

/// A listener besides the digest.
pub(crate) trait Sink {
    /// A host was added.
    fn host(&mut self, host: HostId, name: &str, addresses: &[IpAddr]);

    /// The next packet that is sent is of a connection in this state.
    fn state(&mut self, _of: &TcpInfo) {}

    /// Something happened to a packet on its way between two hosts, as far as these are known.
    fn frame(
        &mut self,
        at: SimTime,
        fate: Fate,
        from: Option<HostId>,
        to: Option<HostId>,
        frame: &PacketBuf,
        ledger: &mut CopyLedger,
    );

    /// Something else happened.
    fn note(&mut self, at: SimTime, host: Option<HostId>, text: &str);

    /// The run is over; these lines say how.
    fn end(&mut self, lines: &[String]);

    /// Writes out everything so far. `Err`: what could not be written, now or before.
    fn flush(&mut self) -> Result<(), String>;
}

/// The digest, the counts, and the listeners.
#[derive(Default)]
pub(crate) struct Recorder {
    digester: Digester,
    /// Whether the payload of frames counts.
    pub(crate) payload: bool,
    pub(crate) sinks: Vec<Box<dyn Sink + Send>>,
    pub(crate) counts: Counts,
    /// Another run of the seed.
    pub(crate) tape: Option<Tape>,
    /// Copies made of payload that must not be read in place.
    pub(crate) ledger: CopyLedger,
    last: SimTime,
}

/// Counts of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Packets that hosts sent.
    pub sent: u64,
    /// Packets that hosts received.
    pub arrived: u64,
    /// Packets that were lost, for any reason.
    pub lost: u64,
    /// Times that the tasks of a host ran.
    pub runs: u64,
    /// Times that a host's next timer was looked for.
    pub looks: u64,
}

const NOBODY: u32 = u32::MAX;

impl Recorder {
    pub(crate) fn frame(
        &mut self,
        at: SimTime,
        fate: Fate,
        from: Option<HostId>,
        to: Option<HostId>,
        frame: &PacketBuf,
    ) {
        self.last = at;
        let number = |host: Option<HostId>| u64::from(host.map_or(NOBODY, |host| host.0));
        let ends = number(from) << 32 | number(to);
        let (kind, b) = (fate as u8, frame.len() as u64);
        let words = || Summary::of(frame).map_or_else(String::new, |packet| packet.to_string());
        self.event(Event { at: at.as_nanos(), kind, a: ends, b }, words);
        match fate {
            Fate::Sent => self.counts.sent += 1,
            Fate::Arrived => {
                self.counts.arrived += 1;
                self.digester.bytes(frame.head());
                if self.payload {
                    for frag in frame.frags() {
                        frag.for_each_piece(&mut self.ledger, |piece| self.digester.bytes(piece));
                    }
                }
            }
            fate => self.counts.lost += u64::from(fate.is_loss()),
        }
        tracing::trace!(
            target: "pagewire_simulation",
            %fate,
            from = from.map(|host| host.0),
            to = to.map(|host| host.0),
            bytes = frame.len(),
        );
        for sink in &mut self.sinks {
            sink.frame(at, fate, from, to, frame, &mut self.ledger);
        }
    }

    /// Tells listeners the state of the connection that sends `packet`.
    pub(crate) fn state(&mut self, stack: &Stack, packet: &PacketBuf) {
        if self.sinks.is_empty() {
            return;
        }
        let Some((from, from_port, to, to_port)) = Summary::of(packet).and_then(|it| it.flow())
        else {
            return;
        };
        if let Some(info) = stack.connection((from, from_port).into(), (to, to_port).into()) {
            self.sinks.iter_mut().for_each(|sink| sink.state(&info));
        }
    }

    pub(crate) fn note(&mut self, at: SimTime, kind: Kind, host: Option<HostId>, text: &str) {
        self.note_as(at, kind, host, text, text);
    }

    /// An order is carried out: `text` counts for the digest, `words` are for people.
    pub(crate) fn order(&mut self, at: SimTime, text: &str, words: &str) {
        self.note_as(at, Kind::Action, None, text, words);
    }

    fn note_as(&mut self, at: SimTime, kind: Kind, host: Option<HostId>, text: &str, words: &str) {
        self.last = at;
        let number = host.map_or(NOBODY, |host| host.0);
        let (kind, a, b) = (kind as u8, number.into(), text.len() as u64);
        self.event(Event { at: at.as_nanos(), kind, a, b }, || words.to_owned());
        self.digester.bytes(text.as_bytes());
        for sink in &mut self.sinks {
            sink.note(at, host, words);
        }
    }

    fn event(&mut self, event: Event, words: impl FnOnce() -> String) {
        if let Some(tape) = &self.tape {
            tape.event(event, self.digester.hash(), words);
        }
        self.digester.event(event);
    }

    /// A task logged a line, which is no event.
    #[cfg(feature = "subscriber")]
    pub(crate) fn log(&mut self, at: SimTime, host: HostId, line: &str) {
        self.sinks.iter_mut().for_each(|sink| sink.note(at, Some(host), line));
    }

    /// A host was added.
    pub(crate) fn host(&mut self, host: HostId, name: &str, addresses: &[IpAddr]) {
        if let Some(tape) = &self.tape {
            tape.host(name);
        }
        self.sinks.iter_mut().for_each(|sink| sink.host(host, name, addresses));
    }

    /// The run is over: listeners finish their files. What they could not write.
    pub(crate) fn end(&mut self, lines: &[String]) -> Vec<String> {
        let mut sinks = std::mem::take(&mut self.sinks);
        sinks.iter_mut().for_each(|sink| sink.end(lines));
        sinks.iter_mut().filter_map(|sink| sink.flush().err()).collect()
    }

    /// Brings the listeners' files up to date. What they could not write.
    pub(crate) fn flush(&mut self) -> Vec<String> {
        self.sinks.iter_mut().filter_map(|sink| sink.flush().err()).collect()
    }

    /// When something last happened.
    pub(crate) fn last(&self) -> SimTime {
        self.last
    }

    pub(crate) fn digest(&self) -> Digest {
        self.digester.digest()
    }

    pub(crate) fn events(&self) -> u64 {
        self.digester.events()
    }
}
