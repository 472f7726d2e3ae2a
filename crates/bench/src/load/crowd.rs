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

use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf, split};
use tokio::task::spawn_local;

use super::Engine;
use super::memory::{Memory, watched};
use super::network::{Counts, Listener, Network, within};
use super::place::{Place, Programs};
use super::usage::{Books, Used};
use crate::failure::{Because, Failure};
use crate::machine::Machine;
use crate::meter::{Round, Spread, in_turns};
use crate::options::CrowdOptions;
use crate::progress::Progress;
use crate::report::{Record, Results, print, rounded};

/// What fails, if a connection does.
const CLIENT: &str = "a client of the crowd";

/// Bytes of single reads, of clients and of the server's tasks: small, because there are thousands.
const PIECE: usize = 16 << 10;

/// Longest round: a crowd for which no memory is left makes progress by timeouts only.
const LIMIT: Duration = Duration::from_secs(300);

pub(crate) fn run(options: &CrowdOptions, progress: &Progress) -> Result<Results, Failure> {
    let engines = Engine::on(options.link)?;
    let place = Place::new(options.place, options.common.stats);
    let not_reading = options.connections * u32::from(options.not_reading) / 100;
    let data = (0..options.size).map(|i| (i ^ (i >> 8) ^ (i >> 16)) as u8).collect();
    let crowd = Crowd { clients: options.connections, not_reading, data };
    let mut lines = engines.map(|engine| Line { engine, samples: Vec::new() });
    let round = |line: &Line| {
        let (ran, memory) = watched(|| place.run(line.engine, &crowd))?;
        let (time, used) = ran.outcome;
        Ok(Sample { time, used, counts: ran.counts, memory })
    };
    in_turns(progress, options.common.rounds, &mut lines, Line::name, round, |line, sample| {
        line.samples.push(sample)
    })?;
    let machine = Machine::describe();
    let records: Vec<_> = lines.iter().map(|line| line.record(&crowd).on(&machine)).collect();
    let heading = format!("{machine}; {} rounds, medians", options.common.rounds);
    let columns = "engine link peer connections not_reading size seconds min_seconds max_seconds \
        drops_for_memory retransmissions peak_memory_bytes peak_process_bytes peak_kernel_bytes \
        server_cpu_us_per_mib client_cpu_us_per_mib";
    Ok(print(records, options.common.json, heading, columns))
}

struct Crowd {
    clients: u32,
    /// Of these.
    not_reading: u32,
    /// What each sends.
    data: Arc<[u8]>,
}

impl Programs for Crowd {
    /// The time until all was echoed, and what both sides used.
    type Outcome = (Duration, Used);

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
        books: &Books,
    ) -> Result<Self::Outcome, Failure> {
        let (begun, before) = (Instant::now(), books.now());
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
        Ok((begun.elapsed(), books.now().since(before)))
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
struct Sample {
    time: Duration,
    used: Used,
    counts: Counts,
    memory: Memory,
}

struct Line {
    engine: Engine,
    samples: Vec<Sample>,
}

impl Line {
    /// What is measured, for the line of progress.
    fn name(&self) -> String {
        let (engine, link, _) = self.engine.names();
        format!("{engine} over {link}")
    }

    fn record(&self, crowd: &Crowd) -> Record {
        let (engine, link, peer) = self.engine.names();
        let (size, reading) = (crowd.data.len(), crowd.clients - crowd.not_reading);
        let bytes = 2 * size as u64 * u64::from(reading);
        let round = |s: &Sample| Round { bytes, time: s.time, receiver_cpu: s.used.server.cpu };
        let rounds: Vec<Round> = self.samples.iter().map(round).collect();
        let spread = |part: fn(&Sample) -> f64| Spread::of(self.samples.iter().map(part));
        let most = |part: fn(&Memory) -> u64| self.samples.iter().map(|s| part(&s.memory)).max();
        let mib = bytes as f64 / f64::from(1 << 20);
        let per_mib = |part: fn(&Sample) -> Duration| {
            Spread::of(self.samples.iter().map(|s| us(part(s)) / mib.max(1e-9)))
        };
        let times = spread(|s| s.time.as_secs_f64());
        let mut drops = Counts::default();
        self.samples.iter().for_each(|sample| drops.add(&sample.counts));
        let drops: serde_json::Map<String, Value> =
            drops.drops.into_iter().map(|(name, n)| (name, n.into())).collect();
        Record::of_rounds("crowd", engine, link, &rounds)
            .with("peer", peer)
            .with("connections", crowd.clients)
            .with("not_reading", crowd.not_reading)
            .with("size", size)
            .with("min_seconds", rounded(times.min, 6))
            .with("max_seconds", rounded(times.max, 6))
            .with_counts("drops_for_memory", spread(|s| s.counts.all_drops() as f64))
            .with("drops_by_reason_all_rounds", drops)
            .with_counts("retransmissions", spread(|s| s.counts.retransmits as f64))
            .with("peak_memory_bytes", most(Memory::all))
            .with("peak_process_bytes", most(|memory| memory.process))
            .with("peak_kernel_bytes", most(|memory| memory.kernel))
            .with_spread("server_cpu_us_per_mib", per_mib(|s| s.used.server.cpu), 3)
            .with_spread("client_cpu_us_per_mib", per_mib(|s| s.used.client.cpu), 3)
            .with("congestion", "cubic")
    }
}

fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
