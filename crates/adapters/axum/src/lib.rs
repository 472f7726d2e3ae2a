//! axum on the sockets of Pagewire: [`axum::serve()`] takes a [`Listener`], and handlers can ask for their
//! [`Peer`].
//!
//! ```no_run
//! use axum::{Router, extract::ConnectInfo, middleware, routing::get};
//! use pagewire::{Host, Tap, net::TcpListener};
//! use pagewire_axum::{Listener, Peer, by_reference};
//!
//! # async fn server() -> Result<(), Box<dyn std::error::Error>> {
//! let host = Host::builder().device(Tap::open("pw0")?).address("10.77.0.2/24");
//! let host = host.start_in_runtime()?; // a task drives the host: a request costs one wake-up
//! let app = Router::new()
//!     .route("/who", get(async |ConnectInfo(Peer(peer)): ConnectInfo<Peer>| peer.to_string()))
//!     .layer(middleware::map_response(by_reference)); // bodies leave without a copy
//! let listener = Listener(TcpListener::bind_on(&host, "0.0.0.0:80").await?);
//! let failed = host.failed(); // a lost device
//! axum::serve(listener, app.into_make_service_with_connect_info::<Peer>())
//!     .with_graceful_shutdown(async move { drop(failed.await) })
//!     .await?;
//! # Ok(())
//! # }
//! ```
//!
//! `axum::serve` never ends by itself, not even when a host's device is lost: a listener that has nothing
//! to give waits. `pagewire::Host::failed` as the signal of the shutdown ends it.

#![forbid(unsafe_code)]

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Body;
use axum::extract::connect_info::Connected;
use axum::response::Response;
use axum::serve::IncomingStream;
use pagewire_hyper::ByReference;
use pagewire_sockets::Runtime;
use pagewire_sockets::net::{TcpListener, TcpStream};

/// A listener for [`axum::serve()`].
#[derive(Debug)]
pub struct Listener<R: Runtime>(pub TcpListener<R>);

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

impl<R: Runtime> axum::serve::Listener for Listener<R> {
    type Io = TcpStream<R>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (TcpStream<R>, SocketAddr) {
        let mut logged = false;
        loop {
            match self.0.accept().await {
                Ok(accepted) => return accepted,
                Err(error) => {
                    if !std::mem::replace(&mut logged, true) {
                        tracing::error!(%error, "accept failed; it is tried again in silence");
                    }
                    // Another device may bring the network back.
                    tokio::time::sleep(REST).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

impl<R: Runtime> Connected<IncomingStream<'_, Listener<R>>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Listener<R>>) -> Self {
        Self(*stream.remote_addr())
    }
}
