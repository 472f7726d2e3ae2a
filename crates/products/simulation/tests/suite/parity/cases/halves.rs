//! Streams in two halves.

use std::io::ErrorKind;

use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};

use super::net::TcpStream;
use super::{pair, settle};

cases! {
    async fn borrowed_halves_work_at_the_same_time() {
        let (mut client, mut server) = pair().await?;
        let (mut read, mut write) = client.split();
        let echo = async {
            let mut buf = [0; 4];
            server.read_exact(&mut buf).await?;
            server.write_all(&buf).await
        };
        let mut buf = [0; 4];
        tokio::try_join!(echo, write.write_all(b"half"), read.read_exact(&mut buf))?;
        assert_eq!(&buf, b"half");
        assert_eq!(read.local_addr()?, write.local_addr()?);
        assert_eq!(read.peer_addr()?, server.local_addr()?);
    }

    async fn the_drop_of_borrowed_halves_ends_nothing() {
        let (mut client, mut server) = pair().await?;
        client.split();
        client.write_all(b"x").await?;
        assert_eq!(server.read(&mut [0; 2]).await?, 1);
    }

    async fn a_borrowed_half_ends_its_direction() {
        let (mut client, mut server) = pair().await?;
        let (_read, mut write) = client.split();
        write.shutdown().await?;
        assert_eq!(server.read(&mut [0]).await?, 0);
    }

    async fn the_drop_of_the_write_half_ends_its_direction() {
        let (client, mut server) = pair().await?;
        let (mut read, write) = client.into_split();
        drop(write);
        assert_eq!(server.read(&mut [0]).await?, 0);
        server.write_all(b"x").await?;
        assert_eq!(read.read(&mut [0; 2]).await?, 1);
    }

    async fn the_drop_of_the_read_half_ends_nothing() {
        let (client, mut server) = pair().await?;
        let (read, mut write) = client.into_split();
        drop(read);
        write.write_all(b"x").await?;
        assert_eq!(server.read(&mut [0; 2]).await?, 1);
    }

    async fn a_forgotten_write_half_ends_with_the_read_half() {
        let (client, server) = pair().await?;
        let (read, write) = client.into_split();
        write.forget();
        settle().await;
        assert_eq!(server.try_read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
        drop(read);
        server.readable().await?;
        assert_eq!(server.try_read(&mut [0])?, 0);
    }

    async fn halves_of_one_stream_are_reunited() {
        let (client, mut server) = pair().await?;
        let at = client.local_addr()?;
        let (read, write) = client.into_split();
        let mut client = read.reunite(write)?;
        assert_eq!(client.local_addr()?, at);
        client.write_all(b"whole").await?;
        assert_eq!(server.read(&mut [0; 8]).await?, 5);
        let (read, write) = client.into_split();
        write.reunite(read)?;
    }

    async fn halves_of_two_streams_come_back() {
        let (client, server) = pair().await?;
        let (read, _write) = client.into_split();
        let (_read, write) = server.into_split();
        let error = read.reunite(write).unwrap_err();
        assert_eq!(error.to_string(), "tried to reunite halves that are not from the same socket");
        let (read, write) = (error.0, error.1);
        assert_eq!(read.local_addr()?, write.peer_addr()?);
    }

    async fn halves_tell_when_they_are_ready() {
        let (client, server) = pair().await?;
        let (read, write) = client.into_split();
        write.writable().await?;
        assert!(write.ready(Interest::WRITABLE).await?.is_writable());
        server.try_write(b"abc")?;
        read.readable().await?;
        assert!(read.ready(Interest::READABLE).await?.is_readable());
        assert_eq!(read.try_read(&mut [0])?, 1);
        let mut buf = Vec::with_capacity(8);
        assert_eq!(read.try_read_buf(&mut buf)?, 2);
        assert_eq!(write.try_write(b"x")?, 1);
    }

    async fn halves_peek() {
        let (client, mut server) = pair().await?;
        let (mut read, _write) = client.into_split();
        server.write_all(b"abc").await?;
        assert_eq!(read.peek(&mut [0; 8]).await?, 3);
        assert_eq!(read.read(&mut [0; 8]).await?, 3);
    }

    async fn halves_are_references_to_their_stream() {
        let (client, _server) = pair().await?;
        let at = client.local_addr()?;
        let (read, write) = client.into_split();
        let [one, other]: [&TcpStream; 2] = [read.as_ref(), write.as_ref()];
        assert_eq!((one.local_addr()?, other.local_addr()?), (at, at));
    }

    async fn a_half_in_another_task_is_woken() {
        let (client, mut server) = pair().await?;
        let (mut read, _write) = client.into_split();
        let reader = tokio::spawn(async move { read.read(&mut [0; 8]).await });
        settle().await;
        server.write_all(b"wake").await?;
        assert_eq!(reader.await??, 4);
    }
}
