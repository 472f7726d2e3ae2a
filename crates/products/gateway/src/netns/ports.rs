//! [`PortTables`]: the ports on which programs of a network namespace listen, as `/proc/net` has them.

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::io::pread;

use crate::limits::PORT_TABLE;
use crate::request::Protocol;

/// The files, in the order in which a helper passes them on.
const FILES: [&str; 5] = [
    "/proc/thread-self/net/tcp",
    "/proc/thread-self/net/tcp6",
    "/proc/thread-self/net/udp",
    "/proc/thread-self/net/udp6",
    "/proc/sys/net/ipv4/ip_local_port_range",
];

/// The ports that Linux gives to sockets that ask for none, by default.
const GIVEN_OUT: (u16, u16) = (32_768, 60_999);

/// The state of a TCP socket that listens (`net/tcp_states.h`).
const LISTENS: &str = "0A";

/// The state of a UDP socket that is not connected.
const UNCONNECTED: &str = "07";

/// A port on which a program listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListeningPort {
    /// The number.
    pub port: u16,
    /// The address.
    pub at: ListensAt,
}

impl ListeningPort {
    /// The port of a socket that is bound to this address.
    pub(crate) fn of(at: SocketAddr) -> Self {
        Self { port: at.port(), at: kind_of(at.ip().to_canonical()) }
    }
}

/// The kind of address that a socket is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ListensAt {
    /// Any address.
    Any,
    /// A loopback address.
    Loopback,
    /// An address of another interface.
    Other,
}

/// Open tables of one network namespace: each look reads them from the start.
#[derive(Debug)]
pub(crate) struct PortTables {
    tcp: [Option<OwnedFd>; 2],
    udp: [Option<OwnedFd>; 2],
    given_out: Option<OwnedFd>,
}

impl PortTables {
    /// Opens the files of this thread's namespace, as far as there are any: a kernel without IPv6 lacks two.
    pub(super) fn open_files() -> Vec<Option<OwnedFd>> {
        FILES.iter().map(|name| File::open(name).ok().map(OwnedFd::from)).collect()
    }

    /// The tables in these files, in the order of [`open_files`](Self::open_files).
    pub(super) fn of(files: Vec<Option<OwnedFd>>) -> Self {
        let mut files = files.into_iter();
        let mut next = || files.next().flatten();
        Self { tcp: [next(), next()], udp: [next(), next()], given_out: next() }
    }

    /// The ports on which programs listen now, each kind of address once; sorted. Every client has a socket for
    /// datagrams that looks like a service's, so ports of these that the kernel gives out are left out.
    pub(crate) fn listening(&self, protocol: Protocol) -> io::Result<Vec<ListeningPort>> {
        let (files, state) = match protocol {
            Protocol::Udp => (&self.udp, UNCONNECTED),
            _ => (&self.tcp, LISTENS),
        };
        let mut found = Vec::new();
        for file in files.iter().flatten() {
            found.extend(parse(&read(file)?, state));
        }
        if protocol == Protocol::Udp {
            let range = self.given_out.as_ref().and_then(|file| read(file).ok());
            let (first, last) = range.and_then(|text| parse_range(&text)).unwrap_or(GIVEN_OUT);
            found.retain(|found| !(first..=last).contains(&found.port));
        }
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }
}

/// Reads a table from its start.
fn read(file: &OwnedFd) -> io::Result<String> {
    let (mut text, mut room) = (Vec::new(), vec![0; 64 << 10]);
    while text.len() < PORT_TABLE {
        let n = pread(file, &mut room[..], text.len() as u64)?;
        match room.get(..n) {
            Some([]) | None => break,
            Some(part) => text.extend_from_slice(part),
        }
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The ports of a table's sockets that are in this state. A line begins with
/// `NUMBER: ADDRESS:PORT ADDRESS:PORT STATE`, all in hexadecimal.
fn parse(text: &str, state: &str) -> Vec<ListeningPort> {
    let line = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let (local, of_state) = (words.nth(1)?, words.nth(1)?);
        let (address, port) = local.split_once(':').filter(|_| of_state == state)?;
        let port = u16::from_str_radix(port, 16).ok()?;
        Some(ListeningPort { port, at: kind_of(address_in(address)?) })
    };
    text.lines().skip(1).filter_map(line).filter(|found| found.port != 0).collect()
}

fn parse_range(text: &str) -> Option<(u16, u16)> {
    let mut words = text.split_ascii_whitespace();
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

/// An address as these tables have it: words of 32 bits, each as the machine has it.
fn address_in(text: &str) -> Option<IpAddr> {
    let word = |at: usize| u32::from_str_radix(text.get(at..at + 8)?, 16).ok();
    match text.len() {
        8 => Some(Ipv4Addr::from(word(0)?.to_ne_bytes()).into()),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            let mut bytes = [0; 16];
            let all = words.iter().flat_map(|word| word.to_ne_bytes());
            bytes.iter_mut().zip(all).for_each(|(to, byte)| *to = byte);
            Some(Ipv6Addr::from(bytes).to_canonical())
        }
        _ => None,
    }
}

fn kind_of(address: IpAddr) -> ListensAt {
    if address.is_unspecified() {
        ListensAt::Any
    } else if address.is_loopback() {
        ListensAt::Loopback
    } else {
        ListensAt::Other
    }
}

#[cfg(test)]
#[path = "ports_tests.rs"]
mod tests;
