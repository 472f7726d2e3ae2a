//! Guests on ports of one host, each port a link with addresses of its own. The double of a guest is
//! the network card of another stack: what a guest's kernel would do is done there.

use std::collections::VecDeque;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use bytes::Bytes;
use pagewire::device::vhost_user::double::{Guest, GuestConfig};
use pagewire::device::vhost_user::{VhostMonitor, VhostUser};
use pagewire::device::{Capabilities, DeviceCounters, DeviceError, HeaderSplit, Medium};
use pagewire::mem::{Instant, PacketBuf};
use pagewire::{CopyLedger, CopyReason, Device, Host, Link, TcpStream};

/// How much guests send each other.
const LEN: usize = 1 << 20;

/// A guest's network card: no offloads, frames of the usual length.
struct Card {
    guest: Guest,
    capabilities: Capabilities,
}

impl Card {
    fn new(stream: UnixStream, mac: [u8; 6]) -> Self {
        let config = GuestConfig { offload: false, ..GuestConfig::default() };
        let guest = Guest::over(stream, config).expect("a guest is plugged in");
        let capabilities = Capabilities {
            medium: Medium::Ethernet,
            mac,
            mtu: 1500,
            max_super_frame: 1500,
            rx_checksum: false,
            tx_checksum: false,
            tso_v4: false,
            tso_v6: false,
            max_frags: 16,
            header_split: HeaderSplit::None,
            queues: 1,
            by_reference: false,
        };
        Self { guest, capabilities }
    }
}

impl Device for Card {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn counters(&self) -> DeviceCounters {
        DeviceCounters::default()
    }

    fn transmit(
        &mut self,
        _: Instant,
        frames: &mut VecDeque<PacketBuf>,
        ledger: &mut CopyLedger,
    ) -> Result<(), DeviceError> {
        while let Some(frame) = frames.front() {
            let mut bytes = frame.head().to_vec();
            for frag in frame.frags() {
                let at = bytes.len();
                bytes.resize(at + frag.len(), 0);
                frag.copy_to(0, &mut bytes[at..], ledger, CopyReason::DeviceTx);
            }
            if !self.guest.send(&bytes) {
                break;
            }
            frames.pop_front();
        }
        Ok(())
    }

    fn receive(
        &mut self,
        _: Instant,
        frames: &mut VecDeque<PacketBuf>,
        max: usize,
        _: &mut CopyLedger,
    ) -> Result<usize, DeviceError> {
        for n in 0..max {
            let Some(frame) = self.guest.receive() else { return Ok(n) };
            let (head, rest) = frame.bytes.split_at(frame.bytes.len().min(66));
            let mut packet = PacketBuf::for_rx();
            packet.append(head.len()).expect("room for headers").copy_from_slice(head);
            if !rest.is_empty() {
                packet.push_frag(Bytes::copy_from_slice(rest).into()).expect("room for one");
            }
            frames.push_back(packet);
        }
        Ok(max)
    }
}

/// A port, what watches it, and a guest's stack in network `net` behind it, its gateway the host.
fn plugged(net: u8) -> (VhostUser, VhostMonitor, Host) {
    let (ours, theirs) = UnixStream::pair().expect("a socket");
    let port = VhostUser::builder().over(ours).expect("a port");
    let monitor = port.monitor();
    let guest = Host::builder()
        .device(Card::new(theirs, [2, 0, 0, 0, 9, net]))
        .address(format!("10.0.{net}.2/24"))
        .gateway(format!("10.0.{net}.1"))
        .start()
        .expect("a guest's stack");
    (port, monitor, guest)
}

/// `LEN` bytes each way.
fn exchange(near: TcpStream, far: TcpStream) {
    let pattern =
        |seed: usize| (0..LEN).map(|i| (i * 31 + i / 251 + seed) as u8).collect::<Vec<u8>>();
    let talk = |stream: TcpStream, says: Vec<u8>, hears: Vec<u8>| {
        let reader = stream.clone();
        let sender = thread::spawn(move || {
            stream.send(Bytes::from(says)).expect("send");
            stream.shutdown(std::net::Shutdown::Write).expect("shutdown");
        });
        let mut heard = Vec::new();
        { reader }.read_to_end(&mut heard).expect("read");
        sender.join().expect("sender");
        assert!(heard == hears, "what was sent arrives");
    };
    let (one, other) = (pattern(1), pattern(7));
    let (says, hears) = (other.clone(), one.clone());
    let there = thread::spawn(move || talk(far, says, hears));
    talk(near, one, other);
    there.join().expect("far end");
}

/// The first guest connects to the second, and both say all they have to say.
fn meet(first: &Host, second: &Host) {
    let listener = second.listen("10.0.2.2:80").expect("listen");
    let near = first.connect("10.0.2.2:80").expect("connect");
    let (far, from) = listener.accept().expect("accept");
    assert_eq!(from, near.local_addr().expect("address"), "no address is translated");
    exchange(near, far);
}

#[test]
fn guests_on_two_ports_reach_each_other_by_the_hosts_forwarding() {
    let (one, one_seen, first) = plugged(1);
    let (two, two_seen, second) = plugged(2);
    let host = Host::builder()
        .device(one)
        .address("10.0.1.1/24")
        .link(Link::new(two).address("10.0.2.1/24"))
        .ip_forwarding(true)
        .start()
        .expect("host");
    meet(&first, &second);
    let stats = host.stats();
    assert!(stats.counters.forwarded_bytes > 2 * LEN as u64, "{stats}");
    for seen in [one_seen, two_seen] {
        let counters = seen.counters();
        assert_eq!(counters.lies(), 0, "{counters:?}");
        assert!(counters.referenced > 500, "bulk frames stay in the guest's memory: {counters:?}");
    }
}

/// Plugs guests in that send what no guest sends, and pulls them out in the middle of it, until told
/// to end and at least `least` times; returns how many.
fn torment(path: PathBuf, end: &AtomicBool, least: u32) -> u32 {
    let mut times = 0;
    while times < least || !end.load(Ordering::Relaxed) {
        times += 1;
        let mut guest = Guest::connect(&path, GuestConfig::default()).expect("it may come again");
        for n in 0..400u32 {
            let noise =
                |i: u32| (i.wrapping_mul(2_654_435_761) ^ n.wrapping_mul(40_503) ^ times) as u8;
            // Kinds of segmentation that there are not, lengths that are beyond the frame.
            let header = std::array::from_fn(|i| noise(i as u32) | 0x88);
            let frame: Vec<u8> = (0..n * 9 % 3000).map(noise).collect();
            guest.send_with(header, &frame);
        }
    }
    times
}

#[test]
fn a_guest_that_lies_and_comes_and_goes_disturbs_no_other_port() {
    let (one, one_seen, first) = plugged(1);
    let (two, two_seen, second) = plugged(2);
    let path = std::env::temp_dir().join(format!("pagewire-guests-{}.sock", std::process::id()));
    let hostile = VhostUser::listen(&path).expect("a third port");
    let hostile_seen = hostile.monitor();
    let host = Host::builder()
        .device(one)
        .address("10.0.1.1/24")
        .link(Link::new(two).address("10.0.2.1/24"))
        .link(Link::new(hostile).address("10.0.3.1/24"))
        .ip_forwarding(true)
        .start()
        .expect("host");
    let end = AtomicBool::new(false);
    thread::scope(|scope| {
        let tormentor = scope.spawn(|| torment(path.clone(), &end, 20));
        for _ in 0..3 {
            meet(&first, &second);
        }
        end.store(true, Ordering::Relaxed);
        assert!(tormentor.join().expect("the hostile guest") >= 20);
    });
    for seen in [one_seen, two_seen] {
        assert_eq!(seen.counters().lies(), 0, "{:?}", seen.counters());
    }
    let counters = hostile_seen.counters();
    assert!(counters.lies() > 0 && counters.sessions >= 20, "{counters:?}");
    assert_eq!(host.stats().links.len(), 3);
}
