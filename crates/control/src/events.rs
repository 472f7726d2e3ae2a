//! Events of `tracing`: the life of connections, and anomalies.

use std::collections::HashSet;
use std::iter;
use std::net::SocketAddr;

use pagewire::{Host, Service};
use pagewire_mem::Instant;
use pagewire_stack::{
    DropReason, EndedConnection, Event, Readiness, SocketView, Stack, TcpState, ViewOf,
};

use crate::limits::{PLACES_AT_ONCE, TRACE_LOOK, TRACED};
use crate::snapshot::state;

/// Reports what happens in a host as events of `tracing`, target `pagewire_control`:
///
/// - `DEBUG`: a connection is established; a connection ends, with its bytes and retransmissions; a
///   connection is still open when the host is shut down or dropped;
/// - `INFO`: the peer reset a connection, or does not answer;
/// - `WARN`: within a second packets were dropped (by reason), other stations used an address of ours,
///   neighbours did not answer, SYNs were answered with cookies.
///
/// It runs inside the host, when sockets have news and once a second; a host that is not traced does
/// nothing for it. A connection that ends before its first event is reported by its end alone, and so are
/// those beyond [`TRACED`]. Trace a host once: the ends are shared among all that ask for them ([`Stack::poll_ended`]).
pub fn trace(name: &str, host: &Host) {
    host.with_stack(|stack, _| stack.record_ended());
    host.attach(Tracer {
        name: name.to_owned(),
        open: HashSet::new(),
        counts: Counts::default(),
        look_at: Some(host.now() + TRACE_LOOK),
    });
}

struct Tracer {
    name: String,
    /// Both ends of the open connections that were reported.
    open: HashSet<(SocketAddr, SocketAddr)>,
    counts: Counts,
    look_at: Option<Instant>,
}

impl Service for Tracer {
    fn turn(&mut self, now: Instant, stack: &mut Stack, events: &[Event]) {
        for event in events {
            self.note(stack, event);
        }
        self.note_ended(stack);
        if self.look_at.is_some_and(|at| at <= now) {
            self.note_anomalies(stack);
            self.look_at = Some(now + TRACE_LOOK);
        }
    }

    fn end(&mut self, now: Instant, stack: &mut Stack) {
        self.note_ended(stack);
        self.note_anomalies(stack);
        let mut from = Some(0);
        while let Some(first) = from {
            let page = stack.sockets_from(now, first, PLACES_AT_ONCE);
            page.sockets.iter().for_each(|socket| self.note_open(socket));
            from = page.next;
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.look_at
    }
}

impl Tracer {
    fn note(&mut self, stack: &mut Stack, event: &Event) {
        let (host, id) = (self.name.as_str(), event.socket);
        let Ok(tcp) = stack.as_tcp(id) else { return };
        let info = tcp.info();
        let (Ok(local), Ok(remote)) = (stack.local_addr(id), stack.remote_addr(id)) else { return };
        let is_new = event.readiness.contains(Readiness::CONNECTED)
            && self.open.len() < TRACED
            && self.open.insert((local, remote));
        if is_new {
            tracing::debug!(host, %local, %remote, "connection established");
        }
        if event.gained.contains(Readiness::ERROR) {
            let after = state(info.state);
            let (sent, received) = (info.bytes_acked, info.bytes_received);
            tracing::info!(host, %local, %remote, after, sent, received, "connection failed");
        }
    }

    fn note_ended(&mut self, stack: &mut Stack) {
        let host = self.name.as_str();
        while let Some(EndedConnection { local, remote, info, .. }) = stack.poll_ended() {
            self.open.remove(&(local, remote));
            let (sent, received) = (info.bytes_acked, info.bytes_received);
            let (retransmits, rtt) = (info.retransmits, info.srtt);
            tracing::debug!(
                host, %local, %remote, sent, received, retransmits, ?rtt, "connection ended"
            );
        }
    }

    /// Reports a connection that is still open at the end.
    fn note_open(&self, socket: &SocketView) {
        let SocketView { local, remote: Some(remote), of: ViewOf::Tcp(tcp), .. } = socket else {
            return;
        };
        let (host, info) = (self.name.as_str(), &tcp.info);
        if matches!(info.state, TcpState::SynSent | TcpState::SynReceived | TcpState::Closed) {
            return;
        }
        let (sent, unacknowledged) = (info.bytes_acked, socket.send_queue);
        let (received, retransmits, rtt) = (info.bytes_received, info.retransmits, info.srtt);
        tracing::debug!(
            host, %local, %remote, sent, unacknowledged, received, retransmits, ?rtt,
            "connection open at the end"
        );
    }

    fn note_anomalies(&mut self, stack: &Stack) {
        let host = self.name.as_str();
        for (what, count) in self.counts.news(anomalies(stack)) {
            tracing::warn!(host, what, count, "anomaly");
        }
    }
}

/// Counts at the last look, by place in [`anomalies`].
#[derive(Default)]
struct Counts(Vec<u64>);

impl Counts {
    /// What came since the last look.
    fn news(&mut self, now: Vec<(&'static str, u64)>) -> Vec<(&'static str, u64)> {
        let before = self.0.iter().copied().chain(iter::repeat(0));
        let more =
            now.iter().zip(before).map(|((what, n), before)| (*what, n.saturating_sub(before)));
        let more = more.filter(|(_, n)| *n > 0).collect();
        self.0 = now.into_iter().map(|(_, n)| n).collect();
        more
    }
}

/// Whether packets are dropped for this reason on any network: what other stations say to each other.
fn is_ordinary(reason: DropReason) -> bool {
    matches!(
        reason,
        DropReason::EthernetNotForUs
            | DropReason::EthernetType
            | DropReason::ArpNotForUs
            | DropReason::Ipv4NotForUs
            | DropReason::Ipv6NotForUs
            | DropReason::NdpNotForUs
            | DropReason::NdpRouterSolicitation
            | DropReason::NdpRouterAdvertisement
            | DropReason::GroupMessage
    )
}

/// Counts that stay at zero on a network in order.
fn anomalies(stack: &Stack) -> Vec<(&'static str, u64)> {
    let counters = stack.counters();
    let drops = counters.iter_drops().filter(|(reason, _)| !is_ordinary(*reason));
    let drops = drops.map(|(reason, n)| (reason.name(), n));
    let of_tcp = counters.iter_tcp_drops().map(|(reason, n)| (reason.name(), n));
    let others = [
        ("address_conflicts", counters.address_conflicts),
        ("neighbors_failed", counters.neighbors_failed),
        ("tcp_syn_cookies_sent", counters.tcp_syn_cookies_sent),
        ("tcp_established_lost", counters.tcp_established_lost),
        ("tcp_timeouts", counters.tcp_timeouts),
    ];
    drops.chain(of_tcp).chain(others).collect()
}

#[cfg(test)]
#[path = "events_tests.rs"]
mod tests;
