//! `bench rr`: round trips of so many bytes, and how often a blocked reader is woken.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pagewire::TcpStream;

use crate::failure::{Because, Failure};
use crate::hosts::{RIGHT, accept, connect_in_turns, hosts_in_turns, on_a_pair};
use crate::kernel::{self, PATIENCE, poll_ping, poll_pong};
use crate::machine::{Machine, Sides, joined, nap, pin};
use crate::meter::{Round, Spread, in_turns, percentile};
use crate::options::RrOptions;
use crate::progress::Progress;
use crate::report::{Record, Results, print, rounded};
use crate::source::Source;

/// Bytes of a batch whose wakeups are counted, and how many batches.
const BATCH: usize = 256 << 10;
const BATCHES: u64 = 2_000;

pub(crate) fn run(options: &RrOptions, progress: &Progress) -> Result<Results, Failure> {
    let sides = Sides::choose();
    let size = options.size as usize;
    let mut engines = [Engine::new("pagewire", "pair"), Engine::new("kernel", "loopback")];
    let round = |engine: &Engine| {
        let mut samples = match engine.name {
            "pagewire" => pair(size, options.seconds, sides, options.common.stats)?,
            _ => kernel::ping_pong(size, options.seconds, sides)?,
        };
        samples.sort_unstable();
        Ok(samples)
    };
    let keep = |engine: &mut Engine, samples: Vec<u32>| engine.add(&samples, size);
    let what = |engine: &Engine| format!("{} over {}", engine.name, engine.link);
    in_turns(progress, options.common.rounds, &mut engines, what, round, keep)?;
    let wakeups = wakeups_per_batch(&Source::new())?;
    let shares = shares(options.threads as usize, size, options.seconds)?;
    let machine = Machine::describe();
    let records: Vec<_> = engines
        .iter()
        .map(|e| {
            let record = e.record(size);
            let record = match e.name {
                "pagewire" => {
                    let record = record.with("wakeups_per_batch", rounded(wakeups, 3));
                    with_shares(record, &shares)
                }
                _ => record,
            };
            record.on(&machine)
        })
        .collect();
    let heading = machine.heading(options.common.rounds, options.seconds, "; both sides poll");
    let columns =
        "engine link size rtt_us_p50 rtt_us_p99 min_rtt_us_p50 max_rtt_us_p50 wakeups_per_batch";
    let of_shares = " threads least_round_trips most_round_trips longest_wait_us";
    let columns = format!("{columns}{}", if shares.is_empty() { "" } else { of_shares });
    Ok(print(records, options.common.json, heading, &columns))
}

/// One engine's rounds.
struct Engine {
    name: &'static str,
    link: &'static str,
    rounds: Vec<Round>,
    /// Percentiles of each round, in nanoseconds.
    p50: Vec<u32>,
    p99: Vec<u32>,
}

impl Engine {
    fn new(name: &'static str, link: &'static str) -> Self {
        Self { name, link, rounds: Vec::new(), p50: Vec::new(), p99: Vec::new() }
    }

    fn add(&mut self, sorted: &[u32], size: usize) {
        let time = sorted.iter().map(|&ns| Duration::from_nanos(ns.into())).sum();
        let bytes = 2 * (size * sorted.len()) as u64;
        self.rounds.push(Round { bytes, time, receiver_cpu: Duration::ZERO });
        self.p50.push(percentile(sorted, 0.5));
        self.p99.push(percentile(sorted, 0.99));
    }

    fn record(&self, size: usize) -> Record {
        let us = |value: f64| rounded(value, 3);
        let spread = |all: &[u32]| Spread::of(all.iter().map(|&ns| f64::from(ns) / 1000.0));
        let (p50, p99) = (spread(&self.p50), spread(&self.p99));
        Record::of_rounds("rr", self.name, self.link, &self.rounds)
            .with("size", size)
            .with("rtt_us_p50", us(p50.median))
            .with_spread("rtt_us_p99", p99, 3)
            .with("min_rtt_us_p50", us(p50.min))
            .with("max_rtt_us_p50", us(p50.max))
    }
}

/// Two hosts, each polled by its own thread.
fn pair(size: usize, seconds: f64, sides: Sides, stats: bool) -> Result<Vec<u32>, Failure> {
    let (left, right, _) = hosts_in_turns(None)?;
    let (mut client, mut server) = connect_in_turns(&left, &right)?;
    let done = AtomicBool::new(false);
    let samples = std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(sides.right);
            let over = || done.load(Ordering::Relaxed);
            poll_pong(&mut server, size, over, || {
                right.turn();
            });
        });
        let pinging = scope.spawn(|| -> Result<Vec<u32>, Failure> {
            pin(sides.left);
            let samples = poll_ping(&mut client, size, seconds, || {
                left.turn();
            });
            done.store(true, Ordering::Relaxed);
            Ok(samples?)
        });
        joined(pinging)
    })?;
    if stats {
        eprint!("{}{}", left.stats(), right.stats());
    }
    Ok(samples)
}

/// One thread's share of a host.
struct Share {
    round_trips: u64,
    /// The longest that one of them took.
    longest: Duration,
}

fn with_shares(record: Record, shares: &[Share]) -> Record {
    let trips = || shares.iter().map(|share| share.round_trips);
    let longest = shares.iter().map(|share| share.longest).max();
    match (trips().min(), trips().max(), longest) {
        (Some(least), Some(most), Some(longest)) => record
            .with("threads", shares.len())
            .with("least_round_trips", least)
            .with("most_round_trips", most)
            .with("longest_wait_us", rounded(longest.as_secs_f64() * 1e6, 1)),
        _ => record,
    }
}

/// Threads of one host make round trips to threads of the other, all competing for the lock.
fn shares(threads: usize, size: usize, seconds: f64) -> Result<Vec<Share>, Failure> {
    // Drivers that poll, as busy as they get.
    let (left, right, _) = on_a_pair(None, |host| host)?;
    let what = "going back and forth";
    let on = SocketAddr::from((RIGHT, 9002));
    let listener = right.listen(on).because(what)?;
    std::thread::scope(|scope| {
        let mut pinging = Vec::new();
        for _ in 0..threads {
            let client = left.connect_timeout(on, PATIENCE).because(what)?;
            let mut server = accept(&listener, nap).because(what)?;
            server.set_nonblocking(false).because(what)?;
            scope.spawn(move || {
                let mut buffer = vec![0; size];
                // Until the client is gone.
                while server
                    .read_exact(&mut buffer)
                    .and_then(|()| server.write_all(&buffer))
                    .is_ok()
                {}
            });
            pinging.push(scope.spawn(move || ping(client, size, seconds).because(what)));
        }
        pinging.into_iter().map(joined).collect()
    })
}

fn ping(mut client: TcpStream, size: usize, seconds: f64) -> std::io::Result<Share> {
    client.set_read_timeout(Some(PATIENCE))?;
    let (mut buffer, begin) = (vec![0x55; size], Instant::now());
    let mut share = Share { round_trips: 0, longest: Duration::ZERO };
    while begin.elapsed().as_secs_f64() < seconds {
        let started = Instant::now();
        client.write_all(&buffer)?;
        client.read_exact(&mut buffer)?;
        share.round_trips += 1;
        share.longest = share.longest.max(started.elapsed());
    }
    Ok(share)
}

/// How often a blocked reader is woken for data that its peer queued at once: batches are sent by
/// reference, each when the last was answered. The caller makes the source first, because filling
/// it may take longer than the reader's timeout.
fn wakeups_per_batch(source: &Source) -> Result<f64, Failure> {
    // Without spinning: a reader that finds nothing sleeps at once.
    let (left, right, _) = on_a_pair(None, |host| host.spin(Duration::ZERO))?;
    let what = "counting wakeups";
    let on = SocketAddr::from((RIGHT, 9001));
    let listener = right.listen(on).because(what)?;
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| -> Result<u64, Failure> {
            let mut stream = accept(&listener, nap).because(what)?;
            let set = stream.set_nodelay(true);
            set.and_then(|()| stream.set_read_timeout(Some(PATIENCE))).because(what)?;
            let mut frags = Vec::new();
            let before = right.stats().wakeups;
            for _ in 0..BATCHES {
                let mut have = 0;
                while have < BATCH {
                    match stream.recv_into(BATCH, &mut frags).because(what)? {
                        0 => return Err(Failure::Failed("the peer went away".into())),
                        n => have += n,
                    }
                    frags.clear();
                }
                stream.write_all(b"!").because(what)?;
            }
            Ok(right.stats().wakeups - before)
        });
        let mut stream = left.connect_timeout(on, PATIENCE).because(what)?;
        stream.set_read_timeout(Some(PATIENCE)).because(what)?;
        for piece in source.frags(BATCH).take(BATCHES as usize) {
            let mut answer = [0];
            let sent = stream.send(piece).and_then(|_| stream.read_exact(&mut answer));
            if let Err(e) = sent {
                // The reader's error says more, if it has one.
                joined(reading)?;
                return Err(Failure::because(what, e));
            }
        }
        let wakeups = joined(reading)?;
        Ok(wakeups as f64 / BATCHES as f64)
    })
}
