//! [`Dial`]: how a gateway opens connections to the network. By default with a kernel socket; a program may put
//! another way in its place.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, ipproto, socket_with, sockopt};

use crate::request::Ask;
use crate::source::Source;

/// Opens the far sides of connections.
///
/// `dial` is called under a guest's host's lock, so it must not wait: a dial that takes time returns
/// its socket at once.
pub trait Dial: Send + Sync {
    /// Begins a connection to `to`, of the flow that `ask` describes.
    ///
    /// # Errors
    /// The guest's answer follows `connect(2)`: `ConnectionRefused`, `NetworkUnreachable`,
    /// `HostUnreachable`, `PermissionDenied` (the guest learns that this is prohibited). With any other
    /// error the guest gets no answer.
    fn dial(&self, to: SocketAddr, ask: &Ask) -> io::Result<Dialled>;
}

/// The socket of a connection that was begun.
#[derive(Debug)]
pub struct Dialled {
    /// A stream socket that does not block.
    pub socket: OwnedFd,
    /// The socket is connected. `false`: it becomes writable when it is, or has an error (`SO_ERROR`).
    pub connected: bool,
}

/// Connects through this process's own network.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kernel(pub(crate) Source);

impl Dial for Kernel {
    fn dial(&self, to: SocketAddr, _: &Ask) -> io::Result<Dialled> {
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        // Data of one segment of the guest leaves in one segment.
        sockopt::set_tcp_nodelay(&socket, true)?;
        self.0.bind_stream(socket.as_fd(), to)?;
        match connect(&socket, &to) {
            Ok(()) => Ok(Dialled { socket, connected: true }),
            Err(rustix::io::Errno::INPROGRESS) => Ok(Dialled { socket, connected: false }),
            Err(error) => Err(error.into()),
        }
    }
}
