//! TCP Fast Open (RFC 7413): `MSG_FASTOPEN` and `TCP_FASTOPEN_CONNECT`, both by
//! [`Stack::connect`](pagewire_stack::Stack::connect). With a cookie, the SYN waits for the first
//! data ("deferred"); without one, a SYN leaves at once and asks for a cookie.

use pagewire_stack::{FastOpenMode, Stack, TcpId, ZeroCopyCall, option};

use super::SocketCall;
use super::send::{Payload, send_payload};
use crate::address::family;
use crate::backend::Backend;
use crate::events::Events;
use crate::file::socket::Stage;
use crate::{Errno, errno};

impl<B: Backend> SocketCall<'_, B> {
    /// Whether the connection waits for its first data.
    pub(crate) fn is_deferred(&self, id: TcpId) -> bool {
        self.runtime.with_tcp(id, |mut tcp, _| Ok(tcp.is_deferred())).unwrap_or(false)
    }

    /// Sends with `MSG_FASTOPEN`, or the first data of a deferred connection.
    ///
    /// # Errors
    /// The errors of connecting and of sending; `EOPNOTSUPP` without an address, or if this host does
    /// not do Fast Open.
    pub(crate) fn send_fast(
        &self,
        name: Option<&[u8]>,
        payload: &mut Payload<'_>,
        flags: i32,
    ) -> Result<usize, Errno> {
        let blocking = self.is_blocking(flags);
        let total = payload.len();
        let (id, deferred, limit) = {
            let mut state = self.lock();
            let mode = || self.runtime.with(|stack, _| stack.fast_open().mode());
            if flags & libc::MSG_FASTOPEN != 0 && !mode().contains(FastOpenMode::CLIENT) {
                return Err(Errno::OPNOTSUPP);
            }
            let id = match state.stage {
                Stage::Closed => {
                    let name = name.ok_or(Errno::OPNOTSUPP)?;
                    if family(name)? == libc::AF_UNSPEC {
                        return Err(Errno::OPNOTSUPP);
                    }
                    self.begin_connect(&mut state, name, true)?
                }
                Stage::Connecting(id) if self.is_deferred(id) => id,
                Stage::Connecting(id) => match self.connect_outcome(&mut state) {
                    // As Linux: once the handshake is complete, the flag means nothing.
                    Ok(()) => {
                        drop(state);
                        let from = (0, &mut ZeroCopyCall::new());
                        return self.send_stream_from(payload, flags, from);
                    }
                    Err(Errno::AGAIN) if blocking => id,
                    Err(Errno::AGAIN) => return Err(Errno::ALREADY),
                    Err(error) => return Err(error),
                },
                _ => return Err(Errno::ISCONN),
            };
            (id, self.is_deferred(id), state.options.value(option::SendTimeout))
        };
        let (mut sent, mut call) = (0, ZeroCopyCall::new());
        if deferred && total == 0 {
            self.runtime
                .with(|stack, _| stack.tcp(id).map(|mut tcp| tcp.send_syn()))
                .map_err(errno)?;
        } else if deferred {
            // The SYN carries this payload.
            sent = self.runtime.with(|stack, now| {
                send_payload((stack, now), id, payload, (0, false), total, flags, &mut call)
            })?;
        }
        let set_pending = |pending| {
            let set =
                |stack: &mut Stack, _| stack.tcp(id).map(|mut tcp| tcp.set_write_pending(pending));
            // A connection that is gone has nothing to wait for.
            let _ = self.runtime.with(set);
        };
        if blocking && sent < total {
            // As Linux: the acknowledgement of the SYN,ACK waits for what comes at once.
            set_pending(true);
        }
        let outcome = || self.connect_outcome(&mut self.lock());
        match self.block_on(Events::OUT, flags, limit, outcome) {
            // As Linux: the answer is what the SYN carries, and not that the rest is under way.
            Err(Errno::AGAIN) if sent > 0 => return Ok(sent),
            Err(Errno::AGAIN) => return Err(Errno::INPROGRESS),
            done => done?,
        }
        if sent == total {
            return Ok(sent);
        }
        set_pending(false);
        match self.send_stream_from(payload, flags, (sent, &mut call)) {
            Err(_) if sent > 0 => Ok(sent),
            done => done,
        }
    }
}
