//! The [`Recorder`], which every event of a run passes: it feeds the digest, the counts and the listeners.

use std::net::IpAddr;

use pagewire_mem::{CopyLedger, PacketBuf};
use pagewire_stack::{Stack, TcpInfo};

use crate::network::summary::PacketSummary;
use crate::record::comparison::RunComparison;
use crate::record::digest::{Digest, Digester, Event};
use crate::record::packet_event::{PacketEvent, RunEvent};
use crate::{HostId, SimTime};

/// A listener of events: a capture or a timeline.
pub(crate) trait EventSink {
    fn host(&mut self, host: HostId, name: &str, addresses: &[IpAddr]);

    /// Gets the state of the connection that sends the next packet.
    fn state(&mut self, _of: &TcpInfo) {}

    /// Something happened to a packet on its way between two hosts, as far as these are known.
    fn frame(
        &mut self,
        at: SimTime,
        event: PacketEvent,
        from: Option<HostId>,
        to: Option<HostId>,
        frame: &PacketBuf,
        ledger: &mut CopyLedger,
    );

    /// Something else happened.
    fn note(&mut self, at: SimTime, host: Option<HostId>, text: &str);

    /// Ends the record; these lines say how the run ended.
    fn end(&mut self, lines: &[String]);

    /// Writes out everything so far. `Err`: the message about a failed write, now or before.
    fn flush(&mut self) -> Result<(), String>;
}

/// The digest, the counts, and the listeners.
#[derive(Default)]
pub(crate) struct Recorder {
    digester: Digester,
    /// Whether the payload of frames counts.
    pub(crate) payload: bool,
    pub(crate) sinks: Vec<Box<dyn EventSink + Send>>,
    pub(crate) counts: Counts,
    /// The comparison with another run of the seed.
    pub(crate) comparison: Option<RunComparison>,
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
    /// Number of times that the tasks of a host ran.
    pub runs: u64,
    /// Number of times that a host looked ahead for its next timer.
    pub looks: u64,
}

const NOBODY: u32 = u32::MAX;

impl Recorder {
    pub(crate) fn frame(
        &mut self,
        at: SimTime,
        event: PacketEvent,
        from: Option<HostId>,
        to: Option<HostId>,
        frame: &PacketBuf,
    ) {
        self.last = at;
        let number = |host: Option<HostId>| u64::from(host.map_or(NOBODY, |host| host.0));
        let ends = number(from) << 32 | number(to);
        let (kind, b) = (event as u8, frame.len() as u64);
        let words =
            || PacketSummary::of(frame).map_or_else(String::new, |packet| packet.to_string());
        self.event(Event { at: at.as_nanos(), kind, a: ends, b }, words);
        match event {
            PacketEvent::Sent => self.counts.sent += 1,
            PacketEvent::Arrived => {
                self.counts.arrived += 1;
                self.digester.bytes(frame.head());
                if self.payload {
                    for frag in frame.frags() {
                        frag.for_each_piece(&mut self.ledger, |piece| self.digester.bytes(piece));
                    }
                }
            }
            event => self.counts.lost += u64::from(event.is_loss()),
        }
        tracing::trace!(
            target: "pagewire_simulation",
            fate = %event,
            from = from.map(|host| host.0),
            to = to.map(|host| host.0),
            bytes = frame.len(),
        );
        for sink in &mut self.sinks {
            sink.frame(at, event, from, to, frame, &mut self.ledger);
        }
    }

    /// Gives listeners the state of the connection that sends `packet`.
    pub(crate) fn state(&mut self, stack: &Stack, packet: &PacketBuf) {
        if self.sinks.is_empty() {
            return;
        }
        let Some((from, from_port, to, to_port)) =
            PacketSummary::of(packet).and_then(|it| it.flow())
        else {
            return;
        };
        if let Some(info) = stack.connection((from, from_port).into(), (to, to_port).into()) {
            self.sinks.iter_mut().for_each(|sink| sink.state(&info));
        }
    }

    pub(crate) fn note(&mut self, at: SimTime, kind: RunEvent, host: Option<HostId>, text: &str) {
        self.note_as(at, kind, host, text, text);
    }

    /// Records a command: `text` counts for the digest, `words` are for people.
    pub(crate) fn order(&mut self, at: SimTime, text: &str, words: &str) {
        self.note_as(at, RunEvent::Action, None, text, words);
    }

    fn note_as(
        &mut self,
        at: SimTime,
        kind: RunEvent,
        host: Option<HostId>,
        text: &str,
        words: &str,
    ) {
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
        if let Some(comparison) = &self.comparison {
            comparison.event(event, self.digester.hash(), words);
        }
        self.digester.event(event);
    }

    /// Records a log line of a task, which is no event.
    #[cfg(feature = "subscriber")]
    pub(crate) fn log(&mut self, at: SimTime, host: HostId, line: &str) {
        self.sinks.iter_mut().for_each(|sink| sink.note(at, Some(host), line));
    }

    pub(crate) fn host(&mut self, host: HostId, name: &str, addresses: &[IpAddr]) {
        if let Some(comparison) = &self.comparison {
            comparison.host(name);
        }
        self.sinks.iter_mut().for_each(|sink| sink.host(host, name, addresses));
    }

    /// Ends the record: listeners finish their files. Returns messages about failed writes.
    pub(crate) fn end(&mut self, lines: &[String]) -> Vec<String> {
        let mut sinks = std::mem::take(&mut self.sinks);
        sinks.iter_mut().for_each(|sink| sink.end(lines));
        sinks.iter_mut().filter_map(|sink| sink.flush().err()).collect()
    }

    /// Brings the listeners' files up to date. Returns messages about failed writes.
    pub(crate) fn flush(&mut self) -> Vec<String> {
        self.sinks.iter_mut().filter_map(|sink| sink.flush().err()).collect()
    }

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
