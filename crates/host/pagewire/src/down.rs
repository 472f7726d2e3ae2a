//! [`Failed`]: a future of the end of a host, whose devices are lost, which failed, or which was shut down.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use pagewire_stack::Error;

use crate::error::NetworkDown;
use crate::host::Host;
use crate::shared::Shared;

/// The end of a host, see [`Host::failed`]. It does not keep the host running.
#[must_use = "a future does nothing unless it is awaited"]
pub struct Failed {
    shared: Arc<Shared>,
    key: u64,
}

impl Host {
    /// Waits until the host cannot send or receive any more, and says why: the last of its devices is lost
    /// for good (a deleted tap, a pair whose other end was dropped), the host was shut down, or it failed.
    /// Ready at once, if that has happened; [`check`](Self::check) asks without a wait.
    ///
    /// A server that only waits for connections uses it to end:
    ///
    /// ```
    /// use pagewire::{Host, Pair};
    ///
    /// # #[cfg(feature = "tokio")]
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let (device, other) = Pair::new()?;
    /// let host = Host::builder().device(device).address("10.0.0.1/24").start()?;
    /// let server = std::future::pending::<()>();
    /// drop(other); // as the deletion of a tap
    /// tokio::select! {
    ///     () = server => {}
    ///     why = host.failed() => assert_eq!(why.cause, "the device was closed by its other side, or deleted"),
    /// }
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "tokio"))]
    /// # fn main() {}
    /// ```
    pub fn failed(&self) -> Failed {
        let shared = Arc::clone(&self.handle().shared);
        let key = shared.next_watcher_key();
        Failed { shared, key }
    }
}

impl Failed {
    /// Waits without an executor. The thread drives the host meanwhile where nothing else does: with
    /// [`HostBuilder::manual`](crate::HostBuilder::manual), and in the runtime that drives the host.
    ///
    /// # Errors
    /// `Deadlock` on the thread that drives the host, which would end the wait.
    pub fn wait(self) -> io::Result<NetworkDown> {
        Arc::clone(&self.shared).block_on(self)
    }
}

impl Future for Failed {
    type Output = NetworkDown;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<NetworkDown> {
        // Cloned, and the one before it dropped, without the host's lock.
        let waker = cx.waker().clone();
        let inner = self.shared.lock();
        if !inner.is_down() {
            let before = inner.watchers.set(self.key, waker);
            drop(inner);
            drop(before);
            return Poll::Pending;
        }
        let error = inner.error(Error::NetworkDown);
        let down = error.get_ref().and_then(|e| e.downcast_ref::<NetworkDown>()).cloned();
        Poll::Ready(down.unwrap_or_else(|| NetworkDown { cause: error.to_string() }))
    }
}

impl Drop for Failed {
    fn drop(&mut self) {
        drop(self.shared.watchers.remove(self.key));
    }
}

impl std::fmt::Debug for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Failed").finish_non_exhaustive()
    }
}
