//! The contract of a stack and its devices: the abilities of a link, the headers of a frame, the rules that
//! steer flows to queues, and offloads done in software. No driver is needed to use it.
//!
//! Read [`Capabilities`] first. [`headers`] finds where payload begins, [`offload`] cuts super-frames and
//! completes checksums, [`Steering`] receives flows into memory of their owner.

pub mod headers;
pub mod limits;
pub mod offload;
mod steering;

pub use steering::{BindError, Level, Protocol, QueueMemory, Rule, Steering};

use crate::MAX_FRAGS;
use limits::MAX_MTU;

/// The first header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// An Ethernet header.
    Ethernet,
    /// An IP header.
    Ip,
}

/// Whether payload arrives separate from headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderSplit {
    /// Headers and payload are one piece.
    None,
    /// The header length is predicted from earlier frames; a miss costs alignment.
    Predicted,
    /// The device splits, or passes the sender's fragments.
    Native,
}

/// The abilities of a device, which never change.
#[derive(Clone, Debug)]
pub struct Capabilities {
    /// The first header of frames.
    pub medium: Medium,
    /// The stack's link address on this device (Ethernet only).
    pub mac: [u8; 6],
    /// Largest IP packet on the wire, in bytes.
    pub mtu: usize,
    /// Largest super-frame handed over at once, in bytes of IP packet: at most 65,535, or on links that
    /// stay in memory [`MAX_SUPER_FRAME`](limits::MAX_SUPER_FRAME); a longer one than 65,535 has
    /// 0 in the length field of its IP header. Equal to `mtu` without segmentation offload.
    pub max_super_frame: usize,
    /// Received transport checksums are verified (frames carry `RxChecksum::Valid`).
    pub rx_checksum: bool,
    /// Frames may be sent with `TxChecksum::Partial`.
    pub tx_checksum: bool,
    /// Frames may be sent with `Gso` of kind `TcpV4`.
    pub tso_v4: bool,
    /// Frames may be sent with `Gso` of kind `TcpV6`.
    pub tso_v6: bool,
    /// Frames may be sent with `Gso` of kind `Udp`.
    pub uso: bool,
    /// Fragments that one frame may have; 0: it must be in one piece.
    pub max_frags: usize,
    /// How payload is separated from headers on receive.
    pub header_split: HeaderSplit,
    /// Queues in each direction.
    pub queues: usize,
    /// Payload reaches the peer as the same memory.
    pub by_reference: bool,
}

impl Capabilities {
    /// An Ethernet device with one queue that takes over checksums and segmentation.
    pub const fn offloading(mac: [u8; 6], mtu: usize) -> Self {
        Self {
            medium: Medium::Ethernet,
            mac,
            mtu,
            max_super_frame: MAX_MTU,
            rx_checksum: true,
            tx_checksum: true,
            tso_v4: true,
            tso_v6: true,
            uso: true,
            max_frags: MAX_FRAGS,
            header_split: HeaderSplit::Native,
            queues: 1,
            by_reference: false,
        }
    }
}
