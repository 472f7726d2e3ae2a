//! Everything that happened in a run: the digest, a capture, a timeline, and the comparison of two runs.

pub(crate) mod capture;
pub(crate) mod comparison;
pub(crate) mod digest;
pub(crate) mod packet_event;
pub(crate) mod recorder;
pub(crate) mod timeline;
#[cfg(feature = "subscriber")]
pub mod trace;
