//! What findings mean: a line for each, with what to do about it.

use std::fmt::{self, Display, Formatter};
use std::path::PathBuf;

/// What was found out about a system, and about this process in it.
#[derive(Clone, Debug)]
pub(super) struct Findings {
    /// The kernel's release, as in `6.12.1-amd64`.
    pub(super) kernel: String,
    /// Opening the device that taps are made from.
    pub(super) tun: Result<(), String>,
    /// Making a user namespace.
    pub(super) users: Result<(), String>,
    /// Making a network namespace in it.
    pub(super) networks: Result<(), String>,
    /// Settings of the kernel that forbid namespaces, where the kernel has them.
    pub(super) settings: Settings,
    /// The profile of AppArmor that holds for this process. `None`: there is no AppArmor.
    pub(super) apparmor: Option<String>,
    /// The version of Landlock's interface.
    pub(super) landlock: Result<u32, String>,
    /// Filters of system calls.
    pub(super) seccomp: bool,
    /// Programs that give a user's containers more users than one.
    pub(super) maps_users: bool,
    /// Memory that is shared with a virtual machine.
    pub(super) memfd: Result<(), String>,
    /// Huge pages that are set aside.
    pub(super) huge_pages: u64,
    /// The kernel's IPv6.
    pub(super) ipv6: bool,
    /// A program that was run for trial.
    pub(super) run: Result<(), String>,
    /// Names of other programs under which this program acts, the file that each leads to, and whether that
    /// is this program.
    pub(super) names: Vec<(&'static str, Option<PathBuf>, bool)>,
}

/// Settings of the kernel about namespaces.
#[derive(Clone, Debug, Default)]
pub(super) struct Settings {
    /// `kernel.unprivileged_userns_clone`, which Debian's kernels have.
    pub(super) userns_clone: Option<u64>,
    /// `user.max_user_namespaces`.
    pub(super) max_users: Option<u64>,
    /// `user.max_net_namespaces`.
    pub(super) max_networks: Option<u64>,
    /// `kernel.apparmor_restrict_unprivileged_userns`, which Ubuntu's kernels have.
    pub(super) apparmor_restricts: Option<u64>,
}

/// How good a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Ok,
    /// Something that not every use needs is missing.
    Note,
    /// What `run` and `gateway` need is missing.
    Missing,
}

/// A line of the report.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line {
    level: Level,
    what: String,
    text: String,
}

impl Display for Line {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Ok => "ok",
            Level::Note => "note",
            Level::Missing => "missing",
        };
        write!(f, "{level:<7} {:<19} {}", self.what, self.text)
    }
}

fn line(level: Level, what: &str, text: impl Into<String>) -> Line {
    Line { level, what: what.to_owned(), text: text.into() }
}

/// The first kernel whose Landlock and seccomp make a sandbox, and the first with all of it.
const SANDBOX: (u32, u32) = (5, 13);
const WHOLE_SANDBOX: (u32, u32) = (6, 12);
/// The version of Landlock's interface that came with the latter.
const WHOLE_LANDLOCK: u32 = 6;

/// The report.
pub(super) fn lines(found: &Findings) -> Vec<Line> {
    let mut lines = vec![
        kernel(found),
        tun(found),
        users(found),
        networks(found),
        apparmor(found),
        landlock(found),
        seccomp(found),
        maps_users(found),
        memfd(found),
        huge_pages(found),
        ipv6(found),
    ];
    lines.extend(found.names.iter().map(name));
    lines.push(match &found.run {
        Ok(()) => line(Level::Ok, "pagewire run", "a program ran in a network of its own"),
        Err(why) => line(Level::Missing, "pagewire run", why.clone()),
    });
    lines.push(gateway(found));
    lines
}

fn kernel(found: &Findings) -> Line {
    let mut numbers = found.kernel.split(['.', '-']).map_while(|number| number.parse().ok());
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let kernel = &found.kernel;
    match version {
        _ if version < SANDBOX => {
            line(Level::Missing, "kernel", format!("{kernel}: take Linux 5.13 or later"))
        }
        _ if version < WHOLE_SANDBOX => line(
            Level::Note,
            "kernel",
            format!("{kernel}: the sandbox is whole from Linux 6.12 on"),
        ),
        _ => line(Level::Ok, "kernel", kernel.clone()),
    }
}

fn tun(found: &Findings) -> Line {
    match &found.tun {
        Ok(()) => line(Level::Ok, "/dev/net/tun", "may be opened"),
        Err(why) => {
            let what = format!(
                "{why}: modprobe tun, and chmod 0666 /dev/net/tun; in a container --device /dev/net/tun"
            );
            line(Level::Missing, "/dev/net/tun", what)
        }
    }
}

fn users(found: &Findings) -> Line {
    let what = "user namespaces";
    let Err(why) = &found.users else { return line(Level::Ok, what, "one was made") };
    line(Level::Missing, what, format!("{why}: {}", forbidden_by(&found.settings, false)))
}

fn networks(found: &Findings) -> Line {
    let what = "network namespaces";
    match (&found.networks, &found.users) {
        (Ok(()), _) => line(Level::Ok, what, "one was made"),
        (Err(_), Err(_)) => line(Level::Missing, what, "need a user namespace"),
        (Err(why), Ok(())) => {
            line(Level::Missing, what, format!("{why}: {}", forbidden_by(&found.settings, true)))
        }
    }
}

/// What forbids namespaces, and what to do.
fn forbidden_by(settings: &Settings, networks: bool) -> &'static str {
    match settings {
        Settings { userns_clone: Some(0), .. } => "sysctl kernel.unprivileged_userns_clone=1",
        Settings { max_users: Some(0), .. } => "sysctl user.max_user_namespaces=10000",
        Settings { max_networks: Some(0), .. } if networks => {
            "sysctl user.max_net_namespaces=10000"
        }
        Settings { apparmor_restricts: Some(1..), .. } => {
            "AppArmor wants a profile: install Pagewire's package, or load its profile"
        }
        _ => "a container's profile or a chroot forbids it, or the kernel has none",
    }
}

fn apparmor(found: &Findings) -> Line {
    let restricts = found.settings.apparmor_restricts.is_some_and(|restricts| restricts > 0);
    match &found.apparmor {
        None => line(Level::Ok, "AppArmor", "there is none"),
        Some(profile) if profile == "unconfined" && restricts && found.networks.is_err() => {
            let todo = "no profile for this file: apparmor_parser -r /etc/apparmor.d/pagewire";
            line(Level::Missing, "AppArmor", todo)
        }
        Some(profile) => line(Level::Ok, "AppArmor", format!("profile {profile}")),
    }
}

fn landlock(found: &Findings) -> Line {
    match &found.landlock {
        Ok(version) if *version >= WHOLE_LANDLOCK => {
            line(Level::Ok, "Landlock", format!("version {version} of its interface"))
        }
        Ok(version) => {
            let what = format!(
                "version {version} of its interface: abstract sockets or signals are not restricted"
            );
            line(Level::Note, "Landlock", what)
        }
        Err(why) => {
            let what =
                format!("{why}: boot with lsm=landlock,…; an empty root directory takes its place");
            line(Level::Note, "Landlock", what)
        }
    }
}

fn seccomp(found: &Findings) -> Line {
    match found.seccomp {
        true => line(Level::Ok, "seccomp", "filters system calls"),
        false => line(Level::Note, "seccomp", "this kernel has none: the sandbox is weaker"),
    }
}

fn maps_users(found: &Findings) -> Line {
    match found.maps_users {
        true => line(Level::Ok, "newuidmap", "found, for Podman and RootlessKit"),
        false => {
            let todo = "not found: rootless Podman and RootlessKit want it (package uidmap)";
            line(Level::Note, "newuidmap", todo)
        }
    }
}

fn memfd(found: &Findings) -> Line {
    match &found.memfd {
        Ok(()) => line(Level::Ok, "vhost-user", "memory can be shared and sealed"),
        Err(why) => line(Level::Note, "vhost-user", format!("no sealed memory: {why}")),
    }
}

fn huge_pages(found: &Findings) -> Line {
    match found.huge_pages {
        0 => line(Level::Ok, "huge pages", "none set aside; none needed"),
        number => {
            let text = format!("{number}: a guest's memory in them needs --trust-front-end");
            line(Level::Ok, "huge pages", text)
        }
    }
}

fn ipv6(found: &Findings) -> Line {
    match found.ipv6 {
        true => line(Level::Ok, "IPv6", "the kernel has it"),
        false => line(
            Level::Note,
            "IPv6",
            "off: guests reach IPv4 only (net.ipv6.conf.all.disable_ipv6)",
        ),
    }
}

fn name((name, leads_to, is_ours): &(&'static str, Option<PathBuf>, bool)) -> Line {
    match leads_to {
        Some(_) if *is_ours => line(Level::Ok, name, "is Pagewire"),
        Some(path) => {
            let text = format!(
                "is {}: install pagewire-dropins, or put /usr/libexec/pagewire first in PATH",
                path.display()
            );
            line(Level::Note, name, text)
        }
        None => line(Level::Note, name, "is not in PATH: install pagewire-dropins"),
    }
}

fn gateway(found: &Findings) -> Line {
    let what = "pagewire gateway";
    match (&found.run, &found.tun) {
        (Ok(()), _) => line(Level::Ok, what, "all kinds of links"),
        (Err(_), Ok(())) => line(Level::Note, what, "links by socket; taps of existing namespaces"),
        (Err(_), Err(_)) => line(Level::Note, what, "links by socket only"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A system that has all.
    fn complete() -> Findings {
        Findings {
            kernel: "6.12.1-amd64".to_owned(),
            tun: Ok(()),
            users: Ok(()),
            networks: Ok(()),
            settings: Settings { max_users: Some(9), max_networks: Some(9), ..Settings::default() },
            apparmor: None,
            landlock: Ok(6),
            seccomp: true,
            maps_users: true,
            memfd: Ok(()),
            huge_pages: 0,
            ipv6: true,
            run: Ok(()),
            names: vec![("pasta", Some("/usr/bin/pagewire".into()), true)],
        }
    }

    /// The line about a thing.
    fn about(found: &Findings, what: &str) -> String {
        let line = lines(found).into_iter().find(|line| line.what == what);
        line.expect("a line").to_string()
    }

    #[test]
    fn on_a_system_that_has_all_nothing_is_missing() {
        for line in lines(&complete()) {
            assert_eq!(line.level, Level::Ok, "{line}");
        }
    }

    #[test]
    fn what_is_missing_is_said_with_what_to_do() {
        let refused = || Err("Operation not permitted".to_owned());
        let mut found = complete();
        found.tun = Err("Permission denied".to_owned());
        assert!(about(&found, "/dev/net/tun").contains("chmod 0666 /dev/net/tun"));
        found.run = refused();
        assert!(about(&found, "pagewire run").starts_with("missing"));
        assert!(about(&found, "pagewire gateway").contains("by socket only"));
        found.landlock = Err("this kernel has none".to_owned());
        assert!(about(&found, "Landlock").contains("boot with lsm=landlock"));
        found.ipv6 = false;
        assert!(about(&found, "IPv6").starts_with("note"));
    }

    #[test]
    fn the_setting_that_forbids_namespaces_is_named() {
        let mut found = complete();
        (found.users, found.networks) = (Err("no".to_owned()), Err("no".to_owned()));
        found.settings.userns_clone = Some(0);
        assert!(about(&found, "user namespaces").contains("kernel.unprivileged_userns_clone=1"));
        assert!(about(&found, "network namespaces").contains("need a user namespace"));
        found.settings = Settings { max_users: Some(0), ..Settings::default() };
        assert!(about(&found, "user namespaces").contains("user.max_user_namespaces"));
        found.users = Ok(());
        found.settings = Settings { max_networks: Some(0), ..Settings::default() };
        assert!(about(&found, "network namespaces").contains("user.max_net_namespaces"));
    }

    #[test]
    fn a_restriction_of_apparmor_asks_for_the_profile_unless_it_is_there() {
        let mut found = complete();
        found.settings.apparmor_restricts = Some(1);
        found.apparmor = Some("pagewire (unconfined)".to_owned());
        assert!(about(&found, "AppArmor").starts_with("ok"), "{}", about(&found, "AppArmor"));
        found.apparmor = Some("unconfined".to_owned());
        found.networks = Err("Operation not permitted".to_owned());
        assert!(about(&found, "AppArmor").contains("apparmor_parser -r"));
        assert!(about(&found, "network namespaces").contains("profile"));
    }

    #[test]
    fn an_old_kernel_is_told_apart_from_one_with_a_part_of_the_sandbox() {
        for (kernel, level) in [
            ("5.10.0-28-amd64", "missing"),
            ("5.13", "note"),
            ("6.1.0-18-amd64", "note"),
            ("6.12-rc1", "ok"),
            ("7.0.1", "ok"),
            ("strange", "missing"),
        ] {
            let found = Findings { kernel: kernel.to_owned(), ..complete() };
            assert!(about(&found, "kernel").starts_with(level), "{}", about(&found, "kernel"));
        }
    }

    #[test]
    fn a_name_that_leads_to_another_program_says_how_to_take_it() {
        let mut found = complete();
        found.names = vec![("pasta", Some("/usr/bin/passt".into()), false), ("passt", None, false)];
        assert!(about(&found, "pasta").contains("/usr/bin/passt: install pagewire-dropins"));
        assert!(about(&found, "passt").contains("not in PATH"));
    }
}
