//! Tests of the view of running commands: control socket, `ss`, metrics, access log, counters as JSON.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use pagewire_testkit::{Need, can};
use serde_json::Value;

use crate::lab::{Lab, PAGEWIRE, Running, run, text};

/// A lab with a site to be served.
fn lab() -> Option<Lab> {
    let lab = Lab::new(&["curl"])?;
    fs::create_dir(lab.path("site")).expect("a directory");
    fs::write(lab.path("site/file"), vec![7; 200_000]).expect("a file");
    Some(lab)
}

/// A file server with these options, which is ready.
fn serve(lab: &Lab, options: &[&str]) -> Running {
    let net = ["--addr", "10.77.0.2/24", "--host-addr", "10.77.0.1/24", "--control", "c.sock"];
    let mut command = lab.command(PAGEWIRE);
    command.arg("serve").args(net).args(options).arg("site").stderr(Stdio::piped());
    Running::saying(&mut command, "serving ")
}

fn curl(lab: &Lab, url: &str) -> String {
    run(lab.command("curl").args(["-sS", "--max-time", "20", "-o", "-", url]))
}

fn pagewire(args: &[&str], socket: &Path) -> String {
    run(Command::new(PAGEWIRE).args(args).arg("--control").arg(socket))
}

#[test]
fn ss_shows_where_a_server_listens_and_a_connection_with_its_path() {
    let Some(lab) = lab() else { return };
    let server = serve(&lab, &["--min-rate", "0"]);
    let socket = lab.path("c.sock");
    let listening = pagewire(&["ss", "-tl"], &socket);
    assert!(listening.contains("LISTEN") && listening.contains("10.77.0.2:80"), "{listening}");
    assert!(listening.contains(&format!("serve/{}", server.0.id())), "{listening}");

    // The client keeps its connection open until its input ends.
    let script = "import socket,sys\ns=socket.create_connection(('10.77.0.2',80))\n\
                  s.sendall(b'GET /file HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n')\n\
                  n=0\nwhile n<200000: n+=len(s.recv(65536))\nprint('got it',flush=True)\n\
                  sys.stdin.read()";
    let mut client = lab.command("python3");
    let mut client = Running::saying(client.args(["-c", script]).stdin(Stdio::piped()), "got it\n");
    let shown = pagewire(&["ss"], &socket);
    for part in ["ESTAB", "10.77.0.1:", "cubic", " rtt:", " cwnd:", " bytes_acked:", " copied:"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let flows = Command::new(PAGEWIRE).args(["ss", "-g", "--control"]).arg(&socket).output();
    let flows = flows.expect("it runs");
    let why = String::from_utf8_lossy(&flows.stderr);
    assert!(!flows.status.success() && why.contains("this process has no gateway"), "{why}");
    let json: Value = serde_json::from_str(&pagewire(&["ss", "-a", "--json"], &socket)).unwrap();
    let sockets = json[0]["sockets"].as_array().expect("a list");
    let talks = sockets.iter().find(|s| s["state"] == "established").expect("it is there");
    assert!(talks["tcp"]["bytes_sent"].as_u64().expect("a number") > 200_000);
    assert!(talks["tcp"]["copies"].is_object(), "{talks}");
    drop(client.0.stdin.take());
    let _ = client.0.wait();
    server.stop("TERM");
    assert!(!socket.exists(), "the socket goes with the command");
}

#[test]
fn metrics_an_access_log_and_counters_as_json_agree_on_what_was_served() {
    let Some(lab) = lab() else { return };
    let log = lab.path("access.log");
    let server = serve(
        &lab,
        &[
            "--metrics",
            "127.0.0.1:9464",
            "--access-log",
            log.to_str().expect("text"),
            "--stats=json",
        ],
    );
    assert_eq!(curl(&lab, "http://10.77.0.2/file").len(), 200_000);
    assert!(curl(&lab, "http://10.77.0.2/none").contains("404"));
    let metrics = curl(&lab, "http://127.0.0.1:9464/metrics");
    for line in [
        "pagewire_server_responses_2xx_total 1",
        "pagewire_server_responses_4xx_total 1",
        "pagewire_server_bytes_by_reference_total 200000",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line}: {metrics}");
    }
    let said = server.stop("TERM");
    let json = said.lines().last().expect("a line");
    let stats: Value = serde_json::from_str(json).unwrap_or_else(|e| panic!("{e}: {said}"));
    assert_eq!(stats["sections"]["server"]["bytes_by_reference"], 200_000);
    assert_eq!(stats["hosts"][0]["name"], "pw0");
    let lines = fs::read_to_string(log).expect("a log");
    let lines: Vec<&str> = lines.lines().collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    let first = "\"GET /file HTTP/1.1\" 200 200000 \"-\" \"curl/";
    assert!(lines[0].starts_with("10.77.0.1 - - [") && lines[0].contains(first), "{}", lines[0]);
    assert!(lines[1].contains("\"GET /none HTTP/1.1\" 404 "), "{}", lines[1]);
}

#[test]
fn a_server_gives_up_root_if_asked_and_says_so_if_not() {
    let Some(lab) = lab() else { return };
    let server = serve(&lab, &["--user", "nobody"]);
    assert_eq!(curl(&lab, "http://10.77.0.2/file").len(), 200_000);
    let tasks = fs::read_dir(format!("/proc/{}/task", server.0.id()));
    let mut checked = 0;
    for task in tasks.expect("it runs").flatten() {
        // The thread of the connection that curl closed may end meanwhile.
        let Ok(status) = fs::read_to_string(task.path().join("status")) else { continue };
        checked += 1;
        for (name, none) in [("Uid:", "\t0"), ("Gid:", "\t0"), ("Groups:", " 0")] {
            let line = status.lines().find(|line| line.starts_with(name)).expect("a line");
            assert!(!line.contains(none), "{line}");
        }
        let rights = status.lines().find(|line| line.starts_with("CapPrm:")).expect("a line");
        assert_eq!(rights, "CapPrm:\t0000000000000000");
    }
    assert!(checked >= 2, "{checked} threads: the first one, and the host's driver");
    let shown = pagewire(&["ss", "-tl"], &lab.path("c.sock"));
    assert!(shown.contains("LISTEN"), "{shown}");
    assert!(!server.stop("TERM").contains("root"));
    let _ = fs::remove_file(lab.path("c.sock"));
    let server = serve(&lab, &[]);
    assert!(server.stop("TERM").contains("serve stays root"));
}

#[test]
fn a_server_that_this_machine_cannot_reach_says_so_and_what_to_do() {
    let Some(lab) = lab() else { return };
    let warns = |options: &[&str]| {
        let mut command = lab.command(PAGEWIRE);
        command.args(["serve", "--addr", "10.77.0.2/24", "--control", "none"]);
        command.args(options).arg("site").stderr(Stdio::piped());
        let said = Running::start(&mut command).stop("TERM");
        assert!(
            !said.contains("no address") || said.contains("--host-addr 10.77.0.1/24"),
            "{said}"
        );
        said.contains("this machine has no address in the network of 10.77.0.2/24")
    };
    assert!(warns(&[]), "the tap is made, and its other end has no address");
    assert!(!warns(&["--host-addr", "10.77.0.1/24"]));
    // Made beforehand, without an address and with one.
    let ip = |args: &str| drop(run(lab.command("ip").args(args.split(' '))));
    ip("tuntap add pw0 mode tap user root");
    assert!(warns(&[]));
    ip("addr add 10.77.0.9/24 dev pw0");
    ip("link set pw0 up");
    assert!(!warns(&[]));
}

#[test]
fn verbose_commands_tell_of_connections() {
    let Some(lab) = lab() else { return };
    let server = serve(&lab, &["-v"]);
    assert_eq!(curl(&lab, "http://10.77.0.2/file").len(), 200_000);
    let said = server.stop("TERM");
    let told = said.lines().find(|line| line.contains("connection established"));
    let told = told.unwrap_or_else(|| panic!("{said}"));
    assert!(told.contains("DEBUG") && told.contains("remote=10.77.0.1:"), "{told}");
    let told = said.lines().filter(|line| line.contains("connection ended")).collect::<Vec<_>>();
    assert_eq!(told.len(), 1, "{said}");
    assert!(told[0].contains("remote=10.77.0.1:"), "{said}");
}

#[test]
fn a_program_in_a_network_of_its_own_is_seen_and_the_next_replaces_the_socket_that_it_left() {
    if !can(&[Need::Tap, Need::Program("ip")]) {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("run.sock");
    // Behind its sandbox, the first cannot remove the file.
    for _ in 0..2 {
        let out = run(Command::new(PAGEWIRE)
            .arg("run")
            .arg("--control")
            .arg(&socket)
            .args(["--", PAGEWIRE, "ss", "-a", "--control"])
            .arg(&socket));
        assert!(out.contains("run/"), "{out}");
    }
}

#[test]
fn mistakes_get_a_line_that_says_what_to_do() {
    let dir = tempfile::tempdir().expect("a directory");
    let nowhere = dir.path().join("no/such.sock");
    for (args, says) in [
        (&["ss", "--control", nowhere.to_str().expect("text")][..], "no such socket"),
        (&["ss", "--control", "4000000000"], "no such process"),
        (&["top"], "needs a terminal"),
        (&["--log-level", "loud,=", "ss"], "give a level"),
        (&["--log-level", "loud", "ss"], "give a level"),
        (&["--log-level", "warn,pagewire_control=", "ss"], "give a level"),
        (&["ss", "-t", "-u"], "cannot be used with"),
    ] {
        let out = Command::new(PAGEWIRE).args(args).stdin(Stdio::null()).output().expect("it runs");
        let said = text(&out.stderr);
        assert!(!out.status.success() && said.contains(says), "{args:?}: {said}");
    }
}
