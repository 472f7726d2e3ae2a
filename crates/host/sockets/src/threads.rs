//! Waits of threads on a runtime that turns its own clock: a simulation of two stacks, a script.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// The flag of a thread that waits: set by its waker.
#[derive(Debug, Default)]
pub struct Signal(AtomicBool);

impl Signal {
    /// Whether the waker was called.
    pub fn is_set(&self) -> bool {
        // Pairs with `wake`: a thread that sees the flag sees what happened before it was set.
        self.0.load(Ordering::Acquire)
    }
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// Polls a future until it is ready. In between, `wait` goes on with the world until the signal is set.
pub fn block_on<F: Future>(future: F, mut wait: impl FnMut(&Signal)) -> F::Output {
    let (signal, mut future) = (Arc::<Signal>::default(), pin!(future));
    let waker = Waker::from(Arc::clone(&signal));
    loop {
        signal.0.store(false, Ordering::Release);
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(done) => return done,
            Poll::Pending => wait(&signal),
        }
    }
}
