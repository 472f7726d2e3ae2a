//! The numbers on the screen: rates, computed from two snapshots of a process.
//!
//! `top/mod.rs` takes the snapshots, `draw.rs` draws the [`Model`].

use std::collections::{BTreeMap, HashMap, VecDeque};

use pagewire_control::protocol::{Flow, Info, Refusals, Socket, Stats};

/// Snapshots that the plots reach back: two minutes.
const HISTORY: usize = 120;

/// The counters and sockets of a process at one time.
#[derive(Clone, Debug, Default)]
pub(super) struct Snapshot {
    pub(super) stats: Stats,
    pub(super) sockets: Vec<Socket>,
    /// Of the process's gateway, if there is one.
    pub(super) gateway: Option<GatewaySnapshot>,
}

/// The flows and refusals of a gateway at one time.
#[derive(Clone, Debug, Default)]
pub(super) struct GatewaySnapshot {
    pub(super) flows: Vec<Flow>,
    pub(super) refusals: Refusals,
}

/// A process, with its rates between the last two snapshots.
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) info: Info,
    pub(super) rates: Rates,
    /// Bits a second that devices received and sent, oldest first.
    pub(super) received: VecDeque<u64>,
    pub(super) sent: VecDeque<u64>,
    pub(super) rows: Vec<Row>,
    pub(super) stats: Stats,
    /// The process's gateway, if there is one.
    pub(super) gateway: Option<Gateway>,
    /// Bytes of each flow at the last snapshot, by its number: out, in.
    flows_before: HashMap<u64, (u64, u64)>,
    /// Bytes of each connection at the last snapshot: sent and acknowledged, received.
    before: HashMap<Ends, (u64, u64)>,
    has_snapshot: bool,
}

/// The identity of a connection: host, protocol, and both ends.
type Ends = (String, String, Option<std::net::SocketAddr>, std::net::SocketAddr);

/// Changes in a second.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Rates {
    pub(super) received_bits: f64,
    pub(super) sent_bits: f64,
    pub(super) opened: f64,
    pub(super) retransmits: f64,
    pub(super) system_calls: f64,
    /// Drops by reason, and how many there were in all, most first.
    pub(super) drops: Vec<(String, f64, u64)>,
    /// Bytes copied by reason, in the same way.
    pub(super) copies: Vec<(String, f64, u64)>,
    /// Counts of parts of the program, by part and name.
    pub(super) parts: Vec<(String, f64, u64)>,
}

/// A socket, with its rates since the snapshot before.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) socket: Socket,
    /// Bytes a second.
    pub(super) sent: f64,
    pub(super) received: f64,
}

/// A gateway, with the rates of its flows.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Gateway {
    pub(super) rows: Vec<FlowRow>,
    pub(super) refusals: Refusals,
}

/// A flow, with its rates since the snapshot before.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FlowRow {
    pub(super) flow: Flow,
    /// Bytes a second from the guest and to it.
    pub(super) bytes_out: f64,
    pub(super) bytes_in: f64,
}

impl Row {
    pub(super) fn remote(&self) -> String {
        self.socket.remote.map_or_else(|| "*".to_owned(), |remote| remote.to_string())
    }

    pub(super) fn rtt_us(&self) -> u64 {
        self.socket.tcp.as_ref().map_or(0, |tcp| tcp.rtt_us)
    }

    pub(super) fn retransmits(&self) -> u64 {
        self.socket.tcp.as_ref().map_or(0, |tcp| tcp.retransmits)
    }

    pub(super) fn age(&self) -> u64 {
        self.socket.tcp.as_ref().map_or(0, |tcp| tcp.age_seconds)
    }

    /// Bytes copied, if that is counted.
    pub(super) fn copied(&self) -> Option<u64> {
        Some(self.socket.tcp.as_ref()?.copies.as_ref()?.values().sum())
    }
}

impl Model {
    pub(super) fn new(info: Info) -> Self {
        Self { info, ..Self::default() }
    }

    /// Takes the next snapshot. The first gives no rates.
    pub(super) fn update(&mut self, snapshot: Snapshot) {
        let seconds = snapshot.stats.uptime_seconds - self.stats.uptime_seconds;
        let known = self.has_snapshot && seconds > 0.0;
        let per_second = |now: u64, before: u64| match known {
            true => now.saturating_sub(before) as f64 / seconds,
            false => 0.0,
        };
        self.rates = rates(&self.stats, &snapshot.stats, per_second);
        if known {
            for (plot, bits) in [
                (&mut self.received, self.rates.received_bits),
                (&mut self.sent, self.rates.sent_bits),
            ] {
                plot.push_back(bits as u64);
                if plot.len() > HISTORY {
                    plot.pop_front();
                }
            }
        }
        let mut carried = HashMap::new();
        self.rows.clear();
        for socket in snapshot.sockets {
            let tcp = socket.tcp.as_ref();
            let now = tcp.map_or((0, 0), |tcp| (tcp.bytes_acked, tcp.bytes_received));
            let (host, protocol) = (socket.host.clone(), socket.protocol.clone());
            let ends = (host, protocol, socket.remote, socket.local);
            // A new connection may have carried all of it since.
            let before = self.before.get(&ends).copied().unwrap_or((0, 0));
            let (sent, received) = (per_second(now.0, before.0), per_second(now.1, before.1));
            self.rows.push(Row { socket, sent, received });
            carried.insert(ends, now);
        }
        let mut flows_carried = HashMap::new();
        self.gateway = snapshot.gateway.map(|GatewaySnapshot { flows, refusals }| {
            let row = |flow: Flow| {
                let now = (flow.bytes_out, flow.bytes_in);
                let before = self.flows_before.get(&flow.flow).copied().unwrap_or((0, 0));
                let (bytes_out, bytes_in) =
                    (per_second(now.0, before.0), per_second(now.1, before.1));
                flows_carried.insert(flow.flow, now);
                FlowRow { flow, bytes_out, bytes_in }
            };
            Gateway { rows: flows.into_iter().map(row).collect(), refusals }
        });
        self.flows_before = flows_carried;
        (self.before, self.stats, self.has_snapshot) = (carried, snapshot.stats, true);
    }
}

fn rates(before: &Stats, now: &Stats, per_second: impl Fn(u64, u64) -> f64) -> Rates {
    let counter = |stats: &Stats, name: &str| -> u64 {
        stats.hosts.iter().filter_map(|host| host.counters.get(name)).sum()
    };
    let of_device = |stats: &Stats, name: &str| -> u64 {
        let links = stats.hosts.iter().flat_map(|host| &host.links);
        links.filter_map(|link| link.device.get(name)).sum()
    };
    let rate = |name: &str| per_second(counter(now, name), counter(before, name));
    let ((old_in, old_out), (new_in, new_out)) = (before.device_bytes(), now.device_bytes());
    let by_reason = |of: fn(&Stats) -> BTreeMap<String, u64>| {
        let (old, new) = (of(before), of(now));
        let mut all: Vec<_> = new
            .into_iter()
            .filter(|(_, n)| *n > 0)
            .map(|(name, n)| {
                let rate = per_second(n, old.get(&name).copied().unwrap_or(0));
                (name, rate, n)
            })
            .collect();
        // Reasons that occur now come first, then the most frequent ones.
        all.sort_by(|a, b| b.1.total_cmp(&a.1).then(b.2.cmp(&a.2)).then(a.0.cmp(&b.0)));
        all
    };
    Rates {
        received_bits: per_second(new_in, old_in) * 8.0,
        sent_bits: per_second(new_out, old_out) * 8.0,
        opened: rate("tcp_passive_opens") + rate("tcp_active_opens"),
        retransmits: rate("tcp_retransmits"),
        system_calls: per_second(of_device(now, "syscalls"), of_device(before, "syscalls")),
        drops: by_reason(drops),
        copies: by_reason(|stats| sum(stats.hosts.iter().map(|host| &host.copies))),
        parts: by_reason(|stats| {
            let several = stats.sections.len() > 1;
            let names = stats.sections.iter().flat_map(|(part, counts)| {
                let named = move |name: &str| match several {
                    true => format!("{part} {name}"),
                    false => name.to_owned(),
                };
                counts.iter().map(move |(name, n)| (named(name), *n))
            });
            names.collect()
        }),
    }
}

/// Drops of stacks and of devices, by reason.
fn drops(stats: &Stats) -> BTreeMap<String, u64> {
    let mut all = sum(stats.hosts.iter().map(|host| &host.drops));
    let links = stats.hosts.iter().flat_map(|host| &host.links);
    for (name, n) in
        links.flat_map(|link| &link.device).filter(|(name, _)| name.contains("dropped"))
    {
        *all.entry(format!("device {name}")).or_default() += n;
    }
    all
}

fn sum<'a>(maps: impl Iterator<Item = &'a BTreeMap<String, u64>>) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for (name, n) in maps.flatten() {
        *all.entry(name.clone()).or_default() += n;
    }
    all
}

/// A number with a unit of at most three digits before it: `1.23 G`.
pub(super) fn scaled(n: f64) -> String {
    let (mut n, mut unit) = (n, "");
    for next in ["k", "M", "G", "T"] {
        if n < 1000.0 {
            break;
        }
        (n, unit) = (n / 1000.0, next);
    }
    match (n, unit) {
        (n, "") if n == n.trunc() => format!("{n:.0} "),
        (n, unit) if n < 10.0 => format!("{n:.2} {unit}"),
        (n, unit) if n < 100.0 => format!("{n:.1} {unit}"),
        (n, unit) => format!("{n:.0} {unit}"),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use pagewire_control::protocol::{HostStats, LinkStats, Tcp};

    use super::*;
    use crate::commands::flows::tests::flow;

    pub(in crate::commands::top) fn connection(port: u16, sent: u64, received: u64) -> Socket {
        let tcp = Tcp {
            bytes_acked: sent,
            bytes_received: received,
            rtt_us: u64::from(port),
            ..Tcp::default()
        };
        Socket {
            host: "pw0".to_owned(),
            protocol: "tcp".to_owned(),
            state: "established".to_owned(),
            local: "10.77.0.2:80".parse().unwrap(),
            remote: Some(([10, 77, 0, 1], port).into()),
            link: None,
            core: None,
            receive_queue: 0,
            send_queue: 0,
            dropped: 0,
            tcp: Some(tcp),
        }
    }

    pub(in crate::commands::top) fn snapshot(
        at: f64,
        bytes: u64,
        drops: &[(&str, u64)],
    ) -> Snapshot {
        let device = [("rx_bytes".to_owned(), bytes), ("tx_bytes".to_owned(), 10 * bytes)];
        let link = LinkStats { device: device.into(), ..LinkStats::default() };
        let named = |(name, n): &(&str, u64)| ((*name).to_owned(), *n);
        let host = HostStats {
            drops: drops.iter().map(named).collect(),
            counters: [("tcp_passive_opens".to_owned(), bytes / 100)].into(),
            links: vec![link],
            ..HostStats::default()
        };
        let stats = Stats { uptime_seconds: at, hosts: vec![host], ..Stats::default() };
        Snapshot { stats, ..Snapshot::default() }
    }

    /// A snapshot of a process with a gateway.
    pub(in crate::commands::top) fn gateway(at: f64, flows: Vec<Flow>) -> Snapshot {
        let gateway = GatewaySnapshot { flows, refusals: Refusals::default() };
        Snapshot { gateway: Some(gateway), ..snapshot(at, 0, &[]) }
    }

    #[test]
    fn rates_are_differences_by_the_clock_of_the_process() {
        let mut model = Model::default();
        model.update(snapshot(10.0, 5000, &[("tcp_checksum", 7)]));
        assert_eq!((model.rates.received_bits, model.rates.opened), (0.0, 0.0));
        assert!(model.received.is_empty(), "one snapshot gives no rate");
        model.update(snapshot(12.0, 6000, &[("tcp_checksum", 7), ("no_route", 3)]));
        assert_eq!((model.rates.received_bits, model.rates.sent_bits), (4000.0, 40_000.0));
        assert_eq!(model.rates.opened, 5.0);
        let expected = [("no_route".to_owned(), 1.5, 3), ("tcp_checksum".to_owned(), 0.0, 7)];
        assert_eq!(model.rates.drops, expected, "what happens now is first");
        assert_eq!(model.sent, [40_000]);
    }

    #[test]
    fn a_connection_has_the_rates_of_its_ends_and_a_new_one_starts_from_nothing() {
        let mut model = Model::default();
        let with = |at, sockets| Snapshot { sockets, ..snapshot(at, 0, &[]) };
        model.update(with(1.0, vec![connection(1, 1000, 0)]));
        model.update(with(2.0, vec![connection(2, 300, 40), connection(1, 1500, 0)]));
        let rates: Vec<_> = model.rows.iter().map(|row| (row.sent, row.received)).collect();
        assert_eq!(rates, [(300.0, 40.0), (500.0, 0.0)]);
        // The same ends, but another connection.
        model.update(with(3.0, vec![connection(1, 10, 0)]));
        assert_eq!(model.rows[0].sent, 0.0);
    }

    #[test]
    fn a_flow_has_its_own_rates_and_a_new_one_starts_from_nothing() {
        let flow = |number, bytes| flow(number, "203.0.113.1:443", bytes);
        let mut model = Model::default();
        model.update(gateway(1.0, vec![flow(1, (1000, 5000))]));
        let rates = |model: &Model| -> Vec<_> {
            let rows = &model.gateway.as_ref().expect("a gateway").rows;
            rows.iter().map(|row| (row.flow.flow, row.bytes_out, row.bytes_in)).collect()
        };
        assert_eq!(rates(&model), [(1, 0.0, 0.0)], "one snapshot gives no rate");
        model.update(gateway(3.0, vec![flow(1, (1200, 9000)), flow(2, (60, 80))]));
        assert_eq!(rates(&model), [(1, 100.0, 2000.0), (2, 30.0, 40.0)]);
        model.update(gateway(4.0, vec![flow(2, (60, 81))]));
        assert_eq!(rates(&model), [(2, 0.0, 1.0)]);
    }

    #[test]
    fn a_process_without_a_gateway_has_no_flows() {
        let mut model = Model::default();
        model.update(gateway(1.0, Vec::new()));
        assert_eq!(model.gateway, Some(Gateway::default()));
        model.update(snapshot(2.0, 0, &[]));
        assert_eq!(model.gateway, None);
    }

    #[test]
    fn plots_reach_back_two_minutes_and_not_further() {
        let mut model = Model::default();
        for second in 0..500 {
            model.update(snapshot(f64::from(second), 0, &[]));
        }
        assert_eq!((model.received.len(), model.sent.len()), (HISTORY, HISTORY));
    }

    #[test]
    fn a_clock_that_does_not_advance_gives_no_rates() {
        let mut model = Model::default();
        model.update(snapshot(1.0, 0, &[]));
        model.update(snapshot(1.0, 100, &[]));
        assert_eq!(model.rates.received_bits, 0.0);
    }

    #[test]
    fn numbers_have_units() {
        for (n, text) in
            [(0.0, "0 "), (7.5, "7.50 "), (999.0, "999 "), (1234.0, "1.23 k"), (5.6e9, "5.60 G")]
        {
            assert_eq!(scaled(n), text);
        }
    }
}
