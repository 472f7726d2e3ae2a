//! What [`Info`] says of the sending side.

use pagewire_mem::Instant;

use crate::info::Info;
use crate::outbound::ecn::{Accurate, EcnCounts, EcnFlags};
use crate::outbound::flight::Mark;
use crate::outbound::{OutFlags, Outbound, Transfer};
use crate::path::Path;

impl Outbound {
    pub(crate) fn fill_info(&self, path: &Path, info: &mut Info) {
        let (transfer, mss) = (&self.transfer, self.transfer.send_mss(path));
        let (snd, congestion, stats) = (&transfer.snd, &transfer.congestion, &transfer.stats);
        let again = transfer.rare.as_ref().map_or(0, |r| r.bytes_retransmitted);
        let syn = !path.state().is_synchronized() && snd.una == snd.iss;
        let under_way = snd.nxt.min(self.queue.end()).saturating_since(snd.una + u32::from(syn));
        transfer.fill_transfer(info);
        info.nodelay = self.flags.contains(OutFlags::NODELAY);
        info.send_mss = mss.try_into().unwrap_or(u16::MAX);
        info.cwnd = congestion.cwnd().saturating_mul(mss);
        info.ssthresh = match congestion.has_ssthresh() {
            true => congestion.ssthresh().saturating_mul(mss),
            false => u32::MAX,
        };
        info.unsent = self.unsent(path);
        let tries = self.refused(path).map_or(0, |refused| refused.tries);
        info.probes = info.probes.max(self.persist_backoff).max(tries);
        info.send_buffer = self.send_buffer(path);
        info.bytes_sent = stats.bytes_acked + u64::from(under_way) + again;
        info.bytes_retransmitted = again;
        info.segments_out = self.account.segments_out;
        info.data_segments_out = self.account.data_segments_out;
        [info.busy, info.window_limited, info.buffer_limited] = self.busy_times(None);
    }

    pub(crate) fn fill_times(&self, now: Instant, info: &mut Info) {
        info.last_data_sent = now.saturating_since(self.transfer.sent_at);
        [info.busy, info.window_limited, info.buffer_limited] = self.busy_times(Some(now));
    }
}

impl Transfer {
    pub(crate) fn ecn_counts(&self) -> Option<EcnCounts> {
        self.accurate().map(Accurate::counts)
    }

    fn fill_transfer(&self, info: &mut Info) {
        info.srtt = self.rtt.srtt().unwrap_or_default();
        info.rttvar = self.rtt.rttvar();
        info.min_rtt = self.rtt.min().unwrap_or_default();
        info.rto = self.rtt.rto();
        info.backoff = self.rtt.backoff();
        info.congestion = self.congestion.kind();
        info.cwnd_segments = self.congestion.cwnd();
        info.ssthresh_segments = self.congestion.ssthresh();
        info.unacked = self.in_flight();
        info.sacked = self.flight.bytes(Mark::SACKED);
        info.lost = self.flight.bytes(Mark::LOST);
        info.retransmitting = self.flight.bytes(Mark::RETRANSMITTED);
        info.unacked_segments = self.flight.packets;
        info.sacked_segments = self.sacked_packets();
        info.lost_segments = self.flight.lost;
        info.retransmitting_segments = self.flight.retransmitted;
        info.send_window = self.snd.window;
        info.send_scale = self.snd.scale;
        info.bytes_acked = self.stats.bytes_acked;
        info.retransmits = self.stats.retransmits;
        info.timeouts = self.stats.timeouts;
        info.recoveries = self.stats.recoveries;
        info.sacks_ignored = self.stats.sacks_ignored;
        info.ca_state = self.loss.state;
        info.reordering = u32::from(self.loss.reordering);
        info.reord_seen = self.loss.reord_seen;
        info.delivered = self.loss.delivered;
        info.delivered_ce = self.loss.delivered_ce;
        info.dsack_dups = self.loss.dsack_dups;
        info.ecn = self.loss.ecn.intersects(EcnFlags::CLASSIC | EcnFlags::ACCURATE);
        info.ecn_counts = self.ecn_counts();
        info.ecn_seen = self.loss.ecn.contains(EcnFlags::SEEN);
    }
}
