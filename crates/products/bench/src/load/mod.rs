//! The work of a service: many connections, small messages, little memory (`bench requests`,
//! `bench connections`, `bench crowd`).
//!
//! A server and a load generator serve all engines. Both are single-threaded tokio programs that know only
//! tokio's `AsyncRead` and `AsyncWrite`: a program that moves from tokio's sockets to Pagewire's uses those. Over
//! the pair link both sides are Pagewire's, beside the kernel over loopback. Over a tap the server is Pagewire's
//! and the clients are the kernel's, as they are over veth beside it.
//!
//! [`network`] has the sockets, [`runner`] the threads and namespaces, [`usage`] and [`memory`] what
//! they cost.

mod connections;
mod crowd;
mod memory;
mod network;
mod requests;
mod runner;
mod usage;

use std::marker::PhantomData;
use std::time::Duration;

use clap::Args;

use crate::args::{Common, Link, Time};
use crate::engine::Engine;
use crate::failure::Failure;
use crate::machine::SPREAD;
use crate::meter::{Round, Spread, percentile};
use crate::progress::Progress;
use crate::table::{Field, InTurns, Measurement, ResultLine, Results, in_turns, records, some};
pub(crate) use connections::ConnectionsOptions;
pub(crate) use crowd::CrowdOptions;
pub(crate) use requests::RequestsOptions;
use runner::{LoadRunner, Programs, RunnerOptions};
use usage::SidesUsage;

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

/// Programs that make requests, as they are measured.
trait Requests: Programs<Outcome = RequestsSample> + 'static {
    const NAME: &'static str;
    const TITLE: &'static str;
    const ABOUT: &'static str;
    /// The field of the rate, and its plot's title.
    const RATE: (&'static str, &'static str);
    /// The label of a group of lines, and the title of the quantity that curves go over.
    const GROUP: &'static str;
    const OVER: &'static str;

    /// The programs with a number of connections, and requests and answers of `size` bytes.
    fn new(connections: u32, size: usize, seconds: f64) -> Self;
}

/// A measurement of requests.
struct RequestsBench<P> {
    options: RequestOptions,
    runner: LoadRunner,
    programs: PhantomData<P>,
}

/// An engine, and how many connections it has.
#[derive(Clone, Copy, Debug)]
struct RequestsCase {
    engine: Engine,
    connections: u32,
}

impl<P: Requests> RequestsBench<P> {
    /// Every engine with every number of connections, engines side by side.
    fn run(
        link: Link,
        connections: &[u32],
        options: &RequestOptions,
        columns: &str,
        progress: &Progress,
    ) -> Result<Results, Failure> {
        usage::raise_descriptor_limit();
        let engines = Engine::on(link, None);
        let runner = LoadRunner::new(options.runner, options.common.stats);
        let bench = Self { options: options.clone(), runner, programs: PhantomData };
        let case = |connections| engines.map(|engine| RequestsCase { engine, connections });
        let cases = connections.iter().copied().flat_map(case);
        let lines = in_turns(&bench, cases, options.common.rounds, progress)?;
        let heading = options.common.heading(options.time.seconds, SPREAD);
        Ok(Results::print(records(&bench, &lines), options.common.json, heading, columns))
    }
}

/// The stack of an engine's clients.
const fn peer(engine: Engine) -> &'static str {
    match engine {
        Engine::Pair => "pagewire",
        Engine::Tap | Engine::Kernel(_) => "kernel",
    }
}

const US: &str = "µs for each request";

type F<P> = Field<RequestsBench<P>>;

impl<P: Requests> Measurement for RequestsBench<P> {
    type Case = RequestsCase;
    type Sample = RequestsSample;

    const NAME: &'static str = P::NAME;
    const TITLE: &'static str = P::TITLE;
    const ABOUT: &'static str = P::ABOUT;
    const FIELDS: &'static [Field<Self>] = &[
        F::<P>::value("peer", |of| some(peer(of.case.engine))).part("clients: {}"),
        F::<P>::value("connections", |of| some(of.case.connections)).group(P::GROUP).over(P::OVER),
        F::<P>::value("size", |of| some(of.bench.options.size)),
        F::<P>::bounded(P::RATE.0, 1, |of| of.spread(RequestsSample::per_second))
            .higher(P::RATE.1, "a second")
            .first(),
        F::<P>::spread("p50_us", 3, |of| of.us(|s| s.p50.as_secs_f64()))
            .lower("Time of a request, median", "µs")
            .first(),
        F::<P>::spread("p99_us", 3, |of| of.us(|s| s.p99.as_secs_f64()))
            .lower("Time of a request, 99th percentile", "µs")
            .first(),
        F::<P>::spread("server_cpu_us_per_request", 3, |of| {
            of.us(|s| s.each(s.used.server.cpu.as_secs_f64()))
        })
        .lower("CPU time of the server", US)
        .first(),
        F::<P>::spread("client_cpu_us_per_request", 3, |of| {
            of.us(|s| s.each(s.used.client.cpu.as_secs_f64()))
        })
        .lower("CPU time of the clients", US)
        .first(),
        F::<P>::spread("server_sleeps_per_request", 3, |of| {
            of.spread(|s| s.each(s.used.server.sleeps as f64))
        })
        .lower("How often the server sleeps", "for each request")
        .first(),
        F::<P>::spread("client_sleeps_per_request", 3, |of| {
            of.spread(|s| s.each(s.used.client.sleeps as f64))
        })
        .lower("How often the clients sleep", "for each request")
        .first(),
        F::<P>::value("congestion", |_| some("cubic")),
    ];

    fn engine(&self, case: &RequestsCase) -> (String, &'static str) {
        case.engine.names()
    }

    fn round(&self, _: &RequestsCase, sample: &RequestsSample) -> Round {
        let bytes = 2 * sample.answered * u64::from(self.options.size);
        Round { bytes, time: sample.time, receiver_cpu: sample.used.server.cpu }
    }
}

impl<P: Requests> ResultLine<'_, RequestsBench<P>> {
    /// A time in seconds, in microseconds.
    fn us(&self, seconds: fn(&RequestsSample) -> f64) -> Option<Spread> {
        let Spread { min, median, max } = self.spread(seconds)?;
        Some(Spread { min: min * 1e6, median: median * 1e6, max: max * 1e6 })
    }
}

impl<P: Requests> InTurns for RequestsBench<P> {
    fn sample(&self, case: &RequestsCase, _: u16) -> Result<RequestsSample, Failure> {
        let (size, seconds) = (self.options.size as usize, self.options.time.seconds);
        Ok(self.runner.run(case.engine, &P::new(case.connections, size, seconds))?.outcome)
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
    /// From the requests' times in nanoseconds.
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
