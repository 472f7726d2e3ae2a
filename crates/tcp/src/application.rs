//! The calls of an application on a connection (RFC 9293 section 3.10): the stack's verbs end here.

use core::time::Duration;

use pagewire_mem::{CopyReason, Frag, FragVec, Instant, PageWriter, Spare};

use crate::connection::Connection;
use crate::error::TcpError;
use crate::inbound::receive_queue::Parts;
use crate::inbound::urgent::Bounds;
use crate::io_flags::{RecvFlags, SendFlags};
use crate::life::state::{Event, State};
use crate::life::timeout;
use crate::outbound::room::take_room;
use crate::shared::Env;

/// Whether fragments in the send queue are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// A fragment that continues the last one in memory becomes part of it.
    Adjacent,
    /// Each fragment stays apart, and a segment has at most 17 of them.
    Never,
    /// As `Never`, and the first fragment begins a segment.
    NewSegment,
}

impl Connection {
    /// Queues fragments by reference. Takes as much from the front of `frags` as there is room for,
    /// and returns how many bytes; `WouldBlock` if there is no room.
    ///
    /// The memory is released when the peer has acknowledged it and the device has dropped it.
    pub fn send(
        &mut self,
        env: &mut Env<'_>,
        frags: &mut FragVec,
        flags: SendFlags,
    ) -> Result<usize, TcpError> {
        let wanted = frags.iter().map(Frag::len).sum();
        let room = check_send(self, wanted)?;
        let longest = self.path.longest_frag();
        let (mut sent, mut whole) = (0, 0);
        for frag in frags.iter_mut() {
            if sent == room || !self.out.queue.has_entry_room() {
                break;
            }
            let part = frag.split_to(room - sent);
            sent += part.len();
            self.out.queue.push(part, longest);
            if !frag.is_empty() {
                break;
            }
            whole += 1;
        }
        drop(frags.drain(..whole));
        self.out.after_queueing(env.now, sent, wanted, flags);
        Ok(sent)
    }

    /// Queues fragments that `make` returns for the front of `frags`, as much as there is room for.
    /// Takes the bytes out of `frags` and returns their number; `WouldBlock` if there is no room.
    ///
    /// `make` gets a part that fits and returns fragments of the same length in its place. If it
    /// runs out of memory it returns less, and the send ends there.
    pub fn send_with(
        &mut self,
        env: &mut Env<'_>,
        frags: &mut FragVec,
        merge: Merge,
        flags: SendFlags,
        mut make: impl FnMut(&mut Env<'_>, Frag) -> FragVec,
    ) -> Result<usize, TcpError> {
        let wanted = frags.iter().map(Frag::len).sum();
        let room = check_send(self, wanted)?;
        let longest = self.path.longest_frag();
        let (mut sent, mut whole) = (0, 0);
        let mut apart = merge == Merge::NewSegment;
        for frag in frags.iter_mut() {
            if sent == room || !self.out.queue.has_entry_room() {
                break;
            }
            let mut made = 0;
            for part in make(env, frag.slice(0..room - sent)) {
                made += part.len();
                match merge {
                    Merge::Adjacent => self.out.queue.push(part, longest),
                    _ => self.out.queue.push_single(part, core::mem::take(&mut apart)),
                }
            }
            sent += made;
            frag.advance(made);
            if !frag.is_empty() {
                break;
            }
            whole += 1;
        }
        drop(frags.drain(..whole));
        self.out.after_queueing(env.now, sent, wanted, flags);
        Ok(sent)
    }

    /// Queues a copy of as much of `data` as there is room for, and returns how many bytes.
    /// `NoBuffers` if the pool has no page left.
    pub fn write(
        &mut self,
        env: &mut Env<'_>,
        data: &[u8],
        flags: SendFlags,
    ) -> Result<usize, TcpError> {
        let room = check_send(self, data.len())?;
        let part = data.get(..room).unwrap_or(data);
        let (frags, copied) = env.writer.write(env.pool, part, env.ledger, CopyReason::AppWrite);
        if copied == 0 && !part.is_empty() {
            return Err(TcpError::NoBuffers);
        }
        let longest = self.path.longest_frag();
        for frag in frags {
            self.out.queue.push(frag, longest);
        }
        self.out.after_queueing(env.now, copied, data.len(), flags);
        Ok(copied)
    }

    /// Lends `filler`'s next free pages for as many of `max` bytes as there is room for, and queues as
    /// many as `fill` says it has filled. 0: it has filled none (or a `max` of 0).
    ///
    /// # Errors
    /// `WouldBlock` without room, `NoBuffers` without a page.
    pub fn fill(
        &mut self,
        env: &mut Env<'_>,
        filler: &mut PageWriter,
        max: usize,
        fill: impl FnOnce(&mut Spare<'_>) -> usize,
    ) -> Result<usize, TcpError> {
        check_sender(self)?;
        if max == 0 {
            return Ok(0);
        }
        let room = self.room_for(max);
        if room == 0 {
            self.out.wait_for_room();
            return Err(TcpError::WouldBlock);
        }
        // What the pool has; the rest has another turn.
        filler.reserve(env.pool, room);
        let mut spare = filler.spare_of(room);
        let lent = spare.len();
        if lent == 0 {
            return Err(TcpError::NoBuffers);
        }
        let filled = fill(&mut spare).min(lent);
        if filled == 0 {
            return Ok(0);
        }
        // Also where the last super-segment begins.
        take_room(self, filled);
        let longest = self.path.longest_frag();
        for frag in filler.commit_all(filled) {
            self.out.queue.push(frag, longest);
        }
        // Whoever filled all that there was room for has more.
        let wanted = if filled == room { max } else { filled };
        self.out.after_queueing(env.now, filled, wanted, SendFlags::empty());
        Ok(filled)
    }

    /// Copies received data into `out`; returns how many bytes. 0: the stream, or `out`, ends.
    pub fn read(
        &mut self,
        env: &mut Env<'_>,
        out: &mut [u8],
        flags: RecvFlags,
    ) -> Result<usize, TcpError> {
        if out.is_empty() {
            return Ok(0);
        }
        let bounds = begin_reading(self, out.len(), flags)?;
        let out = match out.get_mut(..bounds.max) {
            Some(part) => part,
            None => out,
        };
        if flags.contains(RecvFlags::PEEK) {
            return Ok(self.inbound.queue.peek(env, bounds.skip, out));
        }
        self.inbound.drop_queued(bounds.skip);
        let n = self.inbound.queue.read(env, out);
        self.inbound.note_allowance(env);
        self.after_reading(env.now);
        Ok(n)
    }

    /// Moves up to `max` bytes of received data to `out` by reference; returns how many. 0 is the
    /// end of the stream (or a `max` of 0).
    pub fn recv_chunks(
        &mut self,
        env: &mut Env<'_>,
        max: usize,
        out: &mut Vec<Frag>,
        flags: RecvFlags,
    ) -> Result<usize, TcpError> {
        if max == 0 {
            return Ok(0);
        }
        let bounds = begin_reading(self, max, flags)?;
        let max = bounds.max;
        if flags.contains(RecvFlags::PEEK) {
            return Ok(self.inbound.queue.peek_frags(bounds.skip, max, out));
        }
        self.inbound.drop_queued(bounds.skip);
        let n = self.inbound.queue.take(max, out);
        self.inbound.note_allowance(env);
        self.after_reading(env.now);
        Ok(n)
    }

    /// Shows up to `max` bytes of received data to `give`, and drops as many as it says it has taken.
    /// Returns how many; 0 is the end of the stream (or a `max` of 0).
    ///
    /// # Errors
    /// `WouldBlock` if nothing is queued, `give` takes nothing, or with
    /// [`STOP_AT_URGENT`](RecvFlags::STOP_AT_URGENT) the next byte is urgent. `InvalidInput` with
    /// [`PEEK`](RecvFlags::PEEK).
    pub fn lend(
        &mut self,
        env: &mut Env<'_>,
        max: usize,
        give: impl FnOnce(Parts<'_>) -> usize,
        flags: RecvFlags,
    ) -> Result<usize, TcpError> {
        if max == 0 {
            return Ok(0);
        }
        if flags.contains(RecvFlags::PEEK) {
            return Err(TcpError::InvalidInput);
        }
        let bounds = begin_reading(self, max, flags)?;
        if self.inbound.queue.queued() == 0 {
            return Ok(0);
        }
        self.inbound.drop_queued(bounds.skip);
        let lent = bounds.max.min(self.inbound.queue.queued());
        let taken = match lent {
            0 => 0,
            _ => give(self.inbound.queue.parts(lent)).min(lent),
        };
        self.inbound.drop_queued(taken);
        self.inbound.note_allowance(env);
        self.after_reading(env.now);
        if taken == 0 { Err(TcpError::WouldBlock) } else { Ok(taken) }
    }

    /// Replaces received data in a local sender's own memory by private copies, because the sender
    /// waits for that memory. `false`: out of pages, the rest stays.
    pub fn give_back_received(&mut self, env: &mut Env<'_>) -> bool {
        self.inbound.queue.give_back(env)
    }

    /// Payload bytes read since the connection began.
    pub fn bytes_read(&self) -> u64 {
        self.inbound.bytes_received().saturating_sub(self.inbound.queue.queued() as u64)
    }

    /// Replaces lent memory ([`Frag::lent`]) in the send queue by private copies: the application
    /// wants it back when it closes. `false`: out of pages.
    pub fn keep_lent(&mut self, env: &mut Env<'_>) -> bool {
        let Env { writer, pool, ledger, .. } = env;
        self.out.queue.keep_lent(|frag| {
            let (copies, n) = writer.write_frag(pool, frag, ledger, CopyReason::AppWrite);
            (n == frag.len()).then_some(copies)
        })
    }

    pub(crate) fn after_reading(&mut self, now: Instant) {
        self.inbound.forget_urgent();
        self.inbound.tune_recv_buffer(&self.path, now);
        self.inbound.on_data_taken(&self.path, self.out.transfer.rtt());
        if self.inbound.queue.queued() == 0 {
            self.consider_shrinking(now);
        }
    }

    /// Closes our sending direction: a FIN follows what is queued. Repeated calls do nothing.
    pub fn shutdown_write(&mut self, env: &mut Env<'_>) -> Result<(), TcpError> {
        let _ = env;
        match self.path.state() {
            State::Closed => Err(TcpError::NotConnected),
            // > RFC 9293 section 3.10.4: SYN-SENT STATE [...] Delete the TCB and return "error: closing"
            // > responses to any queued SENDs, or RECEIVEs.
            State::Listen | State::SynSent => {
                self.finish(Event::Close, None);
                Ok(())
            }
            // > SYN-RECEIVED STATE [...] otherwise, queue for processing after entering ESTABLISHED
            // > state.
            State::SynReceived => {
                self.out.close();
                Ok(())
            }
            // > ESTABLISHED STATE [...] Queue this until all preceding SENDs have been segmentized,
            // > then form a FIN segment and send it. In any case, enter FIN-WAIT-1 state. [...]
            // > CLOSE-WAIT STATE [...] enter LAST-ACK state.
            State::Established | State::CloseWait => {
                self.out.close();
                self.path.transition(Event::Close);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Ends the stream for the application after the queued data. As in Linux, no segment is sent.
    pub fn shutdown_read(&mut self, env: &mut Env<'_>) -> Result<(), TcpError> {
        let _ = env;
        if self.path.state() == State::Closed {
            return Err(TcpError::NotConnected);
        }
        self.inbound.shut();
        Ok(())
    }

    /// Closes the connection. Queued data is still sent, and the connection lives on until
    /// [`is_closed`](Self::is_closed). If data was not read it is lost, and the peer gets a reset.
    /// With a [`linger`](crate::Config::linger) of zero, queued data is lost too.
    ///
    /// > RFC 9293 section 3.6.1: A host MAY implement a "half-duplex" TCP close sequence [...] If such
    /// > a host issues a CLOSE call while received data is still pending in the TCP connection, or if
    /// > new data is received after CLOSE is called, its TCP implementation SHOULD send a RST to show
    /// > that data was lost (SHLD-3).
    pub fn close(&mut self, env: &mut Env<'_>) {
        self.path.set_orphan();
        let at_once = self.path.config().linger == Some(Duration::ZERO);
        if (self.inbound.queue.queued() > 0 || at_once) && self.path.state() != State::TimeWait {
            self.inbound.drop_received();
            reset_and_finish(self, None);
            return;
        }
        self.inbound.drop_received();
        let _ = self.shutdown_write(env);
        self.life.limit_fin_wait2(&self.path, env.now);
    }

    /// Ends the connection at once, with a reset if the peer knows of it. Drops all queued data.
    ///
    /// > RFC 9293 section 3.10.5: All queued SENDs and RECEIVEs should be given "connection reset"
    /// > notification.
    pub fn abort(&mut self) {
        self.path.set_orphan();
        self.inbound.drop_received();
        reset_and_finish(self, Some(TcpError::ConnectionAborted));
    }

    /// Ends the connection with `error`, because the path to the peer is gone for good. Nothing
    /// more is sent. Received data stays readable, its end included.
    pub fn fail(&mut self, error: TcpError) {
        if self.path.state() != State::Closed {
            self.finish(Event::Reset, Some(error));
        }
    }
}

/// How many of `wanted` bytes can be queued now: at least one, or an error.
fn check_send(conn: &mut Connection, wanted: usize) -> Result<usize, TcpError> {
    check_sender(conn)?;
    match take_room(conn, wanted.max(1)) {
        0 => {
            conn.out.wait_for_room();
            Err(TcpError::WouldBlock)
        }
        room => Ok(room),
    }
}

/// Whether the application may send at all.
#[inline]
fn check_sender(conn: &mut Connection) -> Result<(), TcpError> {
    if let Some(error) = conn.life.take_error() {
        return Err(error);
    }
    if conn.out.is_closing() {
        return Err(TcpError::BrokenPipe);
    }
    match conn.path.state() {
        State::Established | State::CloseWait => Ok(()),
        _ if conn.life.takes_data(&conn.path) => Ok(()),
        State::SynSent | State::SynReceived => Err(TcpError::WouldBlock),
        _ => Err(TcpError::BrokenPipe),
    }
}

/// The bounds of a read of up to `max` bytes, or why there is nothing to read.
fn begin_reading(conn: &mut Connection, max: usize, flags: RecvFlags) -> Result<Bounds, TcpError> {
    let bounds = conn.inbound.bounds(&conn.path, max, flags);
    if conn.inbound.queue.queued() > bounds.skip {
        return Ok(bounds);
    }
    // Only an urgent byte is queued: skips it.
    conn.inbound.drop_queued(bounds.skip);
    conn.inbound.forget_urgent();
    nothing_to_read(conn).map(|max| Bounds { skip: 0, max })
}

fn nothing_to_read(conn: &mut Connection) -> Result<usize, TcpError> {
    // As in Linux: after the peer's FIN a read returns the end, not a later error.
    if conn.inbound.has_fin() {
        return Ok(0);
    }
    if let Some(error) = conn.life.take_error() {
        return Err(error);
    }
    if conn.has_end() { Ok(0) } else { Err(TcpError::WouldBlock) }
}

fn reset_and_finish(conn: &mut Connection, error: Option<TcpError>) {
    if conn.path.state() != State::Closed {
        timeout::reset_peer(conn);
        conn.finish(Event::Reset, error);
    }
}
