//! The calls of the [table](crate::table), as C functions: each finds its stack, does what
//! `pagewire-posix` does for a C caller, and leaves `errno` behind.
//!
//! Read [`run`] first; the calls are in the table's order.

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
use crate::table::{Interface, User};
use crate::world::World;

type Files = Descriptors<World>;
type Result<T> = core::result::Result<T, Errno>;

/// The table for `plugin`, which `free` will drop.
pub(crate) fn interface(plugin: Box<Plugin>) -> Interface {
    Interface {
        userdata: Box::into_raw(plugin).cast(),
        free,
        socket,
        bind,
        listen,
        accept,
        connect,
        read,
        readv,
        recv,
        recvfrom,
        recvmsg,
        write,
        writev,
        send,
        sendto,
        sendmsg,
        fcntl,
        ioctl,
        close,
        shutdown,
        getsockopt,
        setsockopt,
        poll,
        netdev_send,
        netdev_receive,
        usleep,
        gettimeofday,
        epoll_create,
        epoll_ctl,
        epoll_wait,
        pipe,
        splice,
    }
}

/// The stack that a call is for.
///
/// # Safety
/// `user` is the `userdata` of a table that was not freed, and is not freed for `'a`.
unsafe fn plugin<'a>(user: User) -> &'a Plugin {
    // SAFETY: `interface` made it of a box, and `free` was not called.
    unsafe { &*user.cast::<Plugin>() }
}

/// Takes over changed settings, then runs a call: what it returns, or -1 and `errno`.
///
/// # Safety
/// As [`plugin`].
unsafe fn run(user: User, opens: bool, call: impl FnOnce(&Files) -> Result<usize>) -> isize {
    // SAFETY: as the caller says.
    let plugin = unsafe { plugin(user) };
    refresh(plugin, opens);
    let result = plugin.world().call(|| call(&plugin.files));
    result.map_or_else(failed, |n| n as isize)
}

/// Takes over changed settings.
fn refresh(plugin: &Plugin, opens: bool) {
    must(plugin.refresh(opens));
}

/// A file that has become unreadable ends the run: what follows would judge something else.
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

fn done(result: Result<()>) -> Result<usize> {
    result.map(|()| 0)
}

fn number(result: Result<c_int>) -> Result<usize> {
    // What calls return is never negative.
    result.map(|n| n.unsigned_abs() as usize)
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

unsafe extern "C" fn socket(user: User, domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: `user` is the table's.
    unsafe { run(user, true, |files| number(files.socket(domain, kind, protocol))) as c_int }
}

unsafe extern "C" fn bind(user: User, fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: `user` is the table's; the rest is as for `bind(2)`.
    unsafe { run(user, false, |files| done(Raw(files).bind(fd, addr, len))) as c_int }
}

unsafe extern "C" fn listen(user: User, fd: c_int, backlog: c_int) -> c_int {
    // SAFETY: `user` is the table's.
    unsafe { run(user, false, |files| done(files.listen(fd, backlog))) as c_int }
}

unsafe extern "C" fn accept(
    user: User,
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: `user` is the table's; the rest is as for `accept(2)`.
    unsafe { run(user, false, |files| number(Raw(files).accept4(fd, addr, len, 0))) as c_int }
}

unsafe extern "C" fn connect(
    user: User,
    fd: c_int,
    addr: *const sockaddr,
    len: socklen_t,
) -> c_int {
    // SAFETY: `user` is the table's; the rest is as for `connect(2)`.
    unsafe { run(user, false, |files| done(Raw(files).connect(fd, addr, len))) as c_int }
}

unsafe extern "C" fn read(user: User, fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t {
    // SAFETY: `user` is the table's; the rest is as for `read(2)`.
    unsafe { run(user, false, |files| Raw(files).read(fd, buf, len)) }
}

unsafe extern "C" fn readv(user: User, fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: `user` is the table's; the rest is as for `readv(2)`.
    unsafe { run(user, false, |files| Raw(files).readv(fd, iov, count)) }
}

unsafe extern "C" fn recv(
    user: User,
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    let none = core::ptr::null_mut();
    // SAFETY: as for `recv(2)`.
    unsafe { recvfrom(user, fd, buf, len, flags, none, core::ptr::null_mut()) }
}

unsafe extern "C" fn recvfrom(
    user: User,
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
    addr: *mut sockaddr,
    addr_len: *mut socklen_t,
) -> ssize_t {
    // SAFETY: `user` is the table's; the rest is as for `recvfrom(2)`.
    unsafe { run(user, false, |files| Raw(files).recvfrom(fd, buf, len, flags, addr, addr_len)) }
}

unsafe extern "C" fn recvmsg(user: User, fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: `user` is the table's; the rest is as for `recvmsg(2)`.
    unsafe { run(user, false, |files| Raw(files).recvmsg(fd, msg, flags)) }
}

unsafe extern "C" fn write(user: User, fd: c_int, buf: *const c_void, len: size_t) -> ssize_t {
    // SAFETY: `user` is the table's; the rest is as for `write(2)`.
    unsafe { run(user, false, |files| Raw(files).write(fd, buf, len)) }
}

unsafe extern "C" fn writev(user: User, fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: `user` is the table's; the rest is as for `writev(2)`.
    unsafe { run(user, false, |files| Raw(files).writev(fd, iov, count)) }
}

unsafe extern "C" fn send(
    user: User,
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: as for `send(2)`.
    unsafe { sendto(user, fd, buf, len, flags, core::ptr::null(), 0) }
}

unsafe extern "C" fn sendto(
    user: User,
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
    addr: *const sockaddr,
    addr_len: socklen_t,
) -> ssize_t {
    // SAFETY: `user` is the table's; the rest is as for `sendto(2)`.
    unsafe { run(user, false, |files| Raw(files).sendto(fd, buf, len, flags, addr, addr_len)) }
}

unsafe extern "C" fn sendmsg(user: User, fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: `user` is the table's; the rest is as for `sendmsg(2)`.
    unsafe { run(user, false, |files| Raw(files).sendmsg(fd, msg, flags)) }
}

unsafe extern "C" fn fcntl(user: User, fd: c_int, command: c_int, argument: c_long) -> c_int {
    // The commands that sockets know take an `int`; without an argument this is whatever the
    // register held, and the command does not look at it.
    let argument = argument as c_int;
    // SAFETY: `user` is the table's.
    unsafe { run(user, false, |files| number(files.fcntl(fd, command, argument))) as c_int }
}

unsafe extern "C" fn ioctl(
    user: User,
    fd: c_int,
    request: c_ulong,
    argument: *mut c_void,
) -> c_int {
    let argument = argument.cast();
    // SAFETY: `user` is the table's; the rest is as for `ioctl(2)`.
    unsafe { run(user, false, |files| done(Raw(files).ioctl(fd, request, argument))) as c_int }
}

unsafe extern "C" fn close(user: User, fd: c_int) -> c_int {
    // SAFETY: `user` is the table's.
    unsafe { run(user, false, |files| done(files.close(fd))) as c_int }
}

unsafe extern "C" fn shutdown(user: User, fd: c_int, how: c_int) -> c_int {
    // SAFETY: `user` is the table's.
    unsafe { run(user, false, |files| done(files.shutdown(fd, how))) as c_int }
}

unsafe extern "C" fn getsockopt(
    user: User,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: `user` is the table's; the rest is as for `getsockopt(2)`.
    unsafe {
        run(user, false, |files| done(Raw(files).getsockopt(fd, level, name, value, len))) as c_int
    }
}

unsafe extern "C" fn setsockopt(
    user: User,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    // SAFETY: `user` is the table's; the rest is as for `setsockopt(2)`.
    unsafe {
        run(user, false, |files| done(Raw(files).setsockopt(fd, level, name, value, len))) as c_int
    }
}

unsafe extern "C" fn poll(user: User, fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: `user` is the table's; the rest is as for `poll(2)`.
    unsafe { run(user, false, |files| Raw(files).poll(fds, count as usize, timeout)) as c_int }
}

unsafe extern "C" fn netdev_send(user: User, packet: *const c_void, len: size_t) -> c_int {
    // SAFETY: `user` is the table's.
    let plugin = unsafe { plugin(user) };
    refresh(plugin, false);
    if packet.is_null() || len > MAX_IP_PACKET {
        return failed(Errno::INVAL) as c_int;
    }
    // SAFETY: not null, so `len` readable bytes, says the interface.
    let packet = unsafe { core::slice::from_raw_parts(packet.cast::<u8>(), len) };
    let taken = plugin.world().send(packet);
    must(plugin.publish());
    if taken { 0 } else { -1 }
}

unsafe extern "C" fn netdev_receive(
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
    // Nothing came: nothing, without an error. On an error packetdrill would ask for ever.
    let at = packet.as_ref().map_or_else(|| plugin.world().present(), |packet| packet.at);
    let bytes = packet.as_ref().map_or(&[][..], |packet| &packet.bytes);
    // SAFETY: valid, says the interface.
    let room = unsafe { len.read() };
    let n = bytes.len().min(room);
    // SAFETY: `*len` writable bytes, says the interface, which nobody else has.
    let buf = unsafe { core::slice::from_raw_parts_mut(buf.cast::<u8>(), n) };
    let n = plugin.world().hand_out(bytes, buf);
    // SAFETY: valid, says the interface.
    unsafe { len.write(n) };
    // SAFETY: valid, says the interface.
    unsafe { usecs.write(World::time_of_day(at).as_micros() as c_longlong) };
    0
}

unsafe extern "C" fn usleep(user: User, usecs: useconds_t) -> c_int {
    // SAFETY: `user` is the table's.
    unsafe { plugin(user) }.world().sleep(Duration::from_micros(usecs.into()));
    0
}

unsafe extern "C" fn gettimeofday(user: User, tv: *mut timeval, _zone: *mut timezone) -> c_int {
    // SAFETY: `user` is the table's.
    let time = World::time_of_day(unsafe { plugin(user) }.world().look());
    // SAFETY: null or valid, says the interface.
    if let Some(tv) = unsafe { tv.as_mut() } {
        tv.tv_sec = time.as_secs() as libc::time_t;
        tv.tv_usec = time.subsec_micros() as libc::suseconds_t;
    }
    0
}

unsafe extern "C" fn epoll_create(user: User, size: c_int) -> c_int {
    // SAFETY: `user` is the table's.
    unsafe { run(user, false, |files| number(files.epoll_create(size))) as c_int }
}

unsafe extern "C" fn epoll_ctl(
    user: User,
    epoll: c_int,
    op: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    // SAFETY: `user` is the table's; the rest is as for `epoll_ctl(2)`.
    unsafe { run(user, false, |files| done(Raw(files).epoll_ctl(epoll, op, fd, event))) as c_int }
}

unsafe extern "C" fn epoll_wait(
    user: User,
    epoll: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: c_int,
) -> c_int {
    // SAFETY: `user` is the table's; the rest is as for `epoll_wait(2)`.
    unsafe { run(user, false, |files| Raw(files).epoll_wait(epoll, events, max, timeout)) as c_int }
}

unsafe extern "C" fn pipe(user: User, fds: *mut c_int) -> c_int {
    // SAFETY: `user` is the table's; the rest is as for `pipe(2)`.
    unsafe { run(user, false, |files| done(Raw(files).pipe2(fds, 0))) as c_int }
}

unsafe extern "C" fn splice(
    user: User,
    from: c_int,
    from_offset: *mut loff_t,
    to: c_int,
    to_offset: *mut loff_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    // packetdrill points to the offsets of a script, and to 0 where that says NULL.
    let given = |offset: *mut loff_t| {
        // SAFETY: null, or the caller's offset.
        let is_some = unsafe { offset.as_ref() }.is_some_and(|&offset| offset != 0);
        if is_some { offset.cast_const() } else { core::ptr::null() }
    };
    let (from_offset, to_offset) = (given(from_offset), given(to_offset));
    // SAFETY: `user` is the table's.
    unsafe {
        run(user, false, |files| Raw(files).splice(from, from_offset, to, to_offset, len, flags))
    }
}
