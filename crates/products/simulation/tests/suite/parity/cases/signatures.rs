//! The types have the methods and traits of tokio's: it compiles.

use std::fmt::Debug;
use std::io::Result;
use std::net::{Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, Interest, Ready};

use super::net::tcp::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, WriteHalf};
use super::net::{TcpListener, TcpSocket, TcpStream, ToSocketAddrs, UdpSocket, lookup_host};

/// Checks the output of a future that may go to another thread.
fn gives<T>(_: &(impl Future<Output = T> + Send)) {}

fn sendable<T: Send + Sync + Unpin + Debug>() {}

#[test]
fn types_go_where_tokios_go() {
    sendable::<TcpListener>();
    sendable::<TcpStream>();
    sendable::<TcpSocket>();
    sendable::<UdpSocket>();
    sendable::<ReadHalf<'static>>();
    sendable::<WriteHalf<'static>>();
    sendable::<OwnedReadHalf>();
    sendable::<OwnedWriteHalf>();
    sendable::<ReuniteError>();
    fn reads<T: AsyncRead>() {}
    fn writes<T: AsyncWrite>() {}
    reads::<TcpStream>();
    reads::<ReadHalf<'static>>();
    reads::<OwnedReadHalf>();
    writes::<TcpStream>();
    writes::<WriteHalf<'static>>();
    writes::<OwnedWriteHalf>();
    fn error<T: std::error::Error>() {}
    error::<ReuniteError>();
    fn refers<T: AsRef<TcpStream>>() {}
    refers::<TcpStream>();
    refers::<ReadHalf<'static>>();
    refers::<OwnedReadHalf>();
    refers::<OwnedWriteHalf>();
    fn from_std<T: TryFrom<S, Error = std::io::Error>, S>() {}
    from_std::<TcpStream, std::net::TcpStream>();
    from_std::<TcpListener, std::net::TcpListener>();
    from_std::<UdpSocket, std::net::UdpSocket>();
    fn address<T: ToSocketAddrs + ?Sized>() {}
    address::<str>();
    address::<&'static [SocketAddr]>();
}

/// The methods that no other case calls.
#[test]
#[allow(deprecated)]
fn methods_are_tokios() {
    let _: fn(TcpStream) -> Result<std::net::TcpStream> = TcpStream::into_std;
    let _: fn(std::net::TcpStream) -> Result<TcpStream> = TcpStream::from_std;
    let _: fn(TcpListener) -> Result<std::net::TcpListener> = TcpListener::into_std;
    let _: fn(std::net::TcpStream) -> TcpSocket = TcpSocket::from_std_stream;
    let _: fn(&TcpSocket, Option<Duration>) -> Result<()> = TcpSocket::set_linger;
    let _: fn(&TcpSocket) -> Result<u32> = TcpSocket::tos;
    let _: fn(UdpSocket) -> Result<std::net::UdpSocket> = UdpSocket::into_std;
    let _: fn(&UdpSocket) -> Result<u32> = UdpSocket::tos;
    let _: fn(&UdpSocket, &Ipv6Addr, u32) -> Result<()> = UdpSocket::join_multicast_v6;
    let _: fn(&UdpSocket, &Ipv6Addr, u32) -> Result<()> = UdpSocket::leave_multicast_v6;
}

/// Never called.
#[allow(dead_code)]
fn futures_can_move_to_other_threads(
    (stream, listener, socket): (&'static mut TcpStream, &'static TcpListener, TcpSocket),
    udp: &'static UdpSocket,
    at: SocketAddr,
) {
    gives::<Result<TcpStream>>(&TcpStream::connect(at));
    gives::<Result<TcpStream>>(&TcpStream::connect("a:1"));
    gives::<Result<TcpStream>>(&socket.connect(at));
    gives::<Result<TcpListener>>(&TcpListener::bind(at));
    gives::<Result<UdpSocket>>(&UdpSocket::bind(at));
    gives::<Result<(TcpStream, SocketAddr)>>(&listener.accept());
    gives::<Result<Ready>>(&stream.ready(Interest::READABLE));
    gives::<Result<()>>(&stream.readable());
    gives::<Result<usize>>(&stream.peek(&mut []));
    gives::<Result<usize>>(&stream.async_io(Interest::READABLE, || Ok(1)));
    gives::<Result<usize>>(&udp.send(b""));
    gives::<Result<usize>>(&udp.send_to(b"", at));
    gives::<Result<usize>>(&udp.recv(&mut []));
    gives::<Result<(usize, SocketAddr)>>(&udp.recv_from(&mut []));
    gives::<Result<usize>>(&udp.recv_buf(&mut Vec::<u8>::new()));
    gives::<Result<SocketAddr>>(&udp.peek_sender());
    gives::<Result<()>>(&udp.connect(at));
    drop(async { lookup_host("a:1").await.map(Iterator::count) });
}
