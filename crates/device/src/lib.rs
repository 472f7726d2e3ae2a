//! Devices: what moves frames between a stack and the world.
//!
//! A [`Device`] is a trait object that is called once per burst and concrete inside. Debug aids
//! are wrappers over any device, never an `if debug` in a driver.

mod device;
mod headers;
pub mod offload;
pub mod tap;

pub use device::{Capabilities, Device, DeviceCounters, DeviceError, HeaderSplit, Medium};
pub use tap::{Tap, TapBuilder};
