//! Streams end to end, in virtual time.

use pagewire_posix::{Errno, Fd};

use crate::support::{
    Files, LEFT, addr, bound, connect, linked, option, pair, set, set_nonblocking, stream,
};

#[test]
fn a_stream_carries_bytes_both_ways_and_ends() {
    let (left, right, [client, server, _]) = linked();
    assert_eq!(left.write(client, b"hello"), Ok(5));
    let mut buf = [0; 16];
    assert_eq!(right.read(server, &mut buf), Ok(5));
    assert_eq!(&buf[..5], b"hello");
    assert_eq!(right.send(server, b"good day", 0), Ok(8));
    assert_eq!(left.recv(client, &mut buf[..8], libc::MSG_WAITALL), Ok(8));
    assert_eq!(left.shutdown(client, libc::SHUT_WR), Ok(()));
    assert_eq!(right.read(server, &mut buf), Ok(0));
    assert_eq!(left.write(client, b"x"), Err(Errno::PIPE));
    assert_eq!(left.close(client), Ok(()));
    assert_eq!(left.close(client), Err(Errno::BADF));
}

#[test]
fn names_are_those_of_both_ends() {
    let (left, right, [client, server, listener]) = linked();
    let peer = right.getpeername(server).unwrap();
    assert_eq!(left.getsockname(client), Ok(peer));
    assert!(peer.to_std().unwrap().ip().to_string() == LEFT);
    assert_eq!(left.getpeername(client), Ok(addr("10.0.0.2:80")));
    assert_eq!(right.getpeername(listener), Err(Errno::NOTCONN));
}

#[test]
fn a_wait_for_all_ends_with_the_stream_when_the_end_comes_with_the_last_bytes() {
    let (left, right, [client, server, _]) = linked();
    right.write(server, &[1; 100]).unwrap();
    right.shutdown(server, libc::SHUT_WR).unwrap();
    assert_eq!(left.recv(client, &mut [0; 200], libc::MSG_WAITALL), Ok(100));
    assert_eq!(left.recv(client, &mut [0; 200], libc::MSG_WAITALL), Ok(0));
}

/// `connect` with `AF_UNSPEC`.
fn dissolve(files: &Files, fd: Fd) {
    files.connect(fd, &[0; 16]).unwrap();
}

#[test]
fn a_dissolved_connection_leaves_the_port_to_its_listener_and_keeps_the_address() {
    for (local, address) in [("10.0.0.2", "10.0.0.2:0"), ("0.0.0.0", "0.0.0.0:0")] {
        let (left, right) = pair();
        let server = bound(&right, stream, &format!("{local}:80"));
        right.listen(server, 1).unwrap();
        connect(&left, "10.0.0.2:80");
        let (accepted, _) = right.accept(server).unwrap();
        dissolve(&right, accepted);
        assert_eq!(right.getsockname(accepted), Ok(addr(address)));
        let other = bound(&left, stream, "10.0.0.1:81");
        left.listen(other, 1).unwrap();
        right.connect(accepted, addr("10.0.0.1:81").as_bytes()).unwrap();
        let local = right.getsockname(accepted).unwrap().to_std().unwrap();
        assert_ne!(local.port(), 80, "the listener's");
        // As in Linux: nothing binds it, so it may be bound.
        dissolve(&right, accepted);
        right.bind(accepted, addr("10.0.0.2:82").as_bytes()).unwrap();
        assert_eq!(right.getsockname(accepted), Ok(addr("10.0.0.2:82")));
    }
}

fn defer_accept(files: &Files, fd: Fd, seconds: i32) -> i32 {
    set(files, fd, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, seconds).unwrap();
    option(files, fd, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT).unwrap()
}

#[test]
fn the_time_of_a_deferred_accept_is_read_back_as_it_is_rounded() {
    let (left, _) = pair();
    let fd = stream(&left);
    let read = [-1, 0, 1, 2, 4, 8, 100, 200].map(|seconds| defer_accept(&left, fd, seconds));
    assert_eq!(read, [0, 0, 1, 3, 7, 15, 127, 247]);
}

#[test]
fn a_deferred_accept_waits_for_data_or_for_its_time() {
    for before_listen in [true, false] {
        let (left, right) = pair();
        let server = bound(&right, stream, "10.0.0.2:80");
        if before_listen {
            defer_accept(&right, server, 3);
        }
        right.listen(server, 4).unwrap();
        if !before_listen {
            defer_accept(&right, server, 3);
        }
        let talks = connect(&left, "10.0.0.2:80");
        let silent = connect(&left, "10.0.0.2:80");
        right.backend().run(std::time::Duration::from_millis(100));
        set_nonblocking(&right, server);
        assert_eq!(right.accept(server).unwrap_err(), Errno::AGAIN);
        left.write(talks, b"hello").unwrap();
        right.backend().run(std::time::Duration::from_millis(100));
        let (accepted, peer) = right.accept(server).unwrap();
        assert_eq!(left.getsockname(talks), Ok(peer));
        assert_eq!(right.read(accepted, &mut [0; 8]), Ok(5));
        assert_eq!(right.accept(server).unwrap_err(), Errno::AGAIN);
        right.backend().run(std::time::Duration::from_secs(3));
        let (_, peer) = right.accept(server).unwrap();
        assert_eq!(left.getsockname(silent), Ok(peer));
    }
}
