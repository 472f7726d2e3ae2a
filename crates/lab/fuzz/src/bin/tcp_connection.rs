//! Feeds `tcp_connection`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    pagewire_fuzz::tcp_connection(data);
});
