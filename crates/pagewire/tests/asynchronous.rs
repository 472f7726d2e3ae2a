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
        AsyncWriteExt::shutdown(&mut stream).await.expect("shutdown");
    });
    let mut stream =
        client.connect_async("10.0.0.1:9000".parse().expect("address")).await.expect("connect");
    let sent: Vec<u8> = (0..200_000u32).map(|i| i as u8).collect();
    let (to, from) = (sent.clone(), stream.clone());
    let writer = tokio::spawn(async move {
        let mut stream = from;
        stream.write_all(&to).await.expect("write");
        AsyncWriteExt::shutdown(&mut stream).await.expect("shutdown");
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

/// Says that it was called.
struct Called(std::sync::Mutex<std::sync::mpsc::Sender<()>>);

impl std::task::Wake for Called {
    fn wake(self: std::sync::Arc<Self>) {
        let _ = self.0.lock().unwrap().send(());
    }
}

#[test]
fn a_wait_that_is_dropped_is_forgotten_and_others_of_the_same_task_are_not() {
    use std::future::Future;
    use std::pin::pin;
    use std::sync::{Arc, Mutex, mpsc};
    use std::task::{Context, Waker};

    let (server, client) = hosts();
    let listener = server.listen("10.0.0.1:9000").unwrap();
    let conn = client.connect("10.0.0.1:9000").unwrap();
    let (peer, _) = listener.accept().unwrap();
    let (says, hears) = mpsc::channel();
    let called = Arc::new(Called(Mutex::new(says)));
    let waker = Waker::from(Arc::clone(&called));
    let mut cx = Context::from_waker(&waker);
    {
        let mut stays = pin!(peer.readable_async());
        assert!(stays.as_mut().poll(&mut cx).is_pending());
        let before = Arc::strong_count(&called);
        for _ in 0..100 {
            assert!(pin!(peer.recv_chunks_async(1)).poll(&mut cx).is_pending());
            assert!(pin!(listener.accept_async()).poll(&mut cx).is_pending());
            assert!(pin!(peer.next_completion()).poll(&mut cx).is_ready(), "none is to come");
        }
        assert_eq!(Arc::strong_count(&called), before, "as if they had not been");
        conn.send(bytes::Bytes::from_static(b"x")).unwrap();
        hears.recv_timeout(std::time::Duration::from_secs(20)).expect("it is woken");
        assert!(stays.as_mut().poll(&mut cx).is_ready());
    }
    // The thread that woke it lets go of it after that.
    let limit = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while Arc::strong_count(&called) > 2 && std::time::Instant::now() < limit {
        std::thread::yield_now();
    }
    assert_eq!(Arc::strong_count(&called), 2, "the test's own");
}

#[tokio::test]
async fn a_datagram_says_where_it_was_sent_to() {
    let (server, client) = hosts();
    let socket = server.udp("0.0.0.0:9000").expect("socket");
    let sender = client.udp("10.0.0.2:9001").expect("socket");
    let receiver = tokio::spawn(async move { socket.recv_message_async().await });
    let to = "10.0.0.1:9000".parse().expect("address");
    sender.send_to_async(b"hello", to).await.expect("send");
    let got = receiver.await.expect("task").expect("receive");
    assert_eq!((got.payload.len(), got.to, got.segment), (5, to.ip(), None));
    assert_eq!(got.from, sender.local_addr().expect("address"));
}
