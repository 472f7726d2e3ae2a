//! Every limit of the command, with its unit and its reason.

use std::time::Duration;

/// Connections served at once by default, each with a thread; one more gets a 503.
pub(crate) const CONNECTIONS: u32 = 1024;

/// Most connections served at once: 4 GiB of address space for stacks.
pub(crate) const MAX_CONNECTIONS: u32 = 16_384;

/// The share of connections of one client, an IPv4 address or an IPv6 network, by default.
pub(crate) const CLIENT_SHARE: u32 = 2;
/// See [`CLIENT_SHARE`]; bits.
pub(crate) const CLIENT_PREFIX: u32 = 64;

/// Parts of [`CROWDED_OF`] of the connections from which on none is kept open for another request.
pub(crate) const CROWDED: usize = 3;
pub(crate) const CROWDED_OF: usize = 4;

/// Bytes in a second that a client must receive, by default: less than GPRS carries.
pub(crate) const MIN_RATE: &str = "1K";

/// Time over which [`MIN_RATE`] is an average: a network may be away for a while.
pub(crate) const RATE_WINDOW: Duration = Duration::from_secs(30);

/// Bytes that are read of a file with credentials for a proxy: two parts of 255 bytes, with a colon and a line's end.
pub(crate) const CREDENTIALS_FILE: u64 = 1024;

/// Bytes of stack of a thread that serves a connection.
pub(crate) const THREAD_STACK: usize = 256 * 1024;

/// Seconds that a proxy waits for its upstream's answer, by default; as the stack's default.
pub(crate) const PROXY_CONNECT_SECONDS: u32 = 7;

/// Seconds without a byte after which a proxy resets a connection (RFC 5382 section 5, REQ-5).
pub(crate) const PROXY_IDLE_SECONDS: u32 = 7440;

/// Seconds of silence after which a proxy sends keep-alive probes, by default.
pub(crate) const PROXY_KEEPALIVE_SECONDS: u32 = 300;

/// Bytes of memory that a proxy receives into, by default: 19 KiB for each of 10,000 connections.
pub(crate) const PROXY_MEMORY: &str = "256M";

/// Least memory of a proxy, bytes: the windows of one fast connection.
pub(crate) const PROXY_LEAST_MEMORY: u64 = 8 << 20;

/// Bytes of a request for ports; slirp4netns refuses this many, too.
pub(crate) const PORT_REQUEST: usize = 4096;

/// Time for a client to send its request for ports and take the answer: it sends one of 4 KiB, locally.
pub(crate) const PORT_REQUEST_TIME: Duration = Duration::from_secs(5);

/// Time for an answer to a request that changes many ports: some 100,000 sockets, on a slow machine.
pub(crate) const PORT_CHANGE_TIME: Duration = Duration::from_secs(60);

/// Looks whether a port for datagrams that is being closed is free: half a second together, where it takes some
/// milliseconds.
pub(crate) const PORT_FREE_LOOKS: u32 = 50;
pub(crate) const PORT_FREE_LOOK: Duration = Duration::from_millis(10);

/// Clients with requests for ports that are served at once, each by a thread; others wait.
pub(crate) const PORT_CLIENTS: usize = 4;

/// Bytes that are read of a request that is too long, before it is cut: what a pipe has.
pub(crate) const PORT_EXCESS: usize = 64 * 1024;

/// Bytes of an answer about ports: a line for each of 65,535 ports, TCP and UDP, of both versions of IP, twice.
pub(crate) const PORT_ANSWER: u64 = 128 << 20;

/// Default sockets of passt, which are numbered from 1.
pub(crate) const PASST_SOCKETS: u32 = 64;

/// Most connections of a proxy: an address has 28,232 ports to connect to one upstream from.
pub(crate) const PROXY_MAX_CONNECTIONS: u32 = 28_232;

/// How often a proxy checks for refusals to report, and whether it was asked to stop.
pub(crate) const PROXY_CHECK_TIME: Duration = Duration::from_millis(100);

/// Lines about refused upstreams within [`REFUSAL_LINES_TIME`]; further ones are counted.
pub(crate) const MAX_REFUSAL_LINES: u32 = 20;
pub(crate) const REFUSAL_LINES_TIME: Duration = Duration::from_secs(1);

/// Connections that wait to be accepted: what Linux's `somaxconn` has been since 5.4.
pub(crate) const BACKLOG: usize = 1024;

/// Bytes of a request's or response's head. nginx and Apache stop at 32 and 8 KiB.
pub(crate) const MAX_HEAD: usize = 32 * 1024;

/// Bytes of a request target. RFC 9110 section 4.1 recommends at least 8,000 octets.
pub(crate) const MAX_TARGET: usize = 8 * 1024;

/// Header fields of one message.
pub(crate) const MAX_HEADERS: usize = 100;

/// Bytes of content of a request, which is only read to find the next (RFC 9110 section 9.3.1).
pub(crate) const MAX_REQUEST_BODY: u64 = 64 * 1024;

/// Time from the first byte of a request's head to its last.
pub(crate) const HEAD_TIME: Duration = Duration::from_secs(10);

/// Time without a byte of the next request, on a connection kept open.
pub(crate) const KEEP_ALIVE_TIME: Duration = Duration::from_secs(30);

/// Time without progress: the peer takes no byte of a response, or sends none that we wait for.
pub(crate) const STALL_TIME: Duration = Duration::from_secs(30);

/// How long a blocked operation sleeps before it checks its file, and whether it is to stop.
pub(crate) const TICK: Duration = Duration::from_millis(500);

/// How long running downloads may go on after the first interrupt.
pub(crate) const SHUTDOWN_TIME: Duration = Duration::from_secs(2);

/// How long the rest may take to be acknowledged after [`SHUTDOWN_TIME`], before a reset.
pub(crate) const LAST_TIME: Duration = Duration::from_millis(200);

/// How long, and how many bytes, we read after our last response (RFC 9112 section 9.6).
pub(crate) const LINGER_TIME: Duration = Duration::from_secs(2);
/// See [`LINGER_TIME`]; bytes.
pub(crate) const LINGER_BYTES: usize = 256 * 1024;

/// Bytes of a file in one mapping: a huge file is never mapped whole.
pub(crate) const MAP_WINDOW: u64 = 64 * 1024 * 1024;

/// Mappings kept for the next reader: 16 GiB of address space, no memory beyond the page cache.
pub(crate) const MAX_CACHED_WINDOWS: usize = 256;

/// Bytes of a file handed to a connection at once. The file's length is checked in between.
pub(crate) const SEND_PIECE: u64 = 1024 * 1024;

/// Files below this many bytes are read and copied by default. Measured with `scripts/crossover`
/// over a tap: where mappings are kept, a request costs the server as much either way at 16 KiB,
/// and less by reference from 32 KiB on. With more files in rotation than [`MAX_CACHED_WINDOWS`],
/// copying was cheaper up to 256 KiB.
pub(crate) const COPY_BELOW: u64 = 32 * 1024;

/// Entries of a directory index; the rest is left out, and the page says so.
pub(crate) const MAX_INDEX_ENTRIES: usize = 10_000;

/// A file changed less than this ago may change again without its time stamp moving: ten ticks.
pub(crate) const SETTLE_TIME: Duration = Duration::from_millis(100);

/// Redirects that `fetch` follows. RFC 9110 section 15.4 recalls a limit of five.
pub(crate) const MAX_REDIRECTS: usize = 5;

/// Bytes taken from a connection at once: four of a wire's largest super-frames.
pub(crate) const RECV_PIECE: usize = 256 * 1024;

/// Slices in one vectored write to a file: Linux's `IOV_MAX` is 1024.
pub(crate) const MAX_IO_SLICES: usize = 256;

/// Bytes in a line that frames a chunk, extensions included.
pub(crate) const MAX_CHUNK_LINE: usize = 4096;

/// Transfers shorter than this show no progress bar.
pub(crate) const PROGRESS_AFTER: Duration = Duration::from_millis(750);

/// How often a measurement checks for an interrupt: too seldom to affect figures.
pub(crate) const INTERRUPT_CHECK_TIME: Duration = Duration::from_millis(100);

/// How often `fetch` checks for a virtual machine.
pub(crate) const PORT_CHECK_TIME: Duration = Duration::from_millis(10);

/// Time without further changes of a file of rules after which the rules are read again: an editor writes several times.
#[cfg(feature = "full")]
pub(crate) const RULES_SETTLE: Duration = Duration::from_millis(100);

/// Longest time for which further changes put off the reading.
#[cfg(feature = "full")]
pub(crate) const RULES_LATEST: Duration = Duration::from_secs(1);
