//! The same work with the kernel's sockets over loopback, as a check of the bench: a listener for each core.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use super::CoresCase;
use super::load::{Drive, Ends, Load, LoadPlan, small};
use crate::failure::{Because, Failure};
use crate::kit::kernel::{listen, set_cubic};

/// Client and server of one core.
pub(super) struct KernelEnds {
    listener: TcpListener,
    server: SocketAddr,
}

/// Connections that may wait for `accept`: all of a core.
const BACKLOG: i32 = 1024;

const LISTENER: &str = "a listener of a core";

/// The ends of each core of a case.
pub(super) fn world(case: &CoresCase) -> Result<Vec<KernelEnds>, Failure> {
    let ends = |_| {
        let (listener, server) = listen(Ipv4Addr::LOCALHOST)?;
        listener.set_nonblocking(true).because(LISTENER)?;
        // A connect that finds no room would wait, and nobody would accept meanwhile.
        rustix::net::listen(&listener, BACKLOG).because(LISTENER)?;
        Ok(KernelEnds { listener, server })
    };
    (0..case.cores).map(ends).collect()
}

impl Ends for KernelEnds {
    type Client = TcpStream;
    type Server = TcpStream;

    /// Over loopback, the connection is established when the call returns: its packets need no other thread.
    fn start(&self, _: usize) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(self.server)?;
        never_wait(&stream)?;
        Ok(stream)
    }

    fn numbers(&self) -> usize {
        usize::MAX
    }

    fn accept(&self) -> io::Result<TcpStream> {
        let (stream, _) = self.listener.accept()?;
        never_wait(&stream)?;
        Ok(stream)
    }

    fn load(&self, plan: LoadPlan, drive: Drive<'_>) -> Result<Box<dyn Load<Self>>, Failure> {
        small(self, &plan, drive)
    }
}

/// Calls on this socket do not wait, and it does not delay bytes.
pub(super) fn never_wait(stream: &TcpStream) -> io::Result<()> {
    set_cubic(stream);
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)
}
