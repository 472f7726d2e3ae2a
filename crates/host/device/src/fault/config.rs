//! The settings of a fault wrapper, as written on a command line:
//! `loss=1%,reorder=0.5%,dup=1%,corrupt=0.1%,delay=10ms,jitter=1ms,rate=1gbit,limit=1000,seed=7`.

use core::fmt;
use core::str::FromStr;
use std::time::Duration;

use crate::limits::{FAULT_MAX_DELAY, FAULT_MAX_FRAMES, FAULT_QUEUE_FRAMES};

/// Faults of a link. The default has none, and cuts super-frames.
///
/// Chances, `rate` and `limit` are about frames. A stack and a kernel hand over super-frames of up to
/// 64 KiB where the device takes them, and a link loses packets: so super-frames are cut first,
/// unless `cut` says otherwise. Not to cut is quicker; [`delayed`](Self::delayed) does not.
///
/// As text: `name=value` joined by commas, in any order, each at most once; a missing name has its
/// default. Printing gives text that parses to the same.
///
/// | name | value | meaning |
/// |---|---|---|
/// | `loss` | `1%` | frames that are lost |
/// | `dup` | `1%` | frames that arrive twice |
/// | `reorder` | `0.5%` | frames delayed until one to four later ones have passed, or 5 ms |
/// | `corrupt` | `0.1%` | frames with one flipped bit |
/// | `delay`, `jitter` | `10ms` | time on the line, and how far it varies up and down; the order stays |
/// | `rate` | `1gbit` | bits in a second (`bit`, `kbit`, `mbit`, `gbit`; powers of ten) |
/// | `limit` | `1000` | frames that wait for `rate`; more are lost |
/// | `bytes` | `64000` | bytes that wait for `rate`; more are lost |
/// | `aqm` | `none`, `codel`, `5ms` | how the queue for `rate` signals congestion: see [`Aqm`] |
/// | `seed` | `7` | the same seed gives the same faults for the same frames |
/// | `on` | `both`, `tx`, `rx` | the direction, as seen from the stack |
/// | `cut` | `yes`, `no` | cut super-frames first, so that frames are packets on the wire; `yes` by default |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultConfig {
    /// Frames that are lost.
    pub loss: Chance,
    /// Frames that arrive twice.
    pub duplicate: Chance,
    /// Frames that others overtake.
    pub reorder: Chance,
    /// Frames with one flipped bit.
    pub corrupt: Chance,
    /// Time on the line.
    pub delay: Duration,
    /// How far the delay varies, up and down, evenly.
    pub jitter: Duration,
    /// Bits in a second; `None`: no limit.
    pub rate: Option<u64>,
    /// Frames that wait for `rate`.
    pub limit: usize,
    /// Bytes that wait for `rate`; `None`: only frames are counted.
    pub limit_bytes: Option<usize>,
    /// How the queue for `rate` signals congestion.
    pub aqm: Aqm,
    /// The seed of the random numbers.
    pub seed: u64,
    /// The direction.
    pub on: FaultDirection,
    /// Cut super-frames into the frames of the wire first.
    pub cut: bool,
}

/// How the queue for a rate signals congestion, besides losing frames that it has no room for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Aqm {
    /// Not at all.
    #[default]
    None,
    /// Marks frames that waited for longer, if their receiver reads marks (RFC 3168, RFC 8257).
    Mark {
        /// The longest wait that is not marked.
        above: Duration,
    },
    /// Controlled delay (RFC 8289): marks some frames while the queue is long, or drops them.
    Codel,
}

/// The frames that a fault wrapper changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FaultDirection {
    /// All frames.
    #[default]
    Both,
    /// Frames that the stack sends.
    Transmit,
    /// Frames that the stack receives.
    Receive,
}

/// A probability, in millionths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Chance(u32);

/// A text that is not a [`FaultConfig`]; says which part and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("fault `{part}`: {why}")]
pub struct FaultConfigError {
    part: String,
    why: String,
    is_name_unknown: bool,
}

impl FaultConfigError {
    /// Whether the part's name is no setting's, or the part has no name.
    pub fn is_name_unknown(&self) -> bool {
        self.is_name_unknown
    }
}

impl Chance {
    /// Never.
    pub const NEVER: Self = Self(0);
    /// Every time.
    pub const ALWAYS: Self = Self(1_000_000);

    /// `n` times in a million; more than a million counts as a million.
    pub const fn per_million(n: u32) -> Self {
        Self(if n < 1_000_000 { n } else { 1_000_000 })
    }

    /// `n` times in a hundred; more than a hundred counts as a hundred.
    pub const fn percent(n: u32) -> Self {
        Self::per_million(n.saturating_mul(10_000))
    }

    /// Times in a million.
    pub const fn as_per_million(self) -> u32 {
        self.0
    }

    /// Whether it happens, for a random number.
    pub(crate) const fn happens(self, random: u64) -> bool {
        // The upper half, scaled down to a million: the bias is too small to measure.
        ((random >> 32) * 1_000_000) >> 32 < self.0 as u64
    }
}

impl Default for FaultConfig {
    fn default() -> Self {
        Self {
            loss: Chance::NEVER,
            duplicate: Chance::NEVER,
            reorder: Chance::NEVER,
            corrupt: Chance::NEVER,
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            rate: None,
            limit: FAULT_QUEUE_FRAMES,
            limit_bytes: None,
            aqm: Aqm::None,
            seed: 0,
            on: FaultDirection::Both,
            cut: true,
        }
    }
}

impl FaultConfig {
    /// Nothing but a delay. Super-frames stay whole: each of their packets would arrive at the same time.
    pub fn delayed(delay: Duration) -> Self {
        Self { delay, cut: false, ..Self::default() }
    }
}

const NAMES: &str =
    "loss, dup, reorder, corrupt, delay, jitter, rate, limit, bytes, aqm, seed, on, cut";

impl FromStr for FaultConfig {
    type Err = FaultConfigError;

    fn from_str(text: &str) -> Result<Self, FaultConfigError> {
        let mut config = Self::default();
        let mut seen: Vec<&str> = Vec::new();
        for part in text.split(',').map(str::trim) {
            let error = |why: String| {
                let name = part.split_once('=').map(|(name, _)| name.trim());
                let is_name_unknown = !NAMES.split(", ").any(|known| Some(known) == name);
                FaultConfigError { part: part.to_owned(), why, is_name_unknown }
            };
            let Some((name, value)) = part.split_once('=') else {
                return Err(error(format!("expected name=value; names are {NAMES}")));
            };
            let (name, value) = (name.trim(), value.trim());
            if seen.contains(&name) {
                return Err(error(format!("`{name}` is given twice")));
            }
            seen.push(name);
            config.set(name, value).map_err(error)?;
        }
        Ok(config)
    }
}

impl FaultConfig {
    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "loss" => self.loss = value.parse()?,
            "dup" => self.duplicate = value.parse()?,
            "reorder" => self.reorder = value.parse()?,
            "corrupt" => self.corrupt = value.parse()?,
            "delay" => self.delay = duration(value)?,
            "jitter" => self.jitter = duration(value)?,
            "rate" => self.rate = Some(rate(value)?),
            "limit" => {
                let range = 1..=FAULT_MAX_FRAMES;
                self.limit = value.parse().ok().filter(|n| range.contains(n)).ok_or_else(|| {
                    format!("a limit is a number of frames from 1 to {FAULT_MAX_FRAMES}")
                })?;
            }
            "bytes" => {
                let bytes = value.parse().ok().filter(|&n: &usize| n > 0);
                self.limit_bytes = Some(bytes.ok_or("a whole number of bytes above 0")?);
            }
            "aqm" => {
                self.aqm = match value {
                    "none" => Aqm::None,
                    "codel" => Aqm::Codel,
                    time => Aqm::Mark {
                        above: duration(time)
                            .map_err(|why| format!("`aqm` is none, codel or a time; {why}"))?,
                    },
                }
            }
            "seed" => {
                self.seed = value.parse().map_err(|_| "a seed is a whole number below 2^64")?;
            }
            "on" => {
                self.on = match value {
                    "both" => FaultDirection::Both,
                    "tx" => FaultDirection::Transmit,
                    "rx" => FaultDirection::Receive,
                    _ => return Err("`on` is both, tx or rx".into()),
                }
            }
            "cut" => {
                self.cut = match value {
                    "yes" => true,
                    "no" => false,
                    _ => return Err("`cut` is yes or no".into()),
                }
            }
            _ => return Err(format!("no such name; names are {NAMES}")),
        }
        Ok(())
    }
}

impl FromStr for Chance {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let why = || "a chance is a percentage from 0% to 100%, to at most 0.0001%".to_owned();
        let number = text.strip_suffix('%').ok_or_else(why)?;
        let millionths = decimal(number, 10_000).ok_or_else(why)?;
        match u32::try_from(millionths) {
            Ok(n) if n <= 1_000_000 => Ok(Self(n)),
            _ => Err(why()),
        }
    }
}

/// Units of times, and how many nanoseconds they have; the largest first.
const TIMES: [(u64, &str); 4] = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us"), (1, "ns")];

/// Units of rates, and how many bits a second they have.
const RATES: [(u64, &str); 4] =
    [(1_000_000_000, "gbit"), (1_000_000, "mbit"), (1_000, "kbit"), (1, "bit")];

fn duration(text: &str) -> Result<Duration, String> {
    let time = in_units(text, &TIMES).map(Duration::from_nanos);
    time.filter(|&time| time <= FAULT_MAX_DELAY).ok_or_else(|| {
        let most = FAULT_MAX_DELAY.as_secs();
        format!("a time is a number with s, ms, us or ns, at most {most}s")
    })
}

fn rate(text: &str) -> Result<u64, String> {
    let rate = in_units(text, &RATES).filter(|&n| n > 0);
    rate.ok_or_else(|| "a rate is a number above 0 with bit, kbit, mbit or gbit".to_owned())
}

/// A number with one of these units, in the smallest of them.
fn in_units(text: &str, units: &[(u64, &str)]) -> Option<u64> {
    let at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, name) = text.split_at(at);
    let (unit, _) = units.iter().find(|(_, known)| *known == name)?;
    decimal(number, *unit)
}

/// `text` times `unit`, a power of ten; `None` unless that is a whole number that fits.
fn decimal(text: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(fraction) {
        return None;
    }
    let mut value = whole.parse::<u64>().ok()?.checked_mul(unit)?;
    let mut place = unit;
    for digit in fraction.bytes().map(|b| u64::from(b - b'0')) {
        if !place.is_multiple_of(10) {
            return (digit == 0).then_some(value);
        }
        place /= 10;
        value = value.checked_add(digit * place)?;
    }
    Some(value)
}

impl fmt::Display for FaultConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let none = Self::default();
        let Self { loss, duplicate, reorder, corrupt, delay, jitter, rate, .. } = *self;
        let Self { limit, limit_bytes, aqm, seed, on, cut, .. } = *self;
        // Always there, so that a link without faults has a text too.
        write!(f, "loss={loss}")?;
        for (name, chance) in [("dup", duplicate), ("reorder", reorder), ("corrupt", corrupt)] {
            if chance != Chance::NEVER {
                write!(f, ",{name}={chance}")?;
            }
        }
        for (name, time) in [("delay", delay), ("jitter", jitter)] {
            if time != Duration::ZERO {
                write!(f, ",{name}=")?;
                with_unit(f, u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), &TIMES)?;
            }
        }
        if let Some(rate) = rate {
            f.write_str(",rate=")?;
            with_unit(f, rate, &RATES)?;
        }
        if limit != none.limit {
            write!(f, ",limit={limit}")?;
        }
        if let Some(bytes) = limit_bytes {
            write!(f, ",bytes={bytes}")?;
        }
        match aqm {
            Aqm::None => {}
            Aqm::Codel => f.write_str(",aqm=codel")?,
            Aqm::Mark { above } => {
                f.write_str(",aqm=")?;
                with_unit(f, u64::try_from(above.as_nanos()).unwrap_or(u64::MAX), &TIMES)?;
            }
        }
        if seed != none.seed {
            write!(f, ",seed={seed}")?;
        }
        match on {
            FaultDirection::Both => {}
            FaultDirection::Transmit => f.write_str(",on=tx")?,
            FaultDirection::Receive => f.write_str(",on=rx")?,
        }
        if !cut {
            f.write_str(",cut=no")?;
        }
        Ok(())
    }
}

/// In the largest unit that leaves no fraction.
fn with_unit(f: &mut fmt::Formatter<'_>, value: u64, units: &[(u64, &str)]) -> fmt::Result {
    match units.iter().find(|(unit, _)| value.is_multiple_of(*unit)) {
        Some((unit, name)) => write!(f, "{}{name}", value / unit),
        None => write!(f, "{value}"),
    }
}

impl fmt::Display for Chance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, fraction) = (self.0 / 10_000, self.0 % 10_000);
        if fraction == 0 {
            return write!(f, "{whole}%");
        }
        let digits = format!("{fraction:04}");
        write!(f, "{whole}.{}%", digits.trim_end_matches('0'))
    }
}
