//! Devices: they move frames between a stack and a network.
//!
//! A [`Device`] is a trait object that is called once per burst. Debug aids are wrappers over any
//! device, never an `if debug` in a driver.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod datagram;
mod device;
mod dhcp;
mod fault;
mod frames;
mod headers;
pub mod limits;
pub mod offload;
mod pair;
mod pcap;
pub mod port;
mod queues;
mod socket;
mod socket_sys;
mod steering;
mod stream;
pub mod tap;
pub mod vhost_user;
mod vnet;

pub use datagram::{DatagramLink, DatagramLinkBuilder};
pub use device::{Capabilities, Device, DeviceCounters, DeviceError, HeaderSplit, Medium};
pub use dhcp::{Dhcp, DhcpConfig, DhcpCounters, DhcpLease, DhcpWatch};
pub use fault::{
    Aqm, Chance, Fault, FaultConfig, FaultConfigError, FaultCounters, FaultDirection, FaultLine,
    FaultPath, FaultRng, Passed,
};
pub use frames::{FrameError, Frames, FramesConfig, FramesEnd};
pub use pair::{Pair, PairConfig, PairEnd, hand_over};
pub use pcap::{Pcap, PcapConfig, PcapCounters, PcapDirection, PcapInterface, PcapWriter};
pub use port::{Port, PortConfig};
pub use queues::Queues;
pub use steering::{BindError, Level, Protocol, QueueMemory, Rule, Steering};
pub use stream::{StreamLink, StreamLinkBuilder};
pub use tap::{Tap, TapBuilder};
pub use vhost_user::{VhostUser, VhostUserBuilder};

/// Entry points of the fuzz targets. Not part of the interface.
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::datagram::fuzzing::frames_datagram;
    pub use crate::stream::fuzzing::frames_stream;
    pub use crate::tap::fuzzing::tap_frame;
    pub use crate::vhost_user::fuzzing::{messages as vhost_messages, virtqueue};
}
