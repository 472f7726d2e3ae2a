//! The rate at which the tap driver moves a stream to and from a kernel socket, with a minimal TCP
//! in front of it: the upper bound for the stack. Needs root; works in a namespace of its own.
//!
//! `cargo run --release -p pagewire-device --example tap_rate -- [send|receive] [MTU] [GIB]`

#![allow(unreachable_pub)]

#[path = "../tests/suite/support/mod.rs"]
mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Instant;
use std::{env, thread};

use pagewire_device::{Device, Tap};
use pagewire_mem::{CopyReason, Region};
use support::{Conn, Host, Link, in_namespace};

fn main() {
    let mut args = env::args().skip(1);
    let direction = args.next().unwrap_or_else(|| "both".into());
    let mtu = args.next().map_or(1500, |n| n.parse().expect("MTU in bytes"));
    let gib: usize = args.next().map_or(16, |n| n.parse().expect("GiB to move"));
    for round in 0..3 {
        for way in ["send", "receive"] {
            if direction == way || direction == "both" {
                in_namespace(move || rate(round, way, mtu, gib << 30));
            }
        }
        loopback(round, gib << 30);
    }
}

fn rate(round: usize, way: &str, mtu: usize, bytes: usize) {
    let tap = Tap::builder("rate0")
        .mtu(mtu)
        .host_address("10.77.0.1/24")
        .pool_bytes(setting("POOL_MIB", 64) << 20)
        .open();
    let tap = tap.unwrap_or_else(|e| panic!("{e}"));
    let me = Host { mac: tap.capabilities().mac, ip: [10, 77, 0, 2].into() };
    let peer = Host { mac: tap.kernel_mac(), ip: [10, 77, 0, 1].into() };
    let mut link = Link::new(tap);
    let mss = (mtu - 40) as u16;
    pin(0);
    let (seconds, ours, theirs) = match way {
        "send" => send(&mut link, me, peer, mss, bytes),
        _ => receive(&mut link, me, peer, mss, bytes),
    };
    let counters = link.tap.counters();
    let audit = link.tap.pool_audit().expect("a tap has a pool");
    let mib = bytes as f64 / f64::from(1 << 20);
    println!(
        "{round} {way:7} mtu {mtu:5}: {:6.1} Gbit/s, our thread {:5.1} us/MiB, kernel socket's \
         {:5.1} us/MiB; {} frames out, {} in, aligned {:.3}%, mispredicted {}, copied by us {}, \
         conserved {}",
        bytes as f64 * 8e-9 / seconds,
        ours * 1e6 / mib,
        theirs * 1e6 / mib,
        counters.tx_frames,
        counters.rx_frames,
        100.0 * counters.rx_aligned_bytes as f64 / counters.rx_payload_bytes.max(1) as f64,
        counters.rx_mispredicted,
        link.ledger.get(CopyReason::SmallSegment) + link.ledger.get(CopyReason::LinearHead),
        audit.is_conserved(),
    );
}

/// The kernel to itself, over loopback, at 256 KiB a call: the machine's present speed.
fn loopback(round: usize, bytes: usize) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = listener.local_addr().expect("address");
    let start = Instant::now();
    let writer = thread::spawn(move || {
        pin(1);
        let mut socket = TcpStream::connect(address).expect("connect");
        cubic(&socket);
        let buffer = vec![1; 256 << 10];
        for _ in 0..bytes / buffer.len() {
            socket.write_all(&buffer).expect("write");
        }
        cpu_time()
    });
    pin(0);
    let (mut socket, _) = listener.accept().expect("accept");
    let cpu = cpu_time();
    let mut buffer = vec![0; 256 << 10];
    while socket.read(&mut buffer).expect("read") > 0 {}
    let (cpu, mib) = (cpu_time() - cpu, bytes as f64 / f64::from(1 << 20));
    println!(
        "{round} loopback, kernel to kernel: {:6.1} Gbit/s, receiver {:5.1} us/MiB, sender {:5.1}",
        bytes as f64 * 8e-9 / start.elapsed().as_secs_f64(),
        cpu * 1e6 / mib,
        writer.join().expect("writer") * 1e6 / mib,
    );
}

/// Sends super-frames from a large buffer walked in order.
fn send(link: &mut Link, me: Host, peer: Host, mss: u16, bytes: usize) -> (f64, f64, f64) {
    let listener = TcpListener::bind("10.77.0.1:9000").expect("bind");
    cubic(&listener);
    let reader = thread::spawn(move || {
        pin(1);
        let (mut socket, _) = listener.accept().expect("accept");
        let mut buffer = vec![0; 1 << 20];
        let start = cpu_time();
        while socket.read(&mut buffer).expect("read") > 0 {}
        cpu_time() - start
    });
    let size = setting("SOURCE_MIB", 256) << 20;
    let burst = setting("BURST", 8);
    let inflight = setting("INFLIGHT_KIB", 1 << 20) << 10;
    let source = Region::memfd("source", size).expect("memfd");
    let writer = std::fs::File::from(
        source.fd().expect("has a file").try_clone_to_owned().expect("descriptor"),
    );
    for mib in 0..size >> 20 {
        std::os::unix::fs::FileExt::write_all_at(
            &writer,
            &vec![mib as u8; 1 << 20],
            (mib as u64) << 20,
        )
        .expect("fill");
    }
    let mut conn = Conn::connect(link, me, peer, 9000, mss);
    let unit = usize::from(mss) - 12;
    let most = (65_535 - 52) / unit * unit;
    let (mut left, mut at) = (bytes, 0);
    let (start, cpu) = (Instant::now(), cpu_time());
    while left > 0 {
        for _ in 0..burst {
            let n = most.min(left);
            if n == 0 || conn.room() < n || conn.inflight() >= inflight {
                break;
            }
            if at + n > size {
                at = 0;
            }
            let frame = conn.data(source.frag(at, n).expect("in range"));
            link.outbox.push_back(frame);
            (at, left) = (at + n, left - n);
        }
        link.flush();
        link.poll();
        for packet in link.inbox.drain(..) {
            conn.hear(&packet);
        }
    }
    conn.await_ack(link);
    let (seconds, ours) = (start.elapsed().as_secs_f64(), cpu_time() - cpu);
    let fin = conn.fin();
    link.send(fin);
    (seconds, ours, reader.join().expect("reader"))
}

/// Receives what a kernel socket writes, and drops it at once.
fn receive(link: &mut Link, me: Host, peer: Host, mss: u16, bytes: usize) -> (f64, f64, f64) {
    let writer = thread::spawn(move || {
        pin(1);
        let mut socket = TcpStream::connect("10.77.0.2:9000").expect("connect");
        cubic(&socket);
        let buffer = vec![1; 1 << 20];
        let start = cpu_time();
        for _ in 0..bytes / buffer.len() {
            socket.write_all(&buffer).expect("write");
        }
        cpu_time() - start
    });
    let mut conn = Conn::accept(link, me, peer, mss, true);
    conn.window = 0x6000;
    let (mut got, batch) = (0, setting("BATCH", 8));
    let (start, cpu) = (Instant::now(), cpu_time());
    while got < bytes {
        link.tap
            .receive(pagewire_mem::Instant::ZERO, &mut link.inbox, batch, &mut link.ledger)
            .expect("receive");
        let mut data = 0;
        for packet in link.inbox.drain(..) {
            data += conn.hear(&packet).unwrap_or(0);
        }
        if data > 0 {
            got += data;
            let ack = conn.ack();
            link.send(ack);
        }
    }
    let (seconds, ours) = (start.elapsed().as_secs_f64(), cpu_time() - cpu);
    (seconds, ours, writer.join().expect("writer"))
}

/// A setting from the environment, for experiments.
fn setting(name: &str, default: usize) -> usize {
    env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

fn cubic(socket: &impl AsRawFd) {
    let name = b"cubic";
    // SAFETY: reads `name.len()` bytes of a live array.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_CONGESTION,
            name.as_ptr().cast(),
            name.len() as _,
        )
    };
    assert_eq!(set, 0, "CUBIC is there");
}

fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

fn cpu_time() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}
