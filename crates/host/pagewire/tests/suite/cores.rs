//! Hosts of several cores: sockets on all shards or on one, packets that come in at any shard, and the end of all.

use std::collections::{BTreeMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use pagewire::counts::DropReason;
use pagewire::device::{Capabilities, DeviceCounters, DeviceError, FaultRng, PacketBuf, PairEnd};
use pagewire::memory::CopyLedger;
use pagewire::proxy::{ForwardConfig, Proxy};
use pagewire::services::Instant;
use pagewire::{
    BindOptions, ConnectOptions, Cores, Device, Host, Link, StartError, TcpStream, UdpSocket,
};
use pagewire_stack::limits::STRAY_BACKLOG;
use pagewire_testkit::built;
use pagewire_testkit::frames::{fix_v4, ip, received};
use tokio::runtime::{Builder, Handle};

use crate::support::{Odd, PATIENCE, pair};

const SERVER: &str = "10.0.0.1:80";

/// A device of several queues: the other side's frames come in at a queue that chance draws for each.
struct Spread {
    device: PairEnd,
    queues: Vec<VecDeque<PacketBuf>>,
    chance: FaultRng,
}

/// A queue of [`Spread`].
struct SpreadQueue {
    spread: Arc<Mutex<Spread>>,
    index: usize,
    capabilities: Capabilities,
}

fn spread(device: PairEnd, count: usize, seed: u64) -> impl Iterator<Item = SpreadQueue> {
    let capabilities = device.capabilities().clone();
    let queues = (0..count).map(|_| VecDeque::new()).collect();
    let spread = Arc::new(Mutex::new(Spread { device, queues, chance: FaultRng::new(seed) }));
    (0..count).map(move |index| SpreadQueue {
        spread: Arc::clone(&spread),
        index,
        capabilities: capabilities.clone(),
    })
}

impl Device for SpreadQueue {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn transmit(
        &mut self,
        now: Instant,
        frames: &mut VecDeque<PacketBuf>,
        ledger: &mut CopyLedger,
    ) -> Result<(), DeviceError> {
        self.spread.lock().expect("lock").device.transmit(now, frames, ledger)
    }

    fn receive(
        &mut self,
        now: Instant,
        frames: &mut VecDeque<PacketBuf>,
        max: usize,
        ledger: &mut CopyLedger,
    ) -> Result<usize, DeviceError> {
        let mut spread = self.spread.lock().expect("lock");
        let Spread { device, queues, chance } = &mut *spread;
        let mut received = VecDeque::new();
        let end = device.receive(now, &mut received, max, ledger);
        for frame in received {
            let queue = chance.below(queues.len() as u64) as usize;
            queues[queue].push_back(frame);
        }
        let queue = &mut queues[self.index];
        let count = queue.len().min(max);
        frames.extend(queue.drain(..count));
        if count == 0 { end.map(|_| 0) } else { Ok(count) }
    }

    fn counters(&self) -> DeviceCounters {
        DeviceCounters::default()
    }
}

/// Hosts that only the tests drive, with a clock of the tests.
struct World {
    server: Cores,
    client: Host,
    clock: Arc<AtomicU64>,
}

impl World {
    fn new(cores: usize) -> Self {
        let (left, right) = pair();
        let clock = Arc::new(AtomicU64::new(0));
        let host = || Host::builder().manual().clock(Arc::clone(&clock)).spin(Duration::ZERO);
        let server = host().address("10.0.0.1/24").cores(cores);
        let server = server.device_queues(spread(left, cores, 7)).start().expect("server");
        let client = host().device(right).address("10.0.0.2/24").start().expect("client");
        Self { server, client, clock }
    }

    /// Takes turns until nothing happens, and lets a millisecond pass.
    fn settle(&self) {
        while self.server.turn() | self.client.turn() {}
        self.clock.fetch_add(1_000_000, Ordering::Relaxed);
    }

    fn connect(&self) -> TcpStream {
        self.client.start_connect(SERVER.parse().expect("address")).expect("connect")
    }
}

/// What is queued at the listeners of all shards.
fn accepted(listeners: &[pagewire::TcpListener]) -> Vec<Vec<TcpStream>> {
    let all = |listener: &pagewire::TcpListener| {
        listener.set_nonblocking(true).expect("nonblocking");
        std::iter::from_fn(|| listener.accept().ok()).map(|(stream, _)| stream).collect()
    };
    listeners.iter().map(all).collect()
}

#[test]
fn connections_spread_over_the_shards_whatever_queue_their_frames_come_in_at() {
    let world = World::new(4);
    let listener = world.server.listen(SERVER).expect("listener");
    let mut clients = Vec::new();
    let mut served = vec![Vec::new(); 4];
    for _ in 0..8 {
        clients.extend((0..50).map(|_| world.connect()));
        world.settle();
        for (all, new) in served.iter_mut().zip(accepted(listener.shards())) {
            all.extend(new);
        }
    }
    let counts: Vec<usize> = served.iter().map(Vec::len).collect();
    assert_eq!(counts.iter().sum::<usize>(), 400);
    assert!(counts.iter().all(|n| (60..=140).contains(n)), "{counts:?}");
    // About three of four frames of 800 or more came in elsewhere.
    let stats = world.server.stats();
    let total = stats.total().expect("shards").counters;
    assert!(total.strays_passed > 500, "{}", total.strays_passed);
    assert_eq!(total.strays_passed, total.strays_taken);
    assert!(stats.to_string().contains("core 3: "));
}

#[test]
fn streams_arrive_whole_and_by_reference_although_their_frames_come_in_anywhere() {
    const LEN: usize = 1 << 20;
    let world = World::new(3);
    let listener = world.server.listen(SERVER).expect("listener");
    let clients: Vec<_> = (0..6).map(|_| world.connect()).collect();
    world.settle();
    let served: Vec<_> = accepted(listener.shards()).into_iter().flatten().collect();
    assert_eq!(served.len(), clients.len());
    for (n, client) in (0..).zip(&clients) {
        client.set_nonblocking(true).expect("nonblocking");
        client.send(vec![n; LEN]).expect("send");
        client.shutdown(Shutdown::Write).expect("shutdown");
    }
    let mut received = vec![Vec::new(); served.len()];
    for _ in 0..10_000 {
        world.settle();
        for (stream, into) in served.iter().zip(&mut received) {
            stream.set_nonblocking(true).expect("nonblocking");
            match stream.recv_chunks(1 << 20) {
                Ok(chunks) => chunks.for_each_piece(|piece| into.extend_from_slice(piece)),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
        if received.iter().all(|data| data.len() == LEN) {
            break;
        }
    }
    for data in received {
        assert!(data.len() == LEN && data.iter().all(|byte| *byte == data[0]));
    }
    let copied = world.server.stats().total().expect("shards").ledger.ours();
    assert_eq!(copied, 0, "payload passes between shards by reference");
}

#[test]
fn a_port_is_of_all_shards_or_of_one() {
    let world = World::new(2);
    let [first, second] = world.server.shards() else { panic!("two shards") };
    let alone = first.listen(SERVER).expect("alone");
    assert_eq!(world.server.listen(SERVER).expect_err("taken").kind(), ErrorKind::AddrInUse);
    assert_eq!(second.listen(SERVER).expect_err("taken").kind(), ErrorKind::AddrInUse);
    drop(alone);
    let all = world.server.listen(SERVER).expect("all");
    assert_eq!(first.listen(SERVER).expect_err("taken").kind(), ErrorKind::AddrInUse);
    drop(all);
    // A bind that fails leaves nothing behind on the shards before.
    let last = second.listen(SERVER).expect("last");
    assert_eq!(world.server.listen(SERVER).expect_err("taken").kind(), ErrorKind::AddrInUse);
    drop(last);
    first.listen(SERVER).expect("nothing is left");
}

#[test]
fn a_free_port_is_free_on_all_shards() {
    let world = World::new(3);
    let listener = world.server.listen("0.0.0.0:0").expect("listener");
    let port = listener.local_addr().expect("address").port();
    assert_ne!(port, 0);
    for shard in listener.shards() {
        assert_eq!(shard.local_addr().expect("address"), ([0, 0, 0, 0], port).into());
    }
}

#[test]
fn a_socket_of_one_shard_is_reached_by_frames_of_any_queue() {
    let world = World::new(3);
    let listener = world.server.shards()[2].listen(SERVER).expect("listener");
    let clients: Vec<_> = (0..20).map(|_| world.connect()).collect();
    world.settle();
    let [served] = &accepted(&[listener])[..] else { panic!("one listener") };
    assert_eq!(served.len(), clients.len());
}

#[test]
fn datagrams_of_a_peer_come_to_one_shard_and_answers_leave_from_any() {
    let world = World::new(3);
    let socket = world.server.udp("10.0.0.1:53").expect("socket");
    for shard in socket.shards() {
        shard.set_nonblocking(true).expect("nonblocking");
    }
    let peers: Vec<UdpSocket> = (0..30)
        .map(|n| world.client.udp(SocketAddr::from(([10, 0, 0, 2], 4000 + n))).expect("peer"))
        .collect();
    // Both sides learn each other's link addresses first: few datagrams wait for one.
    drop(world.connect());
    world.settle();
    for peer in &peers {
        peer.set_nonblocking(true).expect("nonblocking");
        for n in 0..4 {
            peer.send_to(&[n], "10.0.0.1:53").expect("send");
        }
    }
    world.settle();
    let mut by_shard = Vec::new();
    for shard in socket.shards() {
        let mut received = BTreeMap::new();
        let mut byte = [0];
        // In any order: chance draws the queue of each frame.
        while let Ok((_, peer)) = shard.recv_from(&mut byte) {
            *received.entry(peer).or_insert(0) += 1;
        }
        assert!(received.values().all(|n| *n == 4), "all of a peer's");
        by_shard.push(received.len());
    }
    assert_eq!(by_shard.iter().sum::<usize>(), peers.len());
    assert!(by_shard.iter().all(|n| *n > 0), "{by_shard:?}");
    for (n, peer) in peers.iter().enumerate() {
        let shard = &socket.shards()[n % 3];
        shard.send_to(b"!", peer.local_addr().expect("address")).expect("answer");
    }
    world.settle();
    for peer in &peers {
        assert_eq!(peer.recv_from(&mut [0; 9]).expect("answer").1, "10.0.0.1:53".parse().unwrap());
    }
}

#[test]
fn connections_of_all_shards_get_their_answers() {
    let world = World::new(4);
    let listener = world.client.listen("10.0.0.2:9000").expect("listener");
    let to: SocketAddr = "10.0.0.2:9000".parse().expect("address");
    let shards = world.server.shards().iter().cycle();
    let near: Vec<_> =
        shards.take(40).map(|shard| shard.start_connect(to).expect("near")).collect();
    world.settle();
    world.settle();
    let [far] = &accepted(&[listener])[..] else { panic!("one listener") };
    assert_eq!(far.len(), near.len());
    for stream in &near {
        stream.set_nonblocking(true).expect("nonblocking");
        assert!((&*stream).write(b"?").is_ok(), "established");
    }
}

#[test]
fn a_connection_from_a_given_port_is_of_the_shard_that_its_packets_belong_to() {
    let (left, right) = pair();
    let server = Host::builder().device(left).address("10.0.0.1/24").cores(3);
    let server = server.start().expect("server");
    let client = Host::builder().device(right).address("10.0.0.2/24").start().expect("client");
    let listener = client.listen("10.0.0.2:9000").expect("listener");
    for port in 5000..5020 {
        let options = ConnectOptions::new().local(SocketAddr::from(([10, 0, 0, 1], port)));
        let near = server.connect_with("10.0.0.2:9000", &options).expect("connect");
        let (far, peer) = listener.accept().expect("accept");
        assert_eq!(peer, near.local_addr().expect("address"));
        drop((near, far));
    }
}

#[test]
fn the_home_of_a_connection_is_known_before_its_first_packet() {
    let world = World::new(3);
    let listener = world.server.listen(SERVER).expect("listener");
    let server: SocketAddr = SERVER.parse().expect("address");
    let mut homes = [0; 3];
    for port in 5000..5030 {
        let peer = SocketAddr::from(([10, 0, 0, 2], port));
        let options = ConnectOptions::new().local(peer);
        let near = world.client.start_connect_with(server, &options).expect("connect");
        world.settle();
        let by_shard = accepted(listener.shards());
        let home = by_shard.iter().position(|all| !all.is_empty()).expect("accepted");
        assert_eq!(world.server.home(server, peer), home);
        homes[home] += 1;
        drop((near, by_shard));
    }
    assert!(homes.iter().all(|n| *n > 0), "{homes:?}");
    let alone = world.server.shards()[2].listen("10.0.0.1:81").expect("alone");
    let peers = (5000..5030).map(|port| SocketAddr::from(([10, 0, 0, 2], port)));
    for peer in peers.clone() {
        assert_eq!(world.server.home(alone.local_addr().expect("address"), peer), 2);
    }
    let one = World::new(1);
    assert!(peers.into_iter().all(|peer| one.server.home(server, peer) == 0));
}

#[test]
fn a_wait_drives_all_shards_of_a_host_that_nobody_drives() {
    let (left, right) = pair();
    let server = Host::builder().manual().address("10.0.0.1/24").cores(3);
    let server = server.device_queues(spread(left, 3, 1)).start().expect("server");
    let client = Host::builder().device(right).address("10.0.0.2/24").start().expect("client");
    let listener = server.listen(SERVER).expect("listener");
    let peer = thread::spawn(move || {
        for n in 0..20u8 {
            let mut stream = client.connect(SERVER).expect("connect");
            stream.write_all(&[n; 9]).expect("write");
            stream.read_exact(&mut [0; 9]).expect("answer");
        }
    });
    for n in 0..20u8 {
        let (mut stream, _) = listener.accept().expect("accept");
        let mut request = [0; 9];
        stream.read_exact(&mut request).expect("request");
        assert_eq!(request, [n; 9]);
        stream.write_all(&request).expect("answer");
    }
    peer.join().expect("peer");
}

#[test]
fn threads_of_all_cores_serve_a_device_with_one_queue() {
    let (left, right) = pair();
    let server = Host::builder().device(left).address("10.0.0.1/24").cores(3);
    let server = server.start().expect("server");
    let client = Host::builder().device(right).address("10.0.0.2/24").start().expect("client");
    let listener = server.listen(SERVER).expect("listener");
    let serve = |listener: pagewire::TcpListener| {
        move || {
            let mut served = 0;
            while let Ok((mut stream, _)) = listener.accept() {
                let mut request = [0; 5];
                while stream.read_exact(&mut request).is_ok() {
                    stream.write_all(&request).expect("answer");
                }
                served += 1;
            }
            served
        }
    };
    let threads: Vec<_> =
        listener.shards().iter().map(|shard| thread::spawn(serve(shard.clone()))).collect();
    for n in 0..60u8 {
        let mut stream = client.connect(SERVER).expect("connect");
        for _ in 0..5 {
            stream.write_all(&[n; 5]).expect("write");
            let mut answer = [0; 5];
            stream.read_exact(&mut answer).expect("answer");
            assert_eq!(answer, [n; 5]);
        }
    }
    server.shutdown(PATIENCE);
    let served: Vec<i32> = threads.into_iter().map(|t| t.join().expect("thread")).collect();
    assert_eq!(served.iter().sum::<i32>(), 60);
    assert!(served.iter().all(|n| *n > 0), "{served:?}");
}

#[test]
fn the_shutdown_of_one_shard_is_that_of_all_and_delivers_what_all_have_queued() {
    const LEN: usize = 1 << 20;
    let (left, right) = pair();
    let server = Host::builder().device(left).address("10.0.0.1/24").cores(3);
    let server = server.start().expect("server");
    let client = Host::builder().device(right).address("10.0.0.2/24").start().expect("client");
    let listener = server.listen(SERVER).expect("listener");
    let readers: Vec<_> = (0..12)
        .map(|_| {
            let mut near = client.connect(SERVER).expect("connect");
            let (far, _) = listener.accept().expect("accept");
            far.send(vec![7; LEN]).expect("send");
            drop(far);
            thread::spawn(move || {
                let mut all = Vec::new();
                near.read_to_end(&mut all).map(|_| all.len())
            })
        })
        .collect();
    let report = server.shards()[1].shutdown(PATIENCE);
    assert_eq!(report.reset + report.broken + report.lost, 0, "{report:?}");
    for reader in readers {
        assert_eq!(reader.join().expect("reader").expect("read"), LEN);
    }
    for shard in server.shards() {
        assert_eq!(shard.check().expect_err("down").kind(), ErrorKind::NetworkDown);
    }
}

#[test]
fn one_socket_keeps_all_shards_running() {
    let (left, right) = pair();
    let server = Host::builder().device(left).address("10.0.0.1/24").cores(3);
    let server = server.start().expect("server");
    let client = Host::builder().device(right).address("10.0.0.2/24").start().expect("client");
    let listener = server.shards()[2].listen(SERVER).expect("listener");
    let mut near = client.connect(SERVER).expect("connect");
    let (mut far, _) = listener.accept().expect("accept");
    drop((server, listener));
    // The frames come in at the first shard.
    near.write_all(b"still?").expect("write");
    far.read_exact(&mut [0; 6]).expect("read");
    drop(far);
    assert_eq!(near.read(&mut [0; 6]).expect("end"), 0);
}

#[test]
fn a_lost_device_ends_all_shards() {
    let (left, right) = pair();
    let server = Host::builder().device(left).address("10.0.0.1/24").cores(3);
    let server = server.start().expect("server");
    drop(right);
    for shard in server.shards() {
        shard.failed().wait().expect("a thread of the program");
        assert_eq!(shard.check().expect_err("down").kind(), ErrorKind::NetworkDown);
    }
}

#[test]
fn a_shard_that_fails_ends_the_others() {
    let armed = Arc::new(AtomicBool::new(false));
    let ((one, _far), (other, _away)) = (pair(), pair());
    let explodes = Arc::clone(&armed);
    let acts: Box<dyn FnMut() -> Result<(), DeviceError> + Send> = Box::new(move || {
        assert!(!explodes.load(Ordering::Acquire), "in the middle of our own work, as asked");
        Ok(())
    });
    let fine: Box<dyn FnMut() -> Result<(), DeviceError> + Send> = Box::new(|| Ok(()));
    let queues = [(one, fine), (other, acts)];
    let queues = queues.map(|(end, acts)| Odd { end, acts, ready: None });
    let server = Host::builder().address("10.0.0.1/24").cores(2).device_queues(queues);
    let server = server.start().expect("server");
    armed.store(true, Ordering::Release);
    for shard in server.shards() {
        let down = shard.failed().wait().expect("a thread of the program");
        assert!(down.cause.contains("panicked"), "{down}");
    }
}

#[test]
fn a_host_has_some_cores_but_not_too_many_and_a_queue_for_each_at_most() {
    for cores in [0, 33] {
        let (device, _far) = pair();
        let refused = Host::builder().device(device).address("10.0.0.1/24").cores(cores).start();
        assert!(matches!(refused, Err(StartError::Cores(n)) if n == cores));
    }
    let (device, _far) = pair();
    let host = Host::builder().address("10.0.0.1/24").cores(2);
    let refused = host.device_queues(spread(device, 3, 0)).start();
    assert!(matches!(refused, Err(StartError::Queues { queues: 3, cores: 2 })));
    assert!(matches!(Host::builder().cores(2).start(), Err(StartError::NoDevice)));
}

#[test]
fn queues_take_the_place_of_a_device_that_was_given_before() {
    let ((left, right), (unused, _far)) = (pair(), pair());
    let server = Host::builder().device(unused).address("10.0.0.1/24").cores(2);
    let server = server.device_queues(spread(left, 2, 0)).start().expect("server");
    let client = Host::builder().device(right).address("10.0.0.2/24").start().expect("client");
    let listener = server.listen(SERVER).expect("listener");
    let _near = client.connect_timeout(SERVER, PATIENCE).expect("by the queues");
    listener.accept().expect("accepted");
}

#[test]
fn a_shard_whose_listener_closes_refuses_its_part_of_the_connections_until_it_listens_again() {
    let world = World::new(2);
    let listener = world.server.listen(SERVER).expect("listener");
    let [first, second] = listener.shards() else { panic!("two shards") };
    let (first, second) = (first.clone(), second.clone());
    drop(listener);
    let server: SocketAddr = SERVER.parse().expect("address");
    let peer = |port| SocketAddr::from(([10, 0, 0, 2], port));
    let connect = |port| {
        let options = ConnectOptions::new().local(peer(port));
        let stream = world.client.start_connect_with(server, &options).expect("connect");
        stream.set_nonblocking(true).expect("nonblocking");
        world.settle();
        stream
    };
    let home = |port| world.server.home(server, peer(port));
    let all: Vec<_> = (5000..5020).map(|port| (port, connect(port))).collect();
    drop(second);
    world.settle();
    for (port, stream) in &all {
        let end = (&*stream).read(&mut [0]).expect_err("no data").kind();
        let expected = [ErrorKind::WouldBlock, ErrorKind::ConnectionReset][home(*port)];
        assert_eq!(end, expected, "{port}");
    }
    for port in 6000..6020 {
        let error = connect(port).take_error().expect("known").map(|error| error.kind());
        assert_eq!(error, [None, Some(ErrorKind::ConnectionRefused)][home(port)], "{port}");
    }
    // Neither one shard alone nor all can listen there now, but that one as a part of all.
    let shard = &world.server.shards()[1];
    assert_eq!(shard.listen(SERVER).expect_err("taken").kind(), ErrorKind::AddrInUse);
    assert_eq!(world.server.listen(SERVER).expect_err("taken").kind(), ErrorKind::AddrInUse);
    let options = BindOptions::new().every_shard(true);
    let again = shard.listen_with(SERVER, &options).expect("again");
    let new: Vec<_> = (7000..7020).map(connect).collect();
    let of_second = (7000..7020).filter(|port| home(*port) == 1).count();
    assert_eq!(accepted(&[again])[0].len(), of_second);
    drop((first, new));
}

#[test]
fn a_host_of_one_core_passes_nothing_on() {
    let world = World::new(1);
    let _listener = world.server.listen_with(SERVER, &BindOptions::new().backlog(9)).expect("one");
    let _near = world.connect();
    world.settle();
    let total = world.server.stats().total().expect("one shard").counters;
    assert_eq!((total.strays_passed, total.strays_taken), (0, 0));
}

/// A queue that has a full burst of the same frames whenever it is asked.
struct Flood {
    frames: Vec<Vec<u8>>,
    received: Arc<AtomicU64>,
    capabilities: Capabilities,
}

impl Device for Flood {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn transmit(
        &mut self,
        _: Instant,
        frames: &mut VecDeque<PacketBuf>,
        _: &mut CopyLedger,
    ) -> Result<(), DeviceError> {
        frames.clear();
        Ok(())
    }

    fn receive(
        &mut self,
        _: Instant,
        frames: &mut VecDeque<PacketBuf>,
        max: usize,
        _: &mut CopyLedger,
    ) -> Result<usize, DeviceError> {
        frames.extend(self.frames.iter().cycle().take(max).map(|frame| received(frame, 60)));
        self.received.fetch_add(max as u64, Ordering::Relaxed);
        Ok(max)
    }

    fn counters(&self) -> DeviceCounters {
        DeviceCounters::default()
    }
}

/// Datagrams, requests for connections, and fragments whose datagrams never become whole, for ports of one shard.
fn floods(to: [u8; 6]) -> [(&'static str, Vec<Vec<u8>>); 3] {
    let stations = [[2, 9, 9, 9, 9, 9], to];
    let from = |n: u32| IpAddr::from(Ipv4Addr::from(0x0a00_0100 + n));
    let ip = |n: u32| ip(stations, [from(n), IpAddr::from([10, 0, 0, 1])], 64);
    let datagrams = (0..64).map(|n| built!(ip(n).udp(4000, 5001), &[7; 1000])).collect();
    let syns = (0..64).map(|n| built!(ip(n).tcp(4000, 80, n, 0xffff).syn(), &[])).collect();
    let fragments = (0..64).map(|n| {
        let mut frame = built!(ip(n).udp(4000, 5001), &[7; 1000]);
        // More fragments follow, but never do.
        frame[20] = 0x20;
        fix_v4(&mut frame);
        frame
    });
    [("datagrams", datagrams), ("SYNs", syns), ("fragments", fragments.collect())]
}

#[test]
fn a_flood_that_comes_in_at_one_shard_takes_a_sixteenth_of_another_at_most() {
    let (device, _far) = pair();
    let floods = || floods(device.capabilities().mac);
    for (what, flood) in floods() {
        let queue = |frames| {
            let (received, capabilities) = (Arc::default(), device.capabilities().clone());
            Flood { frames, received, capabilities }
        };
        let [(_, own), ..] = floods();
        let queues = [queue(flood), queue(own)];
        let received = Arc::clone(&queues[1].received);
        let server = Host::builder().manual().address("10.0.0.1/16").cores(2);
        let server = server.device_queues(queues).start().expect("server");
        let [_, victim] = server.shards() else { panic!("two shards") };
        let _listener = victim.listen(SERVER).expect("listener");
        let socket = victim.udp("10.0.0.1:5001").expect("socket");
        socket.set_nonblocking(true).expect("nonblocking");
        for _ in 0..100 {
            server.turn();
            while socket.recv_from(&mut [0; 1500]).is_ok() {}
        }
        let [shown, taken] = &server.stats().shards[..] else { panic!("two shards") };
        let (own, strays) = (received.load(Ordering::Relaxed), taken.counters.strays_taken);
        assert!(strays > 0 && strays * 16 <= own, "{what}: {strays} beside {own}");
        // The rest is dropped and counted, but for what waits for the other shard.
        let dropped = shown.counters.drops(DropReason::StrayBacklogFull);
        let waits = shown.counters.strays_passed - strays;
        assert!(dropped > 0 && waits <= 2 * STRAY_BACKLOG as u64, "{what}: {waits} wait");
    }
}

/// A host of two cores, each with a runtime of one thread that runs what it is sent, and a client.
fn in_runtimes() -> (Cores, Host, [Handle; 2], [mpsc::Sender<()>; 2]) {
    let (left, right) = pair();
    let runtimes = [(); 2].map(|()| Builder::new_current_thread().enable_io().build().unwrap());
    let handles = [0, 1].map(|core: usize| runtimes[core].handle().clone());
    let server = Host::builder().device(left).address("10.0.0.1/24").cores(2);
    let server = server.start_in_runtimes(&handles).expect("server");
    let ends = runtimes.map(|runtime| {
        let (end, ended) = mpsc::channel();
        thread::spawn(move || {
            while matches!(ended.try_recv(), Err(mpsc::TryRecvError::Empty)) {
                runtime.block_on(tokio::task::yield_now());
            }
        });
        end
    });
    let client = Host::builder().device(right).address("10.0.0.2/24").start().expect("client");
    (server, client, handles, ends)
}

/// Runs a function on the thread of a runtime, and waits for it.
fn on<T: Send + 'static>(runtime: &Handle, f: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, answer) = mpsc::channel();
    runtime.spawn(async move { done.send(f()).expect("somebody waits") });
    answer.recv_timeout(PATIENCE).expect("it ends")
}

#[test]
fn a_thread_that_drives_one_shard_may_wait_for_sockets_of_another() {
    let (server, client, runtimes, _ends) = in_runtimes();
    let peer = client.listen("10.0.0.2:9000").expect("peer");
    // The answers come in at the first shard, whose thread waits.
    let second = server.shards()[1].clone();
    on(&runtimes[0], move || second.connect("10.0.0.2:9000").map(drop)).expect("connected");
    peer.accept().expect("accepted");
    let listener = server.listen(SERVER).expect("listener");
    for runtime in runtimes.iter().cycle().take(20) {
        let _near = client.start_connect(SERVER.parse().expect("address")).expect("near");
        let listener = listener.clone();
        on(runtime, move || listener.accept().map(drop)).expect("of either shard");
    }
}

#[test]
fn the_thread_of_any_shard_may_shut_the_host_down() {
    const LEN: usize = 1 << 20;
    for core in 0..2 {
        let (server, client, runtimes, _ends) = in_runtimes();
        let listener = server.listen(SERVER).expect("listener");
        let (_fars, readers): (Vec<_>, Vec<_>) = (0..6)
            .map(|_| {
                let mut near = client.connect(SERVER).expect("connect");
                let (far, _) = listener.accept().expect("accept");
                far.send(vec![7; LEN]).expect("send");
                (far, thread::spawn(move || near.read_to_end(&mut Vec::new())))
            })
            .unzip();
        let report = on(&runtimes[core], move || server.shutdown(PATIENCE / 2));
        assert!(report.is_clean() && report.connections == 6, "{report:?}");
        for reader in readers {
            assert_eq!(reader.join().expect("reader").expect("read"), LEN);
        }
    }
}

#[test]
fn code_under_the_lock_of_one_shard_calls_no_other_but_may_drop_its_sockets() {
    let world = World::new(2);
    let [first, second] = world.server.shards() else { panic!("two shards") };
    let calls = second.clone();
    let called = catch_unwind(AssertUnwindSafe(|| first.with_stack(|_, _| calls.stats())));
    assert!(called.is_err(), "the other's lock may be held by one that waits for this");
    let listener = second.listen(SERVER).expect("listener");
    first.with_stack(|_, _| drop(listener));
    first.listen(SERVER).expect("it was closed after the call");
}

#[test]
fn a_link_is_added_to_all_cores_and_removed_from_all_and_may_come_again() {
    let (left, right) = pair();
    let server = Host::builder().device(left).address("10.0.0.1/24").cores(3);
    let server = server.start().expect("server");
    let shard = &server.shards()[1];
    let (device, _far) = pair();
    let refused = shard.add_link(Link::new(device).address("10.1.0.1/24"));
    assert!(matches!(refused, Err(StartError::LinkOfCores)));
    assert!(shard.remove_link(shard.links()[0]).is_none(), "of one core");
    // Other cores still have sockets when the device is gone.
    let listener = server.listen("0.0.0.0:80").expect("listener");
    drop(right);
    let is_lost = |shard: &Host| shard.failed().wait().expect("a thread of the program");
    for round in 0..3 {
        server.shards().iter().map(is_lost).for_each(drop);
        assert!(server.remove_link(server.shards()[0].links()[0]));
        let (left, right) = pair();
        server.add_link([left], |link| link.address("10.0.0.1/24")).expect("link");
        let client = Host::builder().device(right).address("10.0.0.2/24").start().expect("client");
        for _ in 0..20 {
            let near = client.connect(SERVER).expect("connect");
            let (_far, peer) = listener.accept().expect("accept");
            assert_eq!(peer, near.local_addr().expect("address"), "round {round}");
        }
    }
    let nothing = server.add_link([] as [PairEnd; 0], |link| link);
    assert!(matches!(nothing, Err(StartError::NoDevice)));
}

#[test]
fn a_queue_that_is_lost_is_lost_for_all_shards() {
    let ((one, _far), (other, away)) = (pair(), pair());
    let server = Host::builder().address("10.0.0.1/24").cores(2).device_queues([one, other]);
    let server = server.start().expect("server");
    drop(away);
    for shard in server.shards() {
        shard.failed().wait().expect("a thread of the program");
    }
}

#[test]
fn a_proxy_on_each_shard_forwards_the_connections_of_that_shard_by_itself() {
    let (left, right) = pair();
    let proxies = Host::builder().device(left).address("10.0.0.1/24").cores(2);
    let proxies = proxies.start().expect("host");
    let outside = Host::builder().device(right).address("10.0.0.2/24").start().expect("host");
    let upstream = outside.listen("10.0.0.2:8000").expect("listener");
    let to = "10.0.0.2:8000".parse().expect("address");
    let listeners = proxies.listen(SERVER).expect("listener").shards().to_vec();
    let foreign = Proxy::new(&outside, ForwardConfig::default());
    let refused = foreign.forward(listeners[0].clone(), to).expect_err("of another host");
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    let of_each = proxies.shards().iter().zip(listeners).map(|(shard, listener)| {
        let proxy = Proxy::new(shard, ForwardConfig::default());
        proxy.forward(listener, to).expect("forwarding");
        proxy
    });
    let of_each: Vec<_> = of_each.collect();
    for n in 0..40 {
        let mut client = outside.connect(SERVER).expect("connection");
        let (mut served, _) = upstream.accept().expect("connection");
        client.write_all(&[n]).expect("room");
        let mut question = [0];
        served.read_exact(&mut question).expect("question");
        assert_eq!(question, [n]);
    }
    let forwarded: Vec<_> = of_each.iter().map(|proxy| proxy.counters().accepted).collect();
    assert_eq!(forwarded.iter().sum::<u64>(), 40);
    assert!(forwarded.iter().all(|n| *n > 0), "{forwarded:?}");
    drop(of_each);
    let gone = outside.connect(SERVER).expect_err("nobody listens");
    assert_eq!(gone.kind(), ErrorKind::ConnectionRefused);
}
