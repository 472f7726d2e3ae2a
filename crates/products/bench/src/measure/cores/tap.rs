//! The same work over a tap with a queue for each core, as a check of the pairs. The clients are the kernel's sockets on
//! the other side of the tap, in a network namespace of the round.
//!
//! The kernel steers a flow to the queue that last sent for it. A flow that it does not know comes in at any queue, by
//! a hash, so strays are there without a draw.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};

use pagewire::{Host, TcpListener};

use super::CoresCase;
use super::load::{Drive, Ends, Load, LoadPlan, small};
use super::world::{SERVER, address, locals, server};
use crate::failure::Failure;
use crate::kit::{hosts, kernel, namespace};

/// The server of one core, and its clients' addresses.
pub(super) struct TapEnds {
    shard: Host,
    listener: TcpListener,
    /// The clients' ends of connections whose home is the shard.
    locals: Vec<SocketAddr>,
}

/// The ends of each core of a case. It moves this thread into a namespace, where the threads that it starts are, too.
pub(super) fn world(case: &CoresCase) -> Result<Vec<TapEnds>, Failure> {
    let queues = namespace::enter_with_queues((0..case.cores).map(address), case.cores)?;
    let (cores, shards) = server(queues)?;
    let ends = shards.into_iter().enumerate().map(|(core, (shard, listener))| {
        let locals = locals(core, |local| cores.home(SERVER, local));
        TapEnds { shard, listener, locals }
    });
    Ok(ends.collect())
}

impl Ends for TapEnds {
    type Client = TcpStream;
    type Server = pagewire::TcpStream;

    fn start(&self, number: usize) -> io::Result<TcpStream> {
        let local = self.locals.get(number).ok_or(ErrorKind::AddrNotAvailable)?;
        let stream = kernel::begin(Some(*local), SERVER)?;
        super::kernel::never_wait(&stream)?;
        Ok(stream)
    }

    fn numbers(&self) -> usize {
        self.locals.len()
    }

    fn accept(&self) -> io::Result<pagewire::TcpStream> {
        let (stream, _) = self.listener.accept()?;
        hosts::never_wait(&stream)?;
        Ok(stream)
    }

    fn load(&self, plan: LoadPlan, drive: Drive<'_>) -> Result<Box<dyn Load<Self>>, Failure> {
        small(self, &plan, drive)
    }

    fn turn_server(&self) -> bool {
        self.shard.turn()
    }

    fn strays(&self) -> u64 {
        self.shard.stats().counters.strays_passed
    }

    fn print_stats(&self) {
        eprint!("{}", self.shard.stats());
    }
}
