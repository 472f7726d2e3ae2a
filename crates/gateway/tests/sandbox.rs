//! After `close_doors`, what a gateway does not need is refused; before, the same calls succeed.
//!
//! There is no way back from a sandbox, so each case is a process of its own: this test program again,
//! with one test that only acts if it is asked to.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::thread;

use pagewire_gateway::sandbox::{SandboxPlan, close_doors, resolver_files};
use pagewire_testing::{Need, can};
use rustix::mount::{MountFlags, mount};
use rustix::net::{AddressFamily, SocketType, socket};
use rustix::process::{
    Pid, PidfdFlags, Resource, Signal, getrlimit, kill_process, pidfd_open, test_kill_process,
};
use rustix::thread::{LinkNameSpaceType, capabilities, move_into_link_name_space};

/// Says to the test `probe` what to do: which plan, and the identifier of another process.
const ASKED: &str = "PAGEWIRE_TEST_SANDBOX";

/// Something that a process may try, given another process of the same user.
type Attempt = (&'static str, fn(Pid) -> io::Result<()>);

/// What is refused when all is closed.
const FORBIDDEN: [Attempt; 16] = [
    ("read_a_secret", |_| File::open("/etc/shadow").map(drop)),
    ("read_another_file", |_| File::open("/proc/version").map(drop)),
    ("list_a_directory", |_| fs::read_dir("/usr").map(drop)),
    ("make_a_file", |_| tempfile()),
    ("start_a_program", |_| Command::new("true").status().map(drop)),
    ("open_a_raw_socket", |_| open(AddressFamily::INET)),
    ("open_a_packet_socket", |_| open(AddressFamily::PACKET)),
    ("open_a_netlink_socket", |_| open(AddressFamily::NETLINK)),
    (
        "open_a_unix_socket",
        |_| Ok(socket(AddressFamily::UNIX, SocketType::STREAM, None).map(drop)?),
    ),
    ("mount_something", |_| mount_nowhere()),
    ("enter_a_namespace", |_| enter_own_network()),
    ("become_a_user", |_| Ok(rustix::thread::set_thread_uid(rustix::process::getuid())?)),
    ("signal_another_process", |other| Ok(test_kill_process(other)?)),
    ("watch_another_process", |other| Ok(pidfd_open(other, PidfdFlags::empty()).map(drop)?)),
    ("leave_a_core", |_| if_not(getrlimit(Resource::Core).maximum == Some(0))),
    ("have_a_capability", |_| if_not(capabilities(None)?.permitted.is_empty())),
];

/// What a plan may keep; refused by default.
const LISTEN: Attempt = ("listen", |_| TcpListener::bind("127.0.0.1:0").map(drop));

/// What a gateway goes on doing.
const NEEDED: [Attempt; 4] = [
    ("connect", |_| connect()),
    ("start_a_thread_and_use_memory", |_| {
        let thread = thread::Builder::new().spawn(|| vec![1_u8; 8 << 20].len())?;
        thread.join().map(drop).map_err(|_| io::ErrorKind::Other.into())
    }),
    ("read_the_resolvers", |_| fs::read("/etc/resolv.conf").map(drop)),
    ("make_and_name_memory", |_| {
        let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC)?;
        Ok(rustix::fs::ftruncate(file, 4096)?)
    }),
];

fn tempfile() -> io::Result<()> {
    let path = std::env::temp_dir().join(format!("pagewire-sandbox-{}", std::process::id()));
    File::create(&path)?;
    fs::remove_file(path)
}

fn open(family: AddressFamily) -> io::Result<()> {
    Ok(socket(family, SocketType::RAW, None).map(drop)?)
}

/// Where it is allowed, there is no such directory, and nothing is mounted.
fn mount_nowhere() -> io::Result<()> {
    let tried = mount("none", "/there is no such directory", "tmpfs", MountFlags::empty(), None);
    match tried.map_err(io::Error::from) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn enter_own_network() -> io::Result<()> {
    // Opened before the sandbox: the way in, not the file, is what is refused.
    let Some(file) = OWN_NETWORK.get() else { return Err(io::ErrorKind::NotFound.into()) };
    Ok(move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?)
}

static OWN_NETWORK: std::sync::OnceLock<File> = std::sync::OnceLock::new();

fn if_not(closed: bool) -> io::Result<()> {
    if closed { Err(io::ErrorKind::PermissionDenied.into()) } else { Ok(()) }
}

fn connect() -> io::Result<()> {
    let listener = UdpSocket::bind("127.0.0.1:0")?;
    let sender = UdpSocket::bind("127.0.0.1:0")?;
    sender.send_to(b"a", listener.local_addr()?)?;
    listener.recv(&mut [0; 1])?;
    // Refused by the other side, not by the sandbox.
    match TcpStream::connect("127.0.0.1:1") {
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        other => other.map(drop),
    }
}

fn attempts() -> impl Iterator<Item = Attempt> {
    FORBIDDEN.into_iter().chain([LISTEN]).chain(NEEDED)
}

#[test]
fn probe() {
    let Some(asked) = std::env::var_os(ASKED) else { return };
    let asked = asked.into_string().unwrap();
    let (how, other) = asked.split_once(' ').unwrap();
    let other = Pid::from_raw(other.parse().unwrap()).unwrap();
    OWN_NETWORK.set(File::open("/proc/thread-self/ns/net").unwrap()).unwrap();
    if how != "open" {
        let mut plan = SandboxPlan::default();
        plan.read = resolver_files();
        (plan.listens, plan.child) = (how == "listening", how == "with_a_child");
        plan.sockets.extend((how == "unix").then(|| "/there is no such directory".into()));
        for line in close_doors(&plan).missing {
            println!("= missing {line}");
        }
    }
    for (name, attempt) in attempts() {
        let word = attempt(other).map_or_else(|e| format!("{:?}", e.kind()), |()| "done".into());
        println!("= {name} {word}");
    }
}

/// What a process found, by name. `None` if the test is skipped.
fn found(how: &str) -> Option<BTreeMap<String, String>> {
    if !can(&[Need::Root]) {
        return None;
    }
    let mut other = Command::new("cat").stdin(Stdio::piped()).spawn().expect("another process");
    let mut probe = Command::new(std::env::current_exe().expect("this program"));
    probe.args(["--exact", "probe", "--nocapture", "--test-threads", "1"]);
    let output = probe.env(ASKED, format!("{how} {}", other.id())).output().expect("it runs");
    let _ = kill_process(Pid::from_child(&other), Signal::KILL);
    other.wait().expect("its end");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let lines = text.lines().filter_map(|line| line.split_once("= ")?.1.split_once(' '));
    let found: BTreeMap<_, _> =
        lines.map(|(name, word)| (name.to_owned(), word.to_owned())).collect();
    assert_eq!(found.get("missing"), None, "{text}");
    Some(found)
}

#[test]
fn everything_is_possible_before() {
    let Some(found) = found("open") else { return };
    for (name, _) in attempts() {
        assert_eq!(found.get(name).map(String::as_str), Some("done"), "{name}");
    }
}

#[test]
fn afterwards_each_of_them_is_refused_and_the_gateways_work_goes_on() {
    let Some(found) = found("closed") else { return };
    for (name, _) in FORBIDDEN.into_iter().chain([LISTEN]) {
        let word = found.get(name).map(String::as_str);
        assert_eq!(word, Some("PermissionDenied"), "{name}");
    }
    for (name, _) in NEEDED {
        assert_eq!(found.get(name).map(String::as_str), Some("done"), "{name}");
    }
}

#[test]
fn a_plan_may_keep_ports_unix_sockets_or_a_child_and_nothing_else_with_it() {
    let kept = [
        ("listening", Some("listen")),
        ("unix", Some("open_a_unix_socket")),
        // Its own child has a descriptor already; others stay out of reach.
        ("with_a_child", None),
    ];
    for (how, keeps) in kept {
        let Some(found) = found(how) else { return };
        for (name, _) in FORBIDDEN.into_iter().chain([LISTEN]) {
            let expected = if Some(name) == keeps { "done" } else { "PermissionDenied" };
            assert_eq!(found.get(name).map(String::as_str), Some(expected), "{how}: {name}");
        }
    }
}
