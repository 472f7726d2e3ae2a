//! Tests of `pagewire-simulation` with the crates that programs use; nothing is in the library.
//!
//! These tests are a crate of their own because the other crates take long to compile. `tests/` has a file for each crate,
//! and two bugs that a simulation without a real TCP does not find.

#![forbid(unsafe_code)]
