//! `poll`, `select` and their relatives, over descriptors of both kinds.
//!
//! A call without a network's descriptors is the kernel's. Any other sleeps in the kernel, with the signals that
//! the caller admits, on the kernel's descriptors and a `Bell` that the networks ring.

#![allow(
    unsafe_code,
    clippy::multiple_unsafe_ops_per_block,
    reason = "a call's pointers come from one caller, under one contract"
)]

use std::cell::OnceCell;
use std::ffi::{c_int, c_long};
use std::ptr;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use libc::{fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};
use pagewire_posix::limits::MAX_DESCRIPTORS;
use pagewire_posix::{Errno, Events, Fd, PollFd};

use crate::bell::Bell;
use crate::boundary::{Failure, Result, answer};
use crate::network::{self, Network, Owner, owner};

/// When a wait ends; `None`: not by time.
#[derive(Clone, Copy)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    pub(crate) fn in_ms(timeout: c_int) -> Self {
        Self::after(u64::try_from(timeout).ok().map(Duration::from_millis))
    }

    pub(crate) fn after(time: Option<Duration>) -> Self {
        // A time that the clock cannot hold is for ever.
        Self(time.and_then(|time| Instant::now().checked_add(time)))
    }

    /// The time of a C structure; `None` for a null pointer is for ever.
    ///
    /// # Safety
    /// `time` is null or valid.
    pub(crate) unsafe fn of(time: *const timespec) -> Result<Self> {
        if time.is_null() {
            return Ok(Self(None));
        }
        // SAFETY: not null, so valid, says the caller.
        let time = unsafe { time.read_unaligned() };
        Ok(Self::after(Some(duration(time.tv_sec, time.tv_nsec, 1)?)))
    }

    pub(crate) fn left(self) -> Option<Duration> {
        self.0.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// The rest as the kernel takes it.
    pub(crate) fn timespec(self) -> Option<timespec> {
        self.left().map(|left| timespec {
            tv_sec: left.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: left.subsec_nanos().into(),
        })
    }
}

/// A time of seconds and a fraction, of which `nanos` make one nanosecond each.
fn duration(seconds: libc::time_t, fraction: c_long, nanos: u32) -> Result<Duration> {
    let seconds = u64::try_from(seconds).map_err(|_| Errno::INVAL)?;
    let fraction = u32::try_from(fraction).ok().filter(|&part| part < 1_000_000_000 / nanos);
    Ok(Duration::new(seconds, fraction.ok_or(Errno::INVAL)? * nanos))
}

/// Runs `body` with this thread's bell.
fn with_bell<T>(body: impl FnOnce(&Arc<Bell>) -> Result<T>) -> Result<T> {
    thread_local! {
        static BELL: OnceCell<Arc<Bell>> = const { OnceCell::new() };
    }
    let bell = BELL.try_with(|bell| match bell.get() {
        Some(bell) => Ok(Arc::clone(bell)),
        None => {
            let new = Bell::new()?;
            Ok(Arc::clone(bell.get_or_init(|| new)))
        }
    });
    // A thread that ends, in a destructor.
    body(&bell.unwrap_or_else(|_| Bell::new())?)
}

/// The entries of one network in a call.
struct Part {
    network: Arc<Network>,
    /// Indices in the caller's array.
    places: Vec<usize>,
    entries: Vec<PollFd>,
}

impl Part {
    /// Looks at the files; how many are ready.
    fn look(&mut self) -> Result<usize> {
        Ok(self.network.files.poll(&mut self.entries, Some(Duration::ZERO))?)
    }
}

/// Runs `body` while the files of `parts` ring, with a function that it calls before each look.
fn watched<T>(
    parts: &[(Arc<Network>, Vec<Fd>)],
    waker: &Waker,
    body: &mut dyn FnMut(&dyn Fn()) -> T,
) -> T {
    match parts.split_first() {
        None => body(&|| {}),
        Some(((network, fds), rest)) => network.files.watched(fds, waker, |register| {
            watched(rest, waker, &mut |others| {
                body(&|| {
                    register();
                    others();
                })
            })
        }),
    }
}

/// Waits for entries of both kinds, and fills in what happened; how many are ready.
fn wait(fds: &mut [pollfd], deadline: Deadline, mask: *const sigset_t) -> Result<usize> {
    let mut parts: Vec<(usize, Part)> = Vec::new();
    let mut kernel: Vec<pollfd> = fds.to_vec();
    for (place, fd) in fds.iter().enumerate() {
        let Owner::Network(index) = owner(fd.fd) else { continue };
        // The kernel skips a negative number.
        kernel[place].fd = -1;
        if !parts.iter().any(|(of, _)| *of == index) {
            let network = network::network(index)?;
            parts.push((index, Part { network, places: Vec::new(), entries: Vec::new() }));
        }
        if let Some((_, part)) = parts.iter_mut().find(|(of, _)| *of == index) {
            part.places.push(place);
            let events = Events::from_bits_retain(u32::from(fd.events as u16));
            part.entries.push(PollFd { fd: fd.fd, events, revents: Events::empty() });
        }
    }
    let mut parts: Vec<Part> = parts.into_iter().map(|(_, part)| part).collect();
    with_bell(|bell| {
        let files = |part: &Part| {
            (Arc::clone(&part.network), part.entries.iter().map(|entry| entry.fd).collect())
        };
        let files: Vec<_> = parts.iter().map(files).collect();
        kernel.push(pollfd { fd: bell.raw(), events: libc::POLLIN, revents: 0 });
        let (mut ready, mut rung) = (0, false);
        watched(&files, &bell.waker(), &mut |register| loop {
            bell.quiet(rung);
            register();
            ready = 0;
            for part in &mut parts {
                ready += part.look()?;
            }
            let timeout = if ready > 0 {
                Some(timespec { tv_sec: 0, tv_nsec: 0 })
            } else {
                deadline.timespec()
            };
            let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
            // SAFETY: the array is this function's; the mask is null or the caller's, who says it is valid.
            let found =
                unsafe { libc::ppoll(kernel.as_mut_ptr(), kernel.len() as nfds_t, timeout, mask) };
            if found < 0 {
                // Nothing is lost: what is ready is found by the next call.
                return Err(Failure::last());
            }
            rung = kernel.last().is_some_and(|bell| bell.revents != 0);
            let found = found as usize - usize::from(rung);
            if found + ready > 0 {
                ready += found;
                return Ok(());
            }
            if !rung || deadline.left().is_some_and(|left| left.is_zero()) {
                // The last look was before the wait: what came at its end is the next call's.
                return Ok(());
            }
        })?;
        for (fd, kernel) in fds.iter_mut().zip(&kernel) {
            fd.revents = kernel.revents;
        }
        for part in &parts {
            for (&place, entry) in part.places.iter().zip(&part.entries) {
                fds[place].revents = entry.revents.bits() as i16;
            }
        }
        Ok(ready)
    })
}

fn has_network(fds: &[pollfd]) -> bool {
    fds.iter().any(|fd| matches!(owner(fd.fd), Owner::Network(_)))
}

/// The caller's array, if one of its entries is a network's.
///
/// # Safety
/// `fds` is null, or `count` elements behind it are valid.
unsafe fn mixed<'a>(fds: *mut pollfd, count: nfds_t) -> Option<&'a mut [pollfd]> {
    if fds.is_null() || count as usize > MAX_DESCRIPTORS {
        return None;
    }
    // SAFETY: not null, so valid, says the caller.
    let fds = unsafe { std::slice::from_raw_parts_mut(fds, count as usize) };
    has_network(fds).then_some(fds)
}

/// `poll(2)`.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the caller's promise for the C library's function.
    match unsafe { mixed(fds, count) } {
        // SAFETY: the same.
        None => unsafe { libc::poll(fds, count, timeout) },
        Some(fds) => answer(|| Ok(wait(fds, Deadline::in_ms(timeout), ptr::null())? as c_int)),
    }
}

/// `ppoll(2)`.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's promise for the C library's function.
    match unsafe { mixed(fds, count) } {
        // SAFETY: the same.
        None => unsafe { libc::ppoll(fds, count, timeout, mask) },
        // SAFETY: the same.
        Some(fds) => answer(|| Ok(wait(fds, unsafe { Deadline::of(timeout) }?, mask)? as c_int)),
    }
}

/// The three sets of a `select`, as words of `long`: some programs' are longer than `fd_set`.
struct Sets {
    count: usize,
    sets: [*mut c_long; 3],
}

/// The size of the kernel's table of the process's descriptors.
fn table_size() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let size = status.lines().find_map(|line| line.strip_prefix("FDSize:"));
    size.and_then(|size| size.trim().parse().ok()).unwrap_or(libc::FD_SETSIZE)
}

/// What each set asks for, and what puts a descriptor there: as Linux's `fs/select.c` documents in select(2).
const ASKED: [i16; 3] = [
    libc::POLLIN | libc::POLLRDNORM | libc::POLLRDBAND,
    libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND,
    libc::POLLPRI,
];
const ANSWERED: [i16; 3] =
    [ASKED[0] | libc::POLLHUP | libc::POLLERR, ASKED[1] | libc::POLLERR, ASKED[2]];

const WORD: usize = c_long::BITS as usize;

impl Sets {
    /// # Safety
    /// Each set is null, or valid for `count` bits.
    unsafe fn new(count: c_int, sets: [*mut fd_set; 3]) -> Result<Self> {
        let count = usize::try_from(count).map_err(|_| Errno::INVAL)?;
        // As the kernel: no more than its table of descriptors has, whatever the program says.
        let count = if count > libc::FD_SETSIZE { count.min(table_size()) } else { count };
        Ok(Self { count: count.min(MAX_DESCRIPTORS), sets: sets.map(<*mut fd_set>::cast) })
    }

    fn is_set(&self, set: usize, fd: usize) -> bool {
        let word = self.sets[set];
        // SAFETY: not null, and `fd` is below `count`, so the word is the caller's valid memory.
        !word.is_null() && unsafe { word.add(fd / WORD).read() } >> (fd % WORD) & 1 == 1
    }

    /// The entries for a poll, in the order of their numbers.
    fn entries(&self) -> Vec<pollfd> {
        let mut entries = Vec::new();
        for fd in 0..self.count {
            let asked =
                (0..3).filter(|&set| self.is_set(set, fd)).fold(0, |all, set| all | ASKED[set]);
            if asked != 0 {
                entries.push(pollfd { fd: fd as c_int, events: asked, revents: 0 });
            }
        }
        entries
    }

    /// Writes the sets; how many bits are set.
    fn answer(&self, entries: &[pollfd]) -> usize {
        let before: Vec<[bool; 3]> = entries
            .iter()
            .map(|entry| std::array::from_fn(|set| self.is_set(set, entry.fd as usize)))
            .collect();
        for word in self.sets.into_iter().filter(|word| !word.is_null()) {
            // SAFETY: valid for `count` bits, in whole words, says the caller.
            unsafe { word.write_bytes(0, self.count.div_ceil(WORD)) };
        }
        let mut bits = 0;
        for (entry, asked) in entries.iter().zip(before) {
            for set in (0..3).filter(|&set| asked[set] && entry.revents & ANSWERED[set] != 0) {
                let fd = entry.fd as usize;
                // SAFETY: not null, as its bit was set, and below `count`.
                unsafe { *self.sets[set].add(fd / WORD) |= 1 << (fd % WORD) };
                bits += 1;
            }
        }
        bits
    }
}

fn select(
    sets: &Sets,
    mut entries: Vec<pollfd>,
    deadline: Deadline,
    mask: *const sigset_t,
) -> Result<c_int> {
    wait(&mut entries, deadline, mask)?;
    if entries.iter().any(|entry| entry.revents & libc::POLLNVAL != 0) {
        return Err(Errno::BADF.into());
    }
    Ok(sets.answer(&entries) as c_int)
}

/// `select(2)`: the rest of the time is written to `timeout`, as Linux does.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: the caller's promise for the C library's function.
    let sets = unsafe { Sets::new(count, [read, write, except]) };
    let entries = sets.as_ref().map(Sets::entries).unwrap_or_default();
    let Some(sets) = sets.ok().filter(|_| has_network(&entries)) else {
        // SAFETY: the same.
        return unsafe { libc::select(count, read, write, except, timeout) };
    };
    answer(|| {
        // SAFETY: null or valid, says the caller.
        let timeout = unsafe { timeout.as_mut() };
        let time = timeout.as_deref().map(|time| {
            let carried = time.tv_sec.saturating_add(time.tv_usec / 1_000_000);
            duration(carried, time.tv_usec % 1_000_000, 1000)
        });
        let deadline = Deadline::after(time.transpose()?);
        let ready = select(&sets, entries, deadline, ptr::null());
        if let (Some(timeout), Some(left)) = (timeout, deadline.left()) {
            (timeout.tv_sec, timeout.tv_usec) = (left.as_secs() as _, left.subsec_micros().into());
        }
        ready
    })
}

/// `pselect(2)`.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's promise for the C library's function.
    let sets = unsafe { Sets::new(count, [read, write, except]) };
    let entries = sets.as_ref().map(Sets::entries).unwrap_or_default();
    let Some(sets) = sets.ok().filter(|_| has_network(&entries)) else {
        // SAFETY: the same.
        return unsafe { libc::pselect(count, read, write, except, timeout, mask) };
    };
    // SAFETY: null or valid, says the caller.
    answer(|| select(&sets, entries, unsafe { Deadline::of(timeout) }?, mask))
}
