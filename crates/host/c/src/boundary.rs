//! The boundary: results as C has them, `errno`, the text of a thread's last error, and panics.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use pagewire_posix::Errno;

/// The reason why a call failed.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    errno: i32,
    /// More than the number says; empty: the number says all.
    text: String,
}

impl Failure {
    pub(crate) fn new(errno: Errno, text: impl ToString) -> Self {
        Self { errno: errno.raw_os_error(), text: text.to_string() }
    }

    /// The error that the kernel's last call on this thread has left.
    pub(crate) fn last() -> Self {
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        Self { errno, text: String::new() }
    }

    pub(crate) fn is(&self, errno: i32) -> bool {
        self.errno == errno
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.text.is_empty() {
            true => std::io::Error::from_raw_os_error(self.errno).fmt(f),
            false => f.write_str(&self.text),
        }
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self { errno: errno.raw_os_error(), text: String::new() }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        let errno = error.raw_os_error().unwrap_or(match error.kind() {
            std::io::ErrorKind::InvalidInput => libc::EINVAL,
            std::io::ErrorKind::PermissionDenied => libc::EPERM,
            std::io::ErrorKind::NotFound => libc::ENOENT,
            std::io::ErrorKind::AddrInUse => libc::EADDRINUSE,
            std::io::ErrorKind::OutOfMemory => libc::ENOMEM,
            std::io::ErrorKind::WouldBlock => libc::EAGAIN,
            _ => libc::EIO,
        });
        Self { errno, text: error.to_string() }
    }
}

pub(crate) type Result<T> = core::result::Result<T, Failure>;

/// What every call of a thread looks at: together, because a shared library asks for the place of each variable.
struct Quick {
    /// The number of this thread's last error. A text is made of the number only when somebody asks: `EAGAIN` is
    /// frequent.
    errno: Cell<i32>,
    /// Whether that error has a text of its own.
    has_text: Cell<bool>,
    /// Whether this thread is in a call.
    inside: Cell<bool>,
    /// Whether something waits in [`RELEASES`].
    later: Cell<bool>,
}

thread_local! {
    static QUICK: Quick = const {
        Quick {
            errno: Cell::new(0),
            has_text: Cell::new(false),
            inside: Cell::new(false),
            later: Cell::new(false),
        }
    };
    /// The text of its own, and the text that the program was given.
    static TEXTS: RefCell<(String, CString)> = RefCell::default();
    /// What is due at the end of the outermost call.
    static RELEASES: RefCell<Vec<Box<dyn FnOnce()>>> = const { RefCell::new(Vec::new()) };
}

/// A result as a C function returns it.
pub(crate) trait Answer {
    /// The result of a call that failed.
    const FAILED: Self;
}

impl Answer for c_int {
    const FAILED: Self = -1;
}

impl Answer for isize {
    const FAILED: Self = -1;
}

impl Answer for *mut std::ffi::c_void {
    const FAILED: Self = libc::MAP_FAILED;
}

/// A call of this thread's. What the program's own functions have to do with memory waits for the end of the outermost
/// call, when no lock is held: the functions may call this library.
pub(crate) struct Inside {
    outermost: bool,
}

impl Inside {
    #[inline]
    pub(crate) fn enter() -> Self {
        Self { outermost: !QUICK.with(|quick| quick.inside.replace(true)) }
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        if self.outermost {
            let is_due = QUICK.with(|quick| {
                quick.inside.set(false);
                quick.later.get()
            });
            if is_due {
                run_releases();
            }
        }
    }
}

#[cold]
fn run_releases() {
    let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or_default();
    while QUICK.with(|quick| quick.later.replace(false)) {
        let due = RELEASES.try_with(|releases| std::mem::take(&mut *releases.borrow_mut()));
        due.unwrap_or_default().into_iter().for_each(|release| release());
    }
    set_errno(errno);
}

/// Runs `release` now, or at the end of the call that this thread is in.
pub(crate) fn when_outside(release: impl FnOnce() + 'static) {
    if !QUICK.with(|quick| quick.inside.get()) {
        return release();
    }
    let mut release = Some(Box::new(release) as Box<dyn FnOnce()>);
    let kept = RELEASES.try_with(|releases| releases.borrow_mut().extend(release.take()));
    match release {
        // A thread that ends: nothing will run it later.
        Some(release) => release(),
        None => QUICK.with(|quick| quick.later.set(kept.is_ok())),
    }
}

/// Runs a call: its result, or [`Answer::FAILED`] with `errno` and the text of [`pw_error`]. A panic is `EIO`.
pub(crate) fn answer<T: Answer>(call: impl FnOnce() -> Result<T>) -> T {
    let _inside = Inside::enter();
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(done)) => done,
        Ok(Err(failure)) => fail(failure),
        Err(_) => fail(panicked()),
    }
}

/// The failure of a call that panicked.
#[cold]
pub(crate) fn panicked() -> Failure {
    Failure::new(Errno::IO, "a defect of Pagewire: the call panicked")
}

/// The result of a call that failed, whose number says all.
#[inline]
pub(crate) fn fail_with<T: Answer>(errno: Errno) -> T {
    note(errno.raw_os_error(), false);
    T::FAILED
}

/// Leaves the number of an error.
#[inline]
fn note(errno: i32, has_text: bool) {
    QUICK.with(|quick| {
        quick.errno.set(errno);
        quick.has_text.set(has_text);
    });
    set_errno(errno);
}

#[cold]
fn fail<T: Answer>(failure: Failure) -> T {
    let has_text = !failure.text.is_empty();
    if has_text {
        // A thread that ends has no texts any more.
        let _ = TEXTS.try_with(|texts| texts.borrow_mut().0 = failure.text);
    }
    note(failure.errno, has_text);
    T::FAILED
}

#[allow(unsafe_code)]
pub(crate) fn set_errno(errno: i32) {
    // SAFETY: the function takes nothing.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the C library's own place for this thread, which lives as long as the thread.
    unsafe { place.write(errno) };
}

/// The text for `errno`. See `pagewire.h`.
#[unsafe(no_mangle)]
pub extern "C" fn pw_error() -> *const c_char {
    // A call that was the kernel's leaves the number alone here.
    let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or_default();
    if errno == 0 {
        return c"".as_ptr();
    }
    let text = TEXTS.try_with(|texts| {
        let (own, given) = &mut *texts.borrow_mut();
        let text = match QUICK.with(|quick| quick.has_text.get() && quick.errno.get() == errno) {
            true => own.clone(),
            false => std::io::Error::from_raw_os_error(errno).to_string(),
        };
        // A text with a zero byte is cut there.
        *given = CString::new(text.split('\0').next().unwrap_or_default()).unwrap_or_default();
        given.as_ptr()
    });
    text.unwrap_or(c"".as_ptr())
}

/// A C string; `EFAULT` for a null pointer, `EINVAL` for what is no UTF-8.
///
/// # Safety
/// `text` is null or a C string that lives for `'a`.
#[allow(unsafe_code)]
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Result<&'a str> {
    if text.is_null() {
        return Err(Errno::FAULT.into());
    }
    // SAFETY: not null, so a C string, says the caller.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Failure::new(Errno::INVAL, "the text is not UTF-8"))
}

/// The names of the numbers that calls of this library return.
macro_rules! names {
    ($($name:ident)*) => {
        pub(crate) fn errno_name(errno: c_int) -> &'static CStr {
            $(if errno == libc::$name {
                return const {
                    match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => c"",
                    }
                };
            })*
            c""
        }
    };
}

names! {
    E2BIG EACCES EADDRINUSE EADDRNOTAVAIL EAFNOSUPPORT EAGAIN EALREADY EBADF EBUSY ECONNABORTED ECONNREFUSED
    ECONNRESET EDEADLK EDESTADDRREQ EDOM EEXIST EFAULT EHOSTUNREACH EINPROGRESS EINTR EINVAL EIO EISCONN ELOOP EMFILE
    EMSGSIZE ENETDOWN ENETUNREACH ENFILE ENOBUFS ENODEV ENOENT ENOMEM ENOPROTOOPT ENOSPC ENOTCONN ENOTSOCK ENOTTY
    EOPNOTSUPP EPERM EPIPE EPROTO EPROTONOSUPPORT EPROTOTYPE ESOCKTNOSUPPORT ESPIPE ETIMEDOUT
}
