//! A device that is gone for good: every call that would wait for it fails at once, with the reason.

use std::future::Future;
use std::io::{ErrorKind, Read};
use std::pin::pin;
use std::sync::mpsc;
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use pagewire::proxy::Proxy;
use pagewire::{Host, Link, LinkId, TcpStream};
use pagewire_testkit::given;

use crate::support::{
    PATIENCE, block_on, builders, cause_of, fails, on_a_tap, on_two_links, pair, rings,
};

/// A host, and one at the other end of its only link.
fn two() -> (Host, Host) {
    let (host, peer) = builders();
    let peer = peer.shutdown_limit(Duration::ZERO).start();
    (host.start().expect("host"), peer.expect("peer"))
}

fn assert_down(what: &str, error: &std::io::Error) {
    let cause = cause_of(what, error);
    assert!(cause.contains("closed by its other side"), "{what}: {cause}");
}

given! {
    let (host, peer) = two();

    every_blocked_call_ends_at_once_with_the_cause {
        let silent = peer.udp("10.0.0.2:9").expect("socket");
        let listener = peer.listen("10.0.0.2:80").expect("listen");
        let reads = host.connect("10.0.0.2:80").expect("connect");
        let writes = host.connect("10.0.0.2:80").expect("connect");
        let accepts = host.listen("10.0.0.1:80").expect("listen");
        let hears = host.udp("10.0.0.1:0").expect("socket");
        let connects = host.clone();
        type Call = Box<dyn FnOnce() -> std::io::Error + Send>;
        let calls: [(&str, Call); 5] = [
            ("recv", Box::new(move || reads.recv_chunks(1).expect_err("down"))),
            (
                "send",
                Box::new(move || {
                    loop {
                        if let Err(error) = writes.send(vec![0; 1 << 20]) {
                            return error;
                        }
                    }
                }),
            ),
            ("accept", Box::new(move || accepts.accept().map(drop).expect_err("down"))),
            ("recv_from", Box::new(move || hears.recv_from(&mut [0]).map(drop).expect_err("down"))),
            // Nobody has this address: it would wait for an answer.
            (
                "connect_timeout",
                Box::new(move || {
                    let done = connects.connect_timeout("10.0.0.2:81", PATIENCE * 2);
                    done.map(drop).expect_err("down or refused")
                }),
            ),
        ];
        let (says, hears) = mpsc::channel();
        for (what, call) in calls {
            let says = says.clone();
            thread::spawn(move || says.send((what, call())));
        }
        // Some of them may not wait yet: those fail when they begin.
        drop((silent, listener, peer.remove_link(LinkId::FIRST)));
        for _ in 0..5 {
            let (what, error) = hears.recv_timeout(PATIENCE).expect("every call ends");
            if what != "connect_timeout" || error.kind() != ErrorKind::ConnectionRefused {
                // A stream whose peer had closed before the device was gone was reset.
                if error.kind() != ErrorKind::ConnectionReset {
                    assert_down(what, &error);
                }
            }
        }
        for (what, error) in fails(&host) {
            assert_down(what, &error);
        }
        assert!(host.stats().device_error.is_some());
    }
    who_waits_for_the_end_of_a_host_is_told_why {
        let (waits, dropped) = (host.failed(), host.failed());
        let mut unasked = pin!(host.failed());
        let mut cx = Context::from_waker(Waker::noop());
        assert!(unasked.as_mut().poll(&mut cx).is_pending());
        drop(dropped);
        let (says, hears) = mpsc::channel();
        let (also, asks) = (says.clone(), host.failed());
        thread::spawn(move || says.send(waits.wait().expect("no deadlock")));
        thread::spawn(move || also.send(block_on(asks)));
        drop(peer.remove_link(LinkId::FIRST));
        for _ in 0..2 {
            let why = hears.recv_timeout(Duration::from_secs(30)).expect("every wait ends");
            assert_eq!(why.cause, "the device was closed by its other side, or deleted");
        }
        assert!(unasked.as_mut().poll(&mut cx).is_ready());
        assert!(!host.failed().wait().unwrap().cause.is_empty(), "later, too");
    }
    who_waits_for_the_end_of_a_host_does_not_keep_it_and_is_told_of_its_shutdown {
        let (of_host, of_peer) = (host.failed(), peer.failed());
        host.shutdown(Duration::ZERO);
        assert!(why(of_host).contains("shut down"));
        // The host's device went with it.
        let of_peer = why(of_peer);
        assert!(of_peer.contains("closed by its other side"), "{of_peer}");
        let (host, _peer) = two();
        let failed = host.failed();
        drop(host);
        assert!(why(failed).contains("shut down"), "the last handle is dropped");
    }
    what_was_received_before_is_still_read_and_its_end_too {
        let listener = peer.listen("10.0.0.2:80").expect("listen");
        let mut whole = host.connect("10.0.0.2:80").expect("connect");
        let (far, _) = listener.accept().expect("accept");
        far.send(vec![7; 100_000]).expect("send");
        far.shutdown(std::net::Shutdown::Write).expect("shutdown");
        assert!(peer.drain(PATIENCE));
        drop(peer.remove_link(LinkId::FIRST));
        while host.check().is_ok() {
            thread::yield_now();
        }
        let mut got = Vec::new();
        whole.read_to_end(&mut got).expect("the end of the stream");
        assert_eq!(got.len(), 100_000);
        assert!(whole.send(b"nobody hears this").is_err());
    }
    another_device_brings_listeners_back {
        let listener = host.listen("10.0.0.1:80").expect("listen");
        drop(peer.remove_link(LinkId::FIRST));
        assert_down("accept", &listener.accept().map(drop).expect_err("down"));
        host.remove_link(LinkId::FIRST).expect("the lost device");
        let (here, there) = pair();
        host.add_link(Link::new(here).address("10.0.0.1/24")).expect("link");
        assert!(host.check().is_ok());
        let peer = Host::builder().device(there).address("10.0.0.2/24").start().expect("peer");
        let _near = peer.connect("10.0.0.1:80").expect("connect");
        listener.accept().expect("accept");
    }
    a_proxy_and_rings_are_told {
        let rings = rings(&host).into_async();
        let listener = rings.listen("10.0.0.1:90").expect("listen");
        let proxy = Proxy::new(&host, Default::default());
        proxy.listen("10.0.0.1:80", 16, "10.0.0.2:8000".parse().expect("address")).expect("listen");
        let upstream = peer.listen("10.0.0.2:8000").expect("listen");
        let _client = peer.connect("10.0.0.1:80").expect("connect");
        let _served = upstream.accept().expect("accept");
        assert_eq!(proxy.len(), 1);
        let accepting = thread::spawn(move || block_on(listener.accept()).map(drop));
        drop(peer.remove_link(LinkId::FIRST));
        let error = accepting.join().expect("it ends").expect_err("down");
        assert_eq!(error.raw_os_error(), Some(100), "{error}");
        let begun = Instant::now();
        while !proxy.is_empty() {
            assert!(begun.elapsed() < PATIENCE, "the proxy keeps what is over");
            thread::yield_now();
        }
    }
    a_datagram_socket_says_so_whatever_it_is_asked_for {
        let socket = host.udp("10.0.0.1:9").expect("socket");
        drop(peer.remove_link(LinkId::FIRST));
        while host.check().is_ok() {
            thread::yield_now();
        }
        for _ in 0..2 {
            assert_down("recv_message", &socket.recv_message().map(drop).expect_err("down"));
            assert_down("recv_from", &socket.recv_from(&mut [0]).map(drop).expect_err("down"));
        }
    }
}

#[test]
fn a_host_that_only_waits_drive_is_driven_by_who_waits_for_its_end() {
    let (here, gone) = pair();
    let host = Host::builder().device(here).address("10.0.0.1/24").manual().start().expect("host");
    let failed = host.failed();
    drop(gone);
    assert!(failed.wait().expect("no deadlock").cause.contains("closed by its other side"));
}

/// Why a host is down, which another thread waits for.
fn why(failed: pagewire::Failed) -> String {
    let (says, hears) = mpsc::channel();
    thread::spawn(move || says.send(failed.wait().expect("no deadlock").cause));
    hears.recv_timeout(Duration::from_secs(30)).expect("the wait ends")
}

#[test]
fn a_host_that_has_one_of_two_devices_left_has_not_failed() {
    let (host, left, right) = on_two_links();
    let mut failed = host.failed();
    let mut cx = Context::from_waker(Waker::noop());
    drop(left);
    while host.stats().device_error.is_none() {
        thread::yield_now();
    }
    assert!(pin!(&mut failed).poll(&mut cx).is_pending());
    drop(right);
    assert!(why(failed).contains("closed by its other side"));
}

#[test]
fn of_several_links_only_connections_over_the_lost_one_end() {
    let (host, left, right) = on_two_links();
    let left = Host::builder().device(left).address("10.0.0.2/24").start().expect("left");
    let right = Host::builder().device(right).address("10.0.1.2/24").start().expect("right");
    let listener = host.listen("0.0.0.0:80").expect("listen");
    let join = |peer: &Host, to: &str| -> (TcpStream, TcpStream) {
        let near = peer.connect(to).expect("connect");
        (near, listener.accept().expect("accept").0)
    };
    let (_near, lost) = join(&left, "10.0.0.1:80");
    let (near, kept) = join(&right, "10.0.1.1:80");
    let socket = host.udp("0.0.0.0:0").expect("socket");

    drop(left.remove_link(LinkId::FIRST));
    assert_down("recv", &lost.recv_chunks(1).expect_err("down"));
    assert_down("connect", &host.connect("10.0.0.2:80").map(drop).expect_err("down"));
    assert_down("send_to", &socket.send_to(b"?", "10.0.0.2:9").expect_err("down"));
    kept.send(b"still here").expect("send");
    assert_eq!(near.recv_chunks(100).expect("recv").len(), 10);
    join(&right, "10.0.1.1:80");
    assert!(host.check().is_ok(), "a device is left");

    drop(right.remove_link(LinkId::FIRST));
    assert_down("recv", &kept.recv_chunks(1).expect_err("down"));
    assert_down("accept", &listener.accept().map(drop).expect_err("down"));
}

#[test]
fn a_tap_that_is_deleted_ends_its_host() {
    on_a_tap("10.79.1.1/24", "10.79.1.2/24", |host| {
        let listener = std::net::TcpListener::bind("10.79.1.1:9000").unwrap();
        let near = host.connect("10.79.1.1:9000").unwrap();
        let _far = listener.accept().unwrap();
        let reading = thread::spawn(move || near.recv_chunks(1).map(drop));
        let done = std::process::Command::new("ip").args(["link", "del", "pwtest0"]).status();
        assert!(done.unwrap().success());
        assert_down("recv", &reading.join().unwrap().expect_err("down"));
        let error = host.connect_timeout("10.79.1.1:9000", PATIENCE * 2).map(drop);
        assert_down("connect_timeout", &error.expect_err("down"));
    });
}
