//! The promises of the lock, and of whoever releases it.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::task::{Wake, Waker};
use std::thread;
use std::time::{Duration, Instant as WallClock};

use pagewire_device::{Capabilities, Device, DeviceCounters, DeviceError, Pair};
use pagewire_mem::{CopyLedger, Frag, FragVec, Instant, PacketBuf};
use pagewire_sockets::{Call, Clock, Patience, Waiter, WaiterId};
use pagewire_stack::{
    BindOptions, Error, Readiness, RecvFlags, SocketId, Stack, StackConfig, UdpId, ZeroCopyCall,
};

use super::{Poller, Shared};
use crate::Host;
use crate::devices::Devices;
use crate::host::Handle;
use crate::spin::Spin;
use crate::turn::BLOCKED_RETRY;
use crate::wait::Role;

/// Calls of a socket, as the socket layer makes them.
impl Shared {
    /// Repeats `op` until it has an answer, waiting for `interest` in between.
    fn wait<T>(
        &self,
        socket: impl Into<SocketId>,
        interest: Readiness,
        patience: Patience,
        mut op: impl FnMut(&mut Stack, &Clock<'_>) -> Result<T, Error>,
    ) -> io::Result<T> {
        match self.try_once(&mut op) {
            Err(Error::WouldBlock) => self.wait_after_try(socket.into(), interest, patience, op),
            done => done.map_err(|e| self.error(e)),
        }
    }

    /// Tries an operation once. If `op` never asks for the time, it has queued nothing to send.
    fn try_once<T>(
        &self,
        op: &mut impl FnMut(&mut Stack, &Clock<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.with_inner(|inner, clock| op(&mut inner.stack, clock))
    }
}

/// Yields of the lock's holder, for a thread that comes for the lock: more than that one needs to
/// read a clock.
const YIELDS: usize = 10_000;

/// A host that nobody drives, with a datagram socket.
fn bound() -> (Arc<Handle>, UdpId, impl Device) {
    let (device, peer) = Pair::new().expect("pair");
    let host = Host::builder().device(device).address("10.0.0.1/24").manual().start();
    let handle = Arc::clone(host.expect("host").handle());
    let socket = handle.shared.with_stack(|stack, _| bind(stack, 9));
    (handle, socket, peer)
}

fn bind(stack: &mut Stack, port: u16) -> UdpId {
    stack.bind_udp(([10, 0, 0, 1], port).into(), BindOptions::default()).expect("bound")
}

/// The time that an operation sees which comes while the lock is held, and a time before the lock was
/// let go.
fn times(op: impl FnOnce(&Shared, SocketId) -> Instant + Send + 'static) -> (Instant, Instant) {
    let (handle, socket, _peer) = bound();
    let (says, hears) = channel();
    let inner = handle.shared.lock();
    let theirs = Arc::clone(&handle);
    let other = thread::spawn(move || {
        says.send(()).expect("it listens");
        op(&theirs.shared, socket.into())
    });
    hears.recv().expect("it comes");
    (0..YIELDS).for_each(|_| thread::yield_now());
    let before = handle.shared.now();
    drop(inner);
    (other.join().expect("it ends"), before)
}

/// Tries once, and registers the waker if there is no answer yet, as a socket that is polled.
fn register<T>(
    shared: &Shared,
    socket: SocketId,
    waker: &Waker,
    op: &mut impl FnMut(&mut Stack, &Clock<'_>) -> Result<T, Error>,
) -> Result<T, Error> {
    shared.with_inner(|inner, clock| {
        let done = op(&mut inner.stack, clock);
        if let Err(Error::WouldBlock) = done {
            let (id, call, waker) = (WaiterId::new(), Call::new("to receive"), waker.clone());
            let waiter = Waiter { id, call, since: None, waker };
            inner.waiters.sockets.add(socket, Readiness::FOR_READ, waiter);
        }
        done
    })
}

#[test]
fn an_operation_that_waited_for_the_lock_sees_no_time_before_it_had_it() {
    let (seen, before) = times(|shared, _| shared.with_stack(|_, now| now));
    assert!(seen >= before, "{seen:?} was told after {before:?}");
}

#[test]
fn a_wait_that_waited_for_the_lock_sees_no_time_before_it_had_it() {
    let (seen, before) = times(|shared, socket| {
        let op = &mut |_: &mut Stack, clock: &Clock<'_>| Ok(clock.now());
        register(shared, socket, Waker::noop(), op).expect("a time")
    });
    assert!(seen >= before, "{seen:?} was told after {before:?}");
}

/// A host whose driver does not run, though nobody knows: tests say whether it sleeps, and until when.
fn without_driver(device: impl Device + 'static) -> Arc<Shared> {
    let addresses = vec!["10.0.0.1/24".parse().expect("an address")];
    let config = StackConfig::new(device.capabilities().clone(), addresses, [7; 32]);
    let stack = Stack::new(Instant::ZERO, config).expect("stack");
    let mut devices = Devices::new();
    let link = stack.links().next().expect("a link");
    devices.add(link, &mut Some(Box::new(device))).expect("a descriptor");
    let shared = Shared::new(stack, devices, WallClock::now(), Duration::ZERO, false, None);
    let mut shared = shared.expect("a descriptor");
    shared.spin = Spin::endless();
    Arc::new(shared)
}

fn falls_asleep(shared: &Shared, until: Instant) {
    let mut inner = shared.lock();
    (inner.poller, inner.armed_until) = (Poller::Armed, until);
}

/// Whether the driver was woken since the last check.
fn was_woken(shared: &Shared) -> bool {
    rustix::io::read(&shared.wake, &mut [0u8; 8]).is_ok()
}

/// The other end of the link, which takes its turns on request.
fn peer(device: impl Device + 'static) -> Host {
    let host = Host::builder().device(device).address("10.0.0.2/24").manual().start();
    host.expect("the peer")
}

#[test]
fn a_thread_that_takes_a_frame_itself_tells_a_sleeping_driver_of_the_timer() {
    let (device, far) = Pair::new().expect("pair");
    let (shared, peer) = (without_driver(device), peer(far));
    let listen = |stack: &mut Stack, _| stack.listen(([10, 0, 0, 1], 80).into(), 1);
    let listener = shared.with_stack(listen).expect("listens");
    let (theirs, (says, hears)) = (Arc::clone(&shared), channel());
    let other = thread::spawn(move || {
        // While the other polls: the driver had come by, found nothing and gone to sleep.
        while theirs.lock().last_inline.is_none() {
            thread::yield_now();
        }
        falls_asleep(&theirs, Instant::FAR);
        let _syn = peer.start_connect(([10, 0, 0, 1], 80).into()).expect("has a route");
        while hears.try_recv().is_err() {
            peer.turn();
        }
    });
    // A half-open connection sends its SYN,ACK again, when its time has come.
    let taken = |stack: &mut Stack, _: &Clock<'_>| match stack.socket_count() {
        1 => Err(Error::WouldBlock),
        _ => Ok(()),
    };
    shared.wait(listener, Readiness::FOR_READ, Patience::For(None), taken).expect("it comes");
    assert!(was_woken(&shared));
    says.send(()).expect("it listens");
    other.join().expect("it ends");
}

#[test]
fn a_turn_taken_by_hand_tells_a_sleeping_driver_of_the_timer() {
    let (device, far) = Pair::new().expect("pair");
    let host = Host::builder().device(device).address("10.0.0.1/24").manual().start();
    let (host, peer) = (host.expect("host"), peer(far));
    let _listener = host.listen("10.0.0.1:80").expect("listens");
    let handle = Arc::clone(host.handle());
    falls_asleep(&handle.shared, Instant::FAR);
    let _syn = peer.start_connect(([10, 0, 0, 1], 80).into()).expect("has a route");
    while host.with_stack(|stack, _| stack.socket_count()) < 2 {
        peer.turn();
        host.turn();
    }
    assert!(was_woken(&handle.shared));
}

/// A device that takes nothing, and has as many frames as it says, none of them anything.
struct Full(Capabilities, Box<dyn FnMut() -> usize + Send>);

impl Device for Full {
    fn capabilities(&self) -> &Capabilities {
        &self.0
    }
    fn transmit(
        &mut self,
        _: Instant,
        _: &mut VecDeque<PacketBuf>,
        _: &mut CopyLedger,
    ) -> Result<(), DeviceError> {
        Ok(())
    }
    fn receive(
        &mut self,
        _: Instant,
        _: &mut VecDeque<PacketBuf>,
        _: usize,
        _: &mut CopyLedger,
    ) -> Result<usize, DeviceError> {
        Ok((self.1)())
    }
    fn counters(&self) -> DeviceCounters {
        DeviceCounters::default()
    }
}

fn full(has: impl FnMut() -> usize + Send + 'static) -> Full {
    let (device, _) = Pair::new().expect("pair");
    Full(device.capabilities().clone(), Box::new(has))
}

#[test]
fn a_driver_that_will_look_at_a_full_device_soon_is_not_woken_for_each_operation() {
    let shared = without_driver(full(|| 0));
    let send = |stack: &mut Stack, now| stack.connect(now, ([10, 0, 0, 2], 80).into(), None);
    falls_asleep(&shared, Instant::FAR);
    let _ = shared.with_stack(send);
    assert!(was_woken(&shared), "it meant to sleep longer than frames may wait");
    falls_asleep(&shared, shared.now() + BLOCKED_RETRY);
    let _ = shared.with_stack(send);
    assert!(!was_woken(&shared));
}

#[test]
fn a_wait_on_a_host_without_a_driver_ends_when_its_time_is_over_and_not_before() {
    let (handle, socket, _peer) = bound();
    let limit = Duration::from_millis(3);
    let begin = handle.shared.now();
    let mut last = begin;
    let nothing = |_: &mut Stack, clock: &Clock<'_>| {
        last = clock.now();
        Err::<(), _>(Error::WouldBlock)
    };
    let done = handle.shared.wait(socket, Readiness::FOR_READ, Patience::For(Some(limit)), nothing);
    assert_eq!(done.expect_err("nothing comes").kind(), std::io::ErrorKind::TimedOut);
    assert!(last >= begin + limit, "it looked last after {:?}", last.saturating_since(begin));
}

/// Counts its calls.
#[derive(Default)]
struct Calls(AtomicUsize);

impl Wake for Calls {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn an_error_wakes_a_reader_while_a_completion_is_unread() {
    let (device, far) = Pair::new().expect("pair");
    let (shared, peer) = (without_driver(device), peer(far));
    let socket = shared.with_stack(|stack, _| {
        let socket = stack.bind_udp(([10, 0, 0, 1], 9).into(), BindOptions::default())?;
        stack.set_zerocopy(socket, true)?;
        stack.udp(socket)?.connect(([10, 0, 0, 2], 9).into())?;
        Ok::<_, Error>(socket)
    });
    let socket = socket.expect("connected");
    let receive = &mut |stack: &mut Stack, _: &Clock<'_>| {
        stack.udp(socket).and_then(|mut udp| udp.recv(pagewire_stack::Datagram, RecvFlags::empty()))
    };
    // Nobody is there: the first time the refusal comes with the completion, then it stands unread.
    for _ in 0..2 {
        let calls = Arc::new(Calls::default());
        let waker = Waker::from(Arc::clone(&calls));
        let nothing = register(&shared, socket.into(), &waker, receive);
        assert_eq!(nothing.err(), Some(Error::WouldBlock));
        let data = FragVec::from_iter([Frag::from_bytes(bytes::Bytes::from_static(&[7; 4096]))]);
        let sent = shared.with_stack(|stack, now| {
            stack.udp(socket).and_then(|mut udp| {
                let mut call = ZeroCopyCall::new();
                let sent = udp.send(now, (data, &mut call), None)?;
                Ok((sent, call.id()))
            })
        });
        assert_eq!(sent.map(|(n, _)| n), Ok(4096));
        for _ in 0..100 {
            peer.turn();
            let (mut inner, now) = shared.lock_now();
            inner.turn(now);
            shared.unlock_and_wake(inner);
        }
        assert_eq!(calls.0.load(Ordering::Relaxed), 1);
        let refused = register(&shared, socket.into(), &waker, receive);
        assert_eq!(refused.err(), Some(Error::ConnectionRefused));
    }
}

#[test]
fn an_application_gets_the_lock_between_two_turns_of_a_busy_driver() {
    let turns = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&turns);
    // The device always has something, which takes a while.
    let device = full(move || {
        let begin = WallClock::now();
        while begin.elapsed() < Duration::from_micros(200) {
            std::hint::spin_loop();
        }
        count.fetch_add(1, Ordering::Relaxed);
        1
    });
    let host = Host::builder().device(device).address("10.0.0.1/24").start().expect("host");
    let mut waits = [(); 101].map(|()| {
        let before = turns.load(Ordering::Relaxed);
        host.with_stack(|_, _| ());
        turns.load(Ordering::Relaxed) - before
    });
    waits.sort_unstable();
    // The turn that is under way, and the next if this thread had not come to the lock by then.
    // (The median: on a busy machine, a thread may be a while on its way there.)
    assert!(waits[50] <= 2, "{waits:?}");
}

#[test]
fn a_driver_sleeps_while_one_of_its_devices_takes_nothing() {
    let (device, _far) = Pair::new().expect("pair");
    let other = crate::Link::new(device).address("10.0.1.1/24");
    let host =
        Host::builder().device(full(|| 0)).address("10.0.0.1/24").link(other).manual().start();
    let host = host.expect("host");
    // More than one device's queue holds, to a neighbour each, and a little for the other.
    host.with_stack(|stack, now| {
        let socket =
            stack.bind_udp(([0, 0, 0, 0], 9).into(), BindOptions::default()).expect("bound");
        for at in 2..250 {
            for to in [([10, 0, 0, at], 9), ([10, 0, 1, 2], 9)] {
                let _ = stack.udp(socket).and_then(|mut udp| udp.send(now, b"x", Some(to.into())));
            }
            let _ = stack.connect(now, ([10, 0, 0, at], 80).into(), None);
        }
    });
    let handle = Arc::clone(host.handle());
    for _ in 0..3 {
        let (mut inner, now) = handle.shared.lock_now();
        inner.turn(now);
        let sleep = inner.longest_sleep(now, Duration::from_secs(1));
        assert!(inner.devices.is_blocked() && !inner.devices.are_all_blocked());
        assert!(!sleep.is_zero() && sleep <= BLOCKED_RETRY, "{sleep:?}");
        handle.shared.unlock_and_wake(inner);
    }
}

#[test]
fn a_host_that_has_lost_its_only_device_leaves_its_driver_alone() {
    let (device, _peer) = Pair::new().expect("pair");
    let shared = without_driver(device);
    let mut inner = shared.lock();
    let link = inner.stack.links().next().expect("a link");
    drop(inner.devices.remove(link));
    let now = shared.now();
    inner.flush(now);
    assert!(!inner.unfinished, "nothing is left to send by");
}

/// Two datagram sockets of the host, and one of the peer's for each.
fn sockets(shared: &Shared, peer: &Host) -> [(UdpId, crate::UdpSocket); 2] {
    [1, 2].map(|port| {
        let at = std::net::SocketAddr::from(([10, 0, 0, 1], port));
        let near = shared.with_stack(|stack, _| bind(stack, port));
        let far = peer.udp(std::net::SocketAddr::from(([10, 0, 0, 2], port))).expect("bound");
        far.connect(at).expect("has a route");
        (near, far)
    })
}

fn receive(shared: &Shared, socket: UdpId) {
    let receive = |stack: &mut Stack, _: &Clock<'_>| {
        stack.udp(socket)?.recv(pagewire_stack::Datagram, RecvFlags::empty()).map(drop)
    };
    shared.wait(socket, Readiness::FOR_READ, Patience::For(None), receive).expect("it comes");
}

/// Whether a thread that polls, and gets what it waits for, wakes the driver at its end.
fn hands_over(other_waits: bool) -> bool {
    let (device, far) = Pair::new().expect("pair");
    let (mut shared, peer) = (without_driver(device), peer(far));
    // However long the test takes, the other has gone to sleep just now.
    Arc::get_mut(&mut shared).expect("nobody else has it").clock = Some(Default::default());
    let [(first, to_first), (second, to_second)] = sockets(&shared, &peer);
    shared.lock().poller = Poller::Deferred;
    let spawn = |socket| {
        let shared = Arc::clone(&shared);
        thread::spawn(move || receive(&shared, socket))
    };
    let polls = spawn(first);
    while shared.lock().last_inline.is_none() {
        thread::yield_now();
    }
    // Another thread polls already, so this one sleeps.
    let sleeps = other_waits.then(|| spawn(second));
    while other_waits && !shared.lock().waiters.is_other_asleep(first.into(), shared.now()) {
        thread::yield_now();
    }
    to_first.send(b"?").expect("sent");
    while !polls.is_finished() {
        peer.turn();
    }
    polls.join().expect("it ends");
    let woken = was_woken(&shared);
    assert_eq!(shared.lock().last_inline.is_none(), woken, "the driver is to take over");
    if let Some(sleeps) = sleeps {
        to_second.send(b"?").expect("sent");
        while !sleeps.is_finished() {
            peer.turn();
            let (mut inner, now) = shared.lock_now();
            inner.turn(now);
            shared.unlock_and_wake(inner);
        }
        sleeps.join().expect("it ends");
    }
    woken
}

#[test]
fn a_thread_that_polled_leaves_nobody_waiting_without_a_poller() {
    assert!(hands_over(true));
}

#[test]
fn a_thread_that_polled_for_itself_alone_wakes_nobody_at_its_end() {
    assert!(!hands_over(false));
}

#[test]
fn a_role_is_one_threads_until_that_gives_it_up() {
    let taken = Default::default();
    let role = Role::take(&taken);
    assert!(role.is_some());
    for _ in 0..2 {
        assert!(Role::take(&taken).is_none(), "who asks in vain frees it for nobody");
    }
    drop(role);
    assert!(Role::take(&taken).is_some());
}

#[test]
fn a_panic_of_a_thread_that_polls_leaves_others_to_poll() {
    let (device, _far) = Pair::new().expect("pair");
    let shared = without_driver(device);
    let socket = shared.with_stack(|stack, _| bind(stack, 9));
    let mut tries = 0;
    let poll = std::panic::AssertUnwindSafe(|| {
        shared.wait(socket, Readiness::FOR_READ, Patience::For(None), |_, _| -> Result<(), Error> {
            tries += 1;
            assert!(tries < 3, "as code of this crate would");
            Err(Error::WouldBlock)
        })
    });
    assert!(std::panic::catch_unwind(poll).is_err());
    assert!(!shared.spins.load(Ordering::Relaxed));
}

#[test]
fn an_operation_without_output_tells_a_sleeping_driver_of_an_earlier_timer() {
    let (device, _far) = Pair::new().expect("pair");
    let shared = without_driver(device);
    let connect = |stack: &mut Stack, now| stack.connect(now, ([10, 0, 0, 2], 80).into(), None);
    shared.with_stack(connect).expect("has a route");
    falls_asleep(&shared, Instant::FAR);
    assert!(!shared.lock().has_output() && !was_woken(&shared));
    let look = &mut |_: &mut Stack, clock: &Clock<'_>| {
        clock.now();
        Ok(())
    };
    shared.try_once(look).expect("done");
    assert!(was_woken(&shared));
    shared.try_once(look).expect("done");
    assert!(!was_woken(&shared), "it knows");
}

#[test]
fn of_several_requests_for_the_end_the_shortest_limit_counts() {
    let (short, long) = (Duration::from_millis(500), Duration::from_secs(8));
    for limits in [[short, long], [long, short]] {
        let (device, _far) = Pair::new().expect("pair");
        let shared = without_driver(device);
        limits.into_iter().for_each(|limit| shared.request_shutdown(limit));
        assert_eq!(shared.shutdown.limit(), short, "{limits:?}");
    }
}
