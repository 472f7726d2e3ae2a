//! Groups: joining and leaving them, and the link by which datagrams are sent there
//! (`IP_ADD_MEMBERSHIP`, `IPV6_JOIN_GROUP`, `MCAST_JOIN_GROUP`, `IP_MULTICAST_IF`, `IPV6_MULTICAST_IF`). Membership from
//! certain sources only (`IP_ADD_SOURCE_MEMBERSHIP`, `IP_MSFILTER`) is refused with `ENOPROTOOPT`.
//!
//! A socket that is not bound yet joins when it is bound.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use pagewire_stack::{GroupLink, LinkId, SocketOption, Stack, option};

use super::Done;
use crate::backend::Backend;
use crate::descriptors::SocketCall;
use crate::file::socket::{Kind, Stage, State};
use crate::{Errno, errno, field};

/// Numbers that `libc` does not name everywhere.
const MCAST_JOIN_GROUP: i32 = 42;
const MCAST_LEAVE_GROUP: i32 = 45;

/// Bytes of `struct ip_mreq` and `group_req`.
const MREQ: usize = 8;
const GROUP_REQ: usize = 8 + 128;

/// The operation on a group.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verb {
    Join,
    Leave,
}

impl<B: Backend> SocketCall<'_, B> {
    /// `None`: the option is about something else, or only a value.
    pub(super) fn set_group_option(&self, level: i32, name: i32, value: &[u8]) -> Option<Done> {
        let is_stream = self.kind == Kind::Stream;
        Some(match (level, name) {
            (libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP) => self.member_v4(value, Verb::Join),
            (libc::IPPROTO_IP, libc::IP_DROP_MEMBERSHIP) => self.member_v4(value, Verb::Leave),
            (libc::IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP) => self.member_v6(value, Verb::Join),
            (libc::IPPROTO_IPV6, libc::IPV6_DROP_MEMBERSHIP) => self.member_v6(value, Verb::Leave),
            (libc::IPPROTO_IP | libc::IPPROTO_IPV6, MCAST_JOIN_GROUP) => {
                self.member_of(level, value, Verb::Join)
            }
            (libc::IPPROTO_IP | libc::IPPROTO_IPV6, MCAST_LEAVE_GROUP) => {
                self.member_of(level, value, Verb::Leave)
            }
            (libc::IPPROTO_IP, libc::IP_MULTICAST_TTL | libc::IP_MULTICAST_IF) if is_stream => {
                Err(Errno::INVAL)
            }
            (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS | libc::IPV6_MULTICAST_IF)
                if is_stream =>
            {
                Err(Errno::NOPROTOOPT)
            }
            (libc::IPPROTO_IP, libc::IP_MULTICAST_IF) => self.set_interface_v4(value),
            (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF) => self.set_interface_v6(value),
            _ => return None,
        })
    }

    /// `struct ip_mreqn`, or `ip_mreq`, which has no number at its end.
    fn member_v4(&self, value: &[u8], verb: Verb) -> Done {
        let (group, on) = (field::<4>(value, 0)?, link_v4(value, 4)?);
        self.member(group.into(), on, verb)
    }

    fn member_v6(&self, value: &[u8], verb: Verb) -> Done {
        let group = field::<16>(value, 0)?;
        self.member(group.into(), numbered(field(value, 16)?), verb)
    }

    /// `struct group_req`: a number, and a socket address of the level's version.
    fn member_of(&self, level: i32, value: &[u8], verb: Verb) -> Done {
        if value.len() < GROUP_REQ {
            return Err(Errno::INVAL);
        }
        let group: IpAddr = match (level, u16::from_ne_bytes(field(value, 8)?).into()) {
            (libc::IPPROTO_IP, libc::AF_INET) => field::<4>(value, 12)?.into(),
            (libc::IPPROTO_IP, _) => return Err(Errno::INVAL),
            (_, libc::AF_INET6) => field::<16>(value, 16)?.into(),
            _ => return Err(Errno::ADDRNOTAVAIL),
        };
        self.member(group, numbered(field(value, 0)?), verb)
    }

    fn member(&self, group: IpAddr, on: GroupLink, verb: Verb) -> Done {
        if self.kind == Kind::Stream {
            return Err(Errno::PROTO);
        }
        let mut state = self.lock();
        let (stage, groups) = (state.stage, &mut state.options.groups);
        let done = self.runtime.with(|stack, now| match (stage, verb) {
            (Stage::Datagram(id), Verb::Join) => {
                stack.udp(id).and_then(|mut udp| udp.join_group(now, group, on))
            }
            (Stage::Datagram(id), Verb::Leave) => {
                stack.udp(id).and_then(|mut udp| udp.leave_group(now, group, on))
            }
            // An address that is no group needs no link to be refused.
            (_, Verb::Join) if !group.is_multicast() => Err(pagewire_stack::Error::InvalidInput),
            (_, Verb::Join) => {
                groups.join(group, stack.group_link(group, on)?, on == GroupLink::Route)
            }
            (_, Verb::Leave) => {
                let link = stack.group_link(group, on)?;
                groups.leave(group, link, on == GroupLink::Route).map(drop)
            }
        });
        done.map_err(errno)
    }

    /// `struct ip_mreqn`, `ip_mreq` or `in_addr`; all zero: the route's.
    fn set_interface_v4(&self, value: &[u8]) -> Done {
        let at = if value.len() < MREQ { 0 } else { 4 };
        let (address, on) = (Ipv4Addr::from(field::<4>(value, at)?), link_v4(value, at)?);
        let find = |stack: &mut Stack| match on {
            GroupLink::Route => Ok(None),
            on => stack.group_link(Ipv4Addr::new(224, 0, 0, 1).into(), on).map(Some),
        };
        let link = self.runtime.with(|stack, _| find(stack)).map_err(|_| Errno::ADDRNOTAVAIL)?;
        let source = (!address.is_unspecified()).then_some(IpAddr::V4(address));
        let ours = |stack: &mut Stack| stack.addresses().iter().any(|a| Some(a.addr()) == source);
        if source.is_some() && !self.runtime.with(|stack, _| ours(stack)) {
            return Err(Errno::ADDRNOTAVAIL);
        }
        let mut state = self.lock();
        self.check_bound(&state, link)?;
        self.put(&mut state, SocketOption::MulticastLinkV4(link))?;
        self.put(&mut state, SocketOption::MulticastSourceV4(source))
    }

    fn set_interface_v6(&self, value: &[u8]) -> Done {
        let link = match numbered(field(value, 0)?) {
            GroupLink::Route => None,
            on => {
                let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1).into();
                Some(self.runtime.with(|s, _| s.group_link(all_nodes, on)).map_err(errno)?)
            }
        };
        let mut state = self.lock();
        self.check_bound(&state, link)?;
        self.put(&mut state, SocketOption::MulticastLinkV6(link))
    }

    /// A socket that is bound to a link sends to groups by no other.
    fn check_bound(&self, state: &State, link: Option<LinkId>) -> Done {
        match state.options.value(option::Link) {
            Some(bound) if link.is_some_and(|link| link != bound) => Err(Errno::INVAL),
            _ => Ok(()),
        }
    }
}

/// The link of a `struct ip_mreqn`, whose address is at `at` and whose number follows; without a number, of
/// the structures that end before.
fn link_v4(value: &[u8], at: usize) -> Result<GroupLink, Errno> {
    let address = Ipv4Addr::from(field::<4>(value, at)?);
    match field(value, 8).map(numbered) {
        Ok(GroupLink::Number(number)) => Ok(GroupLink::Number(number)),
        _ if address.is_unspecified() => Ok(GroupLink::Route),
        _ => Ok(GroupLink::Address(address.into())),
    }
}

/// The link with a number; 0: that of the route.
fn numbered(number: [u8; 4]) -> GroupLink {
    match u32::from_ne_bytes(number) {
        0 => GroupLink::Route,
        number => GroupLink::Number(number),
    }
}
