//! The metrics for a Prometheus server.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};

use pagewire::device::DeviceCounters;
use pagewire::{Host, Pair, TcpListener as Listener, TcpStream as Connection};
use pagewire_control::limits::CLIENTS;
use pagewire_control::{Builder, Client, Control};
use pagewire_testkit::{Need, can};

struct Lab {
    server: Host,
    _open: (Listener, Connection, Connection),
    _control: Control,
    at: SocketAddr,
}

/// Two hosts that have sent each other something, and metrics of one of them.
fn lab() -> Lab {
    let (left, right) = Pair::new().expect("a pair");
    let host = |device, at| Host::builder().device(device).address(at).start().expect("a host");
    let (server, client) = (host(left, "10.0.0.1/24"), host(right, "10.0.0.2/24"));
    let listener = server.listen("10.0.0.1:80").expect("a port");
    let mut stream = client.connect("10.0.0.1:80").expect("a connection");
    let (mut peer, _) = listener.accept().expect("it came");
    stream.write_all(&[7; 3000]).expect("room");
    peer.read_exact(&mut [0; 3000]).expect("it came");
    assert!(client.connect("10.0.0.1:81").is_err());
    let metrics = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = metrics.local_addr().expect("an address");
    let shown = Builder::new().host("pw\"0\n", &server).metrics(metrics);
    let counts = || vec![("responses_2xx", 5), ("bytes_by_copy", 9), ("most_at_once", 3)];
    let control = shown.section("server", counts);
    let _control = control.start().expect("a thread");
    Lab { server, _open: (listener, stream, peer), _control, at }
}

/// The content of an answer, whose status is 200.
fn scrape(at: SocketAddr) -> String {
    let mut stream = TcpStream::connect(at).expect("it listens");
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n")
        .expect("room");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    let (head, content) = text.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    let length = format!("Content-Length: {}", content.len());
    assert!(head.contains(&length) && head.contains("version=0.0.4"), "{head}");
    content.to_owned()
}

/// Names with their labels, and values.
fn parse(text: &str) -> BTreeMap<String, f64> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let parse = |line: &str| {
        let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
        (name.to_owned(), value.parse().unwrap_or_else(|_| panic!("{line}")))
    };
    lines.map(parse).collect()
}

#[test]
fn counters_and_gauges_have_conventional_names_units_and_labels() {
    let lab = lab();
    let text = scrape(lab.at);
    let all = parse(&text);
    let host = r#"host="pw\"0\n""#;
    let get = |name: &str| *all.get(name).unwrap_or_else(|| panic!("{name} in\n{text}"));
    assert_eq!(get(&format!("pagewire_tcp_connections{{{host}}}")), 1.0);
    assert_eq!(get(&format!("pagewire_tcp_listeners{{{host}}}")), 1.0);
    assert_eq!(get(&format!("pagewire_copied_bytes_total{{{host},reason=\"app_read\"}}")), 3000.0);
    let drops = format!("pagewire_dropped_packets_total{{{host},reason=\"tcp_no_socket\"}}");
    assert_eq!(get(&drops), 1.0);
    let received = format!("pagewire_device_receive_bytes_total{{{host},link=\"link1\"}}");
    assert!(get(&received) > 3000.0);
    assert_eq!(get("pagewire_server_responses_2xx_total"), 5.0);
    // A maximum is no counter.
    assert_eq!(get("pagewire_server_most_at_once"), 3.0);
    assert!(get("pagewire_process_memory_bytes{kind=\"anonymous\"}") > 0.0);
    for line in text.lines().filter(|line| line.starts_with("# TYPE ")) {
        let mut words = line.split(' ').skip(2);
        let (name, kind) = (words.next().expect(line), words.next().expect(line));
        assert!(name.starts_with("pagewire_"), "{line}");
        assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
        assert!(text.contains(&format!("# HELP {name} ")), "{name} is not described");
    }
}

#[test]
fn every_counter_of_a_device_has_a_metric() {
    let all = parse(&scrape(lab().at));
    let labels = r#"host="pw\"0\n",link="link1""#;
    for (name, _) in DeviceCounters::default().iter() {
        let words = name.replace("rx_", "receive_").replace("tx_", "transmit_");
        let words = words.replace("syscalls", "system_calls");
        let metric = match name.contains("dropped") {
            true => {
                format!("pagewire_device_dropped_frames_total{{{labels},reason=\"{name}\"}}")
            }
            false => format!("pagewire_device_{words}_total{{{labels}}}"),
        };
        assert!(all.contains_key(&metric), "{metric} in {all:?}");
    }
}

#[test]
fn each_scrape_has_the_counts_of_its_moment() {
    let lab = lab();
    let name = "pagewire_tcp_listeners{host=\"pw\\\"0\\n\"}";
    assert_eq!(parse(&scrape(lab.at))[name], 1.0);
    let _second = lab.server.listen("10.0.0.1:8080").expect("a port");
    assert_eq!(parse(&scrape(lab.at))[name], 2.0);
}

#[test]
fn promtool_finds_nothing_to_say() {
    if !can(&[Need::Program("promtool")]) {
        return;
    }
    let lab = lab();
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool runs");
    let mut to = promtool.stdin.take().expect("a pipe");
    to.write_all(scrape(lab.at).as_bytes()).expect("it reads");
    drop(to);
    let said = promtool.wait_with_output().expect("it ends");
    let text = [said.stdout, said.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(said.status.success() && text.iter().all(String::is_empty), "{text:?}");
}

#[test]
fn silent_clients_of_metrics_take_no_place_of_the_control_socket() {
    let (left, _right) = Pair::new().expect("a pair");
    let host = Host::builder().device(left).address("10.0.0.1/24").start().expect("a host");
    let metrics = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = metrics.local_addr().expect("an address");
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("control.sock");
    let builder = Builder::new().host("a", &host).metrics(metrics);
    let _control = builder.attach(&path).expect("a socket");
    let mut silent: Vec<_> =
        (0..CLIENTS).map(|_| TcpStream::connect(at).expect("it listens")).collect();
    // Clients have a limit, too: the first one makes room.
    assert!(scrape(at).contains("pagewire_tcp_connections"));
    assert_eq!(silent[0].read(&mut [0]).expect("it is closed"), 0);
    let mut client = Client::connect(&path).expect("it listens");
    assert_eq!(client.stats().expect("an answer").hosts.len(), 1);
}

#[test]
fn a_host_of_several_cores_has_metrics_for_each_of_them_and_none_that_count_twice() {
    let (left, _right) = Pair::new().expect("a pair");
    let host = Host::builder().device(left).address("10.0.0.1/24").cores(2);
    let host = host.start().expect("a host");
    let _all = host.listen("10.0.0.1:80").expect("a port");
    let _alone = host.shards()[1].listen("10.0.0.1:81").expect("a port");
    let metrics = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = metrics.local_addr().expect("an address");
    let shown = Builder::new().cores("pw0", &host).metrics(metrics);
    let _control = shown.start().expect("a thread");
    let all = parse(&scrape(at));
    assert_eq!(all[r#"pagewire_tcp_listeners{host="pw0",core="0"}"#], 1.0);
    assert_eq!(all[r#"pagewire_tcp_listeners{host="pw0",core="1"}"#], 2.0);
    let device = r#"pagewire_device_receive_frames_total{host="pw0",core="1",link="link1"}"#;
    assert!(all.contains_key(device), "{all:?}");
    assert!(!all.contains_key(r#"pagewire_tcp_listeners{host="pw0"}"#));
}
