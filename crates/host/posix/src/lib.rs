//! Descriptors over a Pagewire stack that behave as Linux's sockets do, to the `errno`.
//!
//! Read [`Descriptors`] first: the table, with one method for each system call. [`Backend`] is what
//! it runs on: a [`Host`](pagewire::Host) in real time, or another runtime of [`sockets`].
//! [`raw`] takes the pointers and structures of a C caller; everything else is safe.
//!
//! ```text
//! Descriptors::new(host)                      a table over a running host
//!   .socket(AF_INET, SOCK_STREAM, 0)          -> a number of this table
//!   .connect(fd, address) .write(fd, bytes) .recv(fd, buffer, flags) .epoll_wait(…) .close(fd)
//! ```
//!
//! The kernel knows nothing of its numbers. An example is in `tests/suite/realtime.rs`.
//!
//! Where the Rust API and Linux differ, this crate follows Linux, because programs depend on it. An
//! option that the stack does not have is refused with `ENOPROTOOPT`, never ignored.

mod address;
mod backend;
mod descriptors;
mod events;
mod file;
pub mod limits;
mod mapped;
mod message;
mod numbers;
mod options;
pub mod raw;
mod runtime;
mod watch;

pub use address::SockAddr;
pub use backend::Backend;
pub use descriptors::Descriptors;
pub use descriptors::mapping::ZerocopyReceive;
pub use descriptors::poll::PollFd;
pub use events::Events;
pub use file::epoll::{EpollEvent, EpollOp};
pub use message::{RawRange, ReceiveMessage, SendMessage};
pub use numbers::Numbering;

/// The layer below: what a [`Backend`] is made of.
pub use pagewire_sockets as sockets;

/// Linux's error number.
pub use rustix::io::Errno;

/// A descriptor: a small number that names a file of one [`Descriptors`] table.
pub type Fd = i32;

/// A field of a C structure; `EINVAL` if the structure ends before it does.
pub(crate) fn field<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], Errno> {
    bytes.get(at..).and_then(|bytes| bytes.first_chunk().copied()).ok_or(Errno::INVAL)
}

/// The stack's error as Linux's number.
pub(crate) fn errno(error: pagewire_stack::Error) -> Errno {
    Errno::from_raw_os_error(error.errno())
}
