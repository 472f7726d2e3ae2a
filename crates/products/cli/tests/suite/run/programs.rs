//! Tests with programs that do more than fetch a file: names, pings, datagrams, servers inside; and of the options
//! that permit and forbid.

use std::process::Command;

use crate::lab::{Lab, Running, V4, V6, end, run, text};

const NAMED: [&str; 4] =
    ["--name", "www.example=198.51.100.1", "--name", "six.example=2001:db8::1"];

/// Waits for a server that needs a moment, by a command that succeeds once it is there.
fn until(lab: &Lab, command: &str) {
    let script = format!("for i in $(seq 200); do {command} && exit 0; sleep 0.05; done; exit 1");
    run(lab.command("sh").args(["-c", &script]));
}

#[test]
fn names_lead_where_they_were_told_to() {
    let Some(lab) = Lab::new(&["curl", "python3"]) else { return };
    let _servers = lab.serve("file", b"content");
    for name in ["www.example", "six.example"] {
        let url = format!("http://{name}:8000/file");
        let curl = ["curl", "-sS", "--max-time", "60", &url];
        assert_eq!(lab.inside(&NAMED, &curl), "content", "{name}");
        let script = format!("import urllib.request as u; print(u.urlopen('{url}').read())");
        assert_eq!(lab.inside(&NAMED, &["python3", "-c", &script]), "b'content'\n", "{name}");
    }
}

#[test]
fn dig_is_answered_over_udp_and_tcp() {
    let Some(lab) = Lab::new(&["dig"]) else { return };
    for more in [&[][..], &["+tcp"]] {
        let dig = ["dig", "+short", "+time=5", "www.example"];
        assert_eq!(lab.inside(&NAMED, &[&dig[..], more].concat()), format!("{V4}\n"));
        let six = ["dig", "+short", "+time=5", "six.example", "AAAA"];
        assert_eq!(lab.inside(&NAMED, &[&six[..], more].concat()), format!("{V6}\n"));
    }
}

#[test]
fn ping_is_answered_by_those_who_are_there() {
    let Some(lab) = Lab::new(&["ping"]) else { return };
    let allow = "echo 0 2147483647 >/proc/sys/net/ipv4/ping_group_range";
    run(lab.command("sh").args(["-c", allow]));
    for at in [V4, V6] {
        let said = lab.inside(&[], &["ping", "-n", "-c", "2", "-i", "0.2", "-W", "10", at]);
        assert!(said.contains("2 received"), "{said}");
    }
}

#[test]
fn iperf3_measures_both_ways_over_tcp_and_udp() {
    let Some(lab) = Lab::new(&["iperf3"]) else { return };
    let server = ["-s", "-B", V4, "--forceflush"];
    let _server = lab.server("iperf3", &server);
    for more in [
        &["-P", "2"][..],
        &["-P", "2", "-R"],
        &["-u", "-b", "20M", "-l", "1200"],
        &["-u", "-b", "20M", "-l", "1200", "-R"],
    ] {
        let client = ["iperf3", "-c", V4, "-t", "1", "-J"];
        let said = lab.inside(&[], &[&client[..], more].concat());
        let report: serde_json::Value = serde_json::from_str(&said).expect("an object");
        let end = &report["end"];
        let bytes = |of: &str| end[of]["bytes"].as_u64().unwrap_or(0);
        let received = bytes("sum_received").max(bytes("sum"));
        assert!(received > 100_000, "{more:?}: {said}");
    }
}

#[test]
fn nginx_inside_serves_those_outside() {
    let Some(lab) = Lab::new(&["nginx", "curl"]) else { return };
    let dir = lab.dir.path().display();
    let conf = format!(
        "daemon off; pid {dir}/pid; error_log {dir}/errors; events {{}}\n\
         http {{ access_log {dir}/log; client_body_temp_path {dir}/a; proxy_temp_path {dir}/b;\n\
         fastcgi_temp_path {dir}/c; uwsgi_temp_path {dir}/d; scgi_temp_path {dir}/e;\n\
         server {{ listen 80; listen [::]:80; root {dir}; }} }}"
    );
    std::fs::write(lab.path("conf"), conf).expect("a file");
    std::fs::write(lab.path("file"), "from inside").expect("a file");
    let conf = lab.path("conf");
    let nginx = ["nginx", "-c", conf.to_str().expect("text")];
    let started = lab.run(&["--publish", "8080:80"], &nginx).spawn().expect("it starts");
    let mut started = Ended(started);
    until(&lab, &format!("curl -sf --max-time 5 -o got http://{V4}:8080/file"));
    assert_eq!(std::fs::read(lab.path("got")).expect("a file"), b"from inside");
    run(lab.command("curl").args(["-sfg", &format!("http://[{V6}]:8080/file")]));
    // The server sees who its clients are.
    let log = std::fs::read_to_string(lab.path("log")).expect("a log");
    assert!(log.starts_with(V4), "{log}");
    run(Command::new("kill").arg(started.0.id().to_string()));
    assert!(started.0.wait().expect("its end").success());
}

struct Ended(std::process::Child);

impl Drop for Ended {
    fn drop(&mut self) {
        end(&mut self.0);
    }
}

#[test]
fn a_port_that_is_published_twice_is_refused() {
    let Some(lab) = Lab::new(&[]) else { return };
    let output = lab.fails(&["--publish", "8080:80", "--publish", "8080:81"], &["true"]);
    let said = text(&output.stderr);
    assert!(said.contains("8080") && said.contains("or another --publish"), "{said}");
    assert_eq!(output.status.code(), Some(125));
}

#[test]
fn ports_that_take_root_and_unix_sockets_are_published_at_each_start() {
    let Some(lab) = Lab::new(&["python3", "curl"]) else { return };
    std::fs::write(lab.path("file"), "from inside").expect("a file");
    let server = ["python3", "-m", "http.server", "8000"];
    let options = ["--publish", "80:8000", "--publish", "./socket:8000"];
    for _ in 0..2 {
        let started = Ended(lab.run(&options, &server).spawn().expect("it starts"));
        until(&lab, &format!("curl -sf --max-time 5 -o got http://{V4}/file"));
        let by_path = ["-sf", "--unix-socket", "socket", "http://inside/file"];
        assert_eq!(run(lab.command("curl").args(by_path)), "from inside");
        // The first leaves the path of its socket behind.
        drop(started);
    }
}

#[test]
fn what_a_program_sends_last_arrives_over_a_line_that_takes_half_a_second() {
    let Some(lab) = Lab::new(&["python3", "bash"]) else { return };
    let script = format!(
        "import socket as s
stream, datagrams = s.create_server(('{V4}', 9000)), s.socket(s.AF_INET, s.SOCK_DGRAM)
datagrams.bind(('{V4}', 9000))
datagrams.settimeout(20)
print('ready', flush=True)
connection, _ = stream.accept()
print(connection.makefile().read().strip(), datagrams.recv(9).decode().strip(), flush=True)"
    );
    let mut server = lab.server("python3", &["-u", "-c", &script]);
    let say = format!("echo stream >/dev/tcp/{V4}/9000; echo datagram >/dev/udp/{V4}/9000");
    lab.inside(&["--fault", "delay=500ms"], &["bash", "-c", &say]);
    assert_eq!(server.line(), "stream datagram\n");
}

#[test]
fn redis_inside_is_measured_from_outside() {
    let Some(lab) = Lab::new(&["redis-server", "redis-benchmark", "redis-cli"]) else {
        return;
    };
    let redis = ["redis-server", "--port", "6379", "--save", "", "--protected-mode", "no"];
    let mut server = lab.run(&["--publish", "6379"], &redis);
    let _server = Running::start(&mut server);
    until(&lab, &format!("redis-cli -h {V4} ping | grep -q PONG"));
    let benchmark = ["-h", V4, "-n", "2000", "-c", "20", "-t", "set,get", "--csv"];
    let said = run(lab.command("redis-benchmark").args(benchmark));
    assert!(said.contains("\"SET\"") && said.contains("\"GET\""), "{said}");
}

#[test]
fn rules_say_what_is_in_reach_and_the_log_what_came_of_it() {
    let Some(lab) = Lab::new(&["curl", "python3"]) else { return };
    let _servers = lab.serve("file", b"content");
    let url = format!("http://{V4}:8000/file");
    let curl = ["curl", "-sS", "--max-time", "20", &url];
    let here = format!("{V4}:8000/tcp");
    assert_eq!(lab.inside(&["--allow", &here, "--log", "log"], &curl), "content");
    for options in [
        &["--deny", &here][..],
        &["--deny", "198.51.100.0/24"],
        &["--allow", "203.0.113.0/24"],
        &["--allow", &here, "--deny", "0.0.0.0/0"],
        &["--offline"],
    ] {
        let refused = lab.fails(&[options, &["--log", "log"]].concat(), &curl);
        assert_eq!(refused.status.code(), Some(7), "{options:?}: {}", text(&refused.stderr));
    }
    let log = std::fs::read_to_string(lab.path("log")).expect("a log");
    let lines: Vec<serde_json::Value> =
        log.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
    assert!(lines.len() >= 7, "{log}");
    assert!(log.contains(V4), "{log}");
}

#[test]
fn a_name_that_is_refused_leaves_a_line_a_count_and_a_sentence() {
    let Some(lab) = Lab::new(&["curl"]) else { return };
    let options = ["--allow", "*.example:8000", "--log", "log", "--stats"];
    let curl = ["curl", "-sS", "--max-time", "20", "http://www.refused.test/"];
    let said = text(&lab.fails(&options, &curl).stderr).to_string();
    assert!(said.contains("pagewire: 1 name was refused; the first: www.refused.test"), "{said}");
    assert!(said.contains("names_denied"), "{said}");
    let log = std::fs::read_to_string(lab.path("log")).expect("a log");
    assert!(log.contains("\"event\":\"name\",\"guest\":1,\"name\":\"www.refused.test\""), "{log}");
    // A refusal that was asked for is not reported.
    let said = text(&lab.fails(&["--offline"], &curl).stderr).to_string();
    assert!(!said.contains("refused; the first"), "{said}");
}

#[test]
fn a_flood_of_refusals_is_summed_up_and_the_log_keeps_to_its_limit() {
    let Some(lab) = Lab::new(&["bash"]) else { return };
    let options = ["--deny", "0.0.0.0/0", "--log", "log", "--log-size", "64K"];
    let flood = "for i in {1..4000}; do echo x >/dev/udp/203.0.113.1/9; done; true";
    lab.inside(&options, &["bash", "-c", flood]);
    let log = std::fs::read_to_string(lab.path("log")).expect("a log");
    assert!((20_000..=65_536).contains(&log.len()), "{} bytes", log.len());
    let lines: Vec<serde_json::Value> =
        log.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
    assert!(lines.iter().any(|line| line["event"] == "denials"), "{log}");
}

#[test]
fn a_name_that_is_permitted_is_reached_by_its_name() {
    let Some(lab) = Lab::new(&["curl", "python3"]) else { return };
    let _servers = lab.serve("file", b"content");
    let options = [&NAMED[..], &["--allow", "*.example:8000"]].concat();
    let curl = |url: &'static str| ["curl", "-sS", "--max-time", "20", url];
    assert_eq!(lab.inside(&options, &curl("http://www.example:8000/file")), "content");
    lab.fails(&options, &curl("http://198.51.100.1:8000/file"));
}
