//! Options of the measurements.

mod known;
mod load;

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use pagewire::device::{Chance, FaultConfig};

use crate::source::Reader;
use load::{CONNECTIONS_EXAMPLES, CROWD_EXAMPLES, REQUESTS_EXAMPLES};
pub(crate) use load::{ConnectionsOptions, CrowdOptions, Driver, PlaceOptions, RequestsOptions};

/// What `pagewire bench --help` ends with.
pub const EXAMPLES: &str = "\
Examples:
  pagewire bench stream                 bulk rate over the pair link, beside kernel loopback
  pagewire bench stream --link tap      to and from a kernel socket, beside veth (root)
  pagewire bench stream --link vhost-user --socket /tmp/pw.sock
                                        to and from a virtual machine
  pagewire bench stream --via-proxy     and forwarded by reference, beside direct
  pagewire bench send --plot send.svg   CPU time of a sender, by copy and by reference
  pagewire bench path                   goodput over lossy paths, beside kernel to kernel (root)
  pagewire bench share                  a bottleneck shared with the kernel's flows (root)
  pagewire bench receive --flows 8      CPU of receiving by copy, mapped, in chunks
  pagewire bench ring                   receive through rings, by copy and by reference
  pagewire bench rr                     64 bytes there and back
  pagewire bench idle --connections 100000
  pagewire bench requests --link tap    small requests over 1, 64 and 1,000 connections (root)
  pagewire bench connections            connect, one request, close
  pagewire bench crowd --link tap       1,000 clients that move a MiB each, all at once (root)
  pagewire bench gateway --plot gateway.svg
                                        a guest's network, beside pasta and others (root)
  pagewire bench sim                    simulated programs, beside turmoil
  pagewire bench stream --json          one object per line
  pagewire bench rr --plot rr.svg       an image of the results
  pagewire bench --report out --quick   a page with plots of everything that can run here";

/// `pagewire bench`
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub struct BenchOptions {
    /// Write a page with plots of all results, and the results beside it, to the directory DIR
    ///
    /// DIR/index.html needs no network. Without a measurement, all run that can run here, which takes
    /// some twenty minutes; those with --link tap, and path, share and gateway, need root.
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) report: Option<PathBuf>,

    /// Draw the results of one measurement, with their spread, as an SVG image
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,

    /// With --report and without a measurement: short rounds and few cases, in a few minutes
    #[arg(long, requires = "report")]
    pub(crate) quick: bool,

    /// Write one object per line, with the spread, to FILE
    #[arg(long, global = true, hide = true, value_name = "FILE")]
    pub(crate) rows: Option<PathBuf>,

    /// Which of several measurements this is
    #[arg(long, global = true, hide = true, value_name = "TEXT")]
    pub(crate) part: Option<String>,

    #[command(subcommand)]
    pub(crate) bench: Option<Bench>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Bulk rate of one connection
    #[command(after_long_help = STREAM_EXAMPLES)]
    Stream(StreamOptions),
    /// CPU time of a sender: by copy, and by reference with completions
    ///
    /// Beside it, the kernel's sockets with and without MSG_ZEROCOPY. Over the pair link the sender's
    /// figure excludes the receiver; over a tap (root) the peer is a kernel socket.
    #[command(after_long_help = SEND_EXAMPLES)]
    Send(SendOptions),
    /// Goodput over a bad path, to and from the kernel, beside kernel to kernel; needs root
    #[command(after_long_help = PATH_EXAMPLES)]
    Path(PathOptions),
    /// How flows of Pagewire and of the kernel share a bottleneck; needs root
    #[command(after_long_help = SHARE_EXAMPLES)]
    Share(ShareOptions),
    /// CPU time of a receiver: by copy, by mapping and in chunks
    ///
    /// Beside it, the kernel's sockets with read and with TCP_ZEROCOPY_RECEIVE. Over the pair link the
    /// time of the receiver's stack and application is measured apart from the sender's; over a tap
    /// (root) kernel sockets send.
    #[command(after_long_help = RECEIVE_EXAMPLES)]
    Receive(ReceiveOptions),
    /// Receive through rings, by copy and by reference
    ///
    /// By reference over the pair link, the receiver has registered the sender's memory, and nothing is
    /// copied; with --place its end writes into its own region instead, one copy by the device. Over a
    /// tap (root) the kernel writes into the region.
    #[command(after_long_help = RING_EXAMPLES)]
    Ring(RingOptions),
    /// 64 bytes there and back, both sides polling
    #[command(after_long_help = RR_EXAMPLES)]
    Rr(RrOptions),
    /// Memory that an established idle connection takes
    #[command(after_long_help = IDLE_EXAMPLES)]
    Idle(IdleOptions),
    /// Small frames into the stack through a port, beside writes to a kernel's tap
    ///
    /// Frames per second of one core: built in place, copied and charged to a send buffer, with a hook
    /// that passes or drops them, and written to a tap of the kernel (root).
    #[command(after_long_help = PORT_EXAMPLES)]
    Port(PortOptions),
    /// Small requests and answers over connections that stay
    ///
    /// The server and the clients are one thread each, tokio programs that are the same for both
    /// engines. Over a tap (root) the clients are the kernel's, as they are over veth beside it.
    #[command(after_long_help = REQUESTS_EXAMPLES)]
    Requests(RequestsOptions),
    /// Connect, one request, close
    ///
    /// The programs are as those of `bench requests`; the server closes first.
    #[command(after_long_help = CONNECTIONS_EXAMPLES)]
    Connections(ConnectionsOptions),
    /// Many clients that move some bytes each, all at once
    ///
    /// The server echoes what comes. The time is from the first connect to the last byte. Drops for
    /// want of memory, retransmissions and memory are of both sides together.
    #[command(after_long_help = CROWD_EXAMPLES)]
    Crowd(CrowdOptions),
    /// What a guest gets through `pagewire gateway`, beside other gateways; needs root
    ///
    /// Bytes in both directions, connections and requests a second, round trips and memory. Beside it
    /// run pasta, slirp4netns and gvproxy where they are installed, and the kernel's own forwarding.
    /// All of it is in network namespaces of its own.
    #[command(after_long_help = GATEWAY_EXAMPLES)]
    Gateway(GatewayOptions),

    /// How fast simulated programs run, beside turmoil
    ///
    /// Hosts with a program, a clock and a TCP/IP stack each, in one thread: simulated seconds and
    /// messages in a second of real time, and memory.
    #[command(after_long_help = SIM_EXAMPLES)]
    Sim(SimOptions),
}

const STREAM_EXAMPLES: &str = "\
Examples:
  pagewire bench stream --via-proxy
      over the pair link, also forwarded; no privilege
  pagewire bench stream --link tap --direction receive --seconds 3
      from a kernel socket over a tap, beside kernel to kernel over veth; root
  pagewire bench stream --link vhost-user --socket /tmp/pw.sock
      with a virtual machine, as scripts/guest/boot --vhost-user /tmp/pw.sock makes one";

const SEND_EXAMPLES: &str = "\
Examples:
  pagewire bench send --rounds 5 --plot send.svg
      sizes of 4K to 1M by copy and by reference, and a drawing of them
  pagewire bench send --link tap --size 64K,1M
      to a kernel socket; root";

const PATH_EXAMPLES: &str = "\
Examples:
  pagewire bench path
      losses of 0 to 10 %, 1 and 50 ms each way, both directions
  pagewire bench path --loss 1% --delay 20ms --direction send --seconds 30 --pcap captures
      one path, with a capture of each round in the directory captures";

const SHARE_EXAMPLES: &str = "\
Examples:
  pagewire bench share
      two flows of each side in 50 Mbit/s
  pagewire bench share --rate 20mbit --delay 40ms --flows 8 --kernels
      how two kernels share that bottleneck";

const RECEIVE_EXAMPLES: &str = "\
Examples:
  pagewire bench receive --flows 8 --reader sum
      eight connections over the pair link, every byte summed
  pagewire bench receive --link tap --mode map --payload-pages 15
      mapped, from a kernel socket that sends whole pages; root";

const RING_EXAMPLES: &str = "\
Examples:
  pagewire bench ring
      the sender's memory is registered with the receiver: nothing is copied
  pagewire bench ring --place --region 16
      the receiver's end of the pair writes into a region of 16 MiB
  pagewire bench ring --link tap --json
      the kernel writes into the region; root";

const RR_EXAMPLES: &str = "\
Examples:
  pagewire bench rr
      64 bytes each way
  pagewire bench rr --size 4096 --seconds 5 --json
  pagewire bench rr --threads 8         how fair the lock of a host is
      a page each way, for longer, as one object per line";

const IDLE_EXAMPLES: &str = "\
Examples:
  pagewire bench idle
      100,000 connections
  pagewire bench idle --connections 1000 --json";

const PORT_EXAMPLES: &str = "\
Examples:
  pagewire bench port
      frames of 60 to 1500 bytes by every path; the kernel's tap beside them if this is root
  pagewire bench port --frame 60,1500 --path build,accounted --frames 2000000
      two lengths by two paths, longer rounds";

const GATEWAY_EXAMPLES: &str = "\
Examples:
  pagewire bench gateway --json
      every engine that is there, MTU 1500 and 65520, one and eight connections
  pagewire bench gateway --engine pagewire,pasta --mtu 1500 --flows 1 --check
      ours beside pasta's, and whether the ratios are what they should be";

const SIM_EXAMPLES: &str = "\
Examples:
  pagewire bench sim
      100 connections, 1 KB there and back, beside turmoil
  pagewire bench sim --scenario idle --hosts 1000 --engine pagewire
      a thousand hosts that only wait for timers
  pagewire bench sim --hosts 1000 --connections 10000 --seconds 1 --rounds 1 --json";

/// Kinds of links of `pagewire bench stream`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StreamLink {
    /// Two ends in one process, frames by reference
    Pair,
    /// A tap device of the kernel; needs root or CAP_NET_ADMIN
    Tap,
    /// A port for a virtual machine: QEMU, Cloud Hypervisor and others connect to a Unix socket
    VhostUser,
}

/// Kinds of links of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Link {
    /// Two ends in one process, frames by reference
    Pair,
    /// A tap device of the kernel; needs root or CAP_NET_ADMIN
    Tap,
}

/// Options of all measurements.
#[derive(Clone, Debug, Args)]
pub(crate) struct BenchCommon {
    /// Rounds of each engine that count, taken in turns; one more before them warms up
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(3..=1000), value_name = "N")]
    pub(crate) rounds: u16,

    /// One JSON object per line instead of a table
    #[arg(long)]
    pub(crate) json: bool,

    /// Print copies by reason, drops by reason and TCP counters after each round
    #[arg(long)]
    pub(crate) stats: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct StreamOptions {
    /// Kind of link
    #[arg(long, value_enum, default_value_t = StreamLink::Pair, value_name = "KIND")]
    pub(crate) link: StreamLink,

    /// Unix socket of `--link vhost-user`, for a virtual machine; what to run in it is printed at the
    /// start
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,

    /// Direction over a tap or to a virtual machine, as seen from Pagewire [default: both]; not with --link pair
    #[arg(long, value_enum, value_name = "WAY")]
    pub(crate) direction: Option<Direction>,

    /// Also with a proxy between sender and receiver, which forwards by reference: twice as many sends
    /// and receives, on the same processors
    #[arg(long)]
    pub(crate) via_proxy: bool,

    /// Seconds that a round lasts
    #[arg(long, default_value_t = 1.0, value_parser = seconds, value_name = "S")]
    pub(crate) seconds: f64,

    /// Largest IP packet on the link, in bytes: 1280 to 65535 [default: the link's]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1280..=65535))]
    pub(crate) mtu: Option<u32>,

    #[command(flatten)]
    pub(crate) common: BenchCommon,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct SendOptions {
    /// Kind of link; over a tap the peer is a kernel socket (root)
    #[arg(long, value_enum, default_value_t = Link::Pair, value_name = "KIND")]
    pub(crate) link: Link,

    /// Bytes of each send: a number with K or M, 1 to 16M; repeatable, or with commas between
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "4K,16K,64K,256K,1M",
        value_parser = send_size,
        value_name = "BYTES"
    )]
    pub(crate) size: Vec<u64>,

    /// How the receiver on the pair link takes the data, in both modes
    #[arg(long, value_enum, default_value_t = Taking::Reference, value_name = "HOW")]
    pub(crate) receiver: Taking,

    /// Seconds that a round of each size, mode and engine lasts
    #[arg(long, default_value_t = 0.5, value_parser = seconds, value_name = "S")]
    pub(crate) seconds: f64,

    /// Largest IP packet on the link, in bytes: 1280 to 65535 [default: the link's]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1280..=65535))]
    pub(crate) mtu: Option<u32>,

    #[command(flatten)]
    pub(crate) common: BenchCommon,
}

/// How received data is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Taking {
    /// As references, which are dropped
    Reference,
    /// Copied out, into one buffer
    Copy,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct PathOptions {
    /// Packets that are lost, each way; repeatable, or with commas between
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "0%,0.1%,1%,3%,10%",
        value_name = "PERCENT"
    )]
    pub(crate) loss: Vec<Chance>,

    /// Delay each way; repeatable, or with commas between
    #[arg(long, value_delimiter = ',', default_value = "1ms,50ms", value_name = "TIME")]
    pub(crate) delay: Vec<Delay>,

    /// Direction, as seen from Pagewire [default: both]
    #[arg(long, value_enum, value_name = "WAY")]
    pub(crate) direction: Option<Direction>,

    /// Connections side by side [default: 1, and 8 where 0.05% or more are lost]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=256), value_name = "N")]
    pub(crate) flows: Option<u16>,

    /// Seconds that a round lasts, without its warm-up of 20 round trips
    #[arg(long, default_value_t = 5.0, value_parser = seconds, value_name = "S")]
    pub(crate) seconds: f64,

    /// Seed of the first round's losses; each round takes the next
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) seed: u64,

    /// Write the headers of every packet to files in DIR, in pcapng
    #[arg(long, value_name = "DIR")]
    pub(crate) pcap: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) common: BenchCommon,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ShareOptions {
    /// Rate of the bottleneck, as in 20mbit
    #[arg(long, default_value = "50mbit", value_name = "RATE")]
    pub(crate) rate: Rate,

    /// Packets that its drop-tail queue holds
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..), value_name = "N")]
    pub(crate) limit: u16,

    /// Delay each way
    #[arg(long, default_value = "10ms", value_name = "TIME")]
    pub(crate) delay: Delay,

    /// Flows of each side
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64), value_name = "N")]
    pub(crate) flows: u16,

    /// Seconds that a round lasts, after a warm-up of two
    #[arg(long, default_value_t = 60.0, value_parser = seconds, value_name = "S")]
    pub(crate) seconds: f64,

    /// Write the headers of Pagewire's packets to FILE, in pcapng: those of the last round
    #[arg(long, value_name = "FILE", conflicts_with = "kernels")]
    pub(crate) pcap: Option<PathBuf>,

    /// A second kernel in Pagewire's place: how even kernels share
    #[arg(long)]
    pub(crate) kernels: bool,

    #[command(flatten)]
    pub(crate) common: BenchCommon,
}

/// Bits in a second as fault settings have them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate(pub(crate) u64);

impl std::str::FromStr for Rate {
    type Err = pagewire::device::FaultConfigError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let config = format!("rate={text}").parse::<FaultConfig>()?;
        Ok(Self(config.rate.unwrap_or_default()))
    }
}

/// A time as fault settings have it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delay(pub(crate) std::time::Duration);

impl std::str::FromStr for Delay {
    type Err = pagewire::device::FaultConfigError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(format!("delay={text}").parse::<FaultConfig>()?.delay))
    }
}

/// Where data goes, as seen from Pagewire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Direction {
    Send,
    Receive,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ReceiveOptions {
    /// Kind of link; over a tap kernel sockets send (root)
    #[arg(long, value_enum, default_value_t = Link::Pair, value_name = "KIND")]
    pub(crate) link: Link,

    /// How the receiver takes what came [default: each in its turn]
    #[arg(long, value_enum, value_name = "MODE")]
    pub(crate) mode: Option<ReceiveMode>,

    /// Connections that are received on at the same time
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256), value_name = "N")]
    pub(crate) flows: u16,

    /// Whether the receiver touches every byte
    #[arg(long, value_enum, default_value_t = Reader::None, value_name = "READER")]
    pub(crate) reader: Reader,

    /// Seconds that a round lasts
    #[arg(long, default_value_t = 1.0, value_parser = seconds, value_name = "S")]
    pub(crate) seconds: f64,

    /// Largest IP packet on the link, in bytes: 1280 to 65535 [default: the link's]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1280..=65535))]
    pub(crate) mtu: Option<u32>,

    /// Have the other side send segments of so many whole pages of 4096 bytes, 1 to 15, and take the
    /// MTU for it unless one is given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=15))]
    pub(crate) payload_pages: Option<u8>,

    #[command(flatten)]
    pub(crate) common: BenchCommon,
}

/// How a receiver takes data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReceiveMode {
    /// Into a buffer of its own
    Copy,
    /// Whole pages as one view, the rest by copy
    Map,
    /// By reference, whatever the alignment
    Chunks,
}

/// Engines of `pagewire bench gateway`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Engine {
    /// `pagewire gateway` on a tap
    Pagewire,
    /// passt's form for namespaces
    Pasta,
    /// The one of rootless containers
    Slirp4netns,
    /// gvisor-tap-vsock, with gvforwarder as its guest's end
    Gvproxy,
    /// The kernel's own forwarding, without a gateway
    Veth,
    /// No way at all: both ends in one namespace
    Loopback,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct GatewayOptions {
    /// What is measured; repeatable, or with commas between [default: all]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "ENGINE")]
    pub(crate) engine: Vec<Engine>,

    /// Largest IP packet that guests send and receive, in bytes: 1280 to 65520; the first is that of
    /// connections, requests and round trips
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1500,65520",
        value_parser = clap::value_parser!(u32).range(1280..=65_520),
        value_name = "BYTES"
    )]
    pub(crate) mtu: Vec<u32>,

    /// Connections side by side that move bytes; repeatable, or with commas between
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1,8",
        value_parser = clap::value_parser!(u16).range(1..=64),
        value_name = "N"
    )]
    pub(crate) flows: Vec<u16>,

    /// Seconds that a round of each case lasts
    #[arg(long, default_value_t = 1.0, value_parser = seconds, value_name = "S")]
    pub(crate) seconds: f64,

    /// Print our ratios to the other gateways, and which of them are as they should be
    #[arg(long, conflicts_with = "json")]
    pub(crate) check: bool,

    #[command(flatten)]
    pub(crate) common: BenchCommon,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct RingOptions {
    /// Kind of link; over a tap the sender is a kernel socket (root)
    #[arg(long, value_enum, default_value_t = Link::Pair, value_name = "KIND")]
    pub(crate) link: Link,

    /// By reference over a pair: have the receiver's end write payload into a registered region, as
    /// a network card would, instead of registering the sender's memory
    #[arg(long)]
    pub(crate) place: bool,

    /// Datagrams instead of a stream
    #[arg(long)]
    pub(crate) udp: bool,

    /// Payload bytes of each datagram [default: what one packet of the link takes, in whole pages if
    /// that is more than one]
    #[arg(long, requires = "udp", value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=65_507))]
    pub(crate) datagram: Option<u32>,

    /// MiB of the registered region, and of the copy group: pages go round through the fill ring, so
    /// a region larger than the caches is written to cold memory
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1024), value_name = "MIB")]
    pub(crate) region: u32,

    /// Seconds that a round lasts
    #[arg(long, default_value_t = 1.0, value_parser = seconds, value_name = "S")]
    pub(crate) seconds: f64,

    /// Largest IP packet on the link, in bytes: 1280 to 65535 [default: the link's]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1280..=65535))]
    pub(crate) mtu: Option<u32>,

    #[command(flatten)]
    pub(crate) common: BenchCommon,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct RrOptions {
    /// Bytes each way
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65536), value_name = "BYTES")]
    pub(crate) size: u32,

    /// Seconds that a round lasts
    #[arg(long, default_value_t = 1.0, value_parser = seconds, value_name = "S")]
    pub(crate) seconds: f64,

    /// Threads that share one host, each with its own connection, to show how fairly they get turns:
    /// the least and the most round trips of one; 0: none
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=256), value_name = "N")]
    pub(crate) threads: u32,

    #[command(flatten)]
    pub(crate) common: BenchCommon,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct IdleOptions {
    /// Established connections
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000), value_name = "N")]
    pub(crate) connections: u32,

    /// One JSON object per line instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct PortOptions {
    /// Bytes of a frame, its Ethernet header included; several with commas
    #[arg(long, value_delimiter = ',', default_value = "60,128,256,512,1024,1500", value_parser = clap::value_parser!(u32).range(60..=9014), value_name = "BYTES")]
    pub(crate) frame: Vec<u32>,

    /// Frames of a round
    #[arg(long, default_value_t = 500_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000), value_name = "N")]
    pub(crate) frames: u64,

    /// Only these paths; several with commas
    #[arg(long, value_delimiter = ',', value_enum, value_name = "PATH")]
    pub(crate) path: Vec<PortPath>,

    #[command(flatten)]
    pub(crate) common: BenchCommon,
}

/// How frames enter, in `pagewire bench port`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PortPath {
    /// Built in place
    Build,
    /// Copied to pages of their own, and charged
    Accounted,
    /// Built in place, a hook passes them
    HookPass,
    /// Built in place, a hook drops them
    HookDrop,
    /// Written to a tap of the kernel
    KernelTap,
}

/// The name of a value on the command line, which results use, too.
pub(crate) fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Most bytes of one send: above the longest of the source document, far below the source's buffer.
const MAX_SEND_SIZE: u64 = 16 << 20;

/// Parses bytes: a number, also with K, M or G for powers of 1024.
fn size(text: &str) -> Result<u64, String> {
    let parsed = parse_size::Config::new().with_binary().parse_size(text);
    parsed.map_err(|_| "give a number of bytes, as in 65536, 64K or 1G".to_owned())
}

/// What is sent at once.
fn send_size(text: &str) -> Result<u64, String> {
    match size(text)? {
        bytes @ 1..=MAX_SEND_SIZE => Ok(bytes),
        _ => Err("give bytes between 1 and 16M".to_owned()),
    }
}

#[derive(Clone, Debug, Args)]
pub(crate) struct SimOptions {
    /// What the programs do
    #[arg(long, value_enum, default_value_t = Scenario::Echo, value_name = "WHAT")]
    pub(crate) scenario: Scenario,

    /// Hosts; one in eleven is a server
    #[arg(long, default_value_t = 110, value_parser = clap::value_parser!(u32).range(2..=100_000), value_name = "N")]
    pub(crate) hosts: u32,

    /// Connections of all clients together
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000), value_name = "N")]
    pub(crate) connections: u32,

    /// Simulated seconds that a round lasts; `bulk` ends with its transfers
    #[arg(long, default_value_t = 10.0, value_parser = seconds, value_name = "S")]
    pub(crate) seconds: f64,

    /// Milliseconds that a packet takes
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000), value_name = "MS")]
    pub(crate) latency: u32,

    /// Only this simulator
    #[arg(long, value_enum, value_name = "NAME")]
    pub(crate) engine: Option<Simulator>,

    /// Rounds of each simulator, in turns, each in a process of its own; the median counts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100), value_name = "N")]
    pub(crate) rounds: u16,

    /// The seed of everything random
    #[arg(long, default_value_t = 7, value_name = "N")]
    pub(crate) seed: u64,

    /// One JSON object per line instead of a table
    #[arg(long)]
    pub(crate) json: bool,

    /// Measure here, one round, and print its figures: what each round's process does
    #[arg(long, hide = true, requires = "engine")]
    pub(crate) here: bool,
}

/// What the programs of `bench sim` do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scenario {
    /// 1 KB there and back on each connection, again and again
    Echo,
    /// A megabyte on each connection
    Bulk,
    /// Nothing but a timer every 100 ms on each host
    Idle,
}

/// A simulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Simulator {
    /// pagewire-simulation
    Pagewire,
    /// turmoil
    #[cfg(feature = "turmoil")]
    Turmoil,
}

impl Simulator {
    pub(crate) fn all() -> &'static [Self] {
        Self::value_variants()
    }
}

/// As on the command line.
macro_rules! named {
    ($($kind:ty)*) => {$(
        impl std::fmt::Display for $kind {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let value = self.to_possible_value();
                f.write_str(value.as_ref().map_or("", |value| value.get_name()))
            }
        }
    )*};
}

named! { Scenario Simulator }

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(s) if (0.01..=3600.0).contains(&s) => Ok(s),
        _ => Err("give seconds between 0.01 and 3600".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_units() {
        assert_eq!(size("0"), Ok(0));
        assert_eq!(size("64K"), Ok(65_536));
        assert_eq!(size("2m"), Ok(2 << 20));
        assert_eq!(size("1G"), Ok(1 << 30));
        assert!(
            size("").is_err() && size("-1").is_err() && size("1Q").is_err() && size("K").is_err()
        );
        assert!(size("99999999999G").is_err());
    }
}
