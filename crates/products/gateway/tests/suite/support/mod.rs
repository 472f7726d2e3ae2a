//! The kit of these tests: a guest inside this process, and the records of its gateway.
#![allow(dead_code, unreachable_pub)]

pub mod frames;
pub mod helper;
pub mod namespaces;

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant as Wall};

use pagewire::{Host, Pair};
use pagewire_gateway::{Ask, Builder, Gateway, Guest, GuestConfig, How, Record, Verdict};

/// Far longer than anything here takes.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// An address of documentation (RFC 5737) that the rules of these tests lead to the loopback.
pub const FAR: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);

/// A guest in this process, whose connections to [`FAR`] lead to this machine's loopback.
pub struct World {
    pub inside: Host,
    pub guest: Guest,
    pub gateway: Gateway,
    pub journal: Notes,
}

/// The records that the gateway wrote.
#[derive(Clone, Default)]
pub struct Notes(Arc<Mutex<Vec<Record>>>);

impl Notes {
    pub fn take(&self) -> impl Fn(Record) + Send + Sync + 'static {
        let notes = Arc::clone(&self.0);
        move |record| notes.lock().unwrap().push(record)
    }

    pub fn all(&self) -> Vec<Record> {
        self.0.lock().unwrap().clone()
    }

    /// How the flows ended that are over, in order.
    pub fn ends(&self) -> Vec<How> {
        let all = self.all();
        let ends = all.iter().filter_map(|record| match record {
            Record::Closed { how, .. } => Some(*how),
            _ => None,
        });
        ends.collect()
    }

    /// Waits until this number of flows is over.
    pub fn wait_for_ends(&self, n: usize) -> Vec<How> {
        eventually(|| self.ends().len() >= n);
        self.ends()
    }
}

/// Rules that lead [`FAR`] to the loopback and allow nothing else.
pub fn to_loopback(ask: &Ask) -> Option<Verdict> {
    let to = ask.to;
    if to.ip() == FAR {
        return Some(Verdict::To(SocketAddr::from((Ipv4Addr::LOCALHOST, to.port()))));
    }
    to.ip().is_loopback().then_some(Verdict::Allow)
}

pub fn allow_all(_: &Ask) -> Option<Verdict> {
    Some(Verdict::Allow)
}

/// A socket that takes nothing, as one on its way to somebody silent, and its far end.
pub fn full_socket() -> io::Result<(UnixStream, UnixStream)> {
    let (near, far) = UnixStream::pair()?;
    near.set_nonblocking(true)?;
    far.set_nonblocking(true)?;
    while (&near).write(&[0; 65_536]).is_ok() {}
    Ok((near, far))
}

pub fn far(port: u16) -> SocketAddr {
    (FAR, port).into()
}

pub fn world() -> World {
    world_with(|builder| builder.judge(to_loopback), |config| config)
}

pub fn world_with(
    builder: impl FnOnce(Builder) -> Builder,
    config: impl FnOnce(GuestConfig) -> GuestConfig,
) -> World {
    let (device, inner) = Pair::new().unwrap();
    let journal = Notes::default();
    let gateway = builder(Gateway::builder().journal(journal.take())).start();
    let settings = GuestConfig::new().network("10.0.2.2/24").unwrap();
    let settings = config(settings.network("fd00:2::2/64").unwrap());
    let guest = gateway.add(device, settings).unwrap();
    let inside = Host::builder().device(inner).address("10.0.2.15/24").address("fd00:2::15/64");
    let inside = inside.gateway("10.0.2.2").gateway("fd00:2::2");
    let inside = inside.shutdown_limit(Duration::ZERO).start().unwrap();
    World { inside, guest, gateway, journal }
}

/// A listener on the loopback, and the address by which the guest reaches it.
pub fn server() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, far(port))
}

/// A connection of the guest whose host this is, and its far end.
pub fn joined(inside: &Host) -> (pagewire::TcpStream, TcpStream) {
    let (server, at) = server();
    let inner = inside.connect(at).unwrap();
    let (outer, _) = server.accept().unwrap();
    outer.set_read_timeout(Some(PATIENCE)).unwrap();
    (inner, outer)
}

/// Waits until `is_so`.
#[track_caller]
pub fn eventually(mut is_so: impl FnMut() -> bool) {
    let end = Wall::now() + PATIENCE;
    while !is_so() {
        assert!(Wall::now() < end, "it did not happen in time");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

/// The bytes until the stream ends.
#[track_caller]
pub fn rest(mut from: impl Read) -> Vec<u8> {
    let mut rest = Vec::new();
    from.read_to_end(&mut rest).unwrap();
    rest
}

/// Bytes that show where they belong.
pub fn pattern(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect()
}

/// Connects once somebody listens there.
pub fn connect(to: impl ToSocketAddrs) -> TcpStream {
    let mut stream = None;
    eventually(|| {
        stream = TcpStream::connect(&to).ok();
        stream.is_some()
    });
    stream.unwrap()
}
