//! `bench stream`: the bulk rate of one connection.
//!
//! Over the pair link: by reference from a buffer larger than any cache; with a reader that touches
//! nothing, and with one that sums every byte; both hosts on one thread, and each on its own. Over
//! a tap: to and from a kernel socket. Beside it, in the same rounds, kernel to kernel: over
//! loopback for the pair, over veth for the tap. Over a port, to and from a virtual machine.

mod guest;
mod via;

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{Args, ValueEnum};
use pagewire::memory::Frag;
use pagewire::{Host, TcpStream};

use guest::Guest;

use crate::args::{Common, Direction, Mtu, Options, Plan, Time, name};
use crate::failure::Failure;
use crate::kit::engine::Engine;
use crate::kit::hosts::{
    self, Feed, LEFT, PORT, RECV_PIECE, RIGHT, SEND_PIECE, accept, connect_in_turns, copied_by,
    hosts_in_turns, patient, would_block,
};
use crate::kit::kernel::{self, Between, PATIENCE, PEER_MESSAGE};
use crate::kit::machine::{SPREAD, Sides, joined, nap, pin};
use crate::kit::meter::{Meter, Round};
use crate::kit::namespace::enter_with_tap;
use crate::kit::source::{Reader, Source};
use crate::progress::Progress;
use crate::table::{
    COPIED, Field, IN_A_ROUND, InTurns, Measurement, Results, US_PER_MIB, in_turns, records, some,
};

/// Bulk rate of one connection
#[derive(Clone, Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct StreamOptions {
    /// Kind of link
    #[arg(long, value_enum, default_value_t = StreamLink::Pair, value_name = "KIND")]
    link: StreamLink,

    /// Unix socket of `--link vhost-user`, for a virtual machine; what to run in it is printed at the
    /// start
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// Direction over a tap or to a virtual machine, as seen from Pagewire [default: both]; not with --link pair
    #[arg(long, value_enum, value_name = "WAY")]
    direction: Option<Direction>,

    /// Also with a proxy between sender and receiver, which forwards by reference: twice as many sends
    /// and receives, on the same processors
    #[arg(long)]
    via_proxy: bool,

    #[command(flatten)]
    time: Time,

    #[command(flatten)]
    link_mtu: Mtu,

    #[command(flatten)]
    common: Common,
}

const EXAMPLES: &str = "\
Examples:
  pagewire bench stream --via-proxy
      over the pair link, also forwarded; no privilege
  pagewire bench stream --link tap --direction receive --seconds 3
      from a kernel socket over a tap, beside kernel to kernel over veth; root
  pagewire bench stream --link vhost-user --socket /tmp/pw.sock
      with a virtual machine, as scripts/guest/boot --vhost-user /tmp/pw.sock makes one";

/// Kinds of links of this measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum StreamLink {
    /// Two ends in one process, frames by reference
    Pair,
    /// A tap device of the kernel; needs root or CAP_NET_ADMIN
    Tap,
    /// A port for a virtual machine: QEMU, Cloud Hypervisor and others connect to a Unix socket
    VhostUser,
}

impl Options for StreamOptions {
    fn plan(&self) -> Plan {
        Plan::of::<StreamBench>(self.link == StreamLink::Tap, self.common.stats)
    }

    fn run(&self, progress: &Progress) -> Result<Results, Failure> {
        self.check()?;
        let kernel = match self.link {
            StreamLink::Pair => Between::Loopback,
            StreamLink::Tap | StreamLink::VhostUser => Between::Veth { mtu: self.link_mtu.mtu },
        };
        let guest = self.socket.as_deref().map(|path| Guest::plugged(self, path)).transpose()?;
        let (source, sides, options) = (Source::new(), Sides::choose(), self.clone());
        let mut bench = StreamBench { source, sides, options, kernel, message: 0, guest };
        if bench.guest.is_none() {
            progress.prepare("the kernel's best message size");
            let none = Reader::None;
            bench.message = kernel::best_message(kernel, &bench.source, none, bench.sides)?;
        }
        let lines = in_turns(&bench, self.cases(), self.common.rounds, progress)?;
        let heading = self.common.heading(self.time.seconds, SPREAD);
        let columns = match self.link {
            StreamLink::VhostUser => {
                "engine link direction peer reader mtu gbit_per_s min_gbit_per_s max_gbit_per_s \
                 payload_bytes_copied"
            }
            StreamLink::Pair | StreamLink::Tap => {
                "engine link direction peer reader threads via mtu message gbit_per_s \
                 min_gbit_per_s max_gbit_per_s receiver_cpu_us_per_mib payload_bytes_copied"
            }
        };
        Ok(Results::print(records(&bench, &lines), self.common.json, heading, columns))
    }
}

impl StreamOptions {
    fn check(&self) -> Result<(), Failure> {
        let text = match self.link {
            StreamLink::VhostUser if self.socket.is_none() => {
                "--link vhost-user needs --socket PATH: where a virtual machine is to be plugged in"
            }
            StreamLink::VhostUser if self.via_proxy => {
                "--via-proxy is for --link pair and --link tap"
            }
            StreamLink::VhostUser => return Ok(()),
            _ if self.socket.is_some() => "--socket needs --link vhost-user",
            StreamLink::Pair if self.direction.is_some() => {
                "--direction says which way over a tap; with it give --link tap"
            }
            StreamLink::Pair | StreamLink::Tap => return Ok(()),
        };
        Err(Failure::Usage(text.into()))
    }

    fn cases(&self) -> Vec<StreamCase> {
        let both = |ends: StreamEnds| {
            [Reader::None, Reader::Sum].map(|reader| StreamCase { ends, reader })
        };
        let wanted = |d: &Direction| self.direction.is_none_or(|only| only == *d);
        let mut all: Vec<StreamCase> = Vec::new();
        match self.link {
            StreamLink::Pair => {
                for threads in [1, 2] {
                    all.extend(both(StreamEnds::Pair { threads }));
                    if self.via_proxy {
                        all.extend(both(StreamEnds::PairViaProxy { threads }));
                    }
                }
            }
            StreamLink::Tap => {
                if wanted(&Direction::Send) {
                    all.push(StreamCase {
                        ends: StreamEnds::Tap(Direction::Send),
                        reader: Reader::None,
                    });
                }
                if wanted(&Direction::Receive) {
                    all.extend(both(StreamEnds::Tap(Direction::Receive)));
                }
                if self.via_proxy {
                    all.extend(both(StreamEnds::TapViaProxy));
                }
            }
            StreamLink::VhostUser => {
                if wanted(&Direction::Receive) {
                    all.extend(both(StreamEnds::Guest(Direction::Receive)));
                }
                if wanted(&Direction::Send) {
                    all.push(StreamCase {
                        ends: StreamEnds::Guest(Direction::Send),
                        reader: Reader::None,
                    });
                }
                return all;
            }
        }
        all.extend(both(StreamEnds::Kernel));
        all
    }
}

/// The ends of a stream.
#[derive(Clone, Copy, Debug)]
enum StreamEnds {
    Kernel,
    Pair { threads: usize },
    Tap(Direction),
    PairViaProxy { threads: usize },
    TapViaProxy,
    Guest(Direction),
}

#[derive(Clone, Copy, Debug)]
struct StreamCase {
    ends: StreamEnds,
    reader: Reader,
}

struct StreamSample {
    round: Round,
    /// Payload bytes that our stacks copied.
    copied: u64,
    mtu: u32,
}

struct StreamBench {
    source: Source,
    sides: Sides,
    options: StreamOptions,
    kernel: Between,
    /// Bytes of single writes and reads of the kernel.
    message: usize,
    guest: Option<Guest>,
}

type F = Field<StreamBench>;

impl Measurement for StreamBench {
    type Case = StreamCase;
    type Sample = StreamSample;

    const NAME: &'static str = "stream";
    const TITLE: &'static str = "Bulk rate of one connection";
    const ABOUT: &'static str = "\
        By reference from a buffer larger than any cache. A reader that sums touches every \
        byte; one that reads nothing shows the stacks' work alone.";
    const FIELDS: &'static [Field<Self>] = &[
        F::value("direction", |of| match of.case.ends {
            StreamEnds::Tap(direction) | StreamEnds::Guest(direction) => some(name(direction)),
            _ => some("send"),
        })
        .part("{}"),
        F::value("peer", |of| match of.case.ends {
            StreamEnds::Pair { .. } | StreamEnds::PairViaProxy { .. } => some("pagewire"),
            StreamEnds::Guest(_) => some("guest"),
            StreamEnds::Kernel | StreamEnds::Tap(_) | StreamEnds::TapViaProxy => some("kernel"),
        }),
        F::value("reader", |of| some(name(of.case.reader))).group("reader: {}"),
        F::value("threads", |of| match of.case.ends {
            StreamEnds::Pair { threads } | StreamEnds::PairViaProxy { threads } => some(threads),
            StreamEnds::Guest(_) => None,
            StreamEnds::Kernel | StreamEnds::Tap(_) | StreamEnds::TapViaProxy => some(2),
        })
        .part("{} thread(s)"),
        F::value("mtu", |of| of.samples.last().map(|last| last.mtu.into())),
        F::value("via", |of| match of.case.ends {
            StreamEnds::PairViaProxy { .. } | StreamEnds::TapViaProxy => some("proxy"),
            _ => None,
        })
        .part("through a {}"),
        F::value("message", |of| of.case.is_kernel().then(|| of.bench.message.into())),
        F::value("congestion", |of| of.case.is_kernel().then(|| "cubic".into())),
        F::spread("receiver_cpu_us_per_mib", 3, |of| match of.case.ends {
            StreamEnds::Pair { threads: 1 }
            | StreamEnds::PairViaProxy { .. }
            | StreamEnds::Guest(_) => None,
            _ => Some(of.receiver_us_per_mib()),
        })
        .lower("CPU time of the receiver", US_PER_MIB),
        // On one thread, the thread's clock cannot separate sender and receiver.
        F::spread("cpu_us_per_mib", 3, |of| match of.case.ends {
            StreamEnds::Pair { threads: 1 } | StreamEnds::PairViaProxy { .. } => {
                Some(of.receiver_us_per_mib())
            }
            _ => None,
        })
        .lower("CPU time of both ends on one thread", US_PER_MIB),
        F::value("payload_bytes_copied", |of| {
            let last = of.samples.last().filter(|_| !of.case.is_kernel());
            last.map(|last| last.copied.into())
        })
        .lower(COPIED, IN_A_ROUND),
    ];

    fn engine(&self, case: &StreamCase) -> (String, &'static str) {
        match case.ends {
            StreamEnds::Kernel => Engine::Kernel(self.kernel).names(),
            StreamEnds::Pair { .. } | StreamEnds::PairViaProxy { .. } => Engine::Pair.names(),
            StreamEnds::Tap(_) | StreamEnds::TapViaProxy => Engine::Tap.names(),
            StreamEnds::Guest(_) => ("pagewire".to_owned(), "vhost-user"),
        }
    }

    fn round(&self, _: &StreamCase, sample: &StreamSample) -> Round {
        sample.round
    }
}

impl StreamCase {
    fn is_kernel(&self) -> bool {
        matches!(self.ends, StreamEnds::Kernel)
    }
}

impl InTurns for StreamBench {
    fn sample(
        &self,
        &StreamCase { ends, reader }: &StreamCase,
        _: u16,
    ) -> Result<StreamSample, Failure> {
        if let (StreamEnds::Guest(direction), Some(guest)) = (ends, &self.guest) {
            return guest.round(self, direction, reader);
        }
        match ends {
            StreamEnds::Kernel | StreamEnds::Guest(_) => {
                let (between, source, message) = (self.kernel, &self.source, self.message);
                let round = kernel::stream(
                    between,
                    source,
                    message,
                    reader,
                    self.options.time.seconds,
                    self.sides,
                )?;
                Ok(StreamSample { round, copied: 0, mtu: between.mtu() })
            }
            StreamEnds::Pair { threads: 1 } => self.pair_on_one_thread(reader),
            StreamEnds::Pair { .. } => self.pair_on_two_threads(reader),
            StreamEnds::Tap(direction) => self.tap(direction, reader),
            StreamEnds::PairViaProxy { threads } => self.pair_via_proxy(reader, threads),
            StreamEnds::TapViaProxy => self.tap_via_proxy(reader),
        }
    }
}

impl StreamBench {
    /// Sender, receiver and both stacks, in turns.
    fn pair_on_one_thread(&self, reader: Reader) -> Result<StreamSample, Failure> {
        pin(self.sides.left);
        let (left, right, mtu) = hosts_in_turns(self.options.link_mtu.mtu)?;
        let (sender, receiver) = connect_in_turns(&left, &right)?;
        let round = self.in_turns(&sender, &receiver, reader, || left.turn() | right.turn())?;
        Ok(self.finish(round, mtu, &[&left, &right]))
    }

    /// Sends and receives on one thread; `turn` drives the hosts, and returns whether anything came.
    fn in_turns(
        &self,
        sender: &TcpStream,
        receiver: &TcpStream,
        reader: Reader,
        turn: impl Fn() -> bool,
    ) -> Result<Round, Failure> {
        let mut feed = Feed::new(self.source.frags(SEND_PIECE));
        let mut meter = Meter::new(self.options.time.seconds);
        let mut frags: Vec<Frag> = Vec::new();
        loop {
            while feed.send(sender)?.is_some() {}
            if !turn() {
                std::hint::spin_loop();
            }
            let mut got = 0;
            while let Some(n) = would_block(receiver.recv_into(RECV_PIECE, &mut frags))? {
                if n == 0 {
                    return Err(Failure::Failed("the sender ended too early".into()));
                }
                frags.drain(..).for_each(|frag| reader.see_frag(&frag));
                got += n;
            }
            if got > 0
                && let Some(round) = meter.count(got)
            {
                return Ok(round);
            }
        }
    }

    /// Each host on a thread of its own, polling.
    fn pair_on_two_threads(&self, reader: Reader) -> Result<StreamSample, Failure> {
        pin(self.sides.left);
        let (left, right, mtu) = hosts_in_turns(self.options.link_mtu.mtu)?;
        let (sender, receiver) = connect_in_turns(&left, &right)?;
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let sending = scope.spawn(|| -> Result<(), Failure> {
                let mut feed = Feed::new(self.source.frags(SEND_PIECE));
                while !done.load(Ordering::Relaxed) {
                    if feed.send(&sender)?.is_none() && !left.turn() {
                        std::hint::spin_loop();
                    }
                }
                Ok(())
            });
            let receiving = scope.spawn(|| -> Result<Round, Failure> {
                pin(self.sides.right);
                let result = receive(&receiver, reader, self.options.time.seconds, || {
                    if !right.turn() {
                        std::hint::spin_loop();
                    }
                });
                done.store(true, Ordering::Relaxed);
                result
            });
            let round = joined(receiving)?;
            joined(sending)?;
            Ok(self.finish(round, mtu, &[&left, &right]))
        })
    }

    /// A stack on a tap, and a kernel socket on the tap's other side.
    fn tap(&self, direction: Direction, reader: Reader) -> Result<StreamSample, Failure> {
        pin(self.sides.left);
        let (tap, mtu) = enter_with_tap(RIGHT, self.options.link_mtu.mtu)?;
        let host = hosts::on(tap, LEFT).start()?;
        let round = std::thread::scope(|scope| match direction {
            Direction::Send => {
                let (listener, to) = kernel::listen(RIGHT)?;
                let receiving = scope.spawn(move || self.kernel_receives(&listener, reader));
                let connection = host.connect_timeout(to, PATIENCE);
                let connection = patient(connection)?;
                // Until the peer closes.
                for piece in self.source.frags(SEND_PIECE) {
                    if connection.send(piece).is_err() {
                        break;
                    }
                }
                joined(receiving)
            }
            Direction::Receive => {
                let on = SocketAddr::from((LEFT, PORT));
                let listener = host.listen(on)?;
                let sending = scope.spawn(move || kernel::peer_sends(on, &self.source, self.sides));
                let connection = patient(accept(&listener, nap))?;
                let round = receive(&connection, reader, self.options.time.seconds, || {});
                connection.abort();
                drop(connection);
                joined(sending)?;
                round
            }
        })?;
        Ok(self.finish(round, mtu, &[&host]))
    }

    fn kernel_receives(&self, listener: &TcpListener, reader: Reader) -> Result<Round, Failure> {
        pin(self.sides.right);
        kernel::receive(kernel::accept(listener)?, PEER_MESSAGE, reader, self.options.time.seconds)
    }

    fn finish(&self, round: Round, mtu: u32, hosts: &[&Host]) -> StreamSample {
        StreamSample { round, copied: copied_by(hosts, self.options.common.stats), mtu }
    }
}

/// Reads for a round; calls `idle` where a stream that does not wait has nothing.
fn receive(
    connection: &TcpStream,
    reader: Reader,
    seconds: f64,
    idle: impl Fn(),
) -> Result<Round, Failure> {
    let mut meter = Meter::new(seconds);
    let mut frags: Vec<Frag> = Vec::new();
    loop {
        match would_block(connection.recv_into(RECV_PIECE, &mut frags))? {
            Some(0) => return Err(Failure::Failed("the sender ended too early".into())),
            Some(n) => {
                frags.drain(..).for_each(|frag| reader.see_frag(&frag));
                if let Some(round) = meter.count(n) {
                    return Ok(round);
                }
            }
            None => idle(),
        }
    }
}
