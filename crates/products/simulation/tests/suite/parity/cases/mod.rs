//! The cases, by subject.

mod errors;
mod halves;
mod listener;
mod names;
mod readiness;
mod signatures;
mod socket;
mod stream;
mod udp;
mod udp_more;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use super::net::{TcpListener, TcpStream, UdpSocket};
use super::{net, run};

/// A listener on a free port of the loopback address, and where it is.
async fn listen() -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let at = listener.local_addr()?;
    Ok((listener, at))
}

/// Two ends of a connection: the one that connected, the one that was accepted.
async fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let (listener, at) = listen().await?;
    let (client, server) = tokio::try_join!(TcpStream::connect(at), listener.accept())?;
    Ok((client, server.0))
}

/// An end of a connection that the other end has reset, by a drop with zero linger.
async fn reset() -> io::Result<TcpStream> {
    let (client, server) = pair().await?;
    server.set_zero_linger()?;
    Ok(client)
}

/// An address where nobody listens.
async fn nobody() -> io::Result<SocketAddr> {
    Ok(listen().await?.1)
}

/// Two datagram sockets.
async fn two() -> io::Result<(UdpSocket, UdpSocket)> {
    Ok((UdpSocket::bind("127.0.0.1:0").await?, UdpSocket::bind("127.0.0.1:0").await?))
}

/// Linux's number of an error.
fn number<T>(done: io::Result<T>) -> Option<i32> {
    done.err().expect("an error").raw_os_error()
}

/// Polls a future once.
fn poll_once<F: Future>(future: F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Lets what was sent arrive, on tokio's side: there the kernel and the driver work beside us.
async fn settle() {
    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
}
