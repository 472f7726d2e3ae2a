//! Every limit of this crate, with its unit and its reason.

use std::time::Duration;

// Names and rules.

/// Rules and mapped addresses of one guest: each is looked at for each new connection, which takes
/// some ten microseconds for so many.
pub const RULES: usize = 1024;

/// Addresses whose names are remembered for one guest, about 150 bytes each; more than a browser
/// asks for in the time for which they are kept.
pub const NAMED_ADDRESSES: usize = 4096;

/// Names that one address has: those of a server that many sites share. The latest are kept.
pub const NAMES_OF_ADDRESS: usize = 16;

/// How long a name is kept beyond the time that its answer gives: a program connects later.
pub const NAME_GRACE: Duration = Duration::from_secs(60);

/// How long a name is kept at least: programs that look up a name once connect for minutes.
pub const NAME_TIME: Duration = Duration::from_secs(300);

/// Destinations of which is remembered whether they are the gateway's machine.
pub const OURS_DESTINATIONS: usize = 1024;

/// For how long that is remembered: an interface may get or lose an address.
pub const OURS_TIME: Duration = Duration::from_secs(1);

// The resolver.

/// Queries of one guest on their way to resolvers, each with a descriptor; stub resolvers have a
/// few. More fail at once.
pub const DNS_IN_FLIGHT: usize = 256;

/// Longest query in bytes: a name has 255, options of EDNS some hundred more. With
/// [`DNS_IN_FLIGHT`] it bounds the memory that a guest's queries take: two megabytes.
pub const DNS_QUERY: usize = 4096;

/// Longest answer in bytes, by the length field of DNS over TCP (RFC 1035 section 4.2.2).
pub const DNS_MESSAGE: usize = 65_535;

/// How long one resolver has for an answer: half of the time after which the C library's stub
/// resolver asks again (`resolv.conf(5)`: 5 s).
pub const DNS_TRY_TIME: Duration = Duration::from_millis(2500);

/// How long all attempts take together: a guest is told of the failure when its own time is over.
pub const DNS_TIME: Duration = Duration::from_secs(5);

/// TCP connections of one guest to its resolver. Each has one query on its way.
pub const DNS_CLIENTS: usize = 16;

/// How long such a connection may be silent, or take no answer (RFC 7766 section 6.2.3: "in the
/// order of a few seconds").
pub const DNS_CLIENT_TIME: Duration = Duration::from_secs(10);

/// Aliases that one answer may lead through, as most resolvers follow.
pub const DNS_ALIASES: usize = 16;

/// For how long a guest may remember an address of the gateway's own names: they change when
/// guests come and go.
pub const DNS_OWN_TTL: Duration = Duration::from_secs(5);

/// Resolvers that are asked, and told to guests; the C library takes three.
pub const RESOLVERS: usize = 8;

/// Longest resolver configuration that is read, in bytes.
pub const RESOLV_CONF_BYTES: u64 = 64 << 10;

/// How often it is looked at for changes, while queries come.
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

/// For how long it is valid (30 days).
pub const RA_VALID: Duration = Duration::from_secs(2_592_000);

/// Associations of one DHCPv6 message, and addresses of each, that are looked at: clients have one.
pub const DHCP6_MAX_IDENTITIES: usize = 4;

// The log.

/// Lines of the log that wait to be written; more are lost, and counted. Each takes some 250 bytes.
pub const LOG_LINES: usize = 4096;

/// How long the end of the log may take to be written when it is closed.
pub const LOG_END_TIME: Duration = Duration::from_secs(1);
