//! The sockets for tasks, on tokio and without it.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use pagewire::Host;
use pagewire::memory::MapError;
use pagewire::net::{TcpListener, TcpStream, UdpSocket};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest, ReadBuf};

use crate::support::{Called, Joined, PATIENCE, block_on, copied, hosts, joined};

/// A connection: the client's side, and the server's.
async fn connected(server: &Host, client: &Host) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind_on(server, "10.0.0.1:9000").await.expect("listen");
    let near = TcpStream::connect_on(client, "10.0.0.1:9000").await.expect("connect");
    let (far, from) = listener.accept().await.expect("accept");
    assert_eq!(from, near.local_addr().expect("address"));
    (near, far)
}

#[tokio::test]
async fn several_slices_leave_as_one_segment() {
    let (server, client) = hosts();
    let (mut near, mut far) = connected(&server, &client).await;
    near.set_nodelay(true).expect("option");
    assert!(near.is_write_vectored());
    let before = near.info().expect("info").data_segments_out;
    let slices = [IoSlice::new(b"head "), IoSlice::new(b""), IoSlice::new(b"body")];
    assert_eq!(near.write_vectored(&slices).await.expect("write"), 9);
    let mut got = [0; 9];
    far.read_exact(&mut got).await.expect("read");
    assert_eq!(&got, b"head body");
    assert_eq!(near.info().expect("info").data_segments_out, before + 1);
}

#[tokio::test]
async fn memory_is_sent_and_received_by_reference() {
    let (server, client) = hosts();
    let (near, far) = connected(&server, &client).await;
    let sender = tokio::spawn(async move { near.send(vec![5; 1 << 20]).await });
    let mut got = 0;
    while got < 1 << 20 {
        got += far.recv_chunks(1 << 20).await.expect("receive").len();
    }
    assert_eq!(sender.await.expect("task").expect("send"), 1 << 20);
    assert_eq!(copied(&[&client, &server]), 0);
}

#[tokio::test]
async fn addresses_without_a_route_or_a_listener_are_passed_over_for_the_one_that_answers() {
    let (server, client) = hosts();
    let _listener = TcpListener::bind_on(&server, "10.0.0.1:9000").await.expect("listen");
    let to = ["[fd00::1]:9000", "192.0.2.1:9000", "10.0.0.1:1", "10.0.0.1:9000"];
    let to = to.map(|address| address.parse().expect("an address"));
    let stream = TcpStream::connect_on(&client, &to[..]).await.expect("the last answers");
    assert_eq!(stream.peer_addr().expect("address"), to[3]);
}

#[tokio::test]
async fn a_stream_moves_between_the_forms_for_threads_and_for_tasks() {
    let Joined { near, far, .. } = joined();
    let mut near = TcpStream::from(near);
    near.write_all(b"from a task").await.expect("write");
    assert_eq!(far.recv_chunks(100).expect("receive").len(), 11);
    let near = near.to_blocking();
    assert_eq!(far.send(b"back").expect("send"), 4);
    assert_eq!(near.recv_chunks(100).expect("receive").len(), 4);
}

#[test]
fn a_wait_that_is_dropped_is_forgotten_and_others_of_the_same_task_are_not() {
    let Joined { near: conn, far, listener, .. } = joined();
    let (peer, listener) = (TcpStream::from(far), TcpListener::from(listener));
    let (says, hears) = mpsc::channel();
    let called = Arc::new(Called(says));
    let waker = Waker::from(Arc::clone(&called));
    let mut cx = Context::from_waker(&waker);
    {
        let mut stays = pin!(peer.readable());
        assert!(stays.as_mut().poll(&mut cx).is_pending());
        let before = Arc::strong_count(&called);
        for _ in 0..100 {
            assert!(pin!(peer.recv_chunks(1)).poll(&mut cx).is_pending());
            assert!(pin!(peer.ready(Interest::READABLE)).poll(&mut cx).is_pending());
            assert!(pin!(listener.accept()).poll(&mut cx).is_pending());
            assert!(pin!(peer.next_completion()).poll(&mut cx).is_ready(), "none is to come");
        }
        assert_eq!(Arc::strong_count(&called), before, "as if they had not been");
        conn.send(bytes::Bytes::from_static(b"x")).unwrap();
        hears.recv_timeout(PATIENCE).expect("it is woken");
        assert!(stays.as_mut().poll(&mut cx).is_ready());
    }
    // The thread that woke it lets go of it after that.
    let limit = Instant::now() + PATIENCE;
    while Arc::strong_count(&called) > 2 && Instant::now() < limit {
        std::thread::yield_now();
    }
    assert_eq!(Arc::strong_count(&called), 2, "the test's own");
}

#[test]
fn of_tasks_that_poll_a_stream_one_after_the_other_the_last_is_woken_and_the_others_are_forgotten()
{
    let Joined { near: conn, far, .. } = joined();
    let mut peer = TcpStream::from(far);
    let (says, hears) = mpsc::channel();
    let tasks: Vec<_> = (0..100).map(|_| Arc::new(Called(says.clone()))).collect();
    let mut room = [0; 8];
    for task in &tasks {
        let waker = Waker::from(Arc::clone(task));
        let mut cx = Context::from_waker(&waker);
        let read = Pin::new(&mut peer).poll_read(&mut cx, &mut ReadBuf::new(&mut room));
        assert!(read.is_pending());
    }
    let (last, others) = tasks.split_last().unwrap();
    assert!(others.iter().all(|task| Arc::strong_count(task) == 1), "nothing holds them");
    assert!(Arc::strong_count(last) > 1);
    conn.send(&b"x"[..]).unwrap();
    hears.recv_timeout(PATIENCE).expect("it is woken");
    assert!(hears.recv_timeout(Duration::from_millis(1)).is_err(), "once");
}

/// A waker of its own allocation, which counts the drops of all.
struct Fresh(Arc<AtomicUsize>);

impl std::task::Wake for Fresh {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Fresh {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn tasks_that_poll_an_idle_socket_and_go_leave_nothing_behind() {
    const TASKS: usize = 100_000;
    let Joined { server, near, far, listener, .. } = joined();
    let (listener, near) = (TcpListener::from(listener), TcpStream::from(near));
    let socket = UdpSocket::from(server.udp("10.0.0.1:9000").unwrap());
    let mut room = [0; 8];
    type Polls<'a> = Box<dyn FnMut(&mut Context<'_>) -> bool + 'a>;
    let mut read =
        |cx: &mut Context<'_>| socket.poll_recv(cx, &mut ReadBuf::new(&mut room)).is_pending();
    let polls: Vec<Polls<'_>> = vec![
        Box::new(|cx| listener.poll_accept(cx).is_pending()),
        Box::new(|cx| read(cx)),
        Box::new(|cx| socket.poll_recv_ready(cx).is_pending()),
        Box::new(|cx| socket.poll_recv_message(cx).is_pending()),
        Box::new(|cx| socket.poll_peek_sender(cx).is_pending()),
        Box::new(|cx| near.poll_read_ready(cx).is_pending()),
        Box::new(|cx| near.poll_recv_chunks(cx, 1).is_pending()),
    ];
    for (n, mut poll) in polls.into_iter().enumerate() {
        let dropped = Arc::new(AtomicUsize::new(0));
        for _ in 0..TASKS {
            let waker = Waker::from(Arc::new(Fresh(Arc::clone(&dropped))));
            assert!(poll(&mut Context::from_waker(&waker)), "poll {n} waits");
        }
        let left = TASKS - dropped.load(Ordering::Relaxed);
        assert!(left <= 1, "poll {n} left {left} wakers");
    }
    drop(far);
}

/// Whether a wait that a second task polls wakes that one. `happens` ends the wait.
fn moves<T>(wait: impl Future<Output = T>, happens: impl FnOnce()) -> T {
    let mut wait = pin!(wait);
    let (first, second) = (mpsc::channel(), mpsc::channel());
    for says in [first.0, second.0] {
        let waker = Waker::from(Arc::new(Called(says)));
        assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    happens();
    second.1.recv_timeout(PATIENCE).expect("the task that polled last is woken");
    assert!(first.1.try_recv().is_err(), "and no other");
    block_on(wait)
}

#[test]
fn a_wait_that_moves_to_another_task_wakes_that_one() {
    let (server, client) = hosts();
    let listener = TcpListener::from(server.listen("10.0.0.1:9000").unwrap());
    let connect = || client.connect("10.0.0.1:9000").unwrap();
    let mut near = None;
    let (far, _) = moves(listener.accept(), || near = Some(connect())).unwrap();
    let near = near.unwrap();
    let hello = || assert_eq!(near.send(b"hello").unwrap(), 5);
    assert_eq!(moves(far.recv_chunks(100), hello).unwrap().len(), 5);
    let hello = || assert_eq!(near.send(b"hello").unwrap(), 5);
    assert!(moves(far.readable(), hello).is_ok());
    let socket = UdpSocket::from(server.udp("10.0.0.1:9000").unwrap());
    let sender = client.udp("10.0.0.2:9000").unwrap();
    let hello = || assert_eq!(sender.send_to(b"hello", "10.0.0.1:9000").unwrap(), 5);
    let got = moves(socket.recv_message(), hello).unwrap();
    assert_eq!((got.payload.len(), got.to.to_string().as_str()), (5, "10.0.0.1"));
}

#[test]
fn a_send_that_fails_behind_a_part_says_how_much_and_the_next_one_says_why() {
    const LEN: usize = 64 << 20;
    for sync in [true, false] {
        let Joined { near, far, .. } = joined();
        let near = TcpStream::from(near);
        let resets = std::thread::spawn(move || {
            far.wait_readable().unwrap();
            far.abort();
        });
        let send = || match sync {
            true => near.to_blocking().send(vec![7; LEN]),
            false => block_on(near.send(vec![7; LEN])),
        };
        let sent = send().expect("a part was queued");
        assert!(0 < sent && sent < LEN, "sync {sync}: {sent}");
        let error = send().expect_err("the reset");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "sync {sync}");
        resets.join().unwrap();
    }
}

#[test]
fn a_map_never_waits_and_a_map_that_waits_says_so_in_both_forms() {
    let Joined { near: conn, far, .. } = joined();
    let far = TcpStream::from(far);
    let nothing = [far.map(4096).err(), far.map(4096).err()];
    assert_eq!(nothing, [Some(MapError::WouldBlock); 2]);
    let page = || std::io::Write::write_all(&mut &conn, &[7; 4096]).unwrap();
    assert_eq!(moves(far.map_wait(4096), page).unwrap().len(), 4096);
    page();
    assert_eq!(far.to_blocking().map_wait(4096).unwrap().len(), 4096);
}

#[tokio::test]
async fn settings_of_a_datagram_socket_are_those_of_the_form_for_threads() {
    let (server, _client) = hosts();
    let far = UdpSocket::bind_on(&server, "10.0.0.1:9000").await.expect("socket");
    far.set_ttl(7).expect("ttl");
    far.set_tos_v4(0x20).expect("tos");
    far.set_broadcast(true).expect("broadcast");
    let threads = far.to_blocking();
    let settings = (threads.ttl().ok(), threads.tos_v4().ok(), threads.broadcast().ok());
    assert_eq!(settings, (Some(7), Some(0x20), Some(true)));
}

#[test]
fn a_task_that_always_finds_data_lets_others_run() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
    runtime.block_on(async {
        let (server, client) = hosts();
        let (near, far) = connected(&server, &client).await;
        near.send(vec![1; 200_000]).await.expect("send");
        let other = tokio::spawn(async {});
        let mut buf = [0; 1];
        let mut reads = 0;
        while !other.is_finished() {
            far.peek(&mut buf).await.expect("peek");
            reads += 1;
            assert!(reads < 10_000, "the other task never ran");
        }
    });
}

#[tokio::test]
async fn datagrams_go_by_reference_to_a_connected_peer() {
    let (server, client) = hosts();
    let far = UdpSocket::bind_on(&server, "10.0.0.1:9000").await.expect("socket");
    let near = UdpSocket::bind_on(&client, "10.0.0.2:9001").await.expect("socket");
    near.connect("10.0.0.1:9000").await.expect("connect");
    assert_eq!(near.send_chunks(vec![7; 1000]).await.expect("send"), 1000);
    let (chunks, from) = far.recv_chunks_from().await.expect("receive");
    assert_eq!(chunks.len(), 1000);
    // The received memory goes back as it is.
    far.send_chunks_to(chunks, from).await.expect("send");
    assert_eq!(near.recv_chunks().await.expect("receive").len(), 1000);
    assert_eq!(copied(&[&client, &server]), 0);
}

#[test]
fn everything_works_on_an_executor_that_is_not_tokio() {
    let (server, client) = hosts();
    let far = block_on(async {
        let (mut near, far) = connected(&server, &client).await;
        near.write_all(b"by no runtime").await.expect("write");
        near.writable().await.expect("writable");
        far
    });
    assert_eq!(block_on(far.recv_chunks(100)).expect("receive").len(), 13);
}

#[tokio::test]
async fn what_comes_during_a_try_is_an_event_for_the_next_one() {
    let (server, client) = hosts();
    let (near, far) = connected(&server, &client).await;
    near.send(&b"a"[..]).await.unwrap();
    let (mut buf, mut all) = ([0; 8], Vec::new());
    let read = far.async_io(Interest::READABLE, || {
        let n = far.try_read(&mut buf)?;
        all.extend_from_slice(&buf[..n]);
        if all == b"a" {
            near.try_write(b"b")?;
            let mut peeked = [0; 8];
            let mut peeked = ReadBuf::new(&mut peeked);
            while far.poll_peek(&mut Context::from_waker(Waker::noop()), &mut peeked).is_pending() {
                std::thread::yield_now();
            }
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(())
    });
    tokio::time::timeout(PATIENCE, read).await.expect("it is tried again").unwrap();
    assert_eq!(all, b"ab");
}

#[tokio::test]
async fn a_callback_for_received_datagrams_may_use_the_host() {
    let (server, client) = hosts();
    let far = UdpSocket::bind_on(&server, "[::]:9000").await.unwrap();
    let near = UdpSocket::bind_on(&client, "10.0.0.2:9").await.unwrap();
    near.send_to(b"hello", "10.0.0.1:9000").await.unwrap();
    let (mut buf, mut shown) = ([0; 8], None);
    let n = std::future::poll_fn(|cx| {
        far.poll_recv_many(cx, &mut [IoSliceMut::new(&mut buf)], |received| {
            assert_eq!(far.local_addr().unwrap().port(), 9000);
            shown = Some((received.from.ip(), received.to));
        })
    });
    assert_eq!(n.await.unwrap(), 1);
    let mapped = |address: &str| address.parse::<IpAddr>().unwrap();
    assert_eq!(shown, Some((mapped("::ffff:10.0.0.2"), mapped("::ffff:10.0.0.1"))));
    near.send_to(b"hello", "10.0.0.1:9000").await.unwrap();
    let got = far.recv_message().await.unwrap();
    assert_eq!((got.from.ip(), got.to), shown.unwrap(), "as the callback was shown");
    assert_eq!((got.payload.len(), got.from.port(), got.segment), (5, 9, None));
}
