//! Variant of step S1: a closure fills pages of the stack, which are then queued by reference.

use pagewire_mem::{FragVec, Instant, Spare};
use pagewire_tcp::TcpError;

use super::{Tcp, Udp};
use crate::error::Error;
use crate::limits::MAX_IP_PACKET;
use crate::net::Mem;
use crate::sockets::udp::send::DatagramPayload;
use crate::sockets::udp::target::UdpTarget;

impl Tcp<'_> {
    /// Lends `read` free pages for as many of `max` bytes as may be queued now, and queues as many
    /// as it says it has filled: for a `readv` from elsewhere, without a copy in between. Returns
    /// how many; 0 if `read` filled none.
    ///
    /// `read` runs within the stack: it must not panic. The number of bytes that it returns counts as written:
    /// bytes that it has not are those that the pages had before.
    ///
    /// # Errors
    /// `WouldBlock` without room, `NoBuffers` without a free page (in both cases the connection
    /// becomes writable), `BrokenPipe` after a shutdown, and what ended the connection.
    pub fn fill(
        &mut self,
        now: Instant,
        max: usize,
        read: impl FnOnce(&mut Spare<'_>) -> usize,
    ) -> Result<usize, Error> {
        let share = self.share(now, max);
        // Fills have a writer of their own: a copy in between would end the run of whole pages.
        let mut filler = core::mem::take(&mut self.mem.filler);
        let most = share.unwrap_or(0);
        let done =
            self.socket.work(self.mem, now, |conn, env| conn.fill(env, &mut filler, most, read));
        self.mem.filler = filler;
        // A connection that cannot send at all has an error of its own.
        let done = if share.is_some() { done } else { done.and(Err(TcpError::NoBuffers)) };
        match done {
            Ok(filled) => {
                if filled > 0 {
                    self.after_queueing();
                }
                // With less than that, `read` has found no more.
                if filled == most {
                    self.after_share(most, max);
                }
                Ok(filled)
            }
            Err(error) => Err(self.refused(now, error)),
        }
    }
}

impl Udp<'_> {
    /// Lends `read` free pages of `max` bytes, at most 65,535, and sends what it says it has filled, as
    /// one datagram or, with a [segment size](UdpTarget::segment), several. `None`: there is none.
    /// Returns the number of bytes. `read` runs within the stack: it must not panic.
    ///
    /// # Errors
    /// `WouldBlock` if there is none, `NoBuffers` if the pool has fewer than `max` bytes: `read` is
    /// not called then, and an event says that the socket is writable once pages are free. Those of
    /// [`send`](Self::send): the datagram is lost.
    pub fn fill(
        &mut self,
        now: Instant,
        max: usize,
        read: impl FnOnce(&mut Spare<'_>) -> Option<(usize, UdpTarget)>,
    ) -> Result<usize, Error> {
        let max = max.min(MAX_IP_PACKET);
        self.pass_turn_on();
        let Mem { pool, filler, .. } = &mut self.net.mem;
        if !filler.reserve(pool, max) {
            filler.abandon();
            self.wait_for_pages(now, max);
            return Err(Error::NoBuffers);
        }
        let Some((len, to)) = read(&mut filler.spare_of(max)) else {
            return Err(Error::WouldBlock);
        };
        let payload: FragVec = filler.commit_all(len.min(max)).collect();
        payload.send(self, now, to)
    }
}
