//! Lies of strangers: arbitrary bytes, damaged frames, floods. Each survived, counted, bounded.

use pagewire_mem::{Gso, GsoKind, RxChecksum};
use proptest::prelude::*;

use super::*;
use crate::limits::{
    NEIGHBOR_QUEUE_TOTAL, NEIGHBORS, OUT_QUEUE_FRAMES, REASSEMBLY_BYTES, REASSEMBLY_DATAGRAMS,
};

/// Every frame is handed up, answered, waits for more, or is dropped with a reason; whatever comes,
/// memory stays within the limits.
fn survive(host: &mut Host, frames: impl IntoIterator<Item = (Vec<u8>, usize)>) {
    for (frame, head) in frames {
        host.now += Duration::from_micros(10);
        let received = host.receive_split(&frame, head.min(frame.len()).min(128));
        if let Some(Inbound::Transport(received)) = received {
            assert!(received.packet.len() <= frame.len() + 65_535);
            host.refuse(received);
        }
        assert!(host.net.links.at(0).neighbors.len() <= NEIGHBORS);
        assert!(host.net.links.at(0).neighbors.queued() <= NEIGHBOR_QUEUE_TOTAL);
        assert!(host.net.reassembly.pinned() <= REASSEMBLY_BYTES);
        assert!(host.net.reassembly.len() <= REASSEMBLY_DATAGRAMS);
        assert!(host.sent().len() <= OUT_QUEUE_FRAMES);
    }
    // In time everything that waited is gone.
    for _ in 0..20 {
        host.pass(Duration::from_secs(60));
        while host.poll_inbound().is_some() {}
        host.sent();
    }
    for _ in 0..20 {
        host.pass(Duration::from_secs(600));
        host.sent();
    }
    assert_eq!(host.net.reassembly.pinned(), 0);
    assert_eq!(host.net.links.at(0).neighbors.len(), 0);
    host.no_page_is_lost();
}

fn seeds() -> Vec<Vec<u8>> {
    let extensions =
        [&[60, 0, 1, 4, 0, 0, 0, 0][..], &[44, 0, 1, 4, 0, 0, 0, 0], &[17, 0, 0, 1, 0, 0, 0, 9]]
            .concat();
    let quote = udp_v4(b"quoted").split_off(14);
    vec![
        udp_v4(&pattern(40)),
        udp_v6(&pattern(40)),
        tcp_v4(&pattern(300)),
        echo_v4(&pattern(30)),
        echo_v6(&pattern(30)),
        arp_packet(1, PEER, PEER_V4, [0; 6], US_V4),
        arp_packet(2, PEER, PEER_V4, US, US_V4),
        solicitation(PEER, "fd00::2", "fd00::1", 255),
        advertisement(PEER, "fd00::2", 0x60),
        with_extensions(0, &extensions),
        icmpv4(US, (3, 4, 1400), &quote),
        icmpv6(PEER, US, "fd00::2", "fd00::1", 64, (2, 0, 1300), &quote),
        with_v4_header(udp_v4(&pattern(72)), |b| b[6] = 0x20),
        with_v4_header(udp_v4(&pattern(72)), |b| b[7] = 0x09),
    ]
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic_and_never_stay(
        frames in proptest::collection::vec(
            (proptest::collection::vec(any::<u8>(), 0..200), 0usize..128), 1..20),
    ) {
        survive(&mut Host::new(), frames);
    }

    #[test]
    fn damaged_frames_never_panic_and_never_stay(
        picks in proptest::collection::vec(
            (any::<proptest::sample::Index>(), any::<proptest::sample::Index>(), any::<u8>(),
             any::<proptest::sample::Index>(), 0usize..128, any::<bool>()),
            1..60),
    ) {
        let seeds = seeds();
        let frames = picks.into_iter().map(|(which, at, value, cut, head, fix)| {
            let mut frame = which.get(&seeds).clone();
            // Behind the station addresses: those would only make the link refuse it.
            let at = 12 + at.index(frame.len() - 12);
            frame[at] = value;
            if cut.index(4) == 0 {
                frame.truncate(cut.index(frame.len()).max(15));
            }
            if fix && frame.len() >= 34 && frame[12..14] == [8, 0] {
                fix_v4(&mut frame);
            }
            (frame, head)
        });
        survive(&mut Host::acquainted(), frames);
    }

    #[test]
    fn unverified_frames_with_damaged_lengths_never_panic(
        which in any::<proptest::sample::Index>(),
        at in any::<proptest::sample::Index>(), value in any::<u8>(), head in 0usize..128,
    ) {
        // As from a device that claims to have verified checksums: nothing behind them is safe.
        let mut host = Host::acquainted();
        let mut frame = which.get(&seeds()).clone();
        let at = 14 + at.index(frame.len() - 14);
        frame[at] = value;
        if frame[12..14] == [8, 0] {
            fix_v4(&mut frame);
        }
        let mut packet = rx_packet(&frame, head.min(frame.len()));
        packet.rx_checksum = pagewire_mem::RxChecksum::Valid;
        let _ = host.receive_packet(packet);
    }
}

#[test]
fn every_single_byte_of_every_frame_may_be_anything() {
    let mut host = Host::acquainted();
    for seed in seeds() {
        for at in 12..seed.len().min(120) {
            for value in [0, 1, 0x0f, 0x40, 0x7f, 0x80, 0xf0, 0xff, seed[at].wrapping_add(1)] {
                let mut frame = seed.clone();
                frame[at] = value;
                let mut fixed = frame.clone();
                if fixed[12..14] == [8, 0] {
                    fix_v4(&mut fixed);
                }
                for frame in [frame, fixed] {
                    let mut packet = rx_packet(&frame, 60.min(frame.len()));
                    packet.rx_checksum = pagewire_mem::RxChecksum::Valid;
                    let _ = host.receive_packet(packet);
                    host.sent();
                }
            }
        }
    }
}

#[test]
fn every_frame_cut_at_every_byte_is_counted() {
    let mut host = Host::acquainted();
    for seed in seeds() {
        for len in 0..seed.len() {
            let before = host.net.counters.total_drops();
            assert!(host.receive(&seed[..len]).is_none());
            assert_eq!(host.net.counters.total_drops(), before + 1, "{len} of {seed:02x?}");
        }
    }
}

#[test]
fn payload_that_others_may_write_is_read_through_counted_snapshots_only() {
    let mut host = Host::new();
    let region = pagewire_mem::Region::memfd_shared("shared", 1 << 20).unwrap();
    let mut pool = PagePool::over(region).unwrap();
    let frame = udp_v4(&pattern(1000));
    let mut packet = rx_packet(&frame[..42], 42);
    let mut uncounted = CopyLedger::new();
    let (parts, _) =
        PageWriter::new().write(&mut pool, &frame[42..], &mut uncounted, CopyReason::AppWrite);
    for part in parts {
        assert!(part.as_slice().is_none());
        packet.push_frag(part).unwrap();
    }
    assert!(host.receive_packet(packet).is_some());
    assert_eq!(host.net.mem.ledger.get(CopyReason::Snapshot), 1000, "for the checksum");
    assert_eq!(host.net.mem.ledger.ours(), 1000);
}

/// The frame with 0 in its length field, and made `len` bytes of IP packet long.
fn without_length(mut frame: Vec<u8>, len: usize) -> PacketBuf {
    if frame[14] >> 4 == 4 {
        frame = with_v4_header(frame, |b| b[2..4].fill(0));
    } else {
        frame[18..20].fill(0);
    }
    let mut packet = rx_packet(&frame, frame.len().min(128));
    packet.push_frag(Frag::from_bytes(vec![0; 14 + len - frame.len()].into())).unwrap();
    packet.rx_checksum = RxChecksum::Valid;
    packet
}

#[test]
fn only_a_super_frame_of_tcp_may_leave_its_length_to_the_frame() {
    let tcp_v6 = || {
        let mut frame = vec![];
        let packet = PacketBuilder::ethernet2(PEER, US).ipv6(v6("fd00::2"), v6("fd00::1"), 64);
        packet.tcp(2000, 1000, 12345, 4000).write(&mut frame, &[]).unwrap();
        frame
    };
    let gso = |kind| Some(Gso { kind, size: 1400, header_len: 54 });
    let (v4, v6) = (gso(GsoKind::TcpV4), gso(GsoKind::TcpV6));
    // Four bytes more than a length can say: as much as a guest's frame may have without a VLAN tag.
    let frames = [
        (tcp_v4(&[]), 65_539, None),
        (udp_v4(&[]), 65_539, None),
        (echo_v4(&[]), 65_539, None),
        (with_v4_header(tcp_v4(&[]), |b| b[6] = 0x20), 65_539, None),
        (tcp_v6(), 65_539, None),
        (udp_v6(&[]), 65_539, None),
        (echo_v6(&[]), 65_539, None),
        (udp_v4(&[]), 300_000, v4),
        (echo_v4(&[]), 300_000, v4),
        (with_v4_header(tcp_v4(&[]), |b| b[6] = 0x20), 300_000, v4),
        (with_v4_header(tcp_v4(&[]), |b| b[7] = 1), 300_000, v4),
        (with_v4_header(tcp_v4(&[]), |b| b[9] = 132), 300_000, v4),
        (udp_v6(&[]), 300_000, v6),
        (echo_v6(&[]), 300_000, v6),
        (with_extensions(60, &[6, 0, 1, 4, 0, 0, 0, 0]), 300_000, v6),
    ];
    for (i, (frame, len, gso)) in frames.into_iter().enumerate() {
        let mut host = Host::acquainted();
        let mut packet = without_length(frame, len);
        packet.gso = gso;
        let before: u64 = host.net.counters.iter_drops().map(|(_, n)| n).sum();
        let taken = host.receive_packet(packet);
        assert!(taken.is_none(), "{i}: taken: {taken:?}");
        let after: u64 = host.net.counters.iter_drops().map(|(_, n)| n).sum();
        assert_eq!(after, before + 1, "{i}: {}", host.net.counters);
        assert!(host.sent().is_empty(), "{i}: answered");
    }
}
