//! A device of frames in a program's memory, from both of its sides.

use pagewire_testkit::frames::{bytes_of, to_send};

use super::*;
use crate::ends::{receive, send};

fn frame(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| seed.wrapping_add(i as u8)).collect()
}

fn config(queue_frames: usize) -> FramesConfig {
    FramesConfig { queue_frames, ..FramesConfig::default() }
}

fn take(device: &mut Frames) -> Vec<Vec<u8>> {
    receive(device, Instant::ZERO).iter().map(bytes_of).collect()
}

#[test]
fn a_frame_is_copied_once_on_its_way_in_and_once_on_its_way_out() {
    let (mut device, mut end) = Frames::new(FramesConfig::default()).unwrap();
    end.send(&frame(1000, 1)).unwrap();
    assert_eq!(take(&mut device), [frame(1000, 1)]);
    send(&mut device, Instant::ZERO, [to_send(&frame(800, 2), 14)]);
    let mut buffer = [0; 1514];
    assert_eq!(end.receive(&mut buffer), Some(800));
    assert_eq!(buffer[..800], frame(800, 2));
    assert_eq!(end.receive(&mut buffer), None);
    // 128 bytes of the first are no payload: the head holds them.
    assert_eq!(end.ledger().get(CopyReason::DeviceRx), 1000 - 128);
    assert_eq!(end.ledger().get(CopyReason::DeviceTx), 800 - 14);
    assert_eq!(end.ledger().ours(), 0);
}

#[test]
fn both_ways_are_possible_by_reference() {
    let (mut device, mut end) = Frames::new(FramesConfig::default()).unwrap();
    end.send_bytes(Bytes::from(frame(1400, 3))).unwrap();
    assert_eq!(take(&mut device), [frame(1400, 3)]);
    send(&mut device, Instant::ZERO, [to_send(&frame(1400, 4), 14)]);
    assert_eq!(bytes_of(&end.receive_packet().unwrap()), frame(1400, 4));
    assert_eq!(end.ledger().get(CopyReason::DeviceRx), 0);
    assert_eq!(end.ledger().get(CopyReason::DeviceTx), 0);
}

#[test]
fn lengths_that_no_frame_has_are_refused() {
    let (mut device, mut end) = Frames::new(FramesConfig::default()).unwrap();
    for len in [0, 13, 1519, 100_000] {
        assert_eq!(end.send(&frame(len, 0)), Err(FrameError::Length(len)));
    }
    for len in [14, 1518] {
        end.send(&frame(len, 0)).unwrap();
        assert_eq!(take(&mut device), [frame(len, 0)]);
    }
}

#[test]
fn a_full_queue_says_so_loses_nothing_and_room_is_announced() {
    let (mut device, mut end) = Frames::new(config(8)).unwrap();
    let mut sent = 0;
    while end.send(&frame(60, sent)).is_ok() {
        sent += 1;
        assert!(sent < 20);
    }
    assert_eq!(end.send(&frame(60, 99)), Err(FrameError::Full));
    assert!(!end.arm());
    let mut came = take(&mut device);
    end.wait(None);
    end.send(&frame(60, sent)).unwrap();
    came.extend(take(&mut device));
    assert_eq!(came, (0..=sent).map(|i| frame(60, i)).collect::<Vec<_>>());
}

#[test]
fn a_side_that_sleeps_is_woken_by_a_frame() {
    let (mut device, mut end) = Frames::new(FramesConfig::default()).unwrap();
    assert!(!end.arm());
    end.disarm();
    let other = std::thread::spawn(move || {
        let mut buffer = [0; 1514];
        loop {
            end.wait(None);
            if let Some(len) = end.receive(&mut buffer) {
                return len;
            }
        }
    });
    send(&mut device, Instant::ZERO, [to_send(&frame(77, 1), 14)]);
    assert_eq!(other.join().unwrap(), 77);
}

#[test]
fn each_side_sees_that_the_other_is_gone() {
    let (device, mut end) = Frames::new(FramesConfig::default()).unwrap();
    drop(device);
    assert!(end.is_closed());
    assert_eq!(end.send(&frame(60, 0)), Err(FrameError::Closed));
    end.wait(None);
    let (mut device, end) = Frames::new(FramesConfig::default()).unwrap();
    drop(end);
    let closed = device.receive(Instant::ZERO, &mut VecDeque::new(), 1, &mut CopyLedger::new());
    assert!(matches!(closed, Err(DeviceError::Closed)));
}

#[test]
fn pages_come_back_when_the_host_is_done_with_them() {
    let (mut device, mut end) = Frames::new(config(64)).unwrap();
    for round in 0..50 {
        for i in 0..64 {
            end.send(&frame(1500, i)).unwrap();
        }
        assert_eq!(take(&mut device).len(), 64, "{round}");
    }
    end.wait(Some(Duration::ZERO));
    assert!(end.pool_audit().is_conserved());
}
