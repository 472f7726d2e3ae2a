//! The send buffer: the memory of a writer's frames until their consumers drop them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use pagewire_mem::{Lender, Loan};

/// Called, on whatever thread, when a writer that would wait can go on.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// How much a writer may have outstanding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SendBuffer {
    /// As much as there is memory: for virtual machines.
    #[default]
    Unlimited,
    /// A number of bytes. A frame of any length is taken while less is used, as sockets do.
    Bytes(usize),
}

impl SendBuffer {
    /// Bytes up to which frames are taken.
    fn limit(self) -> usize {
        match self {
            Self::Unlimited => usize::MAX,
            Self::Bytes(n) => n,
        }
    }
}

/// The charge of a port, shared with its packets.
pub(super) struct Account {
    used: AtomicUsize,
    limit: AtomicUsize,
    waiting: AtomicBool,
    wake: Option<Wake>,
}

impl Account {
    pub(super) fn new(buffer: SendBuffer, wake: Option<Wake>) -> Arc<Self> {
        Arc::new(Self {
            used: AtomicUsize::new(0),
            limit: AtomicUsize::new(buffer.limit()),
            waiting: AtomicBool::new(false),
            wake,
        })
    }

    pub(super) fn set(&self, buffer: SendBuffer) {
        self.limit.store(buffer.limit(), Ordering::SeqCst);
        self.wake_if_room();
    }

    pub(super) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Whether a frame may come in. With `wait`, a refused writer is woken when there is room.
    pub(super) fn has_room(&self, wait: bool) -> bool {
        if self.is_below() {
            return true;
        }
        if !wait {
            return false;
        }
        // Sequentially consistent, with the drop of a charge: either this sees what it gave back,
        // or it sees the wait. With less, both could miss, and the writer would not be woken.
        self.waiting.store(true, Ordering::SeqCst);
        self.is_below()
    }

    pub(super) fn charge(self: &Arc<Self>, bytes: usize) -> Loan {
        self.used.fetch_add(bytes, Ordering::Relaxed);
        Loan::new(Arc::clone(self) as _, bytes)
    }

    fn is_below(&self) -> bool {
        self.used.load(Ordering::SeqCst) < self.limit.load(Ordering::SeqCst)
    }

    fn wake_if_room(&self) {
        if self.waiting.load(Ordering::SeqCst)
            && self.is_below()
            && self.waiting.swap(false, Ordering::SeqCst)
            && let Some(wake) = &self.wake
        {
            wake();
        }
    }
}

impl Lender for Account {
    fn give_back(&self, bytes: usize) {
        // Pairs with `has_room`.
        self.used.fetch_sub(bytes, Ordering::SeqCst);
        self.wake_if_room();
    }
}
