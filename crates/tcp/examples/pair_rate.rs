//! What the TCP machine itself costs: two connections hand each other super-frames in one thread.
//!
//! `cargo run --release -p pagewire-tcp --example pair_rate`

use std::sync::Arc;
use std::time::Instant as Clock;

use pagewire_mem::{CopyLedger, Frag, FragVec, Instant, PagePool, PageWriter};
use pagewire_tcp::{Config, Connection, Env, LinkLimits, Ports, RecvFlags, SendFlags, Seq, Shared};

fn main() {
    for (mss, payload, frag) in [
        (61_440u16, 61_440u32, 1 << 20),
        (8_948, 62_636, 1 << 20),
        (1_460, 61_320, 1 << 20),
        (61_440, 61_440, 4096),
        (1_460, 1_460, 1 << 20),
    ] {
        run(mss, payload, frag);
    }
}

fn run(mss: u16, max_super_payload: u32, frag: usize) {
    let link = LinkLimits::new(mss, max_super_payload);
    let config = Arc::new(Config::default());
    let (mut ledger, mut writer) = (CopyLedger::new(), PageWriter::new());
    let mut pool = PagePool::new("pair_rate", 1 << 20).expect("a pool of 1 MiB");
    let mut shared = Shared::default();
    let mut env = Env {
        now: Instant::from_millis(1),
        ledger: &mut ledger,
        pool: &mut pool,
        writer: &mut writer,
        shared: &mut shared,
    };
    let ports = Ports { local: 1, remote: 2 };
    let back = Ports { local: 2, remote: 1 };
    let mut a = Connection::connect(env.now, Arc::clone(&config), link, ports, Seq(1), 0);
    let syn = a.poll_transmit(&mut env).expect("a SYN");
    let mut b = Connection::accept(env.now, config, link, back, Seq(9), 0, &syn.header);

    let data = Frag::from_bytes(vec![1u8; 64 << 20].into());
    let (mut at, mut chunks) = (0, Vec::new());
    let (mut bytes, mut segments, mut acks) = (0u64, 0u64, 0u64);
    let mut turn = |bytes: &mut u64, segments: &mut u64, acks: &mut u64| {
        env.now += std::time::Duration::from_nanos(700);
        let mut frags = FragVec::new();
        while a.room_for(usize::MAX) >= 1 << 20 {
            if at + frag > data.len() {
                at = 0;
            }
            frags.push(data.slice(at..at + frag));
            at += frag;
            if a.send(&mut env, &mut frags, SendFlags::empty()).is_err() {
                break;
            }
        }
        for _ in 0..4 {
            let Some(segment) = a.poll_transmit(&mut env) else { break };
            *segments += 1;
            let _ = b.handle_segment(&mut env, &segment.header, segment.payload, 0);
        }
        if let Ok(n) = b.recv_chunks(&mut env, usize::MAX, &mut chunks, RecvFlags::empty()) {
            *bytes += n as u64;
            chunks.clear();
        }
        while let Some(ack) = b.poll_transmit(&mut env) {
            *acks += 1;
            let _ = a.handle_segment(&mut env, &ack.header, ack.payload, 0);
        }
    };
    for _ in 0..20_000 {
        turn(&mut bytes, &mut segments, &mut acks);
    }
    (bytes, segments, acks) = (0, 0, 0);
    let start = Clock::now();
    for _ in 0..200_000 {
        turn(&mut bytes, &mut segments, &mut acks);
    }
    let ns = start.elapsed().as_nanos() as f64;
    println!(
        "mss {mss:5} super {max_super_payload:5} frag {frag:7}: {:7.1} Gbit/s, {:6.1} ns for each of {segments} segments, {acks} acks",
        bytes as f64 * 8.0 / ns,
        ns / segments as f64,
    );
}
