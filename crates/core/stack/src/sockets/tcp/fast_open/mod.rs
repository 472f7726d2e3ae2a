//! TCP Fast Open (RFC 7413) for a whole stack: settings, keys, cookies of servers, and limits of listeners.
//! The protocol of one connection is in `pagewire_tcp`.

mod cache;

use std::time::Duration;

use pagewire_mem::{FragVec, Instant};
use pagewire_tcp::{
    CookieCheck, FastOpenConnect, FastOpenCookie, FastOpenKeys, FastOpenMode, Flags, State,
    TcpHeader,
};

use super::socket::Owner;
use crate::config::FastOpenConfig;
use crate::limits::{FAST_OPEN_BLACK_HOLE_DOUBLINGS, FAST_OPEN_RESET_PENALTY, MAX_FAST_OPEN_QUEUE};
use crate::random::derive;
use crate::sockets::listen::socket::ListenerFastOpen;
use crate::sockets::table::Socket;
use crate::sockets::tuple::Tuple;
use crate::sockets::{Context, Tcp};
use cache::{CookieCache, Refusals};

/// Fast Open of this host: [`Stack::fast_open`](crate::Stack::fast_open).
pub struct FastOpen {
    pub(crate) mode: FastOpenMode,
    keys: FastOpenKeys,
    /// Keys derived from the stack's secret.
    own: FastOpenKeys,
    cache: CookieCache,
    refusals: Refusals,
    black_hole: BlackHole,
}

impl FastOpen {
    pub(crate) fn new(secret: &[u8; 32]) -> Self {
        let own = FastOpenKeys::new(derive(secret, b"fast open"), None);
        Self {
            mode: FastOpenMode::default(),
            keys: own,
            own,
            cache: CookieCache::new(derive(secret, b"fast open cache")),
            refusals: Refusals::new(derive(secret, b"fast open refusals")),
            black_hole: BlackHole::default(),
        }
    }

    /// On which sides this host does it.
    pub fn mode(&self) -> FastOpenMode {
        self.mode
    }

    /// The keys with which listeners without their own make cookies.
    pub fn keys(&self) -> FastOpenKeys {
        self.keys
    }

    /// Changes the settings, from the next connection on. Existing listeners keep their limits.
    pub fn configure(&mut self, config: FastOpenConfig) {
        self.mode = config.mode;
        self.keys = config.keys.unwrap_or(self.own);
        self.black_hole.rest = config.rest;
    }

    /// Forgets the cookies of all servers, and which servers took no data in a SYN.
    pub fn forget_cookies(&mut self) {
        self.cache.clear();
        self.refusals.clear();
    }

    /// How a connection opens with Fast Open.
    pub(super) fn connect_to(
        &self,
        now: Instant,
        to: &Tuple,
        no_cookie: bool,
    ) -> Option<FastOpenConnect> {
        let no_cookie = no_cookie || self.mode.contains(FastOpenMode::CLIENT_NO_COOKIE);
        if self.black_hole.is_suspended(now) || self.refusals.is_suspended(now, to, !no_cookie) {
            return None;
        }
        let known = self.cache.get(to.local, to.remote);
        let mss = known.mss;
        if no_cookie {
            return Some(FastOpenConnect { option: None, mss, deferred: true });
        }
        let deferred = known.cookie.is_some();
        let option = known.cookie.unwrap_or(FastOpenCookie::request(known.asks_experimentally()));
        Some(FastOpenConnect { option: Some(option), mss, deferred })
    }

    /// Remembers what the handshake of the connection at `index` has shown.
    pub(super) fn learn(&mut self, cx: &mut Context, now: Instant, index: u32) {
        let Some(socket) = cx.table.tcp_mut(index) else { return };
        let Some(outcome) = socket.conn.fast_open().take_outcome() else { return };
        let tuple = socket.tuple;
        if socket.conn.fast_open().is_syn_data_acked() {
            cx.net.counters.tcp_fast_open_active += 1;
        }
        self.cache.learn(tuple.local, tuple.remote, &outcome);
        if self.refusals.learn(now, &tuple, &outcome) {
            cx.net.counters.tcp_fast_open_refused += 1;
        }
    }

    /// Checks whether the connection at `index` shows that a path swallows Fast Open, or does not.
    pub(super) fn watch_black_hole(&mut self, cx: &mut Context, now: Instant, index: u32) {
        let Some(socket) = cx.table.tcp_mut(index) else { return };
        let hole = &mut self.black_hole;
        if socket.conn.fast_open().take_black_hole() {
            cx.net.counters.tcp_fast_open_black_holes += 1;
            hole.since = now;
            hole.times = hole.times.saturating_add(1);
        } else if hole.times > 0
            && socket.conn.is_closed()
            && socket.conn.fast_open().has_opened()
            && !hole.is_suspended(now)
            && !cx.net.is_local(socket.tuple.remote)
        {
            hole.times = 0;
        }
    }

    /// A new listener's limit: its backlog, if all listeners do Fast Open.
    pub(crate) fn initial(&self, backlog: usize) -> Option<Box<ListenerFastOpen>> {
        let needed = FastOpenMode::SERVER | FastOpenMode::SERVER_ALWAYS;
        self.mode.contains(needed).then(|| {
            let limit = u32::try_from(backlog).unwrap_or(u32::MAX).min(MAX_FAST_OPEN_QUEUE);
            Box::new(ListenerFastOpen { limit, ..ListenerFastOpen::default() })
        })
    }

    /// How the listener at `index` answers a SYN.
    ///
    /// > RFC 7413 section 4.2.2: Upon receiving the SYN packet with Fast Open option: 1. Initialize
    /// > and reset a local FastOpened flag. If FastOpenEnabled is false, go to step 5. 2. If
    /// > PendingFastOpenRequests is over the system limit, go to step 5. 3. If IsCookieValid() (in
    /// > Section 4.1.2) returns false, go to step 5. 4. Buffer the data and notify the application.
    pub(crate) fn answer_to_syn(
        &self,
        cx: &mut Context,
        now: Instant,
        index: u32,
        tuple: &Tuple,
        syn: &TcpHeader,
        has_data: bool,
    ) -> FastOpenSyn {
        let offered = syn.options.fast_open;
        if !self.mode.contains(FastOpenMode::SERVER) || !(has_data || offered.is_some()) {
            return FastOpenSyn::Plain;
        }
        let Some(listener) = cx.table.listener_mut(index) else {
            return FastOpenSyn::Plain;
        };
        let Some(fast_open) = listener.fast_open.as_deref_mut() else { return FastOpenSyn::Plain };
        if !fast_open.admits(now) {
            if fast_open.limit > 0 {
                cx.net.counters.tcp_fast_open_overflows += 1;
            }
            return FastOpenSyn::Plain;
        }
        if fast_open.no_cookie || self.mode.contains(FastOpenMode::SERVER_NO_COOKIE) {
            return FastOpenSyn::Open(None);
        }
        let Some(offered) = offered else { return FastOpenSyn::Plain };
        let keys = fast_open.keys.unwrap_or(self.keys);
        let form = offered.is_experimental();
        let fresh = || keys.cookie(tuple.remote, tuple.local).in_form(form);
        if offered.is_request() {
            cx.net.counters.tcp_fast_open_cookie_requests += 1;
            return FastOpenSyn::Offer(fresh());
        }
        match keys.check(&offered, tuple.remote, tuple.local) {
            CookieCheck::Valid => FastOpenSyn::Open(None),
            CookieCheck::Outdated => FastOpenSyn::Open(Some(fresh())),
            CookieCheck::Invalid => {
                cx.net.counters.tcp_fast_open_passive_failures += 1;
                FastOpenSyn::Offer(fresh())
            }
        }
    }
}

/// Whether Fast Open is suspended (Linux's `tcp_fastopen_blackhole_timeout_sec`).
#[derive(Default)]
struct BlackHole {
    /// The first rest; each further one is twice as long. Zero: never.
    rest: Duration,
    since: Instant,
    times: u32,
}

impl BlackHole {
    fn is_suspended(&self, now: Instant) -> bool {
        let doublings = self.times.saturating_sub(1).min(FAST_OPEN_BLACK_HOLE_DOUBLINGS);
        !self.rest.is_zero() && self.times > 0 && now < self.since + self.rest * (1 << doublings)
    }
}

pub(crate) enum FastOpenSyn {
    /// Without Fast Open.
    Plain,
    /// The SYN,ACK brings a cookie.
    Offer(FastOpenCookie),
    /// The connection is open, and may get a new cookie.
    Open(Option<FastOpenCookie>),
}

impl Tcp<'_> {
    /// Whether the SYN waits for the first data, which it will carry.
    pub fn is_deferred(&mut self) -> bool {
        self.socket.conn.fast_open().is_deferred()
    }

    /// Sends the SYN that waits for the first data, without data.
    pub fn send_syn(&mut self) {
        self.socket.conn.fast_open().send_deferred_syn();
        self.touch();
    }

    /// `true`: the application has more data, for which the SYN,ACK's acknowledgement waits.
    pub fn set_write_pending(&mut self, pending: bool) {
        self.socket.conn.fast_open().set_write_pending(pending);
    }
}

impl Context {
    /// Queues a connection that a SYN has opened, before its handshake is complete.
    pub(crate) fn open_fast(&mut self, now: Instant, index: u32, listener: u32, payload: FragVec) {
        let Some(id) = self.table.id_of(listener) else { return };
        let Some(socket) = self.table.tcp_mut(index) else { return };
        socket.owner = Owner::Queued { listener };
        socket.extra.get_or_insert_default().fast_open_of = Some(id);
        socket.work(&mut self.net.mem, now, |conn, env| conn.fast_open().accept(env, payload));
        self.net.counters.tcp_fast_open_passive += 1;
        if let Some(listener) = self.table.listener_mut(listener) {
            if let Some(fast_open) = listener.fast_open.as_deref_mut() {
                fast_open.pending += 1;
            }
            listener.queue.push_back(index);
        }
        self.check_later(listener);
    }

    /// Ends the count of a connection for its listener's limit, once its handshake is over.
    ///
    /// > RFC 7413 section 4.2.2: Upon receiving an ACK acknowledging the SYN sequence, the server
    /// > decrements PendingFastOpenRequests and advances to the ESTABLISHED state.
    pub(crate) fn uncount_fast_open(&mut self, now: Instant, index: u32, flags: Flags) {
        let Some(socket) = self.table.tcp_mut(index) else { return };
        let state = socket.conn.state();
        if state == State::SynReceived {
            return;
        }
        let Some(extra) = socket.extra.as_deref_mut() else { return };
        let Some(id) = extra.fast_open_of.take() else { return };
        let Ok(Socket::Listener(listener)) = self.table.get_mut(id) else { return };
        let Some(fast_open) = listener.fast_open.as_deref_mut() else { return };
        if flags.contains(Flags::RST) && state == State::Closed {
            fast_open.resets.push_back(now + FAST_OPEN_RESET_PENALTY);
        } else {
            fast_open.pending = fast_open.pending.saturating_sub(1);
        }
    }
}
