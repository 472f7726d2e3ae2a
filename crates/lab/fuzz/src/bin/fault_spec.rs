//! Feeds `fault_spec`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pagewire_fuzz::fault_spec(data));
