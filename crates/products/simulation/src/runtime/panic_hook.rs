//! The panic hook that notes panics of tasks: a runtime catches these panics, and the program may drop the
//! result.
//!
//! Only the process's panic hook sees them, and programs replace that hook, too. So this file checks for its
//! own hook whenever a simulation is made, and after the first turn of each start of a host, which is when
//! programs set theirs. If the own hook is gone, a new one wraps the present one. A panic is noted
//! in the simulation whose code panicked, on whichever thread.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};

use crate::seeds::panic_text;

use crate::host::world::HostHandle;
use crate::runtime::blocking_gate;
use crate::runtime::panic_notes::PanicNote;

/// The address of our hook that is outermost; 0: it was dropped.
static OURS: AtomicUsize = AtomicUsize::new(0);

/// A hook of ours, which resets [`OURS`] on drop.
struct Hook<F>(F);

impl<F> Drop for Hook<F> {
    fn drop(&mut self) {
        let _ = OURS.compare_exchange(address(self), 0, SeqCst, SeqCst);
    }
}

fn address<T: ?Sized>(of: &T) -> usize {
    std::ptr::from_ref(of).cast::<()>().addr()
}

/// Wraps our hook around the present one, unless the present one is ours. `alone` keeps simulations of other
/// threads from running tasks meanwhile: a panic between taking and setting the hook would go unnoticed.
pub(crate) fn install(with_turns_paused: impl FnOnce(&mut dyn FnMut())) {
    static ONE: Mutex<()> = Mutex::new(());
    // The hook must not be changed during a panic.
    if std::thread::panicking() {
        return;
    }
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    with_turns_paused(&mut || {
        let before = std::panic::take_hook();
        let ours = OURS.load(SeqCst);
        if ours != 0 && address(&*before) == ours {
            return std::panic::set_hook(before);
        }
        let hook = Hook(before);
        let hook = Box::new(move |info: &PanicHookInfo<'_>| {
            let Hook(before) = &hook;
            on_panic(info, before);
        });
        OURS.store(address(&*hook), SeqCst);
        std::panic::set_hook(hook);
    });
}

thread_local! {
    /// See [`set_quiet`].
    static QUIET: Cell<bool> = const { Cell::new(false) };
    /// Set while one of our hooks runs: our hook may wrap an older one of ours.
    static IN_HOOK: Cell<bool> = const { Cell::new(false) };
    /// The panic of code that is not a task's: see [`catch`].
    static CAUGHT: RefCell<Option<PanicNote>> = const { RefCell::new(None) };
}

fn on_panic(info: &PanicHookInfo<'_>, before: &(dyn Fn(&PanicHookInfo<'_>) + Send + Sync)) {
    let nested = IN_HOOK.try_with(|in_hook| in_hook.replace(true)).unwrap_or(true);
    let quiet = QUIET.try_with(Cell::get).unwrap_or(false)
        || HostHandle::get().is_ok_and(|here| here.world.is_quiet());
    if !nested {
        note(info);
    }
    if !quiet {
        before(info);
    }
    if !nested {
        let _ = IN_HOOK.try_with(|in_hook| in_hook.set(false));
    }
}

fn note(info: &PanicHookInfo<'_>) {
    let text = info.payload_as_str().unwrap_or("something that is no text").to_owned();
    let location = info.location().map(|at| format!("{}:{}", at.file(), at.line()));
    match HostHandle::get() {
        Ok(here) => {
            blocking_gate::handle_panic(&text);
            here.world.panics().push(PanicNote { text, location, host: Some(here.host.id.0) });
        }
        Err(_) => {
            let _ = CAUGHT.try_with(|caught| {
                if let Ok(mut caught) = caught.try_borrow_mut() {
                    *caught = Some(PanicNote { text, location, host: None });
                }
            });
        }
    }
}

/// Sets whether panics of this thread are left unprinted. A simulation that will be repeated is quiet: the
/// repetition prints its panics.
pub(crate) fn set_quiet(quiet: bool) {
    let _ = QUIET.try_with(|here| here.set(quiet));
}

/// Calls code of the test that is not a task. `Err`: the text of its panic.
pub(crate) fn catch<R>(code: impl FnOnce() -> R) -> Result<R, String> {
    let _ = CAUGHT.try_with(|caught| caught.take());
    // Code that panicked is not called again.
    catch_unwind(AssertUnwindSafe(code)).map_err(|panic| {
        let caught = CAUGHT.try_with(|caught| caught.take()).ok().flatten();
        caught.map_or_else(|| panic_text(&*panic).to_owned(), |note| note.to_string())
    })
}
