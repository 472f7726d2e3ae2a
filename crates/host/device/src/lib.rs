//! Devices: they move frames between a stack and a network.
//!
//! A [`Device`] is a trait object that is called once per burst. Debug aids are wrappers over any
//! device, never an `if debug` in a driver.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

#[cfg(feature = "sockets")]
mod datagram;
mod device;
#[cfg(feature = "dhcp")]
mod dhcp;
#[cfg(test)]
mod ends;
#[cfg(feature = "fault")]
mod fault;
mod frames;
#[doc(hidden)]
pub mod intercept;
pub mod limits;
pub mod machine;
mod pair;
#[cfg(feature = "pcap")]
mod pcap;
pub mod port;
mod queues;
#[cfg(any(feature = "tap", feature = "vhost-user", feature = "sockets"))]
mod settings;
mod shared;
#[cfg(feature = "sockets")]
mod socket;
#[cfg(any(feature = "sockets", feature = "vhost-user"))]
mod socket_path;
#[cfg(feature = "sockets")]
mod socket_sys;
#[cfg(feature = "sockets")]
mod stream;
#[cfg(feature = "tap")]
pub mod tap;
#[cfg(feature = "vhost-user")]
pub mod vhost_user;
#[cfg(any(feature = "tap", feature = "vhost-user"))]
mod vnet;
mod wake_event;

#[cfg(feature = "sockets")]
pub use datagram::{DatagramLink, DatagramLinkBuilder};
pub use device::{Device, DeviceCounters, DeviceError};
#[cfg(feature = "dhcp")]
pub use dhcp::{Dhcp, DhcpConfig, DhcpCounters, DhcpLease, DhcpWatch};
#[cfg(feature = "fault")]
pub use fault::{
    Aqm, Chance, Fault, FaultConfig, FaultConfigError, FaultCounters, FaultDirection, FaultLine,
    FaultPath, FaultRng, FaultWatch, Passed,
};
pub use frames::{FrameError, Frames, FramesConfig, FramesEnd};
pub use pagewire_mem::link::{
    BindError, Capabilities, HeaderSplit, Level, Medium, Protocol, QueueMemory, Rule, Steering,
    offload,
};
pub use pair::{Pair, PairConfig, PairEnd, hand_over};
#[cfg(feature = "pcap")]
pub use pcap::{Pcap, PcapConfig, PcapCounters, PcapDirection, PcapInterface, PcapWriter};
pub use port::{Port, PortConfig};
pub use queues::Queues;
pub use shared::SharedDevice;
#[cfg(any(feature = "sockets", feature = "vhost-user"))]
pub use socket_path::bind_listener;
#[cfg(feature = "sockets")]
pub use stream::{StreamLink, StreamLinkBuilder};
#[cfg(feature = "tap")]
pub use tap::{Tap, TapBuilder};
#[cfg(feature = "vhost-user")]
pub use vhost_user::{VhostUser, VhostUserBuilder};

/// For `forward_device`, wherever it is used.
#[doc(hidden)]
pub use pagewire_mem as memory;

/// Entry points of the fuzz targets. Not part of the interface.
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod fuzzing {
    #[cfg(feature = "sockets")]
    pub use crate::datagram::fuzzing::frames_datagram;
    #[cfg(feature = "sockets")]
    pub use crate::stream::fuzzing::frames_stream;
    #[cfg(feature = "tap")]
    pub use crate::tap::fuzzing::tap_frame;
    #[cfg(feature = "vhost-user")]
    pub use crate::vhost_user::fuzzing::{messages as vhost_messages, virtqueue};
}
