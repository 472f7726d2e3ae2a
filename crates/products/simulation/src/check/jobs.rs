//! Settings of a check from the environment: which seeds run, how many at the same time, and whether twice.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use crate::limits::JOB_WAIT;

/// The environment variable that widens a check to this number of seeds, from the first one on, or to a range
/// of them: `1000`, or `5000..6000`.
pub const SEEDS_VARIABLE: &str = "PAGEWIRE_SEEDS";

/// The environment variable that says how many seeds run at the same time, in all checks of a process.
pub const JOBS_VARIABLE: &str = "PAGEWIRE_JOBS";

/// The environment variable that lets a check run every seed that passes twice: `1`.
pub const TWICE_VARIABLE: &str = "PAGEWIRE_TWICE";

/// The number of a test among those that nextest runs at the same time, from 0 on.
const SLOT_VARIABLE: &str = "NEXTEST_TEST_GLOBAL_SLOT";

/// The seeds that [`SEEDS_VARIABLE`] asks for, where a check begins with `first`.
pub(crate) fn seeds(first: u64) -> Option<Range<u64>> {
    let text = std::env::var(SEEDS_VARIABLE).ok()?;
    let range = parse(&text, first);
    assert!(
        range.is_some(),
        "{SEEDS_VARIABLE}={text} is neither a number of seeds nor a range of them, as 5000..6000"
    );
    range
}

fn parse(text: &str, first: u64) -> Option<Range<u64>> {
    match text.split_once("..") {
        Some((from, to)) => Some(from.parse().ok()?..to.parse().ok()?),
        None => Some(first..first.saturating_add(text.parse().ok()?)),
    }
}

pub(crate) fn twice() -> bool {
    number(TWICE_VARIABLE).is_some_and(|number| number > 0)
}

pub(crate) fn jobs() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let slot = std::env::var(SLOT_VARIABLE).ok().and_then(|slot| slot.parse().ok());
    number(JOBS_VARIABLE).map_or(threads_of_slot(cores, slot), |jobs| jobs.max(1) as usize)
}

/// The number of threads of one of several processes, each of which knows only its slot: all cores for one that
/// is alone, and together not many more than there are cores.
fn threads_of_slot(cores: usize, slot: Option<usize>) -> usize {
    cores.div_ceil(slot.unwrap_or(0).saturating_add(1))
}

/// Threads of all checks of this process that run a seed, without the first of each check.
static BUSY: AtomicUsize = AtomicUsize::new(0);

/// Permission for a thread of a check to run a seed; given back on drop.
pub(crate) struct JobPermit(());

impl JobPermit {
    /// Waits until fewer than `jobs` threads run a seed; `None` once `is_over`. The first thread of a
    /// check needs none, so every check gets on, also one inside of another.
    pub(crate) fn wait(jobs: usize, is_over: impl Fn() -> bool) -> Option<Self> {
        let free = |busy: usize| (busy + 1 < jobs).then_some(busy + 1);
        while !is_over() {
            if BUSY.fetch_update(SeqCst, SeqCst, free).is_ok() {
                return Some(Self(()));
            }
            std::thread::sleep(JOB_WAIT);
        }
        None
    }
}

impl Drop for JobPermit {
    fn drop(&mut self) {
        BUSY.fetch_sub(1, SeqCst);
    }
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    match text.parse() {
        Ok(number) => Some(number),
        Err(_) => panic!("{variable}={text} is not a whole number below 2^64"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_a_number_from_the_first_one_or_a_range() {
        assert_eq!(parse("1000", 7), Some(7..1007));
        assert_eq!(parse("5000..6000", 7), Some(5000..6000));
        for text in ["", "..", "5..", "a", "1...2", "-1", "1000 "] {
            assert_eq!(parse(text, 7), None, "{text:?}");
        }
    }

    #[test]
    fn processes_beside_each_other_have_few_threads_more_than_cores() {
        for cores in [1, 2, 8, 64] {
            assert_eq!(threads_of_slot(cores, None), cores);
            assert_eq!(threads_of_slot(cores, Some(0)), cores, "a test that is alone");
            let all: usize = (0..cores).map(|slot| threads_of_slot(cores, Some(slot))).sum();
            assert!(all <= 6 * cores, "{all} threads for {cores} cores");
        }
    }
}
