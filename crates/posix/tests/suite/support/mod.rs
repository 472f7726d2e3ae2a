//! Two stacks in virtual time, with a descriptor table on each: a thread that waits turns the
//! clock.

#![allow(dead_code, unreachable_pub)]

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use pagewire_device::FaultConfig;
use pagewire_mem::Instant;
use pagewire_posix::{Backend, Descriptors, Errno, Fd, Notices, Signal, SockAddr};
use pagewire_sim::{NodeId, Sim};
use pagewire_stack::{Stack, StackConfig};

/// Addresses of the left and the right stack.
pub const LEFT: &str = "10.0.0.1";
pub const RIGHT: &str = "10.0.0.2";

/// The network, and who is told of events.
pub struct World {
    pub sim: Sim<Stack>,
    notices: Vec<Option<Arc<Notices>>>,
    /// How long other threads are ahead: what happens until then has happened when a call of a stack
    /// returns.
    pub ahead: Duration,
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

    fn dispatch(&mut self) {
        for node in self.sim.nodes().collect::<Vec<_>>() {
            while let Some(event) = self.sim.node_mut(node).poll_event() {
                let at = format!("{node:?}").ends_with("(1)") as usize;
                if let Some(notices) = &self.notices[at] {
                    notices.notify(event);
                }
            }
        }
    }
}

/// One stack of the two.
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
        self.now()
    }

    /// Payload bytes that this stack copied.
    pub fn copied(&self) -> u64 {
        self.with(|stack, _| stack.ledger().ours())
    }

    /// Lets time pass.
    pub fn run(&self, time: Duration) {
        self.world().run(time);
    }
}

impl Backend for Virtual {
    fn attach(&self, notices: Arc<Notices>) {
        self.world().notices[self.at] = Some(notices);
    }

    fn now(&self) -> Instant {
        self.world().sim.now()
    }

    fn with<T>(&self, verb: impl FnOnce(&mut Stack, Instant) -> T) -> T {
        let mut world = self.world();
        let now = world.sim.now();
        let result = verb(world.sim.node_mut(self.node), now);
        world.dispatch();
        if !world.ahead.is_zero() {
            let ahead = world.ahead;
            world.run(ahead);
        }
        result
    }

    fn wait(&self, signal: &Signal, deadline: Option<Instant>) {
        while !signal.is_set() {
            let mut world = self.world();
            let next = world.sim.poll_timeout().unwrap();
            match (next, deadline) {
                (Some(next), Some(deadline)) if next > deadline => {
                    world.sim.drive_bounded(deadline).unwrap();
                    return;
                }
                (None, Some(deadline)) => {
                    world.sim.drive_bounded(deadline).unwrap();
                    return;
                }
                (None, None) => panic!("waits for what will never happen"),
                _ => {}
            }
            world.sim.step().unwrap();
            world.dispatch();
        }
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
    let world =
        Arc::new(Mutex::new(World { sim, notices: vec![None, None], ahead: Duration::ZERO }));
    let files =
        |at: usize| Descriptors::new(Virtual { world: Arc::clone(&world), node: nodes[at], at });
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

/// The error that is not reported yet.
pub fn error(files: &Files, fd: Fd) -> i32 {
    option(files, fd, libc::SOL_SOCKET, libc::SO_ERROR).unwrap()
}

/// Lets some round trips pass.
pub fn settle(files: &Files) {
    files.backend().run(Duration::from_millis(5));
}

/// A listener on the right host.
pub fn listener(right: &Files, port: u16) -> Fd {
    let fd = stream(right);
    right.bind(fd, addr(&format!("{RIGHT}:{port}")).as_bytes()).unwrap();
    right.listen(fd, 8).unwrap();
    fd
}

/// A connection from the left host to the right one, and the listener.
pub fn connected(left: &Files, right: &Files) -> (Fd, Fd, Fd) {
    let listener = listener(right, 80);
    let client = stream(left);
    left.connect(client, addr(&format!("{RIGHT}:80")).as_bytes()).unwrap();
    let (server, _) = right.accept(listener).unwrap();
    (client, server, listener)
}
