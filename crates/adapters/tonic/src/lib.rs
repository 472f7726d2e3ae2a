//! tonic on the sockets of Pagewire: servers over a listener. Clients connect by the `Connector` of
//! `pagewire-hyper`.
//!
//! ```no_run
//! use pagewire::{Host, net::TcpListener};
//! use pagewire_tonic::Incoming;
//!
//! # async fn server(host: &Host) -> std::io::Result<()> {
//! let incoming = Incoming::new(TcpListener::bind_on(host, "0.0.0.0:50051").await?);
//! // Server::builder().add_service(service).serve_with_incoming(incoming).await?;
//! # Ok(())
//! # }
//! // Endpoint::from_static("http://10.0.0.1:50051").connect_with_connector(Connector::on(&host)).await?
//! ```

#![forbid(unsafe_code)]

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use pagewire_sockets::Runtime;
use pagewire_sockets::net::{TcpListener, TcpStream};
use tonic::transport::server::{Connected, TcpConnectInfo};

/// The connections of a listener, as the stream that `serve_with_incoming` takes. The stream ends, behind
/// an error, when the host has ended: tonic passes over errors, and would ask again for ever.
#[derive(Debug)]
pub struct Incoming<R: Runtime> {
    listener: TcpListener<R>,
    nodelay: bool,
    ended: bool,
}

impl<R: Runtime> Incoming<R> {
    /// The connections of `listener`. Small segments leave at once, as tonic's own do.
    pub fn new(listener: TcpListener<R>) -> Self {
        Self { listener, nodelay: true, ended: false }
    }

    /// Sets whether small segments leave at once; on by default.
    pub fn nodelay(self, nodelay: bool) -> Self {
        Self { nodelay, ..self }
    }
}

impl<R: Runtime> Stream for Incoming<R> {
    type Item = io::Result<Connection<R>>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let accepted = ready!(self.listener.poll_accept(cx));
        // A listener's accept fails for good.
        self.ended = accepted.is_err();
        Poll::Ready(Some(accepted.and_then(|(stream, _)| {
            stream.set_nodelay(self.nodelay)?;
            Ok(Connection(stream))
        })))
    }
}

/// A connection of the server.
#[derive(Debug)]
pub struct Connection<R: Runtime>(pub TcpStream<R>);

impl<R: Runtime> Connected for Connection<R> {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        let (local_addr, remote_addr) = (self.0.local_addr().ok(), self.0.peer_addr().ok());
        TcpConnectInfo { local_addr, remote_addr }
    }
}

pagewire_sockets::forward_io!(Connection);
