//! Pagewire for C: Linux's socket calls over a Pagewire stack, and Pagewire's own zero-copy calls.
//!
//! `include/pagewire.h` is the interface, with a comment for each function; `include/pagewire/posix.h` renames
//! Linux's calls to those of the interface, so that an existing source compiles unchanged. `scripts/c-library`
//! makes `libpagewire.so` and `libpagewire.a` of this crate.
//!
//! ```text
//!   pw_read(fd, …) --owner(fd)--> 0: the kernel's read(fd, …)
//!                                 n: network n: Raw(&files).read(fd, …)      network/, Linux's semantics: pagewire-posix
//! ```
//!
//! Every number that a program gets is a number of the kernel, too: a socket of Pagewire's holds one that nothing
//! can be done with (module `network`). So descriptors of both kinds mix, and no number is given twice. Waits for both
//! kinds sleep in the kernel; Pagewire's part rings a `bell`.
//!
//! No panic crosses the boundary (`boundary`): a call that panics fails with `EIO`. A child process after `fork`
//! has no threads of Pagewire's: calls on a network fail there with `ENETDOWN`.

mod bell;
mod boundary;
pub mod config;
pub mod epoll;
pub mod files;
pub mod hosts;
pub mod memory;
mod network;
pub mod poll;
pub mod rings;
pub mod sockets;
mod stdio;

pub use boundary::pw_error;
