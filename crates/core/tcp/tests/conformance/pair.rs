//! Two connections joined by a network that loses, repeats and reorders, until both streams have
//! arrived: one seed says everything.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use pagewire_mem::{CopyLedger, Frag, FragVec, Instant, PagePool, PageWriter};
use pagewire_tcp::{
    Arrival, Config, CongestionKind, Connection, Disposition, EcnMode, Env, Flags, LinkLimits,
    Ports, RecvFlags, SegmentOut, SendFlags, Seq, Shared, State, TcpError, TcpHeader,
};

use crate::support::{Rng, byte};

struct End {
    conn: Connection,
    /// Bytes still to be sent, bytes handed over, bytes received.
    total: u32,
    sent: u32,
    received: u32,
    eof: bool,
    /// Reads now and then only, and little.
    lazy: bool,
}

struct Network {
    now: Instant,
    rng: Rng,
    ledger: CopyLedger,
    pool: PagePool,
    writer: PageWriter,
    shared: Shared,
    /// Under way to end 0 or 1, with the moment of arrival.
    wire: VecDeque<(Instant, usize, TcpHeader, FragVec, Arrival)>,
    /// Microseconds from end to end.
    delay: u64,
    loss: u32,
    reorder: u32,
    duplicate: u32,
    /// Packets in a hundred of those that may be marked.
    mark: u32,
    /// Marked packets to each end.
    marked: [u32; 2],
}

struct Plan {
    seed: u64,
    delay: u64,
    loss: u32,
    reorder: u32,
    duplicate: u32,
    mark: u32,
    bytes: [u32; 2],
    configs: [Config; 2],
    link: LinkLimits,
    lazy: bool,
}

fn plan(seed: u64) -> Plan {
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for _ in 0..8 {
        rng.below(1);
    }
    let mut config = || Config {
        timestamps: rng.percent(50),
        sack: rng.percent(70),
        window_scaling: rng.percent(70),
        nagle: rng.percent(50),
        congestion: if rng.percent(50) { CongestionKind::Cubic } else { CongestionKind::NewReno },
        recv_buffer: rng.pick(&[4_000, 20_000, 200_000, 6 << 20]),
        send_buffer: rng.pick(&[3_000, 50_000, 4 << 20]),
        // Less than TIME-WAIT: nobody is here to answer for a connection that is gone.
        rto_max: Duration::from_secs(20),
        ..Config::default()
    };
    let configs = [config(), config()];
    let mss = rng.pick(&[100, 536, 1460, 8960]);
    let supers = rng.pick(&[1, 1, 7, 44]);
    Plan {
        seed,
        delay: 5_000,
        loss: rng.pick(&[0, 1, 3, 10]),
        reorder: rng.pick(&[0, 1, 5, 20]),
        duplicate: rng.pick(&[0, 1, 5]),
        mark: 0,
        bytes: [rng.below(300_000), rng.pick(&[0, 1, 5_000, 200_000])],
        configs,
        link: LinkLimits::new(mss, (u32::from(mss) * supers).min(64_000)),
        lazy: rng.percent(30),
    }
}

/// [`plan`] between two ends in one machine.
fn plan_in_memory(seed: u64) -> Plan {
    let mut plan = plan(seed);
    plan.delay = [0, 20, 400, 5_000][(seed % 4) as usize];
    plan.link.max_super_payload = [66_000, 100_000, 524_000][(seed / 4 % 3) as usize];
    plan
}

/// [`plan`] with accurate feedback, over a network that marks.
fn plan_marked(seed: u64) -> Plan {
    let mut plan = plan(seed);
    plan.mark = [1, 10, 40, 100][(seed % 4) as usize];
    if seed.is_multiple_of(3) {
        (plan.loss, plan.reorder, plan.duplicate) = (0, 0, 0);
    }
    for config in &mut plan.configs {
        config.ecn = EcnMode::Accurate;
    }
    plan
}

impl Network {
    fn env<T>(&mut self, f: impl FnOnce(&mut Env<'_>) -> T) -> T {
        let mut env = Env {
            now: self.now,
            ledger: &mut self.ledger,
            pool: &mut self.pool,
            writer: &mut self.writer,
            shared: &mut self.shared,
        };
        f(&mut env)
    }

    /// Puts a segment on the wire to `to`, cut as a device would, each piece with its own outcome.
    fn transmit(&mut self, to: usize, segment: SegmentOut) {
        let SegmentOut { header, mut payload, gso_size, ecn } = segment;
        let wire = gso_size.map_or(usize::MAX, usize::from);
        let mss = gso_size.map_or(usize::MAX, usize::from);
        // Half of the time a super-frame arrives as it is, as on a link that takes it.
        let mss = if self.rng.percent(50) { usize::MAX } else { mss };
        let total: usize = payload.iter().map(Frag::len).sum();
        let mut done = 0;
        loop {
            let piece = take(&mut payload, mss.min(total - done));
            let len: usize = piece.iter().map(Frag::len).sum();
            let mut h = header;
            h.seq = header.seq + done as u32;
            done += len;
            if done < total {
                h.flags -= Flags::FIN | Flags::PSH;
            }
            if !self.rng.percent(self.loss) {
                let copies = if self.rng.percent(self.duplicate) { 2 } else { 1 };
                for _ in 0..copies {
                    let late =
                        if self.rng.percent(self.reorder) { self.rng.below(20_000) } else { 0 };
                    let at = self.now + Duration::from_micros(self.delay + u64::from(late));
                    let marked = ecn != 0 && self.rng.percent(self.mark);
                    if marked {
                        self.marked[to] += len.div_ceil(wire).max(1) as u32;
                    }
                    let ecn = if marked { 3 } else { ecn };
                    let gso_size = gso_size.filter(|&size| len > usize::from(size));
                    let arrival = Arrival { ecn, gso_size };
                    self.wire.push_back((at, to, h, piece.clone(), arrival));
                }
            }
            if done == total {
                return;
            }
        }
    }

    fn pump(&mut self, ends: &mut [End; 2]) {
        for (i, end) in ends.iter_mut().enumerate() {
            self.application(end);
            for n in 0.. {
                assert!(n < 20_000, "an end never stops sending");
                let Some(segment) = self.env(|env| end.conn.poll_transmit(env)) else { break };
                self.transmit(1 - i, segment);
            }
        }
    }

    fn application(&mut self, end: &mut End) {
        // Send what there is room for.
        while end.sent < end.total && end.conn.state().can_send() {
            let n = (end.total - end.sent).min(1 + self.rng.below(30_000));
            let data: Vec<u8> = (end.sent..end.sent + n).map(byte).collect();
            let by_copy = self.rng.percent(50);
            let sent = self.env(|env| {
                if by_copy {
                    end.conn.write(env, &data, SendFlags::empty())
                } else {
                    let mut frags = FragVec::new();
                    frags.push(Frag::from_bytes(data.into()));
                    end.conn.send(env, &mut frags, SendFlags::empty())
                }
            });
            match sent {
                Ok(n) => end.sent += n as u32,
                Err(TcpError::WouldBlock) => break,
                Err(error) => panic!("send: {error}"),
            }
        }
        if end.sent == end.total && end.conn.state().can_send() {
            self.env(|env| end.conn.shutdown_write(env)).unwrap();
        }
        // Read what has come.
        if end.lazy && !self.rng.percent(20) {
            return;
        }
        let mut buffer = vec![0; if end.lazy { 700 } else { 64 * 1024 }];
        loop {
            match self.env(|env| end.conn.read(env, &mut buffer, RecvFlags::empty())) {
                Ok(0) => {
                    end.eof = true;
                    break;
                }
                Ok(n) => {
                    for (i, &b) in buffer[..n].iter().enumerate() {
                        assert_eq!(b, byte(end.received + i as u32), "stream differs");
                    }
                    end.received += n as u32;
                    if end.lazy {
                        break;
                    }
                }
                Err(TcpError::WouldBlock) => break,
                Err(error) => panic!("read: {error}: {:#?}", end.conn.info()),
            }
        }
    }
}

/// Takes the first `n` bytes.
fn take(frags: &mut FragVec, n: usize) -> FragVec {
    let (mut out, mut left) = (FragVec::new(), n);
    while left > 0 && !frags.is_empty() {
        let part = frags[0].split_to(left);
        left -= part.len();
        if !part.is_empty() {
            out.push(part);
        }
        if frags[0].is_empty() {
            frags.remove(0);
        }
    }
    out
}

/// Over a network that loses nothing, each end knows every mark on what the other received.
fn check_marks(net: &Network, ends: &[End; 2]) {
    for (to, end) in ends.iter().enumerate() {
        let received = end.conn.info().ecn_counts.map(|counts| counts.received_ce);
        assert_eq!(received, Some(net.marked[to]), "what end {to} received");
        let reported = ends[1 - to].conn.info().delivered_ce;
        assert_eq!(reported, net.marked[to], "what the sender to end {to} got reports of");
    }
}

fn run(plan: &Plan) {
    let now = Instant::from_millis(1_000);
    let mut net = Network {
        now,
        rng: Rng(plan.seed | 1 << 40),
        ledger: CopyLedger::new(),
        pool: PagePool::new("pair", 32 << 20).unwrap(),
        writer: PageWriter::new(),
        shared: Shared::default(),
        wire: VecDeque::new(),
        delay: plan.delay,
        loss: plan.loss,
        reorder: plan.reorder,
        duplicate: plan.duplicate,
        mark: plan.mark,
        marked: [0; 2],
    };
    let [left, right] = plan.configs.clone().map(Arc::new);
    let ports = Ports { local: 1, remote: 2 };
    let client = Connection::connect(now, left, plan.link, ports, Seq(u32::MAX - 9), 77);
    let end = |conn, total| End { conn, total, sent: 0, received: 0, eof: false, lazy: plan.lazy };
    let mut client = Some(end(client, plan.bytes[0]));

    // The listener: the first SYN makes the other end.
    let mut ends = loop {
        let conn = &mut client.as_mut().unwrap().conn;
        while let Some(syn) = net.env(|env| conn.poll_transmit(env)) {
            net.transmit(1, syn);
        }
        if let Some((at, _, header, ..)) = net.wire.pop_front() {
            net.now = net.now.max(at);
            let ports = Ports { local: 2, remote: 1 };
            let server = Connection::accept(net.now, right, plan.link, ports, Seq(17), 3, &header);
            break [client.take().unwrap(), end(server, plan.bytes[1])];
        }
        net.now = conn.poll_timeout().unwrap();
        net.env(|env| conn.handle_timeout(env));
    };

    let limit = now + Duration::from_secs(3600);
    for _ in 0..3_000_000 {
        net.pump(&mut ends);
        let done = |e: &End, other: &End| e.eof && e.received == other.total;
        if done(&ends[0], &ends[1]) && done(&ends[1], &ends[0]) {
            let over = |e: &End| matches!(e.conn.state(), State::TimeWait | State::Closed);
            if over(&ends[0]) && over(&ends[1]) {
                assert!(ends[0].conn.error().is_none() && ends[1].conn.error().is_none());
                if plan.mark > 0 && plan.loss + plan.reorder + plan.duplicate == 0 {
                    check_marks(&net, &ends);
                }
                drop(ends);
                net.wire.clear();
                net.writer.abandon();
                net.pool.drain();
                let audit = net.pool.audit();
                assert!(audit.is_conserved() && audit.out == 0, "{audit:?}");
                return;
            }
        }
        // The next event: an arrival, a timeout, or a lazy reader.
        let arrival = net.wire.iter().map(|w| w.0).min();
        let timeout = ends.iter().filter_map(|e| e.conn.poll_timeout()).min();
        // A lazy reader comes back by itself.
        let lazy = plan.lazy.then(|| net.now + Duration::from_millis(20));
        let Some(next) = [arrival, timeout, lazy].into_iter().flatten().min() else {
            panic!(
                "nothing will ever happen: {:#?} {:#?}",
                ends[0].conn.info(),
                ends[1].conn.info()
            )
        };
        net.now = net.now.max(next);
        assert!(net.now < limit, "no end: {:#?} {:#?}", ends[0].conn.info(), ends[1].conn.info());
        for end in &mut ends {
            if end.conn.poll_timeout().is_some_and(|at| at <= net.now) {
                net.env(|env| end.conn.handle_timeout(env));
            }
        }
        while let Some(i) = net.wire.iter().position(|w| w.0 <= net.now) {
            let (_, to, header, payload, arrival) = net.wire.remove(i).unwrap();
            let conn = &mut ends[to].conn;
            match net.env(|env| conn.handle_segment(env, &header, payload, arrival)) {
                Disposition::Accepted | Disposition::Dropped(_) => {}
                other => panic!("{other:?}"),
            }
            net.pump(&mut ends);
        }
    }
    panic!("too many steps");
}

fn run_all(test: &str, plan: fn(u64) -> Plan) {
    let (from, to) = match std::env::var("PAGEWIRE_SEED") {
        Ok(seed) => {
            let seed = seed.parse().expect("PAGEWIRE_SEED is a number");
            (seed, seed + 1)
        }
        Err(_) => (0, std::env::var("PAGEWIRE_SEEDS").map_or(150, |n| n.parse().unwrap())),
    };
    for seed in from..to {
        let result = std::panic::catch_unwind(|| run(&plan(seed)));
        if let Err(panic) = result {
            eprintln!("seed {seed} failed; again with");
            eprintln!(
                "  PAGEWIRE_SEED={seed} cargo test -p pagewire-tcp --test conformance {test}"
            );
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn both_streams_arrive_whatever_the_network_does() {
    run_all("both_streams_arrive_whatever", plan);
}

#[test]
fn both_streams_arrive_in_super_frames_that_no_network_takes() {
    run_all("both_streams_arrive_in_super", plan_in_memory);
}

#[test]
fn both_streams_arrive_and_every_mark_is_counted() {
    run_all("both_streams_arrive_and_every_mark", plan_marked);
}
