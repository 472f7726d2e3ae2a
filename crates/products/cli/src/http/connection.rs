//! [`Connection`]: the stream that HTTP runs on, with the calls of `std` and payload by reference both ways.
//!
//! `stream.rs` implements it for Pagewire's streams, `testing.rs` for kernel sockets and scripts.

use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use pagewire::memory::{Frag, FragVec};

/// A stream of bytes each way that can pass memory instead of copying it.
///
/// A timeout that runs out is an error of kind `TimedOut` or `WouldBlock`, and nothing was moved.
pub(crate) trait Connection: Read + Write {
    /// Queues bytes from the front of `frags` by reference, waiting for room; returns how many.
    fn send_frags(&mut self, frags: &mut FragVec) -> io::Result<usize>;

    /// Completed sends by reference since the last call, and how many of them were copied.
    fn completed(&mut self) -> (u64, u64) {
        (0, 0)
    }

    /// Takes up to `max` bytes by reference to the back of `out`, waiting for one; 0: the end.
    fn recv_frags(&mut self, max: usize, out: &mut Vec<Frag>) -> io::Result<usize>;

    /// Bounds each wait of `read` and `recv_frags`.
    fn set_read_timeout(&mut self, timeout: Option<Duration>) -> io::Result<()>;

    /// Bounds each wait of `write` and `send_frags`.
    fn set_write_timeout(&mut self, timeout: Option<Duration>) -> io::Result<()>;

    /// Ends sending; what is queued still goes out.
    fn shutdown_write(&mut self) -> io::Result<()>;

    /// Who is at the other end, if that is known.
    fn peer(&self) -> Option<IpAddr> {
        None
    }

    /// The time, for calls that wait on it.
    fn now(&self) -> Instant {
        Instant::now()
    }

    /// Resets the connection: the peer must not take what it has for the whole.
    fn abort(&mut self);
}

/// Takes bytes off the front of `frags`, and empty fragments out.
pub(crate) fn advance(frags: &mut FragVec, bytes: usize) {
    let mut left = bytes;
    frags.retain(|frag| {
        let n = left.min(frag.len());
        frag.advance(n);
        left -= n;
        !frag.is_empty()
    });
}

/// Whether a timeout ran out.
pub(crate) fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock)
}
