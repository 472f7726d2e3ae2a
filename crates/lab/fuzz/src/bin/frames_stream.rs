//! Feeds `frames_stream`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pagewire_fuzz::frames_stream(data));
