//! [`Connection::info`]: fills the snapshot [`Info`] from the parts of a connection.

use core::time::Duration;

use pagewire_mem::Instant;

use crate::connection::Connection;
use crate::info::Info;
use crate::life::LifeFlags;
use crate::outbound::ecn::{Accurate, EcnCounts, EcnFlags};
use crate::outbound::flight::Mark;
use crate::outbound::{LossCounts, OutFlags};

impl Connection {
    /// How many retransmissions, timeouts and fast recoveries there were since the last call.
    #[inline]
    pub fn take_losses(&mut self) -> [u32; 3] {
        let Some(rare) = &mut self.out.transfer.rare else { return [0; 3] };
        let LossCounts { retransmits, timeouts, recoveries, taken, .. } = &mut rare.losses;
        let mut counts = [*retransmits, *timeouts, *recoveries];
        for (count, taken) in counts.iter_mut().zip(taken) {
            // A retransmission that the device refused is none: the next one takes its place.
            let new = count.saturating_sub(*taken);
            (*count, *taken) = (new, *taken + new);
        }
        counts
    }

    /// The counters, if the connection has accurate ECN feedback.
    pub fn ecn_counts(&self) -> Option<EcnCounts> {
        self.out.transfer.accurate().map(Accurate::counts)
    }

    /// A snapshot.
    pub fn info(&self) -> Info {
        let (path, out, inbound, transfer) =
            (&self.path, &self.out, &self.inbound, &self.out.transfer);
        let (snd, flight, loss) = (&transfer.snd, &transfer.flight, &transfer.loss);
        let (congestion, losses, rtt) = (&transfer.congestion, transfer.losses(), &transfer.rtt);
        let mss = transfer.send_mss(path);
        let again = transfer.rare.as_ref().map_or(0, |r| r.bytes_retransmitted);
        let syn = !path.state().is_synchronized() && snd.una == snd.iss;
        let under_way = snd.nxt.min(out.queue.end()).saturating_since(snd.una + u32::from(syn));
        let refused = out.refused(path).map_or(0, |refused| refused.tries);
        let (recv_rtt, recv_space) =
            inbound.tuning.as_ref().map_or((0, 0), |t| (t.rtt / 8, t.space));
        let [busy, window_limited, buffer_limited] = out.busy_times(None);
        Info {
            state: path.state(),
            send_mss: mss.try_into().unwrap_or(u16::MAX),
            recv_mss: inbound.mss,
            srtt: rtt.srtt().unwrap_or_default(),
            rttvar: rtt.rttvar(),
            min_rtt: rtt.min().unwrap_or_default(),
            rto: rtt.rto(),
            backoff: rtt.backoff(),
            congestion: congestion.kind(),
            cwnd: congestion.cwnd().saturating_mul(mss),
            ssthresh: match congestion.has_ssthresh() {
                true => congestion.ssthresh().saturating_mul(mss),
                false => u32::MAX,
            },
            unacked: transfer.in_flight(),
            sacked: flight.bytes(Mark::SACKED),
            lost: flight.bytes(Mark::LOST),
            retransmitting: flight.bytes(Mark::RETRANSMITTED),
            unsent: out.unsent(path),
            send_window: snd.window,
            recv_window: inbound.recv_window(),
            bytes_acked: transfer.bytes_acked,
            bytes_received: inbound.bytes_received,
            retransmits: losses.retransmits,
            timeouts: losses.timeouts,
            recoveries: losses.recoveries,
            sacks_ignored: losses.sacks_ignored,
            ca_state: loss.state,
            cwnd_segments: congestion.cwnd(),
            ssthresh_segments: congestion.ssthresh(),
            unacked_segments: flight.packets,
            sacked_segments: transfer.sacked_packets(),
            lost_segments: flight.lost,
            retransmitting_segments: flight.retransmitted,
            reordering: u32::from(loss.reordering),
            reord_seen: losses.reord_seen,
            delivered: loss.delivered,
            delivered_ce: losses.delivered_ce,
            dsack_dups: losses.dsack_dups,
            ecn: loss.ecn.intersects(EcnFlags::CLASSIC | EcnFlags::ACCURATE),
            ecn_seen: loss.ecn.contains(EcnFlags::SEEN),
            ecn_counts: self.ecn_counts(),
            probes: self.life.keepalive_probes.max(out.persist_backoff).max(refused),
            timestamps: path.timestamps_ok,
            sack: path.sack_ok,
            scaling: path.scaling_ok,
            syn_data: self.life.flags.contains(LifeFlags::SYN_DATA_ACKED),
            send_scale: snd.scale,
            recv_scale: inbound.scale,
            ack_timeout: Duration::from_millis(u64::from(inbound.ack.ato_ms)),
            path_mss: path.link.mss,
            announced_mss: path.announced_mss(),
            recv_ssthresh: inbound.ssthresh,
            recv_rtt: Duration::from_micros(u64::from(recv_rtt)),
            recv_space,
            recv_buffer: inbound.recv_buffer(path),
            send_buffer: out.send_buffer(path),
            bytes_sent: transfer.bytes_acked + u64::from(under_way) + again,
            bytes_retransmitted: again,
            segments_out: out.account.segments_out,
            segments_in: inbound.segments_in,
            data_segments_out: out.account.data_segments_out,
            data_segments_in: inbound.data_segments_in,
            nodelay: out.flags.contains(OutFlags::NODELAY),
            quick_ack: !inbound.ack.pingpong,
            busy,
            window_limited,
            buffer_limited,
            ..Info::default()
        }
    }

    /// A snapshot with times up to `now`; those of [`info`](Self::info) end at the last segment.
    pub fn info_at(&self, now: Instant) -> Info {
        let [busy, window_limited, buffer_limited] = self.out.busy_times(Some(now));
        Info {
            last_data_sent: now.saturating_since(self.out.transfer.sent_at),
            last_data_received: now.saturating_since(self.inbound.data_at),
            last_ack_received: now.saturating_since(self.path.last_received),
            busy,
            window_limited,
            buffer_limited,
            ..self.info()
        }
    }
}
