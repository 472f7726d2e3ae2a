//! `bench requests`: small requests and answers over connections that stay. `bench connections`: connect, one
//! request, close.
//!
//! Each client has one request under way, and sends the next when the answer is there. Of connections that do
//! not stay, the server closes first, as one does that says `Connection: close`, so TIME-WAIT is the server's.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use clap::Args;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::network::{Listener, Network, connect};
use super::peer;
use super::runner::{LoadRunner, Programs, RunnerOptions};
use super::usage::{SideThreads, SidesUsage, raise_descriptor_limit};
use crate::args::{Common, Link, Options, Plan, Time};
use crate::failure::{Because, Failure};
use crate::kit::engine::Engine;
use crate::kit::machine::SPREAD;
use crate::kit::meter::{Round, Spread, WARM_UP, percentile};
use crate::progress::Progress;
use crate::table::{Field, InTurns, Measurement, ResultLine, Results, in_turns, records, some};

/// Arguments of both measurements of requests.
#[derive(Clone, Debug, Args)]
struct RequestOptions {
    /// Bytes of a request, and of an answer
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=65536), value_name = "BYTES")]
    size: u32,

    #[command(flatten)]
    runner: RunnerOptions,

    #[command(flatten)]
    time: Time,

    #[command(flatten)]
    common: Common,
}

/// Small requests and answers over connections that stay
///
/// The server and the clients are one thread each, tokio programs that are the same for both
/// engines. Over a tap (root) the clients are the kernel's, as they are over veth beside it.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = REQUESTS_EXAMPLES)]
pub(crate) struct RequestsOptions {
    /// Kind of link; over a tap the clients are kernel sockets (root)
    #[arg(long, value_enum, default_value_t = Link::Pair, value_name = "KIND")]
    link: Link,

    /// Connections, each with one request under way; several numbers with commas
    #[arg(long, value_delimiter = ',', default_value = "1,64,1000", value_parser = clap::value_parser!(u32).range(1..=20_000), value_name = "N")]
    connections: Vec<u32>,

    #[command(flatten)]
    more: RequestOptions,
}

const REQUESTS_EXAMPLES: &str = "\
Examples:
  pagewire bench requests
      128 bytes each way over the pair link, beside kernel loopback
  pagewire bench requests --link tap --connections 1,64,1000 --json
      from clients of the kernel over a tap, beside veth; root
  pagewire bench requests --link tap --pin
      the server's side on one processor, the clients' on another";

/// Connect, one request, close
///
/// The programs are as those of `bench requests`; the server closes first.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = CONNECTIONS_EXAMPLES)]
pub(crate) struct ConnectionsOptions {
    /// Kind of link; over a tap the clients are kernel sockets (root)
    #[arg(long, value_enum, default_value_t = Link::Pair, value_name = "KIND")]
    link: Link,

    /// Clients side by side, each with one connection at a time; several numbers with commas
    #[arg(long, value_delimiter = ',', default_value = "64", value_parser = clap::value_parser!(u32).range(1..=10_000), value_name = "N")]
    connections: Vec<u32>,

    #[command(flatten)]
    more: RequestOptions,
}

const CONNECTIONS_EXAMPLES: &str = "\
Examples:
  pagewire bench connections
      64 clients side by side over the pair link, beside kernel loopback
  pagewire bench connections --link tap --connections 1,64
      from clients of the kernel over a tap, beside veth; root";

impl Options for RequestsOptions {
    fn plan(&self) -> Plan {
        Plan::of::<RequestsBench<true>>(self.link == Link::Tap, self.more.common.stats)
    }

    fn run(&self, progress: &Progress) -> Result<Results, Failure> {
        let columns = "engine link peer connections size requests_per_s min_requests_per_s \
            max_requests_per_s p50_us p99_us server_cpu_us_per_request client_cpu_us_per_request \
            server_sleeps_per_request client_sleeps_per_request";
        RequestsBench::<true>::run(self.link, &self.connections, &self.more, columns, progress)
    }
}

impl Options for ConnectionsOptions {
    fn plan(&self) -> Plan {
        Plan::of::<RequestsBench<false>>(self.link == Link::Tap, self.more.common.stats)
    }

    fn run(&self, progress: &Progress) -> Result<Results, Failure> {
        let columns = "engine link peer connections size connections_per_s min_connections_per_s \
            max_connections_per_s p50_us p99_us server_cpu_us_per_request \
            client_cpu_us_per_request";
        RequestsBench::<false>::run(self.link, &self.connections, &self.more, columns, progress)
    }
}

/// A measurement of requests, over connections that stay or not.
struct RequestsBench<const STAY: bool> {
    options: RequestOptions,
    runner: LoadRunner,
}

/// An engine, and how many connections it has.
#[derive(Clone, Copy, Debug)]
struct RequestsCase {
    engine: Engine,
    connections: u32,
}

impl<const STAY: bool> RequestsBench<STAY> {
    /// Measures every engine with every number of connections, engines side by side.
    fn run(
        link: Link,
        connections: &[u32],
        options: &RequestOptions,
        columns: &str,
        progress: &Progress,
    ) -> Result<Results, Failure> {
        raise_descriptor_limit();
        let engines = Engine::on(link, None);
        let runner = LoadRunner::new(options.runner, options.common.stats);
        let bench = Self { options: options.clone(), runner };
        let case = |connections| engines.map(|engine| RequestsCase { engine, connections });
        let cases = connections.iter().copied().flat_map(case);
        let lines = in_turns(&bench, cases, options.common.rounds, progress)?;
        let heading = options.common.heading(options.time.seconds, SPREAD);
        Ok(Results::print(records(&bench, &lines), options.common.json, heading, columns))
    }
}

const US: &str = "µs for each request";

type F<const STAY: bool> = Field<RequestsBench<STAY>>;

impl<const STAY: bool> Measurement for RequestsBench<STAY> {
    type Case = RequestsCase;
    type Sample = RequestsSample;

    const NAME: &'static str = if STAY { "requests" } else { "connections" };
    const TITLE: &'static str = if STAY {
        "Small requests over connections that stay"
    } else {
        "Connect, one request, close"
    };
    const ABOUT: &'static str = if STAY {
        "The same tokio programs on both engines, one thread for the server and one for the clients."
    } else {
        "The same tokio programs on both engines. The server closes first."
    };
    const FIELDS: &'static [Field<Self>] = &[
        F::<STAY>::value("peer", |of| some(peer(of.case.engine))).part("clients: {}"),
        F::<STAY>::value("connections", |of| some(of.case.connections))
            .group(if STAY { "{} connection(s)" } else { "{} client(s) side by side" })
            .over(if STAY { "connections" } else { "clients side by side" }),
        F::<STAY>::value("size", |of| some(of.bench.options.size)),
        F::<STAY>::bounded(if STAY { "requests_per_s" } else { "connections_per_s" }, 1, |of| {
            of.spread(RequestsSample::per_second)
        })
        .higher(if STAY { "Requests" } else { "Connections" }, "a second")
        .first(),
        F::<STAY>::spread("p50_us", 3, |of| of.us(|s| s.p50.as_secs_f64()))
            .lower("Time of a request, median", "µs")
            .first(),
        F::<STAY>::spread("p99_us", 3, |of| of.us(|s| s.p99.as_secs_f64()))
            .lower("Time of a request, 99th percentile", "µs")
            .first(),
        F::<STAY>::spread("server_cpu_us_per_request", 3, |of| {
            of.us(|s| s.each(s.used.server.cpu.as_secs_f64()))
        })
        .lower("CPU time of the server", US)
        .first(),
        F::<STAY>::spread("client_cpu_us_per_request", 3, |of| {
            of.us(|s| s.each(s.used.client.cpu.as_secs_f64()))
        })
        .lower("CPU time of the clients", US)
        .first(),
        F::<STAY>::spread("server_sleeps_per_request", 3, |of| {
            of.spread(|s| s.each(s.used.server.sleeps as f64))
        })
        .lower("How often the server sleeps", "for each request")
        .first(),
        F::<STAY>::spread("client_sleeps_per_request", 3, |of| {
            of.spread(|s| s.each(s.used.client.sleeps as f64))
        })
        .lower("How often the clients sleep", "for each request")
        .first(),
        F::<STAY>::value("congestion", |_| some("cubic")),
    ];

    fn engine(&self, case: &RequestsCase) -> (String, &'static str) {
        case.engine.names()
    }

    fn round(&self, _: &RequestsCase, sample: &RequestsSample) -> Round {
        let bytes = 2 * sample.answered * u64::from(self.options.size);
        Round { bytes, time: sample.time, receiver_cpu: sample.used.server.cpu }
    }
}

impl<const STAY: bool> ResultLine<'_, RequestsBench<STAY>> {
    /// A time in seconds, in microseconds.
    fn us(&self, seconds: fn(&RequestsSample) -> f64) -> Option<Spread> {
        let Spread { min, median, max } = self.spread(seconds)?;
        Some(Spread { min: min * 1e6, median: median * 1e6, max: max * 1e6 })
    }
}

impl<const STAY: bool> InTurns for RequestsBench<STAY> {
    fn sample(&self, case: &RequestsCase, _: u16) -> Result<RequestsSample, Failure> {
        let (size, seconds) = (self.options.size as usize, self.options.time.seconds);
        let programs = RequestPrograms::<STAY> { clients: case.connections, size, seconds };
        Ok(self.runner.run(case.engine, &programs)?.outcome)
    }
}

/// The result of a round of requests, from the end of its warm-up on.
struct RequestsSample {
    /// Requests that were answered.
    answered: u64,
    time: Duration,
    p50: Duration,
    p99: Duration,
    used: SidesUsage,
}

impl RequestsSample {
    /// Sums up the times of requests, in nanoseconds.
    fn of(mut times: Vec<u32>, time: Duration, used: SidesUsage) -> Self {
        times.sort_unstable();
        let at = |p| Duration::from_nanos(percentile(&times, p).into());
        Self { answered: times.len() as u64, time, p50: at(0.5), p99: at(0.99), used }
    }

    fn per_second(&self) -> f64 {
        self.answered as f64 / self.time.as_secs_f64().max(1e-9)
    }

    /// A share of what was used, for each request.
    fn each(&self, used: f64) -> f64 {
        used / (self.answered as f64).max(1.0)
    }
}

/// Name of the connections in error texts.
const REQUEST: &str = "a connection with requests";

/// A server that answers, and clients that each have one connection at a time.
struct RequestPrograms<const STAY: bool> {
    clients: u32,
    /// Bytes of a request, and of an answer.
    size: usize,
    seconds: f64,
}

impl<const STAY: bool> Programs for RequestPrograms<STAY> {
    type Outcome = RequestsSample;

    async fn serve<L: Listener>(&self, listener: L) -> Result<(), Failure> {
        loop {
            let mut stream = listener.accept().await.because(REQUEST)?;
            let mut buffer = vec![0; self.size];
            tokio::task::spawn_local(async move {
                // Until the client is gone, or after one answer; then the drop closes.
                while answer(&mut stream, &mut buffer).await.is_ok() && STAY {}
            });
        }
    }

    async fn load<N: Network>(
        &self,
        network: N,
        to: SocketAddr,
        threads: &SideThreads,
    ) -> Result<RequestsSample, Failure> {
        let (window, size) = (Rc::new(Window::default()), self.size);
        // Connections that stay are open before the first request.
        let mut streams = Vec::new();
        for _ in 0..if STAY { self.clients } else { 0 } {
            streams.push(connect(&network, to).await.because(REQUEST)?);
        }
        for mut stream in streams {
            let mut buffer = vec![0x55; size];
            window.repeat(async move || ask(&mut stream, &mut buffer).await);
        }
        for _ in 0..if STAY { 0 } else { self.clients } {
            let network = network.clone();
            let mut buffer = Vec::with_capacity(size + 1);
            window.repeat(async move || visit(&network, to, size, &mut buffer).await);
        }
        window.measure(self.seconds, threads).await
    }
}

async fn ask(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    buffer: &mut [u8],
) -> io::Result<()> {
    stream.write_all(buffer).await?;
    stream.read_exact(buffer).await?;
    Ok(())
}

/// The server's side of [`ask`].
async fn answer(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    buffer: &mut [u8],
) -> io::Result<()> {
    stream.read_exact(buffer).await?;
    stream.write_all(buffer).await
}

/// Connects, asks once, and reads to the end of the connection.
async fn visit<N: Network>(
    network: &N,
    to: SocketAddr,
    size: usize,
    buffer: &mut Vec<u8>,
) -> io::Result<()> {
    let mut stream = connect(network, to).await?;
    buffer.clear();
    buffer.resize(size, 0x55);
    stream.write_all(buffer).await?;
    buffer.clear();
    match stream.read_to_end(buffer).await? {
        n if n == size => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// The time in which answers count, which the tasks of the client share.
#[derive(Default)]
struct Window {
    is_open: Cell<bool>,
    is_over: Cell<bool>,
    /// Times of answered requests, in nanoseconds.
    times: RefCell<Vec<u32>>,
    /// The error of the first request that failed.
    error: RefCell<Option<io::Error>>,
}

impl Window {
    /// Makes requests, one after the other in a task of their own, until the round is over.
    fn repeat(self: &Rc<Self>, mut request: impl AsyncFnMut() -> io::Result<()> + 'static) {
        let window = Rc::clone(self);
        tokio::task::spawn_local(async move {
            while !window.is_over.get() {
                let started = Instant::now();
                match request().await {
                    Ok(()) => window.count(started),
                    Err(error) => window.fail(error),
                }
            }
        });
    }

    /// Counts a request that began at `started` and has just been answered.
    fn count(&self, started: Instant) {
        if self.is_open.get() {
            let nanos = started.elapsed().as_nanos();
            self.times.borrow_mut().push(u32::try_from(nanos).unwrap_or(u32::MAX));
        }
    }

    /// Ends the round, which has failed.
    fn fail(&self, error: io::Error) {
        self.error.borrow_mut().get_or_insert(error);
        self.is_over.set(true);
    }

    /// Opens the window after the warm-up, for `seconds`.
    async fn measure(
        &self,
        seconds: f64,
        threads: &SideThreads,
    ) -> Result<RequestsSample, Failure> {
        tokio::time::sleep(WARM_UP).await;
        let (begun, before) = (Instant::now(), threads.now());
        self.is_open.set(true);
        tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
        self.is_open.set(false);
        let (time, used): (_, SidesUsage) = (begun.elapsed(), threads.now().since(before));
        self.is_over.set(true);
        if let Some(error) = self.error.take() {
            return Err(Failure::because(REQUEST, error));
        }
        match self.times.take() {
            times if times.is_empty() => Err(Failure::because(REQUEST, "nothing was answered")),
            times => Ok(RequestsSample::of(times, time, used)),
        }
    }
}
