//! To the guest: buffers merged or not, offload negotiated or done here, room that runs out.

use pagewire_mem::{Gso, GsoKind, TxChecksum};

use super::super::double::GuestFrame;
use super::*;
use crate::limits::{MAX_CUT_FRAMES, MIN_GSO_SIZE};

/// A super-frame to be sent, with its checksum left open.
fn super_frame(v6: bool, payload: usize) -> PacketBuf {
    let (headers, start) = if v6 { (74, 54) } else { (54, 34) };
    let mut packet = packet(&tcp(v6, payload), headers);
    crate::offload::leave_checksum_open(&mut packet);
    packet.tx_checksum = TxChecksum::Partial { start, offset: 16 };
    let kind = if v6 { GsoKind::TcpV6 } else { GsoKind::TcpV4 };
    packet.gso = Some(Gso { kind, size: 1448, header_len: headers as u16 });
    packet
}

fn guest_frames(rig: &mut Rig) -> Vec<GuestFrame> {
    std::iter::from_fn(|| rig.guest.receive()).collect()
}

#[test]
fn a_frame_arrives_byte_for_byte_and_is_copied_once() {
    for mergeable in [false, true] {
        let mut rig = Rig::new(GuestConfig { mergeable, ..GuestConfig::default() });
        for len in (42..300).chain(1400..1515) {
            assert!(rig.transmit([packet(&udp(len), 42)]).is_empty());
            let [frame] = &guest_frames(&mut rig)[..] else { panic!("{len} did not arrive") };
            assert_eq!((&frame.bytes, frame.buffers), (&udp(len), 1));
            assert_eq!(frame.header, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
        }
        let payload: usize = (42..300).chain(1400..1515).map(|len| len - 42).sum();
        assert_eq!(rig.copied(), (0, payload as u64));
    }
}

#[test]
fn a_long_frame_fills_several_buffers_where_they_can_be_merged() {
    let mut rig = Rig::new(GuestConfig::default());
    let sent = super_frame(false, 60_000);
    let mut expected = sent.clone();
    assert!(rig.transmit([sent]).is_empty());
    let [frame] = &guest_frames(&mut rig)[..] else { panic!("not one frame") };
    assert_eq!(frame.buffers, (12 + 54 + 60_000_u16).div_ceil(2048));
    assert_eq!(frame.bytes, all_bytes(&expected));
    assert_eq!(frame.header[..10], tso(false, 1448)[..10]);
    expected.gso = None;
}

#[test]
fn a_guest_without_offload_gets_finished_segments() {
    for v6 in [false, true] {
        let config = GuestConfig { offload: false, ..GuestConfig::default() };
        let mut rig = Rig::new(config);
        let sent = super_frame(v6, 10_000);
        let mut expected = VecDeque::new();
        crate::offload::segment(sent.clone(), &mut expected, &mut CopyLedger::new()).unwrap();
        assert!(rig.transmit([sent, packet(&udp(60), 42)]).is_empty());
        let got = guest_frames(&mut rig);
        assert!(got.iter().all(|frame| frame.header[..10] == [0; 10]));
        let got: Vec<_> = got.into_iter().map(|frame| frame.bytes).collect();
        let mut expected: Vec<_> = expected.iter().map(all_bytes).collect();
        expected.push(udp(60));
        assert_eq!(got, expected, "in order");
    }
}

#[test]
fn datagrams_of_one_call_reach_a_guest_as_one_frame_if_it_takes_that() {
    let mut sent = packet(&udp(42 + 2500), 42);
    crate::offload::leave_checksum_open(&mut sent);
    sent.gso = Some(Gso { kind: GsoKind::Udp, size: 1000, header_len: 42 });
    let mut rig = Rig::new(GuestConfig::default());
    assert!(rig.transmit([sent.clone()]).is_empty());
    let [frame] = &guest_frames(&mut rig)[..] else { panic!("not one frame") };
    assert_eq!(frame.header[..10], [1, 5, 42, 0, 232, 3, 34, 0, 6, 0]);
    assert_eq!(frame.bytes, all_bytes(&sent));
    let mut rig = Rig::new(GuestConfig { offload: false, ..GuestConfig::default() });
    assert!(rig.transmit([sent]).is_empty());
    let lengths: Vec<_> = guest_frames(&mut rig).iter().map(|frame| frame.bytes.len()).collect();
    assert_eq!(lengths, [1042, 1042, 542]);
}

#[test]
fn a_super_frame_is_cut_into_no_more_frames_than_any_connection_needs() {
    let config = GuestConfig { offload: false, ..GuestConfig::default() };
    let mut rig = Rig::new(config);
    let mut sent = super_frame(false, 60_000);
    sent.gso = sent.gso.map(|gso| Gso { size: MIN_GSO_SIZE, ..gso });
    let mut waiting = rig.transmit([sent]);
    let mut got = guest_frames(&mut rig).len();
    while !waiting.is_empty() {
        waiting = rig.transmit(waiting);
        got += guest_frames(&mut rig).len();
    }
    assert_eq!(got, MAX_CUT_FRAMES);
    let lost = 60_000 / usize::from(MIN_GSO_SIZE) - MAX_CUT_FRAMES;
    assert_eq!(rig.device.counters().tx_dropped_error, lost as u64);
}

#[test]
fn a_frame_that_would_never_fit_the_guests_buffers_is_dropped_and_counted() {
    let config = GuestConfig { mergeable: false, ..GuestConfig::default() };
    let mut rig = Rig::new(config);
    assert!(rig.transmit([packet(&udp(5000), 42), packet(&udp(60), 42)]).is_empty());
    assert_eq!(guest_frames(&mut rig).len(), 1);
    assert_eq!(rig.device.counters().tx_dropped_error, 1);
}

#[test]
fn what_finds_no_buffer_stays_with_the_sender_in_order() {
    let mut rig = Rig::new(GuestConfig { queue_size: 4, ..GuestConfig::default() });
    let left = rig.transmit((0..6).map(|i| packet(&udp(60 + i), 42)));
    assert_eq!(left.iter().map(PacketBuf::len).collect::<Vec<_>>(), [64, 65]);
    assert!(!rig.device.arm(), "nothing changed yet");
    assert_eq!(guest_frames(&mut rig).len(), 4);
    assert!(rig.device.arm(), "there is room again");
    rig.device.disarm();
    assert!(rig.transmit(left).is_empty());
    assert_eq!(guest_frames(&mut rig).len(), 2);
}

#[test]
fn room_that_comes_between_two_looks_is_room() {
    use super::super::transmit::Sent;
    let mut rig = Rig::new(GuestConfig { queue_size: 4, ..GuestConfig::default() });
    assert!(rig.transmit((0..4).map(|_| packet(&udp(60), 42))).is_empty());
    let VhostUser { shared, sender, .. } = &mut rig.device;
    let mut session = shared.session();
    let sent = sender.send(&mut session, 0, &packet(&udp(60), 42), &mut rig.ledger);
    drop(session);
    // The guest fills its ring here. It will not kick again before a frame arrives.
    assert_eq!(guest_frames(&mut rig).len(), 4);
    assert_eq!(sent, Sent::Later(0), "what was seen, not what is there now");
    let mut session = rig.device.shared.session();
    let Sent::Later(seen) = sent else { panic!("there was no room") };
    assert!(session.vrings[0].arm(seen), "the device does not sleep");
}

/// Both at full speed: whenever the device says that it may sleep, the guest's next buffer wakes it.
#[test]
fn room_that_comes_at_any_moment_is_seen_or_wakes_the_device() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    const FRAMES: usize = 5_000;
    let Rig { mut device, mut guest, mut ledger, .. } =
        Rig::new(GuestConfig { queue_size: 4, ..GuestConfig::default() });
    let reader = std::thread::spawn(move || {
        let mut got = 0;
        while got < FRAMES {
            match guest.receive() {
                Some(_) => got += 1,
                None => std::thread::yield_now(),
            }
        }
    });
    let mut frames: VecDeque<_> = (0..FRAMES).map(|_| packet(&udp(60), 42)).collect();
    while !frames.is_empty() {
        device.transmit(Instant::ZERO, &mut frames, &mut ledger).unwrap();
        if frames.is_empty() || device.arm() {
            device.disarm();
            continue;
        }
        let mut fds = [PollFd::from_borrowed_fd(device.wait_fd().unwrap(), PollFlags::IN)];
        let long = Timespec { tv_sec: 60, tv_nsec: 0 };
        assert_eq!(poll(&mut fds, Some(&long)).unwrap(), 1, "{} are left", frames.len());
        device.disarm();
    }
    reader.join().unwrap();
}

#[test]
fn a_super_frame_longer_than_the_whole_ring_goes_in_segments_and_holds_nobody_up() {
    let mut rig = Rig::new(GuestConfig { queue_size: 4, ..GuestConfig::default() });
    let mut left = rig.transmit([super_frame(false, 1448 * 6), packet(&udp(60), 42)]);
    let mut lengths = Vec::new();
    for _ in 0..2 {
        lengths.extend(guest_frames(&mut rig).iter().map(|frame| frame.bytes.len()));
        left = rig.transmit(left);
    }
    assert!(left.is_empty());
    assert_eq!(lengths, [1502, 1502, 1502, 1502, 1502, 1502, 60]);
    // A frame that cannot be cut is lost, and counted.
    assert!(rig.transmit([packet(&udp(9000), 42), packet(&udp(60), 42)]).is_empty());
    assert_eq!((guest_frames(&mut rig).len(), rig.device.counters().tx_dropped_error), (1, 1));
}

#[test]
fn segments_that_find_no_buffer_stay_with_the_sender_as_frames() {
    let config = GuestConfig { queue_size: 4, offload: false, ..GuestConfig::default() };
    let mut rig = Rig::new(config);
    let left = rig.transmit([super_frame(false, 1448 * 6), packet(&udp(60), 42)]);
    assert_eq!(left.iter().map(PacketBuf::len).collect::<Vec<_>>(), [1502, 1502, 60]);
    assert_eq!(guest_frames(&mut rig).len(), 4);
    assert!(rig.transmit(left).is_empty());
    assert_eq!(guest_frames(&mut rig).len(), 3);
}

#[test]
fn without_a_guest_frames_are_dropped_as_on_a_pulled_cable() {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let mut device = VhostUser::builder().over(ours).unwrap();
    let frames = crate::ends::send(&mut device, Instant::ZERO, [packet(&udp(60), 42)]);
    assert_eq!((frames.len(), device.counters().tx_dropped_closed), (0, 1));
}
