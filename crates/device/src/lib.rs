//! (crate docs)
