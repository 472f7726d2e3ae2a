use proptest::prelude::*;

use super::*;

const MSS: u32 = 10;

#[derive(Clone, Debug)]
enum Op {
    Send(u32),
    Ack(u32),
    Sack(u32, u32),
    Lose(u32, u32),
    LoseHead,
    LoseAll,
    Resend,
    Forget,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (1u32..80).prop_map(Op::Send),
        2 => (0u32..60).prop_map(Op::Ack),
        4 => (0u32..200, 1u32..80).prop_map(|(at, len)| Op::Sack(at, len)),
        1 => (0u32..200, 1u32..80).prop_map(|(at, len)| Op::Lose(at, len)),
        1 => Just(Op::LoseHead),
        1 => Just(Op::LoseAll),
        3 => Just(Op::Resend),
        1 => Just(Op::Forget),
    ]
}

proptest! {
    /// Whatever happens, records lie side by side and the counts agree with them; no acknowledged
    /// byte is counted as delivered twice.
    #[test]
    fn counts_agree_with_records(ops in proptest::collection::vec(op(), 1..80)) {
        let (mut una, mut nxt) = (Seq(u32::MAX - 100), Seq(u32::MAX - 100));
        let mut flight = Flight::default();
        let (mut sent, mut delivered, mut forgot) = (0u32, 0u32, false);
        for (i, op) in ops.into_iter().enumerate() {
            let at = Instant::from_millis(i as u64);
            match op {
                Op::Send(len) => {
                    flight.push(nxt, nxt + len, at);
                    nxt += len;
                    sent += len;
                }
                Op::Ack(len) => {
                    una += len.min(nxt.since(una));
                    delivered += flight.ack_to(una).bytes;
                }
                Op::Sack(from, len) => {
                    let left = una + from;
                    if (left + len).le(nxt) {
                        let mut d = Delivered::default();
                        flight.sack(left, left + len, MSS, &mut d);
                        delivered += d.bytes;
                    }
                }
                Op::Lose(from, len) => flight.mark_lost(una + from, una + (from + len)),
                Op::LoseHead => flight.mark_head_lost(MSS),
                Op::LoseAll => flight.mark_all_lost(),
                Op::Resend => {
                    if let Some(lost) = flight.next_lost(una) {
                        let end = lost.start + lost.len().min(2 * MSS);
                        flight.on_retransmit(lost.start, end, at);
                    }
                }
                Op::Forget => {
                    flight.forget_sacks();
                    forgot = true;
                }
            }
            flight.check(una, nxt);
            prop_assert!(forgot || delivered <= sent);
            let wire_segments = 2 * sent / MSS + i as u32 + 2;
            prop_assert!(flight.records.len() as u32 <= wire_segments);
        }
        una = nxt;
        flight.ack_to(una);
        prop_assert!(flight.is_empty());
        prop_assert_eq!((flight.sacked(), flight.lost(), flight.retransmitted()), (0, 0, 0));
    }
}

fn ten_segments() -> Flight {
    let mut flight = Flight::default();
    for i in 0..10 {
        flight.push(Seq(i * MSS), Seq((i + 1) * MSS), Instant::from_millis(u64::from(i)));
    }
    flight
}

fn sack(flight: &mut Flight, left: u32, right: u32) -> Delivered {
    let mut delivered = Delivered::default();
    flight.sack(Seq(left), Seq(right), MSS, &mut delivered);
    delivered
}

#[test]
fn lost_is_what_more_than_two_segments_above_are_sacked() {
    // RFC 6675 section 4, IsLost.
    let mut flight = ten_segments();
    sack(&mut flight, 30, 50);
    assert_eq!(flight.lost_below(2 * MSS, 3), None);
    sack(&mut flight, 50, 60);
    assert_eq!(flight.lost_below(2 * MSS, 3), Some(Seq(30)));
}

#[test]
fn lost_is_what_three_separate_blocks_lie_above() {
    let mut flight = Flight::default();
    flight.push(Seq(0), Seq(10), Instant::ZERO);
    // Short segments: three of them are less than two full ones.
    for i in 0..6 {
        flight.push(Seq(10 + i), Seq(11 + i), Instant::ZERO);
    }
    for i in [0, 2] {
        sack(&mut flight, 10 + i, 11 + i);
    }
    assert_eq!(flight.lost_below(2 * MSS, 3), None);
    sack(&mut flight, 14, 15);
    assert_eq!(flight.lost_below(2 * MSS, 3), Some(Seq(10)));
}

#[test]
fn oldest_unambiguous_transmission_is_measured() {
    let mut flight = ten_segments();
    flight.mark_head_lost(MSS);
    flight.on_retransmit(Seq(0), Seq(10), Instant::from_millis(50));
    let delivered = flight.ack_to(Seq(30));
    assert!(delivered.ambiguous);
    assert_eq!(delivered.sent_at, Some(Instant::from_millis(1)));
    assert_eq!(delivered.bytes, 30);
}

#[test]
fn what_was_sacked_is_not_delivered_again() {
    let mut flight = ten_segments();
    assert_eq!(sack(&mut flight, 10, 30).bytes, 20);
    assert_eq!(sack(&mut flight, 10, 40).bytes, 10);
    assert_eq!(flight.ack_to(Seq(50)).bytes, 20);
}

#[test]
fn peer_that_sacks_crumbs_makes_no_more_records() {
    let mut flight = Flight::default();
    flight.push(Seq(0), Seq(1000), Instant::ZERO);
    for i in (0..1000).step_by(2) {
        sack(&mut flight, i, i + 1);
    }
    assert_eq!(flight.records.len(), 1);
    for i in (0..1000).step_by(20) {
        sack(&mut flight, i, i + 10);
    }
    assert_eq!(flight.records.len(), 100);
}
