//! Feeds `stack_frames`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    pagewire_fuzz::stack_frames(data);
});
