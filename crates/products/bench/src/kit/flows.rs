//! Connections side by side that move bytes until a round is over, for `bench path` and `bench share`.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener as KernelListener, TcpStream as KernelStream};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pagewire::memory::Frag;
use pagewire::{Host, SendBuf, TcpListener, TcpStream};

use crate::failure::{Because, Failure};
use crate::kit::hosts::RECV_PIECE;
use crate::kit::kernel;
use crate::kit::machine::{joined, nap};
use crate::kit::meter::Round;
use crate::kit::namespace::NetNs;
use crate::kit::source::Source;

/// Name of the connections in error texts.
const CONNECTION: &str = "a connection of the measurement";

/// How long connections may take to be set up over a bad path, one after the other.
const SETUP: Duration = Duration::from_secs(60);

/// Attempts for each: over a bad path, three requests for a link address may be lost.
const TRIES: usize = 5;

/// How long a call waits before it checks whether the round is over.
const TICK: Duration = Duration::from_millis(100);

/// Bytes of a single read or write.
const PIECE: usize = 256 << 10;

/// The work of a thread in a round.
pub(crate) type Part<'a> = Box<dyn FnOnce() -> Result<(), Failure> + Send + 'a>;

/// The state that the threads of a round share. Flows belong to classes that are counted apart.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) over: AtomicBool,
    /// Time to inspect connections: what arrives from here on does not count.
    inspect: AtomicBool,
    /// Connections are to be inspected.
    inspected: bool,
    open: AtomicUsize,
    arrived: [AtomicU64; 2],
    /// The reports of connections at the end, if they are wanted.
    reports: Mutex<Vec<String>>,
}

impl Traffic {
    /// Before anything is open. With `inspected`, connections report their state at the end.
    pub(crate) fn new(inspected: bool) -> Self {
        Self { inspected, ..Self::default() }
    }

    /// Counts what arrives for `length`, by class, once all are open and `warm_up` has passed.
    fn measure(&self, flows: usize, warm_up: Duration, length: Duration) -> [Round; 2] {
        let deadline = Instant::now() + SETUP;
        while self.open.load(Ordering::Relaxed) < flows && Instant::now() < deadline {
            self.sleep(Duration::from_millis(5));
        }
        self.sleep(warm_up);
        let count = || self.arrived.each_ref().map(|n| n.load(Ordering::Relaxed));
        let (begun, before) = (Instant::now(), count());
        self.sleep(length);
        let (time, after) = (begun.elapsed(), count());
        if self.inspected {
            self.inspect.store(true, Ordering::Relaxed);
            self.sleep(Duration::from_millis(500));
        }
        self.over.store(true, Ordering::Relaxed);
        let mut rounds = after.map(|bytes| Round { bytes, time, receiver_cpu: Duration::ZERO });
        rounds.iter_mut().zip(before).for_each(|(round, before)| round.bytes -= before);
        rounds
    }

    /// Runs the parts of a round, each on a thread of its own, and [measures](Self::measure) what
    /// arrives; if a part fails, the round is over.
    pub(crate) fn run(
        &self,
        parts: Vec<Part<'_>>,
        flows: usize,
        warm_up: Duration,
        length: Duration,
    ) -> Result<[Round; 2], Failure> {
        let until_it_fails =
            |run: Part<'_>| run().inspect_err(|_| self.over.store(true, Ordering::Relaxed));
        std::thread::scope(|scope| {
            let start = |part| scope.spawn(move || until_it_fails(part));
            let running: Vec<_> = parts.into_iter().map(start).collect();
            let rounds = self.measure(flows, warm_up, length);
            let ends: Vec<_> = running.into_iter().map(joined).collect();
            ends.into_iter().collect::<Result<(), _>>()?;
            Ok(rounds)
        })
    }

    /// The reports of connections, once all have ended.
    pub(crate) fn reports(&self) -> Vec<String> {
        self.reports.lock().map(|mut reports| std::mem::take(&mut *reports)).unwrap_or_default()
    }

    pub(crate) fn report(&self, what: String) {
        if let Ok(mut reports) = self.reports.lock() {
            reports.push(what);
        }
    }

    fn sleep(&self, time: Duration) {
        let until = Instant::now() + time;
        while !self.over() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::park_timeout(left.min(TICK));
        }
    }

    fn over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn count(&self, class: usize, bytes: usize) {
        if let Some(arrived) = self.arrived.get(class) {
            arrived.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }
}

/// Accepts connections and reads them, one thread for each, until it is over.
pub(crate) fn kernel_receive(
    listener: &KernelListener,
    flows: usize,
    class: usize,
    traffic: &Traffic,
) -> Result<(), Failure> {
    listener.set_nonblocking(true).because(CONNECTION)?;
    let accept = || {
        let (connection, _) = listener.accept()?;
        connection.set_nonblocking(false)?;
        connection.set_read_timeout(Some(TICK))?;
        Ok(connection)
    };
    receive(flows, traffic, accept, |mut connection| {
        let mut buffer = vec![0; PIECE];
        while let Ok(Some(n @ 1..)) = until_over(traffic, || connection.read(&mut buffer)) {
            traffic.count(class, n);
        }
    })
}

/// Accepts connections on a host and receives by reference, until it is over.
pub(crate) fn host_receive(
    listener: &TcpListener,
    flows: usize,
    class: usize,
    traffic: &Traffic,
) -> Result<(), Failure> {
    listener.set_nonblocking(true).because(CONNECTION)?;
    let accept = || {
        let (connection, _) = listener.accept()?;
        connection.set_read_timeout(Some(TICK))?;
        Ok(connection)
    };
    receive(flows, traffic, accept, |connection| {
        let mut frags: Vec<Frag> = Vec::new();
        loop {
            match until_over(traffic, || connection.recv_into(RECV_PIECE, &mut frags)) {
                Ok(Some(n @ 1..)) => traffic.count(class, n),
                _ => return reset(connection, traffic),
            }
            frags.clear();
        }
    })
}

/// Accepts `flows` connections, and reads each on a thread of its own.
fn receive<C: Send>(
    flows: usize,
    traffic: &Traffic,
    mut accept: impl FnMut() -> io::Result<C>,
    read: impl Fn(C) + Sync,
) -> Result<(), Failure> {
    std::thread::scope(|scope| {
        for _ in 0..flows {
            let Some(connection) = until_over(traffic, &mut accept)? else { return Ok(()) };
            traffic.open.fetch_add(1, Ordering::Relaxed);
            let read = &read;
            scope.spawn(move || read(connection));
        }
        Ok(())
    })
}

/// Connects from a namespace and writes, one thread for each connection, until it is over.
pub(crate) fn kernel_send(
    from: &NetNs,
    to: SocketAddr,
    flows: usize,
    source: &Source,
    traffic: &Traffic,
) -> Result<(), Failure> {
    from.enter()?;
    std::thread::scope(|scope| {
        for _ in 0..flows {
            let mut connection = again_and_again(|| kernel::connect(to))?;
            connection.set_write_timeout(Some(TICK)).because(CONNECTION)?;
            scope.spawn(move || write_pieces(&mut connection, source, traffic));
        }
        while traffic.inspected && !traffic.over() {
            if traffic.inspect.load(Ordering::Relaxed) {
                traffic.report(sockets());
                break;
            }
            std::thread::park_timeout(TICK);
        }
        Ok(())
    })
}

fn write_pieces(connection: &mut KernelStream, source: &Source, traffic: &Traffic) {
    for piece in source.pieces(PIECE) {
        let mut left = piece;
        while !left.is_empty() {
            match until_over(traffic, || connection.write(left)) {
                Ok(Some(n @ 1..)) => left = left.get(n..).unwrap_or_default(),
                _ => return,
            }
        }
    }
}

/// The state of the sockets in this thread's network namespace, from the kernel.
fn sockets() -> String {
    let output = Command::new("ss").args(["-t", "-i", "-n", "-H"]).output();
    output.map_or_else(|e| e.to_string(), |o| String::from_utf8_lossy(&o.stdout).into_owned())
}

/// Connects from a host and sends by reference, until it is over.
pub(crate) fn host_send(
    host: &Host,
    to: SocketAddr,
    flows: usize,
    source: &Source,
    traffic: &Traffic,
) -> Result<(), Failure> {
    std::thread::scope(|scope| {
        for _ in 0..flows {
            let connection =
                again_and_again(|| host.connect_timeout(to, kernel::PATIENCE).because(CONNECTION))?;
            connection.set_write_timeout(Some(TICK)).because(CONNECTION)?;
            scope.spawn(move || {
                for frag in source.frags(PIECE) {
                    let mut left = SendBuf::from(frag);
                    while !left.is_empty() {
                        match until_over(traffic, || connection.send_some(&mut left)) {
                            Ok(Some(_)) => {}
                            _ => return reset(connection, traffic),
                        }
                    }
                }
            });
        }
        Ok(())
    })
}

/// Notes the connection's state, and resets it.
fn reset(connection: TcpStream, traffic: &Traffic) {
    traffic.report(connection.info().map_or_else(|e| e.to_string(), |info| format!("{info:?}")));
    connection.abort();
}

/// Repeats a call that waits at most a tick, until it has an answer; `None`: it is over.
fn until_over<T>(
    traffic: &Traffic,
    mut call: impl FnMut() -> io::Result<T>,
) -> Result<Option<T>, Failure> {
    while !traffic.over() {
        let begun = Instant::now();
        match call() {
            Ok(answer) => return Ok(Some(answer)),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                if begun.elapsed() < Duration::from_millis(1) {
                    nap();
                }
            }
            Err(e) => return Err(Failure::because(CONNECTION, e)),
        }
    }
    Ok(None)
}

fn again_and_again<T>(mut connect: impl FnMut() -> Result<T, Failure>) -> Result<T, Failure> {
    let mut tries = 1;
    loop {
        match connect() {
            Err(_) if tries < TRIES => tries += 1,
            done => return done,
        }
    }
}
