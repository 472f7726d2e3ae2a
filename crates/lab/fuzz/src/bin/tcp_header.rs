//! Feeds `tcp_header`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pagewire_fuzz::tcp_header(data));
