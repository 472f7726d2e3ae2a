//! Events of `tracing`: the life of connections, and anomalies.

use std::iter;

use pagewire::Host;
use pagewire::counts::{DropReason, LifecycleEvent, LifecycleKind, ViewOf};
use pagewire::services::{Event, Instant, Readiness, Service, Stack};
use pagewire::tcp::TcpState;

use crate::limits::{PLACES_AT_ONCE, TRACE_LOOK};
use crate::snapshot::state;

/// Reports what happens in a host as events of `tracing`, target `pagewire_control`:
///
/// - `DEBUG`: a connection is established; a connection ends, with its bytes and retransmissions;
/// - `INFO`: the peer reset a connection, or does not answer;
/// - `WARN`: within a second packets were dropped (by reason), other stations used an address of ours,
///   neighbours did not answer, SYNs were answered with cookies.
///
/// The tracer runs inside the host, when sockets have events and once a second; a host that is not traced does
/// nothing for it. Trace a host once, or each shard of a host of several cores: events are shared among all that ask
/// ([`Stack::poll_lifecycle`]).
pub fn trace(name: &str, host: &Host) {
    host.with_stack(|stack, _| stack.record_lifecycle(true));
    host.attach(Tracer {
        name: name.to_owned(),
        counts: Counts::default(),
        look_at: Some(host.now() + TRACE_LOOK),
    });
}

/// Reports what was not reported so far, of a host that is [traced](trace) and ends: connections that began
/// and ended since the last second, and as ended those that the host leaves. Call it after
/// [`Host::shutdown`](pagewire::Host::shutdown), or where that is not called, before the host is dropped.
/// No event is recorded afterwards.
pub fn trace_end(name: &str, host: &Host) {
    let recorded: Vec<_> = host.with_stack(|stack, _| {
        let recorded = iter::from_fn(|| stack.poll_lifecycle()).collect();
        stack.record_lifecycle(false);
        recorded
    });
    // The lock is free here: a subscriber may be slow.
    recorded.iter().for_each(|event| report(name, event));
    let mut from = Some(0);
    while let Some(first) = from {
        let page = host.sockets(first, PLACES_AT_ONCE);
        for socket in page.sockets {
            let (Some(remote), ViewOf::Tcp(tcp)) = (socket.remote, socket.of) else { continue };
            let is_open = !matches!(
                tcp.info.state,
                TcpState::SynSent | TcpState::SynReceived | TcpState::TimeWait | TcpState::Closed
            );
            if is_open {
                let (kind, local, info) = (LifecycleKind::Ended, socket.local, tcp.info);
                report(name, &LifecycleEvent { kind, local, remote, info });
            }
        }
        from = page.next;
    }
}

struct Tracer {
    name: String,
    counts: Counts,
    look_at: Option<Instant>,
}

impl Service for Tracer {
    fn turn(&mut self, now: Instant, stack: &mut Stack, events: &[Event]) {
        while let Some(event) = stack.poll_lifecycle() {
            report(&self.name, &event);
        }
        events.iter().for_each(|event| self.note_failure(stack, event));
        if self.look_at.is_some_and(|at| at <= now) {
            self.note_anomalies(stack);
            self.look_at = Some(now + TRACE_LOOK);
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.look_at
    }
}

impl Tracer {
    fn note_failure(&self, stack: &mut Stack, event: &Event) {
        let (host, id) = (self.name.as_str(), event.socket);
        let Some(tcp) = stack.as_tcp(id).ok().filter(|_| event.gained.contains(Readiness::ERROR))
        else {
            return;
        };
        let info = tcp.info();
        let (Ok(local), Ok(remote)) = (stack.local_addr(id), stack.remote_addr(id)) else { return };
        let after = state(info.state);
        let (sent, received) = (info.bytes_acked, info.bytes_received);
        tracing::info!(host, %local, %remote, after, sent, received, "connection failed");
    }

    fn note_anomalies(&mut self, stack: &Stack) {
        let host = self.name.as_str();
        for (what, count) in self.counts.grown(anomalies(stack)) {
            tracing::warn!(host, what, count, "anomaly");
        }
    }
}

fn report(host: &str, event: &LifecycleEvent) {
    let LifecycleEvent { kind, local, remote, info } = event;
    let (sent, received) = (info.bytes_acked, info.bytes_received);
    let (retransmits, rtt) = (info.retransmits, info.srtt);
    match kind {
        LifecycleKind::Established => {
            tracing::debug!(host, %local, %remote, "connection established");
        }
        LifecycleKind::Ended => tracing::debug!(
            host, %local, %remote, sent, received, retransmits, ?rtt, "connection ended"
        ),
    }
}

/// Counts at the last check, by index in [`anomalies`].
#[derive(Default)]
struct Counts(Vec<u64>);

impl Counts {
    /// The counts that have grown since the last check, and by how much.
    fn grown(&mut self, now: Vec<(&'static str, u64)>) -> Vec<(&'static str, u64)> {
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
        ("unrecorded_lifecycle", stack.unrecorded_lifecycle()),
    ];
    drops.chain(of_tcp).chain(others).collect()
}

#[cfg(test)]
#[path = "events_tests.rs"]
mod tests;
