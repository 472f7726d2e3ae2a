//! The side that listens (RFC 7413 sections 4.1.2 and 4.2).

use pagewire_mem::FragVec;

use crate::life::fast_open::FastOpenCookie;
use crate::life::fast_open::client::FastOpen;
use crate::life::state::State;
use crate::life::{Life, LifeFlags};
use crate::path::Path;
use crate::shared::Env;

impl FastOpen<'_> {
    /// The SYN,ACK is to carry this cookie. To be called after [`Connection::accept`].
    pub fn offer_cookie(&mut self, cookie: FastOpenCookie) {
        self.0.life.fast_open.get_or_insert_default().option = Some(cookie);
    }

    /// Opens with Fast Open: the cookie in the SYN was good, `payload` is the SYN's. To be called
    /// after [`Connection::accept`]. The application may have the connection at once: it reads
    /// what came with the SYN, and what it sends leaves without waiting for the handshake.
    ///
    /// > RFC 7413 section 4.2.2: Buffer the data and notify the application. [...] If the FastOpened
    /// > flag is set, the packet acknowledges the SYN and data sequence.
    pub fn accept(&mut self, env: &mut Env<'_>, payload: FragVec) {
        self.0.path.set_fast_open_server();
        if self.0.inbound.take_syn_data(&self.0.path, env, payload) {
            self.0.life.flags.insert(LifeFlags::SYN_DATA_ACKED);
        }
    }

    /// The application has taken the connection. As long as the handshake lasts, an ICMP error ends
    /// one that still waits to be accepted, and not one that somebody works with already.
    pub fn on_accepted(&mut self) {
        if self.0.path.state() == State::SynReceived {
            self.0.life.flags.insert(LifeFlags::ACCEPTED_EARLY);
        }
    }
}

impl Life {
    /// Whether the application may hand over data: in states that send, in a SYN that waits for it,
    /// and behind a SYN that came with a cookie.
    #[inline]
    pub(crate) fn takes_data(&self, path: &Path) -> bool {
        path.state().can_send()
            || self.waits_for_data(path)
            || (path.state() == State::SynReceived && path.is_fast_open_server())
    }
}
