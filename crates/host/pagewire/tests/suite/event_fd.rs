//! A host in a foreign event loop.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use pagewire::{EventFd, Host, Link, TcpStream};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::support::{builders, pair, receive};

fn manual() -> (Host, Host) {
    let (host, peer) = builders();
    (host.manual().start().expect("host"), peer.start().expect("host"))
}

/// The loop's wait: whether the descriptor became readable in time.
fn wait(events: &EventFd, limit: Duration) -> bool {
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
    poll(&mut [PollFd::new(&events.as_fd(), PollFlags::IN)], Some(&limit)).expect("poll") > 0
}

/// Drives until `op` has an answer.
fn until<T>(events: &mut EventFd, mut op: impl FnMut() -> io::Result<T>) -> T {
    loop {
        events.drive().expect("turns");
        match op() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                assert!(wait(events, Duration::from_secs(20)), "nothing came");
            }
            done => return done.expect("an answer"),
        }
    }
}

fn echo(events: &mut EventFd, stream: &TcpStream, bytes: usize) {
    let (mut echoed, mut buf) = (0, vec![0; 65_536]);
    while echoed < bytes {
        let n = until(events, || (&*stream).read(&mut buf));
        let mut at = 0;
        while at < n {
            at += until(events, || (&*stream).write(&buf[at..n]));
        }
        echoed += n;
    }
}

#[test]
fn one_descriptor_tells_when_a_turn_is_due() {
    let (host, peer) = manual();
    let listener = host.listen("10.0.0.1:9000").expect("listen");
    listener.set_nonblocking(true).expect("mode");
    let near = std::thread::spawn(move || {
        let stream = peer.connect("10.0.0.1:9000").expect("connect");
        let sender = stream.clone();
        let sends = std::thread::spawn(move || sender.send(vec![7; 1_000_000]));
        receive(&stream, 1_000_000);
        sends.join().expect("it ends").expect("sent");
    });
    let mut events = host.event_fd().expect("descriptor");
    let (stream, _) = until(&mut events, || listener.accept());
    stream.set_nonblocking(true).expect("mode");
    echo(&mut events, &stream, 1_000_000);
    // The last output leaves.
    while !near.is_finished() {
        events.drive().expect("turns");
        wait(&events, Duration::from_millis(50));
    }
    near.join().expect("echoed");
}

#[test]
fn an_idle_host_leaves_the_descriptor_alone_until_its_timer() {
    let (host, _peer) = manual();
    let mut events = host.event_fd().expect("descriptor");
    let mut quiet = 0;
    for _ in 0..200 {
        events.drive().expect("turns");
        quiet += usize::from(!wait(&events, Duration::ZERO));
    }
    assert!(quiet > 150, "readable {} times of 200 for nothing", 200 - quiet);
    // Nobody has the address: the stack's timer makes the descriptor readable until that is known.
    let dead = host.start_connect("10.0.0.9:80".parse().expect("an address")).expect("begins");
    dead.set_nonblocking(true).expect("mode");
    let began = Instant::now();
    let error = loop {
        events.drive().expect("turns");
        if let Some(error) = dead.take_error().expect("a socket") {
            break error;
        }
        assert!(wait(&events, Duration::from_secs(20)), "no timer");
    };
    assert_eq!(error.kind(), io::ErrorKind::HostUnreachable);
    assert!(began.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_call_of_another_thread_and_a_new_link_make_it_readable() {
    let (host, peer) = manual();
    let mut events = host.event_fd().expect("descriptor");
    let udp = host.udp("10.0.0.1:7").expect("socket");
    udp.set_nonblocking(true).expect("mode");
    events.drive().expect("turns");
    let (other, far) = pair();
    host.add_link(Link::new(other).address("10.0.1.1/24")).expect("link");
    assert!(wait(&events, Duration::from_secs(20)), "the link has a descriptor");
    let far = Host::builder().device(far).address("10.0.1.2/24").start().expect("host");
    let second = host.udp("10.0.1.1:7").expect("socket");
    second.set_nonblocking(true).expect("mode");
    for (from, to, at) in [(&peer, "10.0.0.1:7", &udp), (&far, "10.0.1.1:7", &second)] {
        let mut buf = [0; 8];
        from.udp("0.0.0.0:0").expect("socket").send_to(b"hello", to).expect("send");
        assert_eq!(until(&mut events, || at.recv(&mut buf)), 5);
    }
}

#[test]
fn a_host_that_has_a_driver_has_no_such_descriptor() {
    let (_host, peer) = manual();
    assert_eq!(peer.event_fd().expect_err("driven").kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn a_call_that_waited_on_the_devices_makes_it_readable() {
    let (host, _peer) = manual();
    let mut events = host.event_fd().expect("descriptor");
    let udp = host.udp("10.0.0.1:7").expect("socket");
    udp.set_read_timeout(Some(Duration::from_millis(1))).expect("limit");
    let waits = || while host.wait_turn(Duration::from_millis(1)) {};
    let receives = || assert!(udp.recv(&mut [0; 8]).is_err());
    let calls: [&dyn Fn(); 2] = [&waits, &receives];
    for call in calls {
        events.drive().expect("turns");
        while wait(&events, Duration::ZERO) {
            events.drive().expect("turns");
        }
        // The second takes the wake-up that the first leaves.
        for _ in 0..2 {
            call();
            assert!(wait(&events, Duration::ZERO), "nobody waits on the devices");
        }
    }
}

#[test]
fn a_host_is_in_one_loop_at_a_time() {
    let (host, _peer) = manual();
    let events = host.event_fd().expect("a descriptor");
    let second = host.event_fd().expect_err("two loops would take each other's wake-ups");
    assert_eq!(second.kind(), io::ErrorKind::ResourceBusy);
    drop(events);
    assert!(host.event_fd().is_ok());
}
