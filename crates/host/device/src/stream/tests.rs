//! A link over a Unix stream: frames cut anywhere, peers that come and go, and the limits of both.

use std::io::{Read, Write};

use pagewire_mem::{CopyReason, HEAD_CAPACITY, Region, TxChecksum};
use pagewire_testkit::frames::{bytes_of, ip, to_send};
use pagewire_testkit::{built, given};
use proptest::prelude::*;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::*;
use crate::ends::receive;
use crate::limits::SOCKET_MIN_POOL_BYTES;

/// A frame of IPv4 and TCP with `payload` bytes of payload.
fn frame(payload: usize, seed: u8) -> Vec<u8> {
    let ends = [[10, 0, 0, 1].into(), [10, 0, 0, 2].into()];
    let ip = ip([[2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1]], ends, 64);
    let payload: Vec<u8> = (0..payload).map(|i| seed.wrapping_add(i as u8)).collect();
    built!(ip.tcp(80, 81, 1, 0xffff).ack(1), &payload)
}

fn framed(frame: &[u8]) -> Vec<u8> {
    [&(frame.len() as u32).to_be_bytes()[..], frame].concat()
}

struct Rig {
    link: StreamLink,
    peer: UnixStream,
    ledger: CopyLedger,
}

impl Rig {
    fn new() -> Self {
        let (ours, peer) = UnixStream::pair().unwrap();
        peer.set_nonblocking(true).unwrap();
        let link = StreamLink::builder().over(ours).unwrap();
        Self { link, peer, ledger: CopyLedger::new() }
    }

    fn receive(&mut self, max: usize) -> Vec<Vec<u8>> {
        let mut frames = VecDeque::new();
        let n = self.link.receive(Instant::ZERO, &mut frames, max, &mut self.ledger).unwrap();
        assert_eq!(n, frames.len());
        frames.iter().map(bytes_of).collect()
    }

    fn transmit(&mut self, frames: &mut VecDeque<PacketBuf>) {
        self.link.transmit(Instant::ZERO, frames, &mut self.ledger).unwrap();
    }

    /// The bytes that the peer finds now.
    fn sent(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        // Ends with `WouldBlock`; what came before is kept.
        let _ = self.peer.read_to_end(&mut all);
        all
    }
}

given! {
    let mut rig = Rig::new();

    a_frame_goes_each_way_behind_its_length {
        let (one, two) = (frame(1000, 1), frame(0, 2));
        rig.peer.write_all(&[framed(&one), framed(&two)].concat()).unwrap();
        assert_eq!(rig.receive(64), [one.clone(), two.clone()]);
        let mut frames = VecDeque::from([to_send(&one, 54), to_send(&two, 54)]);
        rig.transmit(&mut frames);
        assert!(frames.is_empty());
        assert_eq!(rig.sent(), [framed(&one), framed(&two)].concat());
        let counters = rig.link.counters();
        assert_eq!((counters.rx_frames, counters.tx_frames), (2, 2));
        // A call each to receive and to send.
        assert_eq!(counters.syscalls, 2);
        assert_eq!(rig.ledger.get(CopyReason::DeviceRx), 1000);
        assert_eq!(rig.ledger.get(CopyReason::DeviceTx), 1000);
        assert_eq!(rig.ledger.ours(), 0);
    }
    headers_are_in_the_head_and_payload_is_by_reference {
        rig.peer.write_all(&framed(&frame(1400, 3))).unwrap();
        let mut frames = VecDeque::new();
        rig.link.receive(Instant::ZERO, &mut frames, 1, &mut rig.ledger).unwrap();
        let packet = &frames[0];
        assert_eq!((packet.head().len(), packet.frag_len()), (54, 1400));
        assert_eq!(packet.frags().len(), 1);
        assert_eq!(rig.link.capabilities().max_super_frame, 1500);
        assert!(packet.head().len() <= HEAD_CAPACITY);
    }
    a_frame_that_comes_byte_by_byte_comes_once_and_whole {
        let frame = frame(20, 4);
        let bytes = framed(&frame);
        for byte in &bytes[..bytes.len() - 1] {
            rig.peer.write_all(&[*byte]).unwrap();
            assert!(rig.receive(64).is_empty());
            assert!(!rig.link.arm());
        }
        rig.peer.write_all(&bytes[bytes.len() - 1..]).unwrap();
        assert_eq!(rig.receive(64), [frame]);
    }
    frames_beyond_what_was_asked_for_wait_and_are_announced {
        let frames: Vec<_> = (0..5).map(|i| frame(100, i)).collect();
        rig.peer.write_all(&frames.iter().flat_map(|f| framed(f)).collect::<Vec<_>>()).unwrap();
        assert_eq!(rig.receive(2), frames[..2]);
        // The socket is empty: nothing else would wake the host.
        assert!(rig.link.arm());
        assert_eq!(rig.receive(64), frames[2..]);
        assert!(!rig.link.arm());
    }
    what_the_socket_does_not_take_stays_and_goes_on_where_it_stopped {
        let all: Vec<_> = (0..800).map(|i| frame(1400, i as u8)).collect();
        let mut frames: VecDeque<_> = all.iter().map(|f| to_send(f, 54)).collect();
        rig.transmit(&mut frames);
        let left = frames.len();
        assert!(left > 0 && left < 800, "{left} left");
        let mut sent = Vec::new();
        while !frames.is_empty() || rig.link.unfinished.is_some() {
            let more = rig.sent();
            assert!(!more.is_empty(), "it stopped");
            sent.extend(more);
            rig.transmit(&mut frames);
        }
        sent.extend(rig.sent());
        assert!(sent == all.iter().flat_map(|f| framed(f)).collect::<Vec<_>>());
        assert_eq!(rig.link.counters().tx_frames, 800);
    }
    the_rest_of_the_last_frame_leaves_although_the_host_has_nothing_to_transmit {
        let (frame, mut whole) = (frame(60_000, 9), 0);
        // One at a time, until the socket takes a part of one.
        while rig.link.unfinished.is_none() {
            let mut frames = VecDeque::from([to_send(&frame, 54)]);
            rig.transmit(&mut frames);
            if !frames.is_empty() {
                // Nothing of it: some room, less than for a frame.
                rig.peer.read_exact(&mut vec![0; 30_000]).unwrap();
            }
            whole += framed(&frame).len() * (1 - frames.len());
        }
        let mut sent = rig.sent().len();
        assert!(rig.link.watched.contains(EventFlags::OUT), "it is to be told of room");
        assert!(rig.receive(64).is_empty());
        sent += rig.sent().len();
        assert_eq!(sent % 30_000, whole % 30_000);
        assert!(rig.link.unfinished.is_none() && !rig.link.watched.contains(EventFlags::OUT));
    }
    a_peer_that_leaves_ends_a_link_that_was_given_one {
        rig.peer.write_all(&framed(&frame(5, 1))[..20]).unwrap();
        assert!(rig.receive(64).is_empty());
        let (other, _) = UnixStream::pair().unwrap();
        drop(std::mem::replace(&mut rig.peer, other));
        assert!(rig.receive(64).is_empty());
        let end = rig.link.receive(Instant::ZERO, &mut VecDeque::new(), 64, &mut rig.ledger);
        assert!(matches!(end, Err(DeviceError::Closed)));
        let mut frames = VecDeque::from([to_send(&frame(5, 1), 54)]);
        rig.transmit(&mut frames);
        assert!(frames.is_empty());
        assert_eq!(rig.link.counters().tx_dropped_closed, 1);
    }
}

#[test]
fn a_sender_that_gives_up_does_not_wait_for_room_any_more() {
    let (ours, _peer) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    while (&ours).write(&[0; 4096]).is_ok() {}
    let mut link = StreamLink::builder().over(ours).unwrap();
    // Longer than what is left.
    let mut frames = VecDeque::from([to_send(&frame(60_000, 1), 54)]);
    link.transmit(Instant::ZERO, &mut frames, &mut CopyLedger::new()).unwrap();
    assert!(link.unfinished.is_none() && link.watched.contains(EventFlags::OUT));
    link.transmit(Instant::ZERO, &mut VecDeque::new(), &mut CopyLedger::new()).unwrap();
    assert!(!link.watched.contains(EventFlags::OUT), "room is no news");
}

#[test]
fn lengths_that_no_frame_has_end_the_session() {
    for length in [0, 13, MAX_SOCKET_FRAME + 1, 0x5646_4b54, u32::MAX as usize] {
        let mut rig = Rig::new();
        let good = frame(5, 5);
        let bad = (length as u32).to_be_bytes();
        rig.peer.write_all(&[&framed(&good)[..], &bad, &[0; 40]].concat()).unwrap();
        let mut frames = VecDeque::new();
        let n = rig.link.receive(Instant::ZERO, &mut frames, 64, &mut rig.ledger).unwrap();
        assert_eq!((n, bytes_of(&frames[0])), (1, good), "{length}");
        assert_eq!(rig.link.counters().rx_dropped_malformed, 1, "{length}");
        let again = rig.link.receive(Instant::ZERO, &mut frames, 64, &mut rig.ledger);
        assert!(matches!(again, Err(DeviceError::Closed)), "{length}");
    }
    for length in [14, MAX_SOCKET_FRAME] {
        let mut rig = Rig::new();
        let frame = vec![7; length];
        rig.peer.write_all(&framed(&frame)).unwrap();
        assert_eq!(rig.receive(64), [frame], "{length}");
    }
}

#[test]
fn one_that_listens_takes_one_peer_after_the_other_with_nothing_left_of_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    // A socket that somebody left behind is replaced.
    drop(UnixListener::bind(&path).unwrap());
    let mut link = StreamLink::builder().listen(&path).unwrap();
    assert!(StreamLink::builder().listen(&path).is_err(), "it is in use");
    let receive = |link: &mut StreamLink| {
        receive(link, Instant::ZERO).iter().map(bytes_of).collect::<Vec<_>>()
    };
    assert!(receive(&mut link).is_empty());
    let mut first = UnixStream::connect(&path).unwrap();
    let mut second = UnixStream::connect(&path).unwrap();
    // Half a frame, and the whole one of a peer that waits for its turn.
    first.write_all(&framed(&frame(50, 1))[..30]).unwrap();
    second.write_all(&framed(&frame(60, 2))).unwrap();
    assert!(receive(&mut link).is_empty());
    assert!(link.is_up());
    drop(first);
    assert!(receive(&mut link).is_empty());
    assert_eq!(receive(&mut link), [frame(60, 2)]);
    drop(link);
    assert!(!path.exists(), "the socket is removed");
}

#[test]
fn a_socket_that_was_passed_stays_where_it_is_for_whoever_else_has_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let kept = UnixListener::bind(&path).unwrap();
    for one_peer in [false, true] {
        let builder = StreamLink::builder().one_peer(one_peer);
        let mut link = builder.adopt(kept.try_clone().unwrap()).unwrap();
        let derived = crate::socket_path::derive_mac(&path);
        assert_eq!(link.capabilities().mac, derived, "as that of one that listens there");
        assert!(receive(&mut link, Instant::ZERO).is_empty(), "it does not wait");
        let mut peer = UnixStream::connect(&path).unwrap();
        peer.write_all(&framed(&frame(60, 1))).unwrap();
        assert_eq!(receive(&mut link, Instant::ZERO).len(), 1);
        // Who comes next is for the next device.
        let _next = UnixStream::connect(&path).unwrap();
        drop(link);
        assert!(path.exists());
        kept.accept().expect("it waits");
    }
}

#[test]
fn without_pages_it_waits_and_loses_nothing() {
    let (ours, mut peer) = UnixStream::pair().unwrap();
    let builder = StreamLink::builder().pool_bytes(SOCKET_MIN_POOL_BYTES);
    let mut link = builder.over(ours).unwrap();
    let (mut held, mut ledger) = (VecDeque::new(), CopyLedger::new());
    // Arrived frames are held until no page is left.
    let mut sent = 0;
    while link.retry_at.is_none() {
        peer.write_all(&framed(&frame(1400, sent))).unwrap();
        sent += 1;
        link.receive(Instant::ZERO, &mut held, 64, &mut ledger).unwrap();
        assert!(held.len() < 1000);
        if sent == u8::MAX {
            sent = 0;
        }
    }
    let before = held.len();
    assert!(link.poll_timeout().is_some());
    held.clear();
    link.receive(Instant::ZERO, &mut held, 64, &mut ledger).unwrap();
    assert_eq!((!held.is_empty(), link.poll_timeout()), (true, None), "{before} before");
    assert_eq!(link.counters().rx_dropped_memory, 0);
}

#[test]
fn a_super_frame_and_an_open_checksum_are_finished_in_software() {
    use pagewire_mem::{Gso, GsoKind};
    let mut rig = Rig::new();
    let region = Region::memfd("test", 8192).unwrap();
    let mut big = PacketBuf::for_tx();
    let headers = frame(0, 0);
    big.push(54).unwrap().copy_from_slice(&headers);
    big.push_frag(region.frag(0, 3000).unwrap()).unwrap();
    big.gso = Some(Gso { kind: GsoKind::TcpV4, size: 1448, header_len: 54 });
    big.tx_checksum = TxChecksum::Partial { start: 34, offset: 16 };
    let mut frames = VecDeque::from([big]);
    rig.transmit(&mut frames);
    let sent = rig.sent();
    let lengths = [54 + 1448, 54 + 1448, 54 + 104];
    assert_eq!(sent.len(), lengths.iter().map(|len| PREFIX + len).sum::<usize>());
    assert_eq!(rig.link.counters().tx_frames, 3);
    // The checksum was zero.
    assert_ne!(sent[PREFIX + 50..PREFIX + 52], [0, 0]);
}

proptest! {
    #[test]
    fn what_the_fuzz_target_is_fed_is_survived(data in proptest::collection::vec(any::<u8>(), 0..999)) {
        super::fuzzing::frames_stream(&data);
    }

    #[test]
    fn frames_come_out_as_they_went_in_however_they_are_cut(
        lengths in proptest::collection::vec(0_usize..2000, 1..40),
        cuts in proptest::collection::vec(1_usize..3000, 1..40),
    ) {
        let all: Vec<_> = lengths.iter().enumerate().map(|(i, &n)| frame(n, i as u8)).collect();
        let stream: Vec<u8> = all.iter().flat_map(|f| framed(f)).collect();
        let mut rig = Rig::new();
        let (mut rest, mut cuts, mut came) = (&stream[..], cuts.iter().cycle(), Vec::new());
        while !rest.is_empty() {
            let (now, later) = rest.split_at((*cuts.next().unwrap()).min(rest.len()));
            rig.peer.write_all(now).unwrap();
            came.extend(rig.receive(1000));
            rest = later;
        }
        prop_assert!(came == all);
        prop_assert!(rig.link.pool_audit().unwrap().is_conserved());
    }
}

#[test]
fn a_peer_that_comes_while_descriptors_are_short_is_taken_later() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let mut link = StreamLink::builder().listen(&path).unwrap();
    let _peer = UnixStream::connect(&path).unwrap();
    let look = |link: &mut StreamLink, millis: u64| {
        let now = Instant::from_millis(millis);
        link.receive(now, &mut VecDeque::new(), 1, &mut CopyLedger::new()).unwrap();
        link.is_up()
    };
    let all = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..all }).unwrap();
    let up = look(&mut link, 1000);
    setrlimit(Resource::Nofile, all).unwrap();
    assert!(!up);
    // Nothing calls for attention meanwhile.
    assert_eq!(link.poll_timeout(), Some(Instant::from_millis(1500)));
    let mut events = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }];
    let now = rustix::event::Timespec::default();
    assert_eq!(epoll::wait(&link.ready, &mut events[..], Some(&now)).unwrap(), 0);
    assert!(!look(&mut link, 1499));
    assert!(look(&mut link, 1500));
    assert_eq!(link.poll_timeout(), None);
}
