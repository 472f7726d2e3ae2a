//! Resets, and calls on connections that are over.

use std::io::ErrorKind;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{pair, reset, settle};

cases! {
    async fn a_drop_with_unread_data_resets_the_peer() {
        let (mut client, server) = pair().await?;
        client.write_all(b"never read").await?;
        server.readable().await?;
        drop(server);
        let error = client.read(&mut [0]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }

    async fn a_reset_is_reported_once() {
        let mut client = reset().await?;
        let error = client.read(&mut [0]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        assert_eq!(client.read(&mut [0]).await?, 0);
        let error = client.write(b"x").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    }

    async fn a_write_reports_a_reset_too() {
        let mut client = reset().await?;
        settle().await;
        let error = client.write(b"x").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        let error = client.write(b"x").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    }

    async fn take_error_takes_the_reset() {
        let (mut client, server) = pair().await?;
        assert!(client.take_error()?.is_none());
        server.set_zero_linger()?;
        drop(server);
        settle().await;
        let error = client.take_error()?.expect("a reset");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        assert!(client.take_error()?.is_none());
        assert_eq!(client.read(&mut [0]).await?, 0);
    }

    async fn a_write_after_the_own_end_is_a_broken_pipe() {
        let (mut client, _server) = pair().await?;
        client.shutdown().await?;
        let error = client.write(b"x").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    }

    async fn writes_to_a_closed_peer_end_in_a_broken_pipe() {
        let (mut client, server) = pair().await?;
        drop(server);
        assert_eq!(client.read(&mut [0]).await?, 0);
        // The first leaves, and is answered with a reset.
        client.write_all(b"x").await?;
        let error = loop {
            tokio::time::sleep(Duration::from_millis(1)).await;
            if let Err(error) = client.write(b"x").await {
                break error;
            }
        };
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    }

    async fn data_before_a_reset_can_still_be_read() {
        let (mut client, mut server) = pair().await?;
        server.write_all(b"last").await?;
        client.readable().await?;
        server.set_zero_linger()?;
        drop(server);
        settle().await;
        assert_eq!(client.read(&mut [0; 8]).await?, 4);
        let error = client.read(&mut [0; 8]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        assert_eq!(client.read(&mut [0; 8]).await?, 0);
    }

    async fn a_connection_that_was_reset_has_no_peer() {
        let mut client = reset().await?;
        assert!(client.read(&mut [0]).await.is_err());
        assert_eq!(client.peer_addr().unwrap_err().kind(), ErrorKind::NotConnected);
    }

    async fn a_task_that_reads_is_woken_by_a_reset() {
        let (mut client, server) = pair().await?;
        let reader = tokio::spawn(async move { client.read(&mut [0]).await });
        settle().await;
        server.set_zero_linger()?;
        drop(server);
        let error = reader.await?.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
}
