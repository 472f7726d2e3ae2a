//! Payload by reference in C: owned memory that is sent, received chunks, received pages as a map.

#![allow(
    unsafe_code,
    clippy::multiple_unsafe_ops_per_block,
    reason = "a call's pointers come from one caller, under one contract"
)]

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{size_t, ssize_t};
use pagewire_mem::{Access, Frag, FragVec, Owner};
use pagewire_posix::Errno;

use crate::boundary::{Failure, Result, answer, when_outside};
use crate::network::{self, Network, owner};

/// Called when the library no longer reads memory: with the program's own pointer, and the memory.
pub type Release = Option<unsafe extern "C" fn(*mut c_void, *const c_void, size_t)>;

/// Most bytes of one fragment; longer memory is several.
const PIECE: usize = 1 << 30;

/// The network of a descriptor; `EBADF` for none.
fn network_of(fd: c_int) -> Result<Arc<Network>> {
    match owner(fd) {
        network::Owner::Network(index) => network::network(index),
        // SAFETY: no memory is passed.
        _ if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 => Err(Errno::BADF.into()),
        _ => Err(Failure::new(
            Errno::NOTSOCK,
            "the descriptor is the kernel's: use the kernel's own calls",
        )),
    }
}

/// Memory of the program's, which is given back when the last fragment of it is dropped.
struct Lent {
    data: *const c_void,
    len: usize,
    release: Release,
    context: *mut c_void,
    /// Whether the program gets the memory back by a call: it was sent.
    sent: Arc<AtomicBool>,
}

// SAFETY: the program promises that `release` may be called on any thread.
unsafe impl Send for Lent {}
// SAFETY: only the drop uses the pointers.
unsafe impl Sync for Lent {}

impl Drop for Lent {
    fn drop(&mut self) {
        let Self { data, len, context, .. } = *self;
        if let Some(release) = self.release.filter(|_| self.sent.load(Ordering::Acquire)) {
            // SAFETY: the program's function with the program's own pointer, once.
            when_outside(move || unsafe { release(context, data, len) });
        }
    }
}

/// Sends memory by reference. See `pagewire.h`.
///
/// # Safety
/// `data` is null, or `len` bytes behind it are readable until `release` was called; `release` may be called on any
/// thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_send_owned(
    fd: c_int,
    data: *const c_void,
    len: size_t,
    flags: c_int,
    release: Release,
    context: *mut c_void,
) -> ssize_t {
    answer(|| {
        let network = network_of(fd)?;
        let start = NonNull::new(data.cast_mut().cast::<u8>()).ok_or(Errno::FAULT)?;
        if len == 0 || len > isize::MAX as usize {
            return Err(Errno::INVAL.into());
        }
        // Before the send: the peer may have acknowledged all when the call returns.
        let given = Arc::new(AtomicBool::new(true));
        let owner = Owner::new(Lent { data, len, release, context, sent: Arc::clone(&given) });
        let mut frags: FragVec = (0..len)
            .step_by(PIECE)
            .map(|at| {
                let len = (len - at).min(PIECE);
                // SAFETY: in bounds, and readable while the owner lives, says the caller; the program may write the
                // memory all the same, so the fragment is shared.
                unsafe { Frag::from_raw(start.add(at), len, Access::Shared, owner.clone()) }
            })
            .collect();
        drop(owner);
        let sent = network.files.send_frags(fd, &mut frags, flags);
        if sent.is_err() {
            given.store(false, Ordering::Release);
        }
        drop(frags);
        Ok(sent? as ssize_t)
    })
}

/// Received bytes by reference. See `pagewire.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Chunk {
    data: *const c_void,
    len: size_t,
    flags: c_uint,
    handle: *mut c_void,
}

/// `PW_CHUNK_SHARED`: another party may change the bytes while the program reads them.
const SHARED: c_uint = 1;

/// Receives by reference. See `pagewire.h`.
///
/// # Safety
/// `chunks` is null, or `count` elements behind it are valid to be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_recv_chunks(
    fd: c_int,
    chunks: *mut Chunk,
    count: size_t,
    most: size_t,
    flags: c_int,
) -> ssize_t {
    answer(|| {
        let network = network_of(fd)?;
        if chunks.is_null() {
            return Err(Errno::FAULT.into());
        }
        if count == 0 {
            return Err(Errno::INVAL.into());
        }
        // SAFETY: not null, so valid to be written, says the caller.
        let chunks = unsafe { std::slice::from_raw_parts_mut(chunks, count) };
        let frags = network.files.recv_frags(fd, count, most, flags)?;
        let n = frags.len();
        for (chunk, frag) in chunks.iter_mut().zip(frags) {
            let shared = if frag.access() == Access::Shared { SHARED } else { 0 };
            let data = ptr::with_exposed_provenance(frag.addr());
            let (len, handle) = (frag.len(), Box::into_raw(Box::new(frag)).cast());
            *chunk = Chunk { data, len, flags: shared, handle };
        }
        Ok(n as ssize_t)
    })
}

/// Gives a chunk back. See `pagewire.h`.
///
/// # Safety
/// `chunk` is null, or of [`pw_recv_chunks`] and not given back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_chunk_release(chunk: *mut Chunk) {
    let _: c_int = answer(|| {
        // SAFETY: the caller's promise.
        drop(unsafe { take(chunk) });
        Ok(0)
    });
}

/// The fragment of a chunk, whose handle is gone then.
///
/// # Safety
/// As for [`pw_chunk_release`].
unsafe fn take(chunk: *mut Chunk) -> Option<Box<Frag>> {
    // SAFETY: null or valid, says the caller.
    let chunk = unsafe { chunk.as_mut() }?;
    let handle = std::mem::replace(&mut chunk.handle, ptr::null_mut());
    (chunk.data, chunk.len) = (ptr::null(), 0);
    // SAFETY: not null, so of `pw_recv_chunks`, and taken only once.
    (!handle.is_null()).then(|| unsafe { Box::from_raw(handle.cast()) })
}

/// Sends a received chunk on, by reference. See `pagewire.h`.
///
/// # Safety
/// As for [`pw_chunk_release`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_send_chunk(fd: c_int, chunk: *mut Chunk, flags: c_int) -> ssize_t {
    answer(|| {
        let network = network_of(fd)?;
        // SAFETY: null or valid, says the caller.
        let given = unsafe { chunk.as_mut() }.ok_or(Errno::FAULT)?;
        if given.handle.is_null() {
            return Err(Failure::new(Errno::INVAL, "the chunk was given back already"));
        }
        // SAFETY: not null, so a fragment of `pw_recv_chunks`.
        let frag = unsafe { &mut *given.handle.cast::<Frag>() };
        let mut frags = FragVec::from_iter([frag.clone()]);
        let sent = network.files.send_frags(fd, &mut frags, flags)?;
        if sent == given.len {
            // SAFETY: the caller's promise.
            drop(unsafe { take(chunk) });
        } else {
            let _ = frag.split_to(sent);
            given.data = ptr::with_exposed_provenance(frag.addr());
            given.len = frag.len();
        }
        Ok(sent as ssize_t)
    })
}

/// Maps received bytes. See `pagewire.h`.
#[unsafe(no_mangle)]
pub extern "C" fn pw_map(fd: c_int, len: size_t) -> *mut c_void {
    answer(|| {
        let network = network_of(fd)?;
        crate::files::note_map();
        let at = network.files.mmap(fd, len, libc::PROT_READ, libc::MAP_SHARED, 0)?;
        Ok(ptr::with_exposed_provenance_mut(at))
    })
}
