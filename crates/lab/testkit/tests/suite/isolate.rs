//! `scripts/isolate` leaves nothing behind, also when it is killed.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use pagewire_testkit::{Need, can};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../scripts/isolate");

/// A checkout of its own, which waits for no run of this one.
struct Checkout(tempfile::TempDir);

impl Checkout {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir(dir.path().join("scripts")).expect("a directory");
        fs::copy(SCRIPT, dir.path().join("scripts/isolate")).expect("a copy");
        Self(dir)
    }

    fn isolate(&self, script: &str) -> Command {
        let mut command = Command::new(self.0.path().join("scripts/isolate"));
        command.args(["sh", "-c", script]).env_remove("PAGEWIRE_ISOLATED");
        command
    }
}

/// Whether a process has this argument.
fn runs(argument: &str) -> bool {
    let of = |process: fs::DirEntry| fs::read(process.path().join("cmdline")).unwrap_or_default();
    let processes = fs::read_dir("/proc").expect("processes").flatten();
    processes.map(of).any(|line| line.split(|b| *b == 0).any(|a| a == argument.as_bytes()))
}

#[test]
fn a_killed_run_leaves_no_process_and_no_file_to_the_next() {
    let checkout = Checkout::new();
    // The command's own child, in a session of its own, is all that has this argument. The child shows no
    // argument while it goes from `setsid` to `sleep`.
    let mark = format!("1000.{}", std::process::id());
    let script = format!(
        "touch $TMPDIR/left; setsid sleep {mark} >/dev/null & \
         until [ \"$(tr '\\0' ' ' </proc/$!/cmdline)\" = 'sleep {mark} ' ]; do :; done; echo $TMPDIR; wait"
    );
    let mut killed = checkout.isolate(&script).stdout(Stdio::piped()).spawn().expect("it runs");
    let mut line = String::new();
    let said = killed.stdout.take().expect("its output");
    BufReader::new(said).read_line(&mut line).expect("a line");
    let directory = PathBuf::from(line.trim());
    assert!(directory.join("left").exists() && runs(&mark));
    killed.kill().expect("SIGKILL");
    killed.wait().expect("it ended");

    let next = checkout.isolate("ls -A $TMPDIR").output().expect("it runs");
    assert!(next.status.success() && next.stdout.is_empty(), "{next:?}");
    assert!(!runs(&mark), "the next run leaves the process alone");
    assert!(!directory.exists(), "the next run leaves its directory");
}

#[test]
fn a_run_has_a_network_of_its_own_and_reports_its_commands_status() {
    if !can(&[Need::Root]) {
        return;
    }
    let output = Checkout::new().isolate("readlink /proc/self/ns/net; exit 7").output();
    let output = output.expect("it runs");
    assert_eq!(output.status.code(), Some(7));
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let ours = fs::read_link("/proc/self/ns/net").expect("a namespace");
    assert_ne!(said, ours.to_string_lossy());
}

#[test]
fn a_process_gets_at_most_8_gib_of_private_memory() {
    let output = Checkout::new().isolate("ulimit -d").output().expect("it runs");
    let limit: u64 = String::from_utf8_lossy(&output.stdout).trim().parse().expect("a limit");
    assert!(limit <= 8 << 20, "{limit} KiB");
}

#[test]
fn functions_of_a_script_reach_what_it_isolates() {
    let checkout = Checkout::new();
    let script = "f() { echo here; }; export -f f; \"$0\" bash -c f";
    let mut command = Command::new("bash");
    command.args(["-c", script]).arg(checkout.0.path().join("scripts/isolate"));
    let output = command.env_remove("PAGEWIRE_ISOLATED").output().expect("it runs");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "here", "{output:?}");
}
