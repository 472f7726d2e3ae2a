//! Looks at this system. What only trying can tell is tried in processes of their own.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use pagewire_gateway::probe as try_out;
use rustix::fs::{Access, MemfdFlags, SealFlags, access, fcntl_add_seals, memfd_create};
use rustix::system::uname;

use super::report::{Findings, Settings};
use crate::args::system::Probe;
use crate::failure::{Failure, reason, say};

/// Names of other programs under which this program acts.
const NAMES: [&str; 4] = ["slirp4netns", "pasta", "passt", "pesto"];

/// Looks at everything.
pub(super) fn look() -> Result<Findings, Failure> {
    let own =
        std::env::current_exe().map_err(|e| Failure::because("/proc/self/exe", reason(&e)))?;
    let tried = Tried::new(&own);
    let is_there = |name: &str| find(name).is_some();
    Ok(Findings {
        kernel: uname().release().to_string_lossy().into_owned(),
        tun: open_tun(),
        users: tried.answer("users"),
        networks: tried.answer("networks"),
        settings: Settings {
            userns_clone: number("/proc/sys/kernel/unprivileged_userns_clone"),
            max_users: number("/proc/sys/user/max_user_namespaces"),
            max_networks: number("/proc/sys/user/max_net_namespaces"),
            apparmor_restricts: number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
        },
        apparmor: apparmor(),
        landlock: tried.answer("files").map(|()| tried.landlock()),
        seccomp: fs::read_to_string("/proc/self/status").is_ok_and(|t| t.contains("\nSeccomp:")),
        maps_users: is_there("newuidmap") && is_there("newgidmap"),
        memfd: sealed_memory(),
        huge_pages: huge_pages(),
        ipv6: fs::read_to_string("/proc/net/if_inet6").is_ok_and(|text| !text.is_empty()),
        run: run(&own),
        names: NAMES.into_iter().map(|name| named(name, &own)).collect(),
    })
}

/// Tries something on this process, and says how it went.
pub(super) fn probe(probe: Probe) {
    let told = |what: &str, done: io::Result<()>| match done {
        Ok(()) => say(format!("{what} ok")),
        Err(e) => say(format!("{what} {}", reason(&e))),
    };
    match probe {
        Probe::Namespaces => {
            told("users", try_out::users());
            told("networks", try_out::networks());
        }
        Probe::Files => match try_out::files() {
            Ok(version) => say(format!("files ok\nlandlock {version}")),
            Err(why) => say(format!("files {why}")),
        },
    }
}

/// What processes that tried something have said: a word and an answer on each line.
struct Tried {
    said: String,
    /// Why there was no such process.
    failed: Option<String>,
}

impl Tried {
    fn new(own: &Path) -> Self {
        let mut tried = Self { said: String::new(), failed: None };
        for probe in ["namespaces", "files"] {
            let mut tries = Command::new(own);
            tries.args(["check", "--probe", probe]).stdin(Stdio::inherit());
            match tries.output() {
                Ok(output) => tried.said.push_str(&String::from_utf8_lossy(&output.stdout)),
                Err(e) => tried.failed = Some(reason(&e)),
            }
        }
        tried
    }

    fn said(&self, word: &str) -> Option<&str> {
        let mut lines = self.said.lines().filter_map(|line| line.split_once(' '));
        lines.find_map(|(first, rest)| (first == word).then_some(rest))
    }

    fn answer(&self, word: &str) -> Result<(), String> {
        match (self.said(word), &self.failed) {
            (Some("ok"), _) => Ok(()),
            (Some(why), _) => Err(why.to_owned()),
            (None, Some(why)) => Err(format!("nothing was tried: {why}")),
            (None, None) => Err("the process that tried it ended early".to_owned()),
        }
    }

    fn landlock(&self) -> u32 {
        self.said("landlock").and_then(|version| version.parse().ok()).unwrap_or(0)
    }
}

/// Runs this program in a network of its own. Nothing here needs `/dev/null`, which an empty root has not.
fn run(own: &Path) -> Result<(), String> {
    let mut tries = Command::new(own);
    tries.args(["run", "--offline", "--control", "none", "--"]).arg(own).arg("-V");
    let done = tries.stdin(Stdio::inherit()).output().map_err(|e| reason(&e))?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    let why = said.lines().last().unwrap_or("it ended without a word");
    Err(why.strip_prefix("pagewire: ").unwrap_or(why).to_owned())
}

/// Opening it makes no interface. The file may exist without a driver.
fn open_tun() -> Result<(), String> {
    let opened = OpenOptions::new().read(true).write(true).open("/dev/net/tun");
    opened.map(drop).map_err(|e| reason(&e))
}

fn number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The profile of this process, where AppArmor is on.
fn apparmor() -> Option<String> {
    let on = fs::read_to_string("/sys/module/apparmor/parameters/enabled").ok()?;
    let own = ["/proc/self/attr/apparmor/current", "/proc/self/attr/current"];
    let profile = own.into_iter().find_map(|path| fs::read_to_string(path).ok());
    let profile = profile.unwrap_or_else(|| "unconfined".to_owned());
    (on.trim() == "Y").then(|| profile.trim_end_matches(['\n', '\0']).to_owned())
}

fn sealed_memory() -> Result<(), String> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let sealed = memfd_create("pagewire-check", flags)
        .and_then(|file| fcntl_add_seals(&file, SealFlags::SHRINK));
    sealed.map_err(|e| reason(&e.into()))
}

/// Huge pages that are set aside, of all sizes.
fn huge_pages() -> u64 {
    let sizes = fs::read_dir("/sys/kernel/mm/hugepages").into_iter().flatten().flatten();
    let count = |size: fs::DirEntry| number(size.path().join("nr_hugepages").to_str()?);
    sizes.filter_map(count).sum()
}

/// A program in `PATH`.
fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let runs = |file: &PathBuf| access(file, Access::EXEC_OK).is_ok() && file.is_file();
    std::env::split_paths(&path).map(|dir| dir.join(OsStr::new(name))).find(runs)
}

fn named(name: &'static str, own: &Path) -> (&'static str, Option<PathBuf>, bool) {
    let path = find(name);
    let real = |path: &Path| fs::canonicalize(path).ok();
    let is_ours = path.as_deref().and_then(real).is_some_and(|file| Some(file) == real(own));
    (name, path, is_ours)
}
