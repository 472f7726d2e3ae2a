//! Feeds `shown_stream`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pagewire_fuzz::shown_stream(data));
