//! Sockets that are bound to a link: what programs see. What is sent and received is in
//! `crates/core/stack/tests/suite/links/bound.rs`.

use pagewire_posix::{Errno, Fd};

use crate::support::{Files, addr, bound, datagram, option, pair, set, stream};

const SO_BINDTOIFINDEX: i32 = 62;

fn name_of(files: &Files, fd: Fd) -> Vec<u8> {
    let mut value = [7; 16];
    let len = files.getsockopt(fd, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, &mut value).unwrap();
    value[..len].to_vec()
}

fn number_of(files: &Files, fd: Fd) -> i32 {
    option(files, fd, libc::SOL_SOCKET, SO_BINDTOIFINDEX).unwrap()
}

fn bind_to_name(files: &Files, fd: Fd, name: &[u8]) -> Result<(), Errno> {
    files.setsockopt(fd, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, name)
}

fn bind_to_number(files: &Files, fd: Fd, number: i32) -> Result<(), Errno> {
    set(files, fd, libc::SOL_SOCKET, SO_BINDTOIFINDEX, number)
}

#[test]
fn a_socket_is_bound_to_a_link_by_name_or_number_and_says_so() {
    let (left, _) = pair();
    for fd in [stream(&left), datagram(&left)] {
        assert_eq!((name_of(&left, fd), number_of(&left, fd)), (Vec::new(), 0));
        assert_eq!(bind_to_name(&left, fd, b"link1\0"), Ok(()));
        assert_eq!((name_of(&left, fd), number_of(&left, fd)), (b"link1\0".to_vec(), 1));
        assert_eq!(bind_to_name(&left, fd, b""), Ok(()));
        assert_eq!(number_of(&left, fd), 0);
        assert_eq!(bind_to_number(&left, fd, 1), Ok(()));
        assert_eq!(name_of(&left, fd), b"link1\0");
        let mut short = [0; 15];
        let name = libc::SO_BINDTODEVICE;
        assert_eq!(left.getsockopt(fd, libc::SOL_SOCKET, name, &mut short), Err(Errno::INVAL));
        assert_eq!(bind_to_number(&left, fd, 0), Ok(()));
        assert_eq!(name_of(&left, fd), Vec::<u8>::new());
    }
}

#[test]
fn a_link_that_is_not_there_is_no_device_and_changes_nothing() {
    let (left, _) = pair();
    let fd = stream(&left);
    bind_to_number(&left, fd, 1).unwrap();
    assert_eq!(bind_to_name(&left, fd, b"eth7"), Err(Errno::NODEV));
    assert_eq!(bind_to_number(&left, fd, 2), Err(Errno::NODEV));
    assert_eq!(bind_to_number(&left, fd, -1), Err(Errno::INVAL));
    assert_eq!(number_of(&left, fd), 1);
}

#[test]
fn a_link_goes_by_the_name_that_it_was_given() {
    use pagewire_stack::{Error, LinkId};
    let (left, _) = pair();
    let fd = stream(&left);
    left.backend().with(|stack, _| stack.name_link(LinkId::FIRST, "eth0")).unwrap();
    assert_eq!(bind_to_name(&left, fd, b"link1"), Err(Errno::NODEV));
    assert_eq!(bind_to_name(&left, fd, b"eth0"), Ok(()));
    assert_eq!(name_of(&left, fd), b"eth0\0");
    for odd in ["", "a name", "a/b", "sixteen-bytes-xx"] {
        let named = left.backend().with(|stack, _| stack.name_link(LinkId::FIRST, odd));
        assert_eq!(named, Err(Error::InvalidInput), "{odd}");
    }
}

#[test]
fn what_a_listener_is_bound_to_its_connections_are_bound_to() {
    let (left, right) = pair();
    let server = bound(&right, stream, "10.0.0.2:80");
    bind_to_number(&right, server, 1).unwrap();
    right.listen(server, 4).unwrap();
    let client = stream(&left);
    bind_to_name(&left, client, b"link1").unwrap();
    left.connect(client, addr("10.0.0.2:80").as_bytes()).unwrap();
    let (accepted, _) = right.accept(server).unwrap();
    assert_eq!(number_of(&right, accepted), 1);
    assert_eq!(left.write(client, b"hello"), Ok(5));
    assert_eq!(right.read(accepted, &mut [0; 8]), Ok(5));
    // Bound to it while it is connected, and not any more.
    bind_to_number(&right, accepted, 0).unwrap();
    assert_eq!(right.write(accepted, b"hello"), Ok(5));
    bind_to_number(&right, accepted, 1).unwrap();
    assert_eq!(right.write(accepted, b"again"), Ok(5));
    assert_eq!(left.recv(client, &mut [0; 10], libc::MSG_WAITALL), Ok(10));
}
