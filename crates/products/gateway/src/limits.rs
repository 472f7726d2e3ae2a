//! Limits of the gateway by subject, each with its unit and its reason.
//!
//! A limit of one guest protects the other guests. A limit of all guests protects this machine's ports,
//! descriptors and memory. A time whose RFC says "not less than" must not shrink.
//!
//! A guest of several cores has the limits of one guest: its cores share rates, and count together. Cores that open
//! something at the same moment may exceed a limit by one for each further core, but never that of connections. What
//! is divided among the cores says so.

use std::time::Duration;

// Connections.

/// Connections of one guest at once, those that are being dialled included. Each has a descriptor
/// of this process and under 2 KiB of memory.
pub const CONNECTIONS: usize = 16_384;

/// Dials of one guest that have not been answered. Each of several cores has its part. Silent destinations hold a slot until
/// [`DIAL_FAIR`], so a guest that connects to 256 of them waits no longer than that.
pub const DIALS: usize = 256;

/// The part of [`DIALS`] that one destination address may have: a client with many connections to
/// one silent host leaves room for those to others. Each of several cores has its part, but for
/// [`DIALS_PER_DESTINATION_LEAST`].
pub const DIALS_PER_DESTINATION: usize = 32;

/// Dials to one destination that each of several cores may have: browsers begin six at once.
pub const DIALS_PER_DESTINATION_LEAST: usize = 4;

/// Time for which a dial keeps its slot when others wait for one: TCP's first retransmission
/// (RFC 6298: 1 s) and the second (2 s) are sent by then. After that the dial is given up for the next.
pub const DIAL_FAIR: Duration = Duration::from_secs(3);

/// Connections to one address and port that the guest may end first, in a burst. Each leaves a port of
/// this machine unusable for that destination for a minute (TIME-WAIT), and Linux gives out 28,232.
pub const LEAVES_BURST: u32 = 12_000;

/// Connections to one address and port that the guest may end first in a second, on average once the burst is spent: the number whose TIME-WAIT ends in a second.
pub const LEAVES_PER_SECOND: u32 = 200;

/// Destinations for which connections in TIME-WAIT are counted, some 100 bytes each.
pub const LEFT_DESTINATIONS: usize = 4096;

/// Number of counted destinations that are compared to find the one to forget for another.
pub(crate) const LEFT_LOOK: usize = 16;

/// Dials of one guest a second, on average once the burst is spent: more than the kernel's own
/// virtual links carry on two cores, and a quarter of a core's time.
pub const CONNECTS_PER_SECOND: u32 = 25_000;

/// Dials in one burst.
pub const CONNECTS_BURST: u32 = 5_000;

/// Number of dials that a failed one counts as, so 2,500 a second may fail. Each costs the kernel as much as one
/// that succeeds, and a port scan makes no others; other guests need that time.
pub const FAILED_CONNECT_COSTS: u32 = 10;

/// Time that a dial waits after it found no descriptor, no port or no memory, unless a connection ends
/// before.
pub const DIAL_RETRY: Duration = Duration::from_millis(100);

/// Destinations that one verdict may lead to by [`Verdict::To`](crate::Verdict), each of which is
/// judged: bounds rules that lead to each other.
pub const REDIRECTIONS: usize = 4;

/// Bytes that one connection moves from the guest in its turn: four of the longest frames, which
/// stay in a core's cache between the two system calls.
pub const RELAY_BURST: usize = 256 << 10;

/// Bytes of one connection that wait in the gateway's memory until the guest's window has room for
/// them: two of the longest frames. What is beyond stays in the kernel's socket, so a guest that
/// does not read one connection leaves memory for its others.
pub const UNSENT: u32 = 128 << 10;

/// Bytes for a guest that its connections move in one turn of its host; one connection may move them all, in one
/// read. A read announces a window, on which a near sender's next data comes within the call: reads of half of this
/// cost a tenth more time a byte. Then the host sends them, and receives the acknowledgements that free their
/// pages.
pub const TURN_BYTES: usize = 512 << 10;

/// Pieces of one gathering write or scattering read: more than [`RELAY_BURST`] has in pages.
pub(crate) const GATHER: usize = 128;

/// Events that one poll of the kernel's sockets takes; further ones are for the next turn.
pub(crate) const POLL_EVENTS: usize = 256;

/// Time without a byte in either direction after which a connection is reset (RFC 5382 section 5,
/// REQ-5: not less than 2 hours 4 minutes).
pub const IDLE_TIME: Duration = Duration::from_secs(2 * 3600 + 4 * 60);

/// Silence after which both sides of a connection are probed: their resets may have been lost.
pub const KEEPALIVE_IDLE: Duration = Duration::from_secs(300);

/// Between two probes, as Linux.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(75);

/// Unanswered probes before a side is given up, as Linux.
pub const KEEPALIVE_PROBES: u8 = 9;

/// Age at which a connection gets its keep-alive settings: most are over by then, and save the
/// system calls.
pub const SETTLED: Duration = Duration::from_secs(60);

/// Time between two checks of the age of all connections: 16,384 take about a tenth of a
/// millisecond.
pub const SWEEP: Duration = Duration::from_secs(15);

/// Time within which data that was received before a reset has to reach the other side, before that side is
/// reset, too.
pub const DELIVERY: Duration = Duration::from_secs(10);

/// Time between two checks of a delivery: a guest learns of a reset this much later at most.
pub const DELIVERY_LOOK: Duration = Duration::from_millis(1);

/// Deliveries that are checked each [`DELIVERY_LOOK`]; a larger number is checked each [`SWEEP_DELIVERIES`].
pub const DELIVERIES_SOON: usize = 64;

/// Time between two checks of many deliveries.
pub const SWEEP_DELIVERIES: Duration = Duration::from_millis(20);

/// Sockets that one turn gives to the closing thread: to wake it costs as much as to close a few.
pub const CLOSE_TOGETHER: usize = 4;

/// Sockets that the closing thread gets at once; the turn closes the others itself.
pub const CLOSES_AT_ONCE: usize = 64;

/// Turns whose sockets wait for the closing thread: with [`CLOSES_AT_ONCE`] of each, and those that are being closed,
/// under [`RESERVED_DESCRIPTORS`].
pub const CLOSES_WAITING: usize = 2;

/// Descriptors that the guests of a gateway leave for all else in the process.
pub const RESERVED_DESCRIPTORS: usize = 256;

/// Clients of published ports leave one in this number of a guest's connections free.
pub const CLIENTS_LEAVE: usize = 4;

// Proxies on the way out.

/// Ways of flows, by a proxy or not: each new flow is compared with all.
pub const VIAS: usize = 256;

/// Addresses of a proxy that are tried in turn.
pub const PROXY_ADDRESSES: usize = 8;

/// Longest user's name, and password, for a proxy, in bytes (RFC 1929 section 2).
pub const PROXY_CREDENTIAL: usize = 255;

/// Time from the dial of a proxy to its answer. A proxy waits for the destination: squid a minute.
pub const VIA_TIME: Duration = Duration::from_secs(75);

/// Longest head of a proxy's answer to CONNECT, interim ones included, in bytes: more than browsers and servers send
/// to each other.
pub const VIA_HEAD: usize = 16 << 10;

/// Bytes of a proxy's answer that are looked at together; most have less.
pub(crate) const VIA_READ: usize = 1024;

/// Addresses that stand for names of one guest ([`Resolver::Invented`](crate::Resolver)), some 700 bytes each. The
/// name that was asked for or connected to the longest ago makes room.
pub const INVENTED_ADDRESSES: usize = 4096;

// Published ports.

/// Clients that wait in a published port's backlog: Linux's own limit (`somaxconn`).
pub const PUBLISHED_BACKLOG: i32 = 4096;

/// Clients that one port accepts in one turn.
pub const ACCEPT_BURST: usize = 64;

// Connections between sockets of the kernel.

/// Descriptors of one such connection: two sockets, and a pipe for each direction.
pub const SPLICE_DESCRIPTORS: usize = 6;

/// Time that a service on a loopback has to accept such a connection. A full backlog drops requests, which Linux repeats
/// after 1, 3 and 7 seconds.
pub const SPLICE_CONNECT: Duration = Duration::from_secs(10);

/// Requests of the relay that the thread of these connections takes before it lets each of them move bytes.
pub const SPLICE_JOBS: usize = 256;

/// Bytes that one such connection moves in each direction in its turn: the largest pipe once.
pub const SPLICE_TURN: usize = 1 << 20;

/// Bytes of a turn of all connections after which the thread polls before it sleeps.
pub const SPLICE_BULK: u64 = 64 << 10;

/// Time for which it polls then: the programs at both ends go on soon, and to wake a thread takes about as long.
pub const SPLICE_SPIN: Duration = Duration::from_micros(20);

/// Time without the core, after it was given to others, that means that these are not the programs at both ends: such
/// a one sleeps before that. The kernel's scheduler gives others 3 ms.
pub const SPLICE_PREEMPTED: Duration = Duration::from_millis(2);

/// Time for which the thread neither polls nor yields then.
pub const SPLICE_REST: Duration = Duration::from_millis(100);

/// Bytes that each write of such a turn counts as at least: a sender of single bytes that keeps pace has 256 of them.
pub const SPLICE_LEAST: usize = 4 << 10;

/// Bytes of datagrams that wait for the thread that passes them on between loopback interfaces: more are lost, as in a
/// socket's buffer, which Linux makes about as large.
pub const DIVERTED: usize = 256 << 10;

/// Bytes of a large pipe: what Linux allows by default (`fs.pipe-max-size`).
pub const LARGE_PIPE: usize = 1 << 20;

/// Large pipes of one guest: a quarter of the pages that Linux lets a user have in all pipes by default
/// (`fs.pipe-user-pages-soft`: 64 MiB).
pub const LARGE_PIPES: usize = 16;

/// Bytes of all other pipes, as Linux makes them.
pub const SMALL_PIPE: usize = 64 << 10;

/// Empty pipes that are kept for the next connections.
pub const SPARE_PIPES: usize = 16;

/// Time between two looks at the ports that programs listen on.
pub const PORTS_LOOK: Duration = Duration::from_secs(1);

/// Ports of one guest that are opened because a program listens on them, in each direction and protocol. Each has two
/// descriptors; a developer's machine has some fifty.
pub const PORTS_FOLLOWED: usize = 256;

/// Listeners that take from the descriptors of a guest's connections: as many as programs can have opened by
/// [`PORTS_FOLLOWED`], in both directions.
pub const LISTENERS_SHARED: usize = 4 * PORTS_FOLLOWED;

/// Bytes of a table of the kernel's sockets that are read: some 28,000 sockets.
pub(crate) const PORT_TABLE: usize = 4 << 20;

// Memory of one guest's stack.

/// Bytes of memory that a guest's connections pin, for data that the network has not taken and for data
/// that the guest has not acknowledged.
pub const MEMORY: usize = 32 << 20;

/// Time between two checks of a guest that ends.
pub(crate) const FINISH_LOOK: Duration = Duration::from_millis(1);

/// Longest time that a caller waits for the thread that joins sockets of the kernel to look at its flows.
pub(crate) const JOINED_LOOK: Duration = Duration::from_secs(1);

/// Connections of one guest whose kernel sockets grow their buffers as they need: up to 10 MB each with
/// Linux's defaults (`tcp_rmem`, `tcp_wmem`).
pub const LARGE_BUFFERS: usize = 1024;

/// Bytes that further connections ask for in each direction; the kernel doubles them. All
/// [`CONNECTIONS`] then hold 4 GiB, and not 160.
pub const SMALL_BUFFER: usize = 64 << 10;

/// Time until a part of a guest tries again that another one's panic has broken. Where the panic was on the guest's own
/// thread, the guest ends before, since its host does; elsewhere the part stays broken, and nothing more is permitted.
pub(crate) const BROKEN_RETRY: Duration = Duration::from_secs(1);

/// Time for which a core that has moved bytes of a rule's rate last lets others go first that wait for it.
pub(crate) const RATE_YIELD: Duration = Duration::from_millis(1);

/// Time for which the others are waited for behind the time when there was to be room: their threads may be late, or
/// their flows may have ended.
pub(crate) const RATE_GRACE: Duration = Duration::from_millis(5);

/// Guests of one gateway: each has a stack and a thread for each of its cores.
pub const GUESTS: usize = 256;

// Datagrams.

/// Addresses and ports of one guest that send datagrams at once, each with a descriptor of this
/// process and less than a KiB of memory.
pub const UDP_ENDPOINTS: usize = 4096;

/// Endpoints of all guests of a gateway: half of the ports that Linux gives out
/// (`net.ipv4.ip_local_port_range`), each of which has one.
pub const UDP_PORTS: usize = 14_000;

/// New destinations of one guest's datagrams and echo requests a second, on average once the burst is
/// spent. A firewall of this machine remembers each for 30 s (`nf_conntrack_udp_timeout`), and some
/// remember no more than 65,536 flows of all.
pub const DESTINATIONS_PER_SECOND: u32 = 1000;

/// New destinations in one burst.
pub const DESTINATIONS_BURST: u32 = 4000;

/// Destinations of one endpoint; the first makes room for a new one. Some 200 bytes each, and a
/// datagram is compared with all. Also clients of one port between loopback interfaces, each with a descriptor.
pub const UDP_PEERS: usize = 512;

/// Destinations of all endpoints of one guest: three megabytes. Beyond that, an endpoint has one only.
pub const UDP_PEERS_IN_ALL: usize = 16_384;

/// Clients of one published UDP port that the guest has not answered; any of them makes room for a new
/// one. Some 300 bytes each. Anybody may pretend to be thousands: at ten thousand a second, half of
/// those who ask are still known after a seventh of a second.
pub const UDP_ASKING: usize = 2048;

/// Clients of all published UDP ports of one guest that it has not answered: two and a half megabytes.
/// Beyond that, a new client takes the slot of another of its port.
pub const UDP_ASKING_IN_ALL: usize = 8192;

/// New clients of published UDP ports a second, on average once the burst is spent.
pub const UDP_CLIENTS_PER_SECOND: u32 = 10_000;

/// New clients of published UDP ports in one burst.
pub const UDP_CLIENTS_BURST: u32 = 10_000;

/// Silence after which an endpoint is closed, and a client forgotten that has no answer: what RFC 4787 recommends (section 4.3, REQ-5).
pub const UDP_IDLE: Duration = Duration::from_secs(300);

/// Silence after which an endpoint may be closed for a new one, when there are [`UDP_ENDPOINTS`]:
/// no shorter is allowed (RFC 4787 section 4.3, REQ-5). So may a client of a port between loopback interfaces that
/// talks to it; others make room at once.
pub const UDP_LEAST: Duration = Duration::from_secs(120);

/// Silence after which an endpoint is closed that has sent to port 53 only, and has its answer.
pub const UDP_DNS: Duration = Duration::from_secs(10);

/// Time between two checks of the endpoints' age.
pub const UDP_SWEEP: Duration = Duration::from_secs(2);

/// Messages that one turn takes from the guest, and from each socket of the kernel: one of them may
/// be 64 datagrams.
pub const UDP_BURST: usize = 128;

/// Datagrams in one message to the kernel (its own limit, in older kernels).
pub const UDP_SEGMENTS: usize = 64;

/// Longest message to or from a socket, in bytes.
pub(crate) const UDP_LONGEST: usize = 65_535;

/// Time that a kernel socket waits after no page was free for its datagrams.
pub const UDP_RETRY: Duration = Duration::from_millis(5);

/// Echo requests of one guest at once, by identifier: each has a descriptor of this process.
pub const ECHOES: usize = 64;

/// Destinations of one identifier; the oldest makes room for a new one. Programs that scan use one
/// identifier for all.
pub const ECHO_PEERS: usize = 64;

/// Silence after which an identifier's socket is closed.
pub const ECHO_IDLE: Duration = Duration::from_secs(30);

// Names and rules.

/// Bursts a second of flows whose rule has a rate: a connection moves at most this part of its speed at once.
pub(crate) const RULE_BURSTS_PER_SECOND: u64 = 50;

/// Least bytes of such a burst: some packets.
pub(crate) const RULE_BURST: u64 = 4096;

/// Rules and mapped addresses of one guest: each new connection is compared with all, which takes
/// some ten microseconds.
pub const RULES: usize = 1024;

/// Bytes of a file with rules: [`RULES`] of 256 bytes each.
pub const RULES_FILE_BYTES: usize = 256 << 10;

/// Files that one file with rules includes, by way of others too, itself counted.
pub const RULES_FILES: usize = 64;

/// Includes in all files of rules together: each file is opened to see whether it is one that was read.
pub const RULES_FILE_LOADS: usize = 512;

/// Files on the way from a file with rules to one that it includes, both counted.
pub const RULES_FILE_DEPTH: usize = 8;

/// Mistakes of files with rules that are told: more than a person reads at once.
pub const RULES_FILE_MISTAKES: usize = 1000;

/// Addresses whose names are remembered for one guest, some 150 bytes each beside the names; more than
/// a browser asks for in the time for which they are kept.
pub const NAMED_ADDRESSES: usize = 4096;

/// Bytes of the names of all these addresses, each name counted for each of its addresses: 500 for
/// each address. Whoever owns a zone makes names of any length.
pub const NAMED_BYTES: usize = 2 << 20;

/// Names that denials have, with an address to which each led, that are remembered for good: some 350
/// bytes each. Names whose addresses find no room are not resolved.
pub const DENIED_NAMES: usize = 4096;

/// Names that one address has: those of a server that many sites share. The latest are kept.
pub const NAMES_OF_ADDRESS: usize = 16;

/// Time that a name is kept beyond its time to live: a program connects later.
pub const NAME_GRACE: Duration = Duration::from_secs(60);

/// Least time that a name is kept: programs that look up a name once connect for minutes.
pub const NAME_TIME: Duration = Duration::from_secs(300);

/// Destinations in the cache of local addresses.
pub const OURS_DESTINATIONS: usize = 1024;

/// Lifetime of an entry of that cache: an interface may get or lose an address.
pub const OURS_TIME: Duration = Duration::from_secs(1);

// Questions to a policy.

/// Questions of one guest to a policy that are open at once. Further flows get the verdict for want of an answer.
pub const POLICY_QUESTIONS: usize = 256;

/// Questions of one guest a second, on average once the burst is spent: guests share a program that answers. Further
/// flows get the verdict for want of an answer.
pub const POLICY_QUESTIONS_PER_SECOND: u32 = 1000;

/// Questions in one burst.
pub const POLICY_QUESTIONS_BURST: u32 = 1000;

/// Answers of a policy that are kept for one guest at once, as long as they say; more are not kept. Some 200 bytes each
/// beside the names. Each of several cores has its part.
pub const POLICY_ANSWERS: usize = 4096;

/// The longest time for which an answer is kept.
pub const POLICY_KEEP: Duration = Duration::from_secs(24 * 3600);

/// Flows of one guest's datagrams that wait for a policy, and as many of its echo requests. Each holds up to
/// [`HELD_DATAGRAMS`]. Each of several cores has its part.
pub const POLICY_FLOWS: usize = 256;

/// Bytes of all datagrams that are held so, and as many of echo requests: a thirty-second of [`MEMORY`].
/// Each of several cores has its part.
pub const POLICY_HELD: usize = 1 << 20;

/// Questions to a program on a Unix socket that wait to be written. More have no answer.
pub const JUDGE_QUEUE: usize = 1024;

/// Longest line of such a program, in bytes. The rest of a longer line is ignored.
pub const JUDGE_LINE: usize = 4096;

// The resolver.

/// Queries of one guest on their way to resolvers, each with a descriptor; stub resolvers have a
/// few. More fail at once. A resolver such as dnsmasq takes 150 of all that it serves, and this machine
/// asks it, too.
pub const DNS_IN_FLIGHT: usize = 100;

/// Queries of one guest that are passed on in a second, on average once the burst is spent: what a
/// large resolver answers without notice. More fail at once.
pub const DNS_PER_SECOND: u32 = 1000;

/// Queries that are passed on in one burst: the names of a program that starts.
pub const DNS_BURST: u32 = 1000;

/// Refused names of one turn that are written down one by one; more are counted.
pub const DNS_DENIED: usize = 64;

/// Longest query in bytes: a name has 255, options of EDNS some hundred more. With
/// [`DNS_IN_FLIGHT`] it bounds the memory that a guest's queries take: 400 KiB, and for those
/// that are asked by TCP as much as their answers have ([`DNS_MESSAGE`]).
pub const DNS_QUERY: usize = 4096;

/// Longest answer in bytes, by the length field of DNS over TCP (RFC 1035 section 4.2.2).
pub const DNS_MESSAGE: usize = 65_535;

/// Time that one resolver has for an answer: half of the time after which the C library's stub
/// resolver asks again (`resolv.conf(5)`: 5 s).
pub const DNS_TRY_TIME: Duration = Duration::from_millis(2500);

/// Time that all attempts have together: a guest learns of the failure when its own time is over.
pub const DNS_TIME: Duration = Duration::from_secs(5);

/// TCP connections of one guest to its resolver. Each has one query on its way.
pub const DNS_CLIENTS: usize = 16;

/// Time that a guest's TCP connection to its resolver may be silent, or take no answer (RFC 7766 section 6.2.3: "in
/// the order of a few seconds").
pub const DNS_CLIENT_TIME: Duration = Duration::from_secs(10);

/// Records of one answer that are searched for names and addresses: an answer has room for 4,000,
/// each compared with all aliases. The guest gets all of them.
pub const DNS_RECORDS: usize = 256;

/// Addresses of one answer whose names are remembered, a sixty-fourth of [`NAMED_ADDRESSES`]: one
/// answer does not make all others forgotten.
pub const DNS_ADDRESSES: usize = 64;

/// Aliases that one answer may lead through, as most resolvers follow.
pub const DNS_ALIASES: usize = 16;

/// For how long a guest may remember an address of the gateway's own names: they change when
/// guests come and go.
pub const DNS_OWN_TTL: Duration = Duration::from_secs(5);

/// Resolvers that are asked, and advertised to guests; the C library takes three.
pub const RESOLVERS: usize = 8;

/// Domains of a guest's search list: each takes up to 255 bytes of an advertisement, which has 1,280.
pub const SEARCH_DOMAINS: usize = 4;

/// Longest resolver configuration that is read, in bytes.
pub const RESOLV_CONF_BYTES: u64 = 64 << 10;

/// Time between two checks of the resolver configuration for changes, while queries come.
pub const RESOLV_CONF_LOOK: Duration = Duration::from_secs(2);

// Addresses for guests.

/// Answers to router solicitations and DHCPv6 that wait for the device.
pub const AUTOCONF_ANSWERS: usize = 64;

/// Between two router advertisements to all (RFC 4861 section 6.2.1: 4 to 1,800 s).
pub const RA_INTERVAL: Duration = Duration::from_secs(200);

/// For how long a guest uses the router, and its resolvers (RFC 4861 section 6.2.1, RFC 8106
/// section 5.1: three times the interval at least).
pub const RA_LIFETIME: Duration = Duration::from_secs(1800);

/// For how long a guest's address begins new connections (RFC 4861 section 6.2.1: 7 days).
pub const RA_PREFERRED: Duration = Duration::from_secs(604_800);

/// For how long a guest's address is valid (30 days).
pub const RA_VALID: Duration = Duration::from_secs(2_592_000);

/// Associations of one DHCPv6 message, and addresses of each, that are read: clients have one.
pub const DHCP6_MAX_IDENTITIES: usize = 4;

// Refusals.

/// Refusals of one guest that are written down one by one in a second, on average once the burst is
/// spent: 10 KB. More are counted, and each second has a line with their number.
pub const DENIAL_LINES_PER_SECOND: u32 = 50;

/// Refusals that are written down in one burst.
pub const DENIAL_LINES_BURST: u32 = 500;

/// Time for which refusals without a line are counted before a line reports their number.
pub const DENIAL_SUM: Duration = Duration::from_secs(1);

/// Different names, addresses, and refusals of both, that are counted for the report about a guest's refusals at its
/// end; some 200 KiB in all.
pub const DENIALS_REMEMBERED: usize = 256;

/// Searches a second for the rule that would permit what an audit has found: each compares a flow with all rules. Beyond
/// these, flows are written down without the rule.
pub(crate) const AUDIT_SEARCHES_PER_SECOND: u32 = 500;

/// Refusals that the report tells one by one.
pub const REFUSALS_TOLD: usize = 8;

// The log.

/// Lines of the log that wait to be written; more are lost, and counted. Each takes some 250 bytes.
pub const LOG_LINES: usize = 4096;

/// Lines about verdicts and names that wait; the rest of [`LOG_LINES`] is for connections that were
/// opened, which are harder to come by.
pub const LOG_VERDICTS: usize = 2048;

/// Bytes of a log by default: some 250,000 lines.
pub const LOG_BYTES: u64 = 64 << 20;

/// The shortest limit of a log in bytes, which has some hundred lines after the older half went.
pub const LOG_BYTES_LEAST: u64 = 64 << 10;

/// Bytes that are moved at once when the older half of a log goes.
pub(crate) const LOG_MOVE: usize = 64 << 10;

/// Time that writing the end of the log may take when it is closed.
pub const LOG_END_TIME: Duration = Duration::from_secs(1);

// Templates of interfaces.

/// Bytes that are read at once of the kernel's answers over netlink, which sends at most so many.
pub(crate) const NETLINK_ANSWER: usize = 64 << 10;

/// Addresses of an interface that a guest gets: a link of a host has 16.
pub const TEMPLATE_ADDRESSES: usize = 8;

/// Routes of an interface that a guest gets.
pub const TEMPLATE_ROUTES: usize = 64;

// Helper processes.

/// Bytes of a message between a process and the helper that enters namespaces for it.
pub(crate) const HELPER_MESSAGE: usize = 64 << 10;

/// Descriptors in such a message: Linux's `SCM_MAX_FD`, of which a tap has 16.
pub(crate) const HELPER_FDS: usize = 253;

/// Time that the helper in a namespace has for a socket; it makes one in microseconds. Then it counts as gone: a late
/// answer would be taken for that to the next request.
pub const HELPER_TIME: Duration = Duration::from_secs(2);

/// Symbolic links on the way to a file that a sandbox keeps: as many as the kernel follows.
pub const PATH_LINKS: usize = 40;

/// Bytes of events that are read at once from the watch on a namespace's file: room for one whose name
/// has 255 bytes.
pub const WATCH_BYTES: usize = 4096;

// Names that connections show.

/// Bytes of a connection that are held until rules have judged the name that they show: as much as a server takes for
/// a ClientHello, or for the head of a request.
pub const HELD: usize = 16 << 10;

/// Bytes that are held so for all connections of a guest. Beyond, connections that must show a name are refused.
pub const HELD_OF_GUEST: usize = 4 << 20;

/// Time for which bytes of a connection that needs no name are held when they do not tell the protocol: a client of a
/// protocol of its own may wait for an answer to them. Clients of TLS and HTTP send more at once.
pub const PROTOCOL_TIME: Duration = Duration::from_millis(100);

/// Bytes that are copied at a time out of the guest's queue to be held.
pub(crate) const HELD_READ: usize = 2048;

/// Flows of datagrams of a guest that must show a name by QUIC: some 40 KiB each. Clients of further ones learn that
/// they are prohibited, and go on by TCP.
pub const QUIC_FLOWS: usize = 128;

/// Datagrams of such a flow that are held until its name is judged. A ClientHello takes one or two.
pub const HELD_DATAGRAMS: usize = 8;

/// Header lines of a request that is read for its name.
pub const HEADERS: usize = 128;
