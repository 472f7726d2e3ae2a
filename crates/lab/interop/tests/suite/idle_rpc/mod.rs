//! A call with a deadline that holds while the connection is busy, and not after a rest: TCP starts
//! slowly again (RFC 5681 section 4.1). 300 KB over a round trip of 80 ms arrive in one with a
//! window that has grown, and need five with the ten segments of a fresh one.

mod ours;
mod theirs;
