//! Round trips of threads that block: each has a connection of its own on one host, beside bulk flows and busy
//! processors if there are any.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream as KernelStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::failure::{Because, Failure};
use crate::kit::hosts::{PORT, RIGHT, accept, on_a_pair, patient};
use crate::kit::kernel::{self, PATIENCE};
use crate::kit::machine::{joined, nap};
use crate::kit::meter::Samples;

/// Bytes that a bulk flow writes at once, and reads.
const PIECE: usize = 64 << 10;

const WARM_UP: Duration = Duration::from_millis(50);

const TRIPS: &str = "going back and forth";

/// What threads do, and what runs beside them.
#[derive(Clone, Copy)]
pub(super) struct Plan {
    pub(super) threads: u32,
    pub(super) size: usize,
    pub(super) seconds: f64,
    /// The sleep of a thread before each message.
    pub(super) think: Duration,
    /// Flows of bulk data between the same hosts.
    pub(super) bulk: u32,
    /// Threads that only compute.
    pub(super) busy: u32,
}

/// The round trips of a round.
pub(super) struct Trips {
    /// Nanoseconds, the shortest first.
    pub(super) times: Vec<u32>,
    /// Round trips of the slowest and of the fastest thread.
    pub(super) least: usize,
    pub(super) most: usize,
    /// Bytes that bulk flows moved, and in how long.
    pub(super) bulk: (u64, Duration),
}

/// A connection's two ends.
type Ends<S> = (S, S);

/// Between two hosts of a pair link, with driver threads.
pub(super) fn pair(plan: Plan, stats: bool) -> Result<Trips, Failure> {
    let (left, right, _) = on_a_pair(None, |host| host)?;
    let on = SocketAddr::from((RIGHT, PORT));
    let listener = right.listen(on).because(TRIPS)?;
    let connect = || -> Result<_, Failure> {
        let client = patient(left.connect_timeout(on, PATIENCE))?;
        let server = patient(accept(&listener, nap))?;
        let set = server.set_nonblocking(false).and_then(|()| server.set_nodelay(true));
        set.and_then(|()| client.set_nodelay(true)).because(TRIPS)?;
        Ok((client, server))
    };
    let trips = plan.run(connect)?;
    if stats {
        eprint!("{}{}", left.stats(), right.stats());
    }
    Ok(trips)
}

/// Over the kernel's loopback device.
pub(super) fn loopback(plan: Plan) -> Result<Trips, Failure> {
    let (listener, on) = kernel::listen(Ipv4Addr::LOCALHOST)?;
    let connect = || -> Result<Ends<KernelStream>, Failure> {
        let (client, server) = (kernel::connect(on)?, kernel::accept(&listener)?);
        let set = client.set_nodelay(true).and_then(|()| server.set_nodelay(true));
        set.and_then(|()| client.set_read_timeout(Some(PATIENCE))).because(TRIPS)?;
        Ok((client, server))
    };
    plan.run(connect)
}

impl Plan {
    fn run<S: Read + Write + Send>(
        self,
        connect: impl Fn() -> Result<Ends<S>, Failure>,
    ) -> Result<Trips, Failure> {
        let done = AtomicBool::new(false);
        let over = || done.load(Ordering::Relaxed);
        let connections = |count| (0..count).map(|_| connect()).collect::<Result<Vec<_>, _>>();
        let (flows, trips) = (connections(self.bulk)?, connections(self.threads)?);
        let (moved, began) = (AtomicU64::new(0), Instant::now());
        let moved = &moved;
        let (all, bulk) = std::thread::scope(|scope| {
            (0..self.busy).for_each(|_| drop(scope.spawn(move || compute(over))));
            for (from, to) in flows {
                scope.spawn(move || drop(write(from, over)));
                scope.spawn(move || drop(read(to, moved)));
            }
            let mut threads = Vec::new();
            for (client, server) in trips {
                scope.spawn(move || drop(self.answer(server)));
                threads.push(scope.spawn(move || self.ask(client).because(TRIPS)));
            }
            // All of them, also where one fails: then the others end, too.
            let all: Vec<_> = threads.into_iter().map(joined).collect();
            let bulk = (moved.load(Ordering::Relaxed), began.elapsed());
            done.store(true, Ordering::Relaxed);
            all.into_iter().collect::<Result<Vec<_>, Failure>>().map(|all| (all, bulk))
        })?;
        let counts = || all.iter().map(Vec::len);
        let (least, most) = (counts().min().unwrap_or(0), counts().max().unwrap_or(0));
        let mut times: Vec<u32> = all.into_iter().flatten().collect();
        times.sort_unstable();
        Ok(Trips { times, least, most, bulk })
    }

    /// Sends messages and waits for their answers; returns the time of each.
    fn ask(self, mut stream: impl Read + Write) -> io::Result<Vec<u32>> {
        let (mut buffer, mut samples) =
            (vec![0x55; self.size], Samples::new(WARM_UP, self.seconds));
        loop {
            if !self.think.is_zero() {
                std::thread::sleep(self.think);
            }
            let started = Instant::now();
            stream.write_all(&buffer)?;
            stream.read_exact(&mut buffer)?;
            if samples.add(started) {
                return Ok(samples.sorted());
            }
        }
    }

    /// Answers messages until the peer is gone.
    fn answer(self, mut stream: impl Read + Write) -> io::Result<()> {
        let mut buffer = vec![0; self.size];
        loop {
            stream.read_exact(&mut buffer)?;
            stream.write_all(&buffer)?;
        }
    }
}

fn compute(over: impl Fn() -> bool) {
    while !over() {
        std::hint::spin_loop();
    }
}

fn write(mut to: impl Write, over: impl Fn() -> bool) -> io::Result<()> {
    let piece = vec![0x55; PIECE];
    while !over() {
        to.write_all(&piece)?;
    }
    Ok(())
}

fn read(mut from: impl Read, moved: &AtomicU64) -> io::Result<()> {
    let mut buffer = vec![0; PIECE];
    loop {
        match from.read(&mut buffer)? {
            0 => return Ok(()),
            n => _ = moved.fetch_add(n as u64, Ordering::Relaxed),
        }
    }
}
