//! [`Rates`], the speeds of permissions and what flows have used of them.

use std::collections::HashMap;

use pagewire::services::Instant;

use crate::policy::Rules;
use crate::rate::ByteRate;
use crate::request::{Ask, Direction};

/// The rates of permissions.
#[derive(Debug, Default)]
pub(crate) struct Rates(HashMap<usize, [ByteRate; 2]>);

impl Rates {
    /// The rates of these rules, all of which are idle.
    pub(crate) fn of(rules: &Rules) -> Self {
        Self(rules.speeds().map(|(n, speed)| (n, [ByteRate::new(speed.bits()); 2])).collect())
    }

    /// Whether no permission has a rate.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes that a flow may move out and in, each with the time of more if it is none.
    pub(crate) fn room(&self, now: Instant, ask: &Ask) -> Option<[Result<usize, Instant>; 2]> {
        let rates = self.0.get(&ask.rate?)?;
        Some(rates.map(|rate| rate.room(now)))
    }

    /// Counts bytes that a flow has moved out and in.
    pub(crate) fn charge(&mut self, now: Instant, ask: &Ask, moved: [usize; 2]) {
        let rates = ask.rate.and_then(|n| self.0.get_mut(&n));
        for (rate, bytes) in rates.into_iter().flatten().zip(moved) {
            rate.charge(now, bytes);
        }
    }

    /// Whether a datagram may pass in this direction.
    pub(crate) fn admit(
        &mut self,
        now: Instant,
        rate: Option<usize>,
        direction: Direction,
        bytes: usize,
    ) -> bool {
        let Some([out, inward]) = rate.and_then(|n| self.0.get_mut(&n)) else { return true };
        let rate = if direction == Direction::Out { out } else { inward };
        rate.admit(now, bytes)
    }
}
