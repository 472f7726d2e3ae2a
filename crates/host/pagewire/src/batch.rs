//! A batch of answers: where a task drives the host, and one step has woken several tasks, their writes wait for
//! the driver's next step, which sends them at once. The driver's step is behind those tasks in the queue of the
//! runtime.

use std::time::Duration;

use pagewire_mem::Instant;

/// How long output waits at most for the rest of a batch.
const LONGEST: Duration = Duration::from_micros(50);

/// The longest time between two writes of a batch: a task that computes for longer holds up the answers of
/// others.
const LONGEST_PAUSE: Duration = Duration::from_micros(100);

/// No batches for this long after such a task.
const REST: Duration = Duration::from_millis(100);

/// The batch of a host, if one is open.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// When the output has to leave, and when the last of it came.
    open: Option<(Instant, Instant)>,
    rests_until: Instant,
}

impl Batch {
    /// A step has woken several tasks.
    pub(crate) fn begin(&mut self, now: Instant) {
        if now >= self.rests_until {
            self.open = Some((now + LONGEST, now));
        }
    }

    /// Whether output that came now may wait. Where it may not, all output leaves.
    #[inline]
    pub(crate) fn defers(&mut self, now: Instant) -> bool {
        let Some((until, last)) = &mut self.open else { return false };
        if now > *last + LONGEST_PAUSE {
            (self.open, self.rests_until) = (None, now + REST);
            return false;
        }
        *last = now;
        if now < *until {
            return true;
        }
        *until = now + LONGEST;
        false
    }

    /// The driver takes a step, which sends all output.
    pub(crate) fn end(&mut self, now: Instant) {
        self.defers(now);
        self.open = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u32) -> Instant {
        Instant::ZERO + us * Duration::from_micros(1)
    }

    #[test]
    fn output_waits_for_the_step_that_follows_and_fifty_microseconds_at_most() {
        let mut batch = Batch::default();
        assert!(!batch.defers(at(0)), "one task was woken");
        batch.begin(at(0));
        assert!(batch.defers(at(3)) && batch.defers(at(49)));
        assert!(!batch.defers(at(51)), "all leave");
        assert!(batch.defers(at(60)), "the rest of the batch");
        batch.end(at(70));
        assert!(!batch.defers(at(71)));
    }

    #[test]
    fn a_task_that_computes_for_long_ends_batches_for_a_while() {
        let mut batch = Batch::default();
        batch.begin(at(0));
        assert!(batch.defers(at(3)));
        batch.end(at(500));
        batch.begin(at(510));
        assert!(batch.open.is_none());
        batch.begin(at(500) + REST);
        assert!(batch.open.is_some());
    }
}
