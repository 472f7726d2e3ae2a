//! Fast Open of a connection (RFC 7413 sections 4.1 and 4.2), active and passive side.

use pagewire_mem::{FragVec, Instant};

use crate::connection::Connection;
use crate::header::TcpHeader;
use crate::life::LifeFlags;
use crate::life::fast_open::{
    FastOpenConnect, FastOpenCookie, FastOpenOutcome, SynData, TryExperimental,
};
use crate::life::state::State;
use crate::limits::FAST_OPEN_OPTION_ROOM;
use crate::outbound::ecn::EcnFlags;
use crate::shared::Env;

/// Fast Open of a connection (RFC 7413).
pub struct FastOpen<'a>(pub(super) &'a mut Connection);

impl FastOpen<'_> {
    /// Opens with Fast Open. Call it after [`Connection::connect`] and before `poll_transmit`.
    pub fn begin(&mut self, how: FastOpenConnect) {
        let fast_open = self.0.life.begin_fast_open();
        fast_open.option = how.option;
        fast_open.sent = how.option;
        fast_open.cached_mss = how.mss;
        fast_open.deferred = how.deferred;
    }

    /// Whether the SYN waits for data: the first send triggers it.
    pub fn is_deferred(&self) -> bool {
        self.0.waits_for_data()
    }

    /// Lets the SYN leave with the data queued so far.
    pub fn send_deferred_syn(&mut self) {
        if let Some(fast_open) = self.0.life.fast_open_mut() {
            fast_open.deferred = false;
        }
    }

    /// The application has more data than fits the SYN (`true`): the acknowledgement of the SYN,ACK
    /// waits for that data, as a delayed acknowledgement.
    pub fn set_write_pending(&mut self, pending: bool) {
        self.0.life.flags.set(LifeFlags::WRITE_PENDING, pending);
    }

    /// Whether a handshake with Fast Open is in progress, or its outcome was not taken.
    pub fn is_opening(&self) -> bool {
        self.0.life.fast_open().is_some()
    }

    /// The outcome of the handshake, once.
    pub fn take_outcome(&mut self) -> Option<FastOpenOutcome> {
        let outcome = self.0.life.fast_open_mut()?.outcome.take();
        if outcome.is_some() {
            self.0.life.forget_fast_open();
        }
        outcome
    }

    /// Whether the path seems to drop Fast Open connections, once: pause Fast Open for a while.
    pub fn take_black_hole(&mut self) -> bool {
        let suspected = self.0.life.flags.contains(LifeFlags::BLACK_HOLE);
        self.0.life.flags.remove(LifeFlags::BLACK_HOLE);
        suspected
    }

    /// Whether the peer has sent data on a connection that we opened with Fast Open.
    pub fn has_opened(&self) -> bool {
        self.0.life.flags.contains(LifeFlags::FAST_OPEN_CLIENT) && self.0.inbound.bytes_received > 0
    }

    /// Whether all data of the SYN was accepted, ours by the peer or the peer's by us.
    pub fn is_syn_data_acked(&self) -> bool {
        self.0.life.flags.contains(LifeFlags::SYN_DATA_ACKED)
    }

    /// Sends this cookie in the SYN,ACK. Call it after
    /// [`Connection::accept`](crate::Connection::accept).
    pub fn offer_cookie(&mut self, cookie: FastOpenCookie) {
        self.0.life.begin_fast_open().option = Some(cookie);
    }

    /// Opens with Fast Open: the cookie in the SYN was valid, `payload` is the SYN's. Call it after
    /// [`Connection::accept`](crate::Connection::accept). The application may use the connection at
    /// once: it reads the SYN's data, and its own data leaves before the handshake is complete.
    ///
    /// > RFC 7413 section 4.2.2: Buffer the data and notify the application. [...] If the FastOpened
    /// > flag is set, the packet acknowledges the SYN and data sequence.
    pub fn accept(&mut self, env: &mut Env<'_>, payload: FragVec) {
        self.0.path.fast_open_server = true;
        let (path, inbound) = (&self.0.path, &mut self.0.inbound);
        let inserted = inbound.insert(env, inbound.irs() + 1, payload);
        // The SYN,ACK announces a window after the data.
        inbound.edge = inbound.rcv_nxt() + inbound.first_window(path);
        inbound.ack.enter_quickack(path.config().quick_acks);
        if inserted.advanced > 0 {
            self.0.life.flags.insert(LifeFlags::SYN_DATA_ACKED);
        }
    }

    /// The application has accepted it: an ICMP error during the handshake no longer ends it.
    pub fn on_accepted(&mut self) {
        if self.0.path.state() == State::SynReceived {
            self.0.life.flags.insert(LifeFlags::ACCEPTED_EARLY);
        }
    }
}

impl Connection {
    /// Fast Open of this connection.
    #[inline]
    pub fn fast_open(&mut self) -> FastOpen<'_> {
        FastOpen(self)
    }

    /// The Fast Open option and the data of the first SYN or SYN,ACK.
    ///
    /// > RFC 7413 section 4.2.2: Advance to SYN-SENT state and update SND.NXT to include the data
    /// > accordingly. To deal with network or servers dropping SYN packets with payload or unknown
    /// > options, when the SYN timer fires, the client SHOULD retransmit a SYN packet without data
    /// > and Fast Open options.
    pub(crate) fn begin_fast_open(&mut self, now: Instant) -> (Option<FastOpenCookie>, FragVec) {
        let room = self.syn_data_room();
        let Some(fast_open) = self.life.fast_open_mut() else {
            return (None, FragVec::new());
        };
        let option = fast_open.option.take();
        if self.path.state() != State::SynSent {
            // No option in the SYN,ACK of a simultaneous open.
            let active = self.path.active;
            return (option.filter(|_| !active), FragVec::new());
        }
        fast_open.deferred = false;
        let (queue, transfer) = (&mut self.out.queue, &mut self.out.transfer);
        let (first, len) = (transfer.snd.iss + 1, queue.len().min(room));
        let (payload, taken) = queue.slice(first, len);
        if taken > 0 {
            if first + taken == queue.end() {
                // As in Linux, a retransmission has the same end.
                queue.end_record();
            }
            transfer.flight.push(first, first + taken, now, taken, false);
            transfer.snd.nxt = first + taken;
            transfer.sent_at = now;
            transfer.rare().syn_data_end = Some(first + taken);
        }
        fast_open.syn_data = taken;
        self.life.flags.set(LifeFlags::FAST_OPEN_CLIENT, option.is_some() || taken > 0);
        (option, payload)
    }

    /// Reads the Fast Open result from the SYN,ACK to our SYN.
    pub(crate) fn end_fast_open(&mut self, syn_ack: &TcpHeader) {
        let resent = self.life.flags.contains(LifeFlags::SYN_RESENT);
        if !self.life.flags.contains(LifeFlags::FAST_OPEN_CLIENT) {
            return self.life.forget_fast_open();
        }
        let Some(fast_open) = self.life.fast_open_mut() else { return };
        let unacked = !self.out.transfer.flight.is_empty();
        // As Linux: a cookie counts if the SYN had the option.
        let offered = syn_ack.options.fast_open.filter(|c| !c.is_request());
        let cookie = offered.filter(|_| fast_open.sent.is_some());
        let had_data = fast_open.syn_data > 0;
        let mut outcome = FastOpenOutcome {
            mss: Some(self.out.transfer.snd.peer_mss),
            cookie,
            had_option: fast_open.sent.is_some(),
            ..FastOpenOutcome::default()
        };
        // > RFC 7413 section 4.1.3.1: The client MUST cache negative responses from the server in
        // > order to avoid potential connection failures. Negative responses include the server not
        // > acknowledging the data in the SYN
        //
        // With a new cookie, the next attempt may succeed.
        if had_data && self.out.transfer.snd.una != self.out.transfer.snd.iss + 1 {
            outcome.syn_data = SynData::Taken;
        } else if had_data && cookie.is_none() {
            outcome.syn_data = SynData::Refused;
        }
        if let (Some(sent), None) = (fast_open.sent, cookie)
            && !resent
            && !had_data
        {
            outcome.try_experimental = match sent.is_experimental() {
                true => TryExperimental::Never,
                false => TryExperimental::Once,
            };
        }
        fast_open.outcome = Some(outcome);
        if unacked {
            // > RFC 7413 section 4.2.2: The client SHOULD retransmit any unacknowledged data in the
            // > first ACK packet in step 2.
            self.out.transfer.flight.mark_all_lost();
            self.out.transfer.resend_without_blame();
        } else if had_data {
            self.life.flags.insert(LifeFlags::SYN_DATA_ACKED);
            // SYN and data were one segment.
            self.out.transfer.loss.delivered = self.out.transfer.loss.delivered.saturating_sub(1);
        }
    }

    /// Acknowledges the SYN,ACK.
    ///
    /// > RFC 7413 section 4.2.2: Send an ACK packet. Set acknowledgment number to RCV.NXT and include
    /// > the data after SND.UNA if data is available.
    pub(crate) fn acknowledge_syn(&mut self, now: Instant) {
        // Accurate ECN needs a pure acknowledgement (`ecn/accurate.rs`).
        let expected = self.life.flags.contains(LifeFlags::WRITE_PENDING)
            || self.path.config().defer_accept > 0;
        let pending = expected && self.out.transfer.flight.is_empty();
        if pending && !self.out.transfer.loss.ecn.contains(EcnFlags::REPORT_SYN) {
            self.life.flags.remove(LifeFlags::WRITE_PENDING);
            self.inbound.ack.enter_quickack(self.path.config().quick_acks);
            // Such an answer shows that acknowledgements can leave with answers.
            self.inbound.ack.pingpong = true;
            self.inbound.ack.delay(&self.path, &self.out.transfer.rtt, now);
        } else {
            self.inbound.ack.at_once();
        }
    }

    /// Whether data may be sent: also for a SYN that waits for data, and after one with a cookie.
    #[inline]
    pub(super) fn takes_data(&self) -> bool {
        self.path.state().can_send()
            || self.waits_for_data()
            || (self.path.state() == State::SynReceived && self.path.fast_open_server)
    }

    #[inline]
    pub(super) fn waits_for_data(&self) -> bool {
        self.path.state() == State::SynSent && self.life.fast_open().is_some_and(|f| f.deferred)
    }

    /// Bytes of data that fit the SYN.
    ///
    /// > RFC 7413 section 4.2.2: Include any data up to the cached server MSS or default 536 bytes.
    ///
    /// As Linux: the link's MSS as the default, because a SYN that is too long is sent again
    /// without data; and 40 less, because middleboxes may add options.
    pub(super) fn syn_data_room(&self) -> u32 {
        let cached = self.life.fast_open().and_then(|f| f.cached_mss).unwrap_or(u16::MAX);
        u32::from(self.path.path_mss().min(cached).saturating_sub(FAST_OPEN_OPTION_ROOM))
    }
}
