//! The send buffer: who waits, and for what.

use pagewire_mem::PAGE_SIZE;

use super::*;

const BLOCKING: WriteFlags = WriteFlags { nonblock: false, zerocopy: false };

/// A port that counts how often it wakes its writer.
fn limited(bytes: usize) -> (Bench, Arc<AtomicUsize>) {
    let (wake, woken) = counted();
    let send_buffer = SendBuffer::Bytes(bytes);
    (Bench::new(PortConfig { send_buffer, wake: Some(wake), ..config() }), woken)
}

#[test]
fn frames_are_taken_while_less_than_the_buffer_is_used() {
    let (mut bench, woken) = limited(10_000);
    let frame = udp_frame(60);
    let mut taken = 0;
    let error = loop {
        match bench.write(&frame, BLOCKING) {
            Ok(path) => assert_eq!(path, Path::Accounted),
            Err(error) => break error,
        }
        taken += 1;
    };
    assert_eq!((error, error.errno()), (PortError::WouldBlock, libc::EAGAIN));
    assert!(error.is_full());
    assert_eq!(taken, 3, "a page and a record each; the third is taken because some is left");
    assert!(bench.port.charged() >= 10_000);
    assert_eq!(bench.port.counters().blocked, 1);
    assert_eq!(bench.port.counters().all_dropped(), 0, "the writer keeps the frame");
    assert_eq!(woken.load(Ordering::Relaxed), 0);

    bench.next();
    assert_eq!(woken.load(Ordering::Relaxed), 1);
    bench.next();
    assert_eq!(woken.load(Ordering::Relaxed), 1, "nobody waits any more");
    assert_eq!(bench.write(&frame, BLOCKING), Ok(Path::Accounted));
    bench.assert_nothing_leaks();
}

#[test]
fn a_writer_that_does_not_wait_is_not_woken() {
    let (mut bench, woken) = limited(1);
    let frame = udp_frame(60);
    assert_eq!(bench.write(&frame, VHOST), Ok(Path::Accounted));
    assert_eq!(bench.write(&frame, VHOST), Err(PortError::Again));
    assert_eq!(PortError::Again.errno(), libc::EAGAIN);
    bench.out.clear();
    assert_eq!(woken.load(Ordering::Relaxed), 0);
    bench.assert_nothing_leaks();
}

#[test]
fn a_frame_is_charged_until_its_last_byte_is_let_go_by_whatever_thread() {
    let (mut bench, woken) = limited(1);
    bench.write(&udp_frame(600), BLOCKING).unwrap();
    assert!(!bench.port.wait_for_room());
    let mut packet = bench.out.pop_front().unwrap();
    let part = packet.frags()[0].slice(10..11);
    drop(packet.take_frags());
    drop(packet);
    assert_eq!(woken.load(Ordering::Relaxed), 0);
    std::thread::spawn(move || drop(part)).join().unwrap();
    assert_eq!(woken.load(Ordering::Relaxed), 1);
    assert!(bench.port.wait_for_room());
    bench.assert_nothing_leaks();
}

#[test]
fn a_larger_buffer_wakes_who_waits() {
    let (mut bench, woken) = limited(1);
    let frame = udp_frame(60);
    bench.write(&frame, BLOCKING).unwrap();
    assert_eq!(bench.write(&frame, BLOCKING), Err(PortError::WouldBlock));
    bench.port.set_send_buffer(SendBuffer::Bytes(2)).unwrap();
    assert_eq!(woken.load(Ordering::Relaxed), 0);
    bench.port.set_send_buffer(SendBuffer::Unlimited).unwrap();
    assert_eq!(woken.load(Ordering::Relaxed), 1);
    bench.assert_nothing_leaks();
}

#[test]
fn a_send_buffer_of_nothing_is_invalid() {
    let (mut bench, _) = limited(1);
    let error = bench.port.set_send_buffer(SendBuffer::Bytes(0)).unwrap_err();
    assert_eq!(error.errno(), libc::EINVAL);
}

/// Frames that come in until no page is left, each in a page that nothing else holds.
fn exhaust(bench: &mut Bench) {
    let frame = udp_frame(60);
    while bench.write(&frame, VHOST).is_ok() {
        let kept = bench.out.pop_back().unwrap();
        while bench.out.len() < 40 && bench.write(&frame, VHOST).is_ok() {}
        bench.out.clear();
        bench.out.push_back(kept);
        bench.hold();
    }
}

#[test]
fn whoever_keeps_small_frames_is_charged_for_all_of_the_pool_that_they_keep() {
    let pool_bytes = limits::MIN_POOL_BYTES;
    let mut bench = Bench::new(PortConfig { pool_bytes, ..config() });
    exhaust(&mut bench);
    bench.port.carver.abandon();
    bench.port.end_turn();
    let out = bench.port.pool_audit().out;
    assert!(out >= pool_bytes / PAGE_SIZE / 2, "{out} pages");
    let frags = bench.held.iter().flat_map(PacketBuf::frags);
    assert_eq!(frags.clone().map(Frag::pinned).sum::<usize>(), out * PAGE_SIZE);
    assert_eq!(frags.map(Frag::pinned_pages).sum::<usize>(), out * PAGE_SIZE);
    bench.held.clear();
    bench.assert_nothing_leaks();
}

#[test]
fn frames_without_payload_come_in_when_no_page_is_left() {
    let pool_bytes = limits::MIN_POOL_BYTES;
    let mut bench = Bench::new(PortConfig { pool_bytes, ..config() });
    exhaust(&mut bench);
    bench.out.clear();
    let before = bench.dropped(PortDrop::NoMemory);
    for how in [VHOST, WriteFlags::default()] {
        // With options, and what no transport is known of.
        let mut options = tcp_frame(66);
        options[46] = 0x80;
        for frame in [tcp_frame(54), options, vec![0xaa; 128]] {
            assert!(bench.write(&frame, how).is_ok());
            assert_eq!(bench.next(), frame);
        }
        assert_eq!(bench.write(&tcp_frame(55), how), Err(PortError::NoMemory));
        assert_eq!(bench.write(&udp_frame(1000), how), Err(PortError::NoMemory));
        assert!(bench.out.is_empty(), "nothing of them is left in line");
    }
    assert_eq!(bench.dropped(PortDrop::NoMemory), before + 4);
    // A hook sees them as ever, and may make them longer by what it was promised.
    let grow = |frame: &mut RawFrame<'_>| {
        frame
            .adjust_head(-4)
            .and_then(|()| frame.adjust_tail(2))
            .map_or(Verdict::Drop, |()| Verdict::Pass)
    };
    bench.port.set_hook(Some(Box::new(grow)));
    assert!(bench.write(&[0xaa; 60], VHOST).is_ok());
    assert_eq!(bench.next().len(), 66);
    bench.held.clear();
    bench.assert_nothing_leaks();
}
