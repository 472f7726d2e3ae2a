//! [`Lifetime`]: whether others still need a namespace. A tap keeps its namespace, so the end is not visible at the tap.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};

use super::Namespace;
use crate::limits::WATCH_BYTES;

/// Until a namespace's process has ended, or its file is removed; as long as this process, where the
/// system gives no watch for the file. Its descriptor is readable when there
/// is something to check.
#[derive(Debug)]
pub struct Lifetime {
    fd: OwnedFd,
    /// The name of the file, in a directory that is watched.
    file: Option<OsString>,
}

impl Lifetime {
    /// The lifetime of a namespace, from now on. A file below `/proc/NUMBER` lives as long as that process.
    ///
    /// # Errors
    /// Errors of the system: there is no such process, or no such file.
    pub fn of(namespace: &Namespace) -> io::Result<Self> {
        let path = match namespace {
            Namespace::Process(id) => return Self::of_process(pid(*id)?),
            Namespace::Path(path) => path,
        };
        // A descriptor of this process's leads to the file that it is of.
        let leads_to = fs::canonicalize(path).ok().filter(|to| !to.starts_with("/proc"));
        let path = leads_to.as_deref().filter(|_| path.starts_with("/proc")).unwrap_or(path);
        let mut parts = path.components().skip_while(|part| *part == Component::RootDir);
        if path.is_absolute() && parts.next() == Some(Component::Normal("proc".as_ref())) {
            let id = parts.next().and_then(|part| part.as_os_str().to_str()?.parse().ok());
            return Self::of_process(id.map_or_else(|| Ok(getpid()), pid)?);
        }
        fs::metadata(path)?;
        // A link to a file of `/proc` leads to nothing that has a name.
        let path = fs::canonicalize(path).or_else(|_| std::path::absolute(path))?;
        match watch(path.parent().unwrap_or(Path::new("/"))) {
            Ok(fd) => Ok(Self { fd, file: path.file_name().map(OsString::from) }),
            Err(e @ (Errno::NOENT | Errno::NOTDIR)) => Err(e.into()),
            // A user has a limited number of them, and the directory may be closed to this one.
            Err(e) => {
                tracing::warn!("the removal of {} is not seen: {e}", path.display());
                Self::of_process(getpid())
            }
        }
    }

    fn of_process(id: Pid) -> io::Result<Self> {
        Ok(Self { fd: pidfd_open(id, PidfdFlags::empty())?, file: None })
    }

    /// Whether it is over.
    pub fn is_over(&self) -> bool {
        match &self.file {
            Some(file) => self.is_removed(file),
            None => {
                let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
                poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
            }
        }
    }

    fn is_removed(&self, file: &OsString) -> bool {
        let mut room = [MaybeUninit::uninit(); WATCH_BYTES];
        let mut events = Reader::new(&self.fd, &mut room);
        while let Ok(event) = events.next() {
            let is_it = event.file_name().is_some_and(|n| n.to_bytes() == file.as_encoded_bytes());
            // An event without a name means that the directory is gone; an overflow hides which file it was.
            let whole = event.events().intersects(
                ReadFlags::DELETE_SELF
                    | ReadFlags::MOVE_SELF
                    | ReadFlags::UNMOUNT
                    | ReadFlags::QUEUE_OVERFLOW,
            );
            if is_it || whole {
                return true;
            }
        }
        false
    }
}

impl AsFd for Lifetime {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Has the removal of files in a directory reported, and that of the directory.
fn watch(directory: &Path) -> Result<OwnedFd, Errno> {
    let fd = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    let gone = WatchFlags::DELETE | WatchFlags::MOVED_FROM;
    let itself = WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF | WatchFlags::ONLYDIR;
    add_watch(&fd, directory, gone | itself)?;
    Ok(fd)
}

fn pid(id: u32) -> io::Result<Pid> {
    let pid = i32::try_from(id).ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

    use super::*;

    #[test]
    fn it_ends_with_the_process_or_with_the_file_and_not_with_another() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("a process");
        let by_number = Lifetime::of(&Namespace::Process(child.id())).expect("it is there");
        let file = format!("/proc/{}/ns/net", child.id()).into();
        let by_file = Lifetime::of(&Namespace::Path(file)).expect("it is there");
        assert!(!by_number.is_over() && !by_file.is_over());
        drop(child.stdin.take());
        child.wait().expect("its end");
        assert!(by_number.is_over() && by_file.is_over());

        let dir = tempfile::tempdir().expect("a directory");
        let [name, other] = ["name", "other"].map(|name| dir.path().join(name));
        for path in [&name, &other] {
            fs::write(path, "").expect("a file");
        }
        let lifetime = Lifetime::of(&Namespace::Path(name.clone())).expect("it is there");
        fs::remove_file(other).expect("removed");
        assert!(!lifetime.is_over());
        fs::remove_file(&name).expect("removed");
        assert!(lifetime.is_over());
        assert!(Lifetime::of(&Namespace::Path(name)).is_err());
    }

    #[test]
    fn where_the_system_gives_no_watch_it_lasts_as_long_as_this_process() {
        for (call, error) in [
            (libc::SYS_inotify_init1, libc::EMFILE),
            (libc::SYS_inotify_init1, libc::ENOSYS),
            (libc::SYS_inotify_add_watch, libc::ENOSPC),
            (libc::SYS_inotify_add_watch, libc::EACCES),
        ] {
            let file = tempfile::NamedTempFile::new().expect("a file");
            let namespace = Namespace::Path(file.path().to_owned());
            // The filter is this thread's, and ends with it.
            let lifetime = std::thread::spawn(move || {
                refuse(call, error);
                Lifetime::of(&namespace)
            });
            let lifetime = lifetime.join().expect("no panic").expect("it starts");
            drop(file);
            assert!(!lifetime.is_over(), "call {call}, error {error}");
        }
    }

    /// Has the kernel refuse a call to this thread.
    fn refuse(call: i64, error: i32) {
        let then = SeccompAction::Errno(error as u32);
        let target = std::env::consts::ARCH.try_into().expect("known");
        let rules = [(call, Vec::new())].into_iter().collect();
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, then, target);
        let filter: BpfProgram = filter.expect("a filter").try_into().expect("a filter");
        seccompiler::apply_filter(&filter).expect("a filter");
    }
}
