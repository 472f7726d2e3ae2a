//! The sending side during the handshake.

use pagewire_mem::{FragVec, Instant};

use crate::header::{Flags, TcpHeader};
use crate::limits::{DEFAULT_MSS, MAX_WINDOW_SCALE, MIN_SEND_MSS};
use crate::outbound::{Outbound, Transfer};
use crate::path::Path;

impl Transfer {
    /// Reads the peer's window and options from its SYN.
    pub(crate) fn take_syn(&mut self, path: &Path, syn: &TcpHeader, ecn: u8) {
        let snd = &mut self.snd;
        // > RFC 7323 section 2.2: The window field in a segment where the SYN bit is set (i.e., a
        // > <SYN> or <SYN,ACK>) MUST NOT be scaled.
        snd.window = u32::from(syn.window);
        snd.max_window = snd.window;
        snd.wl1 = syn.seq;
        snd.wl2 = if syn.flags.contains(Flags::ACK) { syn.ack } else { snd.iss };
        // > RFC 9293 section 3.7.1: If an MSS Option is not received at connection setup, TCP
        // > implementations MUST assume a default send MSS of 536 (576 - 40) for IPv4
        snd.peer_mss = syn.options.mss.unwrap_or(DEFAULT_MSS).max(MIN_SEND_MSS);
        let scale = syn.options.window_scale.filter(|_| path.config().window_scaling);
        snd.scale = scale.map_or(0, |scale| scale.min(MAX_WINDOW_SCALE));
        self.negotiate_ecn(path, syn, ecn);
    }

    /// The SYN or SYN,ACK leaves; whether for the first time. `None`: it is not due again.
    pub(crate) fn send_syn(&mut self, now: Instant) -> Option<bool> {
        let (iss, first) = (self.snd.iss, self.snd.iss + 1);
        let fresh = self.snd.nxt == iss;
        if fresh {
            self.flight.push(iss, first, now, 1, false);
            self.snd.nxt = first;
        } else {
            let again = self.flight.next_lost(iss).filter(|again| again.start == iss)?;
            self.flight.on_retransmit(again.start, again.end, now, 1);
            self.stats.retransmits += 1;
        }
        self.retransmit.set_once(now + self.rtt.rto());
        Some(fresh)
    }
}

impl Outbound {
    /// The handshake is complete; `resent`: a SYN was sent more than once.
    pub(crate) fn on_established(&mut self, path: &Path, now: Instant, resent: bool) {
        self.small_end = self.small_end.max(self.transfer.snd.una);
        self.grow_send_buffer(path);
        let transfer = &mut self.transfer;
        transfer.sent_at = now;
        // Frees the record of the SYN: many accepted connections stay idle.
        transfer.flight.shrink();
        if resent {
            // > RFC 6298 section 5.7: if the timer expires awaiting the ACK of a SYN segment [...]
            // > the RTO MUST be re-initialized to 3 seconds when data transmission begins
            if transfer.rtt.srtt().is_none() {
                transfer.rtt.on_syn_timed_out();
            }
            // Linux tolerates one, because the one second of RFC 6298 may have been too short.
            if transfer.stats.retransmits > 1 {
                transfer.congestion.on_syn_lost();
            }
        }
        transfer.start_mtu_search(path, now);
    }

    /// Sends up to `room` queued bytes in the SYN. Returns them and their number.
    pub(crate) fn send_in_syn(&mut self, now: Instant, room: u32) -> (FragVec, u32) {
        let (first, len) = (self.transfer.snd.iss + 1, self.queue.len().min(room));
        let (payload, taken) = self.queue.slice(first, len);
        if taken > 0 {
            if first + taken == self.queue.end() {
                // As in Linux, a retransmission has the same end.
                self.queue.end_record();
            }
            let transfer = &mut self.transfer;
            transfer.flight.push(first, first + taken, now, taken, false);
            transfer.snd.nxt = first + taken;
            transfer.sent_at = now;
            transfer.rare().syn_data_end = Some(first + taken);
        }
        (payload, taken)
    }
}
