//! [`Template`]: an interface of this machine, whose addresses and routes a guest gets as its own.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage, AddressScope};
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use pagewire::Cidr;
use rustix::net::{
    AddressFamily as SocketFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send,
    socket_with,
};

use crate::limits::{NETLINK_ANSWER, TEMPLATE_ADDRESSES, TEMPLATE_ROUTES};

/// What an interface of this machine has, for one version of IP.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Template {
    /// Its name.
    pub name: String,
    /// Its largest IP packet, in bytes.
    pub mtu: u32,
    /// Its addresses with the lengths of their prefixes: neither link-local ones of IPv6, nor those that are
    /// temporary, deprecated or not yet checked.
    pub addresses: Vec<Cidr>,
    /// The router of its default route.
    pub router: Option<IpAddr>,
    /// Its other routes, with their routers; without one, a network is on the link. Those that the kernel, or a
    /// router's advertisement, made are left out.
    pub routes: Vec<(Cidr, Option<IpAddr>)>,
}

impl Template {
    /// The interface of this name, or else that of the default route with the least metric; if there is none, of any
    /// route. `None`: there is no such interface, or it has no address of this version of IP.
    ///
    /// # Errors
    /// The system's: the kernel cannot be asked.
    pub fn find(name: Option<&str>, v4: bool) -> io::Result<Option<Self>> {
        let family = if v4 { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let mut routes = RouteMessage::default();
        routes.header.address_family = family;
        let mut addresses = AddressMessage::default();
        addresses.header.family = family;
        let facts = Facts {
            links: dump(RouteNetlinkMessage::GetLink(LinkMessage::default()), |m| match m {
                RouteNetlinkMessage::NewLink(link) => Some(link),
                _ => None,
            })?,
            addresses: dump(RouteNetlinkMessage::GetAddress(addresses), |m| match m {
                RouteNetlinkMessage::NewAddress(address) => Some(address),
                _ => None,
            })?,
            routes: dump(RouteNetlinkMessage::GetRoute(routes), |m| match m {
                RouteNetlinkMessage::NewRoute(route) => Some(route),
                _ => None,
            })?,
        };
        Ok(facts.template(name, family))
    }
}

/// The kernel's answers.
struct Facts {
    links: Vec<LinkMessage>,
    addresses: Vec<AddressMessage>,
    routes: Vec<RouteMessage>,
}

/// A route, as far as it matters here.
struct Way {
    to: Cidr,
    link: u32,
    via: Option<IpAddr>,
    metric: u32,
    by: RouteProtocol,
}

impl Facts {
    fn template(&self, name: Option<&str>, family: AddressFamily) -> Option<Template> {
        let ways = self.routes.iter().filter(|route| route.header.address_family == family);
        let ways: Vec<Way> = ways.filter_map(Way::of).collect();
        let named = |link: &&LinkMessage| name.is_some() && name == name_of(link);
        let index = match name {
            Some(_) => self.links.iter().find(named)?.header.index,
            None => {
                let defaults = ways.iter().filter(|way| way.to.prefix() == 0);
                let of_default = defaults.min_by_key(|way| way.metric).map(|way| way.link);
                of_default.or_else(|| ways.first().map(|way| way.link))?
            }
        };
        let link = self.links.iter().find(|link| link.header.index == index)?;
        let addresses = self.addresses.iter().filter(|address| address.header.index == index);
        let addresses: Vec<Cidr> =
            addresses.filter_map(address_of).take(TEMPLATE_ADDRESSES).collect();
        if addresses.is_empty() {
            return None;
        }
        let its = || ways.iter().filter(|way| way.link == index);
        let router = its().filter(|way| way.to.prefix() == 0).min_by_key(|way| way.metric);
        let made = |way: &&Way| way.by != RouteProtocol::Kernel && way.by != RouteProtocol::Ra;
        let others = its().filter(|way| way.to.prefix() > 0).filter(made);
        let routes = others.map(|way| (way.to, way.via)).take(TEMPLATE_ROUTES).collect();
        let mtu = link.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::Mtu(mtu) => Some(*mtu),
            _ => None,
        });
        Some(Template {
            name: name_of(link)?.to_owned(),
            mtu: mtu?,
            addresses,
            router: router.and_then(|way| way.via),
            routes,
        })
    }
}

impl Way {
    /// `None`: the route is none of packets to other hosts, or not of the main table.
    fn of(route: &RouteMessage) -> Option<Self> {
        let RouteMessage { header, attributes, .. } = route;
        if header.kind != RouteType::Unicast || header.table != RouteHeader::RT_TABLE_MAIN {
            return None;
        }
        let unspecified = match header.address_family {
            AddressFamily::Inet => Ipv4Addr::UNSPECIFIED.into(),
            _ => Ipv6Addr::UNSPECIFIED.into(),
        };
        let (mut to, mut link, mut via, mut metric) = (unspecified, None, None, 0);
        for attribute in attributes {
            match attribute {
                RouteAttribute::Destination(address) => to = ip(address)?,
                RouteAttribute::Gateway(address) => via = ip(address),
                RouteAttribute::Oif(index) => link = Some(*index),
                RouteAttribute::Priority(priority) => metric = *priority,
                RouteAttribute::MultiPath(hops) => {
                    // The heaviest of several.
                    let heaviest = hops.iter().max_by_key(|hop| hop.hops)?;
                    link = Some(heaviest.interface_index);
                    via = heaviest.attributes.iter().find_map(|attribute| match attribute {
                        RouteAttribute::Gateway(address) => ip(address),
                        _ => None,
                    });
                }
                _ => {}
            }
        }
        let to = Cidr::new(to, header.destination_prefix_length).ok()?;
        Some(Self { to, link: link?, via, metric, by: header.protocol })
    }
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some((*address).into()),
        RouteAddress::Inet6(address) => Some((*address).into()),
        _ => None,
    }
}

fn name_of(link: &LinkMessage) -> Option<&str> {
    link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name.as_str()),
        _ => None,
    })
}

/// `None`: no other host should use the address.
fn address_of(message: &AddressMessage) -> Option<Cidr> {
    let mut flags = AddressFlags::from_bits_retain(message.header.flags.bits().into());
    let (mut own, mut peer) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Flags(all) => flags = *all,
            AddressAttribute::Local(address) => own = Some(*address),
            AddressAttribute::Address(address) => peer = Some(*address),
            _ => {}
        }
    }
    let address = own.or(peer)?;
    let mut unfit = AddressFlags::Tentative | AddressFlags::Deprecated | AddressFlags::Dadfailed;
    if address.is_ipv6() {
        // The bit that means a second address of IPv4 means a temporary one of IPv6 (RFC 8981).
        unfit |= AddressFlags::Secondary;
    }
    let is_local = message.header.scope != AddressScope::Universe && address.is_ipv6();
    let fits = !is_local && !address.is_loopback() && !flags.intersects(unfit);
    Cidr::new(address, message.header.prefix_len).ok().filter(|_| fits)
}

/// Asks the kernel for all messages of a kind.
fn dump<T>(
    request: RouteNetlinkMessage,
    wanted: impl Fn(RouteNetlinkMessage) -> Option<T>,
) -> io::Result<Vec<T>> {
    let mut message = NetlinkMessage::from(request);
    message.header.flags = NLM_F_DUMP | NLM_F_REQUEST;
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    // Protocol 0 of this family is NETLINK_ROUTE.
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(SocketFamily::NETLINK, SocketType::RAW, flags, None)?;
    send(&socket, &bytes, SendFlags::empty())?;
    let (mut all, mut answer) = (Vec::new(), vec![0; NETLINK_ANSWER]);
    loop {
        let (_, len) = recv(&socket, answer.as_mut_slice(), RecvFlags::empty())?;
        let mut rest = answer.get(..len).unwrap_or_default();
        while !rest.is_empty() {
            let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
            let len = (message.header.length as usize).next_multiple_of(4).max(1);
            rest = rest.get(len..).unwrap_or_default();
            match message.payload {
                NetlinkPayload::Done(_) => return Ok(all),
                NetlinkPayload::Error(error) => return Err(error.to_io()),
                NetlinkPayload::InnerMessage(inner) => all.extend(wanted(inner)),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
#[path = "template_tests.rs"]
mod tests;
