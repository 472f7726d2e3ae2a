//! Feeds `judge_answers`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pagewire_fuzz::judge_answers(data));
