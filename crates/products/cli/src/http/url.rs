//! URLs of files to fetch.

use std::net::{IpAddr, SocketAddr};

use fluent_uri::component::Host;
use fluent_uri::{Uri, UriRef};

use crate::failure::Failure;

/// An http URL whose host is an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Url {
    text: String,
    pub(crate) address: SocketAddr,
    /// What the Host field says.
    pub(crate) host: String,
    /// Path and query, as in a request line.
    pub(crate) target: String,
}

impl Url {
    /// Parses a URL of the command line.
    pub(crate) fn parse(text: &str) -> Result<Self, Failure> {
        Self::read(text).map_err(|why| Failure::misused(text, why))
    }

    fn read(text: &str) -> Result<Self, &'static str> {
        let uri = Uri::parse(text)
            .map_err(|_| "not a URL; give one such as http://10.77.0.1:8000/name")?;
        if !uri.scheme().as_str().eq_ignore_ascii_case("http") {
            return Err("only http:// can be fetched");
        }
        let authority = uri.authority().ok_or("the URL names no host")?;
        if authority.userinfo().is_some() {
            return Err("user names in URLs are not supported");
        }
        let ip = match authority.host_parsed() {
            Host::Ipv4(ip) => IpAddr::from(ip),
            Host::Ipv6(ip) => IpAddr::from(ip),
            _ => {
                return Err("the host is a name, and there is no resolver here; give its address");
            }
        };
        let port = authority
            .port_to_u16()
            .map_err(|_| "the port is not between 1 and 65535")?
            .unwrap_or(80);
        if port == 0 {
            return Err("the port is not between 1 and 65535");
        }
        let path = match uri.path().as_str() {
            "" => "/",
            path => path,
        };
        let target = match uri.query() {
            Some(query) => format!("{path}?{query}"),
            None => path.to_owned(),
        };
        let host = match authority.port() {
            Some(port) if !port.is_empty() => format!("{}:{port}", authority.host()),
            _ => authority.host().to_owned(),
        };
        let address = SocketAddr::new(ip, port);
        Ok(Self { text: text.to_owned(), address, host, target })
    }

    /// Resolves a `Location` of this URL's response (RFC 9110 section 10.2.2).
    pub(crate) fn join(&self, location: &str) -> Result<Self, Failure> {
        let failed = || Failure::because(&self.text, format!("redirects to {location:?}, no URL"));
        let base = Uri::parse(self.text.as_str()).map_err(|_| failed())?;
        let relative = UriRef::parse(location).map_err(|_| failed())?;
        // A base with a fragment resolves nothing.
        let base = base.strip_fragment();
        let to = relative.resolve_against(&base).map_err(|_| failed())?;
        Self::read(to.as_str()).map_err(|why| Failure::because(to.as_str(), why))
    }

    /// The last part of the path, as a file's name.
    pub(crate) fn file_name(&self) -> Option<String> {
        let path = self.target.split('?').next()?;
        let name = percent_encoding::percent_decode_str(path.rsplit('/').next()?);
        let name = name.decode_utf8().ok()?.into_owned();
        let bad = name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']);
        (!bad).then_some(name)
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }
}
