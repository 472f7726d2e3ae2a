//! Walking a chain of descriptors that another side wrote: each is read once, and only the copy is
//! used. A walk follows at most as many descriptors as the ring has, and one table of that length.
//! Returned pieces lie in the guest's memory.

use super::counters::VhostCounters;
use super::memory::{Memory, Piece};
use super::virtqueue::{DESC_INDIRECT, DESC_NEXT, DESC_WRITE, Desc, Ring};

/// Descriptors of an indirect table that are copied at once.
const TABLE: usize = 16;

/// The reason why a chain is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChainError {
    Next,
    TooLong,
    Address,
    Direction,
    Indirect,
    Length,
    Header,
}

impl ChainError {
    pub(super) fn count(self, counters: &mut VhostCounters) {
        *match self {
            Self::Next => &mut counters.bad_next,
            Self::TooLong => &mut counters.chain_too_long,
            Self::Address => &mut counters.bad_address,
            Self::Direction => &mut counters.wrong_direction,
            Self::Indirect => &mut counters.bad_indirect,
            Self::Length => &mut counters.bad_length,
            Self::Header => &mut counters.bad_header,
        } += 1;
    }
}

/// The purpose of a chain, and its longest length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The device reads all of it: more than this many bytes are too long.
    Read(usize),
    /// The device writes there: room beyond this is ignored.
    Write(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChainLength {
    pub(super) len: usize,
    /// Descriptors of the ring that the guest cannot use meanwhile; a table is one.
    pub(super) descriptors: u16,
}

pub(super) struct Walk<'a> {
    pub(super) ring: &'a Ring,
    pub(super) memory: &'a Memory,
    /// Whether indirect tables were negotiated.
    pub(super) indirect: bool,
}

impl Walk<'_> {
    /// Appends the pieces of memory of the chain at `head` to `pieces`, in order.
    #[inline(always)]
    pub(super) fn chain(
        &self,
        head: u16,
        purpose: Purpose,
        pieces: &mut Vec<Piece>,
    ) -> Result<ChainLength, ChainError> {
        let first = self.ring.desc(head).ok_or(ChainError::Next)?;
        // Most small frames are one buffer.
        if first.flags & (DESC_INDIRECT | DESC_NEXT) == 0 {
            let len = self.add(first, 0, purpose, pieces)?;
            return Ok(ChainLength { len, descriptors: 1 });
        }
        self.several(first, purpose, pieces)
    }

    /// The chain of several descriptors that begins with `first`.
    #[inline(never)]
    fn several(
        &self,
        first: Desc,
        purpose: Purpose,
        pieces: &mut Vec<Piece>,
    ) -> Result<ChainLength, ChainError> {
        let (mut desc, mut total) = (first, 0);
        for descriptors in 1..=self.ring.size() {
            if descriptors > 1 {
                desc = self.ring.desc(desc.next).ok_or(ChainError::Next)?;
            }
            if desc.flags & DESC_INDIRECT != 0 {
                // Virtio 1.2, section 2.7.5.3.1: a driver must not set both flags.
                if !self.indirect || desc.flags & DESC_NEXT != 0 {
                    return Err(ChainError::Indirect);
                }
                let len = self.table(desc, total, purpose, pieces)?;
                return Ok(ChainLength { len, descriptors });
            }
            total = self.add(desc, total, purpose, pieces)?;
            if desc.flags & DESC_NEXT == 0 {
                return Ok(ChainLength { len: total, descriptors });
            }
        }
        Err(ChainError::TooLong)
    }

    /// Walks the descriptors of an indirect table, read only in copies of a few at a time.
    fn table(
        &self,
        table: Desc,
        mut total: usize,
        purpose: Purpose,
        pieces: &mut Vec<Piece>,
    ) -> Result<usize, ChainError> {
        let (bytes, size) = (table.len as usize, usize::from(self.ring.size()));
        if bytes == 0 || !bytes.is_multiple_of(16) || bytes / 16 > size {
            return Err(ChainError::Indirect);
        }
        let at = self.memory.find(table.addr, bytes).filter(|at| at.len == bytes);
        let at = at.ok_or(ChainError::Address)?;
        let window = self.memory.window(&at).ok_or(ChainError::Address)?;
        // The part of the table that `copy` holds, in descriptors; drivers fill tables front to back.
        let (mut copy, mut first, mut have) = ([0u8; TABLE * 16], 0, 0);
        let mut index = 0;
        for _ in 0..bytes / 16 {
            if index >= bytes / 16 {
                return Err(ChainError::Next);
            }
            if index < first || index >= first + have {
                first = index;
                have = (bytes / 16 - index).min(TABLE);
                let part = copy.get_mut(..have * 16).ok_or(ChainError::Indirect)?;
                if window.read(at.offset + first * 16, part) != have * 16 {
                    return Err(ChainError::Address);
                }
            }
            let desc = parse(&copy, index - first).ok_or(ChainError::Next)?;
            if desc.flags & DESC_INDIRECT != 0 {
                return Err(ChainError::Indirect);
            }
            total = self.add(desc, total, purpose, pieces)?;
            if desc.flags & DESC_NEXT == 0 {
                return Ok(total);
            }
            index = usize::from(desc.next);
        }
        Err(ChainError::TooLong)
    }

    /// Adds one buffer, behind `total` bytes of others. It may be empty.
    #[inline(always)]
    fn add(
        &self,
        desc: Desc,
        total: usize,
        purpose: Purpose,
        pieces: &mut Vec<Piece>,
    ) -> Result<usize, ChainError> {
        let len = desc.len as usize;
        let (write, len) = match purpose {
            Purpose::Read(limit) if len > limit.saturating_sub(total) => {
                return Err(ChainError::Length);
            }
            Purpose::Read(_) => (false, len),
            Purpose::Write(limit) => (true, len.min(limit.saturating_sub(total))),
        };
        if (desc.flags & DESC_WRITE != 0) != write {
            return Err(ChainError::Direction);
        }
        let (mut at, mut left) = (desc.addr, len);
        while left > 0 {
            let piece = self.memory.find(at, left).ok_or(ChainError::Address)?;
            left -= piece.len;
            at = at.wrapping_add(piece.len as u64);
            match pieces.last_mut() {
                Some(last) if last.is_followed_by(&piece) => last.len += piece.len,
                _ => pieces.push(piece),
            }
        }
        Ok(total + len)
    }
}

/// Descriptor `index` of a copied table.
fn parse(table: &[u8], index: usize) -> Option<Desc> {
    let bytes = table.get(index * 16..index * 16 + 16)?;
    let (addr, rest) = bytes.split_first_chunk::<8>()?;
    let rest = rest.first_chunk::<8>()?;
    Some(Desc::from_words(u64::from_le_bytes(*addr), u64::from_le_bytes(*rest)))
}
