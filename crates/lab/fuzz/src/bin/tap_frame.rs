//! Feeds `tap_frame`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pagewire_fuzz::tap_frame(data));
