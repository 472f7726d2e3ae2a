//! The calls with a C caller's pointers.

mod support;

use std::ptr;

use pagewire_posix::{Errno, raw};
use support::{connected, pair};

#[test]
fn a_null_pointer_is_a_bad_address_where_memory_is_needed() {
    let (left, right) = pair();
    let (client, server, _) = connected(&left, &right);
    // SAFETY: null pointers are what is tested.
    #[allow(clippy::multiple_unsafe_ops_per_block)]
    unsafe {
        assert_eq!(raw::write(&left, client, ptr::null(), 1000), Err(Errno::FAULT));
        assert_eq!(raw::write(&left, client, ptr::null(), 0), Ok(0));
        let to = raw::sendto(&left, client, ptr::null(), 1000, 0, ptr::null(), 0);
        assert_eq!(to, Err(Errno::FAULT));
        left.write(client, b"data").unwrap();
        right.recv(server, &mut [0; 1], 0).unwrap();
        assert_eq!(raw::read(&right, server, ptr::null_mut(), 1000), Err(Errno::FAULT));
        assert_eq!(raw::bind(&left, client, ptr::null(), 16), Err(Errno::FAULT));
    }
}

#[test]
fn what_is_wrong_with_the_socket_comes_before_a_bad_address() {
    let (left, _right) = pair();
    let fd = support::stream(&left);
    // SAFETY: null pointers are what is tested.
    #[allow(clippy::multiple_unsafe_ops_per_block)]
    unsafe {
        assert_eq!(raw::write(&left, fd, ptr::null(), 1000), Err(Errno::PIPE));
        assert_eq!(raw::read(&left, fd, ptr::null_mut(), 1000), Err(Errno::NOTCONN));
        assert_eq!(raw::read(&left, 99, ptr::null_mut(), 1000), Err(Errno::BADF));
    }
}

#[test]
fn dropping_a_stream_takes_no_memory_for_a_length_that_nobody_has() {
    let (left, right) = pair();
    let (client, server, _) = connected(&left, &right);
    left.write(client, b"data").unwrap();
    right.recv(server, &mut [0; 1], 0).unwrap();
    let (buf, addr) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: null pointers are what is tested.
    let dropped = unsafe {
        raw::recvfrom(&right, server, buf, usize::MAX, libc::MSG_TRUNC, addr, ptr::null_mut())
    };
    assert_eq!(dropped, Ok(3));
}
