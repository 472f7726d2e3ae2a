//! Segments, verbs and time into one TCP connection.
//!
//! The first byte chooses settings (see `Run::new`), then come operations: a byte that says which,
//! and its arguments. Numbers of segments count from what a peer would use next.
//!
//! Both streams have contents that follow from the sequence numbers, so whatever overlaps, comes
//! twice or is sent again must agree. What the application reads, what the connection sends, that
//! acknowledgements never go back, that windows and memory keep their bounds and that timers come
//! to rest is checked after each operation.

use std::sync::Arc;
use std::time::Duration;

use pagewire_mem::{CopyLedger, CopyReason, FragVec, Instant, PAGE_SIZE, PagePool, PageWriter};
use pagewire_tcp::limits::{REFUSE_FACTOR, REFUSE_MIN_PINNED};
use pagewire_tcp::{
    Config, CongestionKind, Connection, Env, Flags, IcmpKind, IcmpNotice, KeepAlive, LinkLimits,
    Ports, Seq, State, TcpError, TcpHeader, TcpOptions,
};

const OUR_ISS: Seq = Seq(0xffff_f000);
const PEER_ISS: Seq = Seq(0x7fff_fff0);
const PORTS: Ports = Ports { local: 80, remote: 4000 };
/// Operations in one input.
const MAX_OPERATIONS: usize = 1000;

/// How far an input got.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// States that the connection was in.
    pub(crate) states: Vec<State>,
    /// Bytes that the application read.
    pub(crate) read: u32,
    /// Bytes that the application wrote.
    pub(crate) written: u32,
    /// Segments that were sent with payload that had been sent before.
    pub(crate) again: usize,
}

/// See the head of this file.
pub(crate) fn tcp_connection(data: &[u8]) -> Progress {
    let mut input = Input(data);
    let Some(settings) = input.byte() else { return Progress::default() };
    let mut run = Run::new(settings);
    run.settle();
    for _ in 0..MAX_OPERATIONS {
        let Some(operation) = input.byte() else { break };
        run.step(operation, &mut input);
        run.settle();
        if run.conn.is_closed() {
            break;
        }
    }
    let Run { conn, mut pool, writer, mut progress, .. } = run;
    drop((conn, writer));
    pool.drain();
    let audit = pool.audit();
    assert!(audit.is_conserved() && audit.out == 0, "pages were lost: {audit:?}");
    progress.states.dedup();
    progress
}

/// What comes after the end is 0.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn u8(&mut self) -> u8 {
        self.byte().unwrap_or(0)
    }

    fn u16(&mut self) -> u16 {
        u16::from_be_bytes([self.u8(), self.u8()])
    }

    /// A distance from the number that would be right.
    fn distance(&mut self) -> u32 {
        i32::from(self.u16() as i16) as u32
    }
}

/// The byte that both streams have at `seq`.
fn byte_at(seq: Seq) -> u8 {
    (seq.0.wrapping_mul(0x9e37_79b1) >> 24) as u8
}

struct Run {
    conn: Connection,
    config: Arc<Config>,
    now: Instant,
    pool: PagePool,
    writer: PageWriter,
    ledger: CopyLedger,
    /// The next byte that the application reads; `None` until the peer's SYN.
    read: Option<Seq>,
    /// The next byte that the application writes.
    write: Seq,
    /// What the connection acknowledged last.
    acknowledged: Option<Seq>,
    /// Behind the last of what the connection sent.
    sent: Seq,
    /// The last timestamp it sent, and the next of the peer's.
    timestamps: (u32, u32),
    progress: Progress,
}

impl Run {
    fn new(settings: u8) -> Self {
        let on = |bit: u8| settings & 1 << bit != 0;
        let buffer = if on(4) { 16 << 10 } else { 256 << 10 };
        let config = Arc::new(Config {
            timestamps: on(1),
            sack: on(2),
            window_scaling: on(3),
            recv_buffer: buffer,
            send_buffer: buffer,
            nagle: !on(5),
            keepalive: on(6).then(KeepAlive::default),
            congestion: if on(7) { CongestionKind::NewReno } else { CongestionKind::Cubic },
            ..Config::default()
        });
        let link = LinkLimits { mss: 1460, max_super_payload: 64_000 };
        let now = Instant::from_millis(1);
        let options = TcpOptions {
            mss: Some(1460),
            window_scale: on(3).then_some(7),
            sack_permitted: on(2),
            timestamps: on(1).then_some((1, 0)),
            ..TcpOptions::default()
        };
        let syn = TcpHeader {
            src_port: PORTS.remote,
            dst_port: PORTS.local,
            seq: PEER_ISS,
            flags: Flags::SYN,
            window: 60_000,
            options,
            ..TcpHeader::default()
        };
        let arc = Arc::clone(&config);
        let (conn, read) = if on(0) {
            (Connection::connect(now, arc, link, PORTS, OUR_ISS, 5), None)
        } else {
            let conn = Connection::accept(now, arc, link, PORTS, OUR_ISS, 5, &syn);
            (conn, Some(PEER_ISS + 1))
        };
        Self {
            conn,
            config,
            now,
            pool: PagePool::new("fuzz", 4 << 20).expect("pool"),
            writer: PageWriter::new(),
            ledger: CopyLedger::new(),
            read,
            write: OUR_ISS + 1,
            acknowledged: read,
            sent: OUR_ISS,
            timestamps: (5, 1),
            progress: Progress::default(),
        }
    }

    fn step(&mut self, operation: u8, input: &mut Input<'_>) {
        match operation % 8 {
            0..=3 => self.segment(operation, input),
            4 => {
                let n = u32::from(input.u16());
                let data: Vec<u8> = (0..n).map(|i| byte_at(self.write + i)).collect();
                let written = self.with(|conn, env| conn.write(env, &data)).unwrap_or(0) as u32;
                self.write += written;
                self.progress.written += written;
            }
            5 => self.take(usize::from(input.u16()), operation & 8 != 0),
            6 => {
                let ahead = Duration::from_millis(1 << (operation >> 3).min(17));
                // As a driver does: awake when a timer is due, and not long after.
                let due = self.conn.poll_timeout().filter(|_| operation & 0x80 != 0);
                self.now = due.map_or(self.now + ahead, |due| due.max(self.now));
            }
            _ => self.verb(input.u8(), input),
        }
    }

    fn segment(&mut self, operation: u8, input: &mut Input<'_>) {
        let flags = Flags::from_bits_retain(input.u8());
        let base = self.acknowledged.unwrap_or(PEER_ISS);
        let (seq, ack) = if operation & 8 == 0 {
            (base, self.sent)
        } else {
            (base + input.distance(), self.sent + input.distance())
        };
        let window = if operation & 0x10 == 0 { 60_000 } else { input.u16() };
        let len = if operation & 0x20 == 0 { 0 } else { u32::from(input.u16() % 5000) };
        let mut options = TcpOptions::default();
        if self.config.timestamps && operation & 0x40 == 0 {
            self.timestamps.1 = self.timestamps.1.wrapping_add(1);
            options.timestamps = Some((self.timestamps.1, self.timestamps.0));
        }
        if operation & 0x80 != 0 {
            match input.u8() {
                kind @ 0..16 => {
                    options.mss = (kind & 1 != 0).then(|| input.u16());
                    options.window_scale = (kind & 2 != 0).then(|| input.u8() % 15);
                    options.sack_permitted = kind & 4 != 0;
                }
                16..64 => {
                    options.timestamps =
                        Some((input.distance(), self.timestamps.0.wrapping_add(input.distance())));
                }
                blocks => {
                    for _ in 0..blocks % 4 + 1 {
                        let left = self.sent + input.distance();
                        options.sack.push(left, left + u32::from(input.u16()));
                    }
                }
            }
        }
        let first = if flags.contains(Flags::SYN) { seq + 1 } else { seq };
        let data: Vec<u8> = (0..len).map(|i| byte_at(first + i)).collect();
        let reason = CopyReason::DeviceRx;
        let (payload, _) = self.writer.write(&mut self.pool, &data, &mut self.ledger, reason);
        let header = TcpHeader {
            src_port: PORTS.remote,
            dst_port: PORTS.local,
            seq,
            ack,
            flags,
            window,
            urgent: 0,
            options,
        };
        let before = self.conn.state();
        let _ = self.with(|conn, env| conn.handle_segment(env, &header, payload, 0));
        if before == State::SynSent && self.conn.state().is_synchronized()
            || self.conn.state() == State::SynReceived && self.read.is_none()
        {
            self.read = Some(seq + 1);
            self.acknowledged = self.read;
        }
    }

    fn take(&mut self, max: usize, chunks: bool) {
        let taken: Vec<u8> = if chunks {
            let mut out = Vec::new();
            let _ = self.with(|conn, env| conn.recv_chunks(env, max, &mut out));
            out.iter().flat_map(|frag| frag.as_slice().expect("private memory").to_vec()).collect()
        } else {
            let mut out = vec![0; max];
            let n = self.with(|conn, env| conn.read(env, &mut out)).unwrap_or(0);
            out.truncate(n);
            out
        };
        let Some(at) = self.read else {
            assert!(taken.is_empty(), "data before the peer's SYN");
            return;
        };
        let expected = (0..taken.len() as u32).map(|i| byte_at(at + i));
        assert!(taken.iter().copied().eq(expected), "the stream changed behind {at}");
        self.read = Some(at + taken.len() as u32);
        self.progress.read += taken.len() as u32;
    }

    fn verb(&mut self, verb: u8, input: &mut Input<'_>) {
        let now = self.now;
        match verb % 12 {
            0 => _ = self.with(|conn, env| conn.shutdown_write(env)),
            1 => _ = self.with(|conn, env| conn.shutdown_read(env)),
            2 => self.with(|conn, env| conn.close(env)),
            3 => self.conn.abort(),
            4 => self.conn.set_nodelay(verb & 0x80 != 0),
            5 => self.conn.set_cork(verb & 0x80 != 0),
            6 => self.conn.set_keepalive(now, (verb & 0x80 != 0).then(KeepAlive::default)),
            7 | 8 => {
                let seq = self.sent + input.distance();
                let kind = IcmpKind::PacketTooBig { mss: input.u16() };
                self.with(|conn, env| conn.handle_icmp(env, IcmpNotice { seq, kind }));
            }
            9 => {
                let seq = self.sent + input.distance();
                let (hard, error) = (verb & 0x80 != 0, TcpError::HostUnreachable);
                let kind = IcmpKind::Unreachable { hard, error };
                self.with(|conn, env| conn.handle_icmp(env, IcmpNotice { seq, kind }));
            }
            10 => {
                let mss = input.u16().max(48);
                let max_super_payload = u32::from(mss) * u32::from(verb >> 4).max(1);
                self.conn.set_link_limits(LinkLimits { mss, max_super_payload });
            }
            _ => {
                let n = u32::from(input.u16());
                let data: Vec<u8> = (0..n).map(|i| byte_at(self.write + i)).collect();
                let mut frags = FragVec::new();
                for piece in data.chunks(usize::from(input.u8()) * 16 + 16) {
                    frags.push(pagewire_mem::Frag::from_bytes(piece.to_vec().into()));
                }
                let sent = self.with(|conn, env| conn.send(env, &mut frags)).unwrap_or(0) as u32;
                self.write += sent;
                self.progress.written += sent;
            }
        }
    }

    /// Everything that is due, and all that can be checked at any time.
    fn settle(&mut self) {
        let mut rounds = 0;
        loop {
            self.transmit();
            if self.conn.poll_timeout().is_none_or(|at| at > self.now) {
                break;
            }
            self.with(|conn, env| conn.handle_timeout(env));
            rounds += 1;
            assert!(rounds < 100, "a timer that is due again and again: {:?}", self.conn);
        }
        self.progress.states.push(self.conn.state());
        let buffer = self.config.recv_buffer as usize;
        let (queued, pinned) = (self.conn.queued_receive(), self.conn.pinned_receive());
        assert!(queued <= buffer, "{queued} bytes queued, {buffer} allowed");
        // The segment that goes beyond the bound is let in.
        let bound = REFUSE_MIN_PINNED.max(REFUSE_FACTOR * buffer) + 4 * PAGE_SIZE;
        assert!(pinned <= bound, "{pinned} bytes pinned, {bound} allowed");
    }

    fn transmit(&mut self) {
        let mut segments = 0;
        while let Some(segment) = self.with(|conn, env| conn.poll_transmit(env)) {
            segments += 1;
            assert!(segments < 10_000, "it never stops sending");
            let (header, mut at) = (segment.header, segment.header.seq);
            // Its number may be the peer's wish.
            if header.flags.contains(Flags::RST) {
                assert!(segment.payload.is_empty());
                continue;
            }
            if header.flags.contains(Flags::SYN) {
                at += 1;
            }
            let first = at;
            for frag in &segment.payload {
                for &byte in frag.as_slice().expect("private memory") {
                    assert_eq!(byte, byte_at(at), "sent at {at}");
                    at += 1;
                }
            }
            // A FIN may have been sent before.
            let end = if at == first { self.write + 1 } else { self.write };
            assert!(at.le(end), "sent {at}, written {}", self.write);
            if at != first && at.le(self.sent) {
                self.progress.again += 1;
            }
            if header.flags.contains(Flags::FIN) {
                at += 1;
            }
            if at.gt(self.sent) {
                self.sent = at;
            }
            if let Some((value, _)) = header.options.timestamps {
                self.timestamps.0 = value;
            }
            if header.flags.contains(Flags::ACK) {
                let last = self.acknowledged.unwrap_or(header.ack);
                assert!(header.ack.ge(last), "acknowledged {} after {last}", header.ack);
                self.acknowledged = Some(header.ack);
            }
        }
    }

    fn with<R>(&mut self, f: impl FnOnce(&mut Connection, &mut Env<'_>) -> R) -> R {
        let mut env = Env {
            now: self.now,
            ledger: &mut self.ledger,
            pool: &mut self.pool,
            writer: &mut self.writer,
        };
        f(&mut self.conn, &mut env)
    }
}
