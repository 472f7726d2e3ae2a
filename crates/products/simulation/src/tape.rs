//! The events of one run, to compare those of another with: where two runs of a seed part.
//!
//! An event is compared when it begins, by its numbers and by the hash over all before it; so what it
//! says besides, the bytes of a packet for instance, is compared when the next one begins.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::SimTime;
use crate::digest::{Digest, Event};
use crate::fate::{Fate, Kind};
use crate::limits::MAX_TAPE;

/// Two runs of a seed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tape(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    first: Vec<(Event, u64)>,
    /// Of the first run, once it is over.
    end: Option<(Digest, u64)>,
    names: Vec<String>,
    /// Events of the second run.
    seen: usize,
    /// The last two of these, with words for them.
    last: [(Option<Event>, String); 2],
    parted: Option<String>,
}

impl Tape {
    /// A host was added.
    pub(crate) fn host(&self, name: &str) {
        let mut state = self.lock();
        if state.end.is_none() {
            state.names.push(name.to_owned());
        }
    }

    /// An event begins; `before` is the hash over everything until then, `words` are for people.
    pub(crate) fn event(&self, event: Event, before: u64, words: impl FnOnce() -> String) {
        let mut state = self.lock();
        if state.end.is_none() {
            if state.first.len() < MAX_TAPE {
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
        let whole = state.first.len() < MAX_TAPE;
        state.parted = match first {
            Some((_, expected)) if expected != before => Some(state.other_contents(at)),
            Some((expected, _)) if expected != event => Some(state.parting(at, Some(expected))),
            None if whole => Some(state.parting(at, None)),
            _ => None,
        };
    }

    /// The first run is over: what comes is the second.
    pub(crate) fn rewind(&self, digest: Digest, events: u64) {
        self.lock().end = Some((digest, events));
    }

    /// How the second run differs from the first, as far as it has come.
    pub(crate) fn parted(&self) -> Option<String> {
        self.lock().parted.clone()
    }

    /// The second run is over: how it differs from the first.
    pub(crate) fn end(&self, digest: Digest, events: u64) -> Option<String> {
        let mut state = self.lock();
        let at = state.seen;
        if state.parted.is_some() || state.end == Some((digest, events)) {
            return state.parted.take();
        }
        let next = state.first.get(at).map(|(event, _)| state.describe(event, ""));
        Some(match next {
            Some(next) => format!("event {at} is only in the first run: {next}"),
            None if state.first.len() < MAX_TAPE => state.other_contents(at),
            None => format!("two runs of the seed differ after event {at}: the digests are others"),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Event `at` is another one, or the first run had no more.
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

    /// The event before `at` has the same numbers, and other contents.
    fn other_contents(&self, at: usize) -> String {
        // At the end of a run there is none behind it.
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
        let what = match Fate::of(event.kind) {
            Some(fate) => {
                let (from, to) = (name(event.a >> 32), name(event.a & u64::from(u32::MAX)));
                let way = if to.is_empty() { from } else { format!("{from} > {to}") };
                format!("a packet of {} bytes, {way}: {fate}", event.b)
            }
            None => format!("{} {}", Kind::words(event.kind), name(event.a)),
        };
        let more = if words.is_empty() { String::new() } else { format!(" ({words})") };
        format!("at {at}, {}{more}", what.trim_end())
    }
}
