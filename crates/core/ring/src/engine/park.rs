//! Sockets that wait for room in a ring. Each costs one check, and another at an event or room.

use std::collections::VecDeque;

use pagewire_mem::Instant;
use pagewire_stack::Stack;

use super::{Engine, Kind};
use crate::group::Group;
use crate::layout::COPY_GROUP;

/// What a socket waits for, and how much of it: a stream the least, a datagram all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Need {
    pub(super) what: Scarce,
    pub(super) least: usize,
}

impl Need {
    /// The least amount.
    pub(super) const fn some(what: Scarce) -> Self {
        Self { what, least: 1 }
    }
}

/// The kinds of room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scarce {
    Completions,
    Entries,
    /// Bytes of the copy group.
    Copies,
}

const ALL: [Scarce; 3] = [Scarce::Completions, Scarce::Entries, Scarce::Copies];

/// Handles by what they wait for and how much, the longest wait first; they may be stale.
#[derive(Default)]
pub(super) struct Parked([VecDeque<(u64, usize)>; ALL.len()]);

impl Parked {
    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(VecDeque::is_empty)
    }

    fn list(&mut self, what: Scarce) -> Option<&mut VecDeque<(u64, usize)>> {
        self.0.get_mut(what as usize)
    }
}

/// Stale handles that a list may have in addition to the number of sockets.
const STALE: usize = 64;

impl Engine {
    /// Serves the socket again when there is what it needs.
    pub(super) fn park(&mut self, handle: u64, need: Need) {
        let (sockets, bit) = (&mut self.sockets, 1 << need.what as u8);
        let Some(socket) = sockets.get_mut(handle).filter(|socket| socket.parked & bit == 0) else {
            return;
        };
        socket.parked |= bit;
        let Some(list) = self.parked.list(need.what) else { return };
        if list.len() >= sockets.len() + STALE {
            list.retain(|&(handle, _)| sockets.get_mut(handle).is_some());
        }
        list.push_back((handle, need.least));
    }

    /// Serves parked sockets, in order, while there is room.
    pub(super) fn unpark(&mut self, now: Instant, stack: &mut Stack) {
        self.unparking = true;
        for what in ALL {
            for _ in 0..self.parked.list(what).map_or(0, |list| list.len()) {
                let Some(&(handle, least)) = self.parked.list(what).and_then(|list| list.front())
                else {
                    break;
                };
                // No overtaking: a large need would never be met.
                if self.waits(handle) && self.left_of(what) < least {
                    break;
                }
                self.parked.list(what).and_then(VecDeque::pop_front);
                if let Some(socket) = self.sockets.get_mut(handle) {
                    socket.parked &= !(1 << what as u8);
                    self.serve(now, stack, handle);
                }
            }
        }
        self.unparking = false;
    }

    /// Whether the socket still waits.
    fn waits(&mut self, handle: u64) -> bool {
        self.sockets.get_mut(handle).is_some_and(|socket| match &socket.kind {
            Kind::Open(endpoint) => endpoint.receive.is_some(),
            _ => true,
        })
    }

    /// Whether other sockets wait for this, and come first.
    pub(super) fn others_wait(&self, what: Scarce) -> bool {
        !self.unparking && self.parked.0.get(what as usize).is_some_and(|list| !list.is_empty())
    }

    /// How much there is.
    fn left_of(&mut self, what: Scarce) -> usize {
        match what {
            Scarce::Completions => self.completions.free(),
            Scarce::Entries => self.entries.free(),
            Scarce::Copies => {
                let group = self.groups.get_mut(usize::from(COPY_GROUP)).and_then(Option::as_mut);
                group.map_or(0, Group::room_for_copies)
            }
        }
    }
}
