//! `pagewire proxy`: connections to one address forwarded to another, by reference.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pagewire::proxy::{ForwardConfig, ForwardCounters, Proxy, Refusal};
use pagewire::{BindOptions, Cores, CoresListener, KeepAlive};

use crate::args::ProxyOptions;
use crate::failure::{Failure, reason, say};
use crate::limits::{MAX_REFUSAL_LINES, PROXY_CHECK_TIME, REFUSAL_LINES_TIME, SHUTDOWN_TIME};
use crate::net;
use crate::view::{self, Printed, ViewSockets};

/// Runs until an interrupt.
pub(crate) fn run(options: &ProxyOptions) -> Result<(), Failure> {
    check(options)?;
    let asked = ViewSockets::new(&options.net.view)?;
    // Each core forwards one connection at least.
    let (connections, wanted) = (options.connections as usize, options.cores.cores);
    let cores = wanted.min(connections);
    let mut opened = net::open(&options.net, cores, Some(options.memory), None)?;
    let config = ForwardConfig {
        connections,
        connect_timeout: Duration::from_secs(options.connect_timeout.into()),
        idle_timeout: (options.idle_timeout > 0)
            .then(|| Duration::from_secs(options.idle_timeout.into())),
        keepalive: (options.keepalive > 0).then(|| {
            let (idle, usual) =
                (Duration::from_secs(options.keepalive.into()), KeepAlive::default());
            // The proxy probes again soon.
            KeepAlive { idle, interval: idle.min(usual.interval), ..usual }
        }),
        ..ForwardConfig::default()
    };
    let proxies = Proxies::new(&opened.host, &config);
    let counted = proxies.clone();
    let counts = move || counted.counters().iter().collect();
    let shown = opened.report.shown(&options.net).section("proxy", counts);
    let control = asked.start(shown)?;
    let (report, counted) = (opened.report.clone(), proxies.clone());
    let printed = Printed::new(options.net.stats, &control, move || stats(&report, &counted));
    let stop = printed.watch()?;
    let bind = BindOptions::new().backlog(options.backlog as usize);
    let listen = |on: &SocketAddr| {
        let failed =
            |e: io::Error| Failure::because(format!("--listen {on}"), why_not_listening(&e));
        let listener = opened.host.listen_with(*on, &bind).map_err(failed)?;
        proxies.forward(&listener, options.to).map_err(failed)
    };
    // Prints no address before all of them work.
    for on in options.listen.iter().map(listen).collect::<Result<Vec<_>, _>>()? {
        say(format_args!("forwarding {on} to {}", options.to));
    }

    if cores < wanted {
        crate::failure::complain!(
            "pagewire: {cores} of {wanted} cores forward: --connections is {connections}"
        );
    }
    opened.warn(&options.net);
    let mut refusals = RefusalLog::new(Instant::now());
    let mut end = Ok(());
    while !stop.is_set() && end.is_ok() {
        std::thread::park_timeout(PROXY_CHECK_TIME);
        end = opened.check_device(&options.net);
        refusals.print(Instant::now(), proxies.refusals());
    }
    if end.is_ok() {
        proxies.drain();
    }
    opened.end(&options.net);
    refusals.print(Instant::now(), proxies.refusals());
    printed.at_end();
    end
}

fn why_not_listening(error: &std::io::Error) -> String {
    let hint = match error.kind() {
        std::io::ErrorKind::AddrInUse => "; choose another port",
        std::io::ErrorKind::AddrNotAvailable => "; give one of --addr",
        _ => "",
    };
    reason(error) + hint
}

/// Mistakes that would otherwise show only when a client comes.
fn check(options: &ProxyOptions) -> Result<(), Failure> {
    for (i, on) in options.listen.iter().enumerate() {
        if options.listen.iter().skip(i + 1).any(|other| other == on) {
            return Err(Failure::misused(format!("--listen {on}"), "it is given twice"));
        }
    }
    let to = options.to;
    let failed = |why: &str| Err(Failure::misused(format!("--to {to}"), why));
    if to.port() == 0 || to.ip().is_unspecified() || to.ip().is_multicast() {
        return failed("give the address and port of a server, such as 10.77.0.1:8000");
    }
    match net::way_to(&options.net, to.ip())? {
        net::RouteKind::Ourselves => {
            failed("this is our own address, where only the proxy listens; give the server's")
        }
        net::RouteKind::None => {
            failed("it is in no network of --addr: give the router that leads there with --gateway")
        }
        net::RouteKind::Link | net::RouteKind::Gateway => Ok(()),
    }
}

/// The proxy of each core. Clones are the same proxies.
#[derive(Clone)]
struct Proxies(Arc<[Proxy]>);

impl Proxies {
    /// The proxies of a host, with these settings of all together.
    fn new(host: &Cores, config: &ForwardConfig) -> Self {
        let shards = host.shards();
        let parts = parts(config.connections, shards.len());
        let proxy =
            |(shard, connections)| Proxy::new(shard, ForwardConfig { connections, ..*config });
        Self(shards.iter().zip(parts).map(proxy).collect())
    }

    /// Forwards the connections of the listener of each core. Returns the address at which all listen.
    fn forward(&self, listener: &CoresListener, to: SocketAddr) -> io::Result<SocketAddr> {
        for (proxy, listener) in self.0.iter().zip(listener.shards()) {
            proxy.forward(listener.clone(), to)?;
        }
        listener.local_addr()
    }

    /// Connections that are being forwarded.
    fn len(&self) -> usize {
        self.0.iter().map(Proxy::len).sum()
    }

    /// The counts of all cores together.
    fn counters(&self) -> ForwardCounters {
        let mut all = ForwardCounters::default();
        self.0.iter().for_each(|proxy| all.add(&proxy.counters()));
        all
    }

    /// The refused clients that were not reported yet.
    fn refusals(&self) -> impl Iterator<Item = Refusal> {
        self.0.iter().flat_map(|proxy| std::iter::from_fn(|| proxy.poll_refusal()))
    }

    /// Accepts no more connections, and lets the others go on for a while.
    fn drain(&self) {
        self.0.iter().for_each(Proxy::stop_listening);
        let deadline = Instant::now() + SHUTDOWN_TIME;
        while self.len() > 0 && Instant::now() < deadline {
            std::thread::park_timeout(Duration::from_millis(5));
        }
        self.0.iter().for_each(Proxy::abort_all);
    }
}

/// The parts of `count` cores, as equal as can be.
fn parts(all: usize, count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |index| all / count + usize::from(index < all % count))
}

fn stats(report: &net::Report, proxies: &Proxies) -> String {
    let connections = ("connections", proxies.len() as u64);
    let counts = std::iter::once(connections).chain(proxies.counters().iter());
    format!("{}{report}", view::part("proxy", counts))
}

/// A line on standard error for each refusal, up to a limit within a time; the rest is counted.
struct RefusalLog {
    since: Instant,
    printed: u32,
    left_out: u64,
}

impl RefusalLog {
    fn new(now: Instant) -> Self {
        Self { since: now, printed: 0, left_out: 0 }
    }

    fn print(&mut self, now: Instant, refusals: impl Iterator<Item = Refusal>) {
        for line in self.take(now, refusals) {
            crate::failure::complain!("pagewire: {line}");
        }
    }

    fn take(&mut self, now: Instant, refusals: impl Iterator<Item = Refusal>) -> Vec<String> {
        let mut lines = Vec::new();
        if now.saturating_duration_since(self.since) >= REFUSAL_LINES_TIME {
            if self.left_out > 0 {
                lines.push(format!("{} more clients were turned away", self.left_out));
            }
            *self = Self::new(now);
        }
        for refusal in refusals {
            if self.printed < MAX_REFUSAL_LINES {
                self.printed += 1;
                lines.push(line(&refusal));
            } else {
                self.left_out += 1;
            }
        }
        lines
    }
}

fn line(refusal: &Refusal) -> String {
    let Refusal { client, upstream, error } = refusal;
    format!("no connection to {upstream} for {client}, which was reset: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagewire::services::Error;

    #[test]
    fn the_parts_of_the_cores_are_nearly_equal_and_no_more_than_all() {
        for (all, expected) in [(4, [1, 1, 1, 1]), (7, [2, 2, 2, 1]), (10_000, [2500; 4])] {
            assert!(parts(all, 4).eq(expected), "{all}");
        }
    }

    #[test]
    fn each_refusal_is_a_line_and_a_flood_of_them_is_a_number() {
        let refusal = Refusal {
            client: "10.77.0.1:4000".parse().expect("an address"),
            upstream: "[fd77::1]:80".parse().expect("an address"),
            error: Error::ConnectionRefused,
        };
        let start = Instant::now();
        let mut lines = RefusalLog::new(start);
        assert_eq!(
            lines.take(start, [refusal].into_iter()),
            [
                "no connection to [fd77::1]:80 for 10.77.0.1:4000, which was reset: connection refused"
            ]
        );
        let flood = std::iter::repeat_n(refusal, 100);
        assert_eq!(lines.take(start, flood).len(), MAX_REFUSAL_LINES as usize - 1);
        let later = start + REFUSAL_LINES_TIME;
        let left_out = 101 - MAX_REFUSAL_LINES;
        assert_eq!(
            lines.take(later, [refusal].into_iter())[0],
            format!("{left_out} more clients were turned away")
        );
    }
}
