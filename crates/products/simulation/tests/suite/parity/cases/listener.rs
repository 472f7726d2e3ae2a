//! Listening and connecting.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::task::Poll;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::net::{TcpListener, TcpSocket, TcpStream};
use super::{listen, nobody, poll_once};

cases! {
    async fn a_connection_is_refused_where_nobody_listens() {
        let v6 = TcpListener::bind("[::1]:0").await?.local_addr()?;
        for at in [nobody().await?, v6, "127.0.0.1:0".parse()?] {
            let error = TcpStream::connect(at).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{at}");
        }
        let error = TcpSocket::new_v4()?.connect(nobody().await?).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    }

    async fn port_0_is_a_free_port() {
        let (one, other) = (listen().await?, listen().await?);
        assert_ne!(one.1.port(), 0);
        assert_ne!(one.1.port(), other.1.port());
    }

    async fn an_address_that_listens_is_in_use() {
        let (_listener, at) = listen().await?;
        assert_eq!(TcpListener::bind(at).await.unwrap_err().kind(), ErrorKind::AddrInUse);
    }

    async fn a_wildcard_excludes_the_address_it_covers() {
        let listener = TcpListener::bind("0.0.0.0:0").await?;
        let at = SocketAddr::from(([127, 0, 0, 1], listener.local_addr()?.port()));
        assert_eq!(TcpListener::bind(at).await.unwrap_err().kind(), ErrorKind::AddrInUse);
    }

    async fn one_port_of_two_addresses_is_two_listeners() {
        let (_one, at) = listen().await?;
        TcpListener::bind(("127.0.0.2", at.port())).await?;
    }

    async fn an_address_of_another_machine_is_not_available() {
        let error = TcpListener::bind("192.0.2.1:0").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
    }

    async fn an_unspecified_address_listens_at_all() {
        let listener = TcpListener::bind("0.0.0.0:0").await?;
        let at = listener.local_addr()?;
        assert!(at.ip().is_unspecified());
        let near = SocketAddr::from(([127, 0, 0, 1], at.port()));
        let (client, server) = tokio::try_join!(TcpStream::connect(near), listener.accept())?;
        assert_eq!(client.peer_addr()?, near);
        assert_eq!(server.0.local_addr()?, near);
    }

    async fn a_connection_to_the_unspecified_address_reaches_this_host() {
        let listener = TcpListener::bind("0.0.0.0:0").await?;
        let at = listener.local_addr()?;
        let (client, _server) = tokio::try_join!(TcpStream::connect(at), listener.accept())?;
        assert_eq!(client.peer_addr()?, SocketAddr::from(([127, 0, 0, 1], at.port())));
    }

    async fn both_ends_agree_on_their_addresses() {
        let (listener, at) = listen().await?;
        let (client, (server, from)) =
            tokio::try_join!(TcpStream::connect(at), listener.accept())?;
        assert_eq!(client.peer_addr()?, at);
        assert_eq!(server.local_addr()?, at);
        assert_eq!(client.local_addr()?, from);
        assert_eq!(server.peer_addr()?, from);
    }

    async fn of_several_addresses_the_first_that_answers_counts() {
        let (listener, at) = listen().await?;
        let addresses = [nobody().await?, at];
        let (client, _) =
            tokio::try_join!(TcpStream::connect(&addresses[..]), listener.accept())?;
        assert_eq!(client.peer_addr()?, at);
    }

    async fn without_an_address_there_is_nothing_to_connect_to() {
        let none: &[SocketAddr] = &[];
        let error = TcpStream::connect(none).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        let error = TcpListener::bind(none).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }

    async fn a_port_can_be_bound_again_while_its_connections_wait() {
        let (listener, at) = listen().await?;
        let (mut client, (server, _)) =
            tokio::try_join!(TcpStream::connect(at), listener.accept())?;
        // This side closes first: its end stays in TIME-WAIT.
        drop(server);
        assert_eq!(client.read(&mut [0]).await?, 0);
        drop(client);
        drop(listener);
        TcpListener::bind(at).await?;
    }

    async fn a_closed_listener_resets_what_it_has_not_accepted() {
        let (listener, at) = listen().await?;
        let mut client = TcpStream::connect(at).await?;
        drop(listener);
        let error = client.read(&mut [0]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }

    async fn connections_are_accepted_in_their_order() {
        let (listener, at) = listen().await?;
        let clients = [TcpStream::connect(at).await?, TcpStream::connect(at).await?];
        for client in &clients {
            assert_eq!(listener.accept().await?.1, client.local_addr()?);
        }
    }

    async fn an_accept_that_is_dropped_loses_no_connection() {
        let (listener, at) = listen().await?;
        assert!(poll_once(listener.accept()).is_pending());
        let client = TcpStream::connect(at).await?;
        assert_eq!(listener.accept().await?.1, client.local_addr()?);
    }

    async fn two_tasks_accept_one_connection_each() {
        let (listener, at) = listen().await?;
        let (one, other, _a, _b) = tokio::try_join!(
            listener.accept(),
            listener.accept(),
            TcpStream::connect(at),
            TcpStream::connect(at),
        )?;
        assert_ne!(one.1, other.1);
    }

    async fn poll_accept_waits_and_takes() {
        let (listener, at) = listen().await?;
        let first = std::future::poll_fn(|cx| Poll::Ready(listener.poll_accept(cx).is_pending()));
        assert!(first.await);
        let accept = std::future::poll_fn(|cx| listener.poll_accept(cx));
        let (accepted, client) = tokio::try_join!(accept, TcpStream::connect(at))?;
        assert_eq!(accepted.1, client.local_addr()?);
    }

    async fn a_listener_outlives_its_streams_and_they_it() {
        let (listener, at) = listen().await?;
        let (mut client, (server, _)) =
            tokio::try_join!(TcpStream::connect(at), listener.accept())?;
        drop(listener);
        client.write_all(b"x").await?;
        server.readable().await?;
        assert_eq!(server.try_read(&mut [0; 2])?, 1);
    }

    async fn streams_inherit_the_time_to_live() {
        let (listener, at) = listen().await?;
        assert_eq!(listener.ttl()?, 64);
        listener.set_ttl(17)?;
        assert_eq!(listener.ttl()?, 17);
        let (_client, (server, _)) =
            tokio::try_join!(TcpStream::connect(at), listener.accept())?;
        assert_eq!(server.ttl()?, 17);
    }
}
