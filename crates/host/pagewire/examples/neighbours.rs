//! Two guests on one host: how much one of them can disturb the other. One moves data to the host;
//! its rate is measured beside a neighbour that does something ordinary, and beside the same
//! neighbour doing something hostile at the same pace.
//!
//! ```sh
//! cargo run --release --package pagewire --features vhost-user --example neighbours   # all attacks
//! target/release/examples/neighbours 5 2 jam                   # 5 rounds of 2 s, one attack
//! ```
//!
//! ```text
//!   data  [stack]--port 1--+
//!                          [ host ]--port 3--[sink, which takes no super-frames]
//!   neighbour   ----port 2-+
//! ```
//!
//! Begin at `Attack::step`: what the neighbour does each time, ordinary and hostile. Both have the
//! same pace, so that only the host's work differs, and not how busy the processors are. Phases
//! alternate; medians of the rounds are compared. The exit status is 1 if a hostile neighbour
//! leaves less than nine tenths.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use pagewire::device::VhostUser;
use pagewire::{Host, Link};
use pagewire_device::vhost_user::double::{Beside, Guest, GuestConfig};
use pagewire_testkit::neighbours::{Result, Trial, beside};
use pagewire_testkit::{built, frames};

#[path = "../tests/suite/card.rs"]
mod card;

use card::Card;

/// How often the neighbour does something.
const PACE: Duration = Duration::from_millis(2);
/// Frames that it sends each time.
const BURST: u32 = 32;
const ROUTER_MAC: [u8; 6] = [2, 0, 0, 0, 8, 2];
const NEIGHBOUR_MAC: [u8; 6] = [2, 0, 0, 0, 9, 2];

/// The attack of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attack {
    /// Makes the eventfds that interrupt it block, and fills them.
    Jam,
    /// Shares memory, has a segment in it held, and takes it back; reconnects when refused.
    Memory,
    /// Sends super-frames of segments of one byte to a port that takes no super-frames.
    Segments,
    /// Asks for the host's address in the name of ever more neighbours.
    Solicit,
}

const ATTACKS: [(&str, Attack); 4] = [
    ("jam", Attack::Jam),
    ("memory", Attack::Memory),
    ("segments", Attack::Segments),
    ("solicit", Attack::Solicit),
];

/// The neighbour in one phase.
struct Neighbour {
    path: PathBuf,
    guest: Guest,
    hostile: bool,
    beside: Option<Beside>,
    count: u32,
}

impl Attack {
    /// Prepares the phase.
    fn begin(self, neighbour: &mut Neighbour) -> Result<()> {
        if self == Self::Jam && neighbour.hostile {
            neighbour.guest.jam_interrupts()?;
        }
        Ok(())
    }

    fn step(self, neighbour: &mut Neighbour) -> Result<()> {
        let Neighbour { guest, hostile, .. } = neighbour;
        let hostile = *hostile;
        match self {
            // The answers interrupt it.
            Self::Jam => {
                if !hostile {
                    guest.interrupts();
                }
                for _ in 0..BURST {
                    guest.ask_interrupts();
                    guest.send(&arp(2));
                }
            }
            Self::Memory => neighbour.share(hostile)?,
            Self::Segments => {
                let size = if hostile { 1 } else { 1448 };
                let frame = segment(60_000);
                guest.send_super(tso(size), &frame, 54, 4096);
            }
            Self::Solicit => {
                for _ in 0..BURST {
                    neighbour.count = neighbour.count.wrapping_add(1);
                    let who = if hostile { neighbour.count % 60_000 + 2 } else { 2 };
                    neighbour.guest.send(&arp(who as u16));
                }
            }
        }
        while neighbour.guest.receive().is_some() {}
        Ok(())
    }
}

impl Neighbour {
    fn connect(path: &Path, hostile: bool) -> Result<Self> {
        let guest = Guest::connect(path, GuestConfig::default())?;
        let path = path.to_owned();
        Ok(Self { path, guest, hostile, beside: None, count: 0 })
    }

    /// Sends a datagram that is not read, from memory that is removed.
    fn share(&mut self, hostile: bool) -> Result<()> {
        let frame = datagram(1200);
        if !hostile {
            self.guest.send(&frame);
            return Ok(());
        }
        let gone = match self.beside.take() {
            Some(beside) => self.guest.take_back(&beside).map(|()| None),
            None => self.guest.send_from_beside(&frame).map(Some),
        };
        match gone {
            Ok(beside) => self.beside = beside,
            Err(_) => {
                self.guest = Guest::connect(&self.path, GuestConfig::default())?;
            }
        }
        Ok(())
    }
}

/// A request for the host's address by neighbour number `who` of 10.2.0.0/16.
fn arp(who: u16) -> Vec<u8> {
    let [high, low] = who.to_be_bytes();
    let mac = [2, 0, 0, 1, high, low];
    let mut frame = frames::arp(1, mac, [10, 2, high, low], [0; 6], [10, 2, 0, 1]);
    frame.resize(60, 0);
    frame
}

fn ip(to: [u8; 4]) -> frames::Headers {
    frames::ip([NEIGHBOUR_MAC, ROUTER_MAC], [[10, 2, 0, 2].into(), to.into()], 64)
}

/// UDP to a socket that is not read.
fn datagram(payload: usize) -> Vec<u8> {
    built!(ip([10, 2, 0, 1]).udp(1024, 9), &vec![7; payload])
}

/// TCP to the sink.
fn segment(payload: usize) -> Vec<u8> {
    built!(ip([10, 0, 3, 2]).tcp(1024, 9, 1, 0xffff).ack(1), &vec![7; payload])
}

/// The virtio header of a super-frame of TCP over IPv4 with an incomplete checksum.
fn tso(size: u16) -> [u8; 12] {
    let [low, high] = size.to_le_bytes();
    [1, 1, 54, 0, low, high, 34, 0, 16, 0, 0, 0]
}

/// The host, the guest that moves data, and the sink.
struct Scene {
    path: PathBuf,
    received: &'static AtomicU64,
    sink: Guest,
    _hosts: [Host; 2],
}

impl Scene {
    fn new(name: &str) -> Result<Self> {
        let id = std::process::id();
        let path = std::env::temp_dir().join(format!("pagewire-next-{id}-{name}.sock"));
        let ((one, theirs), (three, sinks)) = (UnixStream::pair()?, UnixStream::pair()?);
        let first = VhostUser::builder().over(one)?;
        let second = VhostUser::builder().mac(ROUTER_MAC).listen(&path)?;
        let third = VhostUser::builder().over(three)?;
        let host = Host::builder()
            .device(first)
            .address("10.0.1.1/24")
            .link(Link::new(second).address("10.2.0.1/16"))
            .link(Link::new(third).address("10.0.3.1/24"))
            .ip_forwarding(true)
            .start()?;
        let mut sink =
            Guest::over(sinks, GuestConfig { offload: false, ..GuestConfig::default() })?;
        // The host learns the link address from this.
        sink.send(&announce());
        let guest = Host::builder()
            .device(Card::new(theirs, [2, 0, 0, 0, 9, 1])?)
            .address("10.0.1.2/24")
            .start()?;
        let listener = host.listen("10.0.1.1:80")?;
        // The neighbour's datagrams are held until the socket's queue is full.
        std::mem::forget(host.udp("10.2.0.1:9")?);
        let received: &'static AtomicU64 = Box::leak(Box::default());
        thread::spawn(move || {
            let Ok((mut stream, _)) = listener.accept() else { return };
            let mut buffer = vec![0; 1 << 18];
            while let Ok(n) = stream.read(&mut buffer)
                && n > 0
            {
                received.fetch_add(n as u64, Ordering::Relaxed);
            }
        });
        let stream = guest.connect("10.0.1.1:80")?;
        thread::spawn(move || {
            let piece = Bytes::from(vec![5; 1 << 16]);
            while stream.send(piece.clone()).is_ok() {}
        });
        Ok(Self { path, received, sink, _hosts: [host, guest] })
    }

    /// Bytes a second that arrive beside a neighbour.
    fn phase(&mut self, attack: Attack, hostile: bool, last: Duration) -> Result<f64> {
        let (path, sink) = (self.path.clone(), &mut self.sink);
        beside(self.received, last, move |end| {
            let mut neighbour = Neighbour::connect(&path, hostile)?;
            attack.begin(&mut neighbour)?;
            while !end.load(Ordering::Relaxed) {
                attack.step(&mut neighbour)?;
                while sink.receive().is_some() {}
                thread::sleep(PACE);
            }
            Ok(())
        })
    }
}

/// A gratuitous request by 10.0.3.2.
fn announce() -> Vec<u8> {
    let mut frame = frames::arp(1, [2, 0, 0, 0, 9, 3], [10, 0, 3, 2], [0; 6], [10, 0, 3, 1]);
    frame.resize(60, 0);
    frame
}

fn main() -> Result<ExitCode> {
    let mut trial = Trial::from_args()?;
    for (name, attack) in ATTACKS {
        if trial.wants(name) {
            let mut scene = Scene::new(name)?;
            trial.measure(name, |hostile, last| scene.phase(attack, hostile, last))?;
            // The scene's threads keep the host.
            let _ = std::fs::remove_file(&scene.path);
        }
    }
    Ok(trial.exit_code())
}
