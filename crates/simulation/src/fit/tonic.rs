//! tonic: servers over a listener, clients by the connector of [`hyper`](super::hyper).
//!
//! ```no_run
//! use pagewire_simulation::fit::tonic::Incoming;
//! use pagewire_simulation::net::TcpListener;
//!
//! # async fn server() -> std::io::Result<()> {
//! let incoming = Incoming::new(TcpListener::bind("0.0.0.0:50051").await?);
//! // Server::builder().add_service(service).serve_with_incoming(incoming).await?;
//! # Ok(())
//! # }
//! // Endpoint::from_static("http://server:50051").connect_with_connector_lazy(SimConnector::new())
//! ```
//!
//! `crates/simulation-crates/tests/suite/tonic.rs` has a whole program.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;
use tonic::transport::server::{Connected, TcpConnectInfo};

use crate::net::{TcpListener, TcpStream};

/// The connections of a listener, as the stream that `serve_with_incoming` takes.
#[derive(Debug)]
pub struct Incoming {
    listener: TcpListener,
    nodelay: bool,
}

impl Incoming {
    /// The connections of `listener`. Small segments leave at once, as tonic's own do.
    pub fn new(listener: TcpListener) -> Self {
        Self { listener, nodelay: true }
    }

    /// Whether small segments leave at once; on by default.
    pub fn nodelay(self, nodelay: bool) -> Self {
        Self { nodelay, ..self }
    }
}

impl Stream for Incoming {
    type Item = io::Result<TcpStream>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let accepted = self.listener.poll_accept(cx);
        accepted.map(|accepted| {
            Some(accepted.and_then(|(stream, _)| {
                stream.set_nodelay(self.nodelay)?;
                Ok(stream)
            }))
        })
    }
}

impl Connected for TcpStream {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        let (local_addr, remote_addr) = (self.local_addr().ok(), self.peer_addr().ok());
        TcpConnectInfo { local_addr, remote_addr }
    }
}
