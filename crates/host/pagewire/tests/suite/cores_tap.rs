//! A host of several cores on a tap with a queue for each, with the kernel on the other side. Needs root.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::thread;

use pagewire::{Cores, Host, Tap};
use pagewire_testkit::{Need, Netns, can};

use crate::support::PATIENCE;

/// Runs `f` with a host of three cores at 10.79.3.2 and fd79:3::2; the kernel is at .1 and ::1.
fn on_a_tap(f: impl FnOnce(&Cores) + Send) {
    if !can(&[Need::Tap]) {
        return;
    }
    Netns::new().inside(|| {
        let tap = Tap::builder("pwcores0").host_address("10.79.3.1/24");
        let queues = tap.host_address("fd79:3::1/64").open_queues(3).expect("tap");
        let host = Host::builder().address("10.79.3.2/24").address("fd79:3::2/64");
        f(&host.cores(3).device_queues(queues).start().expect("host"));
    });
}

#[test]
fn the_kernel_reaches_listeners_and_datagram_sockets_of_all_cores() {
    on_a_tap(|host| {
        let listener = host.listen("[::]:7").expect("listener");
        let echo = |(mut stream, _): (pagewire::TcpStream, SocketAddr)| {
            thread::spawn(move || {
                let mut data = [0; 1000];
                while stream.read_exact(&mut data).is_ok() {
                    stream.write_all(&data).expect("answer");
                }
            })
        };
        let accepting = listener.clone();
        thread::spawn(move || {
            while let Ok(accepted) = accepting.accept() {
                echo(accepted);
            }
        });
        for n in 0..40u8 {
            let to: IpAddr =
                if n % 2 == 0 { [10, 79, 3, 2].into() } else { "fd79:3::2".parse().unwrap() };
            let mut stream = TcpStream::connect((to, 7)).expect("connect");
            stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
            for _ in 0..3 {
                stream.write_all(&[n; 1000]).expect("write");
                let mut back = [0; 1000];
                stream.read_exact(&mut back).expect("answer");
                assert_eq!(back, [n; 1000]);
            }
        }
        let accepted: Vec<u64> =
            host.stats().shards.iter().map(|s| s.counters.tcp_passive_opens).collect();
        assert_eq!(accepted.iter().sum::<u64>(), 40);
        assert!(accepted.iter().all(|n| *n > 0), "{accepted:?}");

        let socket = host.udp("10.79.3.2:53").expect("socket");
        let answers = socket.clone();
        thread::spawn(move || {
            let mut data = [0; 100];
            while let Ok((len, peer)) = answers.recv_from(&mut data) {
                answers.send_to(&data[..len], peer).expect("answer");
            }
        });
        for n in 0..40u8 {
            let peer = UdpSocket::bind("10.79.3.1:0").expect("peer");
            peer.set_read_timeout(Some(PATIENCE)).expect("timeout");
            peer.send_to(&[n; 9], "10.79.3.2:53").expect("send");
            assert_eq!(peer.recv_from(&mut [0; 100]).expect("answer").0, 9);
        }
    });
}

#[test]
fn all_cores_reach_the_kernel_and_each_other() {
    on_a_tap(|host| {
        let listener = TcpListener::bind("10.79.3.1:9000").expect("listener");
        let echo = thread::spawn(move || {
            for _ in 0..30 {
                let (mut stream, _) = listener.accept().expect("accept");
                let mut data = [0; 1000];
                stream.read_exact(&mut data).expect("read");
                stream.write_all(&data).expect("write");
            }
        });
        for n in 0..30u8 {
            let mut stream = host.connect("10.79.3.1:9000").expect("connect");
            stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
            stream.write_all(&[n; 1000]).expect("write");
            let mut back = [0; 1000];
            stream.read_exact(&mut back).expect("answer");
            assert_eq!(back, [n; 1000]);
        }
        echo.join().expect("echo");

        let [first, second, third] = host.shards() else { panic!("three cores") };
        let inside = third.listen("10.79.3.2:80").expect("listener");
        for shard in [first, second, third] {
            let mut near = shard.connect("10.79.3.2:80").expect("connect");
            let (mut far, _) = inside.accept().expect("accept");
            near.write_all(b"within").expect("write");
            far.read_exact(&mut [0; 6]).expect("read");
        }
    });
}

#[test]
fn a_tap_that_is_deleted_ends_all_cores() {
    on_a_tap(|host| {
        let deleted = Command::new("ip").args(["link", "delete", "pwcores0"]).status();
        assert!(deleted.expect("ip").success());
        for shard in host.shards() {
            shard.failed().wait().expect("a thread of the program");
        }
    });
}
