//! What the command line can ask for.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use pagewire_device::{Chance, FaultConfig};

use crate::limits::{
    COPY_BELOW, MAX_SEND_SIZE, PROXY_CONNECT_SECONDS, PROXY_IDLE_SECONDS, PROXY_KEEPALIVE_SECONDS,
    PROXY_LEAST_MEMORY, PROXY_MAX_CONNECTIONS, PROXY_MEMORY,
};

/// A TCP/IP stack that moves pages instead of copying bytes: server, client, measurements.
#[derive(Debug, Parser)]
#[command(name = "pagewire", version, propagate_version = true, after_long_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "\
Examples:
  pagewire demo
      copies and references compared, in one process; needs no privilege
  pagewire serve --tap pw0 --addr 10.77.0.2/24 --host-addr 10.77.0.1/24 /srv/files
      then: curl -O http://10.77.0.2/name
  pagewire fetch --tap pw0 --addr 10.77.0.2/24 --host-addr 10.77.0.1/24 http://10.77.0.1:8000/name
  pagewire proxy --tap pw0 --addr 10.77.0.2/24 --host-addr 10.77.0.1/24 \\
                 --listen 10.77.0.2:80 --to 10.77.0.1:8000
  pagewire serve --link vhost-user --socket /tmp/pw.sock --addr 10.77.0.2/24 --dhcp /srv/files
      to a virtual machine, without privilege
  pagewire bench stream --link tap --json

Exit status: 0 done, 1 failed (one line says why), 2 wrong usage, 130 interrupted (but 0 if serve or
proxy was asked to stop).";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve a directory to a client in this process, by copy and by reference, and compare.
    ///
    /// Two hosts over the pair link; no privilege, nothing to install. Every file's SHA-256 is
    /// checked, outside of the timed parts. Exit status 1 if one disagrees.
    #[command(after_long_help = DEMO_EXAMPLES)]
    Demo(DemoOptions),
    /// Serve a directory over HTTP/1.1.
    ///
    /// Files are mapped and their pages sent by reference. Keep-alive, pipelining, HEAD, ranges,
    /// conditional requests, directory index. Any client on the kernel's side of the tap will do.
    #[command(after_long_help = SERVE_EXAMPLES)]
    Serve(ServeOptions),
    /// Get a file over HTTP, receiving by reference.
    ///
    /// The content goes to FILE.part, and becomes FILE when it is complete. An interrupted
    /// download goes on where it stopped when the same command is run again, if the server says
    /// that its file is still the same (FILE.part.from keeps what it said).
    #[command(after_long_help = FETCH_EXAMPLES)]
    Fetch(FetchOptions),
    /// Forward TCP connections to another address.
    ///
    /// What one side sends is sent on to the other by reference. Half-closed connections stay half
    /// open, a reset on one side resets the other, and no side can send more than the other takes.
    /// Urgent data stays in its place in the stream; its mark is not passed on. A client whose
    /// server cannot be reached is reset, and one line on standard error says why. The server sees
    /// connections from --addr. An interrupt closes the listeners and gives connections two seconds.
    #[command(after_long_help = PROXY_EXAMPLES)]
    Proxy(ProxyOptions),
    /// Measure, with the kernel's sockets beside it.
    ///
    /// Kernel and Pagewire take turns within one run; medians of all rounds are printed, with the
    /// spread and with what was measured on.
    #[command(after_long_help = BENCH_EXAMPLES)]
    Bench(BenchOptions),
}

const DEMO_EXAMPLES: &str = "\
Examples:
  pagewire demo
      with 1 GiB of made-up files of 0 bytes to 256 MiB, removed afterwards
  pagewire demo /usr/share/doc
      with the files of a directory";

const SERVE_EXAMPLES: &str = "\
Examples:
  pagewire serve --tap pw0 --addr 10.77.0.2/24 --addr fd77::2/64 \\
                 --host-addr 10.77.0.1/24 --host-addr fd77::1/64 /srv/files
      then: curl http://10.77.0.2/        curl -g 'http://[fd77::2]/'
  pagewire serve --addr 10.77.0.2/24 --host-addr 10.77.0.1/24 --port 8080 \\
                 --fault 'loss=2%,reorder=2%,dup=1%,delay=5ms,seed=1' --stats .
      on a bad link, with counters at the end
  pagewire serve --link vhost-user --socket /tmp/pw.sock --addr 10.77.0.2/24 --dhcp /srv/files
      to a virtual machine, which needs memory that can be shared:
      qemu-system-x86_64 … -object memory-backend-memfd,id=m,size=1G,share=on -m 1G \\
          -machine memory-backend=m -chardev socket,id=c0,path=/tmp/pw.sock,reconnect=1 \\
          -netdev vhost-user,id=n0,chardev=c0 -device virtio-net-pci,netdev=n0,vectors=0
      (scripts/guest/boot --vhost-user /tmp/pw.sock does that with a guest of its own)";

const FETCH_EXAMPLES: &str = "\
Examples:
  pagewire fetch --addr 10.77.0.2/24 --host-addr 10.77.0.1/24 http://10.77.0.1:8000/big.iso
      from a server on the kernel's side: python3 -m http.server
  pagewire fetch --addr 10.77.0.2/24 --host-addr 10.77.0.1/24 http://10.77.0.1/a -o - | tar x";

const PROXY_EXAMPLES: &str = "\
Examples:
  pagewire proxy --addr 10.77.0.2/24 --host-addr 10.77.0.1/24 \\
                 --listen 10.77.0.2:80 --to 10.77.0.1:8000
      then, with a server on the kernel's side: curl http://10.77.0.2/
  pagewire proxy --addr 10.77.0.2/24 --addr fd77::2/64 --host-addr 10.77.0.1/24 \\
                 --host-addr fd77::1/64 --listen 10.77.0.2:80 --listen '[fd77::2]:80' \\
                 --to '[fd77::1]:8000' --idle-timeout 60 --stats
      clients of both IP versions to one upstream";

const BENCH_EXAMPLES: &str = "\
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
  pagewire bench stream --json          one object per line";

/// How the stack is connected.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Network options")]
pub(crate) struct NetOptions {
    /// Kind of link. `pair` joins two stacks of one process: demo and bench use it
    #[arg(long, value_enum, default_value_t = NetLink::Tap, value_name = "KIND")]
    pub(crate) link: NetLink,

    /// Name of the tap device, up to 15 bytes; made if it does not exist
    #[arg(long, default_value = "pw0", value_name = "NAME")]
    pub(crate) tap: String,

    /// Unix socket of `--link vhost-user`, up to 107 bytes: we listen there, and QEMU or another
    /// program that runs virtual machines connects; again whenever it or we were restarted
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,

    /// Most pairs of queues that a virtual machine may use, 1 to 64 [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) queues: Option<u8>,

    /// Our link address on `--link vhost-user` [default: one that follows from the socket's path]
    #[arg(long, value_name = "MAC", value_parser = link_address)]
    pub(crate) mac: Option<[u8; 6]>,

    /// Shortest frame of a virtual machine that is taken by reference; shorter ones are copied, which
    /// costs less. 1: all are taken by reference; a number with K [default: 1K]
    #[arg(long, value_name = "BYTES", value_parser = size)]
    pub(crate) by_reference_from: Option<u64>,

    /// Address of this stack with the prefix length in bits; IPv4 or IPv6, repeatable
    #[arg(long, value_name = "CIDR")]
    pub(crate) addr: Vec<String>,

    /// Address that the kernel's side of a tap made here gets; repeatable
    #[arg(long, value_name = "CIDR")]
    pub(crate) host_addr: Vec<String>,

    /// Router for addresses outside of our networks; once for IPv4, once for IPv6
    #[arg(long, value_name = "IP")]
    pub(crate) gateway: Vec<String>,

    /// Give IPv4 addresses to machines on the link that ask by DHCP, from FIRST to LAST, at most 256
    /// [default: those of our first network but our own]
    #[arg(
        long,
        value_name = "FIRST-LAST",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = ""
    )]
    pub(crate) dhcp: Option<String>,

    /// Largest IP packet on the link, in bytes: 1280 to 65535 [default: the tap's, usually 1500]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1280..=65535))]
    pub(crate) mtu: Option<u32>,

    /// Have the other side send segments of so many whole pages of 4096 bytes, 1 to 15, and take the
    /// MTU for it unless one is given: pages that programs can map, on links without super-frames
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=15))]
    pub(crate) payload_pages: Option<u8>,

    /// Write every frame to FILE, in pcapng; mapped payload is copied for it (counted as snapshot)
    #[arg(long, value_name = "FILE")]
    pub(crate) pcap: Option<PathBuf>,

    /// Make the link bad: loss, dup, reorder, corrupt (percent of frames), delay, jitter (ns, us,
    /// ms, s), rate (bit, kbit, mbit, gbit per second), limit and bytes (what may wait for rate),
    /// aqm (none, codel, or the wait from which on packets are marked), seed (a number), on (tx, rx,
    /// both), cut (yes: chances are those of packets, not of super-frames), as in
    /// 'loss=1%,reorder=0.5%,delay=10ms,seed=7'
    #[arg(long, value_name = "SPEC")]
    pub(crate) fault: Option<FaultConfig>,

    /// Print copies by reason, drops by reason and TCP counters at the end; also on SIGUSR1
    #[arg(long)]
    pub(crate) stats: bool,
}

/// Kinds of links that are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Link {
    /// Two ends in one process, frames by reference
    Pair,
    /// A tap device of the kernel; needs root or CAP_NET_ADMIN
    Tap,
}

/// Kinds of links that a command of its own can be on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum NetLink {
    /// Two ends in one process, frames by reference
    Pair,
    /// A tap device of the kernel; needs root or CAP_NET_ADMIN
    Tap,
    /// A port for a virtual machine: QEMU, Cloud Hypervisor and others connect to a Unix socket
    VhostUser,
}

/// `pagewire demo`
#[derive(Debug, Args)]
pub(crate) struct DemoOptions {
    /// Directory to serve; without it, 1 GiB of files is made in the temporary directory
    pub(crate) dir: Option<PathBuf>,

    /// Bytes of files to make when no directory is given: a number with K, M or G (powers of 1024)
    #[arg(long, default_value = "1G", value_parser = size, conflicts_with = "dir", value_name = "BYTES")]
    pub(crate) size: u64,

    /// Connections that fetch at the same time
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64), value_name = "N")]
    pub(crate) connections: u16,

    /// Print copies by reason, drops by reason and TCP counters of both hosts at the end; also on
    /// SIGUSR1
    #[arg(long)]
    pub(crate) stats: bool,
}

/// `pagewire serve`
#[derive(Debug, Args)]
pub(crate) struct ServeOptions {
    /// Port to listen on, on all of our addresses
    #[arg(long, default_value_t = 80, value_parser = clap::value_parser!(u16).range(1..), value_name = "PORT")]
    pub(crate) port: u16,

    /// Files smaller than so many bytes are read and copied instead of mapped and referenced;
    /// 0: none; a number with K, M or G
    #[arg(long, default_value_t = COPY_BELOW, value_parser = size, value_name = "BYTES")]
    pub(crate) copy_below: u64,

    /// Directory to serve
    pub(crate) dir: PathBuf,

    // Last: its heading would stand above whatever follows.
    #[command(flatten)]
    pub(crate) net: NetOptions,
}

/// `pagewire fetch`
#[derive(Debug, Args)]
pub(crate) struct FetchOptions {
    /// Where to: http://ADDRESS:PORT/PATH, with an IPv4 address or an IPv6 address in brackets
    pub(crate) url: String,

    /// File to write; `-` for standard output [default: the last part of the URL's path]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    // Last: its heading would stand above whatever follows.
    #[command(flatten)]
    pub(crate) net: NetOptions,
}

/// `pagewire proxy`
#[derive(Debug, Args)]
pub(crate) struct ProxyOptions {
    /// Where clients connect to: one of our addresses and a port, as in 10.77.0.2:80 or
    /// [fd77::2]:80; 0.0.0.0 and [::] stand for all; repeatable
    #[arg(long, required = true, value_name = "ADDR")]
    pub(crate) listen: Vec<SocketAddr>,

    /// Where their connections are forwarded to (the upstream): an address and a port, written as for
    /// --listen
    #[arg(long, value_name = "ADDR")]
    pub(crate) to: SocketAddr,

    /// Connections that are forwarded at once, 1 to 28232; more wait in the backlog
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=PROXY_MAX_CONNECTIONS as i64), value_name = "N")]
    pub(crate) connections: u32,

    /// Connections that may wait while there are as many as there may be, 1 to 4096; SYNs of more
    /// are dropped
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=4096), value_name = "N")]
    pub(crate) backlog: u32,

    /// Seconds that the upstream has to answer, 1 to 3600; the client is reset after that
    #[arg(long, default_value_t = PROXY_CONNECT_SECONDS, value_parser = clap::value_parser!(u32).range(1..=3600), value_name = "S")]
    pub(crate) connect_timeout: u32,

    /// Seconds without a byte either way after which both sides are reset; 0: never
    #[arg(long, default_value_t = PROXY_IDLE_SECONDS, value_name = "S")]
    pub(crate) idle_timeout: u32,

    /// Seconds of silence after which a client or an upstream is asked whether it is still there; one
    /// that is gone has the other side reset, although its own reset was lost on the way. 0: never
    #[arg(long, default_value_t = PROXY_KEEPALIVE_SECONDS, value_parser = clap::value_parser!(u32).range(0..=7200), value_name = "S")]
    pub(crate) keepalive: u32,

    /// Bytes of memory to receive into, 8M to 16G, a number with K, M or G. All connections together
    /// hold at most three quarters of it. When nearly that much is held, those that hold some and have
    /// not got on for ten seconds are reset
    #[arg(long, default_value = PROXY_MEMORY, value_parser = proxy_memory, value_name = "BYTES")]
    pub(crate) memory: u64,

    // Last: its heading would stand above whatever follows.
    #[command(flatten)]
    pub(crate) net: NetOptions,
}

/// `pagewire bench`
#[derive(Debug, Args)]
pub(crate) struct BenchOptions {
    #[command(subcommand)]
    pub(crate) bench: Bench,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Bulk rate of one connection
    Stream(StreamOptions),
    /// CPU time of a sender: by copy, and by reference with completions
    ///
    /// Beside it, the kernel's sockets with and without MSG_ZEROCOPY. Over the pair link the sender's
    /// figure has no part of the receiver; over a tap (root) the peer is a kernel socket.
    Send(SendOptions),
    /// Goodput over a bad path, to and from the kernel, beside kernel to kernel; needs root
    Path(PathOptions),
    /// How flows of Pagewire and of the kernel share a bottleneck; needs root
    Share(ShareOptions),
    /// CPU time of a receiver: by copy, by mapping and in chunks
    ///
    /// Beside it, the kernel's sockets with read and with TCP_ZEROCOPY_RECEIVE. Over the pair link the
    /// time of the receiver's stack and application is taken apart from the sender's; over a tap
    /// (root) kernel sockets send.
    Receive(ReceiveOptions),
    /// Receive through rings, by copy and by reference
    ///
    /// By reference over the pair link, the receiver has registered the sender's memory, and nobody
    /// copies; with --place its end writes into a region of its own instead, one copy by the device.
    /// Over a tap (root) the kernel writes into the region.
    Ring(RingOptions),
    /// 64 bytes there and back, both sides polling
    Rr(RrOptions),
    /// Memory that an established idle connection takes
    Idle(IdleOptions),
    /// Small frames into the stack through a port, beside writes to a kernel's tap
    ///
    /// Frames per second of one core: built in place, by the accounted way, with a hook that passes
    /// or drops them, and written to a tap of the kernel (root).
    Port(PortOptions),
}

/// What all measurements have in common.
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

/// `pagewire bench stream`
#[derive(Clone, Debug, Args)]
pub(crate) struct StreamOptions {
    /// Kind of link
    #[arg(long, value_enum, default_value_t = NetLink::Pair, value_name = "KIND")]
    pub(crate) link: NetLink,

    /// Unix socket of `--link vhost-user`, where a virtual machine is to be plugged in; what to run in
    /// it is said at the start
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

/// `pagewire bench send`
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

    /// How the receiver on the pair link takes the data, the same in both modes
    #[arg(long, value_enum, default_value_t = Taking::Reference, value_name = "HOW")]
    pub(crate) receiver: Taking,

    /// Seconds that a round of each size, mode and engine lasts
    #[arg(long, default_value_t = 0.5, value_parser = seconds, value_name = "S")]
    pub(crate) seconds: f64,

    /// Largest IP packet on the link, in bytes: 1280 to 65535 [default: the link's]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1280..=65535))]
    pub(crate) mtu: Option<u32>,

    /// Draw the sender's CPU time over the size, both modes of both engines, as an SVG image
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,

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

/// `pagewire bench path`
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

/// `pagewire bench share`
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
    type Err = pagewire_device::FaultConfigError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let config = format!("rate={text}").parse::<FaultConfig>()?;
        Ok(Self(config.rate.unwrap_or_default()))
    }
}

/// A time as fault settings have it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delay(pub(crate) std::time::Duration);

impl std::str::FromStr for Delay {
    type Err = pagewire_device::FaultConfigError;

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

/// `pagewire bench receive`
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
    #[arg(long, value_enum, default_value_t = ReaderKind::None, value_name = "READER")]
    pub(crate) reader: ReaderKind,

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

/// How a receiver takes what came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReceiveMode {
    /// Into a buffer of its own
    Copy,
    /// Whole pages as one view, the rest by copy
    Map,
    /// By reference, whatever the alignment
    Chunks,
}

impl ReceiveMode {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Map => "map",
            Self::Chunks => "chunks",
        }
    }
}

/// What a receiver does with what it took.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReaderKind {
    /// Nothing
    None,
    /// Sums every byte
    Sum,
}

/// `pagewire bench ring`
#[derive(Clone, Debug, Args)]
pub(crate) struct RingOptions {
    /// Kind of link; over a tap the sender is a kernel socket (root)
    #[arg(long, value_enum, default_value_t = Link::Pair, value_name = "KIND")]
    pub(crate) link: Link,

    /// By reference over a pair: have the receiver's end write payload into a registered region, as
    /// a network card would, instead of registering the sender's memory
    #[arg(long)]
    pub(crate) place: bool,

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

/// `pagewire bench rr`
#[derive(Clone, Debug, Args)]
pub(crate) struct RrOptions {
    /// Bytes each way
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65536), value_name = "BYTES")]
    pub(crate) size: u32,

    /// Seconds that a round lasts
    #[arg(long, default_value_t = 1.0, value_parser = seconds, value_name = "S")]
    pub(crate) seconds: f64,

    #[command(flatten)]
    pub(crate) common: BenchCommon,
}

/// `pagewire bench idle`
#[derive(Clone, Debug, Args)]
pub(crate) struct IdleOptions {
    /// Established connections
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000), value_name = "N")]
    pub(crate) connections: u32,

    /// One JSON object per line instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// `pagewire bench port`
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

/// A number of bytes with an optional unit.
fn size(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.strip_suffix(['K', 'k']) {
        Some(digits) => (digits, 10),
        None => match text.strip_suffix(['M', 'm']) {
            Some(digits) => (digits, 20),
            None => text.strip_suffix(['G', 'g']).map_or((text, 0), |digits| (digits, 30)),
        },
    };
    let n: u64 =
        digits.parse().map_err(|_| "give a number of bytes, as in 65536, 64K or 1G".to_owned())?;
    n.checked_mul(1 << shift).ok_or_else(|| "this is more than 2^64 bytes".to_owned())
}

/// Six bytes in hexadecimal with colons between.
fn link_address(text: &str) -> Result<[u8; 6], String> {
    let byte = |part: &str| u8::from_str_radix(part, 16).ok().filter(|_| part.len() == 2);
    let bytes: Option<Vec<u8>> = text.split(':').map(byte).collect();
    let address = bytes.and_then(|bytes| <[u8; 6]>::try_from(bytes).ok());
    address.ok_or_else(|| "give six bytes, as in 02:50:57:00:00:01".to_owned())
}

fn proxy_memory(text: &str) -> Result<u64, String> {
    match size(text)? {
        n if (PROXY_LEAST_MEMORY..=16 << 30).contains(&n) => Ok(n),
        _ => Err("give between 8M and 16G".to_owned()),
    }
}

/// What is sent at once.
fn send_size(text: &str) -> Result<u64, String> {
    match size(text)? {
        bytes @ 1..=MAX_SEND_SIZE => Ok(bytes),
        _ => Err("give bytes between 1 and 16M".to_owned()),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(s) if (0.01..=3600.0).contains(&s) => Ok(s),
        _ => Err("give seconds between 0.01 and 3600".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn sizes_have_binary_units() {
        assert_eq!(size("0"), Ok(0));
        assert_eq!(size("64K"), Ok(65_536));
        assert_eq!(size("2m"), Ok(2 << 20));
        assert_eq!(size("1G"), Ok(1 << 30));
        assert!(
            size("").is_err() && size("-1").is_err() && size("1T").is_err() && size("K").is_err()
        );
        assert!(size("99999999999G").is_err());
    }
}
