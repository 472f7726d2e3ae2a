//! `pagewire run`: real programs whose network is the gateway. Needs root, to make the network
//! namespace in which the gateway's side is; one test drops to an ordinary user.

mod activated;
mod around;
mod clients;
mod gateway;
mod http3;
mod judge;
mod live;
mod names;
mod process;
mod programs;
mod recipes;
mod sandbox;
mod ways;

use std::process::Command;

use crate::lab::{Lab, V4, V6, content, is_same, run, text};

fn url(at: &str, name: &str) -> String {
    if at.contains(':') {
        format!("http://[{at}]:8000/{name}")
    } else {
        format!("http://{at}:8000/{name}")
    }
}

const CURL: [&str; 4] = ["curl", "-sSg", "--max-time", "60"];

fn curl<'a>(args: &[&'a str]) -> Vec<&'a str> {
    CURL.iter().chain(args).copied().collect()
}

#[test]
fn curl_gets_a_file_over_both_ip_versions_as_it_is() {
    let Some(lab) = Lab::new(&["curl", "python3"]) else { return };
    let file = content(3 << 20);
    let _servers = lab.serve("file", &file);
    for at in [V4, V6] {
        lab.inside(&[], &curl(&["-o", "got", &url(at, "file")]));
        assert!(is_same(&lab.path("got"), &file), "{at}");
    }
}

#[test]
fn git_clones_from_a_server() {
    let Some(lab) = Lab::new(&["git"]) else { return };
    let git = |args: &[&str]| run(Command::new("git").args(args).current_dir(&lab.dir));
    git(&["init", "-q", "a"]);
    std::fs::write(lab.path("a/file"), content(1 << 20)).expect("a file");
    git(&["-C", "a", "add", "file"]);
    let name = ["-c", "user.name=n", "-c", "user.email=e@example.org"];
    git(&[&["-C", "a"], &name[..], &["commit", "-qm", "one"]].concat());
    let base = format!("--base-path={}", lab.dir.path().display());
    let listen = format!("--listen={V4}");
    // Not by way of `git`, which would leave it behind.
    let programs = run(Command::new("git").arg("--exec-path"));
    let mut daemon = lab.command(format!("{}/git-daemon", programs.trim()));
    daemon.args(["--export-all", "--verbose", &base, &listen]).stderr(std::process::Stdio::piped());
    let mut daemon = daemon.spawn().expect("it starts");
    // The gateway reports on standard error that it is ready.
    let mut lines = std::io::BufReader::new(daemon.stderr.take().expect("piped"));
    std::io::BufRead::read_line(&mut lines, &mut String::new()).expect("its words");
    let cloned = lab.run(&[], &["git", "clone", "-q", &format!("git://{V4}/a"), "b"]).output();
    let _ = daemon.kill();
    let _ = daemon.wait();
    let cloned = cloned.expect("it runs");
    assert!(cloned.status.success(), "{}", text(&cloned.stderr));
    assert!(is_same(&lab.path("b/file"), &content(1 << 20)));
}

#[test]
fn a_static_go_program_does_too() {
    let Some(lab) = Lab::new(&["go", "python3"]) else { return };
    let _servers = lab.serve("file", b"content");
    let source = r#"package main
import ("fmt"; "io"; "net/http"; "os")
func main() {
    answer, err := http.Get(os.Args[1])
    if err != nil { fmt.Println(err); os.Exit(1) }
    body, _ := io.ReadAll(answer.Body)
    fmt.Println(string(body))
}
"#;
    std::fs::write(lab.path("get.go"), source).expect("a file");
    let mut build = Command::new("go");
    build.args(["build", "-o", "get", "get.go"]).current_dir(&lab.dir);
    build.env("CGO_ENABLED", "0").env("GOFLAGS", "-mod=mod").env("GOPROXY", "off");
    run(build.env("GOMAXPROCS", "1"));
    for at in [V4, V6] {
        assert_eq!(lab.inside(&[], &["./get", &url(at, "file")]), "content\n");
    }
}

#[test]
fn what_the_far_side_says_is_what_the_program_sees() {
    let Some(lab) = Lab::new(&["bash"]) else { return };
    let refused = format!("exec 3<>/dev/tcp/{V4}/9");
    let unreachable = "exec 3<>/dev/tcp/203.0.113.1/80";
    for (script, why) in
        [(&*refused, "Connection refused"), (unreachable, "Network is unreachable")]
    {
        let output = lab.fails(&[], &["bash", "-c", script]);
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains(why), "{}", text(&output.stderr));
    }
}

#[test]
fn loopback_inside_is_the_programs_own_and_the_hosts_is_out_of_reach() {
    let Some(lab) = Lab::new(&["python3", "bash"]) else { return };
    let _server =
        lab.server("python3", &["-u", "-m", "http.server", "8000", "--bind", "127.0.0.1"]);
    lab.fails(&[], &["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/8000"]);
    let own = "import http.server as h, threading as t, urllib.request as u
server = h.HTTPServer(('127.0.0.1', 8000), h.SimpleHTTPRequestHandler)
t.Thread(target=server.serve_forever, daemon=True).start()
print(u.urlopen('http://127.0.0.1:8000/').status)";
    assert_eq!(lab.inside(&[], &["python3", "-c", own]), "200\n");
}

#[test]
fn the_program_sees_its_own_network_and_its_own_name_server() {
    let Some(lab) = Lab::new(&["ip"]) else { return };
    let links = lab.inside(&[], &["ip", "-brief", "addr"]);
    assert_eq!(links.lines().count(), 2, "{links}");
    for part in ["pw0", "10.0.2.15/24", "fd00:2::f/64"] {
        assert!(links.contains(part), "{part}: {links}");
    }
    let routes = lab.inside(&[], &["ip", "route"]);
    assert!(routes.contains("default via 10.0.2.2 dev pw0"), "{routes}");
    let servers = lab.inside(&[], &["cat", "/etc/resolv.conf"]);
    assert!(servers.contains("nameserver 10.0.2.2\nnameserver fd00:2::2\n"), "{servers}");
    let other =
        ["--tap", "net1", "--addr", "192.0.2.1/29", "--guest", "192.0.2.4", "--mtu", "9000"];
    let links = lab.inside(&other, &["ip", "addr"]);
    for part in ["net1", "192.0.2.4/29", "mtu 9000"] {
        assert!(links.contains(part), "{part}: {links}");
    }
    assert!(!links.contains("fd00"), "{links}");
}

#[test]
fn a_bad_line_is_bad_for_this_program() {
    let Some(lab) = Lab::new(&["curl", "python3"]) else { return };
    let _servers = lab.serve("file", &content(200_000));
    let time = |options: &[&str]| -> f64 {
        let args = curl(&["-o", "got", "-w", "%{time_total}"]);
        let url = url(V4, "file");
        let args = [&args[..], &[&url]].concat();
        lab.inside(options, &args).trim().parse().expect("seconds")
    };
    // Two round trips at least: the handshake, and the request with its answer.
    assert!(time(&["--fault", "delay=50ms"]) >= 0.2);
    // 1.6 Mbit.
    assert!(time(&["--rate", "4mbit"]) >= 0.35);
    assert!(time(&["--fault", "loss=3%,seed=1"]) < 60.0);
    assert!(is_same(&lab.path("got"), &content(200_000)));
}

#[test]
fn chances_are_those_of_packets_and_what_the_line_did_is_counted() {
    let Some(lab) = Lab::new(&["curl", "python3"]) else { return };
    let file = content(2 << 20);
    let _servers = lab.serve("file", &file);
    // Towards the program, where its kernel takes super-frames.
    let options = ["--fault", "loss=5%,dup=2%,seed=1,on=tx", "--stats=json"];
    let output = lab.run(&options, &curl(&["-o", "got", &url(V4, "file")])).output();
    let output = output.expect("it runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(is_same(&lab.path("got"), &file));
    let said = text(&output.stderr);
    let stats = said.lines().find(|line| line.starts_with('{')).expect("one line of JSON");
    let stats: serde_json::Value = serde_json::from_str(stats).expect("JSON");
    let count = |name: &str| stats["sections"]["line"][name].as_u64().expect(name);
    let packets = (file.len() / 1460) as u64;
    assert!(count("tx_offered") > packets, "{stats}");
    assert!((packets * 3 / 100..packets * 8 / 100).contains(&count("tx_lost")), "{stats}");
    assert_eq!(
        count("tx_offered") + count("tx_duplicated"),
        count("tx_delivered") + count("tx_lost"),
        "{stats}"
    );
    assert_eq!(count("rx_offered"), 0, "the other direction is as it was: {stats}");
    // Text has the same.
    let plain = lab.run(&["--fault", "loss=0%", "--stats"], &["true"]).output().expect("it runs");
    assert!(text(&plain.stderr).contains("\nline\n"), "{}", text(&plain.stderr));
}

#[test]
fn a_capture_has_what_the_program_sent() {
    let Some(lab) = Lab::new(&["curl", "python3"]) else { return };
    let _servers = lab.serve("a-name-to-be-found", b"content");
    lab.inside(&["--pcap", "all.pcapng"], &curl(&[&url(V4, "a-name-to-be-found")]));
    let capture = std::fs::read(lab.path("all.pcapng")).expect("a capture");
    let has = |what: &[u8]| capture.windows(what.len()).any(|part| part == what);
    assert!(has(b"GET /a-name-to-be-found") && has(b"content"));
}
