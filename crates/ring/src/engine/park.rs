//! Sockets that wait for room: looked at when there is some, and not before.
//!
//! An application that reads nothing has all its connections here. Each costs one look, and the next
//! when something happens to it or room is made, so that its host has its time for others.

use std::collections::VecDeque;

use pagewire_mem::Instant;
use pagewire_stack::Stack;

use super::Engine;
use crate::layout::COPY_GROUP;

/// What a socket waits for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Need {
    /// Room in the ring of completions.
    Completions,
    /// Room in the ring of entries.
    Entries,
    /// A buffer of the copy group.
    Copies,
}

const NEEDS: [Need; 3] = [Need::Completions, Need::Entries, Need::Copies];

/// Handles by what they wait for, the longest first; they may be stale.
#[derive(Default)]
pub(super) struct Parked([VecDeque<u64>; NEEDS.len()]);

impl Parked {
    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(VecDeque::is_empty)
    }

    fn list(&mut self, need: Need) -> Option<&mut VecDeque<u64>> {
        self.0.get_mut(need as usize)
    }
}

/// Stale handles that a list may have beside as many as there are sockets.
const STALE: usize = 64;

impl Engine {
    /// The socket is looked at again when there is what it needs.
    pub(super) fn park(&mut self, handle: u64, need: Need) {
        let (sockets, bit) = (&mut self.sockets, 1 << need as u8);
        let Some(socket) = sockets.get_mut(handle).filter(|socket| socket.parked & bit == 0) else {
            return;
        };
        socket.parked |= bit;
        let Some(list) = self.parked.list(need) else { return };
        if list.len() >= sockets.len() + STALE {
            list.retain(|&handle| sockets.get_mut(handle).is_some());
        }
        list.push_back(handle);
    }

    /// Looks at those that wait, one after the other while there is room.
    pub(super) fn unpark(&mut self, now: Instant, stack: &mut Stack) {
        for need in NEEDS {
            for _ in 0..self.parked.list(need).map_or(0, |list| list.len()) {
                if !self.has(need) {
                    break;
                }
                let Some(handle) = self.parked.list(need).and_then(VecDeque::pop_front) else {
                    break;
                };
                if let Some(socket) = self.sockets.get_mut(handle) {
                    socket.parked &= !(1 << need as u8);
                    self.serve(now, stack, handle);
                }
            }
        }
    }

    fn has(&mut self, need: Need) -> bool {
        match need {
            Need::Completions => self.completions.free() > 0,
            Need::Entries => self.entries.free() > 0,
            Need::Copies => {
                let group = self.groups.get_mut(usize::from(COPY_GROUP)).and_then(Option::as_mut);
                group.is_some_and(|group| group.available() > 0)
            }
        }
    }
}
