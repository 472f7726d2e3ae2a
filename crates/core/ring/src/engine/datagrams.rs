//! Datagram sockets (RFC 768), where they differ from connections.
//!
//! A datagram is delivered whole and in one completion: it waits until there is room for all of it
//! (`Delivery::room_for`), and later ones do not overtake it (`park`). Meanwhile the next ones wait
//! in the socket's bounded queue; beyond it they are dropped and counted ([`Completion::dropped`]).

use std::net::SocketAddr;

use pagewire_mem::Instant;
use pagewire_stack::{BindOptions, Error, Readiness, SocketId, Stack};

use super::operations::Answer;
use super::{EISCONN, Endpoint, Engine, SocketKind};
use crate::counters::Counters;
use crate::layout::{Address, Completion};

/// The part of an [`Endpoint`] that only a datagram socket has.
#[derive(Default)]
pub(super) struct Datagrams {
    /// The datagram that was taken from the receive queue: its sender and length.
    pub(super) pending: Option<(SocketAddr, u32)>,
    /// Drops that are counted already.
    dropped: u32,
}

impl Datagrams {
    pub(super) fn count_dropped(
        &mut self,
        stack: &mut Stack,
        id: SocketId,
        counters: &mut Counters,
    ) {
        let dropped = stack.as_udp(id).map(|udp| udp.dropped()).unwrap_or(self.dropped);
        counters.datagrams_dropped += u64::from(dropped.wrapping_sub(self.dropped));
        self.dropped = dropped;
    }

    /// Reports the pending datagram: `completion` has the bytes that were delivered. `false`: there is none.
    pub(super) fn report(
        &mut self,
        stack: &mut Stack,
        id: SocketId,
        completion: &mut Completion,
        counters: &mut Counters,
    ) -> bool {
        self.count_dropped(stack, id, counters);
        let Some((from, length)) = self.pending.take() else { return false };
        let truncated = completion.result.unsigned_abs() < length;
        let more = stack.readiness(id).is_ok_and(|ready| ready.contains(Readiness::READABLE));
        completion.flags |= Completion::DATAGRAM;
        completion.flags |= if truncated { Completion::TRUNCATED } else { 0 };
        completion.flags |= if more { Completion::NONEMPTY } else { 0 };
        (completion.address, completion.length) = (Address::new(from), length);
        completion.dropped = self.dropped;
        counters.datagrams += 1;
        counters.datagrams_truncated += u64::from(truncated);
        true
    }
}

impl Endpoint {
    pub(super) fn datagrams() -> Box<Self> {
        Box::new(Self { datagrams: Some(Box::default()), ..Self::default() })
    }
}

impl Engine {
    pub(super) fn bind(
        &mut self,
        now: Instant,
        stack: &mut Stack,
        on: SocketAddr,
        user_data: u64,
    ) -> Answer {
        let id = stack.bind_udp(on, BindOptions::default()).map_err(Error::errno)?;
        let local = stack.local_addr(id).map_err(Error::errno)?;
        let handle = self.own(now, stack, id, SocketKind::Open(Endpoint::datagrams()));
        let handle = handle.map_err(Error::errno)?;
        let address = Address::new(local);
        self.post(Completion { user_data, handle, address, ..Completion::default() });
        Ok(None)
    }

    /// Sets the peer of a datagram socket, or removes it.
    pub(super) fn set_peer(
        &mut self,
        stack: &mut Stack,
        target: u64,
        peer: Option<SocketAddr>,
    ) -> Answer {
        if self.endpoint(target)?.datagrams.is_none() {
            return Err(EISCONN);
        }
        let id = self.sockets.get_mut(target).ok_or(super::EBADF)?.id;
        let set = match peer {
            Some(peer) => stack.as_udp(id).and_then(|mut udp| udp.connect(peer)),
            None => stack.as_udp(id).map(|mut udp| udp.disconnect()),
        };
        set.map(|()| Some(0)).map_err(|error| error.errno())
    }
}
