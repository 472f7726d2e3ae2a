//! The table of calls, as packetdrill's header lays it out; every function takes `userdata` first.

use core::ffi::{c_int, c_long, c_longlong, c_uint, c_ulong, c_void};

use libc::{
    epoll_event, iovec, loff_t, msghdr, nfds_t, pollfd, size_t, sockaddr, socklen_t, ssize_t,
    timeval, timezone, useconds_t,
};

/// The stack's data: `userdata` of every call.
pub type User = *mut c_void;

/// What `packetdrill_interface_init` fills in. `fcntl` and `ioctl`, variadic in C, take their
/// argument as a machine word: on x86-64 and AArch64 Linux it uses the same register.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // Each is the system call of its name.
pub struct Interface {
    pub userdata: User,
    /// Frees everything.
    pub free: unsafe extern "C" fn(User),
    pub socket: unsafe extern "C" fn(User, c_int, c_int, c_int) -> c_int,
    pub bind: unsafe extern "C" fn(User, c_int, *const sockaddr, socklen_t) -> c_int,
    pub listen: unsafe extern "C" fn(User, c_int, c_int) -> c_int,
    pub accept: unsafe extern "C" fn(User, c_int, *mut sockaddr, *mut socklen_t) -> c_int,
    pub connect: unsafe extern "C" fn(User, c_int, *const sockaddr, socklen_t) -> c_int,
    pub read: unsafe extern "C" fn(User, c_int, *mut c_void, size_t) -> ssize_t,
    pub readv: unsafe extern "C" fn(User, c_int, *const iovec, c_int) -> ssize_t,
    pub recv: unsafe extern "C" fn(User, c_int, *mut c_void, size_t, c_int) -> ssize_t,
    pub recvfrom: unsafe extern "C" fn(
        User,
        c_int,
        *mut c_void,
        size_t,
        c_int,
        *mut sockaddr,
        *mut socklen_t,
    ) -> ssize_t,
    pub recvmsg: unsafe extern "C" fn(User, c_int, *mut msghdr, c_int) -> ssize_t,
    pub write: unsafe extern "C" fn(User, c_int, *const c_void, size_t) -> ssize_t,
    pub writev: unsafe extern "C" fn(User, c_int, *const iovec, c_int) -> ssize_t,
    pub send: unsafe extern "C" fn(User, c_int, *const c_void, size_t, c_int) -> ssize_t,
    pub sendto: unsafe extern "C" fn(
        User,
        c_int,
        *const c_void,
        size_t,
        c_int,
        *const sockaddr,
        socklen_t,
    ) -> ssize_t,
    pub sendmsg: unsafe extern "C" fn(User, c_int, *const msghdr, c_int) -> ssize_t,
    pub fcntl: unsafe extern "C" fn(User, c_int, c_int, c_long) -> c_int,
    pub ioctl: unsafe extern "C" fn(User, c_int, c_ulong, *mut c_void) -> c_int,
    pub close: unsafe extern "C" fn(User, c_int) -> c_int,
    pub shutdown: unsafe extern "C" fn(User, c_int, c_int) -> c_int,
    pub getsockopt:
        unsafe extern "C" fn(User, c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int,
    pub setsockopt:
        unsafe extern "C" fn(User, c_int, c_int, c_int, *const c_void, socklen_t) -> c_int,
    pub poll: unsafe extern "C" fn(User, *mut pollfd, nfds_t, c_int) -> c_int,
    /// A packet for the stack. 0, or -1.
    pub netdev_send: unsafe extern "C" fn(User, *const c_void, size_t) -> c_int,
    /// The next packet of the stack's: its bytes, how many (before: how many fit), and when it
    /// left in microseconds. 0 with a count of 0: nothing came.
    pub netdev_receive:
        unsafe extern "C" fn(User, *mut c_void, *mut size_t, *mut c_longlong) -> c_int,
    pub usleep: unsafe extern "C" fn(User, useconds_t) -> c_int,
    pub gettimeofday: unsafe extern "C" fn(User, *mut timeval, *mut timezone) -> c_int,
    pub epoll_create: unsafe extern "C" fn(User, c_int) -> c_int,
    pub epoll_ctl: unsafe extern "C" fn(User, c_int, c_int, c_int, *mut epoll_event) -> c_int,
    pub epoll_wait: unsafe extern "C" fn(User, c_int, *mut epoll_event, c_int, c_int) -> c_int,
    pub pipe: unsafe extern "C" fn(User, *mut c_int) -> c_int,
    pub splice: unsafe extern "C" fn(
        User,
        c_int,
        *mut loff_t,
        c_int,
        *mut loff_t,
        size_t,
        c_uint,
    ) -> ssize_t,
}
