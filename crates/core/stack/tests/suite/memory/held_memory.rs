//! Memory that a program took by reference and keeps: it closes its own window, and nobody else's,
//! before anything runs out.

use std::time::Duration;

use pagewire_mem::{CopyReason, Frag, Held, PAGE_SIZE};
use pagewire_stack::{Error, TcpId};

use crate::common::{Pair, Verbs, capabilities, config};

/// A stream of bytes from one side to the other.
struct Flow {
    client: TcpId,
    server: TcpId,
    kept: Vec<(Vec<Frag>, Held)>,
    got: usize,
}

fn pair(receive_memory: usize) -> Pair {
    let mut p = Pair::changed(|_, b| b.memory = receive_memory);
    p.meet();
    p
}

fn flow(p: &mut Pair, port: u16) -> Flow {
    let (client, server, _) = p.connect(&format!("10.0.0.2:{port}"));
    Flow { client, server, kept: Vec::new(), got: 0 }
}

impl Flow {
    /// Sends what fits, in segments of `len` bytes each pushed by itself.
    fn send(&self, p: &mut Pair, data: &[u8], len: usize, count: usize) {
        for _ in 0..count {
            let sent = p.a.send(p.now, self.client, &data[..len]);
            if len < 1000 {
                p.run(Duration::from_micros(50));
            }
            if sent.is_err() {
                break;
            }
        }
    }

    /// Takes all that is there by reference; keeps it, or not.
    fn take(&mut self, p: &mut Pair, keep: bool) {
        let mut frags = Vec::new();
        match p.b.recv(
            p.now,
            self.server,
            pagewire_stack::Chunks { max: 1 << 20, into: &mut frags },
        ) {
            Ok(n) => {
                let pinned = frags.iter().map(Frag::pinned_pages).sum();
                let held = p.b.tcp(self.server).unwrap().count_held(p.now, pinned);
                self.got += n;
                if keep {
                    self.kept.push((frags, held));
                }
            }
            Err(error) => assert_eq!(error, Error::WouldBlock),
        }
        p.flush();
    }
}

const MIB: usize = 1 << 20;

#[test]
fn who_keeps_everything_stalls_its_own_flow_and_no_other() {
    let data = vec![7; MIB];
    let mut p = pair(48 * MIB);
    let (mut hog, mut other) = (flow(&mut p, 80), flow(&mut p, 81));
    for _ in 0..400 {
        for flow in [&hog, &other] {
            flow.send(&mut p, &data, MIB, 1);
        }
        p.run(Duration::from_millis(2));
        hog.take(&mut p, true);
        other.take(&mut p, false);
    }
    let window = 6 * MIB;
    let held = p.b.tcp(hog.server).unwrap().held();
    assert!(held <= window + MIB, "{held} bytes are held");
    assert_eq!(p.b.tcp(hog.server).unwrap().info().recv_window, 0, "its window is shut");
    assert!(hog.got <= window + MIB, "{} bytes came", hog.got);
    assert!(other.got > 40 * MIB, "{} bytes came", other.got);
    // The memory that the program holds is charged to the host as well.
    assert!(p.b.receive_memory_used() >= held);
    // Once it lets go, on another thread, it gets on.
    let (kept, before) = (std::mem::take(&mut hog.kept), hog.got);
    std::thread::spawn(move || drop(kept)).join().unwrap();
    assert_eq!(p.b.tcp(hog.server).map(|tcp| tcp.held()), Ok(0));
    for _ in 0..50 {
        hog.send(&mut p, &data, MIB, 1);
        p.run(Duration::from_millis(10));
        hog.take(&mut p, false);
    }
    assert!(hog.got > before + 10 * MIB, "{} bytes came after that", hog.got - before);
}

#[test]
fn who_keeps_every_chunk_of_tiny_segments_pins_no_more_than_its_window() {
    let data = vec![7; MIB];
    let mut a = config(capabilities(1), 1);
    a.tcp.nagle = false;
    let mut b = config(capabilities(2), 2);
    (b.tcp.recv_buffer, b.tcp.recv_buffer_initial) = (256 << 10, 256 << 10);
    let mut p = Pair::with(a, b);
    p.meet();
    let mut hog = flow(&mut p, 80);
    for _ in 0..2000 {
        hog.send(&mut p, &data, 66, 1);
        hog.take(&mut p, true);
    }
    assert!(hog.got > 10_000, "{} bytes came", hog.got);
    let copied = p.b.ledger().get(CopyReason::SmallSegment);
    assert_eq!(copied, hog.got as u64, "small payloads are copied out of their pages, and counted");
    let pages = p.b.pool_audit().out;
    assert!(pages * PAGE_SIZE <= (256 << 10) + PAGE_SIZE, "{pages} pages");
}

#[test]
fn what_is_held_of_a_connection_that_is_gone_stays_charged_until_it_comes_back() {
    let data = vec![7; MIB];
    let mut p = pair(48 * MIB);
    let mut hog = flow(&mut p, 80);
    for _ in 0..20 {
        hog.send(&mut p, &data, MIB, 1);
        p.run(Duration::from_millis(5));
        hog.take(&mut p, true);
    }
    assert!(hog.got >= MIB);
    p.b.abort(p.now, hog.server);
    p.b.close(p.now, hog.server);
    p.run(Duration::from_secs(1));
    assert!(p.b.receive_memory_used() >= MIB, "{}", p.b.receive_memory_used());
    hog.kept.clear();
    p.run(Duration::from_millis(1));
    assert_eq!(p.b.receive_memory_used(), 0);
}

#[test]
fn what_idle_connections_give_back_is_free_at_once() {
    const CONNECTIONS: u16 = 100;
    let data = vec![7; 64 << 10];
    let mut p = pair(48 * MIB);
    let mut flows: Vec<_> = (0..CONNECTIONS).map(|n| flow(&mut p, 1000 + n)).collect();
    for flow in &mut flows {
        while flow.got < data.len() {
            flow.send(&mut p, &data[flow.got..], data.len() - flow.got, 1);
            p.run(Duration::from_millis(1));
            flow.take(&mut p, true);
        }
    }
    p.run(Duration::from_secs(2));
    let kept = data.len() * usize::from(CONNECTIONS);
    assert!(p.b.receive_memory_used() >= kept, "{}", p.b.receive_memory_used());
    flows.iter_mut().for_each(|flow| flow.kept.clear());
    assert_eq!(p.b.receive_memory_used(), 0, "also before the stack's next turn");
    for _ in 0..5 {
        p.run(Duration::from_millis(1));
    }
    assert_eq!(p.b.receive_memory_used(), 0);
}
