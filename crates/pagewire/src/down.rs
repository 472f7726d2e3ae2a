//! The end of a host as others wait for it: its devices are lost, it failed, or it was shut down.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use pagewire_stack::Error;

use crate::error::NetworkDown;
use crate::host::Host;
use crate::shared::{Inner, Shared};
use crate::wait::thread_waker;

/// Who waits for the end of a host. Not under the host's lock: a wait may end where that is held.
#[derive(Clone, Default)]
pub(crate) struct Watchers(Arc<Mutex<Vec<(u64, Waker)>>>);

impl Watchers {
    /// `waker` is to be called; returns the one before it, to be dropped without a lock.
    fn set(&self, key: u64, waker: Waker) -> Option<Waker> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match all.iter_mut().find(|(of, _)| *of == key) {
            Some((_, before)) => Some(std::mem::replace(before, waker)),
            None => {
                all.push((key, waker));
                None
            }
        }
    }

    fn remove(&self, key: u64) -> Option<Waker> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = all.iter().position(|(of, _)| *of == key)?;
        Some(all.swap_remove(at).1)
    }

    fn take(&self) -> Vec<(u64, Waker)> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The end of a host, see [`Host::failed`]. It does not keep the host running.
#[must_use = "a future does nothing unless it is awaited"]
pub struct Failed {
    shared: Arc<Shared>,
    key: u64,
}

impl Host {
    /// Waits until the host cannot send or receive any more, and says why: the last of its devices is lost
    /// for good (a deleted tap, a pair whose other end was dropped), the host was shut down, or it failed.
    /// At once, if that has happened; [`check`](Self::check) asks without a wait.
    ///
    /// A server that only waits for connections ends by it:
    ///
    /// ```
    /// use pagewire::{Host, Pair};
    ///
    /// # #[cfg(feature = "tokio")]
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let (device, other) = Pair::new(Default::default())?;
    /// let host = Host::builder().device(device).address("10.0.0.1/24").start()?;
    /// let server = std::future::pending::<()>();
    /// drop(other); // as the deletion of a tap
    /// tokio::select! {
    ///     () = server => {}
    ///     why = host.failed() => assert_eq!(why.cause, "the device was closed by its other side"),
    /// }
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "tokio"))]
    /// # fn main() {}
    /// ```
    pub fn failed(&self) -> Failed {
        let shared = Arc::clone(&self.handle().shared);
        let key = shared.next_key();
        Failed { shared, key }
    }
}

impl Failed {
    /// Waits without an executor. A host that nobody drives ([`Builder::manual`](crate::Builder::manual))
    /// learns nothing meanwhile.
    pub fn wait(mut self) -> NetworkDown {
        let waker = thread_waker();
        let mut cx = Context::from_waker(&waker);
        loop {
            match Pin::new(&mut self).poll(&mut cx) {
                Poll::Ready(down) => return down,
                Poll::Pending => std::thread::park(),
            }
        }
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

impl Inner {
    /// Whether no socket can send or receive.
    pub(crate) fn is_down(&self) -> bool {
        self.failed || self.stack.is_down()
    }

    /// Wakes those who wait for the end, if this is it.
    pub(crate) fn note_down(&mut self) {
        if self.is_down() {
            self.waiters.ready.extend(self.watchers.take().into_iter().map(|(_, waker)| waker));
        }
    }
}
