//! Several queue pairs: frames come in by each, and a flow is answered by the pair that it came by.

use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;

use super::super::double::Driver;
use super::*;

const SIZE: u16 = 32;
/// Where the rings of the second pair lie: behind the small ones of the first.
const TRANSMIT: usize = 16_384;
const RECEIVE: usize = 32_768 + 16_384;

/// A guest with two pairs; the drivers of the second: receive, transmit.
fn rig() -> (Rig, Driver, Driver) {
    let builder = VhostUser::builder().queue_pairs(2);
    let mut rig = Rig::with(builder, GuestConfig { queue_size: SIZE, ..GuestConfig::default() });
    let guest = &mut rig.guest;
    // The second pair's buffers are those of the first pair's upper half.
    let transmit = (guest.transmit.buffer(SIZE / 2), 4096);
    let receive = (guest.receive.buffer(SIZE / 2), 1024);
    let transmit = Driver::new(&guest.window, TRANSMIT, SIZE / 2, transmit).unwrap();
    let receive = Driver::new(&guest.window, RECEIVE, SIZE / 2, receive).unwrap();
    guest.start_ring(2, &receive, RECEIVE, 0).unwrap();
    guest.start_ring(3, &transmit, TRANSMIT, 0).unwrap();
    (rig, receive, transmit)
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
