//! Gateways at a socket that a service manager listens at, and keeps.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use pagewire_testkit::{Need, can};
use tempfile::TempDir;

use crate::lab::{PAGEWIRE, Running, text};

/// A question for the gateway's link address, by the guest.
const ASK: [u8; 42] =
    *b"\xff\xff\xff\xff\xff\xff\x02\0\0\0\0\x0a\x08\x06\0\x01\x08\0\x06\x04\0\x01\
    \x02\0\0\0\0\x0a\x0a\0\x02\x0f\0\0\0\0\0\0\x0a\0\x02\x02";

/// The message by which a front end asks for features, and the bytes of its answer.
const GET_FEATURES: [u8; 12] = [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
const FEATURES: usize = 20;

/// A directory where the path of sockets is.
fn place() -> Option<TempDir> {
    can(&[Need::Program("sh")]).then(|| tempfile::tempdir().expect("a directory"))
}

/// A gateway whose descriptor 3 is this socket, as a service manager starts it; what it says is piped.
fn activated(dir: &Path, socket: impl Into<OwnedFd>, variables: &str, options: &str) -> Command {
    let gateway = format!("{PAGEWIRE} gateway --control none --ready-fd 1 {options}");
    let script = format!("exec 3<&0 </dev/null; {variables} exec {gateway}");
    let mut command = Command::new("sh");
    command.args(["-c", &script]).stdin(socket.into()).current_dir(dir);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// For the process that the shell becomes.
const OURS: &str = "LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=link";

/// What the gateway says, which ends with status 2.
fn refused(mut command: Command) -> String {
    let output = command.output().expect("it runs");
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    said
}

fn connect(path: &Path) -> UnixStream {
    let stream = UnixStream::connect(path).expect("somebody listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
    stream
}

/// Asks who has the gateway's address until the answer, past other frames.
fn asks(mut stream: &UnixStream) {
    let mut ask = (ASK.len() as u32).to_be_bytes().to_vec();
    ask.extend(ASK);
    stream.write_all(&ask).expect("room");
    loop {
        let mut length = [0; 4];
        stream.read_exact(&mut length).expect("a length");
        let mut frame = vec![0; u32::from_be_bytes(length) as usize];
        stream.read_exact(&mut frame).expect("a frame");
        if frame.get(12..14) == Some(&[8, 6]) {
            return;
        }
    }
}

#[test]
fn a_guest_that_came_before_the_gateway_is_served_and_the_socket_stays() {
    let Some(dir) = place() else { return };
    let path = dir.path().join("link");
    let manager = UnixListener::bind(&path).expect("a socket");
    let guest = connect(&path);
    let ours = manager.try_clone().expect("a copy");
    let mut gateway = activated(dir.path(), ours, OURS, "--link stream --socket link");
    let gateway = Running::start(&mut gateway);
    asks(&guest);
    gateway.stop("TERM");
    assert!(path.exists());
    // The next gateway, for one guest.
    let guest = connect(&path);
    let options = format!("--link stream --one-off --socket {}", path.display());
    let gateway = Running::start(&mut activated(dir.path(), manager, OURS, &options));
    asks(&guest);
    drop(guest);
    gateway.ends_with(0);
    assert!(path.exists());
}

#[test]
fn a_front_end_is_served_at_a_socket_that_was_passed() {
    let Some(dir) = place() else { return };
    let path = dir.path().join("link");
    let manager = UnixListener::bind(&path).expect("a socket");
    let mut front_end = connect(&path);
    let mut gateway = activated(dir.path(), manager, OURS, "--link vhost-user --socket link");
    let gateway = Running::start(&mut gateway);
    front_end.write_all(&GET_FEATURES).expect("room");
    front_end.read_exact(&mut [0; FEATURES]).expect("an answer");
    gateway.stop("TERM");
    assert!(path.exists());
}

#[test]
fn datagrams_go_over_a_socket_that_was_passed() {
    let Some(dir) = place() else { return };
    let path = dir.path().join("link");
    let manager = UnixDatagram::bind(&path).expect("a socket");
    let guest = UnixDatagram::bind(dir.path().join("guest")).expect("a socket");
    guest.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
    guest.send_to(b"VFKT", &path).expect("room");
    guest.send_to(&ASK, &path).expect("room");
    let mut gateway = activated(dir.path(), manager, OURS, "--link datagram --socket link");
    let gateway = Running::start(&mut gateway);
    guest.recv(&mut [0; 2000]).expect("a frame");
    gateway.stop("TERM");
    assert!(path.exists());
}

#[test]
fn a_gateway_in_the_background_has_the_socket_that_its_caller_was_passed() {
    let Some(dir) = place() else { return };
    let path = dir.path().join("link");
    let manager = UnixListener::bind(&path).expect("a socket");
    let guest = connect(&path);
    let options = "--background --pid pid --one-off --link stream --socket link";
    let mut caller = activated(dir.path(), manager, OURS, options);
    let caller = caller.stdout(Stdio::null()).stderr(Stdio::null()).status().expect("it runs");
    assert!(caller.success());
    let pid = fs::read_to_string(dir.path().join("pid")).expect("its number");
    asks(&guest);
    drop(guest);
    let process = Path::new("/proc").join(pid.trim()).join("exe");
    for _ in 0..400 {
        if fs::read_link(&process).is_err() {
            break;
        }
        thread::park_timeout(Duration::from_millis(50));
    }
    assert!(fs::read_link(&process).is_err(), "it ends with its guest");
    assert!(path.exists());
}

#[test]
fn sockets_for_another_process_are_not_used() {
    let Some(dir) = place() else { return };
    let others = UnixListener::bind(dir.path().join("others")).expect("a socket");
    let variables = "LISTEN_PID=1 LISTEN_FDS=1";
    let mut gateway = activated(dir.path(), others, variables, "--link stream --socket link");
    let gateway = Running::start(&mut gateway);
    asks(&connect(&dir.path().join("link")));
    gateway.stop("TERM");
}

#[test]
fn what_is_passed_and_is_not_the_socket_of_the_link_is_refused_in_words() {
    let Some(dir) = place() else { return };
    let at = |name: &str| dir.path().join(name);
    let bound = |name: &str| UnixListener::bind(at(name)).expect("a socket");
    let stream = "--link stream --socket link";
    let said = refused(activated(dir.path(), bound("other"), OURS, stream));
    let passed = format!("passed a listening stream socket at {};", at("other").display());
    assert!(said.contains(&passed) && said.contains("--socket link: "), "{said}");
    assert!(said.contains("a listening stream socket that is bound to this path"), "{said}");
    let said = refused(activated(dir.path(), bound("link"), OURS, "--link datagram --socket link"));
    assert!(said.contains("has to pass a datagram socket that is bound"), "{said}");
    let null = File::open("/dev/null").expect("it is there");
    let said = refused(activated(dir.path(), null, OURS, stream));
    assert!(said.contains("no Unix socket"), "{said}");
    let two = "LISTEN_PID=$$ LISTEN_FDS=2";
    let said = refused(activated(dir.path(), bound("two"), two, stream));
    assert!(said.contains("passed 2 sockets"), "{said}");
    let said = refused(activated(dir.path(), bound("tap"), OURS, "--link tap"));
    assert!(said.contains("this link takes none"), "{said}");
}
