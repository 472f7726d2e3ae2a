//! One connection.

use std::sync::Arc;

use pagewire_mem::{CopyLedger, Frag, FragVec, Instant, PagePool, PageWriter};

use crate::config::{Config, LinkLimits};
use crate::error::TcpError;
use crate::header::TcpHeader;
use crate::info::{Info, Readiness};
use crate::segment::{Disposition, IcmpNotice, SegmentOut};
use crate::seq::Seq;
use crate::state::State;

/// What a connection borrows from its host while it works.
#[allow(missing_debug_implementations)]
pub struct Env<'a> {
    /// The time of this turn.
    pub now: Instant,
    /// Where copies are counted.
    pub ledger: &'a mut CopyLedger,
    /// Where pages come from.
    pub pool: &'a mut PagePool,
    /// Where bytes are written into pages.
    pub writer: &'a mut PageWriter,
}

/// The two ports of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ports {
    /// Ours.
    pub local: u16,
    /// The peer's.
    pub remote: u16,
}

/// One TCP connection.
#[derive(Debug)]
pub struct Connection {
    config: Arc<Config>,
    link: LinkLimits,
    ports: Ports,
    state: State,
}

impl Connection {
    /// Opens actively: in SYN-SENT, the SYN appears in `poll_transmit`.
    pub fn connect(
        now: Instant,
        config: Arc<Config>,
        link: LinkLimits,
        ports: Ports,
        iss: Seq,
        ts_offset: u32,
    ) -> Self {
        let _ = (now, iss, ts_offset);
        Self { config, link, ports, state: State::SynSent }
    }

    /// Opens passively, from a SYN that a listener got: in SYN-RECEIVED.
    pub fn accept(
        now: Instant,
        config: Arc<Config>,
        link: LinkLimits,
        ports: Ports,
        iss: Seq,
        ts_offset: u32,
        syn: &TcpHeader,
    ) -> Self {
        let _ = (now, iss, ts_offset, syn);
        Self { config, link, ports, state: State::SynReceived }
    }

    // Getters.

    /// The state.
    pub fn state(&self) -> State {
        self.state
    }
    /// What the application can do now.
    pub fn readiness(&self) -> Readiness {
        Readiness::empty()
    }
    /// Whether nothing is left to be done: the connection can be removed.
    pub fn is_closed(&self) -> bool {
        self.state == State::Closed
    }
    /// Ports.
    pub fn ports(&self) -> Ports {
        self.ports
    }
    /// Bytes that can be read now.
    pub fn queued_receive(&self) -> usize {
        0
    }
    /// Bytes that can be sent now.
    pub fn send_space(&self) -> usize {
        0
    }
    /// Why the connection failed, if it did; stays.
    pub fn error(&self) -> Option<TcpError> {
        None
    }
    /// A snapshot.
    pub fn info(&self) -> Info {
        let _ = (&self.config, &self.link);
        Info::default()
    }

    // Inputs.

    /// A segment arrived.
    pub fn handle_segment(
        &mut self,
        env: &mut Env<'_>,
        header: &TcpHeader,
        payload: FragVec,
        ecn: u8,
    ) -> Disposition {
        let _ = (env, header, payload, ecn);
        Disposition::Accepted
    }
    /// `now` has reached `poll_timeout`.
    pub fn handle_timeout(&mut self, env: &mut Env<'_>) {
        let _ = env;
    }
    /// An ICMP error about a segment of ours.
    pub fn handle_icmp(&mut self, env: &mut Env<'_>, notice: IcmpNotice) {
        let _ = (env, notice);
    }
    /// The link changed.
    pub fn set_link_limits(&mut self, env: &mut Env<'_>, link: LinkLimits) {
        let _ = env;
        self.link = link;
    }

    // Verbs of the application.

    /// Queues fragments by reference. Takes as much from the front of `frags` as there is room
    /// for, and returns how many bytes; `WouldBlock` if there is no room at all.
    pub fn send(&mut self, env: &mut Env<'_>, frags: &mut FragVec) -> Result<usize, TcpError> {
        let _ = (env, frags);
        Err(TcpError::WouldBlock)
    }
    /// Queues a copy.
    pub fn write(&mut self, env: &mut Env<'_>, data: &[u8]) -> Result<usize, TcpError> {
        let _ = (env, data);
        Err(TcpError::WouldBlock)
    }
    /// Reads into `out`; 0 is the end of the stream.
    pub fn read(&mut self, env: &mut Env<'_>, out: &mut [u8]) -> Result<usize, TcpError> {
        let _ = (env, out);
        Err(TcpError::WouldBlock)
    }
    /// Takes up to `max` bytes by reference; 0 is the end of the stream.
    pub fn recv_chunks(
        &mut self,
        env: &mut Env<'_>,
        max: usize,
        out: &mut Vec<Frag>,
    ) -> Result<usize, TcpError> {
        let _ = (env, max, out);
        Err(TcpError::WouldBlock)
    }
    /// Closes our sending direction.
    pub fn shutdown_write(&mut self, env: &mut Env<'_>) -> Result<(), TcpError> {
        let _ = env;
        Ok(())
    }
    /// The application reads no more.
    pub fn shutdown_read(&mut self, env: &mut Env<'_>) -> Result<(), TcpError> {
        let _ = env;
        Ok(())
    }
    /// The application lets go; the connection lingers by itself until `is_closed`.
    pub fn close(&mut self, env: &mut Env<'_>) {
        let _ = env;
    }
    /// Ends the connection at once, with a reset if the peer knows of it.
    pub fn abort(&mut self) {}
    /// Nagle's algorithm off or on.
    pub fn set_nodelay(&mut self, nodelay: bool) {
        let _ = nodelay;
    }
    /// Hold back every segment that is not full, or do so no longer.
    pub fn set_cork(&mut self, cork: bool) {
        let _ = cork;
    }
    /// Keep-alive off or on.
    pub fn set_keepalive(&mut self, now: Instant, keepalive: Option<crate::config::KeepAlive>) {
        let _ = (now, keepalive);
    }

    // Outputs.

    /// The next segment to be sent; call until `None`.
    pub fn poll_transmit(&mut self, env: &mut Env<'_>) -> Option<SegmentOut> {
        let _ = env;
        None
    }
    /// When `handle_timeout` is to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        None
    }
}
