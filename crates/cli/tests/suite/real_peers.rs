//! The command against the kernel: `curl` and `python3 -m http.server` on the kernel's side of a
//! tap, in a network namespace that each test makes and removes. Needs root.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use pagewire_testing::{Need, Netns, can};
use tempfile::TempDir;

const PAGEWIRE: &str = env!("CARGO_BIN_EXE_pagewire");
const FAULT: &str = "loss=2%,reorder=2%,dup=1%,delay=5ms,seed=1";
/// The network of the command, by a tap.
pub(crate) const NET: [&str; 10] = [
    "--tap",
    "pw0",
    "--addr",
    "10.77.0.2/24",
    "--addr",
    "fd77::2/64",
    "--host-addr",
    "10.77.0.1/24",
    "--host-addr",
    "fd77::1/64",
];

/// A network namespace and a directory, both gone on drop.
struct Lab {
    netns: Netns,
    dir: TempDir,
}

impl Lab {
    /// `None` if the test is skipped.
    fn new(programs: &[&str]) -> Option<Self> {
        let programs = programs.iter().chain(&["ip"]).map(|name| Need::Program(name));
        let needs: Vec<Need<'_>> = [Need::Tap].into_iter().chain(programs).collect();
        if !can(&needs) {
            return None;
        }
        let lab = Self { netns: Netns::new(), dir: tempfile::tempdir().expect("a directory") };
        lab.ok("ip", &["link", "set", "lo", "up"]);
        Some(lab)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = self.netns.command(program);
        command.current_dir(&self.dir);
        command
    }

    fn output(&self, program: &str, args: &[&str]) -> Output {
        self.command(program).args(args).output().expect("program runs")
    }

    fn ok(&self, program: &str, args: &[&str]) -> String {
        run(self.command(program).args(args))
    }

    /// Starts a program and waits for the first line that it prints.
    fn server(&self, program: &str, args: &[&str], stderr: Stdio) -> Server {
        let mut child = self
            .command(program)
            .args(args)
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .expect("server starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped"));
        let mut first = String::new();
        lines.read_line(&mut first).expect("the server's words");
        let server = Server(child, lines);
        assert!(!first.is_empty(), "the server ended without a word");
        server
    }

    fn serve(&self, dir: &str, more: &[&str]) -> Server {
        self.server(PAGEWIRE, &serve_args(dir, more), Stdio::inherit())
    }

    /// The same, with what it says on standard error kept for later.
    fn serve_quietly(&self, dir: &str, more: &[&str]) -> Server {
        self.server(PAGEWIRE, &serve_args(dir, more), Stdio::piped())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Status and headers or body of a request, as `curl` sees it.
    fn curl(&self, args: &[&str]) -> String {
        let args: Vec<&str> = ["-sS", "--max-time", "60"].iter().chain(args).copied().collect();
        self.ok("curl", &args)
    }

    /// What the server answers to raw bytes.
    fn raw(&self, request: &str) -> String {
        let script = format!(
            "exec 3<>/dev/tcp/10.77.0.2/80; printf '{request}' >&3; timeout 10 head -n 1 <&3"
        );
        self.ok("bash", &["-c", &script])
    }
}

fn serve_args<'a>(dir: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    ["serve"].iter().chain(&NET).chain(more).copied().chain([dir]).collect()
}

/// A child that ends with the test.
struct Server(Child, #[allow(dead_code)] BufReader<std::process::ChildStdout>);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run(command: &mut Command) -> String {
    let output = command.output().expect("program runs");
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// `len` bytes that depend on `seed` and on their position.
fn write_file(path: &Path, len: u64, seed: u64) {
    let mut file = std::io::BufWriter::new(fs::File::create(path).expect("file"));
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut left = len;
    while left > 0 {
        let mut block = [0u8; 4096];
        for word in block.chunks_exact_mut(8) {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            word.copy_from_slice(&x.to_le_bytes());
        }
        let n = left.min(4096) as usize;
        file.write_all(&block[..n]).expect("room for the file");
        left -= n as u64;
    }
    file.flush().expect("room for the file");
}

fn assert_same(a: &Path, b: &Path) {
    run(Command::new("cmp").args([a, b]));
}

const SIZES: [u64; 12] =
    [0, 1, 511, 1448, 4095, 4096, 4097, 65_535, 65_536, 1_000_003, 3_145_728, 16_777_213];

fn mixed_files(lab: &Lab, dir: &str, count: usize) -> Vec<String> {
    fs::create_dir_all(lab.path(dir)).expect("directory");
    (0..count)
        .map(|i| {
            let name = format!("file-{i}.bin");
            write_file(&lab.path(dir).join(&name), SIZES[i % SIZES.len()], i as u64);
            name
        })
        .collect()
}

/// Every file through `curl`, 32 at a time, over both IP versions.
fn fetch_all(lab: &Lab, files: &[String]) {
    for (version, host) in [("v4", "10.77.0.2"), ("v6", "[fd77::2]")] {
        fs::create_dir_all(lab.path(version)).expect("directory");
        let config: String = files
            .iter()
            .map(|f| format!("url = \"http://{host}/{f}\"\noutput = \"{version}/{f}\"\n"))
            .collect();
        fs::write(lab.path("curl.cfg"), config).expect("curl's list");
        lab.ok(
            "curl",
            &[
                "-sSfg",
                "-Z",
                "--parallel-max",
                "32",
                "--no-progress-meter",
                "--max-time",
                "120",
                "-K",
                "curl.cfg",
            ],
        );
        for f in files {
            assert_same(&lab.path("www").join(f), &lab.path(version).join(f));
        }
    }
}

#[test]
fn curl_gets_every_file_intact_over_both_ip_versions_32_at_a_time() {
    let Some(lab) = Lab::new(&["curl"]) else { return };
    let files = mixed_files(&lab, "www", 48);
    let _server = lab.serve("www", &[]);
    fetch_all(&lab, &files);
}

#[test]
fn curl_gets_every_file_intact_through_a_bad_network() {
    let Some(lab) = Lab::new(&["curl"]) else { return };
    let files = mixed_files(&lab, "www", 36);
    let _server = lab.serve("www", &["--fault", FAULT]);
    fetch_all(&lab, &files);
}

#[test]
fn ranges_heads_and_resumed_downloads_work() {
    let Some(lab) = Lab::new(&["curl"]) else { return };
    let whole = lab.path("www/big");
    fs::create_dir_all(lab.path("www")).expect("directory");
    write_file(&whole, 64 << 20, 7);
    let _server = lab.serve("www", &[]);
    let url = "http://10.77.0.2/big";

    let head = lab.curl(&["-I", url]);
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(head.to_lowercase().contains("content-length: 67108864"), "{head}");

    lab.curl(&["--range", "1000000-1999999", "-o", "part", url]);
    let bytes = fs::read(&whole).expect("file");
    assert_eq!(fs::read(lab.path("part")).expect("part"), &bytes[1_000_000..2_000_000]);

    // Slow enough to be cut off in the middle after a second, then resumed.
    let cut = lab.output("curl", &["-s", "--limit-rate", "16M", "-m", "1", "-o", "whole", url]);
    assert!(!cut.status.success(), "the first try was to be interrupted");
    let got = fs::metadata(lab.path("whole")).expect("partial file").len();
    assert!(got < 64 << 20, "nothing was left to resume");
    lab.curl(&["-C", "-", "-o", "whole", url]);
    assert_same(&whole, &lab.path("whole"));
}

#[test]
fn requests_that_climb_out_or_make_no_sense_get_a_4xx() {
    let Some(lab) = Lab::new(&["curl"]) else { return };
    fs::create_dir_all(lab.path("www")).expect("directory");
    fs::write(lab.path("secret"), "secret").expect("file");
    let _server = lab.serve("www", &[]);
    for path in ["/../secret", "/%2e%2e/secret", "/..%2fsecret", "/a/../../secret", "/nothing"] {
        let url = format!("http://10.77.0.2{path}");
        let code = lab.curl(&["--path-as-is", "-o", "/dev/null", "-w", "%{http_code}", &url]);
        assert!(code.starts_with('4'), "{path}: {code}");
    }
    for request in [
        "GARBAGE\\r\\n\\r\\n",
        "GET\\r\\n\\r\\n",
        "GET / HTTP/9.9\\r\\n\\r\\n",
        "\\x00\\x01\\x02\\r\\n\\r\\n",
    ] {
        let answer = lab.raw(request);
        assert!(
            answer.starts_with("HTTP/1.1 4") || answer.starts_with("HTTP/1.1 505"),
            "{request}: {answer}"
        );
    }
    // It still serves.
    let code = lab.curl(&["-o", "/dev/null", "-w", "%{http_code}", "http://10.77.0.2/"]);
    assert_eq!(code, "200");
}

/// What the command said on standard error.
fn fetch_from_python(len: u64, more: &[&str]) -> String {
    let Some(lab) = Lab::new(&["python3"]) else { return String::new() };
    fs::create_dir_all(lab.path("www")).expect("directory");
    write_file(&lab.path("www/big"), len, 3);
    // The tap, and with it the kernel's address, appears with the fetch: bind to any address.
    let python = "import http.server, functools, sys\n\
        h = functools.partial(http.server.SimpleHTTPRequestHandler, directory='www')\n\
        s = http.server.ThreadingHTTPServer(('', 8000), h)\n\
        print('ready', flush=True)\n\
        s.serve_forever()\n";
    let _server = lab.server("python3", &["-c", python], Stdio::inherit());
    let args: Vec<&str> = ["fetch"]
        .iter()
        .chain(&NET)
        .chain(more)
        .copied()
        .chain(["http://10.77.0.1:8000/big", "-o", "got"])
        .collect();
    let output = lab.output(PAGEWIRE, &args);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert_same(&lab.path("www/big"), &lab.path("got"));
    said
}

#[test]
fn fetch_gets_a_gibibyte_intact_from_a_kernel_web_server() {
    let said = fetch_from_python(1 << 30, &["--stats"]);
    if said.is_empty() {
        return;
    }
    // From the pages that the device filled to the file: only what is too small to pin a page was
    // copied. The server writes 64 KiB at a time, which is 376 bytes more than a super-frame carries:
    // when nothing is on the way, the kernel sends them on their own.
    let number = |name: &str| {
        let line = said.lines().find_map(|l| l.trim_start().strip_prefix(name)).expect(&said);
        line.split_whitespace().next().and_then(|n| n.parse::<u64>().ok()).expect(line)
    };
    let copied = number("payload bytes copied: ");
    if copied > 0 {
        assert_eq!(copied, number("small_segment "), "{said}");
    }
    assert!(copied <= (1 << 30) / (64 << 10) * 512, "{said}");
}

#[test]
fn fetch_gets_a_file_intact_through_a_bad_network() {
    fetch_from_python(64 << 20, &["--fault", FAULT]);
}

#[test]
fn fetch_gets_a_file_intact_in_segments_of_whole_pages() {
    fetch_from_python(16 << 20, &["--payload-pages", "2"]);
}

/// Interrupts a server and returns what it said on standard error. The command runs as a child of
/// `ip netns exec`, which becomes it: the process is the same.
fn interrupt(mut server: Server) -> String {
    let pid = rustix::process::Pid::from_child(&server.0);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("a signal is sent");
    let mut said = String::new();
    let mut stderr = server.0.stderr.take().expect("piped");
    std::io::Read::read_to_string(&mut stderr, &mut said).expect("text");
    assert_eq!(server.0.wait().expect("it ends").code(), Some(0), "{said}");
    said
}

/// The value of a counter in a report.
fn counter(report: &str, name: &str) -> u64 {
    let value = report.lines().find_map(|l| l.trim().strip_prefix(name)?.trim().parse().ok());
    value.unwrap_or(0)
}

#[test]
fn a_file_cut_short_while_it_is_served_aborts_its_download_and_nothing_else() {
    for more in [&["--stats"][..], &["--stats", "--fault", "corrupt=0.01%,seed=1"]] {
        let Some(lab) = Lab::new(&["curl"]) else { return };
        fs::create_dir_all(lab.path("www")).expect("directory");
        write_file(&lab.path("www/big"), 64 << 20, 7);
        write_file(&lab.path("www/other"), 1_000_003, 8);
        let server = lab.serve_quietly("www", more);
        let url = "http://10.77.0.2/big";
        let mut slow = lab.command("curl");
        slow.args(["-s", "--limit-rate", "8M", "-m", "60", "-o", "got", url]);
        let mut slow = slow.spawn().expect("curl runs");
        while fs::metadata(lab.path("got")).map_or(0, |m| m.len()) == 0 {
            assert!(slow.try_wait().expect("curl runs").is_none(), "curl ended too early");
            std::thread::yield_now();
        }
        let file = fs::OpenOptions::new().write(true).open(lab.path("www/big")).expect("file");
        file.set_len(100_000).expect("a shorter file");
        assert!(!slow.wait().expect("curl ends").success(), "half a file passed as whole");
        lab.curl(&["-o", "other", "http://10.77.0.2/other"]);
        assert_same(&lab.path("www/other"), &lab.path("other"));
        lab.curl(&["-o", "short", url]);
        assert_same(&lab.path("www/big"), &lab.path("short"));
        let report = interrupt(server);
        assert_eq!(counter(&report, "files_truncated"), 1, "{report}");
    }
}

#[test]
fn a_server_captures_and_counts() {
    let Some(lab) = Lab::new(&["curl"]) else { return };
    fs::create_dir_all(lab.path("www")).expect("directory");
    write_file(&lab.path("www/big"), 10 << 20, 7);
    let server = lab.serve_quietly("www", &["--stats", "--pcap", "frames.pcapng"]);
    lab.curl(&["-o", "got", "http://10.77.0.2/big"]);
    assert_same(&lab.path("www/big"), &lab.path("got"));
    // On SIGUSR1 the same report as at the end, and the server goes on.
    let pid = rustix::process::Pid::from_child(&server.0);
    rustix::process::kill_process(pid, rustix::process::Signal::USR1).expect("a signal is sent");
    lab.curl(&["-I", "http://10.77.0.2/big"]);
    let report = interrupt(server);
    assert_eq!(report.lines().filter(|l| *l == "server").count(), 2, "{report}");
    assert_eq!(counter(&report, "bytes_by_reference"), 10 << 20, "{report}");
    assert!(counter(&report, "responses_2xx") >= 1, "{report}");
    assert!(counter(&report, "device_tx") >= 10 << 20, "{report}");
    let frames = fs::read(lab.path("frames.pcapng")).expect("a capture");
    assert!(frames.starts_with(&[0x0a, 0x0d, 0x0d, 0x0a]) && frames.len() > 10 << 20);
}

/// Sends a signal to a server.
fn signal(server: &Server, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_child(&server.0);
    rustix::process::kill_process(pid, signal).expect("a signal is sent");
}

/// Begins a download that takes longer than anything here, and waits for its first bytes.
fn slow_download(lab: &Lab, url: &str) -> Child {
    let mut slow = lab.command("curl");
    slow.args(["-sS", "--limit-rate", "8M", "-m", "300", "-o", "got", url]);
    let mut slow = slow.stderr(Stdio::piped()).spawn().expect("curl runs");
    while fs::metadata(lab.path("got")).map_or(0, |m| m.len()) == 0 {
        assert!(slow.try_wait().expect("curl runs").is_none(), "curl ended too early");
        std::thread::yield_now();
    }
    slow
}

#[test]
fn a_server_that_is_interrupted_ends_its_downloads_with_an_error() {
    use rustix::process::Signal;
    for ends in [Signal::INT, Signal::TERM] {
        let Some(lab) = Lab::new(&["curl"]) else { return };
        fs::create_dir_all(lab.path("www")).expect("directory");
        // At 8 MB a second, it takes a minute and more.
        let file = fs::File::create(lab.path("www/big")).expect("file");
        file.set_len(1 << 30).expect("a sparse file");
        let mut server = lab.serve("www", &[]);
        let slow = slow_download(&lab, "http://10.77.0.2/big");
        signal(&server, ends);
        assert_eq!(server.0.wait().expect("it ends").code(), Some(0));
        // 18: the end came too early; 56: reset. 28 would be its own patience.
        let output = slow.wait_with_output().expect("curl ends");
        assert!(matches!(output.status.code(), Some(18 | 56)), "{output:?}");
    }
}

#[test]
fn a_proxy_that_is_interrupted_ends_its_connections_with_an_error() {
    let Some(lab) = Lab::new(&["curl", "python3"]) else { return };
    fs::create_dir_all(lab.path("www")).expect("directory");
    let file = fs::File::create(lab.path("www/big")).expect("file");
    file.set_len(1 << 30).expect("a sparse file");
    let python = "import http.server, functools, sys\n\
        h = functools.partial(http.server.SimpleHTTPRequestHandler, directory='www')\n\
        s = http.server.ThreadingHTTPServer(('', 8000), h)\n\
        print('ready', flush=True)\n\
        s.serve_forever()\n";
    let _upstream = lab.server("python3", &["-c", python], Stdio::null());
    let more = ["--listen", "10.77.0.2:80", "--to", "10.77.0.1:8000"];
    let args: Vec<&str> = ["proxy"].iter().chain(&NET).chain(&more).copied().collect();
    let mut proxy = lab.server(PAGEWIRE, &args, Stdio::inherit());
    let slow = slow_download(&lab, "http://10.77.0.2/big");
    signal(&proxy, rustix::process::Signal::INT);
    assert_eq!(proxy.0.wait().expect("it ends").code(), Some(0));
    let output = slow.wait_with_output().expect("curl ends");
    assert!(matches!(output.status.code(), Some(18 | 56)), "{output:?}");
}

#[test]
fn a_second_interrupt_ends_a_server_at_once() {
    use std::os::unix::process::ExitStatusExt;
    let Some(lab) = Lab::new(&["curl"]) else { return };
    fs::create_dir_all(lab.path("www")).expect("directory");
    let file = fs::File::create(lab.path("www/big")).expect("file");
    file.set_len(1 << 30).expect("a sparse file");
    let mut server = lab.serve("www", &[]);
    let mut slow = slow_download(&lab, "http://10.77.0.2/big");
    // Until it has seen the first, another is the same.
    let status = loop {
        signal(&server, rustix::process::Signal::INT);
        match server.0.try_wait().expect("a child") {
            Some(status) => break status,
            None => std::thread::yield_now(),
        }
    };
    assert_eq!(status.signal(), Some(2), "{status:?}");
    slow.kill().expect("curl is there");
    slow.wait().expect("curl ends");
}

#[test]
fn a_server_whose_tap_is_deleted_says_so_and_ends_with_1() {
    let Some(lab) = Lab::new(&["curl"]) else { return };
    fs::create_dir_all(lab.path("www")).expect("directory");
    let mut server = lab.serve_quietly("www", &[]);
    lab.ok("ip", &["link", "del", "pw0"]);
    let mut said = String::new();
    let mut stderr = server.0.stderr.take().expect("piped");
    std::io::Read::read_to_string(&mut stderr, &mut said).expect("text");
    assert_eq!(server.0.wait().expect("it ends").code(), Some(1), "{said}");
    assert!(said.contains("the tap pw0 was deleted"), "{said}");
}

#[test]
fn a_server_that_waits_for_its_tap_serves_again_when_there_is_one() {
    let Some(lab) = Lab::new(&["curl"]) else { return };
    fs::create_dir_all(lab.path("www")).expect("directory");
    fs::write(lab.path("www/small"), "here").expect("file");
    let server = lab.serve_quietly("www", &["--wait-for-device"]);
    assert_eq!(lab.curl(&["http://10.77.0.2/small"]), "here");
    lab.ok("ip", &["link", "del", "pw0"]);
    lab.ok("ip", &["tuntap", "add", "dev", "pw0", "mode", "tap"]);
    // The server may be sooner.
    lab.ok("ip", &["addr", "replace", "10.77.0.1/24", "dev", "pw0"]);
    lab.ok("ip", &["link", "set", "pw0", "up"]);
    let retry = ["--retry", "60", "--retry-delay", "1", "--retry-all-errors"];
    let args: Vec<&str> = retry.iter().chain(&["http://10.77.0.2/small"]).copied().collect();
    assert_eq!(lab.curl(&args), "here");
    let said = interrupt(server);
    assert!(said.contains("waiting for pw0") && said.contains("pw0 is back"), "{said}");
}
