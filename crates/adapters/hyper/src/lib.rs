//! hyper on the sockets of Pagewire: a [`Connector`] for the client of hyper-util. Servers take streams as
//! they are.
//!
//! ```no_run
//! use hyper_util::client::legacy::Client;
//! use hyper_util::rt::TokioExecutor;
//! use pagewire::Host;
//! use pagewire_hyper::Connector;
//!
//! # fn client(host: &Host) -> Client<Connector<Host>, String> {
//! Client::builder(TokioExecutor::new()).build(Connector::on(host))
//! # }
//! ```
//!
//! A server is `hyper::server::conn::http1::Builder` (or `http2`) over
//! `hyper_util::rt::TokioIo::new(stream)`; a body in [`ByReference`] leaves without a copy. Timers of tokio
//! (`TokioTimer`) run on simulated time in a simulation.

#![forbid(unsafe_code)]

mod body;

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::Uri;
use http::uri::Scheme;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use pagewire_sockets::Runtime;
use pagewire_sockets::net::TcpStream;
use tower_service::Service;

pub use body::ByReference;

/// Connects to the host and port of a URI: an IP address, a [name](Self::name) that the connector has,
/// or any name that the resolver of the stack finds.
#[derive(Clone, Debug)]
pub struct Connector<R> {
    /// `None`: that of the code that runs.
    runtime: Option<R>,
    names: Arc<HashMap<String, IpAddr>>,
    nodelay: bool,
    enforce_http: bool,
}

impl<R: Runtime> Connector<R> {
    /// A connector whose connections begin at the stack of the code that runs. They have the Nagle
    /// algorithm, as hyper's own by default.
    pub fn new() -> Self {
        Self { runtime: None, names: Arc::default(), nodelay: false, enforce_http: true }
    }

    /// A connector whose connections begin at a stack.
    pub fn on(runtime: &R) -> Self {
        Self { runtime: Some(runtime.clone()), ..Self::new() }
    }

    /// Sets whether small segments leave at once; off by default.
    pub fn nodelay(mut self, nodelay: bool) -> Self {
        self.nodelay = nodelay;
        self
    }

    /// Sets whether URIs of other schemes than `http` are refused; on by default, as in hyper's own. This
    /// connector encrypts nothing: a wrapper that does turns it off.
    pub fn enforce_http(mut self, enforce: bool) -> Self {
        self.enforce_http = enforce;
        self
    }

    /// Adds the address of a name, in any case. The resolver is not asked for the name.
    pub fn name(mut self, name: &str, address: IpAddr) -> Self {
        Arc::make_mut(&mut self.names).insert(name.to_ascii_lowercase(), address);
        self
    }

    /// The host of a URI, and the port: the scheme's if the URI has none.
    fn target(&self, uri: &Uri) -> io::Result<(String, u16)> {
        let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
        if self.enforce_http && uri.scheme().is_some_and(|scheme| *scheme != Scheme::HTTP) {
            return Err(invalid(format!(
                "`{uri}`: a connector without encryption takes `http` only"
            )));
        }
        let host = uri.host().ok_or_else(|| invalid(format!("`{uri}` names no host")))?;
        // RFC 3986 section 3.2.2: an IPv6 address is in brackets.
        let host = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
        let known = self.names.get(&host.to_ascii_lowercase());
        let host = known.map_or_else(|| host.to_owned(), IpAddr::to_string);
        let default = if uri.scheme() == Some(&Scheme::HTTPS) { 443 } else { 80 };
        Ok((host, uri.port_u16().unwrap_or(default)))
    }
}

impl<R: Runtime> Default for Connector<R> {
    fn default() -> Self {
        Self::new()
    }
}

impl<R: Runtime> Service<Uri> for Connector<R> {
    type Response = TokioIo<Stream<R>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (runtime, nodelay, target) = (self.runtime.clone(), self.nodelay, self.target(&uri));
        Box::pin(async move {
            let runtime = runtime.map_or_else(R::current, Ok)?;
            let stream = TcpStream::connect_on(&runtime, target?).await?;
            stream.set_nodelay(nodelay)?;
            Ok(TokioIo::new(Stream(stream)))
        })
    }
}

/// A connection of the client.
#[derive(Debug)]
pub struct Stream<R: Runtime>(pub TcpStream<R>);

impl<R: Runtime> Connection for Stream<R> {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

pagewire_sockets::forward_io!(Stream);

#[cfg(test)]
mod tests {
    use pagewire::Host;

    use super::*;

    fn found(connector: &Connector<Host>, uri: &str) -> Result<(String, u16), io::ErrorKind> {
        connector.target(&uri.parse().expect("a URI")).map_err(|error| error.kind())
    }

    #[test]
    fn a_uri_names_a_host_and_a_port() {
        let connector =
            Connector::new().enforce_http(false).name("Known", IpAddr::from([10, 0, 0, 7]));
        assert_eq!(found(&connector, "http://server/a"), Ok(("server".into(), 80)));
        assert_eq!(found(&connector, "https://server"), Ok(("server".into(), 443)));
        assert_eq!(found(&connector, "http://[fd00::1]:8080/"), Ok(("fd00::1".into(), 8080)));
        assert_eq!(found(&connector, "http://kNOWN/"), Ok(("10.0.0.7".into(), 80)));
        assert_eq!(found(&connector, "/path"), Err(io::ErrorKind::InvalidInput));
    }

    #[test]
    fn a_uri_that_asks_for_encryption_is_refused_unless_a_wrapper_encrypts() {
        let connector = Connector::new();
        let https = "https://10.0.0.2/";
        assert_eq!(found(&connector, https), Err(io::ErrorKind::InvalidInput));
        assert_eq!(found(&connector.enforce_http(false), https), Ok(("10.0.0.2".into(), 443)));
    }
}
