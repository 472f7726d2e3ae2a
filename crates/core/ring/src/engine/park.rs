//! Parking: sockets that wait for room in a ring. A parked socket costs one check when room comes, or at
//! an event, and nothing until then.

use std::collections::VecDeque;

use pagewire_mem::Instant;
use pagewire_stack::Stack;

use super::{Engine, SocketKind};
use crate::group::Group;
use crate::layout::COPY_GROUP;

/// The room that a socket waits for: a stream needs some, a datagram room for all of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoomNeed {
    pub(super) what: RoomKind,
    pub(super) least: usize,
}

impl RoomNeed {
    /// Any room of this kind.
    pub(super) const fn some(what: RoomKind) -> Self {
        Self { what, least: 1 }
    }
}

/// A kind of room in the application's rings and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RoomKind {
    Completions,
    Entries,
    /// Bytes of the copy group.
    Copies,
}

const ALL: [RoomKind; 3] = [RoomKind::Completions, RoomKind::Entries, RoomKind::Copies];

/// Handles by what they wait for and how much, the longest wait first; they may be stale.
#[derive(Default)]
pub(super) struct Parked([VecDeque<(u64, usize)>; ALL.len()]);

impl Parked {
    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(VecDeque::is_empty)
    }

    fn list(&mut self, what: RoomKind) -> Option<&mut VecDeque<(u64, usize)>> {
        self.0.get_mut(what as usize)
    }
}

/// Stale handles that a list may have in addition to the number of sockets.
const STALE: usize = 64;

impl Engine {
    /// Serves the socket again when there is the room that it needs.
    pub(super) fn park(&mut self, handle: u64, need: RoomNeed) {
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
            SocketKind::Open(endpoint) => endpoint.receive.is_some(),
            _ => true,
        })
    }

    /// Whether other sockets wait for this kind of room, and come first.
    pub(super) fn others_wait(&self, what: RoomKind) -> bool {
        !self.unparking && self.parked.0.get(what as usize).is_some_and(|list| !list.is_empty())
    }

    /// The room of this kind that there is now.
    fn left_of(&mut self, what: RoomKind) -> usize {
        match what {
            RoomKind::Completions => self.completions.free(),
            RoomKind::Entries => self.entries.free(),
            RoomKind::Copies => {
                let group = self.groups.get_mut(usize::from(COPY_GROUP)).and_then(Option::as_mut);
                group.map_or(0, Group::room_for_copies)
            }
        }
    }
}
