//! Feeds `ring_words`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    pagewire_fuzz::ring_words(data);
});
