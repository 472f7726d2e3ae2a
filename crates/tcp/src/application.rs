//! Byte path, steps S1 and R7: what the application does with a connection (RFC 9293 section 3.10).

use std::sync::Arc;

use pagewire_mem::{CopyReason, Frag, FragVec, Instant};

use crate::config::KeepAlive;
use crate::connection::{ConnFlags, Connection, Env};
use crate::error::TcpError;
use crate::state::{Event, State};

impl Connection {
    // ---- sending ----

    /// Queues fragments by reference. Takes as much from the front of `frags` as there is room
    /// for, and returns how many bytes; `WouldBlock` if there is no room at all.
    ///
    /// The memory is released when the peer has acknowledged it and the device let go of it.
    pub fn send(&mut self, env: &mut Env<'_>, frags: &mut FragVec) -> Result<usize, TcpError> {
        let _ = env;
        let room = self.check_send()?;
        let (mut sent, mut whole) = (0, 0);
        for frag in frags.iter_mut() {
            if sent == room || !self.queue.has_entry_room() {
                break;
            }
            let part = frag.split_to(room - sent);
            sent += part.len();
            self.queue.push(part);
            if !frag.is_empty() {
                break;
            }
            whole += 1;
        }
        drop(frags.drain(..whole));
        Ok(sent)
    }

    /// Queues a copy of `data`, or of as much of it as there is room for; returns how many bytes.
    /// `NoBuffers` if the pool has no page left.
    pub fn write(&mut self, env: &mut Env<'_>, data: &[u8]) -> Result<usize, TcpError> {
        let room = self.check_send()?;
        let data = data.get(..room).unwrap_or(data);
        let (frags, copied) = env.writer.write(env.pool, data, env.ledger, CopyReason::AppWrite);
        if copied == 0 && !data.is_empty() {
            return Err(TcpError::NoBuffers);
        }
        for frag in frags {
            self.queue.push(frag);
        }
        Ok(copied)
    }

    /// Bytes that can be queued now; at least one.
    fn check_send(&mut self) -> Result<usize, TcpError> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        if self.flags.contains(ConnFlags::FIN_QUEUED) {
            return Err(TcpError::BrokenPipe);
        }
        match self.state {
            State::SynSent | State::SynReceived => return Err(TcpError::WouldBlock),
            State::Established | State::CloseWait => {}
            _ => return Err(TcpError::BrokenPipe),
        }
        match self.send_space() {
            0 => Err(TcpError::WouldBlock),
            room => Ok(room),
        }
    }

    // ---- receiving ----

    /// Copies queued data into `out`; returns how many bytes. 0 is the end of the stream (or an
    /// empty `out`).
    pub fn read(&mut self, env: &mut Env<'_>, out: &mut [u8]) -> Result<usize, TcpError> {
        if out.is_empty() {
            return Ok(0);
        }
        if self.rcv.queue.queued() == 0 {
            return self.nothing_to_read();
        }
        let n = self.rcv.queue.read(env, out);
        self.after_reading(env.now);
        Ok(n)
    }

    /// Moves queued data to `out` by reference, up to `max` bytes; returns how many. 0 is the end
    /// of the stream (or a `max` of 0).
    pub fn recv_chunks(
        &mut self,
        env: &mut Env<'_>,
        max: usize,
        out: &mut Vec<Frag>,
    ) -> Result<usize, TcpError> {
        if max == 0 {
            return Ok(0);
        }
        if self.rcv.queue.queued() == 0 {
            return self.nothing_to_read();
        }
        let n = self.rcv.queue.take(max, out);
        self.after_reading(env.now);
        Ok(n)
    }

    fn after_reading(&mut self, now: Instant) {
        self.on_data_taken();
        if self.rcv.queue.queued() == 0 {
            self.consider_shrinking(now);
        }
    }

    fn nothing_to_read(&mut self) -> Result<usize, TcpError> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        let end = self.flags.intersects(ConnFlags::FIN_RECEIVED | ConnFlags::READ_SHUT)
            || self.state == State::Closed;
        if end { Ok(0) } else { Err(TcpError::WouldBlock) }
    }

    // ---- closing ----

    /// Closes our sending direction: a FIN follows what is queued. Repeated calls do nothing.
    pub fn shutdown_write(&mut self, env: &mut Env<'_>) -> Result<(), TcpError> {
        let _ = env;
        match self.state {
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
                self.flags.insert(ConnFlags::FIN_QUEUED);
                Ok(())
            }
            // > ESTABLISHED STATE [...] Queue this until all preceding SENDs have been segmentized,
            // > then form a FIN segment and send it. In any case, enter FIN-WAIT-1 state. [...]
            // > CLOSE-WAIT STATE [...] enter LAST-ACK state.
            State::Established | State::CloseWait => {
                self.flags.insert(ConnFlags::FIN_QUEUED);
                self.transition(Event::Close);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The application reads no more than what is queued: then the end of the stream. As in Linux,
    /// the peer is not told.
    pub fn shutdown_read(&mut self, env: &mut Env<'_>) -> Result<(), TcpError> {
        let _ = env;
        if self.state == State::Closed {
            return Err(TcpError::NotConnected);
        }
        self.flags.insert(ConnFlags::READ_SHUT);
        Ok(())
    }

    /// The application lets go. What is queued is still sent; the connection lingers by itself
    /// until [`is_closed`](Self::is_closed). Data that was not read is lost, and the peer is told
    /// with a reset:
    ///
    /// > RFC 9293 section 3.6.1: A host MAY implement a "half-duplex" TCP close sequence [...] If such
    /// > a host issues a CLOSE call while received data is still pending in the TCP connection, or if
    /// > new data is received after CLOSE is called, its TCP implementation SHOULD send a RST to show
    /// > that data was lost (SHLD-3).
    pub fn close(&mut self, env: &mut Env<'_>) {
        self.flags.insert(ConnFlags::ORPHAN);
        if self.rcv.queue.queued() > 0 && self.state != State::TimeWait {
            self.drop_received();
            self.reset_and_finish(None);
            return;
        }
        self.drop_received();
        let _ = self.shutdown_write(env);
        self.limit_fin_wait2(env.now);
    }

    /// Ends the connection at once, with a reset if the peer knows of it. What is queued in either
    /// direction is released.
    ///
    /// > RFC 9293 section 3.10.5: All queued SENDs and RECEIVEs should be given "connection reset"
    /// > notification.
    pub fn abort(&mut self) {
        self.flags.insert(ConnFlags::ORPHAN);
        self.drop_received();
        self.reset_and_finish(Some(TcpError::ConnectionAborted));
    }

    fn reset_and_finish(&mut self, error: Option<TcpError>) {
        if self.state != State::Closed {
            self.reset_peer();
            self.finish(Event::Reset, error);
        }
    }

    fn drop_received(&mut self) {
        // The window stays as it was announced; only the memory goes.
        while self.rcv.queue.queued() > 0 {
            let mut dropped = Vec::new();
            if self.rcv.queue.take(usize::MAX, &mut dropped) == 0 {
                break;
            }
        }
        self.rcv.queue.shrink();
    }

    // ---- settings ----

    /// Turns Nagle's algorithm off (`true`) or on.
    pub fn set_nodelay(&mut self, nodelay: bool) {
        self.flags.set(ConnFlags::NODELAY, nodelay);
    }

    /// Holds back every segment that is not full (`true`), for 200 ms at most when nothing is under
    /// way, or does so no longer.
    pub fn set_cork(&mut self, cork: bool) {
        self.flags.set(ConnFlags::CORK, cork);
    }

    /// Turns keep-alive on or off.
    pub fn set_keepalive(&mut self, now: Instant, keepalive: Option<KeepAlive>) {
        // Settings are shared; who wants other ones gets its own copy.
        Arc::make_mut(&mut self.config).keepalive = keepalive;
        if self.flags.contains(ConnFlags::CONNECTED) && self.state != State::TimeWait {
            self.start_keepalive(now);
        }
    }
}
