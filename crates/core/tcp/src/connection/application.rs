//! The calls of an application on a connection (RFC 9293 section 3.10).

use core::time::Duration;

use pagewire_mem::{CopyReason, Frag, FragVec, PageWriter, Spare};

use crate::connection::Connection;
use crate::error::TcpError;
use crate::inbound::InFlags;
use crate::inbound::receive_queue::Parts;
use crate::inbound::urgent::{ReadBounds, Urgent, UrgentIn};
use crate::io_flags::{RecvFlags, SendFlags};
use crate::life::state::{Event, State};
use crate::limits::MAX_SEND_BUFFER;
use crate::outbound::OutFlags;
use crate::outbound::send_queue::SendQueue;
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
        let longest = self.path.longest_frag();
        self.queue_frags(env, frags, flags, |queue, _, frag, room| {
            let part = frag.split_to(room);
            let len = part.len();
            queue.push(part, longest);
            len
        })
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
        let longest = self.path.longest_frag();
        let mut apart = merge == Merge::NewSegment;
        self.queue_frags(env, frags, flags, |queue, env, frag, room| {
            let mut made = 0;
            for part in make(env, frag.slice(0..room)) {
                made += part.len();
                match merge {
                    Merge::Adjacent => queue.push(part, longest),
                    _ => queue.push_single(part, core::mem::take(&mut apart)),
                }
            }
            frag.advance(made);
            made
        })
    }

    /// Queues as much of `frags` as there is room for. `queue_part` takes up to that much off a
    /// fragment, queues it and returns its length.
    #[inline]
    fn queue_frags(
        &mut self,
        env: &mut Env<'_>,
        frags: &mut FragVec,
        flags: SendFlags,
        mut queue_part: impl FnMut(&mut SendQueue, &mut Env<'_>, &mut Frag, usize) -> usize,
    ) -> Result<usize, TcpError> {
        let wanted = frags.iter().map(Frag::len).sum();
        let room = self.check_send(wanted)?;
        let (mut sent, mut whole) = (0, 0);
        for frag in frags.iter_mut() {
            if sent == room || !self.out.queue.has_room_for(1) {
                break;
            }
            sent += queue_part(&mut self.out.queue, env, frag, room - sent);
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
        let room = self.check_send(data.len())?;
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
        let room = self.room_to_fill(max)?;
        if room == 0 {
            return Ok(0);
        }
        // Reserves as many pages as the pool has; the rest has another turn.
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
        // Notes where the last super-segment begins, too.
        self.take_room(filled);
        let longest = self.path.longest_frag();
        for frag in filler.commit_all(filled) {
            self.out.queue.push(frag, longest);
        }
        // A caller that filled all the room has more.
        let wanted = if filled == room { max } else { filled };
        self.out.after_queueing(env.now, filled, wanted, SendFlags::empty());
        Ok(filled)
    }

    /// Whether a caller that waits for room goes on: the connection is writable, or fails. Otherwise its next
    /// event says that it is writable.
    pub fn wait_for_room(&mut self) -> bool {
        // Held back for more, or with nothing in flight, no acknowledgement would make it writable.
        let waits = self.takes_data()
            && !self.out.transfer.flight.is_empty()
            && !self.out.flags.intersects(OutFlags::CORK | OutFlags::MORE);
        if !waits || self.life.error.is_some() || self.out.is_writable(&self.path) {
            return true;
        }
        self.out.flags.insert(OutFlags::WAITS_FOR_ROOM);
        false
    }

    /// Free pages for as many of `max` bytes as there is room for, and how many bytes: the caller fills
    /// them without the connection, and [`send`](Self::send)s what it has filled.
    ///
    /// # Errors
    /// `WouldBlock` without room, `NoBuffers` without a page.
    pub fn lend_pages(
        &mut self,
        env: &mut Env<'_>,
        max: usize,
    ) -> Result<(PageWriter, usize), TcpError> {
        let room = self.room_to_fill(max)?;
        // As many pages as the pool has; the rest has another turn.
        let mut pages = env.writer.lend(env.pool, room);
        let len = pages.spare_of(room).len();
        if len < max {
            self.out.flags.insert(OutFlags::WAITS_FOR_ROOM);
        }
        if len == 0 && room > 0 {
            return Err(TcpError::NoBuffers);
        }
        Ok((pages, len))
    }

    /// How many of `max` bytes may be queued now: none only if `max` is 0.
    fn room_to_fill(&mut self, max: usize) -> Result<usize, TcpError> {
        self.check_sender()?;
        let room = self.room_for(max);
        if room == 0 && max > 0 {
            self.out.flags.insert(OutFlags::WAITS_FOR_ROOM);
            return Err(TcpError::WouldBlock);
        }
        Ok(room)
    }

    /// How many of `wanted` bytes may be queued now.
    #[inline]
    pub fn room_for(&self, wanted: usize) -> usize {
        if !self.takes_data() || !self.out.queue.has_room_for(1) {
            return 0;
        }
        if self.waits_for_data() {
            let room = self.syn_data_room().saturating_sub(self.out.queue.len());
            return wanted.min(room as usize);
        }
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX).min(MAX_SEND_BUFFER);
        self.out.admit(&self.path, wanted).0 as usize
    }

    /// The part of `most` bytes that ends with a whole super-segment; all of them if there is none.
    pub fn whole_part(&self, most: usize) -> usize {
        let (out, path) = (&self.out, &self.path);
        let super_len =
            out.transfer.super_segment_len(path, out.transfer.send_mss(path)).max(1) as usize;
        let end = out.queue.end();
        let begun = out.super_segment.max(out.transfer.snd.nxt).min(end);
        let filled = end.saturating_since(begun) as usize % super_len;
        let whole = (filled + most) / super_len * super_len;
        if whole > filled { whole - filled } else { most }
    }

    /// How many bytes more than are queued the windows let leave now, in whole segments unless nothing is in
    /// flight.
    pub fn leaves_at_once(&self) -> usize {
        let (out, path) = (&self.out, &self.path);
        if !path.state().may_transmit() {
            return 0;
        }
        let next = out.transfer.next_data(path);
        let allowed = out.transfer.send_edge().saturating_since(next);
        let mss = out.transfer.send_mss(path);
        let usable = out.transfer.window_room(mss).min(allowed);
        let part = if out.transfer.flight.packets == 0 { 0 } else { usable % mss.max(1) };
        (next + (usable - part)).saturating_since(out.queue.end()) as usize
    }

    /// How many of `wanted` bytes the caller queues now; notes where the last super-segment begins.
    pub(crate) fn take_room(&mut self, wanted: usize) -> usize {
        if !self.takes_data() || !self.out.queue.has_room_for(1) {
            return 0;
        }
        if self.waits_for_data() {
            let room = self.room_for(wanted);
            self.out.begin_super_segment(&self.path, room);
            return room;
        }
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX).min(MAX_SEND_BUFFER);
        match self.out.admit(&self.path, wanted) {
            (room, begun) if room == wanted => {
                self.out.super_segment = begun;
                room as usize
            }
            (0, _) => 0,
            (room, _) => {
                self.out.begin_super_segment(&self.path, room as usize);
                room as usize
            }
        }
    }

    /// How many of `wanted` bytes can be queued now: at least one, or an error.
    fn check_send(&mut self, wanted: usize) -> Result<usize, TcpError> {
        self.check_sender()?;
        match self.take_room(wanted.max(1)) {
            0 => {
                self.out.flags.insert(OutFlags::WAITS_FOR_ROOM);
                Err(TcpError::WouldBlock)
            }
            room => Ok(room),
        }
    }

    /// Whether the application may send at all.
    #[inline]
    fn check_sender(&mut self) -> Result<(), TcpError> {
        if let Some(error) = self.life.error.take() {
            return Err(error);
        }
        if self.out.is_closing() {
            return Err(TcpError::BrokenPipe);
        }
        match self.path.state() {
            State::Established | State::CloseWait => Ok(()),
            _ if self.takes_data() => Ok(()),
            State::SynSent | State::SynReceived => Err(TcpError::WouldBlock),
            _ => Err(TcpError::BrokenPipe),
        }
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
        let bounds = self.begin_reading(out.len(), flags)?;
        let out = match out.get_mut(..bounds.max) {
            Some(part) => part,
            None => out,
        };
        if flags.contains(RecvFlags::PEEK) {
            return Ok(self.inbound.queue.in_order.peek(env, bounds.skip, out));
        }
        self.inbound.drop_queued(bounds.skip);
        let n = self.inbound.queue.read(env, out);
        self.after_reading(env);
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
        let bounds = self.begin_reading(max, flags)?;
        let max = bounds.max;
        if flags.contains(RecvFlags::PEEK) {
            return Ok(self.inbound.queue.in_order.peek_frags(bounds.skip, max, out));
        }
        self.inbound.drop_queued(bounds.skip);
        let n = self.inbound.queue.take(max, out);
        self.after_reading(env);
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
        let bounds = self.begin_reading(max, flags)?;
        if self.inbound.queue.queued() == 0 {
            return Ok(0);
        }
        self.inbound.drop_queued(bounds.skip);
        let lent = bounds.max.min(self.inbound.queue.queued());
        let taken = match lent {
            0 => 0,
            _ => give(self.inbound.queue.in_order.parts(lent)).min(lent),
        };
        self.inbound.drop_queued(taken);
        self.after_reading(env);
        if taken == 0 { Err(TcpError::WouldBlock) } else { Ok(taken) }
    }

    /// The bounds of a read of up to `max` bytes, or why there is nothing to read.
    fn begin_reading(&mut self, max: usize, flags: RecvFlags) -> Result<ReadBounds, TcpError> {
        let bounds = self.inbound.bounds(&self.path, max, flags);
        if self.inbound.queue.queued() > bounds.skip {
            return Ok(bounds);
        }
        // Only an urgent byte is queued: skips it.
        self.inbound.drop_queued(bounds.skip);
        self.inbound.forget_urgent();
        const END: ReadBounds = ReadBounds { skip: 0, max: 0 };
        // As in Linux: after the peer's FIN a read returns the end, not a later error.
        if self.inbound.has_fin() {
            return Ok(END);
        }
        if let Some(error) = self.life.error.take() {
            return Err(error);
        }
        if self.has_end() { Ok(END) } else { Err(TcpError::WouldBlock) }
    }

    pub(crate) fn after_reading(&mut self, env: &Env<'_>) {
        let now = env.now;
        self.inbound.note_allowance(env);
        self.inbound.forget_urgent();
        self.inbound.tune_recv_buffer(&self.path, now);
        self.inbound.on_data_taken(&self.path, &self.out.transfer.rtt);
        if self.inbound.queue.queued() == 0 {
            self.consider_shrinking(now);
        }
    }

    /// Replaces received data in a local sender's own memory by private copies, because the sender
    /// waits for that memory. `false`: out of pages, the rest stays.
    pub fn give_back_received(&mut self, env: &mut Env<'_>) -> bool {
        self.inbound.queue.give_back(env)
    }

    /// Payload bytes read since the connection began.
    pub fn bytes_read(&self) -> u64 {
        self.inbound.bytes_received.saturating_sub(self.inbound.queue.queued() as u64)
    }

    /// The urgent byte, once, or again and again with [`RecvFlags::PEEK`] (`MSG_OOB`).
    ///
    /// # Errors
    /// `InvalidInput` if there is none, it was read, or it is in line; `WouldBlock` if it is
    /// announced and has not arrived; `BrokenPipe` if it can no longer arrive.
    pub fn read_urgent(&mut self, flags: RecvFlags) -> Result<u8, TcpError> {
        let Some(urgent) = self.inbound.urgent_in().filter(|_| !self.path.config().oob_inline)
        else {
            return Err(TcpError::InvalidInput);
        };
        match urgent.what {
            Urgent::Read => Err(TcpError::InvalidInput),
            Urgent::Byte(byte) => {
                if !flags.contains(RecvFlags::PEEK) {
                    self.inbound.set_urgent_in(Some(UrgentIn { what: Urgent::Read, ..urgent }));
                }
                Ok(byte)
            }
            Urgent::Announced => {
                let over = InFlags::FIN_RECEIVED | InFlags::READ_SHUT;
                if self.path.state() == State::Closed || self.inbound.flags.intersects(over) {
                    return Err(TcpError::BrokenPipe);
                }
                Err(TcpError::WouldBlock)
            }
        }
    }

    /// Whether the stream has been read up to the urgent byte (`SIOCATMARK`).
    pub fn at_urgent_mark(&self) -> bool {
        self.inbound.is_at_mark()
    }

    /// Bytes to read before an urgent byte (`SIOCINQ`).
    pub fn queued_to_mark(&self) -> usize {
        let queued = self.inbound.queue.queued();
        match self.inbound.urgent_in() {
            Some(urgent)
                if !self.path.config().oob_inline && urgent.seq.lt(self.inbound.rcv_nxt()) =>
            {
                queued.min(urgent.seq.saturating_since(self.inbound.copied()) as usize)
            }
            _ => queued,
        }
    }

    /// Sets how much memory the application took by reference and has not returned.
    pub fn set_kept(&mut self, bytes: usize) {
        let kept = u32::try_from(bytes).unwrap_or(u32::MAX);
        if kept != self.inbound.kept() {
            self.inbound.rare().kept = kept;
        }
    }

    /// Whether memory that the application keeps makes the window much smaller. When the
    /// application returns it, call [`after_return`](Self::after_return).
    pub fn is_held_back(&self) -> bool {
        self.inbound.kept() > 0
            && self.inbound.allowed(&self.path, u32::from(self.inbound.mss))
                < self.inbound.window_limit(&self.path, &self.out.transfer.rtt) / 2
    }

    /// The application returned memory: the window may open.
    pub fn after_return(&mut self, env: &mut Env<'_>) {
        self.inbound.note_allowance(env);
        self.inbound.on_data_taken(&self.path, &self.out.transfer.rtt);
    }

    /// Less received data waits to be forwarded ([`set_held`](Self::set_held)): announces a window
    /// that was closed for it. Nothing else changes, as the application has read nothing.
    pub fn after_release(&mut self, env: &mut Env<'_>) {
        self.inbound.note_allowance(env);
        if self.path.state().is_synchronized() && self.inbound.fin().is_none() {
            self.inbound.offer_window(&self.path, &self.out.transfer.rtt);
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
        self.inbound.flags.insert(InFlags::READ_SHUT);
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
        self.path.orphan = true;
        let at_once = self.path.config().linger == Some(Duration::ZERO);
        if (self.inbound.queue.queued() > 0 || at_once) && self.path.state() != State::TimeWait {
            self.inbound.drop_received();
            self.reset_and_finish(None);
            return;
        }
        self.inbound.drop_received();
        let _ = self.shutdown_write(env);
        self.limit_fin_wait2(env.now);
    }

    /// Ends the connection at once, with a reset if the peer knows of it. Drops all queued data.
    ///
    /// > RFC 9293 section 3.10.5: All queued SENDs and RECEIVEs should be given "connection reset"
    /// > notification.
    pub fn abort(&mut self) {
        self.path.orphan = true;
        self.inbound.drop_received();
        self.reset_and_finish(Some(TcpError::ConnectionAborted));
    }

    /// Ends the connection with `error`, because the path to the peer is gone for good. Nothing
    /// more is sent. Received data stays readable, its end included.
    pub fn fail(&mut self, error: TcpError) {
        if self.path.state() != State::Closed {
            self.finish(Event::Reset, Some(error));
        }
    }

    fn reset_and_finish(&mut self, error: Option<TcpError>) {
        if self.path.state() != State::Closed {
            self.reset_peer();
            self.finish(Event::Reset, error);
        }
    }
}
