//! [`Request`]: what a helper in a namespace is asked for, as text, and the socket that it makes.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, ipproto, listen, socket_with, sockopt,
};

use crate::limits::PUBLISHED_BACKLOG;
use crate::request::Protocol;
use crate::sys;

/// What the helper is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) protocol: Protocol,
    pub(super) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Plain {
        v6: bool,
    },
    /// For connections from this address, which is the namespace's.
    From(IpAddr),
    Listen(SocketAddr),
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Kind::Plain { v6 } => write!(f, "plain {} {}", self.protocol, if v6 { 6 } else { 4 }),
            Kind::From(ip) => write!(f, "from {} {ip}", self.protocol),
            Kind::Listen(at) => write!(f, "listen {} {at}", self.protocol),
        }
    }
}

impl Request {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (kind, rest) = text.split_once(' ')?;
        let (protocol, argument) = rest.split_once(' ')?;
        let protocol = match protocol {
            "tcp" => Protocol::Tcp,
            "udp" => Protocol::Udp,
            _ => return None,
        };
        let kind = match (kind, argument) {
            ("plain", "4") => Kind::Plain { v6: false },
            ("plain", "6") => Kind::Plain { v6: true },
            ("from", ip) => Kind::From(ip.parse().ok()?),
            ("listen", at) => Kind::Listen(at.parse().ok()?),
            _ => return None,
        };
        Some(Self { protocol, kind })
    }

    /// Makes the socket, in this process's namespace.
    pub(super) fn make(self) -> Result<OwnedFd, Errno> {
        let v6 = match self.kind {
            Kind::Plain { v6 } => v6,
            Kind::From(ip) => ip.is_ipv6(),
            Kind::Listen(at) => at.is_ipv6(),
        };
        let family = if v6 { AddressFamily::INET6 } else { AddressFamily::INET };
        let (kind, protocol) = match self.protocol {
            Protocol::Udp => (SocketType::DGRAM, ipproto::UDP),
            _ => (SocketType::STREAM, ipproto::TCP),
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, kind, flags, Some(protocol))?;
        if let Kind::From(ip) = self.kind {
            // The port is chosen by connect(2), which may take one that other destinations have.
            let done = sys::bind_without_port(socket.as_fd());
            done.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::INVAL))?;
            bind(&socket, &SocketAddr::new(ip, 0))?;
        }
        if let Kind::Listen(at) = self.kind {
            if v6 {
                sockopt::set_ipv6_v6only(&socket, true)?;
            }
            if self.protocol == Protocol::Tcp {
                sockopt::set_socket_reuseaddr(&socket, true)?;
            }
            bind(&socket, &at)?;
            if self.protocol == Protocol::Tcp {
                listen(&socket, PUBLISHED_BACKLOG)?;
            }
        }
        Ok(socket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_understood_as_it_was_meant() {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            for kind in [
                Kind::Plain { v6: false },
                Kind::Plain { v6: true },
                Kind::From("10.0.2.15".parse().unwrap()),
                Kind::From("fd00::15".parse().unwrap()),
                Kind::Listen("127.0.0.1:80".parse().unwrap()),
                Kind::Listen("[::1]:65535".parse().unwrap()),
            ] {
                let request = Request { protocol, kind };
                assert_eq!(Request::parse(&request.to_string()), Some(request));
            }
        }
    }

    #[test]
    fn what_is_no_request_is_none() {
        for text in [
            "",
            "plain",
            "plain tcp",
            "plain tcp 5",
            "plain icmp 4",
            "from tcp",
            "from tcp 10.0.2.15:80",
            "listen tcp",
            "listen tcp 127.0.0.1",
            "listen udp 127.0.0.1:65536",
            "open tcp 4",
        ] {
            assert_eq!(Request::parse(text), None, "{text}");
        }
    }
}
