//! Datagrams: sending, receiving, peers.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::task::Poll;

use tokio::io::ReadBuf;

use super::net::UdpSocket;
use super::{number, poll_once, settle, two};

async fn nobody() -> io::Result<SocketAddr> {
    UdpSocket::bind("127.0.0.1:0").await?.local_addr()
}

cases! {
    async fn a_datagram_comes_with_its_sender() {
        let (a, b) = two().await?;
        assert_eq!(a.send_to(b"hello", b.local_addr()?).await?, 5);
        let mut buf = [0; 16];
        assert_eq!(b.recv_from(&mut buf).await?, (5, a.local_addr()?));
        assert_eq!(&buf[..5], b"hello");
    }

    async fn datagrams_keep_their_bounds_and_order() {
        let (a, b) = two().await?;
        let to = b.local_addr()?;
        for data in [&b"one"[..], b"", b"three"] {
            a.send_to(data, to).await?;
        }
        let mut buf = [0; 16];
        for len in [3, 0, 5] {
            assert_eq!(b.recv_from(&mut buf).await?.0, len);
        }
    }

    async fn what_does_not_fit_is_lost() {
        let (a, b) = two().await?;
        let to = b.local_addr()?;
        a.send_to(b"too long", to).await?;
        a.send_to(b"next", to).await?;
        let mut buf = [0; 3];
        assert_eq!(b.recv(&mut buf).await?, 3);
        assert_eq!(&buf, b"too");
        assert_eq!(b.recv(&mut buf).await?, 3);
        assert_eq!(&buf, b"nex");
    }

    async fn a_bound_address_is_in_use() {
        let (a, _) = two().await?;
        let error = UdpSocket::bind(a.local_addr()?).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        let error = UdpSocket::bind("192.0.2.1:0").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
        UdpSocket::bind(("127.0.0.2", a.local_addr()?.port())).await?;
    }

    async fn a_dropped_socket_frees_its_address() {
        let at = nobody().await?;
        UdpSocket::bind(at).await?;
    }

    async fn the_largest_datagram_passes() {
        let (a, b) = two().await?;
        let data = vec![5; 65_507];
        assert_eq!(a.send_to(&data, b.local_addr()?).await?, 65_507);
        let mut buf = vec![0; 70_000];
        assert_eq!(b.recv(&mut buf).await?, 65_507);
        assert_eq!(&buf[..65_507], &data[..]);
    }

    async fn what_cannot_be_sent_is_refused_with_linuxs_number() {
        let (a, b) = two().await?;
        for (what, len, to, expected) in [
            ("longer than any datagram", 65_508, b.local_addr()?, libc::EMSGSIZE),
            ("to port 0", 1, "127.0.0.1:0".parse()?, libc::EINVAL),
            ("to an address of IPv6", 1, "[::1]:9".parse()?, libc::EAFNOSUPPORT),
        ] {
            assert_eq!(number(a.send_to(&vec![0; len], to).await), Some(expected), "{what}");
        }
    }

    async fn a_peer_is_the_only_source() {
        let (a, b) = two().await?;
        let other = UdpSocket::bind("127.0.0.1:0").await?;
        b.connect(a.local_addr()?).await?;
        other.send_to(b"other", b.local_addr()?).await?;
        a.send_to(b"peer", b.local_addr()?).await?;
        let mut buf = [0; 16];
        assert_eq!(b.recv_from(&mut buf).await?, (4, a.local_addr()?));
        assert_eq!(b.peer_addr()?, a.local_addr()?);
    }

    async fn a_socket_with_a_peer_still_sends_to_others() {
        let (a, b) = two().await?;
        let other = UdpSocket::bind("127.0.0.1:0").await?;
        a.connect(b.local_addr()?).await?;
        a.send_to(b"x", other.local_addr()?).await?;
        assert_eq!(other.recv(&mut [0; 2]).await?, 1);
    }

    async fn a_new_peer_replaces_the_old() {
        let (a, b) = two().await?;
        let other = UdpSocket::bind("127.0.0.1:0").await?;
        a.connect(b.local_addr()?).await?;
        a.connect(other.local_addr()?).await?;
        a.send(b"x").await?;
        assert_eq!(other.recv(&mut [0; 2]).await?, 1);
    }

    async fn a_socket_without_a_peer_needs_a_destination() {
        let (a, _) = two().await?;
        assert_eq!(number(a.send(b"x").await), Some(libc::EDESTADDRREQ));
        assert_eq!(a.peer_addr().unwrap_err().kind(), ErrorKind::NotConnected);
    }

    async fn a_peer_that_does_not_listen_refuses() {
        let (a, _) = two().await?;
        a.connect(nobody().await?).await?;
        a.send(b"x").await?;
        let error = a.recv(&mut [0; 2]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        // Once.
        settle().await;
        assert_eq!(a.try_recv(&mut [0; 2]).unwrap_err().kind(), ErrorKind::WouldBlock);
    }

    async fn a_refusal_can_be_taken_or_met_by_a_send() {
        let (a, _) = two().await?;
        a.connect(nobody().await?).await?;
        a.send(b"x").await?;
        settle().await;
        let error = a.take_error()?.expect("a refusal");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        a.send(b"x").await?;
        settle().await;
        assert_eq!(a.send(b"x").await.unwrap_err().kind(), ErrorKind::ConnectionRefused);
    }

    async fn without_a_peer_nothing_is_refused() {
        let (a, b) = two().await?;
        a.send_to(b"x", nobody().await?).await?;
        settle().await;
        assert!(a.take_error()?.is_none());
        b.send_to(b"y", a.local_addr()?).await?;
        assert_eq!(a.recv(&mut [0; 2]).await?, 1);
    }

    async fn a_datagram_to_the_unspecified_address_reaches_this_host() {
        let (a, b) = two().await?;
        let to = SocketAddr::from(([0, 0, 0, 0], b.local_addr()?.port()));
        a.send_to(b"x", to).await?;
        assert_eq!(b.recv_from(&mut [0; 2]).await?, (1, a.local_addr()?));
    }

    async fn a_peer_decides_the_own_address() {
        let socket = UdpSocket::bind("0.0.0.0:0").await?;
        assert!(socket.local_addr()?.ip().is_unspecified());
        socket.connect("127.0.0.1:9").await?;
        assert_eq!(socket.local_addr()?.ip().to_string(), "127.0.0.1");
    }

    async fn a_peek_leaves_the_datagram() {
        let (a, b) = two().await?;
        a.send_to(b"look", b.local_addr()?).await?;
        let from = a.local_addr()?;
        let mut buf = [0; 8];
        assert_eq!(b.peek(&mut buf).await?, 4);
        assert_eq!(b.peek_from(&mut buf).await?, (4, from));
        assert_eq!(b.peek_sender().await?, from);
        assert_eq!(b.try_peek(&mut buf)?, 4);
        assert_eq!(b.try_peek_from(&mut buf)?, (4, from));
        assert_eq!(b.try_peek_sender()?, from);
        assert_eq!(b.recv(&mut buf).await?, 4);
        assert_eq!(&buf[..4], b"look");
    }

    async fn a_receive_that_is_dropped_loses_nothing() {
        let (a, b) = two().await?;
        assert!(poll_once(b.recv(&mut [0; 4])).is_pending());
        a.send_to(b"kept", b.local_addr()?).await?;
        assert_eq!(b.recv(&mut [0; 4]).await?, 4);
    }

    async fn tries_do_not_wait() {
        let (a, b) = two().await?;
        let (at, from) = (b.local_addr()?, a.local_addr()?);
        assert_eq!(b.try_recv(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert_eq!(b.try_recv_from(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
        a.writable().await?;
        assert_eq!(a.try_send_to(b"one", at)?, 3);
        b.readable().await?;
        assert_eq!(b.try_recv_from(&mut [0; 4])?, (3, from));
        a.connect(at).await?;
        assert_eq!(a.try_send(b"two!")?, 4);
        b.readable().await?;
        assert_eq!(b.try_recv(&mut [0; 4])?, 4);
    }

    async fn calls_that_poll_work_too() {
        let (a, b) = two().await?;
        let (at, from) = (b.local_addr()?, a.local_addr()?);
        let mut room = [0; 8];
        let mut buf = ReadBuf::new(&mut room);
        let waits = std::future::poll_fn(|cx| Poll::Ready(b.poll_recv(cx, &mut buf).is_pending()));
        assert!(waits.await);
        std::future::poll_fn(|cx| a.poll_send_ready(cx)).await?;
        std::future::poll_fn(|cx| a.poll_send_to(cx, b"polled", at)).await?;
        std::future::poll_fn(|cx| b.poll_recv_ready(cx)).await?;
        assert_eq!(std::future::poll_fn(|cx| b.poll_peek_sender(cx)).await?, from);
        std::future::poll_fn(|cx| b.poll_peek(cx, &mut buf)).await?;
        assert_eq!(buf.filled(), b"polled");
        buf.clear();
        assert_eq!(std::future::poll_fn(|cx| b.poll_peek_from(cx, &mut buf)).await?, from);
        buf.clear();
        assert_eq!(std::future::poll_fn(|cx| b.poll_recv_from(cx, &mut buf)).await?, from);
        assert_eq!(buf.filled(), b"polled");
        a.connect(at).await?;
        std::future::poll_fn(|cx| a.poll_send(cx, b"again")).await?;
        buf.clear();
        std::future::poll_fn(|cx| b.poll_recv(cx, &mut buf)).await?;
        assert_eq!(buf.filled(), b"again");
    }

    async fn buffers_that_grow_take_datagrams() {
        let (a, b) = two().await?;
        let (at, from) = (b.local_addr()?, a.local_addr()?);
        let mut buf = Vec::with_capacity(64);
        for _ in 0..4 {
            a.send_to(b"abc", at).await?;
        }
        assert_eq!(b.recv_buf(&mut buf).await?, 3);
        assert_eq!(b.recv_buf_from(&mut buf).await?, (3, from));
        b.readable().await?;
        assert_eq!(b.try_recv_buf(&mut buf)?, 3);
        assert_eq!(b.try_recv_buf_from(&mut buf)?, (3, from));
        assert_eq!(buf, b"abcabcabcabc");
    }

    async fn a_socket_of_both_versions_shows_mapped_addresses() {
        let both = UdpSocket::bind("[::]:0").await?;
        let (a, _) = two().await?;
        let port = both.local_addr()?.port();
        a.send_to(b"four", SocketAddr::from(([127, 0, 0, 1], port))).await?;
        let (_, from) = both.recv_from(&mut [0; 8]).await?;
        assert_eq!(from.ip().to_string(), "::ffff:127.0.0.1");
        both.send_to(b"back", from).await?;
        let (_, from) = a.recv_from(&mut [0; 8]).await?;
        assert_eq!(from, SocketAddr::from(([127, 0, 0, 1], port)));
    }
}
