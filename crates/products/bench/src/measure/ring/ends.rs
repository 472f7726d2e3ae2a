//! Both ends of `bench ring`: senders, and the application on rings that receives.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket as KernelSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pagewire::memory::{Frag, PAGE_SIZE, Region};
use pagewire::rings::{COPY_GROUP, Completion, NOTICE, Op, Rings, Submission};
use pagewire::{Host, TcpStream, UdpSocket};

use crate::failure::Failure;
use crate::kit::hosts::{Feed, LEFT, PORT, RIGHT, SEND_PIECE, never_wait};
use crate::kit::kernel;
use crate::kit::meter::{Meter, Round};
use crate::kit::source::Source;

/// Where datagrams are sent from.
const SENDER_PORT: u16 = 9001;

/// Buffers that may be delivered and not returned yet.
pub(super) const ENTRIES: u32 = 16_384;

/// Bytes of datagrams sent between two turns, and how many at most: a socket queues 1 MiB.
const BURST_BYTES: usize = 512 << 10;
const BURST: usize = 64;

/// A kernel's flow comes by the queue by which the last frame to it left, for three seconds.
const ANSWER_EVERY: Duration = Duration::from_secs(1);

/// User data of this measurement's submissions.
const OPEN: u64 = 1;
const RECEIVE: u64 = 2;
const ANSWER: u64 = 3;

/// A sender by reference over a pair link.
pub(super) enum Sender {
    Stream { stream: TcpStream, feed: Feed<Box<dyn Iterator<Item = Frag>>> },
    Datagrams { socket: UdpSocket, source: Box<dyn Iterator<Item = Frag>>, burst: usize },
}

impl Sender {
    /// To [`PORT`] of [`RIGHT`]: datagrams of `size` bytes, or with 0 a stream.
    pub(super) fn open(host: &Host, source: &Source, size: usize) -> Result<Self, Failure> {
        let to = SocketAddr::from((RIGHT, PORT));
        if size > 0 {
            let socket = host.udp((LEFT, SENDER_PORT))?;
            socket.connect(to)?;
            let burst = (BURST_BYTES / size.next_multiple_of(PAGE_SIZE)).clamp(1, BURST);
            let source = Box::new(source.frags(size));
            return Ok(Self::Datagrams { socket, source, burst });
        }
        let stream = host.start_connect(to)?;
        never_wait(&stream)?;
        Ok(Self::Stream { stream, feed: Feed::new(Box::new(source.frags(SEND_PIECE))) })
    }

    /// Sends as much as there is room for.
    pub(super) fn send(&mut self) -> Result<(), Failure> {
        match self {
            Self::Stream { stream, feed } => while matches!(feed.send(stream), Ok(Some(_))) {},
            Self::Datagrams { socket, source, burst } => {
                for frag in source.take(*burst) {
                    let to = (RIGHT, PORT);
                    socket.send_chunks_to(frag, to)?;
                }
            }
        }
        Ok(())
    }
}

/// Sends datagrams from a kernel socket until it is over.
pub(super) fn kernel_datagrams(
    to: SocketAddr,
    source: &Source,
    size: usize,
    over: &AtomicBool,
) -> Result<(), Failure> {
    let socket = KernelSocket::bind((RIGHT, SENDER_PORT))?;
    socket.set_write_timeout(Some(kernel::PATIENCE))?;
    for piece in source.pieces(size) {
        // Relaxed: nothing is published by it.
        if over.load(Ordering::Relaxed) {
            break;
        }
        match socket.send_to(piece, to) {
            // The receiver may be gone already.
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionRefused => {}
            Err(e) => return Err(e.into()),
            Ok(_) => {}
        }
    }
    Ok(())
}

/// Counts of data that arrived after the warm-up.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RingCounts {
    /// Bytes by reference, and by copy.
    pub(super) zc: u64,
    pub(super) copied: u64,
    /// Datagrams that were received, and that their socket had no room for.
    pub(super) datagrams: u64,
    pub(super) dropped: u64,
}

/// The application on rings.
pub(super) struct Receiver {
    group: u16,
    meter: Meter,
    pub(super) counted: RingCounts,
    local: SocketAddr,
    /// The datagram socket, and where it answers from.
    socket: u64,
    answers: Option<(u16, Instant)>,
}

impl Receiver {
    /// On [`PORT`] of `on`: a listener, or with datagrams a socket, that receives into `group`.
    pub(super) fn open(
        rings: &mut Rings,
        on: Ipv4Addr,
        group: u16,
        size: usize,
        seconds: f64,
    ) -> Result<Self, Failure> {
        let mut local = SocketAddr::from((on, PORT));
        if size > 0 {
            rings.submit(Submission::bind(local, OPEN));
        } else {
            let (listener, at) = rings.listen(local)?;
            rings.submit(Submission::new(Op::Accept, listener, OPEN));
            local = at;
        }
        rings.flush();
        let (meter, counted) = (Meter::new(seconds), RingCounts::default());
        Ok(Self { group, meter, counted, local, socket: 0, answers: None })
    }

    /// Where it receives.
    pub(super) fn local(&self) -> SocketAddr {
        self.local
    }

    /// Sends to the sender regularly from now on.
    pub(super) fn answer(&mut self, rings: &mut Rings) -> Result<(), Failure> {
        let memory = Region::memfd_shared("pagewire-answer", PAGE_SIZE)?;
        let group = rings.register_send(memory)?;
        self.answers = Some((group, Instant::now()));
        Ok(())
    }

    /// Takes what has arrived and returns the buffers; returns the result when the round is over.
    pub(super) fn poll(&mut self, rings: &mut Rings) -> Result<Option<Round>, Failure> {
        let (mut zc, mut copied, mut datagrams) = (0, 0, 0);
        let running = self.meter.is_running();
        while let Some(done) = rings.next_completion() {
            match done.user_data {
                NOTICE | ANSWER => continue,
                OPEN if done.result == 0 => {
                    self.socket = done.handle;
                    let submission = Submission::receive(done.handle, self.group, 0, RECEIVE);
                    rings.submit(submission.multishot());
                    self.answers =
                        self.answers.map(|(group, _)| (group, self.send_answer(rings, group)));
                    continue;
                }
                RECEIVE if done.has(Completion::DATAGRAM) => datagrams += 1,
                RECEIVE if done.result > 0 => {}
                _ => return Err(Failure::Failed(format!("the round ended too early: {done:?}"))),
            }
            if running {
                self.counted.dropped = u64::from(done.dropped);
            }
            for _ in 0..done.entries {
                let Some(entry) = rings.next_entry() else { break };
                let bytes = if entry.group == COPY_GROUP { &mut copied } else { &mut zc };
                *bytes += u64::from(entry.len);
                while !rings.give_back(entry) {
                    rings.flush();
                    std::hint::spin_loop();
                }
            }
        }
        if let Some((group, last)) = self.answers
            && self.socket != 0
            && last.elapsed() >= ANSWER_EVERY
        {
            self.answers = Some((group, self.send_answer(rings, group)));
        }
        rings.flush();
        if zc + copied == 0 {
            return Ok(None);
        }
        if running {
            self.counted.zc += zc;
            self.counted.copied += copied;
            self.counted.datagrams += datagrams;
        }
        Ok(self.meter.count((zc + copied) as usize))
    }

    /// Sends a byte to the datagrams' sender.
    fn send_answer(&self, rings: &mut Rings, group: u16) -> Instant {
        let to = SocketAddr::from((RIGHT, SENDER_PORT));
        rings.submit(Submission::send(self.socket, group, 0, 1, ANSWER).to(to));
        Instant::now()
    }
}
