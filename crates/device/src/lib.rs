//! Devices: what moves frames between a stack and the world.
//!
//! A [`Device`] is a trait object that is called once per burst and concrete inside. Debug aids
//! are wrappers over any device, never an `if debug` in a driver.

mod device;
pub mod limits;
mod pair;
mod pair_bell;
#[cfg(test)]
mod pair_tests;
mod pcap;
#[cfg(test)]
mod pcap_tests;
mod spsc;
mod spsc_sync;
#[cfg(test)]
mod spsc_tests;

pub use device::{Capabilities, Device, DeviceCounters, DeviceError, HeaderSplit, Medium};
pub use pair::{Pair, PairConfig, PairEnd};
pub use pcap::{Pcap, PcapConfig, PcapCounters, PcapDirection, PcapInterface, PcapWriter};
