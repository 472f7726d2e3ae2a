//! Tests of the TCP machine by RFC section: given, peer, expect, in virtual time.
//!
//! Read `support.rs` for the notation.

mod support;

mod buffers;
mod coalescing;
mod defer_accept;
mod hostile;
mod hostile_bounds;
mod hostile_lies;
mod hostile_peer;
mod mapping;
mod pair;
mod refused_by_the_device;
mod rfc2883_3708_5682_undo;
mod rfc3168_ecn;
mod rfc4821_mtu_probing;
mod rfc5482_user_timeout;
mod rfc5681_6298_6675_loss;
mod rfc5681_9438_window;
mod rfc5961_blind_attacks;
mod rfc6937_rate_reduction;
mod rfc7323_scaling_and_timestamps;
mod rfc7413_fast_open;
mod rfc8985_rack_tlp;
mod rfc9293_3_10_7_3_syn_sent;
mod rfc9293_3_10_7_4_steps;
mod rfc9293_3_6_closing;
mod rfc9293_3_8_5_urgent;
mod rfc9293_3_8_windows_and_acks;
mod rfc9768_accurate_ecn;
mod send_flags;
mod sending;
