//! Tells the service manager that started this process when it is ready, as `sd_notify(3)` says: a datagram
//! to the Unix socket that `NOTIFY_SOCKET` names.

use std::env;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// A way to the service manager, where there is one.
#[derive(Debug)]
pub(crate) struct Notifier(Option<UnixDatagram>);

impl Notifier {
    /// To be called before the sandbox, out of which no socket is reached.
    pub(crate) fn find() -> io::Result<Self> {
        let Some(name) = env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
            return Ok(Self(None));
        };
        Self::to(name.as_bytes())
    }

    fn to(name: &[u8]) -> io::Result<Self> {
        let address = match name.split_first() {
            // An abstract name: a zero byte begins it for the kernel.
            Some((b'@', name)) => SocketAddr::from_abstract_name(name)?,
            _ => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(name))?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        Ok(Self(Some(socket)))
    }

    /// Says that guests are served.
    pub(crate) fn ready(&self) {
        if let Some(socket) = &self.0 {
            // A manager that is gone waits for nothing.
            let _ = socket.send(b"READY=1");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_is_told_at_a_path_and_at_an_abstract_name() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("notify");
        let abstract_name = format!("@pagewire-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&abstract_name[1..]).expect("a name");
        let managers = [
            (UnixDatagram::bind(&path).expect("bound"), path.as_os_str().as_bytes()),
            (UnixDatagram::bind_addr(&address).expect("bound"), abstract_name.as_bytes()),
        ];
        for (manager, name) in managers {
            Notifier::to(name).expect("connected").ready();
            let mut said = [0; 32];
            let length = manager.recv(&mut said).expect("a datagram");
            assert_eq!(said.get(..length), Some(b"READY=1".as_slice()));
        }
    }

    #[test]
    fn a_manager_that_is_gone_is_an_error_before_guests_are_served() {
        assert!(Notifier::to(b"/nowhere/notify").is_err());
    }
}
