//! This test program as the helper of `netns`: asked for that by its arguments, it is one before the test harness
//! begins.

#![allow(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

// SAFETY: the C library calls the functions of this section before `main`, in the only thread, after the standard
// library has the arguments by the same way.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = before_main;

extern "C" fn before_main() {
    if let Some(code) = pagewire_gateway::netns::inside() {
        std::process::exit(i32::from(code != ExitCode::SUCCESS));
    }
}

/// The file of this program.
pub fn helper() -> PathBuf {
    std::env::current_exe().expect("this program's file")
}
