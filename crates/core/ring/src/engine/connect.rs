//! Connections that the application opens (`Op::Connect`): a handle is given when the handshake is over.

use std::net::SocketAddr;

use pagewire_mem::Instant;
use pagewire_stack::{Error, Readiness, Stack};

use super::operations::Answer;
use super::park::RoomKind;
use super::{ENOBUFS, ENOENT, Engine, RoomNeed, Served, SocketKind};
use crate::layout::Completion;
use crate::limits::MAX_CONNECTS;

impl Engine {
    /// Begins to open a connection. Its handle is reported when it is open.
    pub(super) fn connect(
        &mut self,
        now: Instant,
        stack: &mut Stack,
        to: SocketAddr,
        user_data: u64,
    ) -> Answer {
        if self.connecting.len() >= MAX_CONNECTS {
            return Err(ENOBUFS);
        }
        let id = stack.connect(now, to, None).map_err(Error::errno)?;
        let handle = self.own(now, stack, id, SocketKind::Connecting { user_data });
        let handle = handle.map_err(Error::errno)?;
        self.connecting.push(handle);
        self.mark_ready(handle);
        Ok(None)
    }

    /// Ends the connect `what`.
    pub(super) fn cancel_connect(&mut self, now: Instant, stack: &mut Stack, what: u64) -> Answer {
        let sockets = &mut self.sockets;
        let is = |handle: &u64| {
            let kind = sockets.get_mut(*handle).map(|socket| &socket.kind);
            matches!(kind, Some(SocketKind::Connecting { user_data }) if *user_data == what)
        };
        let handle = self.connecting.iter().copied().find(is).ok_or(ENOENT)?;
        self.close(now, stack, handle)
    }

    /// Checks whether a connection is open now, or has failed.
    pub(super) fn serve_connect(
        &mut self,
        now: Instant,
        stack: &mut Stack,
        handle: u64,
        user_data: u64,
    ) -> Served {
        if self.completions.free() == 0 {
            self.counters.ring_waits += 1;
            return Served::Stuck(RoomNeed::some(RoomKind::Completions));
        }
        let Some(socket) = self.sockets.get_mut(handle) else { return Served::Idle };
        let id = socket.id;
        let (result, reported) = match (stack.take_error(id), stack.readiness(id)) {
            (Some(error), _) | (None, Err(error)) => (-error.errno(), 0),
            (None, Ok(ready)) if ready.contains(Readiness::CONNECTED) => (0, handle),
            (None, Ok(_)) => return Served::Idle,
        };
        self.connecting.retain(|other| *other != handle);
        if reported == handle {
            socket.kind = SocketKind::Open(Box::default());
        } else {
            self.sockets.remove(handle);
            self.handle_of.remove(&id);
            stack.close(now, id);
        }
        self.post(Completion { user_data, result, handle: reported, ..Completion::default() });
        Served::Idle
    }
}
