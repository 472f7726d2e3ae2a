//! Options of the commands that are hosts of their own: serve, fetch, proxy.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use pagewire::device::FaultConfig;

use super::cores::CoresOption;
use super::demo::size;
use super::view::{StatsFormat, ViewOptions};
use crate::http::server::access::AccessFormat;
use crate::limits::{
    CONNECTIONS, COPY_BELOW, MAX_CONNECTIONS, MIN_RATE, PROXY_CONNECT_SECONDS, PROXY_IDLE_SECONDS,
    PROXY_KEEPALIVE_SECONDS, PROXY_LEAST_MEMORY, PROXY_MAX_CONNECTIONS, PROXY_MEMORY,
};

/// How the stack is connected.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Network options")]
pub(crate) struct NetOptions {
    /// Kind of link. `pair` joins two stacks of one process: demo and bench use it
    #[arg(long, value_enum, default_value_t = NetLink::Tap, value_name = "KIND")]
    pub(crate) link: NetLink,

    /// Name of the tap device, up to 15 bytes; made if it does not exist [default: pw0]
    #[arg(long, value_name = "NAME")]
    pub(crate) tap: Option<String>,

    /// Unix socket of `--link vhost-user`, up to 107 bytes: we listen there, and QEMU or another
    /// program that runs virtual machines connects, and reconnects after a restart of either
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,

    /// Most pairs of queues that a virtual machine may use, 1 to 64 [default: one for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) queues: Option<u8>,

    /// Our MAC address on `--link vhost-user` [default: one that follows from the socket's path]
    #[arg(long, value_name = "MAC", value_parser = link_address)]
    pub(crate) mac: Option<[u8; 6]>,

    /// Shortest frame of a virtual machine to take by reference; shorter ones are copied, which costs
    /// less. 1: all by reference; a number with K [default: 1K]
    #[arg(long, value_name = "BYTES", value_parser = size)]
    pub(crate) by_reference_from: Option<u64>,

    /// Trust the front end on `--link vhost-user`: accept huge pages as guest memory, which it could
    /// take away (that kills us), and interrupt the guest by a plain write, which it could block. The
    /// guest itself is never trusted
    #[arg(long)]
    pub(crate) trust_front_end: bool,

    /// Address of this stack with the prefix length in bits; IPv4 or IPv6, repeatable
    #[arg(long, value_name = "CIDR")]
    pub(crate) addr: Vec<String>,

    /// Address that the kernel's side of a tap made here gets; repeatable
    #[arg(long, value_name = "CIDR")]
    pub(crate) host_addr: Vec<String>,

    /// Router for addresses outside of our networks; once for IPv4, once for IPv6
    #[arg(long, value_name = "IP")]
    pub(crate) gateway: Vec<String>,

    /// Give IPv4 addresses to machines on the link by DHCP, from FIRST to LAST, at most 256 [default:
    /// those of our first network except our own]
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

    /// Have the other side send segments of N whole pages of 4096 bytes, 1 to 15, and take the
    /// MTU for it unless one is given: pages that programs can map, on links without super-frames
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=15))]
    pub(crate) payload_pages: Option<u8>,

    /// Write every frame to FILE, in pcapng; mapped payload is copied for it (counted as snapshot)
    #[arg(long, value_name = "FILE")]
    pub(crate) pcap: Option<PathBuf>,

    /// Make the link bad: loss, dup, reorder, corrupt (percent of packets), delay, jitter (ns, us,
    /// ms, s), rate (bit, kbit, mbit, gbit per second), limit and bytes (what may wait for rate),
    /// aqm (none, codel, or the wait from which on packets are marked), seed (a number), on (tx, rx,
    /// both), cut (no: super-frames stay whole, and are lost whole; quicker), as in
    /// 'loss=1%,reorder=0.5%,delay=10ms,seed=7'. --stats counts what it did
    #[arg(long, value_name = "SPEC")]
    pub(crate) fault: Option<FaultConfig>,

    /// When the tap is deleted, have serve and proxy wait until there is one of its name again, instead
    /// of ending with status 1; not with --pcap or --dhcp
    #[arg(long)]
    pub(crate) wait_for_device: bool,

    /// Print copies by reason, drops by reason and TCP counters on standard error at the end; also on
    /// SIGUSR1. json: as one line
    #[arg(long, value_enum, value_name = "FORMAT", num_args = 0..=1, require_equals = true, default_missing_value = "text")]
    pub(crate) stats: Option<StatsFormat>,

    #[command(flatten)]
    pub(crate) view: ViewOptions,
}

/// Kinds of links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum NetLink {
    /// Two ends in one process, frames by reference
    Pair,
    /// A tap device of the kernel; needs root or CAP_NET_ADMIN
    Tap,
    /// A port for a virtual machine: QEMU, Cloud Hypervisor and others connect to a Unix socket
    VhostUser,
}

#[derive(Debug, Args)]
pub(crate) struct ServeOptions {
    /// Port to listen on, on all of our addresses
    #[arg(long, default_value_t = 80, value_parser = clap::value_parser!(u16).range(1..), value_name = "PORT")]
    pub(crate) port: u16,

    /// Files of fewer bytes are read and copied instead of mapped and referenced;
    /// 0: none; a number with K, M or G
    #[arg(long, default_value_t = COPY_BELOW, value_parser = size, value_name = "BYTES")]
    pub(crate) copy_below: u64,

    /// Connections that are served at once, 1 to 16384; more get a 503. When three quarters are taken,
    /// none is kept open after its response
    #[arg(long, default_value_t = CONNECTIONS, value_parser = clap::value_parser!(u32).range(1..=MAX_CONNECTIONS as i64), value_name = "N")]
    pub(crate) connections: u32,

    /// Connections of one client among those: an IPv4 address, or an IPv6 network of 64 bits
    /// [default: half of --connections]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=MAX_CONNECTIONS as i64), value_name = "N")]
    pub(crate) connections_per_client: Option<u32>,

    /// Bytes in a second that a client must receive, on average over half a minute; otherwise its
    /// connection is reset. 0: one in half a minute; a number with K, M or G
    #[arg(long, default_value = MIN_RATE, value_parser = size, value_name = "BYTES")]
    pub(crate) min_rate: u64,

    /// Append a line for each request to FILE; `-` for standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) access_log: Option<PathBuf>,

    /// Format of the access log's lines
    #[arg(long, value_enum, default_value_t, requires = "access_log", value_name = "FORMAT")]
    pub(crate) access_format: AccessFormat,

    /// Give up root: run as this user once the network, the directory and the logs are open. Its rights
    /// say which files are served
    #[arg(long, value_name = "NAME|UID")]
    pub(crate) user: Option<String>,

    /// Directory to serve. The download of a file that is written to meanwhile is reset; replace files
    /// by renaming others over them
    pub(crate) dir: PathBuf,

    #[command(flatten)]
    pub(crate) cores: CoresOption,

    // Last: its heading would stand above what follows.
    #[command(flatten)]
    pub(crate) net: NetOptions,
}

#[derive(Debug, Args)]
pub(crate) struct FetchOptions {
    /// Where to: http://ADDRESS:PORT/PATH, with an IPv4 address or an IPv6 address in brackets
    pub(crate) url: String,

    /// File to write; `-` for standard output [default: the last part of the URL's path]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) net: NetOptions,
}

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

    /// Connections that are forwarded at once, 1 to 28232, divided among the cores, of which there are no more than that;
    /// more wait in the backlog
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=PROXY_MAX_CONNECTIONS as i64), value_name = "N")]
    pub(crate) connections: u32,

    /// Connections that may wait on each core while --connections are open, 1 to 4096; SYNs of more are dropped
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=4096), value_name = "N")]
    pub(crate) backlog: u32,

    /// Seconds to wait for the upstream's answer, 1 to 3600; the client is reset after that
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

    #[command(flatten)]
    pub(crate) cores: CoresOption,

    #[command(flatten)]
    pub(crate) net: NetOptions,
}

/// Six bytes in hexadecimal with colons between.
pub(crate) fn link_address(text: &str) -> Result<[u8; 6], String> {
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

pub(super) const SERVE_EXAMPLES: &str = "\
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

pub(super) const FETCH_EXAMPLES: &str = "\
Examples:
  pagewire fetch --addr 10.77.0.2/24 --host-addr 10.77.0.1/24 http://10.77.0.1:8000/big.iso
      from a server on the kernel's side: python3 -m http.server
  pagewire fetch --addr 10.77.0.2/24 --host-addr 10.77.0.1/24 http://10.77.0.1/a -o - | tar x";

pub(super) const PROXY_EXAMPLES: &str = "\
Examples:
  pagewire proxy --addr 10.77.0.2/24 --host-addr 10.77.0.1/24 \\
                 --listen 10.77.0.2:80 --to 10.77.0.1:8000
      then, with a server on the kernel's side: curl http://10.77.0.2/
  pagewire proxy --addr 10.77.0.2/24 --addr fd77::2/64 --host-addr 10.77.0.1/24 \\
                 --host-addr fd77::1/64 --listen 10.77.0.2:80 --listen '[fd77::2]:80' \\
                 --to '[fd77::1]:8000' --idle-timeout 60 --stats
      clients of both IP versions to one upstream";
