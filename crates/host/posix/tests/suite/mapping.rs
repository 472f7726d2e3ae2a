//! Receiving by mapping: `mmap` of a stream in the sense of Linux's first version, and
//! `TCP_ZEROCOPY_RECEIVE` of its second, with the caller's structures.

use pagewire_posix::{Errno, Fd, raw::Raw};
use pagewire_testkit::given;

use crate::support::{Files, datagram, linked, opt_in, pass, reset, stream};

const PAGE: usize = 4096;
const SHARED: i32 = libc::MAP_SHARED;
const READ: i32 = libc::PROT_READ;

/// Bytes that tell where they are.
fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 7 + i / PAGE) as u8).collect()
}

/// Sends, and lets it arrive.
fn send(files: &Files, fd: Fd, data: &[u8]) {
    assert_eq!(files.write(fd, data), Ok(data.len()));
    pass(files, 50);
}

/// Bytes that are mapped.
fn shown(at: usize, len: usize) -> Vec<u8> {
    let at = std::ptr::with_exposed_provenance::<u8>(at);
    // SAFETY: the tests ask for bytes that they have mapped; nobody can write them.
    unsafe { std::slice::from_raw_parts(at, len) }.to_vec()
}

/// A `struct tcp_zerocopy_receive` as a C program has it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Zc {
    address: u64,
    length: u32,
    recv_skip_hint: u32,
    inq: u32,
    err: i32,
    copybuf_address: u64,
    copybuf_len: i32,
    flags: u32,
    msg_control: u64,
    msg_controllen: u64,
    msg_flags: u32,
    reserved: u32,
}

const _: () = assert!(size_of::<Zc>() == 64);

fn receive_len(files: &Files, fd: Fd, zc: &mut Zc, mut len: u32) -> Result<u32, Errno> {
    let at = std::ptr::from_mut(zc).cast();
    // SAFETY: a live structure of 64 bytes, and its buffers.
    unsafe { Raw(files).getsockopt(fd, libc::IPPROTO_TCP, 35, at, &mut len) }?;
    Ok(len)
}

fn receive(files: &Files, fd: Fd, zc: &mut Zc) -> Result<(), Errno> {
    receive_len(files, fd, zc, 64).map(|len| assert_eq!(len, 64))
}

// ---- the first version ----

given! {
    let (left, right, [client, server, _]) = linked();

    mapping_a_stream_receives_from_it {
        let data = bytes(3 * PAGE);
        send(&left, client, &data);
        let at = right.mmap(server, 2 * PAGE, READ, SHARED, 0).unwrap();
        assert_eq!(shown(at, 2 * PAGE), data[..2 * PAGE]);
        let mut rest = [0; PAGE];
        assert_eq!(right.read(server, &mut rest), Ok(PAGE));
        assert_eq!(rest, data[2 * PAGE..]);
        // The mapping stays when the socket goes.
        right.close(server).unwrap();
        assert_eq!(shown(at, 2 * PAGE), data[..2 * PAGE]);
        assert!(right.is_mapped(at + PAGE));
        assert_eq!(right.munmap(at, 2 * PAGE), Ok(()));
        assert!(!right.is_mapped(at));
    }
    after_a_reset_less_than_asked_for_is_no_end {
        reset(&left, client);
        pass(&left, 50);
        assert_eq!(right.mmap(server, PAGE, READ, SHARED, 0), Err(Errno::AGAIN));
    }
    what_is_mapped_cannot_be_made_writable {
        send(&left, client, &bytes(PAGE));
        let at = right.mmap(server, PAGE, READ, SHARED, 0).unwrap();
        let page = std::ptr::with_exposed_provenance_mut(at);
        // SAFETY: asks for rights on mapped memory; refused.
        let done = unsafe { libc::mprotect(page, PAGE, libc::PROT_READ | libc::PROT_WRITE) };
        assert_eq!(done, -1);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EACCES));
    }
    memory_that_could_be_made_writable_is_not_given_away {
        opt_in(&left, client);
        let memory = vec![7u8; 3 * PAGE].leak();
        let early = memory.as_ptr().align_offset(PAGE);
        let part = &memory[early..early + PAGE];
        let range = [pagewire_posix::RawRange { start: part.as_ptr(), len: PAGE }];
        // SAFETY: readable for ever.
        let sent = unsafe { left.sendmsg_zerocopy(client, None, &range, &[], libc::MSG_ZEROCOPY) };
        assert_eq!(sent, Ok(PAGE));
        pass(&left, 50);
        assert_eq!(right.mmap(server, PAGE, READ, SHARED, 0), Err(Errno::INVAL));
        let mut all = [0; PAGE];
        assert_eq!(right.read(server, &mut all), Ok(PAGE));
        assert_eq!(all, [7; PAGE]);
    }
    a_mapping_that_is_unmapped_in_parts_goes_with_the_last {
        send(&left, client, &bytes(4 * PAGE));
        let at = right.mmap(server, 4 * PAGE, READ, SHARED, 0).unwrap();
        assert_eq!(right.munmap(at + 1, PAGE), Err(Errno::INVAL));
        assert_eq!(right.munmap(at, 0), Err(Errno::INVAL));
        for part in [1, 0, 3] {
            assert_eq!(right.munmap(at + part * PAGE, PAGE), Ok(()));
        }
        assert_eq!(shown(at + 2 * PAGE, PAGE), bytes(3 * PAGE)[2 * PAGE..]);
        assert_eq!(right.munmap(at + PAGE, 2 * PAGE), Ok(()));
        assert!(!right.is_mapped(at + 2 * PAGE));
    }
    what_is_too_little_for_a_page_is_copied_into_the_buffer {
        let address = reserved(&right, server, 8);
        let data = bytes(5 * PAGE + 100);
        send(&left, client, &data);
        let mut buffer = [0u8; PAGE];
        let copybuf_address = buffer.as_mut_ptr().expose_provenance() as u64;
        let mut zc = Zc {
            address,
            length: (8 * PAGE) as u32,
            copybuf_address,
            copybuf_len: PAGE as i32,
            ..Zc::default()
        };
        receive(&right, server, &mut zc).unwrap();
        assert_eq!((zc.length, zc.copybuf_len), ((5 * PAGE) as u32, 100));
        assert_eq!((zc.recv_skip_hint, zc.inq), (0, 0));
        assert_eq!(shown(address as usize, 5 * PAGE), data[..5 * PAGE]);
        // The bytes that are there fit the buffer: nothing is mapped.
        send(&left, client, b"short");
        (zc.length, zc.copybuf_len) = (PAGE as u32, PAGE as i32);
        receive(&right, server, &mut zc).unwrap();
        assert_eq!((zc.length, zc.recv_skip_hint, zc.copybuf_len, zc.inq), (0, 0, 5, 0));
        // SAFETY: the buffer is live; written through the address that was given away.
        assert_eq!(unsafe { std::ptr::read(&buffer) }[..5], *b"short");
    }
    the_end_counts_as_a_byte_and_is_an_error_when_it_is_all_there_is {
        let address = reserved(&right, server, 1);
        send(&left, client, &[1; 10]);
        left.shutdown(client, libc::SHUT_WR).unwrap();
        pass(&left, 50);
        let mut zc = Zc { address, length: PAGE as u32, ..Zc::default() };
        receive(&right, server, &mut zc).unwrap();
        assert_eq!((zc.length, zc.recv_skip_hint, zc.inq), (0, 10, 11));
        assert_eq!(right.read(server, &mut [0; 10]), Ok(10));
        let before = zc;
        assert_eq!(receive(&right, server, &mut zc), Err(Errno::IO));
        assert_eq!(zc, before, "a failure writes nothing back");
    }
    a_reset_is_told_as_a_negative_number_once_and_is_no_end {
        let address = reserved(&right, server, 2);
        send(&left, client, &bytes(2 * PAGE));
        reset(&left, client);
        pass(&left, 50);
        let mut zc = Zc { address, length: (2 * PAGE) as u32, ..Zc::default() };
        receive(&right, server, &mut zc).unwrap();
        assert_eq!((zc.length, zc.err), ((2 * PAGE) as u32, -libc::ECONNRESET));
        zc.length = (2 * PAGE) as u32;
        receive(&right, server, &mut zc).unwrap();
        assert_eq!((zc.length, zc.recv_skip_hint, zc.inq, zc.err), (0, 0, 0, 0));
    }
    pages_are_mapped_up_to_an_urgent_byte_and_no_further_until_a_read_has_passed_it {
        let address = reserved(&right, server, 4);
        send(&left, client, &bytes(PAGE));
        assert_eq!(left.send(client, &[1], libc::MSG_OOB), Ok(1));
        send(&left, client, &bytes(2 * PAGE - 1));
        let mut zc = Zc { address, length: (4 * PAGE) as u32, ..Zc::default() };
        receive(&right, server, &mut zc).unwrap();
        assert_eq!((zc.length, zc.recv_skip_hint), (PAGE as u32, 0));
        zc.length = (4 * PAGE) as u32;
        receive(&right, server, &mut zc).unwrap();
        assert_eq!((zc.length, zc.recv_skip_hint), (0, 0));
    }
    pages_in_reserved_addresses_go_when_they_are_not_needed {
        let address = reserved(&right, server, 2);
        send(&left, client, &bytes(2 * PAGE));
        let mut zc = Zc { address, length: (2 * PAGE) as u32, ..Zc::default() };
        receive(&right, server, &mut zc).unwrap();
        assert_eq!(zc.length, (2 * PAGE) as u32);
        let at = address as usize;
        assert_eq!(right.madvise(at, PAGE, libc::MADV_WILLNEED), Err(Errno::INVAL));
        assert_eq!(right.madvise(at + 8 * PAGE, PAGE, libc::MADV_DONTNEED), Err(Errno::NOMEM));
        for (len, error) in [(usize::MAX, Errno::INVAL), (usize::MAX - at, Errno::INVAL)] {
            assert_eq!(right.madvise(at + PAGE, len, libc::MADV_DONTNEED), Err(error), "{len}");
        }
        assert_eq!(right.madvise(at + PAGE, PAGE + 1, libc::MADV_DONTNEED), Err(Errno::NOMEM));
        assert_eq!(right.madvise(at, 0, libc::MADV_DONTNEED), Ok(()), "nothing");
        assert_eq!(shown(at, 2 * PAGE), bytes(2 * PAGE), "all of it stays");
        assert_eq!(right.madvise(at, PAGE, libc::MADV_DONTNEED), Ok(()));
        assert_eq!(shown(at + PAGE, PAGE), bytes(2 * PAGE)[PAGE..], "the other stays");
        assert!(right.is_mapped(at), "and so do the addresses");
        assert_eq!(right.munmap(at, 2 * PAGE), Ok(()));
    }
}

#[test]
fn each_refusal_comes_in_its_order_and_consumes_nothing() {
    let (left, right, [client, server, listening]) = linked();
    let (write, private) = (libc::PROT_WRITE, libc::MAP_PRIVATE);
    send(&left, client, &bytes(PAGE + 10));
    let map = |fd, len, prot, flags, offset| right.mmap(fd, len, prot, flags, offset);
    assert_eq!(map(server, 0, write, SHARED, 0), Err(Errno::INVAL));
    assert_eq!(map(server, PAGE, READ, 0, 0), Err(Errno::INVAL));
    assert_eq!(map(server, PAGE, write, SHARED, PAGE as i64), Err(Errno::INVAL));
    assert_eq!(map(99, PAGE, write, SHARED, 0), Err(Errno::BADF));
    assert_eq!(map(datagram(&right), PAGE, write, SHARED, 0), Err(Errno::NODEV));
    assert_eq!(map(listening, PAGE, write, SHARED, 0), Err(Errno::PERM), "before ENOTCONN");
    assert_eq!(map(listening, PAGE, READ | write, private, 0), Err(Errno::PERM));
    assert_eq!(map(listening, PAGE, READ, SHARED, 0), Err(Errno::NOTCONN));
    assert_eq!(map(stream(&right), PAGE, READ, SHARED, 0), Err(Errno::AGAIN));
    assert_eq!(map(server, 2 * PAGE, READ, SHARED, 0), Err(Errno::AGAIN));
    left.shutdown(client, libc::SHUT_WR).unwrap();
    pass(&left, 50);
    assert_eq!(map(server, PAGE + 1, READ, SHARED, 0), Err(Errno::IO), "rounded up to two pages");
    let mut one = [0];
    assert_eq!(right.read(server, &mut one), Ok(1));
    assert_eq!(map(server, PAGE, READ, private, 0), Err(Errno::INVAL), "an offset in the page");
    let mut rest = vec![0; PAGE + 9];
    assert_eq!(right.recv(server, &mut rest, libc::MSG_WAITALL), Ok(PAGE + 9));
    assert_eq!([&one[..], &rest].concat(), bytes(PAGE + 10));
}

#[test]
fn an_urgent_byte_is_as_far_as_is_queued_unless_it_is_in_line() {
    for (inline, errno) in [(0i32, Errno::AGAIN), (1, Errno::INVAL)] {
        let (left, right, [client, server, _]) = linked();
        let on = inline.to_ne_bytes();
        right.setsockopt(server, libc::SOL_SOCKET, libc::SO_OOBINLINE, &on).unwrap();
        send(&left, client, &bytes(PAGE));
        assert_eq!(left.send(client, &[1], libc::MSG_OOB), Ok(1));
        send(&left, client, &bytes(2 * PAGE - 1));
        assert_eq!(right.mmap(server, 2 * PAGE, READ, SHARED, 0), Err(errno));
        assert!(right.mmap(server, PAGE, READ, SHARED, 0).is_ok());
    }
}

// ---- the second version ----

/// Addresses for `pages` pages.
fn reserved(right: &Files, server: Fd, pages: usize) -> u64 {
    right.mmap_reserve(server, pages * PAGE, READ, SHARED, 0).unwrap() as u64
}

#[test]
fn addresses_are_reserved_first_and_pages_come_later() {
    let (left, right, [client, server, listening]) = linked();
    let reserve = |fd, prot, flags, offset| right.mmap_reserve(fd, PAGE, prot, flags, offset);
    assert_eq!(reserve(server, libc::PROT_WRITE, SHARED, 0), Err(Errno::PERM));
    assert_eq!(reserve(server, libc::PROT_EXEC, SHARED, 0), Err(Errno::PERM));
    assert_eq!(reserve(datagram(&right), READ, SHARED, 0), Err(Errno::NODEV));
    assert!(reserve(listening, READ, SHARED, 0).is_ok());
    assert!(reserve(stream(&right), libc::PROT_NONE, libc::MAP_PRIVATE, PAGE as i64).is_ok());
    let address = reserved(&right, server, 4);
    let data = bytes(5 * PAGE + 100);
    send(&left, client, &data);
    let mut zc = Zc { address, length: (8 * PAGE) as u32, ..Zc::default() };
    receive(&right, server, &mut zc).unwrap();
    let expected = Zc {
        address,
        length: (4 * PAGE) as u32,
        recv_skip_hint: 0,
        inq: (PAGE + 100) as u32,
        ..Zc::default()
    };
    assert_eq!(zc, expected, "as much as there are addresses");
    assert_eq!(shown(address as usize, 4 * PAGE), data[..4 * PAGE]);
    // The next call over the same addresses takes the pages away that were there.
    zc.length = (8 * PAGE) as u32;
    receive(&right, server, &mut zc).unwrap();
    assert_eq!((zc.length, zc.recv_skip_hint, zc.inq), (PAGE as u32, 0, 100));
    assert_eq!(shown(address as usize, PAGE), data[4 * PAGE..5 * PAGE]);
    zc.length = (8 * PAGE) as u32;
    receive(&right, server, &mut zc).unwrap();
    assert_eq!((zc.length, zc.recv_skip_hint, zc.inq), (0, 100, 100));
    assert_eq!(right.munmap(address as usize, 4 * PAGE), Ok(()));
    assert!(!right.is_mapped(address as usize));
}

#[test]
fn every_length_of_the_structure_that_there_was_is_taken() {
    let (left, right, [client, server, _]) = linked();
    let address = reserved(&right, server, 1);
    send(&left, client, &[1; 100]);
    let fresh = Zc { address, length: PAGE as u32, inq: 7, ..Zc::default() };
    let mut zc = fresh;
    assert_eq!(receive_len(&right, server, &mut zc, 11), Err(Errno::INVAL));
    assert_eq!(receive_len(&right, server, &mut zc, 12), Ok(12));
    assert_eq!((zc.length, zc.recv_skip_hint, zc.inq), (0, 0, 7), "no more than was asked for");
    zc = fresh;
    assert_eq!(receive_len(&right, server, &mut zc, 20), Ok(20));
    assert_eq!((zc.length, zc.recv_skip_hint, zc.inq), (0, 100, 100));
    for (reserved, msg_flags) in [(1, 0), (0, 1), (0, 4)] {
        let mut zc = Zc { reserved, msg_flags, ..fresh };
        assert_eq!(receive(&right, server, &mut zc), Err(Errno::INVAL));
    }
    let mut zc = Zc { msg_flags: 2, flags: 0xff00, ..fresh };
    assert_eq!(receive(&right, server, &mut zc), Ok(()), "unknown flags are ignored");
    let mut longer = ([fresh; 2], 80u32);
    (longer.0[1].address, longer.0[1].length, longer.0[1].inq) = (0, 0, 0);
    let at = longer.0.as_mut_ptr().cast();
    // SAFETY: 128 live bytes.
    let done = unsafe { Raw(&right).getsockopt(server, libc::IPPROTO_TCP, 35, at, &mut longer.1) };
    assert_eq!((done, longer.1), (Ok(()), 64), "a longer one of zeros is cut");
    longer.0[1].address = 1;
    longer.1 = 80;
    // SAFETY: the same.
    let done = unsafe { Raw(&right).getsockopt(server, libc::IPPROTO_TCP, 35, at, &mut longer.1) };
    assert_eq!(done, Err(Errno::INVAL), "of something else it is refused");
}

#[test]
fn addresses_and_sockets_are_checked_in_order() {
    let (left, right, [client, server, listening]) = linked();
    let address = reserved(&right, server, 2);
    let mut zc = Zc { address: address + 1, length: PAGE as u32, ..Zc::default() };
    assert_eq!(receive(&right, listening, &mut zc), Err(Errno::INVAL));
    zc.address = PAGE as u64;
    assert_eq!(receive(&right, listening, &mut zc), Err(Errno::NOTCONN));
    // Addresses are checked only when there are pages for them.
    assert_eq!(receive(&right, server, &mut zc), Ok(()));
    send(&left, client, &bytes(2 * PAGE));
    zc.length = PAGE as u32;
    assert_eq!(receive(&right, server, &mut zc), Err(Errno::INVAL));
    // A length between pages is rounded down; less than a page is left to be read.
    (zc.address, zc.length) = (address, 5000);
    assert_eq!(receive(&right, server, &mut zc), Ok(()));
    assert_eq!((zc.length, zc.recv_skip_hint), (PAGE as u32, 0));
    zc.length = 100;
    assert_eq!(receive(&right, server, &mut zc), Ok(()));
    assert_eq!((zc.length, zc.recv_skip_hint), (0, 100));
}
