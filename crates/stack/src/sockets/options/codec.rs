//! Values of options as C programs lay them out for `setsockopt` and `getsockopt` on Linux.

use core::ops::RangeInclusive;
use core::time::Duration;
use std::net::{IpAddr, Ipv4Addr};

use pagewire_tcp::{
    CongestionKind, FastOpenKeys, KeepAlive, defer_accept_time, defer_accept_timeouts,
};

use crate::limits::{DEFAULT_HOP_LIMIT, MAX_SOCKET_BUFFER, MIN_RECEIVE_BUFFER, MIN_SEND_BUFFER};
use crate::net::LinkId;
use crate::sockets::marks::MtuDiscover;

/// How a value is read from a program's memory, and written to it. An error is its number.
pub(super) struct Codec<T> {
    pub(super) read: fn(&[u8]) -> Result<T, i32>,
    pub(super) write: fn(T) -> Vec<u8>,
}

const ENOENT: i32 = 2;
const EINVAL: i32 = 22;
const EDOM: i32 = 33;

/// Bytes of the name of a congestion control (`TCP_CA_NAME_MAX`).
const NAME_MAX: usize = 16;
/// Range of `TCP_MAXSEG` (`TCP_MIN_MSS`, `MAX_TCP_WINDOW`).
const MAX_SEG: RangeInclusive<i32> = 88..=32_767;
/// Range of `TCP_KEEPIDLE` and `TCP_KEEPINTVL` in seconds, and that of `TCP_KEEPCNT` and `TCP_SYNCNT`.
const KEEPALIVE_SECONDS: RangeInclusive<i32> = 1..=32_767;
const PROBES: RangeInclusive<i32> = 1..=127;
/// Largest `TCP_LINGER2` in seconds.
const MAX_LINGER2: i32 = 120;
/// The range of a hop limit; -1 is the default.
const HOP_LIMITS: RangeInclusive<i32> = -1..=255;

/// Any number but 0 is yes.
pub(super) const ANY: Codec<bool> = Codec { read: |value| Ok(int(value)? != 0), write: flag };
/// 0 or 1.
pub(super) const FLAG: Codec<bool> = Codec { read: |value| yes_or_no(int(value)?), write: flag };
/// [`ANY`], which may be a `char`; nothing is 0.
pub(super) const IP_ANY: Codec<bool> = Codec { read: |v| Ok(int_or_none(v)? != 0), write: flag };
/// [`ANY`], which may be a `char`.
pub(super) const CHAR_ANY: Codec<bool> = Codec { read: |v| Ok(int_or_char(v)? != 0), write: flag };
/// [`FLAG`], which may be a `char`.
pub(super) const CHAR_FLAG: Codec<bool> =
    Codec { read: |value| yes_or_no(int_or_char(value)?), write: flag };
/// A number without sign.
pub(super) const NUMBER: Codec<u32> = Codec { read: |value| Ok(int(value)? as u32), write: number };
/// A number that is not negative.
pub(super) const COUNT: Codec<u32> =
    Codec { read: |value| u32::try_from(int(value)?).map_err(|_| EINVAL), write: number };
/// `UDP_SEGMENT`.
pub(super) const LENGTH: Codec<u16> = Codec {
    read: |value| u16::try_from(int(value)?).map_err(|_| EINVAL),
    write: |bytes| number(bytes.into()),
};
/// `SO_RCVLOWAT`: a negative number is the largest, and 0 means 1.
pub(super) const LOWAT: Codec<u32> = Codec {
    read: |value| Ok(u32::try_from(int(value)?).unwrap_or(i32::MAX as u32).max(1)),
    write: number,
};
/// `SO_SNDBUF`, which Linux doubles.
pub(super) const SEND_BYTES: Codec<u32> =
    Codec { read: |value| Ok(doubled(int(value)?, MIN_SEND_BUFFER)), write: number };
/// `SO_RCVBUF`, which Linux doubles.
pub(super) const RECEIVE_BYTES: Codec<u32> =
    Codec { read: |value| Ok(doubled(int(value)?, MIN_RECEIVE_BUFFER)), write: number };
/// `TCP_WINDOW_CLAMP`; 0 is none.
pub(super) const CLAMP: Codec<Option<u32>> = Codec {
    read: |value| {
        let bytes = int(value)? as u32;
        Ok((bytes != 0).then(|| bytes.max(MIN_RECEIVE_BUFFER / 2)))
    },
    write: |bytes| number(bytes.unwrap_or(0)),
};
/// `TCP_MAXSEG`; 0 is none.
pub(super) const SEGMENT: Codec<Option<u16>> = Codec {
    read: |value| match int(value)? {
        0 => Ok(None),
        bytes => Ok(Some(within(bytes, MAX_SEG)? as u16)),
    },
    write: |bytes| number(bytes.unwrap_or(0).into()),
};
/// `TCP_SYNCNT`, `TCP_KEEPCNT`.
pub(super) const TRIES: Codec<u8> = Codec {
    read: |value| Ok(within(int(value)?, PROBES)? as u8),
    write: |count| number(count.into()),
};
/// `TCP_KEEPIDLE`, `TCP_KEEPINTVL`.
pub(super) const PERIOD: Codec<Duration> = Codec {
    read: |value| Ok(Duration::from_secs(within(int(value)?, KEEPALIVE_SECONDS)? as u64)),
    write: |time| number(time.as_secs() as u32),
};
/// `SO_KEEPALIVE`; the times have options of their own.
pub(super) const PROBING: Codec<Option<KeepAlive>> = Codec {
    read: |value| Ok((int(value)? != 0).then(KeepAlive::default)),
    write: |keepalive| flag(keepalive.is_some()),
};
/// `TCP_DEFER_ACCEPT` in seconds, which are rounded up to timeouts; a negative time is none.
pub(super) const DEFER: Codec<Duration> = Codec {
    read: |value| {
        let time = Duration::from_secs(u64::try_from(int(value)?).unwrap_or(0));
        Ok(defer_accept_time(defer_accept_timeouts(time)))
    },
    write: |time| number(time.as_secs() as u32),
};
/// `TCP_LINGER2` in seconds; a negative time is no waiting at all.
pub(super) const LINGER2: Codec<Duration> = Codec {
    read: |value| Ok(Duration::from_secs(u64::try_from(int(value)?.min(MAX_LINGER2)).unwrap_or(0))),
    write: |time| if time.is_zero() { signed(-1) } else { number(time.as_secs() as u32) },
};
/// `TCP_USER_TIMEOUT` in milliseconds; 0 is none.
pub(super) const MILLISECONDS: Codec<Option<Duration>> = Codec {
    read: |value| {
        let time = u64::try_from(int(value)?).map_err(|_| EINVAL)?;
        Ok((time > 0).then(|| Duration::from_millis(time)))
    },
    write: |time| number(time.unwrap_or_default().as_millis() as u32),
};
/// `struct linger`. Linux compares the seconds without sign: a negative time is a long one.
pub(super) const LINGER: Codec<Option<Duration>> = Codec {
    read: |value| {
        let (on, seconds) = (int(value)?, int(value.get(4..).unwrap_or_default())?);
        Ok((on != 0).then(|| Duration::from_secs(u64::from(seconds as u32))))
    },
    write: |time| {
        let mut value = flag(time.is_some());
        value.extend((time.unwrap_or_default().as_secs() as u32).to_ne_bytes());
        value
    },
};
/// `struct timeval`; all zero is no limit, and a negative time is no waiting at all.
pub(super) const TIMEVAL: Codec<Option<Duration>> = Codec {
    read: |value| {
        let (seconds, micros) = (long(value, 0)?, long(value, 8)?);
        if !(0..1_000_000).contains(&micros) {
            return Err(EDOM);
        }
        let Ok(seconds) = u64::try_from(seconds) else { return Ok(Some(Duration::ZERO)) };
        let limit = Duration::new(seconds, micros as u32 * 1000);
        Ok((!limit.is_zero()).then_some(limit))
    },
    write: |limit| {
        let limit = limit.unwrap_or_default();
        let words = [limit.as_secs(), u64::from(limit.subsec_micros())];
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    },
};
/// `TCP_CONGESTION`: a name, which may end at a zero.
pub(super) const CONGESTION: Codec<CongestionKind> = Codec {
    read: |value| match value.split(|&byte| byte == 0).next().unwrap_or_default() {
        _ if value.is_empty() => Err(EINVAL),
        b"cubic" => Ok(CongestionKind::Cubic),
        // Linux's name, and the algorithm's.
        b"reno" | b"newreno" => Ok(CongestionKind::NewReno),
        _ => Err(ENOENT),
    },
    write: |kind| {
        let name: &[u8] = match kind {
            CongestionKind::Cubic => b"cubic",
            CongestionKind::NewReno => b"reno",
        };
        name.iter().copied().chain(core::iter::repeat(0)).take(NAME_MAX).collect()
    },
};
/// `TCP_FASTOPEN_KEY`: one key, or the present one and the one before.
pub(super) const KEYS: Codec<Option<FastOpenKeys>> = Codec {
    read: |value| {
        let key = |at: usize| value.get(at..)?.first_chunk().copied();
        let (first, second) = match value.len() {
            16 => (key(0), None),
            32 => (key(0), key(16)),
            _ => return Err(EINVAL),
        };
        Ok(Some(FastOpenKeys::new(first.ok_or(EINVAL)?, second)))
    },
    write: |keys| {
        let both = keys.into_iter().flat_map(|keys| [Some(keys.primary()), keys.backup()]);
        both.flatten().flatten().collect()
    },
};
/// `IP_MTU_DISCOVER`, which may be a `char`; nothing is 0.
pub(super) const IP_DISCOVER: Codec<MtuDiscover> =
    Codec { read: |value| mtu_discover(int_or_none(value)?), write: |how| number(how as u32) };
/// `IPV6_MTU_DISCOVER`.
pub(super) const DISCOVER: Codec<MtuDiscover> =
    Codec { read: |value| mtu_discover(int(value)?), write: |how| number(how as u32) };
/// `IP_TOS`, which may be a `char`; nothing is 0.
pub(super) const TOS: Codec<u8> =
    Codec { read: |value| Ok(int_or_none(value)? as u8), write: |class| number(class.into()) };
/// `IPV6_TCLASS`; -1 is the default.
pub(super) const CLASS: Codec<u8> = Codec {
    read: |value| Ok(within(int(value)?, HOP_LIMITS)?.max(0) as u8),
    write: |class| number(class.into()),
};
/// `IP_TTL`, which may be a `char`; -1 is the default.
pub(super) const TTL: Codec<Option<u8>> = Codec {
    read: |value| match int_or_char(value)? {
        -1 => Ok(None),
        limit => Ok(Some(within(limit, 1..=255)? as u8)),
    },
    write: hop_limit,
};
/// `IPV6_UNICAST_HOPS`; -1 is the default.
pub(super) const HOPS: Codec<Option<u8>> = Codec {
    read: |value| Ok(u8::try_from(within(int(value)?, HOP_LIMITS)?).ok()),
    write: hop_limit,
};
/// `IP_MULTICAST_TTL`, which may be a `char`; -1 is the default.
pub(super) const GROUP_TTL: Codec<u8> = Codec {
    read: |value| Ok(u8::try_from(within(int_or_char(value)?, HOP_LIMITS)?).unwrap_or(1)),
    write: |hops| number(hops.into()),
};
/// `IPV6_MULTICAST_HOPS`; -1 is the default.
pub(super) const GROUP_HOPS: Codec<u8> = Codec {
    read: |value| Ok(u8::try_from(within(int(value)?, HOP_LIMITS)?).unwrap_or(1)),
    write: |hops| number(hops.into()),
};
/// The number of a link, 0 for none. A link is looked up by the one who sets it.
pub(super) const LINK: Codec<Option<LinkId>> =
    Codec { read: |_| Err(EINVAL), write: |link| number(link.map_or(0, LinkId::scope_id)) };
/// `struct in_addr`, all zero for none. An address is looked up by the one who sets it.
pub(super) const ADDRESS: Codec<Option<IpAddr>> = Codec {
    read: |_| Err(EINVAL),
    write: |address| match address {
        Some(IpAddr::V4(address)) => address.octets().into(),
        _ => Ipv4Addr::UNSPECIFIED.octets().into(),
    },
};

/// An `int` of C; what follows it is not looked at.
fn int(value: &[u8]) -> Result<i32, i32> {
    value.first_chunk().copied().map(i32::from_ne_bytes).ok_or(EINVAL)
}

fn long(value: &[u8], at: usize) -> Result<i64, i32> {
    let bytes = value.get(at..).and_then(|value| value.first_chunk().copied());
    bytes.map(i64::from_ne_bytes).ok_or(EINVAL)
}

/// An `int`, or a `char` where there is no more.
fn int_or_char(value: &[u8]) -> Result<i32, i32> {
    match value {
        [one] | [one, _] | [one, _, _] => Ok(i32::from(*one)),
        _ => int(value),
    }
}

/// An `int`, or a `char` where there is no more; nothing is 0.
fn int_or_none(value: &[u8]) -> Result<i32, i32> {
    if value.is_empty() { Ok(0) } else { int_or_char(value) }
}

fn within(value: i32, range: RangeInclusive<i32>) -> Result<i32, i32> {
    if range.contains(&value) { Ok(value) } else { Err(EINVAL) }
}

fn yes_or_no(value: i32) -> Result<bool, i32> {
    Ok(within(value, 0..=1)? == 1)
}

/// `IP_PMTUDISC_*` and `IPV6_PMTUDISC_*`, whose numbers are equal.
fn mtu_discover(value: i32) -> Result<MtuDiscover, i32> {
    Ok(match value {
        0 => MtuDiscover::Dont,
        1 => MtuDiscover::Want,
        2 => MtuDiscover::Do,
        3 => MtuDiscover::Probe,
        4 => MtuDiscover::Interface,
        5 => MtuDiscover::Omit,
        _ => return Err(EINVAL),
    })
}

/// > Linux doubles the size of a buffer; the least is two small packets. It compares without sign.
fn doubled(bytes: i32, least: u32) -> u32 {
    ((bytes as u32).min(MAX_SOCKET_BUFFER) * 2).max(least)
}

fn number(value: u32) -> Vec<u8> {
    value.to_ne_bytes().into()
}

fn signed(value: i32) -> Vec<u8> {
    value.to_ne_bytes().into()
}

fn flag(on: bool) -> Vec<u8> {
    number(on.into())
}

fn hop_limit(limit: Option<u8>) -> Vec<u8> {
    number(limit.unwrap_or(DEFAULT_HOP_LIMIT).into())
}
