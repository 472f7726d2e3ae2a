//! The size of the receive buffer, which follows what is read in a round trip, as in Linux.
//!
//! ```text
//!   announced at most: the least of  ssthresh   grows with every full segment that arrives
//!                                    buffer     grows with what is read in a round trip
//!                                    config.recv_buffer, config.window_clamp
//! ```

use pagewire_mem::Instant;

use crate::header::{Flags, TcpHeader};
use crate::inbound::Inbound;
use crate::limits::{MAX_RECV_BUFFER, MIN_RECV_BUFFER};
use crate::outbound::rtt::RttEstimator;
use crate::path::Path;
use crate::seq::Seq;

/// Payload bytes of a segment from which on the window may widen.
const WORTH: u32 = 128;

/// Measurements for the receive buffer. Only a connection that receives data has one.
#[derive(Debug)]
pub(crate) struct BufferTuning {
    /// Microseconds, eight times; 0 before the first measurement.
    pub(crate) rtt: u32,
    /// When the number `rtt_seq` arrives, a round trip has passed since `rtt_at`.
    rtt_seq: Seq,
    rtt_at: Instant,
    /// The echo that was measured last.
    echo: u32,
    /// Bytes read in the last round trip.
    pub(crate) space: u32,
    /// Since when, and from which byte on, it is counted.
    space_seq: Seq,
    space_at: Instant,
}

impl BufferTuning {
    fn on_rtt(&mut self, micros: u32, by_window: bool) {
        let sample = micros.clamp(1, u32::MAX / 8);
        self.rtt = match (self.rtt, by_window) {
            (0, _) => sample * 8,
            (old, false) => old - old / 8 + sample,
            // A window takes at least a round trip: the shortest time is the best estimate.
            (old, true) => old.min(sample * 8),
        };
    }
}

impl Inbound {
    /// The receive buffer as it is now, within its limits.
    #[inline]
    pub(crate) fn recv_buffer(&self, path: &Path) -> u32 {
        let max = path.config().recv_buffer.clamp(MIN_RECV_BUFFER, MAX_RECV_BUFFER);
        path.config().recv_buffer_initial.max(self.buffer).clamp(MIN_RECV_BUFFER, max)
    }

    /// New data has arrived in order, in a segment with `len` bytes.
    pub(crate) fn on_data_arrived(
        &mut self,
        path: &Path,
        rtt: &RttEstimator,
        now: Instant,
        header: &TcpHeader,
        len: u32,
    ) {
        let (next, window) = (self.rcv_nxt(), self.recv_window());
        let (copied, advmss) = (self.copied(), u32::from(path.announced_mss()));
        let ms = match (path.timestamps_ok, header.options.timestamps) {
            (true, Some((_, echo))) if echo != 0 && len >= u32::from(self.mss) => {
                Some((echo, path.timestamps.value(now).wrapping_sub(echo)))
            }
            _ => None,
        };
        let tuning = self.tuning.get_or_insert_with(|| {
            Box::new(BufferTuning {
                rtt: 0,
                rtt_seq: next + window,
                rtt_at: now,
                echo: 0,
                space: window.min(advmss.saturating_mul(10)),
                space_seq: copied,
                space_at: now,
            })
        });
        if next.ge(tuning.rtt_seq) {
            let micros = now.saturating_since(tuning.rtt_at).as_micros();
            tuning.on_rtt(u32::try_from(micros).unwrap_or(u32::MAX), true);
            (tuning.rtt_seq, tuning.rtt_at) = (next + window, now);
        }
        if let Some((echo, ms)) = ms
            && echo != tuning.echo
        {
            tuning.echo = echo;
            if (1..1 << 22).contains(&ms) {
                tuning.on_rtt(ms.saturating_mul(1000), false);
            }
        }
        if len >= WORTH {
            self.widen(path, rtt, len);
        }
        self.schedule_ack(path, rtt, now, len, header.flags.contains(Flags::PSH));
    }

    /// Full segments arrive: widens the window.
    fn widen(&mut self, path: &Path, rtt: &RttEstimator, len: u32) {
        let limit = self.window_limit(path, rtt);
        let free = limit.saturating_sub(self.buffer_used());
        if self.ssthresh < free {
            let by = len.max(u32::from(path.announced_mss())).saturating_mul(2);
            self.ssthresh = self.ssthresh.saturating_add(by).min(free);
            // The peer learns of it soon.
            self.ack.quick |= 1;
        }
    }

    /// The application has read data: the buffer must fit twice what it reads in a round trip.
    pub(crate) fn tune_recv_buffer(&mut self, path: &Path, now: Instant) {
        let copied = self.copied();
        let advmss = u64::from(path.announced_mss());
        let (buffer, max) = (self.recv_buffer(path), path.config().recv_buffer);
        let Some(tuning) = self.tuning.as_deref_mut() else { return };
        let micros = now.saturating_since(tuning.space_at).as_micros();
        if tuning.rtt == 0 || micros < u128::from(tuning.rtt / 8) {
            return;
        }
        let taken = copied.saturating_since(tuning.space_seq);
        if taken > tuning.space {
            let (taken, space) = (u64::from(taken), u64::from(tuning.space.max(1)));
            let mut window = taken * 2 + advmss * 16;
            // A sender in slow start sends twice as much in the next round trip.
            window += (window.saturating_mul(taken - space) / space).saturating_mul(2);
            if window > u64::from(buffer) {
                self.buffer = u32::try_from(window).unwrap_or(u32::MAX).min(max);
            }
            tuning.space = taken as u32;
        }
        (tuning.space_seq, tuning.space_at) = (copied, now);
    }
}
