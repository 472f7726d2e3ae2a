//! [`ControlSocket`]: the Unix socket of the control protocol, and its file.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, fchmod};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};

use crate::limits::CLIENTS;

/// Why a control socket was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// Another program listens there.
    #[error("another program listens there; take another path")]
    InUse,
    /// There is a file, and it is no socket.
    #[error("there is a file that is no socket; take another path")]
    NoSocket,
    /// The path has more than 107 bytes, or a zero byte.
    #[error("a Unix socket's path has at most 107 bytes; take a shorter one")]
    Path,
    /// The system refused.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// A Unix socket that only this user (and root) can connect to. The drop removes the file.
#[derive(Debug)]
pub struct ControlSocket {
    pub(crate) listener: UnixListener,
    path: PathBuf,
    /// The file's inode: another program may have taken the path since.
    inode: u64,
}

impl ControlSocket {
    /// Listens at `path`. A socket that a process left there when it was killed is replaced; one that
    /// somebody listens to, or another file, is not. The directory must exist.
    ///
    /// # Errors
    /// See [`BindError`].
    pub fn bind(path: impl AsRef<Path>) -> Result<Self, BindError> {
        let path = path.as_ref();
        let address = SocketAddrUnix::new(path).map_err(|_| BindError::Path)?;
        remove_stale(path)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(io::Error::from)?;
        // The mode is set before the file has a name: it is never wider.
        fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(io::Error::from)?;
        Self::listen(socket, &address, path)
    }

    fn listen(socket: OwnedFd, address: &SocketAddrUnix, path: &Path) -> Result<Self, BindError> {
        bind(&socket, address).map_err(|error| match error {
            rustix::io::Errno::ADDRINUSE => BindError::InUse,
            error => BindError::System(error.into()),
        })?;
        let inode = std::fs::symlink_metadata(path)?.ino();
        // The path is absolute, because the program may change its directory, and a sandbox that permits the removal of the
        // file needs the directory.
        let path = std::path::absolute(path)?;
        let made = Self { listener: socket.into(), path, inode };
        listen(&made.listener, CLIENTS as i32).map_err(io::Error::from)?;
        Ok(made)
    }

    /// The absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        if std::fs::symlink_metadata(&self.path).is_ok_and(|file| file.ino() == self.inode) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Connects, and waits up to `patience` for room in the listener's queue. `UnixStream::connect` waits for ever
/// if that queue is full: the listening process is stopped, or means ill.
pub(crate) fn connect(path: &Path, patience: Option<Duration>) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let flags = match patience {
        Some(_) => SocketFlags::CLOEXEC,
        None => SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
    };
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Linux limits a wait of `connect`, too, by the time for sends.
    set_socket_timeout(&socket, Timeout::Send, patience)?;
    rustix::net::connect(&socket, &address)?;
    Ok(socket.into())
}

fn remove_stale(path: &Path) -> Result<(), BindError> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.into()),
        Ok(file) if !file.file_type().is_socket() => return Err(BindError::NoSocket),
        Ok(_) => {}
    }
    match connect(path, None) {
        Ok(_) => Err(BindError::InUse),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            Ok(std::fs::remove_file(path)?)
        }
        // The listener's queue is full, or the socket is another user's.
        Err(_) => Err(BindError::InUse),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_its_user_can_connect_and_the_file_goes_with_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("c.sock");
        let socket = ControlSocket::bind(&path).expect("a socket");
        let mode = std::fs::metadata(&path).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn a_left_socket_is_replaced_and_one_in_use_or_another_file_is_not() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("c.sock");
        drop(UnixListener::bind(&path).expect("a socket"));
        let socket = ControlSocket::bind(&path).expect("nobody listened");
        assert!(matches!(ControlSocket::bind(&path), Err(BindError::InUse)));

        let file = dir.path().join("file");
        std::fs::write(&file, "x").expect("a file");
        assert!(matches!(ControlSocket::bind(&file), Err(BindError::NoSocket)));
        assert!(file.exists());
        let long = dir.path().join("x".repeat(200));
        assert!(matches!(ControlSocket::bind(long), Err(BindError::Path)));
        drop(socket);
    }

    #[test]
    fn the_directory_of_a_bare_name_is_known() {
        let name = format!("bare-{}.sock", std::process::id());
        let socket = ControlSocket::bind(&name).expect("a socket");
        let directory = std::env::current_dir().expect("a directory");
        assert_eq!(socket.path(), directory.join(&name));
        drop(socket);
        assert!(!directory.join(&name).exists());
    }

    #[test]
    fn a_socket_whose_queue_is_full_is_in_use() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("c.sock");
        let _full = full(&path);
        let (says, hears) = std::sync::mpsc::channel();
        std::thread::spawn(move || says.send(ControlSocket::bind(&path)));
        let bound = hears.recv_timeout(Duration::from_secs(20)).expect("it does not wait for room");
        assert!(matches!(bound, Err(BindError::InUse)));
    }

    #[test]
    fn a_wait_for_a_full_queue_ends() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("c.sock");
        let _full = full(&path);
        let (says, hears) = std::sync::mpsc::channel();
        let patience = Some(Duration::from_millis(1));
        std::thread::spawn(move || says.send(connect(&path, patience)));
        let done = hears.recv_timeout(Duration::from_secs(20)).expect("the wait ends");
        assert_eq!(done.expect_err("no room").kind(), io::ErrorKind::WouldBlock);
    }

    /// A socket whose owner accepts nobody, and those that fill its queue.
    fn full(path: &Path) -> (OwnedFd, Vec<UnixStream>) {
        let kind = (AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC);
        let socket = socket_with(kind.0, kind.1, kind.2, None).expect("a socket");
        bind(&socket, &SocketAddrUnix::new(path).expect("a path")).expect("a name");
        listen(&socket, 0).expect("it listens");
        let waiting = std::iter::from_fn(|| connect(path, None).ok()).take(100);
        let waiting: Vec<_> = waiting.collect();
        assert!(waiting.len() < 100, "its queue is full");
        (socket, waiting)
    }

    #[test]
    fn a_socket_that_took_its_place_stays() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("c.sock");
        let first = ControlSocket::bind(&path).expect("a socket");
        std::fs::rename(&path, dir.path().join("other")).expect("renamed");
        let second = ControlSocket::bind(&path).expect("a socket");
        drop(first);
        assert!(path.exists());
        drop(second);
    }
}
