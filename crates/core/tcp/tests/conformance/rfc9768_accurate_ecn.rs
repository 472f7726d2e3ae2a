//! Accurate feedback of congestion marks (RFC 9768). In the notation A, W and E are the flags AE, CWR
//! and ECE: outside of the handshake the bits 4, 2 and 1 of a count that begins with 5.

use crate::support::*;

fn mode(ecn: EcnMode) -> Config {
    Config { ecn, ..plain() }
}

fn accurate() -> Config {
    mode(EcnMode::Accurate)
}

fn option(ecn_option: EcnOption) -> Config {
    Config { ecn_option, ..accurate() }
}

/// An active connection over a path of 100 ms; both sides have reported their counts.
fn client() -> Test {
    client_with(accurate())
}

fn client_with(config: Config) -> Test {
    let mut t = Test::connecting(config);
    t.expect("SEWA 0:0(0)").wait(100);
    t.peer("SW. 0:0(0) ack 1 win 65535 <mss 65000,sackOK,ECN e0b 1 ceb 0 e1b 1>");
    t.expect("W. 1:1(0) ack 1").nothing();
    t
}

/// A passive one.
fn server() -> Test {
    server_with(accurate())
}

fn server_with(config: Config) -> Test {
    let mut t = Test::accepting(config, "SEWA 0:0(0) win 65535 <mss 1000,sackOK>");
    t.expect("SW. 0:0(0) ack 1").wait(100);
    t.peer("W. 1:1(0) ack 1 win 65535 <ECN e0b 1>").state(State::Established).nothing();
    t
}

fn counts(t: &Test) -> EcnCounts {
    t.conn.info().ecn_counts.expect("accurate feedback")
}

fn has_accurate(t: &Test) -> bool {
    t.conn.info().ecn_counts.is_some()
}

// ---- section 3.1: negotiation ----

/// Also RFC 3168 section 6.1.1.
#[test]
fn both_sides_say_what_their_settings_allow_and_agree_on_what_both_know() {
    use EcnMode::{Accept, AcceptAccurate, Accurate, Off, Request, RequestAcceptAccurate};
    // The flags of our SYN; of our SYN,ACK to one without ECN, with the classic and with all flags.
    for (setting, syn, answers) in [
        (Off, "S", ["S.", "S.", "S."]),
        (Request, "SEW", ["S.", "SE.", "SE."]),
        (Accept, "S", ["S.", "SE.", "SE."]),
        (Accurate, "SEWA", ["S.", "SE.", "SW."]),
        (RequestAcceptAccurate, "SEW", ["S.", "SE.", "SW."]),
        (AcceptAccurate, "S", ["S.", "SE.", "SW."]),
    ] {
        Test::connecting(mode(setting)).expect(&format!("{syn} 0:0(0)"));
        for (asked, answer) in ["S", "SEW", "SEWA"].into_iter().zip(answers) {
            let syn = format!("{asked} 0:0(0) win 1000 <mss 1000>");
            let mut t = Test::accepting(mode(setting), &syn);
            t.expect(&format!("{answer} 0:0(0) ack 1"));
            assert_eq!(t.conn.info().ecn, answer != "S.", "{setting:?} {asked}");
            assert_eq!(has_accurate(&t), answer == "SW.", "{setting:?} {asked}");
        }
    }
    // ECE without CWR is no request.
    Test::accepting(mode(Accept), "SE 0:0(0) win 1000 <mss 1000>").expect("S. 0:0(0) ack 1");
}

#[test]
fn server_answers_with_how_the_syn_arrived() {
    let syn = "SEWA 0:0(0) win 1000 <mss 1000>";
    for (bits, answer) in [(NOT_ECT, "SW."), (ECT1, "SWE."), (ECT0, "SA."), (CE, "SAW.")] {
        let mut t = Test::accepting_marked(accurate(), bits, syn);
        t.expect(&format!("{answer} 0:0(0) ack 1 <mss 1000,ECN e1b 1 ceb 0 e0b 1>"));
        assert!(has_accurate(&t));
        // > section 3.2.2.2: it MUST NOT increment r.cep
        assert_eq!(counts(&t).received_ce, 0);
    }
}

/// Section 3.1.3.
#[test]
fn reserved_combinations_count_as_a_request() {
    for flags in ["SE", "SW", "SA", "SEA", "SWA"] {
        let t = Test::accepting(accurate(), &format!("{flags} 0:0(0) win 1000 <mss 1000>"));
        assert!(has_accurate(&t), "{flags}");
    }
}

#[test]
fn client_does_what_the_answer_says() {
    use EcnMode::{Accurate, Request};
    for (setting, answers, ecn, counted) in [
        (Accurate, &["SW.", "SWE.", "SA.", "SAW.", "SAE."][..], true, true),
        (Accurate, &["SE."], true, false),
        // A host that reflects flags that it does not know (section 3.1.2, RFC 3168 section 6.1.1).
        (Accurate, &["S.", "SEWA."], false, false),
        (Request, &["SEW."], false, false),
    ] {
        for flags in answers {
            let mut t = Test::connecting(mode(setting));
            t.peer(&format!("{flags} 0:0(0) ack 1 win 65535 <mss 1000>"));
            assert_eq!((t.conn.info().ecn, has_accurate(&t)), (ecn, counted), "{flags}");
        }
    }
}

/// Section 3.2.2.1, table 3.
#[test]
fn acknowledgement_of_the_syn_ack_says_how_that_arrived() {
    for (bits, answer, ce) in
        [(NOT_ECT, "W.", 0), (ECT1, "WE.", 0), (ECT0, "A.", 0), (CE, "AW.", 1)]
    {
        let mut t = Test::connecting(accurate());
        t.expect("SEWA 0:0(0)");
        t.peer_marked(bits, "SW. 0:0(0) ack 1 win 65535 <mss 1000,sackOK>");
        t.expect(&format!("{answer} 1:1(0) ack 1"));
        assert_eq!(counts(&t).received_ce, ce);
        // The next one is a count.
        t.send(10);
        let next = if ce == 1 { "PAW." } else { "PAE." };
        t.expect(&format!("{next} 1:11(10) ack 1"));
    }
}

#[test]
fn pure_acknowledgement_goes_before_what_waits_to_be_sent() {
    // The SYN says that there is data, and the server takes none of it.
    let how = FastOpenConnect { option: None, mss: None, deferred: true };
    let mut t = Test::connecting_fast(accurate(), how);
    t.send(10).expect("SEWA 0:10(10)");
    t.peer("SW. 0:0(0) ack 1 win 65535 <mss 1000,sackOK>");
    t.expect("W. 11:11(0) ack 1").expect("PAE. 1:11(10) ack 1");
}

given! {
    let mut t = Test::connecting(accurate());

    syn_ack_that_comes_again_is_acknowledged_in_the_same_way_and_counts_once {
        t.expect("SEWA 0:0(0)");
        let syn_ack = "SW. 0:0(0) ack 1 win 65535 <mss 1000,sackOK>";
        t.peer_marked(CE, syn_ack).expect("AW. 1:1(0) ack 1").wait(1000);
        t.peer_marked(CE, syn_ack).expect("AW. 1:1(0) ack 1");
        assert_eq!(counts(&t).received_ce, 1);
    }
    /// Section 3.1.4.1.
    syn_asks_twice_and_then_no_more {
        t.expect("SEWA 0:0(0)").wait(1000).expect("SEWA 0:0(0)").wait(2000).expect("S 0:0(0)");
        // An answer to the first SYN counts all the same.
        t.peer("SW. 0:0(0) ack 1 win 65535 <mss 1000>");
        assert!(has_accurate(&t));
    }
    simultaneous_open_counts_as_an_answer_would {
        t.expect("SEWA 0:0(0)");
        t.peer_marked(ECT0, "SEWA 0:0(0) win 65535 <mss 1000>");
        let answer = &t.sent_segments()[0].header;
        assert_eq!(answer.flags, Flags::SYN | Flags::ACK | Flags::AE);
        assert!(answer.options.accurate_ecn.is_some() && has_accurate(&t));
        // Nor do SYNs that were sent before count as answers.
        let mut t = Test::connecting(accurate());
        t.expect("SEWA 0:0(0)").wait(3000).sent();
        t.peer_any("SEWA 0:0(0) win 65535 <mss 1000,sackOK>");
        let answer = &t.sent_segments()[0].header;
        assert_eq!(answer.flags, Flags::SYN | Flags::ACK | Flags::CWR);
        assert!(answer.options.accurate_ecn.is_some());
    }
}

/// Section 3.2.3.2.2.
#[test]
fn syn_ack_loses_the_option_and_then_the_flags() {
    let mut t = Test::accepting(accurate(), "SEWA 0:0(0) win 65535 <mss 1000>");
    t.expect("SW. 0:0(0) ack 1 <mss 1000,ECN e1b 1 ceb 0 e0b 1>").wait(1000);
    t.expect("SW. 0:0(0) ack 1 <mss 1000>").wait(2000);
    t.expect("S. 0:0(0) ack 1 <mss 1000>");
    // > section 3.1.5: MUST NOT set ECT on any packet for the rest of the connection
    t.peer("W. 1:1(0) ack 1 win 65535").send(10);
    t.expect_marked(NOT_ECT, "PAE. 1:11(10) ack 1");
    assert!(has_accurate(&t));
}

#[test]
fn later_syn_is_answered_with_its_own_mark_and_without_the_option() {
    let syn = "SEWA 0:0(0) win 65535 <mss 1000>";
    let mut t = Test::accepting(accurate(), syn);
    t.expect("SW. 0:0(0) ack 1");
    t.peer_marked(CE, syn).expect("SAW. 0:0(0) ack 1 <mss 1000>");
}

/// Section 3.1.5: the server does not know whether the client came to count.
#[test]
fn syn_without_flags_after_one_with_them_keeps_the_server_from_ect() {
    let mut t = Test::accepting(accurate(), "SEWA 0:0(0) win 65535 <mss 1000>");
    t.expect("SW. 0:0(0) ack 1");
    t.peer_any("S 0:0(0) win 65535 <mss 1000>").expect("SW. 0:0(0) ack 1");
    t.peer("W. 1:1(0) ack 1 win 65535").send(10);
    t.expect_marked(NOT_ECT, "PAE. 1:11(10) ack 1");
}

/// > section 3.1.5: MUST reset the connection with a RST packet, if it receives a 'Classic' ECN-setup
/// > SYN [...] and a SYN requesting AccECN feedback during the same handshake
#[test]
fn syns_of_both_kinds_reset_the_connection() {
    let (new, old) = ("SEWA 0:0(0) win 65535 <mss 1000>", "SEW 0:0(0) win 65535 <mss 1000>");
    for (first, second) in [(new, old), (old, new)] {
        let mut t = Test::accepting(accurate(), first);
        assert_eq!(t.sent().len(), 1);
        t.peer_dropped(DropReason::Flags, second);
        t.expect("R. 1:1(0) ack 1").state(State::Closed);
    }
}

// ---- section 3.2.2.1, table 4: the server learns how its SYN,ACK arrived ----

#[test]
fn server_sends_ect_unless_the_answer_says_that_something_mangles_it() {
    let answers = [
        ("W.", ECT0, 10),
        ("E.", ECT0, 10),
        ("AE.", ECT0, 10),
        ("EWA.", ECT0, 10),
        // The SYN,ACK left as Not-ECT (section 3.2.2.3).
        ("WE.", NOT_ECT, 10),
        ("A.", NOT_ECT, 10),
        ("AW.", NOT_ECT, 1),
        // The client does not count (note 1).
        (".", NOT_ECT, 10),
    ];
    for (flags, bits, cwnd) in answers {
        let mut t = Test::accepting(accurate(), "SEWA 0:0(0) win 65535 <mss 1000,sackOK>");
        t.expect("SW. 0:0(0) ack 1").wait(100);
        t.peer(&format!("{flags} 1:1(0) ack 1 win 65535"));
        assert_eq!(t.conn.info().cwnd_segments, cwnd, "{flags}");
        t.send(10).expect_marked(bits, "PAE. 1:11(10) ack 1");
    }
}

#[test]
fn server_without_a_report_does_not_heed_what_follows() {
    let mut t = Test::accepting(accurate(), "SEWA 0:0(0) win 65535 <mss 1000,sackOK>");
    t.expect("SW. 0:0(0) ack 1").wait(100).peer(". 1:1(0) ack 1 win 65535");
    t.send(2000).sent();
    t.wait(100).peer("AW. 1:1(0) ack 1001");
    assert_eq!((t.conn.info().ca_state, t.conn.info().delivered_ce), (CaState::Open, 0));
    // > as a Data Receiver it MUST NOT disable AccECN feedback
    t.peer_marked(CE, ". 1:1001(1000) ack 1001").expect("AW. 2001:2001(0) ack 1001");
}

// ---- the receiver ----

#[test]
fn marks_are_counted_in_every_segment_from_five_on() {
    let mut t = client();
    t.peer_marked(ECT0, "AE. 1:1001(1000) ack 1");
    t.expect("AE. 1:1(0) ack 1001 <ECN e1b 1 ceb 0 e0b 1001>");
    for (i, flags) in ["AW.", "AWE.", ".", "E.", "W.", "WE.", "A.", "AE."].into_iter().enumerate() {
        let (from, to) = (1001 + 1000 * i as u32, 2001 + 1000 * i as u32);
        t.peer_marked(CE, &format!("AE. {from}:{to}(1000) ack 1"));
        t.expect(&format!("{flags} 1:1(0) ack {to} <ECN e1b 1 ceb {} e0b 1001>", 1000 * (i + 1)));
    }
    let counts = counts(&t);
    assert_eq!((counts.received_ce, counts.received_bytes), (8, [1000, 8000, 0]));
}

#[test]
fn option_has_all_counters_whatever_the_mark() {
    let mut t = client();
    t.peer_marked(ECT1, "AE. 1:1001(1000) ack 1");
    t.expect("AE. 1:1(0) ack 1001 <ECN e1b 1001 ceb 0 e0b 1>");
    t.peer_marked(CE, "AE. 1001:2001(1000) ack 1");
    t.expect("AW. 1:1(0) ack 2001 <ECN e1b 1001 ceb 1000 e0b 1>");
    t.peer_marked(ECT0, "AE. 2001:3001(1000) ack 1");
    t.expect("AW. 1:1(0) ack 3001 <ECN e1b 1001 ceb 1000 e0b 1001>");
    // Nothing has changed, and it is reported again.
    t.peer_marked(NOT_ECT, "AE. 3001:4001(1000) ack 1");
    t.expect("AW. 1:1(0) ack 4001 <ECN e1b 1001 ceb 1000 e0b 1001>");
}

// ---- the option beside others, as Linux sends it ----

const FULL: &str = "ae0b0000 01000000 00000101";

/// The options of a segment, as they are on the wire.
fn wire(segment: &SegmentOut) -> String {
    let mut wire = [0; 60];
    let len = segment.header.emit(&mut wire);
    let words: Vec<String> = wire[20..len]
        .chunks(4)
        .map(|word| word.iter().map(|byte| format!("{byte:02x}")).collect())
        .collect();
    words.join(" ")
}

#[test]
fn syn_ack_has_all_counters_and_one_byte_of_fill() {
    let mss = "020403e8";
    for (options, bytes) in [
        ("mss 900", format!("{mss} {FULL}")),
        ("mss 900,sackOK", format!("{mss} {FULL} 01010402")),
        ("mss 900,sackOK,wscale 7", format!("{mss} {FULL} 01010402 01030307")),
        (
            "mss 900,sackOK,TS val 7 ecr 0,wscale 7",
            format!("{mss} 0402080a 00002710 00000007 {FULL} 01030307"),
        ),
    ] {
        let config = Config { timestamps: true, ..accurate() };
        let mut t = Test::accepting(config, &format!("SEWA 0:0(0) win 65535 <{options}>"));
        assert_eq!(wire(&t.sent_segments()[0]), bytes, "{options}");
    }
}

#[test]
fn first_acknowledgement_and_first_data_have_all_counters() {
    let mut t = Test::connecting(accurate());
    t.expect("SEWA 0:0(0)").wait(100);
    t.peer("SW. 0:0(0) ack 1 win 65535 <mss 1000,sackOK,ECN e1b 1 ceb 0 e0b 1>");
    let sent = t.sent_segments();
    assert_eq!((sent.len(), wire(&sent[0]).as_str()), (1, FULL));
    t.send(2000);
    let sent = t.sent_segments();
    let lens: Vec<usize> = sent.iter().map(|s| s.payload.iter().map(Frag::len).sum()).collect();
    // The option makes a segment shorter.
    assert_eq!(lens, [988, 988, 24]);
    assert!(sent.iter().all(|s| wire(s) == FULL));
}

/// The option is in every segment: it leaves no rest of what would fit without it.
#[test]
fn segments_with_the_option_are_all_full() {
    let link = LinkLimits { max_super_payload: 10_000, ..link() };
    let mut t = Test::connecting_over(accurate(), link);
    t.peer("SW. 0:0(0) ack 1 win 65535 <mss 1000,sackOK,ECN e1b 1 ceb 0 e0b 1>").sent();
    t.send(60_000);
    let mut at = 1;
    for _ in 0..3 {
        for segment in t.sent_segments() {
            let len: usize = segment.payload.iter().map(Frag::len).sum();
            assert_eq!(len % 988, 0, "{len} bytes from {at}");
            at += len;
        }
        t.wait(10).peer(&format!("AE. 1:1(0) ack {at}"));
    }
}

#[test]
fn first_data_of_the_passive_side_has_all_counters() {
    let mut t = server();
    t.send(100);
    assert_eq!(wire(&t.sent_segments()[0]), FULL);
}

/// > section 3.2.3.3: omitted from the end
#[test]
fn syn_ack_with_a_fast_open_cookie_has_two_counters() {
    let config = Config { timestamps: true, ..accurate() };
    let syn = "SEWA 0:0(0) win 65535 <mss 900,sackOK,TS val 7 ecr 0,wscale 7>";
    let cookie = FastOpenCookie::from_option(&[7; 8], false).unwrap();
    let mut t = Test::accepting_with_cookie(config, syn, cookie);
    let expected = "020403e8 0402080a 00002710 00000007 ae080000 01000000 01030307 \
                    220a0707 07070707 07070101";
    assert_eq!(wire(&t.sent_segments()[0]), expected);
}

#[test]
fn peer_that_sends_no_option_gets_none() {
    let mut t = Test::connecting(accurate());
    t.expect("SEWA 0:0(0)").wait(100);
    t.peer("SW. 0:0(0) ack 1 win 65535 <mss 1000,sackOK>");
    t.expect("W. 1:1(0) ack 1 <>").send(10).expect("PAE. 1:11(10) ack 1 <>");
    let mut t = Test::accepting(accurate(), "SEWA 0:0(0) win 65535 <mss 1000,sackOK>");
    t.expect("SW. 0:0(0) ack 1 <mss 1000,sackOK,ECN e1b 1 ceb 0 e0b 1>").wait(100);
    t.peer("W. 1:1(0) ack 1 win 65535").send(10).expect("PAE. 1:11(10) ack 1 <>");
    // As soon as there is one, it is answered.
    t.peer("PAE. 1:11(10) ack 11 <ECN e1b 1 ceb 0 e0b 11>");
    t.expect("AE. 11:11(0) ack 11 <ECN e1b 1 ceb 0 e0b 1>");
}

#[test]
fn setting_keeps_the_option_out_of_all_segments() {
    let mut t = Test::accepting(option(EcnOption::Off), "SEWA 0:0(0) win 65535 <mss 1000>");
    t.expect("SW. 0:0(0) ack 1 <mss 1000>").wait(100);
    t.peer("W. 1:1(0) ack 1 win 65535 <ECN e1b 1 ceb 0 e0b 1>");
    t.send(10).expect("PAE. 1:11(10) ack 1 <>");
    t.peer_marked(CE, "AE. 1:1001(1000) ack 11").expect("AW. 11:11(0) ack 1001 <>");
    let mut t = client_with(option(EcnOption::Off));
    t.send(10).expect("PAE. 1:11(10) ack 1 <>");
}

#[test]
fn sparing_option_follows_the_handshake_and_each_change() {
    let mut t = Test::connecting(option(EcnOption::Sparing));
    t.expect("SEWA 0:0(0)").wait(100);
    t.peer("SW. 0:0(0) ack 1 win 65535 <mss 1000,sackOK,ECN e1b 1 ceb 0 e0b 1>");
    let reported = |t: &mut Test| -> Vec<bool> {
        t.sent_segments().iter().map(|s| s.header.options.accurate_ecn.is_some()).collect()
    };
    assert_eq!(reported(&mut t), [true]);
    for expected in [true, false, false] {
        t.send(10);
        assert_eq!(reported(&mut t), [expected]);
    }
    // The mark changes: the next two tell of it.
    for (i, (mark, expected)) in
        [(ECT0, true), (ECT0, true), (ECT0, false), (CE, true), (ECT0, true), (ECT0, true)]
            .into_iter()
            .enumerate()
    {
        let _ =
            t.peer_marked(mark, &format!("AE. {}:{}(1000) ack 1", 1 + i * 1000, 1001 + i * 1000));
        assert_eq!(reported(&mut t), [expected], "{i}");
    }
    // Otherwise it is reported three times in a round trip of 100 ms.
    t.send(10);
    assert_eq!(reported(&mut t), [false]);
    t.wait(34).send(10);
    assert_eq!(reported(&mut t), [true]);
    t.wait(32).send(10);
    assert_eq!(reported(&mut t), [false]);
}

#[test]
fn sparing_option_reports_each_four_mebibytes() {
    let mut t = client_with(option(EcnOption::Sparing));
    t.send(10).sent();
    let mut reported = Vec::new();
    let mut ack = header("AE. 1:1(0) ack 11");
    for i in 0..90 {
        let arrival = Arrival { ecn: ECT0, gso_size: None };
        let data = payload(50_000);
        let taken = t.env(|c, env| c.handle_segment(env, &ack, data, arrival));
        assert_eq!(taken, Disposition::Accepted);
        ack.seq += 50_000;
        t.drain();
        t.read(50_000);
        if t.sent_segments().iter().any(|s| s.header.options.accurate_ecn.is_some()) {
            reported.push(i);
        }
    }
    // The change from Not-ECT, and what passes 2^22 bytes.
    assert_eq!(reported, [0, 83]);
}

#[test]
fn option_that_seems_to_be_dropped_stays_only_by_setting() {
    for (setting, stays) in [(EcnOption::Always, false), (EcnOption::Persistent, true)] {
        let mut t = client_with(option(setting));
        t.send(900).sent();
        t.wait(400);
        let again = t.sent_segments();
        assert_eq!(again[0].header.options.accurate_ecn.is_some(), stays, "{setting:?}");
    }
}

/// Section 3.2.3.2.2: not with the SYN,ACK that is sent again, and not afterwards.
#[test]
fn passive_side_whose_syn_ack_was_lost_sends_no_option_but_by_setting() {
    for (setting, stays) in [(EcnOption::Always, false), (EcnOption::Persistent, true)] {
        let mut t = Test::accepting(option(setting), "SEWA 0:0(0) win 65535 <mss 1000,sackOK>");
        t.expect("SW. 0:0(0) ack 1 <mss 1000,sackOK,ECN e1b 1 ceb 0 e0b 1>").wait(1000);
        t.expect("SW. 0:0(0) ack 1 <mss 1000,sackOK>");
        t.peer("W. 1:1(0) ack 1 win 65535 <ECN e1b 1 ceb 0 e0b 1>").send(10);
        let sent = t.sent_segments();
        assert_eq!(sent[0].header.options.accurate_ecn.is_some(), stays, "{setting:?}");
    }
}

/// > section 3.2.2.2: [...] for every Acceptable packet: also the one that completes the handshake
#[test]
fn mark_on_the_third_segment_of_the_handshake_counts() {
    let mut t = Test::accepting(accurate(), "SEWA 0:0(0) win 65535 <mss 1000,sackOK>");
    t.expect("SW. 0:0(0) ack 1").wait(100);
    let third = "W. 1:1(0) ack 1 win 65535 <ECN e1b 1 ceb 0 e0b 1>";
    t.peer_marked(CE, third);
    assert_eq!(counts(&t).received_ce, 1);
    // The segment has no payload, so the byte counts stay.
    t.send(10).expect("PAW. 1:11(10) ack 1 <ECN e1b 1 ceb 0 e0b 1>");
}

/// The SYN and the SYN,ACK: flags, counts and bytes.
#[test]
fn marks_on_both_segments_of_the_handshake_are_reported() {
    let mut t = Test::accepting_marked(accurate(), CE, "SEWA 0:0(0) win 65535 <mss 1000,sackOK>");
    let sent = t.sent_segments();
    assert_eq!(sent[0].header.flags, Flags::SYN | Flags::ACK | Flags::AE | Flags::CWR);
    assert_eq!(wire(&sent[0]), format!("020403e8 {FULL} 01010402"));
    let mut t = Test::connecting(accurate());
    t.expect("SEWA 0:0(0)").wait(100);
    t.peer_marked(CE, "SW. 0:0(0) ack 1 win 65535 <mss 1000,sackOK,ECN e1b 1 ceb 0 e0b 1>");
    t.expect("AW. 1:1(0) ack 1 <ECN e1b 1 ceb 0 e0b 1>");
    t.send(10).expect("PAW. 1:11(10) ack 1 <ECN e1b 1 ceb 0 e0b 1>");
    assert_eq!(counts(&t).received_ce, 1);
}

given! {
    let mut t = client();

    /// > section 3.2.2.5.1: An AccECN Data Receiver SHOULD emit an ACK whenever a data packet marked CE
    /// > arrives after the previous packet was not CE.
    change_to_marked_is_acknowledged_at_once {
        for i in 0..20u32 {
            let (from, to) = (1 + 10 * i, 11 + 10 * i);
            t.peer_marked(ECT0, &format!("PAE. {from}:{to}(10) ack 1"));
        }
        t.read(200).wait(200).sent();
        t.peer_marked(ECT0, "PAE. 201:211(10) ack 1").nothing();
        t.peer_marked(CE, "PAE. 211:221(10) ack 1").expect("AW. 1:1(0) ack 221");
        // After the change, every second marked packet is acknowledged.
        t.peer_marked(CE, "PAE. 221:231(10) ack 1").nothing();
        t.peer_marked(CE, "PAE. 231:241(10) ack 1").expect(". 1:1(0) ack 241");
    }
    /// The second part of the rule, for acknowledgements that are marked.
    third_marked_acknowledgement_is_acknowledged {
        t.send(3000).sent();
        for ack in [1001, 2001] {
            t.peer_marked(CE, &format!("AE. 1:1(0) ack {ack}")).nothing();
        }
        t.peer_marked(CE, "AE. 1:1(0) ack 3001");
        let sent = t.sent();
        assert_eq!(sent.len(), 1, "{sent:?}");
        assert!(sent[0].contains(". 3001:3001(0)"), "{sent:?}");
        assert_eq!(counts(&t).received_ce, 3);
    }
    /// > section 3.2: for every Acceptable packet
    marks_of_what_is_not_acceptable_do_not_count {
        t.peer_marked(CE, "AE. 900001:900011(10) ack 1").peer_marked(CE, "RAE. 77:77(0) ack 1");
        assert_eq!(counts(&t).received_ce, 0);
        // A duplicate is acceptable.
        for _ in 0..2 {
            t.peer_marked(CE, "AE. 1:1001(1000) ack 1");
        }
        assert_eq!((counts(&t).received_ce, counts(&t).received_bytes[1]), (2, 2000));
    }
}

/// > section 3.2.3.3: the Data Receiver MUST give precedence to the SACK option
#[test]
fn two_sack_blocks_go_before_the_option_and_it_before_the_third() {
    // Marked segments beyond gaps, and blocks and counters of the last acknowledgement. The second
    // field is the count of CE: the first two are enough for that, not for ECT(0).
    for (marks, blocks, fields) in [
        (vec![ECT0], 1, 3),
        (vec![ECT0, ECT0], 2, 0),
        (vec![CE, CE], 2, 2),
        (vec![CE, CE, CE], 2, 2),
        (vec![ECT1, ECT1, ECT1], 2, 2),
        (vec![ECT0, ECT0, ECT0], 3, 0),
    ] {
        let mut t = Test::connecting(Config { timestamps: true, ..accurate() });
        let syn_ack =
            "SW. 0:0(0) ack 1 win 65535 <mss 65000,sackOK,TS val 1 ecr 0,ECN e1b 1 ceb 0 e0b 1>";
        t.peer(syn_ack).sent();
        for (i, mark) in marks.iter().enumerate() {
            let at = 2001 + 2000 * i;
            let segment = format!("AE. {at}:{}(1000) ack 1 <TS val 2 ecr 0>", at + 1000);
            t.peer_marked(*mark, &segment);
        }
        let sent = t.sent_segments();
        let mut wire = [0; 60];
        let len = sent.last().expect("an acknowledgement").header.emit(&mut wire);
        let (back, _) = TcpHeader::parse(&wire[..len]).unwrap();
        let reported =
            back.options.accurate_ecn.map_or(0, |o| o.counters().iter().flatten().count());
        assert_eq!((back.options.sack.len(), reported), (blocks, fields), "{marks:?}");
    }
}

// ---- the sender ----

given! {
    let mut t = client();

    new_data_is_capable_and_retransmissions_are_not {
        t.send(900).expect_marked(ECT0, "PAE. 1:901(900) ack 1 <ECN e1b 1 ceb 0 e0b 1>");
        // > section 3.2.3.2.2: it SHOULD fall back to no AccECN Option on the retransmission
        t.wait(400).expect_marked(NOT_ECT, "PAE. 1:901(900) ack 1 <>");
        t.peer_marked(ECT0, "AE. 1:1001(1000) ack 901");
        let sent = t.sent_segments();
        assert_eq!(sent[0].header.options.accurate_ecn, None);
    }
    mark_reduces_the_window_once_in_a_round_trip_and_nothing_says_cwr {
        t.send(4000).expect_bytes(1, 4001).wait(100);
        t.peer("AW. 1:1(0) ack 1001");
        t.info(|i| (i.ca_state, i.ssthresh_segments, i.delivered_ce), (CaState::Cwr, 7, 1));
        t.peer("AWE. 1:1(0) ack 2001");
        t.info(|i| (i.ssthresh_segments, i.delivered_ce), (7, 2));
        t.send(1000);
        let sent = t.sent_segments();
        assert!(sent.iter().all(|s| !s.header.flags.contains(Flags::CWR)));
        // All data in flight is acknowledged: the window is the threshold.
        t.wait(100).peer("AWE. 1:1(0) ack 5001");
        t.info(|i| (i.ca_state, i.cwnd_segments, i.delivered_ce), (CaState::Open, 7, 2));
    }
    overtaken_acknowledgement_reports_nothing {
        t.send(4000).sent();
        t.wait(100).peer("AE. 1:1(0) ack 3001");
        // Sent before that one: its count is an older one.
        t.peer("A. 1:1(0) ack 2001");
        assert_eq!((t.conn.info().ca_state, t.conn.info().delivered_ce), (CaState::Open, 0));
    }
    /// > section 3.2.2.2: it first checks whether it has already been superseded
    acknowledgement_of_nothing_new_reports_nothing {
        t.send(4000).sent();
        t.wait(100).peer("AWE. 1:1(0) ack 3001");
        assert_eq!(t.conn.info().delivered_ce, 2);
        // The network delivers an older one with the same number late: seven more marks, if it counted.
        t.peer("AW. 1:1(0) ack 3001");
        assert_eq!(t.conn.info().delivered_ce, 2);
        // The next acknowledgement is compared with the count known before.
        t.peer("AWE. 1:1(0) ack 4001");
        assert_eq!(t.conn.info().delivered_ce, 2);
    }
    /// A selective acknowledgement is new, although its number is not.
    selective_acknowledgement_of_something_new_reports_its_count {
        t.send(4000);
        let second = t.sent_segments()[1].header.seq.since(ISS);
        t.wait(100).peer(&format!("AW. 1:1(0) ack 1 <sack {second}:{}>", second + 1000));
        assert_eq!(t.conn.info().delivered_ce, 1);
    }
    /// Section 3.2.2.4.
    first_count_of_zero_ends_it {
        t.send(2000).sent();
        t.wait(100).peer(". 1:1(0) ack 1001").send(900);
        t.expect_marked(NOT_ECT, "PAE. 2001:2901(900) ack 1");
        assert_eq!((t.conn.info().ca_state, t.conn.info().delivered_ce), (CaState::Open, 0));
    }
    /// Section 3.2.3.2.5.
    marked_bytes_without_a_marked_packet_end_ect {
        t.send(2000).sent();
        t.wait(100).peer("AE. 1:1(0) ack 1001 <ECN e0b 1 ceb 1000>").send(900);
        t.expect_marked(NOT_ECT, "PAE. 2001:2901(900) ack 1");
    }
    time_wait_reports_the_last_count {
        t.peer_marked(CE, "AE. 1:1001(1000) ack 1").read(1000).sent();
        t.shutdown().sent();
        t.peer("FAE. 1001:1001(0) ack 2").state(State::TimeWait);
        let rest = t.conn.time_wait().expect("it is over");
        let count = Flags::AE | Flags::CWR | Flags::ECE;
        assert_eq!(rest.acknowledgement(t.now).flags & count, Flags::AE | Flags::CWR);
    }
}

/// Section 3.2.2.5.2: ten were acknowledged at once, and the field says 1, or 9.
#[test]
fn count_that_may_have_cycled_is_taken_for_the_most_without_the_option() {
    let mut t = server_with(option(EcnOption::Off));
    t.send(10_000).expect_bytes(1, 10_001).wait(100);
    t.peer("AW. 1:1(0) ack 10001");
    assert_eq!(t.conn.info().delivered_ce, 9);
}

#[test]
fn option_says_whether_the_count_has_cycled() {
    for (bytes, marked) in [(1000, 1), (9000, 9)] {
        let mut t = server_with(option(EcnOption::Off));
        t.send(10_000).expect_bytes(1, 10_001).wait(100);
        t.peer(&format!("AW. 1:1(0) ack 10001 <ECN e0b {} ceb {bytes}>", 10_001 - bytes));
        assert_eq!(t.conn.info().delivered_ce, marked);
        assert_eq!(counts(&t).delivered_bytes, [10_000 - bytes, bytes, 0]);
    }
}

/// Section 3.2.3.2.4.
#[test]
fn options_that_begin_with_zero_are_ignored() {
    let mut t = Test::connecting(accurate());
    t.peer("SW. 0:0(0) ack 1 win 65535 <mss 1000,sackOK,ECN e0b 0 ceb 0 e1b 0>");
    t.send(2000).sent();
    t.wait(100).peer("AE. 1:1(0) ack 1001 <ECN e0b 0 ceb 1000>").send(900);
    t.expect_marked(ECT0, "PAE. 2001:2901(900) ack 1");
    assert_eq!(counts(&t).delivered_bytes, [0; 3]);
}

/// Section 3.1.3, and 3.2.2.3 for what our SYN, sent as Not-ECT, may have met.
#[test]
fn client_whose_syn_was_mangled_sends_nothing_capable() {
    for (flags, bits, cwnd) in
        [("SW.", ECT0, 10), ("SAE.", ECT0, 10), ("SA.", NOT_ECT, 10), ("SAW.", NOT_ECT, 1)]
    {
        let mut t = Test::connecting(accurate());
        t.expect("SEWA 0:0(0)").wait(100);
        t.peer(&format!("{flags} 0:0(0) ack 1 win 65535 <mss 1000,sackOK>"));
        assert_eq!(t.conn.info().cwnd_segments, cwnd, "{flags}");
        t.expect("W. 1:1(0) ack 1").send(10).expect_marked(bits, "PAE. 1:11(10) ack 1");
    }
}

/// Section 3.3.4: what cuts super-frames clears CWR in all segments but the first.
#[test]
fn super_frames_do_not_have_the_bit_that_is_cut_off() {
    let link = LinkLimits { max_super_payload: 10_000, ..link() };
    let mut t = Test::connecting_over(accurate(), link);
    t.peer("SW. 0:0(0) ack 1 win 65535 <mss 1000,sackOK>").sent();
    t.send(4000);
    assert!(t.sent_segments().iter().any(|s| s.gso_size.is_some()));
    // After one mark the count is 6, which has the bit.
    t.peer_marked(CE, "AE. 1:1001(1000) ack 4001").send(4000);
    let sent = t.sent_segments();
    assert!(sent.iter().all(|s| s.gso_size.is_none() && s.header.flags.contains(Flags::CWR)));
}

#[test]
fn server_counts_from_its_side_too() {
    let mut t = server();
    t.peer_marked(CE, "AE. 1:1001(1000) ack 1").expect("AW. 1:1(0) ack 1001");
    t.send(900).expect_marked(ECT0, "PAW. 1:901(900) ack 1001");
    t.wait(100).peer("AW. 1001:1001(0) ack 901");
    assert_eq!((t.conn.info().delivered_ce, t.conn.info().ca_state), (1, CaState::Cwr));
}
