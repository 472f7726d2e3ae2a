//! The end of a host: what a kernel does with what a process leaves behind, and when.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream as KernelStream;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use pagewire::services::Service;
use pagewire::services::{Event, Stack};
use pagewire::{Host, HostBuilder, Pair, Tap, TcpStream};

use crate::support::{
    Joined, PATIENCE, builders, builders_on, cause_of, chunks_of, fails, hosts, joined,
    joined_with, on_two_links, waits,
};

/// Reads until the stream ends: how much.
fn read_all(stream: &TcpStream) -> usize {
    chunks_of(stream).map(|chunks| chunks.len()).sum()
}

/// Checks that data which the server has queued reaches its peer, although `leave` ends the server's host.
fn delivers<T>(ends: Joined, leave: impl FnOnce(Host, TcpStream) -> T) -> T {
    const LEN: usize = 3 << 20;
    let Joined { server, client: _client, far, near, .. } = ends;
    let reader = thread::spawn(move || read_all(&near));
    far.send(vec![7; LEN]).expect("send");
    let left = leave(server, far);
    assert_eq!(reader.join().expect("reader"), LEN);
    left
}

#[test]
fn shutting_down_delivers_what_is_queued_and_ends_the_stream() {
    let report = delivers(joined(), |server, _far| server.shutdown(PATIENCE));
    assert_eq!((report.connections, report.reset, report.broken), (1, 0, 0));
    assert!(report.sent && report.is_clean());
    assert_eq!(report.delivered(), 1);
}

#[test]
fn a_stream_that_was_dropped_before_is_delivered_too() {
    const LEN: usize = 1 << 20;
    let Joined { server, client: _client, far, near, .. } = joined();
    far.send(vec![7; LEN]).expect("send");
    drop(far);
    let reader = thread::spawn(move || read_all(&near));
    let report = server.shutdown(PATIENCE);
    assert_eq!(reader.join().expect("reader"), LEN);
    assert_eq!(report.reset, 0, "{report:?}");
}

#[test]
fn what_is_left_at_the_limit_is_reset_also_at_a_limit_of_zero() {
    for limit in [Duration::from_millis(50), Duration::ZERO] {
        let Joined { server, client: _client, far, near, .. } = joined();
        far.set_nonblocking(true).expect("nonblocking");
        // Nobody reads: some of it stays here.
        while far.send(vec![7; 1 << 20]).is_ok() {}
        let report = server.shutdown(limit);
        assert_eq!((report.connections, report.reset, report.sent), (1, 1, true), "{report:?}");
        let end = loop {
            match near.recv_chunks(1 << 20) {
                Ok(chunks) => assert!(!chunks.is_empty(), "a part passed for the whole"),
                Err(error) => break error,
            }
        };
        assert_eq!(end.kind(), std::io::ErrorKind::ConnectionReset, "{limit:?}");
    }
}

#[test]
fn unread_data_and_connections_nobody_accepted_are_reset_at_once() {
    let Joined { server, client, far, near, .. } = joined();
    near.send(&b"never read"[..]).expect("send");
    far.wait_readable().expect("it is there");
    let listener = server.listen("10.0.0.1:81").expect("listen");
    let waiting = client.connect("10.0.0.1:81").expect("connect");
    listener.set_nonblocking(true).expect("nonblocking");
    let report = server.shutdown(PATIENCE);
    assert!(report.sent && report.reset >= 1, "{report:?}");
    for stream in [near, waiting] {
        let error = stream.recv_chunks(1).expect_err("reset");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
    let refused = client.connect("10.0.0.1:81").map(drop).expect_err("nobody is there");
    assert_eq!(refused.kind(), std::io::ErrorKind::NetworkDown, "{refused}");
}

#[test]
fn a_device_that_takes_nothing_bounds_the_end() {
    let (left, right) =
        Pair::with(pagewire::device::PairConfig { queue_frames: 1, ..Default::default() })
            .expect("pair");
    let (server, client) = builders_on((left, right));
    let server = server.start().expect("server");
    // Nobody drives it, so its queue stays full once it is.
    let client = client.manual().start().expect("client");
    let socket = server.udp("10.0.0.1:0").expect("socket");
    for _ in 0..100 {
        let _ = socket.send_to(&[0; 100], "10.0.0.2:9");
    }
    let begun = Instant::now();
    let report = server.shutdown(Duration::from_millis(50));
    assert!(!report.sent, "{report:?}");
    assert!(begun.elapsed() < PATIENCE / 2);
    drop(client);
}

#[test]
fn sockets_of_a_host_that_was_shut_down_fail_with_the_cause_and_wake_who_waits() {
    let Joined { server, far, near: _near, .. } = joined();
    let waits = waits(&server, far);
    assert!(server.shutdown(PATIENCE).sent);
    let waits = waits.map(|(what, wait)| (what, wait.join().expect("it ends")));
    for (what, error) in waits.into_iter().chain(fails(&server)) {
        assert!(cause_of(what, &error).contains("shut down"), "{what}: {error}");
        assert!(error.to_string().contains("shut down"), "{what}: {error}");
    }
}

#[test]
fn a_host_without_a_driver_delivers_while_it_is_shut_down() {
    const LEN: usize = 300_000;
    let (server, client) = builders();
    let server = server.manual().start().expect("server");
    let client = client.start().expect("client");
    let listener = server.listen("10.0.0.1:80").expect("listen");
    let reader = thread::spawn(move || {
        let near = client.connect("10.0.0.1:80").expect("connect");
        read_all(&near)
    });
    let (far, _) = listener.accept().expect("accept");
    far.send(vec![7; LEN]).expect("send");
    let report = server.shutdown(PATIENCE);
    assert_eq!(reader.join().expect("reader"), LEN);
    assert_eq!((report.reset, report.sent), (0, true), "{report:?}");
}

#[test]
fn the_drop_of_the_last_handle_returns_when_all_is_delivered() {
    delivers(joined_with(|host| host.shutdown_limit(PATIENCE)), |server, far| {
        far.shutdown(std::net::Shutdown::Write).expect("shutdown");
        drop((far, server));
    });
}

#[test]
fn connections_that_lose_their_device_meanwhile_are_reported_as_lost() {
    let Joined { server, client, far, near, .. } = joined();
    far.set_nonblocking(true).expect("nonblocking");
    // Nobody reads: some of it stays here.
    while far.send(vec![7; 1 << 20]).is_ok() {}
    let leaves = server.clone();
    let leaver = thread::spawn(move || leaves.shutdown(PATIENCE));
    while server.check().is_ok() {
        thread::yield_now();
    }
    // The way there goes without a word.
    drop(client.remove_link(client.stats().links[0].link).expect("a device"));
    let report = leaver.join().expect("it ends");
    assert_eq!((report.connections, report.lost), (1, 1), "{report:?}");
    assert_eq!((report.reset, report.broken, report.delivered()), (0, 0, 0), "{report:?}");
    assert!(!report.is_clean());
    drop((near, client));
}

#[test]
fn an_attempt_to_connect_that_nobody_answered_is_no_connection_to_report() {
    let (server, _client) = hosts();
    let attempt = server.start_connect("10.0.0.99:1".parse().expect("address"));
    drop(attempt);
    let began = Instant::now();
    let report = server.shutdown(Duration::from_secs(60));
    assert_eq!((report.connections, report.delivered()), (0, 0), "{report:?}");
    // A neighbour that does not answer is asked for three seconds.
    assert!(began.elapsed() < Duration::from_millis(2500), "it waits for nobody's packet");
}

#[test]
fn a_peer_that_sends_after_the_close_is_reset_and_reported() {
    let Joined { server, client: _client, far, near, .. } = joined();
    let sender = thread::spawn(move || while near.send(&b"more"[..]).is_ok() {});
    let report = server.shutdown(PATIENCE);
    sender.join().expect("it ends with an error");
    assert_eq!((report.connections, report.reset), (1, 1), "{report:?}");
    drop(far);
}

#[test]
fn a_peer_that_has_acknowledged_everything_is_not_reset() {
    let Joined { server, client, far, near, .. } = joined();
    far.send(vec![7; 10_000]).expect("send");
    // The peer is slow: it has read nothing when this side is gone.
    let report = server.shutdown(PATIENCE);
    assert!(report.is_clean() && report.delivered() == 1, "{report:?}");
    assert_eq!(server.stats().counters.tcp_resets_sent, 0);
    assert_eq!(client.stats().counters.tcp_established_resets, 0);
    assert_eq!(read_all(&near), 10_000);
    drop(far);
}

#[test]
fn the_device_is_free_once_the_host_is_shut_down_or_dropped() {
    if !pagewire_testkit::can(&[pagewire_testkit::Need::Tap]) {
        return;
    }
    pagewire_testkit::Netns::new().inside(|| {
        let start = || {
            let tap = Tap::builder("pwfree0").host_address("10.78.0.1/24").open();
            Host::builder()
                .device(tap.expect("free"))
                .address("10.78.0.2/24")
                .start()
                .expect("host")
        };
        for _ in 0..10 {
            drop(start());
            let host = start();
            host.shutdown(PATIENCE);
            let again = start();
            drop((host, again));
        }
    });
}

#[test]
fn an_end_within_the_host_is_none_of_another_link() {
    // Several links leave together.
    let (host, left, right) = on_two_links();
    let listener = host.listen("0.0.0.0:80").expect("listen");
    let mut readers = Vec::new();
    for (device, ours, to) in
        [(left, "10.0.0.2/24", "10.0.0.1:80"), (right, "10.0.1.2/24", "10.0.1.1:80")]
    {
        let peer = Host::builder().device(device).address(ours).start().expect("peer");
        let near = peer.connect(to).expect("connect");
        listener.accept().expect("accept").0.send(vec![1; 100_000]).expect("send");
        readers.push(thread::spawn(move || read_all(&near)));
    }
    assert!(host.shutdown(PATIENCE).is_clean());
    for reader in readers {
        assert_eq!(reader.join().expect("reader"), 100_000);
    }
}

// The end of the process, with a client in the kernel.

/// The ways in which a child process ends.
const ENDS: [&str; 7] = ["return", "exit", "panic", "static", "thread", "driver", "task"];

/// The host of a child that forgets it.
static KEPT: Mutex<Option<(Host, TcpStream)>> = Mutex::new(None);

/// Not a test by itself: what a program does that ends without a thought.
#[test]
fn child_that_sends_and_ends() {
    let Ok(how) = std::env::var("PAGEWIRE_TEST_END") else { return };
    if how == "pair" {
        return end_with_two_hosts();
    }
    let tap = Tap::builder("pwleave0").host_address("10.79.0.1/24").open().expect("tap");
    let host = Host::builder().device(tap).address("10.79.0.2/24");
    if how == "task" {
        return end_in_a_task(host);
    }
    let host = host.start().expect("host");
    let listener = host.listen("10.79.0.2:9000").expect("listen");
    eprintln!("ready");
    let (stream, _) = listener.accept().expect("accept");
    stream.send(vec![7; 300_000]).expect("send");
    match how.as_str() {
        "return" => {}
        "exit" => std::process::exit(0),
        "panic" => panic!("as asked"),
        "static" => *KEPT.lock().expect("no panic") = Some((host, stream)),
        "thread" => drop(thread::spawn(move || {
            let _ = (host, stream.recv_chunks(1), listener);
            thread::park();
        })),
        "driver" => {
            host.attach(OnDriver(Some(Box::new(|| std::process::exit(0)))));
            loop {
                thread::park();
            }
        }
        other => panic!("{other}"),
    }
}

/// A task of the runtime that drives the host ends the process, while another one waits to read.
fn end_in_a_task(host: HostBuilder) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    tokio::task::LocalSet::new().block_on(&runtime, async move {
        let host = host.start_in_runtime().expect("host");
        let listener = host.listen("10.79.0.2:9000").expect("listen");
        eprintln!("ready");
        let (stream, _) =
            pagewire::net::TcpListener::from(listener).accept().await.expect("accept");
        let (mut reads, writes) = stream.into_split();
        tokio::task::spawn_local(async move {
            tokio::io::copy(&mut reads, &mut tokio::io::sink()).await
        });
        tokio::task::yield_now().await;
        writes.send(vec![7; 300_000]).await.expect("send");
        std::process::exit(0);
    });
}

/// A task ends the process and with it both ends of an idle connection, which its runtime drives.
fn end_with_two_hosts() {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    runtime.block_on(async {
        let start = |builder: HostBuilder| builder.shutdown_limit(PATIENCE).start_in_runtime();
        let (one, other) = builders();
        let (one, other) = (start(one).expect("host"), start(other).expect("host"));
        let listener = pagewire::net::TcpListener::from(one.listen("10.0.0.1:80").expect("listen"));
        let connects = pagewire::net::TcpStream::connect_on(&other, "10.0.0.1:80");
        let (accepted, connected) = tokio::join!(listener.accept(), connects);
        let _ends = (accepted.expect("accept"), connected.expect("connect"));
        std::process::exit(0);
    });
}

/// A service whose drop runs on the host's own thread.
struct OnDriver(Option<Box<dyn FnOnce() + Send>>);

impl Service for OnDriver {
    fn turn(&mut self, _: pagewire::services::Instant, _: &mut Stack, _: &[Event]) {
        assert_ne!(thread::current().name(), Some("pagewire"), "a panic as asked, to be dropped");
    }

    fn poll_timeout(&self) -> Option<pagewire::services::Instant> {
        Some(pagewire::services::Instant::ZERO)
    }
}

impl Drop for OnDriver {
    fn drop(&mut self) {
        if let Some(act) = self.0.take() {
            act();
        }
    }
}

/// The result of `act` on the host's own thread.
fn on_driver<T: Send + 'static>(host: &Host, act: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, hear) = std::sync::mpsc::channel();
    host.attach(OnDriver(Some(Box::new(move || tell.send(act()).expect("it is waited for")))));
    hear.recv_timeout(PATIENCE).expect("no deadlock")
}

#[test]
fn a_wait_on_the_hosts_own_thread_is_refused_and_other_calls_work_there() {
    let Joined { server, client: _client, far, near, .. } = joined();
    let host = server.clone();
    let (error, far) = on_driver(&server, move || {
        far.send(&b"works"[..]).expect("room");
        assert!(host.is_driver_thread() && host.drain(PATIENCE));
        (far.recv_chunks(1).expect_err("nothing is there"), far)
    });
    assert_eq!(error.kind(), std::io::ErrorKind::Deadlock);
    assert_eq!(near.recv_chunks(100).expect("recv").len(), 5);
    near.send(b"back").expect("send");
    assert_eq!(far.recv_chunks(100).expect("recv").len(), 4);
}

#[test]
fn a_shutdown_on_the_hosts_own_thread_delivers_there() {
    let report = delivers(joined(), |server, _far| {
        let host = server.clone();
        on_driver(&server, move || host.shutdown(PATIENCE))
    });
    assert!(report.is_clean() && report.delivered() == 1, "{report:?}");
}

#[test]
fn a_call_from_under_the_hosts_lock_panics_and_a_socket_dropped_there_is_closed() {
    let Joined { server, client: _client, far, near, .. } = joined();
    let (host, mut far) = (server.clone(), Some(far));
    server.on_event(move |_| {
        drop(far.take());
        host.stats();
    });
    near.send(b"an event").expect("send");
    // Unread data: a reset.
    near.recv_chunks(1).expect_err("it was closed");
    assert!(server.stats().contained.observers >= 1);
    // The host is not held by itself for ever.
    server.on_event(|_| {});
}

/// This program, as [`child_that_sends_and_ends`].
fn child_that_ends(how: &str) -> Command {
    let mut command = pagewire_testkit::command(std::env::current_exe().expect("this program"));
    command.args(["--exact", "leaving::child_that_sends_and_ends", "--nocapture"]);
    command.arg("--test-threads=1").env("PAGEWIRE_TEST_END", how).stdout(Stdio::null());
    command
}

#[test]
fn two_hosts_of_one_runtime_end_with_the_process_at_once() {
    let began = Instant::now();
    assert!(child_that_ends("pair").status().expect("a child").success());
    assert!(began.elapsed() < PATIENCE / 2, "one waited for the other");
}

#[test]
fn a_program_that_sends_and_ends_leaves_its_peer_nothing_to_wait_for() {
    if !pagewire_testkit::can(&[pagewire_testkit::Need::Tap]) {
        return;
    }
    pagewire_testkit::Netns::new().inside(|| {
        for how in ENDS {
            let mut child = child_that_ends(how).stderr(Stdio::piped()).spawn().expect("a child");
            let mut said = BufReader::new(child.stderr.take().expect("piped"));
            let mut line = String::new();
            while !line.contains("ready") {
                line.clear();
                assert!(said.read_line(&mut line).expect("text") > 0, "{how}: it ended");
            }
            let mut stream = KernelStream::connect("10.79.0.2:9000").expect("connect");
            stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
            let mut got = Vec::new();
            stream.read_to_end(&mut got).unwrap_or_else(|e| panic!("{how}: {e}"));
            assert_eq!(got.len(), 300_000, "{how}");
            drop(stream);
            let mut rest = String::new();
            said.read_to_string(&mut rest).expect("text");
            let status = child.wait().expect("it ends");
            if how == "task" {
                assert!(status.success() && !rest.contains("panicked"), "{rest}");
            }
        }
    });
}
