//! Rings on hosts: what programs see of them.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::thread;

use bytes::Bytes;
use pagewire::device::Rule;
use pagewire::memory::{Frag, Region};
use pagewire::rings::COPY_GROUP;
use pagewire::rings::{Op, QueueConfig, RegisterError, Submission};
use pagewire::rings::{RingListener, RingStream};
use pagewire::{Host, SendBuf};
use pagewire_testkit::given;

use crate::support::{
    PATIENCE, block_on, hosts, hosts_with_queues, pattern, poll_once, private, register_send,
    rings, until_completed,
};

const LEN: usize = 3 << 20;

fn data() -> Bytes {
    pattern(LEN)
}

fn send(client: Host, on: SocketAddr, what: impl Into<SendBuf>) -> thread::JoinHandle<()> {
    let what = what.into();
    thread::spawn(move || {
        let stream = client.connect(on).unwrap();
        stream.send(what).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(client.drain(PATIENCE));
    })
}

/// The whole of a stream, whose buffers are private memory.
async fn receive_all(stream: &RingStream, group: u16) -> Vec<u8> {
    let mut got: Vec<u8> = Vec::new();
    loop {
        let received = stream.receive(group, 100_000).await.unwrap();
        if received.buffers.is_empty() {
            return got;
        }
        received.buffers.iter().for_each(|buffer| got.extend(buffer.as_slice().unwrap()));
    }
}

given! {
    let (server, client) = hosts_with_queues();

    buffers_of_a_registered_region_give_themselves_back {
        let rings = rings(&server).into_async();
        // Smaller than what is sent: it goes round.
        let group = rings.register(1, private(1 << 20), &[Rule::tcp_port(9000)]).unwrap();
        let listener = rings.listen("10.0.0.1:9000").unwrap();
        let sender = send(client, listener.local_addr(), data());
        let (mut got, mut kept) = (Vec::new(), Vec::new());
        block_on(async {
            let stream = listener.accept().await.unwrap();
            loop {
                let received = stream.receive(group, 100_000).await.unwrap();
                if received.buffers.is_empty() {
                    break;
                }
                for buffer in received.buffers {
                    got.extend_from_slice(buffer.as_slice().expect("private memory"));
                    if kept.len() < 3 {
                        kept.push((got.len() - buffer.len(), buffer));
                    }
                }
            }
        });
        sender.join().unwrap();
        assert!(got == data());
        let counters = rings.counters();
        assert!(counters.zc_bytes * 10 >= 9 * LEN as u64, "{counters:?}");
        assert_eq!(counters.fills_refused(), 0);
        // Kept buffers have the bytes that they had, although the region went round meanwhile, and
        // outlive it all.
        drop((listener, rings, server));
        for (at, buffer) in &kept {
            assert_eq!(buffer.as_slice().unwrap(), &got[*at..at + buffer.len()]);
        }
    }
    lent_memory_is_received_where_the_sender_has_it {
        let mut rings = rings(&server);
        let whole = Frag::from_bytes(data());
        let group = rings.register_lent(whole.clone()).unwrap();
        let (listener, on) = rings.listen("10.0.0.1:0").unwrap();
        let sender = send(client, on, whole);
        assert!(rings.submit(Submission::new(Op::Accept, listener, 1)));
        let mut next = 0;
        'all: loop {
            assert!(rings.wait(PATIENCE), "nothing happens");
            while let Some(done) = rings.next_completion() {
                if done.user_data == 1 {
                    let receive = Submission::receive(done.handle, group, 0, 2).multishot();
                    assert!(rings.submit(receive));
                } else if done.result == 0 {
                    break 'all;
                }
                for _ in 0..done.entries {
                    let entry = rings.next_entry().unwrap();
                    assert_eq!((entry.group, entry.offset as usize), (group, next));
                    next += entry.len as usize;
                    assert!(rings.give_back(entry));
                }
            }
            rings.flush();
        }
        sender.join().unwrap();
        assert_eq!((next, rings.counters().copy_bytes), (LEN, 0));
    }
    a_server_task_answers_from_registered_memory {
        let rings = rings(&server).into_async();
        let out = register_send(&rings, b"by reference");
        let listener = rings.listen("10.0.0.1:9000").unwrap();
        let asking = thread::spawn(move || {
            use std::io::{Read, Write};
            let mut stream = client.connect("10.0.0.1:9000").unwrap();
            stream.write_all(b"how?").unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer
        });
        block_on(async {
            let stream = listener.accept().await.unwrap();
            let question = stream.receive(COPY_GROUP, 100).await.unwrap();
            assert!(question.buffers[0].is_copied());
            assert_eq!(question.buffers[0].as_slice().unwrap(), b"how?");
            assert_eq!(stream.send(out, 0, 12).await.unwrap(), 12);
            stream.shutdown().await.unwrap();
            assert!(stream.receive(COPY_GROUP, 100).await.unwrap().buffers.is_empty());
        });
        assert_eq!(asking.join().unwrap(), "by reference");
    }
    a_client_task_asks_and_receives {
        let listener = server.listen("10.0.0.1:9000").unwrap();
        let answering = thread::spawn(move || {
            use std::io::{Read, Write};
            let (mut stream, _) = listener.accept().unwrap();
            let mut question = String::new();
            stream.read_to_string(&mut question).unwrap();
            stream.write_all(&data()).unwrap();
            question
        });
        let rings = rings(&client).into_async();
        let out = register_send(&rings, b"how much?");
        block_on(async {
            let refused = rings.connect("10.0.0.1:9").await.unwrap_err();
            assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
            let stream = rings.connect("10.0.0.1:9000").await.unwrap();
            assert_eq!(stream.send(out, 0, 9).await.unwrap(), 9);
            stream.shutdown().await.unwrap();
            assert!(receive_all(&stream, COPY_GROUP).await == data());
        });
        rings.unregister_send(out).unwrap();
        assert_eq!(answering.join().unwrap(), "how much?");
    }
    a_connection_that_nobody_waits_for_any_more_is_closed {
        let rings = rings(&server).into_async();
        let listener = rings.listen("10.0.0.1:9000").unwrap();
        let mut stream = {
            let mut accept = pin!(listener.accept());
            poll_once(&mut accept);
            let stream = client.connect("10.0.0.1:9000").unwrap();
            until_completed(&rings, 1);
            stream
            // Here the task gives up, and the connection has been accepted.
        };
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // The next call that reads completions closes it.
        let again = listener.accept();
        let next = client.connect("10.0.0.1:9000").unwrap();
        block_on(async { again.await.unwrap() });
        let mut buffer = [0; 1];
        assert_eq!(std::io::Read::read(&mut stream, &mut buffer).unwrap(), 0);
        drop(next);
    }
    what_an_abandoned_receive_has_brought_is_received_next {
        let rings = rings(&server).into_async();
        let group = rings.register(1, private(1 << 20), &[Rule::tcp_port(9000)]).unwrap();
        let listener = rings.listen("10.0.0.1:9000").unwrap();
        let sender = client.connect("10.0.0.1:9000").unwrap();
        let stream = block_on(listener.accept()).unwrap();
        let mut got: Vec<u8> = Vec::new();
        for round in 0..20u8 {
            let completions = rings.counters().completions;
            let mut receive = Box::pin(stream.receive(group, 100_000));
            poll_once(&mut receive.as_mut());
            sender.send(vec![round; 5000]).unwrap();
            if round % 2 == 0 {
                // The bytes were received, and nobody took them.
                until_completed(&rings, completions + 1);
            }
            drop(receive);
            while got.len() < 5000 * (usize::from(round) + 1) {
                let received = block_on(stream.receive(group, 100_000)).unwrap();
                assert!(received.len > 0);
                received.buffers.iter().for_each(|buffer| got.extend(buffer.as_slice().unwrap()));
            }
        }
        let expected: Vec<u8> = (0..20u8).flat_map(|round| [round; 5000]).collect();
        assert!(got == expected, "in order, and whole");
    }
    /// An operation that nobody waits for is no longer under way: another takes its place.
    an_operation_that_is_dropped_is_cancelled {
        let rings = rings(&server).into_async();
        let listener = rings.listen("10.0.0.1:9000").unwrap();
        let gives_up = |operation: &mut dyn FnMut()| {
            let completions = rings.counters().completions;
            operation();
            // The completion of the operation, and that of the cancel.
            until_completed(&rings, completions + 2);
        };
        gives_up(&mut || poll_once(&mut pin!(listener.accept())));
        gives_up(&mut || poll_once(&mut pin!(rings.connect("10.0.0.9:9000"))));
        let sender = client.connect("10.0.0.1:9000").unwrap();
        let stream = block_on(listener.accept()).unwrap();
        gives_up(&mut || poll_once(&mut pin!(stream.receive(COPY_GROUP, 100))));
        sender.send(vec![7; 100]).unwrap();
        assert_eq!(block_on(stream.receive(COPY_GROUP, 100)).unwrap().len, 100);
    }
    /// Numbers of groups are used again, and the notice that one is free may not have been read.
    a_group_that_has_the_number_of_lent_memory_is_not_taken_for_it {
        let rings = rings(&server).into_async();
        let listener = rings.listen("10.0.0.1:9000").unwrap();
        let lent = rings.register_lent(Frag::from_bytes(vec![0xee; 100_000].into())).unwrap();
        let completions = rings.counters().completions;
        rings.unregister(lent).unwrap();
        until_completed(&rings, completions + 1);
        let group = rings.register(1, private(1 << 20), &[Rule::tcp_port(9000)]).unwrap();
        assert_eq!(group, lent);
        let sender = send(client, listener.local_addr(), data());
        let got = block_on(async { receive_all(&listener.accept().await.unwrap(), group).await });
        sender.join().unwrap();
        assert!(got == data());
    }
}

#[test]
fn what_tasks_wait_for_may_move_between_threads() {
    fn movable<T: Send>(_: T) {}
    let (server, _client) = hosts_with_queues();
    let rings = rings(&server).into_async();
    let listener = rings.listen("10.0.0.1:9000").unwrap();
    let socket = block_on(rings.bind("10.0.0.1:9000")).unwrap();
    movable(rings.connect("10.0.0.1:9000"));
    movable(rings.bind("10.0.0.1:9000"));
    movable(rings.notice());
    movable(socket.receive(COPY_GROUP, 1));
    movable(socket.send_to(0, 0, 1, "10.0.0.2:5000".parse().unwrap()));
    movable(async {
        let stream = listener.accept().await?;
        stream.send(0, 0, 1).await?;
        stream.shutdown().await?;
        stream.receive(COPY_GROUP, 1).await
    });
}

#[test]
fn all_buffers_of_a_region_are_given_though_its_fill_ring_is_smaller() {
    let (server, _client) = hosts_with_queues();
    let mut rings = rings(&server);
    // Half of the 256 pages are cached by the host, whose ring takes 64 at once.
    rings.register(1, QueueConfig { fill_entries: 64, ..private(1 << 20) }, &[]).unwrap();
    let begun = std::time::Instant::now();
    while rings.counters().fills < 128 {
        assert!(begun.elapsed() < PATIENCE, "{:?}", rings.counters());
        rings.flush();
        thread::yield_now();
    }
    assert_eq!(rings.counters().fills_refused(), 0);
}

#[test]
fn memory_that_was_taken_back_is_let_go_of() {
    let (server, _client) = hosts_with_queues();
    let mut rings = rings(&server);
    for _ in 0..50 {
        let region = Region::memfd("rings-test", 1 << 20).unwrap();
        let group = rings.register(1, QueueConfig::new(region), &[]).unwrap();
        assert_eq!(rings.view(group).map(|view| view.region().len()), Some(1 << 20));
        rings.unregister(group).unwrap();
        while rings.view(group).is_some() {
            assert!(rings.wait(PATIENCE), "no notice comes");
            while rings.next_completion().is_some() {}
        }
    }
}

#[test]
fn what_the_device_refuses_is_not_registered() {
    let (plain, _peer) = hosts();
    let mut of_plain = rings(&plain);
    let refused = of_plain.register(0, private(1 << 20), &[]).unwrap_err();
    assert!(matches!(refused, RegisterError::Unsupported) && refused.errno() == 95);

    let (server, _client) = hosts_with_queues();
    let (mut one, mut two) = (rings(&server), rings(&server));
    let none = one.register(7, private(1 << 20), &[]).unwrap_err();
    assert!(matches!(none, RegisterError::NoQueue(7)));
    let group = one.register(1, private(1 << 20), &[]).unwrap();
    let taken = two.register(1, private(1 << 20), &[]).unwrap_err();
    assert!(matches!(taken, RegisterError::QueueTaken(1)));
    one.unregister(group).unwrap();
    two.register(1, private(1 << 20), &[]).unwrap();
}

/// An executor that is shutting down drops the tasks that are woken, inside the wake.
#[test]
fn a_task_may_end_inside_its_wake() {
    struct EndsWhenWoken(std::sync::Mutex<Option<(RingListener, RingListener)>>);
    impl Wake for EndsWhenWoken {
        fn wake(self: Arc<Self>) {
            // By whoever sorts the completions, not by the host's thread before.
            if thread::current().name() == Some("task") {
                let task = self.0.lock().unwrap().take();
                drop(task);
            }
        }
    }
    let (server, client) = hosts_with_queues();
    let rings = rings(&server).into_async();
    let (first, second) = (rings.listen("10.0.0.1:9000"), rings.listen("10.0.0.1:9001"));
    let third = rings.listen("10.0.0.1:9002").unwrap();
    let owned = std::sync::Mutex::new(Some((first.unwrap(), second.unwrap())));
    let waker = Waker::from(Arc::new(EndsWhenWoken(owned)));
    let (done, ended) = std::sync::mpsc::channel();
    let task = thread::Builder::new().name("task".into()).spawn(move || {
        {
            let mut accept = pin!(third.accept());
            assert!(accept.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            drop(waker);
            let _stream = client.connect("10.0.0.1:9002").unwrap();
            until_completed(&rings, 1);
            // A call that reads all completions wakes it.
            poll_once(&mut pin!(rings.notice()));
        }
        done.send(()).unwrap();
    });
    ended.recv_timeout(PATIENCE).expect("nothing is locked while a task is woken");
    task.unwrap().join().unwrap();
}

/// Two applications on one host: the second wants what the first has.
#[test]
fn what_another_application_has_is_refused_and_nothing_of_the_attempt_stays() {
    let (server, _client) = hosts_with_queues();
    let (mut first, mut second) = (rings(&server), rings(&server));
    first.register(1, private(1 << 20), &[Rule::tcp_port(9000)]).unwrap();
    let region = Region::memfd_shared("rings-test", 1 << 20).unwrap();
    let config = || QueueConfig::new(region.clone());
    let taken = second.register(1, config(), &[]).unwrap_err();
    assert!(matches!(taken, RegisterError::QueueTaken(1)), "{taken}");
    let stolen = second.register(0, config(), &[Rule::tcp_port(9000)]).unwrap_err();
    assert!(matches!(stolen, RegisterError::Steered(1)), "{stolen}");
    // The same memory can be registered at once, and no notice of what never was ends it.
    let group = second.register(0, config(), &[Rule::tcp_port(9001)]).unwrap();
    assert!(second.submit(Submission::new(Op::Nop, 0, 7)));
    assert!(second.wait(PATIENCE));
    assert_eq!(second.next_completion().map(|done| done.user_data), Some(7));
    assert!(second.next_completion().is_none());
    assert!(second.view(group).is_some());
}
