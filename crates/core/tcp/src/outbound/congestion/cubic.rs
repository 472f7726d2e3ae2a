//! CUBIC (RFC 9438), in integers: windows in segments, times in ticks of 1/1024 second. Section
//! numbers are the RFC's; intervals and rounding that it leaves open are Linux's.

use pagewire_mem::Instant;

/// C = 0.4 (section 5), in 1/1024.
const C: u64 = 410;
/// beta_cubic = 0.7 (section 4.6), in 1/1024.
const BETA: u64 = 717;
/// Ticks in a second, as a power of two.
const TICK_BITS: u32 = 10;
/// Times are cut here, in ticks: 1024 seconds, so that a cube fits 64 bits.
const MAX_TICKS: u64 = 1 << 20;
/// Eighths of a window that Reno's estimate takes to grow by one: 1 / alpha_cubic, where
/// alpha_cubic = 3 * (1 - beta) / (1 + beta) = 9/17 (section 4.3).
const RENO_EIGHTHS: u64 = 15;
/// The cubic function is computed again for the same window after this many milliseconds.
const REFRESH_MS: u32 = 31;

/// State of congestion avoidance.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cubic {
    /// When the present stage of congestion avoidance began (t_epoch), milliseconds, less pauses.
    epoch_ms: u32,
    /// When the step was computed last, milliseconds, and for which window.
    last_ms: u32,
    last_cwnd: u32,
    /// Acknowledged segments for each step of the window.
    per_step: u32,
    /// Segments acknowledged and not yet taken into Reno's estimate, and the estimate (W_est).
    acked: u32,
    w_est: u32,
    /// The window at which the last loss happened, or what fast convergence made of it; 0: none.
    w_max: u32,
    /// `w_max` before the last cut.
    undo_w_max: u32,
    /// The plateau that this stage goes for.
    origin: u32,
    /// Ticks from the epoch to the plateau.
    k: u32,
    /// A stage has begun.
    begun: bool,
}

impl Cubic {
    /// Whether the stage began less than a second ago.
    pub(super) fn began_lately(&self, now: Instant) -> bool {
        self.begun && millis(now).wrapping_sub(self.epoch_ms) < 1000
    }

    /// Segments to acknowledge for each step of the window. `delay`: the least round trip in microseconds.
    pub(super) fn acks_per_step(&mut self, cwnd: u32, now: Instant, acked: u32, delay: u32) -> u32 {
        let now = millis(now);
        self.acked = self.acked.saturating_add(acked);
        let age = now.wrapping_sub(self.last_ms);
        if self.last_cwnd == cwnd && age <= REFRESH_MS && self.per_step > 0 {
            return self.per_step;
        }
        if !self.begun || age > 0 || self.per_step == 0 {
            (self.last_cwnd, self.last_ms) = (cwnd, now);
            if !self.begun {
                self.begin_epoch(cwnd, now, acked);
            }
            self.per_step = self.cubic_step(cwnd, now, delay);
        }
        self.reno_step(cwnd);
        // > 4.2: target [...] The lower and upper bounds below ensure that CUBIC's congestion
        // > window increase rate is non-decreasing and is less than the increase rate of slow start
        // > [...] 1.5 * cwnd
        self.per_step = self.per_step.max(2);
        self.per_step
    }

    /// > 4.2: CUBIC computes the target congestion window size after the next RTT using [...]
    /// > W_cubic(t + RTT)
    ///
    /// > 4.4, 4.5: cwnd MUST be incremented by (target - cwnd) / cwnd for each received new ACK
    fn cubic_step(&self, cwnd: u32, now: u32, delay_min: u32) -> u32 {
        let ms = u64::from(now.wrapping_sub(self.epoch_ms)) + u64::from(delay_min / 1000);
        let ticks = ((ms << TICK_BITS) / 1000).min(MAX_TICKS);
        let k = u64::from(self.k);
        let offset = ticks.abs_diff(k).min(MAX_TICKS);
        // > 4.2: W_cubic(t) = C * (t - K)^3 + W_max
        let cube = u128::from(offset) * u128::from(offset) * u128::from(offset);
        let delta = ((cube * u128::from(C)) >> (10 + 3 * TICK_BITS)) as u32;
        let target = if ticks < k {
            self.origin.saturating_sub(delta)
        } else {
            self.origin.saturating_add(delta)
        };
        let per_step =
            if target > cwnd { cwnd / (target - cwnd) } else { cwnd.saturating_mul(100) };
        // > 4.10: [...] W_max is undefined: before the first loss, at least 5% in a round trip.
        if self.w_max == 0 { per_step.min(20) } else { per_step }
    }

    /// > 4.3: W_est = W_est + alpha_cubic * segments_acked / cwnd [...] CUBIC checks whether
    /// > W_cubic(t) is less than W_est. If so, CUBIC is in the Reno-friendly region and cwnd SHOULD be
    /// > set to W_est at each reception of a new ACK.
    fn reno_step(&mut self, cwnd: u32) {
        let for_one = ((u64::from(cwnd) * RENO_EIGHTHS) >> 3).max(1);
        let for_one = u32::try_from(for_one).unwrap_or(u32::MAX);
        let grown = self.acked.saturating_sub(1) / for_one;
        self.acked -= grown * for_one;
        self.w_est = self.w_est.saturating_add(grown);
        if self.w_est > cwnd {
            self.per_step = self.per_step.min(cwnd / (self.w_est - cwnd));
        }
    }

    fn begin_epoch(&mut self, cwnd: u32, now: u32, acked: u32) {
        self.begun = true;
        self.epoch_ms = now;
        self.acked = acked;
        self.w_est = cwnd;
        if cwnd >= self.w_max {
            // Sections 4.8 and 4.10: no plateau to come back to.
            (self.origin, self.k) = (cwnd, 0);
        } else {
            // > 4.2: K = cubic_root((W_max - cwnd_epoch) / C), here in ticks
            let d = u128::from(self.w_max - cwnd) << (10 + 3 * TICK_BITS);
            self.k = cube_root(u64::try_from(d / u128::from(C)).unwrap_or(u64::MAX));
            self.origin = self.w_max;
        }
    }

    /// The new threshold after a congestion event (section 4.6). Takes the window for the flight,
    /// as Linux does and the RFC allows where a window only grows while it is the limit:
    ///
    /// > 4.6: Implementations that use cwnd MUST use other measures to prevent cwnd from growing
    /// > when the volume of bytes in flight is smaller than cwnd.
    pub(super) fn decrease(&mut self, cwnd: u32) -> u32 {
        self.begun = false;
        self.undo_w_max = self.w_max;
        // > 4.7 (fast convergence): W_max = cwnd * (1 + beta_cubic) / 2 if cwnd < W_max [...]
        // > cwnd otherwise
        self.w_max =
            if cwnd < self.w_max { (u64::from(cwnd) * (1024 + BETA) / 2048) as u32 } else { cwnd };
        ((u64::from(cwnd) * BETA / 1024) as u32).max(2)
    }

    /// > 4.8: During the first congestion avoidance stage after a timeout, [...] K is set to 0, and
    /// > W_max is set to the congestion window size at the beginning of the current congestion
    /// > avoidance stage.
    pub(super) fn on_timeout(&mut self) {
        *self = Self { undo_w_max: self.undo_w_max, ..Self::default() };
    }

    /// Takes back the last [`decrease`](Self::decrease); the next stage begins at that window.
    pub(super) fn undo(&mut self) {
        self.w_max = self.undo_w_max;
        self.begun = false;
    }

    /// > 4.2: The elapsed time t [...] MUST NOT include periods during which cwnd has not been
    /// > updated due to application-limited behavior
    pub(super) fn skip_idle(&mut self, now: Instant, last: Instant) {
        if self.begun {
            let idle = now.saturating_since(last).as_millis() as u32;
            let since = millis(now).wrapping_sub(self.epoch_ms);
            self.epoch_ms = self.epoch_ms.wrapping_add(idle.min(since));
        }
    }

    /// Stops the clock of the stage while the flight is smaller than the window.
    pub(super) fn on_application_limited(&mut self, now: Instant) {
        if self.begun {
            let now = millis(now);
            self.epoch_ms = self.epoch_ms.wrapping_add(now.wrapping_sub(self.last_ms));
            self.last_ms = now;
        }
    }
}

fn millis(now: Instant) -> u32 {
    now.as_millis() as u32
}

/// The largest `r` with `r * r * r <= n`, one bit at a time.
fn cube_root(n: u64) -> u32 {
    let mut root: u64 = 0;
    for bit in (0..22).rev() {
        let with = root | 1 << bit;
        // 2^22 cubed is 2^66.
        if u128::from(with) * u128::from(with) * u128::from(with) <= u128::from(n) {
            root = with;
        }
    }
    root as u32
}

#[cfg(test)]
mod tests {
    use super::cube_root;

    #[test]
    fn cube_root_is_the_largest_number_whose_cube_fits() {
        for root in [1u64, 2, 3, 10, 1023, 1024, 65_535, 1 << 20, 2_642_244] {
            let cube = root * root * root;
            assert_eq!(u64::from(cube_root(cube)), root);
            assert_eq!(u64::from(cube_root(cube - 1)), root - 1);
        }
        assert_eq!(cube_root(0), 0);
        assert_eq!(cube_root(u64::MAX), 2_642_245);
    }
}
