//! Feature bits (Virtio 1.2, sections 5.1.3 and 6; vhost-user's own).

use vhost::vhost_user::VhostUserProtocolFeatures;

/// The device accepts frames whose checksum is to be completed.
pub(super) const CSUM: u64 = 1 << 0;
/// The guest accepts them.
pub(super) const GUEST_CSUM: u64 = 1 << 1;
/// The guest accepts super-frames of TCP over IPv4, over IPv6, with ECN.
pub(super) const GUEST_TSO4: u64 = 1 << 7;
pub(super) const GUEST_TSO6: u64 = 1 << 8;
pub(super) const GUEST_ECN: u64 = 1 << 9;
/// The device accepts them.
pub(super) const HOST_TSO4: u64 = 1 << 11;
pub(super) const HOST_TSO6: u64 = 1 << 12;
pub(super) const HOST_ECN: u64 = 1 << 13;
/// The guest accepts super-frames of UDP over IPv4, over IPv6.
pub(super) const GUEST_USO4: u64 = 1 << 54;
pub(super) const GUEST_USO6: u64 = 1 << 55;
/// The device accepts both.
pub(super) const HOST_USO: u64 = 1 << 56;
/// A received frame may fill several buffers.
pub(super) const MRG_RXBUF: u64 = 1 << 15;
/// Several queue pairs.
pub(super) const MQ: u64 = 1 << 22;
/// Headers and payload may be divided among descriptors at any byte.
pub(super) const ANY_LAYOUT: u64 = 1 << 27;
/// Indirect tables of descriptors.
pub(super) const INDIRECT_DESC: u64 = 1 << 28;
/// Kicks and interrupts from an index on, not by a flag.
pub(super) const EVENT_IDX: u64 = 1 << 29;
/// There are protocol features.
pub(super) const PROTOCOL_FEATURES: u64 = 1 << 30;
/// Not the legacy interface.
pub(super) const VERSION_1: u64 = 1 << 32;

/// The features that a device with `pairs` queue pairs offers.
pub(super) const fn offered(pairs: usize) -> u64 {
    let mq = if pairs > 1 { MQ } else { 0 };
    CSUM | GUEST_CSUM
        | GUEST_TSO4
        | GUEST_TSO6
        | GUEST_ECN
        | HOST_TSO4
        | HOST_TSO6
        | HOST_ECN
        | GUEST_USO4
        | GUEST_USO6
        | HOST_USO
        | MRG_RXBUF
        | mq
        | ANY_LAYOUT
        | INDIRECT_DESC
        | EVENT_IDX
        | PROTOCOL_FEATURES
        | VERSION_1
}

/// The protocol's features.
pub(super) fn protocol() -> VhostUserProtocolFeatures {
    VhostUserProtocolFeatures::MQ
        | VhostUserProtocolFeatures::REPLY_ACK
        | VhostUserProtocolFeatures::RESET_DEVICE
        | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
}
