//! [`Handshake`]: the request for a connection, in the protocol of the proxy.

use super::connect::Connect;
use super::socks5::Socks5;
use super::{Credentials, Next, ProxyKind, Target};

/// A request for one connection, until the proxy has answered.
#[derive(Debug)]
pub(crate) enum Handshake {
    Socks5(Socks5),
    Connect(Connect),
}

impl Handshake {
    pub(crate) fn new(kind: ProxyKind, target: &Target, credentials: Option<&Credentials>) -> Self {
        match kind {
            ProxyKind::Socks5 => Self::Socks5(Socks5::new(target, credentials)),
            ProxyKind::Http => Self::Connect(Connect::new(target, credentials)),
        }
    }

    pub(crate) fn next(&self) -> Next<'_> {
        match self {
            Self::Socks5(socks5) => socks5.next(),
            Self::Connect(connect) => connect.next(),
        }
    }

    /// Notes that `n` of the bytes of [`Next::Send`] are on their way.
    pub(crate) fn note_sent(&mut self, n: usize) {
        match self {
            Self::Socks5(socks5) => socks5.note_sent(n),
            Self::Connect(connect) => connect.note_sent(n),
        }
    }

    /// Takes as many of these bytes as belong to the proxy's answer, and returns their number: one at least, after
    /// [`Next::Receive`].
    pub(crate) fn take(&mut self, bytes: &[u8]) -> usize {
        match self {
            Self::Socks5(socks5) => socks5.take(bytes),
            Self::Connect(connect) => connect.take(bytes),
        }
    }

    /// Notes that the proxy ended its stream.
    pub(crate) fn end(&mut self) {
        match self {
            Self::Socks5(socks5) => socks5.end(),
            Self::Connect(connect) => connect.end(),
        }
    }
}
