//! Tests of the TCP machine by RFC section: given, peer, expect, in virtual time.
//!
//! Read `support.rs` for the notation.

mod support;

mod hostile;
mod hostile_peer;
mod pair;
mod rfc5681_6298_6675_loss;
mod rfc7323_scaling_and_timestamps;
mod rfc9293_3_10_7_3_syn_sent;
mod rfc9293_3_10_7_4_steps;
mod rfc9293_3_6_closing;
mod rfc9293_3_8_windows_and_acks;
mod sending;
