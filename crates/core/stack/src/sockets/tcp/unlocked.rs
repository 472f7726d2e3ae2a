//! Variant of steps S1 and R7: the caller copies by itself, between two calls or after one. A host whose threads
//! share a lock holds the lock for references only, and not while payload is copied.
//!
//! ```text
//!   send:     lend_pages -> the caller fills the pages -> send(Filled)
//!   receive:  recv(ToCopy) -> the caller copies what it got, and drops the references
//! ```

use pagewire_mem::{CopyLedger, CopyReason, Frag, FragVec, Instant, PageWriter};
use pagewire_tcp::{RecvFlags, SendFlags, TcpError};

use super::recv::Taker;
use super::send::Payload;
use crate::error::Error;
use crate::sockets::Tcp;

/// Takes up to `max` received bytes by reference, for a caller that copies them at once: the bytes count as read
/// by copy ([`CopyReason::AppRead`]).
#[derive(Debug)]
pub struct ToCopy<'a> {
    /// How many bytes at most.
    pub max: usize,
    /// The vector that gets the references.
    pub into: &'a mut Vec<Frag>,
}

/// Copies in pages that were [lent](Tcp::lend_pages), taken from the front.
#[derive(Debug)]
pub struct Filled<'a> {
    /// The copies.
    pub frags: &'a mut FragVec,
    /// The ledger of the one who made them, which the call takes over.
    pub copied: &'a mut CopyLedger,
}

impl Tcp<'_> {
    /// Whether a caller that waits to send goes on: the connection is
    /// [writable](crate::Readiness::WRITABLE), or fails. Otherwise its next event says that it is writable. The
    /// first bytes of room are worth no call.
    pub fn wait_for_room(&mut self) -> bool {
        let goes_on = self.socket.conn.wait_for_room();
        if !goes_on {
            self.note_used_up();
        }
        goes_on
    }

    /// Lends free pages for as many of `max` bytes as may be queued now, perhaps for fewer; also returns for
    /// how many. The caller fills so many bytes without the stack, and sends them ([`Filled`]); pages that
    /// the caller drops are free again.
    ///
    /// # Errors
    /// `WouldBlock` without room or a free page: the connection becomes writable. `BrokenPipe` after a
    /// shutdown, and what ended the connection.
    pub fn lend_pages(&mut self, now: Instant, max: usize) -> Result<(PageWriter, usize), Error> {
        let share = self.share(now, max);
        let most = share.unwrap_or(0);
        let lent = self.socket.work(self.mem, now, |conn, env| conn.lend_pages(env, most));
        // A connection that cannot send at all has an error of its own.
        let lent = if share.is_some() { lent } else { lent.and(Err(TcpError::NoBuffers)) };
        if lent.is_ok() {
            self.after_share(most, max);
        }
        lent.map_err(|error| match self.refused(now, error) {
            Error::NoBuffers => Error::WouldBlock,
            other => other,
        })
    }
}

impl Taker for ToCopy<'_> {
    type Taken = usize;
    type Error = Error;

    fn take(self, tcp: &mut Tcp<'_>, now: Instant, flags: RecvFlags) -> Result<usize, Error> {
        let Self { max, into } = self;
        tcp.taking(now, |conn, env| {
            let taken = conn.recv_chunks(env, max, into, flags)?;
            env.ledger.note(CopyReason::AppRead, taken);
            Ok(taken)
        })
    }
}

impl Payload for Filled<'_> {
    fn queue(self, tcp: &mut Tcp<'_>, now: Instant, flags: SendFlags) -> Result<usize, Error> {
        let copied = core::mem::take(self.copied);
        tcp.with_sender(now, |conn, env| {
            env.ledger.add(&copied);
            conn.send(env, self.frags, flags)
        })
    }
}
