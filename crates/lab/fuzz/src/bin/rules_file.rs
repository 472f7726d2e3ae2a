//! Feeds `rules_file`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pagewire_fuzz::rules_file(data));
