//! The descriptor table, and files in use by a call: [`Call`] of any kind, [`SocketCall`] of a socket.

mod control;
mod fast_open;
mod life;
pub(crate) mod mapping;
pub(crate) mod options;
pub(crate) mod poll;
mod receive;
mod send;
mod splice;

use std::io::ErrorKind;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use pagewire_mem::Instant;
use pagewire_sockets::Patience;
use pagewire_stack::{Error, Stack, TcpId};

use crate::backend::Backend;
use crate::events::Events;
use crate::file::socket::Socket;
use crate::file::{self, File, Object};
use crate::limits::MAX_DESCRIPTORS;
use crate::mapped::Mappings;
use crate::numbers::{Lowest, Numbering, Numbers};
use crate::runtime::Runtime;
use crate::watch::gains;
use crate::{Errno, Fd};

/// A table of descriptors over one stack: one method for each system call, each with Linux's
/// results and error numbers. All methods may be called from any thread; those that block say so,
/// and return `EAGAIN` instead on a file that has `O_NONBLOCK`.
///
/// ```
/// use pagewire::{Host, Pair};
/// use pagewire_posix::{Descriptors, SockAddr};
///
/// const AF_INET: i32 = 2;
/// const SOCK_STREAM: i32 = 1;
///
/// let (left, right) = Pair::new()?;
/// let server = Host::builder().device(left).address("10.0.0.1/24").start()?;
/// let client = Host::builder().device(right).address("10.0.0.2/24").start()?;
/// let (server, client) = (Descriptors::new(server), Descriptors::new(client));
/// let address = SockAddr::from("10.0.0.1:7".parse::<std::net::SocketAddr>()?);
///
/// let listener = server.socket(AF_INET, SOCK_STREAM, 0)?;
/// server.bind(listener, address.as_bytes())?;
/// server.listen(listener, 16)?;
///
/// let fd = client.socket(AF_INET, SOCK_STREAM, 0)?;
/// client.connect(fd, address.as_bytes())?;
/// assert_eq!(client.write(fd, b"hello")?, 5);
/// client.close(fd)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Calls by file beside this one: `life.rs` (socket to shutdown), `receive.rs`, `send.rs`, `options/`, `mapping.rs`
/// (mmap), `control.rs` (fcntl, ioctl), `poll.rs` (poll, epoll), `splice.rs` (pipe, splice, sendfile).
pub struct Descriptors<B: Backend> {
    pub(crate) runtime: Runtime<B>,
    pub(crate) mappings: Mappings,
    table: RwLock<Table>,
    numbering: Box<dyn Numbering>,
}

/// Files by number.
struct Table {
    entries: Vec<Option<Entry>>,
    /// Numbers without a file.
    free: Numbers,
}

impl Default for Table {
    fn default() -> Self {
        Self { entries: Vec::new(), free: Numbers::new(MAX_DESCRIPTORS) }
    }
}

impl Table {
    fn get(&self, fd: Fd) -> Option<&Entry> {
        self.entries.get(usize::try_from(fd).ok()?)?.as_ref()
    }

    fn get_mut(&mut self, fd: Fd) -> Option<&mut Entry> {
        self.entries.get_mut(usize::try_from(fd).ok()?)?.as_mut()
    }

    fn take(&mut self, fd: Fd) -> Option<Entry> {
        let at = usize::try_from(fd).ok()?;
        let entry = self.entries.get_mut(at)?.take()?;
        self.free.give_back(at);
        Some(entry)
    }

    /// `at` is below the limit.
    fn put(&mut self, at: usize, entry: Entry) {
        if at >= self.entries.len() {
            self.entries.resize_with(at + 1, || None);
        }
        self.free.take(at);
        self.entries[at] = Some(entry);
    }
}

#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) file: Arc<File>,
    /// `FD_CLOEXEC`: only kept to be read back; nothing here survives an `exec`.
    pub(crate) close_on_exec: bool,
}

impl<B: Backend> Descriptors<B> {
    /// An empty table.
    pub fn new(backend: B) -> Self {
        Self::with_numbering(backend, Box::new(Lowest))
    }

    /// An empty table whose numbers are `numbering`'s.
    pub fn with_numbering(backend: B, numbering: Box<dyn Numbering>) -> Self {
        let runtime = Runtime::new(backend);
        Self { runtime, mappings: Mappings::default(), table: RwLock::default(), numbering }
    }

    /// The runtime that the descriptors run on.
    pub fn backend(&self) -> &B {
        &self.runtime.backend
    }

    /// Whether `fd` names a file of this table.
    pub fn owns(&self, fd: Fd) -> bool {
        self.table().get(fd).is_some()
    }

    /// Closes a descriptor. The last one of a connection sends what is queued and ends it, blocking
    /// for `SO_LINGER`; data that was not read makes that a reset.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn close(&self, fd: Fd) -> Result<(), Errno> {
        let entry = self.table_mut().take(fd).ok_or(Errno::BADF)?;
        self.numbering.close(fd);
        drop(Call::new(&self.runtime, entry.file));
        Ok(())
    }

    /// A further descriptor of the same file, the lowest that is free.
    pub fn dup(&self, fd: Fd) -> Result<Fd, Errno> {
        self.duplicate(fd, 0, false)
    }

    /// Makes `to` a further descriptor of the file of `fd`, and closes the file that `to` named before.
    ///
    /// # Errors
    /// `EBADF` (`to` is no possible number, too), `EINVAL` if the two are the same, or for flags other than
    /// `O_CLOEXEC`.
    pub fn dup3(&self, fd: Fd, to: Fd, flags: i32) -> Result<Fd, Errno> {
        if flags & !libc::O_CLOEXEC != 0 || fd == to {
            return Err(Errno::INVAL);
        }
        let call = self.file(fd)?;
        let at = usize::try_from(to).ok().filter(|&at| at < MAX_DESCRIPTORS).ok_or(Errno::BADF)?;
        if !self.owns(to) {
            self.numbering.claim(to)?;
        }
        call.retain();
        let entry = Entry { file: Arc::clone(call.shared()), close_on_exec: flags != 0 };
        let mut table = self.table_mut();
        let before = table.take(to);
        table.put(at, entry);
        drop(table);
        drop(before.map(|entry| Call::new(&self.runtime, entry.file)));
        Ok(to)
    }

    pub(crate) fn duplicate(&self, fd: Fd, least: Fd, close_on_exec: bool) -> Result<Fd, Errno> {
        let call = self.file(fd)?;
        call.retain();
        self.place(Entry { file: Arc::clone(call.shared()), close_on_exec }, least)
    }

    /// A descriptor for a new file.
    pub(crate) fn install(&self, file: Arc<File>, close_on_exec: bool) -> Result<Fd, Errno> {
        self.place(Entry { file, close_on_exec }, 0)
    }

    /// Takes over the entry's reference, and drops it if there is no descriptor.
    fn place(&self, entry: Entry, least: Fd) -> Result<Fd, Errno> {
        let placed = self.try_place(&entry, least);
        if placed.is_err() {
            drop(Call::new(&self.runtime, entry.file));
        }
        placed
    }

    fn try_place(&self, entry: &Entry, least: Fd) -> Result<Fd, Errno> {
        let wanted = self.numbering.open(least)?;
        let mut table = self.table_mut();
        let at = match wanted {
            Some(fd) => Some(usize::try_from(fd).map_err(|_| Errno::BADF)?),
            None => table.free.lowest(usize::try_from(least).map_err(|_| Errno::INVAL)?),
        };
        let Some(at) = at.filter(|&at| at < MAX_DESCRIPTORS) else {
            drop(table);
            if let Some(fd) = wanted {
                self.numbering.close(fd);
            }
            return Err(Errno::MFILE);
        };
        table.put(at, entry.clone());
        Ok(at as Fd)
    }

    /// The file that `fd` names, which stays open while the call lasts.
    pub(crate) fn file(&self, fd: Fd) -> Result<Call<'_, B>, Errno> {
        let table = self.table();
        let entry = table.get(fd).ok_or(Errno::BADF)?;
        entry.file.retain();
        Ok(Call::new(&self.runtime, Arc::clone(&entry.file)))
    }

    /// The flags of a descriptor.
    pub(crate) fn close_on_exec(&self, fd: Fd) -> Result<bool, Errno> {
        Ok(self.table().get(fd).ok_or(Errno::BADF)?.close_on_exec)
    }

    pub(crate) fn set_close_on_exec(&self, fd: Fd, on: bool) -> Result<(), Errno> {
        self.table_mut().get_mut(fd).ok_or(Errno::BADF)?.close_on_exec = on;
        Ok(())
    }

    fn table(&self) -> RwLockReadGuard<'_, Table> {
        // Nothing that changes the table can fail half-way.
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn table_mut(&self) -> RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B: Backend> Drop for Descriptors<B> {
    fn drop(&mut self) {
        let len = self.table().entries.len();
        for fd in 0..len {
            let _ = self.close(fd as Fd);
        }
    }
}

impl<B: Backend> core::fmt::Debug for Descriptors<B> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let open = self.table().entries.iter().flatten().count();
        f.debug_struct("Descriptors").field("open", &open).finish_non_exhaustive()
    }
}

/// A file in use by a call: it is not closed before the call ends.
pub(crate) struct Call<'d, B: Backend> {
    pub(crate) runtime: &'d Runtime<B>,
    file: Arc<File>,
}

impl<'d, B: Backend> Call<'d, B> {
    /// Takes over a reference that was counted already.
    pub(crate) fn new(runtime: &'d Runtime<B>, file: Arc<File>) -> Self {
        Self { runtime, file }
    }

    pub(crate) fn shared(&self) -> &Arc<File> {
        &self.file
    }

    /// # Errors
    /// `ENOTSOCK`.
    pub(crate) fn socket(&self) -> Result<SocketCall<'_, B>, Errno> {
        match &self.object {
            Object::Socket(socket) => {
                Ok(SocketCall { runtime: self.runtime, file: &self.file, socket })
            }
            _ => Err(Errno::NOTSOCK),
        }
    }
}

impl<B: Backend> core::ops::Deref for Call<'_, B> {
    type Target = File;
    fn deref(&self) -> &File {
        &self.file
    }
}

impl<B: Backend> Drop for Call<'_, B> {
    fn drop(&mut self) {
        if self.file.release() {
            self.file.close(self.runtime);
        }
    }
}

/// A socket in use by a call. Its steps are in `life.rs`, `send.rs`, `receive.rs` and `fast_open.rs`.
pub(crate) struct SocketCall<'c, B: Backend> {
    pub(crate) runtime: &'c Runtime<B>,
    pub(crate) file: &'c File,
    pub(crate) socket: &'c Socket,
}

impl<B: Backend> SocketCall<'_, B> {
    /// Repeats `attempt` as [`file::block_on`] does, unless the file or `MSG_DONTWAIT` forbids.
    pub(crate) fn block_on<T>(
        &self,
        interest: Events,
        flags: i32,
        limit: Option<Duration>,
        attempt: impl FnMut() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let blocking = self.is_blocking(flags);
        file::block_on(self.runtime, &[self.file], interest, blocking, limit, attempt)
    }

    /// [`block_on`](Self::block_on) for an operation on a connection, as other sockets of the runtime wait.
    pub(crate) fn wait<T>(
        &self,
        id: TcpId,
        interest: Events,
        flags: i32,
        limit: Option<Duration>,
        mut op: impl FnMut(&mut Stack, Instant) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let first = self.runtime.with(&mut op);
        if !matches!(first, Err(Errno::AGAIN)) || !self.is_blocking(flags) {
            return first;
        }
        let patience = Patience::For(limit);
        let gained = gains(interest | Events::ALWAYS);
        let done =
            self.runtime.backend.wait(id.into(), gained, patience, |stack, clock| {
                match op(stack, clock.now()) {
                    Err(Errno::AGAIN) => Err(Error::WouldBlock),
                    done => Ok(done),
                }
            });
        match done {
            Ok(done) => done,
            Err(error) if error.kind() == ErrorKind::Deadlock => {
                self.block_on(interest, flags, limit, || self.runtime.with(&mut op))
            }
            Err(_) => Err(Errno::AGAIN),
        }
    }

    pub(crate) fn is_blocking(&self, flags: i32) -> bool {
        !self.file.is_nonblocking() && flags & libc::MSG_DONTWAIT == 0
    }
}

impl<B: Backend> core::ops::Deref for SocketCall<'_, B> {
    type Target = Socket;
    fn deref(&self) -> &Socket {
        self.socket
    }
}
