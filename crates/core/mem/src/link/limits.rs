//! Limits of links and their queues, with their units and their reasons.

/// Largest IP packet, in bytes: the length field of IPv4 has 16 bits.
pub const MAX_MTU: usize = 65_535;

/// Longest super-frame that a driver may take, as an IP packet: 32 times what the length field of
/// an IP header can express, two mebibytes, half of a default send buffer. Linux's `GSO_MAX_SIZE`
/// is eight times that field, because a network card has to read it. By reference, a frame costs
/// the same at any length: four times the length made `bench stream` 1.7 times as fast.
pub const MAX_SUPER_FRAME: usize = 32 * MAX_MTU;

/// Queues of a device.
pub const MAX_QUEUES: usize = 64;

/// Rules that steer flows to the queues of a device: searched for every frame.
pub const MAX_RULES: usize = 256;

/// Smaller payload, in bytes, is not moved to its queue's memory: the connection copies it anyway.
pub const PLACE_MIN: usize = 512;

/// Least payload of a segment, in bytes, into which a writer may have a super-frame cut: Linux's
/// `TCP_MIN_GSO_SIZE`, its smallest MSS (48) less the longest TCP options (40).
pub const MIN_GSO_SIZE: u16 = 8;

/// Datagrams of a super-frame of UDP: Linux's `UDP_MAX_SEGMENTS`. They may be as short as a byte.
pub const MAX_UDP_SEGMENTS: usize = 128;
