//! [`LocalAddresses`]: the destinations on the gateway's own machine, by its kernel's routes, over netlink.
//!
//! ```text
//!   0 length u32 | 4 type u16 | 6 flags u16 | 8 sequence u32 | 12 port u32 | 16 route … attributes
//!   route: 0 family | 1 bits | 2 … | 7 kind | 8 flags u32
//! ```

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use pagewire::services::Instant;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::net::{recv, send, socket_with};

use crate::limits::{OURS_DESTINATIONS, OURS_TIME};

const HEADER: usize = 16;
/// Bytes of a route, behind the header.
const ROUTE: usize = 12;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const RTA_DST: u16 = 1;
/// Kinds of routes whose packets this machine takes itself: local, broadcast, anycast.
const TAKEN_HERE: std::ops::RangeInclusive<u8> = 2..=4;
/// Bytes of the receive buffer: more than the kernel's answer about one route has.
const ANSWER: usize = 4096;
/// Number of late answers to earlier questions that are skipped.
const STALE: usize = 8;

/// Asks the kernel whether addresses are its own, and remembers the answers for a second.
#[derive(Debug, Default)]
pub struct LocalAddresses {
    routes: Arc<RouteSocket>,
    cache: HashMap<IpAddr, (bool, Instant)>,
}

impl LocalAddresses {
    /// A cache of answers of this socket.
    pub(crate) fn new(routes: Arc<RouteSocket>) -> Self {
        Self { routes, cache: HashMap::new() }
    }

    /// Whether packets to the address end on this machine. `None`: the kernel does not say, so a rule
    /// that depends on this permits nothing.
    pub fn is_ours(&mut self, now: Instant, address: IpAddr) -> Option<bool> {
        if address.is_loopback() {
            return Some(true);
        }
        if let Some((ours, until)) = self.cache.get(&address)
            && *until > now
        {
            return Some(*ours);
        }
        let ours = self.routes.is_local(address).ok()?;
        if self.cache.len() >= OURS_DESTINATIONS {
            self.cache.clear();
        }
        self.cache.insert(address, (ours, now + OURS_TIME));
        Some(ours)
    }
}

/// A netlink socket for questions about the kernel's routes, in the network namespace in which it was opened. It
/// is opened once: a question takes no descriptor, which a guest could use up, and the sandbox forbids
/// further sockets.
#[derive(Debug)]
pub(crate) struct RouteSocket {
    /// The socket, and the number of the last question.
    socket_and_number: io::Result<Mutex<(OwnedFd, u32)>>,
}

impl Default for RouteSocket {
    fn default() -> Self {
        // Protocol 0 of this family is NETLINK_ROUTE.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None);
        Self {
            socket_and_number: socket
                .map(|socket| Mutex::new((socket, 0)))
                .map_err(io::Error::from),
        }
        .checked()
    }
}

impl RouteSocket {
    /// The reason why the kernel cannot be asked.
    pub(crate) fn check(&self) -> Result<(), &io::Error> {
        self.socket_and_number.as_ref().map(drop)
    }

    /// Keeps the socket if the kernel knows its loopback address. A kernel that does not, such as another system that
    /// behaves as Linux, has no answers that a rule can rely on.
    fn checked(self) -> Self {
        let why = match self.is_local(Ipv4Addr::LOCALHOST.into()) {
            Ok(true) => return self,
            Ok(false) => io::Error::other("it does not call 127.0.0.1 its own"),
            Err(error) => error,
        };
        Self { socket_and_number: Err(why) }
    }

    /// Whether packets to the address end on this machine, by the kind of the route. The source address of a datagram
    /// to the address would not tell: for a second address of an interface it is the first.
    fn is_local(&self, address: IpAddr) -> io::Result<bool> {
        let socket_and_number =
            self.socket_and_number.as_ref().map_err(|error| io::Error::from(error.kind()))?;
        let mut socket_and_number =
            socket_and_number.lock().unwrap_or_else(PoisonError::into_inner);
        socket_and_number.1 = socket_and_number.1.wrapping_add(1);
        let (socket, number) = (&socket_and_number.0, socket_and_number.1);
        send(socket, &encode_request(address, number), SendFlags::empty())?;
        // The kernel has queued its answer when `send` returns.
        let mut answer = [0; ANSWER];
        for _ in 0..STALE {
            let (_, len) = recv(socket, &mut answer[..], RecvFlags::DONTWAIT)?;
            let answer = answer.get(..len).unwrap_or_default();
            if field(answer, 8) == Some(number) {
                return parse_reply(answer);
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    #[cfg(test)]
    pub(crate) fn unavailable() -> Self {
        Self { socket_and_number: Err(io::ErrorKind::PermissionDenied.into()) }
    }
}

fn encode_request(address: IpAddr, number: u32) -> Vec<u8> {
    let (family, octets) = match address {
        IpAddr::V4(v4) => (AddressFamily::INET, v4.octets().to_vec()),
        IpAddr::V6(v6) => (AddressFamily::INET6, v6.octets().to_vec()),
    };
    let attribute = 4 + octets.len() as u16;
    let len = (HEADER + ROUTE) as u32 + u32::from(attribute);
    let mut route = [0; ROUTE];
    [route[0], route[1]] = [family.as_raw() as u8, octets.len() as u8 * 8];
    let header = (len.to_ne_bytes().into_iter())
        .chain(RTM_GETROUTE.to_ne_bytes())
        .chain(NLM_F_REQUEST.to_ne_bytes())
        .chain(number.to_ne_bytes())
        .chain([0; 4]);
    let attribute = attribute.to_ne_bytes().into_iter().chain(RTA_DST.to_ne_bytes());
    header.chain(route).chain(attribute).chain(octets).collect()
}

fn field(message: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*message.get(at..)?.first_chunk()?))
}

/// Decodes an answer of the kernel: whether the route is local.
fn parse_reply(answer: &[u8]) -> io::Result<bool> {
    let kind = answer.get(4..6).and_then(|bytes| bytes.try_into().ok()).map(u16::from_ne_bytes);
    match kind {
        Some(RTM_NEWROUTE) => {
            let kind = answer.get(HEADER + 7).ok_or(io::ErrorKind::InvalidData)?;
            Ok(TAKEN_HERE.contains(kind))
        }
        Some(NLMSG_ERROR) => {
            let code = field(answer, HEADER).map_or(0, |code| -code.cast_signed());
            match Errno::from_raw_os_error(code) {
                // Without a route, or with one that is unreachable or prohibited, the address is not local. A blackhole is
                // EINVAL, which may also mean a wrong question: the answer stays unknown.
                Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::ACCESS => Ok(false),
                error => Err(error.into()),
            }
        }
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
#[path = "local_addresses_tests.rs"]
mod tests;
