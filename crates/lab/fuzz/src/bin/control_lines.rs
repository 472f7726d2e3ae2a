//! Feeds `control_lines`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pagewire_fuzz::control_lines(data));
