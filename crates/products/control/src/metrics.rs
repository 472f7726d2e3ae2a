//! Counters as metrics, through the facade of the crate `metrics`.
//!
//! Names follow Prometheus's conventions: `pagewire_`, the thing, its unit, and `_total` for what only
//! grows. Each has the label `host`, and of a host of several cores the label `core`: a query sums over the cores.
//!
//! | metric | labels | |
//! |---|---|---|
//! | `pagewire_tcp_connections` and other sockets | | gauges: sockets that exist now |
//! | `pagewire_device_receive_bytes_total`, `…_frames_total`, `transmit` | `link` | what devices carried |
//! | `pagewire_device_receive_payload_bytes_total`, `…_aligned_bytes_total`, `…_mispredicted_total` | `link` | how payload came |
//! | `pagewire_device_system_calls_total` | `link` | calls to send and to receive |
//! | `pagewire_device_dropped_frames_total` | `link`, `reason` | frames that a device lost |
//! | `pagewire_dropped_packets_total` | `reason` | packets and segments that the stack dropped |
//! | `pagewire_copied_bytes_total` | `reason` | payload copied |
//! | `pagewire_NAME_total` | | every counter of the stack, as `--stats` names it |
//! | `pagewire_PART_NAME_total` | | counts of a part of the program, as of its server |
//! | `pagewire_PART_most_NAME` | | gauges: the most at a time so far |

use metrics::{Key, KeyName, Label, Level, Metadata, Recorder, SharedString, Unit};
use pagewire::{Cores, Host};

use crate::protocol::{HostStats, LinkStats, Stats};
use crate::snapshot::{cores_stats, host_stats};

/// Gives a recorder a host's counters: call it as often as they are wanted.
///
/// ```
/// # use pagewire::{Host, Pair};
/// # let (left, _right) = Pair::new()?;
/// # let host = Host::builder().device(left).address("10.0.0.1/24").start()?;
/// // With the recorder that the program has installed.
/// metrics::with_recorder(|recorder| pagewire_control::metrics::record_host(recorder, "main", &host));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn record_host(recorder: &dyn Recorder, name: &str, host: &Host) {
    host_metrics(&Sink(recorder), &host_stats(name, host));
}

/// Gives a recorder the counters of each core of a host, as [`record_host`].
pub fn record_cores(recorder: &dyn Recorder, name: &str, cores: &Cores) {
    cores_stats(name, cores).iter().for_each(|stats| host_metrics(&Sink(recorder), stats));
}

/// Gives a recorder the counters of all hosts and parts of a program.
pub fn record(recorder: &dyn Recorder, stats: &Stats) {
    let sink = Sink(recorder);
    for host in &stats.hosts {
        host_metrics(&sink, host);
    }
    for (part, counts) in &stats.sections {
        for (name, n) in counts {
            if name.starts_with(MAXIMUM) {
                let name = format!("pagewire_{part}_{name}");
                let about = "The most so far.";
                sink.gauge(&name, Vec::new(), *n as f64, Unit::Count, about);
                continue;
            }
            let about = format!("Counted by the {part}: {}.", name.replace('_', " "));
            sink.counter(
                &format!("pagewire_{part}_{name}_total"),
                Vec::new(),
                *n,
                unit_of(name),
                about,
            );
        }
    }
    let memory = stats.memory.iter().flat_map(|memory| {
        [
            ("anonymous", memory.anonymous_bytes),
            ("file", memory.file_bytes),
            ("shared", memory.shared_bytes),
        ]
    });
    for (kind, bytes) in memory {
        let about = "Memory of the process: private, of mapped files, shared.";
        let labels = vec![Label::new("kind", kind)];
        sink.gauge("pagewire_process_memory_bytes", labels, bytes as f64, Unit::Bytes, about);
    }
    let about = "Time since the process began to answer.";
    sink.gauge("pagewire_uptime_seconds", Vec::new(), stats.uptime_seconds, Unit::Seconds, about);
    let version = vec![Label::new("version", stats.pagewire.clone())];
    sink.gauge("pagewire_build_info", version, 1.0, Unit::Count, "The version of Pagewire.");
}

/// Prometheus's text format.
///
/// # Errors
/// The text cannot be made.
#[cfg(feature = "prometheus")]
pub fn render(stats: &Stats) -> Result<String, String> {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    record(&recorder, stats);
    Ok(recorder.handle().render())
}

/// The prefix of names of counts that are no sums: [`Builder::section`](crate::Builder::section).
const MAXIMUM: &str = "most_";

/// The metrics of a host, of each core by itself if there are several.
fn host_metrics(sink: &Sink<'_>, host: &HostStats) {
    let of_host = Label::new("host", host.name.clone());
    if host.cores.is_empty() {
        return stack_metrics(sink, &[of_host], host);
    }
    for (index, core) in host.cores.iter().enumerate() {
        stack_metrics(sink, &[of_host.clone(), Label::new("core", index.to_string())], core);
    }
}

/// The metrics of one stack, which has these labels.
fn stack_metrics(sink: &Sink<'_>, labels: &[Label], host: &HostStats) {
    let labels = || labels.to_vec();
    let sockets = &host.sockets;
    for (name, n, about) in [
        ("tcp_connections", sockets.connections, "TCP connections, except those in TIME-WAIT."),
        ("tcp_time_wait_connections", sockets.time_wait, "Closed TCP connections in TIME-WAIT."),
        ("tcp_listeners", sockets.listeners, "TCP listeners."),
        ("udp_sockets", sockets.datagrams, "Datagram sockets."),
    ] {
        sink.gauge(&format!("pagewire_{name}"), labels(), n as f64, Unit::Count, about);
    }
    let (bytes, about) = (host.receive_memory_bytes as f64, "Memory that unread data holds.");
    sink.gauge("pagewire_receive_memory_bytes", labels(), bytes, Unit::Bytes, about);
    let failed = f64::from(u8::from(host.failed.is_some()));
    let about = "1 if the host has failed because of a bug.";
    sink.gauge("pagewire_host_failed", labels(), failed, Unit::Count, about);
    for (name, n) in &host.counters {
        let about = format!("Counted by the stack: {}.", name.replace('_', " "));
        sink.counter(&format!("pagewire_{name}_total"), labels(), *n, unit_of(name), about);
    }
    for (reason, n) in &host.drops {
        let labels = with(labels(), "reason", reason);
        let about = "Packets and segments that the stack dropped.".to_owned();
        sink.counter("pagewire_dropped_packets_total", labels, *n, Unit::Count, about);
    }
    for (reason, n) in &host.copies {
        let labels = with(labels(), "reason", reason);
        let about =
            "Payload copied; device_ and socket_ are copies that the kernel made.".to_owned();
        sink.counter("pagewire_copied_bytes_total", labels, *n, Unit::Bytes, about);
    }
    for link in &host.links {
        device_metrics(sink, &with(labels(), "link", &link.name), link);
    }
}

/// Labels with one more.
fn with(mut labels: Vec<Label>, name: &'static str, value: &str) -> Vec<Label> {
    labels.push(Label::new(name, value.to_owned()));
    labels
}

/// The metrics of the device of a link, which has these labels.
fn device_metrics(sink: &Sink<'_>, labels: &[Label], link: &LinkStats) {
    let labels = || labels.to_vec();
    let failed = f64::from(u8::from(link.error.is_some()));
    let about = "1 if the device of the link has failed.";
    sink.gauge("pagewire_device_failed", labels(), failed, Unit::Count, about);
    for (name, n) in &link.device {
        if name.contains("dropped") {
            let labels = with(labels(), "reason", name);
            let about = "Frames that the device lost.".to_owned();
            let name = "pagewire_device_dropped_frames_total";
            sink.counter(name, labels, *n, Unit::Count, about);
            continue;
        }
        let name = in_words(name);
        let about = format!("Counted by the device: {}.", name.replace('_', " "));
        let metric = format!("pagewire_device_{name}_total");
        sink.counter(&metric, labels(), *n, unit_of(&name), about);
    }
}

/// The name of a device's counter, without abbreviations.
fn in_words(name: &str) -> String {
    let (direction, rest) = name.split_once('_').unwrap_or(("", name));
    match direction {
        "rx" => format!("receive_{rest}"),
        "tx" => format!("transmit_{rest}"),
        _ => name.replace("syscalls", "system_calls"),
    }
}

fn unit_of(name: &str) -> Unit {
    if name.contains("bytes") { Unit::Bytes } else { Unit::Count }
}

struct Sink<'a>(&'a dyn Recorder);

const METADATA: Metadata<'static> =
    Metadata::new(env!("CARGO_PKG_NAME"), Level::INFO, Some(module_path!()));

impl Sink<'_> {
    fn counter(&self, name: &str, labels: Vec<Label>, n: u64, unit: Unit, about: String) {
        let about = SharedString::from(about);
        self.0.describe_counter(KeyName::from(name.to_owned()), Some(unit), about);
        let key = Key::from_parts(name.to_owned(), labels);
        self.0.register_counter(&key, &METADATA).absolute(n);
    }

    fn gauge(&self, name: &str, labels: Vec<Label>, n: f64, unit: Unit, about: &'static str) {
        let about = SharedString::from(about);
        self.0.describe_gauge(KeyName::from(name.to_owned()), Some(unit), about);
        let key = Key::from_parts(name.to_owned(), labels);
        self.0.register_gauge(&key, &METADATA).set(n);
    }
}
