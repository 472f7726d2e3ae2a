//! Sockets before they listen or connect, and both versions of IP.

use std::io::ErrorKind;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::net::{TcpListener, TcpSocket, TcpStream};
use super::{listen, number};

fn any() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

fn any_v6() -> SocketAddr {
    SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], 0))
}

cases! {
    async fn a_socket_that_is_not_bound_listens_on_a_free_port() {
        let listener = TcpSocket::new_v4()?.listen(8)?;
        let at = listener.local_addr()?;
        assert!(at.ip().is_unspecified() && at.port() != 0);
    }

    async fn a_socket_connects_from_where_it_is_bound() {
        let (listener, at) = listen().await?;
        let socket = TcpSocket::new_v4()?;
        assert_eq!(socket.local_addr()?, SocketAddr::from(([0, 0, 0, 0], 0)));
        socket.bind(any())?;
        let from = socket.local_addr()?;
        let (client, (_server, peer)) = tokio::try_join!(socket.connect(at), listener.accept())?;
        assert_eq!((client.local_addr()?, peer), (from, from));
    }

    async fn a_socket_is_bound_once() {
        let socket = TcpSocket::new_v4()?;
        socket.bind(any())?;
        assert_eq!(number(socket.bind(any())), Some(libc::EINVAL));
    }

    async fn an_address_that_is_bound_is_in_use() {
        let one = TcpSocket::new_v4()?;
        one.bind(any())?;
        let other = TcpSocket::new_v4()?;
        assert_eq!(other.bind(one.local_addr()?).unwrap_err().kind(), ErrorKind::AddrInUse);
        let at = one.local_addr()?;
        drop(one);
        other.bind(at)?;
    }

    async fn sockets_that_reuse_an_address_share_it_until_one_listens() {
        let sockets = [TcpSocket::new_v4()?, TcpSocket::new_v4()?];
        let mut at = any();
        for socket in &sockets {
            socket.set_reuseaddr(true)?;
            assert!(socket.reuseaddr()?);
            socket.bind(at)?;
            at = socket.local_addr()?;
        }
        let [one, other] = sockets;
        let _listener = one.listen(8)?;
        assert_eq!(other.listen(8).unwrap_err().kind(), ErrorKind::AddrInUse);
    }

    async fn sockets_that_reuse_a_port_all_listen() {
        let mut at = any();
        let mut listeners = Vec::new();
        for _ in 0..2 {
            let socket = TcpSocket::new_v4()?;
            socket.set_reuseport(true)?;
            assert!(socket.reuseport()?);
            socket.bind(at)?;
            at = socket.local_addr()?;
            listeners.push(socket.listen(8)?);
        }
        let client = TcpStream::connect(at).await?;
        let (accepted, _) = tokio::select! {
            accepted = listeners[0].accept() => accepted?,
            accepted = listeners[1].accept() => accepted?,
        };
        assert_eq!(accepted.peer_addr()?, client.local_addr()?);
    }

    async fn settings_are_read_back() {
        let socket = TcpSocket::new_v4()?;
        assert!(!socket.keepalive()? && !socket.nodelay()? && socket.linger()?.is_none());
        socket.set_keepalive(true)?;
        socket.set_nodelay(true)?;
        socket.set_zero_linger()?;
        socket.set_tos_v4(0x10)?;
        assert!(socket.keepalive()? && socket.nodelay()?);
        assert_eq!(socket.linger()?, Some(std::time::Duration::ZERO));
        assert_eq!(socket.tos_v4()?, 0x10);
        assert!(socket.take_error()?.is_none());
    }

    async fn tcp_keeps_two_bits_of_the_type_of_service() {
        let socket = TcpSocket::new_v4()?;
        socket.set_tos_v4(0x13)?;
        assert_eq!(socket.tos_v4()?, 0x10);
    }

    async fn buffers_are_twice_as_large_as_set() {
        let socket = TcpSocket::new_v4()?;
        socket.set_send_buffer_size(50_000)?;
        socket.set_recv_buffer_size(60_000)?;
        assert_eq!((socket.send_buffer_size()?, socket.recv_buffer_size()?), (100_000, 120_000));
        socket.set_send_buffer_size(0)?;
        socket.set_recv_buffer_size(0)?;
        assert_eq!((socket.send_buffer_size()?, socket.recv_buffer_size()?), (4608, 2304));
    }

    async fn a_stream_has_what_was_set_on_its_socket() {
        let (listener, at) = listen().await?;
        let socket = TcpSocket::new_v4()?;
        socket.set_nodelay(true)?;
        socket.set_zero_linger()?;
        let (client, _) = tokio::try_join!(socket.connect(at), listener.accept())?;
        assert!(client.nodelay()?);
        assert_eq!(client.linger()?, Some(std::time::Duration::ZERO));
    }

    async fn accepted_streams_have_what_was_set_on_the_listening_socket() {
        let socket = TcpSocket::new_v4()?;
        socket.set_nodelay(true)?;
        socket.bind(any())?;
        let listener = socket.listen(8)?;
        let at = listener.local_addr()?;
        let (_client, (server, _)) = tokio::try_join!(TcpStream::connect(at), listener.accept())?;
        assert!(server.nodelay()?);
    }

    async fn a_small_receive_buffer_still_passes_everything() {
        let socket = TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(4096)?;
        socket.bind(any())?;
        let listener = socket.listen(8)?;
        let at = listener.local_addr()?;
        let (mut client, (mut server, _)) =
            tokio::try_join!(TcpStream::connect(at), listener.accept())?;
        let write = async {
            client.write_all(&[1; 100_000]).await?;
            client.shutdown().await
        };
        let mut all = Vec::new();
        assert_eq!(tokio::try_join!(write, server.read_to_end(&mut all))?.1, 100_000);
    }

    async fn a_socket_takes_addresses_of_its_version_only() {
        let (v4, v6) = (TcpSocket::new_v4()?, TcpSocket::new_v6()?);
        assert_eq!(number(v4.bind(any_v6())), Some(libc::EAFNOSUPPORT));
        assert_eq!(number(v6.bind(any())), Some(libc::EINVAL));
        let at = |at: SocketAddr| SocketAddr::new(at.ip(), 9);
        assert_eq!(number(v4.connect(at(any_v6())).await), Some(libc::EAFNOSUPPORT));
        assert_eq!(number(v6.connect(at(any())).await), Some(libc::EINVAL));
    }

    async fn a_traffic_class_is_of_ipv6_only() {
        let (v4, v6) = (TcpSocket::new_v4()?, TcpSocket::new_v6()?);
        assert_eq!(number(v4.tclass_v6()), Some(libc::EOPNOTSUPP));
        assert_eq!(number(v4.set_tclass_v6(8)), Some(libc::ENOPROTOOPT));
        v6.set_tclass_v6(8)?;
        assert_eq!(v6.tclass_v6()?, 8);
    }

    async fn an_unknown_device_is_an_error() {
        let socket = TcpSocket::new_v4()?;
        assert_eq!(socket.device()?, None);
        assert_eq!(number(socket.bind_device(Some(b"none-such"))), Some(libc::ENODEV));
        socket.bind_device(None)?;
        assert_eq!(socket.device()?, None);
    }

    async fn ipv6_works_as_ipv4() {
        let listener = TcpListener::bind("[::1]:0").await?;
        let at = listener.local_addr()?;
        let (mut client, (mut server, from)) =
            tokio::try_join!(TcpStream::connect(at), listener.accept())?;
        assert!(at.is_ipv6() && from == client.local_addr()?);
        client.write_all(b"six").await?;
        let mut buf = [0; 3];
        server.read_exact(&mut buf).await?;
        assert_eq!(&buf, b"six");
    }

    async fn a_listener_of_both_versions_shows_mapped_addresses() {
        let listener = TcpListener::bind("[::]:0").await?;
        let port = listener.local_addr()?.port();
        assert!(listener.local_addr()?.is_ipv6());
        let near = SocketAddr::from(([127, 0, 0, 1], port));
        let (client, (server, from)) =
            tokio::try_join!(TcpStream::connect(near), listener.accept())?;
        assert_eq!(from.ip().to_string(), "::ffff:127.0.0.1");
        assert_eq!(from, server.peer_addr()?);
        assert_eq!(server.local_addr()?.ip().to_string(), "::ffff:127.0.0.1");
        assert_eq!(client.peer_addr()?, near);
    }

    async fn a_mapped_address_reaches_ipv4() {
        let (listener, at) = listen().await?;
        let mapped: SocketAddr = format!("[::ffff:127.0.0.1]:{}", at.port()).parse()?;
        let (client, (server, _)) =
            tokio::try_join!(TcpStream::connect(mapped), listener.accept())?;
        assert_eq!(client.peer_addr()?, mapped);
        assert!(client.local_addr()?.is_ipv6());
        assert!(server.peer_addr()?.is_ipv4());
    }
}
