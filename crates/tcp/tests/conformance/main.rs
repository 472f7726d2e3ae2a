//! Tests of the TCP machine by RFC section: given, peer, expect, in virtual time.
//!
//! Read `support.rs` for the notation.

mod support;

mod pair;
mod rfc9293_3_10_7_3_syn_sent;
