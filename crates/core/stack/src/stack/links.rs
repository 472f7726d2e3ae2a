//! Links of a stack: adding, removing and changing them, and the MTUs of paths.

use std::net::IpAddr;

use pagewire_mem::Instant;

use super::Stack;
use crate::limits::LINK_NAME_BYTES;
use crate::net::{LinkConfig, LinkId};
use crate::sockets::udp::{GroupLink, groups};
use crate::{Cidr, Error, StackError};

impl Stack {
    /// Adds a link: a device with addresses of its own. On an error nothing has changed.
    pub fn add_link(&mut self, now: Instant, config: &LinkConfig) -> Result<LinkId, StackError> {
        let id = self.cx.net.add_link(now, config)?;
        self.revive();
        Ok(id)
    }

    /// Removes a link, its addresses and routes, and the packets that wait for it; `false` if it
    /// was removed before. Connections from its addresses have no route any more, and time out.
    pub fn remove_link(&mut self, link: LinkId) -> bool {
        if let Some(index) = self.cx.net.find_link(link) {
            self.cx.work.resume(index);
        }
        self.close_wildcards(link);
        self.cx.net.remove_link(link)
    }

    /// Iterates over the links, by index.
    pub fn links(&self) -> impl Iterator<Item = LinkId> {
        self.cx.net.link_ids()
    }

    /// The name of a link: as [set](Self::name_link), or `link1`, `link2` and so on by its
    /// [`scope_id`](LinkId::scope_id). `None`: it was removed.
    pub fn link_name(&self, link: LinkId) -> Option<String> {
        self.cx.net.link_name(link)
    }

    /// Names a link: 1 to 15 bytes (Linux's `IFNAMSIZ`) without a slash, a space or a zero.
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
        if self.cx.net.name_link(link, name) { Ok(()) } else { Err(Error::InvalidInput) }
    }

    /// Our addresses on a link, the added link-local one included; none once it is removed.
    pub fn link_addresses(&self, link: LinkId) -> impl Iterator<Item = Cidr> {
        self.cx.net.link_addresses(link)
    }

    /// The link that a group is joined on.
    ///
    /// # Errors
    /// `NoSuchLink` if there is none, or it has no address of that version.
    pub fn group_link(&self, group: IpAddr, on: GroupLink) -> Result<LinkId, Error> {
        groups::group_link(&self.cx.net, group, on)
    }

    /// The known MTU of the path to `remote`, in bytes of IP packet.
    pub fn path_mtu(&self, remote: IpAddr) -> usize {
        self.cx.net.mtu_for(remote)
    }

    /// Fixes the MTU of the path to `remote`, in bytes of IP packet: at least IP's minimum, at most
    /// the link's. `None`: discovers it again.
    pub fn set_path_mtu(&mut self, remote: IpAddr, mtu: Option<usize>) {
        self.cx.net.set_path_mtu(remote, mtu);
    }
}
