//! `bench crowd`: many clients move some bytes each, all at once, and have them echoed.
//!
//! The time is from the first connect to the last byte that came back. Clients compare what comes
//! back with what they sent. For those that do not read, the server's echo piles up: they write
//! until nothing is taken any more, and stay so until the others are done.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Map, Value};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf, split};
use tokio::task::spawn_local;

use super::memory::{Memory, watched};
use super::network::{Listener, Network, StackCounts, within};
use super::runner::{LoadRunner, Programs, RunnerOptions};
use super::usage::{SideThreads, SidesUsage, raise_descriptor_limit};
use crate::args::{Common, Link, Options, Plan, send_size};
use crate::failure::{Because, Failure};
use crate::kit::engine::Engine;
use crate::kit::machine::Machine;
use crate::kit::meter::{Round, Spread, us_per_mib};
use crate::progress::Progress;
use crate::table::{
    Field, InTurns, Measurement, ResultLine, Results, US_PER_MIB, in_turns, records, some,
};

/// Many clients that move some bytes each, all at once
///
/// The server echoes what comes. The time is from the first connect to the last byte. Drops for
/// want of memory, retransmissions, their timeouts and memory are of both sides together.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct CrowdOptions {
    /// Kind of link; over a tap the clients are kernel sockets (root)
    #[arg(long, value_enum, default_value_t = Link::Pair, value_name = "KIND")]
    link: Link,

    /// Clients
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=20_000), value_name = "N")]
    connections: u32,

    /// Bytes that each sends and has echoed: a number with K or M, 1 to 16M
    #[arg(long, default_value = "1M", value_parser = send_size, value_name = "BYTES")]
    size: u64,

    /// Percentage of clients that write and never read
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=99), value_name = "PERCENT")]
    not_reading: u8,

    #[command(flatten)]
    runner: RunnerOptions,

    #[command(flatten)]
    common: Common,
}

const EXAMPLES: &str = "\
Examples:
  pagewire bench crowd
      1,000 clients of 1 MiB over the pair link, beside kernel loopback
  pagewire bench crowd --link tap --connections 5000 --not-reading 50
      half of them never read what comes back, over a tap, beside veth; root";

/// Name of the connections in error texts.
const CLIENT: &str = "a client of the crowd";

/// Bytes of single reads, of clients and of the server's tasks: small, because there are thousands.
const PIECE: usize = 16 << 10;

/// Longest round: a crowd for which no memory is left makes progress by timeouts only.
const LIMIT: Duration = Duration::from_secs(300);

impl Options for CrowdOptions {
    fn plan(&self) -> Plan {
        Plan::of::<CrowdBench>(self.link == Link::Tap, self.common.stats)
    }

    fn run(&self, progress: &Progress) -> Result<Results, Failure> {
        raise_descriptor_limit();
        let engines = Engine::on(self.link, None);
        let runner = LoadRunner::new(self.runner, self.common.stats);
        let not_reading = self.connections * u32::from(self.not_reading) / 100;
        let data = (0..self.size).map(|i| (i ^ (i >> 8) ^ (i >> 16)) as u8).collect();
        let crowd = Crowd { clients: self.connections, not_reading, data };
        let bench = CrowdBench { runner, crowd };
        let lines = in_turns(&bench, engines, self.common.rounds, progress)?;
        let heading = format!("{}; {} rounds, medians", Machine::describe(), self.common.rounds);
        let columns = "engine link peer connections not_reading size seconds min_seconds \
            max_seconds drops_for_memory retransmissions timeouts peak_memory_bytes \
            peak_process_bytes peak_kernel_bytes server_cpu_us_per_mib client_cpu_us_per_mib";
        Ok(Results::print(records(&bench, &lines), self.common.json, heading, columns))
    }
}

struct Crowd {
    clients: u32,
    /// The number of clients that do not read.
    not_reading: u32,
    /// The bytes that each client sends.
    data: Arc<[u8]>,
}

impl Programs for Crowd {
    /// The time until all was echoed, and what both sides used.
    type Outcome = (Duration, SidesUsage);

    async fn serve<L: Listener>(&self, listener: L) -> Result<(), Failure> {
        loop {
            let mut stream = listener.accept().await.because("accepting")?;
            spawn_local(async move {
                let mut buffer = vec![0; PIECE];
                while let Ok(n @ 1..) = stream.read(&mut buffer).await {
                    let echo = buffer.get(..n).unwrap_or_default();
                    if stream.write_all(echo).await.is_err() {
                        return;
                    }
                }
            });
        }
    }

    async fn load<N: Network>(
        &self,
        network: N,
        to: SocketAddr,
        threads: &SideThreads,
    ) -> Result<Self::Outcome, Failure> {
        let (begun, before) = (Instant::now(), threads.now());
        let mut reading = Vec::new();
        for i in 0..self.clients {
            let (network, data) = (network.clone(), Arc::clone(&self.data));
            // Spread over the crowd, so that they are not the first to connect.
            let not_reading = self.not_reading;
            let reads = (i * not_reading) % self.clients >= not_reading;
            if reads {
                reading.push(spawn_local(echoed(network, to, data)));
            } else {
                spawn_local(not_read(network, to, data));
            }
        }
        let all = async {
            for client in reading {
                client.await??;
            }
            Ok(())
        };
        within(LIMIT, all).await.because(CLIENT)?;
        Ok((begun.elapsed(), threads.now().since(before)))
    }
}

/// Sends, and reads meanwhile what comes back.
async fn echoed<N: Network>(network: N, to: SocketAddr, data: Arc<[u8]>) -> io::Result<()> {
    let (mut from, mut into) = split(network.connect(to).await?);
    let sent = Arc::clone(&data);
    let sending = spawn_local(async move { into.write_all(&sent).await });
    let mut came = 0;
    while came < data.len() {
        match read_equal(&mut from, data.get(came..).unwrap_or_default()).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => came += n,
        }
    }
    sending.await?
}

/// Sends, and reads nothing.
async fn not_read<N: Network>(network: N, to: SocketAddr, data: Arc<[u8]>) -> io::Result<()> {
    let mut stream = network.connect(to).await?;
    stream.write_all(&data).await?;
    std::future::pending().await
}

/// Reads what has come, which is to equal the beginning of `expected`; the number of bytes.
async fn read_equal(from: &mut (impl AsyncRead + Unpin), expected: &[u8]) -> io::Result<usize> {
    // On the stack of the poll only: thousands of waiting clients need no memory for it.
    poll_fn(|cx| {
        let mut buffer = [0; PIECE];
        let mut buffer = ReadBuf::new(&mut buffer);
        Pin::new(&mut *from).poll_read(cx, &mut buffer).map_ok(|()| {
            let came = buffer.filled();
            expected.starts_with(came).then_some(came.len())
        })
    })
    .await?
    .ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, "what came back is not what was sent")
    })
}

/// A round of the crowd.
struct CrowdSample {
    time: Duration,
    used: SidesUsage,
    counts: StackCounts,
    memory: Memory,
}

struct CrowdBench {
    runner: LoadRunner,
    crowd: Crowd,
}

impl CrowdBench {
    /// Bytes of a round, there and back.
    fn bytes(&self) -> u64 {
        let reading = self.crowd.clients - self.crowd.not_reading;
        2 * self.crowd.data.len() as u64 * u64::from(reading)
    }
}

const PACKETS: &str = "packets in a round";

type F = Field<CrowdBench>;

impl Measurement for CrowdBench {
    type Case = Engine;
    type Sample = CrowdSample;

    const NAME: &'static str = "crowd";
    const TITLE: &'static str = "Many clients at once";
    const ABOUT: &'static str = "\
        Each moves some bytes and has them echoed. Drops, retransmissions, their timeouts \
        and memory are of both sides.";
    const FIELDS: &'static [Field<Self>] = &[
        F::value("peer", |of| some(super::peer(*of.case))).part("clients: {}"),
        F::value("connections", |of| some(of.bench.crowd.clients)).group("{} clients"),
        F::value("not_reading", |of| some(of.bench.crowd.not_reading)),
        F::value("size", |of| some(of.bench.crowd.data.len())),
        F::bounds("seconds", 6, |of| of.spread(|s| s.time.as_secs_f64()))
            .lower("Time until all is echoed", "s")
            .first(),
        F::count("drops_for_memory", |of| of.spread(|s| s.counts.all_drops() as f64))
            .lower("Drops for want of memory", PACKETS),
        F::value("drops_by_reason_all_rounds", |of| {
            let mut all = StackCounts::default();
            of.samples.iter().for_each(|sample| all.add(&sample.counts));
            let drops: Map<String, Value> =
                all.drops.into_iter().map(|(name, n)| (name, n.into())).collect();
            some(drops)
        }),
        F::count("retransmissions", |of| of.spread(|s| s.counts.retransmits as f64))
            .lower("Retransmissions", PACKETS),
        F::count("timeouts", |of| of.spread(|s| s.counts.timeouts as f64))
            .lower("Retransmission timeouts", "timeouts in a round"),
        F::value("peak_memory_bytes", |of| of.most(Memory::all))
            .lower("Most memory, process and kernel", "bytes"),
        F::value("peak_process_bytes", |of| of.most(|memory| memory.process))
            .lower("Most memory of the process", "bytes"),
        F::value("peak_kernel_bytes", |of| of.most(|memory| memory.kernel))
            .lower("Most memory of the kernel's sockets", "bytes"),
        F::spread("server_cpu_us_per_mib", 3, |of| of.us_per_mib(|s| s.used.server.cpu))
            .lower("CPU time of the server", US_PER_MIB),
        F::spread("client_cpu_us_per_mib", 3, |of| of.us_per_mib(|s| s.used.client.cpu))
            .lower("CPU time of the clients", US_PER_MIB),
        F::value("congestion", |_| some("cubic")),
    ];

    fn engine(&self, engine: &Engine) -> (String, &'static str) {
        engine.names()
    }

    fn round(&self, _: &Engine, sample: &CrowdSample) -> Round {
        let (bytes, cpu) = (self.bytes(), sample.used.server.cpu);
        Round { bytes, time: sample.time, receiver_cpu: cpu }
    }
}

impl ResultLine<'_, CrowdBench> {
    fn most(&self, part: fn(&Memory) -> u64) -> Option<Value> {
        self.samples.iter().map(|sample| part(&sample.memory)).max().map(Value::from)
    }

    fn us_per_mib(&self, part: fn(&CrowdSample) -> Duration) -> Option<Spread> {
        self.spread(|sample| us_per_mib(part(sample), self.bench.bytes()))
    }
}

impl InTurns for CrowdBench {
    fn sample(&self, engine: &Engine, _: u16) -> Result<CrowdSample, Failure> {
        let (ran, memory) = watched(|| self.runner.run(*engine, &self.crowd))?;
        let (time, used) = ran.outcome;
        Ok(CrowdSample { time, used, counts: ran.counts, memory })
    }
}
