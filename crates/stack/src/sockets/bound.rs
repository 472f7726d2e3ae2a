//! Sockets that are bound to a link (Linux's `SO_BINDTODEVICE`): they receive only what came by it, and
//! send only by it, whatever the routes say.
//!
//! Listeners and datagram sockets are found with it (`demux.rs`), connections are asked
//! (`tcp.rs`), and every packet of theirs says so on its way out (`net::Outgoing::by`). What the stack
//! sends to itself comes by no link.

use super::Socket;
use super::hold::Hold;
use super::table::SocketId;
use crate::error::Error;
use crate::limits::LINK_NAME_BYTES;
use crate::net::LinkId;
use crate::stack::{Core, Stack};

impl Stack {
    /// Binds a socket of any kind to a link, or to none: from now on it receives only what comes by
    /// that link, and sends only by it. A listener's connections inherit it. When the link is removed,
    /// nothing comes or leaves any more.
    ///
    /// # Errors
    /// `InvalidInput` for a link that was removed.
    pub fn bind_to_link(
        &mut self,
        id: impl Into<SocketId>,
        link: Option<LinkId>,
    ) -> Result<(), Error> {
        let id = id.into();
        self.core.check_link(link)?;
        let sockets = &mut self.core.sockets;
        match sockets.table.get_mut(id)? {
            Socket::Tcp(socket) => {
                if link.is_some() || socket.extra.is_some() {
                    socket.extra.get_or_insert_default().link = link;
                }
                // Its path is looked at again.
                socket.path_generation = socket.path_generation.wrapping_sub(1);
            }
            Socket::Listener(listener) => {
                listener.link = link;
                sockets.tcp_binds.set_link(listener.local.port(), id.index(), link);
            }
            Socket::Udp(socket) => {
                socket.link = link;
                sockets.udp_binds.set_link(socket.local.port(), id.index(), link);
            }
            Socket::TimeWait(_) => return Err(Error::NoSuchSocket),
        }
        Ok(())
    }

    /// The same for an address that is held until somebody listens there.
    ///
    /// # Errors
    /// `InvalidInput` for a link that was removed.
    pub fn hold_on_link(&mut self, hold: Hold, link: Option<LinkId>) -> Result<(), Error> {
        self.core.check_link(link)?;
        self.core.sockets.holds.set_link(hold, link);
        Ok(())
    }

    /// What a link is called: what it was [named](Self::name_link), or `link1`, `link2` and so on by
    /// its [`scope_id`](LinkId::scope_id). `None`: it was removed.
    pub fn link_name(&self, link: LinkId) -> Option<String> {
        self.core.net.link_name(link)
    }

    /// Names a link, as programs do that bind sockets to it by name: 1 to 15 bytes (Linux's
    /// `IFNAMSIZ`), none of them a slash, a space or a zero.
    ///
    /// # Errors
    /// `InvalidInput` for another name or a link that was removed, `AddressInUse` for the name of
    /// another link.
    pub fn name_link(&mut self, link: LinkId, name: &str) -> Result<(), Error> {
        let odd = |c: char| c == '/' || c == '\0' || c.is_whitespace();
        if name.is_empty() || name.len() > LINK_NAME_BYTES || name.contains(odd) {
            return Err(Error::InvalidInput);
        }
        if self.links().any(|other| other != link && self.link_name(other).as_deref() == Some(name))
        {
            return Err(Error::AddressInUse);
        }
        if self.core.net.name_link(link, name) { Ok(()) } else { Err(Error::InvalidInput) }
    }
}

impl Core {
    fn check_link(&self, link: Option<LinkId>) -> Result<(), Error> {
        self.net.bound_link(link).map(drop).map_err(|_| Error::InvalidInput)
    }
}
