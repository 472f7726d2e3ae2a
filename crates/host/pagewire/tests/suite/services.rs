//! Services with descriptors and work of their own, and a transparent link, in real time.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use pagewire::services::{Answer, Event, ListenerId, Readiness, Stack, SynEvent};
use pagewire::services::{Instant, SendFlags, Service};
use pagewire::{Host, LinkId};
use rustix::event::{EventfdFlags, eventfd};

use crate::support::{builders, manual_hosts};

const LONG: Duration = Duration::from_secs(20);

fn hosts() -> (Host, Host) {
    let (gateway, guest) = builders();
    let guest = guest.gateway("10.0.0.1").start().unwrap();
    (gateway.transparent(true).start().unwrap(), guest)
}

/// Tells of each turn that it had without an event; asks for one while its descriptor is readable.
struct Watcher {
    fd: Arc<OwnedFd>,
    told: Sender<u64>,
    value: u64,
}

impl Service for Watcher {
    fn turn(&mut self, _: Instant, _: &mut Stack, _: &[Event]) {
        if self.value > 0 {
            self.told.send(std::mem::take(&mut self.value)).unwrap();
        }
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }

    fn poll(&mut self) -> bool {
        let mut bytes = [0; 8];
        if rustix::io::read(&self.fd, &mut bytes).is_ok() {
            self.value += u64::from_ne_bytes(bytes);
        }
        self.value > 0
    }
}

fn watcher() -> (Watcher, Arc<OwnedFd>, Receiver<u64>) {
    let fd = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap());
    let (told, tells) = channel();
    (Watcher { fd: Arc::clone(&fd), told, value: 0 }, fd, tells)
}

#[test]
fn a_descriptor_of_a_service_wakes_the_sleeping_driver() {
    let (host, _peer) = hosts();
    let (service, fd, tells) = watcher();
    host.attach(service);
    for n in 1..=20_u64 {
        rustix::io::write(&fd, &n.to_ne_bytes()).unwrap();
        // A driver that slept for its longest time would take a second each.
        assert_eq!(tells.recv_timeout(LONG), Ok(n));
    }
}

#[test]
fn a_host_without_a_driver_waits_for_the_descriptors_of_its_services() {
    let (host, _peer) = manual_hosts();
    let (service, fd, tells) = watcher();
    host.attach(service);
    let writer = std::thread::spawn(move || rustix::io::write(&fd, &7u64.to_ne_bytes()).unwrap());
    while tells.try_recv() != Ok(7) {
        host.wait_turn(LONG);
    }
    writer.join().unwrap();
}

/// A service that passes its events on.
struct Listens(Sender<Event>);

impl Service for Listens {
    fn turn(&mut self, _: Instant, _: &mut Stack, events: &[Event]) {
        events.iter().for_each(|event| self.0.send(*event).unwrap());
    }
}

#[test]
fn a_service_is_told_of_what_came_before_it_was_attached() {
    let (host, peer) = builders();
    let (host, peer) = (host.manual().start().unwrap(), peer.start().unwrap());
    let _socket = host.udp("10.0.0.1:53").unwrap();
    peer.udp("10.0.0.2:0").unwrap().send_to(b"early", "10.0.0.1:53").unwrap();
    while host.stats().counters.rx_udp == 0 {
        host.wait_turn(LONG);
    }
    let (told, tells) = channel();
    host.attach(Listens(told));
    host.turn();
    let is_readable = |event: Event| event.gained.contains(Readiness::READABLE);
    assert_eq!(tells.try_iter().filter(|event| is_readable(*event)).count(), 1);
    // Services that have seen the event already do not see it again.
    let (told, tells_another) = channel();
    host.attach(Listens(told));
    host.turn();
    assert_eq!(tells_another.try_iter().filter(|event| is_readable(*event)).count(), 1);
    assert_eq!(tells.try_iter().count(), 0);
}

/// Gets work from another thread, without a descriptor.
struct Worker {
    work: Receiver<u32>,
    done: Sender<u32>,
    /// Whether it says that it has work, also when it has none.
    always: bool,
}

impl Service for Worker {
    fn turn(&mut self, _: Instant, _: &mut Stack, _: &[Event]) {
        self.work.try_iter().for_each(|n| self.done.send(n).unwrap());
    }

    fn poll(&mut self) -> bool {
        // Work that came between the last turn and now.
        let came = self.work.try_recv().map(|n| self.done.send(n).unwrap());
        self.always || came.is_ok()
    }
}

fn worker(always: bool) -> (Worker, Sender<u32>, Receiver<u32>) {
    let ((work, works), (done, dones)) = (channel(), channel());
    (Worker { work: works, done, always }, work, dones)
}

#[test]
fn a_waker_has_the_driver_ask_the_services() {
    let (host, _peer) = hosts();
    let (service, work, dones) = worker(false);
    host.attach(service);
    let waker = host.waker();
    let began = std::time::Instant::now();
    for n in 0..20 {
        work.send(n).unwrap();
        waker.wake();
        assert_eq!(dones.recv_timeout(LONG), Ok(n));
    }
    assert!(began.elapsed() < LONG);
    drop(host);
    waker.wake();
}

#[test]
fn a_service_that_says_it_has_work_is_asked_again_at_once() {
    let (host, _peer) = hosts();
    let (service, work, dones) = worker(true);
    host.attach(service);
    for n in 0..1000 {
        work.send(n).unwrap();
        assert_eq!(dones.recv_timeout(LONG), Ok(n), "nobody wakes it, and it does not sleep");
    }
}

/// Greets every connection in the name of the host that it was meant for.
struct Greeter(ListenerId);

impl Service for Greeter {
    fn turn(&mut self, now: Instant, stack: &mut Stack, events: &[Event]) {
        for event in events {
            if event.socket == self.0 {
                while let Some(event) = stack.listener(self.0).unwrap().poll_request() {
                    let SynEvent::New(request) = event else { continue };
                    let answer =
                        if request.to.port() == 80 { Answer::Accept } else { Answer::Refuse };
                    stack.listener(self.0).unwrap().answer(now, request.id, answer).unwrap();
                }
            } else if event.gained.contains(Readiness::CONNECTED) {
                let name = stack.local_addr(event.socket).unwrap().to_string();
                let mut tcp = stack.as_tcp(event.socket).unwrap();
                tcp.send(now, name.as_bytes(), SendFlags::empty()).unwrap();
                tcp.shutdown(now, std::net::Shutdown::Write).unwrap();
            }
        }
    }
}

#[test]
fn a_service_answers_for_every_address_of_a_transparent_link() {
    let (gateway, guest) = hosts();
    let listener = gateway.with_stack(|stack, _| stack.listen_every(LinkId::FIRST)).unwrap();
    gateway.attach(Greeter(listener));
    for to in ["192.0.2.1:80", "198.51.100.9:80", "10.0.0.1:80"] {
        let mut text = String::new();
        guest.connect(to).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, to);
    }
    let refused = guest.connect("192.0.2.1:81").map(drop).map_err(|e| e.kind());
    assert_eq!(refused, Err(std::io::ErrorKind::ConnectionRefused));
}
