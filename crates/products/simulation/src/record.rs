//! Everything that happens passes here: for the digest, and for whoever else listens.

use std::net::IpAddr;

use pagewire_mem::{CopyLedger, PacketBuf};
use pagewire_stack::{Stack, TcpInfo};

use crate::digest::{Digest, Digester, Event};
pub(crate) use crate::fate::{Fate, Kind};
use crate::packet::Summary;
use crate::tape::Tape;
use crate::{HostId, SimTime};

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
