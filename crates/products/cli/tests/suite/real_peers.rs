//! Tests of the command against the kernel: `curl` and `python3 -m http.server` on the kernel's side of a
//! tap, in a network namespace that each test makes and removes. Needs root.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::lab::{Lab, PAGEWIRE, Running, counter, run, text, write_file};

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

/// A file server over [`NET`], whose standard error is kept for later.
fn serve(lab: &Lab, dir: &str, more: &[&str]) -> Running {
    let mut command = lab.command(PAGEWIRE);
    Running::start(command.arg("serve").args(NET).args(more).arg(dir).stderr(Stdio::piped()))
}

/// Status and headers or body of a request, as `curl` sees it.
fn curl(lab: &Lab, args: &[&str]) -> String {
    run(lab.command("curl").args(["-sS", "--max-time", "60"]).args(args))
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
        let many = ["-fg", "-Z", "--parallel-max", "32", "--no-progress-meter", "-K", "curl.cfg"];
        curl(lab, &[&many[..], &["--max-time", "120"]].concat());
        for f in files {
            assert_same(&lab.path("www").join(f), &lab.path(version).join(f));
        }
    }
}

#[test]
fn curl_gets_every_file_intact_over_both_ip_versions_32_at_a_time() {
    let Some(lab) = Lab::new(&["curl"]) else { return };
    let files = mixed_files(&lab, "www", 48);
    let _server = serve(&lab, "www", &[]);
    fetch_all(&lab, &files);
}

#[test]
fn curl_gets_every_file_intact_through_a_bad_network() {
    let Some(lab) = Lab::new(&["curl"]) else { return };
    let files = mixed_files(&lab, "www", 36);
    let _server = serve(&lab, "www", &["--fault", FAULT]);
    fetch_all(&lab, &files);
}

#[test]
fn a_download_that_was_cut_off_is_resumed_by_curl() {
    let Some(lab) = Lab::new(&["curl"]) else { return };
    let whole = lab.path("www/big");
    fs::create_dir_all(lab.path("www")).expect("directory");
    write_file(&whole, 64 << 20, 7);
    let _server = serve(&lab, "www", &[]);
    let url = "http://10.77.0.2/big";

    // Slow enough to be cut off in the middle after a second, then resumed.
    let slow = ["-s", "--limit-rate", "16M", "-m", "1", "-o", "whole", url];
    let cut = lab.command("curl").args(slow).status().expect("curl runs");
    assert!(!cut.success(), "the first try was to be interrupted");
    let got = fs::metadata(lab.path("whole")).expect("partial file").len();
    assert!(got < 64 << 20, "nothing was left to resume");
    curl(&lab, &["-C", "-", "-o", "whole", url]);
    assert_same(&whole, &lab.path("whole"));
}

/// The kernel's web server of `www`. The tap, and with it the kernel's address, appears with the
/// command: it is bound to any address.
fn web_server(lab: &Lab) -> Running {
    let args = ["-u", "-m", "http.server", "8000", "-d", "www", "--bind", "0.0.0.0"];
    lab.server("python3", &args)
}

/// Fetches a file from the kernel's web server; returns the command's standard error.
fn fetch_from_python(len: u64, more: &[&str]) -> String {
    let Some(lab) = Lab::new(&["python3"]) else { return String::new() };
    fs::create_dir_all(lab.path("www")).expect("directory");
    write_file(&lab.path("www/big"), len, 3);
    let _server = web_server(&lab);
    let mut fetch = lab.command(PAGEWIRE);
    fetch.arg("fetch").args(NET).args(more).args(["http://10.77.0.1:8000/big", "-o", "got"]);
    let output = fetch.output().expect("it runs");
    let said = text(&output.stderr);
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
    assert!(said.contains("payload bytes copied: "), "{said}");
    let copied = counter(&said, "payload bytes copied:");
    if copied > 0 {
        assert_eq!(copied, counter(&said, "small_segment"), "{said}");
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

#[test]
fn a_file_cut_short_while_it_is_served_aborts_its_download_and_nothing_else() {
    for more in [&["--stats"][..], &["--stats", "--fault", "corrupt=0.01%,seed=1"]] {
        let Some(lab) = Lab::new(&["curl"]) else { return };
        fs::create_dir_all(lab.path("www")).expect("directory");
        write_file(&lab.path("www/big"), 64 << 20, 7);
        write_file(&lab.path("www/other"), 1_000_003, 8);
        let server = serve(&lab, "www", more);
        let url = "http://10.77.0.2/big";
        let mut slow = slow_download(&lab, url);
        let file = fs::OpenOptions::new().write(true).open(lab.path("www/big")).expect("file");
        file.set_len(100_000).expect("a shorter file");
        assert!(!slow.wait().expect("curl ends").success(), "half a file passed as whole");
        curl(&lab, &["-o", "other", "http://10.77.0.2/other"]);
        assert_same(&lab.path("www/other"), &lab.path("other"));
        curl(&lab, &["-o", "short", url]);
        assert_same(&lab.path("www/big"), &lab.path("short"));
        let report = server.stop("INT");
        assert_eq!(counter(&report, "files_truncated"), 1, "{report}");
    }
}

#[test]
fn a_server_captures_and_counts() {
    let Some(lab) = Lab::new(&["curl"]) else { return };
    fs::create_dir_all(lab.path("www")).expect("directory");
    write_file(&lab.path("www/big"), 10 << 20, 7);
    let server = serve(&lab, "www", &["--stats", "--pcap", "frames.pcapng"]);
    curl(&lab, &["-o", "got", "http://10.77.0.2/big"]);
    assert_same(&lab.path("www/big"), &lab.path("got"));
    // On SIGUSR1 the same report as at the end, and the server goes on.
    server.signal("USR1");
    curl(&lab, &["-I", "http://10.77.0.2/big"]);
    let report = server.stop("INT");
    assert_eq!(report.lines().filter(|l| *l == "server").count(), 2, "{report}");
    assert_eq!(counter(&report, "bytes_by_reference"), 10 << 20, "{report}");
    assert!(counter(&report, "responses_2xx") >= 1, "{report}");
    assert!(counter(&report, "device_tx") >= 10 << 20, "{report}");
    let frames = fs::read(lab.path("frames.pcapng")).expect("a capture");
    assert!(frames.starts_with(&[0x0a, 0x0d, 0x0d, 0x0a]) && frames.len() > 10 << 20);
}

/// A file that takes a minute and more to be downloaded at 8 MB a second.
fn make_endless_file(lab: &Lab) {
    fs::create_dir_all(lab.path("www")).expect("directory");
    let file = fs::File::create(lab.path("www/big")).expect("file");
    file.set_len(1 << 30).expect("a sparse file");
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
    for ends in ["INT", "TERM"] {
        let Some(lab) = Lab::new(&["curl"]) else { return };
        make_endless_file(&lab);
        let mut server = serve(&lab, "www", &[]);
        let slow = slow_download(&lab, "http://10.77.0.2/big");
        server.signal(ends);
        assert_eq!(server.0.wait().expect("it ends").code(), Some(0));
        // 18: the end came too early; 56: reset. 28 would be its own patience.
        let output = slow.wait_with_output().expect("curl ends");
        assert!(matches!(output.status.code(), Some(18 | 56)), "{output:?}");
    }
}

#[test]
fn a_proxy_that_is_interrupted_ends_its_connections_with_an_error() {
    let Some(lab) = Lab::new(&["curl", "python3"]) else { return };
    make_endless_file(&lab);
    let _upstream = web_server(&lab);
    let mut proxy = lab.command(PAGEWIRE);
    proxy.arg("proxy").args(NET).args(["--listen", "10.77.0.2:80", "--to", "10.77.0.1:8000"]);
    let mut proxy = Running::start(&mut proxy);
    let slow = slow_download(&lab, "http://10.77.0.2/big");
    proxy.signal("INT");
    assert_eq!(proxy.0.wait().expect("it ends").code(), Some(0));
    let output = slow.wait_with_output().expect("curl ends");
    assert!(matches!(output.status.code(), Some(18 | 56)), "{output:?}");
}

#[test]
fn a_second_interrupt_ends_a_server_at_once() {
    use std::os::unix::process::ExitStatusExt;
    let Some(lab) = Lab::new(&["curl"]) else { return };
    make_endless_file(&lab);
    let mut server = serve(&lab, "www", &[]);
    let mut slow = slow_download(&lab, "http://10.77.0.2/big");
    // Until it has seen the first, another is the same.
    let status = loop {
        server.signal("INT");
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
    let server = serve(&lab, "www", &[]);
    run(lab.command("ip").args(["link", "del", "pw0"]));
    let said = server.ends_with(1);
    assert!(said.contains("the tap pw0 was deleted"), "{said}");
}

#[test]
fn a_server_that_waits_for_its_tap_serves_again_when_there_is_one() {
    let Some(lab) = Lab::new(&["curl"]) else { return };
    fs::create_dir_all(lab.path("www")).expect("directory");
    fs::write(lab.path("www/small"), "here").expect("file");
    let server = serve(&lab, "www", &["--wait-for-device"]);
    assert_eq!(curl(&lab, &["http://10.77.0.2/small"]), "here");
    run(lab.command("ip").args(["link", "del", "pw0"]));
    run(lab.command("ip").args(["tuntap", "add", "dev", "pw0", "mode", "tap"]));
    // The server may be sooner.
    run(lab.command("ip").args(["addr", "replace", "10.77.0.1/24", "dev", "pw0"]));
    run(lab.command("ip").args(["link", "set", "pw0", "up"]));
    let retry = ["--retry", "60", "--retry-delay", "1", "--retry-all-errors"];
    let args: Vec<&str> = retry.iter().chain(&["http://10.77.0.2/small"]).copied().collect();
    assert_eq!(curl(&lab, &args), "here");
    let said = server.stop("INT");
    assert!(said.contains("waiting for pw0") && said.contains("pw0 is back"), "{said}");
}
