//! Becoming another user. Root without capabilities still owns root's files and the kernel's settings, so it becomes another
//! user.

use rustix::io::Errno;
use rustix::process::{
    Gid, Uid, geteuid, getpid, getppid, kill_process, parent_process_death_signal,
    set_parent_process_death_signal,
};
use rustix::thread::{
    set_keep_capabilities, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

use super::{SandboxError, SandboxPlan, SandboxUser};

/// The kernel's number for users that it cannot name, and everywhere that of `nobody`.
const NOBODY: u32 = 65534;

/// Root becomes the plan's user. Returns why it stays root.
///
/// # Errors
/// The process cannot become the user that the plan names.
pub(super) fn leave_root(plan: &SandboxPlan) -> Result<Option<String>, SandboxError> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    let nobody = SandboxUser { uid: NOBODY, gid: NOBODY, groups: Vec::new() };
    let user = match &plan.user {
        Some(user) => user.clone(),
        // Sockets of root's guests are closed to others.
        None if plan.unix_peers => {
            return Ok(Some("root: it stays root for the guest's socket".into()));
        }
        None => nobody,
    };
    match kept_by_a_parent(|| become_it(&user)) {
        Ok(()) => Ok(None),
        Err(e) if plan.user.is_some() => {
            Err(SandboxError::User { uid: user.uid, reason: e.to_string() })
        }
        // There are no others in this user namespace, and its root is an ordinary user outside.
        Err(Errno::INVAL) => Ok(None),
        Err(e) => Ok(Some(format!("root: it stays root: {e}"))),
    }
}

fn become_it(user: &SandboxUser) -> Result<(), Errno> {
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    let groups: Vec<Gid> = user.groups.iter().map(|&group| Gid::from_raw(group)).collect();
    // `caps.rs` drops them, but for one that it may need.
    set_keep_capabilities(true)?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_groups(&groups)?;
    set_thread_res_uid(uid, uid, uid)
}

/// A change of user forgets the signal that this process asked for at its parent's end.
fn kept_by_a_parent(change: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
    let (asked, parent) = (parent_process_death_signal()?, getppid());
    change()?;
    let Some(signal) = asked else { return Ok(()) };
    set_parent_process_death_signal(Some(signal))?;
    // The parent ended in between.
    if getppid() != parent {
        kill_process(getpid(), signal)?;
    }
    Ok(())
}
