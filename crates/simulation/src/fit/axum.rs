//! axum: [`axum::serve()`] takes a [`TcpListener`], and handlers can ask for their [`Peer`].
//!
//! ```no_run
//! use axum::extract::ConnectInfo;
//! use axum::routing::get;
//! use pagewire_simulation::fit::axum::Peer;
//! use pagewire_simulation::net::TcpListener;
//!
//! # async fn server() -> std::io::Result<()> {
//! let who = async |ConnectInfo(Peer(peer)): ConnectInfo<Peer>| peer.to_string();
//! let app = axum::Router::new().route("/who", get(who));
//! let listener = TcpListener::bind("0.0.0.0:80").await?;
//! axum::serve(listener, app.into_make_service_with_connect_info::<Peer>()).await
//! # }
//! ```

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};

use crate::net::{TcpListener, TcpStream};

/// The peer of a connection, in the place of the `SocketAddr` that axum gives for tokio's listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer(pub SocketAddr);

/// How long a server rests after a failed accept, as axum does with tokio's listener.
const REST: Duration = Duration::from_secs(1);

impl Listener for TcpListener {
    type Io = TcpStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        loop {
            match Self::accept(self).await {
                Ok(accepted) => return accepted,
                Err(error) => {
                    tracing::error!(%error, "accept failed");
                    tokio::time::sleep(REST).await;
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
