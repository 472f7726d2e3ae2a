//! hyper: a [`Connector`] for the client of hyper-util. Servers take streams as they are.
//!
//! ```no_run
//! use hyper_util::client::legacy::Client;
//! use hyper_util::rt::TokioExecutor;
//! use pagewire::{Host, fit::hyper::Connector};
//!
//! # fn client(host: &Host) -> Client<Connector, String> {
//! Client::builder(TokioExecutor::new()).build(Connector::new(host))
//! # }
//! ```
//!
//! A server is `hyper::server::conn::http1::Builder` (or `http2`) over
//! `hyper_util::rt::TokioIo::new(stream)`; a body in [`ByReference`](super::body::ByReference) leaves
//! without a copy.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::Uri;
use http::uri::Scheme;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use tower_service::Service;

use crate::Host;
use crate::tokio::TcpStream;

/// Connects to the host and port of a URI: an IP address, or a [name](Self::name) that it was told.
#[derive(Clone, Debug)]
pub struct Connector {
    host: Host,
    names: Arc<HashMap<String, IpAddr>>,
    nodelay: bool,
    enforce_http: bool,
}

impl Connector {
    /// A connector whose connections begin at `host`, with the Nagle algorithm, as hyper's own by
    /// default.
    pub fn new(host: &Host) -> Self {
        Self { host: host.clone(), names: Arc::default(), nodelay: false, enforce_http: true }
    }

    /// Whether small segments leave at once; off by default.
    pub fn nodelay(mut self, nodelay: bool) -> Self {
        self.nodelay = nodelay;
        self
    }

    /// Whether URIs of other schemes than `http` are refused; on by default, as in hyper's own. This connector
    /// encrypts nothing: a wrapper that does turns it off.
    pub fn enforce_http(mut self, enforce: bool) -> Self {
        self.enforce_http = enforce;
        self
    }

    /// The address of a name, in any case. Nothing asks a resolver.
    pub fn name(mut self, name: &str, address: IpAddr) -> Self {
        Arc::make_mut(&mut self.names).insert(name.to_ascii_lowercase(), address);
        self
    }

    /// The address of a URI's host; the scheme's port if there is none.
    fn target(&self, uri: &Uri) -> io::Result<SocketAddr> {
        let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
        if self.enforce_http && uri.scheme().is_some_and(|scheme| *scheme != Scheme::HTTP) {
            return Err(invalid(format!(
                "`{uri}`: a connector without encryption takes `http` only"
            )));
        }
        let host = uri.host().ok_or_else(|| invalid(format!("`{uri}` names no host")))?;
        // RFC 3986 section 3.2.2: an IPv6 address is in brackets.
        let host = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
        let known = || self.names.get(&host.to_ascii_lowercase()).copied();
        let ip = host.parse().ok().or_else(known).ok_or_else(|| {
            invalid(format!("`{host}` is no IP address, and no name that the connector was told"))
        })?;
        let default = if uri.scheme() == Some(&Scheme::HTTPS) { 443 } else { 80 };
        Ok(SocketAddr::new(ip, uri.port_u16().unwrap_or(default)))
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (host, nodelay, target) = (self.host.clone(), self.nodelay, self.target(&uri));
        Box::pin(async move {
            let stream = TcpStream::connect(&host, target?).await?;
            stream.set_nodelay(nodelay)?;
            Ok(TokioIo::new(stream))
        })
    }
}

impl Connection for TcpStream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pair;

    #[test]
    fn a_uri_that_asks_for_encryption_is_refused_unless_a_wrapper_encrypts()
    -> Result<(), Box<dyn std::error::Error>> {
        let (device, _other) = Pair::new(Default::default())?;
        let host = Host::builder().device(device).address("10.0.0.1/24").manual().start()?;
        let connector = Connector::new(&host);
        let uri = Uri::from_static("https://10.0.0.2/");
        let refused = connector.target(&uri).map_err(|error| error.kind());
        assert_eq!(refused, Err(io::ErrorKind::InvalidInput));
        assert_eq!(connector.clone().enforce_http(false).target(&uri)?, "10.0.0.2:443".parse()?);
        assert_eq!(connector.target(&Uri::from_static("http://[::1]/"))?, "[::1]:80".parse()?);
        Ok(())
    }
}
