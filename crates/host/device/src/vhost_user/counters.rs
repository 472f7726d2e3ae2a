//! Counts of invalid input from guests and front ends, and of the work done for them.

pagewire_mem::counters! {
    /// Counts of a vhost-user device beside [`DeviceCounters`](crate::DeviceCounters). The first group
    /// counts invalid input of a guest or a front end.
    #[derive(Copy)]
    pub struct VhostCounters {
        /// Rings stopped because the available index ran further ahead than the ring is long.
        bad_avail_index,
        /// Rings stopped because an available entry named no descriptor of the table.
        bad_head,
        /// Rings stopped because a descriptor was made available while it was held here.
        head_in_flight,
        /// Frames dropped because a descriptor named a next one beyond the table.
        bad_next,
        /// Frames dropped because a chain had more descriptors than the ring (a loop, mostly).
        chain_too_long,
        /// Frames dropped because a descriptor lay outside of the guest's memory.
        bad_address,
        /// Frames dropped because a buffer to send from was writable, or one to receive into was not.
        wrong_direction,
        /// Frames with an indirect table that is empty, not whole, too long, nested, or not negotiated.
        bad_indirect,
        /// Frames dropped because the chain was shorter than the headers, or longer than any frame.
        bad_length,
        /// Frames dropped because the virtio header contradicts itself or the frame.
        bad_header,
        /// Buffers to receive into that are shorter than the virtio header; returned empty.
        bad_receive_buffer,
        /// Sessions ended because of a message that was malformed, out of order or refused.
        bad_messages,
        /// Descriptors refused because they were no eventfd.
        bad_event_fds,
        /// Memory refused: not sealed, of huge pages, shorter than announced, overlapping, too much.
        bad_memory,
        /// Rings refused because they lie outside of the shared memory, or have an invalid size.
        bad_rings,

        /// Frames discarded, as required, because the front end has disabled their ring.
        discarded,
        /// Front ends that connected.
        sessions,
        /// Frames received by reference.
        referenced,
        /// Frames received as a copy.
        copied,
        /// Frames copied instead of referred to: too many descriptors held, or too many pieces.
        copied_instead,
        /// Descriptors returned to the guest with the drop of their last reference.
        returned,
        /// Descriptors that fragments hold now.
        held,
        /// Interrupts sent to the guest.
        calls,
        /// Interrupts that the kernel refused at first; they are sent again until it accepts them.
        calls_refused,
        /// Times that a front end had to wait because too many had connected.
        waited,
        /// Bytes of guest memory mapped now, including memory that fragments of former sessions hold.
        mapped_bytes,
        /// Windows of guest memory mapped now, counted in the same way.
        mappings,
    }
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
}
