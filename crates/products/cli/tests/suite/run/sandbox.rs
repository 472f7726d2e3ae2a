//! The sandbox of a gateway: what its process keeps, how long it stays, and what the program inside cannot do
//! to the machine.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use crate::lab::{Lab, PAGEWIRE, Running, end, run, text};
use crate::run::process::may_unshare;

/// A gateway that says on its standard output when it serves.
fn gateway(lab: &Lab, args: &[&str]) -> Command {
    let mut command = lab.command(PAGEWIRE);
    command.args(["gateway", "--ready-fd", "1", "--control", "none"]).args(args);
    command
}

/// The end of a process that ends by itself.
#[track_caller]
fn ended(child: &mut Child) -> ExitStatus {
    for _ in 0..400 {
        if let Some(status) = child.try_wait().expect("a child") {
            return status;
        }
        thread::park_timeout(Duration::from_millis(50));
    }
    end(child);
    panic!("it does not end");
}

/// The names in a process's root directory.
fn root(process: &Child) -> BTreeSet<String> {
    let entries = fs::read_dir(format!("/proc/{}/root", process.id())).expect("a directory");
    entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// A line of a process's state.
fn state(process: &Child, name: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{}/status", process.id())).expect("its state");
    let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("the line");
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[track_caller]
fn assert_empty(process: &Child) {
    let expected = ["etc", "proc", "run", "var", "mnt"].map(str::to_owned).into();
    let found = root(process);
    assert!(found.is_subset(&expected), "{found:?}");
    assert_eq!(state(process, "Uid:"), "65534 65534 65534 65534");
}

#[test]
fn a_gateway_has_neither_roots_user_nor_files_nor_the_descriptors_of_who_started_it() {
    let Some(lab) = Lab::new(&["bash", "setpriv"]) else { return };
    fs::write(lab.path("secret"), "").expect("a file");
    let script =
        format!("exec 7<secret; exec {PAGEWIRE} gateway --link stream --socket link --ready-fd 1");
    let running = Running::start(lab.command("bash").args(["-c", &script]));
    assert_empty(&running.0);
    assert_eq!(state(&running.0, "CapPrm:"), "0000000000000000");
    let descriptors =
        fs::read_dir(format!("/proc/{}/fd", running.0.id())).expect("its descriptors");
    for file in descriptors.flatten() {
        let leads_to = fs::read_link(file.path()).unwrap_or_default();
        assert!(!leads_to.ends_with("secret"), "{} is open", leads_to.display());
    }
}

/// Becomes a program for which the kernel has no Landlock and makes no namespaces.
const WITHOUT: &str = "
import ctypes, os, platform, struct, sys
landlock, unshare = {'x86_64': (444, 272), 'aarch64': (444, 97)}[platform.machine()]
steps = [(0x20, 0, 0, 0), (0x15, 2, 0, landlock), (0x15, 2, 0, unshare),
         (6, 0, 0, 0x7fff0000), (6, 0, 0, 0x50000 + 38), (6, 0, 0, 0x50000 + 1)]
code = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *step) for step in steps))
program = ctypes.create_string_buffer(struct.pack('HxxxxxxP', len(steps), ctypes.addressof(code)))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program) == 0
os.execv(sys.argv[1], sys.argv[1:])";

#[test]
fn where_files_stay_in_reach_it_does_not_start_unless_it_is_told_to() {
    let Some(lab) = Lab::new(&["python3"]) else { return };
    let command = |more: &[&str]| {
        let mut command = lab.command("python3");
        command.args(["-c", WITHOUT, PAGEWIRE, "gateway", "--link", "stream", "--socket", "link"]);
        command.args(["--ready-fd", "1", "--control", "none"]).args(more);
        command
    };
    let refused = command(&[]).output().expect("it runs");
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    for part in ["there is no sandbox: files stay in reach", "no Landlock", "--no-sandbox"] {
        assert!(said.contains(part), "{said}");
    }
    Running::start(&mut command(&["--no-sandbox"]));
}

#[test]
fn it_may_be_another_user_than_nobody_and_none_without_root() {
    let Some(lab) = Lab::new(&[]) else { return };
    let link = ["--link", "stream", "--socket", "link", "--user"];
    let daemon = [&link[..], &["daemon"]].concat();
    let running = Running::start(&mut gateway(&lab, &daemon));
    assert!(state(&running.0, "Uid:").starts_with("1 1"), "{}", state(&running.0, "Uid:"));
    drop(running);
    let nobody = gateway(&lab, &[&link[..], &["no-such-user"]].concat()).output().expect("it runs");
    let said = text(&nobody.stderr);
    assert!(said.contains("--user no-such-user: there is no such user"), "{said}");
}

#[test]
fn root_of_a_namespace_without_the_user_that_was_asked_for_does_not_start() {
    let Some(lab) = Lab::new(&["unshare"]) else { return };
    let mut command = lab.command("unshare");
    command.args(["--user", "--map-root-user", PAGEWIRE, "gateway", "--control", "none"]);
    command.args(["--link", "stream", "--socket", "link", "--user", "daemon"]);
    let refused = command.output().expect("it runs");
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    for part in ["root cannot become the user with the number 1:", "; leave out --user"] {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn an_ordinary_users_gateway_has_no_files_either() {
    let Some(lab) = Lab::new(&["setpriv", "unshare"]) else { return };
    if !may_unshare() {
        return;
    }
    let copy = lab.path("pagewire");
    fs::copy(PAGEWIRE, &copy).expect("room for a copy");
    fs::create_dir(lab.path("open")).expect("a directory");
    fs::set_permissions(lab.path("open"), fs::Permissions::from_mode(0o777)).expect("ours");
    let mut command = lab.command("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(copy);
    command.args(["gateway", "--link", "stream", "--socket", "open/link", "--ready-fd", "1"]);
    let running = Running::start(&mut command);
    assert_empty(&running.0);
}

#[test]
fn a_gateway_that_left_root_still_ends_with_the_thread_that_asked_for_it() {
    let Some(lab) = Lab::new(&["setpriv"]) else { return };
    let command = &mut gateway(&lab, &["--link", "stream", "--socket", "link"]);
    let start = || Running::start(command);
    let mut running = thread::scope(|scope| scope.spawn(start).join()).expect("it starts");
    assert_eq!(ended(&mut running.0).signal(), Some(libc::SIGKILL));
}

#[test]
fn it_ends_with_the_container_whose_network_it_is() {
    let Some(lab) = Lab::new(&["unshare", "sh"]) else { return };
    let mut container = container(&lab, &["unshare", "-Urn"]);
    let pid = container.0.id().to_string();
    let mut by_number = Running::start(&mut gateway(&lab, &["--link", "tap", "--netns", &pid]));
    let link = lab.path("network");
    std::os::unix::fs::symlink(format!("/proc/{pid}/ns/net"), &link).expect("a link");
    let path = ["--link", "tap", "--tap", "pw1", "--netns", "network"];
    let mut by_file = Running::start(&mut gateway(&lab, &path));
    assert!(by_number.0.try_wait().expect("a child").is_none(), "while it runs, so do they");
    fs::remove_file(link).expect("ours");
    assert_eq!(ended(&mut by_file.0).code(), Some(0));
    drop(container.0.stdin.take());
    assert_eq!(ended(&mut by_number.0).code(), Some(0));
    container.0.wait().expect("its end");
}

/// A shell in namespaces of its own, until its input ends.
fn container(lab: &Lab, around: &[&str]) -> Running {
    let mut command = lab.command(around[0]);
    command.args(&around[1..]).args(["sh", "-c", "echo up; read line"]).stdin(Stdio::piped());
    Running::start(&mut command)
}

/// As in the chapter on containers.
const EXAMPLE: &str = "
unshare --user --map-root-user --net --mount sh -c 'echo up; exec sleep 1000' >up &
container=$!
until [ -s up ]; do sleep 0.02; done
$PAGEWIRE gateway --link tap --netns $container --name www.example=198.51.100.1 --ready-fd 1 >ready &
until [ -s ready ]; do kill -0 $! || exit; sleep 0.02; done
inside=\"nsenter --target $container --user --net --mount --preserve-credentials\"
echo nameserver 10.0.2.2 >resolv.conf
$inside mount --bind \"$PWD/resolv.conf\" /etc/resolv.conf
$inside curl -sS --max-time 20 http://www.example:8000/file
kill $container
wait";

#[test]
fn a_container_with_a_resolv_conf_reaches_names() {
    let Some(lab) = Lab::new(&["unshare", "nsenter", "sh", "mount", "curl", "python3"]) else {
        return;
    };
    let _servers = lab.serve("file", b"content");
    let said = run(lab.command("sh").args(["-c", EXAMPLE]).env("PAGEWIRE", PAGEWIRE));
    assert_eq!(said, "content");
}

#[test]
fn it_enters_by_the_owner_of_the_network_where_the_program_has_another_user_namespace() {
    let Some(lab) = Lab::new(&["unshare", "sh", "nsenter"]) else { return };
    let container = container(&lab, &["unshare", "-Urn", "unshare", "-U"]);
    let pid = container.0.id().to_string();
    let _gateway = Running::start(&mut gateway(&lab, &["--link", "tap", "--netns", &pid]));
    let links = run(Command::new("nsenter").args(["-n", "-t", &pid, "ip", "-brief", "link"]));
    assert!(links.contains("pw0"), "{links}");
}

#[test]
fn its_own_network_is_no_container() {
    let Some(lab) = Lab::new(&["sh"]) else { return };
    let script = format!("exec {PAGEWIRE} gateway --link tap --netns $$");
    let refused = lab.command("sh").args(["-c", &script]).output().expect("it runs");
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("it is the network that this process is in"), "{said}");
    assert!(!run(lab.command("ip").args(["-brief", "link"])).contains("pw0"));
}

/// Tells whether the helper of a gateway can be traced while it waits for its orders: whose its files
/// are.
const HELPER: &str = "
import os, socket, subprocess, sys, time
ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
helper = subprocess.Popen([sys.argv[1], 'inside-namespace', str(its.fileno()), '1'], pass_fds=[its.fileno()],
                          user=65534, group=65534, extra_groups=[])
for _ in range(400):
    if os.stat(f'/proc/{helper.pid}/stat').st_uid == 0:
        print('cannot be traced')
        break
    time.sleep(0.02)
helper.kill()
helper.wait()";

#[test]
fn the_helper_cannot_be_traced_from_inside_the_namespaces() {
    let Some(lab) = Lab::new(&["python3"]) else { return };
    let copy = lab.path("pagewire");
    fs::copy(PAGEWIRE, &copy).expect("room for a copy");
    let said = run(lab.command("python3").args(["-c", HELPER]).arg(copy));
    assert_eq!(said, "cannot be traced\n");
}

#[test]
fn it_ends_when_the_other_end_of_a_descriptor_is_closed() {
    let Some(lab) = Lab::new(&["bash"]) else { return };
    let link = "--link stream --socket link --control none --ready-fd 1";
    let script = format!("exec {PAGEWIRE} gateway {link} --exit-fd 9 9< <(cat)");
    // `cat` reads from this pipe.
    let mut command = lab.command("bash");
    let mut running = Running::start(command.args(["-c", &script]).stdin(Stdio::piped()));
    assert!(running.0.try_wait().expect("a child").is_none());
    drop(running.0.stdin.take());
    assert_eq!(ended(&mut running.0).code(), Some(0));
    let mut wrong = gateway(&lab, &["--link", "stream", "--socket", "link", "--exit-fd", "99"]);
    let said = text(&wrong.output().expect("it runs").stderr);
    assert!(said.contains("--exit-fd 99: name an open descriptor"), "{said}");
}

/// Reads to the end of what a gateway writes to a socket.
const READY: &str = "
import socket, subprocess, sys
ours, its = socket.socketpair()
gateway = subprocess.Popen([*sys.argv[1:], '--ready-fd', str(its.fileno())], pass_fds=[its.fileno()])
its.close()
ours.settimeout(20)
print(ours.makefile().read(), end='')
gateway.terminate()
sys.exit(gateway.wait())";

#[test]
fn the_descriptor_that_hears_when_it_is_ready_may_be_a_socket_and_is_closed() {
    let Some(lab) = Lab::new(&["python3"]) else { return };
    let link = ["gateway", "--link", "stream", "--socket", "link"];
    let said = run(lab.command("python3").args(["-c", READY, PAGEWIRE]).args(link));
    assert_eq!(said, "1");
}

#[test]
fn counters_that_nobody_can_read_any_more_do_not_stop_it() {
    let Some(lab) = Lab::new(&[]) else { return };
    let mut command = gateway(&lab, &["--link", "stream", "--socket", "link", "--stats"]);
    let mut running = Running::start(command.stderr(Stdio::piped()));
    drop(running.0.stderr.take());
    running.signal("USR1");
    running.signal("TERM");
    assert_eq!(ended(&mut running.0).code(), Some(0));
}

#[test]
fn its_memory_is_among_the_counters() {
    let Some(lab) = Lab::new(&["sh"]) else { return };
    let output = lab.run(&["--stats=json"], &["true"]).output().expect("it runs");
    let said = text(&output.stderr);
    let line = said.lines().find(|line| line.starts_with('{')).expect("an object");
    let stats: serde_json::Value = serde_json::from_str(line).expect("an object");
    assert!(stats["memory"]["anonymous_bytes"].as_u64() > Some(0), "{said}");
}

#[test]
fn roots_program_cannot_change_the_machines_settings_but_its_own_networks() {
    let Some(lab) = Lab::new(&["sh", "mount", "umount"]) else { return };
    let again = "kernel=/proc/sys/kernel/domainname; name=$(cat $kernel); echo $name > $kernel";
    for script in [
        again.to_owned(),
        format!("umount /proc/sys; {again}"),
        format!("mount -o remount,bind,rw /proc/sys; {again}"),
    ] {
        let output = lab.fails(&[], &["sh", "-c", &script]);
        assert!(text(&output.stderr).contains("Read-only file system"), "{}", text(&output.stderr));
    }
    let own = "echo 1 > /proc/sys/net/ipv4/ip_forward && cat /proc/sys/net/ipv4/ip_forward";
    assert_eq!(lab.inside(&[], &["sh", "-c", own]), "1\n");
}

#[test]
fn a_resolv_conf_that_is_replaced_is_read_behind_the_sandbox_of_root() {
    let Some(lab) = Lab::new(&["unshare", "mount", "sh"]) else { return };
    fs::create_dir(lab.path("etc")).expect("a directory");
    let write = |name: &str, address: &str| {
        fs::write(lab.path(name), format!("nameserver {address}\n")).expect("a file");
    };
    write("etc/resolv.conf", "192.0.2.1");
    let link = "--link stream --socket link --control none --ready-fd 1";
    let script = format!("mount --bind etc /etc && exec {PAGEWIRE} gateway {link}");
    let running = Running::start(lab.command("unshare").args(["-m", "sh", "-c", &script]));
    write("etc/next", "192.0.2.2");
    fs::rename(lab.path("etc/next"), lab.path("etc/resolv.conf")).expect("renamed");
    let seen = format!("/proc/{}/root/etc/resolv.conf", running.0.id());
    assert_eq!(fs::read_to_string(seen).expect("it is there"), "nameserver 192.0.2.2\n");
}

#[test]
fn root_is_told_once_that_the_program_is_root_too() {
    let Some(lab) = Lab::new(&["true"]) else { return };
    let output = lab.run(&[], &["true"]).output().expect("it runs");
    assert_eq!(text(&output.stderr).matches("the program is root, too").count(), 1);
}
