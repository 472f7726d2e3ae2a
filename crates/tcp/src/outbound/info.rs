//! What [`Info`] says of the sending side.

use pagewire_mem::Instant;

use crate::info::Info;
use crate::outbound::ecn::{Accurate, EcnCounts, EcnFlags};
use crate::outbound::flight::Mark;
use crate::outbound::{Outbound, Transfer};
use crate::path::Path;

impl Outbound {
    pub(crate) fn fill_info(&self, path: &Path, info: &mut Info) {
        let (transfer, mss) = (&self.transfer, self.transfer.send_mss(path));
        let (snd, congestion, stats) = (&transfer.snd, &transfer.congestion, &transfer.stats);
        let again = transfer.rare.as_ref().map_or(0, |r| r.bytes_retransmitted);
        let syn = !path.state().is_synchronized() && snd.una == snd.iss;
        let under_way = snd.nxt.min(self.queue.end()).saturating_since(snd.una + u32::from(syn));
        fill_transfer(transfer, info);
        info.nodelay = self.is_nodelay();
        info.send_mss = mss.try_into().unwrap_or(u16::MAX);
        info.cwnd = congestion.cwnd().saturating_mul(mss);
        info.ssthresh = match congestion.has_ssthresh() {
            true => congestion.ssthresh().saturating_mul(mss),
            false => u32::MAX,
        };
        info.unsent = self.unsent(path);
        info.probes = info.probes.max(self.persist_backoff).max(self.refused_tries(path));
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
}

fn fill_transfer(transfer: &Transfer, info: &mut Info) {
    info.srtt = transfer.rtt.srtt().unwrap_or_default();
    info.rttvar = transfer.rtt.rttvar();
    info.min_rtt = transfer.rtt.min().unwrap_or_default();
    info.rto = transfer.rtt.rto();
    info.backoff = transfer.rtt.backoff();
    info.congestion = transfer.congestion.kind();
    info.cwnd_segments = transfer.congestion.cwnd();
    info.ssthresh_segments = transfer.congestion.ssthresh();
    info.unacked = transfer.in_flight();
    info.sacked = transfer.flight.bytes(Mark::SACKED);
    info.lost = transfer.flight.bytes(Mark::LOST);
    info.retransmitting = transfer.flight.bytes(Mark::RETRANSMITTED);
    info.unacked_segments = transfer.flight.packets();
    info.sacked_segments = transfer.sacked_packets();
    info.lost_segments = transfer.flight.lost();
    info.retransmitting_segments = transfer.flight.retransmitted();
    info.send_window = transfer.snd.window;
    info.send_scale = transfer.snd.scale;
    info.bytes_acked = transfer.stats.bytes_acked;
    info.retransmits = transfer.stats.retransmits;
    info.timeouts = transfer.stats.timeouts;
    info.recoveries = transfer.stats.recoveries;
    info.sacks_ignored = transfer.stats.sacks_ignored;
    info.ca_state = transfer.loss.state;
    info.reordering = u32::from(transfer.loss.reordering);
    info.reord_seen = transfer.loss.reord_seen;
    info.delivered = transfer.loss.delivered;
    info.delivered_ce = transfer.loss.delivered_ce;
    info.dsack_dups = transfer.loss.dsack_dups;
    info.ecn = transfer.has_ecn();
    info.ecn_counts = transfer.ecn_counts();
    info.ecn_seen = transfer.loss.ecn.contains(EcnFlags::SEEN);
}
