//! The driver over a datagram socket, which keeps frames apart as a tap does: no root needed.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;

use pagewire_mem::{
    CopyLedger, CopyReason, Frag, Gso, GsoKind, Instant, PAGE_SIZE, PacketBuf, PagePool, Region,
    RxChecksum, TxChecksum,
};
use pagewire_testkit::{frames::bytes_of, given};
use proptest::prelude::*;

use super::limits::{MAX_FRAME, MIN_POOL_BYTES, SMALL_PAYLOAD, VNET_HEADER};
use super::*;
use pagewire_mem::link::HeaderSplit;

const PLAIN: [u8; VNET_HEADER] = [0; VNET_HEADER];

struct Rig {
    tap: Tap,
    kernel: UnixDatagram,
    ledger: CopyLedger,
}

impl Rig {
    fn new() -> Self {
        Self::with_pool(8 << 20)
    }

    fn with_pool(bytes: usize) -> Self {
        let (ours, kernel) = UnixDatagram::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        kernel.set_nonblocking(true).unwrap();
        let offloading = Capabilities::offloading([2, 0, 0, 0, 0, 1], 1500);
        let capabilities = Capabilities { header_split: HeaderSplit::Predicted, ..offloading };
        let pool = PagePool::new("test", bytes).unwrap();
        let queues = TapQueues::new(OwnedFd::from(ours), Vec::new()).unwrap();
        let tap = Tap::over(queues, "test".into(), [2, 0, 0, 0, 0, 2], capabilities, pool);
        Self { tap, kernel, ledger: CopyLedger::new() }
    }

    /// Lets the driver receive one frame; `None` if it was dropped.
    fn receive(&mut self, header: [u8; VNET_HEADER], frame: &[u8]) -> Option<PacketBuf> {
        self.kernel.send(&[&header[..], frame].concat()).unwrap();
        let mut out = VecDeque::new();
        let n = self.tap.receive(Instant::ZERO, &mut out, 4, &mut self.ledger).unwrap();
        assert_eq!(n, out.len());
        out.pop_front()
    }

    fn take(&mut self, frame: &Frame) -> PacketBuf {
        let packet = self.receive(PLAIN, &frame.bytes()).expect("not dropped");
        assert_eq!(bytes_of(&packet), frame.bytes());
        packet
    }

    fn transmit(&mut self, packet: PacketBuf) -> VecDeque<PacketBuf> {
        let mut frames = VecDeque::from([packet]);
        self.tap.transmit(Instant::ZERO, &mut frames, &mut self.ledger).unwrap();
        frames
    }

    /// The bytes that the kernel got, virtio header first.
    fn sent(&self) -> Vec<u8> {
        let mut buffer = vec![0; 70_000];
        let n = self.kernel.recv(&mut buffer).unwrap();
        buffer.truncate(n);
        buffer
    }
}

/// A frame to be received.
#[derive(Clone, Debug)]
struct Frame {
    v6: bool,
    vlan: bool,
    protocol: u8,
    ports: u16,
    seq: u32,
    flags: u8,
    options: usize,
    payload: usize,
}

impl Frame {
    /// A segment with time stamps, like those of a bulk flow.
    fn tcp(seq: u32, payload: usize) -> Self {
        let (ports, flags, options) = (80, 0x10, 12);
        Self { v6: false, vlan: false, protocol: 6, ports, seq, flags, options, payload }
    }

    fn headers(&self) -> usize {
        let transport = match self.protocol {
            6 => 20 + self.options,
            17 => 8,
            _ => 0,
        };
        14 + 4 * usize::from(self.vlan) + if self.v6 { 40 } else { 20 } + transport
    }

    fn bytes(&self) -> Vec<u8> {
        let mut f = vec![0xee; 12];
        if self.vlan {
            f.extend([0x81, 0, 0, 7]);
        }
        let ip = f.len() + 2;
        if self.v6 {
            f.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            let length = self.headers() - ip - 40 + self.payload;
            f.extend((length as u16).to_be_bytes());
            f.extend([self.protocol, 64]);
            f.extend([0xfd; 32]);
        } else {
            f.extend([8, 0, 0x45, 0]);
            f.extend(((self.headers() - ip + self.payload) as u16).to_be_bytes());
            f.extend([0, 0, 0, 0, 64, self.protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        }
        f.extend(self.ports.to_be_bytes());
        f.extend(self.ports.to_be_bytes());
        f.extend(self.seq.to_be_bytes());
        f.extend([0; 4]);
        f.extend([((20 + self.options) as u8 / 4) << 4, self.flags, 0, 0, 0, 0, 0, 0]);
        f.extend([1, 1, 8, 10]);
        f.resize(self.headers(), 1);
        let seed = self.seq as usize;
        f.extend((0..self.payload).map(|i| ((seed + i) * 7 + ((seed + i) >> 8)) as u8));
        f
    }
}

/// A packet to send: a head of `head` bytes and fragments.
fn outgoing(head: usize, frags: &[&[u8]]) -> PacketBuf {
    let mut packet = PacketBuf::for_tx();
    packet.push(head).unwrap().fill(7);
    for bytes in frags {
        packet.push_frag(bytes::Bytes::copy_from_slice(bytes).into()).unwrap();
    }
    packet
}

#[test]
fn steady_bulk_flow_fills_adjacent_pages_from_a_page_boundary() {
    for payload in [61_440, 65_160, 1448] {
        let mut rig = Rig::new();
        let (mut seq, mut at) = (1, None);
        for _ in 0..200 {
            let packet = rig.take(&Frame::tcp(seq, payload));
            let frag = &packet.frags()[0];
            match at {
                None => assert!(frag.is_page_aligned()),
                Some(at) => assert!(frag.addr() == at || frag.is_page_aligned()),
            }
            assert!(packet.frags().len() <= 2);
            at = packet.frags().last().map(|f| f.addr() + f.len());
            seq += payload as u32;
        }
        let counters = rig.tap.counters();
        assert_eq!(counters.rx_aligned_bytes, 200 * payload as u64);
        assert_eq!(counters.rx_payload_bytes, 200 * payload as u64);
        assert_eq!(counters.rx_mispredicted, 0);
        assert_eq!(rig.ledger.ours(), 0);
        assert_eq!(rig.ledger.get(CopyReason::DeviceRx), 200 * payload as u64);
    }
}

given! {
    let mut rig = Rig::new();

    small_frames_between_bulk_frames_do_not_disturb_them_nor_pin_a_page_each {
        let (mut seq, mut small) = (1, Vec::new());
        for i in 0..100 {
            rig.take(&Frame::tcp(seq, 61_440));
            seq += 61_440;
            // Another flow: an acknowledgement, and a little data.
            rig.take(&Frame { ports: 81, ..Frame::tcp(i, 0) });
            small.push(rig.take(&Frame { ports: 81, ..Frame::tcp(i, 100) }));
        }
        let counters = rig.tap.counters();
        assert_eq!(counters.rx_aligned_bytes, 100 * 61_440);
        assert_eq!(rig.ledger.get(CopyReason::SmallSegment), 100 * 100);
        let pages: std::collections::HashSet<_> =
            small.iter().flat_map(|p| p.frags()).map(|f| f.addr() / PAGE_SIZE).collect();
        assert!(pages.len() <= 4, "{} pages for 10,000 bytes", pages.len());
    }
    tail_of_a_bulk_flow_stays_behind_it_however_small {
        let bulk = rig.take(&Frame::tcp(1, 10_000));
        let tail = rig.take(&Frame::tcp(10_001, 5));
        assert!(bulk.frags()[0].is_followed_by(&tail.frags()[0]));
        assert_eq!(rig.ledger.ours(), 0);
    }
    flows_that_take_turns_start_on_fresh_pages {
        for i in 0..50 {
            for ports in [80, 81] {
                rig.take(&Frame { ports, ..Frame::tcp(1 + i * 65_160, 65_160) });
            }
        }
        let counters = rig.tap.counters();
        assert!(counters.rx_aligned_bytes >= counters.rx_payload_bytes * 98 / 100);
    }
    short_segments_of_flows_that_take_turns_share_pages {
        let mut held = Vec::new();
        for i in 0..200 {
            for ports in [80, 81] {
                held.push(rig.take(&Frame { ports, ..Frame::tcp(1 + i * 1448, 1448) }));
            }
        }
        let least = held.len() * 1448 / PAGE_SIZE;
        assert!(rig.tap.pool_audit().unwrap().out < 2 * least, "one page each would be 400");
    }
    connection_that_begins_gets_a_fresh_page_and_its_own_header_length {
        for v6 in [false, true] {
            rig.take(&Frame { v6, flags: 0x12, ..Frame::tcp(0, 0) });
            let data = rig.take(&Frame { v6, ..Frame::tcp(1, 20_001) });
            assert!(data.frags()[0].is_page_aligned());
            assert_eq!(data.head().len(), data.len() - 20_001);
        }
        assert_eq!(rig.tap.counters().rx_mispredicted, 0);
        assert_eq!(rig.tap.counters().rx_aligned_bytes, 40_002);
    }
    control_frames_need_no_page {
        let mut arp = vec![0xff; 42];
        arp[12..14].copy_from_slice(&[8, 6]);
        let icmp = Frame { protocol: 1, ..Frame::tcp(0, 64) };
        let neighbour = Frame { protocol: 58, v6: true, ..Frame::tcp(0, 32) };
        for bytes in [arp, icmp.bytes(), neighbour.bytes()] {
            let packet = rig.receive(PLAIN, &bytes).unwrap();
            assert_eq!(packet.head(), bytes);
            assert!(packet.frags().is_empty());
        }
    }
    padding_is_kept_and_is_no_payload {
        let mut bytes = Frame::tcp(1, 1000).bytes();
        bytes.extend([0; 46]);
        let packet = rig.receive(PLAIN, &bytes).unwrap();
        assert_eq!(bytes_of(&packet), bytes);
        assert_eq!(rig.tap.counters().rx_payload_bytes, 1000);
    }
    longest_frame_fits_and_a_longer_one_is_malformed {
        for i in 0..30 {
            let longest = Frame::tcp(i, MAX_FRAME - 66);
            assert_eq!(longest.bytes().len(), MAX_FRAME);
            rig.take(&longest);
        }
        let mut bytes = Frame::tcp(0, MAX_FRAME - 66).bytes();
        bytes.push(0);
        assert!(rig.receive(PLAIN, &bytes).is_none());
        assert_eq!(rig.tap.counters().rx_dropped_malformed, 1);
    }
    frame_is_sent_with_its_virtio_header_head_and_fragments_in_one_piece {
        let mut packet = outgoing(66, &[&[1; 3000], &[2; 500]]);
        packet.head_mut()[34 + 13] = 0x90;
        packet.tx_checksum = TxChecksum::Partial { start: 34, offset: 16 };
        packet.gso = Some(Gso { kind: GsoKind::TcpV6, size: 1000, header_len: 66 });
        assert!(rig.transmit(packet).is_empty());
        let sent = rig.sent();
        let mut expect = vec![1, 0x84];
        for word in [66_u16, 1000, 34, 16] {
            expect.extend(word.to_ne_bytes());
        }
        expect.extend([7; 47]);
        expect.push(0x90);
        expect.extend([7; 18]);
        expect.extend([1; 3000]);
        expect.extend([2; 500]);
        assert_eq!(sent, expect);
        let counters = rig.tap.counters();
        assert_eq!((counters.tx_frames, counters.tx_bytes, counters.syscalls), (1, 3566, 1));
        assert_eq!(rig.ledger.get(CopyReason::DeviceTx), 3500);
        assert_eq!(rig.ledger.ours(), 0);
    }
    super_frame_of_one_segment_is_sent_as_an_ordinary_frame {
        let mut packet = outgoing(66, &[&[1; 1000]]);
        packet.gso = Some(Gso { kind: GsoKind::TcpV4, size: 1000, header_len: 66 });
        assert!(rig.transmit(packet).is_empty());
        assert_eq!(rig.sent()[..VNET_HEADER], PLAIN);
    }
    frames_without_room_stay_in_order_at_the_front {
        let mut frames: VecDeque<_> = (0..100).map(|i| outgoing(60, &[&[i; 5000]])).collect();
        rig.tap.transmit(Instant::ZERO, &mut frames, &mut rig.ledger).unwrap();
        let sent = rig.tap.counters().tx_frames as usize;
        assert!(sent > 0 && frames.len() == 100 - sent, "{sent} sent");
        assert_eq!(frames[0].frags()[0].as_slice().unwrap()[0], sent as u8);
        let mut seen = 0;
        while seen < 100 {
            assert_eq!(rig.sent()[VNET_HEADER + 60], seen);
            seen += 1;
            rig.tap.transmit(Instant::ZERO, &mut frames, &mut rig.ledger).unwrap();
        }
        assert!(frames.is_empty());
    }
    frames_that_can_never_be_sent_are_counted_and_do_not_stop_the_rest {
        let gso = Gso { kind: GsoKind::TcpV4, size: 1000, header_len: 66 };
        let partial = TxChecksum::Partial { start: 34, offset: 16 };
        let mut frames = VecDeque::new();
        let mut bad = |change: &dyn Fn(&mut PacketBuf)| {
            let mut packet = outgoing(66, &[&[1; 3000]]);
            (packet.gso, packet.tx_checksum) = (Some(gso), partial);
            change(&mut packet);
            frames.push_back(packet);
        };
        bad(&|p| p.gso = Some(Gso { size: 0, ..gso }));
        bad(&|p| p.gso = Some(Gso { header_len: 65, ..gso }));
        bad(&|p| p.tx_checksum = TxChecksum::Done);
        bad(&|p| p.tx_checksum = TxChecksum::Partial { start: 60, offset: 5 });
        bad(&|p| p.push_frag(Frag::from_static(&[0; 65_000])).unwrap());
        // A file that was cut short under its mapping: the kernel finds no page.
        let file = std::fs::File::from(
            rustix::fs::memfd_create("short", rustix::fs::MemfdFlags::CLOEXEC).unwrap(),
        );
        file.set_len(8192).unwrap();
        let region = Region::file(&file, 0, 8192).unwrap();
        file.set_len(0).unwrap();
        bad(&|p| p.push_frag(region.frag(0, 8192).unwrap()).unwrap());
        bad(&|_| ());
        rig.tap.transmit(Instant::ZERO, &mut frames, &mut rig.ledger).unwrap();
        assert!(frames.is_empty());
        let counters = rig.tap.counters();
        assert_eq!((counters.tx_dropped_error, counters.tx_frames), (6, 1));
        assert_eq!(rig.sent().len(), VNET_HEADER + 3066);
    }
}

#[test]
fn wrong_prediction_costs_alignment_once_and_never_a_byte() {
    for options in [0, 8, 24, 40] {
        let mut rig = Rig::new();
        rig.take(&Frame::tcp(1, 8192));
        let frame = Frame { options, ..Frame::tcp(8193, 8192) };
        let packet = rig.take(&frame);
        assert_eq!(packet.head().len(), frame.headers());
        assert_eq!(rig.tap.counters().rx_mispredicted, 1);
        assert_eq!(rig.tap.counters().rx_aligned_bytes, 8192);
        // Payload that had landed behind shorter headers was moved, and counted.
        let moved = 12_u64.saturating_sub(options as u64);
        assert_eq!(rig.ledger.get(CopyReason::LinearHead), moved);
        // The next is right again.
        rig.take(&Frame { options, ..Frame::tcp(16_385, 8192) });
        assert_eq!(rig.tap.counters().rx_aligned_bytes, 16_384);
    }
}

#[test]
fn virtio_headers_that_lie_are_counted_drops() {
    let frame = Frame::tcp(1, 3000).bytes();
    let len = frame.len() as u16;
    let header = |flags: u8, kind: u8, hdr_len: u16, size: u16, start: u16, offset: u16| {
        let mut h = vec![flags, kind];
        for word in [hdr_len, size, start, offset] {
            h.extend(word.to_ne_bytes());
        }
        <[u8; VNET_HEADER]>::try_from(h).unwrap()
    };
    let lies = [
        header(1, 1, 66, 0, 34, 16),         // segments of no size
        header(1, 1, 66, 7, 34, 16),         // and of less than any connection's
        header(1, 1, len + 1, 1448, 34, 16), // headers longer than the frame
        header(1, 4, 66, 1448, 34, 16),      // IPv6, it says
        header(1, 3, 66, 1448, 34, 16),      // UDP fragmentation, never offered
        header(1, 5, 66, 1448, 34, 6),       // datagrams, it says
        header(1, 0x80, 0, 0, 34, 16),       // ECN of nothing
        header(1, 0, 0, 0, len - 1, 0),      // field beyond the frame
        header(1, 0, 0, 0, 34, 0xffff),
        header(1, 0, 0, 0, 0xffff, 0xffff),
    ];
    let mut rig = Rig::new();
    for (i, lie) in lies.into_iter().enumerate() {
        assert!(rig.receive(lie, &frame).is_none(), "{lie:?}");
        assert_eq!(rig.tap.counters().rx_dropped_malformed, i as u64 + 1);
    }
    // A super-frame of something that is no TCP.
    let udp = Frame { protocol: 17, ..Frame::tcp(0, 3000) }.bytes();
    assert!(rig.receive(header(1, 1, 42, 1448, 34, 6), &udp).is_none());
    // Datagrams whose header says another length; more of them than a call may send.
    assert!(rig.receive(header(1, 5, 42, 1448, 34, 6), &udp).is_none());
    let udp = Frame { protocol: 17, ..Frame::tcp(3008 << 16, 3000) }.bytes();
    assert!(rig.receive(header(1, 5, 42, 23, 34, 6), &udp).is_none());
    // Cut short, down to nothing.
    for n in 1..=VNET_HEADER {
        rig.kernel.send(&vec![0; n]).unwrap();
        let mut out = VecDeque::new();
        assert_eq!(rig.tap.receive(Instant::ZERO, &mut out, 4, &mut rig.ledger).unwrap(), 0);
    }
    assert_eq!(rig.tap.counters().rx_dropped_malformed, 23);
    // The truth passes, with what it says.
    let packet = rig.receive(header(1, 0x81, 66, 1448, 34, 16), &frame).unwrap();
    assert_eq!(packet.gso, Some(Gso { kind: GsoKind::TcpV4, size: 1448, header_len: 66 }));
    assert_eq!(packet.rx_checksum, RxChecksum::Valid);
    let packet = rig.receive(header(1, 5, 42, 24, 34, 6), &udp).unwrap();
    assert_eq!(packet.gso, Some(Gso { kind: GsoKind::Udp, size: 24, header_len: 42 }));
    let packet = rig.receive(header(2, 0, 0, 0, 0, 0), &frame).unwrap();
    assert_eq!((packet.gso, packet.rx_checksum), (None, RxChecksum::Valid));
    let packet = rig.receive(PLAIN, &frame).unwrap();
    assert_eq!(packet.rx_checksum, RxChecksum::Unknown);
}

#[test]
fn without_pages_data_is_a_counted_drop_and_acknowledgements_still_come_in() {
    let mut rig = Rig::with_pool(MIN_POOL_BYTES);
    let (mut held, mut seq) = (Vec::new(), 1);
    while let Some(packet) = rig.receive(PLAIN, &Frame::tcp(seq, 60_000).bytes()) {
        held.push(packet);
        seq += 60_000;
    }
    assert!(held.len() >= MIN_POOL_BYTES / 65_536 - 2, "{} frames held", held.len());
    assert_eq!(rig.tap.counters().rx_dropped_memory, 1);
    let ack = rig.take(&Frame::tcp(seq, 0));
    assert!(ack.frags().is_empty());
    assert!(rig.tap.pool_audit().unwrap().is_conserved());
    held.truncate(held.len() - 4);
    rig.take(&Frame::tcp(seq, 60_000));
}

#[test]
fn scattered_free_pages_still_hold_a_frame() {
    let mut rig = Rig::with_pool(MIN_POOL_BYTES);
    // Every other frame of about a page is kept, the rest goes home.
    let (mut held, mut seq) = (Vec::new(), 1);
    for i in 0..230 {
        let packet = rig.take(&Frame::tcp(seq, 4096));
        seq += 4096;
        if i % 2 == 0 {
            held.push(packet);
        }
    }
    drop(held.split_off(80));
    let mut whole = 0;
    for _ in 0..40 {
        if let Some(packet) = rig.receive(PLAIN, &Frame::tcp(seq, 60_000).bytes()) {
            assert_eq!(bytes_of(&packet), Frame::tcp(seq, 60_000).bytes());
            whole += 1;
        }
        seq += 60_000;
    }
    assert!(whole > 0);
    assert!(rig.tap.pool_audit().unwrap().is_conserved());
}

#[test]
fn settings_that_make_no_sense_say_what_to_do() {
    let cases = [
        (Tap::builder(""), "cannot name"),
        (Tap::builder("a/b"), "cannot name"),
        (Tap::builder("pw%d"), "cannot name"),
        (Tap::builder("nul\0"), "cannot name"),
        (Tap::builder("a-name-too-long-by-one"), "too long"),
        (Tap::builder("pw0").mtu(1279), "1280 to 65521"),
        (Tap::builder("pw0").mtu(65_522), "1280 to 65521"),
        (Tap::builder("pw0").mac([1, 0, 0, 0, 0, 0]), "unicast"),
        (Tap::builder("pw0").host_address("10.77.0.1"), "prefix length"),
        (Tap::builder("pw0").host_address("10.77.0.1/33"), "prefix length"),
        (Tap::builder("pw0").host_address("10.77.0/24"), "no IP address"),
        (Tap::builder("pw0").host_address("ff02::1/64"), "no address of one host"),
        (Tap::builder("pw0").pool_bytes(4096), "too few"),
    ];
    for (builder, text) in cases {
        let error = builder.open().unwrap_err();
        assert!(matches!(error, DeviceError::Config(_)), "{error:?}");
        assert!(error.to_string().contains(text), "{error}");
        assert!(!error.to_string().contains('\n'));
    }
    assert!(Tap::builder("pw0").open_queues(0).is_err());
}

fn frames() -> impl Strategy<Value = Vec<(Frame, bool)>> {
    let payload = prop_oneof![
        2 => 0..2_usize,
        2 => 0..=SMALL_PAYLOAD + 1,
        2 => 1400..1500_usize,
        3 => 4000..MAX_FRAME - 138,
    ];
    let protocol = prop_oneof![4 => Just(6_u8), 1 => Just(17), 1 => Just(1)];
    let frame = (
        any::<bool>(),
        proptest::bool::weighted(0.1),
        protocol,
        80..82_u16,
        proptest::option::weighted(0.2, any::<u32>()),
        prop_oneof![8 => Just(0x10_u8), 1 => Just(0x12), 1 => Just(0x11)],
        0..=10_usize,
        payload,
        any::<bool>(),
    );
    proptest::collection::vec(frame, 1..60).prop_map(|frames| {
        let mut next = [1_u32; 2];
        let make = |(v6, vlan, protocol, ports, jump, flags, options, payload, hold)| {
            let next: &mut u32 = &mut next[usize::from(ports == 81)];
            let jump: Option<u32> = jump;
            let seq = jump.unwrap_or(*next);
            *next = seq.wrapping_add(payload as u32);
            let options = options * 4;
            (Frame { v6, vlan, protocol, ports, seq, flags, options, payload }, hold)
        };
        frames.into_iter().map(make).collect()
    })
}

proptest! {
    #[test]
    fn any_sequence_of_frames_arrives_byte_for_byte_and_stays(frames in frames()) {
        let mut rig = Rig::new();
        let mut held = Vec::new();
        for (frame, hold) in frames {
            let bytes = frame.bytes();
            // Headers beyond what a head holds are not taken apart.
            let packet = rig.receive(PLAIN, &bytes);
            let packet = packet.expect("a valid frame and memory for it");
            prop_assert_eq!(&bytes_of(&packet), &bytes);
            if matches!(frame.protocol, 6 | 17) && frame.headers() <= 128 {
                prop_assert_eq!(packet.head().len(), frame.headers());
            }
            if hold && held.len() < 60 {
                held.push((packet, bytes));
            }
            prop_assert!(rig.tap.pool_audit().unwrap().is_conserved());
        }
        // Nothing that came later wrote over what is held.
        for (packet, bytes) in &held {
            prop_assert_eq!(&bytes_of(packet), bytes);
        }
        drop(held);
        let counters = rig.tap.counters();
        prop_assert!(counters.rx_aligned_bytes <= counters.rx_payload_bytes);
        prop_assert!(counters.rx_payload_bytes <= counters.rx_bytes);
    }

    #[test]
    fn what_the_fuzz_target_is_fed_is_survived(data in proptest::collection::vec(any::<u8>(), 0..999)) {
        super::fuzzing::tap_frame(&data);
    }

    #[test]
    fn any_bytes_are_received_or_dropped_without_a_panic(
        header in any::<[u8; VNET_HEADER]>(),
        start in prop_oneof![
            Just(vec![]), Just(vec![8, 0, 0x45]), Just(vec![0x86, 0xdd, 0x60]),
            Just(vec![8, 0, 0x4f]), Just(vec![0x81, 0, 0, 1, 8, 0]),
        ],
        rest in proptest::collection::vec(any::<u8>(), 0..400),
    ) {
        let mut rig = Rig::new();
        let frame = [vec![0; 12], start, rest].concat();
        for header in [header, PLAIN] {
            if let Some(packet) = rig.receive(header, &frame) {
                prop_assert_eq!(bytes_of(&packet), frame.clone());
            }
        }
        prop_assert!(rig.tap.pool_audit().unwrap().is_conserved());
    }
}
