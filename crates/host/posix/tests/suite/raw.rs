//! The calls with a C caller's pointers.

use std::ptr;

use pagewire_posix::{Errno, raw::Raw};

use crate::support::{connect, linked, pair, stream};

#[test]
fn a_null_pointer_is_a_bad_address_where_memory_is_needed() {
    let (left, right, [client, server, _]) = linked();
    // SAFETY: null pointers are what is tested.
    #[allow(clippy::multiple_unsafe_ops_per_block)]
    unsafe {
        assert_eq!(Raw(&left).write(client, ptr::null(), 1000), Err(Errno::FAULT));
        assert_eq!(Raw(&left).write(client, ptr::null(), 0), Ok(0));
        let to = Raw(&left).sendto(client, ptr::null(), 1000, 0, ptr::null(), 0);
        assert_eq!(to, Err(Errno::FAULT));
        left.write(client, b"data").unwrap();
        right.recv(server, &mut [0; 1], 0).unwrap();
        assert_eq!(Raw(&right).read(server, ptr::null_mut(), 1000), Err(Errno::FAULT));
        assert_eq!(Raw(&left).bind(client, ptr::null(), 16), Err(Errno::FAULT));
    }
}

#[test]
fn what_is_wrong_with_the_socket_comes_before_a_bad_address() {
    let (left, _right) = pair();
    let fd = stream(&left);
    // SAFETY: null pointers are what is tested.
    #[allow(clippy::multiple_unsafe_ops_per_block)]
    unsafe {
        assert_eq!(Raw(&left).write(fd, ptr::null(), 1000), Err(Errno::PIPE));
        assert_eq!(Raw(&left).read(fd, ptr::null_mut(), 1000), Err(Errno::NOTCONN));
        assert_eq!(Raw(&left).read(99, ptr::null_mut(), 1000), Err(Errno::BADF));
    }
}

#[test]
fn dropping_a_stream_takes_no_memory_for_a_length_that_nobody_has() {
    let (left, right, [client, server, _]) = linked();
    left.write(client, b"data").unwrap();
    right.recv(server, &mut [0; 1], 0).unwrap();
    let (buf, addr) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: null pointers are what is tested.
    let dropped = unsafe {
        Raw(&right).recvfrom(server, buf, usize::MAX, libc::MSG_TRUNC, addr, ptr::null_mut())
    };
    assert_eq!(dropped, Ok(3));
}

#[test]
fn pieces_that_are_longer_than_any_memory_count_as_far_as_linux_looks() {
    let (left, right, [client, server, _]) = linked();
    left.write(client, b"data").unwrap();
    let mut place = [0u8; 8];
    let piece = |start: *mut u8, len| libc::iovec { iov_base: start.cast(), iov_len: len };
    // Behind the first piece nothing is left of what one call moves.
    let rest = usize::MAX / 2;
    let empty = ptr::null_mut();
    let iov = [piece(place.as_mut_ptr(), 8), piece(empty, 0), piece(empty, 0)];
    // SAFETY: eight bytes are there.
    let read = unsafe { Raw(&right).readv(server, iov.as_ptr(), 3) };
    assert_eq!(read, Ok(4));
    let iov = [piece(empty, rest), piece(empty, rest), piece(empty, rest), piece(empty, rest)];
    // SAFETY: null pointers are what is tested.
    let wrote = unsafe { Raw(&left).writev(client, iov.as_ptr(), 4) };
    assert_eq!(wrote, Err(Errno::FAULT));
    let iov = [piece(empty, usize::MAX)];
    // SAFETY: null pointers are what is tested.
    let wrote = unsafe { Raw(&left).writev(client, iov.as_ptr(), 1) };
    assert_eq!(wrote, Err(Errno::INVAL));
}

#[test]
fn numbers_of_a_caller_may_lie_anywhere() {
    let (left, _right, [client, _, _]) = linked();
    // Room for a number at every place but an aligned one, and a value behind it.
    let mut memory = [0u32; 8];
    let base = memory.as_mut_ptr().cast::<u8>();
    for at in 1..4 {
        // At most 7 of its 32 bytes, and not aligned for a number.
        let len = base.wrapping_add(at).cast::<u32>();
        let value = base.wrapping_add(16 + at).cast::<i32>();
        // SAFETY: all of it lies within `memory`.
        #[allow(clippy::multiple_unsafe_ops_per_block)]
        unsafe {
            len.write_unaligned(12);
            let (level, name) = (libc::IPPROTO_TCP, libc::TCP_MAXSEG);
            let got = Raw(&left).getsockopt(client, level, name, value.cast(), len);
            assert_eq!(got, Ok(()));
            assert_eq!(len.read_unaligned(), 4);
            assert!(value.read_unaligned() > 500);
            value.write_unaligned(1);
            let name = libc::TCP_NODELAY;
            assert_eq!(Raw(&left).setsockopt(client, level, name, value.cast(), 4), Ok(()));
            assert_eq!(Raw(&left).ioctl(client, 0x541b, value), Ok(()));
            assert_eq!(value.read_unaligned(), 0);
            len.write_unaligned(4);
            let name = base.wrapping_add(16).cast();
            assert_eq!(Raw(&left).getpeername(client, name, len), Ok(()));
            assert_eq!(len.read_unaligned(), 16);
            assert_eq!(Raw(&left).pipe2(base.wrapping_add(at).cast(), 0), Ok(()));
        }
    }
}

#[test]
fn a_name_of_negative_length_is_refused_before_anything_is_taken() {
    let (left, right, [client, server, _]) = linked();
    left.write(client, b"data").unwrap();
    right.recv(server, &mut [0; 1], libc::MSG_PEEK).unwrap();
    let mut name = [0u8; 16];
    let mut place = [0u8; 8];
    let mut iov = libc::iovec { iov_base: place.as_mut_ptr().cast(), iov_len: 8 };
    // SAFETY: all zero is a header without anything.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut iov, 1);
    (header.msg_name, header.msg_namelen) = (name.as_mut_ptr().cast(), u32::MAX);
    // SAFETY: what it points to is there.
    let received = unsafe { Raw(&right).recvmsg(server, &raw mut header, 0) };
    assert_eq!(received, Err(Errno::INVAL));
    // SAFETY: what it points to is there.
    let sent = unsafe { Raw(&right).sendmsg(server, &raw const header, 0) };
    assert_eq!(sent, Err(Errno::INVAL));
    header.msg_namelen = 16;
    // SAFETY: what it points to is there.
    let received = unsafe { Raw(&right).recvmsg(server, &raw mut header, 0) };
    assert_eq!(received, Ok(4));
}

#[test]
fn more_descriptors_than_there_can_be_are_not_polled() {
    let (left, _right) = pair();
    // SAFETY: the memory is not read.
    let polled = unsafe { Raw(&left).poll(ptr::dangling_mut(), usize::MAX, 0) };
    assert_eq!(polled, Err(Errno::INVAL));
}

#[test]
fn room_of_negative_length_for_a_name_is_refused_and_any_other_is_cut_to_the_name() {
    let (left, right, [client, _, listener]) = linked();
    for (room, expected) in [
        (u32::MAX, Err(Errno::INVAL)),
        (1 << 31, Err(Errno::INVAL)),
        (i32::MAX as u32, Ok(())),
        (16, Ok(())),
        (2, Ok(())),
        (0, Ok(())),
    ] {
        let (mut name, mut len) = ([0xeeu8; 32], room);
        // SAFETY: no name is longer than what is there.
        let told =
            unsafe { Raw(&left).getsockname(client, name.as_mut_ptr().cast(), &raw mut len) };
        assert_eq!(told, expected, "{room}");
        // As Linux: the whole length, however much there was room for.
        assert_eq!(len, if expected.is_ok() { 16 } else { room });
        let written = if expected.is_ok() { room.min(16) as usize } else { 0 };
        assert!(name[written..].iter().all(|&byte| byte == 0xee), "{room}: {name:?}");
        assert!(written < 2 || name[..2] == (libc::AF_INET as u16).to_ne_bytes());
        let mut len = room;
        // SAFETY: no name is longer than what is there.
        let told =
            unsafe { Raw(&left).getpeername(client, name.as_mut_ptr().cast(), &raw mut len) };
        assert_eq!(told, expected, "{room}");
    }
    connect(&left, "10.0.0.2:80");
    let (mut name, mut len) = ([0u8; 16], u32::MAX);
    // SAFETY: no name is longer than what is there.
    let taken = unsafe { Raw(&right).accept4(listener, name.as_mut_ptr().cast(), &raw mut len, 0) };
    assert_eq!(taken, Err(Errno::INVAL));
}

#[test]
fn options_and_ancillary_data_of_negative_length_are_refused() {
    let (left, right, [client, server, _]) = linked();
    let (mut value, mut len) = ([0u8; 4], u32::MAX);
    let at = value.as_mut_ptr();
    let (level, name) = (libc::SOL_SOCKET, libc::SO_TYPE);
    // SAFETY: a negative length is refused before any memory is read.
    let read = unsafe { Raw(&left).getsockopt(client, level, name, at.cast(), &raw mut len) };
    assert_eq!((read, len), (Err(Errno::INVAL), u32::MAX));
    // SAFETY: a negative length is refused before any memory is read.
    let set = unsafe { Raw(&left).setsockopt(client, level, libc::SO_LINGER, at.cast(), 1 << 31) };
    assert_eq!(set, Err(Errno::INVAL));
    right.write(server, b"data").unwrap();
    // SAFETY: all zero is a header without anything.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_control, header.msg_controllen) = (at.cast(), 1 << 31);
    // SAFETY: such a length is refused before any memory is read.
    let received = unsafe { Raw(&left).recvmsg(client, &raw mut header, 0) };
    assert_eq!(received, Err(Errno::NOBUFS));
}
