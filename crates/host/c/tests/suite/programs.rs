//! Programs that were written with Linux's manual pages alone: on the kernel, and on Pagewire through the include
//! over a tap with a kernel peer, they print the same.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::Child;

use pagewire_testkit::{Need, Netns, can};

use crate::support::{Folder, NETWORK, Way, compile, namespace, printed, program, run};

/// The programs, compiled.
struct Built {
    folder: Folder,
    way: Way,
    netns: Netns,
}

/// Where a program runs: the address that it has, its peer's, and what it prints of copies.
struct Ran {
    printed: String,
    peer: String,
    /// The report of the program's network.
    stats: String,
}

impl Built {
    fn new(name: &str, way: Way) -> Self {
        let folder = Folder::new(&format!("{name}-{way:?}"));
        compile(&program(&format!("{name}.c")), &folder.path(name), way);
        compile(&program("peers/peers.c"), &folder.path("peers"), Way::Kernel);
        Self { folder, way, netns: namespace() }
    }

    /// The program's own address, and its peer's.
    fn addresses(&self) -> (&'static str, &'static str) {
        if self.way == Way::Kernel {
            ("127.0.0.1", "127.0.0.1")
        } else {
            ("10.77.0.2", "10.77.0.1")
        }
    }

    fn start(&self, name: &str, arguments: &str) -> Child {
        let (own, peer) = self.addresses();
        let arguments = arguments.replace("OWN", own).replace("PEER", peer);
        let network = format!("{NETWORK},stats={}", self.stats().display());
        let network = (name != "peers" && self.way != Way::Kernel).then_some(network);
        let program = self.folder.path(name);
        run(&self.netns, &program, &arguments, network.as_deref()).spawn().expect("a program")
    }

    fn stats(&self) -> PathBuf {
        self.folder.path("stats")
    }

    /// Runs a server to its line `listening`, then its client to the end, then the server to the end.
    fn run(&self, server: (&str, &str), client: (&str, &str)) -> Ran {
        let mut serving = self.start(server.0, server.1);
        let mut lines = BufReader::new(serving.stdout.take().expect("its output"));
        let mut first = String::new();
        lines.read_line(&mut first).expect("a line");
        if first != "listening\n" {
            let output = serving.wait_with_output().expect("its end");
            panic!("{first}{}", String::from_utf8_lossy(&output.stderr));
        }
        let client_out = self.start(client.0, client.1).wait_with_output().expect("its end");
        let mut rest = String::new();
        lines.read_to_string(&mut rest).expect("its output");
        let output = serving.wait_with_output().expect("its end");
        let server_out = format!("{}{rest}", printed(&output));
        let client_out = printed(&client_out);
        let stats = fs::read_to_string(self.stats()).unwrap_or_default();
        let (printed, peer) = match server.0 {
            "peers" => (client_out, server_out),
            _ => (server_out, client_out),
        };
        Ran { printed, peer, stats }
    }
}

/// The ways to run: all but the kernel's on Pagewire.
const WAYS: [Way; 3] = [Way::Kernel, Way::Include, Way::Sanitized];

fn ready() -> bool {
    can(&[Need::Tap, Need::Program("cc"), Need::Program("ip")])
}

/// No payload was copied by the stack.
fn assert_nothing_copied(ran: &Ran) {
    assert!(ran.stats.starts_with("payload bytes copied: 0 by the stack"), "{}", ran.stats);
}

#[test]
fn a_zerocopy_sender_reads_its_error_queue_and_copies_nothing() {
    for way in WAYS.into_iter().filter(|_| ready()) {
        let built = Built::new("zerocopy_send", way);
        let ran = built.run(("peers", "read PEER 7000"), ("zerocopy_send", "PEER 7000 20000000"));
        assert_eq!(ran.printed, "sent 20000000\nall sends were notified\n");
        assert_eq!(ran.peer, "received 20000000, pattern ok\n");
        if way != Way::Kernel {
            assert_nothing_copied(&ran);
        }
    }
}

#[test]
fn a_receiver_that_maps_gets_whole_pages() {
    for way in WAYS.into_iter().filter(|_| ready()) {
        let built = Built::new("mapped_receive", way);
        let ran = built.run(("mapped_receive", "OWN 7001"), ("peers", "send OWN 7001 20000000"));
        assert_eq!(ran.printed, "received 20000000, pattern ok\n");
        assert_eq!(ran.peer, "sent 20000000\n");
        if way != Way::Kernel {
            // The ends of runs that are no whole page are read.
            let line = ran.stats.lines().next().unwrap_or_default();
            let copied = line.split_whitespace().nth(3).and_then(|word| word.parse::<u64>().ok());
            assert!(copied.is_some_and(|bytes| bytes < 1_000_000), "{}", ran.stats);
        }
    }
}

#[test]
fn an_epoll_server_echoes_and_watches_descriptors_of_the_kernel() {
    for way in WAYS.into_iter().filter(|_| ready()) {
        let built = Built::new("epoll_echo", way);
        let ran = built.run(("epoll_echo", "OWN 7002 20"), ("peers", "echo OWN 7002 20 500000"));
        assert_eq!(ran.printed, "echoed 10000000 over 20 connections\neventfd 3\npipe 3\n");
        assert_eq!(ran.peer, "echoed 500000 over each of 20 connections\n");
    }
}

#[test]
fn a_datagram_server_takes_many_at_once_and_sends_segments() {
    for way in WAYS.into_iter().filter(|_| ready()) {
        let built = Built::new("udp_server", way);
        let ran =
            built.run(("udp_server", "OWN 7003 100"), ("peers", "datagrams OWN 7003 100 1000"));
        assert_eq!((&*ran.printed, &*ran.peer), ("served 100\n", "100 datagrams answered\n"));
        let ran = built.run(("udp_server", "OWN 7004 1"), ("peers", "segments OWN 7004 20 1000"));
        assert_eq!((&*ran.printed, &*ran.peer), ("served 1\n", "20 segments of 1000 bytes\n"));
    }
}

#[test]
fn a_client_connects_without_blocking() {
    let mut printed_first = None;
    for way in WAYS.into_iter().filter(|_| ready()) {
        let built = Built::new("connect_nonblocking", way);
        compile(&program("epoll_echo.c"), &built.folder.path("peers"), Way::Kernel);
        let ran = built.run(("peers", "PEER 7005 1"), ("connect_nonblocking", "PEER 7005 7006"));
        let (_, peer) = built.addresses();
        let printed = ran.printed.replace(peer, "PEER");
        assert!(printed.ends_with("closed port: Connection refused\n"), "{printed}");
        assert_eq!(*printed_first.get_or_insert_with(|| printed.clone()), printed, "{way:?}");
    }
}

#[test]
fn errors_and_descriptors_are_as_in_linux() {
    let mut printed_first = None;
    for way in WAYS.into_iter().filter(|_| ready()) {
        let built = Built::new("boundary", way);
        let output = built.start("boundary", "OWN").wait_with_output().expect("its end");
        let printed = printed(&output);
        assert!(printed.lines().count() >= 20, "{printed}");
        assert_eq!(*printed_first.get_or_insert_with(|| printed.clone()), printed, "{way:?}");
    }
}

#[test]
fn valgrind_finds_nothing_at_the_boundary() {
    if !ready() || !can(&[Need::Program("valgrind")]) {
        return;
    }
    let built = Built::new("boundary", Way::Include);
    let mut command = built.netns.command("timeout");
    command.args(["--kill-after=5", "100", "valgrind", "--quiet", "--error-exitcode=9"]);
    command.arg(built.folder.path("boundary")).arg("10.77.0.2").env("PAGEWIRE", NETWORK);
    let output = command.output().expect("valgrind");
    let printed = printed(&output);
    assert!(printed.lines().count() >= 20, "{printed}");
}
