//! ICMP errors about our own segments, believed as far as RFC 5927 advises.

use crate::config::LinkLimits;
use crate::connection::{Connection, Env};
use crate::limits::MIN_PATH_MSS;
use crate::segment::{IcmpKind, IcmpNotice};
use crate::state::{Event, State};

impl Connection {
    /// An ICMP error quotes a segment of this connection.
    ///
    /// > RFC 5927 section 4.1: TCP SHOULD check that the TCP sequence number contained in the payload
    /// > of the ICMP error message is within the range SND.UNA =< SEG.SEQ < SND.NXT.
    pub fn handle_icmp(&mut self, env: &mut Env<'_>, notice: IcmpNotice) {
        let _ = env;
        let outstanding = notice.seq.since(self.snd.una) < self.in_flight();
        if !outstanding {
            return;
        }
        match notice.kind {
            IcmpKind::PacketTooBig { mss } => self.on_path_mss(mss),
            IcmpKind::Unreachable { error, .. } => match self.state {
                // Nothing is established yet: whoever waits is told at once, as in Linux.
                State::SynSent | State::SynReceived => self.finish(Event::Expire, Some(error)),
                // RFC 5927 section 5.2: once synchronised, even a hard error is a soft one.
                _ => self.soft_error = Some(error),
            },
        }
    }

    /// RFC 1191 section 6.3 and RFC 8201 section 5.4: what was too big is sent again in smaller
    /// segments, and the congestion window stays, because nothing was congested.
    fn on_path_mss(&mut self, mss: u16) {
        let mss = mss.max(MIN_PATH_MSS);
        if mss >= self.link.mss {
            return;
        }
        if self.link.max_super_payload <= u32::from(self.link.mss) {
            // No super-frames before, none now.
            self.link.max_super_payload = u32::from(mss);
        }
        self.link.mss = mss;
        let payload = self.send_mss();
        self.congestion.set_mss(payload);
        if self.state.is_synchronized() {
            self.on_too_big(payload);
        }
    }

    /// The link, or the way to the peer, has changed.
    pub fn set_link_limits(&mut self, link: LinkLimits) {
        self.link = link;
        if self.state.is_synchronized() {
            let payload = self.send_mss();
            self.congestion.set_mss(payload);
        }
    }
}
