//! The control socket, with real clients.

use std::io::{BufRead, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pagewire::{Host, Pair};
use pagewire_control::limits::{CLIENTS, REQUEST_BYTES, SOCKETS_PER_ANSWER};
use pagewire_control::{Builder, Client, Control};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

struct Lab {
    server: Host,
    client: Host,
    directory: tempfile::TempDir,
}

impl Lab {
    fn new() -> Self {
        let (left, right) = Pair::new().expect("a pair");
        let host = |device, address| {
            Host::builder().device(device).address(address).start().expect("a host")
        };
        let (server, client) = (host(left, "10.0.0.1/24"), host(right, "10.0.0.2/24"));
        Self { server, client, directory: tempfile::tempdir().expect("a directory") }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("control.sock")
    }
}

fn raw(path: &Path) -> UnixStream {
    let stream = UnixStream::connect(path).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
    stream
}

/// Everything until the end of the stream.
fn rest(mut stream: UnixStream) -> String {
    let mut text = String::new();
    let _ = stream.read_to_string(&mut text);
    text
}

#[test]
fn it_shows_the_process_its_counters_and_its_connections() {
    let lab = Lab::new();
    let builder = Builder::new().host("server", &lab.server).host("client", &lab.client);
    let builder = builder.section("http", || vec![("responses_2xx", 3)]);
    let _control = builder.attach(lab.path()).expect("a socket");
    let listener = lab.server.listen("10.0.0.1:80").expect("a port");
    let stream = lab.client.connect("10.0.0.1:80").expect("a connection");
    let (mut peer, _) = listener.accept().expect("it came");
    stream.send(vec![7; 5000]).expect("room");
    peer.read_exact(&mut [0; 1000]).expect("it came");

    let mut client = Client::connect(lab.path()).expect("it listens");
    let info = client.info().expect("an answer");
    assert_eq!(info.pid, std::process::id());
    assert_eq!(info.hosts[0].addresses, ["10.0.0.1/24"]);
    assert!(!info.command.is_empty());

    let stats = client.stats().expect("an answer");
    let [server, other] = &stats.hosts[..] else { panic!("{stats:?}") };
    assert_eq!((server.sockets.connections, server.sockets.listeners), (1, 1));
    assert_eq!((other.sockets.connections, other.sockets.listeners), (1, 0));
    assert_eq!(server.counters["tcp_passive_opens"], 1);
    assert_eq!(server.copies["app_read"], 1000);
    assert!(server.links[0].device["rx_bytes"] > 5000);
    assert_eq!(stats.sections["http"]["responses_2xx"], 3);
    assert!(stats.memory.is_some());

    let sockets = client.all_sockets(100).expect("an answer");
    let find = |host: &str, state: &str| {
        let found = sockets.iter().find(|s| s.host == host && s.state == state);
        found.unwrap_or_else(|| panic!("{host} {state}: {sockets:?}"))
    };
    let received = find("server", "established");
    assert_eq!(received.receive_queue, 4000);
    assert_eq!(received.remote, Some(stream.local_addr().expect("an address")));
    let tcp = received.tcp.as_ref().expect("it is a connection");
    assert_eq!((tcp.bytes_received, tcp.ownerless), (5000, false));
    let sent = find("client", "established").tcp.as_ref().expect("it is a connection");
    assert!(sent.bytes_sent == 5000 && sent.cwnd > 0 && sent.congestion == "cubic");
    assert_eq!(find("server", "listen").local, "10.0.0.1:80".parse().unwrap());
}

#[test]
fn many_sockets_come_in_pages_over_all_hosts_each_once() {
    let lab = Lab::new();
    let builder = Builder::new().host("a", &lab.server).host("b", &lab.client);
    let _control = builder.attach(lab.path()).expect("a socket");
    let bind = |host: &Host, n: usize| -> Vec<_> {
        (0..n).map(|_| host.udp("0.0.0.0:0").expect("a port")).collect()
    };
    let sockets = (bind(&lab.server, 300), bind(&lab.client, 40));
    let mut client = Client::connect(lab.path()).expect("it listens");
    let (mut seen, mut pages, mut after) = (Vec::new(), 0, None);
    loop {
        let page = client.sockets(after, Some(64)).expect("an answer");
        assert!(page.sockets.len() <= 64);
        seen.extend(page.sockets.into_iter().map(|s| (s.host, s.local.port())));
        (pages, after) = (pages + 1, page.next);
        if after.is_none() {
            break;
        }
    }
    assert!((6..=8).contains(&pages), "{pages}");
    assert_eq!(seen.iter().filter(|(host, _)| host == "a").count(), 300);
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 340);
    let page = client.sockets(None, Some(u32::MAX)).expect("an answer");
    assert!(page.sockets.len() <= SOCKETS_PER_ANSWER as usize);
    drop(sockets);
}

#[test]
fn a_host_that_is_dropped_is_shut_down_although_it_was_shown() {
    let lab = Lab::new();
    let control = Builder::new().host("a", &lab.server).host("b", &lab.client);
    let control = control.attach(lab.path()).expect("a socket");
    let Lab { server, client, directory } = lab;
    drop(client);
    let mut asker = Client::connect(directory.path().join("control.sock")).expect("it listens");
    let hosts = asker.stats().expect("an answer").hosts;
    assert_eq!(hosts.iter().map(|host| host.name.as_str()).collect::<Vec<_>>(), ["a"]);
    assert!(asker.sockets(Some(1 << 32), None).expect("an answer").sockets.is_empty());
    control.add_host("c", &server);
    assert_eq!(asker.info().expect("an answer").hosts.len(), 2);
}

#[test]
fn what_is_no_request_gets_an_error_and_the_connection_goes_on() {
    let lab = Lab::new();
    let _control = Control::builder(&lab.server).attach(lab.path()).expect("a socket");
    let mut stream = raw(&lab.path());
    stream.write_all(b"hello\n\n{\"ask\":\"halt\"}\n{\"ask\":\"info\"}\n").expect("room");
    stream.shutdown(std::net::Shutdown::Write).expect("open");
    let text = rest(stream);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{text}");
    assert!(lines[..3].iter().all(|line| line.contains("\"answer\":\"error\"")), "{text}");
    assert!(lines[3].contains("\"answer\":\"info\""), "{text}");
}

#[test]
fn a_request_without_end_ends_the_connection() {
    let lab = Lab::new();
    let _control = Control::builder(&lab.server).attach(lab.path()).expect("a socket");
    let mut stream = raw(&lab.path());
    let _ = stream.write_all(&vec![b'x'; REQUEST_BYTES * 4]);
    assert!(rest(stream).contains("at most"), "and then it is closed");
}

#[test]
fn clients_beyond_the_limit_are_closed_and_others_are_answered() {
    let lab = Lab::new();
    let _control = Control::builder(&lab.server).attach(lab.path()).expect("a socket");
    let mut clients: Vec<Client> =
        (0..CLIENTS).map(|_| Client::connect(lab.path()).expect("it listens")).collect();
    assert!(Client::connect(lab.path()).is_err());
    assert!(clients[CLIENTS - 1].stats().is_ok());
    clients.pop();
    // The place is free once the server has seen the end.
    let until = std::time::Instant::now() + Duration::from_secs(10);
    while Client::connect(lab.path()).is_err() {
        assert!(std::time::Instant::now() < until, "the place stays taken");
        std::thread::yield_now();
    }
}

#[test]
fn a_client_that_does_not_read_is_closed_and_holds_up_nobody() {
    let lab = Lab::new();
    let _sockets: Vec<_> =
        (0..1000).map(|_| lab.server.udp("0.0.0.0:0").expect("a port")).collect();
    let _control = Control::builder(&lab.server).attach(lab.path()).expect("a socket");
    let mut lazy = raw(&lab.path());
    lazy.write_all(&b"{\"ask\":\"sockets\",\"limit\":1024}\n".repeat(100)).expect("room");
    let mut client = Client::connect(lab.path()).expect("it listens");
    let before = std::time::Instant::now();
    assert!(client.stats().is_ok());
    assert!(before.elapsed() < Duration::from_secs(4));
    // An answer that was being sent ends in the middle.
    lazy.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
    let mut hung_up = [PollFd::new(&lazy, PollFlags::empty())];
    let limit = Timespec { tv_sec: 30, tv_nsec: 0 };
    assert_eq!(poll(&mut hung_up, Some(&limit)), Ok(1), "it is closed");
    let text = rest(lazy);
    assert!(text.lines().count() < 100, "{}", text.lines().count());
}

#[test]
fn the_socket_goes_with_the_control() {
    let lab = Lab::new();
    let control = Control::builder(&lab.server).attach(lab.path()).expect("a socket");
    let mut client = Client::connect(lab.path()).expect("it listens");
    drop(control);
    assert!(!lab.path().exists());
    assert!(client.stats().is_err());
}

/// A process of somebody else, which answers each request with `answer`.
fn impostor(path: &Path, answer: impl Fn(&str) -> String + Send + 'static) {
    let listener = std::os::unix::net::UnixListener::bind(path).expect("a socket");
    std::thread::spawn(move || {
        let (stream, _) = listener.accept().expect("a client");
        let mut lines = std::io::BufReader::new(stream.try_clone().expect("a descriptor"));
        let (mut stream, mut line) = (stream, String::new());
        while lines.read_line(&mut line).is_ok_and(|n| n > 0) {
            let info = r#"{"answer":"info","version":1,"pagewire":"","pid":1,"command":[],"uptime_seconds":0,"hosts":[]}"#;
            let text = if line.contains("info") { info.to_owned() } else { answer(&line) };
            if writeln!(stream, "{text}").is_err() {
                return;
            }
            line.clear();
        }
    });
}

#[test]
fn pages_without_end_are_no_answer() {
    for page in [
        r#"{"answer":"sockets","sockets":[],"next":1}"#,
        r#"{"answer":"sockets","sockets":[{"host":"","protocol":"tcp","state":"listen","local":"10.0.0.1:1","receive_queue":0,"send_queue":0,"dropped":0}],"next":1}"#,
    ] {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("c.sock");
        impostor(&path, |_| page.to_owned());
        let mut client = Client::connect(&path).expect("it answers");
        let error = client.all_sockets(1000).expect_err("it does not end").to_string();
        assert!(error.contains("no end"), "{error}");
    }
    for page in [
        r#"{"answer":"flows","flows":[],"next":18446744073709551615}"#,
        r#"{"answer":"flows","flows":[{"flow":1,"guest":1,"protocol":"tcp","direction":"out","from":"10.0.0.1:1","to":"10.0.0.2:1","peer":"10.0.0.2:1","bytes_out":0,"bytes_in":0,"age_ms":0,"open":true}],"next":1}"#,
    ] {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("c.sock");
        impostor(&path, |_| page.to_owned());
        let mut client = Client::connect(&path).expect("it answers");
        let error = client.all_flows(1000).expect_err("it does not end").to_string();
        assert!(error.contains("no end"), "{error}");
    }
}

#[test]
fn a_host_of_several_cores_is_one_with_sums_and_the_counts_of_each_core() {
    let (left, right) = Pair::new().expect("a pair");
    let server = Host::builder().device(left).address("10.0.0.1/24").cores(2);
    let server = server.start().expect("a host");
    let client = Host::builder().device(right).address("10.0.0.2/24").start().expect("a host");
    let directory = tempfile::tempdir().expect("a directory");
    let builder = Builder::new().host("client", &client).cores("server", &server);
    let control = builder.attach(directory.path().join("c.sock")).expect("a socket");
    let listener = server.listen("10.0.0.1:80").expect("a port");
    let open: Vec<_> = (0..20)
        .map(|_| (client.connect("10.0.0.1:80").expect("a connection"), listener.accept()))
        .collect();

    let mut asker = Client::connect(directory.path().join("c.sock")).expect("it listens");
    let info = asker.info().expect("an answer");
    assert_eq!(info.hosts.len(), 2);
    assert_eq!(info.hosts[1].addresses, ["10.0.0.1/24"]);
    let stats = asker.stats().expect("an answer");
    let [of_client, of_server] = &stats.hosts[..] else { panic!("{stats:?}") };
    assert!(of_client.cores.is_empty());
    assert!(!serde_json::to_string(of_client).expect("JSON").contains("cores"));
    let [first, second] = &of_server.cores[..] else { panic!("{of_server:?}") };
    assert_eq!((of_server.sockets.connections, of_server.sockets.listeners), (20, 2));
    let opened = [first, second].map(|core| core.counters["tcp_passive_opens"]);
    assert!(opened.iter().all(|n| *n > 0), "{opened:?}");
    assert_eq!(of_server.counters["tcp_passive_opens"], 20);
    let frames = |of: &pagewire_control::protocol::HostStats| of.links[0].device["tx_frames"];
    assert_eq!(frames(of_server), frames(first) + frames(second));

    // Each socket once, over pages that end within a core.
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let page = asker.sockets(after, Some(3)).expect("an answer");
        seen.extend(page.sockets.into_iter().filter(|socket| socket.host == "server"));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(seen.len(), 22, "{seen:?}");
    let of_core = |core| seen.iter().filter(|s| s.core == Some(core)).count() as u64;
    assert_eq!([of_core(0), of_core(1)], opened.map(|n| n + 1));

    let peer = control.stats().hosts.len();
    drop((open, listener, server));
    assert_eq!((peer, control.stats().hosts.len()), (2, 1), "being shown does not keep it");
}
