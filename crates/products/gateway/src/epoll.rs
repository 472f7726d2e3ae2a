//! [`EpollSet`], the epoll descriptor of one guest's relay, edge-triggered. A socket is added once and never
//! changed; it leaves when it is closed.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::time::Timespec;

use crate::limits::POLL_EVENTS;

/// The data that the kernel keeps with a watched descriptor: its kind, and its slot.
///
/// ```text
///   63   56 55     32 31       0
///   | kind | serial  |  slot   |
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) kind: SourceKind,
    /// A number that tells the descriptor from earlier ones in the slot; 24 bits.
    pub(crate) serial: u32,
    pub(crate) at: u32,
}

/// The kind of a watched descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum SourceKind {
    /// A dial, or a connection.
    Flow = 1,
    /// Datagrams of one address and port of the guest.
    Endpoint = 2,
    /// Echo requests of one identifier of the guest.
    Echo = 3,
    /// A published port.
    Published = 4,
    /// Another descriptor that is readable while there is work.
    Wakeup = 5,
}

/// The bits of a serial.
const SERIALS: u32 = (1 << 24) - 1;

impl From<Token> for u64 {
    fn from(token: Token) -> Self {
        let serial = Self::from(token.serial & SERIALS);
        Self::from(token.kind as u8) << 56 | serial << 32 | Self::from(token.at)
    }
}

impl Token {
    /// The token in the data that the kernel returns.
    fn of(data: u64) -> Option<Self> {
        let kind = match (data >> 56) as u8 {
            1 => SourceKind::Flow,
            2 => SourceKind::Endpoint,
            3 => SourceKind::Echo,
            4 => SourceKind::Published,
            5 => SourceKind::Wakeup,
            _ => return None,
        };
        Some(Self { kind, serial: (data >> 32) as u32 & SERIALS, at: data as u32 })
    }
}

/// The watched descriptors of one guest's relay.
pub(crate) struct EpollSet {
    epoll: Arc<OwnedFd>,
    /// Events that were not handled yet.
    ready: Vec<(Token, EventFlags)>,
    last_serial: u32,
}

impl EpollSet {
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = Arc::new(epoll::create(CreateFlags::CLOEXEC)?);
        Ok(Self { epoll, ready: Vec::with_capacity(POLL_EVENTS), last_serial: 0 })
    }

    /// The epoll descriptor, readable while a watched descriptor has an event.
    pub(crate) fn epoll(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.epoll)
    }

    /// Watches a stream socket; returns its serial.
    pub(crate) fn add_stream(
        &mut self,
        socket: impl AsFd,
        kind: SourceKind,
        at: u32,
    ) -> io::Result<u32> {
        let ends = EventFlags::RDHUP | EventFlags::PRI;
        self.add(socket, (kind, at), EventFlags::IN | EventFlags::OUT | ends)
    }

    /// Watches a descriptor that is only read; returns its serial.
    pub(crate) fn add_source(
        &mut self,
        source: impl AsFd,
        kind: SourceKind,
        at: u32,
    ) -> io::Result<u32> {
        self.add(source, (kind, at), EventFlags::IN)
    }

    /// Watches a descriptor that is readable while there is work.
    pub(crate) fn add_wakeup(&mut self, fd: impl AsFd) -> io::Result<()> {
        let data = EventData::new_u64(Token { kind: SourceKind::Wakeup, serial: 0, at: 0 }.into());
        Ok(epoll::add(&*self.epoll, fd, data, EventFlags::IN)?)
    }

    fn add(
        &mut self,
        fd: impl AsFd,
        (kind, at): (SourceKind, u32),
        flags: EventFlags,
    ) -> io::Result<u32> {
        let serial = self.last_serial.wrapping_add(1) & SERIALS;
        let data = EventData::new_u64(Token { kind, serial, at }.into());
        epoll::add(&*self.epoll, fd, data, flags | EventFlags::ET)?;
        self.last_serial = serial;
        Ok(serial)
    }

    /// Polls the descriptors. Returns whether there are events to [`take`](Self::take).
    pub(crate) fn poll(&mut self) -> bool {
        if self.ready.is_empty() {
            let mut room = [const { MaybeUninit::uninit() }; POLL_EVENTS];
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            // The call fails only for wrong arguments, or when a signal interrupts it.
            if let Ok((events, _)) = epoll::wait(&*self.epoll, &mut room, Some(&now)) {
                let ready = events.iter().map(|event| (event.data, event.flags));
                let known = |(data, flags): (EventData, _)| Some((Token::of(data.u64())?, flags));
                self.ready.extend(ready.filter_map(known));
            }
        }
        !self.ready.is_empty()
    }

    /// Takes all events, in a vector that [`give_back`](Self::give_back) takes for the next ones.
    pub(crate) fn take(&mut self) -> Vec<(Token, EventFlags)> {
        std::mem::take(&mut self.ready)
    }

    pub(crate) fn give_back(&mut self, mut ready: Vec<(Token, EventFlags)>) {
        ready.clear();
        self.ready = ready;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_what_the_kernel_returns() {
        for kind in [
            SourceKind::Flow,
            SourceKind::Endpoint,
            SourceKind::Echo,
            SourceKind::Published,
            SourceKind::Wakeup,
        ] {
            let token = Token { kind, serial: SERIALS, at: u32::MAX - 1 };
            assert_eq!(Token::of(token.into()), Some(token));
        }
        assert_eq!(Token::of(0), None);
    }
}
