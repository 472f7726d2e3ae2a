//! Every limit of this crate, with its unit and its reason.

use core::time::Duration;

/// Largest IPv4 packet, in bytes: Ethernet's, which leaves an MSS of 1,460.
pub const MTU_V4: usize = 1500;

/// The MSS that scripts are written for, in bytes.
pub const MSS: u16 = 1460;

/// Largest IPv6 packet, in bytes: leaves an MSS of 1,460 too, which is what scripts expect.
pub const MTU_V6: usize = 1520;

/// Bytes of the stack's memory: packetdrill locks all of it, so that each is used at once.
pub const MEMORY: usize = 64 << 20;

/// How far the clock moves when packetdrill reads it: less than scripts can distinguish.
pub const CREEP: Duration = Duration::from_micros(1);

/// How long to wait for a packet, in virtual time: longer than any script's timer.
pub const RECEIVE_PATIENCE: Duration = Duration::from_secs(600);

/// Where the clock begins, in seconds since 1970: an arbitrary time, equal in every run.
pub const EPOCH: Duration = Duration::from_secs(1_700_000_000);

/// Packets of the stack that wait for packetdrill: about as many as in Linux's packet socket.
pub const SNIFFED_PACKETS: usize = 4096;

/// Longest file of settings that is read, in bytes: thousands of lines.
pub const SETTINGS_BYTES: u64 = 1 << 20;

/// How long the driver pauses, in real time, for a thread to report that its call has ended.
pub const HAND_OVER: Duration = Duration::from_millis(1);

/// The stack's clock when a script begins: arithmetic with timeouts needs times before it.
pub const BEGINNING: Duration = Duration::from_secs(1000);

/// Bytes that the notifications of one socket's zero-copy sends may take: Linux's `optmem_max`.
pub const OPTMEM_BYTES: usize = 131_072;

/// Bytes of an Ethernet header (IEEE 802.3).
pub const ETHERNET: usize = 14;

/// Longest IP packet, in bytes (RFC 791 section 3.1): what a super-frame may be.
pub const MAX_IP_PACKET: usize = 65_535;
