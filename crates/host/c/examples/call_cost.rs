//! The price of the boundary: a call of the C library against the same call from Rust, in nanoseconds.
//!
//! ```text
//! cargo run --release --package pagewire-c --example call_cost
//! ```
//!
//! Both receive from an empty datagram socket without waiting, which takes the whole way to the stack and back and
//! moves nothing. Rounds alternate; the medians of 9 rounds, and the spread of their difference.

#![allow(unsafe_code, missing_docs)]

use std::ffi::CString;
use std::time::Instant;

use pagewire::{Host, Pair};
use pagewire_c::{hosts, sockets};
use pagewire_posix::Descriptors;
use pagewire_posix::raw::Raw;

const CALLS: u32 = 1_000_000;
const ROUNDS: usize = 9;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let text = CString::new("pair=cost,addr=10.0.0.1/24")?;
    // SAFETY: a C string.
    let host = unsafe { hosts::pw_host_open(text.as_ptr()) };
    assert!(host >= 0, "the network starts");
    let from_c = hosts::pw_host_socket(host, libc::AF_INET, libc::SOCK_DGRAM, 0);
    let (device, _peer) = Pair::new()?;
    let rust = Descriptors::new(Host::builder().device(device).address("10.0.0.1/24").start()?);
    let from_rust = rust.socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
    let mut buffer = [0u8; 64];
    let (into, len) = (buffer.as_mut_ptr().cast(), buffer.len());
    let nothing: *mut libc::c_void = std::ptr::null_mut();

    let mut rounds: Vec<(f64, f64)> = (0..ROUNDS)
        .map(|_| {
            let began = Instant::now();
            for _ in 0..CALLS {
                // SAFETY: the buffer is as long as is said.
                let n = unsafe { sockets::pw_recv(from_c, into, len, libc::MSG_DONTWAIT) };
                assert_eq!(n, -1);
            }
            let c = began.elapsed();
            let began = Instant::now();
            for _ in 0..CALLS {
                let raw = Raw(&rust);
                // SAFETY: the buffer is as long as is said; the null pointers take no address.
                let n = unsafe {
                    raw.recvfrom(
                        from_rust,
                        into,
                        len,
                        libc::MSG_DONTWAIT,
                        nothing.cast(),
                        nothing.cast(),
                    )
                };
                assert!(n.is_err());
            }
            let each = |time: std::time::Duration| time.as_nanos() as f64 / f64::from(CALLS);
            (each(c), each(began.elapsed()))
        })
        .collect();
    rounds.sort_by(|a, b| (a.0 - a.1).total_cmp(&(b.0 - b.1)));
    let (c, rust) = rounds[ROUNDS / 2];
    let (least, most) = (rounds[0], rounds[ROUNDS - 1]);
    println!(
        "a call from C {c:.1} ns, from Rust {rust:.1} ns: {:.1} ns more ({:.1} to {:.1})",
        c - rust,
        least.0 - least.1,
        most.0 - most.1
    );
    Ok(())
}
