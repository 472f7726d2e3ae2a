//! A guest that makes its frames by hand: whatever it sends, memory, descriptors and dials stay
//! within named limits, and another guest goes on.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant as Wall};

use pagewire::device::PacketBuf;
use pagewire::device::PairEnd;
use pagewire::memory::CopyLedger;
use pagewire::services::Instant;
use pagewire::{Device, Pair};
use pagewire_gateway::{Ask, Dial, Dialled, Gateway, Guest, GuestConfig, Record, Verdict, limits};
use pagewire_testkit::frames::received;

use crate::support::frames::{ME, anywhere, arp, datagram, scatter, syn};
use crate::support::{
    FAR, allow_all, eventually, full_socket, joined, pattern, server, to_loopback, world,
};

/// A guest that is only a device.
struct Attacker {
    device: PairEnd,
    outbox: VecDeque<PacketBuf>,
    ledger: CopyLedger,
}

impl Attacker {
    fn new(gateway: &Gateway) -> (Self, Guest) {
        Self::on_cores(gateway, 1)
    }

    /// A guest of so many cores.
    fn on_cores(gateway: &Gateway, cores: usize) -> (Self, Guest) {
        let (device, inner) = Pair::new().unwrap();
        let config = GuestConfig::new().network("10.0.2.2/24").unwrap().cores(cores);
        let guest = gateway.add(device, config).unwrap();
        let (outbox, ledger) = (VecDeque::new(), CopyLedger::new());
        let mut attacker = Self { device: inner, outbox, ledger };
        attacker.send(arp());
        (attacker, guest)
    }

    fn send(&mut self, frame: Vec<u8>) {
        self.outbox.push_back(received(&frame, frame.len()));
        while !self.outbox.is_empty() {
            self.device.transmit(Instant::ZERO, &mut self.outbox, &mut self.ledger).unwrap();
        }
    }

    /// Sends `n` frames, and takes what the gateway has sent after every 64.
    fn flood(&mut self, n: u32, frame: impl Fn(u32) -> Vec<u8>) {
        for i in 0..n {
            self.send(frame(i));
            if i % 64 == 0 {
                self.hear();
                std::thread::yield_now();
            }
        }
    }

    /// The packets that the gateway has sent, headers only.
    fn hear(&mut self) -> Vec<Vec<u8>> {
        let mut inbox = VecDeque::new();
        self.device.receive(Instant::ZERO, &mut inbox, 4096, &mut self.ledger).unwrap();
        inbox.iter().map(|packet| packet.head().to_vec()).collect()
    }
}

/// Never answers, and counts how often it is asked.
#[derive(Clone, Default)]
struct Silence(Arc<Mutex<(usize, Vec<UnixStream>)>>);

impl Dial for Silence {
    fn dial(&self, _: SocketAddr, _: &Ask) -> io::Result<Dialled> {
        let (near, far) = full_socket()?;
        let mut state = self.0.lock().unwrap();
        state.0 += 1;
        state.1.push(far);
        // Far ends of closed sockets are of no use.
        let keep = state.1.len().saturating_sub(limits::DIALS);
        state.1.drain(..keep);
        Ok(Dialled { socket: near.into(), connected: false })
    }
}

/// Tests that count the process's descriptors run one at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_flood_of_syns_to_everywhere_holds_no_more_than_the_limits() {
    let _alone = alone();
    let silence = Silence::default();
    let gateway = Gateway::builder().judge(allow_all).dialler(silence.clone()).start();
    let (mut attacker, guest) = Attacker::new(&gateway);
    let neighbour = world();
    let begun = Wall::now();
    attacker.flood(100_000, |i| {
        syn(ME, 1024 + (scatter(i) % 60_000) as u16, anywhere(i), 80, scatter(!i))
    });
    // A neighbour connects and gets its data meanwhile and afterwards.
    let (mut inner, mut outer) = joined(&neighbour.inside);
    outer.write_all(&pattern(1 << 20)).unwrap();
    inner.read_exact(&mut vec![0; 1 << 20]).unwrap();
    eventually(|| guest.host().stats().links[0].device.rx_frames >= 100_000);
    assert!(guest.connections() <= limits::DIALS);
    // Each dial keeps its place for seconds: only then another gets it.
    let rounds = 2 + begun.elapsed().as_secs() as usize;
    let dials = silence.0.lock().unwrap().0;
    assert!(dials <= limits::DIALS * rounds, "{dials} dials");
    assert_eq!(guest.counters().opened, 0);
}

#[test]
fn a_scan_of_all_ports_is_answered_and_leaves_nothing() {
    let _alone = alone();
    let gateway = Gateway::builder().judge(|_: &Ask| Some(Verdict::Refuse)).start();
    let (mut attacker, guest) = Attacker::new(&gateway);
    let before = descriptors();
    let mut resets = 0;
    for port in 1..=u16::MAX {
        attacker.send(syn(ME, 4000, Ipv4Addr::new(198, 18, 0, 1), port, 7));
        if port % 64 == 0 {
            resets += attacker.hear().iter().filter(|f| f.get(47) == Some(&0x14)).count();
        }
    }
    eventually(|| guest.counters().asked > 60_000);
    assert_eq!(guest.connections(), 0);
    assert!(descriptors() <= before + 2);
    assert!(resets > 0);
}

#[test]
fn a_scan_of_closed_ports_dials_no_more_than_failures_may() {
    let _alone = alone();
    let gateway = Gateway::builder().judge(to_loopback).start();
    let (mut attacker, guest) = Attacker::new(&gateway);
    // Nobody listens there: a scan in bursts is refused.
    let closed = server().1.port();
    let begun = Wall::now();
    attacker.flood(60_000, |i| syn(ME, 1024 + i as u16, FAR, closed, scatter(i)));
    eventually(|| guest.host().stats().links[0].device.rx_frames > 60_000);
    let counters = guest.counters();
    let granted = f64::from(limits::CONNECTS_BURST)
        + f64::from(limits::CONNECTS_PER_SECOND) * begun.elapsed().as_secs_f64();
    // Some were under way when the burst was spent.
    let most = granted / f64::from(limits::FAILED_CONNECT_COSTS) + limits::DIALS as f64;
    assert!(counters.refused > 0);
    assert!(counters.dialled as f64 <= most, "{} dials of at most {most}", counters.dialled);
}

#[test]
fn forged_sources_reach_nobody() {
    let _alone = alone();
    let gateway = Gateway::builder().judge(allow_all).dialler(Silence::default()).start();
    let (mut attacker, guest) = Attacker::new(&gateway);
    attacker.flood(1000, |i| {
        let from = Ipv4Addr::from_bits(0x0808_0000 | (scatter(i) & 0xffff)).octets();
        syn(from, 4000, anywhere(i), 80, 7)
    });
    eventually(|| guest.host().stats().links[0].device.rx_frames >= 1001);
    assert_eq!(guest.counters().asked, 0);
}

#[test]
fn whatever_address_it_names_the_hosts_loopback_is_never_reached() {
    let _alone = alone();
    // Another test may have the port for datagrams.
    let (tcp, port, udp) = loop {
        let tcp = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
        let port = tcp.local_addr().unwrap().port();
        if let Ok(udp) = UdpSocket::bind(("0.0.0.0", port)) {
            break (tcp, port, udp);
        }
    };
    tcp.set_nonblocking(true).unwrap();
    udp.set_nonblocking(true).unwrap();
    // The rules as they are by default.
    let gateway = Gateway::builder().start();
    let (mut attacker, guest) = Attacker::new(&gateway);
    let addresses =
        ["127.0.0.1", "127.255.255.254", "0.0.0.0", "0.1.2.3", "10.0.2.2", "255.255.255.255"];
    for (i, to) in (0..).zip(addresses) {
        let to: Ipv4Addr = to.parse().unwrap();
        attacker.send(syn(ME, 4000 + i, to, port, 7));
        attacker.send(datagram(4000 + i, to, port, b"hello"));
        // As the loopback itself.
        attacker.send(syn([127, 0, 0, 1], 4000 + i, to, port, 7));
    }
    eventually(|| guest.host().stats().links[0].device.rx_frames > 3 * addresses.len() as u64);
    // Behind those: what the gateway itself has done is done when it answers the next.
    attacker.send(datagram(5000, Ipv4Addr::new(10, 0, 2, 2), 53, b"nonsense of twelve bytes"));
    eventually(|| guest.dns_counters().queries > 0);
    assert_eq!(tcp.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    assert_eq!(udp.recv(&mut [0; 9]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    assert_eq!(guest.counters().dialled, 0);
    assert_eq!(guest.counters().endpoints_opened, 0);
}

#[test]
fn nonsense_for_the_resolver_is_answered_or_dropped_and_holds_nothing() {
    let _alone = alone();
    let gateway = Gateway::builder().resolver(pagewire_gateway::Resolver::None).start();
    let (mut attacker, guest) = Attacker::new(&gateway);
    let before = descriptors();
    const ALL: u32 = 20_000;
    attacker.flood(ALL, |i| {
        let bytes: Vec<u8> = (0..scatter(i) % 80).map(|n| scatter(i ^ n << 8) as u8).collect();
        datagram(1 + (i % 60_000) as u16, Ipv4Addr::new(10, 0, 2, 2), 53, &bytes)
    });
    eventually(|| guest.host().stats().links[0].device.rx_frames > u64::from(ALL));
    eventually(|| guest.dns_counters().queries > 0);
    assert!(descriptors() <= before + 2);
    assert_eq!(guest.counters().endpoints_opened, 0);
    eventually(|| guest.host().with_stack(|stack, _| stack.receive_memory_used()) == 0);
    assert!(guest.host().check().is_ok());
}

#[test]
fn on_several_cores_floods_hold_no_more_than_on_one() {
    let _alone = alone();
    let silence = Silence::default();
    let rules = |ask: &Ask| if ask.to.ip() == FAR { to_loopback(ask) } else { allow_all(ask) };
    let gateway = Gateway::builder().judge(rules).dialler(silence.clone()).start();
    let (mut attacker, guest) = Attacker::on_cores(&gateway, 3);
    let before = descriptors();
    let begun = Wall::now();
    attacker.flood(30_000, |i| {
        syn(ME, 1024 + (scatter(i) % 60_000) as u16, anywhere(i), 80, scatter(!i))
    });
    eventually(|| guest.counters().asked > 0);
    assert!(guest.connections() <= limits::DIALS);
    let rounds = 2 + begun.elapsed().as_secs() as usize;
    let dials = silence.0.lock().unwrap().0;
    assert!(dials <= limits::DIALS * rounds, "{dials} dials");
    let sink = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = sink.local_addr().unwrap().port();
    attacker.flood(u16::MAX.into(), |i| datagram(i as u16 + 1, FAR, port, b"x"));
    eventually(|| guest.counters().endpoints_refused > 0);
    // Threads that open one at the same time may have one more each.
    let opened = guest.counters().endpoints_opened;
    assert!(opened <= limits::UDP_ENDPOINTS as u64 + 2, "{opened}");
    assert!(descriptors() <= before + limits::UDP_ENDPOINTS + 2 * limits::DIALS + 16);
    assert!(guest.host().check().is_ok());
}

#[test]
fn datagrams_from_every_port_open_no_more_than_the_limit() {
    let _alone = alone();
    let sink = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = sink.local_addr().unwrap().port();
    let gateway = Gateway::builder().judge(to_loopback).start();
    let (mut attacker, guest) = Attacker::new(&gateway);
    let before = descriptors();
    attacker.flood(u16::MAX.into(), |i| datagram(i as u16 + 1, FAR, port, b"x"));
    eventually(|| guest.host().stats().links[0].device.rx_frames >= 65_536);
    eventually(|| guest.counters().endpoints_refused > 0);
    let opened = guest.counters().endpoints_opened;
    assert!(opened <= limits::UDP_ENDPOINTS as u64, "{opened}");
    assert!(descriptors() <= before + limits::UDP_ENDPOINTS + 8);
}

#[test]
fn datagrams_to_everywhere_from_many_ports_are_remembered_up_to_the_limit() {
    let _alone = alone();
    let sink = UdpSocket::bind("127.0.0.1:0").unwrap();
    let there = sink.local_addr().unwrap();
    let notes = crate::support::Notes::default();
    let rules = move |ask: &Ask| match ask.to.ip().is_loopback() {
        true => Some(Verdict::Allow),
        false => Some(Verdict::To(there)),
    };
    let gateway = Gateway::builder().judge(rules).journal(notes.take()).start();
    let (mut attacker, guest) = Attacker::new(&gateway);
    const ALL: u32 = 30_000;
    attacker.flood(ALL, |i| datagram(1 + (i % 100) as u16, anywhere(i), 9, b"x"));
    eventually(|| guest.host().stats().links[0].device.rx_frames > u64::from(ALL));
    let peers = || {
        let all = notes.all();
        let opened = all.iter().filter(|r| matches!(r, Record::Opened { .. })).count();
        opened - notes.ends().len()
    };
    eventually(|| guest.counters().datagrams_out > 0);
    assert!(peers() <= limits::UDP_PEERS_IN_ALL + 100, "{}", peers());
    assert_eq!(guest.counters().endpoints_opened, 100);
}

#[test]
fn a_gateway_whose_guests_device_is_lost_rests() {
    let _alone = alone();
    let gateway = Gateway::builder().start();
    let (attacker, guest) = Attacker::new(&gateway);
    drop(attacker);
    eventually(|| guest.host().check().is_err());
    let used = || rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let before = used();
    std::thread::park_timeout(Duration::from_millis(400));
    let after = used();
    let spent =
        (after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1_000_000;
    assert!(spent < 200, "{spent} ms of CPU time in 400 ms of nothing");
}

#[test]
fn a_guest_that_never_acknowledges_holds_no_more_than_its_memory() {
    let _alone = alone();
    let world = world();
    let mut streams = Vec::new();
    let data = pattern(1 << 20);
    for _ in 0..40 {
        let (inner, outer) = joined(&world.inside);
        outer.set_nonblocking(true).unwrap();
        streams.push((inner, outer));
    }
    // The guest reads nothing: far more than the gateway may hold is offered.
    let end = Wall::now() + Duration::from_millis(500);
    while Wall::now() < end {
        for (_, outer) in &mut streams {
            let _ = outer.write(&data);
        }
    }
    let audit = world.guest.host().pool_audits()[0];
    assert!(audit.total * pagewire::memory::PAGE_SIZE <= limits::MEMORY + (64 << 10), "{audit:?}");
    // Another connection still passes as soon as one of them ends.
    streams.truncate(20);
    let (mut inner, mut outer) = joined(&world.inside);
    outer.write_all(b"still here").unwrap();
    inner.read_exact(&mut [0; 10]).unwrap();
}
