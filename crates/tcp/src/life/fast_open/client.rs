//! The active side of Fast Open (RFC 7413 sections 4.1.3 and 4.2).

use pagewire_mem::{FragVec, Instant};

use crate::connection::Connection;
use crate::header::TcpHeader;
use crate::life::fast_open::FastOpenCookie;
use crate::life::state::{Event, State};
use crate::life::{Life, LifeFlags};
use crate::limits::FAST_OPEN_OPTION_ROOM;
use crate::outbound::ecn::EcnFlags;
use crate::path::Path;

/// How a connection opens with Fast Open, see [`FastOpen::begin`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FastOpenConnect {
    /// The option of the SYN: a cookie, or the request for one. `None`: data without a cookie.
    pub option: Option<FastOpenCookie>,
    /// The MSS that the peer announced last, if known: data in the SYN must fit it.
    pub mss: Option<u16>,
    /// The SYN waits for the application's first data. Only with a cookie, or if none is needed.
    pub deferred: bool,
}

/// What a handshake or its failure revealed about a peer's Fast Open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FastOpenOutcome {
    /// The MSS that the peer announced, if any.
    pub mss: Option<u16>,
    /// The cookie that the peer gave.
    pub cookie: Option<FastOpenCookie>,
    /// Whether our SYN had the option: a cookie, or the request for one.
    pub had_option: bool,
    /// The result of data in our SYN.
    pub syn_data: SynData,
    /// How to request a cookie next time.
    pub try_experimental: TryExperimental,
}

/// The result of data in a SYN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SynData {
    /// There was none; or it was not accepted, but the peer gave a new cookie.
    #[default]
    Unknown,
    /// All of it or a part was acknowledged.
    Taken,
    /// None of it was acknowledged, the peer did not answer, or the network reported an error.
    Refused,
}

/// Which form of the option to request a cookie with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum TryExperimental {
    /// The RFC's form, because nothing is known.
    #[default]
    No,
    /// The experimental form, because the RFC's was not answered.
    Once,
    /// The RFC's form, because neither was answered.
    Never,
}

/// Fast Open of a connection (RFC 7413).
pub struct FastOpen<'a>(pub(super) &'a mut Connection);

impl Connection {
    /// Fast Open of this connection.
    #[inline]
    pub fn fast_open(&mut self) -> FastOpen<'_> {
        FastOpen(self)
    }
}

/// The Fast Open option and the data of the first SYN or SYN,ACK.
///
/// > RFC 7413 section 4.2.2: Advance to SYN-SENT state and update SND.NXT to include the data
/// > accordingly. To deal with network or servers dropping SYN packets with payload or unknown
/// > options, when the SYN timer fires, the client SHOULD retransmit a SYN packet without data
/// > and Fast Open options.
pub(crate) fn begin_fast_open(
    conn: &mut Connection,
    now: Instant,
) -> (Option<FastOpenCookie>, FragVec) {
    let room = conn.life.syn_data_room(&conn.path);
    let Some(fast_open) = conn.life.fast_open.as_deref_mut() else {
        return (None, FragVec::new());
    };
    let option = fast_open.option.take();
    if conn.path.state() != State::SynSent {
        // No option in the SYN,ACK of a simultaneous open.
        let active = conn.path.is_active();
        return (option.filter(|_| !active), FragVec::new());
    }
    fast_open.deferred = false;
    let (payload, taken) = conn.out.send_in_syn(now, room);
    fast_open.syn_data = taken;
    conn.life.flags.set(LifeFlags::FAST_OPEN_CLIENT, option.is_some() || taken > 0);
    (option, payload)
}

/// Reads the Fast Open result from the SYN,ACK to our SYN.
pub(crate) fn end_fast_open(conn: &mut Connection, syn_ack: &TcpHeader) {
    let resent = conn.life.flags.contains(LifeFlags::SYN_RESENT);
    let Some(fast_open) = conn.life.fast_open.as_deref_mut() else { return };
    if !conn.life.flags.contains(LifeFlags::FAST_OPEN_CLIENT) {
        conn.life.fast_open = None;
        return;
    }
    let unacked = !conn.out.transfer.flight().is_empty();
    // As Linux: a cookie counts if the SYN had the option.
    let offered = syn_ack.options.fast_open.filter(|c| !c.is_request());
    let cookie = offered.filter(|_| fast_open.sent.is_some());
    let had_data = fast_open.syn_data > 0;
    let mut outcome = FastOpenOutcome {
        mss: Some(conn.out.transfer.snd().peer_mss),
        cookie,
        had_option: fast_open.sent.is_some(),
        ..FastOpenOutcome::default()
    };
    // > RFC 7413 section 4.1.3.1: The client MUST cache negative responses from the server in
    // > order to avoid potential connection failures. Negative responses include the server not
    // > acknowledging the data in the SYN
    //
    // With a new cookie, the next attempt may succeed.
    if had_data && conn.out.transfer.snd().una != conn.out.transfer.snd().iss + 1 {
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
        conn.out.transfer.resend_all();
    } else if had_data {
        conn.life.flags.insert(LifeFlags::SYN_DATA_ACKED);
        // SYN and data were one segment.
        conn.out.transfer.count_as_one();
    }
}

/// Acknowledges the SYN,ACK.
///
/// > RFC 7413 section 4.2.2: Send an ACK packet. Set acknowledgment number to RCV.NXT and include
/// > the data after SND.UNA if data is available.
pub(crate) fn acknowledge_syn(conn: &mut Connection, now: Instant) {
    // Accurate ECN needs a pure acknowledgement (`ecn/accurate.rs`).
    let expected =
        conn.life.flags.contains(LifeFlags::WRITE_PENDING) || conn.path.config().defer_accept > 0;
    let pending = expected && conn.out.transfer.flight().is_empty();
    if pending && !conn.out.transfer.loss().ecn.contains(EcnFlags::TELL_SYN) {
        conn.life.flags.remove(LifeFlags::WRITE_PENDING);
        conn.inbound.ack.quicken(conn.path.config().quick_acks);
        // Such an answer shows that acknowledgements can leave with answers.
        conn.inbound.ack.set_interactive(true);
        conn.inbound.ack.delay(&conn.path, conn.out.transfer.rtt(), now);
    } else {
        conn.inbound.ack.at_once();
    }
}

impl FastOpen<'_> {
    /// Opens with Fast Open. Call it after [`Connection::connect`] and before `poll_transmit`.
    pub fn begin(&mut self, how: FastOpenConnect) {
        let fast_open = self.0.life.fast_open.get_or_insert_default();
        fast_open.option = how.option;
        fast_open.sent = how.option;
        fast_open.cached_mss = how.mss;
        fast_open.deferred = how.deferred;
    }

    /// Whether the SYN waits for data: the first send triggers it.
    pub fn is_deferred(&self) -> bool {
        self.0.life.waits_for_data(&self.0.path)
    }

    /// Lets the SYN leave with the data queued so far.
    pub fn send_deferred_syn(&mut self) {
        if let Some(fast_open) = self.0.life.fast_open.as_deref_mut() {
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
        self.0.life.fast_open.is_some()
    }

    /// The outcome of the handshake, once.
    pub fn take_outcome(&mut self) -> Option<FastOpenOutcome> {
        let outcome = self.0.life.fast_open.as_mut()?.outcome.take();
        if outcome.is_some() {
            self.0.life.fast_open = None;
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
        self.0.life.flags.contains(LifeFlags::FAST_OPEN_CLIENT)
            && self.0.inbound.bytes_received() > 0
    }

    /// Whether all data of the SYN was accepted, ours by the peer or the peer's by us.
    pub fn is_syn_data_acked(&self) -> bool {
        self.0.life.is_syn_data_acked()
    }
}

impl Life {
    #[inline]
    pub(crate) fn waits_for_data(&self, path: &Path) -> bool {
        path.state() == State::SynSent && self.fast_open.as_ref().is_some_and(|f| f.deferred)
    }

    /// Bytes of data that fit the SYN.
    ///
    /// > RFC 7413 section 4.2.2: Include any data up to the cached server MSS or default 536 bytes.
    ///
    /// As Linux: the link's MSS as the default, because a SYN that is too long is sent again
    /// without data; and 40 less, because middleboxes may add options.
    pub(crate) fn syn_data_room(&self, path: &Path) -> u32 {
        let cached = self.fast_open.as_ref().and_then(|f| f.cached_mss).unwrap_or(u16::MAX);
        u32::from(path.path_mss().min(cached).saturating_sub(FAST_OPEN_OPTION_ROOM))
    }

    /// The connection ends by `event`. An unanswered SYN with data is an outcome, too.
    ///
    /// > RFC 7413 section 4.1.3.1: Negative responses include [...] ICMP error messages, and (most
    /// > importantly) no response (SYN-ACK) from the server at all, i.e., connection timeout.
    pub(crate) fn give_up_fast_open(&mut self, event: Event) {
        let Some(fast_open) = self.fast_open.as_deref_mut() else { return };
        let unanswered = event == Event::Expire && fast_open.outcome.is_none();
        if !unanswered || fast_open.syn_data == 0 || self.flags.contains(LifeFlags::CONNECTED) {
            self.fast_open = None;
            return;
        }
        fast_open.outcome = Some(FastOpenOutcome {
            had_option: fast_open.sent.is_some(),
            syn_data: SynData::Refused,
            ..FastOpenOutcome::default()
        });
    }

    /// As Linux, very conservative: the third timeout in a row of a connection opened with Fast
    /// Open, or its end before, means that the path drops such connections.
    pub(crate) fn suspect_black_hole(&mut self) {
        if self.flags.contains(LifeFlags::FAST_OPEN_CLIENT) {
            self.flags.insert(LifeFlags::BLACK_HOLE);
        }
    }
}
