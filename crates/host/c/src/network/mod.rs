//! The networks of the process, and whose each descriptor is.
//!
//! [`owner`] is on the way of every call: one load for a descriptor of the kernel's. A network is a host with its
//! table of descriptors; a call holds it while it lasts, so that `pw_host_close` cannot take it away.

mod numbering;
mod start;

use std::cell::RefCell;
use std::ffi::c_int;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, OnceLock, PoisonError, RwLock};

use pagewire::Host;
use pagewire::device::FramesEnd;
use pagewire_posix::{Descriptors, Errno};

use crate::boundary::{Failure, Result};
use crate::config;

pub(crate) use numbering::{Owner, least_internal, mark, moved_up, owner, release};

/// Most networks of a process at a time.
pub(crate) const MAX_NETWORKS: usize = 255;

/// The host and the descriptors of a network.
pub(crate) struct Network {
    pub(crate) files: Descriptors<Host>,
    /// The program's end of a link of frames.
    pub(crate) frames: Option<Mutex<FramesEnd>>,
    /// The file that gets the report of all counts at the end.
    stats: Option<PathBuf>,
}

impl Network {
    pub(crate) fn host(&self) -> &Host {
        self.files.backend()
    }

    /// Ends the network: connections deliver what they can within the host's limit, then everything fails.
    fn end(&self, index: usize) {
        for fd in numbering::numbers_of(index) {
            let _ = self.files.close(fd);
        }
        self.host().shutdown(SHUTDOWN_LIMIT);
        self.report();
    }

    /// Writes the report, if the network's text names a file.
    fn report(&self) {
        let Some(path) = &self.stats else { return };
        if let Err(why) = std::fs::write(path, self.host().stats().to_string()) {
            eprintln!("pagewire: stats={}: {why}", path.display());
        }
    }
}

/// How long the end of a network waits for its connections to deliver what is queued.
const SHUTDOWN_LIMIT: std::time::Duration = std::time::Duration::from_secs(2);

/// The networks by index.
static NETWORKS: [RwLock<Option<Arc<Network>>>; MAX_NETWORKS] =
    [const { RwLock::new(None) }; MAX_NETWORKS];

/// The network of `pw_socket`: its index plus 1, or 0 for the kernel.
static USED: AtomicU16 = AtomicU16::new(0);

/// Whether the program has chosen the network of `pw_socket`, so that `PAGEWIRE` no longer counts.
static CHOSEN: AtomicBool = AtomicBool::new(false);

/// Whether this process is a child by `fork` of one that had a network.
static FORKED: AtomicBool = AtomicBool::new(false);

/// Whether this process is a child by `fork`, without the threads of the networks that it has inherited.
pub(crate) fn is_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// The network with this index.
///
/// # Errors
/// `EBADF` if there is none, `ENETDOWN` in a child process.
#[inline]
pub(crate) fn network(index: usize) -> Result<Arc<Network>> {
    if FORKED.load(Ordering::Relaxed) {
        return Err(Failure::new(
            Errno::NETDOWN,
            "the network belongs to the parent process: open one after fork",
        ));
    }
    let slot = NETWORKS.get(index).ok_or(Errno::BADF)?;
    let network = slot.read().unwrap_or_else(PoisonError::into_inner);
    Ok(network.clone().ok_or(Errno::BADF)?)
}

/// Networks that were closed so far: what threads remember of a network is old if this has changed.
static CLOSED: AtomicU64 = AtomicU64::new(0);

/// The network that a thread used last, so that the next call takes no lock and counts no reference.
struct Remembered {
    index: usize,
    closed: u64,
    network: Arc<Network>,
}

thread_local! {
    static REMEMBERED: RefCell<Option<Remembered>> = const { RefCell::new(None) };
}

/// Runs a call on the network with this index.
///
/// # Errors
/// Those of [`network`].
#[inline(always)]
pub(crate) fn with_network<T>(index: usize, call: impl FnOnce(&Network) -> T) -> Result<T> {
    let mut call = Some(call);
    let done = REMEMBERED.try_with(|remembered| {
        // A call within a call, such as a program's waker's, may find it in use: that is no harm.
        let remembered = remembered.try_borrow().ok()?;
        let of = remembered.as_ref()?;
        let is_same = of.index == index && of.closed == CLOSED.load(Ordering::Acquire);
        if !is_same || is_forked() {
            return None;
        }
        call.take().map(|call| call(&of.network))
    });
    match (done, call) {
        (Ok(Some(done)), _) => Ok(done),
        (_, Some(call)) => Ok(call(&*remember(index)?)),
        (_, None) => Err(Errno::IO.into()),
    }
}

/// The network with this index, which the thread remembers from now on.
#[cold]
fn remember(index: usize) -> Result<Arc<Network>> {
    let closed = CLOSED.load(Ordering::Acquire);
    let network = network(index)?;
    let new = Remembered { index, closed, network: Arc::clone(&network) };
    let old = REMEMBERED.try_with(|remembered| {
        remembered.try_borrow_mut().ok().and_then(|mut remembered| remembered.replace(new))
    });
    // Its last reference may end a network, whose end may call the program: without the borrow.
    drop(old);
    Ok(network)
}

/// The network that a program names by a handle; a negative one is the network of `pw_socket`.
pub(crate) fn named(handle: c_int) -> Result<Arc<Network>> {
    match usize::try_from(handle) {
        Ok(index) => network(index),
        Err(_) => network(used()?.ok_or_else(|| {
            Failure::new(
                Errno::NODEV,
                "no network: set PAGEWIRE, or call pw_host_open and pw_host_use",
            )
        })?),
    }
}

/// The index of the network of `pw_socket`; `None`: the kernel. Starts the one of `PAGEWIRE` in the first call.
///
/// # Errors
/// The reason why that one did not start. Then every call fails: a program that was given a network does not reach
/// the kernel's instead.
pub(crate) fn used() -> Result<Option<usize>> {
    if !CHOSEN.load(Ordering::Acquire) {
        static FIRST: OnceLock<Result<Option<usize>>> = OnceLock::new();
        let first = FIRST.get_or_init(|| {
            let Some(text) = std::env::var_os("PAGEWIRE").filter(|text| !text.is_empty()) else {
                return Ok(None);
            };
            let started = text
                .to_str()
                .ok_or_else(|| Failure::new(Errno::INVAL, "PAGEWIRE is not UTF-8"))
                .and_then(open);
            started.map(Some).inspect_err(|why| eprintln!("pagewire: PAGEWIRE: {why}"))
        });
        if !CHOSEN.load(Ordering::Acquire) {
            return first.clone();
        }
    }
    Ok(usize::from(USED.load(Ordering::Acquire)).checked_sub(1))
}

/// Makes a network, or the kernel, that of `pw_socket`.
pub(crate) fn choose(index: Option<usize>) -> Result<()> {
    if let Some(index) = index {
        network(index)?;
    }
    USED.store(index.map_or(0, |index| index as u16 + 1), Ordering::Release);
    CHOSEN.store(true, Ordering::Release);
    Ok(())
}

/// Starts a network; its index.
pub(crate) fn open(text: &str) -> Result<usize> {
    static HOOK: Once = Once::new();
    HOOK.call_once(hook);
    let config = config::Network::parse(text).map_err(|why| Failure::new(Errno::INVAL, why))?;
    let _one = opening();
    if FORKED.swap(false, Ordering::AcqRel) {
        forget_all();
    }
    let is_free = |slot: &&RwLock<Option<Arc<Network>>>| {
        slot.read().unwrap_or_else(PoisonError::into_inner).is_none()
    };
    let index = NETWORKS.iter().position(|slot| is_free(&slot)).ok_or(Errno::MFILE)?;
    let network = Arc::new(start::start(&config, index)?);
    *NETWORKS[index].write().unwrap_or_else(PoisonError::into_inner) = Some(network);
    Ok(index)
}

/// Ends a network.
pub(crate) fn close(index: usize) -> Result<()> {
    network(index)?;
    let taken = NETWORKS[index].write().unwrap_or_else(PoisonError::into_inner).take();
    CLOSED.fetch_add(1, Ordering::AcqRel);
    let used = index as u16 + 1;
    let _ = USED.compare_exchange(used, 0, Ordering::AcqRel, Ordering::Relaxed);
    taken.ok_or(Errno::BADF)?.end(index);
    Ok(())
}

/// Every network that runs.
pub(crate) fn all() -> Vec<Arc<Network>> {
    (0..MAX_NETWORKS).filter_map(|index| network(index).ok()).collect()
}

/// Admits one start at a time.
fn opening() -> MutexGuard<'static, ()> {
    static OPENING: Mutex<()> = Mutex::new(());
    OPENING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Forgets the parent's networks, whose threads this process does not have: their memory stays.
fn forget_all() {
    for slot in &NETWORKS {
        std::mem::forget(slot.write().unwrap_or_else(PoisonError::into_inner).take());
    }
    // Threads remember a parent's network by its index, which the child's may have.
    CLOSED.fetch_add(1, Ordering::AcqRel);
    USED.store(0, Ordering::Release);
    numbering::forget_all();
}

/// Has the fork and the exit of the process noticed.
#[allow(unsafe_code)]
fn hook() {
    extern "C" fn in_child() {
        FORKED.store(true, Ordering::Relaxed);
    }
    extern "C" fn at_exit() {
        let reported = std::panic::catch_unwind(|| all().iter().for_each(|of| of.report()));
        drop(reported);
    }
    // SAFETY: the function only stores a flag, which a child may do.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    // SAFETY: the function does not unwind.
    unsafe { libc::atexit(at_exit) };
}
