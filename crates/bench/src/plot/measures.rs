//! What the fields of each measurement's rows mean: what is measured, in which unit, and what only
//! says how. From rows and this, [`charts`] makes plots of everything that was measured.

use serde_json::Value as Json;

use super::{Bar, Better, Chart, Curve, Engine, Group, Kind, Row, Value};

/// A measurement, as its results are to be shown.
#[derive(Debug)]
pub(crate) struct Shown {
    /// The name on the command line.
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) about: &'static str,
    /// A chart of its own for each value of these.
    split: &'static [Label],
    /// Values are compared within a group, which has one value of these.
    group: &'static [Label],
    /// What distinguishes the lines of a group.
    line: &'static [Label],
    /// What curves go over, where there is more than one value of it.
    over: Option<(&'static str, &'static str)>,
    pub(crate) measures: &'static [Measure],
    /// Other numbers, which say how it was measured, or follow from what is shown.
    #[cfg_attr(not(test), expect(dead_code, reason = "a test counts them"))]
    pub(crate) settings: &'static [&'static str],
}

/// A field of a row, and how it reads: `{}` is its value.
#[derive(Debug)]
pub(crate) struct Label(&'static str, &'static str);

/// A field with what was measured.
#[derive(Debug)]
pub(crate) struct Measure {
    pub(crate) field: &'static str,
    pub(crate) title: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) better: Better,
}

const fn higher(field: &'static str, title: &'static str, unit: &'static str) -> Measure {
    Measure { field, title, unit, better: Better::Higher }
}

const fn lower(field: &'static str, title: &'static str, unit: &'static str) -> Measure {
    Measure { field, title, unit, better: Better::Lower }
}

const fn plain(field: &'static str, title: &'static str, unit: &'static str) -> Measure {
    Measure { field, title, unit, better: Better::Neither }
}

const RATE: Measure = higher("gbit_per_s", "Rate", "Gbit/s");
const COPIED: Measure =
    lower("payload_bytes_copied", "Payload that our stack copied", "bytes in a round");
const RECEIVER: Measure =
    lower("receiver_cpu_us_per_mib", "CPU time of the receiver", "µs for each MiB");
const SYSTEM: Measure =
    lower("system_cpu_us_per_mib", "CPU time of both stacks", "µs for each MiB");

/// What measurements of small requests have in common. Each has one of the two rates.
const OF_REQUESTS: Shown = Shown {
    name: "",
    title: "",
    about: "",
    split: &[],
    group: &[],
    line: &[Label("peer", "clients: {}")],
    over: None,
    measures: &[
        higher("requests_per_s", "Requests", "a second"),
        higher("connections_per_s", "Connections", "a second"),
        lower("p50_us", "Time of a request, median", "µs"),
        lower("p99_us", "Time of a request, 99th percentile", "µs"),
        lower("server_cpu_us_per_request", "CPU time of the server", "µs for each request"),
        lower("client_cpu_us_per_request", "CPU time of the clients", "µs for each request"),
        lower("server_sleeps_per_request", "How often the server sleeps", "for each request"),
        lower("client_sleeps_per_request", "How often the clients sleep", "for each request"),
        RATE,
    ],
    settings: &["connections", "size"],
};

/// Every measurement of the command.
pub(crate) const ALL: &[Shown] = &[
    Shown {
        name: "stream",
        title: "Bulk rate of one connection",
        about: "By reference from a buffer larger than any cache. A reader that sums touches every \
                byte; one that reads nothing shows the stacks' work alone.",
        split: &[],
        group: &[Label("reader", "reader: {}")],
        line: &[
            Label("direction", "{}"),
            Label("threads", "{} thread(s)"),
            Label("via", "through a {}"),
        ],
        over: None,
        measures: &[
            RATE,
            RECEIVER,
            lower("cpu_us_per_mib", "CPU time of both ends on one thread", "µs for each MiB"),
            COPIED,
        ],
        settings: &["threads", "mtu", "message"],
    },
    Shown {
        name: "send",
        title: "CPU time of a sender",
        about: "By copy, and by reference with completions, as in the source document of Linux's \
                MSG_ZEROCOPY, whose own figures stand beside the ratios.",
        split: &[],
        group: &[Label("size", "sends of {} bytes")],
        line: &[Label("mode", "{}")],
        over: Some(("size", "bytes of each send")),
        measures: &[
            lower("sender_cpu_us_per_mib", "CPU time of the sender", "µs for each MiB"),
            SYSTEM,
            lower("sender_percent_of_copy", "Sender, by reference", "% of by copy"),
            lower("system_percent_of_copy", "Both stacks, by reference", "% of by copy"),
            RATE,
            lower("sender_cycles_per_64k", "Cycles of the sender", "for 64 KiB"),
            plain("sends", "Sends", "in a round"),
            plain("completions", "Completions", "in a round"),
            lower("completed_copied", "Completions of copies", "in a round"),
            COPIED,
        ],
        settings: &["size", "mtu"],
    },
    Shown {
        name: "receive",
        title: "CPU time of a receiver",
        about: "Into a buffer (copy), as mapped pages (map), and by reference (chunks), beside the \
                kernel's read and TCP_ZEROCOPY_RECEIVE.",
        split: &[],
        group: &[Label("flows", "{} connection(s)")],
        line: &[Label("mode", "{}")],
        over: None,
        measures: &[
            RECEIVER,
            SYSTEM,
            RATE,
            higher("mapped_percent", "Received in mapped pages", "% of the bytes"),
            COPIED,
        ],
        settings: &["flows", "mtu"],
    },
    Shown {
        name: "ring",
        title: "Receiving through rings",
        about: "By copy and by reference. The kernel has no measurement beside this one.",
        split: &[],
        group: &[Label("transport", "{}")],
        line: &[Label("mode", "{}"), Label("memory", "memory {}")],
        over: None,
        measures: &[
            RATE,
            RECEIVER,
            plain("zc_bytes", "Received by reference", "bytes in a round"),
            plain("copy_bytes", "Received by copy", "bytes in a round"),
            COPIED,
            plain("device_bytes_copied", "Payload that the device wrote", "bytes in a round"),
            higher("datagrams", "Datagrams", "in a round"),
            lower("datagrams_dropped", "Datagrams without room", "in a round"),
        ],
        settings: &["total_bytes", "datagram_bytes", "region_mib", "mtu"],
    },
    Shown {
        name: "rr",
        title: "A message there and back",
        about: "Both sides poll. Wake-ups are those of a blocked reader, for batches of 256 KiB.",
        split: &[],
        group: &[Label("size", "{} bytes each way")],
        line: &[],
        over: None,
        measures: &[
            lower("rtt_us_p50", "Round trip, median", "µs"),
            lower("rtt_us_p99", "Round trip, 99th percentile", "µs"),
            RATE,
            lower("wakeups_per_batch", "Wake-ups of a blocked reader", "for each batch"),
            higher("least_round_trips", "Round trips of the slowest thread", "in a round"),
            higher("most_round_trips", "Round trips of the fastest thread", "in a round"),
            lower("longest_wait_us", "Longest wait of a thread", "µs"),
        ],
        settings: &["size", "threads"],
    },
    Shown {
        name: "idle",
        title: "Memory of an idle connection",
        about: "Growth of the process for each end, both ends in one process. It is measured once; \
                the kernel's is not measured.",
        split: &[],
        group: &[],
        line: &[Label("connections", "{} connections")],
        over: None,
        measures: &[
            lower("bytes_per_connection", "Memory of an end", "bytes"),
            lower("resident_bytes", "Memory of all", "bytes"),
            lower("seconds", "Time to open all", "s"),
        ],
        settings: &["connections", "ends", "gbit_per_s"],
    },
    Shown {
        name: "port",
        title: "Small frames of a virtual machine",
        about: "Frames a second of one core, from a port into the stack, beside writes to a tap of \
                the kernel.",
        split: &[],
        group: &[Label("frame", "frames of {} bytes")],
        line: &[Label("path", "{}")],
        over: Some(("frame", "bytes of a frame")),
        measures: &[
            higher("mpps", "Frames of one core", "million a second"),
            RATE,
            higher("to_accounted", "Ratio to the usual way, with a charge each", "times"),
            higher("to_kernel_tap", "Ratio to the kernel's tap", "times"),
        ],
        settings: &["frame", "frames"],
    },
    Shown {
        name: "requests",
        title: "Small requests over connections that stay",
        about: "The same tokio programs on both engines, one thread for the server and one for the \
                clients.",
        group: &[Label("connections", "{} connection(s)")],
        over: Some(("connections", "connections")),
        ..OF_REQUESTS
    },
    Shown {
        name: "connections",
        title: "Connect, one request, close",
        about: "The same tokio programs on both engines. The server closes first.",
        group: &[Label("connections", "{} client(s) side by side")],
        over: Some(("connections", "clients side by side")),
        ..OF_REQUESTS
    },
    Shown {
        name: "crowd",
        title: "Many clients at once",
        about: "Each moves some bytes and has them echoed. Drops, retransmissions and memory are of \
                both sides.",
        split: &[],
        group: &[Label("connections", "{} clients")],
        line: &[Label("peer", "clients: {}")],
        over: None,
        measures: &[
            lower("seconds", "Time until all is echoed", "s"),
            RATE,
            lower("drops_for_memory", "Drops for want of memory", "packets in a round"),
            lower("retransmissions", "Retransmissions", "packets in a round"),
            lower("peak_memory_bytes", "Most memory, process and kernel", "bytes"),
            lower("peak_process_bytes", "Most memory of the process", "bytes"),
            lower("peak_kernel_bytes", "Most memory of the kernel's sockets", "bytes"),
            lower("server_cpu_us_per_mib", "CPU time of the server", "µs for each MiB"),
            lower("client_cpu_us_per_mib", "CPU time of the clients", "µs for each MiB"),
        ],
        settings: &["connections", "not_reading", "size"],
    },
    Shown {
        name: "gateway",
        title: "A guest's network through a gateway",
        about: "Each gateway with a guest of its own, all in one run. veth is the kernel's own \
                forwarding, loopback no way at all.",
        split: &[],
        group: &[
            Label("mtu", "MTU {}"),
            Label("direction", "{} of the guest"),
            Label("flows", "{} connection(s)"),
        ],
        line: &[],
        over: None,
        measures: &[
            RATE,
            lower("cpu_s_per_gib", "CPU time of the gateway", "s for each GiB"),
            higher("connections_per_s", "Connections", "a second"),
            higher("requests_per_s", "Requests", "a second"),
            lower("rtt_us_p50", "Round trip over TCP, median", "µs"),
            lower("udp_rtt_us_p50", "Round trip over UDP, median", "µs"),
            lower("rss_bytes", "Memory at the start", "bytes"),
            lower("rss_bytes_1000_idle", "Memory with 1,000 idle connections", "bytes"),
        ],
        settings: &["mtu", "flows"],
    },
    Shown {
        name: "sim",
        title: "Simulated programs",
        about: "The same programs on both simulators. With turmoil a message is one event; here it is \
                packets and acknowledgements of a real TCP.",
        split: &[],
        group: &[
            Label("scenario", "{}"),
            Label("hosts", "{} hosts"),
            Label("connections", "{} connections"),
        ],
        line: &[],
        over: None,
        measures: &[
            higher("simulated_s_per_s", "Simulated time", "s in a second"),
            higher("messages_per_s", "Messages", "a second"),
            higher("events_per_s", "Events", "a second"),
            lower("rss_bytes", "Memory of the process", "bytes"),
            lower("wall_s", "Time of a round", "s"),
            plain("events", "Events of a round", "events"),
            RATE,
        ],
        settings: &["hosts", "connections", "latency_ms", "seed", "simulated_s"],
    },
    Shown {
        name: "path",
        title: "Goodput over bad paths",
        about: "To and from the kernel, beside kernel to kernel over the same losses.",
        split: &[Label("delay_ms", "{} ms each way")],
        group: &[Label("loss_percent", "{} % lost"), Label("flows", "{} connection(s)")],
        line: &[Label("direction", "{}")],
        over: None,
        measures: &[
            higher("mbit_per_s", "Goodput", "Mbit/s"),
            higher("ratio", "Ratio to kernel to kernel", "times"),
        ],
        settings: &["loss_percent", "delay_ms", "flows", "gbit_per_s"],
    },
    Shown {
        name: "share",
        title: "A shared bottleneck",
        about: "Flows of both sides meet in one queue. A half each is fair.",
        split: &[],
        group: &[Label("flows", "{} flow(s) of each side"), Label("bottleneck", "{}")],
        line: &[],
        over: None,
        measures: &[
            plain("share_percent", "Share of what arrived", "%"),
            higher("mbit_per_s", "Goodput", "Mbit/s"),
            plain("of_rate_percent", "Part of the bottleneck", "%"),
        ],
        settings: &["flows", "gbit_per_s"],
    },
];

/// How the measurement of this name is shown.
pub(crate) fn shown(name: &str) -> Option<&'static Shown> {
    ALL.iter().find(|shown| shown.name == name)
}

/// A chart for each measured quantity that the rows have.
pub(crate) fn charts(name: &str, rows: &[Row]) -> Vec<Chart> {
    let Some(shown) = shown(name) else { return Vec::new() };
    let mut parts: Vec<(String, Vec<&Row>)> = Vec::new();
    for row in rows {
        sort_into(&mut parts, labels(shown.split, row), row);
    }
    let mut all = Vec::new();
    for (part, rows) in &parts {
        for measure in shown.measures {
            all.extend(shown.chart(measure, part, rows));
        }
    }
    all
}

fn sort_into<K: PartialEq, T>(groups: &mut Vec<(K, Vec<T>)>, key: K, value: T) {
    match groups.iter_mut().find(|(other, _)| *other == key) {
        Some((_, values)) => values.push(value),
        None => groups.push((key, vec![value])),
    }
}

/// What a curve is called, and whose it is.
type Line = (String, Engine);
/// The points of a curve.
type Points = Vec<(f64, Value)>;

impl Shown {
    fn chart(&self, measure: &Measure, part: &str, rows: &[&Row]) -> Option<Chart> {
        let references = references(self.name, measure.field, rows);
        let rows = || rows.iter().copied().chain(&references);
        let valued = || rows().filter_map(|row| Some((row, measure.value(row)?)));
        let kind = match self.over.filter(|(x, _)| is_various(rows(), x)) {
            Some((x, title)) => {
                let mut curves: Vec<(Line, Points)> = Vec::new();
                for (row, value) in valued() {
                    let Some(at) = row.get(x).and_then(Json::as_f64) else { continue };
                    sort_into(&mut curves, (self.line(row), engine(row)), (at, value));
                }
                let curve = |((label, engine), mut points): (Line, Points)| {
                    points.sort_by(|a, b| a.0.total_cmp(&b.0));
                    Curve { label, engine, points }
                };
                Kind::Curves { x: title, curves: curves.into_iter().map(curve).collect() }
            }
            None => {
                let mut groups: Vec<(String, Vec<Bar>)> = Vec::new();
                for (row, value) in valued() {
                    let bar = Bar { label: self.line(row), engine: engine(row), value };
                    sort_into(&mut groups, labels(self.group, row), bar);
                }
                let group = |(title, bars)| Group { title, bars };
                Kind::Rows(groups.into_iter().map(group).collect())
            }
        };
        let title = match part {
            "" => measure.title.to_owned(),
            part => format!("{}, {part}", measure.title),
        };
        let is_empty = valued().next().is_none();
        let Measure { unit, better, .. } = *measure;
        (!is_empty).then_some(Chart { title, unit, better, kind })
    }

    /// The engine, its link, and what else distinguishes the row.
    fn line(&self, row: &Row) -> String {
        let text = |field: &str| row.get(field).and_then(Json::as_str);
        let mut line = text("engine").unwrap_or("?").to_owned();
        if let Some(link) = text("link").filter(|link| !link.is_empty()) {
            line = format!("{line} over {link}");
        }
        match labels(self.line, row) {
            more if more.is_empty() => line,
            more => format!("{line}, {more}"),
        }
    }
}

impl Measure {
    /// The median, and the spread: from fields of their own, or from the field `spread`.
    pub(crate) fn value(&self, row: &Row) -> Option<Value> {
        let median = row.get(self.field)?.as_f64()?;
        let field = |which: &str| row.get(&format!("{which}_{}", self.field))?.as_f64();
        let of_spread = || {
            let both = row.get("spread")?.get(self.field)?;
            Some((both.get(0)?.as_f64()?, both.get(1)?.as_f64()?))
        };
        let spread = field("min").zip(field("max")).or_else(of_spread);
        Some(Value { median, spread })
    }
}

fn engine(row: &Row) -> Engine {
    Engine::named(row.get("engine").and_then(Json::as_str).unwrap_or_default())
}

fn is_various<'a>(mut rows: impl Iterator<Item = &'a Row>, field: &str) -> bool {
    let Some(first) = rows.next() else { return false };
    rows.any(|row| row.get(field) != first.get(field))
}

/// Those that the row has, with commas between.
fn labels(labels: &[Label], row: &Row) -> String {
    let text = |Label(field, form): &Label| {
        let value = match row.get(*field)? {
            Json::String(text) => text.clone(),
            Json::Number(n) if *field == "size" => super::size_name(n.as_f64()?),
            Json::Number(n) => n.as_f64().map_or_else(|| n.to_string(), |n| n.to_string()),
            other => other.to_string(),
        };
        let form = if value == "1" { form.replace("(s)", "") } else { form.replace("(s)", "s") };
        Some(form.replace("{}", &value.replace("zerocopy", "zero copy")))
    };
    let all: Vec<String> = labels.iter().filter_map(text).collect();
    all.join(", ")
}

/// Rows that were not measured here: the figures of MSG_ZEROCOPY's source document, beside ratios.
fn references(name: &str, field: &str, rows: &[&Row]) -> Vec<Row> {
    if name != "send" || !field.ends_with("_percent_of_copy") {
        return Vec::new();
    }
    let measured = |size: usize| rows.iter().any(|row| row.get("size") == Some(&size.into()));
    let known = crate::send::SOURCE_DOCUMENT.iter().filter(|(size, ..)| measured(*size));
    let row = |(size, sender, system): &(usize, u32, u32)| {
        let mut row = Row::new();
        row.insert("engine".into(), "source document of MSG_ZEROCOPY".into());
        row.insert("size".into(), (*size).into());
        row.insert("sender_percent_of_copy".into(), (*sender).into());
        row.insert("system_percent_of_copy".into(), (*system).into());
        row
    };
    known.map(row).collect()
}
