//! RFC 5961: what a stranger gets who knows addresses and ports and guesses the numbers. Each test
//! says how many guesses are of use, and how many answers they draw.

use crate::support::*;

/// Segments of a header alone, one for each number from 0 on in steps of `step`.
fn sweep(step: u32, make: impl Fn(u32) -> TcpHeader) -> impl Iterator<Item = TcpHeader> {
    (0..(1u64 << 32) / u64::from(step)).map(move |i| make((i * u64::from(step)) as u32))
}

fn bare(flags: Flags, seq: Seq, ack: Seq) -> TcpHeader {
    TcpHeader {
        src_port: 80,
        dst_port: 4000,
        seq,
        ack,
        flags,
        window: 1000,
        ..TcpHeader::default()
    }
}

given! {
    let mut t = Test::established(plain());

    of_resets_all_over_the_sequence_space_one_in_four_billion_resets {
        // Section 3. A guess for each 4096 numbers, and every number around the right one: of 2^20 +
        // 2,000 none but the exact one counts.
        let exact = IRS + 1;
        let around = (1..=1000).flat_map(|i| [exact + i, exact - i]);
        let far = sweep(4096, |n| bare(Flags::RST, exact + n + 1, Seq(0))).map(|h| h.seq);
        let mut guesses = 0;
        for seq in far.chain(around) {
            let _ = t.peer_header(&bare(Flags::RST, seq, Seq(0)), FragVec::new());
            guesses += 1;
        }
        t.state(State::Established);
        assert_eq!(guesses, (1 << 20) + 2000);
        assert_eq!(t.sent().len(), 1, "challenge ACKs to a million guesses at one moment");
        let _ = t.peer_header(&bare(Flags::RST, exact, Seq(0)), FragVec::new());
        t.state(State::Closed);
    }
    syns_never_reset_and_draw_two_answers_a_second {
        // Section 4, and section 7 for the rate.
        for round in 0..1000u32 {
            for i in 0..100u32 {
                let seq = Seq((round * 100 + i).wrapping_mul(0x9e37_79b9));
                let _ = t.peer_header(&bare(Flags::SYN, seq, Seq(0)), FragVec::new());
            }
            t.wait(10);
        }
        t.state(State::Established);
        let answers = t.sent().len();
        assert_eq!(answers, 20, "to 100,000 SYNs in 10 seconds");
    }
    injected_data_must_acknowledge_what_is_within_a_window {
        // Section 5. The stranger knows the next number even; of acknowledgement numbers, those from
        // SND.UNA - MAX.SND.WND to SND.NXT are believed: 65,536 of 2^32.
        let step = 1 << 12;
        let mut believed = 0u64;
        for n in 0..1u32 << 20 {
            let ack = ISS + 1 + n.wrapping_mul(step).wrapping_add(7);
            let at = IRS + 1;
            let segment = bare(Flags::ACK | Flags::PSH, at, ack);
            let step = t.peer_header(&segment, payload(1));
            let refused = [DropReason::AckUnsent, DropReason::AckTooOld].map(Disposition::Dropped);
            believed += u64::from(!refused.contains(&step));
            t.sent();
        }
        assert_eq!(believed, 65_536 / u64::from(step), "of 2^20 guesses");
    }
    acknowledgements_of_what_was_never_sent_draw_two_answers_a_second {
        // Section 5.2: "All incoming segments whose ACK value doesn't satisfy the above condition MUST be
        // discarded and an ACK sent back"; section 7 for the rate. Half of the guesses acknowledge what is
        // still to be sent, half what was long ago.
        for round in 0..1000u32 {
            for i in 0..100u32 {
                let ack = ISS + 2 + (round * 100 + i)
                    .wrapping_mul(0x9e37_79b9) % (u32::MAX - 70_000);
                let _ = t.peer_header(&bare(Flags::ACK, IRS + 1, ack), FragVec::new());
            }
            t.wait(10);
        }
        t.state(State::Established);
        assert_eq!(t.sent().len(), 20, "answers to 100,000 acknowledgements in 10 seconds");
    }
    data_that_is_acknowledged_as_unacceptable_draws_one_answer_each_and_no_more {
        // Not limited in rate, or a peer whose acknowledgements were lost would wait; but the answer
        // carries nothing, so no loop comes of it. What is sent is never more than what came in.
        let len = 10_000;
        for _ in 0..len {
            t.peer_any(". 4294967200:4294967201(1) ack 1");
        }
        assert_eq!(t.sent().len(), len);
    }
}

#[test]
fn answers_of_all_connections_together_are_limited_if_it_is_asked_for() {
    // Section 7. A thousand connections, each asked once in the same second.
    let mut answers = 0;
    let mut shared =
        Shared { challenges: ChallengeLimit::new([9; 16], Some(100)), ..Default::default() };
    for _ in 0..1000 {
        let mut t = Test::established(plain());
        t.shared = shared;
        t.peer_dropped(DropReason::RstNotNext, "R 2:2(0)");
        answers += t.sent().len();
        shared = t.shared;
    }
    assert!((50..150).contains(&answers), "{answers} answers at 100 per second");
    assert_eq!(shared.challenges.refused(), 1000 - answers as u64);
}

#[test]
fn answer_that_the_host_withholds_does_not_withhold_what_was_due_anyway() {
    let (mut t, at) = Test::settled(plain());
    t.shared.challenges = ChallengeLimit::new([9; 16], Some(0));
    // Data whose acknowledgement is delayed; then nonsense.
    t.peer(&format!(". {at}:{}(1) ack 1", at + 1)).nothing();
    t.peer_dropped(DropReason::RstNotNext, &format!("R {}:{}(0)", at + 9, at + 9)).nothing();
    t.wait(40).expect(&format!(". 1:1(0) ack {}", at + 1));
}

#[test]
fn two_ends_that_are_out_of_step_do_not_talk_for_ever() {
    // RFC 9293 section 3.10.7.4: an unacceptable segment is answered with an acknowledgement. Two
    // ends for which all of the other's numbers are unacceptable would answer each other's answers
    // without end.
    let (mut a, mut b) = (Test::established(plain()), Test::established(plain()));
    let _ = a.peer_header(&bare(Flags::ACK, IRS - 70_000, ISS + 1), FragVec::new());
    let mut exchanged = 0;
    for _ in 0..10_000 {
        for _ in 0..2 {
            for segment in a.sent_segments() {
                exchanged += 1;
                let header = TcpHeader {
                    seq: segment.header.seq + (1 << 30),
                    ack: segment.header.ack + (1 << 30),
                    ..segment.header
                };
                let _ = b.peer_header(&header, segment.payload);
            }
            core::mem::swap(&mut a, &mut b);
        }
        a.wait(1);
        b.wait(1);
    }
    // The limit of each ends it: an answer to an answer within half a second is not given.
    assert!((2..=4).contains(&exchanged), "{exchanged} segments in 10 seconds");
}
