//! The pagewire processes that run, found by their control sockets. `ss` and `top` connect to them.

use std::fs::DirEntry;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use pagewire_control::protocol::Info;
use pagewire_control::{AskError, Client};

use crate::args::view::Target;
use crate::failure::{Failure, plain, reason};
use crate::view;

/// A process that answers.
pub(crate) struct Process {
    pub(crate) info: Info,
    pub(crate) client: Client,
}

impl Process {
    fn connect(path: &Path) -> Result<Self, AskError> {
        let mut client = Client::connect(path)?;
        Ok(Self { info: client.info()?, client })
    }

    /// The command and number of the process, as `serve/4711`.
    pub(crate) fn name(&self) -> String {
        format!("{}/{}", command(&self.info), self.info.pid)
    }
}

/// The subcommand of a process: its first word that is no option, or the program's name.
fn command(info: &Info) -> &str {
    let mut words = info.command.iter().map(String::as_str);
    let program = words.next().unwrap_or("?");
    let base = program.rsplit('/').next().unwrap_or(program);
    words.find(|word| !word.starts_with('-')).filter(|_| base == "pagewire").unwrap_or(base)
}

/// The processes that were asked for: one, or all that run, by number.
pub(crate) fn find(target: &Target) -> Result<Vec<Process>, Failure> {
    let Some(name) = &target.control else {
        let mut all: Vec<Process> = directories().iter().flat_map(|path| answering(path)).collect();
        all.sort_by_key(|process| process.info.pid);
        return Ok(all);
    };
    let failed = |why: String| Failure::because(format!("--control {name}"), why);
    let path = match name.parse::<u32>() {
        Ok(pid) => directories()
            .into_iter()
            .map(|directory| directory.join(format!("{pid}.sock")))
            .find(|path| path.exists())
            .ok_or_else(|| failed(no_socket(pid)))?,
        Err(_) => PathBuf::from(name),
    };
    Ok(vec![Process::connect(&path).map_err(|error| failed(why_not(&error)))?])
}

/// Why none was found, and what to do.
pub(crate) fn none_found() -> &'static str {
    match view::directory() {
        Some(_) => "no process with a control socket runs; name one with --control PATH",
        None => {
            "XDG_RUNTIME_DIR is not set, so no control socket has a usual place: give the process one \
             with --control PATH, and name it here in the same way"
        }
    }
}

fn no_socket(pid: u32) -> String {
    if Path::new("/proc").join(pid.to_string()).exists() {
        "this process has no control socket in the usual place; give the path".to_owned()
    } else {
        "there is no such process".to_owned()
    }
}

/// Why a process cannot be asked.
pub(crate) fn why_not(error: &AskError) -> String {
    match error {
        AskError::Io(error) => match error.kind() {
            io::ErrorKind::NotFound => "there is no such socket".to_owned(),
            io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe => "the process has ended".to_owned(),
            io::ErrorKind::UnexpectedEof => {
                "the process has ended, or has too many clients".to_owned()
            }
            io::ErrorKind::WouldBlock => "the process does not answer".to_owned(),
            _ => reason(error),
        },
        other => other.to_string(),
    }
}

/// Where processes have their sockets: ours, and for root those of all users.
fn directories() -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = view::directory().into_iter().collect();
    if rustix::process::geteuid().is_root() {
        let users = std::fs::read_dir("/run/user").into_iter().flatten().flatten();
        let of_user = |user: DirEntry| {
            let uid = user.file_name().to_str()?.parse().ok()?;
            Some(user.path().join("pagewire")).filter(|path| is_users(path, uid))
        };
        all.extend(users.filter_map(of_user));
    }
    all
}

/// Whether this is a directory of that user, and not a link by which root is led elsewhere.
fn is_users(path: &Path, uid: u32) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|file| file.is_dir() && file.uid() == uid)
}

/// The processes that answer on sockets in a directory. Sockets of processes that have ended are removed.
fn answering(directory: &Path) -> Vec<Process> {
    view::sweep(directory);
    let ask = |path: PathBuf| match Process::connect(&path) {
        Ok(process) => Some(process),
        Err(AskError::Io(error)) if error.kind() == io::ErrorKind::ConnectionRefused => None,
        Err(error) => {
            let line = format!("pagewire: {}: {}", path.display(), why_not(&error));
            crate::failure::complain!("{}", plain(&line));
            None
        }
    };
    view::sockets(directory).filter_map(ask).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sockets_are_asked_and_links_are_not_followed() {
        let dir = tempfile::tempdir().expect("a directory");
        let own = dir.path().join("7.sock");
        let _listener = std::os::unix::net::UnixListener::bind(&own).expect("a socket");
        std::os::unix::fs::symlink(&own, dir.path().join("8.sock")).expect("a link");
        std::fs::write(dir.path().join("9.sock"), "").expect("a file");
        assert_eq!(view::sockets(dir.path()).collect::<Vec<_>>(), [own]);
    }

    #[test]
    fn a_process_is_named_by_its_command() {
        let name = |words: &[&str]| {
            let command_line = words.iter().map(|word| (*word).to_owned()).collect();
            let info = Info { command: command_line, ..Info::default() };
            command(&info).to_owned()
        };
        assert_eq!(name(&["/usr/bin/pagewire", "-v", "serve", "--tap", "pw0"]), "serve");
        assert_eq!(name(&["./my-server", "x"]), "my-server");
        assert_eq!(name(&["pagewire"]), "pagewire");
        assert_eq!(name(&[]), "?");
    }

    #[test]
    fn root_is_not_led_elsewhere_by_a_link() {
        let dir = tempfile::tempdir().expect("a directory");
        let user = rustix::process::geteuid().as_raw();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).expect("a link");
        assert!(is_users(dir.path(), user));
        assert!(!is_users(&link, user) && !is_users(dir.path(), user + 1));
    }
}
