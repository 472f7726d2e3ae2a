//! The interface that packetdrill calls, a table of C functions in the order of its header; every function
//! takes `userdata` first. Each does what `pagewire-posix` does for a C caller, and leaves `errno` behind.
//! Read `run` first.

#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a call's table and its pointers come from one caller, under one contract"
)]

use core::ffi::{c_int, c_long, c_longlong, c_uint, c_ulong, c_void};
use std::time::Duration;

use libc::{
    epoll_event, iovec, loff_t, msghdr, nfds_t, pollfd, size_t, sockaddr, socklen_t, ssize_t,
    timeval, timezone, useconds_t,
};
use pagewire_posix::{Descriptors, Errno, raw::Raw};

use crate::limits::MAX_IP_PACKET;
use crate::plugin::{Plugin, PluginError};
use crate::world::World;

type Files = Descriptors<World>;
type Result<T> = core::result::Result<T, Errno>;

/// The stack's data: `userdata` of every call.
pub type User = *mut c_void;

/// The table, and its functions.
macro_rules! table {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $kind:ty),*) -> $out:ty => |$user:ident| $call:expr;)*) => {
        /// The table that `packetdrill_interface_init` fills in. `fcntl` and `ioctl`, variadic in C, take their
        /// argument as a machine word: on x86-64 and AArch64 Linux a variadic call uses the same register.
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        #[allow(missing_docs)] // Each is the system call of its name.
        pub struct Interface {
            pub userdata: User,
            /// Frees everything.
            pub free: unsafe extern "C" fn(User),
            $($(#[$doc])* pub $name: unsafe extern "C" fn(User, $($kind),*) -> $out,)*
        }

        /// The table for `plugin`, which `free` will drop.
        pub(crate) fn interface(plugin: Box<Plugin>) -> Interface {
            Interface { userdata: Box::into_raw(plugin).cast(), free, $($name,)* }
        }

        $(unsafe extern "C" fn $name($user: User, $($arg: $kind),*) -> $out {
            // SAFETY: `user` is the table's; the rest is as for the system call of this name.
            unsafe { $call as $out }
        })*
    };
}

table! {
    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int =>
        |user| open(user, |files| files.socket(domain, kind, protocol));
    bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int =>
        |user| run(user, |files| Raw(files).bind(fd, addr, len));
    listen(fd: c_int, backlog: c_int) -> c_int => |user| run(user, |files| files.listen(fd, backlog));
    accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int =>
        |user| run(user, |files| Raw(files).accept4(fd, addr, len, 0));
    connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int =>
        |user| run(user, |files| Raw(files).connect(fd, addr, len));
    read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t =>
        |user| run(user, |files| Raw(files).read(fd, buf, len));
    readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t =>
        |user| run(user, |files| Raw(files).readv(fd, iov, count));
    recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t =>
        |user| recvfrom(user, fd, buf, len, flags, core::ptr::null_mut(), core::ptr::null_mut());
    recvfrom(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int,
        addr: *mut sockaddr, addr_len: *mut socklen_t) -> ssize_t =>
        |user| run(user, |files| Raw(files).recvfrom(fd, buf, len, flags, addr, addr_len));
    recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t =>
        |user| run(user, |files| Raw(files).recvmsg(fd, msg, flags));
    write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t =>
        |user| run(user, |files| Raw(files).write(fd, buf, len));
    writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t =>
        |user| run(user, |files| Raw(files).writev(fd, iov, count));
    send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t =>
        |user| sendto(user, fd, buf, len, flags, core::ptr::null(), 0);
    sendto(fd: c_int, buf: *const c_void, len: size_t, flags: c_int,
        addr: *const sockaddr, addr_len: socklen_t) -> ssize_t =>
        |user| run(user, |files| Raw(files).sendto(fd, buf, len, flags, addr, addr_len));
    sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t =>
        |user| run(user, |files| Raw(files).sendmsg(fd, msg, flags));
    // Without an argument this is whatever the register held, which the command ignores.
    fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int =>
        |user| run(user, |files| files.fcntl(fd, command, argument as c_int));
    ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int =>
        |user| run(user, |files| Raw(files).ioctl(fd, request, argument.cast()));
    close(fd: c_int) -> c_int => |user| run(user, |files| files.close(fd));
    shutdown(fd: c_int, how: c_int) -> c_int => |user| run(user, |files| files.shutdown(fd, how));
    getsockopt(fd: c_int, level: c_int, name: c_int,
        value: *mut c_void, len: *mut socklen_t) -> c_int =>
        |user| run(user, |files| Raw(files).getsockopt(fd, level, name, value, len));
    setsockopt(fd: c_int, level: c_int, name: c_int,
        value: *const c_void, len: socklen_t) -> c_int =>
        |user| run(user, |files| Raw(files).setsockopt(fd, level, name, value, len));
    poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int =>
        |user| run(user, |files| Raw(files).poll(fds, count as usize, timeout));
    /// A packet for the stack. 0, or -1.
    netdev_send(packet: *const c_void, len: size_t) -> c_int => |user| send_packet(user, packet, len);
    /// The next packet of the stack's: its bytes, how many (before: how many fit), and when it
    /// left in microseconds. 0 with a count of 0: nothing came.
    netdev_receive(buf: *mut c_void, len: *mut size_t, usecs: *mut c_longlong) -> c_int =>
        |user| receive_packet(user, buf, len, usecs);
    usleep(usecs: useconds_t) -> c_int => |user| sleep(user, usecs);
    gettimeofday(time: *mut timeval, _zone: *mut timezone) -> c_int => |user| read_clock(user, time);
    epoll_create(size: c_int) -> c_int => |user| run(user, |files| files.epoll_create(size));
    epoll_ctl(epoll: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int =>
        |user| run(user, |files| Raw(files).epoll_ctl(epoll, op, fd, event));
    epoll_wait(epoll: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int =>
        |user| run(user, |files| Raw(files).epoll_wait(epoll, events, max, timeout));
    pipe(fds: *mut c_int) -> c_int => |user| run(user, |files| Raw(files).pipe2(fds, 0));
    splice(from: c_int, from_offset: *mut loff_t, to: c_int, to_offset: *mut loff_t,
        len: size_t, flags: c_uint) -> ssize_t => |user| run(user, |files| {
            Raw(files).splice(from, given(from_offset), to, given(to_offset), len, flags)
        });
}

/// The stack that a call is for.
///
/// # Safety
/// `user` is the `userdata` of a table that was not freed, and is not freed for `'a`.
unsafe fn plugin<'a>(user: User) -> &'a Plugin {
    // SAFETY: `interface` made it of a box, and `free` was not called.
    unsafe { &*user.cast::<Plugin>() }
}

/// Takes over changed settings, then runs a call; returns its answer, or -1 and `errno`.
///
/// # Safety
/// As [`plugin`].
unsafe fn run<T: Answer>(user: User, call: impl FnOnce(&Files) -> Result<T>) -> isize {
    // SAFETY: the caller keeps the same promise.
    let plugin = unsafe { plugin(user) };
    refresh(plugin, false);
    let result = plugin.world().call(|| call(&plugin.files));
    result.map_or_else(failed, Answer::number)
}

/// [`run`] for a call that opens a socket: the settings before the first make the stack.
///
/// # Safety
/// As [`plugin`].
unsafe fn open(user: User, call: impl FnOnce(&Files) -> Result<c_int>) -> isize {
    // SAFETY: the caller keeps the same promise.
    unsafe {
        refresh(plugin(user), true);
        run(user, call)
    }
}

fn refresh(plugin: &Plugin, opens: bool) {
    must(plugin.refresh(opens));
}

/// Ends the run where a file cannot be read any more: what follows would judge something else.
fn must(result: core::result::Result<(), PluginError>) {
    if let Err(why) = result {
        eprintln!("pagewire: {why}");
        std::process::exit(1);
    }
}

/// Leaves `errno` behind.
pub(crate) fn failed(errno: Errno) -> isize {
    // SAFETY: the C library's own, valid for the thread's life.
    unsafe { *libc::__errno_location() = errno.raw_os_error() };
    -1
}

/// A result that C code gets as a number.
trait Answer {
    fn number(self) -> isize;
}

impl Answer for () {
    fn number(self) -> isize {
        0
    }
}

impl Answer for c_int {
    fn number(self) -> isize {
        self as isize
    }
}

impl Answer for usize {
    fn number(self) -> isize {
        self as isize
    }
}

unsafe extern "C" fn free(user: User) {
    if user.is_null() {
        return;
    }
    // SAFETY: `interface` made it of a box, and this is called once, last.
    let plugin = unsafe { Box::from_raw(user.cast::<Plugin>()) };
    crate::forget(&plugin);
    plugin.world().leave_descriptors();
}

/// # Safety
/// As for the interface.
unsafe fn send_packet(user: User, packet: *const c_void, len: size_t) -> c_int {
    // SAFETY: `user` is the table's.
    let plugin = unsafe { plugin(user) };
    refresh(plugin, false);
    if packet.is_null() || len > MAX_IP_PACKET {
        return failed(Errno::INVAL) as c_int;
    }
    // SAFETY: not null, so the interface promises `len` readable bytes.
    let packet = unsafe { core::slice::from_raw_parts(packet.cast::<u8>(), len) };
    let taken = plugin.world().send(packet);
    must(plugin.publish());
    if taken { 0 } else { -1 }
}

/// # Safety
/// As for the interface.
unsafe fn receive_packet(
    user: User,
    buf: *mut c_void,
    len: *mut size_t,
    usecs: *mut c_longlong,
) -> c_int {
    if buf.is_null() || len.is_null() || usecs.is_null() {
        return failed(Errno::FAULT) as c_int;
    }
    // SAFETY: `user` is the table's.
    let plugin = unsafe { plugin(user) };
    refresh(plugin, false);
    let packet = plugin.world().receive();
    // No packet came: no bytes, and no error, on which packetdrill would ask for ever.
    let at = packet.as_ref().map_or_else(|| plugin.world().present(), |packet| packet.at);
    let bytes = packet.as_ref().map_or(&[][..], |packet| &packet.bytes);
    // SAFETY: the interface promises a valid pointer.
    let room = unsafe { len.read() };
    let n = bytes.len().min(room);
    // SAFETY: the interface promises `*len` writable bytes that nobody else uses.
    let buf = unsafe { core::slice::from_raw_parts_mut(buf.cast::<u8>(), n) };
    let n = plugin.world().hand_out(bytes, buf);
    // SAFETY: the interface promises a valid pointer.
    unsafe { len.write(n) };
    // SAFETY: the interface promises a valid pointer.
    unsafe { usecs.write(World::time_of_day(at).as_micros() as c_longlong) };
    0
}

/// # Safety
/// As [`plugin`].
unsafe fn sleep(user: User, usecs: useconds_t) -> c_int {
    // SAFETY: `user` is the table's.
    unsafe { plugin(user) }.world().sleep(Duration::from_micros(usecs.into()));
    0
}

/// # Safety
/// As for the interface.
unsafe fn read_clock(user: User, tv: *mut timeval) -> c_int {
    // SAFETY: `user` is the table's.
    let time = World::time_of_day(unsafe { plugin(user) }.world().read_clock());
    // SAFETY: the interface promises null or a valid pointer.
    if let Some(tv) = unsafe { tv.as_mut() } {
        tv.tv_sec = time.as_secs() as libc::time_t;
        tv.tv_usec = time.subsec_micros() as libc::suseconds_t;
    }
    0
}

/// packetdrill points to the offsets of a script, and to 0 where the script has NULL.
///
/// # Safety
/// As for the interface.
unsafe fn given(offset: *mut loff_t) -> *const loff_t {
    // SAFETY: null, or the caller's offset.
    let is_some = unsafe { offset.as_ref() }.is_some_and(|&offset| offset != 0);
    if is_some { offset.cast_const() } else { core::ptr::null() }
}
