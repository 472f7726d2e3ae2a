//! tonic: servers over a listener, clients by the [`Connector`](super::hyper::Connector) of hyper.
//!
//! ```no_run
//! use pagewire::fit::tonic::Incoming;
//! use pagewire::{Host, tokio::TcpListener};
//!
//! # async fn server(host: &Host) -> std::io::Result<()> {
//! let incoming = Incoming::new(TcpListener::bind(host, "0.0.0.0:50051").await?);
//! // Server::builder().add_service(service).serve_with_incoming(incoming).await?;
//! # Ok(())
//! # }
//! // Endpoint::from_static("http://10.0.0.1:50051").connect_with_connector(Connector::new(&host)).await?
//! ```

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use tonic::transport::server::{Connected, TcpConnectInfo};

use crate::tokio::{TcpListener, TcpStream};

/// The connections of a listener, as the stream that `serve_with_incoming` takes. It ends, behind an
/// error, when the host has ended: tonic passes over errors, and would ask again for ever.
#[derive(Debug)]
pub struct Incoming {
    listener: TcpListener,
    nodelay: bool,
    ended: bool,
}

impl Incoming {
    /// The connections of `listener`. Small segments leave at once, as tonic's own do.
    pub fn new(listener: TcpListener) -> Self {
        Self { listener, nodelay: true, ended: false }
    }

    /// Whether small segments leave at once; on by default.
    pub fn nodelay(self, nodelay: bool) -> Self {
        Self { nodelay, ..self }
    }
}

impl Stream for Incoming {
    type Item = io::Result<TcpStream>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let accepted = ready!(self.listener.poll_accept(cx));
        // A listener's accept fails for good.
        self.ended = accepted.is_err();
        Poll::Ready(Some(accepted.and_then(|(stream, _)| {
            stream.set_nodelay(self.nodelay)?;
            Ok(stream)
        })))
    }
}

impl Connected for TcpStream {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        let (local_addr, remote_addr) = (self.local_addr().ok(), self.peer_addr().ok());
        TcpConnectInfo { local_addr, remote_addr }
    }
}
