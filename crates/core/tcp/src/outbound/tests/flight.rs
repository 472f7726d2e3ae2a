//! The flight: its counts against its records, and the steps that hostile acknowledgements cost.

use pagewire_testkit::given;
use proptest::prelude::*;

use super::age::RESENT_SLACK;
use super::*;

const MSS: u32 = 10;

thread_local! {
    /// Records that walks of this thread visited.
    pub(super) static STEPS: core::cell::Cell<u64> = const { core::cell::Cell::new(0) };
}

#[derive(Clone, Debug)]
enum Op {
    Send(u32),
    Ack(u32),
    Sack(u32, u32),
    Age(u64),
    Forgive,
    Long,
    Probe,
    Dsack(u32, u32),
    LoseHead,
    LoseAll,
    RexmitMode,
    Forget,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (1u32..80).prop_map(Op::Send),
        2 => (0u32..60).prop_map(Op::Ack),
        4 => (0u32..200, 1u32..80).prop_map(|(at, len)| Op::Sack(at, len)),
        2 => (0u64..20).prop_map(Op::Age),
        1 => Just(Op::Forgive),
        1 => Just(Op::Long),
        1 => Just(Op::Probe),
        1 => (0u32..200, 1u32..80).prop_map(|(at, len)| Op::Dsack(at, len)),
        1 => Just(Op::LoseHead),
        1 => Just(Op::LoseAll),
        3 => Just(Op::RexmitMode),
        1 => Just(Op::Forget),
    ]
}

proptest! {
    /// Whatever happens, records lie side by side and the counts agree with them; no acknowledged
    /// byte is counted as delivered twice.
    #[test]
    fn counts_agree_with_records(ops in proptest::collection::vec(op(), 1..80)) {
        let (mut una, mut nxt) = (Seq(u32::MAX - 100), Seq(u32::MAX - 100));
        let (mut flight, mut resent) = (Flight::default(), Resent::default());
        let (mut sent, mut delivered, mut forgot) = (0u32, 0u32, false);
        for (i, op) in ops.into_iter().enumerate() {
            let at = Instant::from_millis(i as u64);
            match op {
                Op::Send(len) => {
                    flight.push(nxt, nxt + len, at, MSS, false);
                    nxt += len;
                    sent += len;
                }
                Op::Ack(len) => {
                    una += len.min(nxt.since(una));
                    let mut d = fresh();
                    flight.ack_to(una, &mut d);
                    delivered += d.bytes;
                }
                Op::Sack(from, len) => {
                    let left = una + from;
                    if (left + len).le(nxt) {
                        let mut d = fresh();
                        flight.sack(left, left + len, &mut d);
                        delivered += d.bytes;
                    }
                }
                Op::Age(ms) => {
                    let newest = (at, nxt);
                    let age = Duration::from_millis(ms);
                    let mut rack_checked = una;
                    flight.mark_aged(at, newest, age, &mut rack_checked, &mut resent);
                }
                Op::Forgive => flight.forgive(),
                Op::Long => flight.mark_long_lost(MSS / 2),
                Op::Probe => {
                    if let Some(last) = flight.last().copied() {
                        flight.on_probe(last.last_segment(), last.end, at);
                    }
                }
                Op::Dsack(from, len) => {
                    flight.dsack(una + from, una + (from + len), una);
                }
                Op::LoseHead => {
                    flight.mark_head_lost();
                }
                Op::LoseAll => flight.mark_all_lost(),
                Op::RexmitMode => {
                    if let Some(lost) = flight.next_lost(una) {
                        let end = lost.start + lost.len().min(2 * MSS);
                        flight.on_retransmit(lost.start, end, at, MSS - (i as u32 % 3));
                        flight.list_resent(lost.start, end, at, &mut resent);
                    }
                }
                Op::Forget => {
                    flight.forget_sacks();
                    forgot = true;
                }
            }
            flight.check(una, nxt);
            prop_assert!(resent.len() <= 2 * flight.records.len() + RESENT_SLACK + 1);
            prop_assert!(forgot || delivered <= sent);
            let wire_segments = 2 * sent / MSS + i as u32 + 2;
            prop_assert!(flight.records.len() as u32 <= wire_segments);
        }
        una = nxt;
        flight.ack_to(una, &mut fresh());
        prop_assert!(flight.is_empty());
        prop_assert_eq!((flight.sacked, flight.lost, flight.retransmitted), (0, 0, 0));
    }
}

fn ten_segments() -> Flight {
    let mut flight = Flight::default();
    for i in 0..10 {
        let at = Instant::from_millis(u64::from(i));
        flight.push(Seq(i * MSS), Seq((i + 1) * MSS), at, MSS, false);
    }
    flight
}

fn fresh() -> Delivered {
    Delivered::new(Instant::from_millis(100), Duration::ZERO, Seq(0))
}

fn sack(flight: &mut Flight, left: u32, right: u32) -> Delivered {
    let mut delivered = fresh();
    flight.sack(Seq(left), Seq(right), &mut delivered);
    delivered
}

fn ack(flight: &mut Flight, una: u32) -> Delivered {
    let mut delivered = fresh();
    flight.ack_to(Seq(una), &mut delivered);
    delivered
}

given! {
    let mut flight = ten_segments();

    /// RFC 8985 section 6.2, step 5.
    lost_is_what_was_sent_before_something_delivered_and_long_enough_ago {
        let newest = sack(&mut flight, 50, 60).newest.unwrap();
        assert_eq!(newest, (Instant::from_millis(5), Seq(60)));
        let (mut rack_checked, mut resent) = (Seq(0), Resent::default());
        let age = Duration::from_millis(98);
        let now = Instant::from_millis(100);
        let aged = flight.mark_aged(now, newest, age, &mut rack_checked, &mut resent);
        // Sent at 0, 1 and 2: old enough. At 3 and 4: not yet. At 6: after what was delivered.
        assert_eq!((aged.lost, aged.first, flight.lost), (3, Some(Seq(0)), 3));
        assert_eq!(aged.wait, Some(Duration::from_millis(2)));
        assert_eq!(rack_checked, Seq(30));
    }
    what_was_sent_again_is_lost_again_when_something_sent_later_arrives {
        let (mut rack_checked, mut resent) = (Seq(0), Resent::default());
        flight.mark_head_lost();
        let again = Instant::from_millis(50);
        flight.on_retransmit(Seq(0), Seq(10), again, MSS);
        flight.list_resent(Seq(0), Seq(10), again, &mut resent);
        let now = Instant::from_millis(100);
        let mut age = |flight: &mut Flight, at| {
            let newest = (Instant::from_millis(at), Seq(100));
            flight.mark_aged(now, newest, Duration::ZERO, &mut rack_checked, &mut resent)
        };
        let before = age(&mut flight, 49);
        assert!(!before.again);
        assert_eq!(flight.retransmitted, 1);
        let after = age(&mut flight, 51);
        assert!(after.again);
        assert_eq!(flight.retransmitted, 0);
    }
    oldest_unambiguous_transmission_is_measured {
        flight.mark_head_lost();
        flight.on_retransmit(Seq(0), Seq(10), Instant::from_millis(50), MSS);
        let delivered = ack(&mut flight, 30);
        assert!(delivered.ambiguous);
        let span = (Instant::from_millis(1), Instant::from_millis(2));
        assert_eq!(delivered.acked_at, Some(span));
        assert_eq!((delivered.bytes, delivered.packets), (30, 3));
    }
    what_was_sacked_is_not_delivered_again {
        assert_eq!(sack(&mut flight, 10, 30).bytes, 20);
        assert_eq!(sack(&mut flight, 10, 40).bytes, 10);
        assert_eq!(ack(&mut flight, 50).bytes, 20);
    }
}

#[test]
fn fin_takes_no_wire_segment_of_its_own() {
    let mut flight = Flight::default();
    flight.push(Seq(0), Seq(21), Instant::ZERO, MSS, true);
    assert_eq!(flight.packets, 2);
    sack(&mut flight, 0, 20);
    assert_eq!((flight.packets, flight.sacked), (3, 2));
}

#[test]
fn peer_that_sacks_crumbs_makes_no_more_records() {
    let mut flight = Flight::default();
    flight.push(Seq(0), Seq(1000), Instant::ZERO, MSS, false);
    for i in (0..1000).step_by(2) {
        sack(&mut flight, i, i + 1);
    }
    assert_eq!(flight.records.len(), 1);
    for i in (0..1000).step_by(20) {
        sack(&mut flight, i, i + 10);
    }
    assert_eq!(flight.records.len(), 100);
}

// ---- a peer that lies: records visited, not seconds ----

const MANY: u32 = 10_000;

fn many_segments() -> Flight {
    let mut flight = Flight::default();
    for i in 0..MANY {
        flight.push(Seq(i * MSS), Seq((i + 1) * MSS), Instant::ZERO, MSS, false);
    }
    flight
}

/// Records visited by `again` and what it does.
fn steps(flight: &mut Flight, again: impl FnOnce(&mut Flight)) -> u64 {
    let before = STEPS.get();
    again(flight);
    STEPS.get() - before
}

given! {
    let mut flight = many_segments();

    /// "SACK slowness" (CVE-2018-5390 and the like): blocks that say the same over and over.
    block_of_what_is_sacked_already_costs_no_walk_over_it {
        sack(&mut flight, MSS, MANY * MSS);
        let spent = steps(&mut flight, |flight| {
            for i in 0..1000 {
                // Whole, in turn with others, shifted by a byte, from the middle.
                sack(flight, MSS, MANY * MSS);
                sack(flight, MSS + i, MANY * MSS - i);
                sack(flight, MANY * MSS / 2 + 7 * i, MANY * MSS);
            }
        });
        assert!(spent <= 2 * u64::from(MANY) + 3000 * 16, "{spent} records for 3,000 blocks");
    }
    blocks_that_grow_by_a_segment_cost_steps_for_the_segment {
        let spent = steps(&mut flight, |flight| {
            for i in 2..MANY {
                sack(flight, MSS, i * MSS);
                // Every other one ends below, as overtaken acknowledgements do.
                sack(flight, MSS, (i / 2 + 1) * MSS);
            }
        });
        assert!(spent <= 16 * 2 * u64::from(MANY), "{spent} records for {MANY} segments");
    }
    every_other_segment_then_the_rest_is_walked_once {
        let spent = steps(&mut flight, |flight| {
            for i in (1..MANY).step_by(2) {
                sack(flight, i * MSS, (i + 1) * MSS);
            }
            for _ in 0..1000 {
                sack(flight, MSS, MANY * MSS);
            }
        });
        assert!(spent <= 16 * u64::from(MANY), "{spent} records");
    }
    hole_that_is_too_young_has_nobody_walk_over_what_arrived_behind_it {
        let (mut resent, mut rack_checked) = (Resent::default(), Seq(0));
        let now = Instant::from_millis(5);
        let spent = steps(&mut flight, |flight| {
            for i in 1..MANY - 1 {
                let newest = sack(flight, i * MSS, (i + 1) * MSS).newest.unwrap();
                // The first is not old enough yet.
                let age = Duration::from_millis(10);
                let aged = flight.mark_aged(now, newest, age, &mut rack_checked, &mut resent);
                assert_eq!(aged.lost, 0);
            }
        });
        assert!(spent <= 16 * u64::from(MANY), "{spent} records for {MANY} acknowledgements");
    }
    forgiving_a_loss_looks_no_further_than_the_losses {
        for _ in 0..1000 {
            flight.mark_head_lost();
            flight.forgive();
            assert_eq!(flight.lost, 0);
        }
        flight.check(Seq(0), Seq(MANY * MSS));
    }
}

#[test]
fn report_of_a_duplicate_that_nothing_else_confirms_leaves_the_flight_as_it_is() {
    let mut flight = ten_segments();
    flight.mark_head_lost();
    flight.on_retransmit(Seq(0), Seq(10), Instant::from_millis(50), MSS);
    assert_eq!(flight.dsack(Seq(0), Seq(10), Seq(0)), 1);
    assert_eq!((flight.lost, flight.retransmitted), (1, 1));
    assert!(!flight.has_lost());
}

/// Without SACK no walk by time takes retransmissions off their list.
#[test]
fn retransmissions_without_end_are_listed_as_long_as_they_are_under_way() {
    let mut flight = ten_segments();
    let mut resent = Resent::default();
    for i in 0..100_000 {
        let at = Instant::from_millis(i);
        flight.mark_head_lost();
        flight.mark_first_lost();
        flight.on_retransmit(Seq(0), Seq(10), at, MSS);
        flight.list_resent(Seq(0), Seq(10), at, &mut resent);
    }
    assert!(resent.len() <= 100, "{} listed, 10 under way", resent.len());
}
