//! The way that most frames take at once (`input/expected.rs`) takes nothing that the general way would not,
//! and leaves the rest as it came.

use pagewire_mem::RxChecksum;

use super::*;

/// A host that the peer's last packet was for.
fn in_conversation() -> Host {
    let mut host = Host::new();
    host.receive(&udp_v4(b"first"));
    host
}

/// A frame as a device leaves it that separates payload from headers.
fn arrived(frame: &[u8], headers: usize, checksum: RxChecksum) -> PacketBuf {
    let mut packet = rx_packet(frame, headers.min(frame.len()));
    packet.rx_checksum = checksum;
    packet
}

/// Gives a packet to both ways; returns whether the first took it.
fn compare(host: &mut Host, general: &mut Host, packet: &PacketBuf) -> bool {
    let before = host.net.counters.clone();
    let (mut at_once, mut step_by_step) = (packet.clone(), packet.clone());
    match host.net.handle_expected(host.now, 0, &mut at_once) {
        Some(expected) => {
            let received = expected.received();
            let other = general.net.handle_frame(general.now, 0, &mut step_by_step);
            let Ok(Some(super::super::Inbound::Transport(other))) = other else {
                panic!("the general way does not take it: {other:?}");
            };
            assert_eq!(format!("{received:?}"), format!("{other:?}"));
            assert_eq!(at_once.head(), step_by_step.head());
            assert_eq!(at_once.headroom(), step_by_step.headroom());
            assert_eq!(payload_of(at_once.frags()), payload_of(step_by_step.frags()));
            assert_eq!(format!("{}", host.net.counters), format!("{}", general.net.counters));
            true
        }
        None => {
            assert_eq!(flat(&at_once), flat(packet));
            assert_eq!(format!("{}", host.net.counters), format!("{before}"));
            false
        }
    }
}

fn frames() -> [(Vec<u8>, usize); 4] {
    let without_checksum = |payload: &[u8]| {
        let mut frame = udp_v4(payload);
        frame[40..42].fill(0);
        frame
    };
    [
        (without_checksum(b"a datagram"), 42),
        (without_checksum(b""), 42),
        (tcp_v4(b"a segment"), 66),
        (tcp_v4(b""), 66),
    ]
}

#[test]
fn a_frame_of_the_last_packets_hosts_is_taken_at_once() {
    let (mut host, mut general) = (in_conversation(), in_conversation());
    for (frame, headers) in frames() {
        let packet = arrived(&frame, headers, RxChecksum::Valid);
        assert!(compare(&mut host, &mut general, &packet), "{frame:02x?}");
    }
}

#[test]
fn what_is_taken_at_once_is_what_the_general_way_takes_whatever_bit_is_wrong() {
    for (frame, headers) in frames() {
        for bit in 0..headers * 8 {
            let mut wrong = frame.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            // With the sum right again, so that not it alone decides.
            let mut summed = wrong.clone();
            fix_v4(&mut summed);
            for frame in [&wrong, &summed] {
                for checksum in [RxChecksum::Valid, RxChecksum::Unknown] {
                    let (mut host, mut general) = (in_conversation(), in_conversation());
                    compare(&mut host, &mut general, &arrived(frame, headers, checksum));
                }
            }
        }
    }
}

#[test]
fn a_frame_of_any_length_and_split_is_taken_at_once_only_as_the_general_way_takes_it() {
    for (frame, headers) in frames() {
        let mut padded = frame.clone();
        padded.extend([0; 4]);
        for len in 0..=padded.len() {
            for split in [headers, headers - 1, headers + 1, 14, 0] {
                let (mut host, mut general) = (in_conversation(), in_conversation());
                let packet = arrived(&padded[..len], split, RxChecksum::Valid);
                let taken = compare(&mut host, &mut general, &packet);
                assert!(!taken || len == frame.len());
            }
        }
    }
}

#[test]
fn a_first_packet_of_other_hosts_takes_the_general_way() {
    let mut host = Host::new();
    for (frame, headers) in frames() {
        let mut packet = arrived(&frame, headers, RxChecksum::Valid);
        assert!(host.net.handle_expected(host.now, 0, &mut packet).is_none());
    }
}
