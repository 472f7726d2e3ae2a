//! Feeds `dns_message`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pagewire_fuzz::dns_message(data));
