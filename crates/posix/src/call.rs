//! A file in use by a call: [`Call`] of any kind, [`SocketCall`] of a socket.

use std::sync::Arc;
use std::time::Duration;

use crate::Errno;
use crate::backend::Backend;
use crate::events::Events;
use crate::file::socket::Socket;
use crate::file::{File, Object};
use crate::runtime::Runtime;

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
    /// Repeats `attempt` as [`Runtime::block_on`] does, unless the file or `MSG_DONTWAIT` forbids.
    pub(crate) fn block_on<T>(
        &self,
        interest: Events,
        flags: i32,
        limit: Option<Duration>,
        attempt: impl FnMut() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let blocking = self.is_blocking(flags);
        self.runtime.block_on(&[&self.file.watch], interest, blocking, limit, attempt)
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
