//! MSG_ZEROCOPY and its notifications: with the other flags of a send, in several messages at once, over
//! both versions of IP, at its limits, and when connections end.

use std::ptr;
use std::time::Duration;

use pagewire_posix::{
    EpollEvent, EpollOp, Errno, Events, Fd, PollFd, RawRange, ReceiveMessage, raw::Raw,
};
use pagewire_testkit::given;

use crate::support::{
    Files, addr, bound, connected, control_message, datagram, error, linger, linked, opt_in,
    option, pair, pair_with, pass, ready, reset, set, stream,
};

const NOW: Option<Duration> = Some(Duration::ZERO);

fn send(files: &Files, fd: Fd, data: &'static [u8], flags: i32) -> Result<usize, Errno> {
    let range = [RawRange { start: data.as_ptr(), len: data.len() }];
    // SAFETY: readable for ever.
    unsafe { files.sendmsg_zerocopy(fd, None, &range, &[], libc::MSG_ZEROCOPY | flags) }
}

/// Level and type of the next notification's control message, its length, and `[code, lo, hi]`.
fn control(files: &Files, fd: Fd, flags: i32) -> Result<(i32, i32, usize, [u32; 3]), Errno> {
    let mut control = [0u8; 64];
    let mut message = ReceiveMessage { control: &mut control, ..Default::default() };
    assert_eq!(files.recvmsg(fd, &mut message, libc::MSG_ERRQUEUE | flags)?, 0);
    assert_eq!(message.flags, libc::MSG_ERRQUEUE);
    assert_eq!(message.name, None);
    let word = |at: usize| u32::from_ne_bytes(control[at..at + 4].try_into().unwrap());
    assert_eq!((word(16), control[20]), (0, 5), "no error, of zero copy");
    let ids = [u32::from(control[22]), word(24), word(28)];
    assert!(control[32..word(0) as usize].iter().all(|&byte| byte == 0), "nobody complained");
    Ok((word(8) as i32, word(12) as i32, word(0) as usize, ids))
}

fn notification(files: &Files, fd: Fd) -> Result<[u32; 3], Errno> {
    control(files, fd, 0).map(|(_, _, _, ids)| ids)
}

/// `tcpi_data_segs_out`.
fn segments(files: &Files, fd: Fd) -> u32 {
    let mut info = [0; 280];
    files.getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info).unwrap();
    u32::from_ne_bytes(info[156..160].try_into().unwrap())
}

/// A send that is complete: its notification waits.
fn completed(left: &Files, right: &Files, client: Fd, server: Fd) {
    send(left, client, b"data", 0).unwrap();
    pass(left, 50);
    right.recv(server, &mut [0; 16], 0).unwrap();
    pass(left, 100);
}

given! {
    let (left, right, [client, server, _]) = linked();

    a_notification_follows_the_acknowledgement_and_ranges_grow {
        opt_in(&left, client);
        assert_eq!(notification(&left, client), Err(Errno::AGAIN));
        assert_eq!(send(&left, client, &[7; 4000], 0), Ok(4000));
        assert_eq!(send(&left, client, &[8; 100], 0), Ok(100));
        let mut got = [0; 4100];
        assert_eq!(right.recv(server, &mut got, libc::MSG_WAITALL), Ok(4100));
        let mut fds = [PollFd { fd: client, ..PollFd::default() }];
        assert_eq!(left.poll(&mut fds, None), Ok(1));
        assert_eq!(fds[0].revents, Events::ERR);
        pass(&left, 100);
        assert_eq!(notification(&left, client), Ok([0, 0, 1]));
        assert_eq!(notification(&left, client), Err(Errno::AGAIN));
        assert_eq!(error(&left, client), 0);
    }
    notifications_of_different_kind_become_one_and_the_older_flag_wins {
        opt_in(&left, client);
        let mut got = [0; 4000];
        // The first is copied, because its receiver lets it wait too long; the second is not.
        for wait in [1100, 0] {
            assert_eq!(send(&left, client, &[7; 4000], 0), Ok(4000));
            pass(&left, wait);
            assert_eq!(right.recv(server, &mut got, libc::MSG_WAITALL), Ok(4000));
            pass(&left, 100);
        }
        assert_eq!(notification(&left, client), Ok([1, 0, 1]));
        assert_eq!(notification(&left, client), Err(Errno::AGAIN));
    }
    without_opting_in_the_flag_is_ignored {
        assert_eq!(send(&left, client, b"copied", 0), Ok(6));
        assert_eq!(right.recv(server, &mut [0; 16], 0), Ok(6));
        pass(&left, 100);
        assert_eq!(notification(&left, client), Err(Errno::AGAIN));
    }
    control_data_without_room_loses_the_notification {
        opt_in(&left, client);
        completed(&left, &right, client, server);
        let mut message = ReceiveMessage::default();
        assert_eq!(left.recvmsg(client, &mut message, libc::MSG_ERRQUEUE), Ok(0));
        assert_eq!(message.flags, libc::MSG_ERRQUEUE | libc::MSG_CTRUNC);
        assert_eq!(notification(&left, client), Err(Errno::AGAIN));
    }
    more_to_come_holds_a_short_segment_back_by_reference_as_well {
        opt_in(&left, client);
        assert_eq!(send(&left, client, b"one, ", libc::MSG_MORE), Ok(5));
        pass(&left, 50);
        assert_eq!(right.recv(server, &mut [0; 16], libc::MSG_DONTWAIT), Err(Errno::AGAIN));
        assert_eq!(send(&left, client, b"two", 0), Ok(3));
        pass(&left, 50);
        let mut got = [0; 16];
        assert_eq!(right.recv(server, &mut got, 0), Ok(8));
        assert_eq!((&got[..8], segments(&left, client)), (&b"one, two"[..], 1));
        pass(&left, 100);
        assert_eq!(notification(&left, client), Ok([0, 0, 1]));
    }
    the_last_byte_is_urgent_where_it_is_asked_for_and_datagrams_have_none {
        opt_in(&left, client);
        assert_eq!(send(&left, client, b"abc", libc::MSG_OOB), Ok(3));
        pass(&left, 50);
        let mut byte = [0; 1];
        assert_eq!(right.recv(server, &mut byte, libc::MSG_OOB), Ok(1));
        assert_eq!(byte, *b"c");
        let (client, _) = datagrams(&left, &right);
        opt_in(&left, client);
        assert_eq!(send(&left, client, b"abc", libc::MSG_OOB), Err(Errno::OPNOTSUPP));
        assert_eq!(send(&left, client, b"abc", libc::MSG_RST), Err(Errno::OPNOTSUPP));
    }
    peeking_takes_a_notification_all_the_same {
        opt_in(&left, client);
        completed(&left, &right, client, server);
        assert_eq!(control(&left, client, libc::MSG_PEEK).unwrap().3, [0; 3]);
        assert_eq!(notification(&left, client), Err(Errno::AGAIN));
    }
    a_reset_is_told_with_every_notification_and_the_next_send_is_a_broken_pipe {
        opt_in(&left, client);
        for id in 0..3 {
            assert_eq!(send(&left, client, &[7; 1000], 0), Ok(1000), "{id}");
        }
        pass(&left, 5);
        reset(&right, server);
        pass(&left, 50);
        let all = Events::IN | Events::OUT;
        assert_eq!(ready(&left, client, all), all | Events::ERR | Events::HUP);
        let mut ids = Vec::new();
        while let Ok([_, lo, hi]) = notification(&left, client) {
            ids.extend(lo..=hi);
        }
        assert_eq!(ids, [0, 1, 2]);
        assert_eq!(error(&left, client), libc::ECONNRESET);
        assert_eq!(ready(&left, client, all), all | Events::HUP, "the error is taken");
        assert_eq!(send(&left, client, b"more", 0), Err(Errno::PIPE));
        assert_eq!(notification(&left, client), Err(Errno::AGAIN), "and took no id");
    }
}

#[test]
fn the_end_of_a_record_ends_a_segment_by_reference_as_well() {
    for (flags, expected) in [(0, 1), (libc::MSG_EOR, 3)] {
        let (left, right, [client, server, _]) = linked();
        opt_in(&left, client);
        // Nothing leaves before time passes.
        for _ in 0..3 {
            send(&left, client, b"record", flags).unwrap();
        }
        pass(&left, 200);
        assert_eq!(right.recv(server, &mut [0; 32], 0), Ok(18));
        assert_eq!(segments(&left, client), expected, "{flags:#x}");
        pass(&left, 200);
        assert_eq!(notification(&left, client), Ok([0, 0, 2]));
    }
}

/// A message header of one piece.
fn header(iov: &mut libc::iovec, control: &mut [u8]) -> libc::mmsghdr {
    // SAFETY: plain data, for which zero is a value.
    let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
    message.msg_hdr.msg_iov = iov;
    message.msg_hdr.msg_iovlen = 1;
    if !control.is_empty() {
        message.msg_hdr.msg_control = control.as_mut_ptr().cast();
        message.msg_hdr.msg_controllen = control.len() as _;
    }
    message
}

fn iovec(data: &'static [u8]) -> libc::iovec {
    libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() }
}

#[test]
fn several_messages_are_sent_and_several_notifications_received_with_one_call() {
    let (left, right, [client, server, _]) = linked();
    opt_in(&left, client);
    let mut pieces = [iovec(b"one"), iovec(b"three"), iovec(b"")];
    let mut messages: Vec<_> = pieces.iter_mut().map(|iov| header(iov, &mut [])).collect();
    let (at, count) = (messages.as_mut_ptr(), messages.len() as u32);
    // SAFETY: headers of static memory.
    let sent = unsafe { Raw(&left).sendmmsg(client, at, count, libc::MSG_ZEROCOPY) };
    assert_eq!(sent, Ok(3));
    assert_eq!(messages.iter().map(|m| m.msg_len).collect::<Vec<_>>(), [3, 5, 0]);
    assert_eq!(
        right.recv(server, &mut [0; 16], libc::MSG_WAITALL | libc::MSG_DONTWAIT),
        Err(Errno::AGAIN)
    );
    pass(&left, 50);
    assert_eq!(right.recv(server, &mut [0; 16], 0), Ok(8));
    pass(&left, 100);
    // Both calls have an id, the one of no bytes has none.
    let mut controls = [[0u8; 64]; 2];
    let mut nothing = [iovec(b""), iovec(b"")];
    let mut messages: Vec<_> =
        nothing.iter_mut().zip(&mut controls).map(|(iov, control)| header(iov, control)).collect();
    let at = messages.as_mut_ptr();
    let mut limit = libc::timespec { tv_sec: 5, tv_nsec: 0 };
    // SAFETY: headers of memory that lives as long as the call.
    let taken = unsafe { Raw(&left).recvmmsg(client, at, 2, libc::MSG_ERRQUEUE, &mut limit) };
    assert_eq!(taken, Ok(1), "the second is not waited for");
    assert_eq!((messages[0].msg_len, messages[0].msg_hdr.msg_flags), (0, libc::MSG_ERRQUEUE));
    assert_eq!(limit.tv_sec, 5, "no time has passed");
    let word = |at: usize| u32::from_ne_bytes(controls[0][at..at + 4].try_into().unwrap());
    assert_eq!((word(24), word(28)), (0, 1));
    let at = messages.as_mut_ptr();
    // SAFETY: as above.
    let taken = unsafe { Raw(&left).recvmmsg(client, at, 2, libc::MSG_ERRQUEUE, ptr::null_mut()) };
    assert_eq!(taken, Err(Errno::AGAIN));
}

#[test]
fn messages_that_are_nowhere_are_a_bad_address_and_times_have_to_be_times() {
    let (left, _right, [client, _server, _]) = linked();
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000_000 };
    // SAFETY: null pointers are what is tested.
    #[allow(clippy::multiple_unsafe_ops_per_block)]
    unsafe {
        assert_eq!(Raw(&left).sendmmsg(client, ptr::null_mut(), 1, 0), Err(Errno::FAULT));
        assert_eq!(Raw(&left).sendmmsg(client, ptr::null_mut(), 0, 0), Ok(0));
        assert_eq!(Raw(&left).sendmmsg(99, ptr::null_mut(), 0, 0), Err(Errno::BADF));
        let none = ptr::null_mut();
        assert_eq!(Raw(&left).recvmmsg(client, none, 1, 0, ptr::null_mut()), Err(Errno::FAULT));
        assert_eq!(Raw(&left).recvmmsg(client, none, 0, 0, &mut time), Err(Errno::INVAL));
    }
}

#[test]
fn each_version_of_ip_has_its_control_message_and_mapped_peers_have_the_sockets() {
    for (domain, local, to) in [
        (libc::AF_INET, "0.0.0.0:80", "10.0.0.2:80"),
        (libc::AF_INET6, "[::]:80", "[fd00::2]:80"),
        (libc::AF_INET6, "[::]:80", "[::ffff:10.0.0.2]:80"),
    ] {
        for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM] {
            let (left, right) = pair();
            let client = left.socket(domain, kind, 0).unwrap();
            let server = right.socket(domain, kind, 0).unwrap();
            right.bind(server, addr(local).as_bytes()).unwrap();
            let stream = kind == libc::SOCK_STREAM;
            if stream {
                right.listen(server, 1).unwrap();
            }
            opt_in(&left, client);
            left.connect(client, addr(to).as_bytes()).unwrap();
            let server = if stream { right.accept(server).unwrap().0 } else { server };
            assert_eq!(send(&left, client, b"data", 0), Ok(4));
            pass(&left, 50);
            assert_eq!(right.recv(server, &mut [0; 16], 0), Ok(4), "{to}");
            pass(&left, 100);
            let expected = match domain {
                libc::AF_INET => (libc::SOL_IP, libc::IP_RECVERR, 48, [0; 3]),
                _ => (libc::SOL_IPV6, libc::IPV6_RECVERR, 60, [0; 3]),
            };
            assert_eq!(control(&left, client, 0), Ok(expected), "{to}");
        }
    }
}

#[test]
fn both_limits_say_that_there_is_no_buffer_space() {
    let (left, right) = pair_with(|config| {
        config.zerocopy.notification_bytes = 1000;
        config.zerocopy.pages = std::sync::Arc::new(pagewire_mem::PageBudget::new(16));
    });
    let (client, server, _) = connected(&left, &right);
    opt_in(&left, client);
    assert_eq!(send(&left, client, &[0; 61_440], 0), Err(Errno::NOBUFS), "RLIMIT_MEMLOCK");
    assert_eq!(send(&left, client, b"one", 0), Ok(3));
    // While it has not left, the next would share its notification.
    pass(&left, 1);
    assert_eq!(send(&left, client, b"two", 0), Err(Errno::NOBUFS), "optmem_max");
    pass(&left, 50);
    assert_eq!(right.recv(server, &mut [0; 16], 0), Ok(3));
    pass(&left, 100);
    assert_eq!(send(&left, client, b"two", 0), Err(Errno::NOBUFS), "an unread one counts");
    // Programs that ran into a limit read their notifications, and go on.
    assert_eq!(notification(&left, client), Ok([0, 0, 0]));
    assert_eq!(send(&left, client, b"two", 0), Ok(3));
}

#[test]
fn closing_waits_as_long_as_it_lingers_and_tells_nobody() {
    for time in [None, Some(0), Some(5)] {
        let (left, right, [client, server, _]) = linked();
        opt_in(&left, client);
        send(&left, client, &[7; 4000], 0).unwrap();
        if let Some(seconds) = time {
            linger(&left, client, seconds);
        }
        let before = left.backend().clock();
        left.close(client).unwrap();
        let waited = left.backend().clock().saturating_since(before);
        let least = Duration::from_millis(if time == Some(5) { 1 } else { 0 });
        assert!(waited >= least, "{time:?}: {waited:?}: at least a round trip");
        assert_eq!(waited.is_zero(), time != Some(5), "{time:?}: {waited:?}");
        assert!(waited < Duration::from_millis(300), "{waited:?}: no longer than it takes");
        assert_eq!(notification(&left, client), Err(Errno::BADF));
        pass(&left, 50);
        let got = right.recv(server, &mut [0; 8000], libc::MSG_WAITALL);
        match time {
            Some(0) => assert_eq!(got, Err(Errno::CONNRESET)),
            _ => {
                assert_eq!(got, Ok(4000));
                assert_eq!(right.recv(server, &mut [0], 0), Ok(0));
            }
        }
    }
}

/// Two datagram sockets, the left one connected to the right one.
fn datagrams(left: &Files, right: &Files) -> (Fd, Fd) {
    let (client, server) = (datagram(left), bound(right, datagram, "10.0.0.2:53"));
    left.connect(client, addr("10.0.0.2:53").as_bytes()).unwrap();
    (client, server)
}

#[test]
fn one_send_is_cut_in_datagrams_as_the_socket_or_the_message_says() {
    let (left, right) = pair();
    let (client, server) = datagrams(&left, &right);
    opt_in(&left, client);
    let set = |value| set(&left, client, libc::IPPROTO_UDP, libc::UDP_SEGMENT, value);
    assert_eq!((set(-1), set(65_536)), (Err(Errno::INVAL), Err(Errno::INVAL)));
    assert_eq!(set(1000), Ok(()));
    assert_eq!(option(&left, client, libc::IPPROTO_UDP, libc::UDP_SEGMENT), Ok(1000));
    assert_eq!(send(&left, client, &[7; 2500], 0), Ok(2500));
    // By copy, the same.
    assert_eq!(left.send(client, &[7; 1200], 0), Ok(1200));
    let mut control = control_message(libc::IPPROTO_UDP, libc::UDP_SEGMENT, &600u16.to_ne_bytes());
    let data = [7u8; 1300];
    let range = [RawRange { start: data.as_ptr(), len: data.len() }];
    let send = |control: &[u8]| {
        // SAFETY: the datagrams are taken, by copy, before `data` goes.
        unsafe { left.sendmsg_zerocopy(client, None, &range, control, libc::MSG_ZEROCOPY) }
    };
    assert_eq!(send(&control), Ok(1300));
    assert_eq!(send(&control[..17]), Err(Errno::INVAL), "cut short");
    control[12] += 1;
    assert_eq!(send(&control), Err(Errno::INVAL), "no such thing");
    pass(&left, 50);
    let mut lengths = Vec::new();
    while let Ok(n) = right.recv(server, &mut [0; 2000], libc::MSG_DONTWAIT) {
        lengths.push(n);
    }
    assert_eq!(lengths, [1000, 1000, 500, 1000, 200, 600, 600, 100]);
    pass(&left, 50);
    assert_eq!(notification(&left, client), Ok([0, 0, 1]));
    let no_stream = left.setsockopt(stream(&left), libc::IPPROTO_UDP, libc::UDP_SEGMENT, &[0; 4]);
    assert_eq!(no_stream, Err(Errno::NOPROTOOPT));
}

#[test]
fn a_datagram_is_put_together_by_calls_that_say_more_and_by_a_cork() {
    let (left, right) = pair();
    let (client, server) = datagrams(&left, &right);
    opt_in(&left, client);
    let cork = |on| set(&left, client, libc::IPPROTO_UDP, libc::UDP_CORK, on).unwrap();
    assert_eq!(send(&left, client, b"one, ", libc::MSG_MORE), Ok(5));
    assert_eq!(left.send(client, b"two, ", libc::MSG_MORE), Ok(5));
    pass(&left, 50);
    assert_eq!(right.recv(server, &mut [0; 32], libc::MSG_DONTWAIT), Err(Errno::AGAIN));
    assert_eq!(send(&left, client, b"three", 0), Ok(5));
    cork(1);
    assert_eq!(send(&left, client, b"four, ", 0), Ok(6));
    assert_eq!(send(&left, client, b"five", 0), Ok(4));
    cork(0);
    pass(&left, 50);
    for expected in [&b"one, two, three"[..], b"four, five"] {
        let mut got = [0; 32];
        assert_eq!(right.recv(server, &mut got, libc::MSG_DONTWAIT), Ok(expected.len()));
        assert_eq!(&got[..expected.len()], expected);
    }
    pass(&left, 50);
    assert_eq!(notification(&left, client), Ok([0, 0, 3]));
}

#[test]
fn epoll_reports_notifications_level_by_level_once_or_by_the_edge() {
    let all = [Events::ERR, Events::ERR, Events::ERR];
    for (extra, expected) in [
        // A completion is reported again and again, and so is the next, which is merged with it.
        (Events::empty(), &all[..]),
        (Events::EDGE, &all[..1]),
        (Events::EXCLUSIVE | Events::EDGE, &all[..1]),
        (Events::ONESHOT, &all[..1]),
    ] {
        let (left, right, [client, server, _]) = linked();
        opt_in(&left, client);
        let epoll = left.epoll_create1(0).unwrap();
        // No event is requested: errors are reported all the same.
        let event = EpollEvent { events: extra, data: 5 };
        left.epoll_ctl(epoll, EpollOp::Add(event), client).unwrap();
        let waits = || {
            let mut out = [EpollEvent::default(); 2];
            let mut seen = Vec::new();
            for _ in 0..3 {
                if left.epoll_wait(epoll, &mut out, NOW).unwrap() == 1 {
                    seen.push(out[0].events);
                }
            }
            seen
        };
        assert_eq!(waits(), []);
        completed(&left, &right, client, server);
        assert_eq!(waits(), expected, "{extra:?}");
        completed(&left, &right, client, server);
        if extra == Events::ONESHOT {
            assert_eq!(waits(), [], "until it is armed again");
            left.epoll_ctl(epoll, EpollOp::Modify(event), client).unwrap();
        }
        assert_eq!(waits(), expected, "{extra:?}");
        assert_eq!(notification(&left, client), Ok([0, 0, 1]));
        assert_eq!(waits(), []);
    }
}

#[test]
fn a_notification_disturbs_neither_reads_nor_writes_nor_the_end_of_the_stream() {
    let (left, right, [client, server, _]) = linked();
    opt_in(&left, client);
    completed(&left, &right, client, server);
    assert_eq!(left.recv(client, &mut [0; 4], libc::MSG_DONTWAIT), Err(Errno::AGAIN));
    right.write(server, b"answer").unwrap();
    assert_eq!(left.recv(client, &mut [0; 16], 0), Ok(6), "a call that waits is not woken by it");
    assert_eq!(left.write(client, b"more"), Ok(4));
    assert_eq!(right.recv(server, &mut [0; 16], 0), Ok(4));
    send(&left, client, b"last", 0).unwrap();
    left.shutdown(client, libc::SHUT_WR).unwrap();
    pass(&left, 50);
    assert_eq!(right.recv(server, &mut [0; 16], 0), Ok(4));
    right.close(server).unwrap();
    pass(&left, 200);
    assert_eq!(left.recv(client, &mut [0; 4], 0), Ok(0));
    assert_eq!(notification(&left, client), Ok([0, 0, 1]));
}
