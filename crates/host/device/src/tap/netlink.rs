//! The kernel's side of a tap, through rtnetlink: its MTU, queue length, state and addresses.
//!
//! ```text
//!   0 length u32 | 4 type u16 | 6 flags u16 | 8 sequence u32 | 12 port u32 | 16 body … attributes
//!   attribute: 0 length u16 | 2 type u16 | 4 value, padded to 4
//! ```

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

const HEADER: usize = 16;

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_CREATE_EXCL: u16 = 0x600;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_TXQLEN: u16 = 13;
const IFLA_LINKINFO: u16 = 18;
const IFLA_CARRIER: u16 = 33;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
/// `linux/if_link.h`, since Linux 4.17, of a tap for several queues.
const IFLA_TUN_NUM_QUEUES: u16 = 8;
const IFLA_TUN_NUM_DISABLED_QUEUES: u16 = 9;
const ARPHRD_ETHER: u16 = 1;
const IFF_UP: u32 = 1;

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_BROADCAST: u16 = 4;
const IFA_F_NODAD: u8 = 2;

const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RT_TABLE_MAIN: u8 = 254;
const RTPROT_STATIC: u8 = 4;
const RT_SCOPE_LINK: u8 = 253;
const RTNH_F_ONLINK: u32 = 4;
const RTN_UNICAST: u8 = 1;
const RTN_LOCAL: u8 = 2;

/// The kernel's description of a network device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    pub(super) index: u32,
    /// A tap: neither another kind of device nor a `tun`, which has no Ethernet header.
    pub(super) is_tap: bool,
    pub(super) up: bool,
    /// Whether the other end is there: for a tap, a program that has it open.
    carrier: bool,
    /// Queues that programs have, detached ones included: of a tap for several queues, if the kernel says so.
    pub(super) open_queues: Option<u32>,
    pub(super) mtu: usize,
    pub(super) mac: [u8; 6],
}

impl Link {
    /// Whether a program has the tap open.
    pub(super) fn is_open(&self) -> bool {
        self.open_queues.map_or(self.carrier, |queues| queues > 0)
    }
}

pub(super) struct Netlink {
    socket: OwnedFd,
}

impl Netlink {
    pub(super) fn open() -> io::Result<Self> {
        // Protocol 0 of this family is NETLINK_ROUTE.
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        Ok(Self { socket })
    }

    /// The device called `name`; `None` if there is none.
    pub(super) fn link(&self, name: &str) -> io::Result<Option<Link>> {
        let mut message = Message::new(RTM_GETLINK, 0, &[0; 16]);
        let mut value = name.as_bytes().to_vec();
        value.push(0);
        message.attribute(IFLA_IFNAME, &value);
        match self.ask(message) {
            Ok(reply) => Ok(parse_link(&reply)),
            Err(e) if e.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => Ok(None),
            Err(e) => Err(e),
        }
    }

    pub(super) fn set_mtu(&self, index: u32, mtu: usize) -> io::Result<()> {
        let mut message = Message::new(RTM_NEWLINK, NLM_F_ACK, &link_body(index, 0));
        message.attribute(IFLA_MTU, &(mtu as u32).to_ne_bytes());
        self.ask(message).map(drop)
    }

    /// Sets how many frames wait for the stack, at most, before the kernel drops them.
    pub(super) fn set_queue_frames(&self, index: u32, frames: u32) -> io::Result<()> {
        let mut message = Message::new(RTM_NEWLINK, NLM_F_ACK, &link_body(index, 0));
        message.attribute(IFLA_TXQLEN, &frames.to_ne_bytes());
        self.ask(message).map(drop)
    }

    pub(super) fn bring_up(&self, index: u32) -> io::Result<()> {
        let message = Message::new(RTM_NEWLINK, NLM_F_ACK, &link_body(index, IFF_UP));
        self.ask(message).map(drop)
    }

    /// Gives the device an address; it may have it already.
    pub(super) fn add_address(&self, index: u32, address: IpAddr, prefix: u8) -> io::Result<()> {
        let (family, flags) = match address {
            IpAddr::V4(_) => (AddressFamily::INET, 0),
            // Without duplicate address detection: the link has no other host.
            IpAddr::V6(_) => (AddressFamily::INET6, IFA_F_NODAD),
        };
        let mut body = [family.as_raw() as u8, prefix, flags, 0, 0, 0, 0, 0];
        if let Some(to) = body.get_mut(4..8) {
            to.copy_from_slice(&index.to_ne_bytes());
        }
        let mut message = Message::new(RTM_NEWADDR, NLM_F_ACK | NLM_F_CREATE_EXCL, &body);
        match address {
            IpAddr::V4(v4) => {
                message.attribute(IFA_LOCAL, &v4.octets());
                message.attribute(IFA_ADDRESS, &v4.octets());
                if prefix < 31 {
                    let host = u32::MAX.checked_shr(u32::from(prefix)).unwrap_or(0);
                    message.attribute(IFA_BROADCAST, &(u32::from(v4) | host).to_be_bytes());
                }
            }
            IpAddr::V6(v6) => {
                message.attribute(IFA_LOCAL, &v6.octets());
                message.attribute(IFA_ADDRESS, &v6.octets());
            }
        }
        match self.ask(message) {
            Err(e) if e.raw_os_error() == Some(Errno::EXIST.raw_os_error()) => Ok(()),
            other => other.map(drop),
        }
    }

    /// Sets the device's link address.
    pub(super) fn set_mac(&self, index: u32, mac: [u8; 6]) -> io::Result<()> {
        let mut message = Message::new(RTM_NEWLINK, NLM_F_ACK, &link_body(index, 0));
        message.attribute(IFLA_ADDRESS, &mac);
        self.ask(message).map(drop)
    }

    /// Makes `router` the way to a network; it may be that already. `on_link`: the router is outside of the
    /// device's own networks. Without a router the network is on the link.
    pub(super) fn add_route(
        &self,
        index: u32,
        (network, prefix): (IpAddr, u8),
        router: Option<IpAddr>,
        on_link: bool,
    ) -> io::Result<()> {
        let octets = |address: IpAddr| match address {
            IpAddr::V4(v4) => v4.octets().to_vec(),
            IpAddr::V6(v6) => v6.octets().to_vec(),
        };
        let family = match network {
            IpAddr::V4(_) => AddressFamily::INET,
            IpAddr::V6(_) => AddressFamily::INET6,
        };
        let scope = if router.is_none() && network.is_ipv4() { RT_SCOPE_LINK } else { 0 };
        let flags = if on_link { RTNH_F_ONLINK } else { 0 };
        // Family, bits of destination and source, service, table, origin, scope, kind, flags.
        let family = family.as_raw() as u8;
        let mut body = vec![family, prefix, 0, 0, RT_TABLE_MAIN, RTPROT_STATIC, scope, RTN_UNICAST];
        body.extend(flags.to_ne_bytes());
        let flags = NLM_F_ACK | NLM_F_CREATE_EXCL;
        let mut message = Message::new(RTM_NEWROUTE, flags, &body);
        if prefix > 0 {
            message.attribute(RTA_DST, &octets(network));
        }
        if let Some(router) = router {
            message.attribute(RTA_GATEWAY, &octets(router));
        }
        message.attribute(RTA_OIF, &index.to_ne_bytes());
        match self.ask(message) {
            Err(e) if e.raw_os_error() == Some(Errno::EXIST.raw_os_error()) => Ok(()),
            other => other.map(drop),
        }
    }

    /// Whether this machine accepts packets to `address`: with IPv6 a moment after it was added.
    pub(super) fn is_local(&self, address: IpAddr) -> io::Result<bool> {
        let (family, octets) = match address {
            IpAddr::V4(v4) => (AddressFamily::INET, v4.octets().to_vec()),
            IpAddr::V6(v6) => (AddressFamily::INET6, v6.octets().to_vec()),
        };
        let bits = octets.len() as u8 * 8;
        let body = [family.as_raw() as u8, bits, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let mut message = Message::new(RTM_GETROUTE, 0, &body);
        message.attribute(RTA_DST, &octets);
        match self.ask(message) {
            Ok(reply) => Ok(reply.get(HEADER + 7) == Some(&RTN_LOCAL)),
            Err(e) if e.raw_os_error() == Some(Errno::NETUNREACH.raw_os_error()) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Sends one request and waits for its one answer, which the kernel has ready at once.
    fn ask(&self, message: Message) -> io::Result<Vec<u8>> {
        send(&self.socket, &message.finish(), SendFlags::empty())?;
        // A link's description is one to two kilobytes, with room for longer ones.
        let mut reply = vec![0; 32 << 10];
        let (_, len) = recv(&self.socket, reply.as_mut_slice(), RecvFlags::empty())?;
        reply.truncate(len);
        if read_u16(&reply, 4) == Some(NLMSG_ERROR) {
            match read_u32(&reply, HEADER).map(u32::cast_signed) {
                Some(0) => {}
                Some(code) => return Err(io::Error::from_raw_os_error(-code)),
                None => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
        Ok(reply)
    }
}

struct Message(Vec<u8>);

impl Message {
    fn new(kind: u16, flags: u16, body: &[u8]) -> Self {
        let mut bytes = vec![0; 4];
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&(NLM_F_REQUEST | flags).to_ne_bytes());
        bytes.resize(HEADER, 0);
        bytes.extend_from_slice(body);
        Self(bytes)
    }

    fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.0.extend_from_slice(&(4 + value.len() as u16).to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        let len = self.0.len() as u32;
        for (to, from) in self.0.iter_mut().zip(len.to_ne_bytes()) {
            *to = from;
        }
        self.0
    }
}

/// `struct ifinfomsg` that sets `flags`, and changes no others.
fn link_body(index: u32, flags: u32) -> Vec<u8> {
    let mut body = vec![0; 4];
    for word in [index, flags, flags] {
        body.extend_from_slice(&word.to_ne_bytes());
    }
    body
}

fn parse_link(reply: &[u8]) -> Option<Link> {
    let mut link = Link {
        index: read_u32(reply, HEADER + 4)?,
        is_tap: false,
        up: read_u32(reply, HEADER + 8)? & IFF_UP != 0,
        carrier: false,
        open_queues: None,
        mtu: 0,
        mac: [0; 6],
    };
    let is_ethernet = read_u16(reply, HEADER + 2)? == ARPHRD_ETHER;
    for (kind, value) in attributes(reply.get(HEADER + 16..)?) {
        match (kind, value.len()) {
            (IFLA_MTU, 4) => link.mtu = read_u32(value, 0)? as usize,
            (IFLA_ADDRESS, 6) => link.mac.copy_from_slice(value),
            // The flag of a carrier is missing while the device is down.
            (IFLA_CARRIER, 1) => link.carrier = value != [0],
            (IFLA_LINKINFO, _) => {
                let tun = |(kind, name)| kind == IFLA_INFO_KIND && name == b"tun\0";
                link.is_tap = is_ethernet && attributes(value).any(tun);
                if link.is_tap {
                    link.open_queues = parse_queues(value);
                }
            }
            _ => {}
        }
    }
    Some(link)
}

/// Attached and detached queues, in the information about a tap.
fn parse_queues(info: &[u8]) -> Option<u32> {
    let (_, data) = attributes(info).find(|(kind, _)| *kind == IFLA_INFO_DATA)?;
    let number = |wanted| {
        let (_, value) = attributes(data).find(|(kind, _)| *kind == wanted)?;
        read_u32(value, 0)
    };
    let (attached, detached) =
        (number(IFLA_TUN_NUM_QUEUES)?, number(IFLA_TUN_NUM_DISABLED_QUEUES)?);
    Some(attached.saturating_add(detached))
}

/// The kinds and values of consecutive attributes.
fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (len, kind) = (usize::from(read_u16(rest, 0)?), read_u16(rest, 2)?);
        let value = rest.get(4..len)?;
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes)
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}
