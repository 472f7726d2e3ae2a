//! `pagewire proxy`: its command line, and over a tap between real clients and real servers of the
//! kernel, in a network namespace that each test makes and removes. Those need root.

mod talk;

use std::io::{BufRead, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::lab::{Lab, PAGEWIRE, Running, counter};
use crate::mistakes::{fails, is_misuse};
use crate::real_peers::NET;

/// Where clients connect to, and where the server listens.
const FRONT: [&str; 2] = ["10.77.0.2:80", "[fd77::2]:80"];
const BACK: [&str; 2] = ["10.77.0.1:8000", "[fd77::1]:8000"];

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn an_upstream_that_nobody_could_reach_is_a_mistake_and_said_at_once() {
    for (to, says) in [
        ("10.77.0.2:80", "our own address"),
        ("10.78.0.1:80", "in no network of --addr"),
        ("[fd77::1]:80", "in no network of --addr"),
        ("10.77.0.1:0", "give the address and port of a server"),
        ("0.0.0.0:80", "give the address and port of a server"),
    ] {
        let args = ["proxy", "--addr", "10.77.0.2/24", "--listen", FRONT[0], "--to", to];
        is_misuse(&args, &[&format!("pagewire: --to {to}: "), says]);
    }
    is_misuse(&["proxy", "--listen", FRONT[0], "--to", BACK[0]], &["--addr is missing"]);
}

#[test]
fn an_address_to_listen_on_that_is_given_twice_is_a_mistake() {
    let listen = ["--listen", FRONT[0], "--listen", FRONT[1], "--listen", FRONT[0]];
    let args = [&["proxy"], &listen[..], &["--to", BACK[0], "--addr", "10.77.0.2/24"]].concat();
    is_misuse(&args, &[&format!("pagewire: --listen {}: it is given twice\n", FRONT[0])]);
}

#[test]
fn nothing_is_said_to_be_forwarded_before_every_address_is_listened_on() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("port");
    let link = ["--link", "vhost-user", "--socket", socket.to_str().expect("text")];
    // The second is one of all that the first stands for; the third is nobody's.
    for other in ["10.77.0.2:80", "10.77.0.3:80"] {
        let listen = ["--listen", "0.0.0.0:80", "--listen", other, "--to", BACK[0]];
        let args = [&["proxy"], &link[..], &["--addr", "10.77.0.2/24"], &listen].concat();
        fails(&args, &[&format!("pagewire: --listen {other}: ")]);
    }
}

/// A running proxy, from inside of a namespace.
fn start(more: &[&str]) -> Running {
    let mut command = pagewire_testkit::command(PAGEWIRE);
    command.arg("proxy").args(NET).args(["--listen", FRONT[0], "--listen", FRONT[1]]);
    let forwards = |on| format!("forwarding {on} to ");
    let mut proxy = Running::saying(command.args(more).stderr(Stdio::piped()), &forwards(FRONT[0]));
    let second = proxy.line();
    assert!(second.starts_with(&forwards(FRONT[1])), "{second:?}");
    proxy
}

fn connect(to: &str) -> TcpStream {
    let to: SocketAddr = to.parse().expect("an address");
    let stream = TcpStream::connect_timeout(&to, PATIENCE).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream
}

fn accept(listener: &TcpListener) -> TcpStream {
    let (stream, _) = listener.accept().expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream
}

#[test]
fn with_root_both_ip_versions_are_forwarded_with_their_ends_and_resets() {
    let Some(lab) = Lab::new(&[]) else { return };
    lab.netns.inside(|| {
        for (front, back) in FRONT.into_iter().zip(BACK) {
            let proxy = start(&["--to", back, "--stats"]);
            let listener = TcpListener::bind(back).expect("a listener");
            // Each stream ends by itself.
            let (mut ours, mut theirs) = (connect(front), accept(&listener));
            ours.write_all(b"question").expect("sent");
            ours.shutdown(Shutdown::Write).expect("it stands");
            let mut text = String::new();
            theirs.read_to_string(&mut text).expect("received");
            assert_eq!(text, "question");
            theirs.write_all(b"answer").expect("sent");
            drop(theirs);
            text.clear();
            ours.read_to_string(&mut text).expect("received");
            assert_eq!(text, "answer");
            // A reset on one side resets the other.
            for server_resets in [false, true] {
                let (ours, theirs) = (connect(front), accept(&listener));
                let (reset, mut other) =
                    if server_resets { (theirs, ours) } else { (ours, theirs) };
                let linger = Some(Duration::ZERO);
                rustix::net::sockopt::set_socket_linger(&reset, linger).expect("an option");
                drop(reset);
                let error = other.read(&mut [0; 1]).expect_err("a reset");
                assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
            }
            let report = proxy.stop("TERM");
            assert_eq!(counter(&report, "finished"), 1, "{report}");
            assert_eq!(counter(&report, "broken"), 2, "{report}");
        }
    });
}

#[test]
fn with_root_each_refused_upstream_is_one_line_and_its_client_is_reset() {
    let Some(lab) = Lab::new(&[]) else { return };
    lab.netns.inside(|| {
        let proxy = start(&["--to", BACK[0]]);
        for _ in 0..3 {
            // The reset may arrive before the read.
            let to = FRONT[0].parse().expect("an address");
            let stream = TcpStream::connect_timeout(&to, PATIENCE);
            let error = stream.and_then(|mut s| s.read(&mut [0; 1])).expect_err("a reset");
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        }
        let said = proxy.stop("TERM");
        assert_eq!(said.lines().count(), 3, "{said}");
        for line in said.lines() {
            let begin = format!("pagewire: no connection to {} for 10.77.0.1:", BACK[0]);
            let end = "which was reset: connection refused";
            assert!(line.starts_with(&begin) && line.ends_with(end), "{line}");
        }
    });
}

#[test]
fn with_root_bulk_data_is_forwarded_without_a_copy() {
    let Some(lab) = Lab::new(&[]) else { return };
    lab.netns.inside(|| {
        let proxy = start(&["--to", BACK[0], "--stats"]);
        let listener = TcpListener::bind(BACK[0]).expect("a listener");
        let content: Vec<u8> = (0..32u32 << 20).map(|i| (i ^ (i >> 11)) as u8).collect();
        let (mut ours, mut theirs) = (connect(FRONT[0]), accept(&listener));
        let received = std::thread::scope(|scope| {
            scope.spawn(|| {
                ours.write_all(&content).expect("sent");
                ours.shutdown(Shutdown::Write).expect("it stands");
            });
            let mut received = Vec::new();
            theirs.read_to_end(&mut received).expect("received");
            received
        });
        assert!(received == content, "as sent");
        drop(theirs);
        let report = proxy.stop("TERM");
        assert_eq!(counter(&report, "bytes_up"), content.len() as u64, "{report}");
        // The last piece may be so short that it is moved out of its page.
        let copied = counter(&report, "payload bytes copied:");
        if copied > 0 {
            assert_eq!(copied, counter(&report, "small_segment"), "{report}");
        }
        assert!(copied < 512, "{copied} bytes copied: {report}");
    });
}

/// Set for the process that serves [`MANY`].
const SERVER: &str = "PAGEWIRE_PROXY_TEST_SERVER";
const MANY: u64 = 10_000;

/// The servers of the test below, in a process of their own: two ends of ten thousand connections are
/// more files than a process may have open in many places.
#[test]
fn a_server_of_many_serves_when_it_is_asked_to() {
    if std::env::var_os(SERVER).is_none() {
        return;
    }
    assert!(may_open_many());
    let listener = TcpListener::bind(BACK[0]).expect("a listener");
    // A shorter queue would be full at times, and then one end knows of a connection and the other does not.
    rustix::net::listen(&listener, 4096).expect("a longer queue");
    println!("ready");
    let (over, no_more) = tokio::sync::oneshot::channel::<()>();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        drop(over);
    });
    println!("polite {}", talk::servers(listener, no_more));
}

fn may_open_many() -> bool {
    let needed = MANY + 200;
    let now = getrlimit(Resource::Nofile);
    // Root may raise what others may at most.
    let more = Rlimit { current: Some(needed), maximum: now.maximum.map(|most| most.max(needed)) };
    now.current.is_none_or(|n| n >= needed) || setrlimit(Resource::Nofile, more).is_ok()
}

#[test]
fn with_root_ten_thousand_connections_get_every_byte_and_end_over_a_bad_tap() {
    let Some(lab) = Lab::new(&[]) else { return };
    if !may_open_many() {
        pagewire_testkit::skip(format!("needs {MANY} open files"));
        return;
    }
    lab.netns.inside(|| {
        let fault = ["--fault", "loss=0.5%,dup=0.2%,seed=7"];
        let keepalive = talk::KEEPALIVE.as_secs().to_string();
        // A handshake with the server may lose three SYNs in a row to full queues.
        let times = ["--connect-timeout", "60", "--keepalive", keepalive.as_str()];
        let more = [&["--to", BACK[0], "--stats", "--backlog", "4096"][..], &times].concat();
        let proxy = start(&[&more[..], &fault].concat());
        let mut server = Command::new(std::env::current_exe().expect("this program"));
        server.args([
            "--exact",
            "proxy::a_server_of_many_serves_when_it_is_asked_to",
            "--nocapture",
        ]);
        let mut server = Running::start(server.env(SERVER, "1").stdin(Stdio::piped()));
        let mut lines = server.1.by_ref().lines().map_while(Result::ok);
        assert!(lines.any(|line| line.ends_with("ready")), "the server listens");

        let polite = talk::clients(FRONT[0], MANY);
        drop(server.0.stdin.take());
        assert!(
            lines.any(|line| line == format!("polite {polite}")),
            "every server got everything"
        );
        assert!(server.0.wait().expect("it ends").success());
        let report = proxy.stop("TERM");
        assert_eq!(counter(&report, "accepted"), MANY, "{report}");
        // A client may know of a handshake whose end the proxy has not seen yet.
        assert!(counter(&report, "most_at_once") > MANY * 9 / 10, "{report}");
        assert!(counter(&report, "finished") >= polite, "{report}");
        // None had to be given up for another reason than that a peer was gone.
        let ended = counter(&report, "finished") + counter(&report, "broken");
        assert_eq!(ended, MANY, "{report}");
        // Short payload is moved out of pages that it would pin; nothing else is copied.
        for reason in ["app_read", "app_write", "device_linearize", "loop_private", "snapshot"] {
            assert_eq!(counter(&report, reason), 0, "{report}");
        }
        assert_eq!(counter(&report, "rx_dropped_memory"), 0, "{report}");
    });
}
