//! Software offload against two oracles: another implementation of the headers, and the kernel's
//! own segmentation and checksumming (which needs root).

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv6Addr};

use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TcpSlice, TransportSlice};
use pagewire_device::offload::{
    OffloadError, Pieces, complete_checksum, cut_within, leave_checksum_open, linearize, segment,
    send_on, super_frame,
};
use pagewire_mem::checksum::Checksum;
use pagewire_mem::link::headers;
use pagewire_mem::{
    CopyLedger, CopyReason, Frag, Gso, GsoKind, PacketBuf, PagePool, PageWriter, RxChecksum,
    TxChecksum,
};
use pagewire_testkit::built;
use pagewire_testkit::frames::{bytes_of, ip, received};
use proptest::prelude::*;

/// A super-frame to be cut, or a frame that needs a checksum.
#[derive(Clone, Debug)]
struct Super {
    v6: bool,
    options: usize,
    flags: u8,
    seq: u32,
    mss: u16,
    /// Payload by fragment.
    pieces: Vec<usize>,
    /// Fragments lie in one buffer side by side, or each in its own.
    adjacent: bool,
}

fn supers() -> impl Strategy<Value = Super> {
    let sizes = prop_oneof![
        proptest::collection::vec(1..20_000_usize, 1..=4),
        proptest::collection::vec(1..3800_usize, 1..=17),
        proptest::collection::vec(1..40_usize, 1..=17),
        Just(vec![65_000]),
    ];
    (
        any::<bool>(),
        0..=10_usize,
        any::<u8>(),
        prop_oneof![any::<u32>(), Just(u32::MAX - 5000)],
        prop_oneof![536..1500_u16, 1..50_u16, 8000..9000_u16],
        sizes,
        any::<bool>(),
    )
        .prop_map(|(v6, options, flags, seq, mss, mut pieces, adjacent)| {
            let mut room = 65_000_usize.min(usize::from(mss) * 200);
            for piece in &mut pieces {
                *piece = (*piece).min(room);
                room -= *piece;
            }
            // The kernel refuses segments with SYN or RST in a super-frame.
            let flags = flags & !0x06 | 0x10;
            Super { v6, options: options * 4, flags, seq, mss, pieces, adjacent }
        })
}

impl Super {
    /// A plain one over IPv4, with an acknowledgement.
    fn of(mss: u16, pieces: &[usize]) -> Self {
        let (pieces, adjacent) = (pieces.to_vec(), true);
        Self { v6: false, options: 0, flags: 0x10, seq: 1, mss, pieces, adjacent }
    }

    fn payload(&self) -> Vec<u8> {
        let len = self.pieces.iter().sum();
        let mut x = self.seq | 1;
        let mut next = || {
            x ^= x << 13;
            x ^= x >> 17;
            x ^= x << 5;
            x as u8
        };
        (0..len).map(|_| next()).collect()
    }

    fn packet(&self) -> PacketBuf {
        let (v4, v6) =
            (|n| [10, 77, 0, n].into(), |n| Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, n).into());
        let ends: [IpAddr; 2] = if self.v6 { [v6(2), v6(1)] } else { [v4(2), v4(1)] };
        let mut options = vec![1; self.options];
        if let Some(stamp) = options.get_mut(..10) {
            stamp.copy_from_slice(&[8, 10, 1, 2, 3, 4, 5, 6, 7, 8]);
        }
        let payload = self.payload();
        let tcp =
            ip([[2, 0, 0, 0, 0, 7], [2, 0, 0, 0, 0, 8]], ends, 64).tcp(1000, 2000, self.seq, 500);
        let bytes = built!(tcp.ack(77).options_raw(&options).unwrap(), &payload);
        let headers = bytes.len() - payload.len();
        let mut packet = PacketBuf::for_tx();
        let head = packet.push(headers).unwrap();
        head.copy_from_slice(&bytes[..headers]);
        let start = if self.v6 { 54 } else { 34 };
        head[start + 13] = self.flags;
        if !self.v6 {
            head[18..22].copy_from_slice(&[0xff, 0xfe, 0x40, 0]);
            head[24..26].fill(0);
            let mut sum = Checksum::new();
            sum.add_bytes(&head[14..34]);
            head[24..26].copy_from_slice(&sum.finish().to_be_bytes());
        }
        let whole = Frag::from(bytes::Bytes::from(payload.clone()));
        let mut at = 0;
        for &n in &self.pieces {
            let piece = match self.adjacent {
                true => whole.slice(at..at + n),
                false => bytes::Bytes::copy_from_slice(&payload[at..at + n]).into(),
            };
            packet.push_frag(piece).unwrap();
            at += n;
        }
        leave_checksum_open(&mut packet);
        packet.tx_checksum = TxChecksum::Partial { start: start as u16, offset: 16 };
        let kind = if self.v6 { GsoKind::TcpV6 } else { GsoKind::TcpV4 };
        let gso = Gso { kind, size: self.mss, header_len: headers as u16 };
        packet.gso = Some(gso).filter(|_| payload.len() > usize::from(self.mss));
        packet
    }
}

fn tcp_of<'a>(parsed: &SlicedPacket<'a>) -> TcpSlice<'a> {
    let Some(TransportSlice::Tcp(tcp)) = &parsed.transport else { panic!("no TCP") };
    tcp.clone()
}

/// The checksum of TCP, as the other implementation computes it.
fn checksum_of(parsed: &SlicedPacket<'_>) -> u16 {
    let tcp = tcp_of(parsed);
    let sum = match &parsed.net {
        Some(NetSlice::Ipv4(ip)) => {
            tcp.to_header().calc_checksum_ipv4(&ip.header().to_header(), tcp.payload())
        }
        Some(NetSlice::Ipv6(ip)) => {
            tcp.to_header().calc_checksum_ipv6(&ip.header().to_header(), tcp.payload())
        }
        _ => panic!("no IP"),
    };
    sum.unwrap()
}

fn cut(packet: PacketBuf) -> (Vec<Vec<u8>>, CopyLedger) {
    let (mut out, mut ledger) = (VecDeque::new(), CopyLedger::new());
    let n = segment(packet, &mut out, &mut ledger).unwrap();
    assert_eq!(n, out.len());
    for wire in &out {
        assert_eq!((wire.gso, wire.tx_checksum), (None, TxChecksum::Done));
    }
    (out.iter().map(bytes_of).collect(), ledger)
}

proptest! {
    #[test]
    fn shorter_super_frames_are_cut_into_the_same_segments(
        s in supers(),
        longest in 100..70_000_usize,
    ) {
        let (whole, _) = cut(s.packet());
        let (mut out, mut ledger) = (VecDeque::new(), CopyLedger::new());
        let pieces =
            cut_within(s.packet(), &mut out, &mut ledger, longest, usize::MAX).unwrap();
        prop_assert_eq!(pieces.made, out.len());
        let segment_len = usize::from(s.mss) + 20 + s.options + if s.v6 { 40 } else { 20 };
        let mut frames = Vec::new();
        for piece in out {
            prop_assert!(piece.len() - 14 <= longest.max(segment_len));
            let is_super = piece.gso.is_some();
            prop_assert_eq!(is_super, piece.frag_len() > usize::from(s.mss));
            prop_assert_eq!(is_super, piece.tx_checksum != TxChecksum::Done);
            if is_super {
                // As a device would find it that takes a sum to be done for the whole.
                let mut alone = piece.clone();
                alone.gso = None;
                complete_checksum(&mut alone, &mut ledger).unwrap();
                let bytes = bytes_of(&alone);
                let parsed = SlicedPacket::from_ethernet(&bytes).unwrap();
                let tcp = tcp_of(&parsed);
                // Where the sum is 0, all ones are sent, which is the same.
                let sum = checksum_of(&parsed);
                prop_assert_eq!(tcp.checksum(), if sum == 0 { 0xffff } else { sum });
            }
            frames.extend(cut(piece).0);
        }
        prop_assert_eq!(frames, whole);
        prop_assert_eq!(ledger, CopyLedger::new());
    }

    #[test]
    fn a_super_frame_longer_than_ip_can_say_is_cut_like_another(s in supers(), longer in 1..8_usize) {
        // The length field is 0, and the payload is that of the other, several times.
        let payload = s.payload();
        let mut packet = s.packet();
        let field = if s.v6 { 18 } else { 16 };
        packet.head_mut()[field..field + 2].fill(0);
        let kind = if s.v6 { GsoKind::TcpV6 } else { GsoKind::TcpV4 };
        packet.gso = Some(Gso { kind, size: s.mss, header_len: packet.head().len() as u16 });
        for _ in 0..longer {
            let _ = packet.push_frag(bytes::Bytes::from(payload.clone()).into());
        }
        let total = packet.frag_len();
        let (frames, _) = cut(packet);
        prop_assert_eq!(frames.len(), total.div_ceil(usize::from(s.mss)).max(1));
        let mut at = 0;
        for frame in frames.iter().filter(|_| total > usize::from(s.mss)) {
            let parsed = SlicedPacket::from_ethernet(frame).unwrap();
            let tcp = tcp_of(&parsed);
            prop_assert_eq!(tcp.sequence_number(), s.seq.wrapping_add(at as u32));
            let expected: Vec<u8> =
                payload.iter().copied().cycle().skip(at % payload.len()).take(tcp.payload().len()).collect();
            prop_assert_eq!(tcp.payload(), &expected[..]);
            at += tcp.payload().len();
        }
    }

    #[test]
    fn segments_of_a_super_frame_are_what_another_implementation_would_write(s in supers()) {
        let (frames, ledger) = cut(s.packet());
        let (payload, mss) = (s.payload(), usize::from(s.mss));
        prop_assert_eq!(frames.len(), payload.len().div_ceil(mss).max(1));
        prop_assert_eq!(ledger, CopyLedger::new());
        let mut at = 0;
        for (i, frame) in frames.iter().enumerate() {
            let last = i + 1 == frames.len();
            let parsed = SlicedPacket::from_ethernet(frame).unwrap();
            let tcp = tcp_of(&parsed);
            let n = mss.min(payload.len() - at);
            prop_assert_eq!(tcp.payload(), &payload[at..at + n]);
            prop_assert_eq!(tcp.sequence_number(), s.seq.wrapping_add(at as u32));
            prop_assert_eq!(tcp.fin(), last && s.flags & 1 != 0);
            prop_assert_eq!(tcp.psh(), last && s.flags & 8 != 0);
            prop_assert_eq!(tcp.cwr(), i == 0 && s.flags & 0x80 != 0);
            prop_assert_eq!(tcp.ece(), s.flags & 0x40 != 0);
            match &parsed.net {
                Some(NetSlice::Ipv4(ip)) => {
                    let ip = ip.header().to_header();
                    prop_assert_eq!(ip.header_checksum, ip.calc_header_checksum());
                    prop_assert_eq!(usize::from(ip.total_len), frame.len() - 14);
                    prop_assert_eq!(ip.identification, 0xfffe_u16.wrapping_add(i as u16));
                    prop_assert!(ip.dont_fragment);
                }
                Some(NetSlice::Ipv6(ip)) => {
                    let ip = ip.header().to_header();
                    prop_assert_eq!(usize::from(ip.payload_length), frame.len() - 54);
                }
                _ => panic!("no IP"),
            }
            // In one's complement, all ones and all zeroes are the same number.
            let sum = checksum_of(&parsed);
            prop_assert!(sum == tcp.checksum() || sum ^ tcp.checksum() == 0xffff);
            at += n;
        }
        prop_assert_eq!(at, payload.len());
    }

    #[test]
    fn linearized_packet_has_the_same_bytes_and_counts_its_copy(s in supers(), max in 0..3_usize) {
        let mut pool = PagePool::new("test", 1 << 20).unwrap();
        let (mut writer, mut ledger) = (PageWriter::new(), CopyLedger::new());
        let mut packet = s.packet();
        let (before, frags) = (bytes_of(&packet), packet.frags().len());
        prop_assert!(linearize(&mut packet, max, &mut pool, &mut writer, &mut ledger));
        prop_assert_eq!(bytes_of(&packet), before);
        if frags > max {
            prop_assert!(packet.frags().len() <= 1);
            prop_assert!(max > 0 || packet.head().is_empty() || packet.frags().is_empty());
            let payload = s.pieces.iter().sum::<usize>() as u64;
            prop_assert_eq!(ledger.get(CopyReason::DeviceLinearize), payload);
        } else {
            prop_assert_eq!(ledger.ours(), 0);
        }
        drop(packet);
        prop_assert!(pool.audit().is_conserved());
    }
}

#[test]
fn segments_share_the_super_frames_memory() {
    let s = Super { options: 12, flags: 0x18, ..Super::of(1448, &[60_000]) };
    let packet = s.packet();
    let start = packet.frags()[0].addr();
    let mut out = VecDeque::new();
    segment(packet, &mut out, &mut CopyLedger::new()).unwrap();
    let mut at = start;
    for wire in out {
        assert_eq!(wire.frags()[0].addr(), at);
        at += wire.frag_len();
    }
    assert_eq!(at, start + 60_000);
}

#[test]
fn linearize_without_memory_leaves_the_packet_as_it_was() {
    let mut pool = PagePool::new("test", 256 << 10).unwrap();
    let (mut hog, mut writer) = (PageWriter::new(), PageWriter::new());
    assert!(hog.refill(&mut pool, 60));
    let s = Super { adjacent: false, ..Super::of(1448, &[30_000, 30_000]) };
    let (mut packet, mut ledger) = (s.packet(), CopyLedger::new());
    let before = bytes_of(&packet);
    assert!(!linearize(&mut packet, 1, &mut pool, &mut writer, &mut ledger));
    assert_eq!(bytes_of(&packet), before);
    assert_eq!(ledger, CopyLedger::new());
}

#[test]
fn contradictory_super_frames_are_refused_and_leave_nothing() {
    let good = Super::of(1000, &[3000]);
    let gso = Gso { kind: GsoKind::TcpV4, size: 1000, header_len: 54 };
    let refused = |change: &dyn Fn(&mut PacketBuf)| {
        let mut packet = good.packet();
        assert_eq!(packet.gso, Some(gso));
        change(&mut packet);
        let mut out = VecDeque::new();
        let error = segment(packet, &mut out, &mut CopyLedger::new()).unwrap_err();
        assert!(out.is_empty());
        error
    };
    let headers = OffloadError::Headers;
    assert_eq!(refused(&|p| p.gso = Some(Gso { size: 0, ..gso })), OffloadError::Size);
    assert_eq!(refused(&|p| p.gso = Some(Gso { header_len: 53, ..gso })), headers);
    assert_eq!(refused(&|p| p.gso = Some(Gso { kind: GsoKind::TcpV6, ..gso })), headers);
    assert_eq!(refused(&|p| p.truncate_head(53)), headers);
    assert_eq!(refused(&|p| p.truncate_head(0)), headers);
    assert_eq!(refused(&|p| p.head_mut()[23] = 17), headers);
    assert_eq!(refused(&|p| p.head_mut()[46] = 0x40), headers);
    assert_eq!(refused(&|p| p.head_mut()[14] = 0x44), headers);
    let one = |p: &mut PacketBuf| {
        p.gso = None;
        p.tx_checksum = TxChecksum::Partial { start: 34, offset: 19 };
    };
    assert_eq!(refused(&one), OffloadError::Checksum);
}

/// The bytes that are lost are no matter of luck: the first frames are those that would have been made, and
/// the last frame of the stream is not made up.
#[test]
fn a_cut_with_little_room_makes_the_first_frames_and_counts_the_rest() {
    let whole = Super { flags: 0x19, ..Super::of(1000, &[9500]) };
    let (all, _) = cut(whole.packet());
    for most in 0..=12 {
        let mut out = VecDeque::new();
        let pieces = cut_within(whole.packet(), &mut out, &mut CopyLedger::new(), 0, most).unwrap();
        let made = most.min(10);
        assert_eq!(pieces, Pieces { made, left_out: 10 - made });
        assert!(out.iter().map(bytes_of).eq(all[..made].iter().cloned()));
    }
}

/// The frame of a ping, a datagram or a segment, complete, and where its checksum is.
fn frames_with_checksums() -> Vec<(Vec<u8>, usize)> {
    let link = || PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
    let v4 = || link().ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
    let v6 = || link().ipv6([1; 16], [2; 16], 64);
    let payload = [7; 301];
    let mut all = Vec::new();
    let mut add = |at: usize, write: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = Vec::new();
        write(&mut frame);
        all.push((frame, at));
    };
    add(36, &|f| v4().icmpv4_echo_request(1, 2).write(f, &payload).unwrap());
    add(36, &|f| v4().icmpv4_echo_reply(1, 2).write(f, &payload[..1]).unwrap());
    add(56, &|f| v6().icmpv6_echo_request(1, 2).write(f, &payload).unwrap());
    add(40, &|f| v4().udp(1, 2).write(f, &payload).unwrap());
    add(60, &|f| v6().udp(1, 2).write(f, &payload).unwrap());
    add(50, &|f| v4().tcp(1, 2, 3, 4).write(f, &payload).unwrap());
    add(70, &|f| v6().tcp(1, 2, 3, 4).write(f, &payload).unwrap());
    all
}

#[test]
fn a_bridge_leaves_a_checksum_that_was_never_taken_to_the_next_device() {
    for (whole, field) in frames_with_checksums() {
        // The sender left the checksum open, with any value; the link between vouched for it.
        let mut open = whole.clone();
        open[field..field + 2].copy_from_slice(&[0x5a, 0xa5]);
        let ip = if whole[12] == 8 { 34 } else { 54 };
        for head in [ip, whole.len().min(128)] {
            if head == ip && !matches!(field - ip, 2) {
                continue;
            }
            let mut packet = received(&open, head);
            packet.rx_checksum = RxChecksum::Valid;
            send_on(&mut packet);
            complete_checksum(&mut packet, &mut CopyLedger::new()).unwrap();
            assert_eq!(bytes_of(&packet), whole, "checksum at {field}, {head} bytes in the head");
        }
    }
}

#[test]
fn a_bridge_leaves_the_checksum_of_a_fragment_alone() {
    for (mut whole, field) in frames_with_checksums().into_iter().filter(|(f, _)| f[12] == 8) {
        whole[20] = 0x20;
        let mut packet = received(&whole[..100.min(whole.len())], 100);
        packet.rx_checksum = RxChecksum::Valid;
        send_on(&mut packet);
        assert_eq!(packet.tx_checksum, TxChecksum::Done);
        let there = field + 2 <= packet.head().len();
        assert!(there && packet.head()[field..field + 2] == whole[field..field + 2]);
    }
}

#[test]
fn checksum_of_zero_is_sent_as_all_ones() {
    // Two bytes of payload that bring the sum to zero, found by trying all.
    for word in 0..=u16::MAX {
        let mut packet = PacketBuf::for_tx();
        packet.push(8).unwrap()[6..8].copy_from_slice(&0x1234_u16.to_be_bytes());
        packet.tx_checksum = TxChecksum::Partial { start: 0, offset: 6 };
        packet.push_frag(bytes::Bytes::copy_from_slice(&word.to_be_bytes()).into()).unwrap();
        complete_checksum(&mut packet, &mut CopyLedger::new()).unwrap();
        assert_ne!(packet.head()[6..8], [0, 0]);
    }
}

/// A super-frame of datagrams of `size` bytes over either version of IP.
fn datagrams(v6: bool, size: u16, pieces: &[usize]) -> PacketBuf {
    let payload: Vec<u8> =
        (0..pieces.iter().sum()).map(|i: usize| (i * 7 + i / 251) as u8).collect();
    let link = || PacketBuilder::ethernet2([2, 0, 0, 0, 0, 7], [2, 0, 0, 0, 0, 8]);
    let mut frame = Vec::new();
    let built = match v6 {
        false => {
            link().ipv4([10, 77, 0, 2], [10, 77, 0, 1], 64).udp(1, 2).write(&mut frame, &payload)
        }
        true => link().ipv6([2; 16], [1; 16], 64).udp(1, 2).write(&mut frame, &payload),
    };
    built.unwrap();
    let headers = frame.len() - payload.len();
    let mut packet = PacketBuf::for_tx();
    packet.push(headers).unwrap().copy_from_slice(&frame[..headers]);
    let (whole, mut at) = (Frag::from(bytes::Bytes::from(payload)), 0);
    for &n in pieces {
        packet.push_frag(whole.slice(at..at + n)).unwrap();
        at += n;
    }
    leave_checksum_open(&mut packet);
    let gso = Gso { kind: GsoKind::Udp, size, header_len: headers as u16 };
    packet.gso = Some(gso).filter(|_| at > usize::from(size));
    packet
}

fn super_datagrams() -> impl Strategy<Value = PacketBuf> {
    let size = prop_oneof![1..40_u16, 500..1472_u16, 8000..9000_u16];
    let pieces = proptest::collection::vec(1..6000_usize, 1..=10);
    (any::<bool>(), size, pieces).prop_map(|(v6, size, mut pieces)| {
        let mut room = 65_000_usize.min(usize::from(size) * 128);
        pieces.iter_mut().for_each(|n| {
            *n = (*n).min(room);
            room -= *n;
        });
        datagrams(v6, size, &pieces)
    })
}

proptest! {
    #[test]
    fn datagrams_of_a_super_frame_are_what_another_implementation_would_write(
        packet in super_datagrams(),
        longest in 0..70_000_usize,
    ) {
        let (len, size) = (packet.frag_len(), packet.gso.map_or(usize::MAX, |gso| gso.size.into()));
        let payload = bytes_of(&packet)[packet.head().len()..].to_vec();
        let (mut parts, mut ledger) = (VecDeque::new(), CopyLedger::new());
        cut_within(packet.clone(), &mut parts, &mut ledger, longest, usize::MAX).unwrap();
        let (frames, _) = cut(packet);
        // Cut in two steps, they are the same.
        let twice: Vec<_> = parts.into_iter().flat_map(|part| cut(part).0).collect();
        prop_assert_eq!(&twice, &frames);
        prop_assert_eq!(frames.len(), len.div_ceil(size.min(len)));
        let mut seen = Vec::new();
        for (i, frame) in frames.iter().enumerate() {
            let parsed = SlicedPacket::from_ethernet(frame).unwrap();
            let Some(TransportSlice::Udp(udp)) = &parsed.transport else { panic!("no UDP") };
            seen.extend_from_slice(udp.payload());
            prop_assert_eq!(usize::from(udp.length()), udp.payload().len() + 8);
            prop_assert!(udp.payload().len() == size.min(len) || i + 1 == frames.len());
            let sum = match &parsed.net {
                Some(NetSlice::Ipv4(ip)) => {
                    let ip = ip.header().to_header();
                    prop_assert_eq!(ip.header_checksum, ip.calc_header_checksum());
                    prop_assert_eq!(usize::from(ip.total_len), frame.len() - 14);
                    prop_assert_eq!(usize::from(ip.identification), i);
                    udp.to_header().calc_checksum_ipv4(&ip, udp.payload())
                }
                Some(NetSlice::Ipv6(ip)) => {
                    let ip = ip.header().to_header();
                    prop_assert_eq!(usize::from(ip.payload_length), frame.len() - 54);
                    udp.to_header().calc_checksum_ipv6(&ip, udp.payload())
                }
                _ => panic!("no IP"),
            };
            prop_assert_eq!(udp.checksum(), sum.unwrap());
        }
        prop_assert!(seen == payload);
    }
}

#[test]
fn a_writer_s_super_frame_is_checked_against_its_headers() {
    let judge = |kind, size, change: &dyn Fn(&mut Vec<u8>)| {
        let packet = datagrams(false, 1000, &[2500]);
        let mut bytes = bytes_of(&packet);
        change(&mut bytes);
        let layout = headers::parse(&bytes).ok();
        super_frame((kind, size), layout.as_ref(), &bytes[..42], bytes.len())
    };
    let same = |_: &mut Vec<u8>| {};
    let good = Gso { kind: GsoKind::Udp, size: 1000, header_len: 42 };
    assert_eq!(judge(GsoKind::Udp, 1000, &same), Ok(good));
    // 2,500 bytes in 128 datagrams take 20 bytes each.
    for size in [0, 1, 19] {
        assert_eq!(judge(GsoKind::Udp, size, &same), Err(OffloadError::Size));
    }
    assert!(judge(GsoKind::Udp, 20, &same).is_ok());
    let headers = Err(OffloadError::Headers);
    assert_eq!(judge(GsoKind::TcpV4, 1000, &same), headers);
    // A fragment; another protocol; lengths of UDP and of IP that lie; a frame with padding.
    assert_eq!(judge(GsoKind::Udp, 1000, &|b| b[20] = 0x20), headers);
    assert_eq!(judge(GsoKind::Udp, 1000, &|b| b[23] = 6), headers);
    assert_eq!(judge(GsoKind::Udp, 1000, &|b| b[39] ^= 1), headers);
    assert_eq!(judge(GsoKind::Udp, 1000, &|b| b[17] ^= 1), headers);
    assert_eq!(judge(GsoKind::Udp, 1000, &|b| b[16..18].fill(0)), headers);
    assert_eq!(judge(GsoKind::Udp, 1000, &|b| b.push(0)), headers);
}

#[test]
fn datagrams_are_the_bytes_that_the_kernel_writes() {
    crate::support::in_namespace(|| {
        let oracle = crate::support::KernelOracle::new();
        let mut runner = proptest::test_runner::TestRunner::default();
        let same = |packet: PacketBuf| {
            let expect = oracle.cut(&packet, &bytes_of(&packet));
            prop_assert_eq!(cut(packet).0, expect);
            Ok(())
        };
        runner.run(&super_datagrams(), same).unwrap();
    });
}

/// The kernel cuts super-frames and completes checksums for a device that can do neither: a tap
/// without offloads, onto which a packet socket hands frames with virtio headers.
#[test]
fn segments_and_checksums_are_the_bytes_that_the_kernel_writes() {
    crate::support::in_namespace(|| {
        let oracle = crate::support::KernelOracle::new();
        let mut runner = proptest::test_runner::TestRunner::default();
        runner
            .run(&supers(), |s| {
                let packet = s.packet();
                let expect = oracle.cut(&packet, &bytes_of(&packet));
                let (frames, _) = cut(packet);
                prop_assert_eq!(frames.len(), expect.len());
                for (ours, theirs) in frames.iter().zip(&expect) {
                    prop_assert_eq!(ours, theirs);
                }
                Ok(())
            })
            .unwrap();
    });
}
