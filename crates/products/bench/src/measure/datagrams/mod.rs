//! `bench datagrams`: many datagrams between a host on a tap and a kernel socket, bare and as QUIC by quinn,
//! with UDP segmentation offload (USO) and without; beside them, kernel sockets over veth.
//!
//! Each side has a pinned thread. No more is on the way than every receiver's queue holds: losses would
//! measure the congestion control. This file counts and prints; [`udp`] and [`quic`] are the two protocols.

#[cfg(feature = "quinn")]
mod quic;
mod udp;

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::{Args, ValueEnum};
use pagewire::Host;

use crate::args::{Common, Direction, Mtu, Options, Plan, Time, name};
use crate::failure::{Because, Failure};
use crate::kit::hosts::{self, LEFT, PORT, RIGHT};
use crate::kit::kernel::{self, Between, SOCKET};
use crate::kit::machine::{SPREAD, Sides, joined, pin};
use crate::kit::meter::{Meter, Round, us_per_mib};
use crate::kit::namespace::enter_with_tap_with;
use crate::kit::source::Source;
use crate::progress::Progress;
use crate::sys::{Usage, process_usage, set_socket_option};
use crate::table::{Field, InTurns, Measurement, Results, US_PER_MIB, in_turns, records, some};

/// Bytes that may be on the way, by either protocol. A queue of a host holds them in datagrams of 1,472 bytes,
/// each charged with a page.
const WINDOW: usize = 256 << 10;

/// Datagrams in bulk, with UDP segmentation offload and without (root)
///
/// A host on a tap, and a kernel socket at the tap's other side. With the offload (USO, Linux 6.2), the
/// datagrams of one call cross the tap as one frame. Beside it, kernel sockets over veth. With the cargo
/// feature `quinn`, QUIC by quinn, too.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct DatagramsOptions {
    /// What is sent in datagrams [default: each in its turn]
    #[arg(long, value_enum, value_name = "KIND")]
    protocol: Option<Payload>,

    /// Where data goes, as seen from the host on the tap [default: both ways]
    #[arg(long, value_enum, value_name = "WAY")]
    direction: Option<Direction>,

    #[command(flatten)]
    time: Time,

    #[command(flatten)]
    link_mtu: Mtu,

    #[command(flatten)]
    common: Common,
}

const EXAMPLES: &str = "\
Examples:
  pagewire bench datagrams --direction send
      to the kernel, over a tap with USO and without
  pagewire bench datagrams --mtu 9000
      longer datagrams";

/// The content of datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Payload {
    /// Bare datagrams
    Udp,
    /// A stream of QUIC, encrypted
    #[cfg(feature = "quinn")]
    Quic,
}

/// An engine on its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Tap { uso: bool },
    Kernel,
}

impl Options for DatagramsOptions {
    fn plan(&self) -> Plan {
        Plan::of::<DatagramsBench>(true, self.common.stats)
    }

    fn run(&self, progress: &Progress) -> Result<Results, Failure> {
        let (source, sides) = (Source::new(), Sides::choose());
        let bench = DatagramsBench { source, sides, options: self.clone() };
        let mut cases = Vec::new();
        for &payload in Payload::value_variants() {
            for &direction in Direction::value_variants() {
                for way in [Way::Tap { uso: true }, Way::Tap { uso: false }, Way::Kernel] {
                    cases.push(DatagramsCase { payload, direction, way });
                }
            }
        }
        cases.retain(|case| self.protocol.is_none_or(|only| only == case.payload));
        cases.retain(|case| self.direction.is_none_or(|only| only == case.direction));
        let lines = in_turns(&bench, cases, self.common.rounds, progress)?;
        let heading = self.common.heading(self.time.seconds, SPREAD);
        let columns = "engine link protocol direction uso mtu gbit_per_s min_gbit_per_s max_gbit_per_s \
            system_cpu_us_per_mib receiver_cpu_us_per_mib";
        Ok(Results::print(records(&bench, &lines), self.common.json, heading, columns))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DatagramsCase {
    payload: Payload,
    direction: Direction,
    way: Way,
}

struct DatagramsBench {
    source: Source,
    sides: Sides,
    options: DatagramsOptions,
}

type F = Field<DatagramsBench>;

impl Measurement for DatagramsBench {
    type Case = DatagramsCase;
    type Sample = DatagramsSample;

    const NAME: &'static str = "datagrams";
    const TITLE: &'static str = "Datagrams in bulk";
    const ABOUT: &'static str = "\
        Bare datagrams, and QUIC by quinn, between a host on a tap and a kernel socket: with UDP \
        segmentation offload and without, beside kernel sockets over veth.";
    const FIELDS: &'static [Field<Self>] = &[
        F::value("protocol", |of| some(name(of.case.payload))).group("{}"),
        F::value("direction", |of| some(name(of.case.direction))).group("{}"),
        F::value("uso", |of| match of.case.way {
            Way::Tap { uso } => some(if uso { "with" } else { "without" }),
            Way::Kernel => None,
        })
        .part("{} USO"),
        F::value("mtu", |of| of.samples.last().map(|sample| sample.mtu.into())),
        F::spread("system_cpu_us_per_mib", 1, |of| of.spread(DatagramsSample::system_us_per_mib))
            .lower("CPU time of both sides", US_PER_MIB)
            .first(),
        F::spread("receiver_cpu_us_per_mib", 1, |of| {
            of.spread(DatagramsSample::receiver_us_per_mib)
        })
        .lower("CPU time of the receiver", US_PER_MIB),
    ];

    fn engine(&self, case: &DatagramsCase) -> (String, &'static str) {
        match case.way {
            Way::Tap { .. } => ("pagewire".to_owned(), "tap"),
            Way::Kernel => ("kernel".to_owned(), "veth"),
        }
    }

    fn round(&self, _: &DatagramsCase, sample: &DatagramsSample) -> Round {
        sample.round
    }
}

impl InTurns for DatagramsBench {
    fn sample(&self, case: &DatagramsCase, _: u16) -> Result<DatagramsSample, Failure> {
        match case.way {
            Way::Kernel => self.between_kernels(case.payload),
            Way::Tap { uso } => self.over_tap(case.payload, case.direction, uso),
        }
    }
}

/// The result of a round.
#[derive(Clone, Copy, Debug)]
struct DatagramsSample {
    round: Round,
    /// CPU time of all threads of both sides.
    everyone: Duration,
    mtu: u32,
}

impl DatagramsSample {
    fn system_us_per_mib(&self) -> f64 {
        us_per_mib(self.everyone, self.round.bytes)
    }

    fn receiver_us_per_mib(&self) -> f64 {
        us_per_mib(self.round.receiver_cpu, self.round.bytes)
    }
}

/// Counts what a receiver gets from the end of the warm-up to the end of the round.
struct DatagramsMeter {
    meter: Meter,
    /// The use of all threads at the end of the warm-up.
    before: Option<Usage>,
    mtu: u32,
}

impl DatagramsMeter {
    fn new(seconds: f64, mtu: u32) -> Self {
        Self { meter: Meter::new(seconds), before: None, mtu }
    }

    fn add(&mut self, bytes: usize) -> Option<DatagramsSample> {
        let round = self.meter.count(bytes);
        let Some(before) = self.before else {
            self.before = self.meter.is_running().then(process_usage);
            return None;
        };
        let round = round?;
        let now = process_usage();
        let everyone = (now.user + now.system).saturating_sub(before.user + before.system);
        Some(DatagramsSample { round, everyone, mtu: self.mtu })
    }
}

/// A round, as its two sides see it.
#[derive(Clone, Copy)]
struct Run<'a> {
    source: &'a Source,
    mtu: u32,
    seconds: f64,
    /// Set once the receiver has counted enough.
    done: &'a AtomicBool,
}

impl Run<'_> {
    fn meter(&self) -> DatagramsMeter {
        DatagramsMeter::new(self.seconds, self.mtu)
    }

    /// Payload bytes of a datagram that fills a packet.
    fn datagram(&self) -> u16 {
        (self.mtu - 28) as u16
    }

    fn is_done(&self) -> bool {
        self.done.load(Ordering::Relaxed)
    }
}

impl DatagramsBench {
    /// The kernel's sockets over veth.
    fn between_kernels(&self, payload: Payload) -> Result<DatagramsSample, Failure> {
        let mtu = self.options.link_mtu.mtu;
        let between = Between::Veth { mtu };
        let done = AtomicBool::new(false);
        let run = self.run(between.mtu(), &done);
        let sending = |to| match payload {
            Payload::Udp => udp::kernel_sends(run, to),
            #[cfg(feature = "quinn")]
            Payload::Quic => quic::kernel_sends(run, to),
        };
        let receiving = |listener: &TcpListener| {
            let at = listener.local_addr().because(SOCKET)?;
            let sample = receive(payload, run, kernel_socket(at)?);
            done.store(true, Ordering::Relaxed);
            sample
        };
        Ok(kernel::join(between, self.sides, sending, receiving)?.1)
    }

    /// A host on a tap, and a kernel socket at the tap's other side.
    fn over_tap(
        &self,
        payload: Payload,
        direction: Direction,
        uso: bool,
    ) -> Result<DatagramsSample, Failure> {
        pin(self.sides.left);
        let (tap, mtu) = enter_with_tap_with(RIGHT, self.options.link_mtu.mtu, |tap| tap.uso(uso))?;
        let runtime = runtime()?;
        let host = runtime.block_on(async { hosts::on(tap, LEFT).start_in_runtime() })?;
        let done = AtomicBool::new(false);
        let run = self.run(mtu, &done);
        let sample: DatagramsSample = std::thread::scope(|scope| match direction {
            Direction::Send => {
                let to = SocketAddr::from((RIGHT, PORT));
                let socket = kernel_socket(to)?;
                let receiving = scope.spawn(move || {
                    pin(self.sides.right);
                    let sample = receive(payload, run, socket);
                    run.done.store(true, Ordering::Relaxed);
                    sample
                });
                let sent = runtime.block_on(async {
                    match payload {
                        Payload::Udp => udp::host_sends(run, &host, to).await,
                        #[cfg(feature = "quinn")]
                        Payload::Quic => quic::host_sends(run, &host, to).await,
                    }
                });
                let sample = joined(receiving)?;
                sent.map(|()| sample)
            }
            Direction::Receive => {
                let at = SocketAddr::from((LEFT, PORT));
                let send = move || {
                    pin(self.sides.right);
                    match payload {
                        Payload::Udp => udp::kernel_sends(run, at),
                        #[cfg(feature = "quinn")]
                        Payload::Quic => quic::kernel_sends(run, at),
                    }
                };
                // The peer starts once the host's socket is bound.
                let (sample, sending) = runtime.block_on(async {
                    let mut sending = None;
                    let start = || sending = Some(scope.spawn(send));
                    let sample = match payload {
                        Payload::Udp => udp::host_receives(run, &host, at, start).await,
                        #[cfg(feature = "quinn")]
                        Payload::Quic => quic::host_receives(run, &host, at, start).await,
                    };
                    run.done.store(true, Ordering::Relaxed);
                    // The end of a connection reaches the peer by the driver.
                    while sending.as_ref().is_some_and(|sending| !sending.is_finished()) {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                    (sample, sending)
                });
                let sample = sample?;
                sending.map_or(Ok(()), joined)?;
                Ok(sample)
            }
        })?;
        self.report(&host);
        Ok(sample)
    }

    fn report(&self, host: &Host) {
        hosts::copied_by(&[host], self.options.common.stats);
    }

    fn run<'a>(&'a self, mtu: u32, done: &'a AtomicBool) -> Run<'a> {
        Run { source: &self.source, mtu, seconds: self.options.time.seconds, done }
    }
}

/// The kernel's side of a receiving round.
fn receive(payload: Payload, run: Run<'_>, socket: UdpSocket) -> Result<DatagramsSample, Failure> {
    match payload {
        Payload::Udp => udp::kernel_receives(run, &socket),
        #[cfg(feature = "quinn")]
        Payload::Quic => quic::kernel_receives(run, socket),
    }
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.because("a runtime")
}

/// Bytes that a kernel socket may hold: the default holds three super-frames.
const RECEIVE_BUFFER: i32 = 4 << 20;

fn kernel_socket(at: SocketAddr) -> Result<UdpSocket, Failure> {
    let socket = UdpSocket::bind(at).because(SOCKET)?;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE);
    set_socket_option(&socket, level, name, RECEIVE_BUFFER).because(SOCKET)?;
    Ok(socket)
}
