use proptest::prelude::*;

use super::*;

const MSS: u32 = 10;

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
    Resend,
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
                    let mut judged = una;
                    flight.mark_aged(at, newest, age, &mut judged, &mut resent);
                }
                Op::Forgive => flight.forgive(),
                Op::Long => flight.mark_long_lost(MSS / 2),
                Op::Probe => {
                    if let Some(last) = flight.last().copied() {
                        flight.on_probe(last.last_segment(), last.end, at);
                    }
                }
                Op::Dsack(from, len) => {
                    flight.dsack(una + from, una + (from + len), una, &mut None);
                }
                Op::LoseHead => {
                    flight.mark_head_lost();
                }
                Op::LoseAll => flight.mark_all_lost(),
                Op::Resend => {
                    if let Some(lost) = flight.next_lost(una) {
                        let end = lost.start + lost.len().min(2 * MSS);
                        flight.on_retransmit(lost.start, end, at, MSS - (i as u32 % 3));
                        resent.push(lost.start, end, at);
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
        flight.ack_to(una, &mut fresh());
        prop_assert!(flight.is_empty());
        prop_assert_eq!((flight.sacked(), flight.lost(), flight.retransmitted()), (0, 0, 0));
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

/// RFC 8985 section 6.2, step 5.
#[test]
fn lost_is_what_was_sent_before_something_delivered_and_long_enough_ago() {
    let mut flight = ten_segments();
    let newest = sack(&mut flight, 50, 60).newest.unwrap();
    assert_eq!(newest, (Instant::from_millis(5), Seq(60)));
    let (mut judged, mut resent) = (Seq(0), Resent::default());
    let age = Duration::from_millis(98);
    let now = Instant::from_millis(100);
    let aged = flight.mark_aged(now, newest, age, &mut judged, &mut resent);
    // Sent at 0, 1 and 2: old enough. At 3 and 4: not yet. At 6: after what was delivered.
    assert_eq!((aged.lost, aged.first, flight.lost()), (3, Some(Seq(0)), 3));
    assert_eq!(aged.wait, Some(Duration::from_millis(2)));
    assert_eq!(judged, Seq(30));
}

#[test]
fn what_was_sent_again_is_lost_again_when_something_sent_later_arrives() {
    let mut flight = ten_segments();
    let (mut judged, mut resent) = (Seq(0), Resent::default());
    flight.mark_head_lost();
    let again = Instant::from_millis(50);
    flight.on_retransmit(Seq(0), Seq(10), again, MSS);
    resent.push(Seq(0), Seq(10), again);
    let now = Instant::from_millis(100);
    let mut age = |flight: &mut Flight, at| {
        let newest = (Instant::from_millis(at), Seq(100));
        flight.mark_aged(now, newest, Duration::ZERO, &mut judged, &mut resent)
    };
    let before = age(&mut flight, 49);
    assert!(!before.again);
    assert_eq!(flight.retransmitted(), 1);
    let after = age(&mut flight, 51);
    assert!(after.again);
    assert_eq!(flight.retransmitted(), 0);
}

#[test]
fn fin_takes_no_wire_segment_of_its_own() {
    let mut flight = Flight::default();
    flight.push(Seq(0), Seq(21), Instant::ZERO, MSS, true);
    assert_eq!(flight.packets(), 2);
    sack(&mut flight, 0, 20);
    assert_eq!((flight.packets(), flight.sacked()), (3, 2));
}

#[test]
fn oldest_unambiguous_transmission_is_measured() {
    let mut flight = ten_segments();
    flight.mark_head_lost();
    flight.on_retransmit(Seq(0), Seq(10), Instant::from_millis(50), MSS);
    let delivered = ack(&mut flight, 30);
    assert!(delivered.ambiguous);
    let span = (Instant::from_millis(1), Instant::from_millis(2));
    assert_eq!(delivered.acked_at, Some(span));
    assert_eq!((delivered.bytes, delivered.packets), (30, 3));
}

#[test]
fn what_was_sacked_is_not_delivered_again() {
    let mut flight = ten_segments();
    assert_eq!(sack(&mut flight, 10, 30).bytes, 20);
    assert_eq!(sack(&mut flight, 10, 40).bytes, 10);
    assert_eq!(ack(&mut flight, 50).bytes, 20);
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
