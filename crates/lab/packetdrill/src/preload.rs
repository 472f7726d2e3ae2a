//! Calls that packetdrill makes to the C library instead of the table: with the object in `LD_PRELOAD`,
//! these replace the C library's `getsockopt` and `sendfile` for our descriptors.

use core::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{off_t, size_t, socklen_t, ssize_t};
use pagewire_posix::{Errno, raw::Raw};

use crate::calls::failed;
use crate::plugin::Plugin;

/// The last stack that was made and not freed: a script has one.
static PRESENT: AtomicPtr<Plugin> = AtomicPtr::new(core::ptr::null_mut());

/// Makes this stack the one that serves the preloaded functions.
pub(crate) fn remember(plugin: *mut Plugin) {
    PRESENT.store(plugin, Ordering::Release);
}

/// Forgets a stack that is about to be freed.
pub(crate) fn forget(plugin: &Plugin) {
    let plugin = core::ptr::from_ref(plugin).cast_mut();
    let none = core::ptr::null_mut();
    // A later one stays.
    let _ = PRESENT.compare_exchange(plugin, none, Ordering::AcqRel, Ordering::Relaxed);
}

/// The stack, if `fd` is one of its descriptors.
fn owner<'a>(fd: c_int) -> Option<&'a Plugin> {
    // SAFETY: null, or a box that lives until `forget`. The interface has nobody call anything
    // while the stack is being let go.
    let plugin = unsafe { PRESENT.load(Ordering::Acquire).as_ref() }?;
    plugin.world().owns(fd).then_some(plugin)
}

/// `getsockopt(2)`.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    let Some(plugin) = owner(fd) else {
        // SAFETY: the kernel checks what it is given.
        return unsafe {
            libc::syscall(libc::SYS_getsockopt, fd, level, name, value, len) as c_int
        };
    };
    let result = plugin.world().call(|| {
        // SAFETY: as for the C library's.
        unsafe { Raw(&plugin.files).getsockopt(fd, level, name, value, len) }
    });
    result.map_or_else(failed, |()| 0) as c_int
}

/// `sendfile(2)`.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile(
    to: c_int,
    from: c_int,
    offset: *mut off_t,
    len: size_t,
) -> ssize_t {
    let Some(plugin) = owner(to) else {
        // SAFETY: the kernel checks what it is given.
        return unsafe { libc::syscall(libc::SYS_sendfile, to, from, offset, len) as ssize_t };
    };
    if from < 0 {
        return failed(Errno::BADF);
    }
    // SAFETY: not negative; if no file has this number, the kernel returns an error.
    let file = unsafe { BorrowedFd::borrow_raw(from) };
    // SAFETY: null or valid, as for the C library's.
    let Some(place) = (unsafe { offset.as_mut() }) else {
        // Without an offset the file's own position moves, which scripts never ask for.
        return failed(Errno::NOSYS);
    };
    let Ok(mut at) = u64::try_from(*place) else { return failed(Errno::INVAL) };
    let result = plugin.world().call(|| plugin.files.sendfile(to, file, &mut at, len));
    *place = off_t::try_from(at).unwrap_or(off_t::MAX);
    result.map_or_else(failed, |n| n as ssize_t)
}
