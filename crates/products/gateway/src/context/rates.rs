//! [`Rates`], the speeds of permissions and what flows have used of them; [`Ruling`], rules with their rates.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use pagewire::services::Instant;

use crate::limits::{BROKEN_RETRY, RATE_GRACE, RATE_YIELD};
use crate::policy::Rules;
use crate::rate::ByteRate;
use crate::request::{Ask, Direction};

/// Rules, and what the guest's flows have used of their rates. Clones are of the same rates.
#[derive(Clone, Debug)]
pub(crate) struct Ruling {
    rules: Arc<Rules>,
    rates: Rates,
}

impl Ruling {
    /// These rules, whose rates are all idle.
    pub(crate) fn of(rules: Rules) -> Self {
        let rates = Rates::of(&rules);
        Self { rules: Arc::new(rules), rates }
    }

    /// The rules, and their rates for flows of the core with this number.
    pub(crate) fn on_shard(self, shard: usize) -> (Arc<Rules>, Rates) {
        (self.rules, self.rates.on_shard(shard))
    }
}

/// The rates of permissions, of which clones are the same. The cores of a guest may each use up a burst at the same
/// time; all of them wait then until the debt is paid. A rate that a panic has broken lets nothing pass.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rates {
    all: Arc<HashMap<usize, Mutex<RuleRate>>>,
    /// The number of the core whose flows these are.
    shard: usize,
}

/// The rate of one permission, of what the guest sends and of what it receives.
#[derive(Clone, Debug)]
struct RuleRate([SharedByteRate; 2]);

/// The speed in one direction, and the cores that wait for it.
#[derive(Clone, Debug)]
struct SharedByteRate {
    rate: ByteRate,
    /// The cores by number, of those that have had flows of the permission.
    cores: Vec<CoreTurn>,
    turns: u64,
}

#[derive(Clone, Copy, Debug)]
struct CoreTurn {
    /// The last turn in which the core has moved bytes.
    turn: u64,
    /// Until when the core is let in front of those that had a later turn.
    waits_until: Instant,
}

impl SharedByteRate {
    fn new(bits: u64) -> Self {
        Self { rate: ByteRate::new(bits), cores: Vec::new(), turns: 0 }
    }

    fn core(&mut self, shard: usize) -> Option<&mut CoreTurn> {
        if self.cores.len() <= shard {
            let none = CoreTurn { turn: 0, waits_until: Instant::ZERO };
            self.cores.resize(shard + 1, none);
        }
        self.cores.get_mut(shard)
    }

    /// The bytes that may pass now, or the time of more. A core lets those pass first that wait and had their turn
    /// before, so that each has its share.
    fn room(&mut self, now: Instant, shard: usize) -> Result<usize, Instant> {
        let room = self.rate.room(now);
        let own = self.core(shard).map_or(0, |core| core.turn);
        let others = self.cores.iter().enumerate().filter(|(other, _)| *other != shard);
        let is_late = room.is_ok() && {
            let mut others = others.map(|(_, core)| core);
            others.any(|core| core.waits_until > now && core.turn < own)
        };
        let room = if is_late { Err(now + RATE_YIELD) } else { room };
        if let Some(core) = self.core(shard) {
            core.waits_until = room.err().map_or(Instant::ZERO, |until| until + RATE_GRACE);
        }
        room
    }

    fn charge(&mut self, now: Instant, shard: usize, bytes: usize) {
        if bytes == 0 {
            return;
        }
        self.rate.charge(now, bytes);
        self.turns += 1;
        let turn = self.turns;
        if let Some(core) = self.core(shard) {
            core.turn = turn;
        }
    }
}

impl Rates {
    /// The rates of these rules, all of which are idle.
    pub(crate) fn of(rules: &Rules) -> Self {
        let rates = rules.speeds().map(|(n, speed)| {
            let both = [(); 2].map(|()| SharedByteRate::new(speed.bits()));
            (n, Mutex::new(RuleRate(both)))
        });
        Self { all: Arc::new(rates.collect()), shard: 0 }
    }

    /// The same rates, for flows of this core.
    fn on_shard(self, shard: usize) -> Self {
        Self { shard, ..self }
    }

    /// Whether no permission has a rate.
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The bytes that a flow may move out and in, each with the time of more if it is none.
    pub(crate) fn room(&self, now: Instant, ask: &Ask) -> Option<[Result<usize, Instant>; 2]> {
        Some(match self.all.get(&ask.rate?)?.lock() {
            Ok(mut rates) => rates.0.each_mut().map(|rate| rate.room(now, self.shard)),
            Err(_) => [Err(now + BROKEN_RETRY); 2],
        })
    }

    /// Counts bytes that a flow has moved out and in.
    pub(crate) fn charge(&self, now: Instant, ask: &Ask, moved: [usize; 2]) {
        if let Some(rates) = ask.rate.and_then(|n| self.all.get(&n))
            && let Ok(mut rates) = rates.lock()
        {
            let both = rates.0.iter_mut().zip(moved);
            both.for_each(|(rate, bytes)| rate.charge(now, self.shard, bytes));
        }
    }

    /// Whether a datagram may pass in this direction.
    pub(crate) fn admit(
        &self,
        now: Instant,
        rate: Option<usize>,
        direction: Direction,
        bytes: usize,
    ) -> bool {
        let Some(rates) = rate.and_then(|n| self.all.get(&n)) else { return true };
        let Ok(mut rates) = rates.lock() else { return false };
        let [out, inward] = &mut rates.0;
        let rate = if direction == Direction::Out { out } else { inward };
        rate.rate.admit(now, bytes)
    }
}
