//! [`NsSockets`]: sockets of another network namespace, which a helper process makes in there.
//!
//! ```text
//!   this process, outside              the helper, inside
//!   "listen tcp 127.0.0.1:80" -------> socket, bind, listen
//!   a socket of that namespace <------ its descriptor, or the error
//! ```
//!
//! The helper can do nothing else: it has no descriptor but the wire, no capability but to bind ports below 1024 in
//! there, and a list of some twenty system calls.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Child;
use std::sync::{Arc, Mutex, PoisonError};

use super::helper_socket::{ERRNO, FAILED, GO, Message, SERVES, SOCKET, Wire};
use super::outside::{own_program, spawn};
use super::ports::{ListeningPort, PortTables};
use super::socket_request::{Kind, Request};
use super::{Namespace, NetnsError, inside};
use crate::limits::HELPER_TIME;
use crate::request::Protocol;

/// Makes sockets in another network namespace, and knows the ports that programs listen on in there and out here.
/// Clones share the helper process, which ends with the last of them, with this process, and with the thread that
/// made it.
#[derive(Clone, Debug)]
pub struct NsSockets(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// The wire; `None` once the helper is gone.
    wire: Mutex<Option<Wire>>,
    child: Mutex<Child>,
    inside: PortTables,
    outside: PortTables,
}

impl NsSockets {
    /// Enters a namespace, with a helper process that stays in there. To be called before this process gives up its
    /// rights, and by a thread that lasts. `user` is a file of the user namespace to enter first; `None`: the one
    /// that owns the namespace.
    ///
    /// # Errors
    /// [`NetnsError`], whose text says what to do.
    pub fn of(namespace: &Namespace, user: Option<&Path>) -> Result<Self, NetnsError> {
        Self::by_helper(&own_program(), namespace, user)
    }

    /// [`of`](Self::of), with another program's file as the helper; its `main` begins with
    /// [`inside`](super::inside()).
    ///
    /// # Errors
    /// As [`of`](Self::of).
    pub fn by_helper(
        helper: &Path,
        namespace: &Namespace,
        user: Option<&Path>,
    ) -> Result<Self, NetnsError> {
        let files = namespace.open(user)?;
        let (wire, mut child) = spawn(helper, true, |socket| {
            inside::arguments(inside::SOCKETS, socket, Some(namespace)).into()
        })?;
        let serves = || {
            let failed = NetnsError::system("talk to the helper process");
            wire.limit_time(HELPER_TIME).map_err(&failed)?;
            wire.send(GO, b"", &files).map_err(&failed)?;
            let message = wire.receive().map_err(&failed)?.ok_or(NetnsError::HelperEnded)?;
            match message.kind {
                SERVES => inside::tables(message).ok_or(NetnsError::HelperEnded),
                FAILED => Err(NetnsError::Inside(message.text())),
                _ => Err(NetnsError::HelperEnded),
            }
        };
        let tables = serves().inspect_err(|_| {
            let _ = child.kill();
            let _ = child.wait();
        })?;
        Ok(Self(Arc::new(Shared {
            wire: Mutex::new(Some(wire)),
            child: Mutex::new(child),
            inside: PortTables::of(tables),
            outside: PortTables::of(PortTables::open_files()),
        })))
    }

    /// The helper's process identifier.
    pub fn helper(&self) -> u32 {
        self.0.child.lock().unwrap_or_else(PoisonError::into_inner).id()
    }

    /// A socket of the namespace, not bound, for this version of IP.
    ///
    /// # Errors
    /// Those of `socket(2)`; `BrokenPipe` if the helper is gone.
    pub fn socket(&self, protocol: Protocol, v6: bool) -> io::Result<OwnedFd> {
        self.ask(&Request { protocol, kind: Kind::Plain { v6 } })
    }

    /// A socket of the namespace for connections from this address.
    ///
    /// # Errors
    /// As [`socket`](Self::socket); `AddrNotAvailable` if the namespace does not have the address.
    pub(crate) fn socket_from(&self, protocol: Protocol, ip: IpAddr) -> io::Result<OwnedFd> {
        self.ask(&Request { protocol, kind: Kind::From(ip) })
    }

    /// A socket of the namespace that is bound to this address, and listens if it is TCP's.
    ///
    /// # Errors
    /// Those of `socket(2)`, `bind(2)` and `listen(2)`; `BrokenPipe` if the helper is gone.
    pub fn listen(&self, protocol: Protocol, at: SocketAddr) -> io::Result<OwnedFd> {
        self.ask(&Request { protocol, kind: Kind::Listen(at) })
    }

    fn ask(&self, request: &Request) -> io::Result<OwnedFd> {
        let mut wire = self.0.wire.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = wire.as_ref().map(|wire| {
            wire.send(SOCKET, request.to_string().as_bytes(), &[])?;
            wire.receive()
        });
        match answer {
            Some(Ok(Some(Message { kind: SOCKET, fds, .. }))) => {
                fds.into_iter().next().ok_or_else(|| io::ErrorKind::InvalidData.into())
            }
            Some(Ok(Some(Message { kind: ERRNO, body, .. }))) => {
                let number = <[u8; 4]>::try_from(&*body).map(i32::from_ne_bytes);
                Err(number.map_or(io::ErrorKind::InvalidData.into(), io::Error::from_raw_os_error))
            }
            // A late answer would be taken for that to the next request.
            _ => {
                if wire.take().is_some() {
                    tracing::warn!(
                        "the helper in the namespace is gone: it gets no new connections"
                    );
                }
                Err(io::ErrorKind::BrokenPipe.into())
            }
        }
    }

    /// The ports on which programs in the namespace listen.
    ///
    /// # Errors
    /// Those of `pread(2)`.
    pub fn listening(&self, protocol: Protocol) -> io::Result<Vec<ListeningPort>> {
        self.0.inside.listening(protocol)
    }

    /// The ports on which programs listen in the namespace that this object was made in.
    ///
    /// # Errors
    /// Those of `pread(2)`.
    pub fn listening_outside(&self, protocol: Protocol) -> io::Result<Vec<ListeningPort>> {
        self.0.outside.listening(protocol)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The helper ends with the wire. In a sandbox, this process may neither signal it nor wait.
        *self.wire.get_mut().unwrap_or_else(PoisonError::into_inner) = None;
        let child = self.child.get_mut().unwrap_or_else(PoisonError::into_inner);
        if child.kill().is_ok() {
            let _ = child.wait();
        } else {
            let _ = child.try_wait();
        }
    }
}
