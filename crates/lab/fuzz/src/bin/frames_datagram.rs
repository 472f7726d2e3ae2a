//! Feeds `frames_datagram`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pagewire_fuzz::frames_datagram(data));
