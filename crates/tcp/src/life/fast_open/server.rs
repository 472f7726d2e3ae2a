//! The passive side of Fast Open (RFC 7413 sections 4.1.2 and 4.2).

use pagewire_mem::FragVec;

use crate::life::fast_open::FastOpenCookie;
use crate::life::fast_open::client::FastOpen;
use crate::life::state::State;
use crate::life::{Life, LifeFlags};
use crate::path::Path;
use crate::shared::Env;

impl FastOpen<'_> {
    /// Sends this cookie in the SYN,ACK. Call it after
    /// [`Connection::accept`](crate::Connection::accept).
    pub fn offer_cookie(&mut self, cookie: FastOpenCookie) {
        self.0.life.fast_open.get_or_insert_default().option = Some(cookie);
    }

    /// Opens with Fast Open: the cookie in the SYN was valid, `payload` is the SYN's. Call it after
    /// [`Connection::accept`](crate::Connection::accept). The application may use the connection at
    /// once: it reads the SYN's data, and its own data leaves before the handshake is complete.
    ///
    /// > RFC 7413 section 4.2.2: Buffer the data and notify the application. [...] If the FastOpened
    /// > flag is set, the packet acknowledges the SYN and data sequence.
    pub fn accept(&mut self, env: &mut Env<'_>, payload: FragVec) {
        self.0.path.set_fast_open_server();
        if self.0.inbound.take_syn_data(&self.0.path, env, payload) {
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

impl Life {
    /// Whether data may be sent: also for a SYN that waits for data, and after one with a cookie.
    #[inline]
    pub(crate) fn takes_data(&self, path: &Path) -> bool {
        path.state().can_send()
            || self.waits_for_data(path)
            || (path.state() == State::SynReceived && path.is_fast_open_server())
    }
}
