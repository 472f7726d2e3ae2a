//! Joining and leaving multicast groups, for both forms of datagram sockets.

use std::io;
use std::net::{IpAddr, Ipv4Addr};

use pagewire_stack::{GroupLink, UdpId};

use crate::runtime::Runtime;
use crate::socket::Socket;

/// A group, and the link on which it is joined.
type Membership = (IpAddr, GroupLink);

impl<R: Runtime> Socket<R, UdpId> {
    pub(crate) fn join(&self, (group, on): Membership) -> io::Result<()> {
        self.with(|mut udp, clock| udp.join_group(clock.now(), group, on))
    }

    pub(crate) fn leave(&self, (group, on): Membership) -> io::Result<()> {
        self.with(|mut udp, clock| udp.leave_group(clock.now(), group, on))
    }
}

pub(crate) fn by_address(interface: Ipv4Addr) -> GroupLink {
    match interface.is_unspecified() {
        true => GroupLink::Route,
        false => GroupLink::Address(interface.into()),
    }
}

pub(crate) fn by_number(interface: u32) -> GroupLink {
    if interface == 0 { GroupLink::Route } else { GroupLink::Number(interface) }
}
