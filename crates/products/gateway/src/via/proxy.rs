//! [`Proxy`]: a proxy's address, its protocol, and the credentials for it.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;
use std::sync::Arc;

use crate::limits::{PROXY_ADDRESSES, PROXY_CREDENTIAL};
use crate::request::Name;

/// The protocol of a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProxyKind {
    /// SOCKS5 (RFC 1928).
    Socks5,
    /// HTTP's CONNECT (RFC 9110 section 9.3.6), without TLS to the proxy.
    Http,
}

impl ProxyKind {
    /// The scheme in URLs.
    const fn scheme(self) -> &'static str {
        match self {
            Self::Socks5 => "socks5",
            Self::Http => "http",
        }
    }
}

/// The place of a proxy, written `socks5://HOST:PORT` or `http://HOST:PORT`; `HOST` is a name or an address, an IPv6
/// one in brackets. `socks5h://` is the same as `socks5://`: the proxy gets names as names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProxyUrl {
    /// The protocol.
    pub kind: ProxyKind,
    host: String,
    port: u16,
}

/// Why a text is no [`ProxyUrl`]. The texts repeat nothing of it: it may have a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProxyError {
    /// The scheme is another.
    #[error("a proxy is socks5://HOST:PORT or http://HOST:PORT")]
    Scheme,
    /// The scheme asks for TLS.
    #[error(
        "TLS to a proxy is not supported: write http://HOST:PORT, or put a TLS client in front"
    )]
    Tls,
    /// The URL has credentials.
    #[error("a proxy's URL has no user and no password: they are given apart")]
    Credentials,
    /// The part behind the scheme is no host with a port.
    #[error(
        "behind its scheme a proxy's URL is HOST:PORT, as in 192.0.2.1:1080 or [2001:db8::1]:1080"
    )]
    Place,
}

impl FromStr for ProxyUrl {
    type Err = ProxyError;

    fn from_str(text: &str) -> Result<Self, ProxyError> {
        let (scheme, place) = text.split_once("://").ok_or(ProxyError::Scheme)?;
        let kind = match scheme.to_ascii_lowercase().as_str() {
            "socks5" | "socks5h" => ProxyKind::Socks5,
            "http" => ProxyKind::Http,
            "https" => return Err(ProxyError::Tls),
            _ => return Err(ProxyError::Scheme),
        };
        if place.contains('@') {
            return Err(ProxyError::Credentials);
        }
        let place = place.strip_suffix('/').unwrap_or(place);
        let (host, port) = place.rsplit_once(':').ok_or(ProxyError::Place)?;
        let port = port.parse().ok().filter(|port| *port != 0).ok_or(ProxyError::Place)?;
        let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(v6) => v6.parse().map(IpAddr::V6).map_err(|_| ProxyError::Place)?.to_string(),
            None => {
                let is_host = host.parse::<IpAddr>().is_ok_and(|address| address.is_ipv4())
                    || host
                        .parse::<Name>()
                        .is_ok_and(|name| name.is_host_name() || is_local(&name));
                is_host.then(|| host.to_ascii_lowercase()).ok_or(ProxyError::Place)?
            }
        };
        Ok(Self { kind, host, port })
    }
}

/// A proxy may be on this machine.
fn is_local(name: &Name) -> bool {
    name.as_str() == "localhost"
}

impl fmt::Display for ProxyUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, host, port } = self;
        let scheme = kind.scheme();
        match host.contains(':') {
            true => write!(f, "{scheme}://[{host}]:{port}"),
            false => write!(f, "{scheme}://{host}:{port}"),
        }
    }
}

/// A user's name and password for a proxy, written `USER:PASSWORD`: each has 1 to 255 bytes (RFC 1929 section 2), and
/// no control characters; a name has no colon (RFC 7617 section 2).
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    user: Box<[u8]>,
    password: Box<[u8]>,
}

/// The text is no `USER:PASSWORD`. Nothing of it is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "credentials are one line USER:PASSWORD, each of 1 to 255 bytes without control characters"
)]
pub struct CredentialsError;

impl Credentials {
    pub(crate) fn user(&self) -> &[u8] {
        &self.user
    }

    pub(crate) fn password(&self) -> &[u8] {
        &self.password
    }
}

impl FromStr for Credentials {
    type Err = CredentialsError;

    fn from_str(text: &str) -> Result<Self, CredentialsError> {
        let (user, password) = text.split_once(':').ok_or(CredentialsError)?;
        let fits = |part: &str| {
            (1..=PROXY_CREDENTIAL).contains(&part.len()) && !part.contains(char::is_control)
        };
        if !fits(user) || !fits(password) {
            return Err(CredentialsError);
        }
        Ok(Self { user: user.as_bytes().into(), password: password.as_bytes().into() })
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

/// A proxy that connections can go by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    pub(crate) kind: ProxyKind,
    /// The URL, for people.
    pub(crate) text: Arc<str>,
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) credentials: Option<Credentials>,
}

impl Proxy {
    /// The proxy of this URL. A name is resolved here, by this machine's own resolver, which may take its time; its
    /// addresses stay, and are tried in turn.
    ///
    /// # Errors
    /// The resolver's; `NotFound` if the name has no address.
    pub fn resolve(url: ProxyUrl) -> io::Result<Self> {
        let all = (url.host.as_str(), url.port).to_socket_addrs()?;
        let addresses: Vec<SocketAddr> = all.take(PROXY_ADDRESSES).collect();
        if addresses.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
        }
        Ok(Self { kind: url.kind, text: url.to_string().into(), addresses, credentials: None })
    }

    /// Credentials, for a proxy that asks for them.
    #[must_use]
    pub fn credentials(mut self, credentials: Credentials) -> Self {
        self.credentials = Some(credentials);
        self
    }
}
