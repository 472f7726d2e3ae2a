//! Watching the kernel's sockets: one epoll descriptor for each guest, edge-triggered. A socket is
//! added once and never changed; it leaves when it is closed.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::time::Timespec;

use crate::limits::POLL_EVENTS;

/// What the kernel keeps with a watched descriptor: what it is for, and where.
///
/// ```text
///   63   56 55     32 31       0
///   | kind | serial  |  place  |
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) kind: Kind,
    /// Tells it from earlier ones at the place; 24 bits.
    pub(crate) serial: u32,
    pub(crate) at: u32,
}

/// What a watched descriptor is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A dial, or a connection.
    Flow = 1,
    /// Datagrams of one address and port of the guest.
    Endpoint = 2,
    /// Echo requests of one identifier of the guest.
    Echo = 3,
    /// A published port.
    Published = 4,
    /// Another descriptor that says that there is work.
    Bell = 5,
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
    /// The token that the kernel has kept.
    fn of(data: u64) -> Option<Self> {
        let kind = match (data >> 56) as u8 {
            1 => Kind::Flow,
            2 => Kind::Endpoint,
            3 => Kind::Echo,
            4 => Kind::Published,
            5 => Kind::Bell,
            _ => return None,
        };
        Some(Self { kind, serial: (data >> 32) as u32 & SERIALS, at: data as u32 })
    }
}

/// The descriptors of one guest's relay.
pub(crate) struct Watch {
    epoll: Arc<OwnedFd>,
    /// What they are ready for, not handled yet.
    news: Vec<(Token, EventFlags)>,
    last_serial: u32,
}

impl Watch {
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = Arc::new(epoll::create(CreateFlags::CLOEXEC)?);
        Ok(Self { epoll, news: Vec::with_capacity(POLL_EVENTS), last_serial: 0 })
    }

    /// Readable while a watched descriptor has news.
    pub(crate) fn epoll(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.epoll)
    }

    /// Watches a stream socket; returns its serial.
    pub(crate) fn add_stream(&mut self, socket: impl AsFd, kind: Kind, at: u32) -> io::Result<u32> {
        let ends = EventFlags::RDHUP | EventFlags::PRI;
        self.add(socket, (kind, at), EventFlags::IN | EventFlags::OUT | ends)
    }

    /// Watches what is only read; returns its serial.
    pub(crate) fn add_source(&mut self, source: impl AsFd, kind: Kind, at: u32) -> io::Result<u32> {
        self.add(source, (kind, at), EventFlags::IN)
    }

    /// Watches a descriptor that is readable while there is work.
    pub(crate) fn add_bell(&mut self, bell: impl AsFd) -> io::Result<()> {
        let data = EventData::new_u64(Token { kind: Kind::Bell, serial: 0, at: 0 }.into());
        Ok(epoll::add(&*self.epoll, bell, data, EventFlags::IN)?)
    }

    fn add(
        &mut self,
        fd: impl AsFd,
        (kind, at): (Kind, u32),
        flags: EventFlags,
    ) -> io::Result<u32> {
        let serial = self.last_serial.wrapping_add(1) & SERIALS;
        let data = EventData::new_u64(Token { kind, serial, at }.into());
        epoll::add(&*self.epoll, fd, data, flags | EventFlags::ET)?;
        self.last_serial = serial;
        Ok(serial)
    }

    /// Looks at the descriptors. Returns whether there is something to [`take`](Self::take).
    pub(crate) fn poll(&mut self) -> bool {
        if self.news.is_empty() {
            let mut room = [const { MaybeUninit::uninit() }; POLL_EVENTS];
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            // It fails only for arguments that are wrong, and without a word when it is interrupted.
            if let Ok((events, _)) = epoll::wait(&*self.epoll, &mut room, Some(&now)) {
                let news = events.iter().map(|event| (event.data, event.flags));
                let known = |(data, flags): (EventData, _)| Some((Token::of(data.u64())?, flags));
                self.news.extend(news.filter_map(known));
            }
        }
        !self.news.is_empty()
    }

    /// Takes all news, in a vector that [`give_back`](Self::give_back) takes for the next.
    pub(crate) fn take(&mut self) -> Vec<(Token, EventFlags)> {
        std::mem::take(&mut self.news)
    }

    pub(crate) fn give_back(&mut self, mut news: Vec<(Token, EventFlags)>) {
        news.clear();
        self.news = news;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_what_the_kernel_returns() {
        for kind in [Kind::Flow, Kind::Endpoint, Kind::Echo, Kind::Published, Kind::Bell] {
            let token = Token { kind, serial: SERIALS, at: u32::MAX - 1 };
            assert_eq!(Token::of(token.into()), Some(token));
        }
        assert_eq!(Token::of(0), None);
    }
}
