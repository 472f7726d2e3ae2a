//! Feeds `vhost_messages`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pagewire_fuzz::vhost_messages(data));
