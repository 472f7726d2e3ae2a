//! The reference that clones of a host and its sockets hold.

use std::sync::Arc;

use pagewire_mem::Deferral;

use crate::inside;
use crate::shared::Shared;

/// Keeps a host running; its drop ends the host.
pub(crate) struct Handle {
    pub(crate) shared: Arc<Shared>,
}

impl Handle {
    /// Runs `act`, which takes the host's lock, at once, or when this thread releases that lock.
    pub(crate) fn outside(self: &Arc<Self>, act: impl FnOnce(&Arc<Self>) + Send + Sync + 'static) {
        if inside::is_called_by(self.shared.id) {
            return Deferral::later(Box::new(Later(Arc::clone(self), Some(act))));
        }
        act(self);
    }
}

/// Runs a function when it is dropped.
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
            // A copy made by a fork: the devices and connections are the parent's.
            return;
        }
        if self.shared.manual {
            return self.shared.reset_all();
        }
        // The driver does the rest. Where this thread may wait for it, the devices are free then.
        let limit = self.shared.shutdown_limit;
        self.shared.ask_to_leave(limit, false);
        if !inside::drives_any() && !is_asynchronous() {
            self.shared.wait_until_left(Shared::latest_end(limit));
        }
    }
}

/// Whether this thread runs the tasks of a runtime, which must not be held up.
fn is_asynchronous() -> bool {
    #[cfg(feature = "tokio")]
    return tokio::runtime::Handle::try_current().is_ok();
    #[cfg(not(feature = "tokio"))]
    false
}
