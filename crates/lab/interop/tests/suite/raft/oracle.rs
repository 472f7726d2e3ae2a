//! Invariants that hold whichever node crashes: raft's own, and linearizable reads for clients.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::raft::store::Store;
use crate::raft::types::{Entry, NodeId};

/// Collects the reports of all nodes and clients, and checks them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Oracle(Arc<Mutex<Seen>>);

#[derive(Debug, Default)]
struct Seen {
    /// The leader of each term.
    leaders: BTreeMap<u64, NodeId>,
    /// The entry applied at each index, by the first node that applied one.
    applied: BTreeMap<u64, Entry>,
    /// Calls of clients, by key.
    calls: BTreeMap<u8, Vec<Call>>,
    /// The first thing that does not hold.
    broken: Option<String>,
}

/// A call of a client, in nanoseconds of simulated time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) what: What,
    pub(crate) start: u64,
    /// `None`: whether it took effect is unknown.
    pub(crate) end: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    Write(u64),
    Read(Option<u64>),
}

impl Oracle {
    fn with<T>(&self, look: impl FnOnce(&mut Seen) -> T) -> T {
        look(&mut self.0.lock().unwrap())
    }

    /// State machine safety: no two nodes apply different entries at one index.
    pub(crate) fn applied(&self, node: NodeId, entry: &Entry) {
        self.with(|seen| {
            let first = seen.applied.entry(entry.log_id.index).or_insert_with(|| entry.clone());
            if first != entry {
                let what = format!("node {node} applied {entry:?}, another {first:?}");
                seen.broken.get_or_insert(what);
            }
        });
    }

    /// Election safety: a term has one leader. Leader completeness: it has all that was applied.
    pub(crate) fn leads(&self, node: NodeId, term: u64, store: &Store) {
        self.with(|seen| {
            match seen.leaders.get(&term) {
                Some(&leader) if leader == node => return,
                Some(leader) => {
                    let what = format!("term {term} has two leaders: {leader} and {node}");
                    seen.broken.get_or_insert(what);
                    return;
                }
                None => _ = seen.leaders.insert(term, node),
            }
            let log = store.written().log;
            let applied = seen.applied.iter().filter(|(_, e)| e.log_id.leader_id.term < term);
            for (index, entry) in applied {
                if log.get(index) != Some(entry) {
                    let what = format!("leader {node} of term {term} lacks {entry:?}");
                    seen.broken.get_or_insert(what);
                    return;
                }
            }
        });
    }

    /// Log matching: entries of one index and term are equal, and so is all before them.
    pub(crate) fn logs_match(&self, stores: &[Store]) {
        let logs: Vec<_> = stores.iter().map(|store| store.written().log).collect();
        for (n, one) in logs.iter().enumerate() {
            for other in &logs[n + 1..] {
                let same = |(index, entry): &(&u64, &Entry)| {
                    other.get(index).is_some_and(|e| e.log_id == entry.log_id)
                };
                let Some((&last, _)) = one.iter().rev().find(same) else { continue };
                if one.range(..=last).ne(other.range(..=last)) {
                    let what = format!("two logs differ before index {last}");
                    self.with(|seen| _ = seen.broken.get_or_insert(what));
                }
            }
        }
    }

    pub(crate) fn called(&self, key: u8, call: Call) {
        self.with(|seen| seen.calls.entry(key).or_default().push(call));
    }

    /// The first thing that does not hold.
    pub(crate) fn verdict(&self) -> Result<(), String> {
        self.with(|seen| seen.broken.clone().map_or(Ok(()), Err))
    }

    /// Whether each register was linearizable.
    pub(crate) fn judge_calls(&self) -> Result<(), String> {
        self.with(|seen| {
            let mut judged = seen.calls.iter().map(|(key, calls)| (key, linearizable(calls)));
            judged.try_for_each(|(key, done)| done.map_err(|e| format!("register {key}: {e}")))
        })
    }

    /// How many calls were answered.
    pub(crate) fn answered(&self) -> usize {
        let ended = |calls: &Vec<Call>| calls.iter().filter(|call| call.end.is_some()).count();
        self.with(|seen| seen.calls.values().map(ended).sum())
    }
}

/// Whether the calls on a register, each value written once, have an order in which each takes
/// effect between its start and its end (Gibbons and Korach, "Testing Shared Memories", 1997): the
/// calls of each value lie together, so the times that a value must hold must not overlap.
pub(crate) fn linearizable(calls: &[Call]) -> Result<(), String> {
    // For each value: the earliest end of its calls, and the latest start.
    let mut zones: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    let mut starts = BTreeMap::new();
    for call in calls {
        if let What::Write(value) = call.what {
            starts.insert(value, call.start);
        }
    }
    for call in calls {
        let value = match (call.what, call.end) {
            (What::Write(value), _) => value,
            (What::Read(value), Some(_)) => value.unwrap_or(0),
            // Nobody knows what it read.
            (What::Read(_), None) => continue,
        };
        let end = call.end.unwrap_or(u64::MAX);
        if value != 0 && starts.get(&value).is_none_or(|&start| start > end) {
            return Err(format!("{call:?} was never written, or later"));
        }
        let zone = zones.entry(value).or_insert((u64::MAX, 0));
        *zone = (zone.0.min(end), zone.1.max(call.start));
    }
    // The initial value was written before everything.
    if let Some(zone) = zones.get_mut(&0) {
        zone.0 = 0;
    }
    let forward = |&(_, (end, start)): &(u64, (u64, u64))| end < start;
    let (forward, backward): (Vec<_>, Vec<_>) = zones.into_iter().partition(forward);
    for (n, (one, (from, to))) in forward.iter().enumerate() {
        for (other, (start, end)) in &forward[n + 1..] {
            if start < to && from < end {
                return Err(format!("values {one} and {other} both hold at one time"));
            }
        }
        for (other, (end, start)) in &backward {
            if from < start && end < to {
                return Err(format!("value {other} comes and goes while {one} must hold"));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(value: u64, start: u64, end: u64) -> Call {
        Call { what: What::Write(value), start, end: Some(end) }
    }

    fn read(value: u64, start: u64, end: u64) -> Call {
        Call { what: What::Read(Some(value).filter(|&v| v != 0)), start, end: Some(end) }
    }

    #[test]
    fn calls_in_an_order_are_linearizable() {
        linearizable(&[write(1, 10, 20), read(1, 30, 40), write(2, 50, 60), read(2, 70, 80)])
            .unwrap();
        linearizable(&[read(0, 1, 2), write(1, 10, 20), read(1, 15, 40)]).unwrap();
        // Two reads while a write goes on may see either value, the old one first.
        linearizable(&[write(1, 1, 2), write(2, 10, 90), read(1, 20, 30), read(2, 40, 50)])
            .unwrap();
    }

    #[test]
    fn a_stale_read_is_not() {
        linearizable(&[write(1, 10, 20), write(2, 30, 40), read(1, 50, 60)]).unwrap_err();
        linearizable(&[write(1, 10, 20), read(0, 50, 60)]).unwrap_err();
        linearizable(&[write(1, 1, 2), write(2, 10, 90), read(2, 20, 30), read(1, 40, 50)])
            .unwrap_err();
    }

    #[test]
    fn a_read_of_the_future_is_not() {
        linearizable(&[read(1, 1, 2), write(1, 10, 20)]).unwrap_err();
    }

    #[test]
    fn a_write_without_an_answer_may_take_effect_later_or_never() {
        let lost = Call { what: What::Write(2), start: 10, end: None };
        linearizable(&[write(1, 1, 2), lost, read(1, 20, 30), read(2, 40, 50)]).unwrap();
        linearizable(&[write(1, 1, 2), lost, read(1, 20, 30)]).unwrap();
        linearizable(&[write(1, 1, 2), lost, read(2, 20, 30), read(1, 40, 50)]).unwrap_err();
    }
}
