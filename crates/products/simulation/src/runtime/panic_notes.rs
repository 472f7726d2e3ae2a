//! The list of panics of one simulation, from all its threads, until the event loop takes them.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};

/// A panic of a task.
#[derive(Clone, Debug)]
pub(crate) struct PanicNote {
    pub(crate) text: String,
    pub(crate) location: Option<String>,
    /// The number of the host whose code it was.
    pub(crate) host: Option<u32>,
}

impl PanicNote {
    /// For tokio's panic about a part that needs the kernel: the name of the part that was used, and
    /// the advice what to use instead.
    pub(crate) fn needs_kernel(&self) -> Option<(&'static str, &'static str)> {
        let of = |module: &str| {
            let location = self.location.as_deref().unwrap_or_default();
            location.contains("/tokio-") && location.contains(module)
        };
        const SIGNALS: &str = "a simulation has no signals: let the program take a future that ends it, \
                               for a signal where it is real";
        const NET: &str = "use pagewire_simulation::net";
        match self.text.contains("IO is disabled") {
            false => None,
            true if of("/src/net/") => Some(("tokio::net", NET)),
            true if of("/src/signal/") => Some(("tokio::signal", SIGNALS)),
            true => Some((
                "tokio::net, tokio::signal, tokio::process or AsyncFd",
                "for sockets, use pagewire_simulation::net; there is nothing for the others",
            )),
        }
    }
}

impl fmt::Display for PanicNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The location belongs to the first line; the values that an `assert_eq!` compared follow.
        let (first, rest) = self.text.split_once('\n').unwrap_or((&self.text, ""));
        f.write_str(first)?;
        if let Some(location) = &self.location {
            write!(f, " ({location})")?;
        }
        rest.lines().try_for_each(|line| write!(f, "\n  {line}"))
    }
}

/// The panics of one simulation that were not taken yet.
#[derive(Debug, Default)]
pub(crate) struct PanicNotes {
    list: Mutex<Vec<PanicNote>>,
    /// The list is not empty: asked after every turn.
    some: AtomicBool,
}

impl PanicNotes {
    pub(crate) fn push(&self, note: PanicNote) {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).push(note);
        self.some.store(true, SeqCst);
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.some.load(SeqCst)
    }

    /// The panics since the last call.
    pub(crate) fn take(&self) -> Vec<PanicNote> {
        if self.is_empty() {
            return Vec::new();
        }
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        self.some.store(false, SeqCst);
        std::mem::take(&mut *list)
    }
}
