//! The system calls of datagram sockets: payload where it lies, with addresses, hop limits and
//! segment sizes beside it.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};

use pagewire::memory::{Frag, Spare};

use super::{Pieces, check};

/// The option for messages of several datagrams, from `linux/udp.h`.
const UDP_SEGMENT: c_int = 103;
const UDP_GRO: c_int = 104;

/// Bytes of control messages: more than a call here has.
const CONTROL: usize = 256;

/// Bytes of a control message's header.
const CONTROL_HEADER: usize = size_of::<libc::cmsghdr>();

/// Destination and options of a datagram that is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sending {
    pub(crate) to: SocketAddr,
    /// Payload bytes of each datagram but the last; `None`: it is one.
    pub(crate) segment: Option<u16>,
    /// The hop limit; `None`: the socket's.
    pub(crate) hop_limit: Option<u8>,
}

/// A datagram that was received, or several of one size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    /// Payload bytes, without those in the head.
    pub(crate) len: usize,
    pub(crate) from: SocketAddr,
    /// With several: payload bytes of each but the last.
    pub(crate) segment: Option<u16>,
    /// There was no room for all of it.
    pub(crate) cut: bool,
}

/// An entry of a socket's error queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reported {
    /// The error as `errno`.
    pub(crate) error: i32,
    /// The origin of the error: `SO_EE_ORIGIN_*`.
    pub(crate) origin: u8,
    /// Type and code of the ICMP message.
    pub(crate) kind: (u8, u8),
    /// The MTU, if the packet was too long.
    pub(crate) info: u32,
    /// The destination of the packet that it is about.
    pub(crate) to: SocketAddr,
    /// The router that reported it.
    pub(crate) offender: Option<IpAddr>,
    /// The first bytes of that packet's payload, and how many there are.
    pub(crate) quoted: ([u8; 8], usize),
}

/// Sends `head` and then the fragments, as one datagram or several of one size.
pub(crate) fn send<'a>(
    fd: BorrowedFd<'_>,
    head: &[u8],
    frags: impl Iterator<Item = &'a Frag>,
    how: Sending,
) -> io::Result<usize> {
    let mut pieces = Pieces::new();
    pieces.push(head.as_ptr(), head.len());
    for frag in frags {
        pieces.push(frag.as_ptr(), frag.len());
    }
    let mut name = Name::of(how.to);
    let mut control = Control::new();
    if let Some(segment) = how.segment {
        control.push(libc::SOL_UDP, UDP_SEGMENT, &segment.to_ne_bytes());
    }
    if let Some(limit) = how.hop_limit {
        let (level, kind) = match how.to {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TTL),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT),
        };
        control.push(level, kind, &c_int::from(limit).to_ne_bytes());
    }
    let mut message = pieces.message();
    message.msg_name = name.bytes.0.as_mut_ptr().cast::<c_void>();
    message.msg_namelen = name.len as _;
    if control.len > 0 {
        message.msg_control = control.bytes.0.as_mut_ptr().cast::<c_void>();
        message.msg_controllen = control.len as _;
    }
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: each piece is readable for its length while the call lasts, because the head and the
    // fragments are borrowed; name and control are local arrays of at least the given lengths. No
    // reference is formed over bytes that others may change, and the kernel writes to none of them.
    check(unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const message, flags) })
}

/// Receives a datagram: its first bytes into `head`, the rest into spare pages.
pub(crate) fn receive(
    fd: BorrowedFd<'_>,
    head: &mut [u8],
    spare: &mut Spare<'_>,
) -> io::Result<Received> {
    let received = receive_parts(fd, head, Some(spare))?;
    Ok(Received { len: received.len.saturating_sub(head.len()), ..received })
}

/// Receives a datagram, or several of one size, into memory of this process.
pub(crate) fn receive_into(fd: BorrowedFd<'_>, room: &mut [u8]) -> io::Result<Received> {
    receive_parts(fd, room, None)
}

/// Receives a datagram. The length is that of all parts.
fn receive_parts(
    fd: BorrowedFd<'_>,
    head: &mut [u8],
    spare: Option<&mut Spare<'_>>,
) -> io::Result<Received> {
    let mut pieces = Pieces::new();
    pieces.push(head.as_mut_ptr(), head.len());
    for (at, len) in spare.iter().flat_map(|spare| spare.runs()) {
        pieces.push(at.as_ptr(), len);
    }
    let (mut name, mut control) = (Name::room(), Control::new());
    let mut message = pieces.message();
    message.msg_name = name.bytes.0.as_mut_ptr().cast::<c_void>();
    message.msg_namelen = name.bytes.0.len() as _;
    message.msg_control = control.bytes.0.as_mut_ptr().cast::<c_void>();
    message.msg_controllen = control.bytes.0.len() as _;
    // SAFETY: each piece is writable for its length while the call lasts: `head` is an exclusive
    // slice, and spare bytes are written only by the holder of `spare`, which is borrowed
    // exclusively; name and control are local arrays of the given lengths.
    let n = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    let n = check(n)?;
    (name.len, control.len) = (message.msg_namelen as _, message.msg_controllen as _);
    let segment = control.find(libc::SOL_UDP, UDP_GRO).and_then(|data| {
        let size = i32::from_ne_bytes(data.get(..4)?.try_into().ok()?);
        u16::try_from(size).ok().filter(|size| usize::from(*size) < n)
    });
    let from = name.address().ok_or(io::ErrorKind::InvalidData)?;
    let cut = message.msg_flags & libc::MSG_TRUNC != 0;
    Ok(Received { len: n, from, segment, cut })
}

/// Takes the oldest entry of the error queue; `None`: it is empty.
pub(crate) fn take_error(fd: BorrowedFd<'_>) -> Option<Reported> {
    let mut quoted = [0; 8];
    let mut pieces = Pieces::new();
    pieces.push(quoted.as_mut_ptr(), quoted.len());
    let (mut name, mut control) = (Name::room(), Control::new());
    let mut message = pieces.message();
    message.msg_name = name.bytes.0.as_mut_ptr().cast::<c_void>();
    message.msg_namelen = name.bytes.0.len() as _;
    message.msg_control = control.bytes.0.as_mut_ptr().cast::<c_void>();
    message.msg_controllen = control.bytes.0.len() as _;
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: the piece, the name and the control are local arrays of the given lengths, which
    // nothing else uses while the call lasts.
    let n = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, flags) };
    let n = check(n).ok()?;
    (name.len, control.len) = (message.msg_namelen as _, message.msg_controllen as _);
    let data = control
        .find(libc::SOL_IP, libc::IP_RECVERR)
        .or_else(|| control.find(libc::SOL_IPV6, libc::IPV6_RECVERR))?;
    // `struct sock_extended_err`, and behind it the offender's address.
    let word = |at: usize| Some(u32::from_ne_bytes(data.get(at..at + 4)?.try_into().ok()?));
    let byte = |at: usize| data.get(at).copied();
    let offender = data.get(16..).and_then(address_in).map(|at| at.ip());
    Some(Reported {
        error: word(0)? as i32,
        origin: byte(4)?,
        kind: (byte(5)?, byte(6)?),
        info: word(8)?,
        to: name.address()?,
        offender: offender.filter(|ip| !ip.is_unspecified()),
        quoted: (quoted, n.min(quoted.len())),
    })
}

/// Joins datagrams of one flow that came together; an older kernel gives them one by one.
pub(crate) fn join_received(fd: BorrowedFd<'_>) {
    let _ = set(fd, libc::SOL_UDP, UDP_GRO, 1);
}

/// Whether datagrams must not be fragmented on their way.
pub(crate) fn set_dont_fragment(fd: BorrowedFd<'_>, v6: bool, on: bool) -> io::Result<()> {
    match (v6, on) {
        (false, true) => set(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO),
        (false, false) => set(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DONT),
        (true, true) => {
            set(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)
        }
        (true, false) => {
            set(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DONT)
        }
    }
}

/// Keeps errors that the network reports in the error queue.
pub(crate) fn queue_errors(fd: BorrowedFd<'_>, v6: bool) -> io::Result<()> {
    match v6 {
        false => set(fd, libc::IPPROTO_IP, libc::IP_RECVERR, 1),
        true => set(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1),
    }
}

fn set(fd: BorrowedFd<'_>, level: c_int, option: c_int, value: c_int) -> io::Result<()> {
    let size = size_of::<c_int>() as libc::socklen_t;
    let value = (&raw const value).cast::<c_void>();
    // SAFETY: the option is an `int`, which is read from a live local of that type.
    let done = unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, value, size) };
    check(done as isize).map(drop)
}

/// Bytes at an address that suits the kernel's structures.
#[repr(align(8))]
struct Aligned<const N: usize>([u8; N]);

/// An address as the kernel has it: `struct sockaddr_in` or `struct sockaddr_in6`.
struct Name {
    bytes: Aligned<{ size_of::<libc::sockaddr_in6>() }>,
    len: usize,
}

impl Name {
    /// Room for any.
    fn room() -> Self {
        Self { bytes: Aligned([0; size_of::<libc::sockaddr_in6>()]), len: 0 }
    }

    fn of(address: SocketAddr) -> Self {
        let mut name = Self::room();
        let mut put = |bytes: &[u8]| {
            for byte in bytes {
                if let Some(slot) = name.bytes.0.get_mut(name.len) {
                    *slot = *byte;
                }
                name.len += 1;
            }
        };
        match address {
            SocketAddr::V4(v4) => {
                put(&(libc::AF_INET as u16).to_ne_bytes());
                put(&v4.port().to_be_bytes());
                put(&v4.ip().octets());
                put(&[0; 8]);
            }
            SocketAddr::V6(v6) => {
                put(&(libc::AF_INET6 as u16).to_ne_bytes());
                put(&v6.port().to_be_bytes());
                put(&v6.flowinfo().to_be_bytes());
                put(&v6.ip().octets());
                put(&v6.scope_id().to_ne_bytes());
            }
        }
        name
    }

    fn address(&self) -> Option<SocketAddr> {
        address_in(self.bytes.0.get(..self.len)?)
    }
}

/// The address that the kernel's structure has.
fn address_in(bytes: &[u8]) -> Option<SocketAddr> {
    let family = u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?);
    let port = u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?);
    if i32::from(family) == libc::AF_INET {
        let ip: [u8; 4] = bytes.get(4..8)?.try_into().ok()?;
        return Some((Ipv4Addr::from(ip), port).into());
    }
    if i32::from(family) != libc::AF_INET6 {
        return None;
    }
    let ip: [u8; 16] = bytes.get(8..24)?.try_into().ok()?;
    let scope = u32::from_ne_bytes(bytes.get(24..28)?.try_into().ok()?);
    Some(SocketAddrV6::new(Ipv6Addr::from(ip), port, 0, scope).into())
}

/// Control messages: each a header, `struct cmsghdr`, and its data, both padded to words.
struct Control {
    bytes: Aligned<CONTROL>,
    len: usize,
}

/// The padding of control messages.
const WORD: usize = size_of::<usize>();

impl Control {
    fn new() -> Self {
        Self { bytes: Aligned([0; CONTROL]), len: 0 }
    }

    fn push(&mut self, level: c_int, kind: c_int, data: &[u8]) {
        let len = CONTROL_HEADER + data.len();
        let Some(room) = self.bytes.0.get_mut(self.len..self.len + len.next_multiple_of(WORD))
        else {
            return;
        };
        let header = (len.to_ne_bytes().into_iter())
            .chain(level.to_ne_bytes())
            .chain(kind.to_ne_bytes())
            .chain(data.iter().copied());
        room.iter_mut().zip(header).for_each(|(to, byte)| *to = byte);
        self.len += len.next_multiple_of(WORD);
    }

    /// The data of the first message of this kind.
    fn find(&self, level: c_int, kind: c_int) -> Option<&[u8]> {
        let mut rest = self.bytes.0.get(..self.len)?;
        while let Some(header) = rest.get(..CONTROL_HEADER) {
            let len = usize::from_ne_bytes(header.get(..WORD)?.try_into().ok()?);
            let this = (level.to_ne_bytes(), kind.to_ne_bytes());
            if header.get(WORD..WORD + 4)? == this.0 && header.get(WORD + 4..)? == this.1 {
                return rest.get(CONTROL_HEADER..len);
            }
            rest = rest.get(len.max(CONTROL_HEADER).next_multiple_of(WORD)..)?;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_survives_the_kernels_structure() {
        for text in ["192.0.2.7:53", "[2001:db8::7]:65535", "0.0.0.0:0"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(Name::of(address).address(), Some(address));
        }
        assert_eq!(Name::room().address(), None);
    }

    #[test]
    fn control_messages_are_found_by_level_and_kind() {
        let mut control = Control::new();
        control.push(1, 2, &[7; 2]);
        control.push(3, 4, &[8; 4]);
        assert_eq!(control.find(1, 2), Some(&[7, 7][..]));
        assert_eq!(control.find(3, 4), Some(&[8; 4][..]));
        assert_eq!(control.find(1, 4), None);
        // The same calculation as in the kernel's macros.
        // SAFETY: a plain calculation.
        let space = |len| unsafe { libc::CMSG_SPACE(len) } as usize;
        assert_eq!(control.len, space(2) + space(4));
    }
}
