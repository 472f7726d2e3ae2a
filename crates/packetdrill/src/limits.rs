//! Every limit of this crate, with its unit and its reason.

use core::time::Duration;

/// Largest IPv4 packet, in bytes: Ethernet's, which leaves an MSS of 1,460.
pub const MTU_V4: usize = 1500;

/// The MSS that scripts are written for, in bytes.
pub const MSS: u16 = 1460;

/// Largest IPv6 packet, in bytes: leaves an MSS of 1,460 too, which is what scripts expect.
pub const MTU_V6: usize = 1520;

/// Bytes of the stack's pool: some send buffers' worth. packetdrill locks all memory, so that
/// every byte is taken from the machine at once.
pub const POOL_BYTES: usize = 16 << 20;

/// How far the clock goes when packetdrill looks at it: less than any time that scripts tell apart
/// (they are checked to milliseconds), and enough for a loop that looks until a moment has come.
pub const CREEP: Duration = Duration::from_micros(1);

/// For how long a packet is waited for, in virtual time. No script waits longer than seconds, but
/// packetdrill does not say how long this one does; keep-alive and user timeouts are covered.
pub const RECEIVE_PATIENCE: Duration = Duration::from_secs(600);

/// Where the clock begins, in seconds since 1970: any moment that looks like one, the same in every
/// run.
pub const EPOCH: Duration = Duration::from_secs(1_700_000_000);

/// Packets that left the stack and that packetdrill has not asked for; a script that asks for none
/// would otherwise fill memory. Linux's packet socket holds about as many.
pub const SNIFFED_PACKETS: usize = 4096;

/// Longest file of settings that is read, in bytes: thousands of lines.
pub const SETTINGS_BYTES: u64 = 1 << 20;

/// How long the driver stands back, in real time, after a blocked call of another thread has ended:
/// for that thread to tell packetdrill. It takes microseconds; only scripts that block pay it.
pub const HAND_OVER: Duration = Duration::from_millis(1);

/// How far the stack's clock is from its zero when a script begins: times before the beginning
/// exist, which arithmetic with timeouts needs.
pub const BEGINNING: Duration = Duration::from_secs(1000);

/// Bytes that the notifications of one socket's zero-copy sends may take: Linux's `optmem_max`.
pub const OPTMEM_BYTES: usize = 131_072;

/// Bytes of an Ethernet header (IEEE 802.3).
pub const ETHERNET: usize = 14;

/// Longest IP packet, in bytes (RFC 791 section 3.1): what a super-frame may be.
pub const MAX_IP_PACKET: usize = 65_535;
