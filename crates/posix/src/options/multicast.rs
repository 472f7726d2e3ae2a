//! Groups: joining and leaving them, and how datagrams are sent there (`IP_ADD_MEMBERSHIP`,
//! `IPV6_JOIN_GROUP`, `MCAST_JOIN_GROUP`, `IP_MULTICAST_*`, `IPV6_MULTICAST_*`). Membership from
//! certain sources only (`IP_ADD_SOURCE_MEMBERSHIP`, `IP_MSFILTER`) is refused with `ENOPROTOOPT`.
//!
//! A socket that is not bound yet joins when it is bound.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use pagewire_stack::{GroupLink, LinkId, MulticastSettings, Stack};

use super::call::{self, Done, SocketOptions, Value, int as int_value, number};
use super::set::{flag, int, int_or_char, within};
use crate::backend::Backend;
use crate::file::socket::{Kind, Socket, Stage, State};
use crate::{Errno, errno};

/// Numbers that `libc` does not name everywhere.
const IP_MULTICAST_ALL: i32 = 49;
const IPV6_MULTICAST_ALL: i32 = 29;
const MCAST_JOIN_GROUP: i32 = 42;
const MCAST_LEAVE_GROUP: i32 = 45;

/// Bytes of `struct in_addr`, `ip_mreq`, `ip_mreqn`, `ipv6_mreq` and `group_req`.
const IN_ADDR: usize = 4;
const MREQ: usize = 8;
const MREQN: usize = 12;
const MREQ6: usize = 20;
const GROUP_REQ: usize = 8 + 128;

/// Which of the two.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verb {
    Join,
    Leave,
}

impl<B: Backend> SocketOptions<'_, B> {
    /// `None`: the option is about something else.
    pub(super) fn set_ip_multicast(&self, name: i32, value: &[u8]) -> Option<Done> {
        Some(match name {
            libc::IP_ADD_MEMBERSHIP => self.member_v4(value, Verb::Join),
            libc::IP_DROP_MEMBERSHIP => self.member_v4(value, Verb::Leave),
            MCAST_JOIN_GROUP => self.member_of(libc::AF_INET, value, Verb::Join),
            MCAST_LEAVE_GROUP => self.member_of(libc::AF_INET, value, Verb::Leave),
            libc::IP_MULTICAST_TTL => self.set_ttl(value),
            libc::IP_MULTICAST_LOOP => {
                int_or_char(value).and_then(|on| self.set_multicast(false, |s| s.loops = on != 0))
            }
            IP_MULTICAST_ALL => int_or_char(value)
                .and_then(flag)
                .and_then(|on| self.set_multicast(false, |s| s.all = on)),
            libc::IP_MULTICAST_IF => self.set_interface_v4(value),
            _ => return None,
        })
    }

    /// `None`: the option is about something else.
    pub(super) fn set_ipv6_multicast(&self, name: i32, value: &[u8]) -> Option<Done> {
        Some(match name {
            libc::IPV6_ADD_MEMBERSHIP => self.member_v6(value, Verb::Join),
            libc::IPV6_DROP_MEMBERSHIP => self.member_v6(value, Verb::Leave),
            MCAST_JOIN_GROUP => self.member_of(libc::AF_INET6, value, Verb::Join),
            MCAST_LEAVE_GROUP => self.member_of(libc::AF_INET6, value, Verb::Leave),
            libc::IPV6_MULTICAST_HOPS | libc::IPV6_MULTICAST_IF if self.kind == Kind::Stream => {
                Err(Errno::NOPROTOOPT)
            }
            libc::IPV6_MULTICAST_HOPS => int(value).and_then(|hops| {
                let hops = u8::try_from(within(hops, -1..=255)?).unwrap_or(1);
                self.set_multicast(true, |s| s.hops = hops)
            }),
            libc::IPV6_MULTICAST_LOOP => {
                int(value).and_then(flag).and_then(|on| self.set_multicast(true, |s| s.loops = on))
            }
            IPV6_MULTICAST_ALL => {
                int(value).and_then(flag).and_then(|on| self.set_multicast(true, |s| s.all = on))
            }
            libc::IPV6_MULTICAST_IF => self.set_interface_v6(value),
            _ => return None,
        })
    }

    /// `struct ip_mreqn`, or `ip_mreq`, which has no number at its end.
    fn member_v4(&self, value: &[u8], verb: Verb) -> Done {
        let group = v4(value, 0).ok_or(Errno::INVAL)?;
        let address = v4(value, 4).ok_or(Errno::INVAL)?;
        self.member(group.into(), link_v4(address, number_at(value, MREQN)), verb)
    }

    fn member_v6(&self, value: &[u8], verb: Verb) -> Done {
        let group = v6(value, 0).ok_or(Errno::INVAL)?;
        let number = number_at(value, MREQ6).ok_or(Errno::INVAL)?;
        let on = if number == 0 { GroupLink::Route } else { GroupLink::Number(number) };
        self.member(group.into(), on, verb)
    }

    /// `struct group_req`: a number, and a socket address of the level's version.
    fn member_of(&self, family: i32, value: &[u8], verb: Verb) -> Done {
        if value.len() < GROUP_REQ {
            return Err(Errno::INVAL);
        }
        let number = number_at(value, 4).ok_or(Errno::INVAL)?;
        let given = i32::from(u16::from_ne_bytes([value[8], value[9]]));
        let group: Option<IpAddr> = match family {
            libc::AF_INET if given == family => v4(value, 12).map(IpAddr::V4),
            libc::AF_INET => return Err(Errno::INVAL),
            _ if given == family => v6(value, 16).map(IpAddr::V6),
            _ => return Err(Errno::ADDRNOTAVAIL),
        };
        let on = if number == 0 { GroupLink::Route } else { GroupLink::Number(number) };
        self.member(group.ok_or(Errno::INVAL)?, on, verb)
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
            // What is no group needs no link to be refused.
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

    fn set_ttl(&self, value: &[u8]) -> Done {
        if self.kind == Kind::Stream {
            return Err(Errno::INVAL);
        }
        // > -1: the default.
        let ttl = u8::try_from(within(int_or_char(value)?, -1..=255)?).unwrap_or(1);
        self.set_multicast(false, |settings| settings.hops = ttl)
    }

    /// `struct ip_mreqn`, `ip_mreq` or `in_addr`; all zero: the route's.
    fn set_interface_v4(&self, value: &[u8]) -> Done {
        if self.kind == Kind::Stream || value.len() < IN_ADDR {
            return Err(Errno::INVAL);
        }
        let at = if value.len() < MREQ { 0 } else { 4 };
        let address = v4(value, at).ok_or(Errno::INVAL)?;
        let on = link_v4(address, number_at(value, MREQN));
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
        check_bound(self, link)?;
        self.set_multicast(false, |settings| {
            (settings.link, settings.source) = (link, source);
        })
    }

    fn set_interface_v6(&self, value: &[u8]) -> Done {
        let link = match int(value)? {
            0 => None,
            number => {
                let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1).into();
                let on = GroupLink::Number(number as u32);
                Some(self.runtime.with(|s, _| s.group_link(all_nodes, on)).map_err(errno)?)
            }
        };
        check_bound(self, link)?;
        self.set_multicast(true, |settings| settings.link = link)
    }

    fn set_multicast(&self, v6: bool, change: impl FnOnce(&mut MulticastSettings)) -> Done {
        let at = usize::from(v6);
        self.set_datagram(
            |o| change(&mut o.multicast[at]),
            |o, mut udp| udp.set_multicast(v6, o.multicast[at]),
        )
    }
}

pub(super) fn get_ip_multicast(state: &State, name: i32) -> Value {
    let [settings, _] = state.options.multicast;
    match name {
        libc::IP_MULTICAST_TTL => int_value(settings.hops.into()),
        libc::IP_MULTICAST_LOOP => call::flag(settings.loops),
        IP_MULTICAST_ALL => call::flag(settings.all),
        libc::IP_MULTICAST_IF => Ok(match settings.source {
            Some(IpAddr::V4(source)) => source.octets().to_vec(),
            _ => vec![0; IN_ADDR],
        }),
        _ => Err(Errno::NOPROTOOPT),
    }
}

pub(super) fn get_ipv6_multicast(state: &State, name: i32) -> Value {
    let [_, settings] = state.options.multicast;
    match name {
        libc::IPV6_MULTICAST_HOPS => int_value(settings.hops.into()),
        libc::IPV6_MULTICAST_LOOP => call::flag(settings.loops),
        IPV6_MULTICAST_ALL => call::flag(settings.all),
        libc::IPV6_MULTICAST_IF => number(settings.link.map_or(0, LinkId::scope_id)),
        _ => Err(Errno::NOPROTOOPT),
    }
}

/// A socket that is bound to a link sends to groups by no other.
fn check_bound(socket: &Socket, link: Option<LinkId>) -> Done {
    match socket.lock().options.link {
        Some(bound) if link.is_some_and(|link| link != bound) => Err(Errno::INVAL),
        _ => Ok(()),
    }
}

/// The number comes before the address.
fn link_v4(address: Ipv4Addr, number: Option<u32>) -> GroupLink {
    match number {
        Some(number) if number != 0 => GroupLink::Number(number),
        _ if address.is_unspecified() => GroupLink::Route,
        _ => GroupLink::Address(address.into()),
    }
}

fn v4(value: &[u8], at: usize) -> Option<Ipv4Addr> {
    value.get(at..)?.first_chunk::<4>().map(|octets| Ipv4Addr::from(*octets))
}

fn v6(value: &[u8], at: usize) -> Option<Ipv6Addr> {
    value.get(at..)?.first_chunk::<16>().map(|octets| Ipv6Addr::from(*octets))
}

/// The number in the last four bytes of a structure that ends there.
fn number_at(value: &[u8], end: usize) -> Option<u32> {
    value.get(end - 4..end)?.try_into().ok().map(u32::from_ne_bytes)
}
