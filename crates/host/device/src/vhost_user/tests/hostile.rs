//! A front end that wants to stop the process, not its guest: it makes others wait, and uses up what
//! the process has. It harms its own port only.

use std::path::PathBuf;
use std::sync::mpsc;
use std::time::{Duration, Instant as Time};

use tempfile::TempDir;
use vhost::VhostBackend;
use vmm_sys_util::eventfd::EventFd;

use super::super::FrontEndLimits;
use super::super::allowance::Allowance;
use super::super::double::jam;
use super::super::events::tests::refuse;
use super::super::limits::{ENDING, HELD_RINGS};
use super::super::window::{MapError, Window};
use super::session::{is_ready, socket};
use super::*;

/// Far more than anything here takes.
const LONG: Duration = Duration::from_secs(60);

/// Runs something that must not wait; fails if it does, where a test would hang.
fn without_waiting<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, ready) = mpsc::channel();
    std::thread::spawn(move || done.send(work()));
    ready.recv_timeout(LONG).expect("waits for a front end")
}

#[test]
fn an_eventfd_that_is_full_and_made_to_wait_holds_nobody_up() {
    let mut rig = Rig::new(GuestConfig::default());
    rig.guest.interrupts();
    rig.guest.jam_interrupts().unwrap();
    rig.guest.ask_interrupts();
    assert!(rig.guest.send(&udp(60)));
    let mut rig = without_waiting(move || {
        rig.receive();
        assert!(rig.transmit([packet(&udp(60), 42)]).is_empty());
        rig
    });
    assert_eq!(rig.monitor.counters().calls, 2, "the guest was told, both ways");
    assert!(rig.guest.interrupts().iter().all(|&count| count >= u64::MAX - 1), "and can read it");
    // A message has the session in use while it names an eventfd.
    rig.guest.jam_interrupts().unwrap();
    without_waiting(move || rig.guest.plug_interrupts().unwrap());
}

#[test]
fn an_interrupt_that_the_kernel_refuses_is_counted_and_sent_again_until_it_passes() {
    let mut rig = Rig::new(GuestConfig::default());
    rig.guest.interrupts();
    rig.guest.ask_interrupts();
    refuse(3);
    assert!(rig.transmit([packet(&udp(60), 42)]).is_empty());
    assert_eq!(rig.guest.interrupts(), [0, 0]);
    let counters = rig.monitor.counters();
    assert_eq!((counters.calls, counters.calls_refused), (0, 1));
    let due = rig.device.poll_timeout().expect("somebody looks again");
    assert!(due > Instant::ZERO);
    rig.receive();
    rig.receive();
    assert_eq!(rig.guest.interrupts(), [0, 0]);
    rig.receive();
    assert_eq!(rig.guest.interrupts(), [1, 0], "once, and not more often");
    assert_eq!((rig.monitor.counters().calls, rig.device.poll_timeout()), (1, None));
    rig.receive();
    assert_eq!(rig.guest.interrupts(), [0, 0]);
}

#[test]
fn neither_does_the_one_by_which_a_front_end_hears_of_a_broken_ring() {
    let mut rig = Rig::new(GuestConfig::default());
    let error = EventFd::new(libc::EFD_NONBLOCK).unwrap();
    rig.guest.frontend.set_vring_err(1, &error).unwrap();
    jam(&error).unwrap();
    rig.guest.transmit.ring.set_avail_index(1000);
    let rig = without_waiting(move || {
        rig.receive();
        rig
    });
    assert_eq!(rig.monitor.counters().bad_avail_index, 1);
    assert_eq!(error.read().unwrap(), u64::MAX);
}

#[test]
fn many_notices_that_nobody_reads_are_not_lost() {
    let mut rig = Rig::new(GuestConfig::default());
    rig.guest.interrupts();
    for _ in 0..3000 {
        rig.guest.ask_interrupts();
        rig.transmit([packet(&udp(60), 42)]);
        assert!(rig.guest.receive().is_some());
    }
    assert_eq!(rig.guest.interrupts(), [3000, 0]);
}

#[test]
fn a_front_end_that_is_trusted_is_told_by_a_write() {
    let builder = VhostUser::builder().trust_front_end(true);
    let mut rig = Rig::with(builder, GuestConfig::default());
    rig.guest.interrupts();
    rig.guest.ask_interrupts();
    rig.transmit([packet(&udp(60), 42)]);
    assert_eq!(rig.guest.interrupts(), [1, 0]);
}

/// A message may take as long as its front end likes: it maps, unmaps, closes.
#[test]
fn a_device_whose_session_is_in_use_does_not_wait_and_is_woken_when_it_is_free() {
    let mut rig = Rig::new(GuestConfig::default());
    rig.device.disarm();
    assert!(!rig.device.arm());
    rig.device.disarm();
    assert!(rig.guest.send(&udp(60)));
    let monitor = rig.monitor.clone();
    let in_use = monitor.0[0].session();
    assert!(rig.receive().is_empty());
    assert_eq!(rig.transmit([packet(&udp(60), 42)]).len(), 1, "it stays with the sender");
    assert!(!rig.device.arm() && !is_ready(&rig.device));
    drop(in_use);
    assert!(is_ready(&rig.device));
    rig.device.disarm();
    assert_eq!(rig.receive().len(), 1);
    assert!(rig.transmit([packet(&udp(60), 42)]).is_empty());
    drop(monitor.0[0].session());
    assert!(!is_ready(&rig.device), "who did not miss it is not woken");
}

#[test]
fn a_device_ends_although_its_front_end_holds_its_thread_up() {
    let rig = Rig::new(GuestConfig::default());
    let monitor = rig.monitor.clone();
    let in_use = monitor.0[0].session();
    let began = Time::now();
    let device = rig.device;
    without_waiting(move || drop(device));
    assert!(began.elapsed() >= ENDING, "it has its chance");
    drop(in_use);
}

/// Shares memory, sends a frame that lies in it, and takes it back; the frame, if it was let.
fn held_in_memory_taken_back(rig: &mut Rig) -> Option<Vec<PacketBuf>> {
    let frame = udp(3000);
    let beside = rig.guest.send_from_beside(&frame).ok()?;
    let frames = rig.receive();
    assert_eq!(all_bytes(&frames[0]), frame);
    rig.guest.take_back(&beside).unwrap();
    Some(frames)
}

/// Descriptors of this process whose file has this name.
fn open_files(name: &str) -> usize {
    let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let links = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    links.filter(|link| link.to_string_lossy().contains(name)).count()
}

#[test]
fn memory_taken_back_while_frames_hold_it_costs_no_descriptor_and_counts_until_they_go() {
    let limits = FrontEndLimits { mappings: 5, ..FrontEndLimits::default() };
    let builder = VhostUser::builder().front_end_limits(limits);
    let mut rig = Rig::with(builder, GuestConfig::default());
    let own = rig.guest.memory().memory_size;
    let held: Vec<_> = (0..4).map(|_| held_in_memory_taken_back(&mut rig).unwrap()).collect();
    assert_eq!(open_files("pagewire-beside"), 0);
    let counters = rig.monitor.counters();
    assert_eq!((counters.mappings, counters.mapped_bytes), (5, own + 4 * 4096));
    assert!(held_in_memory_taken_back(&mut rig).is_none(), "five is the limit");
    assert!(rig.monitor.refused().unwrap().contains("5 mappings"), "{:?}", rig.monitor.refused());
    while rig.monitor.is_connected() {
        std::thread::yield_now();
    }
    let counters = rig.monitor.counters();
    assert_eq!((counters.bad_memory, counters.mappings), (1, 4), "the guest's own is gone");
    drop(held);
    assert_eq!(rig.monitor.counters().mappings, 0);
    assert_eq!(rig.monitor.counters().mapped_bytes, 0);
}

/// A port, and sessions on it that each leave a frame held.
struct Sessions {
    path: PathBuf,
    _dir: TempDir,
    device: VhostUser,
    held: Vec<Vec<PacketBuf>>,
}

impl Sessions {
    fn new(limits: FrontEndLimits) -> Self {
        let (path, dir) = socket();
        let device = VhostUser::builder().front_end_limits(limits).listen(&path).unwrap();
        Self { path, _dir: dir, device, held: Vec::new() }
    }

    /// Serves one more session; `None`: it was refused.
    fn come_and_go(&mut self) -> Option<()> {
        let mut guest = Guest::connect(&self.path, GuestConfig::default()).ok()?;
        assert!(guest.send(&udp(4000)));
        let frames = receive(&mut self.device, Instant::ZERO);
        assert_eq!(frames.len(), 1);
        self.held.push(frames);
        drop(guest);
        while self.device.monitor().is_connected() {
            std::thread::yield_now();
        }
        Some(())
    }
}

#[test]
fn bytes_that_frames_of_former_sessions_hold_count_in_the_next() {
    let own = Rig::new(GuestConfig::default()).guest.memory().memory_size as usize;
    let limits = FrontEndLimits { mapped_bytes: 3 * own, ..FrontEndLimits::default() };
    let mut sessions = Sessions::new(limits);
    for _ in 0..3 {
        sessions.come_and_go().unwrap();
    }
    assert!(sessions.come_and_go().is_none());
    let refused = sessions.device.monitor().refused().unwrap();
    assert!(refused.contains("bytes more"), "{refused}");
    sessions.held.pop();
    sessions.come_and_go().unwrap();
    assert!(sessions.come_and_go().is_none());
    sessions.held.clear();
    sessions.come_and_go().unwrap();
}

#[test]
fn rings_that_are_started_anew_do_not_raise_what_may_be_held() {
    let mut sessions = Sessions::new(FrontEndLimits::default());
    for _ in 0..HELD_RINGS + 4 {
        sessions.come_and_go().unwrap();
    }
    let counters = sessions.device.monitor().counters();
    assert!(counters.referenced < HELD_RINGS as u64, "{counters:?}");
    assert!(counters.copied_instead > 0, "the guest goes on: {counters:?}");
    sessions.held.clear();
    sessions.come_and_go().unwrap();
    assert_eq!(sessions.device.monitor().counters().referenced, counters.referenced + 1);
}

#[test]
fn front_ends_come_at_once_as_far_as_a_burst_goes_and_then_at_a_pace() {
    let limits = FrontEndLimits {
        sessions: 3,
        session_every: Duration::from_secs(10),
        ..FrontEndLimits::default()
    };
    let mut pace = Allowance::new(limits, false).pace();
    let start = Time::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    for _ in 0..3 {
        assert_eq!(pace.wait(at(0)), Duration::ZERO);
        pace.note(at(0));
    }
    assert_eq!(pace.wait(at(0)), Duration::from_secs(10));
    assert_eq!(pace.wait(at(4)), Duration::from_secs(6));
    assert_eq!(pace.wait(at(10)), Duration::ZERO);
    pace.note(at(10));
    assert_eq!(pace.wait(at(10)), Duration::from_secs(10));
    // Who stays away has the whole burst again, and no more.
    for _ in 0..3 {
        assert_eq!(pace.wait(at(1000)), Duration::ZERO);
        pace.note(at(1000));
    }
    assert_eq!(pace.wait(at(1000)), Duration::from_secs(10));
}

#[test]
fn a_front_end_that_connects_in_a_loop_waits_and_is_served_in_the_end() {
    let every = Duration::from_millis(100);
    let limits = FrontEndLimits { sessions: 2, session_every: every, ..FrontEndLimits::default() };
    let mut sessions = Sessions::new(limits);
    let began = Time::now();
    for _ in 0..4 {
        sessions.come_and_go().unwrap();
    }
    assert!(began.elapsed() >= 2 * every);
    let counters = sessions.device.monitor().counters();
    assert!(counters.waited >= 1 && counters.sessions == 4, "{counters:?}");
    // A device that is to end does not wait for the next one's turn.
    let long = FrontEndLimits { sessions: 1, session_every: LONG, ..limits };
    let mut sessions = Sessions::new(long);
    sessions.come_and_go().unwrap();
    let began = Time::now();
    drop(sessions);
    assert!(began.elapsed() < LONG);
}

#[test]
fn huge_pages_are_for_front_ends_that_are_trusted() {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    let Ok(fd) = memfd_create("huge", flags) else {
        pagewire_testkit::skip("this kernel has no huge pages of 2 MiB");
        return;
    };
    ftruncate(&fd, 2 << 20).unwrap();
    let map = |trusted| {
        let allowance = Allowance::new(FrontEndLimits::default(), trusted);
        let window = Window::map(fd.try_clone().unwrap(), 4096, &allowance);
        if window.is_err() {
            assert_eq!(allowance.used(), (0, 0), "what is refused does not count");
        }
        window.map(drop)
    };
    let refused = map(false).unwrap_err().to_string();
    assert!(refused.contains("huge pages"), "{refused}");
    match map(true) {
        Ok(()) => {}
        Err(MapError::Map(error)) => {
            assert!(error.to_string().starts_with("mmap"), "none may be free: {error}");
        }
        Err(error) => panic!("{error}"),
    }
}
