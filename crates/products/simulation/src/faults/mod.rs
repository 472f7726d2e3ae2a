//! Faults that a test asks for: commands at a time, and random ones.

pub(crate) mod chaos;
pub(crate) mod command;
pub mod control;
