//! Tests of the program inside as a process: how it ends, its signals, its terminal, its surroundings.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use pagewire_testkit::skip;

use crate::lab::{Lab, PAGEWIRE, Running, V4, run, text};

#[test]
fn its_exit_status_is_that_of_run() {
    let Some(lab) = Lab::new(&["sh"]) else { return };
    for status in [0, 1, 3, 255] {
        let ended = lab.run(&[], &["sh", "-c", &format!("exit {status}")]).status();
        assert_eq!(ended.expect("it runs").code(), Some(status));
    }
}

#[test]
fn runs_own_failures_have_statuses_of_their_own_and_one_line() {
    let Some(lab) = Lab::new(&["sh"]) else { return };
    std::fs::write(lab.path("plain"), "no program").expect("a file");
    for (options, program, status, says) in [
        (&[][..], &["no-such-program-anywhere"][..], 127, "No such file"),
        (&[], &["./plain"], 126, "Permission denied"),
        (&["--addr", "nonsense"], &["true"], 125, "10.77.0.2/24"),
        (&["--tap", "a/b"], &["true"], 125, "cannot name a network device"),
        (&["--pcap", "/no/such/directory/file"], &["true"], 125, "--pcap"),
        (&["--no-such-option"], &["true"], 125, "unexpected argument"),
    ] {
        let ended = lab.fails(options, program);
        let said = text(&ended.stderr);
        assert_eq!(ended.status.code(), Some(status), "{program:?} {options:?}: {said}");
        assert!(said.contains(says), "{said:?} does not say {says:?}");
        if says != "unexpected argument" {
            assert!(said.starts_with("pagewire: ") && said.lines().count() == 1, "{said}");
        }
    }
}

#[test]
fn a_signal_that_ends_it_ends_run() {
    let Some(lab) = Lab::new(&["sh"]) else { return };
    for signal in [libc::SIGTERM, libc::SIGKILL, libc::SIGINT, libc::SIGSEGV] {
        let ended = lab.run(&[], &["sh", "-c", &format!("kill -{signal} $$")]).status();
        let ended = ended.expect("it runs");
        assert_eq!(ended.signal(), Some(signal), "{ended}");
        assert!(!ended.core_dumped(), "{ended}");
    }
}

#[test]
fn signals_to_run_are_passed_on() {
    let Some(lab) = Lab::new(&["sh"]) else { return };
    for (name, status) in [("TERM", 31), ("INT", 32), ("HUP", 33), ("USR1", 34), ("USR2", 35)] {
        let script =
            format!("trap 'exit {status}' {name}; echo ready; while :; do sleep 0.05; done");
        let mut running = Running::start(&mut lab.run(&[], &["sh", "-c", &script]));
        running.signal(name);
        assert_eq!(running.0.wait().expect("its end").code(), Some(status), "{name}");
    }
}

/// Says when the first who connects has ended.
const FAR: &str = "
import socket
server = socket.create_server(('198.51.100.1', 7000))
print('ready', flush=True)
first, _ = server.accept()
print(first.recv(1) or 'ended', flush=True)";

/// Connects until no network leads there any more.
const NEAR: &str = "
import socket, time
first = socket.create_connection(('198.51.100.1', 7000))
print('connected', flush=True)
for _ in range(400):
    try:
        socket.create_connection(('198.51.100.1', 7000), 1).close()
    except OSError as error:
        if error.errno == 101:
            print('no network', flush=True)
            break
    time.sleep(0.05)";

#[test]
fn a_program_whose_gateway_is_killed_has_no_network_and_the_far_end_hears_of_it() {
    let Some(lab) = Lab::new(&["python3"]) else { return };
    let mut far = lab.server("python3", &["-c", FAR]);
    let mut near = Running::start(&mut lab.run(&[], &["python3", "-c", NEAR]));
    near.signal("KILL");
    assert_eq!(far.line(), "ended\n");
    assert_eq!(near.line(), "no network\n");
    assert_eq!(near.0.wait().expect("its end").signal(), Some(libc::SIGKILL));
}

#[test]
fn it_has_its_directory_its_environment_its_descriptors_and_its_input() {
    let Some(lab) = Lab::new(&["bash"]) else { return };
    std::fs::write(lab.path("third"), "from the third\n").expect("a file");
    let script = r#"pwd; echo "$COLOUR"; cat <&3; cat; id -u; cd /proc/$$/fd; echo *"#;
    let said_by = |command: String| {
        let outer = format!(r#"exec 3<third; exec {command}bash -c '{script}'"#);
        let mut shell = lab.command("bash");
        shell.args(["-c", &outer]).env("COLOUR", "blue");
        let mut shell =
            shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        shell.stdin.take().expect("piped").write_all(b"from the input\n").expect("room");
        text(&shell.wait_with_output().expect("its end").stdout)
    };
    let said = said_by(format!("{PAGEWIRE} run -- "));
    let dir = lab.dir.path().canonicalize().expect("a directory");
    let user = rustix::process::geteuid().as_raw();
    let first = format!("{}\nblue\nfrom the third\nfrom the input\n{user}\n", dir.display());
    assert!(said.starts_with(&first), "{said}");
    // The same descriptors as without `run`: none of ours besides.
    assert_eq!(said, said_by(String::new()));
}

/// Plays a shell with job control on a terminal of its own, and prints what it sees.
const SHELL: &str = r#"
import os, pty, signal, sys, time
leader, terminal = pty.fork()
if leader == 0:
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    job = os.fork()
    if job == 0:
        os.setpgid(0, 0)
        os.tcsetpgrp(0, os.getpid())
        for number in signal.SIGTTOU, signal.SIGINT, signal.SIGQUIT:
            signal.signal(number, signal.SIG_DFL)
        os.execv(sys.argv[1], sys.argv[1:])
    while True:
        _, status = os.waitpid(job, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            os.tcsetpgrp(0, os.getpgrp())
            print('job stopped', flush=True)
            os.tcsetpgrp(0, job)
            os.killpg(job, signal.SIGCONT)
        else:
            print('job ended', os.waitstatus_to_exitcode(status), flush=True)
            os._exit(0)
seen = b''
def expect(what):
    global seen
    while what not in seen:
        try:
            more = os.read(terminal, 4096)
        except OSError:
            more = b''
        if not more:
            sys.exit('never saw %r in %r' % (what, seen))
        seen += more
    seen = seen.split(what, 1)[1]
def type(what):
    os.write(terminal, what)
expect(b'ready')
type(b'\x03')
expect(b'interrupted')
type(b'\x1a')
expect(b'job stopped')
expect(b'continued')
type(b'a line\n')
expect(b'got a line')
expect(b'job ended 7')
print('well')
"#;

#[test]
fn on_a_terminal_it_is_interrupted_stopped_and_continued_as_without_run() {
    let Some(lab) = Lab::new(&["python3", "bash"]) else { return };
    // A shell that ends a read, and may end a write, for each signal that it handles.
    let program = "say() { until echo $@; do :; done; }; \
                   trap 'say interrupted' INT; trap 'say continued' CONT; say ready; \
                   until read line; do :; done; say got $line; exit 7";
    let with = lab
        .command("python3")
        .args(["-c", SHELL, PAGEWIRE, "run", "--", "bash", "-c", program])
        .output()
        .expect("it runs");
    assert_eq!(text(&with.stdout), "well\n", "{}", text(&with.stderr));
    let without =
        run(lab.command("python3").args(["-c", SHELL, "/usr/bin/env", "bash", "-c", program]));
    assert_eq!(without, "well\n");
}

/// As an ordinary user, in a mount namespace where `/dev/net/tun` is as on most systems.
fn as_nobody(lab: &Lab, mode: &str, program: &str) -> std::process::Output {
    let copy = lab.path("pagewire");
    std::fs::copy(PAGEWIRE, &copy).expect("room for a copy");
    let script = format!(
        "mkdir dev && mount -t tmpfs none dev && mknod -m {mode} dev/tun c 10 200 && \
         mount --bind dev/tun /dev/net/tun && \
         exec setpriv --reuid 65534 --regid 65534 --clear-groups {} {program}",
        copy.display()
    );
    lab.command("unshare").args(["-m", "sh", "-c", &script]).output().expect("it runs")
}

/// Whether ordinary users may make user namespaces here.
pub(crate) fn may_unshare() -> bool {
    let mut tried = Command::new("setpriv");
    tried.args([
        "--reuid",
        "65534",
        "--regid",
        "65534",
        "--clear-groups",
        "unshare",
        "-Un",
        "true",
    ]);
    let tried = tried.output().expect("it runs");
    if !tried.status.success() {
        skip(format_args!("user namespaces for ordinary users: {}", text(&tried.stderr)));
    }
    tried.status.success()
}

#[test]
fn an_ordinary_user_runs_curl() {
    let programs = ["curl", "python3", "unshare", "setpriv", "mknod"];
    let Some(lab) = Lab::new(&programs) else { return };
    if !may_unshare() {
        return;
    }
    let _servers = lab.serve("file", b"content");
    let program = format!("run -- sh -c 'id -u; curl -sS http://{V4}:8000/file'");
    let output = as_nobody(&lab, "666", &program);
    assert_eq!(text(&output.stdout), "65534\ncontent", "{}", text(&output.stderr));
}

#[test]
fn an_ordinary_users_program_may_be_root_in_its_namespaces() {
    let Some(lab) = Lab::new(&["unshare", "setpriv", "mknod"]) else { return };
    if !may_unshare() {
        return;
    }
    let output = as_nobody(&lab, "666", "run --map-root-user -- id -u");
    assert_eq!(text(&output.stdout), "0\n", "{}", text(&output.stderr));
}

#[test]
fn without_the_right_to_the_device_it_says_which_file_and_what_to_do() {
    let Some(lab) = Lab::new(&["unshare", "setpriv", "mknod"]) else { return };
    if !may_unshare() {
        return;
    }
    let output = as_nobody(&lab, "600", "run -- true");
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains("/dev/net/tun") && said.contains("0666"), "{said}");
}
