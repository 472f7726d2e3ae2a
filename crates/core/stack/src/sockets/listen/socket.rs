//! [`ListenSocket`]: the state of one listener.

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use pagewire_mem::Instant;
use pagewire_tcp::FastOpenKeys;

use crate::TcpConfig;
use crate::event::{Readiness, ReportState};
use crate::net::LinkId;
use crate::sockets::listen::requests::table::Requests;
use crate::sockets::tcp::socket::RareState;

pub(crate) struct ListenerSocket {
    pub(crate) local: SocketAddr,
    /// Settings of its connections.
    pub(crate) config: Arc<TcpConfig>,
    pub(crate) backlog: usize,
    /// Connections whose handshakes are not complete.
    pub(crate) half_open: BTreeSet<u32>,
    /// Connections that wait to be accepted, oldest first.
    pub(crate) queue: VecDeque<u32>,
    /// Present once Fast Open was on.
    pub(crate) fast_open: Option<Box<ListenerFastOpen>>,
    /// When a SYN was last answered with a cookie.
    pub(crate) cookie_at: Option<Instant>,
    /// Rare state that the listener's connections inherit, except the link.
    pub(crate) extra: Option<Box<RareState>>,
    /// The link that it and its connections are bound to.
    pub(crate) link: Option<LinkId>,
    /// Present at a listener for every address of a link: SYNs that wait for an answer.
    pub(crate) requests: Option<Box<Requests>>,
    /// No connection can come: there is no device left.
    pub(crate) down: bool,
    pub(crate) reporting: ReportState,
}

impl ListenerSocket {
    /// A listener at `local` with these settings for its connections, and otherwise nothing.
    pub(super) fn new(local: SocketAddr, config: &Arc<TcpConfig>) -> Self {
        Self {
            local,
            config: Arc::clone(config),
            backlog: 0,
            half_open: BTreeSet::new(),
            queue: VecDeque::new(),
            fast_open: None,
            cookie_at: None,
            extra: None,
            link: None,
            requests: None,
            down: false,
            reporting: ReportState::default(),
        }
    }

    pub(crate) fn readiness(&self) -> Readiness {
        let mut readiness = if self.down { Readiness::ERROR } else { Readiness::NONE };
        let has_event = self.requests.as_ref().is_some_and(|requests| requests.has_event());
        if self.down || !self.queue.is_empty() || has_event {
            readiness |= Readiness::READABLE;
        }
        readiness
    }

    /// The rare state of a new connection.
    pub(crate) fn inherited(&self) -> Option<Box<RareState>> {
        let extra = self.extra.as_ref().map(|extra| extra.inherited());
        let has_some = extra.is_some() || self.link.is_some();
        has_some.then(|| Box::new(RareState { link: self.link, ..extra.unwrap_or_default() }))
    }

    /// Whether the queue of connections to accept is full.
    pub(crate) fn is_full(&self) -> bool {
        self.queue.len() > self.backlog
    }
}

#[derive(Default)]
pub(crate) struct ListenerFastOpen {
    /// Connections whose handshakes may be incomplete; 0: Fast Open is off.
    pub(crate) limit: u32,
    /// Connections whose handshakes are not complete, and those in `resets`.
    pub(crate) pending: u32,
    /// Until when connections count that were reset.
    pub(crate) resets: VecDeque<Instant>,
    pub(crate) keys: Option<FastOpenKeys>,
    /// Data is taken without a cookie.
    pub(crate) no_cookie: bool,
}

impl ListenerFastOpen {
    /// Whether one more connection may be open before its handshake is complete.
    ///
    /// RFC 7413 section 5.1: beyond a limit of pending connections, the server falls back to
    /// complete handshakes. As Linux: a connection that was reset counts for another minute;
    /// otherwise there is no limit for an attacker who forges both the SYN and the reset.
    pub(crate) fn admits(&mut self, now: Instant) -> bool {
        if self.limit == 0 {
            return false;
        }
        if self.pending >= self.limit && self.resets.front().is_some_and(|&until| until <= now) {
            self.resets.pop_front();
            self.pending = self.pending.saturating_sub(1);
        }
        self.pending < self.limit
    }
}
