//! hyper: a connector for its client. Servers take streams as they are.
//!
//! ```no_run
//! use hyper_util::client::legacy::Client;
//! use hyper_util::rt::{TokioExecutor, TokioTimer};
//! use pagewire_simulation::fit::hyper::SimConnector;
//!
//! # fn client() -> Client<SimConnector, String> {
//! Client::builder(TokioExecutor::new())
//!     .pool_timer(TokioTimer::new())
//!     .build(SimConnector::new())
//! # }
//! ```
//!
//! A server is `hyper::server::conn::http1::Builder` (or `http2`) with `TokioTimer`, over
//! `hyper_util::rt::TokioIo::new(stream)`. Timers of tokio run on simulated time.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::Uri;
use http::uri::Scheme;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use tower_service::Service;

use crate::net::TcpStream;

/// Connects to the host and port of a URI: by name, as [`TcpStream::connect`].
#[derive(Clone, Debug, Default)]
pub struct SimConnector {
    nodelay: bool,
}

impl SimConnector {
    /// A connector whose connections have the Nagle algorithm, as hyper's own by default.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether small segments leave at once; off by default.
    pub fn nodelay(mut self, nodelay: bool) -> Self {
        self.nodelay = nodelay;
        self
    }
}

impl Service<Uri> for SimConnector {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let nodelay = self.nodelay;
        Box::pin(async move {
            let stream = TcpStream::connect(target(&uri)?).await?;
            stream.set_nodelay(nodelay)?;
            Ok(TokioIo::new(stream))
        })
    }
}

/// Host and port; the scheme's port if there is none.
fn target(uri: &Uri) -> io::Result<(String, u16)> {
    let no_host = || io::Error::new(io::ErrorKind::InvalidInput, format!("{uri} names no host"));
    let host = uri.host().ok_or_else(no_host)?;
    // RFC 3986 section 3.2.2: an IPv6 address is in brackets.
    let host = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    let default = if uri.scheme() == Some(&Scheme::HTTPS) { 443 } else { 80 };
    Ok((host.to_owned(), uri.port_u16().unwrap_or(default)))
}

impl Connection for TcpStream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_names_a_host_and_a_port() {
        let found = |uri: &str| target(&uri.parse().unwrap()).unwrap();
        assert_eq!(found("http://server/a"), ("server".into(), 80));
        assert_eq!(found("https://server"), ("server".into(), 443));
        assert_eq!(found("http://[fd00::1]:8080/"), ("fd00::1".into(), 8080));
        assert!(target(&"/path".parse().unwrap()).is_err());
    }
}
