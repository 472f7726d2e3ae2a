//! The network, its clock and its oracles, with nodes that speak no TCP.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use pagewire_device::{Chance, FaultConfig};
use pagewire_mem::{Instant, PacketBuf, PoolAudit};

use super::{Node, Sim, SimError, Stream, run_seed};

/// Sends the frames of a list, and records the frames that arrive.
#[derive(Default)]
struct Toy {
    mac: u8,
    out: VecDeque<PacketBuf>,
    got: Vec<(Instant, u8)>,
    /// Answers every frame with one that counts one higher, to this station.
    answers: Option<u8>,
    timer: Option<Instant>,
    fired: u32,
    /// Forgets to stop its timer.
    sticky: bool,
    audit: Option<PoolAudit>,
}

fn toy(mac: u8) -> Toy {
    Toy { mac, ..Toy::default() }
}

impl Toy {
    fn send(&mut self, to: u8, tag: u8) {
        let mut frame = PacketBuf::for_tx();
        let head = frame.push(15).expect("room");
        head[..6].copy_from_slice(&[if to == 0xff { 0xff } else { 2 }, 0, 0, 0, 0, to]);
        head[6..12].copy_from_slice(&[2, 0, 0, 0, 0, self.mac]);
        head[14] = tag;
        self.out.push_back(frame);
    }

    fn tags(&self) -> Vec<u8> {
        self.got.iter().map(|&(_, tag)| tag).collect()
    }
}

impl Node for Toy {
    fn handle_frame(&mut self, now: Instant, frame: PacketBuf) {
        let tag = frame.head()[14];
        self.got.push((now, tag));
        if let Some(to) = self.answers {
            self.send(to, tag.wrapping_add(1));
        }
    }

    fn handle_timeout(&mut self, _now: Instant) {
        self.fired += 1;
        if !self.sticky {
            self.timer = None;
        }
    }

    fn poll_transmit(&mut self, _now: Instant, out: &mut VecDeque<PacketBuf>) -> bool {
        out.extend(self.out.pop_front());
        !self.out.is_empty()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.timer
    }

    fn pool_audit(&self) -> Option<PoolAudit> {
        self.audit
    }
}

fn delay(ms: u64) -> FaultConfig {
    FaultConfig::delayed(Duration::from_millis(ms))
}

#[test]
fn frames_take_the_time_of_both_links() {
    let mut sim = Sim::new(1);
    let a = sim.add(toy(1), delay(3)).unwrap();
    let b = sim.add(toy(2), delay(4)).unwrap();
    sim.node_mut(a).send(2, 9);
    sim.drive_bounded(Instant::from_millis(100)).unwrap();
    assert_eq!(sim.node(b).got, [(Instant::from_millis(7), 9)]);
    assert_eq!((sim.now(), sim.in_flight()), (Instant::from_millis(100), 0));
}

#[test]
fn the_switch_floods_until_it_knows_and_then_does_not() {
    let mut sim = Sim::new(1);
    let ids = [1, 2, 3].map(|mac| sim.add(toy(mac), delay(1)).unwrap());
    let mut hear = |from: usize, to: u8, tag: u8| {
        sim.node_mut(ids[from]).send(to, tag);
        let until = sim.now() + Duration::from_millis(5);
        sim.drive_bounded(until).unwrap();
        ids.map(|id| sim.node(id).tags().contains(&tag))
    };
    assert_eq!(hear(0, 2, 10), [false, true, true], "nobody knows 2");
    assert_eq!(hear(1, 1, 11), [true, false, false], "1 has spoken");
    assert_eq!(hear(0, 2, 12), [false, true, false], "and now 2 has");
    assert_eq!(hear(2, 0xff, 13), [true, true, false], "broadcast");
    assert_eq!(hear(0, 1, 14), [false; 3], "to itself");
}

#[test]
fn time_jumps_from_event_to_event() {
    let mut sim = Sim::new(1);
    let a = sim.add(toy(1), delay(0)).unwrap();
    sim.node_mut(a).timer = Some(Instant::from_millis(3_600_000));
    let mut steps = 0;
    sim.run_until(Instant::FAR, |sim| {
        steps += 1;
        Ok(sim.node(a).fired > 0)
    })
    .unwrap();
    assert_eq!(sim.now(), Instant::from_millis(3_600_000));
    assert!(steps < 5);
}

#[test]
fn one_seed_gives_the_same_run_again() {
    let run = |seed| {
        let mut sim = Sim::new(seed);
        let faults = FaultConfig {
            loss: Chance::percent(10),
            duplicate: Chance::percent(10),
            reorder: Chance::percent(10),
            jitter: Duration::from_millis(1),
            ..delay(2)
        };
        let a = sim.add(toy(1), faults).unwrap();
        let b = sim.add(toy(2), faults).unwrap();
        for tag in 0..200 {
            sim.node_mut(a).send(2, tag);
        }
        sim.drive_bounded(Instant::from_millis(1000)).unwrap();
        let (up, down) = (sim.faults(a).0, sim.faults(b).1);
        assert_eq!(up.delivered, down.offered);
        assert!(up.lost > 0 && up.duplicated > 0 && up.reordered > 0);
        sim.node(b).got.clone()
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
}

#[test]
fn a_network_in_which_nothing_can_happen_is_a_deadlock() {
    let mut sim = Sim::new(1);
    sim.add(toy(1), delay(0)).unwrap();
    let error = sim.run_until(Instant::FAR, |_| Ok(false)).unwrap_err();
    assert!(matches!(error, SimError::Deadlock { .. }), "{error}");
}

#[test]
fn a_timer_that_never_stops_is_a_livelock() {
    let mut sim = Sim::new(1);
    let a = sim.add(Toy { sticky: true, ..toy(1) }, delay(0)).unwrap();
    sim.node_mut(a).timer = Some(Instant::from_millis(1));
    let error = sim.drive_bounded(Instant::from_millis(2)).unwrap_err();
    assert!(matches!(error, SimError::Livelock { .. }), "{error}");
}

#[test]
fn talk_without_end_runs_into_the_limit_in_time() {
    let mut sim = Sim::new(1);
    let a = sim.add(Toy { answers: Some(2), ..toy(1) }, delay(1)).unwrap();
    sim.add(Toy { answers: Some(1), ..toy(2) }, delay(1)).unwrap();
    sim.node_mut(a).send(2, 0);
    let error = sim.run_until(Instant::from_millis(500), |_| Ok(false)).unwrap_err();
    assert!(matches!(error, SimError::TooLong { .. }), "{error}");
}

#[test]
fn looking_at_a_node_between_steps_does_not_stop_the_clock() {
    let mut sim = Sim::new(1);
    let a = sim.add(toy(1), delay(0)).unwrap();
    sim.node_mut(a).timer = Some(Instant::from_millis(5));
    sim.run_until(Instant::FAR, |sim| Ok(sim.node_mut(a).fired > 0)).unwrap();
    assert_eq!(sim.now(), Instant::from_millis(5));
}

#[test]
fn a_page_that_is_lost_is_noticed_in_the_same_step() {
    let mut sim = Sim::new(1);
    let a = sim.add(toy(1), delay(0)).unwrap();
    sim.node_mut(a).audit = Some(PoolAudit { total: 4, free: 1, returned: 1, out: 2, twice: 0 });
    assert!(!sim.step().unwrap(), "conserved, and nothing to do");
    sim.node_mut(a).audit = Some(PoolAudit { total: 4, free: 1, returned: 1, out: 1, twice: 0 });
    let error = sim.step().unwrap_err();
    assert!(matches!(error, SimError::Pages { .. }), "{error}");
}

#[test]
fn a_stream_is_a_function_of_its_number_and_the_place() {
    let stream = Stream(3);
    let all = stream.bytes(0, 1000);
    for (offset, n) in [(0, 0), (0, 1), (1, 7), (7, 2), (8, 8), (13, 500), (999, 1)] {
        assert_eq!(stream.bytes(offset, n), all[offset as usize..offset as usize + n]);
        assert_eq!(stream.check(offset, &all[offset as usize..offset as usize + n]), Ok(()));
    }
    assert_ne!(Stream(4).bytes(0, 1000), all);
    let mut wrong = all.clone();
    wrong[777] ^= 1;
    let mismatch = stream.check(0, &wrong).unwrap_err();
    assert_eq!((mismatch.at, mismatch.expected, mismatch.found), (777, all[777], wrong[777]));
    assert!(stream.check(1, &all[..999]).is_err(), "shifted by one");
    let counts = all.iter().fold([0u32; 256], |mut counts, &b| {
        counts[b as usize] += 1;
        counts
    });
    assert!(counts.iter().all(|&n| n < 20), "no byte is frequent");
}

#[test]
fn a_failing_seed_says_how_to_see_it_again_and_leaves_a_capture() {
    let scenario = |seed: u64, capture: Option<&Path>| {
        let mut sim = Sim::new(seed);
        if let Some(file) = capture {
            sim.capture(file)?;
        }
        let a = sim.add(toy(1), delay(1))?;
        sim.add(toy(2), delay(1))?;
        sim.node_mut(a).send(2, 0);
        sim.drive_bounded(Instant::from_millis(10))?;
        match seed {
            77_001 => Err(SimError::Oracle("byte 5 of 9 is wrong".into())),
            77_002 => panic!("an assertion"),
            _ => Ok(()),
        }
    };
    run_seed(77_000, "cargo test x", scenario).unwrap();
    let failure = run_seed(77_001, "cargo test x", scenario).unwrap_err();
    let text = failure.to_string();
    assert!(text.contains("seed 77001 failed: byte 5 of 9 is wrong"), "{text}");
    assert!(text.contains("PAGEWIRE_SEED=77001 cargo test x"), "{text}");
    let file = failure.capture.expect("a capture");
    let bytes = std::fs::read(&file).unwrap();
    assert_eq!(bytes[..4], [0x0a, 0x0d, 0x0d, 0x0a], "a pcapng file");
    std::fs::remove_file(file).unwrap();
    let failure = run_seed(77_002, "cargo test x", scenario).unwrap_err();
    assert!(failure.what.contains("panicked: an assertion"), "{failure}");
    std::fs::remove_file(failure.capture.expect("a capture")).unwrap();
}
