//! The loads of `bench gateway`: kernel sockets at both ends, in the guest's namespace and in the far one, send
//! through an engine. Each load has threads of its own, which enter their namespace first.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::engines::EngineGuest;
use super::shows::Shows;
use super::world::World;
use crate::failure::{Because, Failure};
use crate::kit::kernel::begin;
use crate::kit::machine::joined;
use crate::kit::meter::{Round, Samples, percentile};
use crate::kit::namespace::NetNs;

/// Connections side by side where their number matters.
pub(super) const PARALLEL: usize = 64;

/// Bytes of a request and of its answer.
pub(super) const REQUEST: usize = 64;

/// Idle connections whose memory is measured.
pub(super) const IDLE: usize = 1000;

/// Bytes of single reads and writes.
const MESSAGE: usize = 256 << 10;

/// Windows open, and processes wake up, before the measured time begins.
const WARM_UP: Duration = Duration::from_millis(300);

/// How often a thread that waits checks whether it is to stop.
const CHECK_TIME: Duration = Duration::from_millis(20);

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// The direction of the bytes, as seen from the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum BulkDirection {
    Out,
    In,
}

/// Who connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Client {
    /// The guest, with the far side.
    Guest,
    /// A program of the machine, with a published port of the guest.
    Machine,
}

/// The two ends of a load.
pub(super) struct Ends<'a> {
    guest: &'a EngineGuest,
    /// The server's namespace, and the address that it listens on.
    served: (&'a NetNs, SocketAddr),
    /// The client's namespace.
    asked: &'a NetNs,
    /// The server's address for the client; `None`: the one that the server listens on.
    to: Option<SocketAddr>,
    /// The first bytes of the client: they show a name, or are none.
    head: Vec<u8>,
}

impl<'a> Ends<'a> {
    /// `shows`: what connections of the guest begin with.
    pub(super) fn of(
        world: &'a World,
        guest: &'a EngineGuest,
        client: Client,
        shows: Option<Shows>,
    ) -> Self {
        match client {
            Client::Guest => {
                let (far, ip) = guest.far(world);
                let head = shows.map(Shows::head).unwrap_or_default();
                Self { guest, served: (far, (ip, 0).into()), asked: &guest.ns, to: None, head }
            }
            Client::Machine => {
                let (asked, to) = guest.published(world);
                let on = (Ipv4Addr::UNSPECIFIED, guest.port).into();
                let head = Vec::new();
                Self { guest, served: (&guest.ns, on), asked, to: Some(to), head }
            }
        }
    }

    /// A connection of the client, which has shown its name.
    fn dial(&self, to: SocketAddr) -> io::Result<TcpStream> {
        let mut stream = prompt(TcpStream::connect_timeout(&to, PATIENCE)?)?;
        stream.write_all(&self.head)?;
        Ok(stream)
    }

    /// The same with a server that sends back what comes.
    fn dial_echo(&self, to: SocketAddr) -> io::Result<TcpStream> {
        let mut stream = self.dial(to)?;
        stream.read_exact(&mut vec![0; self.head.len()])?;
        Ok(stream)
    }

    /// A listener of the server, and its address for the client.
    fn listen(&self) -> Result<(TcpListener, SocketAddr), Failure> {
        let (ns, on) = self.served;
        let listener = ns.inside(|| TcpListener::bind(on).because("a listener"))?;
        listener.set_nonblocking(true).because("a listener")?;
        let own = listener.local_addr().because("a listener")?;
        Ok((listener, self.to.unwrap_or(own)))
    }
}

/// The result of a round.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GatewaySample {
    pub(super) round: Round,
    /// CPU time of the engine for the bytes, unless it is the kernel.
    pub(super) cpu: Option<Duration>,
    /// Nothing where only bytes are measured.
    pub(super) small: Option<SmallRates>,
}

impl GatewaySample {
    /// Seconds of CPU for each GiB.
    pub(super) fn cpu_s_per_gib(&self) -> Option<f64> {
        let gib = self.round.bytes as f64 / f64::from(1 << 30);
        self.cpu.map(|cpu| cpu.as_secs_f64() / gib.max(1e-9))
    }
}

/// Rates and round trips of a round.
#[derive(Clone, Copy, Debug)]
pub(super) struct SmallRates {
    pub(super) connections_per_s: f64,
    pub(super) requests_per_s: f64,
    pub(super) rtt_us: f64,
    /// Nothing for published ports.
    pub(super) udp_rtt_us: Option<f64>,
}

/// The state that the threads of a load share.
#[derive(Default)]
struct LoadState {
    stop: AtomicBool,
    count: AtomicU64,
}

impl LoadState {
    fn is_running(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    fn add(&self, n: usize) {
        self.count.fetch_add(n as u64, Ordering::Relaxed);
    }

    /// Waits until something was counted: an engine may take its time until connections of its own stand.
    fn wait_for_first(&self) {
        let end = Instant::now() + PATIENCE;
        while self.count.load(Ordering::Relaxed) == 0 && Instant::now() < end {
            std::thread::park_timeout(CHECK_TIME);
        }
    }

    /// Lets the load run, and stops it: how much it did in the measured time, how long that was, and
    /// what `cpu` said at its begin and at its end.
    fn measured<T>(&self, seconds: f64, cpu: impl Fn() -> T) -> (u64, Duration, T, T) {
        std::thread::park_timeout(WARM_UP);
        let (begun, before, from) = (Instant::now(), cpu(), self.count.load(Ordering::Relaxed));
        let end = begun + Duration::from_secs_f64(seconds);
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            std::thread::park_timeout(left.max(Duration::from_micros(100)));
        }
        let count = self.count.load(Ordering::Relaxed) - from;
        let measured = (count, begun.elapsed(), before, cpu());
        self.stop.store(true, Ordering::Relaxed);
        measured
    }
}

/// Ends a load also when a part of it fails.
struct Stop<'a>(&'a LoadState);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

/// Runs a load with `threads` threads on each side: `serve` with the server's listener, `ask` in
/// the client's namespace with the server's address. The load ends when `wait` says so, or with the last `ask`.
fn loaded<A: Send, W>(
    ends: &Ends<'_>,
    threads: usize,
    serve: impl Fn(&TcpListener, &LoadState) + Sync,
    ask: impl Fn(SocketAddr, &LoadState) -> Result<A, Failure> + Sync,
    wait: impl FnOnce(&LoadState) -> W,
) -> Result<(Vec<A>, W), Failure> {
    let (listener, to) = ends.listen()?;
    let shared = LoadState::default();
    std::thread::scope(|scope| {
        let _stop = Stop(&shared);
        for _ in 0..threads {
            scope.spawn(|| serve(&listener, &shared));
        }
        let asking = || -> Result<A, Failure> {
            ends.asked.enter()?;
            ask(to, &shared)
        };
        let asking: Vec<_> = (0..threads).map(|_| scope.spawn(asking)).collect();
        let waited = wait(&shared);
        let asked = asking.into_iter().map(joined).collect::<Result<_, _>>()?;
        Ok((asked, waited))
    })
}

/// A connection that delays no bytes, and on which no call waits for ever.
fn prompt(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Accepts until the end of the load.
fn accept(listener: &TcpListener, shared: &LoadState) -> Option<TcpStream> {
    while shared.is_running() {
        let accepted = listener.accept().and_then(|(stream, _)| {
            stream.set_nonblocking(false)?;
            prompt(stream)
        });
        match accepted {
            Ok(stream) => return Some(stream),
            Err(_) => wait_for(listener, CHECK_TIME),
        }
    }
    None
}

/// Waits until a descriptor is readable.
fn wait_for(fd: &impl std::os::fd::AsFd, time: Duration) {
    let time = Timespec { tv_sec: 0, tv_nsec: i64::from(time.subsec_nanos()) as _ };
    // A failure only makes the next check early.
    let _ = poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&time));
}

fn check_time() -> Timespec {
    Timespec { tv_sec: 0, tv_nsec: CHECK_TIME.subsec_nanos().into() }
}

/// Waits until one of the connections, or the listener, is readable; whether each is, the listener last.
fn readable(listener: Option<&TcpListener>, all: &[TcpStream]) -> Vec<bool> {
    let mut fds: Vec<_> = all.iter().map(|one| PollFd::new(one, PollFlags::IN)).collect();
    fds.extend(listener.map(|listener| PollFd::new(listener, PollFlags::IN)));
    let _ = poll(&mut fds, Some(&check_time()));
    fds.iter().map(|fd| !fd.revents().is_empty()).collect()
}

/// Bytes in one direction, over several connections.
pub(super) fn bulk(
    ends: &Ends<'_>,
    client: Client,
    direction: BulkDirection,
    flows: usize,
    seconds: f64,
) -> Result<GatewaySample, Failure> {
    let client_pours = (direction == BulkDirection::Out) == (client == Client::Guest);
    let serve = |listener: &TcpListener, shared: &LoadState| {
        while let Some(stream) = accept(listener, shared) {
            if client_pours { drain(stream, shared) } else { pour(stream, shared) }
        }
    };
    let ask = |to, shared: &LoadState| {
        let stream = ends.dial(to).because("a connection through the engine")?;
        if client_pours {
            pour(stream, shared)
        } else {
            drain(stream, shared)
        }
        Ok(())
    };
    let wait = |shared: &LoadState| shared.measured(seconds, || ends.guest.cpu());
    let (_, (bytes, time, before, after)) = loaded(ends, flows, serve, ask, wait)?;
    let cpu = before.zip(after).map(|(before, after)| after.saturating_sub(before));
    let round = Round { bytes, time, receiver_cpu: Duration::ZERO };
    Ok(GatewaySample { round, cpu, small: None })
}

fn pour(mut stream: TcpStream, shared: &LoadState) {
    let bytes = vec![0x55; MESSAGE];
    while shared.is_running() && stream.write_all(&bytes).is_ok() {}
}

fn drain(mut stream: TcpStream, shared: &LoadState) {
    let mut buffer = vec![0; MESSAGE];
    while shared.is_running() {
        match stream.read(&mut buffer) {
            Ok(0) => return,
            Ok(n) => shared.add(n),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// Connections a second: 64 at a time, each accepted and closed by the server, then by the client. Where clients
/// begin with a name, the server waits for it.
pub(super) fn connections(ends: &Ends<'_>, seconds: f64) -> Result<f64, Failure> {
    let serve = |listener: &TcpListener, shared: &LoadState| {
        let mut all: Vec<TcpStream> = Vec::new();
        while shared.is_running() {
            if let Ok((stream, _)) = listener.accept() {
                if !ends.head.is_empty() && stream.set_nonblocking(true).is_ok() {
                    all.push(stream);
                }
                continue;
            }
            let mut ready = readable(Some(listener), &all).into_iter();
            all.retain_mut(|stream| ready.next() != Some(true) || !has_come(stream));
        }
    };
    let ask = |to, shared: &LoadState| connect_and_close(to, &ends.head, shared);
    let wait = |shared: &LoadState| shared.measured(seconds, || ());
    let (_, (count, time, ..)) = loaded(ends, 1, serve, ask, wait)?;
    Ok(count as f64 / time.as_secs_f64())
}

/// Takes what has come on a connection; whether it was anything, or its end.
fn has_come(stream: &mut TcpStream) -> bool {
    let read = stream.read(&mut [0; 4096]);
    !matches!(read, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

/// A connection of a client that shows a name and waits for the server's close.
struct Short {
    stream: TcpStream,
    /// The name was not sent yet.
    is_mute: bool,
}

impl Short {
    fn begin(to: SocketAddr, head: &[u8]) -> Result<Self, Failure> {
        let stream = begin(None, to).because("a connection through the engine")?;
        Ok(Self { stream, is_mute: !head.is_empty() })
    }

    /// Goes on where the socket is ready; whether the server has closed; an error: the connection has failed.
    fn go_on(&mut self, head: &[u8]) -> io::Result<bool> {
        let done = if self.is_mute {
            self.stream.write_all(head).map(|()| self.is_mute = false).map(|()| false)
        } else {
            self.stream.read(&mut [0]).map(|_| true)
        };
        match done {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            done => done,
        }
    }
}

fn connect_and_close(to: SocketAddr, head: &[u8], shared: &LoadState) -> Result<(), Failure> {
    let all = (0..PARALLEL).map(|_| Short::begin(to, head));
    let mut all = all.collect::<Result<Vec<_>, _>>()?;
    while shared.is_running() {
        for at in ready(&all) {
            let Some(one) = all.get_mut(at) else { continue };
            match one.go_on(head) {
                Ok(false) => continue,
                Ok(true) => shared.add(1),
                // Refused or reset: not counted, and tried again.
                Err(_) => {}
            }
            *one = Short::begin(to, head)?;
        }
    }
    Ok(())
}

/// Waits until some go on; their indexes.
fn ready(all: &[Short]) -> Vec<usize> {
    let event = |one: &Short| if one.is_mute { PollFlags::OUT } else { PollFlags::IN };
    let mut fds: Vec<_> = all.iter().map(|one| PollFd::new(&one.stream, event(one))).collect();
    let _ = poll(&mut fds, Some(&check_time()));
    let is_ready = |(at, fd): (usize, &PollFd<'_>)| (!fd.revents().is_empty()).then_some(at);
    fds.iter().enumerate().filter_map(is_ready).collect()
}

/// Requests a second: 64 bytes there and back, on 64 connections.
pub(super) fn requests(ends: &Ends<'_>, seconds: f64) -> Result<f64, Failure> {
    let serve = |listener: &TcpListener, shared: &LoadState| {
        echo(Some(listener), Vec::new(), shared, |_| {});
    };
    let ask = |to, shared: &LoadState| {
        let (mut all, mut buffer) = (Vec::with_capacity(PARALLEL), [0x55; REQUEST]);
        for _ in 0..PARALLEL {
            let mut stream = ends.dial_echo(to).because("a connection through the engine")?;
            // After an answer the engine has accepted. slirp4netns has a backlog of one, and the SYN of a client that
            // finds no room there is repeated after a second.
            let answered = stream.write_all(&buffer).and_then(|()| stream.read_exact(&mut buffer));
            answered.because("a first request")?;
            all.push(stream);
        }
        for stream in &mut all {
            stream.write_all(&[0x55; REQUEST]).because("a request")?;
        }
        echo(None, all, shared, |n| shared.add(n));
        Ok(())
    };
    let wait = |shared: &LoadState| {
        shared.wait_for_first();
        shared.measured(seconds, || ())
    };
    let (_, (bytes, time, ..)) = loaded(ends, 1, serve, ask, wait)?;
    Ok(bytes as f64 / REQUEST as f64 / time.as_secs_f64())
}

/// Sends back what comes, on each connection, and on those that are accepted meanwhile.
fn echo(
    listener: Option<&TcpListener>,
    mut all: Vec<TcpStream>,
    shared: &LoadState,
    note: impl Fn(usize),
) {
    for stream in &all {
        let _ = stream.set_nonblocking(true);
    }
    let mut buffer = [0; 4096];
    while shared.is_running() {
        let ready = readable(listener, &all);
        let comes = ready.len() > all.len() && ready.last() == Some(&true);
        let mut ready = ready.into_iter();
        // A published port may bring a client of the last load, which has left.
        all.retain_mut(|stream| {
            if ready.next() != Some(true) {
                return true;
            }
            let n = match stream.read(&mut buffer) {
                Ok(n) => n,
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            };
            note(n);
            let _ = stream.write_all(buffer.get(..n).unwrap_or_default());
            n > 0
        });
        if let Some(listener) = listener.filter(|_| comes)
            && let Ok((stream, _)) = listener.accept()
        {
            let _ = stream.set_nodelay(true).and_then(|()| stream.set_nonblocking(true));
            all.push(stream);
        }
    }
}

/// The median of round trips of 64 bytes by TCP, in microseconds.
pub(super) fn round_trip(ends: &Ends<'_>, seconds: f64) -> Result<f64, Failure> {
    let serve = |listener: &TcpListener, shared: &LoadState| {
        while let Some(mut stream) = accept(listener, shared) {
            let mut buffer = [0; REQUEST];
            while stream.read_exact(&mut buffer).is_ok() && stream.write_all(&buffer).is_ok() {}
        }
    };
    let ask = |to, _: &LoadState| {
        let mut stream = ends.dial_echo(to).because("a connection through the engine")?;
        let mut buffer = [0x55; REQUEST];
        sampled(seconds, || {
            stream.write_all(&buffer)?;
            stream.read_exact(&mut buffer)
        })
    };
    let (medians, ()) = loaded(ends, 1, serve, ask, |_| ())?;
    Ok(medians.into_iter().sum())
}

/// The same by UDP; a lost datagram costs its time limit.
pub(super) fn udp_round_trip(
    world: &World,
    guest: &EngineGuest,
    seconds: f64,
) -> Result<f64, Failure> {
    let (far, ip) = guest.far(world);
    let server = far.inside(|| UdpSocket::bind((ip, 0)).because("a datagram socket"))?;
    server.set_read_timeout(Some(CHECK_TIME)).because("a datagram socket")?;
    let to = server.local_addr().because("a datagram socket")?;
    let shared = LoadState::default();
    std::thread::scope(|scope| {
        let _stop = Stop(&shared);
        let (shared, server) = (&shared, &server);
        scope.spawn(move || {
            let mut buffer = [0; 2048];
            while shared.is_running() {
                if let Ok((n, from)) = server.recv_from(&mut buffer) {
                    let _ = server.send_to(buffer.get(..n).unwrap_or_default(), from);
                }
            }
        });
        let asking = scope.spawn(move || -> Result<f64, Failure> {
            guest.ns.enter()?;
            let socket = UdpSocket::bind("0.0.0.0:0").because("a datagram socket")?;
            let set = socket.set_read_timeout(Some(Duration::from_millis(200)));
            set.and_then(|()| socket.connect(to)).because("a datagram socket")?;
            let mut buffer = [0x55; REQUEST];
            // The first may be lost while addresses are resolved.
            let mut asked = |tries: usize| {
                let mut last = Ok(());
                for _ in 0..tries {
                    last = socket.send(&buffer).and_then(|_| socket.recv(&mut buffer)).map(drop);
                    if last.is_ok() {
                        break;
                    }
                }
                last
            };
            asked(10).because("a datagram through the engine")?;
            sampled(seconds, || asked(10))
        });
        let median = joined(asking);
        shared.stop.store(true, Ordering::Relaxed);
        median
    })
}

/// The median time of a call, in microseconds, after a warm-up.
fn sampled(seconds: f64, mut call: impl FnMut() -> io::Result<()>) -> Result<f64, Failure> {
    let mut samples = Samples::new(WARM_UP, seconds);
    loop {
        let started = Instant::now();
        call().because("a round trip through the engine")?;
        if samples.add(started) {
            return Ok(f64::from(percentile(&samples.sorted(), 0.5)) / 1000.0);
        }
    }
}

/// The engine's memory while a thousand connections are idle, in bytes; `None` if it is the kernel.
pub(super) fn idle(ends: &Ends<'_>) -> Result<Option<u64>, Failure> {
    let serve = |listener: &TcpListener, shared: &LoadState| {
        let _held: Vec<_> = (0..IDLE).map_while(|_| accept(listener, shared)).collect();
        while shared.is_running() {
            std::thread::park_timeout(CHECK_TIME);
        }
    };
    let ask = |to, _: &LoadState| {
        let mut held = Vec::with_capacity(IDLE);
        for _ in 0..IDLE {
            held.push(ends.dial(to).because("an idle connection through the engine")?);
        }
        // Time for freed memory to be given back.
        std::thread::park_timeout(WARM_UP);
        Ok(ends.guest.rss())
    };
    let (rss, ()) = loaded(ends, 1, serve, ask, |_| ())?;
    Ok(rss.into_iter().flatten().next())
}
