//! Connections of a guest through the gateway to sockets of this machine: data, ends, resets,
//! back-pressure, urgent bytes, limits and rules.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant as Wall};

use pagewire::services::{Readiness, RecvFlags, SendFlags, TcpId};
use pagewire_gateway::{Ask, Dial, Dialled, How, Record, Verdict};
use rustix::net::{SendFlags as KernelSend, sockopt};

use crate::support::{
    FAR, PATIENCE, World, allow_all, eventually, far, full_socket, joined, pattern, rest, server,
    to_loopback, world, world_with,
};

#[test]
fn data_passes_both_ways_whole_and_in_order() {
    const BYTES: usize = 8 << 20;
    let world = world();
    let (inner, outer) = joined(&world.inside);
    let data = pattern(BYTES);
    thread::scope(|scope| {
        scope.spawn(|| {
            (&outer).write_all(&data).unwrap();
            outer.shutdown(Shutdown::Write).unwrap();
        });
        scope.spawn(|| {
            (&inner).write_all(&data).unwrap();
            inner.shutdown(Shutdown::Write).unwrap();
        });
        let reads = scope.spawn(|| rest(&inner));
        assert!(rest(&outer) == data, "out");
        assert!(reads.join().unwrap() == data, "in");
    });
    assert_eq!(world.journal.wait_for_ends(1), [How::Finished]);
    let counters = world.guest.counters();
    assert_eq!((counters.bytes_out, counters.bytes_in), (BYTES as u64, BYTES as u64));
    assert_eq!(world.guest.connections(), 0);
}

#[test]
fn a_server_that_speaks_first_is_heard() {
    let world = world();
    let (server, at) = server();
    let speaks = thread::spawn(move || {
        let (mut outer, _) = server.accept().unwrap();
        outer.write_all(b"220 ready").unwrap();
        outer
    });
    let mut inner = world.inside.connect(at).unwrap();
    let mut got = [0; 9];
    inner.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"220 ready");
    drop(speaks.join().unwrap());
    assert_eq!(inner.read(&mut got).unwrap(), 0);
}

#[test]
fn a_reset_of_the_far_side_after_its_end_is_a_reset_for_the_guest() {
    let world = world();
    let (mut inner, outer) = joined(&world.inside);
    outer.shutdown(Shutdown::Write).unwrap();
    assert_eq!(inner.read(&mut [0; 8]).unwrap(), 0);
    sockopt::set_socket_linger(&outer, Some(Duration::ZERO)).unwrap();
    drop(outer);
    assert_eq!(world.journal.wait_for_ends(1), [How::PeerReset]);
    eventually(|| inner.write_all(b"x").is_err());
}

#[test]
fn what_the_far_side_sent_before_its_reset_arrives_first() {
    let world = world();
    let (mut inner, mut outer) = joined(&world.inside);
    outer.write_all(&pattern(100_000)).unwrap();
    // The kernel's reset drops what it has not sent: first it is all here.
    eventually(|| world.guest.counters().bytes_in == 100_000);
    sockopt::set_socket_linger(&outer, Some(Duration::ZERO)).unwrap();
    drop(outer);
    let mut got = vec![0; 100_000];
    inner.read_exact(&mut got).unwrap();
    assert!(got == pattern(100_000));
    assert_eq!(inner.read(&mut got).expect_err("reset").kind(), ErrorKind::ConnectionReset);
}

#[test]
fn the_guests_end_is_passed_on_and_the_answer_still_comes() {
    let world = world();
    let (mut inner, mut outer) = joined(&world.inside);
    inner.write_all(b"question").unwrap();
    inner.shutdown(Shutdown::Write).unwrap();
    assert_eq!(rest(&outer), b"question");
    outer.write_all(b"answer").unwrap();
    drop(outer);
    assert_eq!(rest(&inner), b"answer");
    assert_eq!(world.journal.wait_for_ends(1), [How::Finished]);
}

#[test]
fn a_reset_of_the_guest_is_a_reset_for_the_far_side() {
    let world = world();
    let (inner, mut outer) = joined(&world.inside);
    inner.abort();
    let error = outer.read(&mut [0; 8]).expect_err("reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert_eq!(world.journal.wait_for_ends(1), [How::GuestReset]);
}

#[test]
fn a_guest_that_is_removed_resets_both_sides() {
    let World { inside, guest, gateway, journal } = world();
    let (mut inner, mut outer) = joined(&inside);
    assert_eq!(gateway.guests(), 1);
    drop(guest);
    assert_eq!(outer.read(&mut [0]).expect_err("reset").kind(), ErrorKind::ConnectionReset);
    let error = inner.read(&mut [0]).expect_err("reset");
    assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::NetworkDown), "{error}");
    assert_eq!(journal.ends(), [How::Removed]);
    assert_eq!(gateway.guests(), 0);
}

/// Sends from `data` until nothing is taken for a while; returns how much was.
fn fill(data: &[u8], mut send: impl FnMut(&[u8]) -> io::Result<usize>) -> usize {
    let (mut sent, mut quiet) = (0, 0);
    while quiet < 50 {
        match send(&data[sent..]) {
            Ok(n) => (sent, quiet) = (sent + n, 0),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                quiet += 1;
                thread::park_timeout(Duration::from_millis(2));
            }
            Err(error) => panic!("{error}"),
        }
        assert!(sent < data.len() - (64 << 10), "nothing stopped it");
    }
    sent
}

#[test]
fn a_far_side_that_does_not_read_stops_the_guest_and_no_segment_is_lost() {
    let world = world();
    let (inner, mut outer) = joined(&world.inside);
    inner.set_nonblocking(true).unwrap();
    let data = pattern(64 << 20);
    // The guest's socket is full when everything on the way is.
    let sent = fill(&data, |rest| inner.send(rest[..64 << 10].to_vec()));
    // A closed window is probed now and then, by a byte that is not taken; segments are not lost.
    let retransmits = world.inside.stats().counters.tcp_retransmits;
    assert!(retransmits <= 3, "{retransmits} segments were sent again");
    let mut got = vec![0; sent];
    outer.read_exact(&mut got).unwrap();
    assert!(got == data[..sent]);
}

#[test]
fn a_guest_that_does_not_read_stops_the_far_side() {
    let world = world();
    let (inner, outer) = joined(&world.inside);
    outer.set_nonblocking(true).unwrap();
    let data = pattern(64 << 20);
    let sent = fill(&data, |rest| (&outer).write(rest));
    let mut got = vec![0; sent];
    (&inner).read_exact(&mut got).unwrap();
    assert!(got == data[..sent]);
}

/// A connection of the guest's stack itself, and its far end.
fn raw(world: &World) -> (TcpId, TcpStream) {
    let (server, at) = server();
    let connected = world.inside.with_stack(|stack, now| stack.connect(now, at, None)).unwrap();
    let (outer, _) = server.accept().unwrap();
    outer.set_read_timeout(Some(PATIENCE)).unwrap();
    eventually(|| {
        let ready = world.inside.with_stack(|stack, _| stack.readiness(connected));
        ready.unwrap().contains(Readiness::CONNECTED)
    });
    (connected, outer)
}

#[test]
fn an_urgent_byte_of_the_guest_stays_urgent() {
    let world = world();
    let (inner, mut outer) = raw(&world);
    let send = |data: &[u8], flags| {
        let sent = world.inside.with_stack(|stack, now| stack.tcp(inner)?.send(now, data, flags));
        assert_eq!(sent, Ok(data.len()));
    };
    send(b"before", SendFlags::empty());
    send(b"!", SendFlags::URGENT);
    send(b"after", SendFlags::empty());
    let mut got = [0; 6];
    outer.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"before");
    eventually(|| {
        let mut byte = [0];
        let flags = rustix::net::RecvFlags::OOB | rustix::net::RecvFlags::DONTWAIT;
        rustix::net::recv(&outer, &mut byte, flags).is_ok() && byte == *b"!"
    });
    outer.read_exact(&mut got[..5]).unwrap();
    assert_eq!(&got[..5], b"after");
}

#[test]
fn an_urgent_byte_of_the_far_side_stays_urgent() {
    let world = world();
    let (inner, mut outer) = raw(&world);
    outer.write_all(b"before").unwrap();
    rustix::net::send(&outer, b"!", KernelSend::OOB).unwrap();
    outer.write_all(b"after").unwrap();
    eventually(|| {
        let byte = world
            .inside
            .with_stack(|stack, now| stack.tcp(inner)?.read_urgent(now, RecvFlags::empty()));
        byte == Ok(b'!')
    });
    let mut got = Vec::new();
    eventually(|| {
        let mut more = [0; 16];
        let read = world
            .inside
            .with_stack(|stack, now| stack.tcp(inner)?.recv(now, &mut more, RecvFlags::empty()));
        got.extend_from_slice(&more[..read.unwrap_or(0)]);
        got.len() >= 11
    });
    assert_eq!(got, b"beforeafter");
}

#[test]
fn what_rules_refuse_prohibit_or_drop_is_never_dialled() {
    let verdict = Arc::new(Mutex::new(Verdict::Refuse));
    let says = Arc::clone(&verdict);
    let rules = move |_: &Ask| Some(*says.lock().unwrap());
    let world = world_with(|builder| builder.judge(rules), |config| config);
    let (server, at) = server();
    server.set_nonblocking(true).unwrap();
    let error = world.inside.connect(at).expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    *verdict.lock().unwrap() = Verdict::Drop;
    let error = world.inside.connect_timeout(at, Duration::from_millis(100)).expect_err("silence");
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert_eq!(server.accept().expect_err("nobody").kind(), ErrorKind::WouldBlock);
    let counters = world.guest.counters();
    assert_eq!((counters.asked, counters.denied, counters.dialled), (2, 2, 0));
}

#[test]
fn rules_that_lead_in_a_circle_are_refused() {
    let rules = |ask: &Ask| {
        let other = if ask.to.port() == 1 { 2 } else { 1 };
        Some(Verdict::To((FAR, other).into()))
    };
    let world = world_with(|builder| builder.judge(rules), |config| config);
    let error = world.inside.connect(far(1)).expect_err("a circle");
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    assert_eq!(world.guest.counters().dialled, 0);
}

#[test]
fn the_gateways_own_addresses_are_not_dialled() {
    let world = world_with(|b| b.judge(allow_all), |config| config);
    let error = world.inside.connect("10.0.2.2:22").expect_err("nobody listens there");
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    assert_eq!(world.guest.counters().dialled, 0);
}

#[test]
fn a_records_flow_tells_verdict_opening_and_end() {
    let world = world();
    let (mut inner, outer) = joined(&world.inside);
    let at = inner.peer_addr().unwrap();
    inner.write_all(b"12345").unwrap();
    drop(inner);
    rest(outer);
    world.journal.wait_for_ends(1);
    let all = world.journal.all();
    let [Record::Verdict { flow, ask, verdict, .. }, Record::Opened { .. }, Record::Closed { .. }] =
        &all[..]
    else {
        panic!("{all:?}");
    };
    let there = SocketAddr::from(([127, 0, 0, 1], at.port()));
    assert_eq!((ask.to, *verdict), (at, Verdict::To(there)));
    let Record::Opened { flow: opened, peer, .. } = &all[1] else { unreachable!() };
    assert_eq!((opened, *peer), (flow, there));
    let Record::Closed { flow: closed, bytes_out, bytes_in, how, .. } = &all[2] else {
        unreachable!()
    };
    assert_eq!((closed, *bytes_out, *bytes_in, *how), (flow, 5, 0, How::Finished));
}

/// A way out that the test holds in its hand.
#[derive(Clone, Default)]
struct Hand(Arc<Mutex<Held>>);

#[derive(Default)]
struct Held {
    /// Errors of the next dials.
    errors: Vec<io::Error>,
    /// The far ends of dials, whose sockets are full until something is read there.
    dials: Vec<UnixStream>,
}

impl Dial for Hand {
    fn dial(&self, _: SocketAddr, _: &Ask) -> io::Result<Dialled> {
        let mut held = self.0.lock().unwrap();
        if let Some(error) = held.errors.pop() {
            return Err(error);
        }
        let (near, far) = full_socket()?;
        held.dials.push(far);
        Ok(Dialled { socket: near.into(), connected: false })
    }
}

impl Hand {
    fn dials(&self) -> usize {
        self.0.lock().unwrap().dials.len()
    }

    /// Answers the oldest dial: its socket has room now. Returns the far end.
    fn answer(&self) -> UnixStream {
        let mut far = self.0.lock().unwrap().dials.remove(0);
        while far.read(&mut [0; 4096]).is_ok() {}
        far
    }
}

/// A world whose way out is in the test's hand, after errors of the first dials.
fn world_in_hand(errors: impl IntoIterator<Item = io::Error>) -> (Hand, World) {
    let hand = Hand::default();
    hand.0.lock().unwrap().errors.extend(errors);
    let world = world_with(|b| b.judge(allow_all).dialler(hand.clone()), |config| config);
    (hand, world)
}

#[test]
fn the_guest_is_answered_only_when_the_far_side_has_answered() {
    let (hand, world) = world_in_hand([]);
    let inner = world.inside.start_connect(far(80)).unwrap();
    eventually(|| hand.dials() == 1);
    // A wait that would see an answer sees none.
    let early = inner.set_read_timeout(Some(Duration::from_millis(50)));
    early.unwrap();
    assert_eq!(world.guest.counters().opened, 0);
    let _far = hand.answer();
    eventually(|| world.guest.counters().opened == 1);
    assert_eq!(world.inside.stats().counters.tcp_retransmits, 0);
}

#[test]
fn a_dial_that_lacks_descriptors_is_repeated_and_the_guest_notices_nothing() {
    let (hand, world) = world_in_hand([rustix::io::Errno::MFILE.into()]);
    let _inner = world.inside.start_connect(far(80)).unwrap();
    eventually(|| hand.dials() == 1);
    let _far = hand.answer();
    eventually(|| world.guest.counters().opened == 1);
    let counters = world.guest.counters();
    assert_eq!((counters.exhausted, counters.asked), (1, 1));
}

#[test]
fn a_destination_that_this_machine_has_no_address_for_holds_up_nobody() {
    let (hand, world) = world_in_hand([rustix::io::Errno::ADDRNOTAVAIL; 2].map(io::Error::from));
    let _v6 = world.inside.start_connect("[2001:db8::1]:80".parse().unwrap()).unwrap();
    eventually(|| world.guest.counters().unreachable == 1);
    let _v4 = world.inside.start_connect(far(80)).unwrap();
    eventually(|| world.guest.counters().exhausted == 1);
    let _other = world.inside.start_connect("203.0.113.2:80".parse().unwrap()).unwrap();
    eventually(|| hand.dials() == 1);
    // The second was forgotten, so its next SYN asks again.
    eventually(|| hand.dials() == 2);
    assert_eq!(world.guest.counters().waited, 0);
}

#[test]
fn what_a_guest_sent_before_its_end_is_delivered_after_the_gateway_has_let_go() {
    let World { inside, guest, .. } = world();
    let (inner, outer) = joined(&inside);
    (&inner).write_all(&pattern(200_000)).unwrap();
    assert!(!guest.finish(Duration::ZERO, Duration::from_millis(10)), "its stream goes on");
    inner.shutdown(Shutdown::Write).unwrap();
    assert!(guest.finish(Duration::ZERO, PATIENCE));
    drop(guest);
    assert!(rest(outer) == pattern(200_000));
}

#[test]
fn dials_to_one_silent_destination_leave_room_for_others() {
    let (hand, world) = world_in_hand([]);
    let dial = |to: SocketAddr| world.inside.start_connect(to).unwrap();
    let _silent: Vec<_> = (0..100).map(|_| dial(far(80))).collect();
    let limit = pagewire_gateway::limits::DIALS_PER_DESTINATION;
    eventually(|| world.guest.counters().asked == 100);
    assert_eq!(hand.dials(), limit);
    let _other = dial("203.0.113.2:80".parse().unwrap());
    eventually(|| hand.dials() == limit + 1);
}

#[test]
fn an_old_dial_yields_its_place_to_one_that_waits() {
    let (hand, world) = world_in_hand([]);
    let begun = Wall::now();
    let all = pagewire_gateway::limits::DIALS_PER_DESTINATION + 1;
    let dial = |_| world.inside.start_connect(far(80)).unwrap();
    let _connections: Vec<_> = (0..all).map(dial).collect();
    eventually(|| hand.dials() == all);
    assert!(begun.elapsed() >= pagewire_gateway::limits::DIAL_FAIR);
    assert_eq!(world.guest.counters().yielded, 1);
}

#[test]
fn connections_beyond_the_limit_wait_until_one_ends() {
    let world = world_with(|builder| builder.judge(to_loopback), |config| config.connections(2));
    let (server, at) = server();
    let first = world.inside.connect(at).unwrap();
    let _second = world.inside.connect(at).unwrap();
    let third = world.inside.start_connect(at).unwrap();
    eventually(|| world.guest.counters().waited == 1);
    let (outer, _) = server.accept().unwrap();
    drop((first, outer));
    let _second = server.accept().unwrap();
    let (mut served, _) = server.accept().unwrap();
    served.write_all(b"!").unwrap();
    (&third).read_exact(&mut [0]).unwrap();
    assert_eq!(world.guest.counters().most_at_once, 2);
}
