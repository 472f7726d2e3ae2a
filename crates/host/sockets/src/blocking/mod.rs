//! Sockets of threads, shaped as those of `std::net`: calls wait.

/// How long calls of a socket wait.
macro_rules! modes {
    ($socket:ident) => {
        /// How long calls wait.
        impl<R: Runtime> $socket<R> {
            /// Whether calls that would wait return `WouldBlock` instead.
            pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
                self.0.set_nonblocking(nonblocking)
            }

            /// Sets the longest wait for data; `None`: for ever. The error is `TimedOut` (`std::net` has
            /// `WouldBlock`).
            ///
            /// # Errors
            /// `InvalidInput` for zero.
            pub fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
                self.0.set_timeout(READ, limit)
            }

            /// Sets the longest wait for room; `None`: for ever. The error is `TimedOut`.
            ///
            /// # Errors
            /// `InvalidInput` for zero.
            pub fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
                self.0.set_timeout(WRITE, limit)
            }

            /// See [`set_read_timeout`](Self::set_read_timeout).
            pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
                Ok(self.0.timeout(READ))
            }

            /// See [`set_write_timeout`](Self::set_write_timeout).
            pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
                Ok(self.0.timeout(WRITE))
            }
        }
    };
}

mod listener;
mod tcp;
mod udp;

pub use listener::{Incoming, TcpListener};
pub use tcp::TcpStream;
pub use udp::UdpSocket;
