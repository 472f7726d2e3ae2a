//! Rings on a tap: the kernel writes into registered memory. In a network namespace that goes with
//! the test; needs root.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::thread;

use pagewire::Host;
use pagewire::device::Rule;
use pagewire::memory::{CopyReason, Region};
use pagewire::rings::COPY_GROUP;
use pagewire::rings::{AsyncRings, RingStream};
use pagewire::rings::{Completion, EngineConfig, QueueConfig, RegisterError};

use crate::ring_to_file::example as ring_to_file;
use crate::support::{PATIENCE, block_on, private, register_send};

const LEN: usize = 16 << 20;

fn on_a_tap(f: impl FnOnce(Host) + Send) {
    crate::support::on_a_tap("10.77.0.1/24", "10.77.0.2/24", f);
}

fn rings(host: &Host) -> AsyncRings {
    host.rings(EngineConfig::new(private(4 << 20))).unwrap().into_async()
}

fn data(salt: usize) -> Vec<u8> {
    (0..LEN).map(|i| (i ^ i >> 8 ^ i >> 16 ^ salt) as u8).collect()
}

/// A socket of the kernel's sends. Threads inherit the namespace of the one that makes them.
fn kernel_sends(to: SocketAddr, salt: usize) -> thread::JoinHandle<()> {
    let socket = TcpStream::connect_timeout(&to, PATIENCE).unwrap();
    thread::spawn(move || send(socket, salt))
}

fn send(mut socket: TcpStream, salt: usize) {
    socket.set_write_timeout(Some(PATIENCE)).unwrap();
    socket.write_all(&data(salt)).unwrap();
    socket.shutdown(Shutdown::Write).unwrap();
}

/// Receives until the stream ends, or `enough`; returns how many bytes came by reference.
async fn receive(
    stream: &RingStream,
    group: u16,
    bytes: &mut Vec<u8>,
    enough: impl Fn(&[u8]) -> bool,
) -> usize {
    let mut reference = 0;
    while !enough(bytes) {
        let received = stream.receive(group, 1 << 20).await.unwrap();
        if received.buffers.is_empty() {
            break;
        }
        for buffer in received.buffers {
            reference += if buffer.is_copied() { 0 } else { buffer.len() };
            bytes.extend_from_slice(buffer.as_slice().expect("private memory"));
        }
    }
    reference
}

#[test]
fn a_queue_of_a_tap_fills_its_region_with_the_flows_of_its_rule_only() {
    on_a_tap(|host| {
        let rings = rings(&host);
        let group = rings.register(1, private(8 << 20), &[Rule::tcp_port(9000)]).unwrap();
        let listener = rings.listen("10.77.0.2:9000").unwrap();
        // Beside it, flows of no rule, bulk as well.
        let ordinary = host.listen("10.77.0.2:9001").unwrap();
        let mut threads = vec![kernel_sends(listener.local_addr(), 1)];
        for salt in [2, 3] {
            threads.push(kernel_sends(ordinary.local_addr().unwrap(), salt));
            let (mut stream, _) = ordinary.accept().unwrap();
            threads.push(thread::spawn(move || {
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                let mut bytes = Vec::new();
                stream.read_to_end(&mut bytes).unwrap();
                assert!(bytes == data(salt));
            }));
        }
        let mut bytes = Vec::new();
        let reference = block_on(async {
            let stream = listener.accept().await.unwrap();
            receive(&stream, group, &mut bytes, |_| false).await
        });
        assert!(bytes == data(1));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        // Every frame but the first and the last, and those after seconds of silence, if there were
        // some: then the kernel has forgotten the flow.
        assert!(reference > LEN / 10 * 9, "{reference} by reference, {:?}", rings.counters());
        // Next to nothing of the others' payload came that way.
        let ledger = host.stats().ledger;
        assert!(ledger.get(CopyReason::Misplaced) < LEN as u64 / 4, "{ledger:?}");
    });
}

#[test]
fn a_queue_of_a_tap_fills_its_region_with_the_datagrams_of_its_rule() {
    on_a_tap(|host| {
        let rings = rings(&host);
        let group = rings.register(1, private(1 << 20), &[Rule::udp_port(9000)]).unwrap();
        let out = register_send(&rings, &[]);
        let kernel = UdpSocket::bind("10.77.0.1:5000").unwrap();
        kernel.set_read_timeout(Some(PATIENCE)).unwrap();
        let peer = kernel.local_addr().unwrap();
        let (mut reference, mut total) = (0, 0);
        block_on(async {
            let socket = rings.bind("10.77.0.2:9000").await.unwrap();
            // By the queue that this leaves by, the kernel brings the flow.
            assert_eq!(socket.send_to(out, 0, 100, peer).await.unwrap(), 100);
            assert_eq!(kernel.recv_from(&mut [0; 200]).unwrap().1, socket.local_addr());
            for n in 0..500 {
                let bytes = vec![n as u8; 1000 + n % 400];
                kernel.send_to(&bytes, socket.local_addr()).unwrap();
                let datagram = socket.receive(group, usize::MAX).await.unwrap();
                assert_eq!((datagram.from, datagram.len), (peer, bytes.len()));
                for buffer in &datagram.buffers {
                    let piece = buffer.as_slice().expect("private memory");
                    assert!(piece.iter().all(|b| *b == n as u8));
                    reference += if buffer.is_copied() { 0 } else { buffer.len() };
                }
                total += bytes.len();
            }
        });
        assert!(reference > total / 10 * 9, "{reference} of {total}, {:?}", rings.counters());
    });
}

#[test]
fn a_flow_goes_on_by_copy_when_its_region_is_taken_back_and_the_region_comes_home() {
    on_a_tap(|host| {
        let rings = rings(&host);
        let group = rings.register(2, private(4 << 20), &[Rule::tcp_port(9000)]).unwrap();
        let listener = rings.listen("10.77.0.2:9000").unwrap();
        let sending = kernel_sends(listener.local_addr(), 4);
        let mut bytes = Vec::new();
        block_on(async {
            let stream = listener.accept().await.unwrap();
            let first = receive(&stream, group, &mut bytes, |got| got.len() > LEN / 4).await;
            assert!(first > LEN / 8, "{first}");
            rings.unregister(group).unwrap();
            // The group is not registered any more: what comes now is copied.
            let rest = receive(&stream, COPY_GROUP, &mut bytes, |_| false).await;
            assert!(rest < LEN / 2, "{rest}");
            let notice = rings.notice().await;
            assert!(notice.has(Completion::UNREGISTERED), "{notice:?}");
            assert_eq!(notice.handle, u64::from(group));
        });
        assert!(bytes == data(4));
        sending.join().unwrap();
        // The queue is free again.
        rings.register(2, private(1 << 20), &[]).unwrap();
    });
}

#[test]
fn the_example_writes_what_a_kernel_socket_sends_to_a_file() {
    on_a_tap(|host| {
        let folder =
            std::env::temp_dir().join(format!("pagewire-rings-tap-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let to = SocketAddr::from(([10, 77, 0, 2], ring_to_file::PORT));
        let sending = thread::spawn(move || {
            loop {
                // The example may not listen yet.
                match TcpStream::connect_timeout(&to, PATIENCE) {
                    Err(e) if e.kind() == ErrorKind::ConnectionRefused => thread::yield_now(),
                    socket => break send(socket.unwrap(), 5),
                }
            }
        });
        ring_to_file::serve(&host, 1, &folder, 1).unwrap();
        sending.join().unwrap();
        let file = std::fs::read(folder.join("received-0")).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(file == data(5));
    });
}

#[test]
fn a_tap_refuses_memory_that_it_cannot_use() {
    on_a_tap(|host| {
        let rings = rings(&host);
        let shared = QueueConfig::new(Region::memfd_shared("shared", 1 << 20).unwrap());
        let refused = rings.register(1, shared, &[]).unwrap_err();
        assert!(matches!(refused, RegisterError::Shared), "{refused}");
        let refused = rings.register(16, private(1 << 20), &[]).unwrap_err();
        assert!(matches!(refused, RegisterError::NoQueue(16)), "{refused}");
        rings.register(15, private(1 << 20), &[]).unwrap();
        let refused = rings.register(15, private(1 << 20), &[]).unwrap_err();
        assert!(matches!(refused, RegisterError::QueueTaken(15)), "{refused}");
    });
}
