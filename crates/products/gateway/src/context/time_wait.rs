//! [`TimeWait`]: connections that the guest has ended first, whose ports of this machine are in TIME-WAIT.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use pagewire::services::Instant;

use crate::limits::{BROKEN_RETRY, LEAVES_BURST, LEAVES_PER_SECOND, LEFT_DESTINATIONS, LEFT_LOOK};
use crate::rate::Rate;

/// Connections to each destination that the guest ended first. One that a panic has broken has no port left.
#[derive(Clone, Default)]
pub(crate) struct TimeWait(Arc<Mutex<HashMap<SocketAddr, Rate>>>);

impl TimeWait {
    /// Counts a connection that the guest has ended first: its port stays in TIME-WAIT. (To loopback addresses Linux
    /// reuses such a port after a second.)
    pub(crate) fn note(&self, now: Instant, to: SocketAddr) {
        if to.ip().is_loopback() {
            return;
        }
        let Ok(mut all) = self.0.lock() else { return };
        if all.len() >= LEFT_DESTINATIONS && !all.contains_key(&to) {
            let some = all.iter().take(LEFT_LOOK);
            let least = some.min_by_key(|(_, rate)| rate.busy_until()).map(|(to, _)| *to);
            least.map(|to| all.remove(&to));
        }
        let fresh = || Rate::new(LEAVES_PER_SECOND, LEAVES_BURST);
        all.entry(to).or_insert_with(fresh).charge(now, 1);
    }

    /// Whether the destination has ports left; if not, the time of the next.
    pub(crate) fn check(&self, now: Instant, to: SocketAddr) -> Result<(), Instant> {
        let all = self.0.lock().map_err(|_| now + BROKEN_RETRY)?;
        all.get(&to).map_or(Ok(()), |rate| rate.check(now))
    }

    /// Number of connections to the destination in TIME-WAIT.
    #[cfg(test)]
    pub(crate) fn len(&self, now: Instant, to: SocketAddr) -> u32 {
        let busy = self.0.lock().unwrap().get(&to).map_or(Instant::ZERO, Rate::busy_until);
        (busy.saturating_since(now) * LEAVES_PER_SECOND).as_secs() as u32
    }
}
