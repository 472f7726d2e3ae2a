//! The programs of `bench sim`, the same for every simulator, whose network has the names of tokio's.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Scenario, SimOptions};
use crate::failure::Failure;

const MESSAGE: usize = 1024;
const BULK: usize = 1 << 20;
const TICK: Duration = Duration::from_millis(100);

/// The figures of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    pub(crate) wall: Duration,
    pub(crate) simulated: Duration,
    /// Messages that applications received, of 1 KB each; ticks of timers in `idle`.
    pub(crate) messages: u64,
    /// Deliveries of the network to hosts: packets here, reads of segments with turmoil.
    pub(crate) events: u64,
    /// The hash over the run, if there is one.
    pub(crate) digest: Option<pagewire_simulation::Digest>,
}

/// Counts of the programs.
#[derive(Debug, Default)]
struct SimCounts {
    messages: Cell<u64>,
    reads: Cell<u64>,
}

impl SimCounts {
    fn message(&self) {
        self.messages.set(self.messages.get() + 1);
    }

    fn read(&self) {
        self.reads.set(self.reads.get() + 1);
    }
}

/// The programs, for one simulator's network.
macro_rules! programs {
    ($name:ident, $net:path, $sim:ty) => {
        mod $name {
            use $net as net;

            use super::*;

            type Done<T = ()> = Result<T, Box<dyn std::error::Error>>;

            /// Adds all hosts and clients.
            pub(super) fn add(sim: &mut $sim, options: &SimOptions, tally: &Rc<SimCounts>) {
                let servers = (options.hosts / 11).max(1);
                let clients = options.hosts - servers;
                let scenario = options.scenario;
                for n in 0..servers {
                    let tally = tally.clone();
                    sim.host(format!("server{n}").as_str(), move || serve(scenario, tally.clone()));
                }
                let time = Duration::from_secs_f64(options.seconds);
                for n in 0..clients {
                    let mine = (n..options.connections).step_by(clients as usize);
                    let to: Vec<String> =
                        mine.map(|connection| format!("server{}", connection % servers)).collect();
                    let program = run(scenario, to, time, tally.clone());
                    sim.client(format!("client{n}").as_str(), program);
                }
            }

            async fn serve(scenario: Scenario, tally: Rc<SimCounts>) -> Done {
                if scenario == Scenario::Idle {
                    return tick(Duration::MAX, tally).await;
                }
                let listener = net::TcpListener::bind(("0.0.0.0", 80)).await?;
                loop {
                    let (stream, _) = listener.accept().await?;
                    tokio::task::spawn_local(answer(stream, scenario, tally.clone()));
                }
            }

            async fn answer(mut stream: net::TcpStream, scenario: Scenario, tally: Rc<SimCounts>) {
                let mut buffer = vec![0; 16 * MESSAGE];
                let mut bytes = 0;
                while let Ok(n @ 1..) = stream.read(&mut buffer).await {
                    tally.read();
                    let before = bytes / MESSAGE;
                    bytes += n;
                    (before..bytes / MESSAGE).for_each(|_| tally.message());
                    let Some(part) = buffer.get(..n) else { return };
                    if scenario == Scenario::Echo && stream.write_all(part).await.is_err() {
                        return;
                    }
                }
                // The stream has ended: everything has arrived.
                let _ = stream.write_all(b".").await;
            }

            async fn run(
                scenario: Scenario,
                to: Vec<String>,
                time: Duration,
                tally: Rc<SimCounts>,
            ) -> Done {
                if scenario == Scenario::Idle {
                    return tick(time, tally).await;
                }
                let all = to.into_iter().map(|server| {
                    let tally = tally.clone();
                    tokio::task::spawn_local(async move {
                        let stream = net::TcpStream::connect((server.as_str(), 80)).await;
                        let stream = stream.map_err(|error| error.to_string())?;
                        let talk = match scenario {
                            Scenario::Echo => ask(stream, time, tally).await,
                            _ => send(stream).await,
                        };
                        talk.map_err(|error| error.to_string())
                    })
                });
                for one in all.collect::<Vec<_>>() {
                    one.await??;
                }
                Ok(())
            }

            async fn ask(
                mut stream: net::TcpStream,
                time: Duration,
                tally: Rc<SimCounts>,
            ) -> std::io::Result<()> {
                let start = tokio::time::Instant::now();
                let (message, mut answer) = (vec![7; MESSAGE], vec![0; MESSAGE]);
                while start.elapsed() < time {
                    stream.write_all(&message).await?;
                    stream.read_exact(&mut answer).await?;
                    tally.read();
                    tally.message();
                }
                Ok(())
            }

            async fn send(mut stream: net::TcpStream) -> std::io::Result<()> {
                let message = vec![7; MESSAGE];
                for _ in 0..BULK / MESSAGE {
                    stream.write_all(&message).await?;
                }
                stream.shutdown().await?;
                stream.read_exact(&mut [0]).await.map(|_| ())
            }

            async fn tick(time: Duration, tally: Rc<SimCounts>) -> Done {
                let start = tokio::time::Instant::now();
                while start.elapsed() < time {
                    tokio::time::sleep(TICK).await;
                    tally.message();
                }
                Ok(())
            }
        }
    };
}

programs!(ours, pagewire_simulation::net, pagewire_simulation::Sim);
#[cfg(feature = "turmoil")]
programs!(theirs, turmoil::net, turmoil::Sim<'_>);

/// Far more than any round takes.
const LIMIT: Duration = Duration::from_secs(100_000);

pub(crate) fn pagewire(options: &SimOptions) -> Result<Figures, Failure> {
    let latency = Duration::from_millis(options.latency.into());
    let link = pagewire_simulation::Link::new().latency(latency);
    let builder = pagewire_simulation::Sim::builder().seed(options.seed).link(link).limit(LIMIT);
    let mut sim = builder.leaks(pagewire_simulation::Leaks::Ignore).build();
    let tally = Rc::new(SimCounts::default());
    ours::add(&mut sim, options, &tally);
    let start = Instant::now();
    let report = sim.run()?;
    Ok(Figures {
        wall: start.elapsed(),
        simulated: report.elapsed,
        messages: tally.messages.get(),
        events: report.counts.arrived,
        digest: Some(report.digest),
    })
}

#[cfg(feature = "turmoil")]
pub(crate) fn turmoil(options: &SimOptions) -> Result<Figures, Failure> {
    let latency = Duration::from_millis(options.latency.into());
    let mut sim = turmoil::Builder::new()
        .rng_seed(options.seed)
        .min_message_latency(latency)
        .max_message_latency(latency)
        .simulation_duration(LIMIT)
        // A receiver whose queue is full ends the run.
        .tcp_capacity(1 << 16)
        .build();
    let tally = Rc::new(SimCounts::default());
    theirs::add(&mut sim, options, &tally);
    let start = Instant::now();
    sim.run().map_err(|error| Failure::because("turmoil", error))?;
    Ok(Figures {
        wall: start.elapsed(),
        simulated: sim.elapsed(),
        messages: tally.messages.get(),
        events: tally.reads.get(),
        digest: None,
    })
}
