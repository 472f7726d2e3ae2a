//! Frames to send of a device whose queue pair the guest does not use ([`Spill`]): the first device of the port
//! sends them. A guest may use fewer pairs than the port has.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pagewire_mem::PacketBuf;

use super::limits::SPILLED_FRAMES;
use crate::wake_event::WakeEvent;

/// Frames that the first device of a port is to send.
pub(super) struct Spill {
    waiting: Mutex<Waiting>,
    /// Wakes the first device.
    wake: Arc<WakeEvent>,
}

#[derive(Default)]
struct Waiting {
    frames: VecDeque<PacketBuf>,
    /// Devices that found no room, to be woken when there is some.
    refused: Vec<Arc<WakeEvent>>,
    /// The first device has ended.
    closed: bool,
}

/// The side of a device.
pub(super) enum SpillEnd {
    /// The only device of its port.
    None,
    /// The first of several.
    First(Arc<Spill>),
    /// Another, and what wakes it.
    Other(Arc<Spill>, Arc<WakeEvent>),
}

impl Spill {
    pub(super) fn new(wake: &Arc<WakeEvent>) -> Arc<Self> {
        Arc::new(Self { waiting: Mutex::default(), wake: Arc::clone(wake) })
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves frames in as far as there is room. The others stay, as with a full ring. `false`: nobody takes
    /// frames any more.
    fn give(&self, frames: &mut VecDeque<PacketBuf>, giver: &Arc<WakeEvent>) -> bool {
        let mut waiting = self.waiting();
        if waiting.closed {
            return false;
        }
        let was_empty = waiting.frames.is_empty();
        let count = frames.len().min(SPILLED_FRAMES.saturating_sub(waiting.frames.len()));
        waiting.frames.extend(frames.drain(..count));
        if !frames.is_empty() && !waiting.refused.iter().any(|other| Arc::ptr_eq(other, giver)) {
            waiting.refused.push(Arc::clone(giver));
        }
        drop(waiting);
        if was_empty {
            self.wake.wake();
        }
        true
    }

    fn take(&self, into: &mut VecDeque<PacketBuf>) {
        let mut waiting = self.waiting();
        into.append(&mut waiting.frames);
        waiting.refused.drain(..).for_each(|giver| giver.wake());
    }
}

impl SpillEnd {
    /// Leaves frames to the first device; `false`: this device sends all itself.
    pub(super) fn give(&self, frames: &mut VecDeque<PacketBuf>) -> bool {
        match self {
            Self::Other(spill, giver) => spill.give(frames, giver),
            Self::None | Self::First(_) => false,
        }
    }

    /// Takes the frames that other devices have left.
    pub(super) fn take(&self, into: &mut VecDeque<PacketBuf>) {
        if let Self::First(spill) = self {
            spill.take(into);
        }
    }

    /// Whether there are frames to take.
    pub(super) fn has_frames(&self) -> bool {
        matches!(self, Self::First(spill) if !spill.waiting().frames.is_empty())
    }

    /// Lets other devices leave no further frames, if this is the first.
    pub(super) fn close(&self) {
        if let Self::First(spill) = self {
            spill.waiting().closed = true;
        }
    }
}
