//! Frames to send of a device whose queue pair the guest does not use ([`Spill`]): the first device of the port
//! sends them. A guest may use fewer pairs than the port has.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use pagewire_mem::PacketBuf;

use super::limits::SPILLED_FRAMES;
use crate::wake_event::WakeEvent;

/// Frames that the first device of a port is to send.
pub(super) struct Spill {
    frames: Mutex<VecDeque<PacketBuf>>,
    /// Wakes the first device.
    wake: Arc<WakeEvent>,
}

/// The side of a device.
pub(super) enum SpillEnd {
    /// The only device of its port.
    None,
    /// The first of several.
    First(Arc<Spill>),
    Other(Arc<Spill>),
}

impl Spill {
    pub(super) fn new(wake: &Arc<WakeEvent>) -> Arc<Self> {
        Arc::new(Self { frames: Mutex::default(), wake: Arc::clone(wake) })
    }

    /// Moves frames in as far as there is room. The others stay, as with a full ring.
    fn give(&self, frames: &mut VecDeque<PacketBuf>) {
        let mut spilled = self.frames.lock().unwrap_or_else(PoisonError::into_inner);
        let was_empty = spilled.is_empty();
        let count = frames.len().min(SPILLED_FRAMES.saturating_sub(spilled.len()));
        spilled.extend(frames.drain(..count));
        drop(spilled);
        if was_empty {
            self.wake.wake();
        }
    }

    fn take(&self, into: &mut VecDeque<PacketBuf>) {
        into.append(&mut self.frames.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn has_frames(&self) -> bool {
        !self.frames.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}

impl SpillEnd {
    /// Leaves frames to the first device; `false`: this device sends all itself.
    pub(super) fn give(&self, frames: &mut VecDeque<PacketBuf>) -> bool {
        let Self::Other(spill) = self else { return false };
        spill.give(frames);
        true
    }

    /// Takes the frames that other devices have left.
    pub(super) fn take(&self, into: &mut VecDeque<PacketBuf>) {
        if let Self::First(spill) = self {
            spill.take(into);
        }
    }

    /// Whether there are frames to take.
    pub(super) fn has_frames(&self) -> bool {
        matches!(self, Self::First(spill) if spill.has_frames())
    }
}
