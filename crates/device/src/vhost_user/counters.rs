//! Counts of invalid input from guests and front ends, and of the work done for them.

/// Counts of a vhost-user device beside [`DeviceCounters`](crate::DeviceCounters). The first group
/// counts invalid input of a guest or a front end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VhostCounters {
    /// Rings stopped because the available index ran further ahead than the ring is long.
    pub bad_avail_index: u64,
    /// Rings stopped because an available entry named no descriptor of the table.
    pub bad_head: u64,
    /// Rings stopped because a descriptor was made available while it was held here.
    pub head_in_flight: u64,
    /// Frames dropped because a descriptor named a next one beyond the table.
    pub bad_next: u64,
    /// Frames dropped because a chain had more descriptors than the ring (a loop, mostly).
    pub chain_too_long: u64,
    /// Frames dropped because a descriptor lay outside of the guest's memory.
    pub bad_address: u64,
    /// Frames dropped because a buffer to send from was writable, or one to receive into was not.
    pub wrong_direction: u64,
    /// Frames with an indirect table that is empty, not whole, too long, nested, or not negotiated.
    pub bad_indirect: u64,
    /// Frames dropped because the chain was shorter than the headers, or longer than any frame.
    pub bad_length: u64,
    /// Frames dropped because the virtio header contradicts itself or the frame.
    pub bad_header: u64,
    /// Buffers to receive into that are shorter than the virtio header; returned empty.
    pub bad_receive_buffer: u64,
    /// Sessions ended because of a message that was malformed, out of order or refused.
    pub bad_messages: u64,
    /// Descriptors refused because they were no eventfd.
    pub bad_event_fds: u64,
    /// Memory refused: not sealed, of huge pages, shorter than announced, overlapping, too much.
    pub bad_memory: u64,
    /// Rings refused because they lie outside of the shared memory, or have an invalid size.
    pub bad_rings: u64,

    /// Frames discarded, as required, because the front end has disabled their ring.
    pub discarded: u64,
    /// Front ends that connected.
    pub sessions: u64,
    /// Frames received by reference.
    pub referenced: u64,
    /// Frames received as a copy.
    pub copied: u64,
    /// Frames copied instead of referred to: too many descriptors held, or too many pieces.
    pub copied_instead: u64,
    /// Descriptors returned to the guest with the drop of their last reference.
    pub returned: u64,
    /// Descriptors that fragments hold now.
    pub held: u64,
    /// Interrupts sent to the guest.
    pub calls: u64,
    /// Interrupts that the kernel refused at first; they are sent again until it accepts them.
    pub calls_refused: u64,
    /// Times that a front end had to wait because too many had connected.
    pub waited: u64,
    /// Bytes of guest memory mapped now, including memory that fragments of former sessions hold.
    pub mapped_bytes: u64,
    /// Windows of guest memory mapped now, counted in the same way.
    pub mappings: u64,
}

impl VhostCounters {
    /// Invalid input that only a broken or hostile guest or front end sends.
    pub fn lies(&self) -> u64 {
        [
            self.bad_avail_index,
            self.bad_head,
            self.head_in_flight,
            self.bad_next,
            self.chain_too_long,
            self.bad_address,
            self.wrong_direction,
            self.bad_indirect,
            self.bad_length,
            self.bad_header,
            self.bad_receive_buffer,
            self.bad_messages,
            self.bad_event_fds,
            self.bad_memory,
            self.bad_rings,
        ]
        .iter()
        .sum()
    }

    /// Names and counts.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        // Destructured, so that no field is forgotten.
        let Self {
            bad_avail_index,
            bad_head,
            head_in_flight,
            bad_next,
            chain_too_long,
            bad_address,
            wrong_direction,
            bad_indirect,
            bad_length,
            bad_header,
            bad_receive_buffer,
            bad_messages,
            bad_event_fds,
            bad_memory,
            bad_rings,
            discarded,
            sessions,
            referenced,
            copied,
            copied_instead,
            returned,
            held,
            calls,
            calls_refused,
            waited,
            mapped_bytes,
            mappings,
        } = *self;
        [
            ("bad_avail_index", bad_avail_index),
            ("bad_head", bad_head),
            ("head_in_flight", head_in_flight),
            ("bad_next", bad_next),
            ("chain_too_long", chain_too_long),
            ("bad_address", bad_address),
            ("wrong_direction", wrong_direction),
            ("bad_indirect", bad_indirect),
            ("bad_length", bad_length),
            ("bad_header", bad_header),
            ("bad_receive_buffer", bad_receive_buffer),
            ("bad_messages", bad_messages),
            ("bad_event_fds", bad_event_fds),
            ("bad_memory", bad_memory),
            ("bad_rings", bad_rings),
            ("discarded", discarded),
            ("sessions", sessions),
            ("referenced", referenced),
            ("copied", copied),
            ("copied_instead", copied_instead),
            ("returned", returned),
            ("held", held),
            ("calls", calls),
            ("calls_refused", calls_refused),
            ("waited", waited),
            ("mapped_bytes", mapped_bytes),
            ("mappings", mappings),
        ]
        .into_iter()
    }
}
