//! From the guest: copied or by reference, and when descriptors come back.

use pagewire_mem::{Access, Gso, GsoKind, RxChecksum};
use pagewire_testkit::given;

use super::super::limits::BY_REFERENCE;
use super::*;

#[test]
fn a_reader_who_keeps_chains_of_many_descriptors_leaves_the_guest_half_of_them() {
    let config = GuestConfig { queue_size: 16, indirect: false, ..GuestConfig::default() };
    let mut rig = Rig::new(config);
    let mut kept = Vec::new();
    for _ in 0..8 {
        // The header, the frame's headers, two pages: four descriptors each.
        assert!(rig.guest.send_super([0; 12], &udp(3000), 42, 1500));
        kept.extend(rig.receive());
        assert!(rig.guest.sendable() >= 8);
    }
    assert_eq!(rig.guest.sendable(), 8);
    let counters = rig.monitor.counters();
    assert_eq!((counters.referenced, counters.copied_instead, counters.held), (2, 6, 2));
    assert!(kept.iter().all(|frame| all_bytes(frame) == udp(3000)));
    kept.clear();
    rig.receive();
    assert_eq!(rig.guest.sendable(), 16);
    assert!(rig.guest.send(&udp(2000)));
    assert_eq!(rig.receive().len(), 1);
    assert_eq!(rig.monitor.counters().referenced, 3, "by reference again");
}

/// A guest whose buffers hold the longest frames.
fn roomy() -> GuestConfig {
    GuestConfig { send_buffer: 70_000, queue_size: 64, ..GuestConfig::default() }
}

given! {
    let mut rig = Rig::new(roomy());

    frames_of_every_length_around_a_page_arrive_byte_for_byte {
        let lengths = (42..200).chain(1000..1050).chain(3400..3500).chain(4000..4200);
        for len in lengths.chain([9000, 40_000, 65_549]) {
            let frame = udp(len);
            assert!(rig.guest.send(&frame), "no buffer for {len}");
            let [packet] = &rig.receive()[..] else { panic!("{len} bytes did not arrive") };
            assert_eq!(all_bytes(packet), frame);
            assert_eq!(packet.head().len(), 42, "the head is the headers");
        }
        assert_eq!(rig.monitor.counters().lies(), 0);
    }
    short_frames_are_copied_once_and_their_descriptor_is_back_at_once {
        assert!(rig.guest.send(&udp(BY_REFERENCE - 1)));
        let frames = rig.receive();
        assert_eq!(frames[0].frags()[0].access(), Access::Private);
        assert_eq!(rig.copied(), (BY_REFERENCE as u64 - 1 - 42, 0));
        assert_eq!(rig.guest.sendable(), 64);
    }
    long_frames_are_fragments_of_the_guests_memory_and_nothing_is_copied {
        assert!(rig.guest.send(&udp(BY_REFERENCE)));
        let frames = rig.receive();
        assert_eq!(frames[0].frags()[0].access(), Access::Shared);
        assert_eq!(rig.copied(), (0, 0));
        assert_eq!((rig.guest.sendable(), rig.monitor.counters().held), (63, 1));
        drop(frames);
        assert_eq!(rig.guest.sendable(), 63, "given back by the device, not by the drop");
        rig.receive();
        assert_eq!((rig.guest.sendable(), rig.monitor.counters().held), (64, 0));
    }
    descriptors_come_back_when_the_last_slice_goes_in_any_order_and_from_any_thread {
        for len in [2000, 3000, 4000] {
            assert!(rig.guest.send(&udp(len)));
        }
        let mut frames = rig.receive();
        let slice = frames[2].frags()[0].slice(100..200);
        drop(frames.remove(2));
        rig.receive();
        assert_eq!(rig.guest.sendable(), 61, "a slice is left");
        std::thread::spawn(move || drop(slice)).join().unwrap();
        rig.receive();
        assert_eq!(rig.guest.sendable(), 62, "the third, before the others");
        drop(frames);
        rig.receive();
        assert_eq!(rig.guest.sendable(), 64);
        assert_eq!(rig.monitor.counters().returned, 3);
    }
    a_reader_that_keeps_everything_does_not_stop_the_guests_sending {
        let mut kept = Vec::new();
        for _ in 0..200 {
            assert!(rig.guest.send(&udp(2000)), "half of the ring stays free");
            kept.extend(rig.receive());
        }
        let counters = rig.monitor.counters();
        assert_eq!((counters.held, counters.referenced, counters.copied_instead), (32, 32, 168));
        assert_eq!(rig.copied().0, 168 * (2000 - 42));
    }
    a_frame_in_more_pieces_than_a_packet_has_fragments_is_copied {
        let frame = tcp(false, 40 * 100);
        assert!(rig.guest.send_super([0; 12], &frame, 54, 100));
        let frames = rig.receive();
        assert_eq!(all_bytes(&frames[0]), frame);
        assert_eq!(frames[0].frags()[0].access(), Access::Private);
        assert_eq!((rig.copied().0, rig.guest.sendable()), (4000, 64));
    }
    small_frames_of_no_known_transport_are_whole_in_the_head {
        let mut arp = vec![0xff; 60];
        (arp[12], arp[13]) = (0x08, 0x06);
        assert!(rig.guest.send(&arp));
        let frames = rig.receive();
        assert_eq!((frames[0].head(), frames[0].frags().len()), (&arp[..], 0));
    }
}

#[test]
fn a_super_frame_in_a_chain_of_pages_comes_in_whole_and_by_reference() {
    for v6 in [false, true] {
        let mut rig = Rig::new(roomy());
        let frame = tcp(v6, 60_000);
        let headers = if v6 { 74 } else { 54 };
        assert!(rig.guest.send_super(tso(v6, 1448), &frame, headers, 4096));
        let frames = rig.receive();
        assert_eq!(all_bytes(&frames[0]), frame);
        assert_eq!(frames[0].rx_checksum, RxChecksum::Valid);
        let kind = if v6 { GsoKind::TcpV6 } else { GsoKind::TcpV4 };
        let gso = Gso { kind, size: 1448, header_len: headers as u16 };
        assert_eq!(frames[0].gso, Some(gso));
        assert_eq!(rig.copied(), (0, 0));
        assert_eq!(rig.guest.sendable(), 64 - 17, "one chain");
        drop(frames);
        rig.receive();
        assert_eq!(rig.guest.sendable(), 64);
    }
}

#[test]
fn headers_cut_anywhere_among_descriptors_are_found() {
    let mut rig = Rig::new(GuestConfig { queue_size: 256, ..roomy() });
    let frame = udp(180);
    for headers in 1..60 {
        for part in [1, 7, 50, 180] {
            assert!(rig.guest.send_super([0; 12], &frame, headers, part));
            let [packet] = &rig.receive()[..] else { panic!("lost at {headers}, {part}") };
            assert_eq!(all_bytes(packet), frame);
        }
    }
}

#[test]
fn bursts_are_as_long_as_was_asked_and_lose_nothing() {
    let mut rig = Rig::new(GuestConfig::default());
    assert!(rig.guest.load(&udp(60)));
    let mut got = 0;
    for _ in 0..1000 {
        rig.guest.blast(64);
        let mut frames = VecDeque::new();
        got += rig.device.receive(Instant::ZERO, &mut frames, 32, &mut rig.ledger).unwrap();
        assert!(frames.len() <= 32);
        assert!(frames.iter().all(|frame| all_bytes(frame) == udp(60)));
    }
    got += rig.receive().len();
    assert_eq!(rig.guest.sendable(), 256, "all came back");
    assert_eq!(rig.device.counters().rx_frames, got as u64);
    assert!(rig.device.pool_audit().unwrap().is_conserved());
}
