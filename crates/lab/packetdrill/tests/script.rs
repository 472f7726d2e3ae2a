//! The shared object as packetdrill sees it: loaded with `dlopen`, driven through its table, in
//! virtual time.

#[allow(unreachable_pub, reason = "what a host offers to tests")]
mod host;

use std::ffi::{c_int, c_void};
use std::fs;
use std::mem::size_of;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

use host::{ExtendedError, Host, MODES, Mode, PORT, Segment, errno, ok};
use libc::socklen_t;

static DATA: [u8; 4000] = [7; 4000];

type SendFile = unsafe extern "C" fn(c_int, c_int, *mut libc::off_t, usize) -> isize;
type GetSockOpt = unsafe extern "C" fn(c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int;

/// Takes segments until they make `len` bytes.
fn receive_bytes(host: &Host, len: usize) -> Vec<Segment> {
    let mut segments = Vec::new();
    while segments.iter().map(|s: &Segment| s.payload.len()).sum::<usize>() < len {
        segments.push(host.receive().expect("more data"));
    }
    segments
}

fn wait_until(mut done: impl FnMut() -> bool) {
    while !done() {
        std::thread::yield_now();
    }
}

/// Whether the thread waits for something, as the kernel sees it.
fn is_asleep(thread: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    // Behind the name, which is in parentheses.
    stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('S'))
}

#[test]
fn a_peer_connects_and_data_goes_both_ways_over_either_protocol() {
    for mode in MODES {
        let host = Host::new(mode);
        let (fd, next) = host.accepted();
        host.inject(&Segment { payload: b"request".to_vec(), ..next.clone() });
        assert_eq!(host.read(fd, 100), (7, b"request".to_vec()), "{mode:?}");
        let ack = host.receive().expect("an acknowledgement");
        assert_eq!((ack.ack, ack.payload.len()), (Some(1008), 0));
        assert_eq!(host.send(fd, &DATA, 0), 4000);
        let sent = receive_bytes(&host, 4000);
        assert!(sent.iter().all(|s| s.payload.len() <= 1460), "{mode:?}");
        assert!(sent.iter().flat_map(|s| &s.payload).all(|&b| b == 7));
        ok(host.close(fd));
    }
}

#[test]
fn packets_that_are_none_are_refused() {
    let host = Host::new(MODES[0]);
    let table = &host.table;
    let (mut len, mut at) = (0, 0);
    let long = vec![0x45u8; 70_000];
    // SAFETY: the table's own functions and userdata; what is null is what is tested.
    #[allow(clippy::multiple_unsafe_ops_per_block)]
    unsafe {
        assert_eq!((table.netdev_send)(table.userdata, std::ptr::null(), 40), -1);
        assert_eq!((table.netdev_send)(table.userdata, std::ptr::null(), 0), -1);
        assert_eq!((table.netdev_send)(table.userdata, long.as_ptr().cast(), long.len()), -1);
        assert_eq!(errno(), libc::EINVAL);
        let none = std::ptr::null_mut();
        let received = (table.netdev_receive)(table.userdata, none, &raw mut len, &raw mut at);
        assert_eq!((received, errno()), (-1, libc::EFAULT));
    }
}

#[test]
fn the_stack_connects_with_an_mss_of_1460_over_either_protocol_with_addresses_of_one_or_both() {
    let both = "addr=10.9.8.7/24,addr=fd00::9:8:7/64";
    for (mode, more) in MODES.into_iter().flat_map(|mode| [(mode, ""), (mode, both)]) {
        let host = Host::with(mode, more);
        let fd = host.nonblocking();
        assert_eq!((host.connect(fd), errno()), (-1, libc::EINPROGRESS));
        let syn = host.receive().expect("a SYN");
        assert!(syn.syn && syn.ack.is_none() && syn.mss == Some(1460), "{mode:?} {more}: {syn:?}");
        assert_eq!(syn.ports.1, PORT);
        host.inject(&Segment {
            syn: true,
            seq: 5000,
            ack: Some(syn.seq.wrapping_add(1)),
            window: 60_000,
            ports: syn.ports,
            ..Segment::default()
        });
        assert_eq!(host.poll(fd, libc::POLLOUT, 0), (1, libc::POLLOUT));
        let ack = host.receive().expect("an acknowledgement");
        assert_eq!((ack.syn, ack.ack), (false, Some(5001)));
    }
}

#[test]
fn a_syn_that_nobody_answers_goes_out_again_after_a_second_of_virtual_time() {
    let host = Host::new(Mode::V4);
    let fd = host.nonblocking();
    host.connect(fd);
    let times: Vec<u64> = (0..3).map(|_| host.receive().expect("a SYN").at).collect();
    assert!((1_000_000..1_001_000).contains(&(times[1] - times[0])), "{times:?}");
    assert!((1_000_000..1_001_000).contains(&(times[2] - times[1])), "{times:?}");
    // A day: who waited for a real clock here would not come back.
    host.sleep(Duration::from_secs(86_400));
}

#[test]
fn where_nothing_is_sent_nothing_is_received_and_no_error_is_reported() {
    let host = Host::new(Mode::V6);
    assert_eq!(host.receive(), None);
    let _listener = host.listener();
    assert_eq!(host.receive(), None);
}

#[test]
fn time_moves_by_what_is_slept_and_a_little_with_every_look() {
    let host = Host::new(Mode::V4);
    let before = host.now();
    host.sleep(Duration::from_millis(1500));
    let after = host.now();
    assert!((1_500_000..1_500_010).contains(&(after - before)));
    // A loop that reads the clock until some moment comes to an end.
    while host.now() < after + 20 {}
}

#[test]
fn a_read_that_blocks_on_another_thread_ends_when_its_data_comes() {
    let host = Host::new(Mode::V4);
    let (fd, next) = host.accepted();
    let (ended, thread) = (AtomicU64::new(0), AtomicI32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: no pointers.
            thread.store(unsafe { libc::gettid() }, Ordering::Release);
            assert_eq!(host.read(fd, 100), (5, b"later".to_vec()));
            // packetdrill asks next when the call ended.
            ended.store(host.now(), Ordering::Release);
        });
        // As packetdrill: on with the script once the thread is seen to sleep.
        wait_until(|| is_asleep(thread.load(Ordering::Acquire)));
        host.sleep(Duration::from_millis(100));
        assert_eq!(ended.load(Ordering::Acquire), 0);
        host.inject(&Segment { payload: b"later".to_vec(), ..next });
        let came = host.now();
        host.sleep(Duration::from_millis(300));
        wait_until(|| ended.load(Ordering::Acquire) > 0);
        let at = ended.load(Ordering::Acquire);
        assert!(came.abs_diff(at) <= 2, "came at {came}, ended at {at}");
        assert!(host.now() - at >= 300_000);
    });
}

#[test]
fn a_poll_that_blocks_on_another_thread_ends_at_its_timeout() {
    let host = Host::new(Mode::V4);
    let (fd, _) = host.accepted();
    let (ended, thread) = (AtomicU64::new(0), AtomicI32::new(0));
    let began = host.now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: no pointers.
            thread.store(unsafe { libc::gettid() }, Ordering::Release);
            assert_eq!(host.poll(fd, libc::POLLIN, 250), (0, 0));
            ended.store(host.now(), Ordering::Release);
        });
        wait_until(|| is_asleep(thread.load(Ordering::Acquire)));
        host.sleep(Duration::from_secs(1));
    });
    let took = ended.load(Ordering::Acquire) - began;
    assert!((250_000..250_010).contains(&took), "{took}");
}

#[test]
fn a_call_that_waits_on_the_driving_thread_moves_time_itself() {
    let host = Host::new(Mode::V4);
    let (fd, _) = host.accepted();
    let before = host.now();
    assert_eq!(host.poll(fd, libc::POLLIN, 250), (0, 0));
    assert!((250_000..250_010).contains(&(host.now() - before)));
}

#[test]
fn settings_are_read_at_the_first_socket_and_when_they_change() {
    let path = std::env::temp_dir().join(format!("pagewire-sysctl-{}", std::process::id()));
    fs::write(&path, "net.ipv4.tcp_timestamps=1\n").expect("a temporary file");
    let host = Host::with(Mode::V4, &format!("sysctl={}", path.display()));
    let has_timestamp = || {
        let fd = host.nonblocking();
        host.connect(fd);
        let syn = host.receive().expect("a SYN");
        host.close(fd);
        syn.timestamp
    };
    // The stack has started, but a script's own settings come before its first socket.
    fs::write(&path, "net.ipv4.tcp_timestamps=1\nnet.ipv4.tcp_timestamps=0\n").expect("a file");
    assert!(!has_timestamp());
    let lines = "net.ipv4.tcp_timestamps=1\nnet.ipv4.tcp_timestamps=0\nnet.ipv4.tcp_timestamps=1\n";
    fs::write(&path, lines).expect("a file");
    assert!(has_timestamp());
    fs::remove_file(&path).expect("it is there");
}

#[test]
fn counters_that_scripts_ask_for_are_written_beside_the_settings() {
    let path = std::env::temp_dir().join(format!("pagewire-counted-{}", std::process::id()));
    fs::write(&path, "").expect("a temporary file");
    let host = Host::with(Mode::V4, &format!("sysctl={}", path.display()));
    let (_fd, next) = host.accepted();
    let counters = path.with_extension("counters");
    assert!(!counters.exists());
    let ahead = next.ack.expect("an acknowledgement").wrapping_add(5000);
    host.inject_unreachable(next.ports, ahead);
    let text = fs::read_to_string(&counters).expect("it was written");
    assert_eq!(text, "TcpExtOutOfWindowIcmps 1 0.0\n");
    fs::remove_file(&path).expect("it is there");
    fs::remove_file(&counters).expect("it is there");
}

#[test]
fn getsockopt_serves_descriptors_of_the_stack_and_passes_on_all_others() {
    let host = Host::new(Mode::V4);
    let (fd, _) = host.accepted();
    // SAFETY: the exported function has this type.
    let getsockopt: GetSockOpt = unsafe { std::mem::transmute(host.symbol("getsockopt")) };
    let ask = |fd: c_int, level, name| {
        let mut value: c_int = -1;
        let mut len = size_of::<c_int>() as socklen_t;
        // SAFETY: an integer, and its size.
        let result = unsafe { getsockopt(fd, level, name, (&raw mut value).cast(), &mut len) };
        (result, value)
    };
    assert_eq!(ask(fd, libc::SOL_SOCKET, libc::SO_TYPE), (0, libc::SOCK_STREAM));
    // TCP_INFO begins with the state, of which 1 is ESTABLISHED.
    let mut info = [0xffu8; 280];
    let mut len = info.len() as socklen_t;
    // SAFETY: as much room as is said.
    let result = unsafe {
        getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &mut len)
    };
    assert_eq!((result, info[0]), (0, 1));
    // SAFETY: no pointers.
    let theirs = ok(unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_DGRAM, 0) });
    assert_eq!(ask(theirs, libc::SOL_SOCKET, libc::SO_TYPE), (0, libc::SOCK_DGRAM));
    // SAFETY: ours to close.
    ok(unsafe { libc::close(theirs) });
    assert_eq!((ask(theirs, libc::SOL_SOCKET, libc::SO_TYPE).0, errno()), (-1, libc::EBADF));
}

#[test]
fn sendfile_sends_a_file_of_the_kernels_through_a_descriptor_of_the_stack() {
    let host = Host::new(Mode::V4);
    let (fd, _) = host.accepted();
    let path = std::env::temp_dir().join(format!("pagewire-sendfile-{}", std::process::id()));
    fs::write(&path, b"0123456789").expect("a temporary file");
    let file = fs::File::open(&path).expect("it is there");
    // SAFETY: the exported function has this type.
    let sendfile: SendFile = unsafe { std::mem::transmute(host.symbol("sendfile")) };
    let mut at = 2;
    // SAFETY: an offset to read and write.
    let sent = unsafe { sendfile(fd, file.as_raw_fd(), &mut at, 5) };
    assert_eq!((sent, at), (5, 7), "{}", std::io::Error::last_os_error());
    assert_eq!(host.receive().expect("data").payload, b"23456");
    fs::remove_file(&path).expect("it is there");
}

#[test]
fn completions_say_copied_where_packets_count_as_looped_and_only_there() {
    for (flags, code) in [("looped=copy", 1), ("", 0)] {
        for mode in MODES {
            let host = Host::with(mode, flags);
            let (fd, next) = host.accepted();
            ok(host.setsockopt(fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY, 1));
            assert_eq!(host.send(fd, &DATA, libc::MSG_ZEROCOPY), 4000);
            assert_eq!(host.error_queue(fd), Err(libc::EAGAIN), "nothing is acknowledged yet");
            let sent = receive_bytes(&host, 4000);
            let end = sent.last().expect("data").seq.wrapping_add(1080);
            host.inject(&Segment { ack: Some(end), ..next });
            assert_eq!(host.poll(fd, 0, 0), (1, libc::POLLERR));
            let error = host.error_queue(fd).expect("a completion");
            assert_eq!(error.origin, 5, "SO_EE_ORIGIN_ZEROCOPY");
            assert_eq!((error.errno, error.code), (0, code), "{mode:?} {flags}");
            assert_eq!((error.info, error.data), (0, 0), "the first send, and no other");
            assert_eq!(host.error_queue(fd), Err(libc::EAGAIN));
        }
    }
}

#[test]
fn timestamps_say_when_the_last_byte_of_a_write_left_and_when_it_was_acknowledged() {
    for mode in MODES {
        let host = Host::new(mode);
        let (fd, next) = host.accepted();
        // TX_SOFTWARE, SOFTWARE, OPT_ID, TX_SCHED, TX_ACK.
        let asked = 1 << 1 | 1 << 4 | 1 << 7 | 1 << 8 | 1 << 9;
        ok(host.setsockopt(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPING, asked));
        host.sleep(Duration::from_millis(30));
        assert_eq!(host.send(fd, &DATA, 0), 4000);
        let sent = receive_bytes(&host, 4000);
        host.sleep(Duration::from_millis(20));
        let end = sent.last().expect("data").seq.wrapping_add(1080);
        host.inject(&Segment { ack: Some(end), ..next });
        let acked = host.now();
        // SCM_TSTAMP_SCHED, _SND and _ACK, of byte 3,999.
        for (info, at) in [(1, sent[2].at), (0, sent[2].at), (2, acked)] {
            let (flags, control) = host.error_message(fd).expect("a timestamp");
            assert_eq!(flags, libc::MSG_ERRQUEUE | libc::MSG_TRUNC);
            let [(first, time), (second, error)] = &control[..] else { panic!("{control:?}") };
            assert_eq!(*first, (libc::SOL_SOCKET, libc::SCM_TIMESTAMPING));
            assert_eq!(*second, host.recverr());
            let error = ExtendedError::parse(error);
            assert_eq!((error.errno, error.origin), (libc::ENOMSG, 4));
            assert_eq!((error.info, error.data), (info, 3999), "{mode:?}");
            let word = |at: usize| u64::from_ne_bytes(time[at..at + 8].try_into().expect("8"));
            let told = host.since_beginning(word(0) * 1_000_000 + word(8) / 1000);
            assert!(told.abs_diff(at) <= 3, "{told} and not {at}");
        }
        assert_eq!(host.error_message(fd), Err(libc::EAGAIN));
    }
}

#[test]
fn two_runs_are_the_same_to_the_microsecond() {
    let run = || {
        let host = Host::new(Mode::V4);
        let (fd, next) = host.accepted();
        host.sleep(Duration::from_millis(30));
        host.inject(&Segment { payload: vec![1; 700], ..next.clone() });
        host.send(fd, &DATA, 0);
        let mut segments = receive_bytes(&host, 4000);
        host.sleep(Duration::from_millis(700));
        // Nobody acknowledges: retransmissions, with their times.
        segments.extend((0..3).map(|_| host.receive().expect("a retransmission")));
        segments
    };
    assert_eq!(run(), run());
}
