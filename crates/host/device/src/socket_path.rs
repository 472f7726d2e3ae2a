//! The path of a Unix socket that a device listens at, and its file.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};

/// A link address derived from a socket's path (FNV-1a): locally administered, unicast.
pub(crate) fn derive_mac(path: &Path) -> [u8; 6] {
    let bytes = path.as_os_str().as_encoded_bytes().iter();
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let [a, b, c, ..] = (hash ^ hash >> 32).to_le_bytes();
    [0x02, 0x50, 0x57, a, b, c]
}

/// Listens at a path, for this user only (mode 0600, whatever the mask says). A socket without a listener is
/// replaced; one that somebody listens at, or another file, is not. Calls of the listener do not block, and
/// the file stays when it is dropped.
///
/// # Errors
/// Those of the system. [`InvalidInput`](io::ErrorKind::InvalidInput): the path has more than 107 bytes, or a
/// zero byte. [`AddrInUse`](io::ErrorKind::AddrInUse): there is a listener, or another file.
pub fn bind_listener(path: impl AsRef<Path>) -> io::Result<UnixListener> {
    Ok(bind_anew(path.as_ref(), SocketType::STREAM)?.into())
}

/// The path at which a socket is bound; an empty one if it has none.
pub(crate) fn path_of(address: &SocketAddr) -> PathBuf {
    address.as_pathname().unwrap_or(Path::new("")).to_owned()
}

/// The file of a socket that is this device's own: the drop removes it, before that of the socket, in whose
/// place another process may put its own from then on.
#[derive(Debug)]
pub(crate) struct SocketFile(pub(crate) PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A socket at which a device listens; calls do not block. Its file goes first, if it is the device's own.
#[derive(Debug)]
pub(crate) struct Listener {
    _file: Option<SocketFile>,
    pub(crate) socket: UnixListener,
}

impl Listener {
    pub(crate) fn own(socket: UnixListener, path: &Path) -> Self {
        Self { _file: Some(SocketFile(path.to_owned())), socket }
    }

    /// One that somebody else keeps, with its path.
    pub(crate) fn adopt(socket: UnixListener) -> io::Result<(Self, PathBuf)> {
        socket.set_nonblocking(true)?;
        let path = path_of(&socket.local_addr()?);
        Ok((Self { _file: None, socket }, path))
    }
}

/// Connections that wait to be accepted: of one peer, and another after it.
const BACKLOG: i32 = 16;

/// Binds a socket of this type at a path, for its user only, and listens if the type has connections. A
/// socket that nobody has open any more is replaced.
pub(crate) fn bind_anew(path: &Path, kind: SocketType) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let address = SocketAddrUnix::new(path).map_err(|_| io::ErrorKind::InvalidInput)?;
    let socket = socket_with(AddressFamily::UNIX, kind, flags, None)?;
    // Before it has a name: the file never has a wider mode.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    match bind(&socket, &address) {
        Err(Errno::ADDRINUSE) if is_dead(path, kind) => {
            remove_dead(path, kind)?;
            bind(&socket, &address)?;
        }
        bound => bound?,
    }
    if kind == SocketType::STREAM {
        listen(&socket, BACKLOG)?;
    }
    Ok(socket)
}

/// Removes what nobody has open. Another process that begins at this moment may have put its own socket
/// there: what is at the path is taken aside, judged again, and given back.
fn remove_dead(path: &Path, kind: SocketType) -> io::Result<()> {
    let aside = aside(path);
    match std::fs::rename(path, &aside) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        moved => moved?,
    }
    let is_dead = is_dead(&aside, kind);
    if !is_dead {
        // Fails if there is a third by now.
        let _ = std::fs::hard_link(&aside, path);
    }
    std::fs::remove_file(&aside)?;
    if is_dead { Ok(()) } else { Err(io::ErrorKind::AddrInUse.into()) }
}

/// A name beside this one that nobody else takes: processes in other namespaces have this number, too, and
/// other threads remove sockets. Short, since a socket's path may not be long.
fn aside(path: &Path) -> PathBuf {
    let random = RandomState::new().hash_one(std::process::id());
    path.with_file_name(format!(".{:x}", random as u32))
}

/// Whether nobody has this socket open. Files of other kinds must not be removed.
fn is_dead(path: &Path, kind: SocketType) -> bool {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let connect = || -> io::Result<()> {
        let socket = socket_with(AddressFamily::UNIX, kind, flags, None)?;
        Ok(rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?)
    };
    std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket())
        && connect().is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn only_its_user_may_plug_in_whatever_the_mask_says() {
        let dir = tempfile::tempdir().expect("a directory");
        for kind in [SocketType::STREAM, SocketType::DGRAM] {
            let path = dir.path().join(format!("{}", kind.as_raw()));
            let before = rustix::process::umask(Mode::empty());
            let socket = bind_anew(&path, kind);
            rustix::process::umask(before);
            let _socket = socket.expect("a socket");
            let mode = std::fs::metadata(&path).expect("it is there").permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
    }

    #[test]
    fn a_socket_that_another_process_has_put_in_the_place_of_a_dead_one_stays() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let others = UnixListener::bind(&path).expect("a socket");
        let removed = remove_dead(&path, SocketType::STREAM);
        assert_eq!(removed.expect_err("it is in use").kind(), io::ErrorKind::AddrInUse);
        UnixStream::connect(&path).expect("the other's");
        drop(others);
        remove_dead(&path, SocketType::STREAM).expect("nobody has it");
        assert_eq!(std::fs::read_dir(&dir).expect("a directory").count(), 0);
    }

    #[test]
    fn sockets_that_are_taken_aside_at_once_have_names_of_their_own() {
        let aside = || aside(Path::new("/run/socket"));
        let others = std::thread::spawn(aside).join().expect("no panic");
        let ours = [aside(), aside()];
        assert!(ours[0] != ours[1] && !ours.contains(&others), "{ours:?} {others:?}");
        assert!(ours.iter().all(|path| path.parent() == Some(Path::new("/run"))));
    }

    #[test]
    fn a_path_that_is_too_long_is_no_input() {
        let error = bind_anew(Path::new(&"x".repeat(200)), SocketType::STREAM);
        assert_eq!(error.expect_err("too long").kind(), io::ErrorKind::InvalidInput);
    }
}
