//! Links with memory of their own, of which connections that nobody reads must leave some: what is
//! not read pins pages, and a link without pages receives neither acknowledgements nor queries.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream as KernelStream};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use pagewire::device::{DatagramLink, Frames, FramesConfig, FramesEnd, StreamLink};
use pagewire::tcp::TcpConfig;
use pagewire::{Device, Host, TcpStream};
use pagewire_gateway::{
    Ask, Builder, Dial, Dialled, Gateway, Guest, GuestConfig, OwnNames, Resolver,
};
use pagewire_testkit::frames::dns_query;

use crate::support::frames::{GATEWAY, MAC, ME, arp, datagram, syn, tcp};
use crate::support::{PATIENCE, eventually, far, full_socket, to_loopback};

/// Uploads that nobody reads: together far more than a link's memory, beside what the kernel's own
/// sockets take.
const UPLOADS: usize = 48;

/// A query for the address of `gateway`, which the gateway itself answers.
fn query() -> Vec<u8> {
    dns_query(0x1234, "gateway", 1)
}

fn gateway() -> Builder {
    let mut names = OwnNames::default();
    names.add_word("gateway", [10, 0, 2, 2].into()).unwrap();
    Gateway::builder().judge(to_loopback).names(names).resolver(Resolver::None)
}

fn add(gateway: &Gateway, link: impl Device + 'static) -> Guest {
    gateway.add(link, GuestConfig::new().network("10.0.2.2/24").unwrap()).unwrap()
}

/// A guest's kernel behind a device. Its uploads leave memory of its own for others, too.
fn inside(device: impl Device + 'static) -> Host {
    let tcp = TcpConfig { send_buffer: 512 << 10, ..TcpConfig::default() };
    let host = Host::builder().device(device).address("10.0.2.15/24").gateway("10.0.2.2");
    host.tcp_config(tcp).shutdown_limit(Duration::ZERO).start().unwrap()
}

fn connection(inside: &Host) -> (TcpStream, KernelStream) {
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let stream = inside.connect(far(server.local_addr().unwrap().port())).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let (far, _) = server.accept().unwrap();
    far.set_read_timeout(Some(PATIENCE)).unwrap();
    far.set_write_timeout(Some(PATIENCE)).unwrap();
    (stream, far)
}

/// Uploads that nobody reads, and then a query, and the end of one of them.
fn uploads_leave_memory_for_queries(inside: &Host, guest: &Guest) {
    let ask = || {
        let names = inside.udp("0.0.0.0:0").unwrap();
        names.set_read_timeout(Some(PATIENCE)).unwrap();
        names.send_to(&query(), SocketAddr::from(([10, 0, 2, 2], 53))).unwrap();
        let (len, _) = names.recv_from(&mut [0; 512]).unwrap();
        assert!(len > query().len());
    };
    ask();
    let uploads: Vec<_> = (0..UPLOADS).map(|_| connection(inside)).collect();
    let content = vec![1; 512 << 10];
    // Until most of the memory is taken and nothing moves any more.
    let (mut last, mut used) = (0, 0);
    eventually(|| {
        thread::park_timeout(Duration::from_millis(100));
        for (near, _) in &uploads {
            near.set_nonblocking(true).unwrap();
            // Refused where it would wait.
            while (&*near).write(&content).is_ok_and(|n| n > 0) {}
        }
        let moved = guest.host().stats().links[0].device.rx_payload_bytes;
        used = guest.host().with_stack(|stack, _| stack.receive_memory_used());
        moved - std::mem::replace(&mut last, moved) < 64 << 10 && used > 4 << 20
    });
    let device = guest.host().pool_audits()[1];
    assert!(device.free + device.returned > device.total / 8, "{device:?}");

    ask();
    // An upload that is read goes on.
    let (near, mut far) = uploads.into_iter().next().unwrap();
    drop(near);
    assert!(far.read_to_end(&mut Vec::new()).is_ok());
}

#[test]
fn uploads_that_nobody_reads_leave_a_stream_link_memory_for_queries_and_go_on_when_read() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let link = |stream, at| StreamLink::builder().mac([2, 0, 0, 0, 0, at]).over(stream).unwrap();
    let guest = add(&gateway().start(), link(ours, 2));
    uploads_leave_memory_for_queries(&inside(link(theirs, 15)), &guest);
}

#[test]
fn uploads_that_nobody_reads_leave_a_datagram_link_memory_for_queries_and_go_on_when_read() {
    let directory = tempfile::tempdir().unwrap();
    let (path, peer) = (directory.path().join("gateway"), directory.path().join("guest"));
    let guest = add(&gateway().start(), DatagramLink::builder().bind(&path).unwrap());
    let config = FramesConfig { mac: MAC, ..FramesConfig::default() };
    let (device, end) = Frames::new(config).unwrap();
    let socket = UnixDatagram::bind(&peer).unwrap();
    socket.connect(&path).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket.send(b"VFKT").unwrap();
    let _cable = Cable::new(end, socket);
    uploads_leave_memory_for_queries(&inside(device), &guest);
}

/// Carries frames between a guest's device and a socket, as the program of a virtual machine.
struct Cable(Arc<AtomicBool>, Option<JoinHandle<()>>);

impl Cable {
    fn new(mut end: FramesEnd, socket: UnixDatagram) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let carry = move || {
            let (mut into, mut out) = ([0; 2048], [0; 2048]);
            let mut waiting = None;
            while !stopped.load(Ordering::Relaxed) {
                let mut idle = true;
                while let Ok(len) = socket.recv(&mut into) {
                    // A frame that finds no room is lost, as on a line.
                    let _ = end.send(&into[..len]);
                    idle = false;
                }
                while let Some(len) = waiting.take().or_else(|| end.receive(&mut out)) {
                    idle = false;
                    match socket.send(&out[..len]) {
                        Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                            waiting = Some(len);
                            thread::yield_now();
                            break;
                        }
                        sent => assert_eq!(sent.unwrap(), len),
                    }
                }
                if idle {
                    end.wait(Some(Duration::from_micros(200)));
                }
            }
        };
        Self(stop, Some(thread::spawn(carry)))
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        let carried = self.1.take().map(JoinHandle::join);
        assert!(thread::panicking() || carried.is_none_or(|joined| joined.is_ok()));
    }
}

/// Connects at once, to far ends that take nothing.
#[derive(Default)]
struct Deaf(Mutex<Vec<UnixStream>>);

impl Dial for Deaf {
    fn dial(&self, _: SocketAddr, _: &Ask) -> io::Result<Dialled> {
        let (near, far) = full_socket()?;
        self.0.lock().unwrap().push(far);
        Ok(Dialled { socket: near.into(), connected: true })
    }
}

/// The guest's side of a stream link, by hand.
struct Raw {
    stream: UnixStream,
    /// Bytes sent.
    sent: usize,
}

impl Raw {
    fn send(&mut self, frame: &[u8]) {
        let bytes = [&(frame.len() as u32).to_be_bytes()[..], frame].concat();
        self.stream.write_all(&bytes).expect("the link goes on reading");
        self.sent += bytes.len();
    }

    /// Sends frames that nobody takes, until `until` bytes were sent.
    fn fill(&mut self, until: usize) {
        let stranger =
            |len: usize| [&GATEWAY[..], &MAC, &[0x88, 0xb5], &vec![0; len - 14]].concat();
        while until > self.sent {
            let left = until - self.sent;
            // The rest is a frame, too.
            let len = if left < 2 * 1518 { left / 2 } else { 1518 };
            self.send(&stranger(if left < 1518 { left } else { len } - 4));
        }
    }

    fn receive(&mut self) -> Vec<u8> {
        let mut len = [0; 4];
        self.stream.read_exact(&mut len).expect("the gateway answers");
        let mut frame = vec![0; u32::from_be_bytes(len) as usize];
        self.stream.read_exact(&mut frame).unwrap();
        frame
    }

    /// The number of the next SYN,ACK, and the port that it is for.
    fn accepted(&mut self) -> (u16, u32) {
        loop {
            let frame = self.receive();
            if frame.len() >= 54 && frame[23] == 6 && frame[47] == 0x12 {
                let number = u32::from_be_bytes(frame[38..42].try_into().unwrap());
                return (u16::from_be_bytes([frame[36], frame[37]]), number);
            }
        }
    }
}

#[test]
fn segments_that_pin_two_pages_each_leave_a_stream_link_memory_for_others() {
    const CONNECTIONS: u16 = 400;
    /// Too few for the connection to copy them together.
    const SEGMENTS: u32 = 7;
    const LEN: usize = 520;
    let (ours, theirs) = UnixStream::pair().unwrap();
    let gateway = gateway().dialler(Deaf::default()).start();
    let guest = add(&gateway, StreamLink::builder().mac(GATEWAY).over(ours).unwrap());
    theirs.set_write_timeout(Some(PATIENCE)).unwrap();
    theirs.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut raw = Raw { stream: theirs, sent: 0 };
    raw.send(&arp());
    let mut connections = Vec::new();
    for i in 0..CONNECTIONS {
        raw.send(&syn(ME, 2000 + i, crate::support::FAR, 80, 0));
        connections.push(raw.accepted());
    }
    for round in 0..SEGMENTS {
        for (port, number) in &connections {
            // The segment's payload lies across two pages that nothing else needs.
            let page = (raw.sent + 4096).next_multiple_of(8192) + 4096;
            raw.fill(page - LEN / 2 - 4 - 54);
            let numbers = [1 + round * LEN as u32, number + 1];
            raw.send(&tcp(*port, (crate::support::FAR, 80), numbers, &[7; LEN]));
        }
    }
    raw.send(&datagram(4000, Ipv4Addr::new(10, 0, 2, 2), 53, &query()));
    while raw.receive()[23] != 17 {}
    raw.send(&syn(ME, 3000, crate::support::FAR, 80, 0));
    while raw.accepted().0 != 3000 {}
    let device = guest.host().pool_audits()[1];
    assert!(device.out > device.total / 2, "the test is of no use: {device:?}");
}
