//! Byte path, step R6: the receive queue.
use pagewire_mem::{Frag, FragVec};

use crate::Env;
use crate::error::DropReason;
use crate::options::SackBlocks;
use crate::seq::Seq;

/// What became of a segment's payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Inserted {
    /// Bytes by which the in-order data has grown.
    pub(crate) advanced: u32,
    /// Something was put aside, or lies, behind a gap.
    pub(crate) out_of_order: bool,
    /// The first range of the segment that had arrived before: what D-SACK (RFC 2883) reports.
    pub(crate) duplicate: Option<(Seq, Seq)>,
    /// Why the payload, or a part of it, was dropped.
    pub(crate) dropped: Option<DropReason>,
}

pub(crate) struct ReceiveQueue {
    next: Seq,
}

impl ReceiveQueue {
    pub(crate) fn new(next: Seq) -> Self {
        Self { next }
    }
    pub(crate) fn insert(&mut self, _env: &mut Env<'_>, _seq: Seq, _frags: FragVec) -> Inserted {
        Inserted::default()
    }
    pub(crate) fn next(&self) -> Seq {
        self.next
    }
    pub(crate) fn queued(&self) -> usize {
        0
    }
    pub(crate) fn buffered(&self) -> usize {
        0
    }
    pub(crate) fn pinned(&self) -> usize {
        0
    }
    pub(crate) fn has_gaps(&self) -> bool {
        false
    }
    pub(crate) fn sack_blocks(&self, _out: &mut SackBlocks) {}
    pub(crate) fn read(&mut self, _env: &mut Env<'_>, _dst: &mut [u8]) -> usize {
        0
    }
    pub(crate) fn take(&mut self, _max: usize, _out: &mut Vec<Frag>) -> usize {
        0
    }
    pub(crate) fn shrink(&mut self) {}
}
