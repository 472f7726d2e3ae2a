//! Reassembly (RFC 791, 815, 1858, 5722, 6946, 8200) and fragmentation.

use super::*;
use crate::limits::{
    REASSEMBLY_BYTES, REASSEMBLY_DATAGRAMS, REASSEMBLY_FRAGMENTS, REASSEMBLY_TIME_V4,
    REASSEMBLY_TIME_V6,
};

/// Cuts the IP payload of a frame into fragments at the given offsets; all with one identification.
fn cut(frame: &[u8], at: &[usize], id: u8) -> Vec<Vec<u8>> {
    let is_v4 = frame[14] >> 4 == 4;
    let header = if is_v4 { 34 } else { 54 };
    let payload = &frame[header..];
    let ends = at.iter().copied().skip(1).chain([payload.len()]);
    at.iter()
        .zip(ends)
        .map(|(&start, end)| fragment(frame, &payload[start..end], start, end < payload.len(), id))
        .collect()
}

fn fragment(frame: &[u8], part: &[u8], offset: usize, more: bool, id: u8) -> Vec<u8> {
    if frame[14] >> 4 == 4 {
        let mut bytes = [&frame[..34], part].concat();
        let word = (offset / 8) as u16 | if more { 0x2000 } else { 0 };
        bytes[16..18].copy_from_slice(&(20 + part.len() as u16).to_be_bytes());
        bytes[18..20].copy_from_slice(&[0, id]);
        bytes[20..22].copy_from_slice(&word.to_be_bytes());
        fix_v4(&mut bytes);
        return bytes;
    }
    let mut bytes = frame[..54].to_vec();
    let word = offset as u16 | u16::from(more);
    bytes[18..20].copy_from_slice(&(8 + part.len() as u16).to_be_bytes());
    let next = core::mem::replace(&mut bytes[20], 44);
    bytes.extend([next, 0]);
    bytes.extend(word.to_be_bytes());
    bytes.extend([0, 0, 0, id]);
    bytes.extend(part);
    bytes
}

fn both(payload: &[u8]) -> [Vec<u8>; 2] {
    [udp_v4(payload), udp_v6(payload)]
}

#[test]
fn fragments_in_any_order_make_the_datagram() {
    let payload = pattern(3000);
    for frame in both(&payload) {
        let parts = cut(&frame, &[0, 1000, 1496, 2000, 2992], 1);
        for order in [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 0, 4, 1, 3], [1, 2, 3, 4, 0]] {
            for head in [14, 40, 64, 128] {
                let mut host = Host::new();
                let mut got = vec![];
                for i in order {
                    let part = &parts[i];
                    got.extend(host.receive_split(part, head.min(part.len())));
                }
                let [Inbound::Transport(got)] = &got[..] else {
                    panic!("{order:?} {}", host.net.counters)
                };
                assert_eq!(payload_of(got.packet.frags()), payload);
                assert_eq!(got.packet.head().len(), 8);
                assert_eq!(host.net.counters.total_drops(), 0);
                assert_eq!((host.net.reassembly.len(), host.net.reassembly.pinned()), (0, 0));
            }
        }
    }
}

#[test]
fn payload_is_not_copied_unless_there_are_more_pieces_than_a_packet_carries() {
    let mut host = Host::new();
    let frame = udp_v4(&pattern(8192));
    for part in cut(&frame, &[0, 2048, 4096, 6144], 1) {
        host.receive_split(&part, 34);
    }
    assert_eq!(host.net.counters.reassembled, 1);
    assert_eq!(host.net.mem.ledger.ours(), 0);
    let at: Vec<_> = (0..40).map(|i| i * 200).collect();
    let mut got = None;
    for part in cut(&frame, &at, 2) {
        got = host.receive_split(&part, 34);
    }
    let Some(Inbound::Transport(got)) = got else { panic!("{}", host.net.counters) };
    assert_eq!(payload_of(got.packet.frags()), pattern(8192));
    assert!(host.net.mem.ledger.get(CopyReason::Compact) > 0);
    drop(got);
    host.no_page_is_lost();
}

#[test]
fn the_largest_datagram_in_the_smallest_usual_fragments_is_put_together() {
    for frame in both(&pattern(65_000)) {
        let at: Vec<_> = (0..).map(|i| i * 1232).take_while(|at| *at < 65_008).collect();
        let mut host = Host::new();
        let mut got = None;
        for part in cut(&frame, &at, 1).into_iter().rev() {
            got = host.receive(&part);
        }
        let Some(Inbound::Transport(got)) = got else { panic!("{}", host.net.counters) };
        assert_eq!(payload_of(got.packet.frags()), pattern(65_000));
    }
}

#[test]
fn any_overlap_drops_the_datagram_and_what_still_comes_of_it() {
    for frame in both(&pattern(3000)) {
        let payload = frame[if frame[14] >> 4 == 4 { 34 } else { 54 }..].to_vec();
        let part = |from: usize, to: usize| {
            fragment(&frame, &payload[from..to], from, to < payload.len(), 1)
        };
        for (first, second) in [
            ((0, 1000), (992, 2000)),  // one unit into the one before
            ((1000, 2000), (0, 1008)), // one unit into the one behind
            ((0, 2000), (800, 1000)),  // inside
            ((800, 1000), (0, 2000)),  // around
            ((0, 1000), (0, 2000)),    // same beginning, other end
        ] {
            let mut host = Host::new();
            assert!(host.receive(&part(first.0, first.1)).is_none());
            host.receive(&part(second.0, second.1));
            assert_eq!(host.drops(DropReason::FragmentOverlap), 2, "both pieces");
            host.refuses(&part(2000, 3008), DropReason::FragmentOverlap);
            assert_eq!(host.net.reassembly.pinned(), 0);
        }
    }
}

#[test]
fn an_exact_duplicate_is_dropped_alone() {
    for frame in both(&pattern(3000)) {
        let parts = cut(&frame, &[0, 1000, 2000], 1);
        let mut host = Host::new();
        host.receive(&parts[0]);
        host.refuses(&parts[0], DropReason::FragmentDuplicate);
        host.receive(&parts[2]);
        host.refuses(&parts[2], DropReason::FragmentDuplicate);
        assert!(host.receive(&parts[1]).is_some());
    }
}

#[test]
fn two_ends_or_bytes_beyond_the_end_drop_the_datagram() {
    for frame in both(&pattern(3000)) {
        let bytes = pattern(64);
        let end = |offset: usize, len: usize, more: bool| {
            fragment(&frame, &bytes[..len], offset, more, 1)
        };
        for (first, second) in [
            (end(1000, 16, false), end(1016, 8, false)),
            (end(1000, 16, false), end(1016, 8, true)),
            (end(1000, 16, false), end(800, 8, false)),
            (end(1000, 16, true), end(800, 8, false)),
        ] {
            let mut host = Host::new();
            host.receive(&first);
            host.receive(&second);
            assert_eq!(host.drops(DropReason::FragmentEnd), 2);
        }
    }
}

#[test]
fn lengths_and_offsets_one_less_exact_and_one_more() {
    let mut host = Host::acquainted();
    for (i, frame) in both(&pattern(3000)).into_iter().enumerate() {
        let bytes = pattern(1024);
        let part = |offset: usize, len: usize, more: bool| {
            fragment(&frame, &bytes[..len], offset, more, 1)
        };
        host.refuses(&part(1000, 15, true), DropReason::FragmentLength);
        host.refuses(&part(1000, 17, true), DropReason::FragmentLength);
        host.refuses(&part(1000, 0, true), DropReason::FragmentLength);
        host.refuses(&part(1000, 0, false), DropReason::FragmentLength);
        let header = if i == 0 { 20 } else { 0 };
        let room = 65_535 - header - 65_448;
        host.refuses(&part(65_448, room + 1, false), DropReason::FragmentTooBig);
        let before = host.net.counters.total_drops();
        host.receive(&part(65_448, room, false));
        assert_eq!(host.net.counters.total_drops(), before, "exactly the largest is kept");
        host.pass(Duration::from_secs(61));
        host.sent();
    }
}

#[test]
fn ipv6_length_errors_are_answered_with_a_pointer() {
    let mut host = Host::acquainted();
    let frame = udp_v6(&pattern(3000));
    host.receive(&fragment(&frame, &pattern(15), 0, true, 1));
    let answer = host.sent_one();
    assert_eq!((answer[54], answer[55], answer[61]), (4, 0, 4), "at the payload length");
    host.receive(&fragment(&frame, &pattern(1024), 65_528, false, 1));
    let answer = host.sent_one();
    assert_eq!((answer[54], answer[55], answer[61]), (4, 0, 42), "at the fragment offset");
}

#[test]
fn a_first_fragment_without_the_transport_header_is_refused() {
    let mut host = Host::new();
    let frame = tcp_v4(&pattern(1000));
    let payload = frame[34..].to_vec();
    host.refuses(&fragment(&frame, &payload[..16], 0, true, 1), DropReason::FragmentTiny);
    // RFC 1858 section 3.2.2: a second fragment at offset 1 would overwrite the flags.
    host.refuses(&fragment(&frame, &payload[8..16], 8, true, 1), DropReason::FragmentTiny);
    assert_eq!(host.net.reassembly.pinned(), 0);
}

#[test]
fn tiny_fragments_are_bounded_in_count() {
    let mut host = Host::new();
    let frame = udp_v4(&pattern(4000));
    let payload = frame[34..].to_vec();
    for i in 0..=REASSEMBLY_FRAGMENTS {
        host.receive(&fragment(&frame, &payload[i * 8..i * 8 + 8], i * 8, true, 1));
    }
    assert_eq!(host.drops(DropReason::FragmentCount), REASSEMBLY_FRAGMENTS as u64 + 1);
    assert_eq!(host.net.reassembly.pinned(), 0);
    host.no_page_is_lost();
}

#[test]
fn memory_and_datagrams_in_reassembly_are_bounded_and_the_oldest_goes_first() {
    let mut host = Host::new();
    let frame = udp_v4(&pattern(4000));
    for i in 0..3 * REASSEMBLY_DATAGRAMS {
        host.now += Duration::from_millis(1);
        host.receive(&cut(&frame, &[0, 8], i as u8)[0]);
        assert!(host.net.reassembly.len() <= REASSEMBLY_DATAGRAMS);
    }
    assert_eq!(host.drops(DropReason::ReassemblyCount), 2 * REASSEMBLY_DATAGRAMS as u64);
    // The youngest are still there.
    let last = 3 * REASSEMBLY_DATAGRAMS - 1;
    assert!(host.receive(&cut(&frame, &[0, 8], last as u8)[1]).is_some());

    let mut host = Host::new();
    let frame = udp_v4(&pattern(65_000));
    for i in 0..100 {
        host.now += Duration::from_millis(1);
        let parts = cut(&frame, &[0, 16_000, 32_000, 48_000, 64_000], i);
        for part in &parts[..4] {
            host.receive(part);
            assert!(host.net.reassembly.pinned() <= REASSEMBLY_BYTES);
        }
    }
    assert!(host.drops(DropReason::ReassemblyMemory) > 0);
}

#[test]
fn what_does_not_come_in_time_is_dropped_and_its_sender_told() {
    for (frame, time) in
        both(&pattern(3000)).into_iter().zip([REASSEMBLY_TIME_V4, REASSEMBLY_TIME_V6])
    {
        let parts = cut(&frame, &[0, 1000, 2000], 1);
        let mut host = Host::acquainted();
        host.receive(&parts[0]);
        host.receive(&parts[2]);
        host.pass(time - Duration::from_millis(1));
        assert_eq!(host.drops(DropReason::ReassemblyTimeout), 0);
        host.sent();
        host.pass(Duration::from_millis(1));
        assert_eq!(host.drops(DropReason::ReassemblyTimeout), 2);
        let answers: Vec<_> = host.sent().into_iter().filter(|f| f[12..14] != [8, 6]).collect();
        let [answer] = &answers[..] else { panic!("{answers:02x?}") };
        let at = if frame[14] >> 4 == 4 { 34 } else { 54 };
        assert_eq!((answer[at], answer[at + 1]), (if at == 34 { 11 } else { 3 }, 1));
        let quote = &answer[at + 8..];
        assert_eq!(quote, &parts[0][14..14 + quote.len()], "the first fragment, as it was");
        assert_eq!(host.net.reassembly.len(), 0);
        // Without the first fragment no error is sent.
        host.receive(&parts[1]);
        host.sent();
        host.pass(time);
        assert!(host.sent().iter().all(|f| f[12..14] == [8, 6] || f[54] == 135));
    }
}

#[test]
fn congestion_marks_survive_and_contradictions_do_not() {
    let frame = udp_v4(&pattern(1000));
    let with = |first: u8, second: u8| {
        let mut host = Host::new();
        let parts = cut(&frame, &[0, 504], 1);
        host.receive(&with_v4_header(parts[0].clone(), |b| b[1] = first));
        match host.receive(&with_v4_header(parts[1].clone(), |b| b[1] = second)) {
            Some(Inbound::Transport(got)) => Some(got.ecn),
            _ => {
                assert_eq!(host.drops(DropReason::FragmentEcn), 1);
                None
            }
        }
    };
    assert_eq!(with(2, 3), Some(3));
    assert_eq!(with(2, 2), Some(2));
    assert_eq!(with(1, 1), Some(1));
    assert_eq!(with(0, 0), Some(0));
    assert_eq!(with(0, 3), None);
}

#[test]
fn a_fragment_inside_a_reassembled_packet_is_refused() {
    let mut host = Host::new();
    let inner = udp_v6(&pattern(100));
    // The payload of the outer datagram begins with another fragment header.
    let mut payload = vec![17, 0, 0, 1, 0, 0, 0, 9];
    payload.extend(&inner[54..]);
    let mut outer = inner[..54].to_vec();
    outer[20] = 44;
    host.receive(&fragment(&outer, &payload[..64], 0, true, 1));
    host.refuses(&fragment(&outer, &payload[64..], 64, false, 1), DropReason::FragmentNested);
}

#[test]
fn datagrams_longer_than_the_path_are_cut_by_reference_and_come_together_again() {
    for dst in ["10.0.0.2", "fd00::2"] {
        for len in [1472, 1473, 4000, 20_000, 65_000] {
            let (mut a, mut b) = (Host::new(), Host::peer());
            a.meet();
            let payload = pattern(len);
            let packet = udp_packet(&payload);
            let memory: Vec<_> = packet.frags().iter().map(Frag::addr).collect();
            let src = a.net.source_for(ip(dst), 0).unwrap();
            a.send(src, ip(dst), protocol::UDP, Some(6), packet).unwrap();
            let sent = a.sent_packets();
            for frame in &sent {
                assert!(frame.len() <= 1514);
                let own = |f: &Frag| memory.iter().any(|m| (*m..*m + 4096).contains(&f.addr()));
                assert!(frame.frags().iter().all(own), "payload stays where it is");
            }
            let mut got = vec![];
            for frame in sent {
                got.extend(b.receive(&on_wire(frame)));
            }
            let [Inbound::Transport(got)] = &got[..] else { panic!("{len} {}", b.net.counters) };
            assert_eq!(payload_of(got.packet.frags()), payload);
            assert_eq!(a.net.mem.ledger.ours(), 0);
        }
    }
}

#[test]
fn a_known_path_mtu_shortens_fragments_but_not_below_the_floor() {
    let mut host = Host::acquainted();
    host.send_udp(ip("10.0.0.2"), &pattern(1400)).unwrap();
    assert_eq!(host.sent().len(), 1);
    host.net.handle_path_mtu(host.now, ip("10.0.0.2"), 1000);
    assert_eq!(host.net.mtu_for(ip("10.0.0.2")), 1000);
    host.send_udp(ip("10.0.0.2"), &pattern(1400)).unwrap();
    let sent = host.sent();
    assert_eq!(sent.len(), 2);
    assert!(sent.iter().all(|f| f.len() <= 1014));
    host.net.handle_path_mtu(host.now, ip("fd00::2"), 68);
    assert_eq!(host.net.mtu_for(ip("fd00::2")), 1280);
    host.pass(crate::limits::PATH_MTU_AGE);
    host.sent();
    assert_eq!(host.net.mtu_for(ip("10.0.0.2")), 1500, "forgotten");
}

#[test]
fn a_datagram_longer_than_ip_carries_is_refused() {
    let mut host = Host::acquainted();
    for (dst, longest) in [("10.0.0.2", 65_507), ("fd00::2", 65_527)] {
        assert_eq!(host.send_udp(ip(dst), &pattern(longest)), Ok(()));
        assert_eq!(host.send_udp(ip(dst), &pattern(longest + 1)), Err(Error::MessageTooLong));
    }
    assert_eq!(host.drops(DropReason::OutTooLong), 2);
}
