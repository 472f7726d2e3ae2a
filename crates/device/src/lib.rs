//! Devices: what moves frames between a stack and the world.
//!
//! A [`Device`] is a trait object that is called once per burst and concrete inside. Debug aids
//! are wrappers over any device, never an `if debug` in a driver.

mod device;
mod fault_config;
mod fault_line;
#[cfg(test)]
mod fault_line_tests;
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
pub use fault_config::{Chance, FaultConfig, FaultConfigError, FaultDirection};
pub use fault_line::{FaultCounters, FaultLine, FaultRng, Passed};
pub use pair::{Pair, PairConfig, PairEnd};
pub use pcap::{Pcap, PcapConfig, PcapCounters, PcapDirection, PcapInterface, PcapWriter};
