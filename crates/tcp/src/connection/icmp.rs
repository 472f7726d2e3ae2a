//! ICMP errors about our segments, trusted as far as RFC 5927 advises.

use crate::config::LinkLimits;
use crate::connection::Connection;
use crate::life::LifeFlags;
use crate::life::state::{Event, State};
use crate::limits::MIN_PATH_MSS;
use crate::segment::{IcmpKind, IcmpNotice};
use crate::shared::Env;

impl Connection {
    /// Processes an ICMP error that quotes a segment of this connection.
    ///
    /// > RFC 5927 section 4.1: TCP SHOULD check that the TCP sequence number contained in the payload
    /// > of the ICMP error message is within the range SND.UNA =< SEG.SEQ < SND.NXT.
    ///
    /// Returns whether it is in that range; if not, it is forged or too late.
    pub fn handle_icmp(&mut self, env: &mut Env<'_>, notice: IcmpNotice) -> bool {
        let _ = env;
        let outstanding =
            notice.seq.since(self.out.transfer.snd.una) < self.out.transfer.in_flight();
        if !outstanding {
            return false;
        }
        match notice.kind {
            IcmpKind::PacketTooBig { mss } => self.on_path_mss(mss),
            IcmpKind::Unreachable { error, .. } => match self.path.state() {
                // As Linux: the application is told at once, unless it has already accepted.
                State::SynReceived if self.life.flags.contains(LifeFlags::ACCEPTED_EARLY) => {
                    self.life.soft_error = Some(error);
                }
                State::SynSent | State::SynReceived => self.finish(Event::Expire, Some(error)),
                // RFC 5927 section 5.2: once synchronised, even a hard error is a soft one.
                _ => self.life.soft_error = Some(error),
            },
        }
        true
    }

    /// The limits of the link or path have changed.
    pub fn set_link_limits(&mut self, link: LinkLimits) {
        if link.mss > self.path.link.mss {
            self.out.transfer.on_longer_path(&self.path);
        }
        self.path.link = link;
    }

    /// RFC 1191 section 6.3, RFC 8201 section 5.4: data is sent again in smaller segments.
    fn on_path_mss(&mut self, mss: u16) {
        let (mss, mut link) = (mss.max(MIN_PATH_MSS), self.path.link);
        if mss >= link.mss {
            return;
        }
        if link.max_super_payload <= u32::from(link.mss) {
            // No super-frames before, none now.
            link.max_super_payload = u32::from(mss);
        }
        link.mss = mss;
        self.path.link = link;
        if self.path.state().is_synchronized() {
            self.out.transfer.on_too_big(self.out.transfer.send_mss(&self.path));
        } else if self.path.state() == State::SynSent
            && self.life.fast_open.as_ref().is_some_and(|f| f.syn_data > 0)
        {
            // A SYN with data was too big. As in Linux it leaves again at once without data, and
            // announces the path's MSS, because the reverse path may have the same limit.
            self.path.link = LinkLimits { recv_mss: mss, ..link };
            self.life.flags.insert(LifeFlags::SYN_RESENT);
            self.out.transfer.flight.mark_first_lost();
        }
    }
}
