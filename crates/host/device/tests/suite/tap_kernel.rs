//! The tap driver and the kernel, each test in a network namespace of its own. Needs root.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv6Addr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use etherparse::IpNumber;
use pagewire_device::{Device, DeviceError, Tap, TapBuilder};
use pagewire_mem::checksum::Checksum;
use pagewire_mem::link::QueueMemory;
use pagewire_mem::{
    CopyLedger, Instant, PAGE_SIZE, PacketBuf, PagePool, Region, RxChecksum, TxChecksum,
};
use pagewire_testkit::frames::{self, bytes_of};
use pagewire_testkit::{Netns, ip};

use crate::support::{Host, Link, in_namespace};

const KERNEL_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1);
const OUR_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2);

fn tap(mtu: usize) -> Tap {
    Tap::builder("pwtest0").mtu(mtu).host_addresses(["10.77.0.1/24", "fd77::1/64"]).open().unwrap()
}

/// Our end and the kernel's, by IPv4 or IPv6.
fn ends(tap: &Tap, v6: bool) -> (Host, Host) {
    let ips: (IpAddr, IpAddr) = match v6 {
        false => ([10, 77, 0, 2].into(), [10, 77, 0, 1].into()),
        true => (OUR_V6.into(), KERNEL_V6.into()),
    };
    let (ours, kernels) = (tap.capabilities().mac, tap.kernel_mac());
    (Host { mac: ours, ip: ips.0 }, Host { mac: kernels, ip: ips.1 })
}

fn exists(name: &str) -> bool {
    Command::new("ip").args(["link", "show", name]).output().unwrap().status.success()
}

/// A byte of a stream, by its place.
fn pattern(at: usize) -> u8 {
    (at ^ (at >> 8) ^ (at >> 16)) as u8
}

#[test]
fn tap_that_was_made_vanishes_when_dropped() {
    in_namespace(|| {
        let made = tap(9000);
        assert!(exists("pwtest0"));
        assert_eq!(made.name(), "pwtest0");
        let capabilities = made.capabilities();
        assert_eq!(capabilities.mtu, 9000);
        assert_ne!(capabilities.mac, made.kernel_mac());
        // Unicast and locally administered.
        assert_eq!(capabilities.mac[0] & 3, 2);
        let shown = ip("addr show pwtest0");
        for part in ["10.77.0.1/24", "10.77.0.255", "fd77::1/64", "mtu 9000", "UP"] {
            assert!(shown.contains(part), "{part} in {shown}");
        }
        assert!(!shown.contains("tentative scope global"), "{shown}");
        drop(made);
        assert!(!exists("pwtest0"));
    });
}

/// Datagrams that wait in a tap after the kernel has sent `sent` at once and nobody has received.
fn waiting(tap: Tap, sent: usize) -> usize {
    let mut link = Link::new(tap);
    let mac = link.tap.capabilities().mac.map(|byte| format!("{byte:02x}")).join(":");
    ip(&format!("neigh replace 10.77.0.2 lladdr {mac} dev pwtest0"));
    let socket = UdpSocket::bind("10.77.0.1:7000").unwrap();
    for _ in 0..sent {
        socket.send_to(b"at once", "10.77.0.2:7001").unwrap();
    }
    while link.poll() > 0 {}
    link.inbox.iter().filter(|packet| carries(packet, 17)).count()
}

#[test]
fn a_new_tap_has_room_for_what_ten_thousand_connections_send_at_once() {
    in_namespace(|| {
        assert_eq!(waiting(tap(1500), 10_000), 10_000);
        // A tap that somebody else made keeps the queue that it was given.
        ip("tuntap add pwtest0 mode tap");
        ip("link set pwtest0 txqueuelen 50");
        assert!(waiting(tap(1500), 1000) <= 50);
        ip("link del pwtest0");
    });
}

#[test]
fn other_users_of_the_network_cannot_attach_to_a_tap_that_was_made() {
    in_namespace(|| {
        let made = tap(1500);
        let shown = ip(&format!("-d link show {}", made.name()));
        assert!(shown.contains("user root"), "{shown}");
    });
}

#[test]
fn tap_without_a_name_gets_one() {
    in_namespace(|| {
        let (a, b) = (TapBuilder::new().open().unwrap(), TapBuilder::new().open().unwrap());
        assert_eq!((a.name(), b.name()), ("pw0", "pw1"));
    });
}

#[test]
fn tap_that_existed_is_opened_as_it_is_and_stays() {
    in_namespace(|| {
        for kind in ["mode tap", "mode tap multi_queue"] {
            ip(&format!("tuntap add pwtest0 {kind}"));
            ip("link set pwtest0 mtu 4000");
            let opened = Tap::open("pwtest0").unwrap();
            assert_eq!(opened.capabilities().mtu, 4000);
            drop(opened);
            // Adding an address twice is fine.
            for _ in 0..2 {
                let builder = Tap::builder("pwtest0").host_address("10.77.0.1/24");
                drop(builder.open().unwrap());
            }
            ip("link del pwtest0");
        }
    });
}

#[test]
fn refusals_say_what_to_do_in_one_line() {
    in_namespace(|| {
        let _held = Tap::open("pwtest0").unwrap();
        ip("link add veth0 type veth peer name veth1");
        // With somebody at the other end, as a tap that is in use.
        ip("link add veth2 type veth peer name veth3");
        ip("link set veth2 up");
        ip("link set veth3 up");
        ip("tuntap add pwtun0 mode tun");
        for (builder, text) in [
            (Tap::builder("pwtest0"), "another program has it open, or a host of this one"),
            (Tap::builder("veth0"), "is no tap; choose another name"),
            (Tap::builder("veth2"), "is no tap; choose another name"),
            (Tap::builder("lo"), "is no tap; choose another name"),
            (Tap::builder("pwtun0"), "is no tap; choose another name"),
        ] {
            let error = builder.open().unwrap_err();
            assert!(matches!(error, DeviceError::System { .. }), "{error:?}");
            assert!(error.to_string().contains(text), "{error}");
            assert!(!error.to_string().contains('\n'));
        }
    });
}

/// Whether the reason is that another program has the tap open.
fn is_in_use(error: &DeviceError) -> bool {
    error.to_string().contains("another program has it open")
}

#[test]
fn a_tap_that_another_has_open_is_refused_however_many_queues_it_and_we_want() {
    in_namespace(|| {
        for (made, held) in [("", 1), ("", 2), (" multi_queue", 1), (" multi_queue", 2)] {
            for wanted in [1, 2, 4] {
                let stays = !made.is_empty();
                if stays {
                    ip(&format!("tuntap add pwtest0 mode tap{made}"));
                }
                let open = |queues| Tap::builder("pwtest0").open_queues(queues);
                let holder = open(held).unwrap();
                let error = open(wanted).unwrap_err();
                assert!(is_in_use(&error), "{made} {held} {wanted}: {error}");
                // Also while the device has no carrier to show.
                ip("link set pwtest0 down");
                let error = open(wanted).unwrap_err();
                assert!(is_in_use(&error), "{made} {held} {wanted}: {error}");
                drop(holder);
                assert_eq!(open(wanted).unwrap().len(), wanted, "nobody has it open now");
                assert_eq!(exists("pwtest0"), stays);
                if stays {
                    ip("link del pwtest0");
                }
            }
        }
    });
}

#[test]
fn of_programs_that_open_a_tap_at_the_same_time_one_has_it_at_most() {
    in_namespace(|| {
        ip("tuntap add pwtest0 mode tap multi_queue");
        for name in ["pwtest0", "pwtest1"] {
            for _ in 0..20 {
                let start = Barrier::new(3);
                // A tap is kept until all have tried.
                let tries: Vec<_> = thread::scope(|scope| {
                    let open = |queues| {
                        start.wait();
                        Tap::builder(name).left_alone(true).open_queues(queues)
                    };
                    let all = [1, 2, 3].map(|queues| scope.spawn(move || open(queues)));
                    all.map(|one| one.join().unwrap()).into_iter().collect()
                });
                assert!(tries.iter().flatten().count() <= 1, "several have it");
            }
        }
        drop(Tap::builder("pwtest0").open_queues(2).unwrap());
    });
}

#[test]
fn removed_device_is_closed_for_both_directions() {
    in_namespace(|| {
        let mut tap = tap(1500);
        ip("link del pwtest0");
        let (mut frames, mut ledger) = (VecDeque::new(), CopyLedger::new());
        let received = tap.receive(Instant::ZERO, &mut frames, 1000, &mut ledger);
        assert!(matches!(received, Err(DeviceError::Closed)), "{received:?}");
        let mut packet = PacketBuf::for_tx();
        packet.push(60).unwrap();
        frames = VecDeque::from([packet]);
        let sent = tap.transmit(Instant::ZERO, &mut frames, &mut ledger);
        assert!(matches!(sent, Err(DeviceError::Closed)), "{sent:?}");
    });
}

#[test]
fn kernel_answers_ping_through_the_tap() {
    in_namespace(|| {
        for size in [56, 1400] {
            let mut link = Link::new(tap(1500));
            let (me, peer) = ends(&link.tap, false);
            let mut echo = vec![8, 0, 0, 0, 0, 1, 0, 1];
            echo.extend((0..size).map(pattern));
            let mut sum = Checksum::new();
            sum.add_bytes(&echo);
            echo[2..4].copy_from_slice(&sum.finish().to_be_bytes());
            link.send(datagram(me, peer, 1, &echo));
            let answer = link.wait(&me, |p| carries(p, 1));
            let bytes = bytes_of(&answer);
            assert_eq!(bytes[34], 0);
            assert_eq!(bytes[42..], echo[8..]);
        }
    });
}

#[test]
fn datagrams_pass_both_ways() {
    in_namespace(|| {
        let mut link = Link::new(tap(1500));
        let (me, peer) = ends(&link.tap, false);
        let socket = UdpSocket::bind("10.77.0.1:7000").unwrap();
        for size in [0, 1, 100, 512, 513, 1472] {
            let payload: Vec<u8> = (0..size).map(pattern).collect();
            socket.send_to(&payload, "10.77.0.2:7001").unwrap();
            let packet = link.wait(&me, |p| carries(p, 17));
            assert_eq!(packet.rx_checksum, RxChecksum::Valid);
            assert_eq!(packet.head().len(), 42);
            assert_eq!(bytes_of(&packet)[42..], payload);

            // Back, with the checksum left to the kernel.
            let mut udp = vec![0x1b, 0x59, 0x1b, 0x58];
            udp.extend((8 + size as u16).to_be_bytes());
            let mut sum = Checksum::new();
            sum.add_bytes(&[10, 77, 0, 2, 10, 77, 0, 1, 0, 17]);
            sum.add_u16(8 + size as u16);
            udp.extend(sum.sum().to_be_bytes());
            let mut packet = datagram(me, peer, 17, &udp);
            let total = (28 + size as u16).to_be_bytes();
            let head = packet.head_mut();
            head[16..18].copy_from_slice(&total);
            head[24..26].fill(0);
            let mut sum = Checksum::new();
            sum.add_bytes(&head[14..34]);
            head[24..26].copy_from_slice(&sum.finish().to_be_bytes());
            packet.tx_checksum = TxChecksum::Partial { start: 34, offset: 6 };
            packet.push_frag(bytes::Bytes::from(payload.clone()).into()).unwrap();
            link.send(packet);
            let mut buffer = [0; 2000];
            socket.set_read_timeout(Some(crate::support::PATIENCE)).unwrap();
            let (n, from) = socket.recv_from(&mut buffer).unwrap();
            assert_eq!(from.to_string(), "10.77.0.2:7001");
            assert_eq!(buffer[..n], payload);
        }
    });
}

/// Whether an IPv4 packet carries `protocol`. In an ARP frame a byte of the kernel's link address
/// stands in the same place, and that is made at random.
fn carries(packet: &PacketBuf, protocol: u8) -> bool {
    let head = packet.head();
    head.get(12..14) == Some(&[8, 0]) && head.get(23) == Some(&protocol)
}

/// An IPv4 frame with everything in the head, or the rest in a fragment.
fn datagram(from: Host, to: Host, protocol: u8, body: &[u8]) -> PacketBuf {
    let ip = frames::ip([from.mac, to.mac], [from.ip, to.ip], 64);
    let mut frame = Vec::new();
    ip.write(&mut frame, IpNumber(protocol), body).unwrap();
    frames::received(&frame, 14 + 20 + 8)
}

#[test]
fn each_queue_of_several_sends() {
    in_namespace(|| {
        let builder = Tap::builder("pwtest0").host_address("10.77.0.1/24");
        let queues = builder.open_queues(2).unwrap();
        assert_eq!(queues.len(), 2);
        let socket = UdpSocket::bind("10.77.0.1:7000").unwrap();
        socket.set_read_timeout(Some(crate::support::PATIENCE)).unwrap();
        for (i, tap) in queues.into_iter().enumerate() {
            assert_eq!(tap.capabilities().queues, 2);
            let mut link = Link::new(tap);
            let (me, peer) = ends(&link.tap, false);
            let port = 0x1b59 + i as u16;
            let mut udp = port.to_be_bytes().to_vec();
            udp.extend([0x1b, 0x58, 0, 9, 0, 0, i as u8]);
            link.send(datagram(me, peer, 17, &udp));
            let mut buffer = [0; 16];
            let (n, from) = socket.recv_from(&mut buffer).unwrap();
            assert_eq!((n, buffer[0], from.port()), (1, i as u8, port));
        }
    });
}

#[test]
fn a_tap_works_on_when_queues_were_attached_and_detached_again() {
    in_namespace(|| {
        let mut link = Link::new(tap(1500));
        let (me, peer) = ends(&link.tap, false);
        let mut at = Instant::ZERO;
        for _ in 0..3 {
            for queue in 1..4 {
                let region = Region::memfd("queue", 64 * PAGE_SIZE).unwrap();
                let memory = QueueMemory::new(PagePool::over(region).unwrap());
                link.tap.steering().unwrap().bind(queue, memory).unwrap();
            }
            link.poll();
            (1..4).for_each(|queue| drop(link.tap.steering().unwrap().unbind(queue)));
            // Nobody uses the queues for some seconds.
            for _ in 0..4 {
                at += Duration::from_secs(1);
                link.tap.receive(at, &mut link.inbox, 64, &mut link.ledger).unwrap();
            }
            link.send(datagram(me, peer, 1, &[8, 0, 0xf7, 0xfc, 0, 1, 0, 2]));
            let answer = link.wait(&me, |packet| carries(packet, 1));
            assert_eq!(bytes_of(&answer)[34], 0);
        }
    });
}

#[test]
fn a_tap_made_in_another_namespace_is_adopted_with_its_routes_and_works_from_here() {
    in_namespace(|| {
        // A thread with a namespace of its own makes it, and stays to say what is there.
        let (parts, made) = std::sync::mpsc::channel();
        let (done, end) = std::sync::mpsc::channel::<()>();
        let inside = move || {
            pagewire_device::tap::loopback_up().unwrap();
            let builder = Tap::builder("pwtest1")
                .host_addresses(["10.77.0.1/24", "fd77::1/64"])
                .host_gateway("10.77.0.2".parse().unwrap())
                .host_gateway("fd77::2".parse().unwrap());
            parts.send(builder.open_parts().unwrap()).unwrap();
            let v4 = ip("-4 route show default");
            assert!(v4.contains("via 10.77.0.2 dev pwtest1"), "{v4}");
            let v6 = ip("-6 route show default");
            assert!(v6.contains("via fd77::2 dev pwtest1"), "{v6}");
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let _ = end.recv();
        };
        let maker = thread::spawn(|| Netns::new().inside(inside));
        let parts = made.recv().unwrap();
        assert!(!exists("pwtest1"), "it is not here");
        assert!(parts.queues.len() > 1, "it has queues for mapped flows");
        let tap = TapBuilder::new().adopt(parts).unwrap();
        assert_eq!((tap.name(), tap.capabilities().mtu), ("pwtest1", 1500));
        let (me, peer) = ends(&tap, false);
        let mut link = Link::new(tap);
        // The kernel there answers a ping.
        let ping = [8, 0, 0xf7, 0xfc, 0, 1, 0, 2];
        link.send(datagram(me, peer, 1, &ping));
        let answer = link.wait(&me, |packet| carries(packet, 1));
        assert_eq!(bytes_of(&answer)[34], 0);
        // The tap's queues can be attached from here, and given memory.
        assert!(link.tap.steering().unwrap().queues() > 1);
        drop(done);
        maker.join().unwrap();
    });
}
