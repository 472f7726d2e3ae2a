//! `bench connections`: connect, one request, close.
//!
//! The server closes first, as one does that says `Connection: close`, so TIME-WAIT is the
//! server's. So many clients do that side by side, again and again.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::network::{Listener, Network, connect};
use super::place::{Place, Programs};
use super::requests::{Window, answer};
use super::usage::Books;
use super::{Engine, Line, Sample, lines};
use crate::failure::{Because, Failure};
use crate::machine::{Machine, SPREAD};
use crate::meter::in_turns;
use crate::options::ConnectionsOptions;
use crate::progress::Progress;
use crate::report::{Results, print};

pub(crate) fn run(options: &ConnectionsOptions, progress: &Progress) -> Result<Results, Failure> {
    let engines = Engine::on(options.link)?;
    let place = Place::new(options.place, options.common.stats);
    let size = options.size as usize;
    let mut lines = lines(engines, &options.connections);
    let round = |line: &Line| {
        let clients = line.connections;
        let visits = Visits { clients, size, seconds: options.seconds };
        Ok(place.run(line.engine, &visits)?.outcome)
    };
    in_turns(progress, options.common.rounds, &mut lines, Line::name, round, |line, sample| {
        line.samples.push(sample)
    })?;
    let machine = Machine::describe();
    let rate = ["connections_per_s", "min_connections_per_s", "max_connections_per_s"];
    let records: Vec<_> =
        lines.iter().map(|line| line.record("connections", rate, size).on(&machine)).collect();
    let heading = machine.heading(options.common.rounds, options.seconds, SPREAD);
    let columns = "engine link peer connections size connections_per_s min_connections_per_s \
        max_connections_per_s p50_us p99_us server_cpu_us_per_request client_cpu_us_per_request";
    Ok(print(records, options.common.json, heading, columns))
}

struct Visits {
    /// Connections at any time.
    clients: u32,
    /// Bytes of a request, and of an answer.
    size: usize,
    seconds: f64,
}

impl Programs for Visits {
    type Outcome = Sample;

    async fn serve<L: Listener>(&self, listener: L) -> Result<(), Failure> {
        loop {
            let mut stream = listener.accept().await.because("accepting")?;
            let mut buffer = vec![0; self.size];
            tokio::task::spawn_local(async move {
                // The drop closes.
                let _ = answer(&mut stream, &mut buffer).await;
            });
        }
    }

    async fn load<N: Network>(
        &self,
        network: N,
        to: SocketAddr,
        books: &Books,
    ) -> Result<Sample, Failure> {
        let window = Rc::new(Window::default());
        for _ in 0..self.clients {
            let (window, network, size) = (Rc::clone(&window), network.clone(), self.size);
            tokio::task::spawn_local(async move {
                let mut buffer = Vec::with_capacity(size + 1);
                while !window.is_over() {
                    let started = Instant::now();
                    match visit(&network, to, size, &mut buffer).await {
                        Ok(()) => window.count(started),
                        Err(error) => window.fail(error),
                    }
                }
            });
        }
        window.measure(self.seconds, books).await
    }
}

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
