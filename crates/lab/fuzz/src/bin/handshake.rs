//! Feeds `handshake`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pagewire_fuzz::handshake(data));
