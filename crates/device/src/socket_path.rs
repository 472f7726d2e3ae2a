//! The path of a Unix socket that a device listens at.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

/// A link address derived from a socket's path (FNV-1a): locally administered, unicast.
pub(crate) fn derive_mac(path: &Path) -> [u8; 6] {
    let bytes = path.as_os_str().as_encoded_bytes().iter();
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let [a, b, c, ..] = (hash ^ hash >> 32).to_le_bytes();
    [0x02, 0x50, 0x57, a, b, c]
}

/// Binds at a path with `bind`, replacing a socket of this type that nobody has open any more.
pub(crate) fn bind_anew<S>(
    path: &Path,
    kind: SocketType,
    bind: impl Fn(&Path) -> io::Result<S>,
) -> io::Result<S> {
    match bind(path) {
        Err(e) if e.kind() == io::ErrorKind::AddrInUse && is_dead(path, kind) => {
            std::fs::remove_file(path)?;
            bind(path)
        }
        bound => bound,
    }
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
