//! The head of a packet, which holds its headers: cutting, spilling and moving it.

use pagewire_mem::{CopyReason, HEAD_CAPACITY, MAX_FRAGS, PacketBuf};

use crate::counters::DropReason;
use crate::net::Mem;

/// Cuts off what lies behind the packet's own length.
pub(super) fn trim(packet: &mut PacketBuf, len: usize) {
    if packet.len() > len {
        packet.truncate(len);
    }
}

/// Appends header bytes to the head; returns how many.
pub(super) fn append(packet: &mut PacketBuf, bytes: &[u8]) -> usize {
    match packet.append(bytes.len()) {
        Some(room) => {
            room.copy_from_slice(bytes);
            bytes.len()
        }
        None => 0,
    }
}

/// Moves what the head holds beyond `keep` bytes into pages, in front of the fragments.
pub(super) fn spill_head(
    mem: &mut Mem,
    packet: &mut PacketBuf,
    keep: usize,
    reason: CopyReason,
) -> Result<(), DropReason> {
    let Mem { pool, writer, ledger, .. } = mem;
    let Some(extra) = packet.head().get(keep..).filter(|extra| !extra.is_empty()) else {
        return Ok(());
    };
    let (mut parts, copied) = writer.write(pool, extra, ledger, reason);
    if copied < extra.len() {
        return Err(DropReason::NoPages);
    }
    packet.truncate_head(keep);
    let mut rest = packet.take_frags().into_iter();
    // A packet that is full already: its first fragment joins the bytes from the head.
    if rest.len() + parts.len() > MAX_FRAGS
        && let Some(first) = rest.next()
    {
        let (more, copied) = writer.write_frag(pool, &first, ledger, reason);
        if copied < first.len() {
            return Err(DropReason::NoPages);
        }
        parts.extend(more);
    }
    for frag in parts.into_iter().chain(rest) {
        packet.push_frag(frag).map_err(|_| DropReason::TooManyFragments)?;
    }
    Ok(())
}

/// Gives a received packet that is sent on `room` bytes for headers in front of its head.
pub(super) fn with_headroom(
    mem: &mut Mem,
    mut packet: PacketBuf,
    room: usize,
    reason: CopyReason,
) -> Result<PacketBuf, DropReason> {
    if packet.headroom() >= room {
        return Ok(packet);
    }
    spill_head(mem, &mut packet, HEAD_CAPACITY - room, reason)?;
    let mut new = PacketBuf::for_tx();
    let head = packet.head();
    new.push(head.len()).ok_or(DropReason::HeadTooLong)?.copy_from_slice(head);
    for frag in packet.take_frags() {
        new.push_frag(frag).map_err(|_| DropReason::TooManyFragments)?;
    }
    Ok(new)
}
