//! Segments, verbs and time into one TCP connection.
//!
//! The first three bytes choose settings (see `settings`), then come operations: a byte that says
//! which, and its arguments. Numbers of segments count from what a peer would use next.
//!
//! Both streams have contents that follow from the sequence numbers, so whatever overlaps, comes
//! twice or is sent again must agree. What the application reads, what the connection sends, that
//! acknowledgements never go back, that what it knows of its flight adds up, that windows and memory
//! keep their bounds, that no segment is answered with many and that timers come to rest is checked
//! after each operation.

use std::sync::Arc;
use std::time::Duration;

use pagewire_mem::{CopyLedger, CopyReason, FragVec, Instant, PAGE_SIZE, PagePool, PageWriter};
use pagewire_tcp::limits::{REFUSE_FACTOR, REFUSE_MIN_PINNED};
use pagewire_tcp::{
    Config, CongestionKind, Connection, EcnMode, Env, Flags, IcmpKind, IcmpNotice, Info, KeepAlive,
    LinkLimits, Ports, RecvFlags, SendFlags, Seq, Shared, State, TcpError, TcpHeader, TcpOptions,
};

const OUR_ISS: Seq = Seq(0xffff_f000);
const PEER_ISS: Seq = Seq(0x7fff_fff0);
const PORTS: Ports = Ports { local: 80, remote: 4000 };
/// Segments without data that one segment may be answered with: an acknowledgement, and a FIN whose
/// turn has come.
const MAX_ANSWERS: usize = 2;
/// Operations in one input.
const MAX_OPERATIONS: usize = 1000;

/// How far an input got.
#[derive(Debug, Default)]
pub struct Progress {
    /// States that the connection was in.
    pub states: Vec<State>,
    /// Bytes that the application read.
    pub read: u32,
    /// Bytes that the application wrote.
    pub written: u32,
    /// Segments that were sent with payload that had been sent before.
    pub again: usize,
}

/// See the head of this file.
pub fn tcp_connection(data: &[u8]) -> Progress {
    let mut input = Input(data);
    let Some(first) = input.byte() else { return Progress::default() };
    let mut run = Run::new([first, input.u8(), input.u8()]);
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

/// The rest of the input. Every read past the end gives 0.
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

/// Makes the configuration that the first three bytes choose.
fn settings([one, two, three]: [u8; 3]) -> Config {
    let on = |byte: u8, bit: u8| byte & 1 << bit != 0;
    let buffer = if on(one, 4) { 16 << 10 } else { 256 << 10 };
    let initial = if on(three, 5) { 4 << 10 } else { buffer };
    Config {
        timestamps: on(one, 1),
        sack: on(one, 2),
        window_scaling: on(one, 3),
        recv_buffer: buffer,
        recv_buffer_initial: initial,
        send_buffer: buffer,
        send_buffer_initial: initial,
        nagle: !on(one, 5),
        keepalive: on(one, 6).then(KeepAlive::default),
        congestion: if on(one, 7) { CongestionKind::NewReno } else { CongestionKind::Cubic },
        ecn: [EcnMode::Accept, EcnMode::Request, EcnMode::Off, EcnMode::Accurate]
            [usize::from(two % 4)],
        dsack: !on(two, 2),
        frto: !on(two, 3),
        tail_loss_probe: !on(two, 4),
        oob_inline: on(two, 5),
        cork: on(two, 6),
        user_timeout: on(two, 7).then_some(Duration::from_secs(20)),
        max_mss: [None, Some(88), Some(536), Some(1000)][usize::from(three % 4)],
        window_clamp: on(three, 2).then_some(3000),
        notsent_lowat: if on(three, 3) { 4000 } else { u32::MAX },
        recv_lowat: if on(three, 4) { 2000 } else { 1 },
        linger: on(three, 7).then_some(Duration::ZERO),
        ..Config::default()
    }
}

/// A segment as it arrived.
#[derive(Clone)]
struct Arrived {
    header: TcpHeader,
    data: Vec<u8>,
    ecn: u8,
}

struct Run {
    conn: Connection,
    config: Arc<Config>,
    /// The last segment, in case it comes again.
    last: Option<Arrived>,
    /// The largest receive buffer so far.
    buffer: usize,
    /// Urgent bytes that may be missing from the stream.
    urgent: u32,
    now: Instant,
    pool: PagePool,
    writer: PageWriter,
    shared: Shared,
    ledger: CopyLedger,
    /// The next byte that the application reads; `None` until the peer's SYN.
    read: Option<Seq>,
    /// The next byte that the application writes.
    write: Seq,
    /// The last acknowledgement number that the connection sent.
    acknowledged: Option<Seq>,
    /// The right edge of the last window that the connection announced.
    edge: Option<Seq>,
    /// The connection's window scale, if both sides offered one.
    scale: u8,
    peer_scales: bool,
    /// Behind the last of what the connection sent.
    sent: Seq,
    /// The last timestamp it sent, and the next of the peer's.
    timestamps: (u32, u32),
    progress: Progress,
}

impl Run {
    fn new(bytes: [u8; 3]) -> Self {
        let config = Arc::new(settings(bytes));
        let on = |bit: u8| bytes[0] & 1 << bit != 0;
        let max_super_payload = if bytes[2] & 0x40 == 0 { 64_000 } else { 1460 };
        let link = LinkLimits::new(1460, max_super_payload);
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
            buffer: config.recv_buffer as usize,
            config,
            last: None,
            urgent: 0,
            now,
            pool: PagePool::new("fuzz", 4 << 20).expect("pool"),
            writer: PageWriter::new(),
            shared: Shared::default(),
            ledger: CopyLedger::new(),
            read,
            write: OUR_ISS + 1,
            acknowledged: read,
            edge: None,
            scale: 0,
            peer_scales: on(3),
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
                let flags = SendFlags::from_bits_truncate(operation >> 3);
                let written = self.with(|conn, env| conn.write(env, &data, flags));
                let written = written.unwrap_or(0) as u32;
                self.write += written;
                self.progress.written += written;
            }
            5 => {
                let flags = RecvFlags::from_bits_truncate(operation >> 4);
                self.take(usize::from(input.u16()), operation & 8 != 0, flags);
            }
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
        if operation & 3 == 3
            && let Some(again) = self.last.clone()
        {
            // Word for word, but the connection may have moved on.
            return self.arrive(again);
        }
        let flags = Flags::from_bits_retain(u16::from(input.u8()));
        let urgent = if flags.contains(Flags::URG) { input.u16() } else { 0 };
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
        let header = TcpHeader {
            src_port: PORTS.remote,
            dst_port: PORTS.local,
            seq,
            ack,
            flags,
            window,
            urgent,
            options,
        };
        // Congestion experienced, an ECN-capable packet, or neither.
        let ecn = [0, 2, 3, 0][usize::from(operation & 3)];
        self.arrive(Arrived { header, data, ecn });
    }

    fn arrive(&mut self, arrived: Arrived) {
        let Arrived { header, data, ecn } = arrived.clone();
        self.last = Some(arrived);
        self.urgent += u32::from(header.flags.contains(Flags::URG));
        let reason = CopyReason::DeviceRx;
        let (payload, _) = self.writer.write(&mut self.pool, &data, &mut self.ledger, reason);
        let before = self.conn.state();
        let _ = self.with(|conn, env| conn.handle_segment(env, &header, payload, ecn));
        if before == State::SynSent && self.conn.state().is_synchronized()
            || self.conn.state() == State::SynReceived && self.read.is_none()
        {
            self.read = Some(header.seq + 1);
            self.acknowledged = self.read;
            self.peer_scales = header.options.window_scale.is_some();
        }
        let answers = self.transmit();
        assert!(answers <= MAX_ANSWERS, "{answers} answers without data to {header:?}");
    }

    fn take(&mut self, max: usize, chunks: bool, flags: RecvFlags) {
        let taken: Vec<u8> = if chunks {
            let mut out = Vec::new();
            let _ = self.with(|conn, env| conn.recv_chunks(env, max, &mut out, flags));
            out.iter().flat_map(|frag| frag.as_slice().expect("private memory").to_vec()).collect()
        } else {
            let mut out = vec![0; max];
            let n = self.with(|conn, env| conn.read(env, &mut out, flags)).unwrap_or(0);
            out.truncate(n);
            out
        };
        let Some(begin) = self.read else {
            assert!(taken.is_empty(), "data before the peer's SYN");
            return;
        };
        // An urgent byte that is not in line is missing from what is read.
        let (mut at, mut missing) = (begin, 0);
        for &byte in &taken {
            while byte != byte_at(at) && missing < self.urgent {
                missing += 1;
                at += 1;
            }
            assert_eq!(byte, byte_at(at), "the stream changed at {at}, {begin} is next");
            at += 1;
        }
        if !flags.contains(RecvFlags::PEEK) {
            self.urgent -= missing;
            self.read = Some(at);
            self.progress.read += taken.len() as u32;
        }
    }

    fn verb(&mut self, verb: u8, input: &mut Input<'_>) {
        let now = self.now;
        // Bytes below 0xc0 keep the meaning that they had before later operations got the upper quarter.
        match if verb < 0xc0 { verb % 12 } else { 12 + verb % 16 } {
            0 => _ = self.with(|conn, env| conn.shutdown_write(env)),
            1 => _ = self.with(|conn, env| conn.shutdown_read(env)),
            2 => self.with(|conn, env| conn.close(env)),
            3 => self.conn.abort(),
            4 => self.conn.settings().set_nodelay(verb & 0x80 != 0),
            5 => self.conn.settings().set_cork(verb & 0x80 != 0),
            6 => {
                self.conn.settings().set_keepalive(now, (verb & 0x80 != 0).then(KeepAlive::default))
            }
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
                self.conn.set_link_limits(LinkLimits::new(mss, max_super_payload));
            }
            11 => {
                let n = u32::from(input.u16());
                let data: Vec<u8> = (0..n).map(|i| byte_at(self.write + i)).collect();
                let mut frags = FragVec::new();
                for piece in data.chunks(usize::from(input.u8()) * 16 + 16) {
                    frags.push(pagewire_mem::Frag::from_bytes(piece.to_vec().into()));
                }
                let sent = self
                    .with(|conn, env| conn.send(env, &mut frags, SendFlags::empty()))
                    .unwrap_or(0) as u32;
                self.write += sent;
                self.progress.written += sent;
            }
            12 => {
                let limit = u64::from(input.u16());
                let limit = (limit > 0).then(|| Duration::from_millis(limit));
                self.conn.settings().change(|config| config.user_timeout = limit);
            }
            13 => {
                let mss = input.u16();
                let mss = (mss > 0).then(|| mss.max(88));
                self.conn.settings().change(|config| config.max_mss = mss);
            }
            14 => {
                let retries = (input.u8(), 0);
                self.conn.settings().change(|config| {
                    (config.syn_retries, config.syn_linear_retries) = retries;
                });
            }
            15 => {
                let limit = Duration::from_millis(u64::from(input.u16()));
                self.conn.settings().change(|config| config.fin_wait2 = limit);
            }
            16 => {
                let seconds = input.u8();
                let linger = Duration::from_secs(u64::from(seconds));
                let linger = (seconds < 100).then_some(linger);
                self.conn.settings().change(|config| config.linger = linger);
            }
            17 => {
                let bytes = u32::from(input.u16());
                self.conn.settings().change(|config| config.notsent_lowat = bytes);
            }
            18 => self.conn.settings().set_recv_lowat(u32::from(input.u16())),
            19 => {
                let inline = input.u8() & 1 == 0;
                self.conn.settings().change(|config| config.oob_inline = inline);
            }
            20 => {
                let bytes = u32::from(input.u16());
                let clamp = (bytes > 0).then_some(bytes);
                self.conn.settings().change(|config| config.window_clamp = clamp);
            }
            21 => self.conn.settings().set_send_buffer(u32::from(input.u16()) + 1),
            22 => {
                let bytes = u32::from(input.u16()) + 1;
                self.conn.settings().set_recv_buffer(bytes);
                self.buffer = self.buffer.max(self.conn.config().recv_buffer as usize);
            }
            23 => self.conn.settings().set_quick_ack(input.u8() & 1 == 0),
            24 => _ = self.conn.read_urgent(RecvFlags::from_bits_truncate(input.u8())),
            25 => _ = self.conn.at_urgent_mark(),
            26 => {
                _ = self
                    .with(|conn, env| conn.recv_chunks(env, 0, &mut Vec::new(), RecvFlags::empty()))
            }
            _ => _ = self.conn.take_error(),
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
        self.check_numbers();
        let buffer = self.buffer;
        let (queued, pinned) = (self.conn.queued_receive(), self.conn.pinned_receive());
        assert!(queued <= buffer, "{queued} bytes queued, {buffer} allowed");
        // The segment that goes beyond the bound is let in.
        let bound = REFUSE_MIN_PINNED.max(REFUSE_FACTOR * buffer) + 4 * PAGE_SIZE;
        assert!(pinned <= bound, "{pinned} bytes pinned, {bound} allowed");
    }

    /// Checks that the connection's numbers agree with each other.
    fn check_numbers(&self) {
        if self.conn.state() == State::Closed {
            return;
        }
        let info = self.conn.info();
        let Info { unacked, sacked, lost, retransmitting, .. } = info;
        assert!(sacked + lost <= unacked && retransmitting <= unacked, "{info:?}");
        let segments = info.sacked_segments + info.lost_segments;
        // Without SACK the first is a guess from duplicates.
        assert!(!info.sack || segments <= info.unacked_segments, "{info:?}");
        assert!(info.retransmitting_segments <= info.unacked_segments, "{info:?}");
        assert!(info.cwnd > 0 && info.ssthresh > 0, "{info:?}");
        assert!(self.conn.queued_unsent() <= self.conn.queued_send(), "{info:?}");
        assert!(self.conn.send_next().le(self.conn.send_end() + 1), "{info:?}");
        assert!(info.bytes_acked <= (self.write - OUR_ISS) as u64, "{info:?}");
    }

    /// Sends all that can be sent; returns how many segments without data there were.
    fn transmit(&mut self) -> usize {
        let (mut segments, mut empty) = (0, 0);
        while let Some(segment) = self.with(|conn, env| conn.poll_transmit(env)) {
            segments += 1;
            // A send buffer in the smallest segments: an MSS of 48, most of it options.
            assert!(segments < 40_000, "it never stops sending");
            empty += usize::from(segment.payload.is_empty());
            let (header, mut at) = (segment.header, segment.header.seq);
            // A reset may carry a sequence number that the peer asked for.
            if header.flags.contains(Flags::RST) {
                assert!(segment.payload.is_empty());
                continue;
            }
            if header.flags.contains(Flags::SYN) {
                at += 1;
                self.scale = header.options.window_scale.unwrap_or(0);
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
                let syn = header.flags.contains(Flags::SYN);
                let scale = if syn || !self.peer_scales { 0 } else { self.scale };
                let edge = header.ack + (u32::from(header.window) << scale);
                let last = self.edge.unwrap_or(edge);
                // A SYN that is sent again cannot say how large the window has become. And RFC 7323
                // section 2.4: it may seem to shrink by less than what the scale can say.
                let slack = (1 << scale) - 1;
                let shrinks = !syn && (edge + slack).lt(last);
                assert!(!shrinks, "the window shrinks from {last} to {edge}");
                self.edge = Some(edge.max(last));
            }
        }
        empty
    }

    fn with<R>(&mut self, f: impl FnOnce(&mut Connection, &mut Env<'_>) -> R) -> R {
        let mut env = Env {
            now: self.now,
            ledger: &mut self.ledger,
            pool: &mut self.pool,
            writer: &mut self.writer,
            shared: &mut self.shared,
        };
        f(&mut self.conn, &mut env)
    }
}
