//! `bench requests`: small requests and answers over connections that stay.
//!
//! Each connection has one request under way: its client sends the next when the answer is there.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::network::{Listener, Network, connect};
use super::place::{Place, Programs};
use super::usage::{Books, Used};
use super::{Engine, Line, Sample, lines};
use crate::failure::{Because, Failure};
use crate::machine::{Machine, SPREAD};
use crate::meter::{WARM_UP, in_turns};
use crate::options::RequestsOptions;
use crate::progress::Progress;
use crate::report::{Results, print};

/// What fails, if a connection does.
const REQUEST: &str = "a connection with requests";

pub(crate) fn run(options: &RequestsOptions, progress: &Progress) -> Result<Results, Failure> {
    let engines = Engine::on(options.link)?;
    let place = Place::new(options.place, options.common.stats);
    let size = options.size as usize;
    let mut lines = lines(engines, &options.connections);
    let round = |line: &Line| {
        let connections = line.connections;
        let requests = Requests { connections, size, seconds: options.seconds };
        Ok(place.run(line.engine, &requests)?.outcome)
    };
    in_turns(progress, options.common.rounds, &mut lines, Line::name, round, |line, sample| {
        line.samples.push(sample)
    })?;
    let machine = Machine::describe();
    let rate = ["requests_per_s", "min_requests_per_s", "max_requests_per_s"];
    let records: Vec<_> =
        lines.iter().map(|line| line.record("requests", rate, size).on(&machine)).collect();
    let heading = machine.heading(options.common.rounds, options.seconds, SPREAD);
    let columns = "engine link peer connections size requests_per_s min_requests_per_s \
        max_requests_per_s p50_us p99_us server_cpu_us_per_request client_cpu_us_per_request \
        server_sleeps_per_request client_sleeps_per_request";
    Ok(print(records, options.common.json, heading, columns))
}

struct Requests {
    connections: u32,
    /// Bytes of a request, and of an answer.
    size: usize,
    seconds: f64,
}

impl Programs for Requests {
    type Outcome = Sample;

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
        books: &Books,
    ) -> Result<Sample, Failure> {
        let mut streams = Vec::new();
        for _ in 0..self.connections {
            streams.push(connect(&network, to).await.because(REQUEST)?);
        }
        let window = Rc::new(Window::default());
        for mut stream in streams {
            let (window, mut buffer) = (Rc::clone(&window), vec![0x55; self.size]);
            tokio::task::spawn_local(async move {
                while !window.is_over() {
                    let started = Instant::now();
                    match ask(&mut stream, &mut buffer).await {
                        Ok(()) => window.count(started),
                        Err(error) => window.fail(error),
                    }
                }
            });
        }
        window.measure(self.seconds, books).await
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
    pub(super) fn is_over(&self) -> bool {
        self.is_over.get()
    }

    /// Counts a request that began at `started` and has just been answered.
    pub(super) fn count(&self, started: Instant) {
        if self.is_open.get() {
            let nanos = started.elapsed().as_nanos();
            self.times.borrow_mut().push(u32::try_from(nanos).unwrap_or(u32::MAX));
        }
    }

    /// Ends the round, which has failed.
    pub(super) fn fail(&self, error: io::Error) {
        self.error.borrow_mut().get_or_insert(error);
        self.is_over.set(true);
    }

    /// Opens after the warm-up, for so long.
    pub(super) async fn measure(&self, seconds: f64, books: &Books) -> Result<Sample, Failure> {
        tokio::time::sleep(WARM_UP).await;
        let (begun, before) = (Instant::now(), books.now());
        self.is_open.set(true);
        tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
        self.is_open.set(false);
        let (time, used): (_, Used) = (begun.elapsed(), books.now().since(before));
        self.is_over.set(true);
        if let Some(error) = self.error.take() {
            return Err(Failure::because(REQUEST, error));
        }
        match self.times.take() {
            times if times.is_empty() => Err(Failure::because(REQUEST, "nothing was answered")),
            times => Ok(Sample::of(times, time, used)),
        }
    }
}
