//! How a gateway reaches the network: a socket of the kernel, or whatever a program puts in its
//! place.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, ipproto, socket_with, sockopt};

use crate::ask::Ask;

/// Opens the far sides of connections.
///
/// It is called under a guest's host's lock, so it must not wait: a dial that takes time returns
/// its socket at once.
pub trait Dial: Send + Sync {
    /// Begins a connection to `to`, of the flow that `ask` describes.
    ///
    /// # Errors
    /// What the guest is told of follows `connect(2)`: `ConnectionRefused`, `NetworkUnreachable`,
    /// `HostUnreachable`, `PermissionDenied` (it is told that this is prohibited). With any other
    /// error nothing is said to it.
    fn dial(&self, to: SocketAddr, ask: &Ask) -> io::Result<Dialled>;
}

/// The socket of a connection that was begun.
#[derive(Debug)]
pub struct Dialled {
    /// A stream socket that does not block.
    pub socket: OwnedFd,
    /// It is connected. `false`: it becomes writable when it is, or has an error (`SO_ERROR`).
    pub connected: bool,
}

/// Connects through this process's own network.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Kernel;

impl Dial for Kernel {
    fn dial(&self, to: SocketAddr, _: &Ask) -> io::Result<Dialled> {
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        // What the guest sent in one segment leaves in one.
        sockopt::set_tcp_nodelay(&socket, true)?;
        match connect(&socket, &to) {
            Ok(()) => Ok(Dialled { socket, connected: true }),
            Err(rustix::io::Errno::INPROGRESS) => Ok(Dialled { socket, connected: false }),
            Err(error) => Err(error.into()),
        }
    }
}
