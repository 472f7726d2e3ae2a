//! The kit of the conformance tests: a connection in virtual time, and a peer that sends whatever a test
//! has it send.
//!
//! Segments are written as packetdrill writes them, numbers relative to each side's initial
//! sequence number, so that 1 is the first byte of data:
//!
//! ```text
//!   flags  first:end(length)  ack number  win field  <options>
//!   "P.    1:101(100)         ack 1       win 1000   <sack 5:6 9:10,TS val 7 ecr 3>"
//! ```
//!
//! A part that an expectation leaves out may be anything; flags and numbers cannot be left out.

use std::collections::VecDeque;
pub(crate) use std::sync::Arc;
pub(crate) use std::time::Duration;

pub(crate) use pagewire_mem::{
    CopyLedger, CopyReason, Frag, FragVec, Instant, MAX_FRAGS, PAGE_SIZE, PagePool, PageWriter,
};
pub(crate) use pagewire_tcp::*;
pub(crate) use pagewire_testkit::given;

/// Our initial sequence number; the peer's is `IRS`. Both near the wrap, so that it is in every
/// test.
pub(crate) const ISS: Seq = Seq(u32::MAX - 500);
pub(crate) const IRS: Seq = Seq(u32::MAX - 1500);
/// The ECN bits of an IP header.
pub(crate) const NOT_ECT: u8 = 0;
pub(crate) const ECT1: u8 = 1;
pub(crate) const ECT0: u8 = 2;
pub(crate) const CE: u8 = 3;
/// The slow-start threshold before the first loss, in segments.
pub(crate) const INFINITE: u32 = 0x7fff_ffff;
/// A link with super-frames.
pub(crate) const SUPER: LinkLimits = LinkLimits::new(1000, 64_500);
/// The time at which a test begins.
const START: Instant = Instant::from_millis(10_000);
const PORTS: Ports = Ports { local: 4000, remote: 80 };

pub(crate) struct Test {
    pub(crate) conn: Connection,
    pub(crate) now: Instant,
    /// When the last [`wait`](Self::wait) began.
    wait_began: Instant,
    ledger: CopyLedger,
    pool: PagePool,
    writer: PageWriter,
    pub(crate) shared: Shared,
    /// Segments that have left, with the moment, and were not expected yet.
    out: VecDeque<(Instant, SegmentOut)>,
    /// The disposition of the peer's last segment.
    pub(crate) last: Disposition,
}

/// Settings that keep traces short: no timestamps, no Nagle, no probes, and a send buffer that takes
/// everything.
pub(crate) fn plain() -> Config {
    Config {
        timestamps: false,
        nagle: false,
        tail_loss_probe: false,
        send_buffer_initial: Config::default().send_buffer,
        ..Config::default()
    }
}

/// [`plain`], with Nagle's algorithm.
pub(crate) fn nagle() -> Config {
    Config { nagle: true, ..plain() }
}

/// A link without super-frames.
pub(crate) const fn link() -> LinkLimits {
    LinkLimits::new(1000, 1000)
}

fn accepted(config: Config, link: LinkLimits, syn: &str) -> Connection {
    Connection::accept(START, Arc::new(config), link, PORTS, ISS, 0, &header(syn))
}

impl Test {
    fn start(conn: Connection) -> Self {
        let mut test = Self::new(conn);
        test.drain();
        test
    }

    fn new(conn: Connection) -> Self {
        Self {
            conn,
            now: START,
            wait_began: START,
            ledger: CopyLedger::new(),
            pool: PagePool::new("test", 4 << 20).unwrap(),
            writer: PageWriter::new(),
            shared: Shared::default(),
            out: VecDeque::new(),
            last: Disposition::Accepted,
        }
    }

    /// Our SYN is out.
    pub(crate) fn connecting(config: Config) -> Self {
        Self::connecting_over(config, link())
    }

    pub(crate) fn connecting_over(config: Config, link: LinkLimits) -> Self {
        Self::start(Connection::connect(START, Arc::new(config), link, PORTS, ISS, 0))
    }

    /// Connecting with Fast Open.
    pub(crate) fn connecting_fast(config: Config, how: FastOpenConnect) -> Self {
        let mut conn = Connection::connect(START, Arc::new(config), link(), PORTS, ISS, 0);
        conn.fast_open().begin(how);
        Self::start(conn)
    }

    /// A listener got this SYN, our SYN,ACK is out.
    pub(crate) fn accepting(config: Config, syn: &str) -> Self {
        Self::accepting_over(config, link(), syn)
    }

    pub(crate) fn accepting_over(config: Config, link: LinkLimits, syn: &str) -> Self {
        Self::start(accepted(config, link, syn))
    }

    /// A listener got this SYN in a packet with these ECN bits.
    pub(crate) fn accepting_marked(config: Config, ecn: u8, syn: &str) -> Self {
        let mut conn = accepted(config, link(), syn);
        conn.note_syn_mark(ecn);
        Self::start(conn)
    }

    /// A listener got this SYN, and our SYN,ACK brings a cookie.
    pub(crate) fn accepting_with_cookie(config: Config, syn: &str, cookie: FastOpenCookie) -> Self {
        let mut conn = accepted(config, link(), syn);
        conn.fast_open().offer_cookie(cookie);
        Self::start(conn)
    }

    /// A listener got this SYN and opens with Fast Open, with the SYN's data.
    pub(crate) fn accepting_fast(config: Config, syn: &str) -> Self {
        let mut test = Self::new(accepted(config, link(), syn));
        // The first byte of data has the number 1.
        let payload = stream(1, parse(syn).len);
        test.env(|conn, env| conn.fast_open().accept(env, payload));
        test.drain();
        test
    }

    /// Established actively, with SACK, without window scaling, an MSS of 1000 on both sides and a
    /// window of 65535.
    pub(crate) fn established(config: Config) -> Self {
        Self::established_over(config, link())
    }

    pub(crate) fn established_over(config: Config, link: LinkLimits) -> Self {
        Self::established_with(config, link, "S. 0:0(0) ack 1 win 65535 <mss 65000,sackOK>")
    }

    /// Established over a path with this round trip, as seen on the wire: the MSS is 1000.
    pub(crate) fn far(config: Config, rtt_ms: u64) -> Self {
        Self::far_over(config, link(), rtt_ms)
    }

    pub(crate) fn far_over(config: Config, link: LinkLimits, rtt_ms: u64) -> Self {
        let mut test = Self::connecting_over(config, link);
        test.out.clear();
        test.wait(rtt_ms).peer("S. 0:0(0) ack 1 win 65535 <mss 65000,sackOK>");
        test.expect(". 1:1(0) ack 1");
        test
    }

    /// Ten full segments are under way over such a path; answers may arrive now.
    pub(crate) fn ten(config: Config, rtt_ms: u64) -> Self {
        let mut test = Self::far(config, rtt_ms);
        test.send(10_000).expect_bytes(1, 10_001).wait(rtt_ms);
        test
    }

    pub(crate) fn established_with(config: Config, link: LinkLimits, syn_ack: &str) -> Self {
        let mut test = Self::connecting_over(config, link);
        test.out.clear();
        test.peer(syn_ack);
        test.expect(". 1:1(0) ack 1");
        assert_eq!(test.conn.state(), State::Established);
        test
    }

    /// Established, and the peer's first 16 segments are behind us: acknowledgements are delayed.
    pub(crate) fn settled(config: Config) -> (Self, u32) {
        let mut test = Self::established(config);
        for i in 0..16 {
            test.peer(&format!("P. {}:{}(1) ack 1", 1 + i, 2 + i));
            test.expect(&format!(". 1:1(0) ack {}", 2 + i));
        }
        test.read(16);
        test.nothing();
        (test, 17)
    }

    pub(crate) fn env<T>(&mut self, f: impl FnOnce(&mut Connection, &mut Env<'_>) -> T) -> T {
        let mut env = Env {
            now: self.now,
            ledger: &mut self.ledger,
            pool: &mut self.pool,
            writer: &mut self.writer,
            shared: &mut self.shared,
        };
        f(&mut self.conn, &mut env)
    }

    pub(crate) fn drain(&mut self) {
        self.drain_until(|_| false);
    }

    /// As [`drain`](Self::drain), but does not poll again where the connection says that nothing is left.
    pub(crate) fn drain_burst(&mut self) {
        let now = self.now;
        self.drain_until(|conn| conn.ends_burst(now));
    }

    fn drain_until(&mut self, mut ends: impl FnMut(&mut Connection) -> bool) {
        for _ in 0..10_000 {
            let Some(segment) = self.env(|c, env| c.poll_transmit(env)) else { return };
            let is_longer = |size| len_of(&segment) > u32::from(size);
            assert!(segment.gso_size.is_none_or(is_longer), "a super-frame is longer than one");
            self.out.push_back((self.now, segment));
            if ends(&mut self.conn) {
                return;
            }
        }
        panic!("the connection never stops sending");
    }

    // ---- the peer ----

    /// The peer sends a segment, which is taken.
    #[track_caller]
    pub(crate) fn peer(&mut self, segment: &str) -> &mut Self {
        self.peer_any(segment);
        assert_eq!(self.last, Disposition::Accepted, "{segment}");
        self
    }

    /// The peer sends a segment, which is dropped for this reason.
    #[track_caller]
    pub(crate) fn peer_dropped(&mut self, reason: DropReason, segment: &str) -> &mut Self {
        self.peer_any(segment);
        assert_eq!(self.last, Disposition::Dropped(reason), "{segment}");
        self
    }

    /// The peer sends a segment, whatever becomes of it ([`last`](Self::last)).
    pub(crate) fn peer_any(&mut self, segment: &str) -> &mut Self {
        self.peer_marked(NOT_ECT, segment)
    }

    /// The peer sends a segment in a packet with these ECN bits, whatever becomes of it.
    pub(crate) fn peer_marked(&mut self, ecn: u8, segment: &str) -> &mut Self {
        let (header, len) = parse(segment).to_header();
        let syn = u32::from(header.flags.contains(Flags::SYN));
        let payload = stream(header.seq.since(IRS).wrapping_add(syn), len);
        self.last = self.env(|c, env| c.handle_segment(env, &header, payload, ecn));
        self.drain();
        self
    }

    /// The peer sends a segment with this payload, which is taken.
    #[track_caller]
    pub(crate) fn peer_frags(&mut self, segment: &str, payload: FragVec) {
        let (header, _) = parse(segment).to_header();
        assert_eq!(self.peer_header(&header, payload), Disposition::Accepted, "{segment}");
    }

    /// The peer sends a segment with these very numbers, whatever becomes of it.
    pub(crate) fn peer_header(&mut self, header: &TcpHeader, payload: FragVec) -> Disposition {
        self.last = self.env(|c, env| c.handle_segment(env, header, payload, 0));
        self.drain();
        self.last
    }

    // ---- time ----

    /// Lets time pass; timers that go off are served at their moments.
    pub(crate) fn wait(&mut self, ms: u64) -> &mut Self {
        self.wait_micros(ms * 1000)
    }

    pub(crate) fn wait_micros(&mut self, micros: u64) -> &mut Self {
        self.wait_began = self.now;
        let until = self.now + Duration::from_micros(micros);
        for _ in 0..100_000 {
            match self.conn.poll_timeout() {
                Some(at) if at <= until => {
                    self.now = self.now.max(at);
                    self.env(|c, env| c.handle_timeout(env));
                    self.drain();
                    assert!(self.conn.poll_timeout().is_none_or(|next| next > self.now));
                }
                _ => {
                    self.now = until;
                    return self;
                }
            }
        }
        panic!("timers go off without end");
    }

    // ---- what we say ----

    #[track_caller]
    fn next(&mut self, expected: &str) -> Instant {
        let Some((at, segment)) = self.out.pop_front() else {
            panic!("expected {expected}, sent nothing");
        };
        check(expected, &segment);
        at
    }

    /// The next segment that we sent is this.
    #[track_caller]
    pub(crate) fn expect(&mut self, expected: &str) -> &mut Self {
        self.next(expected);
        self
    }

    /// The next segment that we sent is this, in a packet with these ECN bits.
    #[track_caller]
    pub(crate) fn expect_marked(&mut self, ecn: u8, expected: &str) -> &mut Self {
        assert_eq!(self.out.front().map(|(_, segment)| segment.ecn), Some(ecn), "{expected}");
        self.expect(expected)
    }

    /// The next segment that we sent is this, and it left `ms` milliseconds after the last wait began.
    #[track_caller]
    pub(crate) fn expect_after(&mut self, ms: u64, expected: &str) -> &mut Self {
        let after = self.next(expected).saturating_since(self.wait_began);
        assert_eq!(after.as_millis(), u128::from(ms), "{expected}");
        self
    }

    /// The next segments that we sent adjoin, from `from` to `to`, pushed or not.
    #[track_caller]
    pub(crate) fn expect_bytes(&mut self, from: u32, to: u32) -> &mut Self {
        let mut at = from;
        while at < to {
            let Some((_, segment)) = self.out.pop_front() else { panic!("sent up to {at} only") };
            assert_eq!(segment.header.seq, ISS + at, "sent {}", show(&segment));
            at += len_of(&segment);
        }
        assert_eq!(at, to);
        self
    }

    /// We sent nothing else.
    #[track_caller]
    pub(crate) fn nothing(&mut self) -> &mut Self {
        if let Some((_, segment)) = self.out.front() {
            panic!("expected nothing, sent {}", show(segment));
        }
        self
    }

    /// Takes everything that was sent, as text.
    pub(crate) fn sent(&mut self) -> Vec<String> {
        self.out.drain(..).map(|(_, s)| show(&s)).collect()
    }

    pub(crate) fn sent_segments(&mut self) -> Vec<SegmentOut> {
        self.out.drain(..).map(|(_, s)| s).collect()
    }

    // ---- the application ----

    pub(crate) fn send(&mut self, len: usize) -> &mut Self {
        assert_eq!(self.try_send(len), Ok(len));
        self
    }

    pub(crate) fn try_send(&mut self, len: usize) -> Result<usize, TcpError> {
        self.send_frags(&mut payload(len))
    }

    pub(crate) fn send_frags(&mut self, frags: &mut FragVec) -> Result<usize, TcpError> {
        let sent = self.env(|c, env| c.send(env, frags, SendFlags::empty()));
        self.drain();
        sent
    }

    /// Sends all of `len` bytes.
    #[track_caller]
    pub(crate) fn send_with(&mut self, len: usize, flags: SendFlags) -> &mut Self {
        assert_eq!(self.env(|c, env| c.send(env, &mut payload(len), flags)), Ok(len));
        self.drain();
        self
    }

    /// Changes a setting.
    pub(crate) fn set(&mut self, change: impl FnOnce(&mut Connection)) -> &mut Self {
        change(&mut self.conn);
        self.drain();
        self
    }

    pub(crate) fn write(&mut self, data: &[u8]) -> Result<usize, TcpError> {
        let sent = self.env(|c, env| c.write(env, data, SendFlags::empty()));
        self.drain();
        sent
    }

    /// Reads `len` bytes.
    #[track_caller]
    pub(crate) fn read(&mut self, len: usize) -> &mut Self {
        assert_eq!(self.try_read(len).map(|b| b.len()), Ok(len));
        self
    }

    pub(crate) fn try_read(&mut self, len: usize) -> Result<Vec<u8>, TcpError> {
        let mut data = vec![0; len];
        let got = self.env(|c, env| c.read(env, &mut data, RecvFlags::empty()));
        self.drain();
        data.truncate(got?);
        Ok(data)
    }

    pub(crate) fn try_peek(&mut self, len: usize) -> Result<Vec<u8>, TcpError> {
        let mut data = vec![0; len];
        let got = self.env(|c, env| c.read(env, &mut data, RecvFlags::PEEK));
        data.truncate(got?);
        Ok(data)
    }

    /// Memory was returned: the window may open.
    pub(crate) fn after_return(&mut self) -> &mut Self {
        self.env(|c, env| c.after_return(env));
        self.drain();
        self
    }

    pub(crate) fn shutdown(&mut self) -> &mut Self {
        self.env(|c, env| c.shutdown_write(env)).unwrap();
        self.drain();
        self
    }

    pub(crate) fn shutdown_read(&mut self) -> &mut Self {
        self.env(|c, env| c.shutdown_read(env)).unwrap();
        self
    }

    pub(crate) fn close(&mut self) -> &mut Self {
        self.env(|c, env| c.close(env));
        self.drain();
        self
    }

    pub(crate) fn send_syn(&mut self) -> &mut Self {
        self.conn.fast_open().send_deferred_syn();
        self.drain();
        self
    }

    pub(crate) fn abort(&mut self) -> &mut Self {
        self.conn.abort();
        self.drain();
        self
    }

    pub(crate) fn icmp(&mut self, seq: u32, kind: IcmpKind) -> &mut Self {
        let notice = IcmpNotice { seq: ISS + seq, kind };
        self.env(|c, env| c.handle_icmp(env, notice));
        self.drain();
        self
    }

    /// The snapshot shows these numbers.
    #[track_caller]
    pub(crate) fn info<T: PartialEq + core::fmt::Debug>(
        &mut self,
        numbers: impl FnOnce(&Info) -> T,
        expected: T,
    ) -> &mut Self {
        assert_eq!(numbers(&self.conn.info()), expected);
        self
    }

    #[track_caller]
    pub(crate) fn state(&mut self, state: State) -> &mut Self {
        assert_eq!(self.conn.state(), state);
        self
    }
}

/// `len` bytes of the peer's stream from this relative sequence number on.
fn stream(first: u32, len: u32) -> FragVec {
    let mut payload = FragVec::new();
    if len > 0 {
        let data: Vec<u8> = (0..len).map(|i| byte(first.wrapping_add(i))).collect();
        payload.push(Frag::from_bytes(data.into()));
    }
    payload
}

/// A payload of `len` bytes.
pub(crate) fn payload(len: usize) -> FragVec {
    core::iter::once(Frag::from_bytes(vec![7u8; len].into())).collect()
}

/// Bytes of payload of a segment that we sent.
pub(crate) fn len_of(segment: &SegmentOut) -> u32 {
    segment.payload.iter().map(|frag| frag.len() as u32).sum()
}

/// The relative sequence number behind it.
pub(crate) fn end_of(segment: &SegmentOut) -> u32 {
    segment.header.seq.since(ISS).wrapping_add(len_of(segment))
}

/// A small generator (xorshift64*): a test needs the same numbers everywhere, not good ones.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn below(&mut self, n: u32) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % u64::from(n.max(1))) as u32
    }

    pub(crate) fn percent(&mut self, p: u32) -> bool {
        self.below(1000) < p * 10
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u32) as usize]
    }
}

/// The byte of a stream at a relative sequence number.
pub(crate) fn byte(seq: u32) -> u8 {
    (seq % 251) as u8
}

// ---- the notation ----

const FLAGS: [(Flags, char); 9] = [
    (Flags::SYN, 'S'),
    (Flags::FIN, 'F'),
    (Flags::RST, 'R'),
    (Flags::PSH, 'P'),
    (Flags::URG, 'U'),
    (Flags::ECE, 'E'),
    (Flags::CWR, 'W'),
    (Flags::AE, 'A'),
    (Flags::ACK, '.'),
];

/// A segment as it is written.
#[derive(Debug, Default)]
struct Notation {
    flags: Flags,
    seq: u32,
    len: u32,
    ack: Option<u32>,
    win: Option<u16>,
    urg: Option<u16>,
    options: Option<TcpOptions>,
    sacks: Vec<(u32, u32)>,
}

fn parse(text: &str) -> Notation {
    let mut line = Notation::default();
    let (main, options) = match text.split_once('<') {
        Some((main, options)) => (main, Some(options.trim_end_matches('>'))),
        None => (text, None),
    };
    let mut words = main.split_whitespace();
    for c in words.next().unwrap().chars().filter(|c| *c != '-') {
        let flag = FLAGS.iter().find(|(_, name)| *name == c);
        line.flags |= flag.unwrap_or_else(|| panic!("flag {c} in {text}")).0;
    }
    let range = words.next().unwrap();
    let (first, rest) = range.split_once(':').unwrap();
    let (end, len) = rest.trim_end_matches(')').split_once('(').unwrap();
    line.seq = first.parse().unwrap();
    line.len = len.parse().unwrap();
    let end: u32 = end.parse().unwrap();
    assert_eq!(line.seq.wrapping_add(line.len), end, "{text}: numbers do not add up");
    while let Some(word) = words.next() {
        let value = words.next().unwrap();
        match word {
            "ack" => line.ack = Some(value.parse().unwrap()),
            "win" => line.win = Some(value.parse().unwrap()),
            "urg" => line.urg = Some(value.parse().unwrap()),
            _ => panic!("{word} in {text}"),
        }
    }
    if let Some(list) = options {
        let mut o = TcpOptions::default();
        for option in list.split(',').map(str::trim).filter(|o| !o.is_empty()) {
            let words: Vec<&str> = option.split_whitespace().collect();
            match words.as_slice() {
                ["mss", n] => o.mss = Some(n.parse().unwrap()),
                ["wscale", n] => o.window_scale = Some(n.parse().unwrap()),
                ["sackOK"] => o.sack_permitted = true,
                [form @ ("FO" | "FOEXP"), hex @ ..] => {
                    let hex = hex.concat();
                    let byte = |i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap();
                    let cookie: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
                    o.fast_open = FastOpenCookie::from_option(&cookie, *form == "FOEXP");
                }
                ["TS", "val", v, "ecr", e] => {
                    o.timestamps = Some((v.parse().unwrap(), e.parse().unwrap()));
                }
                // Counts of marked bytes in the order of the wire: "ECN e0b 1 ceb 0 e1b 1".
                ["ECN", fields @ ..] => {
                    let mut counters = [0; 3];
                    let (names, values): (Vec<&str>, Vec<&str>) =
                        fields.chunks_exact(2).map(|pair| (pair[0], pair[1])).unzip();
                    for (counter, value) in counters.iter_mut().zip(&values) {
                        *counter = value.parse().unwrap();
                    }
                    let ect1_first = names.first() == Some(&"e1b");
                    o.accurate_ecn =
                        Some(AccurateEcnOption::new(counters, values.len(), ect1_first));
                }
                ["sack", blocks @ ..] => {
                    for block in blocks {
                        let (l, r) = block.split_once(':').unwrap();
                        line.sacks.push((l.parse().unwrap(), r.parse().unwrap()));
                    }
                }
                _ => panic!("option {option} in {text}"),
            }
        }
        line.options = Some(o);
    }
    line
}

impl Notation {
    /// As a segment of the peer's.
    fn to_header(&self) -> (TcpHeader, u32) {
        let mut options = self.options.unwrap_or_default();
        options.sack = self.sacks.iter().map(|&(l, r)| (ISS + l, ISS + r)).collect::<SackBlocks>();
        let header = TcpHeader {
            src_port: PORTS.remote,
            dst_port: PORTS.local,
            seq: IRS + self.seq,
            ack: self.ack.map_or(Seq(0), |a| ISS + a),
            flags: self.flags,
            window: self.win.unwrap_or(u16::MAX),
            urgent: self.urg.unwrap_or(u16::from(self.flags.contains(Flags::URG))),
            options,
        };
        (header, self.len)
    }
}

/// The header of a segment of the peer's.
pub(crate) fn header(segment: &str) -> TcpHeader {
    parse(segment).to_header().0
}

#[track_caller]
fn check(expected: &str, segment: &SegmentOut) {
    let want = parse(expected);
    let header = &segment.header;
    let mut ok = header.flags == want.flags
        && header.seq == ISS + want.seq
        && len_of(segment) == want.len
        && want.ack.is_none_or(|a| header.ack == IRS + a)
        && want.win.is_none_or(|w| header.window == w)
        && want.urg.is_none_or(|u| header.urgent == u);
    if let Some(mut options) = want.options {
        options.sack = want.sacks.iter().map(|&(l, r)| (IRS + l, IRS + r)).collect();
        ok &= header.options == options;
    }
    assert!(ok, "\nexpected {expected}\n    sent {}\n", show(segment));
}

pub(crate) fn show(segment: &SegmentOut) -> String {
    let header = &segment.header;
    let mut text = String::new();
    text.extend(FLAGS.iter().filter(|(flag, _)| header.flags.contains(*flag)).map(|(_, c)| c));
    let (seq, end, len) = (header.seq.since(ISS), end_of(segment), len_of(segment));
    text.push_str(&format!(" {seq}:{end}({len})"));
    if header.flags.contains(Flags::ACK) {
        text.push_str(&format!(" ack {}", header.ack.since(IRS)));
    }
    text.push_str(&format!(" win {}", header.window));
    let o = &header.options;
    let mut options: Vec<String> = Vec::new();
    options.extend(o.mss.map(|n| format!("mss {n}")));
    options.extend(o.sack_permitted.then(|| "sackOK".to_owned()));
    options.extend(o.timestamps.map(|(v, e)| format!("TS val {v} ecr {e}")));
    options.extend(o.window_scale.map(|n| format!("wscale {n}")));
    options.extend(o.fast_open.map(|cookie| format!("{cookie:?}")));
    options.extend(o.accurate_ecn.map(|counts| format!("ECN {:?}", counts.counters())));
    if !o.sack.is_empty() {
        let blocks: Vec<String> =
            o.sack.iter().map(|(l, r)| format!("{}:{}", l.since(IRS), r.since(IRS))).collect();
        options.push(format!("sack {}", blocks.join(" ")));
    }
    if !options.is_empty() {
        text.push_str(&format!(" <{}>", options.join(",")));
    }
    text
}
