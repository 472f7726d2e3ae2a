//! The async forms, on tokio.
#![cfg(feature = "tokio")]

use pagewire::Host;
use pagewire::device::Pair;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn hosts() -> (Host, Host) {
    let (left, right) = Pair::new(Default::default()).expect("pair");
    let server = Host::builder().device(left).address("10.0.0.1/24").start().expect("host");
    let client = Host::builder().device(right).address("10.0.0.2/24").start().expect("host");
    (server, client)
}

#[tokio::test]
async fn streams_are_async_read_and_async_write() {
    let (server, client) = hosts();
    let listener = server.listen("10.0.0.1:9000").expect("listen");
    let echo = tokio::spawn(async move {
        let (mut stream, _) = listener.accept_async().await.expect("accept");
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await.expect("read");
        stream.write_all(&all).await.expect("write");
        stream.shutdown().await.expect("shutdown");
    });
    let mut stream =
        client.connect_async("10.0.0.1:9000".parse().expect("address")).await.expect("connect");
    let sent: Vec<u8> = (0..200_000u32).map(|i| i as u8).collect();
    let (to, from) = (sent.clone(), stream.clone());
    let writer = tokio::spawn(async move {
        let mut stream = from;
        stream.write_all(&to).await.expect("write");
        stream.shutdown().await.expect("shutdown");
    });
    let mut got = Vec::new();
    stream.read_to_end(&mut got).await.expect("read");
    assert_eq!(got, sent);
    writer.await.expect("writer");
    echo.await.expect("echo");
}

#[tokio::test]
async fn memory_is_sent_and_received_by_reference() {
    let (server, client) = hosts();
    let listener = server.listen("10.0.0.1:9000").expect("listen");
    let stream =
        client.connect_async("10.0.0.1:9000".parse().expect("address")).await.expect("connect");
    let (peer, _) = listener.accept_async().await.expect("accept");
    let sender = tokio::spawn(async move { stream.send_async(vec![5; 1 << 20]).await });
    let mut got = 0;
    while got < 1 << 20 {
        got += peer.recv_chunks_async(1 << 20).await.expect("receive").len();
    }
    assert_eq!(sender.await.expect("task").expect("send"), 1 << 20);
    assert_eq!(client.stats().ledger.ours() + server.stats().ledger.ours(), 0);
}

#[tokio::test]
async fn a_refused_connection_is_an_error() {
    let (_server, client) = hosts();
    let refused = client.connect_async("10.0.0.1:1".parse().expect("address")).await;
    assert_eq!(refused.expect_err("refused").kind(), std::io::ErrorKind::ConnectionRefused);
}
