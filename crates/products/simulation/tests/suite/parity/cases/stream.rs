//! Data of a connection, and its end.

use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::{pair, poll_once, reset, settle};

cases! {
    async fn the_end_of_one_direction_leaves_the_other_open() {
        let (mut client, mut server) = pair().await?;
        client.write_all(b"last").await?;
        client.shutdown().await?;
        let mut all = Vec::new();
        server.read_to_end(&mut all).await?;
        assert_eq!(all, b"last");
        server.write_all(b"answer").await?;
        let mut buf = [0; 6];
        client.read_exact(&mut buf).await?;
        assert_eq!(&buf, b"answer");
    }

    async fn a_second_shutdown_changes_nothing() {
        let (mut client, mut server) = pair().await?;
        client.shutdown().await?;
        client.shutdown().await?;
        assert_eq!(server.read(&mut [0]).await?, 0);
        assert_eq!(server.read(&mut [0]).await?, 0);
    }

    async fn a_shutdown_after_a_reset_is_no_error() {
        let mut client = reset().await?;
        assert!(client.read(&mut [0]).await.is_err());
        client.shutdown().await?;
    }

    async fn a_drop_ends_the_stream_in_order() {
        let (mut client, mut server) = pair().await?;
        server.write_all(b"rest").await?;
        drop(server);
        let mut all = Vec::new();
        client.read_to_end(&mut all).await?;
        assert_eq!(all, b"rest");
    }

    async fn a_peek_leaves_the_data() {
        let (mut client, mut server) = pair().await?;
        client.write_all(b"look").await?;
        let mut buf = [0; 8];
        for _ in 0..2 {
            assert_eq!(server.peek(&mut buf).await?, 4);
            assert_eq!(&buf[..4], b"look");
        }
        assert_eq!(server.read(&mut buf).await?, 4);
        assert_eq!(&buf[..4], b"look");
    }

    async fn a_peek_at_the_end_is_empty() {
        let (client, server) = pair().await?;
        drop(client);
        assert_eq!(server.peek(&mut [0; 4]).await?, 0);
    }

    async fn a_peek_waits_for_data() {
        let (mut client, server) = pair().await?;
        assert!(poll_once(server.peek(&mut [0; 4])).is_pending());
        client.write_all(b"x").await?;
        assert_eq!(server.peek(&mut [0; 4]).await?, 1);
    }

    async fn poll_peek_fills_the_buffer() {
        let (mut client, server) = pair().await?;
        client.write_all(b"look").await?;
        let mut room = [0; 8];
        let mut buf = tokio::io::ReadBuf::new(&mut room);
        let n = std::future::poll_fn(|cx| server.poll_peek(cx, &mut buf)).await?;
        assert_eq!((n, buf.filled()), (4, &b"look"[..]));
    }

    async fn an_empty_read_waits_for_data() {
        let (mut client, mut server) = pair().await?;
        settle().await;
        assert!(poll_once(server.read(&mut [])).is_pending());
        client.write_all(b"x").await?;
        assert_eq!(server.read(&mut []).await?, 0);
        assert_eq!(server.read(&mut [0; 2]).await?, 1);
    }

    async fn an_empty_write_writes_nothing() {
        let (mut client, mut server) = pair().await?;
        assert_eq!(client.write(&[]).await?, 0);
        drop(client);
        assert_eq!(server.read(&mut [0]).await?, 0);
    }

    async fn several_buffers_are_written_as_one() {
        let (mut client, mut server) = pair().await?;
        assert!(client.is_write_vectored());
        let pieces = [IoSlice::new(b"one "), IoSlice::new(b""), IoSlice::new(b"two")];
        assert_eq!(client.write_vectored(&pieces).await?, 7);
        let mut buf = [0; 7];
        server.read_exact(&mut buf).await?;
        assert_eq!(&buf, b"one two");
    }

    async fn several_buffers_are_read_as_one() {
        let (mut client, server) = pair().await?;
        client.write_all(b"one two").await?;
        server.readable().await?;
        let (mut a, mut b) = ([0; 4], [0; 8]);
        let mut bufs = [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)];
        assert_eq!(server.try_read_vectored(&mut bufs)?, 7);
        assert_eq!((&a, &b[..3]), (b"one ", &b"two"[..]));
    }

    async fn several_buffers_are_read_up_to_the_end() {
        let (mut client, server) = pair().await?;
        client.write_all(b"one ").await?;
        drop(client);
        server.readable().await?;
        settle().await;
        let (mut a, mut b) = ([0; 4], [0; 8]);
        let mut bufs = [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)];
        assert_eq!(server.try_read_vectored(&mut bufs)?, 4);
        assert_eq!(server.try_read_vectored(&mut bufs)?, 0);
    }

    async fn a_read_that_is_dropped_loses_no_data() {
        let (mut client, mut server) = pair().await?;
        assert!(poll_once(server.read(&mut [0; 4])).is_pending());
        client.write_all(b"data").await?;
        let mut buf = [0; 4];
        server.read_exact(&mut buf).await?;
        assert_eq!(&buf, b"data");
    }

    async fn a_read_gives_what_is_there() {
        let (mut client, mut server) = pair().await?;
        client.write_all(b"abc").await?;
        assert_eq!(server.read(&mut [0; 2]).await?, 2);
        assert_eq!(server.read(&mut [0; 2]).await?, 1);
    }

    async fn a_megabyte_passes_both_ways_at_once() {
        const LEN: usize = 1 << 20;
        let (client, server) = pair().await?;
        let end = |stream: super::net::TcpStream, byte: u8| async move {
            let (mut read, mut write) = stream.into_split();
            let write = async move {
                write.write_all(&vec![byte; LEN]).await?;
                write.shutdown().await
            };
            let mut all = Vec::new();
            let (_, n) = tokio::try_join!(write, read.read_to_end(&mut all))?;
            assert!(all.iter().all(|&b| b == 3 - byte));
            Ok::<_, std::io::Error>(n)
        };
        assert_eq!(tokio::try_join!(end(client, 1), end(server, 2))?, (LEN, LEN));
    }

    async fn a_writer_waits_for_a_slow_reader() {
        let (mut client, mut server) = pair().await?;
        let data = vec![7; 16 << 20];
        let write = async {
            client.write_all(&data).await?;
            client.shutdown().await
        };
        let read = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let (mut buf, mut all) = (vec![0; 1 << 16], 0);
            loop {
                match server.read(&mut buf).await? {
                    0 => return Ok(all),
                    n => all += n,
                }
            }
        };
        assert_eq!(tokio::try_join!(write, read)?.1, 16 << 20);
    }

    async fn nodelay_is_off_until_it_is_set() {
        let (client, _server) = pair().await?;
        assert!(!client.nodelay()?);
        client.set_nodelay(true)?;
        assert!(client.nodelay()?);
        client.set_nodelay(false)?;
        assert!(!client.nodelay()?);
    }

    async fn quickack_is_as_set() {
        let (client, _server) = pair().await?;
        client.set_quickack(false)?;
        assert!(!client.quickack()?);
        client.set_quickack(true)?;
        assert!(client.quickack()?);
    }

    async fn a_time_to_live_is_1_to_255() {
        let (client, _server) = pair().await?;
        assert_eq!(client.ttl()?, 64);
        client.set_ttl(255)?;
        assert_eq!(client.ttl()?, 255);
        for odd in [0, 256] {
            assert_eq!(client.set_ttl(odd).unwrap_err().kind(), ErrorKind::InvalidInput);
        }
        assert_eq!(client.ttl()?, 255);
    }

    #[allow(deprecated)]
    async fn linger_has_whole_seconds() {
        let (client, _server) = pair().await?;
        assert_eq!(client.linger()?, None);
        client.set_linger(Some(Duration::from_millis(2500)))?;
        assert_eq!(client.linger()?, Some(Duration::from_secs(2)));
        client.set_zero_linger()?;
        assert_eq!(client.linger()?, Some(Duration::ZERO));
        client.set_linger(None)?;
        assert_eq!(client.linger()?, None);
    }
}
