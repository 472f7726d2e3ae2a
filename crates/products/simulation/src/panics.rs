//! What tasks said when they panicked: a runtime catches their panics, and nobody may look at the
//! result.
//!
//! The only way to hear of them is the process's panic hook, which programs replace too. So ours is
//! looked for whenever a simulation is made, and after the first turn of each start of a host, which
//! is when programs set theirs; if it is gone, a new one is put around what is there. What it hears
//! belongs to the simulation whose code panicked, on whichever thread.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};

use crate::seeds::panic_text;

use crate::gate;
use crate::notes::Note;
use crate::world::HostHandle;

/// The address of our hook that is outermost; 0: it was dropped.
static OURS: AtomicUsize = AtomicUsize::new(0);

/// A hook of ours, which says when it is dropped.
struct Hook<F>(F);

impl<F> Drop for Hook<F> {
    fn drop(&mut self) {
        let _ = OURS.compare_exchange(address(self), 0, SeqCst, SeqCst);
    }
}

fn address<T: ?Sized>(of: &T) -> usize {
    std::ptr::from_ref(of).cast::<()>().addr()
}

/// Puts our hook around the present one, unless it is ours. `alone` keeps simulations of other
/// threads from running tasks meanwhile: a panic between the two calls would be heard by nobody.
pub(crate) fn install(alone: impl FnOnce(&mut dyn FnMut())) {
    static ONE: Mutex<()> = Mutex::new(());
    // Nobody may change the hook then.
    if std::thread::panicking() {
        return;
    }
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    alone(&mut || {
        let before = std::panic::take_hook();
        let ours = OURS.load(SeqCst);
        if ours != 0 && address(&*before) == ours {
            return std::panic::set_hook(before);
        }
        let hook = Hook(before);
        let hook = Box::new(move |info: &PanicHookInfo<'_>| {
            let Hook(before) = &hook;
            hear(info, before);
        });
        OURS.store(address(&*hook), SeqCst);
        std::panic::set_hook(hook);
    });
}

thread_local! {
    /// See [`be_quiet`].
    static QUIET: Cell<bool> = const { Cell::new(false) };
    /// A panic is being heard: one of our hooks may be around another.
    static HEARING: Cell<bool> = const { Cell::new(false) };
    /// What code said that is not a task's: see [`catch`].
    static CAUGHT: RefCell<Option<Note>> = const { RefCell::new(None) };
}

fn hear(info: &PanicHookInfo<'_>, before: &(dyn Fn(&PanicHookInfo<'_>) + Send + Sync)) {
    let nested = HEARING.try_with(|hearing| hearing.replace(true)).unwrap_or(true);
    let quiet = QUIET.try_with(Cell::get).unwrap_or(false)
        || HostHandle::get().is_ok_and(|here| here.world.is_quiet());
    if !nested {
        note(info);
    }
    if !quiet {
        before(info);
    }
    if !nested {
        let _ = HEARING.try_with(|hearing| hearing.set(false));
    }
}

fn note(info: &PanicHookInfo<'_>) {
    let text = info.payload_as_str().unwrap_or("something that is no text").to_owned();
    let place = info.location().map(|at| format!("{}:{}", at.file(), at.line()));
    match HostHandle::get() {
        Ok(here) => {
            gate::handle_panic(&text);
            here.world.panics().push(Note { text, place, host: Some(here.host.id.0) });
        }
        Err(_) => {
            let _ = CAUGHT.try_with(|caught| {
                if let Ok(mut caught) = caught.try_borrow_mut() {
                    *caught = Some(Note { text, place, host: None });
                }
            });
        }
    }
}

/// Whether panics of this thread are not to be printed: those of a simulation that is repeated, and
/// prints them then.
pub(crate) fn be_quiet(quiet: bool) {
    let _ = QUIET.try_with(|here| here.set(quiet));
}

/// Calls code of the test that is not a task. `Err`: it panicked, and said this.
pub(crate) fn catch<R>(code: impl FnOnce() -> R) -> Result<R, String> {
    let _ = CAUGHT.try_with(|caught| caught.take());
    // What panicked is not called again.
    catch_unwind(AssertUnwindSafe(code)).map_err(|panic| {
        let caught = CAUGHT.try_with(|caught| caught.take()).ok().flatten();
        caught.map_or_else(|| panic_text(&*panic).to_owned(), |note| note.to_string())
    })
}
