//! The user of `--user`, which a process that was started as root becomes.

use std::fs;

use pagewire_gateway::sandbox::SandboxUser;
use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::failure::{Failure, reason};

/// The user of this name, or with this number.
pub(crate) fn find(word: &str) -> Result<SandboxUser, Failure> {
    let failed = |why: String| Failure::misused(format!("--user {word}"), why);
    let passwd = fs::read_to_string("/etc/passwd").map_err(|e| failed(reason(&e)))?;
    let groups = fs::read_to_string("/etc/group").unwrap_or_default();
    let user = listed(word, &passwd, &groups);
    let user = user.ok_or_else(|| failed("there is no such user in /etc/passwd".to_owned()))?;
    match user.uid {
        0 => Err(failed("this is root itself".to_owned())),
        _ if !geteuid().is_root() => {
            Err(failed("only root can run as another user; start this as root".to_owned()))
        }
        _ => Ok(user),
    }
}

/// This thread, and those that it starts, are this user's from here on, without a way back: to be
/// called while there is no other thread.
pub(crate) fn become_it(user: &SandboxUser) -> Result<(), Failure> {
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    let groups: Vec<Gid> = user.groups.iter().map(|&group| Gid::from_raw(group)).collect();
    let done = set_thread_groups(&groups)
        .and_then(|()| set_thread_res_gid(gid, gid, gid))
        // Takes the capabilities, too.
        .and_then(|()| set_thread_res_uid(uid, uid, uid))
        .and_then(|()| set_no_new_privs(true));
    done.map_err(|e| Failure::because("--user", reason(&e.into())))
}

/// A user of these files, with its groups.
fn listed(word: &str, passwd: &str, groups: &str) -> Option<SandboxUser> {
    let number: Option<u32> = word.parse().ok();
    let (name, uid, gid) = passwd.lines().find_map(|line| {
        let mut parts = line.split(':');
        let (name, _) = (parts.next()?, parts.next()?);
        let uid: u32 = parts.next()?.parse().ok()?;
        let gid: u32 = parts.next()?.parse().ok()?;
        (name == word || Some(uid) == number).then_some((name, uid, gid))
    })?;
    let member = |line: &str| -> Option<u32> {
        let mut parts = line.split(':').skip(2);
        let group = parts.next()?.parse().ok()?;
        parts.next()?.split(',').any(|member| member == name).then_some(group)
    };
    Some(SandboxUser { uid, gid, groups: groups.lines().filter_map(member).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\nwww:x:33:34:www:/var/www:/bin/false\n\
                          broken\nnobody:x:65534:65534::/:/bin/false\n";
    const GROUPS: &str = "root:x:0:\nfiles:x:7:adm,www\nother:x:8:adm\n";

    #[test]
    fn a_user_is_found_by_name_and_number_with_its_groups() {
        let www = Some(SandboxUser { uid: 33, gid: 34, groups: vec![7] });
        assert_eq!(listed("www", PASSWD, GROUPS), www);
        assert_eq!(listed("33", PASSWD, GROUPS), www);
        assert_eq!(listed("nobody", PASSWD, GROUPS).map(|user| user.groups), Some(vec![]));
        assert_eq!(listed("ww", PASSWD, GROUPS), None);
        assert_eq!(listed("broken", PASSWD, GROUPS), None);
    }

    #[test]
    fn root_is_no_user_to_give_rights_up_to() {
        let Err(Failure::Usage(text)) = find("root") else { panic!("root") };
        assert!(text.contains("root itself"), "{text}");
    }
}
