//! Two stacks in virtual time, with a descriptor table on each: a thread that waits turns the
//! clock.

#![allow(dead_code, unreachable_pub)]

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;
use std::time::Duration;

use pagewire_device::FaultConfig;
use pagewire_mem::Instant;
use pagewire_posix::sockets::{self, Blocking, Clock, Runtime, Waiters};
use pagewire_posix::{Backend, Descriptors, Errno, Events, Fd, Numbering, PollFd, SockAddr};
use pagewire_stack::{Stack, StackConfig};
use pagewire_testkit::sim::{NodeId, Sim};

/// Addresses of the left and the right stack.
pub const LEFT: &str = "10.0.0.1";
pub const RIGHT: &str = "10.0.0.2";

/// The network, and who waits for the sockets of either stack.
pub struct World {
    pub sim: Sim<Stack>,
    waiters: [Waiters; 2],
    /// To be called when the world is unlocked.
    wakes: Vec<Waker>,
    /// How long other threads are ahead: what happens until then has happened when a call of a stack
    /// returns.
    pub ahead: Duration,
    /// How many descriptors are open, if the numbers of new ones are all too high.
    pub high_numbers: Option<usize>,
}

impl World {
    fn run(&mut self, time: Duration) {
        let until = self.sim.now() + time;
        while self.sim.poll_timeout().unwrap().is_some_and(|at| at <= until) {
            self.sim.step().unwrap();
            self.dispatch();
        }
        self.sim.drive_bounded(until).unwrap();
        self.dispatch();
    }

    /// Goes on to what happens next.
    fn step(&mut self) {
        let timer = self.waiters.iter().filter_map(Waiters::next_timer).min();
        match (self.sim.poll_timeout().unwrap(), timer) {
            (None, None) => panic!("waits for what will never happen"),
            (Some(next), Some(timer)) if next > timer => self.sim.drive_bounded(timer).unwrap(),
            (None, Some(timer)) => self.sim.drive_bounded(timer).unwrap(),
            _ => drop(self.sim.step().unwrap()),
        }
        self.dispatch();
    }

    fn dispatch(&mut self) {
        for (node, waiters) in
            self.sim.nodes().collect::<Vec<_>>().into_iter().zip(&mut self.waiters)
        {
            while let Some(event) = self.sim.node_mut(node).poll_event() {
                waiters.take(event.socket, event.gained, &mut self.wakes);
            }
            waiters.take_timers(self.sim.now(), &mut self.wakes);
        }
    }
}

/// The runtime of one of the two stacks.
#[derive(Clone)]
pub struct Virtual {
    world: Arc<Mutex<World>>,
    node: NodeId,
    at: usize,
}

impl Virtual {
    pub fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    /// The virtual clock.
    pub fn clock(&self) -> Instant {
        self.world().sim.now()
    }

    pub fn with<T>(&self, verb: impl FnOnce(&mut Stack, Instant) -> T) -> T {
        self.enter(|stack, clock, _| verb(stack, clock.now())).unwrap()
    }

    /// Payload bytes that this stack copied.
    pub fn copied(&self) -> u64 {
        self.with(|stack, _| stack.ledger().ours())
    }

    /// Lets time pass.
    pub fn run(&self, time: Duration) {
        let mut world = self.world();
        world.run(time);
        unlock(world);
    }
}

fn unlock(mut world: MutexGuard<'_, World>) {
    let wakes = std::mem::take(&mut world.wakes);
    drop(world);
    wakes.into_iter().for_each(Waker::wake);
}

impl core::fmt::Debug for Virtual {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("Virtual").field(&self.at).finish()
    }
}

impl Backend for Virtual {}

impl Numbering for Virtual {
    fn open(&self, _: Fd) -> Result<Option<Fd>, Errno> {
        let open = &mut self.world().high_numbers;
        *open = open.map(|open| open + 1);
        Ok(open.map(|_| Fd::MAX))
    }

    fn claim(&self, _: Fd) -> Result<(), Errno> {
        Ok(())
    }

    fn close(&self, _: Fd) {
        let open = &mut self.world().high_numbers;
        *open = open.map(|open| open - 1);
    }
}

impl Runtime for Virtual {
    fn enter<T>(
        &self,
        op: impl FnOnce(&mut Stack, &Clock<'_>, &mut Waiters) -> T,
    ) -> io::Result<T> {
        let mut locked = self.world();
        let world = &mut *locked;
        let clock = Clock::at(world.sim.now());
        let result = op(world.sim.node_mut(self.node), &clock, &mut world.waiters[self.at]);
        world.dispatch();
        if !world.ahead.is_zero() {
            world.run(world.ahead);
        }
        unlock(locked);
        Ok(result)
    }
}

impl Blocking for Virtual {
    fn block_on<F: Future>(&self, future: F) -> io::Result<F::Output> {
        Ok(sockets::block_on(future, |signal| {
            while !signal.is_set() {
                let mut world = self.world();
                world.step();
                unlock(world);
            }
        }))
    }
}

pub type Files = Descriptors<Virtual>;

/// Two hosts on one link of 1 ms each way.
pub fn pair() -> (Files, Files) {
    pair_with(|_| {})
}

/// The same, with other settings.
pub fn pair_with(change: impl Fn(&mut StackConfig)) -> (Files, Files) {
    let mut sim = Sim::new(1);
    let mut nodes = Vec::new();
    for (v4, v6) in [("10.0.0.1/24", "fd00::1/64"), ("10.0.0.2/24", "fd00::2/64")] {
        let mut config = sim.stack_config(v4.parse().unwrap());
        config.addresses.push(v6.parse().unwrap());
        change(&mut config);
        let stack = Stack::new(sim.now(), config).unwrap();
        let faults = FaultConfig::delayed(Duration::from_micros(500));
        nodes.push(sim.add(stack, faults).unwrap());
    }
    let (waiters, wakes) = Default::default();
    let world = World { sim, waiters, wakes, ahead: Duration::ZERO, high_numbers: None };
    let world = Arc::new(Mutex::new(world));
    let files = |at: usize| {
        let backend = Virtual { world: Arc::clone(&world), node: nodes[at], at };
        Descriptors::with_numbering(backend.clone(), Box::new(backend))
    };
    (files(0), files(1))
}

/// A `sockaddr` from text.
pub fn addr(text: &str) -> SockAddr {
    SockAddr::from(text.parse::<SocketAddr>().unwrap())
}

pub fn stream(files: &Files) -> Fd {
    files.socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap()
}

pub fn datagram(files: &Files) -> Fd {
    files.socket(libc::AF_INET, libc::SOCK_DGRAM, 0).unwrap()
}

pub fn stream6(files: &Files) -> Fd {
    files.socket(libc::AF_INET6, libc::SOCK_STREAM, 0).unwrap()
}

pub fn datagram6(files: &Files) -> Fd {
    files.socket(libc::AF_INET6, libc::SOCK_DGRAM, 0).unwrap()
}

/// A new socket that is bound.
pub fn bound(files: &Files, new: impl Fn(&Files) -> Fd, at: &str) -> Fd {
    let fd = new(files);
    files.bind(fd, addr(at).as_bytes()).unwrap();
    fd
}

/// A new stream that is connected.
pub fn connect(files: &Files, to: &str) -> Fd {
    let fd = stream(files);
    files.connect(fd, addr(to).as_bytes()).unwrap();
    fd
}

pub fn set_nonblocking(files: &Files, fd: Fd) {
    files.fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK).unwrap();
}

/// An option whose value is an `int`.
pub fn option(files: &Files, fd: Fd, level: i32, name: i32) -> Result<i32, Errno> {
    let mut value = [0; 4];
    files.getsockopt(fd, level, name, &mut value)?;
    Ok(i32::from_ne_bytes(value))
}

pub fn set(files: &Files, fd: Fd, level: i32, name: i32, value: i32) -> Result<(), Errno> {
    files.setsockopt(fd, level, name, &value.to_ne_bytes())
}

/// Opts in to notifications of sends by reference.
pub fn opt_in(files: &Files, fd: Fd) {
    set(files, fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY, 1).unwrap();
}

/// Sets `SO_LINGER` to `seconds` seconds: 0 makes a close a reset.
pub fn linger(files: &Files, fd: Fd, seconds: i32) {
    let value = [1, seconds].map(i32::to_ne_bytes).concat();
    files.setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &value).unwrap();
}

/// Closes a connection by a reset.
pub fn reset(files: &Files, fd: Fd) {
    linger(files, fd, 0);
    files.close(fd).unwrap();
}

/// The answer of poll about a file, without a wait.
pub fn ready(files: &Files, fd: Fd, events: Events) -> Events {
    let mut fds = [PollFd { fd, events, ..PollFd::default() }];
    files.poll(&mut fds, Some(Duration::ZERO)).unwrap();
    fds[0].revents
}

/// A piece of ancillary data, as C lays it out.
pub fn control_message(level: i32, kind: i32, data: &[u8]) -> Vec<u8> {
    let mut out = (16 + data.len()).to_ne_bytes().to_vec();
    out.extend_from_slice(&level.to_ne_bytes());
    out.extend_from_slice(&kind.to_ne_bytes());
    out.extend_from_slice(data);
    out.resize(out.len().next_multiple_of(8), 0);
    out
}

/// Lets `ms` milliseconds pass.
pub fn pass(files: &Files, ms: u64) {
    files.backend().run(Duration::from_millis(ms));
}

/// The error that is not reported yet.
pub fn error(files: &Files, fd: Fd) -> i32 {
    option(files, fd, libc::SOL_SOCKET, libc::SO_ERROR).unwrap()
}

/// Lets some round trips pass.
pub fn settle(files: &Files) {
    pass(files, 5);
}

/// A listener on the right host.
pub fn listener(right: &Files, port: u16) -> Fd {
    let fd = bound(right, stream, &format!("{RIGHT}:{port}"));
    right.listen(fd, 8).unwrap();
    fd
}

/// Two hosts, and a connection: the client's end on the left one, the server's, and the listener.
pub fn linked() -> (Files, Files, [Fd; 3]) {
    let (left, right) = pair();
    let (client, server, listener) = connected(&left, &right);
    (left, right, [client, server, listener])
}

/// A connection from the left host to the right one, and the listener.
pub fn connected(left: &Files, right: &Files) -> (Fd, Fd, Fd) {
    let listener = listener(right, 80);
    let client = connect(left, &format!("{RIGHT}:80"));
    let (server, _) = right.accept(listener).unwrap();
    (client, server, listener)
}
