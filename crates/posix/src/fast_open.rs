//! TCP Fast Open (RFC 7413) as applications see it: `MSG_FASTOPEN` and `TCP_FASTOPEN_CONNECT`.
//!
//! Both open with [`Stack::connect`](pagewire_stack::Stack::connect). With a
//! cookie, the SYN waits for the first data ("deferred"); without one, a SYN leaves at once and asks
//! for a cookie, and data follows the handshake.

use pagewire_stack::{FastOpenMode, TcpId, ZeroCopyCall};

use crate::backend::Backend;
use crate::descriptors::Descriptors;
use crate::file::Held;
use crate::poll::Events;
use crate::send::Payload;
use crate::socket::{Socket, Stage};
use crate::{Errno, address};

impl<B: Backend> Descriptors<B> {
    /// Whether the connection waits for its first data.
    pub(crate) fn is_deferred(&self, id: TcpId) -> bool {
        self.backend
            .with(|stack, _| stack.tcp(id).map(|mut tcp| tcp.is_deferred()))
            .unwrap_or(false)
    }

    /// Sends with `MSG_FASTOPEN`, or the first data of a deferred connection.
    ///
    /// # Errors
    /// Those of connecting and of sending; `EOPNOTSUPP` without an address, or if this host does
    /// not do Fast Open.
    pub(crate) fn send_fast(
        &self,
        held: &Held<'_, B>,
        socket: &Socket,
        name: Option<&[u8]>,
        payload: &mut Payload<'_>,
        flags: i32,
    ) -> Result<usize, Errno> {
        let blocking = !held.is_nonblocking() && flags & libc::MSG_DONTWAIT == 0;
        let total = payload.len();
        let (id, deferred, limit) = {
            let mut state = socket.lock();
            let enabled = |mode: FastOpenMode| mode.contains(FastOpenMode::CLIENT);
            if flags & libc::MSG_FASTOPEN != 0
                && !self.backend.with(|stack, _| enabled(stack.fast_open().mode()))
            {
                return Err(Errno::OPNOTSUPP);
            }
            let id = match state.stage {
                Stage::Closed => {
                    let name = name.ok_or(Errno::OPNOTSUPP)?;
                    if address::family(name)? == libc::AF_UNSPEC {
                        return Err(Errno::OPNOTSUPP);
                    }
                    self.begin_connect(held.shared(), socket, &mut state, name, true)?
                }
                Stage::Connecting(id) if self.is_deferred(id) => id,
                Stage::Connecting(id) => match self.connect_outcome(&mut state) {
                    // As Linux: once the handshake is complete, the flag means nothing.
                    Ok(()) => {
                        drop(state);
                        let from = (0, &mut ZeroCopyCall::new());
                        return self.send_stream_from(held, socket, payload, flags, from);
                    }
                    Err(Errno::AGAIN) if blocking => id,
                    Err(Errno::AGAIN) => return Err(Errno::ALREADY),
                    Err(error) => return Err(error),
                },
                _ => return Err(Errno::ISCONN),
            };
            (id, self.is_deferred(id), state.options.send_timeout)
        };
        let (mut sent, mut call) = (0, ZeroCopyCall::new());
        if deferred {
            sent = self.send_deferred(id, payload, flags, &mut call)?;
        }
        if blocking && sent < total {
            // As Linux: the acknowledgement of the SYN,ACK waits for what comes at once.
            let _ = self
                .backend
                .with(|stack, _| stack.tcp(id).map(|mut tcp| tcp.set_write_pending(true)));
        }
        let outcome = || self.connect_outcome(&mut socket.lock());
        match self.block_on(held, Events::OUT, blocking, limit, outcome) {
            // As Linux: what the SYN took is told, and that the rest is under way is not.
            Err(Errno::AGAIN) if sent > 0 => return Ok(sent),
            Err(Errno::AGAIN) => return Err(Errno::INPROGRESS),
            done => done?,
        }
        if sent == total {
            return Ok(sent);
        }
        let _ =
            self.backend.with(|stack, _| stack.tcp(id).map(|mut tcp| tcp.set_write_pending(false)));
        match self.send_stream_from(held, socket, payload, flags, (sent, &mut call)) {
            Err(_) if sent > 0 => Ok(sent),
            done => done,
        }
    }

    /// What the SYN takes along; without data, the SYN alone.
    fn send_deferred(
        &self,
        id: TcpId,
        payload: &mut Payload<'_>,
        flags: i32,
        call: &mut ZeroCopyCall,
    ) -> Result<usize, Errno> {
        let total = payload.len();
        if total == 0 {
            self.backend
                .with(|stack, _| stack.tcp(id).map(|mut tcp| tcp.send_syn()))
                .map_err(crate::errno)?;
            return Ok(0);
        }
        self.send_payload(id, payload, (0, false), total, flags, call)
    }
}
