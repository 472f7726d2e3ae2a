//! Pipes, whose payload moves by reference to and from sockets; files that are sent.

use std::io::IoSliceMut;
use std::os::fd::AsFd;

use pagewire_posix::{Errno, raw::Raw};

use crate::support::{Files, linked, pair, pair_with};

#[test]
fn payload_is_spliced_from_one_connection_to_another_without_a_copy() {
    let (left, right, [client, server, _]) = linked();
    let (read, write) = right.pipe2(0).unwrap();
    left.write(client, &[5; 3000]).unwrap();
    let copies = |files: &Files| files.backend().copied();
    left.backend().run(core::time::Duration::from_millis(10));
    let before = copies(&right);
    assert_eq!(right.splice(server, write, 1 << 16, 0), Ok(3000));
    assert_eq!(right.splice(read, server, 1 << 16, 0), Ok(3000));
    assert_eq!(copies(&right), before);
    let mut back = [0; 3000];
    assert_eq!(left.recv(client, &mut back, libc::MSG_WAITALL), Ok(3000));
    assert_eq!(back, [5; 3000]);
    assert_eq!(right.splice(server, server, 1, 0), Err(Errno::INVAL));
    assert_eq!(right.splice(read, write, 1, 0), Err(Errno::INVAL));
    assert_eq!(right.splice(write, server, 1, 0), Err(Errno::BADF));
    assert_eq!(Raw(&right).splice(read, &0, server, &0, 1, 0), Err(Errno::SPIPE));
}

#[test]
fn a_file_is_sent_from_the_offset_on() {
    let (left, right, [client, server, _]) = linked();
    let name = format!("pagewire-posix-sendfile-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, (0..10_000u32).map(|n| n as u8).collect::<Vec<_>>()).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let mut offset = 5000;
    assert_eq!(left.sendfile(client, file.as_fd(), &mut offset, 1 << 20), Ok(5000));
    assert_eq!(offset, 10_000);
    assert_eq!(left.sendfile(client, file.as_fd(), &mut offset, 1), Ok(0));
    let mut got = vec![0; 5000];
    assert_eq!(right.recv(server, &mut got, libc::MSG_WAITALL), Ok(5000));
    assert_eq!(got, (5000..10_000u32).map(|n| n as u8).collect::<Vec<_>>());
}

#[test]
fn a_pipe_carries_bytes_and_says_when_an_end_is_gone() {
    let (left, _right) = pair();
    let (read, write) = left.pipe2(libc::O_NONBLOCK).unwrap();
    assert_eq!(left.read(read, &mut [0; 1]), Err(Errno::AGAIN));
    assert_eq!(left.write(write, b"through"), Ok(7));
    let (mut a, mut b) = ([0; 3], [0; 8]);
    let iov = &mut [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)];
    assert_eq!(left.readv(read, iov), Ok(7));
    assert_eq!((&a, &b[..4]), (b"thr", &b"ough"[..]));
    assert_eq!(left.write(write, &[0; 1 << 17]), Ok(65_536));
    assert_eq!(left.write(write, b"x"), Err(Errno::AGAIN));
    assert_eq!(left.write(read, b"x"), Err(Errno::BADF));
    left.close(read).unwrap();
    assert_eq!(left.write(write, b"x"), Err(Errno::PIPE));
    let (read, write) = left.pipe2(0).unwrap();
    left.close(write).unwrap();
    assert_eq!(left.read(read, &mut [0; 1]), Ok(0));
}

#[test]
fn a_write_to_a_pipe_that_finds_no_page_says_so_instead_of_waiting_for_ever() {
    let (left, _) = pair_with(|config| config.memory = 256 << 10);
    // 64 KiB for each, until there is no page left.
    let full = (0..64).find_map(|_| {
        let (_, write) = left.pipe2(0).unwrap();
        left.write(write, &[7; 65_536]).err()
    });
    assert_eq!(full, Some(Errno::NOMEM));
    let (read, write) = left.pipe2(0).unwrap();
    assert_eq!(left.write(write, b"whole"), Err(Errno::NOMEM));
    assert_eq!(left.close(write), Ok(()));
    assert_eq!(left.read(read, &mut [0; 8]), Ok(0), "nothing of it arrived");
}

#[test]
fn writing_nothing_to_a_pipe_writes_nothing_whatever_the_pipe_is_like() {
    let (left, _right) = pair();
    let (read, write) = left.pipe2(0).unwrap();
    assert_eq!(left.write(write, b""), Ok(0));
    assert_eq!(left.write(write, &vec![0; 65_536]), Ok(65_536));
    assert_eq!(left.writev(write, &[]), Ok(0));
    left.close(read).unwrap();
    assert_eq!(left.write(write, b""), Ok(0));
    assert_eq!(left.write(write, b"x"), Err(Errno::PIPE));
}

#[test]
fn splice_to_a_pipe_without_a_reader_leaves_the_data_in_the_socket() {
    let (left, right, [client, server, _]) = linked();
    let (read, write) = right.pipe2(0).unwrap();
    right.close(read).unwrap();
    left.write(client, b"data").unwrap();
    right.recv(server, &mut [0; 1], libc::MSG_PEEK).unwrap();
    assert_eq!(right.splice(server, write, 100, 0), Err(Errno::PIPE));
    let mut buf = [0; 8];
    assert_eq!(right.read(server, &mut buf), Ok(4));
}
