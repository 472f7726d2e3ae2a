//! Hosts over the pair link: what a program sees.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use pagewire::MtuDiscover;
use pagewire::memory::{CopyReason, Frag};
use pagewire::services::SendFlags;
use pagewire::{Chunks, Host, SendBuf, SocketOption, TcpStream, net};
use pagewire_testkit::given;

use crate::support::{
    block_on, bytes_of, chunks_of, copied, hosts, joined, kind, manual_hosts, mapped_file, pair,
    pattern, sends,
};

fn read_all(stream: &TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    { stream }.read_to_end(&mut all).expect("stream ends");
    all
}

given! {
    let j = joined();

    owned_bytes_go_from_hand_to_hand_without_a_copy {
        let sent = pattern(8 << 20);
        let sender = sends(j.near, sent.clone());
        let mut at = 0;
        for chunk in chunks_of(&j.far).flatten() {
            let bytes = chunk.as_slice().expect("private memory");
            assert_eq!(bytes, &sent[at..at + bytes.len()]);
            assert_eq!(bytes.as_ptr(), sent[at..].as_ptr(), "the very same memory");
            at += bytes.len();
        }
        assert_eq!(at, sent.len());
        drop(sender.join().expect("sender"));
        assert_eq!(copied(&[&j.client, &j.server]), 0);
    }
    plain_writes_and_reads_cost_one_counted_copy_each {
        let sent = pattern(3_000_001);
        let copy = sent.clone();
        let sender = thread::spawn(move || {
            { &j.near }.write_all(&copy).expect("write");
            j.near.shutdown(Shutdown::Write).expect("shutdown");
            j.near
        });
        assert_eq!(read_all(&j.far), sent);
        drop(sender.join().expect("sender"));
        assert_eq!(j.client.stats().ledger.get(CopyReason::AppWrite), sent.len() as u64);
        assert_eq!(j.server.stats().ledger.get(CopyReason::AppRead), sent.len() as u64);
    }
    a_mapped_file_travels_by_reference_and_is_never_borrowed {
        let content = pattern(300_000);
        let region = mapped_file(&content);
        j.near.send(region.frag(0, content.len()).expect("in range")).expect("send");
        j.near.shutdown(Shutdown::Write).expect("shutdown");
        let is_borrowed = |chunks: &Chunks| chunks.iter().any(|c| c.as_slice().is_some());
        let all: Vec<_> = chunks_of(&j.far).collect();
        assert!(!all.iter().any(is_borrowed), "somebody else may change it");
        assert_eq!(bytes_of(all), content);
        assert_eq!(copied(&[&j.client, &j.server]), 0);
    }
    chunks_outlive_their_connection_and_their_host {
        j.near.send(pattern(100_000)).expect("send");
        j.near.shutdown(Shutdown::Write).expect("shutdown");
        let kept: Vec<_> = chunks_of(&j.far).collect();
        drop(j);
        assert_eq!(bytes_of(kept), pattern(100_000));
    }
    calls_that_would_wait_say_so_when_told_not_to {
        j.near.set_nonblocking(true).expect("set");
        j.listener.set_nonblocking(true).expect("set");
        assert_eq!(kind({ &j.near }.read(&mut [0; 8])), io::ErrorKind::WouldBlock);
        assert_eq!(kind(j.near.recv_chunks(8)), io::ErrorKind::WouldBlock);
        assert_eq!(kind(j.listener.accept()), io::ErrorKind::WouldBlock);
        let mut buf = SendBuf::from(pattern(64 << 20));
        while j.near.send_some(&mut buf).is_ok() {}
        assert!(!buf.is_empty(), "the send buffer has a limit");
    }
    waits_that_ended_leave_nobody_to_wake {
        j.far.set_read_timeout(Some(Duration::from_micros(200))).expect("set");
        for _ in 0..50 {
            assert_eq!(kind({ &j.far }.read(&mut [0; 8])), io::ErrorKind::TimedOut);
        }
        let before = j.server.stats().wakeups;
        { &j.near }.write_all(b"x").expect("write");
        j.far.set_read_timeout(None).expect("set");
        { &j.far }.read_exact(&mut [0; 1]).expect("read");
        assert!(j.server.stats().wakeups <= before + 1, "{}", j.server.stats().wakeups);
    }
    every_page_is_home_when_all_is_done {
        let sent = pattern(500_000);
        { &j.near }.write_all(&sent).expect("write");
        j.near.shutdown(Shutdown::Write).expect("shutdown");
        assert_eq!(read_all(&j.far), sent);
        assert!(j.client.drain(Duration::from_secs(10)), "everything is acknowledged");
        for audit in j.client.pool_audits().into_iter().chain(j.server.pool_audits()) {
            assert!(audit.is_conserved(), "{audit:?}");
        }
    }
    empty_sends_are_nothing {
        assert_eq!(j.near.send(Frag::empty()).expect("send"), 0);
        assert_eq!({ &j.near }.write(b"").expect("write"), 0);
        assert_eq!({ &j.near }.read(&mut []).expect("read"), 0);
    }
    options_and_urgent_data_reach_the_connection {
        j.near.set_option(SocketOption::NotSentLowat(1 << 20)).expect("option");
        j.far.set_option(SocketOption::OobInline(false)).expect("option");
        let mut urgent = SendBuf::from(Bytes::from_static(b"hello!"));
        assert_eq!(j.near.send_some_with(&mut urgent, SendFlags::URGENT).expect("send"), 6);
        let mut buf = [0; 16];
        assert_eq!(j.far.peek(&mut buf).expect("peek"), 5);
        assert_eq!(&buf[..5], b"hello");
        assert_eq!(j.far.queued_receive().expect("count"), 5);
        assert_eq!(j.far.read_urgent().expect("urgent"), b'!');
        assert_eq!(kind(j.far.read_urgent()), io::ErrorKind::InvalidInput);
        assert_eq!(j.far.discard(3).expect("discard"), 3);
        assert_eq!({ &j.far }.read(&mut buf).expect("read"), 2);
        assert!(j.far.at_urgent_mark().expect("mark"));
        assert!(j.far.info().expect("info").bytes_received == 6);
        assert_eq!(
            kind(j.listener.set_option(SocketOption::QuickAck(true))),
            io::ErrorKind::Unsupported
        );
        j.listener.set_option(SocketOption::NoDelay(true)).expect("option");
    }
}

#[test]
fn what_is_received_can_be_sent_on_without_a_copy() {
    let first = joined();
    let second = joined();
    let sent = pattern(2_000_000);
    let sender = sends(first.near, sent.clone());
    let (far, server) = (first.far, first.server);
    let relay = thread::spawn(move || {
        for chunks in chunks_of(&far) {
            second.near.send(chunks).expect("send on");
        }
        second.near.shutdown(Shutdown::Write).expect("shutdown");
        (server.stats().ledger, second.client.stats().ledger)
    });
    assert_eq!(bytes_of(chunks_of(&second.far)), sent);
    drop(sender.join().expect("sender"));
    let (received, forwarded) = relay.join().expect("relay");
    assert_eq!((received.ours(), forwarded.ours()), (0, 0));
}

#[test]
fn waits_end_when_their_time_is_over() {
    let j = joined();
    j.near.set_read_timeout(Some(Duration::from_millis(5))).expect("set");
    assert_eq!(kind({ &j.near }.read(&mut [0; 8])), io::ErrorKind::TimedOut);
    assert_eq!(kind(j.near.set_read_timeout(Some(Duration::ZERO))), io::ErrorKind::InvalidInput);
}

#[test]
fn many_threads_share_one_host() {
    let (server, client) = hosts();
    let listener = server.listen("0.0.0.0:7").expect("listen");
    let echo = thread::spawn(move || {
        let streams = listener.incoming().take(16).map(|s| s.expect("accept"));
        let workers: Vec<_> = streams
            .map(|s| {
                thread::spawn(move || {
                    chunks_of(&s).for_each(|chunks| assert!(s.send(chunks).expect("echo") > 0));
                })
            })
            .collect();
        workers.into_iter().for_each(|w| w.join().expect("worker"));
    });
    let clients: Vec<_> = (0..16)
        .map(|i| {
            let client = client.clone();
            thread::spawn(move || {
                let mut stream = client.connect("10.0.0.1:7").expect("connect");
                for round in 0..50 {
                    let sent = pattern(i * 1000 + round);
                    stream.write_all(&sent).expect("write");
                    let mut got = vec![0; sent.len()];
                    stream.read_exact(&mut got).expect("read");
                    assert_eq!(got, sent);
                }
            })
        })
        .collect();
    clients.into_iter().for_each(|c| c.join().expect("client"));
    echo.join().expect("server");
}

#[test]
fn hosts_without_threads_are_driven_by_their_caller() {
    let (server, client) = manual_hosts();
    let listener = server.listen("10.0.0.1:5").expect("listen");
    listener.set_nonblocking(true).expect("set");
    let near = client.start_connect("10.0.0.1:5".parse().expect("address")).expect("connect");
    near.set_nonblocking(true).expect("set");
    let far = loop {
        client.turn();
        server.turn();
        if let Ok((far, _)) = listener.accept() {
            break far;
        }
    };
    far.set_nonblocking(true).expect("set");
    let mut buf = SendBuf::from(pattern(1 << 20));
    let mut got = 0;
    while got < 1 << 20 {
        let _ = near.send_some(&mut buf);
        client.turn();
        server.turn();
        if let Ok(chunks) = far.recv_chunks(usize::MAX) {
            got += chunks.len();
        }
    }
    assert_eq!(copied(&[&server, &client]), 0);
}

#[test]
fn datagrams_that_may_not_be_cut_are_refused_beyond_the_mtu_of_their_path() {
    let (server, client) = hosts();
    let one = server.udp("10.0.0.1:53").expect("bind");
    let two = client.udp("10.0.0.2:0").expect("bind");
    assert_eq!(kind(two.path_mtu()), io::ErrorKind::NotConnected);
    two.connect("10.0.0.1:53").expect("connect");
    let whole = two.path_mtu().expect("connected") - 28;
    two.set_mtu_discover(MtuDiscover::Do).expect("set");
    let refused = two.send(&vec![1; whole + 1]).expect_err("too long");
    assert_eq!(refused.raw_os_error(), Some(90), "EMSGSIZE");
    assert_eq!(two.send(&vec![1; whole]).expect("send"), whole);
    assert_eq!(one.recv_from(&mut vec![0; 70_000]).expect("receive").0, whole);
    two.set_mtu_discover(MtuDiscover::Want).expect("set");
    assert_eq!(two.send(&vec![1; whole + 1]).expect("is cut"), whole + 1);
}

#[test]
fn mistakes_in_settings_are_told_in_words() {
    let none = Host::builder().start().expect_err("no device");
    assert!(none.to_string().contains("device"), "{none}");
    let bad =
        Host::builder().device(pair().0).address("10.0.0.300/24").start().expect_err("address");
    assert!(bad.to_string().contains("10.0.0.300/24"), "{bad}");
}

#[test]
fn a_name_is_no_address_and_nobody_is_asked_for_it() {
    let (host, _peer) = hosts();
    let socket = host.udp("10.0.0.1:0").expect("socket");
    let errors = [
        ("connect", host.connect("server:80").map(drop)),
        ("connect", host.connect(("server", 80)).map(drop)),
        ("connect", host.connect((String::from("server"), 80)).map(drop)),
        ("connect_timeout", host.connect_timeout("server:80", Duration::from_secs(60)).map(drop)),
        ("connect_with", host.connect_with("server:80", &Default::default()).map(drop)),
        ("listen", host.listen("server:80").map(drop)),
        ("net::connect", block_on(net::TcpStream::connect_on(&host, "server:80")).map(drop)),
        ("udp", host.udp("server:80").map(drop)),
        ("udp.connect", socket.connect("server:80")),
        ("send_to", socket.send_to(b"?", "server:80").map(drop)),
        ("send_chunks_to", socket.send_chunks_to(vec![7], "server:80").map(drop)),
        ("send_zc_to", socket.send_zc_to(vec![7], "server:80").map(drop)),
    ];
    for (call, done) in errors {
        let error = done.expect_err(call);
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{call}");
        let text = error.to_string();
        assert!(
            text.contains("`server` is no IP address, and the host has no resolver"),
            "{call}: {text}"
        );
    }
}
