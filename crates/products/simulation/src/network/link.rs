//! A [`Link`]: the settings of one direction of the way between two hosts, and their text form.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use pagewire_device::{Aqm, Chance, FaultConfig, FaultConfigError, FaultRng};

use crate::limits::{DEFAULT_LATENCY, DEFAULT_MTU, MIN_LATENCY, MIN_MTU};

/// A link, one direction: the delay, losses and limits that packets meet. By default a packet takes a
/// millisecond, the link carries 1,500 bytes, and loses nothing.
///
/// The text form has the names of [`FaultConfig`], and `mtu=`, `hole=`, `fail=` and `repair=`:
///
/// ```
/// use pagewire_simulation::Link;
///
/// let link: Link = "delay=20ms,loss=1%,rate=10mbit,limit=64,mtu=1400".parse()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    pub(crate) faults: FaultConfig,
    pub(crate) mtu: usize,
    /// Longer packets vanish without a word.
    pub(crate) hole: bool,
    pub(crate) flaps: Option<Flaps>,
}

/// Chances, a packet, that a link breaks and that it works again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flaps {
    pub(crate) fail: Chance,
    pub(crate) repair: Chance,
}

impl Flaps {
    /// Draws the state of the link for the next packet.
    pub(crate) fn is_broken(self, broken: bool, random: &mut FaultRng) -> bool {
        let draw = random.below(1_000_000) as u32;
        if broken {
            draw >= self.repair.as_per_million()
        } else {
            draw < self.fail.as_per_million()
        }
    }
}

/// The queue in front of a link's bandwidth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// Packets are lost when it is full.
    DropTail {
        /// Packets that it holds.
        frames: usize,
        /// Bytes that it holds; `None`: only packets are counted.
        bytes: Option<usize>,
    },
    /// Controlled delay (RFC 8289).
    CoDel,
    /// Marks packets that waited for longer, if their receiver reads marks (RFC 3168).
    EcnMark {
        /// The longest wait without a mark.
        above: Duration,
    },
}

impl Default for Link {
    fn default() -> Self {
        Self::new()
    }
}

impl Link {
    /// A link without faults.
    pub fn new() -> Self {
        let faults = FaultConfig { delay: DEFAULT_LATENCY, ..FaultConfig::default() };
        Self { faults, mtu: DEFAULT_MTU, hole: false, flaps: None }
    }

    /// The queue in front of the bandwidth: by default 1,000 packets, drop-tail.
    pub fn queue(mut self, queue: Queue) -> Self {
        match queue {
            Queue::DropTail { frames, bytes } => {
                (self.faults.limit, self.faults.limit_bytes) = (frames.max(1), bytes);
                self.faults.aqm = Aqm::None;
            }
            Queue::CoDel => self.faults.aqm = Aqm::Codel,
            Queue::EcnMark { above } => self.faults.aqm = Aqm::Mark { above },
        }
        self
    }

    /// Chances, at each packet, that a working link breaks and that a broken one works again: losses
    /// in bursts.
    pub fn flaps(mut self, fail: f64, repair: f64) -> Self {
        self.flaps = Some(Flaps { fail: chance(fail), repair: chance(repair) });
        self
    }

    /// The longest packet, in bytes of IP packet, at least 1,280. The sender of a longer one that may
    /// not be fragmented gets an ICMP error (RFC 1191, RFC 8201). Hosts themselves send up to the MTU of the
    /// simulation's default link.
    pub fn mtu(mut self, bytes: u16) -> Self {
        (self.mtu, self.hole) = (usize::from(bytes).max(MIN_MTU), false);
        self
    }

    /// As [`mtu`](Self::mtu), without an ICMP error: a black hole (RFC 2923).
    pub fn black_hole(mut self, above: u16) -> Self {
        (self.mtu, self.hole) = (usize::from(above).max(MIN_MTU), true);
        self
    }

    /// The shortest time that a packet takes.
    pub(crate) fn least_latency(&self) -> Duration {
        let FaultConfig { delay, jitter, .. } = self.line(0);
        delay - jitter
    }

    /// The settings of the line, with jitter that leaves the shortest time.
    pub(crate) fn line(&self, seed: u64) -> FaultConfig {
        let delay = self.faults.delay.max(MIN_LATENCY);
        let jitter = self.faults.jitter.min(delay - MIN_LATENCY);
        FaultConfig { delay, jitter, seed, cut: true, ..self.faults }
    }
}

pagewire_mem::setters! {
    Link:
    /// The time on the line. At least a microsecond, so that time moves when hosts talk.
    latency(time: Duration): faults.delay = time;
    /// How far the time varies, up and down, evenly; packets keep their order.
    jitter(time: Duration): faults.jitter = time;
    /// The part of packets that is lost, from 0 to 1.
    loss(part: f64): faults.loss = chance(part);
    /// The part of packets that arrives twice, from 0 to 1.
    duplicate(part: f64): faults.duplicate = chance(part);
    /// The part of packets that others overtake, from 0 to 1.
    reorder(part: f64): faults.reorder = chance(part);
    /// The part of packets in which one bit is flipped, from 0 to 1.
    corrupt(part: f64): faults.corrupt = chance(part);
    /// Bits in a second. Packets wait in a [queue](Self::queue) for it.
    bandwidth(bits: u64): faults.rate = Some(bits.max(1));
}

/// A part from 0 to 1, in millionths.
fn chance(part: f64) -> Chance {
    // Saturates; not a number becomes 0.
    Chance::per_million((part.clamp(0.0, 1.0) * 1e6).round() as u32)
}

/// A text that is not a [`Link`]; says which part and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// A part that [`FaultConfig`] does not know either.
    #[error("{0}{also}", also = if .0.is_name_unknown() { "; or mtu, hole, fail, repair" } else { "" })]
    Fault(#[from] FaultConfigError),
    /// An MTU is a number of bytes.
    #[error("link `{0}`: a number of bytes from 1280 to 65535")]
    Mtu(String),
    /// A chance is a percentage.
    #[error("link `{0}`: a percentage from 0% to 100%")]
    Chance(String),
}

/// As [`FromStr`] reads it.
impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.faults, f)?;
        if self.hole {
            write!(f, ",hole={}", self.mtu)?;
        } else if self.mtu != DEFAULT_MTU {
            write!(f, ",mtu={}", self.mtu)?;
        }
        match self.flaps {
            Some(Flaps { fail, repair }) => write!(f, ",fail={fail},repair={repair}"),
            None => Ok(()),
        }
    }
}

impl FromStr for Link {
    type Err = LinkError;

    fn from_str(text: &str) -> Result<Self, LinkError> {
        let mut link = Self::new();
        let mut faults = Vec::new();
        let (mut delay, mut flaps) = (false, (None, None));
        for part in text.split(',').map(str::trim) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let bytes = || {
                let bytes = value.trim().parse().ok().filter(|&n: &u16| usize::from(n) >= MIN_MTU);
                bytes.ok_or_else(|| LinkError::Mtu(part.to_owned()))
            };
            let chance = || {
                let chance =
                    value.trim().parse().map_err(|_| LinkError::Chance(part.to_owned()))?;
                Ok::<Option<Chance>, LinkError>(Some(chance))
            };
            match name.trim() {
                "mtu" => link = link.mtu(bytes()?),
                "hole" => link = link.black_hole(bytes()?),
                "fail" => flaps.0 = chance()?,
                "repair" => flaps.1 = chance()?,
                other => {
                    delay |= other == "delay";
                    faults.push(part);
                }
            }
        }
        if !faults.is_empty() {
            link.faults = faults.join(",").parse()?;
        }
        if !delay {
            link.faults.delay = DEFAULT_LATENCY;
        }
        if flaps != (None, None) {
            let (fail, repair) = (flaps.0.unwrap_or_default(), flaps.1.unwrap_or(Chance::ALWAYS));
            link.flaps = Some(Flaps { fail, repair });
        }
        Ok(link)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_link_is_read_from_text() {
        let text = "delay=20ms,loss=1%,rate=10mbit,limit=64,mtu=1400,fail=2%,repair=50%";
        let link = Link::new()
            .latency(Duration::from_millis(20))
            .loss(0.01)
            .bandwidth(10_000_000)
            .queue(Queue::DropTail { frames: 64, bytes: None })
            .mtu(1400)
            .flaps(0.02, 0.5);
        assert_eq!(text.parse(), Ok(link));
        assert_eq!("loss=0%".parse(), Ok(Link::new()), "a millisecond is the default");
        assert_eq!("hole=1300".parse(), Ok(Link::new().black_hole(1300)));
    }

    #[test]
    fn a_link_is_text_and_back() {
        for text in [
            "loss=0%,delay=1ms",
            "loss=1%,dup=0.5%,delay=20ms,jitter=3ms,rate=10mbit,limit=64,mtu=1400",
            "loss=0%,delay=7us,hole=1300,fail=0.1%,repair=20%",
        ] {
            assert_eq!(text.parse::<Link>().map(|link| link.to_string()).as_deref(), Ok(text));
        }
    }

    #[test]
    fn a_link_that_breaks_by_text_works_again_with_the_next_packet_unless_told_otherwise() {
        assert_eq!("fail=2%".parse(), Ok(Link::new().flaps(0.02, 1.0)));
        assert_eq!("repair=50%".parse(), Ok(Link::new().flaps(0.0, 0.5)));
    }

    #[test]
    fn of_two_queues_the_later_counts() {
        let drop_tail = Queue::DropTail { frames: 7, bytes: None };
        let mark = Queue::EcnMark { above: Duration::from_millis(3) };
        let with_turns_paused = Link::new().queue(drop_tail);
        assert_eq!(Link::new().queue(Queue::CoDel).queue(drop_tail), with_turns_paused);
        assert_eq!(Link::new().queue(mark).queue(drop_tail), with_turns_paused);
        let bytes = Queue::DropTail { frames: 9, bytes: Some(5_000) };
        assert_eq!(Link::new().queue(bytes).queue(drop_tail), with_turns_paused);
        assert_eq!(Link::new().queue(mark).queue(Queue::CoDel), Link::new().queue(Queue::CoDel));
    }

    /// Any change of a link.
    fn change() -> impl Strategy<Value = fn(Link, u32) -> Link> {
        fn ms(n: u32) -> Duration {
            Duration::from_millis(u64::from(n) + 1)
        }
        fn part(n: u32) -> f64 {
            f64::from(n) / 1000.0
        }
        let all: Vec<fn(Link, u32) -> Link> = vec![
            |link, n| link.latency(ms(n)),
            |link, n| link.jitter(ms(n)),
            |link, n| link.loss(part(n)),
            |link, n| link.duplicate(part(n)),
            |link, n| link.reorder(part(n)),
            |link, n| link.corrupt(part(n)),
            |link, n| link.bandwidth(1_000 + u64::from(n)),
            |link, n| link.queue(Queue::DropTail { frames: n as usize + 1, bytes: None }),
            |link, n| link.flaps(part(n), part(1000 - n)),
            |link, n| link.mtu(1280 + n as u16),
            |link, n| link.black_hole(1280 + n as u16),
        ];
        proptest::sample::select(all)
    }

    proptest! {
        #[test]
        fn every_link_is_text_and_back(changes in vec((change(), 0u32..1000), 0..12)) {
            let link = changes.into_iter().fold(Link::new(), |link, (change, n)| change(link, n));
            let text = link.to_string();
            prop_assert_eq!(text.parse::<Link>(), Ok(link), "{}", text);
        }
    }

    #[test]
    fn a_bad_setting_is_named() {
        for (text, word) in [
            ("los=1%", "`los=1%`: no such name"),
            ("delay=20", "`delay=20`: a time is a number"),
            ("mtu=100", "`mtu=100`: a number of bytes from 1280"),
            ("fail=2", "`fail=2`: a percentage"),
        ] {
            let error = text.parse::<Link>().expect_err(text).to_string();
            assert!(error.contains(word), "{text}: {error}");
            // Names of settings help who has given none of them.
            assert_eq!(error.contains("hole"), text == "los=1%", "{text}: {error}");
        }
    }

    #[test]
    fn every_packet_takes_a_microsecond_at_least() {
        let ms = Duration::from_millis;
        assert_eq!(Link::new().latency(Duration::ZERO).least_latency(), MIN_LATENCY);
        assert_eq!(Link::new().latency(ms(5)).jitter(ms(2)).least_latency(), ms(3));
        assert_eq!(Link::new().latency(ms(5)).jitter(ms(9)).least_latency(), MIN_LATENCY);
    }

    #[test]
    fn parts_out_of_range_are_never_or_always() {
        assert_eq!(chance(-1.0), Chance::NEVER);
        assert_eq!(chance(7.0), Chance::ALWAYS);
        assert_eq!(chance(f64::NAN), Chance::NEVER);
        assert_eq!(chance(0.05), Chance::percent(5));
    }
}
