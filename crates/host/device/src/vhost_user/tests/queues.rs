//! Several queue pairs: frames come in by each, and a flow is answered by the pair that it came by. Several devices
//! have the pairs in turns.

use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;

use super::super::double::Driver;
use super::super::limits::SPILLED_FRAMES;
use super::session::is_ready;
use super::*;
use crate::DeviceError;

const SIZE: u16 = 32;
/// Where the rings of the second pair lie: behind the small ones of the first.
const TRANSMIT: usize = 16_384;
const RECEIVE: usize = 32_768 + 16_384;

/// A guest with two pairs; the drivers of the second: receive, transmit.
fn rig() -> (Rig, Driver, Driver) {
    let builder = VhostUser::builder().queue_pairs(2);
    let mut rig = Rig::with(builder, GuestConfig { queue_size: SIZE, ..GuestConfig::default() });
    let (receive, transmit) = second_pair(&mut rig.guest);
    (rig, receive, transmit)
}

/// Two devices of one guest: the rig has the first.
fn rig_of_two() -> (Rig, VhostUser, Driver, Driver) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let devices = VhostUser::builder().over_queues(ours, 2).unwrap();
    let [device, second] = <[_; 2]>::try_from(devices).unwrap();
    let config = GuestConfig { queue_size: SIZE, ..GuestConfig::default() };
    let mut guest = Guest::over(theirs, config).unwrap();
    let (receive, transmit) = second_pair(&mut guest);
    let rig = Rig { monitor: device.monitor(), device, guest, ledger: CopyLedger::new() };
    (rig, second, receive, transmit)
}

/// Starts the second pair; its drivers: receive, transmit.
fn second_pair(guest: &mut Guest) -> (Driver, Driver) {
    // The second pair's buffers are those of the first pair's upper half.
    let transmit = (guest.transmit.buffer(SIZE / 2), 4096);
    let receive = (guest.receive.buffer(SIZE / 2), 1024);
    let transmit = Driver::new(&guest.window, TRANSMIT, SIZE / 2, transmit).unwrap();
    let receive = Driver::new(&guest.window, RECEIVE, SIZE / 2, receive).unwrap();
    guest.start_ring(2, &receive, RECEIVE, 0).unwrap();
    guest.start_ring(3, &transmit, TRANSMIT, 0).unwrap();
    (receive, transmit)
}

/// Sends a frame by the second pair.
fn send(rig: &mut Rig, by: &mut Driver, frame: &[u8]) {
    let head = by.next_avail % (SIZE / 2);
    rig.guest.window.write(by.buffer(head), &[&[0; 12], frame].concat());
    by.describe(head, 12 + frame.len());
    by.post(head);
    by.wants_kick(true);
}

/// The frame, on its way back.
fn answer(frame: &[u8]) -> PacketBuf {
    let mut back = frame.to_vec();
    let (source, destination) = (frame[26..30].to_vec(), frame[30..34].to_vec());
    back[26..30].copy_from_slice(&destination);
    back[30..34].copy_from_slice(&source);
    let (source, destination) = (frame[34..36].to_vec(), frame[36..38].to_vec());
    back[34..36].copy_from_slice(&destination);
    back[36..38].copy_from_slice(&source);
    packet(&back, 42)
}

#[test]
fn a_flow_is_answered_by_the_pair_that_it_came_by() {
    let (mut rig, mut receive, mut transmit) = rig();
    receive.offer(0);
    receive.wants_kick(true);
    send(&mut rig, &mut transmit, &udp(60));
    assert_eq!(rig.receive().iter().map(all_bytes).collect::<Vec<_>>(), [udp(60)]);
    assert!(rig.transmit([answer(&udp(60))]).is_empty());
    assert_eq!((receive.ring.used_index(), rig.guest.receive().is_none()), (1, true));
    // Another flow, of which nothing came in yet.
    assert!(rig.transmit([packet(&tcp(true, 10), 74)]).is_empty());
    assert_eq!((receive.ring.used_index(), rig.guest.receive().is_some()), (1, true));
    // The flow moves to the first pair.
    assert!(rig.guest.send(&udp(60)));
    rig.receive();
    assert!(rig.transmit([answer(&udp(60))]).is_empty());
    assert_eq!((receive.ring.used_index(), rig.guest.receive().is_some()), (1, true));
}

#[test]
fn a_pair_that_is_disabled_gets_nothing_and_what_it_sends_is_discarded() {
    let (mut rig, mut receive, mut transmit) = rig();
    receive.offer(0);
    receive.wants_kick(true);
    send(&mut rig, &mut transmit, &udp(60));
    rig.receive();
    for index in [2, 3] {
        rig.guest.frontend.set_vring_enable(index, false).unwrap();
    }
    send(&mut rig, &mut transmit, &udp(61));
    send(&mut rig, &mut transmit, &udp(3000));
    assert!(rig.receive().is_empty());
    assert_eq!((transmit.ring.used_index(), rig.monitor.counters().discarded), (3, 2));
    assert!(rig.transmit([answer(&udp(60))]).is_empty());
    assert_eq!((receive.ring.used_index(), rig.guest.receive().is_some()), (0, true));
    rig.guest.frontend.set_vring_enable(3, true).unwrap();
    send(&mut rig, &mut transmit, &udp(62));
    assert_eq!(rig.receive().len(), 1);
    assert_eq!(rig.monitor.counters().lies(), 0);
}

#[test]
fn each_pair_has_its_turn_when_bursts_are_short() {
    let (mut rig, _receive, mut transmit) = rig();
    for _ in 0..8 {
        send(&mut rig, &mut transmit, &udp(61));
        assert!(rig.guest.send(&udp(60)));
    }
    let mut order = Vec::new();
    for _ in 0..4 {
        let mut frames = VecDeque::new();
        rig.device.receive(Instant::ZERO, &mut frames, 4, &mut rig.ledger).unwrap();
        order.extend(frames.iter().map(PacketBuf::len));
    }
    assert_eq!(order, [[60; 4], [61; 4], [60; 4], [61; 4]].concat());
}

#[test]
fn the_number_of_pairs_is_what_was_asked_for() {
    let (mut rig, ..) = rig();
    assert_eq!(rig.guest.frontend.get_queue_num().unwrap(), 2);
    assert!(rig.guest.frontend.set_vring_base(4, 0).is_err());
}

/// What a device receives, and sends to the guest without a frame that is left.
fn received(device: &mut VhostUser) -> Vec<Vec<u8>> {
    let mut frames = VecDeque::new();
    device.receive(Instant::ZERO, &mut frames, 64, &mut CopyLedger::new()).unwrap();
    frames.iter().map(all_bytes).collect()
}

/// Lets a device send so many frames; returns the number of those that are left.
fn sent(device: &mut VhostUser, count: usize) -> usize {
    let mut frames = (0..count).map(|_| packet(&udp(60), 42)).collect();
    device.transmit(Instant::ZERO, &mut frames, &mut CopyLedger::new()).unwrap();
    frames.len()
}

#[test]
fn each_of_two_devices_has_a_pair() {
    let (mut rig, mut second, mut receive, mut transmit) = rig_of_two();
    assert_eq!(rig.guest.frontend.get_queue_num().unwrap(), 2);
    assert!(rig.guest.frontend.set_vring_base(4, 0).is_err());
    receive.offer(0);
    receive.wants_kick(true);
    send(&mut rig, &mut transmit, &udp(60));
    assert!(rig.guest.send(&udp(61)));
    assert_eq!(received(&mut second), [udp(60)]);
    assert_eq!(received(&mut rig.device), [udp(61)]);
    assert_eq!(sent(&mut second, 1), 0);
    assert_eq!((receive.ring.used_index(), rig.guest.receive().is_none()), (1, true));
    assert_eq!(sent(&mut rig.device, 1), 0);
    assert_eq!((receive.ring.used_index(), rig.guest.receive().is_some()), (1, true));
    assert!(rig.monitor.is_up() && second.monitor().is_up());
}

#[test]
fn a_device_whose_pair_the_guest_does_not_use_leaves_frames_to_the_first() {
    let (mut rig, mut second, ..) = rig_of_two();
    rig.guest.frontend.set_vring_enable(2, false).unwrap();
    rig.device.disarm();
    assert!(!rig.device.arm());
    assert_eq!(sent(&mut second, 3), 0);
    assert!(rig.guest.receive().is_none() && is_ready(&rig.device), "the first is woken");
    assert!(received(&mut rig.device).is_empty());
    assert_eq!((0..4).map_while(|_| rig.guest.receive()).count(), 3);
    assert_eq!((second.counters().tx_dropped_closed, rig.device.counters().tx_frames), (0, 3));
}

#[test]
fn a_device_that_leaves_its_frames_to_the_first_sleeps_whatever_its_own_ring_has() {
    let (mut rig, mut second, mut receive, _transmit) = rig_of_two();
    receive.wants_kick(true);
    assert_eq!(sent(&mut second, 1), 1, "no buffer");
    rig.guest.frontend.set_vring_enable(2, false).unwrap();
    assert_eq!(sent(&mut second, 1), 0);
    receive.offer(0);
    assert!(!second.arm());
}

#[test]
fn a_device_without_room_is_woken_when_the_first_has_taken_frames() {
    let (mut rig, mut second, ..) = rig_of_two();
    rig.guest.frontend.set_vring_enable(2, false).unwrap();
    assert_eq!(sent(&mut second, SPILLED_FRAMES + 1), 1);
    second.disarm();
    assert!(!second.arm());
    second.disarm();
    assert!(!is_ready(&second));
    received(&mut rig.device);
    assert!(is_ready(&second));
}

#[test]
fn frames_that_are_left_to_the_first_device_leave_with_it() {
    let (mut rig, mut second, ..) = rig_of_two();
    rig.guest.frontend.set_vring_enable(2, false).unwrap();
    assert_eq!(sent(&mut second, 2), 0);
    drop(rig.device);
    assert_eq!((0..3).map_while(|_| rig.guest.receive()).count(), 2);
    assert_eq!(sent(&mut second, 3), 0);
    assert_eq!(second.counters().tx_dropped_closed, 3, "nobody sends them");
}

/// All pairs but the first have the same rings, and one device looks.
#[test]
fn each_of_many_devices_receives_by_reference() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut devices = VhostUser::builder().over_queues(ours, 8).unwrap();
    let config = GuestConfig { queue_size: SIZE, ..GuestConfig::default() };
    let mut guest = Guest::over(theirs, config).unwrap();
    let (receive, mut transmit) = second_pair(&mut guest);
    for pair in 2..8 {
        guest.start_ring(2 * pair, &receive, RECEIVE, 0).unwrap();
        guest.start_ring(2 * pair + 1, &transmit, TRANSMIT, 0).unwrap();
    }
    let mut last = devices.pop().unwrap();
    let monitor = last.monitor();
    let mut rig = Rig { monitor, device: devices.remove(0), guest, ledger: CopyLedger::new() };
    send(&mut rig, &mut transmit, &udp(3000));
    assert_eq!(received(&mut last), [udp(3000)]);
    assert_eq!((rig.monitor.counters().referenced, rig.monitor.counters().copied), (1, 0));
}

#[test]
fn frames_that_are_left_to_the_first_device_are_bounded_and_dropped_without_a_guest() {
    let (mut rig, mut second, ..) = rig_of_two();
    for ring in [0, 2] {
        rig.guest.frontend.set_vring_enable(ring, false).unwrap();
    }
    assert_eq!(sent(&mut second, SPILLED_FRAMES + 10), 10, "they stay with the sender");
    assert_eq!(sent(&mut second, 1), 1);
    received(&mut rig.device);
    assert_eq!(rig.device.counters().tx_dropped_closed, SPILLED_FRAMES as u64);
    assert_eq!(sent(&mut second, 1), 0);
}

#[test]
fn all_devices_close_with_their_front_end() {
    let (rig, mut second, ..) = rig_of_two();
    let Rig { mut device, guest, .. } = rig;
    drop(guest);
    for device in [&mut device, &mut second] {
        let mut close =
            || device.receive(Instant::ZERO, &mut VecDeque::new(), 1, &mut CopyLedger::new());
        while !matches!(close(), Err(DeviceError::Closed)) {
            std::thread::yield_now();
        }
    }
}

#[test]
fn devices_and_pairs_that_do_not_fit_are_refused() {
    let refused = |pairs: Option<usize>, devices| {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let builder = VhostUser::builder();
        let builder = match pairs {
            Some(pairs) => builder.queue_pairs(pairs),
            None => builder,
        };
        builder.over_queues(ours, devices).unwrap_err().to_string()
    };
    assert_eq!(refused(None, 0), "vhost-user: 0 devices for 0 queue pairs");
    assert_eq!(refused(Some(2), 3), "vhost-user: 3 devices for 2 queue pairs");
    assert_eq!(refused(None, 65), "vhost-user: 65 devices for 65 queue pairs");
}

#[test]
fn devices_have_the_pairs_in_turns() {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let devices = VhostUser::builder().queue_pairs(5).over_queues(ours, 3).unwrap();
    let pairs: Vec<_> = devices.iter().map(|device| device.capabilities().queues).collect();
    assert_eq!(pairs, [2, 2, 1]);
}
