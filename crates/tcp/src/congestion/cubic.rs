//! CUBIC (RFC 9438), in integers.
//!
//! Windows are in bytes where the RFC has segments, times in ticks of 1/1024 second, so that the
//! cube of a time in seconds is a shift. Section numbers below are the RFC's.

use core::time::Duration;

use pagewire_mem::Instant;

use super::Window;

/// C = 0.4 (section 5), in 1/65536.
const C: i128 = 26_214;
/// Ticks in a second, as a power of two.
const TICK_BITS: u32 = 10;
/// Times are cut here, in ticks: 1024 seconds, so that a cube fits 64 bits. The window has long
/// reached its limit by then.
const MAX_TICKS: u64 = 1 << 20;
/// alpha_cubic = 3 * (1 - beta) / (1 + beta) = 9/17 (section 4.3), in 1/65536.
const ALPHA: u64 = 34_695;
/// 1 in 1/65536.
const ONE: u64 = 1 << 16;

/// beta_cubic = 0.7 (section 4.6).
pub(super) fn beta(bytes: u32) -> u32 {
    (u64::from(bytes) * 7 / 10) as u32
}

/// State of congestion avoidance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cubic {
    /// When the current stage of congestion avoidance began (t_epoch), put off by the times in
    /// which the application was the limit; `FAR`: not begun.
    epoch: Instant,
    /// When something was acknowledged last in this stage.
    last_ack: Instant,
    /// The estimate of Reno's window (W_est), in 1/65536 byte.
    w_est: u64,
    /// Byte-bytes towards the next byte of window: the rest of the division by cwnd.
    credit: u64,
    /// The window at which the last loss happened, or what fast convergence made of it.
    w_max: u32,
    /// `w_max` before the last cut.
    undo_w_max: u32,
    /// The window just before the last cut (cwnd_prior).
    cwnd_prior: u32,
    /// Ticks from the epoch to the plateau.
    k: u32,
}

impl Cubic {
    pub(super) const fn new() -> Self {
        Self {
            epoch: Instant::FAR,
            last_ack: Instant::ZERO,
            w_est: 0,
            credit: 0,
            w_max: 0,
            undo_w_max: 0,
            cwnd_prior: 0,
            k: 0,
        }
    }

    /// The window after `acked` more bytes were acknowledged.
    pub(super) fn increase(
        &mut self,
        window: Window,
        now: Instant,
        acked: u32,
        srtt: Duration,
    ) -> u32 {
        if self.epoch == Instant::FAR {
            self.begin_epoch(window, now);
        }
        self.last_ack = now;
        let cwnd = u64::from(window.cwnd.max(1));
        let (mss, acked) = (u64::from(window.mss), u64::from(acked));

        // > 4.3: W_est = W_est + alpha_cubic * segments_acked / cwnd [...] Once W_est has grown to
        // > reach the cwnd at the time of most recently setting ssthresh -- that is, W_est >=
        // > cwnd_prior -- the sender SHOULD set alpha_cubic to 1
        let alpha = if self.w_est >> 16 >= u64::from(self.cwnd_prior) { ONE } else { ALPHA };
        self.w_est = self.w_est.saturating_add(alpha * mss * acked / cwnd);

        let t = now.saturating_since(self.epoch);
        let w_est = self.w_est >> 16;
        // > 4.3: CUBIC checks whether W_cubic(t) is less than W_est. If so, CUBIC is in the
        // > Reno-friendly region and cwnd SHOULD be set to W_est at each reception of a new ACK.
        if self.w_cubic(t, window.mss) < w_est {
            // Never faster than slow start, should something else have cut the window meanwhile.
            return clamp_u32(w_est.clamp(cwnd, cwnd + acked));
        }
        // > 4.2: CUBIC computes the target congestion window size after the next RTT using [...]
        // > W_cubic(t + RTT) [...] The lower and upper bounds below ensure that CUBIC's congestion
        // > window increase rate is non-decreasing and is less than the increase rate of slow start
        let target = self.w_cubic(t + srtt, window.mss).clamp(cwnd, cwnd + cwnd / 2);
        // > 4.4, 4.5: cwnd MUST be incremented by (target - cwnd) / cwnd for each received new ACK
        self.credit = self.credit.min(cwnd) + (target - cwnd) * acked;
        let grow = self.credit / cwnd;
        self.credit %= cwnd;
        clamp_u32(cwnd + grow)
    }

    /// The new threshold after a congestion event (section 4.6). Takes the window for the flight,
    /// as Linux does and the RFC allows where a window only grows while it is the limit:
    ///
    /// > 4.6: Implementations that use cwnd MUST use other measures to prevent cwnd from growing
    /// > when the volume of bytes in flight is smaller than cwnd.
    pub(super) fn decrease(&mut self, window: Window) -> u32 {
        self.undo_w_max = self.w_max;
        // > 4.7 (fast convergence): W_max = cwnd * (1 + beta_cubic) / 2 if cwnd < W_max [...]
        // > cwnd otherwise
        self.w_max = if window.cwnd < self.w_max {
            (u64::from(window.cwnd) * 17 / 20) as u32
        } else {
            window.cwnd
        };
        self.cwnd_prior = window.cwnd;
        self.epoch = Instant::FAR;
        self.credit = 0;
        beta(window.cwnd).max(window.mss.saturating_mul(2))
    }

    /// > 4.8: During the first congestion avoidance stage after a timeout, [...] K is set to 0, and
    /// > W_max is set to the congestion window size at the beginning of the current congestion
    /// > avoidance stage.
    pub(super) fn on_timeout(&mut self) {
        // `begin_epoch` does just that when the window is above W_max.
        self.w_max = 0;
    }

    /// Takes back the last [`decrease`](Self::decrease); the next stage begins at the restored
    /// window.
    pub(super) fn undo(&mut self) {
        self.w_max = self.undo_w_max;
        self.epoch = Instant::FAR;
        self.credit = 0;
    }

    /// > 4.2: The elapsed time t MUST NOT include periods during which cwnd has not been updated
    /// > due to application-limited behavior
    pub(super) fn on_application_limited(&mut self, now: Instant) {
        if self.epoch != Instant::FAR {
            self.epoch += now.saturating_since(self.last_ack);
            self.last_ack = now;
        }
    }

    fn begin_epoch(&mut self, window: Window, now: Instant) {
        let Window { cwnd, mss, .. } = window;
        self.epoch = now;
        self.credit = 0;
        self.w_est = u64::from(cwnd) << 16;
        if self.cwnd_prior == 0 {
            // > 4.10: [...] W_max is undefined. In this special case, CUBIC sets cwnd_prior = cwnd
            self.cwnd_prior = cwnd;
        }
        if cwnd >= self.w_max {
            // Sections 4.8 and 4.10: no plateau to come back to.
            (self.w_max, self.k) = (cwnd, 0);
        } else {
            // > 4.2: K = cubic_root((W_max - cwnd_epoch) / C)
            //
            // In ticks: cbrt(d / mss / 0.4) * 2^10 = cbrt(d * 5 * 2^29 / mss).
            let d = u64::from(self.w_max - cwnd);
            self.k = cube_root(((d * 5) << 29) / u64::from(mss.max(1)));
        }
    }

    /// > 4.2: W_cubic(t) = C * (t - K)^3 + W_max
    fn w_cubic(&self, t: Duration, mss: u32) -> u64 {
        // 2^50 ns are far beyond `MAX_TICKS`, and leave room for the shift.
        let nanos = u64::try_from(t.as_nanos()).unwrap_or(u64::MAX).min(1 << 50);
        let ticks = ((nanos << TICK_BITS) / 1_000_000_000).min(MAX_TICKS);
        let dt = i128::from(ticks) - i128::from(self.k).min(i128::from(MAX_TICKS));
        let delta = (dt * dt * dt * C * i128::from(mss)) >> (3 * TICK_BITS + 16);
        u64::try_from(i128::from(self.w_max) + delta).unwrap_or(0)
    }
}

fn clamp_u32(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
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
