//! Errors of use, and of the machine: the command prints one line that says what to do, and has the right exit
//! status.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

use pagewire_testkit::{Need, can};

use crate::lab::{PAGEWIRE, Running, pagewire, text};

const ADDR: [&str; 2] = ["--addr", "10.77.0.2/24"];

/// Fails with status 1 and one line that contains all of `says`, and prints no result.
pub(crate) fn fails(args: &[&str], says: &[&str]) {
    judge(&pagewire(args), 1, args, says);
}

/// The same for what the command line alone shows to be wrong: status 2.
pub(crate) fn is_misuse(args: &[&str], says: &[&str]) {
    judge(&pagewire(args), 2, args, says);
}

fn judge(output: &Output, status: i32, args: &[&str], says: &[&str]) {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{args:?}: {said}");
    assert!(said.starts_with("pagewire: ") && said.ends_with('\n'), "{args:?}: {said}");
    assert_eq!(said.lines().count(), 1, "{args:?}: {said}");
    assert_eq!(text(&output.stdout), "", "{args:?}");
    for part in says {
        assert!(said.contains(part), "{args:?}: {said:?} does not say {part:?}");
    }
}

fn serve<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["serve"], more, &["/"]].concat()
}

#[test]
fn wrong_usage_exits_with_2() {
    const FRONT: &str = "10.77.0.2:80";
    const BACK: &str = "10.77.0.1:8000";
    for args in [
        &[][..],
        &["dance"],
        &["serve"],
        &["serve", "--port", "0", "/"],
        &["serve", "--port", "65536", "/"],
        &["serve", "--mtu", "100", "/"],
        &["serve", "--mtu", "65536", "/"],
        &["serve", "--copy-below", "many", "/"],
        &["serve", "--connections", "0", "/"],
        &["serve", "--connections", "16385", "/"],
        &["serve", "--connections-per-client", "0", "/"],
        &["serve", "--min-rate", "slow", "/"],
        &["serve", "--link", "vhost-user", "--socket", "/x", "--mac", "2:50:57", "/"],
        &["serve", "--link", "vhost-user", "--socket", "/x", "--queues", "65", "/"],
        &["bench", "stream", "--link", "vhost-user"],
        &["serve", "--fault", "loss=200%", "/"],
        &["serve", "--fault", "gremlins=1", "/"],
        &["fetch"],
        &["fetch", "--link", "pair", "-o", "/tmp/x", "http://10.77.0.1/"],
        &["demo", "--size", "1G", "/tmp"],
        &["demo", "--connections", "0"],
        &["bench"],
        &["bench", "stream", "--rounds", "2"],
        &["bench", "stream", "--seconds", "0"],
        &["bench", "idle", "--connections", "0"],
        &["bench", "send", "--size", "0"],
        &["bench", "send", "--size", "17M"],
        &["bench", "send", "--size", "4K,many"],
        &["bench", "send", "--mode", "copy"],
        &["proxy"],
        &["proxy", "--listen", FRONT],
        &["proxy", "--to", BACK],
        &["proxy", "--listen", "10.77.0.2", "--to", BACK],
        &["proxy", "--listen", "here:80", "--to", BACK],
        &["proxy", "--listen", FRONT, "--to", "fd77::1:80"],
        &["proxy", "--listen", FRONT, "--to", BACK, "--connections", "0"],
        &["proxy", "--listen", FRONT, "--to", BACK, "--connections", "28233"],
        &["proxy", "--listen", FRONT, "--to", BACK, "--backlog", "5000"],
        &["proxy", "--listen", FRONT, "--to", BACK, "--connect-timeout", "0"],
        &["proxy", "--listen", FRONT, "--to", BACK, "--keepalive", "7201"],
        &["proxy", "--listen", FRONT, "--to", BACK, "--memory", "1M"],
        &["proxy", "--listen", FRONT, "--to", BACK, "--addr", "10.77.0.2/24", "--link", "pair"],
    ] {
        let output = pagewire(args);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(!said.is_empty(), "{args:?}");
    }
}

#[test]
fn help_says_units_and_shows_examples() {
    for (command, parts) in [
        ("demo", &[][..]),
        ("serve", &["in bytes", "--socket /tmp/pw.sock"]),
        ("fetch", &[]),
        ("bench", &[]),
        ("proxy", &["--listen 10.77.0.2:80", "Seconds", "Bytes of memory", "Urgent data"]),
    ] {
        let output = pagewire(&[command, "--help"]);
        let said = text(&output.stdout);
        assert!(output.status.success() && said.contains("Examples:"), "{command}: {said}");
        assert!(parts.iter().all(|part| said.contains(part)), "{command}: {said}");
    }
    assert!(pagewire(&["--version"]).status.success());
}

#[test]
fn an_address_mistake_says_what_an_address_looks_like() {
    is_misuse(&serve(&[]), &["--addr is missing", "10.77.0.2/24"]);
    for (long, bits) in [("10.77.0.2/33", "32"), ("10.77.0.2/300", "32"), ("fd77::2/129", "128")] {
        is_misuse(&serve(&["--addr", long]), &["--addr", long, "too long", bits]);
    }
    for wrong in ["10.77.0.2", "10.77.0.2/x", "10.77.0.300/24", "eth0", ""] {
        is_misuse(&serve(&["--addr", wrong]), &["--addr", wrong, "such as 10.77.0.2/24"]);
        let args = [&ADDR[..], &["--host-addr", wrong]].concat();
        is_misuse(&serve(&args), &["--host-addr", wrong, "such as 10.77.0.2/24"]);
    }
    let same = [&ADDR[..], &["--host-addr", "10.77.0.2/24"]].concat();
    is_misuse(&serve(&same), &["10.77.0.2", "different"]);
    for (addr, apart) in [
        ("10.77.0.2/24", "10.78.0.1/24"),
        ("10.77.0.2/25", "10.77.0.129/25"),
        ("10.77.0.2/24", "fd77::1/64"),
        ("fd77::2/64", "fd77:0:0:1::1/64"),
    ] {
        let args = ["--addr", addr, "--host-addr", apart];
        let (named, _) = apart.split_once('/').expect("a length");
        is_misuse(&serve(&args), &["--host-addr", named, "in no network of --addr"]);
    }
}

#[test]
fn an_address_that_no_host_can_have_is_a_mistake_too() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("port");
    let link = ["--link", "vhost-user", "--socket", socket.to_str().expect("text")];
    for (more, says) in [
        (&["--addr", "224.0.0.1/24"][..], "224.0.0.1"),
        (&["--addr", "10.77.0.2/24", "--addr", "10.77.0.2/24"], "given twice"),
    ] {
        is_misuse(&serve(&[&link[..], more].concat()), &[says]);
    }
}

#[test]
fn a_mistake_in_the_addresses_to_give_says_which_could_be() {
    let dhcp = |addr, dhcp| serve(&["--addr", addr, dhcp]).join(" ");
    for (args, says) in [
        (dhcp("fd77::2/64", "--dhcp"), "IPv4"),
        (dhcp("10.77.0.2/31", "--dhcp"), "at most 30 bits"),
        (dhcp("10.77.0.2/24", "--dhcp=many"), "10.77.0.10-10.77.0.99"),
        (dhcp("10.77.0.2/24", "--dhcp=10.77.0.9-10.77.0.8"), "no address"),
        (dhcp("10.77.0.2/24", "--dhcp=10.77.0.9-10.78.0.8"), "not for hosts"),
        (dhcp("10.77.0.2/8", "--dhcp=10.77.0.9-10.78.0.8"), "at most 256"),
    ] {
        is_misuse(&args.split(' ').collect::<Vec<_>>(), &["--dhcp", says]);
    }
}

#[test]
fn a_route_mistake_says_why_the_router_cannot_be_reached() {
    let far = [&ADDR[..], &["--gateway", "10.78.0.1"]].concat();
    is_misuse(&serve(&far), &["--gateway 10.78.0.1", "in no network of --addr"]);
    let own = [&ADDR[..], &["--gateway", "10.77.0.2"]].concat();
    is_misuse(&serve(&own), &["--gateway 10.77.0.2", "our own address"]);
    let wrong = [&ADDR[..], &["--gateway", "10.77.0.1/24"]].concat();
    is_misuse(&serve(&wrong), &["--gateway 10.77.0.1/24", "without a prefix length"]);
}

#[test]
fn a_tap_mistake_says_what_a_name_may_be() {
    for name in ["sixteen-letters!", "a/b", "", "."] {
        is_misuse(&serve(&[&ADDR[..], &["--tap", name]].concat()), &[]);
    }
}

#[test]
fn options_of_different_links_are_not_given_together() {
    let port = ["--link", "vhost-user", "--socket", "/no/such/directory/x"];
    let both =
        |link: &[&'static str], more: &[&'static str]| serve(&[&ADDR[..], link, more].concat());
    is_misuse(&both(&port, &["--tap", "pw0"]), &["--tap needs --link tap"]);
    is_misuse(&both(&port, &["--host-addr", "10.77.0.1/24"]), &["--host-addr is for a tap"]);
    for link in [&[][..], &["--link", "tap"]] {
        for more in [
            ["--socket", "/tmp/x"],
            ["--queues", "2"],
            ["--mac", "02:50:57:00:00:01"],
            ["--by-reference-from", "1"],
        ] {
            is_misuse(&both(link, &more), &[more[0], "needs --link vhost-user"]);
        }
    }
    for more in [&["--tap", "pw0"][..], &["--socket", "/tmp/x"], &[]] {
        is_misuse(&both(&["--link", "pair"], more), &["this command needs --link tap"]);
    }
    // Measurements have taps of their own.
    let stream = ["bench", "stream", "--link"];
    for (more, says) in [
        (&["tap", "--socket", "/tmp/x"][..], "--socket needs --link vhost-user"),
        (&["pair", "--socket", "/tmp/x"], "--socket needs --link vhost-user"),
        (&["pair", "--direction", "send"], "--link tap"),
        (&["vhost-user", "--socket", "/no/x", "--via-proxy"], "--via-proxy is for"),
    ] {
        is_misuse(&[&stream[..], more].concat(), &[says]);
    }
    is_misuse(&["bench", "ring", "--link", "tap", "--place"], &["--place", "over a tap"]);
    is_misuse(
        &["bench", "send", "--link", "tap", "--receiver", "copy"],
        &["--receiver", "over a tap"],
    );
}

#[test]
fn an_unreadable_directory_is_named() {
    let absent = [&["serve"], &ADDR[..], &["/no/such/directory"]].concat();
    fails(&absent, &["/no/such/directory", "No such file or directory", "name a directory"]);
    let file = [&["serve"], &ADDR[..], &["/etc/passwd"]].concat();
    fails(&file, &["/etc/passwd", "Not a directory"]);
    fails(&["demo", "/no/such/directory"], &["/no/such/directory", "No such file or directory"]);
}

#[test]
fn a_plot_that_cannot_be_written_is_reported_before_anything_is_measured() {
    fails(
        &["bench", "send", "--plot", "/no/such/directory/x.svg", "--seconds", "3600"],
        &["--plot /no/such/directory/x.svg", "No such file"],
    );
}

fn port(socket: &str) -> Vec<&str> {
    serve(&[&ADDR[..], &["--link", "vhost-user", "--socket", socket]].concat())
}

#[test]
fn a_socket_that_cannot_be_made_says_what_to_do() {
    let missing = serve(&[&ADDR[..], &["--link", "vhost-user"]].concat());
    is_misuse(&missing, &["needs --socket PATH"]);
    let long = format!("/tmp/{}", "long/".repeat(30));
    fails(&port(&long), &["--socket", "at most 107 bytes"]);
    fails(&port("/no/such/directory/x"), &["No such file", "in a directory that exists"]);
    // No file of somebody else's is taken for a socket that is left over.
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("file");
    std::fs::write(&file, "precious").expect("a file");
    fails(&port(file.to_str().expect("text")), &["no socket"]);
    assert_eq!(std::fs::read(&file).expect("it is still there"), b"precious");
    let closed = directory.path().join("closed");
    std::fs::create_dir(&closed).expect("a directory");
    let mode = Permissions::from_mode;
    std::fs::set_permissions(directory.path(), mode(0o755)).expect("permissions");
    std::fs::set_permissions(&closed, mode(0o000)).expect("permissions");
    let closed = closed.join("port");
    let args = port(closed.to_str().expect("text"));
    let output = ForAll::new().run("", &args);
    judge(&output, 1, &args, &["Permission denied", "that you may write to"]);
}

#[test]
fn a_socket_in_use_is_refused_and_one_left_over_is_taken() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("port");
    let socket = path.to_str().expect("text");
    // A process that was killed leaves its socket.
    drop(std::os::unix::net::UnixListener::bind(&path).expect("a socket"));
    let mut server = pagewire_testkit::command(PAGEWIRE);
    server.args(port(socket)).stderr(Stdio::piped());
    let server = Running::saying(&mut server, "serving / at http://10.77.0.2/");
    fails(&port(socket), &[socket, "another program listens there"]);
    // The socket goes with the server that made it.
    server.stop("INT");
    assert!(!path.exists());
}

#[test]
fn wrong_usage_of_run_exits_with_125_wherever_the_word_stands_and_says_where_the_program_goes() {
    for args in [
        &["run", "--bad", "--", "true"][..],
        &["-v", "run", "--bad", "--", "true"],
        &["--log-level", "info", "run", "--bad"],
        &["run", "curl", "http://192.0.2.1/"],
        &["run"],
    ] {
        let output = pagewire(args);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{args:?}: {said}");
        let tip = said.contains("put `--` in front of the program");
        assert_eq!(tip, args.contains(&"curl"), "{args:?}: {said}");
    }
    // The words of a program are its own.
    let output = pagewire(&["fetch", "run", "--bad"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(pagewire(&["run", "--help"]).status.success());
}

#[test]
fn a_namespace_of_a_process_that_is_not_there_is_a_mistake() {
    let args = ["gateway", "--link", "tap", "--netns", "4194305"];
    is_misuse(&args, &["--netns 4194305", "there is no such process"]);
}

#[test]
fn without_a_usual_place_for_control_sockets_ss_says_why_it_finds_none() {
    let output = ForAll::new().run("unset XDG_RUNTIME_DIR;", &["ss"]);
    let said = text(&output.stderr);
    assert!(output.status.success() && said.contains("XDG_RUNTIME_DIR is not set"), "{said}");
    assert!(said.contains("--control PATH"), "{said}");
}

#[test]
fn a_url_that_cannot_be_fetched_says_why() {
    let fetch = |url| [&["fetch"], &ADDR[..], &[url]].concat();
    is_misuse(&fetch("10.77.0.1/x"), &["not a URL"]);
    is_misuse(&fetch("https://10.77.0.1/x"), &["only http://"]);
    is_misuse(&fetch("http://example.org/x"), &["no resolver", "address"]);
    is_misuse(&fetch("http://10.77.0.1/"), &["-o FILE"]);
    is_misuse(
        &[&fetch("http://10.77.0.1/x")[..], &["-o", "/tmp"]].concat(),
        &["directory", "-o FILE"],
    );
}

/// The command where any user may run it: a build may lie in a directory that is closed to others.
struct ForAll(tempfile::TempDir);

impl ForAll {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let open = || Permissions::from_mode(0o755);
        std::fs::set_permissions(dir.path(), open()).expect("permissions");
        // By a program: while this one had the copy open, a child of another test would keep it open,
        // and what is open for writing cannot be run.
        let copied = Command::new("cp").arg(PAGEWIRE).arg(dir.path()).status().expect("cp");
        assert!(copied.success(), "no room");
        std::fs::set_permissions(dir.path().join("pagewire"), open()).expect("permissions");
        Self(dir)
    }

    /// By way of `sh`, which runs `script` first; as another user, where this one may do everything.
    fn run(&self, script: &str, args: &[&str]) -> Output {
        let mut command = Command::new("sh");
        if rustix::process::geteuid().is_root() {
            command.uid(65_534).gid(65_534);
        }
        let script = format!("{script} exec \"$0\" \"$@\"");
        command.args(["-c", &script]).arg(self.0.path().join("pagewire")).args(args);
        command.stdin(Stdio::null()).output().expect("a shell")
    }
}

#[test]
fn a_missing_permission_says_which() {
    let args = serve(&[&ADDR[..], &["--tap", "pwmistake"]].concat());
    let command = ForAll::new();
    let output = command.run("", &args);
    let said = text(&output.stderr).to_lowercase();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("root") || said.contains("cap_net_admin") || said.contains("modprobe"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
    let directory = tempfile::tempdir().expect("a directory");
    let closed = directory.path().join("closed");
    std::fs::create_dir(&closed).expect("a directory");
    std::fs::set_permissions(&closed, Permissions::from_mode(0o000)).expect("permissions");
    let closed = closed.to_str().expect("text");
    let args = [&["serve"], &ADDR[..], &[closed]].concat();
    judge(&command.run("", &args), 1, &args, &["Permission denied", "that you may read"]);
}

#[test]
fn a_measurement_that_needs_root_asks_before_it_makes_anything() {
    let command = ForAll::new();
    for args in [
        &["path"][..],
        &["share"],
        &["stream", "--link", "tap"],
        &["send", "--link", "tap", "--plot", "/no/such/directory/x.svg"],
        &["receive", "--link", "tap"],
        &["ring", "--link", "tap"],
        &["datagrams"],
    ] {
        // With less memory than what is sent takes: 256 MiB.
        let output = command.run("ulimit -v 250000;", &[&["bench"], args].concat());
        judge(&output, 1, args, &["this measurement needs root (CAP_SYS_ADMIN)"]);
    }
}

#[test]
fn with_root_a_tap_that_is_taken_a_capture_that_cannot_be_written_and_silence_are_reported() {
    if !can(&[Need::Tap]) {
        return;
    }
    let tap = format!("pwm{}", std::process::id());
    let net = ["--tap", &tap, "--addr", "10.213.77.2/24", "--host-addr", "10.213.77.1/24"];
    let capture = [&net[..], &["--pcap", "/no/such/directory/x"]].concat();
    fails(&serve(&capture), &["--pcap /no/such/directory/x", "No such file"]);
    let fetch = |url| [&["fetch"], &net[..], &["-o", "/dev/null", url]].concat();
    fails(&fetch("http://10.213.77.1:1/x"), &["10.213.77.1:1", "listening"]);
    fails(&fetch("http://10.99.0.1/x"), &["10.99.0.1", "--gateway"]);

    let mut server = pagewire_testkit::command(PAGEWIRE);
    server.args(serve(&net)).stderr(Stdio::piped());
    let server = Running::saying(&mut server, "serving / at http://10.213.77.2/");
    fails(&serve(&net), &[&tap, "another program has it open"]);
    // An interrupt ends it cleanly.
    server.stop("INT");
}
