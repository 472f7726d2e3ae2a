//! Sockets of threads, shaped as those of `std::net`: calls wait.

mod listener;
mod tcp;
mod udp;

pub use listener::{Incoming, TcpListener};
pub use tcp::TcpStream;
pub use udp::UdpSocket;
