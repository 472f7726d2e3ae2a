//! The way that a frame takes: each condition of building in place flipped alone.

use pagewire_mem::{GsoKind, PAGE_SIZE, RxChecksum};
use pagewire_testkit::given;

use super::*;
use crate::limits::MIN_GSO_SIZE;

given! {
    let mut bench = Bench::new(config());

    all_conditions_together_build_a_frame_in_place {
        let frame = udp_frame(60);
        assert_eq!(bench.write(&frame, VHOST), Ok(Path::Built));
        assert_eq!(bench.out[0].head().len(), 42, "headers in the head, payload a fragment");
        assert_eq!(bench.out[0].frags().len(), 1);
        assert_eq!(bench.next(), frame);
        assert_eq!(bench.port.counters().built, 1);
        assert_eq!(bench.ledger.get(CopyReason::DeviceRx), 18, "payload, once");
        assert_eq!(bench.ledger.ours(), 0);
        assert_eq!(bench.port.charged(), 0);
        bench.assert_nothing_leaks();
    }
    a_limited_send_buffer_is_accounted_however_large {
        let frame = udp_frame(60);
        bench.port.set_send_buffer(SendBuffer::Bytes(usize::MAX)).unwrap();
        assert_eq!(bench.write(&frame, VHOST), Ok(Path::Accounted));
        assert_eq!(bench.next(), frame);
        bench.port.set_send_buffer(SendBuffer::Unlimited).unwrap();
        assert_eq!(bench.write(&frame, VHOST), Ok(Path::Built));
        bench.assert_nothing_leaks();
    }
    a_writer_that_waits_is_accounted {
        let frame = udp_frame(60);
        assert_eq!(bench.write(&frame, WriteFlags::default()), Ok(Path::Accounted));
        assert_eq!(bench.next(), frame);
        bench.assert_nothing_leaks();
    }
    zero_copy_goes_by_reference {
        let frame: &'static [u8] = udp_frame(60).leak();
        let mut source = BytesSource::by_reference(frame);
        let path = bench.write_with(&mut source, ZEROCOPY, Offload::default());
        assert_eq!(path, Ok(Path::ZeroCopy));
        assert_eq!(bench.out[0].frags()[0].addr(), frame[42..].as_ptr().addr());
        assert_eq!(bench.next(), frame);
        assert_eq!(bench.ledger, CopyLedger::new(), "no payload was copied");
        bench.assert_nothing_leaks();
    }
    zero_copy_that_cannot_be_is_built_in_place_instead {
        let frame = udp_frame(60);
        assert_eq!(bench.write(&frame, ZEROCOPY), Ok(Path::Built));
        assert_eq!(bench.next(), frame);
        bench.assert_nothing_leaks();
    }
    frames_of_every_length_around_one_page_take_the_right_way_and_arrive_whole {
        let limit = limits::largest_built();
        assert!(limit < PAGE_SIZE && limit.is_multiple_of(64));
        for len in (limit - 70..limit + 70).chain(PAGE_SIZE - 70..PAGE_SIZE + 70) {
            let frame = udp_frame(len);
            let expected = if len <= limit { Path::Built } else { Path::Accounted };
            assert_eq!(bench.write(&frame, VHOST), Ok(expected), "{len} bytes");
            assert_eq!(bench.next(), frame, "{len} bytes");
        }
        bench.assert_nothing_leaks();
    }
    lengths_no_frame_has_are_invalid {
        for len in [0, 1, 13, limits::MAX_FRAME + 1] {
            let error = bench.write(&vec![0; len], VHOST).unwrap_err();
            assert_eq!((error, error.errno()), (PortError::Length(len), libc::EINVAL));
        }
        assert_eq!(bench.dropped(PortDrop::Length), 4);
        assert_eq!(bench.write(&[0; 14], VHOST), Ok(Path::Built), "an Ethernet header is enough");
        assert_eq!(bench.next(), [0; 14]);
        let longest = udp_frame(65_535);
        assert_eq!(bench.write(&longest, VHOST), Ok(Path::Accounted));
        assert_eq!(bench.next(), longest);
        bench.assert_nothing_leaks();
    }
    a_port_that_is_down_answers_eio {
        bench.port.set_up(false);
        let error = bench.write(&udp_frame(60), VHOST).unwrap_err();
        assert_eq!((error, error.errno()), (PortError::Down, libc::EIO));
        assert_eq!(bench.dropped(PortDrop::Down), 1);
        bench.port.set_up(true);
        assert_eq!(bench.write(&udp_frame(60), VHOST), Ok(Path::Built));
        bench.assert_nothing_leaks();
    }
    a_frame_of_headers_only_takes_no_memory_and_no_reference {
        let frame = tcp_frame(54);
        assert_eq!(bench.write(&frame, VHOST), Ok(Path::Built));
        assert_eq!(bench.write(&frame, ZEROCOPY), Ok(Path::ZeroCopy), "nothing had to stay");
        assert!(bench.out.iter().all(|packet| packet.frags().is_empty()));
        assert_eq!(bench.next(), frame);
        bench.assert_nothing_leaks();
    }
    what_is_no_ip_keeps_its_first_bytes_in_the_head {
        for len in [14, 60, 128, 129, 1000] {
            let frame = vec![0xaa; len];
            assert_eq!(bench.write(&frame, VHOST), Ok(Path::Built));
            assert_eq!(bench.out[0].head().len(), len.min(128));
            assert_eq!(bench.next(), frame);
        }
        bench.assert_nothing_leaks();
    }
    a_super_frame_is_passed_on_as_one {
        let gso = Some((GsoKind::TcpV4, 1448));
        let offload = Offload { gso, checksum: partial(34, 16) };
        let frame: &'static [u8] = tcp_frame(30_000).leak();
        for how in [VHOST, ZEROCOPY] {
            let mut source = BytesSource::by_reference(frame);
            bench.write_with(&mut source, how, offload).unwrap();
            let packet = &bench.out[0];
            let gso = packet.gso.unwrap();
            assert_eq!((gso.kind, gso.size, gso.header_len), (GsoKind::TcpV4, 1448, 54));
            assert_eq!(packet.rx_checksum, RxChecksum::Valid);
            assert_eq!(bench.next(), frame);
        }
        bench.assert_nothing_leaks();
    }
}

#[test]
fn a_tun_is_accounted() {
    let mut bench = Bench::new(PortConfig { medium: Medium::Ip, ..config() });
    let packet = udp_frame(60).split_off(14);
    assert_eq!(bench.write(&packet, VHOST), Ok(Path::Accounted));
    assert_eq!(bench.out[0].head().len(), 28);
    assert_eq!(bench.next(), packet);
    bench.assert_nothing_leaks();
}

#[test]
fn a_hook_takes_no_condition_away_and_adds_none() {
    let mut bench = Bench::new(config());
    bench.port.set_hook(Some(Box::new(|_: &mut RawFrame<'_>| Verdict::Pass)));
    for len in [limits::largest_built(), limits::largest_built() + 1] {
        let expected = if len <= limits::largest_built() { Path::Built } else { Path::Accounted };
        assert_eq!(bench.write(&udp_frame(len), VHOST), Ok(expected));
    }
    bench.assert_nothing_leaks();
}

#[test]
fn a_tun_takes_nothing_but_ip() {
    let mut bench = Bench::new(PortConfig { medium: Medium::Ip, ..config() });
    for first in [0x00, 0x50, 0xf0] {
        let error = bench.write(&[first; 40], VHOST).unwrap_err();
        assert_eq!(error, PortError::Length(40));
    }
    assert_eq!(bench.write(&[0x60; 40], VHOST), Ok(Path::Accounted));
    bench.assert_nothing_leaks();
}

#[test]
fn a_short_copy_is_a_fault_on_every_way_and_wastes_nothing() {
    for (how, have, len) in [
        (VHOST, 59, 60),
        (WriteFlags::default(), 59, 60),
        (VHOST, 5000, 6000),
        (ZEROCOPY, 59, 60),
        (ZEROCOPY, 200, 201),
    ] {
        let mut bench = Bench::new(config());
        let mut source = Short(udp_frame(have), len);
        let error = bench.write_with(&mut source, how, Offload::default()).unwrap_err();
        assert_eq!((error, error.errno()), (PortError::Fault, libc::EFAULT), "{how:?} {len}");
        assert_eq!((bench.dropped(PortDrop::Fault), bench.port.counters().all_dropped()), (1, 1));
        assert!(bench.out.is_empty());
        assert_eq!(bench.ledger, CopyLedger::new());
        assert_eq!(bench.write(&udp_frame(len), VHOST).map(|_| bench.next()), Ok(udp_frame(len)));
        bench.assert_nothing_leaks();
    }
}

#[test]
fn without_memory_frames_are_lost_with_enomem_until_some_comes_home() {
    for how in [VHOST, WriteFlags::default()] {
        let pool_bytes = limits::MIN_POOL_BYTES;
        let mut bench = Bench::new(PortConfig { pool_bytes, ..config() });
        let frame = udp_frame(1000);
        let mut held = 0;
        let error = loop {
            match bench.write(&frame, how) {
                Ok(_) => held += 1,
                Err(error) => break error,
            }
        };
        assert_eq!((error, error.errno()), (PortError::NoMemory, libc::ENOMEM));
        assert!(held >= limits::MIN_POOL_BYTES / PAGE_SIZE, "{held} frames");
        assert_eq!(bench.dropped(PortDrop::NoMemory), 1);
        bench.out.clear();
        assert!(bench.write(&frame, how).is_ok());
        assert_eq!(bench.next(), frame);
        bench.assert_nothing_leaks();
    }
}

fn partial(start: u16, offset: u16) -> FrameChecksum {
    FrameChecksum::Partial { start, offset }
}

#[test]
fn a_super_frame_of_segments_smaller_than_any_connection_s_is_refused_and_counted() {
    let frame: &'static [u8] = tcp_frame(30_000).leak();
    let mut bench = Bench::new(config());
    for (size, how) in (1..MIN_GSO_SIZE).flat_map(|size| [(size, VHOST), (size, ZEROCOPY)]) {
        let gso = Some((GsoKind::TcpV4, size));
        let offload = Offload { gso, checksum: partial(34, 16) };
        let error = bench.write_with(&mut BytesSource::by_reference(frame), how, offload);
        assert_eq!(error, Err(PortError::Segments(size)));
        assert_eq!(error.unwrap_err().errno(), libc::EINVAL);
    }
    assert_eq!(bench.dropped(PortDrop::Segments), 2 * u64::from(MIN_GSO_SIZE - 1));
    let gso = Some((GsoKind::TcpV4, MIN_GSO_SIZE));
    let offload = Offload { gso, checksum: partial(34, 16) };
    assert!(bench.write_with(&mut BytesSource::new(frame), VHOST, offload).is_ok());
    bench.assert_nothing_leaks();
}

#[test]
fn virtio_headers_that_contradict_the_frame_are_invalid() {
    let gso = |kind, size| Some((kind, size));
    let lies = [
        Offload { gso: None, checksum: partial(34, 25) },
        Offload { gso: None, checksum: partial(u16::MAX, u16::MAX) },
        Offload { gso: gso(GsoKind::TcpV4, 0), checksum: partial(34, 16) },
        Offload { gso: gso(GsoKind::TcpV4, 10), checksum: FrameChecksum::Unknown },
        Offload { gso: gso(GsoKind::TcpV4, 10), checksum: FrameChecksum::Valid },
        Offload { gso: gso(GsoKind::TcpV6, 10), checksum: partial(34, 16) },
    ];
    let frame: &'static [u8] = tcp_frame(60).leak();
    for lie in lies {
        for how in [VHOST, WriteFlags::default(), ZEROCOPY] {
            let mut bench = Bench::new(config());
            let error = bench.write_with(&mut BytesSource::by_reference(frame), how, lie);
            assert_eq!(error, Err(PortError::Offload), "{lie:?}");
            assert_eq!(bench.dropped(PortDrop::Offload), 1);
            bench.assert_nothing_leaks();
        }
    }
    let mut bench = Bench::new(config());
    let honest = Offload { gso: None, checksum: partial(34, 24) };
    assert!(bench.write_with(&mut BytesSource::new(frame), VHOST, honest).is_ok());
    let datagram = udp_frame(60);
    let lie = Offload { gso: gso(GsoKind::TcpV4, 10), checksum: partial(34, 6) };
    let error = bench.write_with(&mut BytesSource::new(&datagram), VHOST, lie);
    assert_eq!(error, Err(PortError::Offload), "a super-frame that is no TCP");
}
