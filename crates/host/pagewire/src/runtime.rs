//! [`Host`] as the runtime of `pagewire-sockets`: where the stack of its sockets lives. Also the host of a thread
//! ([`Host::enter`]) and of the process ([`Host::make_default`]).

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use pagewire_mem::{Deferral, Frag, Instant, Panicked};
use pagewire_sockets::{Blocking, Clock, Patience, Runtime, Waiters};
use pagewire_stack::{Error, Readiness, SocketId, Stack};

use crate::host::{Host, WeakHost};
use crate::shared::Shared;
use crate::wait::{StallWatch, Unpark};

/// Longest wait for a device between two polls of the future that a thread waits for.
const LONGEST_DRIVE: Duration = Duration::from_millis(100);

impl Runtime for Host {
    fn current() -> io::Result<Self> {
        let last = |entered: &RefCell<Vec<Rc<WeakHost>>>| {
            entered.borrow().last().map(|host| (**host).clone())
        };
        let entered = ENTERED.try_with(last);
        let default = || DEFAULT.read().unwrap_or_else(PoisonError::into_inner).clone();
        let host = entered.ok().flatten().or_else(default).and_then(|host| host.upgrade());
        host.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::Unsupported,
                "no host: name one (`connect_on`, `bind_on`), or call `Host::enter` or \
                 `Host::make_default` before",
            )
        })
    }

    #[inline]
    fn enter<T>(
        &self,
        op: impl FnOnce(&mut Stack, &Clock<'_>, &mut Waiters) -> T,
    ) -> io::Result<T> {
        Ok(self
            .shared()
            .with_inner(|inner, clock| op(&mut inner.stack, clock, &mut inner.waiters.sockets)))
    }

    fn drop_received(&self, frags: Vec<Frag>) {
        let deferral = Deferral::begin();
        drop(frags);
        let panicked = deferral.end();
        if panicked != Panicked::default() {
            self.shared().panics.note(panicked);
        }
    }

    fn later(&self, op: impl FnOnce(&mut Stack, Instant) + Send + Sync + 'static) {
        self.handle().when_unlocked(move |host| host.shared.with_stack(op));
    }

    fn close(&self, socket: SocketId) {
        self.handle().when_unlocked(move |host| {
            host.shared.modify(|inner, now| {
                inner.waiters.forget(socket);
                inner.stack.close(now, socket);
            });
        });
    }

    fn unregister(&self, take: impl FnOnce(&mut Waiters) -> Option<Waker> + Send + Sync + 'static) {
        self.handle().when_unlocked(move |host| {
            let mut inner = host.shared.lock();
            let gone = take(&mut inner.waiters.sockets);
            inner.discarded.extend(gone.map(|waker| Box::new(waker) as _));
        });
    }

    fn error(&self, error: Error) -> io::Error {
        self.shared().error(error)
    }

    async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        crate::names::resolve(self, self.handle().resolver.as_deref(), name).await
    }
}

impl Blocking for Host {
    fn wait<T>(
        &self,
        socket: SocketId,
        interest: Readiness,
        patience: Patience,
        op: impl FnMut(&mut Stack, &Clock<'_>) -> Result<T, Error>,
    ) -> io::Result<T> {
        self.shared().wait_after_try(socket, interest, patience, op)
    }

    fn block_on<F: Future>(&self, future: F) -> io::Result<F::Output> {
        self.shared().block_on(future)
    }
}

impl Shared {
    /// Waits for a future without an executor. Where nothing else drives the host, this thread does.
    ///
    /// # Errors
    /// `Deadlock` on the thread that drives the host, which would end the wait.
    pub(crate) fn block_on<F: Future>(&self, future: F) -> io::Result<F::Output> {
        let woken = Unpark::new();
        let waker = Waker::from(Arc::clone(&woken));
        let (mut cx, mut stall_watch) = (Context::from_waker(&waker), StallWatch::new(self));
        let mut future = pin!(future);
        loop {
            match future.as_mut().poll(&mut cx) {
                Poll::Ready(done) => return Ok(done),
                Poll::Pending => self.wait_for_host(&mut stall_watch, &woken, LONGEST_DRIVE)?,
            }
        }
    }
}

thread_local! {
    /// The hosts that this thread has entered, the last of which counts.
    static ENTERED: RefCell<Vec<Rc<WeakHost>>> = const { RefCell::new(Vec::new()) };
}

/// The host of threads that have entered none.
static DEFAULT: RwLock<Option<WeakHost>> = RwLock::new(None);

/// A guard while which sockets of this thread are made on a host: [`Host::enter`].
#[derive(Debug)]
#[must_use = "the thread leaves the host when this is dropped"]
pub struct Entered(Rc<WeakHost>);

impl Drop for Entered {
    fn drop(&mut self) {
        // Entries may end in any order. The removed entry is dropped outside of the borrow.
        let _ = ENTERED.try_with(|entered| {
            let mut entered = entered.borrow_mut();
            let at = entered.iter().position(|entry| Rc::ptr_eq(entry, &self.0));
            at.map(|at| entered.remove(at))
        });
    }
}

impl Host {
    /// Makes this the host of `connect` and `bind` of [`net`](crate::net) on this thread, until the answer
    /// is dropped. The host does not run longer for that.
    pub fn enter(&self) -> Entered {
        let entry = Rc::new(self.downgrade());
        ENTERED.with(|entered| entered.borrow_mut().push(Rc::clone(&entry)));
        Entered(entry)
    }

    /// Makes this the host of `connect` and `bind` of [`net`](crate::net) on all threads that have
    /// [entered](Self::enter) none: a program of tokio's sockets runs on it with one other `use`. The host
    /// does not run longer for that.
    ///
    /// ```
    /// use pagewire::net::{TcpListener, TcpStream};
    /// use pagewire::{Host, Pair};
    ///
    /// # #[cfg(feature = "tokio")]
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let (device, _far) = Pair::new()?;
    /// let host = Host::builder().device(device).address("10.0.0.1/24").start()?;
    /// host.make_default();
    /// let listener = TcpListener::bind("10.0.0.1:80").await?;
    /// let (client, server) = tokio::join!(TcpStream::connect("10.0.0.1:80"), listener.accept());
    /// assert_eq!(client?.local_addr()?, server?.1);
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "tokio"))]
    /// # fn main() {}
    /// ```
    pub fn make_default(&self) {
        *DEFAULT.write().unwrap_or_else(PoisonError::into_inner) = Some(self.downgrade());
    }
}
