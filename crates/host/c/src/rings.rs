//! Receive rings in C: payload that a device writes into memory that the program registered.

#![allow(
    unsafe_code,
    clippy::multiple_unsafe_ops_per_block,
    reason = "a call's pointers come from one caller, under one contract"
)]

use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_void};
use std::future::Future;
use std::net::SocketAddr;
use std::ptr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use libc::{size_t, sockaddr, socklen_t, ssize_t};
use pagewire::Host;
use pagewire::device::Rule;
use pagewire::memory::{MemError, Region};
use pagewire::rings::{
    AsyncRings, EngineConfig, QueueConfig, RegisterError, RingBuf, RingListener, RingStream,
};
use pagewire_posix::sockets::{Blocking, timeout};
use pagewire_posix::{Errno, SockAddr};

use crate::boundary::{Answer, Failure, Result, answer};
use crate::network;

/// A pointer to an object of this library; null after an error.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Object(*mut c_void);

impl Answer for Object {
    const FAILED: Self = Self(ptr::null_mut());
}

impl Object {
    fn of<T>(value: T) -> Self {
        Self(Box::into_raw(Box::new(value)).cast())
    }
}

/// The object that a caller's pointer names.
///
/// # Safety
/// `object` is null, or of `Object::of` for a `T`, and not freed while `'a` lasts.
unsafe fn object<'a, T>(object: *mut c_void) -> Result<&'a T> {
    // SAFETY: the caller's promise.
    Ok(unsafe { object.cast::<T>().as_ref() }.ok_or(Errno::FAULT)?)
}

/// Frees an object.
///
/// # Safety
/// `object` is null, or of `Object::of` for a `T`, and not freed yet.
unsafe fn free<T>(object: *mut c_void) {
    let _: c_int = answer(|| {
        if !object.is_null() {
            // SAFETY: the caller's promise.
            drop(unsafe { Box::from_raw(object.cast::<T>()) });
        }
        Ok(0)
    });
}

/// Rings of a host.
struct Rings {
    host: Host,
    rings: AsyncRings,
}

struct Listener {
    host: Host,
    listener: RingListener,
}

struct Stream {
    host: Host,
    stream: RingStream,
    /// Buffers for which a call had no room.
    left: Mutex<VecDeque<RingBuf>>,
}

/// Waits for a future, at most `limit_ms`; negative: for ever.
fn wait<T>(
    host: &Host,
    limit_ms: c_int,
    future: impl Future<Output = std::io::Result<T>>,
) -> Result<T> {
    let limit = u64::try_from(limit_ms).ok().map(Duration::from_millis);
    let done = host.block_on(timeout(host, limit, future))?;
    Ok(done.ok_or(Errno::AGAIN)??)
}

/// A region of `bytes`, which no other process can write.
fn memory(bytes: size_t) -> Result<QueueConfig> {
    Ok(QueueConfig::new(Region::memfd("pagewire-rings", bytes)?))
}

impl From<MemError> for Failure {
    fn from(error: MemError) -> Self {
        Self::new(Errno::INVAL, error)
    }
}

impl From<RegisterError> for Failure {
    fn from(error: RegisterError) -> Self {
        match error {
            RegisterError::Unsupported => Self::new(
                Errno::OPNOTSUPP,
                "the link has no queues for rings: give it some by queues=N",
            ),
            other => Self::new(Errno::INVAL, other),
        }
    }
}

/// Makes rings. See `pagewire.h`.
#[unsafe(no_mangle)]
pub extern "C" fn pw_rings_open(host: c_int, copy_bytes: size_t) -> Object {
    answer(|| {
        let host = network::named(host)?.host().clone();
        let rings = host.rings(EngineConfig::new(memory(copy_bytes)?))?.into_async();
        Ok(Object::of(Rings { host, rings }))
    })
}

/// Ends rings. See `pagewire.h`.
///
/// # Safety
/// `rings` is null, or of [`pw_rings_open`] and not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_rings_close(rings: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe { free::<Rings>(rings) };
}

/// Registers memory for a queue. See `pagewire.h`.
///
/// # Safety
/// `rings` is null, or of [`pw_rings_open`] and not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_rings_register(
    rings: *mut c_void,
    queue: c_uint,
    bytes: size_t,
    port: u16,
) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let Rings { rings, .. } = unsafe { object(rings) }?;
        let rules = [Rule::tcp_port(port)];
        let rules = if port == 0 { &[][..] } else { &rules };
        Ok(rings.register(queue as usize, memory(bytes)?, rules)?.into())
    })
}

/// Listens for connections. See `pagewire.h`.
///
/// # Safety
/// `rings` is null, or of [`pw_rings_open`] and not closed; `len` bytes behind `addr` are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_rings_listen(
    rings: *mut c_void,
    addr: *const sockaddr,
    len: socklen_t,
) -> Object {
    answer(|| {
        // SAFETY: the caller's promise.
        let Rings { host, rings } = unsafe { object(rings) }?;
        // SAFETY: the same.
        let addr = unsafe { address(addr, len) }?;
        Ok(Object::of(Listener { host: host.clone(), listener: rings.listen(addr)? }))
    })
}

/// An address of the caller's.
///
/// # Safety
/// `addr` is null, or `len` bytes behind it are readable.
unsafe fn address(addr: *const sockaddr, len: socklen_t) -> Result<SocketAddr> {
    if addr.is_null() {
        return Err(Errno::FAULT.into());
    }
    // SAFETY: not null, so readable, says the caller.
    let bytes = unsafe { std::slice::from_raw_parts(addr.cast::<u8>(), len as usize) };
    Ok(SockAddr::parse(bytes)?)
}

/// Ends a listener. See `pagewire.h`.
///
/// # Safety
/// `listener` is null, or of [`pw_rings_listen`] and not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_rings_listener_close(listener: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe { free::<Listener>(listener) };
}

/// Accepts a connection. See `pagewire.h`.
///
/// # Safety
/// `listener` is null, or of [`pw_rings_listen`] and not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_rings_accept(listener: *mut c_void, timeout_ms: c_int) -> Object {
    answer(|| {
        // SAFETY: the caller's promise.
        let Listener { host, listener } = unsafe { object(listener) }?;
        let stream = wait(host, timeout_ms, listener.accept())?;
        Ok(Object::of(Stream { host: host.clone(), stream, left: Mutex::default() }))
    })
}

/// Closes a connection. See `pagewire.h`.
///
/// # Safety
/// `stream` is null, or of [`pw_rings_accept`] and not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_rings_stream_close(stream: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe { free::<Stream>(stream) };
}

/// Received bytes in registered memory. See `pagewire.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    data: *const c_void,
    len: size_t,
    flags: c_uint,
    handle: *mut c_void,
}

/// `PW_RING_COPIED`: the bytes lie in the memory for payload that had to be copied.
const COPIED: c_uint = 1;

/// Receives into registered memory. See `pagewire.h`.
///
/// # Safety
/// `stream` is null, or of [`pw_rings_accept`] and not closed; `count` elements behind `buffers` are valid to be
/// written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_rings_receive(
    stream: *mut c_void,
    group: c_int,
    buffers: *mut Buffer,
    count: size_t,
    most: size_t,
    timeout_ms: c_int,
) -> ssize_t {
    answer(|| {
        // SAFETY: the caller's promise.
        let stream: &Stream = unsafe { object(stream) }?;
        let group = u16::try_from(group).map_err(|_| Errno::INVAL)?;
        if buffers.is_null() {
            return Err(Errno::FAULT.into());
        }
        if count == 0 || most == 0 {
            return Err(Errno::INVAL.into());
        }
        // SAFETY: not null, so valid to be written, says the caller.
        let buffers = unsafe { std::slice::from_raw_parts_mut(buffers, count) };
        let left = || stream.left.lock().unwrap_or_else(PoisonError::into_inner);
        if left().is_empty() {
            let received = wait(&stream.host, timeout_ms, stream.stream.receive(group, most))?;
            left().extend(received.buffers);
        }
        let mut left = left();
        let n = left.len().min(buffers.len());
        for (buffer, received) in buffers.iter_mut().zip(left.drain(..n)) {
            let bytes = received.as_slice().unwrap_or_default();
            let (data, len) = (bytes.as_ptr().cast(), bytes.len());
            let flags = if received.is_copied() { COPIED } else { 0 };
            let handle = Box::into_raw(Box::new(received)).cast();
            *buffer = Buffer { data, len, flags, handle };
        }
        Ok(n as ssize_t)
    })
}

/// Gives a buffer back to its ring. See `pagewire.h`.
///
/// # Safety
/// `buffer` is null, or of [`pw_rings_receive`] and not given back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_rings_release(buffer: *mut Buffer) {
    // SAFETY: null or valid, says the caller.
    let Some(buffer) = (unsafe { buffer.as_mut() }) else { return };
    let handle = std::mem::replace(&mut buffer.handle, ptr::null_mut());
    (buffer.data, buffer.len) = (ptr::null(), 0);
    // SAFETY: null, or of `pw_rings_receive` and taken only once.
    unsafe { free::<RingBuf>(handle) };
}
