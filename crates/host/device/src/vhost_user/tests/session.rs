//! Front ends that come, stop, go on and go; who wakes whom.

use std::path::PathBuf;

use pagewire_testkit::given;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tempfile::TempDir;
use vhost::VhostBackend;

use super::super::limits::RECONNECT;
use super::*;

/// Whether the device's descriptor is readable now.
pub(super) fn is_ready(device: &VhostUser) -> bool {
    let fd = device.wait_fd().unwrap();
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
}

/// A socket's path, and the directory that it is in.
pub(super) fn socket() -> (PathBuf, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    (dir.path().join("port.sock"), dir)
}

#[test]
fn guests_may_come_one_after_another_and_the_socket_goes_with_the_device() {
    let (path, _dir) = socket();
    let device = VhostUser::listen(&path).unwrap();
    for _ in 0..3 {
        let guest = Guest::connect(&path, GuestConfig::default()).unwrap();
        assert!(device.monitor().is_up());
        drop(guest);
    }
    assert_eq!(device.monitor().counters().sessions, 3);
    assert!(matches!(VhostUser::listen(&path), Err(crate::DeviceError::System { .. })));
    drop(device);
    assert!(!path.exists());
    // A socket that its listener left behind is replaced.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    drop(VhostUser::listen(&path).unwrap());
}

#[test]
fn a_socket_that_was_passed_stays_where_it_is() {
    let (path, _dir) = socket();
    let kept = std::os::unix::net::UnixListener::bind(&path).unwrap();
    for one in [false, true] {
        let builder = VhostUser::builder().one_front_end(one);
        let device = builder.adopt(kept.try_clone().unwrap()).unwrap();
        assert_eq!(device.capabilities().mac, crate::socket_path::derive_mac(&path));
        let guest = Guest::connect(&path, GuestConfig::default()).unwrap();
        assert!(device.monitor().is_up());
        drop((guest, device));
        assert!(path.exists());
        // Whoever has it, too, takes the next.
        let _next = std::os::unix::net::UnixStream::connect(&path).unwrap();
        kept.accept().unwrap();
    }
}

#[test]
fn a_listener_that_never_accepts_is_another_program_and_holds_nobody_up() {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket as new};
    let (path, _dir) = socket();
    let listener = new(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    listen(&listener, 0).unwrap();
    let waits = super::super::control::connect(&path).unwrap();
    assert!(super::super::control::connect(&path).is_err(), "no room for one more");
    assert!(matches!(VhostUser::listen(&path), Err(crate::DeviceError::System { .. })));
    drop((waits, listener));
    drop(VhostUser::listen(&path).unwrap());
}

#[test]
fn a_front_end_that_listens_is_connected_to_again_and_again() {
    let (path, _dir) = socket();
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let mut device = VhostUser::builder().connect(&path).unwrap();
    for _ in 0..3 {
        let (stream, _) = listener.accept().unwrap();
        let mut guest = Guest::over(stream, GuestConfig::default()).unwrap();
        assert!(guest.send(&udp(60)));
        assert_eq!(receive(&mut device, Instant::ZERO).len(), 1);
    }
    // A front end that does not accept does not keep the device from ending.
    drop(device);
}

#[test]
fn a_front_end_that_hangs_up_at_once_is_not_called_at_full_speed() {
    let (path, _dir) = socket();
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let device = VhostUser::builder().connect(&path).unwrap();
    let (first, _) = listener.accept().unwrap();
    let hung_up = std::time::Instant::now();
    drop(first);
    drop(listener.accept().unwrap());
    assert!(hung_up.elapsed() >= RECONNECT, "{:?}", hung_up.elapsed());
    drop(device);
}

given! {
    let mut rig = Rig::new(GuestConfig::default());

    a_device_that_ends_gives_everything_back_so_that_another_can_go_on {
        for len in [2000, 3000, 60, 4000, 60] {
            assert!(rig.guest.send(&udp(len)));
        }
        let mut frames = rig.receive();
        drop(frames.remove(1));
        drop(rig.device);
        assert_eq!(rig.guest.sendable(), 256, "those held, in whatever order");
        assert_eq!(rig.guest.transmit.ring.used_index(), rig.guest.transmit.next_avail);
        assert_eq!(all_bytes(&frames[0]), udp(2000), "and still mapped");
    }
    a_front_end_that_is_hung_up_on_finds_everything_given_back_and_may_come_again {
        for len in [2000, 3000, 60, 4000] {
            assert!(rig.guest.send(&udp(len)));
        }
        let mut frames = rig.receive();
        drop(frames.remove(1));
        assert!(rig.guest.frontend.set_vring_num(0, 3).is_err());
        while rig.monitor.is_connected() {
            std::thread::yield_now();
        }
        assert_eq!(rig.guest.transmit.ring.used_index(), rig.guest.transmit.next_avail);
        assert_eq!(rig.guest.sendable(), 256);
        assert_eq!(all_bytes(&frames[0]), udp(2000), "and still mapped");
    }
    a_guest_that_is_stopped_and_goes_on_gets_back_what_was_held_meanwhile {
        for _ in 0..3 {
            assert!(rig.guest.send(&udp(2000)));
        }
        let mut frames = rig.receive();
        drop(frames.remove(0));
        let bases = rig.guest.stop().unwrap();
        assert_eq!(bases, [0, 3]);
        assert_eq!(rig.guest.sendable(), 254, "what came back by then");
        drop(frames.remove(0));
        assert!(rig.receive().is_empty());
        assert_eq!(rig.guest.sendable(), 254, "a stopped ring is not written");
        rig.guest.resume(bases).unwrap();
        assert!(rig.guest.send(&udp(60)));
        assert_eq!(rig.receive().len(), 1);
        assert_eq!(rig.guest.sendable(), 255);
        drop(frames);
        rig.receive();
        assert_eq!(rig.guest.sendable(), 256);
        assert_eq!(rig.monitor.counters().lies(), 0);
    }
    a_sleeping_device_is_woken_by_the_last_release_so_that_the_guest_gets_its_descriptor {
        assert!(rig.guest.send(&udp(2000)));
        let frames = rig.receive();
        assert!(!rig.device.arm());
        rig.device.disarm();
        assert!(!rig.device.arm());
        std::thread::spawn(move || drop(frames)).join().unwrap();
        assert!(is_ready(&rig.device));
        rig.device.disarm();
        rig.receive();
        assert_eq!(rig.guest.sendable(), 256);
    }
    /// QEMU starts a ring first, and names the eventfd that the guest really listens to after that.
    a_guest_whose_interrupt_is_plugged_in_after_its_ring_ran_is_told_of_what_came_before {
        let other = vmm_sys_util::eventfd::EventFd::new(libc::EFD_NONBLOCK).unwrap();
        for index in [0, 1] {
            rig.guest.frontend.set_vring_call(index, &other).unwrap();
        }
        rig.guest.interrupts();
        rig.guest.ask_interrupts();
        assert!(rig.guest.send(&udp(60)));
        rig.receive();
        assert!(rig.transmit([packet(&udp(60), 42)]).is_empty());
        assert_eq!(rig.guest.interrupts(), [0, 0], "they went elsewhere");
        rig.guest.plug_interrupts().unwrap();
        assert_eq!(rig.guest.interrupts(), [1, 1], "the guest looks, and finds both");
        assert!(rig.guest.receive().is_some());
        assert_eq!(rig.guest.sendable(), 256);
    }
}

#[test]
fn fragments_stay_valid_when_their_guest_is_gone() {
    let (path, _dir) = socket();
    let mut device = VhostUser::listen(&path).unwrap();
    let mut guest = Guest::connect(&path, GuestConfig::default()).unwrap();
    assert!(guest.send(&udp(4000)));
    let frames = receive(&mut device, Instant::ZERO);
    drop(guest);
    let mut guest = Guest::connect(&path, GuestConfig::default()).unwrap();
    assert_eq!(all_bytes(&frames[0]), udp(4000));
    drop(frames);
    receive(&mut device, Instant::ZERO);
    assert_eq!(
        guest.sendable(),
        256,
        "what the old one had lent does not come back to the new one"
    );
}

#[test]
fn memory_is_added_and_removed_while_the_rings_run() {
    use vhost::vhost_user::VhostUserFrontend;
    let mut rig = Rig::new(GuestConfig::default());
    let more = pagewire_mem::Region::memfd_shared("more", 1 << 20).unwrap();
    let mut info = rig.guest.memory();
    info.guest_phys_addr = 0x9_0000_0000;
    info.userspace_addr = more.span().start as u64;
    info.memory_size = 1 << 20;
    info.mmap_handle = std::os::fd::AsRawFd::as_raw_fd(&more.fd().unwrap());
    rig.guest.frontend.add_mem_region(&info).unwrap();
    // A frame that begins in the old memory and ends in the new.
    let frame = udp(3000);
    let header_and_front = [&[0; 12], &frame[..1000]].concat();
    let at = rig.guest.transmit.buffer(0);
    rig.guest.window.write(at, &header_and_front);
    more.copy_shared_in(4096, &frame[1000..]).unwrap();
    rig.guest.transmit.describe(0, header_and_front.len());
    let first = rig.guest.transmit.ring.desc(0).unwrap();
    let desc = super::super::virtqueue::Desc { flags: 1, next: 1, ..first };
    rig.guest.transmit.ring.set_desc(0, desc);
    let addr = 0x9_0000_0000 + 4096;
    let desc = super::super::virtqueue::Desc { addr, len: 2000, flags: 0, next: 0 };
    rig.guest.transmit.ring.set_desc(1, desc);
    rig.guest.transmit.post(0);
    rig.guest.transmit.wants_kick(true);
    let frames = rig.receive();
    assert_eq!(all_bytes(&frames[0]), frame);
    assert_eq!(rig.copied().0, 0, "by reference, in two mappings");
    rig.guest.frontend.remove_mem_region(&info).unwrap();
    drop(more);
    assert_eq!(all_bytes(&frames[0]), frame, "kept until the last fragment goes");
    drop(frames);
    rig.receive();
    assert_eq!(rig.monitor.counters().returned, 1);
    assert!(rig.guest.send(&udp(60)), "the rings go on");
    assert_eq!(rig.receive().len(), 1);
}

#[test]
fn a_device_that_is_polled_is_not_kicked_and_one_that_sleeps_is() {
    for event_index in [false, true] {
        let mut rig = Rig::new(GuestConfig { event_index, ..GuestConfig::default() });
        rig.device.disarm();
        assert!(!rig.device.arm());
        rig.device.disarm();
        assert!(!is_ready(&rig.device), "what the set-up rang is taken");
        assert!(rig.guest.send(&udp(60)));
        assert!(!is_ready(&rig.device), "polled: no kick");
        assert!(rig.device.arm(), "a frame waits already");
        assert_eq!(rig.receive().len(), 1);
        rig.device.disarm();
        assert!(!rig.device.arm());
        assert!(!is_ready(&rig.device));
        assert!(rig.guest.send(&udp(60)));
        assert!(is_ready(&rig.device), "asleep: kicked");
        rig.device.disarm();
        assert!(!is_ready(&rig.device), "and taken");
        assert_eq!(rig.receive().len(), 1);
    }
}

#[test]
fn the_guest_is_interrupted_once_per_burst_and_only_if_it_asks() {
    for event_index in [false, true] {
        let mut rig = Rig::new(GuestConfig { event_index, ..GuestConfig::default() });
        rig.guest.interrupts();
        rig.guest.ask_interrupts();
        rig.transmit((0..5).map(|_| packet(&udp(60), 42)));
        assert_eq!(rig.guest.interrupts(), [1, 0]);
        while rig.guest.receive().is_some() {}
        if event_index {
            rig.transmit((0..5).map(|_| packet(&udp(60), 42)));
            assert_eq!(rig.guest.interrupts(), [0, 0], "the event is behind");
            while rig.guest.receive().is_some() {}
        }
        rig.guest.ask_interrupts();
        assert!(rig.guest.load(&udp(60)));
        rig.guest.blast(5);
        rig.receive();
        assert_eq!(rig.guest.interrupts(), [0, 1]);
    }
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let refused = |builder: VhostUserBuilder| {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        matches!(builder.over(ours), Err(crate::DeviceError::Config(_)))
    };
    let builder = VhostUser::builder;
    assert!(refused(builder().mtu(575)) && !refused(builder().mtu(576)));
    assert!(refused(builder().mtu(65_536)) && !refused(builder().mtu(65_535)));
    assert!(refused(builder().queue_pairs(0)) && refused(builder().queue_pairs(65)));
    assert!(refused(builder().mac([1, 0, 0, 0, 0, 0])));
    assert!(refused(builder().pool_bytes(1000)));
}
