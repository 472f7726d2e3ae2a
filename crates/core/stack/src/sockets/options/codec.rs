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

/// Values that are an `int`: how it is read, what it means, and what is written.
macro_rules! ints {
    ($($(#[doc = $doc:literal])* $name:ident: $type:ty =
        $read:ident, |$int:ident| $from:expr, |$value:ident| $into:expr;)*) => {$(
        $(#[doc = $doc])*
        pub(super) const $name: Codec<$type> = Codec {
            read: |bytes| {
                let $int = $read(bytes)?;
                $from
            },
            write: |$value| {
                let int: i32 = $into;
                int.to_ne_bytes().into()
            },
        };
    )*};
}

ints! {
    /// Any number but 0 is yes.
    ANY: bool = int, |n| Ok(n != 0), |on| on.into();
    /// 0 or 1.
    FLAG: bool = int, |n| yes_or_no(n), |on| on.into();
    /// [`ANY`], which may be a `char`; nothing is 0.
    IP_ANY: bool = int_or_none, |n| Ok(n != 0), |on| on.into();
    /// [`ANY`], which may be a `char`.
    CHAR_ANY: bool = int_or_char, |n| Ok(n != 0), |on| on.into();
    /// [`FLAG`], which may be a `char`.
    CHAR_FLAG: bool = int_or_char, |n| yes_or_no(n), |on| on.into();
    /// A number without sign.
    NUMBER: u32 = int, |n| Ok(n as u32), |number| number as i32;
    /// A number that is not negative.
    COUNT: u32 = int, |n| u32::try_from(n).map_err(|_| EINVAL), |count| count as i32;
    /// `UDP_SEGMENT`.
    LENGTH: u16 = int, |n| u16::try_from(n).map_err(|_| EINVAL), |bytes| bytes.into();
    /// `SO_RCVLOWAT`: a negative number is the largest, and 0 means 1.
    LOWAT: u32 = int, |n| Ok(u32::try_from(n).unwrap_or(i32::MAX as u32).max(1)), |n| n as i32;
    /// `SO_SNDBUF`, which Linux doubles.
    SEND_BYTES: u32 = int, |n| Ok(doubled(n, MIN_SEND_BUFFER)), |bytes| bytes as i32;
    /// `SO_RCVBUF`, which Linux doubles.
    RECEIVE_BYTES: u32 = int, |n| Ok(doubled(n, MIN_RECEIVE_BUFFER)), |bytes| bytes as i32;
    /// `TCP_WINDOW_CLAMP`; 0 is none.
    CLAMP: Option<u32> = int,
        |n| Ok((n != 0).then(|| (n as u32).max(MIN_RECEIVE_BUFFER / 2))),
        |bytes| bytes.unwrap_or(0) as i32;
    /// `TCP_MAXSEG`; 0 is none.
    SEGMENT: Option<u16> = int,
        |n| if n == 0 { Ok(None) } else { Ok(Some(within(n, MAX_SEG)? as u16)) },
        |bytes| bytes.unwrap_or(0).into();
    /// `TCP_SYNCNT`, `TCP_KEEPCNT`.
    TRIES: u8 = int, |n| Ok(within(n, PROBES)? as u8), |count| count.into();
    /// `TCP_KEEPIDLE`, `TCP_KEEPINTVL`.
    PERIOD: Duration = int,
        |n| Ok(Duration::from_secs(within(n, KEEPALIVE_SECONDS)? as u64)),
        |time| time.as_secs() as i32;
    /// `SO_KEEPALIVE`; the times have options of their own.
    PROBING: Option<KeepAlive> = int,
        |n| Ok((n != 0).then(KeepAlive::default)),
        |keepalive| keepalive.is_some().into();
    /// `TCP_DEFER_ACCEPT` in seconds, which are rounded up to timeouts; a negative time is none.
    DEFER: Duration = int,
        |n| Ok(defer_accept_time(defer_accept_timeouts(seconds(n)))),
        |time| time.as_secs() as i32;
    /// `TCP_LINGER2` in seconds; a negative time is no waiting at all.
    LINGER2: Duration = int,
        |n| Ok(seconds(n.min(MAX_LINGER2))),
        |time| if time.is_zero() { -1 } else { time.as_secs() as i32 };
    /// `TCP_USER_TIMEOUT` in milliseconds; 0 is none.
    MILLISECONDS: Option<Duration> = int,
        |n| {
            let time = Duration::from_millis(u64::try_from(n).map_err(|_| EINVAL)?);
            Ok((!time.is_zero()).then_some(time))
        },
        |time| time.unwrap_or_default().as_millis() as i32;
    /// `IP_MTU_DISCOVER`, which may be a `char`; nothing is 0.
    IP_DISCOVER: MtuDiscover = int_or_none, |n| mtu_discover(n), |how| how as i32;
    /// `IPV6_MTU_DISCOVER`.
    DISCOVER: MtuDiscover = int, |n| mtu_discover(n), |how| how as i32;
    /// `IP_TOS`, which may be a `char`; nothing is 0.
    TOS: u8 = int_or_none, |n| Ok(n as u8), |class| class.into();
    /// `IPV6_TCLASS`; -1 is the default.
    CLASS: u8 = int, |n| Ok(within(n, HOP_LIMITS)?.max(0) as u8), |class| class.into();
    /// `IP_TTL`, which may be a `char`; -1 is the default.
    TTL: Option<u8> = int_or_char,
        |n| if n == -1 { Ok(None) } else { Ok(Some(within(n, 1..=255)? as u8)) },
        |limit| limit.unwrap_or(DEFAULT_HOP_LIMIT).into();
    /// `IPV6_UNICAST_HOPS`; -1 is the default.
    HOPS: Option<u8> = int,
        |n| Ok(u8::try_from(within(n, HOP_LIMITS)?).ok()),
        |limit| limit.unwrap_or(DEFAULT_HOP_LIMIT).into();
    /// `IP_MULTICAST_TTL`, which may be a `char`; -1 is the default.
    GROUP_TTL: u8 = int_or_char, |n| group_hops(n), |hops| hops.into();
    /// `IPV6_MULTICAST_HOPS`; -1 is the default.
    GROUP_HOPS: u8 = int, |n| group_hops(n), |hops| hops.into();
    /// The number of a link, 0 for none. The code that sets the option looks up the link.
    LINK: Option<LinkId> = int, |_n| Err(EINVAL), |link| link.map_or(0, LinkId::scope_id) as i32;
}

/// `struct linger`. Linux compares the seconds without sign: a negative time is a long one.
pub(super) const LINGER: Codec<Option<Duration>> = Codec {
    read: |value| {
        let (on, seconds) = (int(value)?, int(value.get(4..).unwrap_or_default())?);
        Ok((on != 0).then(|| Duration::from_secs(u64::from(seconds as u32))))
    },
    write: |time| {
        let words = [time.is_some().into(), time.unwrap_or_default().as_secs() as u32];
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
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

/// `struct in_addr`, all zero for none. The code that sets the option looks up the address.
pub(super) const ADDRESS: Codec<Option<IpAddr>> = Codec {
    read: |_| Err(EINVAL),
    write: |address| match address {
        Some(IpAddr::V4(address)) => address.octets().into(),
        _ => Ipv4Addr::UNSPECIFIED.octets().into(),
    },
};

/// An `int` of C; bytes after it are ignored.
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

/// Seconds; a negative number is none.
fn seconds(seconds: i32) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

fn group_hops(hops: i32) -> Result<u8, i32> {
    Ok(u8::try_from(within(hops, HOP_LIMITS)?).unwrap_or(1))
}
