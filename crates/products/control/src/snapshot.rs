//! Snapshots of a host for the protocol: its counters and its sockets.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use pagewire::counts::{SocketView, TcpView, ViewOf};
use pagewire::memory::CopyLedger;
use pagewire::services::DatagramKind;
use pagewire::tcp::{CongestionKind, TcpState};
use pagewire::{Cores, Host, LinkId};

use crate::limits::PLACES_AT_ONCE;
use crate::protocol::{
    HostInfo, HostStats, LinkStats, Memory, Socket, SocketCounts, SocketPage, Tcp,
};

/// A shard of a host that runs; the only one of a host of one core.
pub(crate) struct Shard {
    pub(crate) host: Host,
    /// The index of the core; `None` of a host of one core.
    pub(crate) core: Option<u32>,
    /// The number of the shard, counted over all hosts that were ever shown: part of cursors.
    pub(crate) number: usize,
}

/// A host's counters.
pub fn host_stats(name: &str, host: &Host) -> HostStats {
    let (stats, sockets) = (host.stats(), host.socket_counts());
    let counters = &stats.counters;
    let drops = counters.iter_drops().map(|(reason, n)| (reason.name(), n));
    let of_tcp = counters.iter_tcp_drops().map(|(reason, n)| (reason.name(), n));
    let links = stats.links.iter().map(|link| LinkStats {
        name: host.link_name(link.link).unwrap_or_else(|| format!("link{}", link.link.scope_id())),
        device: link.device.iter().map(|(name, n)| (name.to_owned(), n)).collect(),
        error: link.device_error.clone(),
    });
    HostStats {
        name: name.to_owned(),
        sockets: SocketCounts {
            connections: sockets.connections as u64,
            time_wait: sockets.time_wait as u64,
            listeners: sockets.listeners as u64,
            datagrams: sockets.datagrams as u64,
        },
        counters: counters.iter().map(|(name, n)| (name.to_owned(), n)).collect(),
        drops: present(drops.chain(of_tcp)),
        copies: copies(&stats.ledger),
        copied_by_stack: stats.ledger.ours(),
        links: links.collect(),
        receive_memory_bytes: stats.receive_memory as u64,
        failed: stats.failed,
        cores: Vec::new(),
    }
}

/// The counters of a host of several cores: sums, and those of each core. `None` without cores.
pub fn cores_stats(name: &str, cores: &Cores) -> Option<HostStats> {
    sum(cores.shards().iter().map(|shard| host_stats(name, shard)).collect())
}

/// The counters of a host with these shards; `None` without any.
pub(crate) fn stats_of(name: &str, shards: &[Shard]) -> Option<HostStats> {
    sum(shards.iter().map(|shard| host_stats(name, &shard.host)).collect())
}

/// The counters of a host with these counters of its shards. Those of an only one are the host's.
fn sum(mut shards: Vec<HostStats>) -> Option<HostStats> {
    match shards.len() {
        1 => shards.pop(),
        _ => HostStats::of_cores(shards),
    }
}

/// The counts that are not zero, by name.
fn present(all: impl Iterator<Item = (&'static str, u64)>) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for (name, n) in all.filter(|(_, n)| *n > 0) {
        *found.entry(name.to_owned()).or_default() += n;
    }
    found
}

fn copies(ledger: &CopyLedger) -> BTreeMap<String, u64> {
    present(ledger.iter().map(|(reason, n)| (reason.name(), n)))
}

/// The addresses and links of a host with these shards, which all have the same; `None` without any.
pub(crate) fn host_info(name: &str, shards: &[Shard]) -> Option<HostInfo> {
    let host = &shards.first()?.host;
    Some(HostInfo {
        name: name.to_owned(),
        addresses: host.addresses().iter().map(ToString::to_string).collect(),
        links: host.links().into_iter().filter_map(|link| host.link_name(link)).collect(),
    })
}

/// Adds the sockets of a shard to `page` until it has `limit`, from index `from` on; returns where the
/// next are. The host's lock is given back again and again.
pub(crate) fn add_sockets(
    (name, Shard { host, core, .. }): (&str, &Shard),
    mut from: u32,
    limit: usize,
    page: &mut SocketPage,
) -> Option<u32> {
    let links = host.links().into_iter().map(|link| (link, host.link_name(link)));
    let links: HashMap<_, _> = links.collect();
    loop {
        let room = limit.saturating_sub(page.sockets.len()).min(PLACES_AT_ONCE);
        if room == 0 {
            return Some(from);
        }
        let part = host.sockets(from, room);
        let shown = part.sockets.iter().map(|view| socket(name, *core, &links, view));
        page.sockets.extend(shown);
        from = part.next?;
    }
}

fn socket(
    host: &str,
    core: Option<u32>,
    links: &HashMap<LinkId, Option<String>>,
    view: &SocketView,
) -> Socket {
    let (protocol, state, dropped) = match &view.of {
        ViewOf::Tcp(tcp) => ("tcp", state(tcp.info.state), 0),
        ViewOf::TimeWait => ("tcp", "time_wait", 0),
        ViewOf::Listener { .. } => ("tcp", "listen", 0),
        ViewOf::Udp { dropped, every, .. } => {
            let protocol = if *every == Some(DatagramKind::Echo) { "echo" } else { "udp" };
            let state = if view.remote.is_some() { "established" } else { "unconnected" };
            (protocol, state, u64::from(*dropped))
        }
        _ => ("other", "unknown", 0),
    };
    Socket {
        host: host.to_owned(),
        protocol: protocol.to_owned(),
        state: state.to_owned(),
        local: view.local,
        remote: view.remote,
        link: view.link.and_then(|link| links.get(&link).cloned().flatten()),
        core,
        receive_queue: view.receive_queue as u64,
        send_queue: view.send_queue as u64,
        dropped,
        tcp: match &view.of {
            ViewOf::Tcp(tcp) => Some(connection(tcp)),
            _ => None,
        },
    }
}

fn connection(view: &TcpView) -> Tcp {
    let (info, micros) = (&view.info, |time: Duration| time.as_micros() as u64);
    Tcp {
        age_seconds: view.age.as_secs(),
        ownerless: view.ownerless,
        rtt_us: micros(info.srtt),
        rttvar_us: micros(info.rttvar),
        min_rtt_us: micros(info.min_rtt),
        rto_us: micros(info.rto),
        mss: info.send_mss.into(),
        congestion: congestion(info.congestion).to_owned(),
        cwnd_segments: info.cwnd_segments.into(),
        cwnd: info.cwnd.into(),
        ssthresh_segments: info.ssthresh_segments.into(),
        unacked_segments: info.unacked_segments.into(),
        lost_segments: info.lost_segments.into(),
        retransmits: info.retransmits.into(),
        timeouts: info.timeouts.into(),
        send_window: info.send_window.into(),
        receive_window: info.recv_window.into(),
        unsent: info.unsent.into(),
        bytes_sent: info.bytes_sent,
        bytes_acked: info.bytes_acked,
        bytes_retransmitted: info.bytes_retransmitted,
        bytes_received: info.bytes_received,
        segments_out: info.segments_out.into(),
        segments_in: info.segments_in.into(),
        last_sent_us: micros(info.last_data_sent),
        last_received_us: micros(info.last_data_received),
        ecn: info.ecn,
        copies: view.copies.as_ref().map(copies),
    }
}

fn congestion(kind: CongestionKind) -> &'static str {
    match kind {
        CongestionKind::Cubic => "cubic",
        CongestionKind::NewReno => "reno",
    }
}

/// The state as protocol and events name it.
pub(crate) fn state(state: TcpState) -> &'static str {
    match state {
        TcpState::Closed => "closed",
        TcpState::Listen => "listen",
        TcpState::SynSent => "syn_sent",
        TcpState::SynReceived => "syn_received",
        TcpState::Established => "established",
        TcpState::FinWait1 => "fin_wait_1",
        TcpState::FinWait2 => "fin_wait_2",
        TcpState::CloseWait => "close_wait",
        TcpState::Closing => "closing",
        TcpState::LastAck => "last_ack",
        TcpState::TimeWait => "time_wait",
    }
}

/// Reads this process's memory; from a file that is opened once, because a sandbox may forbid later.
pub(crate) struct MemoryFile(pub(crate) Option<File>);

/// Bytes of the file that hold the numbers.
const STATUS_BYTES: usize = 4096;

impl MemoryFile {
    pub(crate) fn open() -> Self {
        Self(File::open("/proc/self/status").ok())
    }

    pub(crate) fn read(&self) -> Option<Memory> {
        let mut text = [0; STATUS_BYTES];
        let n = self.0.as_ref()?.read_at(&mut text, 0).ok()?;
        memory(std::str::from_utf8(text.get(..n)?).ok()?)
    }
}

fn memory(status: &str) -> Option<Memory> {
    let get = |name: &str| -> Option<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
        Some(kib * 1024)
    };
    Some(Memory {
        anonymous_bytes: get("RssAnon:")?,
        file_bytes: get("RssFile:")?,
        shared_bytes: get("RssShmem:")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_told_without_the_page_cache_and_of_this_process() {
        let text = "Name:\tx\nRssAnon:\t  12 kB\nRssFile:\t3000000 kB\nRssShmem:\t 4 kB\n";
        let expected =
            Memory { anonymous_bytes: 12 << 10, file_bytes: 3_000_000 << 10, shared_bytes: 4096 };
        assert_eq!(memory(text), Some(expected));
        assert_eq!(memory("RssAnon:\t12 kB\n"), None);
        assert!(MemoryFile::open().read().expect("this is Linux").anonymous_bytes > 0);
    }
}
