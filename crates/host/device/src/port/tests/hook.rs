//! The early hook: what it sees, what it may answer, and that it cannot corrupt or leak a frame.

use pagewire_mem::{PAGE_SIZE, TxChecksum};

use super::*;

fn hooked(hook: impl FnMut(&mut RawFrame<'_>) -> Verdict + Send + 'static) -> Bench {
    let mut bench = Bench::new(config());
    bench.port.set_hook(Some(Box::new(hook)));
    bench
}

/// The three ways, with frames that take them.
fn ways() -> [(WriteFlags, usize); 4] {
    [(VHOST, 60), (VHOST, PAGE_SIZE), (WriteFlags::default(), 60), (ZEROCOPY, 2000)]
}

fn source(len: usize) -> BytesSource<'static> {
    BytesSource::by_reference(udp_frame(len).leak())
}

#[test]
fn a_hook_sees_every_frame_whatever_way_it_takes() {
    for (how, len) in ways() {
        let mut bench = hooked(move |frame| {
            assert_eq!(frame.len(), len);
            assert_eq!(frame.data()[..42], udp_frame(len)[..42]);
            Verdict::Pass
        });
        bench.write_with(&mut source(len), how, Offload::default()).unwrap();
        assert_eq!(bench.next(), udp_frame(len));
        bench.assert_nothing_leaks();
    }
}

#[test]
fn what_a_hook_changes_is_what_the_stack_gets() {
    for (how, len) in ways() {
        let mut bench = hooked(|frame| {
            frame.data_mut()[0] = 0xee;
            Verdict::Pass
        });
        bench.write_with(&mut source(len), how, Offload::default()).unwrap();
        let mut expected = udp_frame(len);
        expected[0] = 0xee;
        assert_eq!(bench.next(), expected);
        bench.assert_nothing_leaks();
    }
}

#[test]
fn a_dropped_frame_is_counted_and_takes_nothing() {
    for (how, len) in ways() {
        let mut bench = hooked(|_| Verdict::Drop);
        for _ in 0..100 {
            assert!(bench.write_with(&mut source(len), how, Offload::default()).is_ok());
        }
        assert!(bench.out.is_empty());
        assert_eq!(bench.dropped(PortDrop::Hook), 100);
        // But it was copied, where it does not go by reference.
        let copied = if how == ZEROCOPY { 0 } else { 100 * len as u64 };
        assert_eq!(bench.ledger.get(CopyReason::DeviceRx), copied);
        assert_eq!(bench.ledger.ours(), 0);
        bench.assert_nothing_leaks();
    }
}

#[test]
fn a_frame_sent_back_goes_to_the_guest_it_came_from() {
    for (how, len) in ways() {
        let mut bench = hooked(|_| Verdict::SendBack);
        bench.write_with(&mut source(len), how, Offload::default()).unwrap();
        assert!(bench.out.is_empty());
        assert_eq!(bench.for_guest(), [udp_frame(len)]);
        assert_eq!(bench.port.counters().sent_back, 1);
        bench.assert_nothing_leaks();
    }
}

#[test]
fn frames_for_a_guest_that_does_not_read_are_dropped_beyond_the_limit() {
    let mut bench = hooked(|_| Verdict::SendBack);
    for _ in 0..limits::QUEUED_FRAMES + 5 {
        bench.write(&udp_frame(60), VHOST).unwrap();
    }
    assert_eq!(bench.dropped(PortDrop::BackFull), 5);
    assert_eq!(bench.for_guest().len(), limits::QUEUED_FRAMES);
    bench.assert_nothing_leaks();
}

fn in_table(table: &Arc<PortTable>) -> Bench {
    Bench::new(PortConfig { table: Some(Arc::clone(table)), ..config() })
}

#[test]
fn a_redirected_frame_goes_to_the_other_ports_guest() {
    for (how, len) in ways() {
        let table = PortTable::new();
        let (mut one, mut other) = (in_table(&table), in_table(&table));
        let to = other.port.id().unwrap();
        assert_ne!(one.port.id(), Some(to));
        one.port.set_hook(Some(Box::new(move |_: &mut RawFrame<'_>| Verdict::Redirect(to))));
        one.write_with(&mut source(len), how, Offload::default()).unwrap();
        assert!(one.out.is_empty() && one.for_guest().is_empty());
        assert_eq!(other.for_guest(), [udp_frame(len)]);
        assert_eq!(one.port.counters().redirected, 1);
        one.assert_nothing_leaks();
        other.assert_nothing_leaks();
    }
}

#[test]
fn a_redirect_to_nobody_is_a_counted_drop() {
    let table = PortTable::new();
    let mut one = in_table(&table);
    let gone = in_table(&table).port.id().unwrap();
    let redirect = move |_: &mut RawFrame<'_>| Verdict::Redirect(gone);
    one.port.set_hook(Some(Box::new(redirect)));
    one.write(&udp_frame(60), VHOST).unwrap();
    let mut successor = in_table(&table);
    assert_ne!(successor.port.id(), Some(gone), "whoever takes the place has another name");
    one.write(&udp_frame(60), VHOST).unwrap();
    assert_eq!(one.dropped(PortDrop::RedirectUnknown), 2);
    assert!(successor.for_guest().is_empty());

    let mut alone = hooked(redirect);
    alone.write(&udp_frame(60), VHOST).unwrap();
    assert_eq!(alone.dropped(PortDrop::RedirectUnknown), 1, "a port that is in no table");
    one.assert_nothing_leaks();
}

#[test]
fn redirects_to_a_guest_that_does_not_read_are_dropped_beyond_the_limit_and_go_with_the_port() {
    let table = PortTable::new();
    let (mut one, other) = (in_table(&table), in_table(&table));
    let to = other.port.id().unwrap();
    one.port.set_hook(Some(Box::new(move |_: &mut RawFrame<'_>| Verdict::Redirect(to))));
    for _ in 0..limits::QUEUED_FRAMES + 3 {
        one.write(&udp_frame(60), VHOST).unwrap();
    }
    assert_eq!(one.dropped(PortDrop::RedirectFull), 3);
    drop(other);
    one.assert_nothing_leaks();
}

#[test]
fn who_is_redirected_to_is_woken_for_the_first_frame_and_again_after_taking_them() {
    let table = PortTable::new();
    let (wake, woken) = counted();
    let mut one = in_table(&table);
    let shared = Some(Arc::clone(&table));
    let mut other = Bench::new(PortConfig { table: shared, wake: Some(wake), ..config() });
    let to = other.port.id().unwrap();
    one.port.set_hook(Some(Box::new(move |_: &mut RawFrame<'_>| Verdict::Redirect(to))));
    for expected in [1, 1, 1, 2] {
        if expected == 2 {
            assert_eq!(other.for_guest().len(), 3);
        }
        one.write(&udp_frame(60), VHOST).unwrap();
        assert_eq!(woken.load(Ordering::Relaxed), expected);
    }
}

#[test]
fn a_frame_grows_and_shrinks_within_its_buffer_only() {
    for (how, len) in ways() {
        let mut bench = hooked(move |frame| {
            let (head, tail) = (frame.headroom() as isize, frame.tailroom() as isize);
            assert!(head >= 14, "room for another header");
            for by in [-head - 1, isize::MIN, isize::MAX, len as isize] {
                assert_eq!(frame.adjust_head(by), Err(OutOfBounds));
            }
            for by in [tail + 1, isize::MAX, isize::MIN, -(len as isize)] {
                assert_eq!(frame.adjust_tail(by), Err(OutOfBounds));
            }
            assert_eq!(frame.len(), len, "what failed changed nothing");
            frame.adjust_head(frame.data().len() as isize - 13).unwrap_err();
            frame.adjust_head(-head).unwrap();
            assert_eq!(frame.data()[..head as usize], vec![0; head as usize]);
            if tail > 0 {
                frame.adjust_tail(tail).unwrap();
                let data = frame.data();
                assert_eq!(data[data.len() - tail as usize..], vec![0; tail as usize]);
                frame.adjust_tail(-tail).unwrap();
            }
            frame.adjust_head(head).unwrap();
            Verdict::Pass
        });
        bench.write_with(&mut source(len), how, Offload::default()).unwrap();
        assert_eq!(bench.next(), udp_frame(len));
        bench.assert_nothing_leaks();
    }
}

#[test]
fn added_bytes_show_nothing_of_earlier_frames() {
    let mut first = true;
    let mut bench = hooked(move |frame| {
        if !core::mem::take(&mut first) {
            frame.adjust_head(-(frame.headroom() as isize)).unwrap();
            frame.adjust_tail(frame.tailroom() as isize).unwrap();
            assert!(frame.data().iter().all(|&b| b != 0xaa));
            return Verdict::SendBack;
        }
        Verdict::Drop
    });
    bench.write(&[0xaa; 1000], VHOST).unwrap();
    bench.write(&udp_frame(60), VHOST).unwrap();
    let back = bench.for_guest();
    assert_eq!(back.len(), 1);
    assert!(back[0].len() > 60 && back[0].iter().all(|&b| b != 0xaa));
    bench.assert_nothing_leaks();
}

#[test]
fn headers_put_in_front_and_taken_off_arrive_so() {
    for (how, len) in ways() {
        let mut bench = hooked(|frame| {
            frame.adjust_head(-4).unwrap();
            frame.data_mut().copy_within(4..16, 0);
            frame.data_mut()[12..16].copy_from_slice(&[0x81, 0, 0, 7]);
            Verdict::SendBack
        });
        bench.write_with(&mut source(len), how, Offload::default()).unwrap();
        let mut tagged = udp_frame(len);
        tagged.splice(12..12, [0x81, 0, 0, 7]);
        assert_eq!(bench.for_guest(), [tagged]);

        bench.port.set_hook(Some(Box::new(|frame: &mut RawFrame<'_>| {
            frame.adjust_head(14).unwrap();
            Verdict::Pass
        })));
        bench.write_with(&mut source(len), how, Offload::default()).unwrap();
        assert_eq!(bench.next(), udp_frame(len)[14..]);
        bench.assert_nothing_leaks();
    }
}

#[test]
fn an_open_checksum_moves_with_the_frame() {
    let checksum = FrameChecksum::Partial { start: 34, offset: 6 };
    let offload = Offload { gso: None, checksum };
    for (by, expected) in [(-4, Some(38)), (0, Some(34)), (14, Some(20)), (35, None)] {
        for (how, len) in [(VHOST, 80), (WriteFlags::default(), 80)] {
            let mut bench = hooked(move |frame| {
                frame.adjust_head(by).unwrap();
                Verdict::SendBack
            });
            bench.write_with(&mut source(len), how, offload).unwrap();
            let mut out = VecDeque::new();
            bench.port.poll_transmit(&mut out);
            let found = out.front().map(|packet| packet.tx_checksum);
            let wanted = expected.map(|start| TxChecksum::Partial { start, offset: 6 });
            assert_eq!(found, wanted);
            assert_eq!(bench.dropped(PortDrop::HookMoved), u64::from(expected.is_none()));
            drop(out);
            bench.assert_nothing_leaks();
        }
    }
}

/// Counts how many bytes of it were read.
struct Watched<'a>(BytesSource<'static>, &'a mut usize);

impl FrameSource for Watched<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn copy_out(&mut self, offset: usize, into: &mut [u8]) -> Result<(), Fault> {
        *self.1 += into.len();
        self.0.copy_out(offset, into)
    }

    fn take_frags(&mut self, from: usize, max: usize) -> Option<FragVec> {
        self.0.take_frags(from, max)
    }
}

#[test]
fn a_hook_that_looks_at_the_first_bytes_leaves_the_rest_of_what_it_drops_unread() {
    for (how, len) in [(VHOST, 1500), (VHOST, PAGE_SIZE), (WriteFlags::default(), 1500)] {
        for (verdict, expected) in [(Verdict::Drop, 42), (Verdict::Pass, len)] {
            let mut bench = hooked(|_| Verdict::Drop);
            let look = move |frame: &mut RawFrame<'_>| {
                assert_eq!((frame.data().len(), frame.len()), (42, len));
                assert_eq!(frame.adjust_tail(-1), Err(OutOfBounds));
                frame.adjust_head(-4).unwrap();
                frame.adjust_head(4).unwrap();
                frame.data_mut()[0] = 0xee;
                verdict
            };
            bench.port.set_hook(Some(Box::new(FirstBytes(42, look))));
            let mut read = 0;
            let mut source = Watched(source(len), &mut read);
            bench.write_with(&mut source, how, Offload::default()).unwrap();
            assert_eq!(read, expected, "each byte that was needed, once");
            // The ledger counts the payload of a frame that passed, and all bytes shown of one that was dropped.
            let counted = if verdict == Verdict::Pass { len - 42 } else { 42 };
            assert_eq!(bench.ledger.get(CopyReason::DeviceRx), counted as u64);
            if verdict == Verdict::Pass {
                let mut whole = udp_frame(len);
                whole[0] = 0xee;
                assert_eq!(bench.next(), whole);
            }
            bench.assert_nothing_leaks();
        }
    }
}

#[test]
fn a_hook_that_looks_at_less_than_a_header_is_shown_one() {
    for (reach, len) in [(0, 60), (13, 60), (14, 60), (usize::MAX, 60), (100, 60), (0, 14)] {
        let shown = reach.clamp(14, 60).min(len);
        let mut bench = hooked(|_| Verdict::Drop);
        let look = move |frame: &mut RawFrame<'_>| {
            assert_eq!(frame.data().len(), shown);
            Verdict::Pass
        };
        bench.port.set_hook(Some(Box::new(FirstBytes(reach, look))));
        let frame = udp_frame(60)[..len].to_vec();
        bench.write(&frame, VHOST).unwrap();
        assert_eq!(bench.next(), frame);
        bench.assert_nothing_leaks();
    }
}
