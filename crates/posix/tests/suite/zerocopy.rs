//! MSG_ZEROCOPY, its notifications, and payload that moves by reference.

use std::io::IoSliceMut;
use std::os::fd::AsFd;

use pagewire_posix::{Errno, Events, PollFd, RawRange, ReceiveMessage, raw::Raw};

use crate::support::{Files, linked, opt_in, pair};

fn send(files: &Files, fd: i32, data: &'static [u8]) -> Result<usize, Errno> {
    let range = [RawRange { start: data.as_ptr(), len: data.len() }];
    // SAFETY: readable for ever.
    unsafe { files.sendmsg_zerocopy(fd, None, &range, &[], libc::MSG_ZEROCOPY) }
}

/// `[ee_errno, ee_origin, ee_code, ee_info, ee_data]` of the next notification.
fn notification(files: &Files, fd: i32) -> Result<[u32; 5], Errno> {
    let mut control = [0u8; 64];
    let mut message = ReceiveMessage { control: &mut control, ..Default::default() };
    assert_eq!(files.recvmsg(fd, &mut message, libc::MSG_ERRQUEUE)?, 0);
    assert_eq!(message.flags, libc::MSG_ERRQUEUE);
    assert_eq!(message.control_len, 48);
    let word = |at: usize| u32::from_ne_bytes(control[at..at + 4].try_into().unwrap());
    assert_eq!((word(0), word(8) as i32, word(12) as i32), (48, libc::SOL_IP, libc::IP_RECVERR));
    Ok([word(16), u32::from(control[20]), u32::from(control[22]), word(24), word(28)])
}

#[test]
fn a_notification_follows_the_acknowledgement_and_ranges_grow() {
    let (left, right, [client, server, _]) = linked();
    opt_in(&left, client);
    assert_eq!(notification(&left, client), Err(Errno::AGAIN));
    assert_eq!(send(&left, client, &[7; 4000]), Ok(4000));
    assert_eq!(send(&left, client, &[8; 100]), Ok(100));
    let mut got = [0; 4100];
    assert_eq!(right.recv(server, &mut got, libc::MSG_WAITALL), Ok(4100));
    let mut fds = [PollFd { fd: client, ..PollFd::default() }];
    assert_eq!(left.poll(&mut fds, None), Ok(1));
    assert_eq!(fds[0].revents, Events::ERR);
    left.backend().run(core::time::Duration::from_millis(100));
    assert_eq!(notification(&left, client), Ok([0, 5, 0, 0, 1]));
    assert_eq!(notification(&left, client), Err(Errno::AGAIN));
    let mut error = [1; 4];
    assert_eq!(left.getsockopt(client, libc::SOL_SOCKET, libc::SO_ERROR, &mut error), Ok(4));
    assert_eq!(error, [0; 4]);
}

#[test]
fn notifications_of_different_kind_become_one_and_the_older_flag_wins() {
    let (left, right, [client, server, _]) = linked();
    opt_in(&left, client);
    let mut got = [0; 4000];
    // The first is copied, because its receiver lets it wait too long; the second is not.
    for wait in [1100, 0] {
        assert_eq!(send(&left, client, &[7; 4000]), Ok(4000));
        left.backend().run(core::time::Duration::from_millis(wait));
        assert_eq!(right.recv(server, &mut got, libc::MSG_WAITALL), Ok(4000));
        left.backend().run(core::time::Duration::from_millis(100));
    }
    assert_eq!(notification(&left, client), Ok([0, 5, 1, 0, 1]));
    assert_eq!(notification(&left, client), Err(Errno::AGAIN));
}

#[test]
fn without_opting_in_the_flag_is_ignored() {
    let (left, right, [client, server, _]) = linked();
    assert_eq!(send(&left, client, b"copied"), Ok(6));
    assert_eq!(right.recv(server, &mut [0; 16], 0), Ok(6));
    left.backend().run(core::time::Duration::from_millis(100));
    assert_eq!(notification(&left, client), Err(Errno::AGAIN));
}

#[test]
fn control_data_without_room_loses_the_notification() {
    let (left, right, [client, server, _]) = linked();
    opt_in(&left, client);
    send(&left, client, b"data").unwrap();
    right.recv(server, &mut [0; 16], 0).unwrap();
    left.backend().run(core::time::Duration::from_millis(100));
    let mut message = ReceiveMessage::default();
    assert_eq!(left.recvmsg(client, &mut message, libc::MSG_ERRQUEUE), Ok(0));
    assert_eq!(message.flags, libc::MSG_ERRQUEUE | libc::MSG_CTRUNC);
    assert_eq!(notification(&left, client), Err(Errno::AGAIN));
}

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
fn a_file_is_sent_from_its_mapping() {
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
