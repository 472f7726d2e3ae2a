//! `pagewire gateway` as callers of other programs use it: how it starts, stays and ends, whose addresses a
//! namespace gets, and which socket is the link.

use std::fs;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use crate::lab::{Lab, PAGEWIRE, Running, V4, run, text};

/// A shell in a network namespace of its own, until its input ends.
fn container(lab: &Lab) -> Running {
    let mut command = lab.command("unshare");
    command.args(["-Urn", "sh", "-c", "echo up; read line"]).stdin(Stdio::piped());
    Running::start(&mut command)
}

/// A gateway that goes to the background, which is waited for as `cmd.CombinedOutput()` of Go does.
fn in_background(lab: &Lab, args: &[&str]) -> Output {
    let mut command = lab.command(PAGEWIRE);
    command.args(["gateway", "--background", "--control", "none"]).args(args);
    command.output().expect("it runs")
}

/// A process that stays.
struct Staying(i32);

impl Staying {
    fn of(file: &std::path::Path) -> Self {
        let text = fs::read_to_string(file).expect("a file with a number");
        Self(text.trim_end().parse().expect("a number"))
    }

    fn is_there(&self) -> bool {
        let state = fs::read_to_string(format!("/proc/{}/stat", self.0)).unwrap_or_default();
        // A process whose parent has ended may not have been waited for yet.
        !state.is_empty() && !state.contains(") Z ")
    }

    #[track_caller]
    fn ends(&self) {
        for _ in 0..400 {
            if !self.is_there() {
                return;
            }
            thread::park_timeout(Duration::from_millis(50));
        }
        panic!("it does not end");
    }
}

impl Drop for Staying {
    fn drop(&mut self) {
        if self.is_there() {
            let _ = Command::new("kill").arg(self.0.to_string()).status();
        }
    }
}

/// A program in the namespace of a container.
fn inside(container: &Running, program: &[&str]) -> String {
    let pid = container.0.id().to_string();
    let args = ["-t", &pid, "-U", "-n", "--preserve-credentials"];
    run(Command::new("nsenter").args(args).args(program))
}

#[test]
fn in_the_background_it_returns_when_guests_are_served_and_keeps_nothing_of_the_caller() {
    let Some(lab) = Lab::new(&["unshare", "nsenter", "sh", "curl", "python3"]) else { return };
    let _servers = lab.serve("file", b"content");
    let mut container = container(&lab);
    let pid = container.0.id().to_string();
    let args = ["--link", "tap", "--netns", &pid, "--pid", "pid", "--quiet"];
    let said = in_background(&lab, &args);
    assert!(said.status.success() && said.stderr.is_empty(), "{}", text(&said.stderr));
    let staying = Staying::of(&lab.path("pid"));
    for number in 0..3 {
        let file = fs::read_link(format!("/proc/{}/fd/{number}", staying.0)).expect("open");
        assert_eq!(file.to_str(), Some("/dev/null"));
    }
    let url = format!("http://{V4}:8000/file");
    assert_eq!(inside(&container, &["curl", "-sS", &url]), "content");
    drop(container.0.stdin.take());
    staying.ends();
}

#[test]
fn in_the_background_a_failure_is_the_callers_to_see() {
    let Some(lab) = Lab::new(&[]) else { return };
    for (args, status, says) in [
        (&["--link", "tap", "--netns", "4194305"][..], 2, "there is no such process"),
        (&["--link", "tap", "--netns", "/nowhere"], 1, "--netns /nowhere: there is no such file"),
        (&["--link", "stream", "--socket", "/nowhere/link"], 1, "directory that exists"),
        (&["--link", "stream", "--socket", "link", "--pid", "/nowhere/pid"], 1, "--pid /nowhere"),
    ] {
        let said = in_background(&lab, args);
        assert_eq!(said.status.code(), Some(status), "{args:?}");
        assert!(text(&said.stderr).contains(says), "{args:?}: {}", text(&said.stderr));
    }
}

#[test]
fn messages_go_to_a_file_once_guests_are_served() {
    let Some(lab) = Lab::new(&[]) else { return };
    let args = ["--link", "stream", "--socket", "link", "--pid", "pid"];
    let said = in_background(&lab, &[&args[..], &["--log-file", "log", "-v"]].concat());
    assert!(said.status.success(), "{}", text(&said.stderr));
    let staying = Staying::of(&lab.path("pid"));
    run(Command::new("kill").arg(staying.0.to_string()));
    staying.ends();
    assert!(lab.path("log").is_file());
    let wrong = in_background(&lab, &[&args[..], &["--log-file", "/nowhere/log"]].concat());
    assert!(text(&wrong.stderr).contains("--log-file /nowhere/log"), "{}", text(&wrong.stderr));
}

#[test]
fn it_ends_with_the_namespace_even_if_only_a_descriptor_names_that_unless_it_is_to_stay() {
    let Some(lab) = Lab::new(&["unshare", "sh", "ip"]) else { return };
    // A namespace with a name: `ip netns` would make it in /run of the machine.
    let container = container(&lab);
    let link = lab.path("network");
    std::os::unix::fs::symlink(format!("/proc/{}/ns/net", container.0.id()), &link).expect("one");
    let by_descriptor = |pid: &str, options: &str| {
        let script = format!(
            "exec {PAGEWIRE} gateway --link tap --netns /proc/self/fd/0 --tap {pid} --background \
             --pid {pid} --control none {options} </proc/{}/ns/net",
            container.0.id()
        );
        run(lab.command("sh").args(["-c", &script]).current_dir(&lab.dir));
        Staying::of(&lab.path(pid))
    };
    let staying = by_descriptor("one", "");
    assert!(inside(&container, &["ip", "-brief", "link"]).contains("one"));
    // A descriptor without a file has no end of its own.
    assert!(staying.is_there());
    let args = ["--link", "tap", "--netns", "network", "--tap", "two", "--pid", "two"];
    let said = in_background(&lab, &args);
    assert!(said.status.success(), "{}", text(&said.stderr));
    let args =
        ["--link", "tap", "--netns", "network", "--tap", "three", "--pid", "three", "--keep"];
    let said = in_background(&lab, &args);
    assert!(said.status.success(), "{}", text(&said.stderr));
    let (ends, stays) = (Staying::of(&lab.path("two")), Staying::of(&lab.path("three")));
    fs::remove_file(link).expect("ours");
    ends.ends();
    assert!(stays.is_there());
}

#[test]
fn a_namespace_gets_the_addresses_routes_and_name_of_the_machines_interface() {
    let Some(lab) = Lab::new(&["unshare", "nsenter", "sh", "curl", "python3", "ip"]) else {
        return;
    };
    for words in [
        "link add out0 mtu 4000 type veth peer name out1",
        "link set out0 up",
        "link set out1 up",
        "addr add 203.0.113.77/24 dev out0",
        "addr add 2001:db8:7::77/64 dev out0 nodad",
        "route add default via 203.0.113.1 dev out0",
        "route add 192.0.2.0/25 via 203.0.113.9 dev out0",
        "-6 route add default via fe80::1 dev out0",
    ] {
        run(lab.command("ip").args(words.split(' ')));
    }
    let _servers = lab.serve("file", b"content");
    let container = container(&lab);
    let pid = container.0.id().to_string();
    let options = ["--copy", "--host", "router/4", "--map", "169.254.1.2=host"];
    let args = ["--link", "tap", "--netns", &pid, "--pid", "pid", "--quiet"];
    let said = in_background(&lab, &[&args[..], &options].concat());
    assert!(said.status.success(), "{}", text(&said.stderr));
    let _staying = Staying::of(&lab.path("pid"));
    let links = inside(&container, &["ip", "addr"]);
    for part in ["out0", "mtu 4000", "203.0.113.77/24", "2001:db8:7::77/64"] {
        assert!(links.contains(part), "{part}: {links}");
    }
    let routes = inside(&container, &["ip", "route"]);
    for part in ["default via 203.0.113.1 dev out0", "192.0.2.0/25 via 203.0.113.9 dev out0"] {
        assert!(routes.contains(part), "{part}: {routes}");
    }
    let routes = inside(&container, &["ip", "-6", "route"]);
    assert!(routes.contains("default via fe80::1 dev out0"), "{routes}");
    // The network's router leads to this machine's loopback, and an address to this machine itself.
    let local = ["-u", "-m", "http.server", "8001", "--bind"];
    let [_loopback, _own] = ["127.0.0.1", "203.0.113.77"]
        .map(|at| lab.server("python3", &[&local[..], &[at]].concat()));
    for at in ["198.51.100.1:8000", "203.0.113.1:8001", "169.254.1.2:8001", "[2001:db8::1]:8000"] {
        let url = format!("http://{at}/file");
        assert_eq!(inside(&container, &["curl", "-gsS", "-m", "20", &url]), "content", "{at}");
    }
}

#[test]
fn a_namespace_that_the_caller_configures_gets_a_tap_and_nothing_else() {
    let Some(lab) = Lab::new(&["unshare", "nsenter", "sh", "ip"]) else { return };
    let container = container(&lab);
    let pid = container.0.id().to_string();
    let args = ["--link", "tap", "--netns", &pid, "--pid", "pid", "--no-configure", "--quiet"];
    let mac = ["--tap", "tap0", "--tap-mac", "0e:d4:18:d9:38:fb"];
    let said = in_background(&lab, &[&args[..], &mac].concat());
    assert!(said.status.success(), "{}", text(&said.stderr));
    let _staying = Staying::of(&lab.path("pid"));
    let links = inside(&container, &["ip", "addr"]);
    assert!(links.contains("tap0") && links.contains("0e:d4:18:d9:38:fb"), "{links}");
    assert!(!links.contains("inet"), "{links}");
    assert!(!links.contains(",UP"), "{links}");
}

/// Plugs itself in as QEMU does: by a connected socket, or at a path.
const PLUG: &str = "
import os, socket, subprocess, sys
how, program = sys.argv[1], sys.argv[2:]
if how == 'fd':
    ours, its = socket.socketpair()
    gateway = subprocess.Popen([*program, '--fd', str(its.fileno())], pass_fds=[its.fileno()], stdout=subprocess.PIPE)
    its.close()
    gateway.stdout.readline()
else:
    gateway = subprocess.Popen([*program, '--socket', 'link', '--one-off'], stdout=subprocess.PIPE)
    gateway.stdout.readline()
    ours = socket.socket(socket.AF_UNIX)
    ours.connect('link')
ask = bytes.fromhex('ffffffffffff02000000000a08060001080006040001' '02000000000a' '0a00020f' '000000000000' '0a000202')
ours.sendall(len(ask).to_bytes(4, 'big') + ask)
ours.settimeout(20)
answer = b''
while len(answer) < 46:
    answer += ours.recv(1500)
# Whatever comes first, a frame comes.
assert gateway.poll() is None
ours.close()
sys.exit(gateway.wait(20))";

#[test]
fn the_link_may_be_a_connected_socket_or_that_of_one_guest_and_it_ends_with_that() {
    let Some(lab) = Lab::new(&["python3"]) else { return };
    for how in ["fd", "path"] {
        let link = ["gateway", "--link", "stream", "--ready-fd", "1", "--control", "none"];
        run(lab.command("python3").args(["-c", PLUG, how, PAGEWIRE]).args(link));
    }
}

#[test]
fn descriptors_that_are_no_connected_socket_are_no_link() {
    let Some(lab) = Lab::new(&["sh"]) else { return };
    for fd in ["0", "9"] {
        let script = format!("exec {PAGEWIRE} gateway --link stream --fd {fd} </dev/null");
        let said = lab.command("sh").args(["-c", &script]).output().expect("it runs");
        assert_eq!(said.status.code(), Some(2));
        assert!(text(&said.stderr).contains("connected Unix stream socket"));
    }
}

#[test]
fn a_port_of_the_namespaces_loopback_is_reached_over_this_machines_and_the_other_way() {
    let Some(lab) = Lab::new(&["unshare", "nsenter", "sh", "curl", "python3"]) else { return };
    fs::write(lab.path("file"), "content").expect("a file");
    let container = container(&lab);
    let pid = container.0.id().to_string();
    let options = ["--publish", "8080:8000", "--loopback", "--forward", "9000:8001"];
    let args = ["--link", "tap", "--netns", &pid, "--pid", "pid", "--quiet"];
    let said = in_background(&lab, &[&args[..], &options].concat());
    assert!(said.status.success(), "{}", text(&said.stderr));
    let _staying = Staying::of(&lab.path("pid"));
    let serve = ["python3", "-u", "-m", "http.server", "--bind", "127.0.0.1"];
    let mut there = Command::new("nsenter");
    there.args(["-t", &pid, "-U", "-n", "--preserve-credentials"]).args(serve).arg("8000");
    let _there = Running::start(there.current_dir(&lab.dir));
    let _here = lab.server("python3", &[&serve[1..], &["8001"]].concat());
    let here = lab.command("curl").args(["-sS", "-m", "20", "http://127.0.0.1:8080/file"]).output();
    assert_eq!(text(&here.expect("it runs").stdout), "content");
    let url = "http://127.0.0.1:9000/file";
    assert_eq!(inside(&container, &["curl", "-sS", "-m", "20", url]), "content");
}

/// Answers each client with its address.
const WHO_ASKS: &str = r#"
import socket
listener = socket.create_server(("", 8000))
print("up", flush=True)
while True:
    client, peer = listener.accept()
    client.recv(4096)
    client.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + peer[0].encode())
    client.close()
"#;

#[test]
fn with_splice_a_local_client_comes_from_the_guests_own_address() {
    let Some(lab) = Lab::new(&["unshare", "nsenter", "curl", "python3"]) else { return };
    let container = container(&lab);
    let pid = container.0.id().to_string();
    let args = ["--link", "tap", "--netns", &pid, "--pid", "pid", "--publish", "8080:8000"];
    let said = in_background(&lab, &[&args[..], &["--splice", "--quiet"]].concat());
    assert!(said.status.success(), "{}", text(&said.stderr));
    let _staying = Staying::of(&lab.path("pid"));
    let mut there = Command::new("nsenter");
    there.args(["-t", &pid, "-U", "-n", "--preserve-credentials", "python3", "-c", WHO_ASKS]);
    let _there = Running::start(&mut there);
    let here = lab.command("curl").args(["-sS", "-m", "20", "http://127.0.0.1:8080/"]).output();
    assert_eq!(text(&here.expect("it runs").stdout), "10.0.2.15");
}

#[test]
fn splice_and_loopback_exclude_each_other_and_need_a_namespace() {
    let Some(lab) = Lab::new(&[]) else { return };
    for (options, why) in [
        (&["--link", "tap", "--splice", "--loopback"][..], "cannot be used with"),
        (&["--link", "stream", "--socket", "link", "--splice"], "--netns"),
    ] {
        let said = lab.command(PAGEWIRE).arg("gateway").args(options).output().expect("it runs");
        assert_eq!(said.status.code(), Some(2));
        assert!(text(&said.stderr).contains(why), "{}", text(&said.stderr));
    }
}

#[test]
fn the_answer_to_what_is_denied_may_be_chosen() {
    let Some(lab) = Lab::new(&["bash"]) else { return };
    for (how, why) in [
        ("", "Permission denied"),
        ("=prohibit", "Permission denied"),
        ("=refuse", "Connection refused"),
        ("=unreachable", "Network is unreachable"),
    ] {
        let rule = format!("203.0.113.9:80{how}");
        let script = "exec 3<>/dev/tcp/203.0.113.9/80";
        let said = lab.fails(&["--deny", &rule], &["bash", "-c", script]);
        let text = text(&said.stderr);
        // Linux takes "prohibited" for an unreachable host.
        let prohibited = why == "Permission denied" && text.contains("No route to host");
        assert!(text.contains(why) || prohibited, "{how}: {text}");
    }
}
