//! The files of a server: how a path finds one, its pages by reference, its validators, ranges of it, and the
//! index of a directory.

pub(crate) mod conditional;
pub(crate) mod files;
pub(crate) mod listing;
pub(crate) mod path;
pub(crate) mod range;
