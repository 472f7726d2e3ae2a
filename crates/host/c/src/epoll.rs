//! `epoll` over descriptors of both kinds.
//!
//! An instance is the kernel's, also for a program that watches only a network's descriptors: its number can be
//! given to any library that waits for descriptors. The first member of a network makes the instance a `Set`:
//!
//! ```text
//!   the kernel's instance <- descriptors of the kernel's
//!            ^------------- the Bell of each network part --Waker-- an instance of the network's
//!                                                                     <- descriptors of that network
//! ```
//!
//! The bell is readable while a part may have something to report, so the instance is, too. `pw_epoll_wait` asks the
//! parts and the kernel, and never reports the bell.

#![allow(
    unsafe_code,
    clippy::multiple_unsafe_ops_per_block,
    reason = "a call's pointers come from one caller, under one contract"
)]

use std::collections::HashMap;
use std::ffi::c_int;
use std::hash::{BuildHasher, RandomState};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, RwLock};
use std::task::Wake;
use std::time::Duration;

use libc::{epoll_event, sigset_t, timespec};
use pagewire_posix::limits::MAX_IOV;
use pagewire_posix::raw::Raw;
use pagewire_posix::{EpollEvent, Errno, Fd};

use crate::bell::Bell;
use crate::boundary::{Failure, Result, answer};
use crate::network::{self, Network, Owner, owner};
use crate::poll::Deadline;

/// An instance of the kernel's with members of networks.
struct Set {
    parts: Mutex<Vec<Part>>,
    /// Waits so far: they take turns in whom they ask first.
    waits: AtomicUsize,
}

/// The members of one network.
#[derive(Clone)]
struct Part {
    index: usize,
    network: Arc<Network>,
    /// The network's instance, as long as the set lives.
    instance: Arc<Instance>,
    bell: Arc<Bell>,
}

/// An instance of a network, closed with its set.
struct Instance {
    network: Arc<Network>,
    fd: Fd,
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = self.network.files.close(self.fd);
    }
}

/// The sets by their numbers.
static SETS: LazyLock<RwLock<HashMap<Fd, Arc<Set>>>> = LazyLock::new(RwLock::default);

/// The data of the bells' entries, which no program can guess.
static TOKEN: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one("bell"));

fn set(fd: Fd) -> Option<Arc<Set>> {
    SETS.read().unwrap_or_else(PoisonError::into_inner).get(&fd).cloned()
}

/// The instance with this number is about to be closed.
pub(crate) fn forget(fd: Fd) {
    drop_set(fd);
    network::release(fd);
}

/// The number names something else now.
pub(crate) fn drop_set(fd: Fd) {
    // A child process must not touch what its parent's threads may have locked.
    if !network::is_forked() {
        let set = SETS.write().unwrap_or_else(PoisonError::into_inner).remove(&fd);
        drop(set);
    }
}

/// In a child process that opens a network of its own: its parent's sets are none of this process's. They are not
/// dropped, as their drop would wait for threads that the child does not have.
pub(crate) fn forget_all() {
    if let Ok(mut sets) = SETS.try_write() {
        std::mem::forget(std::mem::take(&mut *sets));
    }
}

/// `to` is a duplicate of the instance `fd`.
pub(crate) fn share(fd: Fd, to: Fd) {
    if network::is_forked() {
        let _ = network::mark(to, owner(fd));
        return;
    }
    let mut sets = SETS.write().unwrap_or_else(PoisonError::into_inner);
    // Under the lock: the instance may become a set now.
    if let Some(set) = sets.get(&fd).cloned() {
        sets.insert(to, set);
        let _ = network::mark(to, owner(fd));
    }
}

impl Set {
    fn new() -> Arc<Self> {
        Arc::new(Self { parts: Mutex::default(), waits: AtomicUsize::new(0) })
    }

    /// The instance with this number, of which other libraries may have made some.
    fn of(epoll: Fd) -> Arc<Self> {
        let mut sets = SETS.write().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(sets.entry(epoll).or_insert_with(Self::new))
    }

    /// Marks the numbers of the instance: it has members of networks now.
    fn promote(self: &Arc<Self>) -> Result<()> {
        let sets = SETS.read().unwrap_or_else(PoisonError::into_inner);
        for (&fd, _) in sets.iter().filter(|(_, set)| Arc::ptr_eq(set, self)) {
            network::mark(fd, Owner::Set)?;
        }
        Ok(())
    }

    fn parts(&self) -> MutexGuard<'_, Vec<Part>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The part of a network, made if there is none.
    fn part(self: &Arc<Self>, epoll: Fd, index: usize) -> Result<Part> {
        let mut parts = self.parts();
        let network = network::network(index)?;
        // An index may be that of a later network.
        parts.retain(|part| part.index != index || Arc::ptr_eq(&part.network, &network));
        if let Some(part) = parts.iter().find(|part| part.index == index) {
            return Ok(part.clone());
        }
        let bell = Bell::new()?;
        let low = network.files.epoll_create1(libc::EPOLL_CLOEXEC)?;
        let high = network.files.fcntl(low, libc::F_DUPFD_CLOEXEC, network::least_internal());
        let fd = high.unwrap_or(low);
        if fd != low {
            let _ = network.files.close(low);
        }
        let instance = Arc::new(Instance { network: Arc::clone(&network), fd });
        network.files.epoll_waker(fd, &bell.waker())?;
        // Before the bell is a member: from then on a wait knows it.
        self.promote()?;
        let mut event = epoll_event { events: libc::EPOLLIN as u32, u64: *TOKEN };
        // SAFETY: the structure is this function's.
        if unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, bell.raw(), &raw mut event) } < 0 {
            return Err(Failure::last());
        }
        let part = Part { index, network, instance, bell };
        parts.push(part.clone());
        Ok(part)
    }
}

/// Takes the events of networks; how many.
fn take(parts: &[Part], first: usize, events: &mut [EpollEvent]) -> Result<usize> {
    let mut found = 0;
    for at in 0..parts.len() {
        let part = &parts[(first + at) % parts.len()];
        let room = &mut events[found..];
        if room.is_empty() {
            break;
        }
        match part.network.files.epoll_wait(part.instance.fd, room, Some(Duration::ZERO)) {
            Ok(n) => found += n,
            // The network was closed, and its descriptors are gone.
            Err(Errno::BADF) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(found)
}

/// Waits for events of both kinds.
fn wait(
    epoll: Fd,
    set: &Set,
    events: &mut [epoll_event],
    deadline: Deadline,
    mask: *const sigset_t,
) -> Result<usize> {
    let turn = set.waits.fetch_add(1, Ordering::Relaxed);
    let mut taken = vec![EpollEvent::default(); events.len()];
    let (mut kernel_first, mut rung) = (turn % 2 == 1, false);
    loop {
        // Anew: the bell may be that of a part which came during the wait.
        let parts: Vec<Part> = set.parts().clone();
        let mut found = 0;
        if std::mem::take(&mut kernel_first) {
            found = ask_kernel(epoll, events, Some(Duration::ZERO), ptr::null())?.0;
        }
        let asked = found > 0;
        let room = events.len() - found;
        let mut of_networks = take(&parts, turn, &mut taken[..room])?;
        if found + of_networks == 0 {
            parts.iter().for_each(|part| part.bell.quiet(rung));
            of_networks = take(&parts, turn, &mut taken[..room])?;
            if of_networks > 0 {
                // A level is still there, for whoever waits for the instance's number.
                parts.iter().for_each(|part| part.bell.wake_by_ref());
            }
        }
        for (event, taken) in events[found..].iter_mut().zip(&taken[..of_networks]) {
            *event = epoll_event { events: taken.events.bits(), u64: taken.data };
        }
        found += of_networks;
        let room = &mut events[found..];
        // A level would be reported again.
        if room.is_empty() || asked {
            return Ok(found);
        }
        let time = if found > 0 { Some(Duration::ZERO) } else { deadline.left() };
        let of_kernel = match ask_kernel(epoll, room, time, mask) {
            // What was taken already is not lost.
            Err(_) if found > 0 => (0, false),
            of_kernel => of_kernel?,
        };
        let (of_kernel, reported) = of_kernel;
        rung = reported;
        found += of_kernel;
        let is_over = deadline.left().is_some_and(|left| left.is_zero());
        if found > 0 || is_over || !rung {
            return Ok(found);
        }
    }
}

/// Moves the events that are the program's to the front; how many.
fn without_bells(events: &mut [epoll_event]) -> usize {
    let mut kept = 0;
    for at in 0..events.len() {
        if events[at].u64 != *TOKEN {
            events[kept] = events[at];
            kept += 1;
        }
    }
    kept
}

/// The kernel's events, and whether a bell has rung.
fn ask_kernel(
    epoll: Fd,
    events: &mut [epoll_event],
    limit: Option<Duration>,
    mask: *const sigset_t,
) -> Result<(usize, bool)> {
    // Rounded up: a wait of less than its time would be repeated.
    let timeout = limit.map_or(-1, |limit| {
        c_int::try_from(limit.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX)
    });
    let room = c_int::try_from(events.len()).unwrap_or(c_int::MAX);
    // SAFETY: the array is exclusively borrowed; the mask is null or the caller's, who says it is valid.
    let found = unsafe { libc::epoll_pwait(epoll, events.as_mut_ptr(), room, timeout, mask) };
    let found = usize::try_from(found).map_err(|_| Failure::last())?;
    let kept = without_bells(&mut events[..found]);
    Ok((kept, kept < found))
}

/// `epoll_create(2)`: the kernel's.
#[unsafe(no_mangle)]
pub extern "C" fn pw_epoll_create(size: c_int) -> c_int {
    // SAFETY: no memory is passed.
    known(unsafe { libc::epoll_create(size) })
}

/// `epoll_create1(2)`: the kernel's.
#[unsafe(no_mangle)]
pub extern "C" fn pw_epoll_create1(flags: c_int) -> c_int {
    // SAFETY: no memory is passed.
    known(unsafe { libc::epoll_create1(flags) })
}

/// Notes an instance that was made, so that its duplicates become sets with it.
fn known(epoll: c_int) -> c_int {
    // A child process may have inherited the lock of the sets in any state.
    if epoll >= 0 && !network::is_forked() && network::mark(epoll, Owner::Instance).is_ok() {
        SETS.write().unwrap_or_else(PoisonError::into_inner).insert(epoll, Set::new());
    }
    epoll
}

/// `epoll_ctl(2)`.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_epoll_ctl(
    epoll: c_int,
    op: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    let Owner::Network(index) = owner(fd) else {
        // SAFETY: the caller's promise for the C library's function.
        return unsafe { libc::epoll_ctl(epoll, op, fd, event) };
    };
    answer(|| {
        if matches!(owner(epoll), Owner::Network(_)) {
            return Err(Errno::INVAL.into());
        }
        if op != libc::EPOLL_CTL_DEL && event.is_null() {
            return Err(Errno::FAULT.into());
        }
        if network::is_forked() {
            return Err(Errno::NETDOWN.into());
        }
        let known = set(epoll).filter(|set| !set.parts().is_empty());
        let set = match known {
            Some(set) => set,
            None if op == libc::EPOLL_CTL_ADD => Set::of(epoll),
            None => {
                // What the kernel says of a number that is no instance, or has no such member.
                // SAFETY: the structure is null or the caller's.
                return match unsafe { libc::epoll_ctl(epoll, op, fd, event) } {
                    0 => Ok(0),
                    _ if Failure::last().is(libc::EINVAL) || !is_open(epoll) => {
                        Err(Failure::last())
                    }
                    _ => Err(Errno::NOENT.into()),
                };
            }
        };
        let part = set.part(epoll, index).inspect_err(|_| {
            // No instance, or none that can be one: its number may be anything.
            if set.parts().is_empty() {
                forget(epoll);
            }
        })?;
        // SAFETY: the caller's promise for the C library's function.
        unsafe { Raw(&part.network.files).epoll_ctl(part.instance.fd, op, fd, event) }?;
        Ok(0)
    })
}

fn is_open(fd: Fd) -> bool {
    // SAFETY: no memory is passed.
    unsafe { libc::fcntl(fd, libc::F_GETFD) >= 0 }
}

/// The caller's array, of which a call fills at most [`MAX_IOV`] elements.
///
/// # Safety
/// `events` is null, or `max` elements behind it are valid to be written.
unsafe fn room<'a>(events: *mut epoll_event, max: c_int) -> Result<&'a mut [epoll_event]> {
    let max = usize::try_from(max).ok().filter(|&max| max > 0).ok_or(Errno::INVAL)?;
    if events.is_null() {
        return Err(Errno::FAULT.into());
    }
    // SAFETY: not null, so valid, says the caller.
    Ok(unsafe { std::slice::from_raw_parts_mut(events, max.min(MAX_IOV)) })
}

/// `epoll_wait(2)`.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_epoll_wait(
    epoll: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: c_int,
) -> c_int {
    // SAFETY: the caller's promise for the C library's function.
    unsafe { pw_epoll_pwait(epoll, events, max, timeout, ptr::null()) }
}

/// `epoll_pwait(2)`.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_epoll_pwait(
    epoll: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    if owner(epoll) == Owner::Set && network::is_forked() {
        return answer(|| Err(Errno::NETDOWN.into()));
    }
    let of_networks = if owner(epoll) == Owner::Set { set(epoll) } else { None };
    match of_networks {
        Some(set) => answer(|| {
            // SAFETY: the caller's promise for the C library's function.
            let events = unsafe { room(events, max) }?;
            Ok(wait(epoll, &set, events, Deadline::in_ms(timeout), mask)? as c_int)
        }),
        None => {
            let deadline = Deadline::in_ms(timeout);
            // SAFETY: the same.
            let found = unsafe { libc::epoll_pwait(epoll, events, max, timeout, mask) };
            if found <= 0 || owner(epoll) != Owner::Set {
                return found;
            }
            // It became a set during the wait: a bell is not for the program.
            // SAFETY: the kernel has written so many.
            let kept =
                without_bells(unsafe { std::slice::from_raw_parts_mut(events, found as usize) });
            if kept > 0 {
                return kept as c_int;
            }
            answer(|| {
                // SAFETY: the caller's promise for the C library's function.
                let events = unsafe { room(events, max) }?;
                let set = set(epoll).ok_or(Errno::BADF)?;
                Ok(wait(epoll, &set, events, deadline, mask)? as c_int)
            })
        }
    }
}

/// `epoll_pwait2(2)`.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_epoll_pwait2(
    epoll: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise for the C library's function.
        let events = unsafe { room(events, max) }?;
        // SAFETY: the same.
        let deadline = unsafe { Deadline::of(timeout) }?;
        if network::is_forked() {
            let found = match owner(epoll) {
                Owner::Set => return Err(Errno::NETDOWN.into()),
                _ => ask_kernel(epoll, events, deadline.left(), mask)?.0,
            };
            return Ok(found as c_int);
        }
        let found = match set(epoll) {
            Some(set) => wait(epoll, &set, events, deadline, mask)?,
            None => match (ask_kernel(epoll, events, deadline.left(), mask)?, set(epoll)) {
                // It became a set during the wait.
                ((0, true), Some(set)) => wait(epoll, &set, events, deadline, mask)?,
                ((found, _), _) => found,
            },
        };
        Ok(found as c_int)
    })
}
