//! What clones of a host and its sockets hold.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use pagewire_mem::{Deferral, Instant};
use pagewire_stack::{Error, SocketId, Stack};

use crate::inside;
use crate::shared::{Interest, Shared};
use crate::wait::Patience;

/// A host, for those who keep it running; its drop stops the driver.
pub(crate) struct Handle {
    pub(crate) shared: Arc<Shared>,
    pub(crate) driver: Option<JoinHandle<()>>,
}

impl Handle {
    /// Closes a socket whose owner is gone.
    pub(crate) fn close(self: &Arc<Self>, id: SocketId) {
        self.outside(move |host| {
            let (mut inner, now) = host.shared.lock_now();
            inner.forget(id);
            inner.stack.close(now, id);
            inner.flush(now);
            host.shared.unlock_and_wake(inner);
        });
    }

    /// Has `act` take the host's lock: at once, or when this thread lets go of it, if it runs code that
    /// the host calls under its lock. For drops, which cannot be refused.
    pub(crate) fn outside(self: &Arc<Self>, act: impl FnOnce(&Arc<Self>) + Send + Sync + 'static) {
        if inside::is_called_by(self.shared.id) {
            return Deferral::later(Box::new(Later(Arc::clone(self), Some(act))));
        }
        act(self);
    }

    pub(crate) fn wait<T>(
        &self,
        id: SocketId,
        interest: Interest,
        patience: Patience,
        op: impl FnMut(&mut Stack, Instant) -> Result<T, Error>,
    ) -> io::Result<T> {
        self.shared.wait(id, interest, patience, op)
    }
}

/// Something that is done by the drop of this.
struct Later<F: FnOnce(&Arc<Handle>)>(Arc<Handle>, Option<F>);

impl<F: FnOnce(&Arc<Handle>)> Drop for Later<F> {
    fn drop(&mut self) {
        if let Some(act) = self.1.take() {
            act(&self.0);
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.shared.process != std::process::id() {
            // A copy that came with a fork: the devices and their connections are the parent's.
            return;
        }
        match self.driver.take() {
            // Its thread does the rest. Where it can be waited for, the devices are free after this.
            Some(_) => {
                let limit = self.shared.shutdown_limit;
                self.shared.ask_to_leave(limit, false);
                if !inside::drives_any() && !is_asynchronous() {
                    self.shared.wait_until_left(Shared::latest_end(limit));
                }
            }
            None => self.shared.reset_all(),
        }
    }
}

/// Whether this thread runs the tasks of a runtime, which must not be held up.
fn is_asynchronous() -> bool {
    #[cfg(feature = "tokio")]
    return ::tokio::runtime::Handle::try_current().is_ok();
    #[cfg(not(feature = "tokio"))]
    false
}
