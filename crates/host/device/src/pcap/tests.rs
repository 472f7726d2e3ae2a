//! The content of a capture, read back with an independent reader, and the traffic that it leaves alone.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pagewire_mem::{CopyLedger, CopyReason, Instant, PacketBuf, Region, TxChecksum};
use pagewire_testkit::frames::to_send;
use pcap_file::DataLink;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::{Block, PcapNgReader};

use super::{Pcap, PcapConfig, PcapCounters, PcapDirection, PcapWriter};
use crate::ends::{receive, send};
use crate::{Device, Pair, PairConfig, PairEnd};
use pagewire_mem::link::Medium;

/// A file in memory that can be full.
#[derive(Clone, Default)]
struct Disk(Arc<Mutex<(Vec<u8>, Option<usize>)>>);

impl Disk {
    fn with_room_for(bytes: usize) -> Self {
        Self(Arc::new(Mutex::new((Vec::new(), Some(bytes)))))
    }

    fn bytes(&self) -> Vec<u8> {
        self.0.lock().expect("disk").0.clone()
    }
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut disk = self.0.lock().expect("disk");
        if disk.1.is_some_and(|room| disk.0.len() + bytes.len() > room) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        disk.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn frame(head: &[u8], payload: &[u8]) -> PacketBuf {
    to_send(&[head, payload].concat(), head.len())
}

fn captured(config: PcapConfig) -> (Pcap<PairEnd, Disk>, PairEnd, Disk) {
    let (left, right) = Pair::with(PairConfig { queue_frames: 4, ..Default::default() }).unwrap();
    let disk = Disk::default();
    (Pcap::new(left, disk.clone(), config).unwrap(), right, disk)
}

#[test]
fn no_super_frame_is_asked_for_whose_header_cannot_say_its_length() {
    let (left, _right) = Pair::with(PairConfig { mtu: 1500, ..Default::default() }).unwrap();
    assert_eq!(left.capabilities().max_super_frame, 2_097_120);
    let captured = Pcap::new(left, Disk::default(), PcapConfig::default()).unwrap();
    assert_eq!(captured.capabilities().max_super_frame, 65_535);
}

/// Time, direction (1 in, 2 out), original length, bytes.
type Record = (Duration, u32, u32, Vec<u8>);

fn read(disk: &Disk) -> Vec<Record> {
    let bytes = disk.bytes();
    let mut reader = PcapNgReader::new(&bytes[..]).expect("a section header");
    let mut out = Vec::new();
    while let Some(block) = reader.next_block() {
        match block.expect("a sound block") {
            Block::InterfaceDescription(interface) => {
                assert_eq!(interface.linktype, DataLink::ETHERNET);
            }
            Block::EnhancedPacket(packet) => {
                let flags = packet.options.iter().find_map(|option| match option {
                    EnhancedPacketOption::Flags(flags) => Some(*flags),
                    _ => None,
                });
                let flags = flags.expect("a direction");
                out.push((packet.timestamp, flags, packet.original_len, packet.data.to_vec()));
            }
            other => panic!("unexpected {other:?}"),
        }
    }
    out
}

fn at(ns: u64) -> Instant {
    Instant::from_nanos(ns)
}

#[test]
fn both_directions_are_written_with_nanoseconds_and_true_lengths() {
    let (mut left, mut right, disk) = captured(PcapConfig::default());
    let mut odd = frame(b"head", b"payload");
    odd.tx_checksum = TxChecksum::Partial { start: 0, offset: 0 };
    send(&mut left, at(5_000_000_007), [odd]);
    send(&mut right, at(0), [frame(b"reply", &[9; 70_000 - 5 - 8500])]);
    assert_eq!(receive(&mut left, at(5_000_000_123)).len(), 1);
    assert!(!left.arm(), "sleeping writes what is buffered");
    let records = read(&disk);
    assert_eq!(
        records[0],
        (Duration::from_nanos(5_000_000_007), 2, 11, b"headpayload".to_vec()),
        "as it was handed over"
    );
    assert_eq!(records[1].0, Duration::from_nanos(5_000_000_123));
    assert_eq!((records[1].1, records[1].2, records[1].3.len()), (1, 61_500, 61_500));
    assert_eq!(left.capture_counters(), PcapCounters { frames: 2, lost: 0 });
}

#[test]
fn snaplen_cuts_in_the_head_and_in_the_payload() {
    for (snaplen, kept) in [(2, &b"he"[..]), (4, b"head"), (7, b"headpay"), (99, b"headpayload")] {
        let (mut left, _right, disk) = captured(PcapConfig { snaplen, ..Default::default() });
        send(&mut left, at(0), [frame(b"head", b"payload")]);
        drop(left);
        assert_eq!(read(&disk), [(Duration::ZERO, 2, 11, kept.to_vec())]);
    }
}

#[test]
fn the_epoch_dates_the_capture() {
    let epoch = Duration::from_secs(1_700_000_000);
    let (mut left, _right, disk) = captured(PcapConfig { epoch, ..Default::default() });
    send(&mut left, at(1), [frame(b"x", b"")]);
    drop(left);
    assert_eq!(read(&disk)[0].0, epoch + Duration::from_nanos(1));
}

#[test]
fn frames_that_the_device_had_no_room_for_are_written_once() {
    let (mut left, mut right, disk) = captured(PcapConfig::default());
    let mut rest = send(&mut left, at(0), (0..6).map(|i| frame(&[i], b"")));
    assert_eq!(rest.len(), 2);
    receive(&mut right, at(0));
    rest.push_back(frame(&[6], b""));
    let rest = send(&mut left, at(0), rest);
    assert!(rest.is_empty());
    drop(left);
    let tags: Vec<_> = read(&disk).iter().map(|r| r.3[0]).collect();
    assert_eq!(tags, [0, 1, 2, 3, 4, 5, 6]);
}

#[test]
fn memory_that_others_may_change_is_read_through_counted_snapshots() {
    let file = tempfile();
    (&file).write_all(&[7; 4096]).expect("write");
    let region = Region::file(&file, 0, 4096).expect("map");
    let (mut left, _right, disk) = captured(PcapConfig { snaplen: 1000, ..Default::default() });
    let mut shared = PacketBuf::for_tx();
    shared.push_frag(region.frag(0, 4096).expect("in range")).expect("room");
    let mut ledger = CopyLedger::new();
    left.transmit(Instant::ZERO, &mut [shared].into(), &mut ledger).expect("transmit");
    assert_eq!(ledger.get(CopyReason::Snapshot), 1000, "no more than is kept");
    assert_eq!(ledger.ours(), 1000);
    drop(left);
    assert_eq!(read(&disk)[0].3, [7; 1000]);
}

fn tempfile() -> std::fs::File {
    use rustix::fs::{MemfdFlags, memfd_create};
    memfd_create("pcap-test", MemfdFlags::CLOEXEC).expect("memfd").into()
}

#[test]
fn a_full_disk_ends_the_capture_and_not_the_traffic() {
    let (left, mut right) = Pair::new().unwrap();
    let disk = Disk::with_room_for(5000);
    let mut left = Pcap::new(left, disk.clone(), PcapConfig::default()).unwrap();
    send(&mut left, at(0), [frame(b"a", &[0; 1000])]);
    left.arm();
    left.disarm();
    // More than the buffer, so that it is written at once.
    send(&mut left, at(0), (0..10).map(|_| frame(b"b", &[0; 60_000])));
    send(&mut left, at(0), [frame(b"c", b"")]);
    assert_eq!(receive(&mut right, at(0)).len(), 12);
    let counters = left.capture_counters();
    assert_eq!(counters.frames + counters.lost, 12);
    assert!(counters.lost >= 1, "{counters:?}");
    drop(left);
    assert_eq!(read(&disk).len(), 1, "what was written stays readable");
}

#[test]
fn a_frame_may_have_a_comment_and_addresses_a_name() {
    use pcap_file::pcapng::blocks::name_resolution::Record;
    let disk = Disk::default();
    let mut writer = PcapWriter::new(disk.clone(), PcapConfig::default()).unwrap();
    writer.add_names([([10, 0, 0, 1].into(), "server")]).unwrap();
    let link = writer.add_interface("server", Medium::Ip).unwrap();
    let (now, mut ledger) = (Instant::from_millis(1), CopyLedger::new());
    for comment in ["lost", "", "held: 7"] {
        let frame = frame(b"head", b"odd");
        let direction = PcapDirection::Out;
        writer.record_with_comment(link, now, direction, &frame, comment, &mut ledger).unwrap();
    }
    writer.flush().unwrap();
    let bytes = disk.bytes();
    let mut reader = PcapNgReader::new(&bytes[..]).expect("a section header");
    let mut comments = Vec::new();
    while let Some(block) = reader.next_block() {
        match block.expect("a sound block") {
            Block::NameResolution(names) => {
                let Some(Record::Ipv4(record)) = names.records.first() else { panic!("{names:?}") };
                assert_eq!((&*record.ip_addr, &*record.names[0]), (&[10, 0, 0, 1][..], "server"));
            }
            Block::EnhancedPacket(packet) => {
                assert_eq!(&*packet.data, b"headodd");
                comments.push(packet.options.iter().find_map(|option| match option {
                    EnhancedPacketOption::Comment(comment) => Some(comment.to_string()),
                    _ => None,
                }));
            }
            _ => {}
        }
    }
    assert_eq!(comments, [Some("lost".into()), None, Some("held: 7".into())]);
}
