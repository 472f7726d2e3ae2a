//! Feeds `c_calls`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    pagewire_fuzz::c_calls(data, true);
});
