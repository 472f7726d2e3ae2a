//! The fuzz target's entry point: frames as a tap's kernel side could write them.

use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;

use pagewire_mem::{Carver, CopyLedger, PagePool, PageWriter};

use super::limits::{MIN_POOL_BYTES, VNET_HEADER};
use super::queues::TapQueue;
use super::{FRONT, Receiver};
use crate::DeviceCounters;
use pagewire_mem::link::Steering;

/// Reads `data` as frames, each with its length (two bytes) before its virtio header, and receives
/// them with a new driver. Every frame that is not dropped must arrive byte for byte, and no page
/// may be lost. Does nothing where no socket or memory is available.
pub fn tap_frame(data: &[u8]) {
    let (Ok((ours, kernel)), Ok(pool)) =
        (UnixDatagram::pair(), PagePool::new("fuzz", MIN_POOL_BYTES))
    else {
        return;
    };
    let (carver, small) = (Carver::new(), PageWriter::new());
    let mut receiver = Receiver { pool, carver, small, front: [0; FRONT] };
    let (mut queue, mut steering) = (TapQueue::new(), Steering::private(1));
    let (mut counters, mut ledger) = (DeviceCounters::default(), CopyLedger::new());
    let (mut rest, mut held) = (data, Vec::new());
    while let Some((&length, after)) = rest.split_first_chunk::<2>() {
        let length = usize::from(u16::from_le_bytes(length)).min(after.len());
        let Some((message, next)) = after.split_at_checked(length) else { break };
        rest = next;
        if message.is_empty() || kernel.send(message).is_err() {
            continue;
        }
        if let Ok(Some(packet)) =
            receiver.receive(ours.as_fd(), &mut queue, &mut steering, &mut counters, &mut ledger)
        {
            held.push((packet, message.get(VNET_HEADER..).unwrap_or_default()));
        }
        // Later frames must not overwrite held ones.
        for (packet, frame) in &held {
            let parts = packet.frags().iter().filter_map(|frag| frag.as_slice());
            assert!(packet.head().iter().chain(parts.flatten()).eq(*frame), "a frame changed");
        }
        assert!(receiver.pool.audit().is_conserved(), "a page was lost");
    }
}
