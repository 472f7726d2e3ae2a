//! `--cores` of `serve`, `proxy` and `gateway`: connections spread over the cores, and every view shows the sums and the
//! cores.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::lab::{Lab, PAGEWIRE, Running, counter, pagewire, run, text};
use crate::real_peers::NET;

/// Requests, each on a connection of its own: that one of two cores gets none of them has a chance of one in 2^39.
const REQUESTS: u64 = 40;

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn a_number_of_cores_that_cannot_be_is_a_mistake() {
    let serve = ["serve", "--addr", "10.77.0.2/24", "/"];
    let proxy =
        ["proxy", "--addr", "10.77.0.2/24", "--listen", "10.77.0.2:80", "--to", "10.77.0.1:8000"];
    let gateway = ["gateway", "--link", "stream", "--socket", "/x"];
    let run = ["run", "--", "true"];
    // 125 is `run`'s own: 2 would be the program's.
    for (command, status) in [(&serve[..], 2), (&proxy, 2), (&gateway, 2), (&run, 125)] {
        for wrong in ["0", "33", "-1", "many", "ALL", "1.5", ""] {
            let option = format!("--cores={wrong}");
            // In front of what `run` runs.
            let output = pagewire(&[&command[..1], &[&option], &command[1..]].concat());
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(status), "{option}: {said}");
            let expected = "give a number from 1 to 32, or all";
            assert!(said.contains("--cores") && said.contains(expected), "{option}: {said}");
        }
    }
}

/// The listeners that `ss` shows: their address, and their core.
fn listeners(socket: &Path) -> Vec<(String, String)> {
    let mut ss = Command::new(PAGEWIRE);
    let shown = run(ss.args(["ss", "-tl", "--control"]).arg(socket));
    assert!(shown.lines().next().expect("a heading").contains(" Core "), "{shown}");
    let mut found: Vec<_> = shown
        .lines()
        .skip(1)
        .map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            (words[4].to_owned(), words[7].to_owned())
        })
        .collect();
    found.sort();
    found
}

#[test]
fn a_port_for_virtual_machines_is_served_by_all_cores() {
    let dir = tempfile::tempdir().expect("a directory");
    let (port, control) = (dir.path().join("port"), dir.path().join("c.sock"));
    for (cores, count) in [("32", Some(32)), ("all", None)] {
        let mut command = pagewire_testkit::command(PAGEWIRE);
        command.args(["serve", "--link", "vhost-user", "--addr", "10.77.0.2/24", "--cores", cores]);
        command.arg("--socket").arg(&port).arg("--control").arg(&control).arg(dir.path());
        let server = Running::saying(command.stderr(Stdio::piped()), "serving ");
        let all = std::thread::available_parallelism().expect("a number").get().min(32);
        let count = count.unwrap_or(all);
        if count > 1 {
            let expected = |core: usize| ("10.77.0.2:80".to_owned(), core.to_string());
            let mut expected: Vec<_> = (0..count).map(expected).collect();
            expected.sort();
            assert_eq!(listeners(&control), expected);
        }
        server.stop("TERM");
    }
}

#[test]
fn the_cores_of_a_guests_gateway_are_shown_as_those_of_any_host() {
    let dir = tempfile::tempdir().expect("a directory");
    let (port, control) = (dir.path().join("port"), dir.path().join("c.sock"));
    let mut command = pagewire_testkit::command(PAGEWIRE);
    command.args(["gateway", "--link", "vhost-user", "--ready-fd", "1", "--cores", "3"]);
    command.arg("--stats=json").arg("--socket").arg(&port).arg("--control").arg(&control);
    let gateway = Running::start(command.stderr(Stdio::piped()));
    // Each core takes connections to every port, and those to the resolver.
    let cores = listeners(&control).into_iter().filter(|(at, _)| at == "10.0.2.2:53");
    assert_eq!(cores.map(|(_, core)| core).collect::<Vec<_>>(), ["0", "1", "2"]);
    let said = gateway.stop("TERM");
    let stats: Value = serde_json::from_str(said.lines().last().expect("a line")).expect("JSON");
    let hosts = stats["hosts"].as_array().expect("a list");
    assert_eq!((hosts.len(), &hosts[0]["name"]), (1, &Value::from("guest")), "{stats}");
    assert_eq!(hosts[0]["cores"].as_array().expect("a list").len(), 3);
}

/// A file server on two cores, with a file.
fn serve(lab: &Lab, options: &[&str]) -> Running {
    fs::create_dir_all(lab.path("www")).expect("a directory");
    fs::write(lab.path("www/file"), vec![7; 100_000]).expect("a file");
    let mut command = lab.command(PAGEWIRE);
    command.arg("serve").args(NET).args(["--cores", "2", "--control", "c.sock"]).args(options);
    let mut server = Running::saying(command.arg("www").stderr(Stdio::piped()), "serving ");
    assert!(server.line().contains("[fd77::2]"), "both addresses are served");
    server
}

/// Fetches the file by connections of both versions of IP.
fn fetch(lab: &Lab) {
    for (host, first, last) in
        [("10.77.0.2", 1, REQUESTS / 2), ("[fd77::2]", REQUESTS / 2 + 1, REQUESTS)]
    {
        // curl's brackets: an IPv6 address has escaped ones.
        let host = host.replace('[', "\\[").replace(']', "\\]");
        let url = format!("http://{host}/file?[{first}-{last}]");
        let mut curl = lab.command("curl");
        curl.args(["-sS", "--max-time", "60", "-H", "Connection: close", &url, "-o", "got-#1"]);
        run(&mut curl);
    }
    for n in 1..=REQUESTS {
        assert!(fs::read(lab.path(&format!("got-{n}"))).expect("a file") == [7; 100_000], "{n}");
    }
}

/// The counters in a line of JSON of `--stats=json`: those of the host are the sums of its two cores, each of which has
/// counted some of `counter`, and all together `expected`.
fn check_sums(said: &str, counter: &str, expected: u64) {
    let json = said.lines().last().expect("a line");
    let stats: Value = serde_json::from_str(json).unwrap_or_else(|e| panic!("{e}: {said}"));
    let hosts = stats["hosts"].as_array().expect("a list");
    assert_eq!(hosts.len(), 1, "{stats}");
    let cores = hosts[0]["cores"].as_array().expect("a list");
    assert_eq!(cores.len(), 2, "{stats}");
    let of = |part: &Value, name: &str| part["counters"][name].as_u64().expect("a number");
    for name in hosts[0]["counters"].as_object().expect("counters").keys() {
        let sum: u64 = cores.iter().map(|core| of(core, name)).sum();
        assert_eq!(of(&hosts[0], name), sum, "{name}");
    }
    assert_eq!(of(&hosts[0], counter), expected);
    assert!(cores.iter().all(|core| of(core, counter) > 0), "{stats}");
    let received = |part: &Value| part["links"][0]["device"]["rx_frames"].as_u64().expect("frames");
    assert_eq!(received(&hosts[0]), cores.iter().map(received).sum::<u64>());
}

#[test]
fn both_cores_of_a_server_serve_and_every_view_shows_them() {
    let Some(lab) = Lab::new(&["curl"]) else { return };
    let server = serve(&lab, &["--stats=json", "--metrics", "127.0.0.1:9464"]);
    fetch(&lab);

    let listening = listeners(&lab.path("c.sock"));
    let expected = [
        ("10.77.0.2:80", "0"),
        ("10.77.0.2:80", "1"),
        ("[fd77::2]:80", "0"),
        ("[fd77::2]:80", "1"),
    ];
    assert_eq!(listening, expected.map(|(at, core)| (at.to_owned(), core.to_owned())));

    let metrics = run(lab.command("curl").args(["-sS", "http://127.0.0.1:9464/metrics"]));
    let opens = |core: &str| -> u64 {
        let label = format!("core=\"{core}\"");
        let is_it = |line: &&str| {
            line.starts_with("pagewire_tcp_passive_opens_total{") && line.contains(&label)
        };
        let line = metrics.lines().find(is_it).unwrap_or_else(|| panic!("{label}: {metrics}"));
        line.rsplit(' ').next().expect("a value").parse().expect("a number")
    };
    assert!(opens("0") > 0 && opens("1") > 0, "{metrics}");
    assert_eq!(opens("0") + opens("1"), REQUESTS);
    let served = format!("pagewire_server_responses_2xx_total {REQUESTS}");
    assert!(metrics.lines().any(|line| line == served), "{metrics}");
    check_sums(&server.stop("TERM"), "tcp_passive_opens", REQUESTS);
}

#[test]
fn cores_share_a_queue_with_something_around_it() {
    let Some(lab) = Lab::new(&["curl"]) else { return };
    let server = serve(&lab, &["--stats=json", "--fault", "delay=1ms", "--pcap", "all.pcapng"]);
    fetch(&lab);
    let said = server.stop("TERM");
    let warning =
        "the first of 2 cores receives for all: the device has one queue with --fault, --pcap";
    assert!(said.contains(warning), "{said}");
    check_sums(&said, "tcp_passive_opens", REQUESTS);
    assert!(fs::metadata(lab.path("all.pcapng")).expect("a capture").len() > REQUESTS * 100_000);
}

#[test]
fn cores_share_the_only_queue_of_a_tap_that_was_made_before_and_wait_for_the_next() {
    let Some(lab) = Lab::new(&["curl"]) else { return };
    let ip = |args: &str| drop(run(lab.command("ip").args(args.split(' '))));
    ip("tuntap add dev pw0 mode tap");
    let server = serve(&lab, &["--stats=json", "--wait-for-device"]);
    fetch(&lab);
    ip("link del pw0");
    for queues in ["", " multi_queue"] {
        ip(&format!("tuntap add dev pw0 mode tap{queues}"));
        // The server may be sooner.
        ip("addr replace 10.77.0.1/24 dev pw0");
        ip("link set pw0 up");
        let mut curl = lab.command("curl");
        curl.args(["-sS", "--retry", "60", "--retry-delay", "1", "--retry-all-errors"]);
        assert_eq!(run(curl.arg("http://10.77.0.2/file")).len(), 100_000);
        ip("link del pw0");
    }
    let said = server.stop("TERM");
    assert_eq!(said.matches("pw0 is back").count(), 2, "{said}");
    // At the start, and of the first that came back.
    let warning = "the first of 2 cores receives for all: the tap pw0 was made without multi_queue";
    assert_eq!(said.matches(warning).count(), 2, "{said}");
    assert_eq!(said.matches("receives for all").count(), 2, "{said}");
}

#[test]
fn a_tap_that_another_server_has_is_refused_whatever_the_cores_of_both() {
    let Some(lab) = Lab::new(&[]) else { return };
    for held in ["1", "2"] {
        let command = |cores| {
            let mut command = lab.command(PAGEWIRE);
            command.arg("serve").args(NET).args(["--cores", cores, "--control", "none", "."]);
            command
        };
        let first = Running::saying(command(held).stderr(Stdio::piped()), "serving ");
        for wanted in ["1", "2"] {
            let second = command(wanted).output().expect("it runs");
            let said = text(&second.stderr);
            assert_eq!(second.status.code(), Some(1), "{held} {wanted}: {said}");
            assert!(said.contains("another program has it open"), "{held} {wanted}: {said}");
        }
        let said = first.stop("TERM");
        assert!(!said.contains("receives for all"), "{said}");
    }
}

/// A proxy for [`REQUESTS`] clients, all of which come before the upstream answers one; returns what it said.
fn crowd(lab: &Lab, options: &[&str]) -> String {
    lab.netns.inside(|| {
        let upstream = TcpListener::bind("0.0.0.0:8000").expect("a listener");
        let mut command = pagewire_testkit::command(PAGEWIRE);
        command.arg("proxy").args(NET).args(["--stats", "--control", "none"]).args(options);
        command.args(["--listen", "10.77.0.2:80", "--to", "10.77.0.1:8000"]);
        let proxy = Running::saying(command.stderr(Stdio::piped()), "forwarding ");
        let to = "10.77.0.2:80".parse().expect("an address");
        let connect = |_| TcpStream::connect_timeout(&to, PATIENCE).expect("a connection");
        let clients: Vec<TcpStream> = (0..REQUESTS).map(connect).collect();
        let served = std::thread::spawn(move || {
            for _ in 0..REQUESTS {
                let (mut served, _) = upstream.accept().expect("a connection");
                served.write_all(b"answer").expect("sent");
            }
        });
        // Before the first is read: a core may accept two clients in another order than they came.
        for client in &clients {
            client.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            client.shutdown(Shutdown::Write).expect("it stands");
        }
        for mut client in clients {
            let mut answer = String::new();
            client.read_to_string(&mut answer).expect("received");
            assert_eq!(answer, "answer");
        }
        served.join().expect("the upstream");
        proxy.stop("TERM")
    })
}

#[test]
fn the_connections_of_a_proxy_are_those_of_all_cores_together() {
    let Some(lab) = Lab::new(&[]) else { return };
    for (options, most, warning) in [
        (["--cores", "4", "--connections", "1"], 1, "1 of 4 cores forward: --connections is 1"),
        (["--cores", "2", "--connections", "3"], 3, ""),
    ] {
        let said = crowd(&lab, &options);
        assert_eq!(counter(&said, "accepted"), REQUESTS, "{said}");
        assert_eq!(counter(&said, "most_at_once"), most, "{said}");
        assert!(said.contains(warning), "{said}");
    }
}

#[test]
fn both_cores_of_a_proxy_forward_and_each_connects_by_itself() {
    let Some(lab) = Lab::new(&[]) else { return };
    lab.netns.inside(|| {
        for stats in ["--stats=json", "--stats"] {
            let mut command = pagewire_testkit::command(PAGEWIRE);
            command.arg("proxy").args(NET).args(["--cores", "2", stats, "--control", "none"]);
            command.args(["--listen", "10.77.0.2:80", "--to", "10.77.0.1:8000"]);
            let proxy =
                Running::saying(command.stderr(Stdio::piped()), "forwarding 10.77.0.2:80 to ");
            let upstream = TcpListener::bind("10.77.0.1:8000").expect("a listener");
            for n in 0..REQUESTS {
                let to = "10.77.0.2:80".parse().expect("an address");
                let mut client = TcpStream::connect_timeout(&to, PATIENCE).expect("a connection");
                let (mut served, _) = upstream.accept().expect("a connection");
                for stream in [&client, &served] {
                    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
                }
                client.write_all(&n.to_be_bytes()).expect("sent");
                client.shutdown(Shutdown::Write).expect("it stands");
                let mut question = Vec::new();
                served.read_to_end(&mut question).expect("received");
                assert_eq!(question, n.to_be_bytes());
                served.write_all(b"answer").expect("sent");
                drop(served);
                let mut answer = String::new();
                client.read_to_string(&mut answer).expect("received");
                assert_eq!(answer, "answer");
            }
            let said = proxy.stop("TERM");
            if stats == "--stats" {
                assert_eq!(counter(&said, "accepted"), REQUESTS, "{said}");
                for core in ["core 0: ", "core 1: "] {
                    assert!(said.lines().any(|line| line.starts_with(core)), "{core}: {said}");
                }
            } else {
                check_sums(&said, "tcp_passive_opens", REQUESTS);
                check_sums(&said, "tcp_active_opens", REQUESTS);
            }
        }
    });
}
