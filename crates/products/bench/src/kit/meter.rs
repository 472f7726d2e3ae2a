//! The meters of a round ([`Meter`], [`Samples`]), and the spread of several rounds ([`Spread`]).

use std::time::{Duration, Instant};

use crate::sys::thread_time;

/// Warm-up of each round: windows open, pages are touched, spins adapt.
pub(crate) const WARM_UP: Duration = Duration::from_millis(200);

/// Most samples of one round: at one microsecond each, four seconds.
const MAX_SAMPLES: usize = 4 << 20;

/// Counts what a receiver gets from the end of the warm-up to the end of the round.
pub(crate) struct Meter {
    begun: Option<(Instant, Duration)>,
    warm_until: Instant,
    length: Duration,
    bytes: u64,
}

/// The bytes that a receiver got in a round, and their cost.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Round {
    pub(crate) bytes: u64,
    pub(crate) time: Duration,
    /// CPU time of the receiving thread.
    pub(crate) receiver_cpu: Duration,
}

impl Round {
    pub(crate) fn gbit_per_s(&self) -> f64 {
        self.bytes as f64 * 8e-9 / self.time.as_secs_f64().max(1e-9)
    }

    /// The receiver's CPU time for each MiB, in microseconds: of all rounds, and of single ones.
    pub(crate) fn us_per_mib(rounds: &[Self]) -> (f64, Spread) {
        let cpu = rounds.iter().map(|round| round.receiver_cpu).sum();
        let all = us_per_mib(cpu, rounds.iter().map(|round| round.bytes).sum());
        (all, Spread::of(rounds.iter().map(|round| us_per_mib(round.receiver_cpu, round.bytes))))
    }
}

/// CPU time for each MiB, in microseconds.
pub(crate) fn us_per_mib(cpu: Duration, bytes: u64) -> f64 {
    cpu.as_secs_f64() * 1e6 / (bytes as f64 / f64::from(1 << 20)).max(1e-9)
}

impl Meter {
    pub(crate) fn new(seconds: f64) -> Self {
        let length = Duration::from_secs_f64(seconds);
        Self { begun: None, warm_until: Instant::now() + WARM_UP, length, bytes: 0 }
    }

    /// Whether the warm-up is over.
    pub(crate) fn is_running(&self) -> bool {
        self.begun.is_some()
    }

    /// Counts received bytes; returns the result when the round is over.
    pub(crate) fn count(&mut self, bytes: usize) -> Option<Round> {
        let now = Instant::now();
        let Some((begun, cpu)) = self.begun else {
            if now >= self.warm_until {
                self.begun = Some((now, thread_time()));
            }
            return None;
        };
        self.bytes += bytes as u64;
        let time = now - begun;
        (time >= self.length).then(|| Round {
            bytes: self.bytes,
            time,
            receiver_cpu: thread_time().saturating_sub(cpu),
        })
    }
}

/// Round-trip times, in nanoseconds, after a warm-up.
pub(crate) struct Samples {
    warm_until: Instant,
    until: Instant,
    all: Vec<u32>,
}

impl Samples {
    pub(crate) fn new(warm_up: Duration, seconds: f64) -> Self {
        let warm_until = Instant::now() + warm_up;
        let until = warm_until + Duration::from_secs_f64(seconds);
        Self { warm_until, until, all: Vec::with_capacity(MAX_SAMPLES) }
    }

    /// Adds one that began at `started` and has just ended; `true`: the round is over.
    pub(crate) fn add(&mut self, started: Instant) -> bool {
        let now = Instant::now();
        if now >= self.warm_until && self.all.len() < MAX_SAMPLES {
            self.all.push(u32::try_from((now - started).as_nanos()).unwrap_or(u32::MAX));
        }
        now >= self.until
    }

    /// The shortest first.
    pub(crate) fn sorted(mut self) -> Vec<u32> {
        self.all.sort_unstable();
        self.all
    }
}

/// The median of several values, the least and the most.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spread<T = f64> {
    pub(crate) min: T,
    pub(crate) median: T,
    pub(crate) max: T,
}

impl<T: Copy> Spread<T> {
    /// The spread in the order of `value`; `None` if there are no values.
    pub(crate) fn by(all: impl IntoIterator<Item = T>, value: impl Fn(&T) -> f64) -> Option<Self> {
        let mut all: Vec<T> = all.into_iter().collect();
        all.sort_by(|a, b| value(a).total_cmp(&value(b)));
        let median = *all.get(all.len() / 2)?;
        Some(Self { min: *all.first()?, median, max: *all.last()? })
    }
}

impl Spread {
    /// The spread of numbers; zeros if there are none.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Self {
        Self::by(values, |value| *value).unwrap_or_default()
    }
}

/// The value below which a share `p` of the sorted samples lie.
pub(crate) fn percentile(sorted: &[u32], p: f64) -> u32 {
    let at = (sorted.len() as f64 * p) as usize;
    sorted.get(at.min(sorted.len().saturating_sub(1))).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_sorted_samples() {
        let samples: Vec<u32> = (0..100).collect();
        assert_eq!((percentile(&samples, 0.5), percentile(&samples, 0.99)), (50, 99));
        assert_eq!(percentile(&[], 0.5), 0);
        assert_eq!(percentile(&[7], 0.99), 7);
    }

    #[test]
    fn the_median_of_an_even_number_is_the_upper_one() {
        let Spread { min, median, max } = Spread::of([3.0, 1.0, 4.0, 2.0]);
        assert_eq!((min, median, max), (1.0, 3.0, 4.0));
        assert_eq!(Spread::of([]).median, 0.0);
    }
}
