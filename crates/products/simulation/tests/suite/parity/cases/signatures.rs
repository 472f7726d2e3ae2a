//! The types have the methods and traits of tokio's: it compiles.

use std::fmt::Debug;
use std::io::{IoSlice, IoSliceMut, Result};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};

use super::net::tcp::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, WriteHalf};
use super::net::{TcpListener, TcpSocket, TcpStream, ToSocketAddrs, UdpSocket, lookup_host};

/// What a future gives; it may go to another thread.
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

#[test]
#[allow(deprecated, clippy::type_complexity)]
fn methods_are_tokios() {
    let _: [fn(&TcpStream) -> Result<SocketAddr>; 2] =
        [TcpStream::local_addr, TcpStream::peer_addr];
    let _: fn(&TcpStream) -> Result<Option<std::io::Error>> = TcpStream::take_error;
    let _: [fn(&TcpStream) -> Result<bool>; 2] = [TcpStream::nodelay, TcpStream::quickack];
    let _: [fn(&TcpStream, bool) -> Result<()>; 2] =
        [TcpStream::set_nodelay, TcpStream::set_quickack];
    let _: fn(&TcpStream) -> Result<Option<Duration>> = TcpStream::linger;
    let _: fn(&TcpStream, Option<Duration>) -> Result<()> = TcpStream::set_linger;
    let _: fn(&TcpStream) -> Result<()> = TcpStream::set_zero_linger;
    let _: fn(&TcpStream) -> Result<u32> = TcpStream::ttl;
    let _: fn(&TcpStream, u32) -> Result<()> = TcpStream::set_ttl;
    let _: fn(&TcpStream, &mut [u8]) -> Result<usize> = TcpStream::try_read;
    let _: fn(&TcpStream, &mut [IoSliceMut<'_>]) -> Result<usize> = TcpStream::try_read_vectored;
    let _: fn(&TcpStream, &mut Vec<u8>) -> Result<usize> = TcpStream::try_read_buf;
    let _: fn(&TcpStream, &[u8]) -> Result<usize> = TcpStream::try_write;
    let _: fn(&TcpStream, &[IoSlice<'_>]) -> Result<usize> = TcpStream::try_write_vectored;
    let _: [fn(&TcpStream, &mut Context<'_>) -> Poll<Result<()>>; 2] =
        [TcpStream::poll_read_ready, TcpStream::poll_write_ready];
    let _: fn(&TcpStream, &mut Context<'_>, &mut ReadBuf<'_>) -> Poll<Result<usize>> =
        TcpStream::poll_peek;
    let _: fn(TcpStream) -> Result<std::net::TcpStream> = TcpStream::into_std;
    let _: fn(std::net::TcpStream) -> Result<TcpStream> = TcpStream::from_std;
    let _: fn(TcpStream) -> (OwnedReadHalf, OwnedWriteHalf) = TcpStream::into_split;
    let _: fn(OwnedWriteHalf) = OwnedWriteHalf::forget;
    let _: fn(&TcpListener) -> Result<u32> = TcpListener::ttl;
    let _: fn(&TcpListener, &mut Context<'_>) -> Poll<Result<(TcpStream, SocketAddr)>> =
        TcpListener::poll_accept;
    let _: fn(TcpListener) -> Result<std::net::TcpListener> = TcpListener::into_std;
    let _: fn(std::net::TcpStream) -> TcpSocket = TcpSocket::from_std_stream;
    let _: fn(&TcpSocket, Option<Duration>) -> Result<()> = TcpSocket::set_linger;
    let _: fn(TcpSocket, u32) -> Result<TcpListener> = TcpSocket::listen;
    let _: fn(&TcpSocket) -> Result<Option<Vec<u8>>> = TcpSocket::device;
    let _: fn(&TcpSocket, Option<&[u8]>) -> Result<()> = TcpSocket::bind_device;
    let _: [fn(&TcpSocket) -> Result<u32>; 5] = [
        TcpSocket::send_buffer_size,
        TcpSocket::recv_buffer_size,
        TcpSocket::tos,
        TcpSocket::tos_v4,
        TcpSocket::tclass_v6,
    ];
    let _: fn(UdpSocket) -> Result<std::net::UdpSocket> = UdpSocket::into_std;
    let _: [fn(&UdpSocket) -> Result<u32>; 4] =
        [UdpSocket::ttl, UdpSocket::tos, UdpSocket::tos_v4, UdpSocket::multicast_ttl_v4];
    let _: [fn(&UdpSocket, Ipv4Addr, Ipv4Addr) -> Result<()>; 2] =
        [UdpSocket::join_multicast_v4, UdpSocket::leave_multicast_v4];
    let _: [fn(&UdpSocket, &Ipv6Addr, u32) -> Result<()>; 2] =
        [UdpSocket::join_multicast_v6, UdpSocket::leave_multicast_v6];
    let _: fn(&UdpSocket, &mut Context<'_>, &[u8], SocketAddr) -> Poll<Result<usize>> =
        UdpSocket::poll_send_to;
    let _: fn(&UdpSocket, &mut Context<'_>, &mut ReadBuf<'_>) -> Poll<Result<SocketAddr>> =
        UdpSocket::poll_recv_from;
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
