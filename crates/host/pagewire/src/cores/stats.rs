//! The counts of a host of several cores ([`CoresStats`]).

use std::fmt;

use crate::stats::Stats;

/// Counts of a host of several cores at one moment. `Display` is the report of all together, and then, if there are
/// several shards, the packets that each received, passed on and took.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CoresStats {
    /// The counts of each shard.
    pub shards: Vec<Stats>,
}

impl CoresStats {
    pub(super) fn new(shards: Vec<Stats>) -> Self {
        Self { shards }
    }

    /// The sums over all shards. `None` without any.
    pub fn total(&self) -> Option<Stats> {
        let (first, others) = self.shards.split_first()?;
        let mut total = first.clone();
        others.iter().for_each(|stats| total.add(stats));
        Some(total)
    }
}

impl fmt::Display for CoresStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(total) = self.total() {
            write!(f, "{total}")?;
        }
        if self.shards.len() == 1 {
            return Ok(());
        }
        for (index, stats) in self.shards.iter().enumerate() {
            let counters = &stats.counters;
            writeln!(
                f,
                "core {index}: {} frames received, {} packets passed to other cores, {} taken from them",
                stats.links.iter().map(|link| link.device.rx_frames).sum::<u64>(),
                counters.strays_passed,
                counters.strays_taken,
            )?;
        }
        Ok(())
    }
}
