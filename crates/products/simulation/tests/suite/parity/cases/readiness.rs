//! Readiness, and tries.

use std::io::{self, ErrorKind};
use std::task::Poll;

use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};

use super::{listen, pair, poll_once, settle};

cases! {
    async fn a_try_to_read_nothing_would_block() {
        let (client, server) = pair().await?;
        for stream in [&client, &server] {
            let error = stream.try_read(&mut [0]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
        }
    }

    async fn a_try_reads_into_a_buffer_that_grows() {
        let (mut client, server) = pair().await?;
        client.write_all(b"abc").await?;
        server.readable().await?;
        let mut buf = bytes::BytesMut::with_capacity(16);
        assert_eq!(server.try_read_buf(&mut buf)?, 3);
        assert_eq!(&buf[..], b"abc");
    }

    async fn a_try_reads_the_end() {
        let (client, server) = pair().await?;
        drop(client);
        server.readable().await?;
        assert_eq!(server.try_read(&mut [0])?, 0);
        assert_eq!(server.try_read(&mut [0])?, 0);
    }

    async fn tries_to_write_would_block_at_last() {
        let (client, mut server) = pair().await?;
        client.writable().await?;
        let data = [0; 1 << 16];
        let mut sent = 0;
        let error = loop {
            match client.try_write(&data) {
                Ok(n) => sent += n,
                Err(error) => {
                    // The network may have room yet.
                    settle().await;
                    match client.try_write(&data) {
                        Ok(n) => sent += n,
                        Err(_) => break error,
                    }
                }
            }
        };
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        assert!(poll_once(client.writable()).is_pending());
        let drain = async {
            let mut buf = vec![0; 1 << 16];
            while sent > 0 {
                sent -= server.read(&mut buf).await?;
            }
            Ok::<_, io::Error>(())
        };
        tokio::try_join!(drain, client.writable())?;
    }

    async fn a_try_writes_several_buffers() {
        let (client, mut server) = pair().await?;
        client.writable().await?;
        let pieces = [io::IoSlice::new(b"one"), io::IoSlice::new(b"two")];
        assert_eq!(client.try_write_vectored(&pieces)?, 6);
        let mut buf = [0; 6];
        server.read_exact(&mut buf).await?;
        assert_eq!(&buf, b"onetwo");
    }

    async fn a_new_connection_is_writable_and_not_readable() {
        let (client, _server) = pair().await?;
        let ready = client.ready(Interest::READABLE | Interest::WRITABLE).await?;
        assert!(ready.is_writable() && !ready.is_readable());
        assert!(!ready.is_read_closed() && !ready.is_write_closed());
        assert!(poll_once(client.readable()).is_pending());
    }

    async fn data_makes_it_readable() {
        let (mut client, server) = pair().await?;
        client.write_all(b"x").await?;
        let ready = server.ready(Interest::READABLE).await?;
        assert!(ready.is_readable() && !ready.is_writable());
    }

    async fn the_end_makes_it_read_closed() {
        let (client, server) = pair().await?;
        drop(client);
        server.readable().await?;
        settle().await;
        let ready = server.ready(Interest::READABLE).await?;
        assert!(ready.is_readable() && ready.is_read_closed());
    }

    async fn readiness_lasts_until_a_try_blocks() {
        let (mut client, server) = pair().await?;
        client.write_all(b"x").await?;
        for _ in 0..3 {
            server.readable().await?;
        }
        assert_eq!(server.try_read(&mut [0; 2])?, 1);
        assert_eq!(server.try_read(&mut [0; 2]).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert!(poll_once(server.readable()).is_pending());
    }

    async fn calls_that_poll_see_the_same() {
        let (mut client, server) = pair().await?;
        std::future::poll_fn(|cx| client.poll_write_ready(cx)).await?;
        assert!(server.try_read(&mut [0]).is_err());
        let pending =
            std::future::poll_fn(|cx| Poll::Ready(server.poll_read_ready(cx).is_pending()));
        assert!(pending.await);
        let ready = std::future::poll_fn(|cx| server.poll_read_ready(cx));
        tokio::try_join!(ready, client.write_all(b"x"))?;
    }

    async fn try_io_runs_only_what_is_ready() {
        let (mut client, server) = pair().await?;
        assert!(server.try_read(&mut [0]).is_err());
        let mut runs = 0;
        let error = server.try_io(Interest::READABLE, || {
            runs += 1;
            Ok(())
        });
        assert_eq!((error.unwrap_err().kind(), runs), (ErrorKind::WouldBlock, 0));
        client.write_all(b"x").await?;
        server.readable().await?;
        assert_eq!(server.try_io(Interest::READABLE, || Ok(7))?, 7);
    }

    async fn async_io_waits_and_passes_on_what_it_gets() {
        let (mut client, server) = pair().await?;
        let read = server.async_io(Interest::READABLE, || server.try_read(&mut [0; 4]));
        let (n, ()) = tokio::try_join!(read, client.write_all(b"abc"))?;
        assert_eq!(n, 3);
        let failed: io::Result<()> =
            server.async_io(Interest::WRITABLE, || Err(ErrorKind::Other.into())).await;
        assert_eq!(failed.unwrap_err().kind(), ErrorKind::Other);
    }

    async fn two_tasks_wait_for_one_stream() {
        let (mut client, server) = pair().await?;
        tokio::try_join!(server.readable(), server.readable(), client.write_all(b"x"))?;
    }

    async fn a_wait_that_is_dropped_leaves_the_others() {
        let (mut client, server) = pair().await?;
        assert!(server.try_read(&mut [0]).is_err());
        assert!(poll_once(server.readable()).is_pending());
        tokio::try_join!(server.readable(), client.write_all(b"x"))?;
    }

    async fn a_full_queue_of_connections_drops_the_next() {
        use std::time::Duration;
        let socket = super::net::TcpSocket::new_v4()?;
        socket.bind("127.0.0.1:0".parse()?)?;
        let listener = socket.listen(1)?;
        let at = listener.local_addr()?;
        // As on Linux, a backlog of one admits two.
        let _first = super::net::TcpStream::connect(at).await?;
        let _second = super::net::TcpStream::connect(at).await?;
        let mut third = std::pin::pin!(super::net::TcpStream::connect(at));
        let waited = tokio::time::timeout(Duration::from_millis(300), third.as_mut()).await;
        assert!(waited.is_err(), "the third connection has to wait");
        listener.accept().await?;
        third.await?;
    }

    async fn an_accepted_stream_is_readable_at_once() {
        let (listener, at) = listen().await?;
        let mut client = super::net::TcpStream::connect(at).await?;
        client.write_all(b"x").await?;
        settle().await;
        let (server, _) = listener.accept().await?;
        assert_eq!(server.try_read(&mut [0; 2])?, 1);
    }
}
