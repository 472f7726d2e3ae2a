//! How much one guest of a gateway can disturb another. One guest uploads; its rate is measured
//! beside a guest that does something ordinary with 200,000 frames a second, and beside one that
//! sends as many hostile frames.
//!
//! ```sh
//! cargo run --release --package pagewire-gateway --example hostile_neighbour            # all attacks
//! cargo run --release --package pagewire-gateway --example hostile_neighbour -- 5 2 syns # 5 rounds of 2 s
//! ```
//!
//! Begin at `Attack::hostile` and `Attack::ordinary`: what the neighbour sends. Both kinds of neighbour
//! have the same pace, and frames cost them the same, so that only the gateway's work differs. Phases
//! alternate; medians of the rounds are compared. The exit status is 1 if a hostile neighbour leaves
//! less than nine tenths.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant as Wall};

use pagewire::device::PairEnd;
use pagewire::memory::CopyLedger;
use pagewire::services::Instant;
use pagewire::{Device, Host, Pair};
use pagewire_gateway::{Ask, Gateway, Guest, GuestConfig, Verdict};
use pagewire_testkit::frames::received;
use pagewire_testkit::neighbours::{Result, Trial, beside};

#[path = "../tests/suite/support/frames.rs"]
#[allow(dead_code, unreachable_pub)]
mod frames;

use frames::{anywhere, scatter};

/// Frames a second, and how often some of them are sent.
const FRAMES_PER_SECOND: u64 = 200_000;
const PACE: Duration = Duration::from_millis(1);

/// Frames of an attack; they are made before it begins, and sent again and again.
const FRAMES: u32 = 1 << 17;

/// The gateway, as its guests see it.
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);

/// An address of documentation (RFC 5737) that the rules lead to the loopback.
const FAR: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);

/// An attack by a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attack {
    /// Connects to everywhere, where nobody answers.
    Syns,
    /// Connects to all ports of one host, most of them closed.
    Scan,
    /// Connects in the name of others.
    Spoofed,
    /// Sends the resolver anything but queries.
    Nonsense,
    /// Sends datagrams from all of its ports.
    Flows,
}

const ATTACKS: [(&str, Attack); 5] = [
    ("syns", Attack::Syns),
    ("scan", Attack::Scan),
    ("spoofed", Attack::Spoofed),
    ("nonsense", Attack::Nonsense),
    ("flows", Attack::Flows),
];

impl Attack {
    /// Pings of the gateway; datagrams of one port where those of all are the attack.
    fn ordinary(self, i: u32) -> Vec<u8> {
        match self {
            Self::Flows => frames::datagram(4000, FAR, 9, b"nobody listens"),
            _ => frames::ping(GATEWAY, i as u16),
        }
    }

    fn hostile(self, i: u32) -> Vec<u8> {
        let port = 1024 + (scatter(i) % 60_000) as u16;
        match self {
            Self::Syns => frames::syn(frames::ME, port, anywhere(i), 80, scatter(!i)),
            Self::Scan => frames::syn(frames::ME, port, FAR, i as u16, scatter(!i)),
            Self::Spoofed => {
                let from = Ipv4Addr::from_bits(0x0808_0000 | (scatter(i) & 0xffff)).octets();
                frames::syn(from, port, anywhere(i), 80, scatter(!i))
            }
            Self::Nonsense => {
                let bytes: Vec<u8> = (0..40).map(|n| scatter(i ^ n << 8) as u8).collect();
                frames::datagram(port, GATEWAY, 53, &bytes)
            }
            Self::Flows => frames::datagram(i as u16, FAR, 9, b"nobody listens"),
        }
    }
}

/// The neighbour: a device, and who sends by it.
struct Neighbour {
    device: PairEnd,
    ledger: CopyLedger,
    _guest: Guest,
}

impl Neighbour {
    /// A guest of the same gateway.
    fn new(gateway: &Gateway) -> Result<Self> {
        let (outer, device) = Pair::new()?;
        let guest = gateway.add(outer, GuestConfig::new().network("10.0.2.2/24")?)?;
        let mut neighbour = Self { device, ledger: CopyLedger::new(), _guest: guest };
        neighbour.send([&frames::arp()].into_iter())?;
        Ok(neighbour)
    }

    /// Sends frames; what finds no room is lost, as on a line.
    fn send<'a>(&mut self, frames: impl Iterator<Item = &'a Vec<u8>>) -> Result<()> {
        let mut outbox = VecDeque::new();
        outbox.extend(frames.map(|frame| received(frame, frame.len())));
        self.device.transmit(Instant::ZERO, &mut outbox, &mut self.ledger)?;
        let mut inbox = VecDeque::new();
        self.device.receive(Instant::ZERO, &mut inbox, 4096, &mut self.ledger)?;
        Ok(())
    }

    /// Sends frames at the pace, until the end.
    fn run(&mut self, frames: &[Vec<u8>], end: &AtomicBool) -> Result<()> {
        let (begun, mut sent) = (Wall::now(), 0);
        let mut next = frames.iter().cycle();
        while !end.load(Ordering::Relaxed) {
            let due = begun.elapsed().as_micros() as u64 * FRAMES_PER_SECOND / 1_000_000;
            // A thread that was away for long does not catch up at once.
            let burst = (due - sent).min(4096);
            self.send(next.by_ref().take(burst as usize))?;
            sent = due;
            thread::sleep(PACE);
        }
        Ok(())
    }
}

/// A guest that uploads for ever, to a server of this machine. Returns the bytes that arrive.
fn upload(gateway: &Gateway) -> Result<&'static AtomicU64> {
    let server = TcpListener::bind("127.0.0.1:0")?;
    let port = server.local_addr()?.port();
    let (outer, inner) = Pair::new()?;
    let guest = gateway.add(outer, GuestConfig::new().network("10.0.2.2/24")?)?;
    let inside =
        Host::builder().device(inner).address("10.0.2.15/24").gateway("10.0.2.2").start()?;
    let mut stream = inside.connect((FAR, port))?;
    let (mut far, _) = server.accept()?;
    let received: &'static AtomicU64 = Box::leak(Box::default());
    thread::spawn(move || {
        let mut buffer = vec![0; 1 << 18];
        while let Ok(n) = far.read(&mut buffer)
            && n > 0
        {
            received.fetch_add(n as u64, Ordering::Relaxed);
        }
    });
    thread::spawn(move || {
        let _both = (inside, guest);
        let piece = vec![5; 1 << 16];
        while stream.write_all(&piece).is_ok() {}
    });
    Ok(received)
}

/// A port of all of this machine's addresses that answers no SYN: its backlog is full, for ever.
fn silent_port() -> Result<u16> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, listen, socket_with};
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = || socket_with(AddressFamily::INET, SocketType::STREAM, flags, None);
    let server = TcpListener::from(socket()?);
    bind(&server, &SocketAddr::from(([0; 4], 0)))?;
    listen(&server, 0)?;
    let port = server.local_addr()?.port();
    for _ in 0..3 {
        let client = socket()?;
        // The client is connected, or waits.
        let _ = connect(&client, &SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        std::mem::forget(client);
    }
    std::mem::forget(server);
    Ok(port)
}

/// Rules: [`FAR`] is the loopback, and all else is one of its addresses that are silent.
fn rules(silent: u16) -> impl Fn(&Ask) -> Option<Verdict> {
    move |ask| {
        let to = match ask.to.ip() {
            to if to.is_loopback() => return Some(Verdict::Allow),
            to if to == FAR => SocketAddr::from((Ipv4Addr::LOCALHOST, ask.to.port())),
            IpAddr::V4(to) => {
                let [.., a, b, c] = to.octets();
                SocketAddr::from(([127, a | 1, b, c], silent))
            }
            IpAddr::V6(_) => return None,
        };
        Some(Verdict::To(to))
    }
}

fn main() -> Result<ExitCode> {
    let mut trial = Trial::from_args()?;
    let gateway = Gateway::builder().judge(rules(silent_port()?)).start();
    let received = upload(&gateway)?;
    for (name, attack) in ATTACKS {
        if !trial.wants(name) {
            continue;
        }
        let ordinary: Vec<_> = (0..FRAMES).map(|i| attack.ordinary(i)).collect();
        let hostile: Vec<_> = (0..FRAMES).map(|i| attack.hostile(i)).collect();
        trial.measure(name, |is_hostile, last| {
            let frames = if is_hostile { &hostile } else { &ordinary };
            // Neighbours come one after the other, each as a guest of its own.
            let mut neighbour = Neighbour::new(&gateway)?;
            beside(received, last, |end| neighbour.run(frames, end))
        })?;
    }
    Ok(trial.exit_code())
}
