//! Two stacks on one thread, joined by passing queues of frames, no device between them: what a
//! super-frame costs in total, from `send` to the acknowledgement that releases it.
//!
//! ```text
//! cargo run --release -p pagewire-stack --example pair_loop [GiB] [bytes per segment]
//! ```
//!
//! Then requests and responses of 64 bytes, by copy: what a round trip costs without a device and
//! without a thread to wake.
//!
//! The payload is a buffer of 256 MiB walked in order; the receiver takes chunks and drops them
//! unread. Prints nanoseconds and the rate for each round, and the median.

use std::collections::VecDeque;
use std::time::Instant as WallClock;

use bytes::Bytes;
use pagewire_device::Capabilities;
use pagewire_mem::{Frag, FragVec, Instant, PacketBuf, RxChecksum, TxChecksum};
use pagewire_stack::{Error, RecvFlags, SendFlags, Stack, StackConfig, TcpId};

const ROUNDS: usize = 5;
const BUFFER: usize = 256 << 20;

struct End {
    stack: Stack,
    out: VecDeque<PacketBuf>,
}

impl End {
    fn new(host: u8, segment: usize) -> Self {
        // IPv4, TCP and timestamps around one segment of payload.
        let mtu = segment + 20 + 20 + 12;
        let capabilities = Capabilities {
            max_super_frame: mtu,
            by_reference: true,
            ..Capabilities::offloading([2, 0, 0, 0, 0, host], mtu)
        };
        let address = format!("10.0.0.{host}/24").parse().expect("an address");
        let mut config = StackConfig::new(capabilities, vec![address], [host; 32]);
        config.pool_bytes = 1 << 20;
        let stack = Stack::new(Instant::ZERO, config).expect("a stack");
        Self { stack, out: VecDeque::new() }
    }

    /// Sends to the other end what there is; returns whether there was anything.
    fn flush(&mut self, now: Instant, to: &mut Self) -> bool {
        let mut any = false;
        loop {
            let more = self.stack.poll_transmit(now, &mut self.out);
            any |= !self.out.is_empty();
            while let Some(mut frame) = self.out.pop_front() {
                frame.tx_checksum = TxChecksum::Done;
                frame.rx_checksum = RxChecksum::Valid;
                to.stack.handle_frame(now, frame);
            }
            if !more {
                break;
            }
        }
        while self.stack.poll_event().is_some() {}
        self.stack.end_turn();
        any
    }
}

fn main() {
    let mut args = std::env::args().skip(1).map(|a| a.parse::<usize>().expect("a number"));
    let gib = args.next().unwrap_or(64);
    let segment = args.next().unwrap_or(61_440);
    let clock = WallClock::now();
    let now = || Instant::from_nanos(1_000_000_000 + clock.elapsed().as_nanos() as u64);
    let (mut a, mut b) = (End::new(1, segment), End::new(2, segment));
    let (client, server) = connect(&mut a, &mut b, &now);
    stream((&mut a, client), (&mut b, server), gib, segment, &now);
    round_trips((&mut a, client), (&mut b, server), &now);
}

fn stream(
    (a, client): (&mut End, TcpId),
    (b, server): (&mut End, TcpId),
    gib: usize,
    segment: usize,
    now: &impl Fn() -> Instant,
) {
    let buffer = Bytes::from(vec![0u8; BUFFER]);
    let whole = Frag::from_bytes(buffer);
    let mut offset = 0;
    let mut rounds = Vec::new();
    for round in 0..=ROUNDS {
        let (bytes, start) = (gib << 30, WallClock::now());
        let (mut sent, mut got) = (0, 0);
        let (mut pending, mut frags) = (FragVec::new(), Vec::new());
        while got < bytes {
            let t = now();
            while sent < bytes {
                if pending.is_empty() {
                    let len = (1 << 20).min(BUFFER - offset);
                    pending.push(whole.slice(offset..offset + len));
                    offset = (offset + len) % BUFFER;
                }
                match a
                    .stack
                    .tcp(client)
                    .and_then(|mut tcp| tcp.send(t, &mut pending, SendFlags::empty()))
                {
                    Ok(n) => sent += n,
                    Err(Error::WouldBlock) => break,
                    Err(error) => panic!("{error}"),
                }
            }
            a.flush(t, b);
            while let Ok(n) = b.stack.tcp(server).and_then(|mut tcp| {
                tcp.recv(
                    t,
                    pagewire_stack::Chunks { max: 1 << 20, into: &mut frags },
                    RecvFlags::empty(),
                )
            }) {
                got += n;
                frags.clear();
            }
            b.flush(t, a);
            for end in [&mut *a, &mut *b] {
                if end.stack.poll_timeout().is_some_and(|at| at <= t) {
                    end.stack.handle_timeout(t);
                }
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        let per_segment = seconds * 1e9 / (got as f64 / segment as f64);
        let rate = got as f64 * 8.0 / seconds / 1e9;
        let label = if round == 0 { " (warm-up)" } else { "" };
        println!("{per_segment:7.1} ns per segment of {segment}, {rate:8.1} Gbit/s{label}");
        if round > 0 {
            rounds.push((per_segment, rate));
        }
    }
    rounds.sort_by(|x, y| x.0.total_cmp(&y.0));
    let (ns, rate) = rounds[ROUNDS / 2];
    let copied = a.stack.ledger().ours() + b.stack.ledger().ours();
    println!("median: {ns:.1} ns, {rate:.1} Gbit/s; {copied} payload bytes copied");
    let segments = |end: &End| end.stack.counters().tx_tcp;
    println!("segments sent: {} with data, {} acknowledgements", segments(a), segments(b));
    println!("drops: {}", a.stack.counters().total_drops() + b.stack.counters().total_drops());
}

fn round_trips(
    (a, client): (&mut End, TcpId),
    (b, server): (&mut End, TcpId),
    now: &impl Fn() -> Instant,
) {
    const TRIPS: usize = 500_000;
    let mut buf = [0u8; 64];
    for _ in 0..ROUNDS {
        let start = WallClock::now();
        for _ in 0..TRIPS {
            let t = now();
            a.stack.tcp(client).expect("room").send(t, &buf, SendFlags::empty()).expect("room");
            a.flush(t, b);
            let t = now();
            assert_eq!(
                b.stack.tcp(server).and_then(|mut tcp| tcp.recv(
                    t,
                    &mut buf[..],
                    RecvFlags::empty()
                )),
                Ok(64)
            );
            b.stack.tcp(server).expect("room").send(t, &buf, SendFlags::empty()).expect("room");
            b.flush(t, a);
            let t = now();
            assert_eq!(
                a.stack.tcp(client).and_then(|mut tcp| tcp.recv(
                    t,
                    &mut buf[..],
                    RecvFlags::empty()
                )),
                Ok(64)
            );
        }
        let ns = start.elapsed().as_secs_f64() * 1e9 / TRIPS as f64;
        println!("{ns:7.1} ns per request and response of 64 bytes");
    }
}

fn connect(a: &mut End, b: &mut End, now: &impl Fn() -> Instant) -> (TcpId, TcpId) {
    let to = "10.0.0.2:80".parse().expect("an address");
    let listener = b.stack.listen(to, 1).expect("a listener");
    let client = a.stack.connect(now(), to, None).expect("a connection");
    loop {
        let t = now();
        a.flush(t, b);
        b.flush(t, a);
        if let Ok((server, _)) =
            b.stack.listener(listener).and_then(|mut listener| listener.accept())
        {
            return (client, server);
        }
    }
}
