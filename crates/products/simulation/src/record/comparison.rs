//! The comparison of two runs of a seed: the first run's events are kept, and the second run's are compared with them.
//!
//! An event is compared when it begins, by its numbers and by the hash over all earlier events; so the
//! further contents of an event, the bytes of a packet for instance, are compared when the next one begins.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::SimTime;
use crate::limits::MAX_COMPARED_EVENTS;
use crate::record::digest::{Digest, Event};
use crate::record::packet_event::{PacketEvent, RunEvent};

/// Two runs of a seed.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunComparison(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    first: Vec<(Event, u64)>,
    /// The digest and the number of events of the first run, once it is over.
    end: Option<(Digest, u64)>,
    names: Vec<String>,
    seen: usize,
    /// The last two events of the second run, with words for them.
    last: [(Option<Event>, String); 2],
    parted: Option<String>,
}

impl RunComparison {
    pub(crate) fn host(&self, name: &str) {
        let mut state = self.lock();
        if state.end.is_none() {
            state.names.push(name.to_owned());
        }
    }

    /// Takes the begin of an event; `before` is the hash over everything until then, `words` are for people.
    pub(crate) fn event(&self, event: Event, before: u64, words: impl FnOnce() -> String) {
        let mut state = self.lock();
        if state.end.is_none() {
            if state.first.len() < MAX_COMPARED_EVENTS {
                state.first.push((event, before));
            }
            return;
        }
        let at = state.seen;
        state.seen += 1;
        if state.parted.is_some() {
            return;
        }
        state.last.swap(0, 1);
        state.last[1] = (Some(event), words());
        let first = state.first.get(at).copied();
        let whole = state.first.len() < MAX_COMPARED_EVENTS;
        state.parted = match first {
            Some((_, expected)) if expected != before => Some(state.other_contents(at)),
            Some((expected, _)) if expected != event => Some(state.parting(at, Some(expected))),
            None if whole => Some(state.parting(at, None)),
            _ => None,
        };
    }

    pub(crate) fn rewind(&self, digest: Digest, events: u64) {
        self.lock().end = Some((digest, events));
    }

    /// The difference between the second run and the first, as far as the second has come.
    pub(crate) fn parted(&self) -> Option<String> {
        self.lock().parted.clone()
    }

    /// Ends the second run. Returns its difference from the first.
    pub(crate) fn end(&self, digest: Digest, events: u64) -> Option<String> {
        let mut state = self.lock();
        let at = state.seen;
        if state.parted.is_some() || state.end == Some((digest, events)) {
            return state.parted.take();
        }
        let next = state.first.get(at).map(|(event, _)| state.describe(event, ""));
        Some(match next {
            Some(next) => format!("event {at} is only in the first run: {next}"),
            None if state.first.len() < MAX_COMPARED_EVENTS => state.other_contents(at),
            None => format!("two runs of the seed differ after event {at}: the digests are others"),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The words for an event `at` that differs, or that the first run does not have.
    fn parting(&self, at: usize, first: Option<Event>) -> String {
        let [_, (event, words)] = &self.last;
        let second = event.map_or_else(String::new, |event| self.describe(&event, words));
        match first {
            Some(first) => format!(
                "event {at} of two runs of the seed differs\n  first run:  {}\n  second run: {second}",
                self.describe(&first, "")
            ),
            None => format!("event {at} is only in the second run: {second}"),
        }
    }

    /// The words for the event before `at`, which has the same numbers and other contents.
    fn other_contents(&self, at: usize) -> String {
        // At the end of a run no event follows.
        let [before, last] = &self.last;
        let (event, words) = if self.seen > at { before } else { last };
        let event = event.map_or_else(String::new, |event| self.describe(&event, words));
        let at = at.saturating_sub(1);
        format!("the contents of event {at} differ between two runs of the seed: {event}")
    }

    fn describe(&self, event: &Event, words: &str) -> String {
        let name = |host: u64| {
            let name = self.names.get(host as usize);
            name.map_or_else(String::new, |name| format!("`{name}`"))
        };
        let at = SimTime::from_nanos(event.at);
        let what = match PacketEvent::of(event.kind) {
            Some(packet) => {
                let (from, to) = (name(event.a >> 32), name(event.a & u64::from(u32::MAX)));
                let way = if to.is_empty() { from } else { format!("{from} > {to}") };
                format!("a packet of {} bytes, {way}: {packet}", event.b)
            }
            None => format!("{} {}", RunEvent::words(event.kind), name(event.a)),
        };
        let more = if words.is_empty() { String::new() } else { format!(" ({words})") };
        format!("at {at}, {}{more}", what.trim_end())
    }
}
