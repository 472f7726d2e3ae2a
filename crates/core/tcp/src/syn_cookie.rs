//! SYN cookies: half-open connections without state.
//!
//! > RFC 4987 section 3.6: SYN cookies go further and allocate no state at all for connections in
//! > SYN-RECEIVED. Instead, they encode most of the state (and all of the strictly required) state
//! > that they would normally keep into the sequence number transmitted on the SYN-ACK.
//!
//! ```text
//!   initial sequence number  =  peer's  +  | minute (8) | keyed hash (24) + index of the MSS |
//!   timestamp                =  clock, its low bits | ECN (1) | SACK (1) | window scale (4) |
//! ```
//!
//! The hash covers addresses, ports, the peer's number and the minute. A forged acknowledgement
//! passes with a probability of [`MSS_TABLE`]`.len()` in 2^24 for each of the two valid minutes. As
//! in Linux, options beside the MSS survive only with timestamps.

use core::net::SocketAddr;

use pagewire_mem::Instant;
use siphasher::sip::SipHasher13;

use crate::config::{Config, LinkLimits};
use crate::header::{Flags, TcpHeader};
use crate::inbound::window;
use crate::isn::hash_ends;
use crate::limits::{DEFAULT_MSS, TIMESTAMPS_LEN};
use crate::options::TcpOptions;
use crate::seq::Seq;

/// Seconds in a cookie's minute: a power of two.
const MINUTE: u64 = 64;

/// Minutes for which a cookie is valid, the first included (Linux's `MAX_SYNCOOKIE_AGE`).
const MINUTES: u64 = 2;

/// Seconds for which a cookie may be valid.
pub(crate) const VALID_SECONDS: u64 = MINUTE * MINUTES;

/// The MSS values of cookies, for common links. A cookie has the largest up to the peer's.
const MSS_TABLE: [u16; 8] = [DEFAULT_MSS, 1220, 1300, 1420, 1440, 1460, 8940, 61_440];

/// Low bits of a timestamp that carry options.
const OPTION_BITS: u32 = 6;

const OPTION_MASK: u32 = (1 << OPTION_BITS) - 1;

const SCALE_MASK: u32 = 0xf;

/// No window scale was offered.
const NO_SCALE: u32 = 0xf;

const SACK_BIT: u32 = 1 << 4;

const ECN_BIT: u32 = 1 << 5;

/// Makes and checks cookies.
#[derive(Clone)]
pub struct CookieJar {
    hasher: SipHasher13,
}

/// The SYN behind a valid cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cookie {
    /// Our initial sequence number, which was the cookie.
    pub(crate) iss: Seq,
    /// The known parts of the peer's SYN.
    pub(crate) syn: TcpHeader,
}

impl CookieJar {
    /// With a secret of 128 random bits.
    pub fn new(key: [u8; 16]) -> Self {
        Self { hasher: SipHasher13::new_with_key(&key) }
    }

    /// How long after the last cookie was made one may return.
    pub const fn valid_for() -> core::time::Duration {
        core::time::Duration::from_secs(VALID_SECONDS)
    }

    /// The SYN,ACK with a cookie. `ts_offset` is the offset of its timestamps to the clock.
    pub fn answer(
        &self,
        now: Instant,
        config: &Config,
        link: LinkLimits,
        (local, remote): (SocketAddr, SocketAddr),
        ts_offset: u32,
        syn: &TcpHeader,
    ) -> TcpHeader {
        let mut options = TcpOptions {
            mss: Some(link.recv_mss.min(config.max_mss.unwrap_or(u16::MAX))),
            ..TcpOptions::default()
        };
        if let (true, Some((value, _))) = (config.timestamps, syn.options.timestamps) {
            options.sack_permitted = config.sack && syn.options.sack_permitted;
            let scale = syn.options.window_scale.filter(|_| config.window_scaling);
            options.window_scale = scale.map(|_| window::scale_for(config));
            let mut bits = scale.map_or(NO_SCALE, u32::from);
            if options.sack_permitted {
                bits |= SACK_BIT;
            }
            options.timestamps = Some((stamp(now, bits).wrapping_add(ts_offset), value));
        }
        let stamps = if options.timestamps.is_some() { TIMESTAMPS_LEN } else { 0 };
        let payload = options.mss.unwrap_or_default().saturating_sub(stamps);
        TcpHeader {
            src_port: local.port(),
            dst_port: remote.port(),
            seq: self.make(now, local, remote, syn),
            ack: syn.seq + 1,
            flags: Flags::SYN | Flags::ACK,
            window: window::initial(config, payload) as u16,
            urgent: 0,
            options,
        }
    }

    fn make(&self, now: Instant, local: SocketAddr, remote: SocketAddr, syn: &TcpHeader) -> Seq {
        let mss = syn.options.mss.unwrap_or(DEFAULT_MSS);
        let index = MSS_TABLE.iter().rposition(|&entry| entry <= mss).unwrap_or(0) as u32;
        let minute = minute(now);
        let low = self.hash(minute, local, remote, syn.seq).wrapping_add(index) & LOW;
        syn.seq + ((minute as u32) << 24 | low)
    }

    /// The valid cookie that `header` acknowledges, of a segment with ACK and without SYN.
    pub fn check(
        &self,
        now: Instant,
        (local, remote): (SocketAddr, SocketAddr),
        ts_offset: u32,
        header: &TcpHeader,
    ) -> Option<Cookie> {
        let (irs, iss) = (header.seq - 1, header.ack - 1);
        let cookie = iss.since(irs);
        // The minute in the cookie, if it is one of the latest.
        let present = minute(now);
        let age = u64::from((present as u8).wrapping_sub((cookie >> 24) as u8));
        let made = present.checked_sub(age).filter(|_| age < MINUTES)?;
        let hash = self.hash(made, local, remote, irs);
        let index = cookie.wrapping_sub(hash) & LOW;
        let mss = *MSS_TABLE.get(index as usize)?;

        let mut options = TcpOptions { mss: Some(mss), ..TcpOptions::default() };
        let mut flags = Flags::SYN;
        if let Some((value, echo)) = header.options.timestamps {
            let bits = echo.wrapping_sub(ts_offset) & OPTION_MASK;
            let scale = bits & SCALE_MASK;
            options.timestamps = Some((value, 0));
            options.window_scale = (scale != NO_SCALE).then_some(scale as u8);
            options.sack_permitted = bits & SACK_BIT != 0;
            if bits & ECN_BIT != 0 {
                flags |= Flags::ECE | Flags::CWR;
            }
        }
        let syn = TcpHeader {
            src_port: header.src_port,
            dst_port: header.dst_port,
            seq: irs,
            ack: Seq(0),
            flags,
            window: header.window,
            urgent: 0,
            options,
        };
        Some(Cookie { iss, syn })
    }

    fn hash(&self, minute: u64, local: SocketAddr, remote: SocketAddr, irs: Seq) -> u32 {
        let before = minute << 32 | u64::from(irs.get());
        hash_ends(&self.hasher, Some(before), 0, local, remote) as u32 & LOW
    }
}

impl core::fmt::Debug for CookieJar {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        // The key is a secret.
        f.debug_struct("CookieJar").finish_non_exhaustive()
    }
}

const LOW: u32 = (1 << 24) - 1;

fn minute(now: Instant) -> u64 {
    now.as_millis() / 1000 / MINUTE
}

/// The clock with `bits` as its low bits, never ahead of the clock.
fn stamp(now: Instant, bits: u32) -> u32 {
    let clock = now.as_millis() as u32;
    let stamp = clock & !OPTION_MASK | bits;
    if (stamp.wrapping_sub(clock) as i32) > 0 { stamp.wrapping_sub(OPTION_MASK + 1) } else { stamp }
}

#[cfg(test)]
#[path = "tests/syn_cookie.rs"]
mod tests;
