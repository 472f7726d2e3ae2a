//! URLs of files to fetch: `http` only, the host an address. `fetch` parses them and follows redirects.

use std::net::{IpAddr, SocketAddr};

use fluent_uri::component::Host;
use fluent_uri::{Uri, UriRef};

use crate::failure::Failure;

/// An http URL whose host is an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Url {
    text: String,
    pub(crate) address: SocketAddr,
    /// Value of the `Host` field.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_needs_an_address_and_nothing_that_we_cannot_do() {
        let url = Url::parse("http://10.0.0.1/a/b%20c?q=1#f").unwrap();
        assert_eq!(url.address, "10.0.0.1:80".parse().unwrap());
        assert_eq!((url.host.as_str(), url.target.as_str()), ("10.0.0.1", "/a/b%20c?q=1"));
        assert_eq!(url.file_name().as_deref(), Some("b c"));
        let url = Url::parse("HTTP://[fd77::1]:8080").unwrap();
        assert_eq!(url.address, "[fd77::1]:8080".parse().unwrap());
        assert_eq!((url.host.as_str(), url.target.as_str()), ("[fd77::1]:8080", "/"));
        assert_eq!(url.file_name(), None);
        for text in [
            "",
            "10.0.0.1/x",
            "http://",
            "http:///x",
            "https://10.0.0.1/",
            "ftp://10.0.0.1/",
            "http://example.org/x",
            "http://localhost/",
            "http://10.0.0.1:0/",
            "http://10.0.0.1:65536/",
            "http://10.0.0.1:x/",
            "http://user@10.0.0.1/",
            "http://10.0.0.1/a b",
            "http://10.0.0.1/\r\nX: y",
            "http://[fd77::1/",
            "http://10.0.0.256/",
        ] {
            assert!(Url::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_redirect_is_resolved_against_the_url_that_it_came_from() {
        let base = Url::parse("http://10.0.0.1:81/a/b?q#f").unwrap();
        for (location, expected) in [
            ("c", "http://10.0.0.1:81/a/c"),
            ("/c", "http://10.0.0.1:81/c"),
            ("../../../c", "http://10.0.0.1:81/c"),
            ("//10.0.0.2/c", "http://10.0.0.2/c"),
            ("http://[::1]/", "http://[::1]/"),
            ("?r", "http://10.0.0.1:81/a/b?r"),
        ] {
            assert_eq!(base.join(location).unwrap().as_str(), expected);
        }
        for location in ["https://10.0.0.1/", "http://example.org/", "file:///etc/passwd", "a b"] {
            assert!(base.join(location).is_err(), "{location:?}");
        }
    }
}
