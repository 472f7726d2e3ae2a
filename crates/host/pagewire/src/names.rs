//! Names to addresses: a host answers `localhost` itself, and asks its [`Resolver`] for other names.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::host::{Host, Resolver};

/// The addresses of a name, by a host's resolver. `localhost` is this host (RFC 6761 section 6.3).
pub(crate) async fn resolve(
    host: &Host,
    resolver: Option<&dyn Resolver>,
    name: &str,
) -> io::Result<Vec<IpAddr>> {
    let lower = normal(name);
    if lower == "localhost" || lower.ends_with(".localhost") {
        return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
    }
    match resolver {
        Some(resolver) => match resolver.resolve(host, name).await? {
            none if none.is_empty() => Err(not_found(name)),
            found => Ok(found),
        },
        None => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "`{name}` is no IP address, and the host has no resolver: give it one by \
                 `HostBuilder::resolver`, or resolve names before this call"
            ),
        )),
    }
}

/// The form in which names are compared: lower case, and without a dot at the end.
pub(crate) fn normal(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// The C library's error for an unknown name, in the words of `std`.
pub(crate) fn not_found(name: &str) -> io::Error {
    let text = format!("failed to lookup address information: Name or service not known: `{name}`");
    io::Error::new(io::ErrorKind::NotFound, text)
}
