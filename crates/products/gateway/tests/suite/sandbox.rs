//! The sandbox: after `close_doors`, calls that a gateway does not need are refused; before, the same calls succeed.
//!
//! There is no way back from a sandbox, so each case is a process of its own: this test program again,
//! with one test that only acts if it is asked to.

use std::collections::BTreeMap;
use std::env::consts::ARCH;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use pagewire::Device;
use pagewire::device::{DatagramLink, StreamLink, VhostUser, VhostUserBuilder};
use pagewire_device::vhost_user::double;
use pagewire_gateway::sandbox::{SandboxPlan, SandboxUser, close_doors, resolver_files};
use pagewire_gateway::{Gateway, Guest, GuestConfig};
use pagewire_testkit::{Need, can};
use rustix::fs::Mode;
use rustix::mount::{MountFlags, mount};
use rustix::net::{AddressFamily, SocketType, socket};
use rustix::process::{
    Pid, PidfdFlags, Resource, Signal, geteuid, getrlimit, kill_process, pidfd_open, setrlimit,
    test_kill_process,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use signal_hook::consts::SIGUSR1;
use signal_hook::iterator::Signals;
use tempfile::tempdir;

use crate::support::frames::arp;
use crate::support::{PATIENCE, far, world};

/// Says to the test `probe` what to do: which plan, the identifier of another process, and a directory.
const ASKED: &str = "PAGEWIRE_TEST_SANDBOX";

/// Something that a process may try, given another process of the same user.
type Attempt = (&'static str, fn(Pid) -> io::Result<()>);

/// Calls that the strictest sandbox refuses.
const FORBIDDEN: [Attempt; 22] = [
    ("make_a_file", |_| tempfile()),
    ("open_a_file_to_write_to", |_| File::options().write(true).open("/dev/null").map(drop)),
    ("start_a_program", |_| Command::new("true").status().map(drop)),
    ("change_and_execute_memory", |_| executable::map()),
    ("execute_memory_that_is_there", |_| executable::protect()),
    // A namespace of users: others take a capability.
    ("make_a_namespace", |_| calls::fork_into(libc::CLONE_NEWUSER)),
    ("ask_another_thing_of_a_file", |_| calls::ioctl(libc::FIOCLEX)),
    ("ask_another_thing_of_the_process", |_| Ok(rustix::process::dumpable_behavior().map(drop)?)),
    ("have_signals_sent_by_a_file", |_| calls::own_signals()),
    ("set_a_limit", |_| Ok(setrlimit(Resource::Nofile, getrlimit(Resource::Nofile))?)),
    ("pair_datagram_sockets", |_| UnixDatagram::pair().map(drop)),
    ("open_a_raw_socket", |_| open_raw()),
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
    ("be_root", |_| if_not(!geteuid().is_root())),
];

/// Files: they have no name any more, or may not be opened.
const FILES: [Attempt; 3] = [
    ("read_a_secret", |_| File::open("/etc/shadow").map(drop)),
    ("read_another_file", |_| File::open("/proc/version").map(drop)),
    ("list_a_directory", |_| fs::read_dir("/usr").map(drop)),
];

/// The right to signal, which a former root keeps for a child.
const CAPABLE: Attempt =
    ("have_a_capability", |_| if_not(permitted()?.bytes().all(|digit| digit == b'0')));

/// A right that a plan may keep; refused by default.
const LISTEN: Attempt = ("listen", |_| TcpListener::bind("127.0.0.1:0").map(drop));

/// Calls that a gateway goes on making.
const NEEDED: [Attempt; 9] = [
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
    // For resolvers of one link, such as fe80::1%eth0.
    ("find_an_interface", |_| {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        Ok(rustix::net::netdevice::name_to_index(&socket, "lo").map(drop)?)
    }),
    ("hear_signals", |_| hear_signals()),
    ("relay_a_connection", |_| relay_a_connection()),
    ("serve_a_stream_link", |_| serve_a_stream_link()),
    ("serve_a_vhost_user_link", |_| serve_a_vhost_user_link()),
];

/// Calls of a gateway whose plan has Unix peers.
const SENDS: Attempt = ("serve_a_datagram_link", |_| serve_a_datagram_link());

/// Descriptors that a gateway has before it enters the sandbox, and the guests at the other ends.
struct Prepared {
    own_network: File,
    status: File,
    server: TcpListener,
    stream: Option<(StreamLink, UnixStream)>,
    datagram: Option<(DatagramLink, UnixDatagram)>,
    vhost_user: Option<(UnixListener, PathBuf, UnixStream)>,
}

static PREPARED: Mutex<Option<Prepared>> = Mutex::new(None);

impl Prepared {
    /// Opens all of it; sockets are in this directory.
    fn open(dir: &Path) -> Self {
        let [stream, datagram, guest, vhost_user] =
            ["stream", "datagram", "guest", "vhost-user"].map(|name| dir.join(name));
        let device = StreamLink::builder().listen(&stream).expect("a link");
        let stream = Some((device, UnixStream::connect(&stream).expect("a guest")));
        let device = DatagramLink::builder().bind(&datagram).expect("a link");
        let peer = UnixDatagram::bind(guest).expect("a guest");
        peer.connect(&datagram).expect("a guest");
        let listener = VhostUserBuilder::bind(&vhost_user).expect("a link");
        let front_end = UnixStream::connect(&vhost_user).expect("a guest");
        Self {
            own_network: File::open("/proc/thread-self/ns/net").expect("our namespace"),
            status: File::open("/proc/thread-self/status").expect("our state"),
            server: TcpListener::bind("127.0.0.1:0").expect("a server"),
            stream,
            datagram: Some((device, peer)),
            vhost_user: Some((listener, vhost_user, front_end)),
        }
    }

    /// Something of what is prepared.
    fn take<T>(what: impl FnOnce(&mut Self) -> Option<T>) -> io::Result<T> {
        let mut prepared = PREPARED.lock().expect("no panic before");
        prepared.as_mut().and_then(what).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

fn hear_signals() -> io::Result<()> {
    let mut signals = Signals::new([SIGUSR1])?;
    // This is not the first thread, the only one that musl's `raise` may signal.
    if cfg!(target_env = "musl") {
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::USR1)?;
    } else {
        signal_hook::low_level::raise(SIGUSR1)?;
    }
    if_heard(signals.forever().next() == Some(SIGUSR1))
}

fn if_heard(heard: bool) -> io::Result<()> {
    if heard { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
}

fn relay_a_connection() -> io::Result<()> {
    let server = Prepared::take(|prepared| prepared.server.try_clone().ok())?;
    let world = world();
    let to: SocketAddr = far(server.local_addr()?.port());
    let mut connection = world.inside.connect(to).map_err(io::Error::other)?;
    let (mut served, _) = server.accept()?;
    served.write_all(b"x")?;
    connection.read_exact(&mut [0; 1])
}

/// A gateway at 10.0.2.2 behind this device.
fn gateway(device: impl Device + 'static) -> io::Result<(Gateway, Guest)> {
    let gateway = Gateway::builder().start();
    let config = GuestConfig::new().network("10.0.2.2/24").map_err(io::Error::other)?;
    let guest = gateway.add(device, config).map_err(io::Error::other)?;
    Ok((gateway, guest))
}

/// Whether this is the answer to [`arp`].
fn is_answer(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&[8, 6]) && frame.get(20..22) == Some(&[0, 2])
}

fn serve_a_stream_link() -> io::Result<()> {
    let (device, mut peer) = Prepared::take(|prepared| prepared.stream.take())?;
    let _gateway = gateway(device)?;
    peer.set_read_timeout(Some(PATIENCE))?;
    let asks = arp();
    peer.write_all(&[&(asks.len() as u32).to_be_bytes()[..], &asks].concat())?;
    loop {
        let mut length = [0; 4];
        peer.read_exact(&mut length)?;
        let mut frame = vec![0; u32::from_be_bytes(length) as usize];
        peer.read_exact(&mut frame)?;
        if is_answer(&frame) {
            return Ok(());
        }
    }
}

fn serve_a_datagram_link() -> io::Result<()> {
    let (device, peer) = Prepared::take(|prepared| prepared.datagram.take())?;
    let _gateway = gateway(device)?;
    peer.set_read_timeout(Some(PATIENCE))?;
    peer.send(b"VFKT")?;
    peer.send(&arp())?;
    let mut frame = [0; 2048];
    loop {
        let length = peer.recv(&mut frame)?;
        if is_answer(&frame[..length]) {
            return Ok(());
        }
    }
}

fn serve_a_vhost_user_link() -> io::Result<()> {
    let (listener, path, front_end) = Prepared::take(|prepared| prepared.vhost_user.take())?;
    let device = VhostUser::builder().accept(listener, path).map_err(io::Error::other)?;
    let _gateway = gateway(device)?;
    let mut guest = double::Guest::over(front_end, Default::default()).map_err(io::Error::other)?;
    let end = Instant::now() + PATIENCE;
    guest.send(&arp());
    while Instant::now() < end {
        match guest.receive() {
            Some(frame) if is_answer(&frame.bytes) => return Ok(()),
            Some(_) => {}
            None => thread::park_timeout(Duration::from_millis(1)),
        }
    }
    if_heard(false)
}

fn tempfile() -> io::Result<()> {
    let path = std::env::temp_dir().join(format!("pagewire-sandbox-{}", std::process::id()));
    File::create(&path)?;
    fs::remove_file(path)
}

fn open_raw() -> io::Result<()> {
    let protocol = Some(rustix::net::ipproto::ICMP);
    Ok(socket(AddressFamily::INET, SocketType::RAW, protocol).map(drop)?)
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
    let file = Prepared::take(|prepared| prepared.own_network.try_clone().ok())?;
    Ok(move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?)
}

/// The capabilities that this thread may use.
fn permitted() -> io::Result<String> {
    // Opened before the sandbox, behind which nothing tells.
    let mut file = Prepared::take(|prepared| prepared.status.try_clone().ok())?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let word = text.lines().find_map(|line| line.strip_prefix("CapPrm:"));
    word.map(|word| word.trim().to_owned()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

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

fn forbidden() -> impl Iterator<Item = Attempt> {
    FORBIDDEN.into_iter().chain([LISTEN, CAPABLE])
}

fn attempts() -> impl Iterator<Item = Attempt> {
    forbidden().chain(FILES).chain(NEEDED)
}

/// Has the kernel answer calls of these numbers as if it did not have them, or refused.
fn without(calls: &[i64], error: i32) {
    let rules = calls.iter().map(|&call| (call, Vec::new())).collect();
    let (then, target) = (SeccompAction::Errno(error as u32), ARCH.try_into().expect("known"));
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, then, target).expect("a filter");
    let filter: BpfProgram = filter.try_into().expect("a filter");
    seccompiler::apply_filter(&filter).expect("a filter");
}

#[test]
fn probe() {
    let Some(asked) = std::env::var_os(ASKED) else { return };
    let asked = asked.into_string().unwrap();
    let (how, asked) = asked.split_once(' ').unwrap();
    let (other, dir) = asked.split_once(' ').unwrap();
    let other = Pid::from_raw(other.parse().unwrap()).unwrap();
    *PREPARED.lock().unwrap() = Some(Prepared::open(dir.as_ref()));
    if how != "open" {
        let mut plan = SandboxPlan::default();
        plan.read = resolver_files();
        (plan.listens, plan.child) = (how.starts_with("listening"), how == "with_a_child");
        plan.low_ports = how == "listening_below_1024";
        plan.source = how == "with_a_source";
        plan.unix_peers = how == "sending";
        plan.sockets.extend((how == "unix").then(|| "/there is no such directory".into()));
        if how.starts_with("without") {
            without(&[libc::SYS_landlock_create_ruleset], libc::ENOSYS);
        }
        if how == "without_both" {
            without(&[libc::SYS_unshare], libc::EPERM);
        }
        if how == "masked" {
            rustix::process::umask(Mode::from_raw_mode(0o077));
        }
        if how == "as_a_user_who_is_not" {
            plan.user = Some(SandboxUser { uid: 1000, gid: 1000, groups: Vec::new() });
            without(&[libc::SYS_setresuid], libc::EINVAL);
        }
        match close_doors(&plan) {
            Ok(report) => {
                report.missing.iter().for_each(|line| println!("= missing {line}"));
            }
            Err(error) => return println!("= refused {error}"),
        }
    }
    let sends = ["open", "sending"].contains(&how).then_some(SENDS);
    for (name, attempt) in attempts().chain(sends) {
        let word = attempt(other).map_or_else(|e| format!("{:?}", e.kind()), |()| "done".into());
        println!("= {name} {word}");
    }
}

/// The results of a process, by name. `None` if the test is skipped.
fn found(how: &str) -> Option<Found> {
    if !can(&[Need::Root]) {
        return None;
    }
    let mut other = Command::new("cat").stdin(Stdio::piped()).spawn().expect("another process");
    let mut probe = Command::new(std::env::current_exe().expect("this program"));
    probe.args(["--exact", "sandbox::probe", "--nocapture", "--test-threads", "1"]);
    let dir = tempdir().expect("a directory");
    let asked = format!("{how} {} {}", other.id(), dir.path().display());
    let output = probe.env(ASKED, asked).output().expect("it runs");
    let _ = kill_process(Pid::from_child(&other), Signal::KILL);
    other.wait().expect("its end");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let lines = text.lines().filter_map(|line| line.split_once("= ")?.1.split_once(' '));
    Some(lines.map(|(name, word)| (name.to_owned(), word.to_owned())).collect())
}

type Found = BTreeMap<String, String>;

#[track_caller]
fn assert_found(found: &Found, name: &str, words: &[&str]) {
    let word = found.get(name).map(String::as_str);
    assert!(word.is_some_and(|word| words.contains(&word)), "{name}: {word:?}, not {words:?}");
}

#[track_caller]
fn assert_all(found: &Found, attempts: impl IntoIterator<Item = Attempt>, words: &[&str]) {
    attempts.into_iter().for_each(|(name, _)| assert_found(found, name, words));
}

#[track_caller]
fn assert_no_files(found: &Found) {
    assert_all(found, FILES, &["PermissionDenied", "NotFound"]);
}

#[test]
fn everything_is_possible_before() {
    let Some(found) = found("open") else { return };
    assert_all(&found, attempts().chain([SENDS]), &["done"]);
}

#[test]
fn afterwards_each_of_them_is_refused_and_the_gateways_work_goes_on() {
    let Some(found) = found("closed") else { return };
    assert_eq!(found.get("missing"), None);
    assert_all(&found, forbidden(), &["PermissionDenied"]);
    assert_no_files(&found);
    assert_all(&found, NEEDED, &["done"]);
}

#[test]
fn a_mask_that_closes_files_to_others_takes_nothing_of_the_gateways_work() {
    let Some(found) = found("masked") else { return };
    assert_eq!(found.get("missing"), None);
    assert_all(&found, NEEDED, &["done"]);
}

#[test]
fn root_that_cannot_become_the_plans_user_has_no_sandbox() {
    let Some(found) = found("as_a_user_who_is_not") else { return };
    let refused = found.get("refused").expect("it refuses");
    assert!(refused.contains("root cannot become the user with the number 1000"), "{refused}");
    assert_eq!(found.get("read_a_secret"), None, "it does not go on");
}

#[test]
fn without_landlock_an_empty_root_directory_takes_the_files_and_the_gateways_work_goes_on() {
    let Some(found) = found("without_landlock") else { return };
    let missing = found.get("missing").expect("a line");
    assert!(missing.contains("abstract Unix sockets: this kernel has no Landlock"), "{missing}");
    assert_no_files(&found);
    // Ports are Landlock's alone.
    let others = forbidden().filter(|(name, _)| *name != LISTEN.0);
    assert_all(&found, others, &["PermissionDenied"]);
    assert_all(&found, NEEDED, &["done"]);
}

#[test]
fn without_landlock_and_without_an_empty_root_directory_there_is_no_sandbox() {
    let Some(found) = found("without_both") else { return };
    let refused = found.get("refused").expect("it refuses");
    for part in ["files stay in reach", "no Landlock", "make a mount namespace"] {
        assert!(refused.contains(part), "{refused}");
    }
    assert_eq!(found.get("read_a_secret"), None, "it does not go on");
}

#[test]
fn a_plan_may_keep_ports_unix_sockets_or_a_child_and_nothing_else_with_it() {
    let kept = [
        ("listening", &["listen"][..]),
        // Of root's, ports below 1024 are a capability.
        ("listening_below_1024", &["listen", "have_a_capability"]),
        ("with_a_source", &["listen"]),
        ("unix", &["open_a_unix_socket"]),
        // The gateway's child has a descriptor already; others stay out of reach.
        ("with_a_child", &["have_a_capability"]),
    ];
    for (how, keeps) in kept {
        let Some(found) = found(how) else { return };
        assert_eq!(found.get("missing"), None, "{how}");
        for (name, _) in forbidden() {
            assert_found(
                &found,
                name,
                if keeps.contains(&name) { &["done"] } else { &["PermissionDenied"] },
            );
        }
        assert_no_files(&found);
    }
}

#[test]
fn a_plan_with_unix_peers_reaches_them_and_no_files() {
    let Some(found) = found("sending") else { return };
    let missing = found.get("missing").expect("a line");
    assert!(missing.contains("it stays root for the guest's socket"), "{missing}");
    assert_no_files(&found);
    let others = forbidden().filter(|(name, _)| *name != "be_root");
    assert_all(&found, others, &["PermissionDenied"]);
    assert_found(&found, SENDS.0, &["done"]);
}

/// Memory that is written and then executed.
mod executable {
    #![allow(unsafe_code)]

    use std::io;
    use std::ptr::null_mut;

    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

    const PAGE: usize = 4096;

    pub(super) fn map() -> io::Result<()> {
        let how = ProtFlags::READ | ProtFlags::WRITE | ProtFlags::EXEC;
        // SAFETY: a new mapping at no given address; nothing refers to it.
        let page = unsafe { mmap_anonymous(null_mut(), PAGE, how, MapFlags::PRIVATE) }?;
        // SAFETY: it is removed as it was made, and nothing knows of it.
        Ok(unsafe { munmap(page, PAGE) }?)
    }

    pub(super) fn protect() -> io::Result<()> {
        let how = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: as above.
        let page = unsafe { mmap_anonymous(null_mut(), PAGE, how, MapFlags::PRIVATE) }?;
        // SAFETY: nothing refers to the page.
        let done = unsafe { mprotect(page, PAGE, MprotectFlags::READ | MprotectFlags::EXEC) };
        // SAFETY: as above.
        unsafe { munmap(page, PAGE) }?;
        Ok(done?)
    }
}

/// Calls that have no safe form.
mod calls {
    #![allow(unsafe_code)]

    use std::fs::File;
    use std::io;
    use std::os::fd::AsRawFd;

    fn check(done: i64) -> io::Result<i64> {
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done) }
    }

    /// A child in new namespaces, which ends at once.
    pub(super) fn fork_into(namespaces: i32) -> io::Result<()> {
        let flags = i64::from(namespaces | libc::SIGCHLD);
        // SAFETY: as `fork`: without CLONE_VM and without a stack the child has a copy of all memory,
        // and it makes one system call.
        let child = check(unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) })?;
        if child == 0 {
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(0) };
        }
        // SAFETY: a null pointer asks for no status.
        let ended = unsafe { libc::waitpid(child as i32, std::ptr::null_mut(), 0) };
        check(ended.into()).map(drop)
    }

    pub(super) fn ioctl(request: libc::Ioctl) -> io::Result<()> {
        let (file, _) = io::pipe()?;
        // SAFETY: the request has no argument.
        check(unsafe { libc::ioctl(file.as_raw_fd(), request) }.into()).map(drop)
    }

    /// Asks that signals of a descriptor go to this process: any other could be named.
    pub(super) fn own_signals() -> io::Result<()> {
        let file = File::from(std::os::fd::OwnedFd::from(io::pipe()?.0));
        // SAFETY: F_SETOWN takes a number.
        let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETOWN, std::process::id()) };
        check(done.into()).map(drop)
    }
}
