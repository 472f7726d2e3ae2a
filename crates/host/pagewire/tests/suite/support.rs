//! The kit of the tests of hosts: hosts on a pair link, connections between them, bytes that tell
//! where they are, an executor that is not tokio, and a device that goes wrong.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::{Pin, pin};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use pagewire::device::{Capabilities, DeviceCounters, DeviceError, PacketBuf, PairEnd, Queues};
use pagewire::memory::{CopyLedger, Region};
use pagewire::rings::{AsyncRings, EngineConfig, QueueConfig, Rings};
use pagewire::services::Instant;
use pagewire::{
    Chunks, Device, Host, HostBuilder, Link, NetworkDown, Pair, SendBuf, Tap, TcpListener,
    TcpStream,
};
use pagewire_testkit::{Need, Netns, can};

/// Far longer than anything takes: a test that hangs is to fail.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn pair() -> (PairEnd, PairEnd) {
    Pair::new().expect("pair")
}

/// A server at 10.0.0.1 and a client at 10.0.0.2, on the two ends of a link.
pub(crate) fn builders_on<S, C>((left, right): (S, C)) -> (HostBuilder, HostBuilder)
where
    S: Device + 'static,
    C: Device + 'static,
{
    // The user's limit on locked memory may be small where tests run.
    let host = || Host::builder().zerocopy_memory(1 << 30);
    let server = host().device(left).address("10.0.0.1/24");
    (server, host().device(right).address("10.0.0.2/24"))
}

pub(crate) fn builders() -> (HostBuilder, HostBuilder) {
    builders_on(pair())
}

pub(crate) fn hosts() -> (Host, Host) {
    hosts_with(|builder| builder)
}

/// Both with the same settings.
pub(crate) fn hosts_with(change: impl Fn(HostBuilder) -> HostBuilder) -> (Host, Host) {
    let (server, client) = builders();
    (change(server).start().expect("server"), change(client).start().expect("client"))
}

/// Hosts that only their callers drive.
pub(crate) fn manual_hosts() -> (Host, Host) {
    hosts_with(HostBuilder::manual)
}

/// A host on two links, and what is at their other ends.
pub(crate) fn on_two_links() -> (Host, PairEnd, PairEnd) {
    let ((here, left), (there, right)) = (pair(), pair());
    let host = Host::builder().device(here).address("10.0.0.1/24");
    let host = host.link(Link::new(there).address("10.0.1.1/24")).start().expect("host");
    (host, left, right)
}

/// The server has two queues.
pub(crate) fn hosts_with_queues() -> (Host, Host) {
    let (left, right) = pair();
    let (server, client) = builders_on((Queues::new(left, 2), right));
    (server.start().expect("server"), client.start().expect("client"))
}

/// Two hosts and a connection.
pub(crate) struct Joined {
    pub(crate) server: Host,
    pub(crate) client: Host,
    pub(crate) listener: TcpListener,
    /// The client's end.
    pub(crate) near: TcpStream,
    /// The server's end.
    pub(crate) far: TcpStream,
}

pub(crate) fn joined() -> Joined {
    join(hosts())
}

pub(crate) fn joined_with(change: impl Fn(HostBuilder) -> HostBuilder) -> Joined {
    join(hosts_with(change))
}

fn join((server, client): (Host, Host)) -> Joined {
    let listener = server.listen("10.0.0.1:9000").expect("listen");
    let (near, far) = connect(&client, &listener);
    Joined { server, client, listener, near, far }
}

impl Joined {
    /// Payload that both hosts have copied.
    pub(crate) fn copied(&self) -> u64 {
        copied(&[&self.server, &self.client])
    }

    /// Another connection.
    pub(crate) fn connect(&self) -> (TcpStream, TcpStream) {
        connect(&self.client, &self.listener)
    }
}

/// A connection: the end of the one that connects, and the listener's.
pub(crate) fn connect(client: &Host, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let near = client.connect(listener.local_addr().expect("bound")).expect("connect");
    let (far, from) = listener.accept().expect("accept");
    assert_eq!(from, near.local_addr().expect("address"));
    for end in [&near, &far] {
        end.set_read_timeout(Some(PATIENCE)).expect("timeout");
        end.set_write_timeout(Some(PATIENCE)).expect("timeout");
    }
    (near, far)
}

/// Both with the same settings, and a connection whose near end has opted in to zero-copy sends.
pub(crate) fn opted_in(change: impl Fn(HostBuilder) -> HostBuilder) -> Joined {
    let ends = joined_with(change);
    ends.near.set_zerocopy(true).expect("option");
    ends
}

/// Payload that hosts have copied.
pub(crate) fn copied(hosts: &[&Host]) -> u64 {
    hosts.iter().map(|host| host.stats().ledger.ours()).sum()
}

/// Bytes that tell where they are.
pub(crate) fn pattern(len: usize) -> Bytes {
    (0..len).map(|i| (i * 31 + i / 251) as u8).collect::<Vec<u8>>().into()
}

/// A file that only its mapping keeps, with such content.
pub(crate) fn mapped_file(content: &[u8]) -> Region {
    let name = format!("pagewire-mapped-{}-{:?}", std::process::id(), thread::current().id());
    let path = std::env::temp_dir().join(name);
    let mut file = File::create_new(&path).expect("file");
    std::fs::remove_file(&path).expect("removed");
    file.write_all(content).expect("write");
    Region::file(&file, 0, content.len()).expect("mapping")
}

/// Sends from a thread of its own, and ends the stream's direction.
pub(crate) fn sends(stream: TcpStream, data: impl Into<SendBuf>) -> thread::JoinHandle<TcpStream> {
    let data = data.into();
    thread::spawn(move || {
        stream.send(data).expect("send");
        stream.shutdown(Shutdown::Write).expect("shutdown");
        stream
    })
}

/// A copy of what was received.
pub(crate) fn bytes_of(all: impl IntoIterator<Item = Chunks>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for chunks in all {
        chunks.for_each_piece(|piece| bytes.extend_from_slice(piece));
    }
    bytes
}

/// The chunks of a stream until its end, as they were received.
pub(crate) fn chunks_of(stream: &TcpStream) -> impl Iterator<Item = Chunks> {
    std::iter::from_fn(|| {
        let chunks = stream.recv_chunks(1 << 20).expect("receive");
        (!chunks.is_empty()).then_some(chunks)
    })
}

/// Receives `len` bytes and releases them.
pub(crate) fn receive(stream: &TcpStream, len: usize) {
    let mut got = 0;
    while got < len {
        let chunks = stream.recv_chunks(1 << 20).expect("receive");
        assert!(!chunks.is_empty(), "the stream ended after {got} bytes");
        got += chunks.len();
    }
    assert_eq!(got, len);
}

/// Sends `len` bytes each way between the ends of a connection at the same time, and checks them.
pub(crate) fn exchange(near: TcpStream, far: TcpStream, len: usize) {
    let talk = |stream: TcpStream, says: Bytes, hears: Bytes| {
        let reader = stream.clone();
        let sender = thread::spawn(move || {
            stream.send(says).expect("send");
            stream.shutdown(Shutdown::Write).expect("shutdown");
        });
        let mut heard = Vec::new();
        { reader }.read_to_end(&mut heard).expect("read");
        sender.join().expect("sender");
        assert!(heard == hears, "what was sent arrives");
    };
    let one = pattern(len + 1);
    let (one, other) = (one.slice(..len), one.slice(1..));
    let (says, hears) = (other.clone(), one.clone());
    let there = thread::spawn(move || talk(far, says, hears));
    talk(near, one, other);
    there.join().expect("far end");
}

pub(crate) fn kind<T: std::fmt::Debug>(result: io::Result<T>) -> io::ErrorKind {
    result.expect_err("an error").kind()
}

/// Calls on a host that wait until it is down, each on a thread of its own.
pub(crate) fn waits(
    host: &Host,
    stream: TcpStream,
) -> [(&'static str, thread::JoinHandle<io::Error>); 3] {
    type Wait = Box<dyn FnOnce() -> io::Error + Send>;
    let listener = host.listen("10.0.0.1:81").expect("listen");
    let socket = host.udp("10.0.0.1:0").expect("socket");
    let waits: [(_, Wait); 3] = [
        ("recv", Box::new(move || stream.recv_chunks(1).map(drop).expect_err("down"))),
        ("accept", Box::new(move || listener.accept().map(drop).expect_err("down"))),
        ("recv_from", Box::new(move || socket.recv_from(&mut [0]).map(drop).expect_err("down"))),
    ];
    waits.map(|(what, wait)| (what, thread::spawn(wait)))
}

/// How calls fail on a host that is down.
pub(crate) fn fails(host: &Host) -> [(&'static str, io::Error); 4] {
    [
        ("connect", host.connect("10.0.0.2:80").map(drop)),
        ("listen", host.listen("10.0.0.1:82").map(drop)),
        ("udp", host.udp("10.0.0.1:0").map(drop)),
        ("check", host.check()),
    ]
    .map(|(what, done)| (what, done.expect_err("down")))
}

/// Why a call failed on a host that is down.
pub(crate) fn cause_of(what: &str, error: &io::Error) -> String {
    assert_eq!(error.kind(), io::ErrorKind::NetworkDown, "{what}: {error}");
    let down = error.get_ref().and_then(|inner| inner.downcast_ref::<NetworkDown>());
    down.expect("a cause").cause.clone()
}

/// Says that it was called.
pub(crate) struct Called(pub(crate) mpsc::Sender<()>);

impl Wake for Called {
    fn wake(self: Arc<Self>) {
        let _ = self.0.send(());
    }
}

/// Runs a task on this thread, which is polled only when it was woken.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let (says, hears) = mpsc::channel();
    let waker = Waker::from(Arc::new(Called(says)));
    let (mut cx, mut future) = (Context::from_waker(&waker), pin!(future));
    loop {
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(done) => return done,
            Poll::Pending => hears.recv_timeout(PATIENCE).expect("it is woken"),
        }
    }
}

/// Polls once: what the future submits is submitted.
pub(crate) fn poll_once<T>(future: &mut Pin<&mut impl Future<Output = T>>) {
    let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending(), "nothing has come yet");
}

/// Private memory that a queue may receive into.
pub(crate) fn private(len: usize) -> QueueConfig {
    QueueConfig::new(Region::memfd("rings-test", len).expect("memory"))
}

pub(crate) fn rings(host: &Host) -> Rings {
    host.rings(EngineConfig::new(private(1 << 20))).expect("rings")
}

/// Registers memory to send from, which begins with such bytes.
pub(crate) fn register_send(rings: &AsyncRings, bytes: &[u8]) -> u16 {
    let memory = Region::memfd_shared("rings-send", 1 << 20).expect("memory");
    memory.copy_shared_in(0, bytes).expect("room");
    rings.register_send(memory).expect("registered")
}

/// Waits until `completions` completions were posted, taken or not.
pub(crate) fn until_completed(rings: &AsyncRings, completions: u64) {
    let begun = std::time::Instant::now();
    while rings.counters().completions < completions {
        assert!(begun.elapsed() < PATIENCE, "{:?}", rings.counters());
        thread::yield_now();
    }
}

/// Runs `f` on a thread with a network namespace of its own, with a tap at the first address and a host
/// at the second.
pub(crate) fn on_a_tap(ours: &str, hosts: &str, f: impl FnOnce(Host) + Send) {
    if !can(&[Need::Tap]) {
        return;
    }
    Netns::new().inside(|| {
        let tap = Tap::builder("pwtest0").host_address(ours).open().expect("tap");
        let host = Host::builder().device(tap).address(hosts).zerocopy_memory(1 << 30);
        f(host.start().expect("host"));
    });
}

/// An end of a pair link that goes wrong, when it is asked to transmit or to receive.
pub(crate) struct Odd<F> {
    pub(crate) end: PairEnd,
    pub(crate) acts: F,
    /// The descriptor to wait on, instead of none.
    pub(crate) ready: Option<io::PipeReader>,
}

impl<F: FnMut() -> Result<(), DeviceError> + Send> Device for Odd<F> {
    fn capabilities(&self) -> &Capabilities {
        self.end.capabilities()
    }

    fn counters(&self) -> DeviceCounters {
        self.end.counters()
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.ready.as_ref().map(AsFd::as_fd)
    }

    fn transmit(
        &mut self,
        now: Instant,
        frames: &mut VecDeque<PacketBuf>,
        ledger: &mut CopyLedger,
    ) -> Result<(), DeviceError> {
        (self.acts)()?;
        self.end.transmit(now, frames, ledger)
    }

    fn receive(
        &mut self,
        now: Instant,
        frames: &mut VecDeque<PacketBuf>,
        max: usize,
        ledger: &mut CopyLedger,
    ) -> Result<usize, DeviceError> {
        (self.acts)()?;
        self.end.receive(now, frames, max, ledger)
    }
}
