//! The parent process: it starts the helper, writes its user map, and takes the tap.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use pagewire::device::TapParts;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{getegid, geteuid};
use rustix::thread::{CapabilitySet, capabilities};

use super::helper_socket::{FAILED, MAPS, NETWORK, READY, Ready, Wire};
use super::inside::{INSIDE, arguments};
use super::{InsideNetwork, Lifetime, Namespace, NetnsError, Users};

/// Makes a tap in a network namespace that exists; it vanishes when its descriptors are closed.
/// Gives it `network`'s addresses and routers. [`TapBuilder::adopt`](pagewire::device::TapBuilder::adopt)
/// makes a device of it here. The tap keeps the namespace; [`Lifetime`] says when nobody else does.
///
/// `user` is a file of the user namespace to enter first; `None`: the one that owns the namespace.
///
/// # Errors
/// [`NetnsError`], whose text says what to do.
pub fn tap_in(
    namespace: &Namespace,
    user: Option<&Path>,
    network: &InsideNetwork,
) -> Result<(TapParts, Lifetime), NetnsError> {
    let files = namespace.open(user)?;
    let unseen = |e| NetnsError::Inside(format!("watch the namespace {namespace}: {e}"));
    let lifetime = Lifetime::of(namespace).map_err(unseen)?;
    let mut helper = Helper::start(&own_program(), Some(namespace), &files, network, &[])?;
    let (parts, _) = helper.tap(Users::Same)?;
    let _ = helper.child.wait();
    // The process number may be another process's by now, and then this is another namespace.
    if lifetime.is_over() {
        return Err(NetnsError::Inside("the namespace's process has ended".into()));
    }
    Ok((parts, lifetime))
}

/// The file of this program.
pub(super) fn own_program() -> PathBuf {
    PathBuf::from("/proc/self/exe")
}

/// Starts a helper, whose arguments have its socket's number. `quiet`: it does not need this process's terminal.
pub(super) fn spawn(
    file: &Path,
    quiet: bool,
    arguments: impl FnOnce(i32) -> Vec<OsString>,
) -> Result<(Wire, Child), NetnsError> {
    let failed = NetnsError::system("start a helper process");
    let (wire, its) = Wire::pair().map_err(&failed)?;
    let mut command = Command::new(file);
    command.args(arguments(its.as_raw_fd()));
    if quiet {
        // What the helper has to say comes by its socket: whoever reads the caller's is not to wait for it.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // The terminal's signals are for the program, and not for a helper that stays.
        command.process_group(0);
    }
    // The helper inherits its end.
    fcntl_setfd(&its, FdFlags::empty()).map_err(|e| failed(e.into()))?;
    let child = command.spawn().map_err(&failed)?;
    Ok((wire, child))
}

/// A helper, until it has become the program or has ended.
#[derive(Debug)]
pub(super) struct Helper {
    pub(super) wire: Wire,
    pub(super) child: Child,
}

impl Helper {
    pub(super) fn start(
        file: &Path,
        namespace: Option<&Namespace>,
        files: &[OwnedFd],
        network: &InsideNetwork,
        program: &[OsString],
    ) -> Result<Self, NetnsError> {
        let (wire, child) = spawn(file, namespace.is_some(), |socket| {
            arguments(INSIDE, socket, namespace)
                .into_iter()
                .chain(program.iter().cloned())
                .collect()
        })?;
        let failed = NetnsError::system("start a helper process");
        wire.send(NETWORK, network.encode().as_bytes(), files).map_err(&failed)?;
        Ok(Self { wire, child })
    }

    /// The tap, and what else the helper has to say. If that fails, the helper is gone.
    pub(super) fn tap(&mut self, users: Users) -> Result<(TapParts, Vec<String>), NetnsError> {
        let tap = self.receive_tap(users);
        if tap.is_err() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        tap
    }

    fn receive_tap(&self, users: Users) -> Result<(TapParts, Vec<String>), NetnsError> {
        let failed = NetnsError::system("talk to the helper process");
        loop {
            let message = self.wire.receive().map_err(&failed)?;
            let message = message.ok_or(NetnsError::HelperEnded)?;
            match message.kind {
                MAPS => {
                    write_maps(self.child.id(), users)
                        .map_err(NetnsError::system("map users into the namespace"))?;
                    self.wire.send(MAPS, b"", &[]).map_err(&failed)?;
                }
                READY => {
                    let ready = Ready::decode(&message.text()).ok_or(NetnsError::HelperEnded)?;
                    let Ready { name, kernel_mac, mtu, notes } = ready;
                    return Ok((TapParts { queues: message.fds, name, kernel_mac, mtu }, notes));
                }
                FAILED => return Err(NetnsError::Inside(message.text())),
                _ => return Err(NetnsError::HelperEnded),
            }
        }
    }
}

/// Users and groups keep their numbers: all that exist here if this process may say so for others
/// (root), otherwise its own only, which may be root inside.
fn write_maps(process: u32, users: Users) -> io::Result<()> {
    let write = |name: &str, text: &str| fs::write(format!("/proc/{process}/{name}"), text);
    let needed = CapabilitySet::SETUID | CapabilitySet::SETGID;
    if capabilities(None).is_ok_and(|sets| sets.effective.contains(needed)) {
        let every = |name: &str| fs::read_to_string(format!("/proc/self/{name}")).map(|m| same(&m));
        let written = every("uid_map").and_then(|map| write("uid_map", &map));
        if written.is_ok() {
            return write("gid_map", &every("gid_map")?);
        }
    }
    write("setgroups", "deny")?;
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    let inside = |own| if users == Users::Root { 0 } else { own };
    write("uid_map", &format!("{} {user} 1\n", inside(user)))?;
    write("gid_map", &format!("{} {group} 1\n", inside(group)))
}

/// A map of the numbers that a map has inside, each to itself.
fn same(map: &str) -> String {
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let (first, count) = (words.next()?, words.nth(1)?);
        Some(format!("{first} {first} {count}\n"))
    };
    map.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_mapped_to_themselves() {
        let initial = "         0          0 4294967295\n";
        assert_eq!(same(initial), "0 0 4294967295\n");
        let container = "         0     100000      65536\n     70000     300000          1\n";
        assert_eq!(same(container), "0 0 65536\n70000 70000 1\n");
    }
}
