//! `bench requests`: small requests and answers over connections that stay.
//!
//! Each connection has one request under way: its client sends the next when the answer is there.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use clap::Args;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::network::{Listener, Network, connect};
use super::runner::Programs;
use super::usage::{SideThreads, SidesUsage};
use super::{RequestOptions, Requests, RequestsBench, RequestsSample};
use crate::args::{Link, Options, Plan};
use crate::failure::{Because, Failure};
use crate::meter::WARM_UP;
use crate::progress::Progress;
use crate::table::Results;

/// Small requests and answers over connections that stay
///
/// The server and the clients are one thread each, tokio programs that are the same for both
/// engines. Over a tap (root) the clients are the kernel's, as they are over veth beside it.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = EXAMPLES)]
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

const EXAMPLES: &str = "\
Examples:
  pagewire bench requests
      128 bytes each way over the pair link, beside kernel loopback
  pagewire bench requests --link tap --connections 1,64,1000 --json
      from clients of the kernel over a tap, beside veth; root
  pagewire bench requests --link tap --pin
      the server's side on one processor, the clients' on another";

impl Options for RequestsOptions {
    fn plan(&self) -> Plan {
        Plan::of::<RequestsBench<Staying>>(self.link == Link::Tap, self.more.common.stats)
    }

    fn run(&self, progress: &Progress) -> Result<Results, Failure> {
        let columns = "engine link peer connections size requests_per_s min_requests_per_s \
            max_requests_per_s p50_us p99_us server_cpu_us_per_request client_cpu_us_per_request \
            server_sleeps_per_request client_sleeps_per_request";
        RequestsBench::<Staying>::run(self.link, &self.connections, &self.more, columns, progress)
    }
}

/// Name of the connections in error texts.
const REQUEST: &str = "a connection with requests";

/// Programs whose connections stay.
struct Staying {
    connections: u32,
    /// Bytes of a request, and of an answer.
    size: usize,
    seconds: f64,
}

impl Requests for Staying {
    const NAME: &'static str = "requests";
    const TITLE: &'static str = "Small requests over connections that stay";
    const ABOUT: &'static str = "\
        The same tokio programs on both engines, one thread for the server and one for the \
        clients.";
    const RATE: (&'static str, &'static str) = ("requests_per_s", "Requests");
    const GROUP: &'static str = "{} connection(s)";
    const OVER: &'static str = "connections";

    fn new(connections: u32, size: usize, seconds: f64) -> Self {
        Self { connections, size, seconds }
    }
}

impl Programs for Staying {
    type Outcome = RequestsSample;

    async fn serve<L: Listener>(&self, listener: L) -> Result<(), Failure> {
        loop {
            let mut stream = listener.accept().await.because(REQUEST)?;
            let mut buffer = vec![0; self.size];
            tokio::task::spawn_local(async move {
                // Until the client is gone.
                while answer(&mut stream, &mut buffer).await.is_ok() {}
            });
        }
    }

    async fn load<N: Network>(
        &self,
        network: N,
        to: SocketAddr,
        threads: &SideThreads,
    ) -> Result<RequestsSample, Failure> {
        let mut streams = Vec::new();
        for _ in 0..self.connections {
            streams.push(connect(&network, to).await.because(REQUEST)?);
        }
        let window = Rc::new(Window::default());
        for mut stream in streams {
            let mut buffer = vec![0x55; self.size];
            window.repeat(async move || ask(&mut stream, &mut buffer).await);
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
pub(super) async fn answer(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    buffer: &mut [u8],
) -> io::Result<()> {
    stream.read_exact(buffer).await?;
    stream.write_all(buffer).await
}

/// The time in which answers count, which the tasks of the client share.
#[derive(Default)]
pub(super) struct Window {
    is_open: Cell<bool>,
    is_over: Cell<bool>,
    /// In nanoseconds.
    times: RefCell<Vec<u32>>,
    /// The first that failed.
    error: RefCell<Option<io::Error>>,
}

impl Window {
    /// Makes requests, one after the other in a task of their own, until the round is over.
    pub(super) fn repeat(
        self: &Rc<Self>,
        mut request: impl AsyncFnMut() -> io::Result<()> + 'static,
    ) {
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
    pub(super) async fn measure(
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
