//! axum: [`axum::serve()`] takes a [`TcpListener`], and handlers can ask for their [`Peer`].
//!
//! ```no_run
//! use axum::{Router, extract::ConnectInfo, middleware, routing::get};
//! use pagewire::fit::axum::{Peer, by_reference};
//! use pagewire::{Host, tokio::TcpListener};
//!
//! # async fn server(host: &Host) -> std::io::Result<()> {
//! let app = Router::new()
//!     .route("/who", get(async |ConnectInfo(Peer(peer)): ConnectInfo<Peer>| peer.to_string()))
//!     .layer(middleware::map_response(by_reference)); // bodies leave without a copy
//! let listener = TcpListener::bind(host, "0.0.0.0:80").await?;
//! let failed = host.failed(); // a lost device
//! axum::serve(listener, app.into_make_service_with_connect_info::<Peer>())
//!     .with_graceful_shutdown(async move { drop(failed.await) })
//!     .await
//! # }
//! ```
//!
//! `axum::serve` never ends by itself, not even when the host's device is lost: a listener that has
//! nothing to give waits. [`Host::failed`](crate::Host::failed) as the signal of the shutdown ends it.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Body;
use axum::extract::connect_info::Connected;
use axum::response::Response;
use axum::serve::{IncomingStream, Listener};

use super::body::ByReference;
use crate::tokio::{TcpListener, TcpStream};

/// The peer of a connection, in the place of the `SocketAddr` that axum gives for tokio's listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer(pub SocketAddr);

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How long a server rests after a failed accept, as axum does with tokio's listener.
const REST: Duration = Duration::from_secs(1);

/// For `axum::middleware::map_response`: bodies whose pieces of 2 KiB or more leave by reference.
pub async fn by_reference(response: Response) -> Response {
    response.map(|body| Body::new(ByReference(body)))
}

impl Listener for TcpListener {
    type Io = TcpStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        let mut said = false;
        loop {
            match Self::accept(self).await {
                Ok(accepted) => return accepted,
                Err(error) => {
                    if !std::mem::replace(&mut said, true) {
                        tracing::error!(%error, "accept failed; it is tried again in silence");
                    }
                    // Another device may bring it back.
                    ::tokio::time::sleep(REST).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Self::local_addr(self)
    }
}

impl Connected<IncomingStream<'_, TcpListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, TcpListener>) -> Self {
        Self(*stream.remote_addr())
    }
}
