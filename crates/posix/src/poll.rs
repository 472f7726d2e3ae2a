//! What a file is ready for, and poll.

use std::time::Duration;

use pagewire_stack::{ListenerId, Readiness, TcpId, UdpId};

use crate::backend::Backend;
use crate::descriptors::Descriptors;
use crate::file::{File, Object};
use crate::notice::Signal;
use crate::socket::{Kind, Socket, Stage, State};
use crate::{Errno, Fd};

bitflags::bitflags! {
    /// Events of poll and epoll, with the numbers that both have.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Events: u32 {
        /// Data, the end of the stream, or a connection to accept.
        const IN = 0x1;
        /// Urgent data.
        const PRI = 0x2;
        /// Room to send, or sending would fail at once.
        const OUT = 0x4;
        /// An error, or an entry in the error queue.
        const ERR = 0x8;
        /// Both directions are closed.
        const HUP = 0x10;
        /// No such descriptor.
        const NVAL = 0x20;
        /// As [`IN`](Self::IN).
        const RDNORM = 0x40;
        /// Never of a socket.
        const RDBAND = 0x80;
        /// As [`OUT`](Self::OUT).
        const WRNORM = 0x100;
        /// Room to send a datagram.
        const WRBAND = 0x200;
        /// The peer has closed its direction, or this side reads no more.
        const RDHUP = 0x2000;
        /// epoll: of several instances, wake one.
        const EXCLUSIVE = 1 << 28;
        /// epoll: keep the machine awake; means nothing here.
        const WAKEUP = 1 << 29;
        /// epoll: report once, then keep silent until modified.
        const ONESHOT = 1 << 30;
        /// epoll: report what has happened, not how things stand.
        const EDGE = 1 << 31;
    }
}

impl Events {
    /// Reported whether asked for or not.
    pub(crate) const ALWAYS: Self = Self::ERR.union(Self::HUP).union(Self::NVAL);
    pub(crate) const READ: Self = Self::IN.union(Self::RDNORM);
    pub(crate) const WRITE: Self = Self::OUT.union(Self::WRNORM);
}

/// An entry of [`Descriptors::poll`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PollFd {
    /// The descriptor; a negative one is skipped.
    pub fd: Fd,
    /// What to wait for.
    pub events: Events,
    /// Set: what it is ready for.
    pub revents: Events,
}

impl<B: Backend> Descriptors<B> {
    /// Waits until one of the files is ready for what it is asked for, or `timeout` is over (`None`:
    /// for ever). Returns how many are.
    pub fn poll(&self, fds: &mut [PollFd], timeout: Option<Duration>) -> Result<usize, Errno> {
        let deadline = timeout.map(|timeout| self.backend.now() + timeout);
        let files: Vec<_> = fds.iter().map(|entry| self.file(entry.fd).ok()).collect();
        let mut look = || {
            let mut ready = 0;
            for (entry, file) in fds.iter_mut().zip(&files) {
                entry.revents = match file {
                    Some(file) => self.ready_events(file) & (entry.events | Events::ALWAYS),
                    None if entry.fd < 0 => Events::empty(),
                    None => Events::NVAL,
                };
                ready += usize::from(!entry.revents.is_empty());
            }
            ready
        };
        let ready = look();
        if ready > 0 || timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Ok(ready);
        }
        let signal = Signal::new();
        let _watching: Vec<_> =
            files.iter().flatten().map(|file| file.watch.watch(Events::all(), &signal)).collect();
        loop {
            signal.clear();
            let ready = look();
            if ready > 0 || self.is_over(deadline) {
                return Ok(ready);
            }
            self.backend.wait(&signal, deadline);
        }
    }

    /// All that a file is ready for.
    pub(crate) fn ready_events(&self, file: &File) -> Events {
        match &file.object {
            Object::Socket(socket) => self.socket_events(socket),
            Object::Epoll(epoll) => self.epoll_events(epoll),
            Object::Pipe(end) => end.events(),
        }
    }

    fn socket_events(&self, socket: &Socket) -> Events {
        let state = socket.lock();
        let mut events = match (socket.kind, state.stage) {
            (_, Stage::Listening(id)) => self.listener_events(id),
            (Kind::Stream, Stage::Connecting(id) | Stage::Connected(id)) => {
                self.connection_events(id)
            }
            (Kind::Stream, _) => closed_events(&state),
            (Kind::Datagram, stage) => self.datagram_events(stage.datagram(), &state),
        };
        if state.error.is_some() {
            events |= Events::ERR;
        }
        events
    }

    fn listener_events(&self, id: ListenerId) -> Events {
        let readiness = self.backend.with(|stack, _| stack.readiness(id)).unwrap_or_default();
        if readiness.contains(Readiness::READABLE) { Events::READ } else { Events::empty() }
    }

    /// As `tcp_poll` in Linux.
    fn connection_events(&self, id: TcpId) -> Events {
        let readiness = self.backend.with(|stack, _| stack.readiness(id)).unwrap_or_default();
        let mut events = Events::empty();
        let both = Readiness::READ_CLOSED | Readiness::WRITE_CLOSED;
        if readiness.contains(both) {
            events |= Events::HUP;
        }
        if readiness.contains(Readiness::READ_CLOSED) {
            events |= Events::READ | Events::RDHUP;
        }
        if readiness.contains(Readiness::READABLE) {
            events |= Events::READ;
        }
        if readiness.contains(Readiness::URGENT) {
            events |= Events::PRI;
        }
        let handshake = !readiness.contains(Readiness::CONNECTED) && !readiness.contains(both);
        // In a handshake, a connection is writable that waits for its first data, or that a listener
        // took with Fast Open.
        let closed = !handshake && readiness.contains(Readiness::WRITE_CLOSED);
        if closed || readiness.contains(Readiness::WRITABLE) {
            events |= Events::WRITE;
        }
        if readiness.intersects(Readiness::ERROR | Readiness::ERROR_QUEUE) {
            events |= Events::ERR;
        }
        events
    }

    /// As `datagram_poll` in Linux.
    fn datagram_events(&self, id: Option<UdpId>, state: &State) -> Events {
        let readiness = match id {
            Some(id) => self.backend.with(|stack, _| stack.readiness(id)).unwrap_or_default(),
            None => Readiness::WRITABLE,
        };
        let mut events = Events::empty();
        if readiness.intersects(Readiness::ERROR | Readiness::ERROR_QUEUE) {
            events |= Events::ERR;
        }
        if state.shut[0] {
            events |= Events::READ | Events::RDHUP;
        }
        if state.shut == [true; 2] {
            events |= Events::HUP;
        }
        if readiness.contains(Readiness::READABLE) {
            events |= Events::READ;
        }
        if readiness.contains(Readiness::WRITABLE) {
            events |= Events::WRITE | Events::WRBAND;
        }
        events
    }
}

/// A stream that was never connected: there is room to send, and the line is down.
fn closed_events(state: &State) -> Events {
    let mut events = Events::HUP | Events::WRITE;
    if state.shut[0] {
        events |= Events::READ | Events::RDHUP;
    }
    events
}
