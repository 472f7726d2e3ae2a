//! [`Backend`]: the runtime of sockets that descriptors run on, whose threads wait.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pagewire::Host;
use pagewire_mem::Instant;
use pagewire_sockets::Blocking;

/// A runtime below a table of descriptors, with what Linux keeps beside sockets. It holds its stack as long as
/// it lives: [`enter`](pagewire_sockets::Runtime::enter) does not fail.
pub trait Backend: Blocking {
    /// Waits for a future on the calling thread.
    ///
    /// # Errors
    /// `Deadlock` on a thread that must not wait.
    fn wait_for<F: Future>(&self, future: F) -> io::Result<F::Output> {
        self.block_on(future)
    }

    /// The time of day when the clock, which is at `now`, was at `at`, since 1970.
    fn time_of_day(&self, at: Instant, now: Instant) -> Duration {
        let today = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        today.saturating_sub(now.saturating_since(at))
    }
}

/// Longest sleep of a host's own driver thread in a call here.
const DRIVER_LOOK: Duration = Duration::from_millis(1);

/// Real time. The host's own sockets may be used beside descriptors.
impl Backend for Host {
    fn wait_for<F: Future>(&self, future: F) -> io::Result<F::Output> {
        if !self.is_driver_thread() {
            return self.block_on(future);
        }
        // A waker or an owner's drop on the driver thread: no other thread drives the host.
        let mut future = pin!(future);
        loop {
            if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
            {
                return Ok(done);
            }
            self.wait_turn(DRIVER_LOOK);
        }
    }
}
