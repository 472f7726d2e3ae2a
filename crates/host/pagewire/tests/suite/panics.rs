//! Panics: those of the application's code are contained and counted, our own end the host, loudly.

use std::future::Future;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use pagewire::proxy::Proxy;
use pagewire::services::{Event, Stack};
use pagewire::services::{Instant, Service};
use pagewire::{Host, TcpStream};
use pagewire_testkit::given;
use rustix::event::{EventfdFlags, eventfd};

use crate::support::{Odd, builders_on, cause_of, connect, hosts, pair, poll_once, rings, waits};

fn joined(host: &Host, peer: &Host) -> (TcpStream, TcpStream) {
    let (near, far) = connect(peer, &host.listen("10.0.0.1:0").expect("listen"));
    (far, near)
}

/// The host still moves data both ways.
fn assert_works(host: &Host, peer: &Host) {
    let (far, near) = joined(host, peer);
    near.send(b"ping").expect("send");
    assert_eq!(far.recv_chunks(100).expect("recv").len(), 4);
    far.send(b"pong!").expect("send");
    assert_eq!(near.recv_chunks(100).expect("recv").len(), 5);
    assert_eq!((host.stats().failed, host.check().is_ok()), (None, true));
}

/// Panics at its first event; its drop is noted.
struct Clumsy(Arc<AtomicBool>);

impl Service for Clumsy {
    fn turn(&mut self, _: Instant, _: &mut Stack, _: &[Event]) {
        panic!("a service, as asked");
    }
}

impl Drop for Clumsy {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
        panic!("and its drop");
    }
}

#[test]
fn a_service_that_panics_is_dropped_and_the_host_goes_on() {
    let (host, peer) = hosts();
    let dropped = Arc::new(AtomicBool::new(false));
    host.attach(Clumsy(Arc::clone(&dropped)));
    assert_works(&host, &peer);
    // The service is dropped once the lock has been given back, and that is counted once its panic
    // has ended.
    while host.stats().contained.owners == 0 {
        thread::yield_now();
    }
    assert!(dropped.load(Ordering::Acquire));
    let contained = host.stats().contained;
    assert_eq!((contained.services, contained.owners), (1, 1));
    assert!(host.stats().to_string().contains("panics contained"));
}

/// A service with a descriptor that is always ready, which panics when it is asked for its time, or
/// whether it has work.
struct Asked {
    for_time: bool,
    ready: Option<OwnedFd>,
}

impl Service for Asked {
    fn turn(&mut self, _: Instant, _: &mut Stack, _: &[Event]) {}

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.ready.as_ref().map(AsFd::as_fd)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        assert!(!self.for_time, "a time, as asked");
        None
    }

    fn poll(&mut self) -> bool {
        assert!(self.for_time, "work, as asked");
        false
    }
}

#[test]
fn a_service_that_panics_when_it_is_asked_is_over_and_the_host_goes_on() {
    for for_time in [true, false] {
        let (host, peer) = hosts();
        // Who is asked for work has a descriptor that is ready.
        let ready = eventfd(1, EventfdFlags::CLOEXEC).expect("a descriptor");
        let ready = (!for_time).then_some(ready);
        host.attach(Asked { for_time, ready });
        assert_works(&host, &peer);
        assert_eq!(host.stats().contained.services, 1, "for its time: {for_time}");
    }
}

given! {
    let (host, peer) = hosts();

    an_observer_that_panics_is_called_again_and_the_host_goes_on {
        let calls = Arc::new(AtomicU32::new(0));
        let counts = Arc::clone(&calls);
        host.on_event(move |_| {
            counts.fetch_add(1, Ordering::Relaxed);
            panic!("an observer, as asked");
        });
        assert_works(&host, &peer);
        let calls = u64::from(calls.load(Ordering::Relaxed));
        assert!(calls > 1);
        assert!(host.stats().contained.observers >= calls);
    }
    a_verb_that_panics_under_the_lock_is_its_callers_business_alone {
        let calls = host.clone();
        let thread = thread::spawn(move || calls.with_stack(|_, _| panic!("a verb, as asked")));
        assert!(thread.join().is_err(), "it is told");
        assert_works(&host, &peer);
    }
    an_owner_that_panics_when_it_is_dropped_is_contained {
        let (far, near) = joined(&host, &peer);
        far.send(owned(|| panic!("an owner, as asked"))).expect("send");
        read_owned(&near);
        assert!(host.drain(Duration::from_secs(30)));
        while host.stats().contained.owners + peer.stats().contained.owners == 0 {
            thread::yield_now();
        }
        assert_works(&host, &peer);
    }
    an_owner_may_call_its_host_and_close_its_sockets_when_it_is_dropped {
        let (far, near) = joined(&host, &peer);
        let (other, _other_near) = joined(&host, &peer);
        let done = Arc::new(AtomicBool::new(false));
        let (says, calls) = (Arc::clone(&done), host.clone());
        far.send(owned(move || {
            calls.stats();
            calls.udp("10.0.0.1:0").expect("a socket");
            drop(other);
            says.store(true, Ordering::Release);
        }))
        .expect("send");
        read_owned(&near);
        while !done.load(Ordering::Acquire) {
            thread::yield_now();
        }
        assert_works(&host, &peer);
    }
    memory_is_let_go_before_its_completion_is_told {
        let (far, near) = joined(&host, &peer);
        far.set_zerocopy(true).expect("zerocopy");
        for _ in 0..100 {
            let dropped = Arc::new(AtomicBool::new(false));
            let says = Arc::clone(&dropped);
            far.send_zc(owned(move || says.store(true, Ordering::Release))).expect("send");
            read_owned(&near);
            far.wait_completion().expect("completion").expect("one is outstanding");
            assert!(dropped.load(Ordering::Acquire), "the news came before the memory");
        }
    }
    a_future_that_is_dropped_under_the_lock_waits_no_more {
        let (far, _near) = joined(&host, &peer);
        let far = pagewire::net::TcpStream::from(far);
        let mut receive = Box::pin(async move { far.recv_chunks(100).await.map(drop) });
        poll_once(&mut receive.as_mut());
        host.with_stack(move |_, _| drop(receive));
        assert_works(&host, &peer);
    }
}

/// An owner of sent memory, and what its drop does.
struct Owner<F: FnOnce()>(Vec<u8>, Option<F>);

impl<F: FnOnce()> AsRef<[u8]> for Owner<F> {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl<F: FnOnce()> Drop for Owner<F> {
    fn drop(&mut self) {
        if let Some(act) = self.1.take() {
            act();
        }
    }
}

fn owned(act: impl FnOnce() + Send + 'static) -> Bytes {
    Bytes::from_owner(Owner(vec![7; 10_000], Some(act)))
}

/// Reads it all by copy: the last who has sent memory is a host then, not this thread.
fn read_owned(near: &TcpStream) {
    std::io::Read::read_exact(&mut &*near, &mut [0; 10_000]).expect("read");
}

/// A waker that panics, and one that owns a socket of the host.
struct Bad(#[allow(dead_code, reason = "dropped")] Mutex<Option<TcpStream>>, bool);

impl Wake for Bad {
    fn wake(self: Arc<Self>) {
        assert!(!self.1, "a waker, as asked");
    }
}

#[test]
fn a_waker_that_panics_is_contained_and_one_may_own_a_socket() {
    let (host, peer) = hosts();
    let (far, near) = joined(&host, &peer);
    let (other, _other_near) = joined(&host, &peer);
    for bad in [Bad(Mutex::new(None), true), Bad(Mutex::new(Some(other)), false)] {
        let waker = Waker::from(Arc::new(bad));
        let tasks = pagewire::net::TcpStream::from(far.clone());
        let mut future = Box::pin(tasks.recv_chunks(100));
        assert!(matches!(future.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Pending));
        drop(waker);
        near.send(b"wake").expect("send");
        while host.stats().wakeups == 0 {
            thread::yield_now();
        }
        assert_eq!(far.recv_chunks(100).expect("recv").len(), 4);
    }
    assert_works(&host, &peer);
    while host.stats().contained.wakers == 0 {
        thread::yield_now();
    }
}

#[test]
fn a_panic_of_our_own_fails_every_socket_and_wakes_who_waits() {
    let armed = Arc::new(AtomicBool::new(false));
    let ((end, right), explodes) = (pair(), Arc::clone(&armed));
    let acts = move || {
        assert!(!explodes.load(Ordering::Acquire), "in the middle of our own work, as asked");
        Ok(())
    };
    // A device is part of the host, as far as panics go.
    let (host, peer) = builders_on((Odd { end, acts, ready: None }, right));
    let (host, peer) = (host.start().expect("host"), peer.start().expect("peer"));
    let (far, _near) = joined(&host, &peer);
    let waits = waits(&host, far);
    armed.store(true, Ordering::Release);
    for (what, wait) in waits {
        // A thread that polls the device itself may be the one that meets it.
        let Ok(error) = wait.join() else { continue };
        let cause = cause_of(what, &error);
        assert!(cause.contains("panicked"), "{what}: {cause}");
    }
    assert_eq!(host.check().expect_err("failed").kind(), ErrorKind::NetworkDown);
    assert!(host.connect("10.0.0.2:1").is_err());
    assert!(host.stats().failed.is_some());
    assert!(host.stats().to_string().contains("host failed"));
    host.shutdown(Duration::from_secs(1));
}

/// Code that a host calls under its lock may drop anything of that host, also while it panics.
#[test]
fn what_is_dropped_under_the_lock_is_closed_afterwards() {
    let (host, peer) = hosts();
    for panics in [false, true] {
        let plain = rings(&host);
        plain.listen("10.0.0.1:81").expect("listen");
        let proxy = Proxy::new(&host, Default::default());
        proxy.listen("10.0.0.1:82", 1, "10.0.0.2:1".parse().expect("an address")).expect("listen");
        let tasks = rings(&host).into_async();
        let listener = tasks.listen("10.0.0.1:83").expect("listen");
        let mut accept = Box::pin(async move { listener.accept().await.map(drop) });
        poll_once(&mut accept.as_mut());
        let calls = host.clone();
        let verb = move || {
            let all = (plain, proxy, accept, tasks);
            calls.with_stack(move |_, _| {
                let _dropped = all;
                assert!(!panics, "a verb, as asked");
            });
        };
        assert_eq!(thread::spawn(verb).join().is_err(), panics);
        for port in [81, 82, 83] {
            host.listen(("10.0.0.1", port)).expect("the port is free again");
        }
        assert_eq!(host.stats().contained.owners, 0);
    }
    assert_works(&host, &peer);
}
