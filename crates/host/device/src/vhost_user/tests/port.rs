//! A guest's frames in the port between ring and stack: hooks, redirects, a send buffer.

use crate::port::{PortDrop, PortTable, RawFrame, SendBuffer, Verdict};

use super::*;

/// A hook that always says the same.
fn always(rig: &mut Rig, verdict: Verdict) {
    let hook = move |_: &mut RawFrame<'_>| verdict;
    rig.device.port_mut().set_hook(Some(Box::new(hook)));
}

#[test]
fn what_a_hook_drops_is_back_with_the_guest_at_once() {
    let mut rig = Rig::new(GuestConfig::default());
    always(&mut rig, Verdict::Drop);
    for len in [60, 3000] {
        assert!(rig.guest.send(&udp(len)));
    }
    assert!(rig.receive().is_empty());
    assert_eq!((rig.guest.sendable(), rig.monitor.counters().held), (256, 0));
    assert_eq!(rig.monitor.port_counters().dropped(PortDrop::Hook), 2);
}

#[test]
fn what_a_hook_sends_back_the_guest_receives_and_waits_for_its_buffers() {
    let mut rig = Rig::new(GuestConfig { queue_size: 4, ..GuestConfig::default() });
    always(&mut rig, Verdict::SendBack);
    let lengths = [60, 3000, 61, 62, 63, 64];
    for (i, len) in lengths.into_iter().enumerate() {
        assert!(rig.guest.send(&udp(len)), "{i}");
        assert!(rig.receive().is_empty());
    }
    let mut got = Vec::new();
    for _ in 0..4 {
        got.extend(std::iter::from_fn(|| rig.guest.receive()).map(|frame| frame.bytes));
        rig.receive();
    }
    assert_eq!(got, lengths.map(udp));
    assert_eq!((rig.guest.sendable(), rig.monitor.counters().held), (4, 0));
}

#[test]
fn a_hook_moves_frames_from_one_guest_to_another_by_reference() {
    let table = PortTable::new();
    let new = || Rig::with(VhostUser::builder().table(&table), GuestConfig::default());
    let (mut from, mut to) = (new(), new());
    let id = to.device.port().id().unwrap();
    always(&mut from, Verdict::Redirect(id));
    for len in [60, 3000] {
        assert!(from.guest.send(&udp(len)));
    }
    assert!(from.receive().is_empty());
    assert_eq!(from.guest.sendable(), 255, "one is under way in the sender's memory");
    assert!(to.receive().is_empty());
    let got: Vec<_> = std::iter::from_fn(|| to.guest.receive()).map(|frame| frame.bytes).collect();
    assert_eq!(got, [60, 3000].map(udp));
    from.receive();
    assert_eq!(from.guest.sendable(), 256);
    assert_eq!(
        from.copied().0 + to.copied().0,
        60 - 42,
        "the short one was built, the long one not"
    );
}

#[test]
fn what_was_redirected_while_the_guest_had_no_room_is_not_forgotten_when_it_has() {
    let table = PortTable::new();
    let new = |queue_size| {
        let config = GuestConfig { queue_size, ..GuestConfig::default() };
        Rig::with(VhostUser::builder().table(&table), config)
    };
    let (mut from, mut to) = (new(256), new(4));
    let id = to.device.port().id().unwrap();
    always(&mut from, Verdict::Redirect(id));
    let mut redirect = |lengths: std::ops::Range<usize>| {
        for len in lengths {
            assert!(from.guest.send(&udp(len)));
            from.receive();
        }
    };
    // Four find room, two wait in the device; two more wait in front of the port.
    redirect(60..66);
    to.receive();
    redirect(66..68);
    let mut got: Vec<_> = std::iter::from_fn(|| to.guest.receive()).collect();
    assert_eq!(got.len(), 4);
    assert!(to.transmit([packet(&udp(59), 42)]).is_empty());
    // The device sleeps when, and only when, it says that there is nothing to do.
    for _ in 0..2 {
        while to.device.arm() {
            to.device.disarm();
            to.receive();
        }
        to.device.disarm();
        got.extend(std::iter::from_fn(|| to.guest.receive()));
    }
    let got: Vec<_> = got.into_iter().map(|frame| frame.bytes).collect();
    assert_eq!(got, [60, 61, 62, 63, 59, 64, 65, 66, 67].map(udp));
}

#[test]
fn a_device_sleeps_when_what_hooks_sent_has_found_room() {
    let mut rig = Rig::new(GuestConfig { queue_size: 4, ..GuestConfig::default() });
    always(&mut rig, Verdict::SendBack);
    for len in 60..66 {
        assert!(rig.guest.send(&udp(len)));
        rig.receive();
    }
    assert!(!rig.device.arm());
    rig.device.disarm();
    assert_eq!(std::iter::from_fn(|| rig.guest.receive()).count(), 4);
    assert!(rig.device.arm(), "room for two, and more");
    rig.device.disarm();
    rig.receive();
    rig.receive();
    assert!(!rig.device.arm(), "nothing waits for the room that is left");
    rig.device.disarm();
    assert_eq!(std::iter::from_fn(|| rig.guest.receive()).count(), 2);
}

#[test]
fn a_guest_whose_frames_find_the_send_buffer_full_waits_and_loses_nothing() {
    let builder = VhostUser::builder().send_buffer(SendBuffer::Bytes(20_000));
    let mut rig = Rig::with(builder, GuestConfig::default());
    for _ in 0..20 {
        assert!(rig.guest.send(&udp(60)));
    }
    let mut kept = rig.receive();
    assert!(kept.len() < 20 && rig.device.port().charged() >= 20_000);
    assert!(!rig.device.arm(), "frames wait, but for room");
    rig.device.disarm();
    let first = kept.len();
    while kept.len() > 1 {
        kept.pop();
    }
    assert!(rig.device.arm(), "there is room");
    rig.device.disarm();
    drop(kept);
    let mut all = first;
    while all < 20 {
        let got = rig.receive().len();
        assert!(got > 0, "{all} of 20 arrived");
        all += got;
    }
    assert_eq!((all, rig.guest.sendable()), (20, 256));
    assert_eq!(rig.device.counters().rx_dropped_memory, 0);
}
