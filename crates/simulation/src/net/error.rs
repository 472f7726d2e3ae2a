//! Errors of the stack as a program on Linux sees them.

use std::io;

use pagewire_stack::Error;

/// The error with Linux's number: its kind and its text are those that `std` gives the number.
pub(crate) fn io_error(error: Error) -> io::Error {
    io::Error::from_raw_os_error(error.errno())
}

/// Of `from_std` and `into_std`: there is no descriptor.
pub(crate) fn no_descriptor() -> io::Error {
    io::Error::new(
        io::ErrorKind::Unsupported,
        "a simulated socket has no descriptor: open it with bind or connect of \
         pagewire_simulation::net",
    )
}

/// No address was found, or given.
pub(crate) fn no_address() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "could not resolve to any address")
}

/// Linux's numbers (`errno(3)`).
pub(crate) mod errno {
    pub(crate) const NODEV: i32 = 19;
    pub(crate) const INVAL: i32 = 22;
    pub(crate) const NOPROTOOPT: i32 = 92;
    pub(crate) const OPNOTSUPP: i32 = 95;
    pub(crate) const AFNOSUPPORT: i32 = 97;
    pub(crate) const NETUNREACH: i32 = 101;
}
