//! A real guest: Debian's kernel and its virtio driver in QEMU, plugged into the command. Needs no
//! root, but QEMU and the guest's packages.
//!
//! Three guests for all of it, because starting one costs the most. Whoever waits here waits for a line
//! or for the end of a process; limits are for the case that nothing happens any more.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use pagewire_testkit::{Need, waits_for};
use sha2::{Digest, Sha256};

use crate::lab::{Lab, PAGEWIRE, Running, counter, text, write_file};

const BOOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../scripts/guest/boot");

/// Longest time of a test, on a machine that does other things too. An idle one takes half a minute.
const LIMIT: Duration = Duration::from_secs(400);

const FILE: u64 = 256 << 20;
const FRAMES: u64 = 50_000;

/// The script of an earlier guest with the same card.
const EARLIER: &str = r#"
dhcp eth0 || exit 1
wget -q -O /tmp/small http://10.77.0.2/small || exit 2
set -- $(sha256sum /tmp/small)
echo "= small $1"
"#;

/// The script of the guest. A line that begins with `=` is for the test.
const SCRIPT: &str = r#"
fail() { echo "= failed: $1"; exit 1; }
dhcp eth0 || fail "no address by DHCP"
ip -6 addr add fd77::9/64 dev eth0 || fail "no IPv6 address"
ping -c 3 -W 30 10.77.0.2 || fail "no ping over IPv4"
ping6 -c 3 -W 30 fd77::2 || fail "no ping over IPv6"
echo "= pinged"

wget -q -O /tmp/big http://10.77.0.2/big || fail "no download"
set -- $(sha256sum /tmp/big)
echo "= sum $1"
# The driver goes and comes back, as when a guest boots again.
rmmod virtio_net && modprobe virtio_net || fail "no driver"
dhcp eth0 || fail "no address by DHCP from the second time on"
ip -6 addr add fd77::9/64 dev eth0 || fail "no IPv6 address"
wget -q -O /tmp/small 'http://[fd77::2]/small' || fail "no download over IPv6"
set -- $(sha256sum /tmp/small)
echo "= small $1"

ping -c 1 -W 30 10.77.0.2 || fail "no ping"
set -- $(ip neigh show 10.77.0.2)
while [ $# -gt 1 ] && [ "$1" != lladdr ]; do shift; done
pktgen eth0 "$2" 10.77.0.2 60 FRAMES >/tmp/pktgen || fail "no pktgen"
cat /tmp/pktgen
set -- $(grep pkts-sofar /tmp/pktgen)
echo "= sent $2"

httpd -p 80 -h /tmp || fail "no httpd"
echo "= serving"
read answer
# Once for each round.
again() { while :; do nc 10.77.0.2 "$1" <"$2" >/dev/null 2>&1; usleep 50000; done; }
again 9000 /dev/zero &
again 9001 /dev/null &
read answer
"#;

/// A guest that asks itself, by way of the proxy, over two connections at once.
const BY_PROXY: &str = r#"
fail() { echo "= failed: $1"; exit 1; }
ADDRESS || fail "no address"
set -- /sys/class/net/eth0/queues/rx-*
echo "= queues $#"
mkdir /tmp/www
dd if=/dev/urandom of=/tmp/www/file bs=1M count=16 2>/dev/null || fail "no room"
set -- $(sha256sum /tmp/www/file)
sum=$1
httpd -p 8080 -h /tmp/www || fail "no httpd"
for n in 1 2; do wget -q -O /tmp/$n http://10.77.0.2/file & done
wait
for n in 1 2; do
    set -- $(sha256sum /tmp/$n)
    [ "$1" = "$sum" ] || fail "download $n is not what was sent"
done
echo "= came back"
"#;

/// The script of a guest of the gateway: a download, an upload of its content, and failures.
const THROUGH_GATEWAY: &str = r#"
fail() { echo "= failed: $1"; exit 1; }
dhcp eth0 || fail "no address by DHCP"
wget -q -O /tmp/big http://198.51.100.1:8000/big || fail "no download"
set -- $(sha256sum /tmp/big)
echo "= sum $1"
nc 198.51.100.1 9000 </tmp/big >/dev/null || fail "no upload"
echo "= sent"
wget -q -O /dev/null http://198.51.100.1:9/ && fail "a closed port is open"
wget -q -O /dev/null http://127.0.0.1:8000/ && fail "loopback leads out"
echo "= done"
"#;

/// Receives what one client sends, and prints its sum.
const RECEIVER: &str = "
import hashlib, socket
listener = socket.create_server(('198.51.100.1', 9000))
print('ready', flush=True)
client, _ = listener.accept()
sum = hashlib.sha256()
while data := client.recv(1 << 20):
    sum.update(data)
client.close()
print(sum.hexdigest(), flush=True)";

/// A guest's machine, killed at the end of the test.
struct Machine(Child);

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether a guest can be made here.
fn can_boot() -> bool {
    let build = |what: &str| {
        let output = Command::new(BOOT).arg(what).stdin(Stdio::null()).output();
        let output = output.expect("the script runs");
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&said).trim().to_owned())
    };
    for step in ["--check", "--build"] {
        if step == "--build" {
            waits_for("the guest's image, which is made of Debian's packages");
        }
        let (ok, said) = build(step);
        if !ok {
            pagewire_testkit::skip(format!("no guest can be made here: {said}"));
            return false;
        }
    }
    true
}

/// The guest, and what it says.
struct Guest {
    process: Machine,
    input: ChildStdin,
    lines: Receiver<String>,
    said: Vec<String>,
    deadline: Instant,
}

impl Guest {
    fn boot(dir: &Path, socket: &Path, queues: u8, text: &str) -> Self {
        Self::boot_behind("--vhost-user", dir, socket, queues, text)
    }

    fn boot_behind(link: &str, dir: &Path, socket: &Path, queues: u8, text: &str) -> Self {
        waits_for(format!("a guest to boot and to be done: at most {} s", LIMIT.as_secs()));
        let script = dir.join("script");
        fs::write(&script, text.replace("FRAMES", &FRAMES.to_string())).expect("room");
        let mut process = pagewire_testkit::command(BOOT)
            .args(["--timeout", &LIMIT.as_secs().to_string()])
            .args(["--queues", &queues.to_string()])
            .arg(link)
            .args([socket, &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the script runs");
        let input = process.stdin.take().expect("piped");
        let output = BufReader::new(process.stdout.take().expect("piped"));
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            // A progress bar or a kernel's message need not be UTF-8.
            for line in output.split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let deadline = Instant::now() + LIMIT;
        Self { process: Machine(process), input, lines, said: Vec::new(), deadline }
    }

    /// The rest of the next line that begins with `= ` and `word`.
    fn hear(&mut self, word: &str) -> String {
        waits_for(format!("the guest to say {word:?}"));
        loop {
            let left = self.deadline.saturating_duration_since(Instant::now());
            let Ok(line) = self.lines.recv_timeout(left) else {
                panic!("the guest never said {word:?}, but\n{}", self.said.join("\n"));
            };
            self.said.push(line.clone());
            if let Some(rest) = line.strip_prefix("= ") {
                let all = self.said.join("\n");
                let rest = rest.strip_prefix(word);
                return rest
                    .unwrap_or_else(|| panic!("not {word:?}, but\n{all}"))
                    .trim()
                    .to_owned();
            }
        }
    }

    fn say(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("the guest listens");
    }

    /// Waits for its end.
    fn ends_well(mut self) {
        drop(self.input);
        self.said.extend(self.lines.iter());
        let status = self.process.0.wait().expect("it ends");
        assert!(status.success(), "{status}\n{}", self.said.join("\n"));
    }
}

/// Writes a file of `len` bytes; returns its sum.
fn file_and_sum(path: &Path, len: u64) -> String {
    write_file(path, len, len);
    sum_of(path)
}

fn sum_of(path: &Path) -> String {
    let (mut file, mut sum) = (File::open(path).expect("a file"), Sha256::new());
    let mut block = vec![0; 1 << 20];
    loop {
        match file.read(&mut block).expect("readable") {
            0 => return hex(&sum.finalize()),
            n => sum.update(&block[..n]),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Downloads from the guest, and accounts for every byte: frames shorter than `shortest`, `overhead`
/// bytes of each not payload, are the only ones that may be copied. Where a busy machine lets the
/// download fall so far behind that it holds half of the ring's descriptors, the device copies a
/// longer one instead, and counts it.
fn download(
    guest: &Guest,
    net: &dyn Fn(&mut Command),
    dir: &Path,
    sum: &str,
    shortest: u64,
    overhead: u64,
) {
    let mut fetch = pagewire_testkit::command("timeout");
    net(fetch.args(["--signal=INT", &LIMIT.as_secs().to_string(), PAGEWIRE, "fetch"]));
    fetch.args(["--by-reference-from", &shortest.to_string()]);
    let got = dir.join(format!("got-{shortest}"));
    fetch.arg("-o").arg(&got).arg("http://10.77.0.9/big");
    let output = fetch.output().expect("fetch runs");
    let report = text(&output.stderr);
    println!("{report}");
    assert!(output.status.success(), "{report}\n{}", guest.said.join("\n"));
    assert_eq!(sum_of(&got), sum, "what the guest sent");
    fs::remove_file(&got).expect("it was written");

    for reason in ["app_read", "compact", "linear_head", "snapshot", "device_linearize"] {
        assert_eq!(counter(&report, reason), 0, "{reason}: {report}");
    }
    let (copied, instead) = (counter(&report, "copied"), counter(&report, "copied_instead"));
    assert_eq!(counter(&report, "referenced") + copied, counter(&report, "rx_frames"), "{report}");
    let short = copied - instead;
    let most = short * (shortest - 1 - overhead) + instead * (64 << 10);
    let by_device = counter(&report, "device_rx");
    assert!(by_device <= most, "at most {most}: {report}");
    assert!(by_device < FILE / 2, "most of it by reference: {report}");
    // The stack moves together what lies scattered in pages of its own, never what is the guest's.
    assert!(counter(&report, "small_segment") <= by_device, "{report}");
    if shortest == 1 {
        assert_eq!(short, 0, "{report}");
    }
    if most == 0 {
        assert!(report.contains("payload bytes copied: 0 by the stack"), "{report}");
        assert_eq!(by_device, 0, "{report}");
    }
    assert!(counter(&report, "rx_payload_bytes") >= FILE, "{report}");
    assert_eq!(counter(&report, "held"), 0, "every descriptor was given back: {report}");
}

#[test]
fn a_debian_guest_is_served_and_sends_without_a_copy() {
    if !can_boot() {
        return;
    }
    // Short: a socket's path has at most 107 bytes.
    let dir = tempfile::tempdir().expect("a directory");
    let www = dir.path().join("www");
    fs::create_dir_all(&www).expect("a directory");
    let sum = file_and_sum(&www.join("big"), FILE);
    let small = file_and_sum(&www.join("small"), 1 << 20);
    let socket = dir.path().join("port");
    let net = |command: &mut Command| {
        command.args(["--link", "vhost-user", "--socket"]).arg(&socket);
        command.args(["--addr", "10.77.0.2/24", "--addr", "fd77::2/64", "--stats"]);
        command.stderr(Stdio::piped());
    };

    let mut server = pagewire_testkit::command(PAGEWIRE);
    net(server.arg("serve"));
    server.arg("--dhcp=10.77.0.9-10.77.0.9").arg(&www);
    let serves = format!("serving {} at http://10.77.0.2/", www.display());
    let server = Running::saying(&mut server, &serves);

    let mut guest = Guest::boot(dir.path(), &socket, 1, EARLIER);
    assert_eq!(guest.hear("small"), small);
    guest.ends_well();
    let mut guest = Guest::boot(dir.path(), &socket, 1, SCRIPT);
    guest.hear("pinged");
    assert_eq!(guest.hear("sum"), sum, "what the guest downloaded");
    assert_eq!(guest.hear("small"), small, "over IPv6");
    assert_eq!(guest.hear("sent"), FRAMES.to_string());
    guest.hear("serving");
    let report = server.stop("INT");
    println!("{report}");
    assert_eq!(counter(&report, "sessions"), 2, "{report}");
    assert!(!report.contains(" bad_"), "nothing that only liars do: {report}");
    assert!(counter(&report, "acks") >= 3, "by DHCP: {report}");
    assert!(counter(&report, "icmp_echo_answered") >= 6, "{report}");
    // Every frame that was generated was taken from the ring, and has a reason why it went no further.
    let lost = ["rx_dropped_memory", "rx_dropped_malformed"].map(|name| counter(&report, name));
    let refused = counter(&report, "drop udp_no_socket");
    assert_eq!(refused + lost.iter().sum::<u64>(), FRAMES, "{report}");
    assert_eq!(lost, [0, 0], "{report}");

    // Another program takes the port: the guest's card is plugged in again. What came in frames of a
    // KiB and more was not copied: it is in the file straight from the guest's memory.
    let (shortest, overhead) = (1024, 42);
    download(&guest, &net, dir.path(), &sum, shortest, overhead);
    // With `--by-reference-from 1` it takes every frame by reference, and no byte of payload is copied.
    download(&guest, &net, dir.path(), &sum, 1, 0);

    // And a measurement.
    guest.say("measure");
    let mut bench = pagewire_testkit::command("timeout");
    bench.args(["--signal=INT", &LIMIT.as_secs().to_string(), PAGEWIRE, "bench", "stream"]);
    bench.args(["--link", "vhost-user", "--seconds", "0.1", "--json", "--socket"]).arg(&socket);
    let output = bench.output().expect("bench runs");
    let said = text(&output.stdout);
    println!("{said}");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines: Vec<serde_json::Value> =
        said.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
    assert_eq!(lines.len(), 3, "{said}");
    for line in lines {
        assert_eq!(line["peer"], "guest", "{said}");
        assert!(line["bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{said}");
    }
    // The guest is in the middle of sending, to nobody: it is ended with the test.
}

#[test]
fn a_debian_guest_with_two_pairs_of_queues_reaches_itself_by_way_of_a_proxy() {
    if !can_boot() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("port");
    let mut proxy = pagewire_testkit::command(PAGEWIRE);
    proxy.args(["proxy", "--link", "vhost-user", "--queues", "2", "--socket"]).arg(&socket);
    proxy.args(["--addr", "10.77.0.2/24", "--dhcp=10.77.0.9-10.77.0.9", "--stats"]);
    proxy.args(["--listen", "10.77.0.2:80", "--to", "10.77.0.9:8080"]);
    proxy.stderr(Stdio::piped());
    let proxy = Running::saying(&mut proxy, "forwarding 10.77.0.2:80 to");

    let script = BY_PROXY.replace("ADDRESS", "dhcp eth0");
    let mut guest = Guest::boot(dir.path(), &socket, 2, &script);
    assert_eq!(guest.hear("queues"), "2");
    guest.hear("came back");
    guest.ends_well();
    let report = proxy.stop("INT");
    println!("{report}");
    assert_eq!(counter(&report, "sessions"), 1, "the guest's driver was never cut off: {report}");
    assert!(!report.contains(" bad_"), "nothing that only liars do: {report}");
    assert_eq!(counter(&report, "connected"), 2, "{report}");
}

/// Each core has a pair of the guest's queues.
#[test]
fn a_debian_guest_reaches_itself_by_way_of_a_proxy_on_two_cores() {
    if !can_boot() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("port");
    let mut proxy = pagewire_testkit::command(PAGEWIRE);
    proxy.args(["proxy", "--link", "vhost-user", "--cores", "2", "--socket"]).arg(&socket);
    proxy.args(["--addr", "10.77.0.2/24", "--stats"]);
    proxy.args(["--listen", "10.77.0.2:80", "--to", "10.77.0.9:8080"]);
    proxy.stderr(Stdio::piped());
    let proxy = Running::saying(&mut proxy, "forwarding 10.77.0.2:80 to");

    let address = "ip addr add 10.77.0.9/24 dev eth0 && ip link set eth0 up";
    let script = BY_PROXY.replace("ADDRESS", address);
    let mut guest = Guest::boot(dir.path(), &socket, 2, &script);
    assert_eq!(guest.hear("queues"), "2");
    guest.hear("came back");
    guest.ends_well();
    let report = proxy.stop("INT");
    println!("{report}");
    assert_eq!(counter(&report, "sessions"), 1, "the guest's driver was never cut off: {report}");
    assert!(!report.contains(" bad_"), "nothing that only liars do: {report}");
    assert_eq!(counter(&report, "connected"), 2, "{report}");
}

#[test]
fn a_debian_guest_reaches_the_network_through_the_gateway_over_either_socket() {
    let needs = [Need::Root, Need::Program("ip"), Need::Program("python3")];
    if !pagewire_testkit::can(&needs) || !can_boot() {
        return;
    }
    let far = Lab::make();
    let sum = file_and_sum(&far.path("big"), FILE);
    let server = ["-u", "-m", "http.server", "8000", "--bind", "0.0.0.0"];
    let _server = far.server("python3", &server);
    for (link, card) in [("stream", "--stream"), ("vhost-user", "--vhost-user")] {
        let mut receiver = far.server("python3", &["-c", RECEIVER]);
        let mut gateway = far.command(PAGEWIRE);
        gateway.args(["gateway", "--ready-fd", "1", "--link", link, "--socket", link]);
        let gateway = Running::start(gateway.stderr(Stdio::piped()));
        let dir = far.dir.path();
        let mut guest = Guest::boot_behind(card, dir, &far.path(link), 1, THROUGH_GATEWAY);
        assert_eq!(guest.hear("sum"), sum, "what it downloaded over {link}");
        guest.hear("sent");
        assert_eq!(receiver.line().trim(), sum, "what it uploaded over {link}");
        guest.hear("done");
        guest.ends_well();
        gateway.stop("INT");
    }
}

#[test]
fn a_guest_for_a_socket_where_nobody_listens_says_what_to_start() {
    if !can_boot() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let (missing, left) = (dir.path().join("missing"), dir.path().join("left"));
    // A process that was killed leaves its socket.
    drop(std::os::unix::net::UnixListener::bind(&left).expect("a socket"));
    for socket in [missing, left] {
        let mut boot = Command::new(BOOT);
        boot.args(["--accel", "tcg", "--timeout", "1", "--vhost-user"]).arg(&socket);
        let output = boot.stdin(Stdio::null()).output().expect("the script runs");
        let said = text(&output.stderr);
        let socket = socket.display();
        let advice: Vec<&str> = said.lines().filter(|line| line.contains("pagewire")).collect();
        assert_eq!(advice.len(), 1, "{said}");
        for part in [format!("nobody listens at {socket};"), format!("--socket {socket} ")] {
            assert!(advice[0].contains(&part), "{said}");
        }
        // The guest waits for somebody who listens.
        assert_eq!(output.status.code(), Some(124), "{said}");
    }
}
