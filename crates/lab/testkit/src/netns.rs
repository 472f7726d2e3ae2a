//! Network namespaces and child processes that end with the test, also when the test is killed.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::Command;
use std::thread;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// A network namespace without a name. The kernel removes it, with its interfaces, when its last
/// descriptor, thread and process are gone. Needs root.
#[derive(Debug)]
pub struct Netns(OwnedFd);

impl Netns {
    /// A new namespace. Its loopback interface is down.
    ///
    /// # Panics
    ///
    /// Without root.
    #[expect(clippy::new_without_default, reason = "it is no value, but a thing of the kernel")]
    pub fn new() -> Self {
        let made = thread::spawn(|| {
            // SAFETY: only the namespace of this thread changes; its file table stays shared.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.expect("a network namespace");
            File::open("/proc/thread-self/ns/net").expect("the namespace of this thread")
        });
        Self(made.join().expect("a network namespace").into())
    }

    /// The file of the namespace, for programs that take one. Valid while `self` lives.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd()).into()
    }

    /// Runs `f` on a thread inside. Threads and programs that `f` starts are inside, too.
    pub fn inside<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                let kind = Some(LinkNameSpaceType::Network);
                move_into_link_name_space(self.0.as_fd(), kind).expect("the namespace");
                f()
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// A program inside. The kernel kills it when the thread that started it ends.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = command("nsenter");
        command.arg(format!("--net={}", self.path().display())).arg(program);
        command
    }
}

/// A program. The kernel kills it when the thread that started it ends.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// Runs `ip` in this thread's network namespace; returns what it prints.
///
/// # Panics
///
/// If it fails, or is not installed.
#[track_caller]
pub fn ip(arguments: &str) -> String {
    let done = Command::new("ip").args(arguments.split(' ')).output();
    let done = done.expect("iproute2 is installed");
    assert!(done.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).into_owned()
}
