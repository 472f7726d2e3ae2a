//! RFC 7413, TCP Fast Open: what SYNs carry, and what becomes of it. Cookies are made and kept by
//! the stack (`crates/core/stack/tests/suite/tcp/fast_open.rs`).

use crate::support::*;

fn cookie() -> FastOpenCookie {
    FastOpenCookie::from_option(&[0xab, 0xcd, 0x12, 0x34], false).unwrap()
}

/// A connection whose SYN will show a cookie, to a peer whose MSS was `mss`.
fn with_cookie(mss: Option<u16>) -> Test {
    let how = FastOpenConnect { option: Some(cookie()), mss, deferred: true };
    Test::connecting_fast(plain(), how)
}

/// A connection whose SYN asks for a cookie.
fn asking(experimental: bool) -> Test {
    let option = Some(FastOpenCookie::request(experimental));
    Test::connecting_fast(plain(), FastOpenConnect { option, mss: None, deferred: false })
}

/// A connection that waits for nothing but the answer to a SYN with 500 bytes.
fn waiting() -> Test {
    let mut t = with_cookie(None);
    t.send(500).expect("S 0:500(500) win 65535 <mss 1000,sackOK,wscale 7,FO abcd1234>");
    t
}

// ---- 4.1.1, 4.2.1: asking for a cookie ----

#[test]
fn s4_2_1_a_cookie_is_asked_for_with_an_empty_option_and_no_data() {
    let mut t = asking(false);
    t.expect("S 0:0(0) <mss 1000,sackOK,wscale 7,FO>");
    assert_eq!(t.try_send(10), Err(TcpError::WouldBlock));
    t.peer("S. 0:0(0) ack 1 win 5840 <mss 900,FO 01020304>").expect(". 1:1(0) ack 1");
    let outcome = t.conn.fast_open().take_outcome().unwrap();
    assert_eq!((outcome.mss, outcome.syn_data), (Some(900), SynData::Unknown));
    assert_eq!(outcome.cookie.unwrap().as_slice(), [1, 2, 3, 4]);
    assert_eq!(t.conn.fast_open().take_outcome(), None);
    assert!(!t.conn.info().syn_data);
}

#[test]
fn s4_1_3_1_a_server_that_does_not_answer_is_asked_otherwise_next_time() {
    for (experimental, next) in [(false, TryExperimental::Once), (true, TryExperimental::Never)] {
        let mut t = asking(experimental);
        t.expect(if experimental {
            "S 0:0(0) <mss 1000,sackOK,wscale 7,FOEXP>"
        } else {
            "S 0:0(0) <mss 1000,sackOK,wscale 7,FO>"
        });
        t.peer("S. 0:0(0) ack 1 win 5840 <mss 900>");
        let outcome = t.conn.fast_open().take_outcome().unwrap();
        assert_eq!((outcome.cookie, outcome.try_experimental), (None, next));
    }
}

#[test]
fn s4_2_2_a_syn_sent_again_neither_asks_nor_shows_a_cookie() {
    let mut t = asking(false);
    t.expect("S 0:0(0) <mss 1000,sackOK,wscale 7,FO>");
    t.wait(1000).expect("S 0:0(0) <mss 1000,sackOK,wscale 7>");
    // The timeout may have been spurious: what the answer says is remembered all the same.
    t.peer("S. 0:0(0) ack 1 win 5840 <mss 900,FO 01020304>");
    assert!(t.conn.fast_open().take_outcome().unwrap().cookie.is_some());
}

// ---- 4.1.3.1: what is remembered against a server ----

/// The lesson of a handshake with 500 bytes in the SYN, once it is over.
fn taught(t: &mut Test) -> Option<SynData> {
    t.conn.fast_open().take_outcome().map(|outcome| {
        assert!(outcome.had_option);
        outcome.syn_data
    })
}

#[test]
fn s4_1_3_1_data_that_the_syn_ack_leaves_out_was_refused_unless_a_cookie_came() {
    for (syn_ack, taught_by_it) in [
        ("S. 0:0(0) ack 1 win 5840 <mss 1000>", SynData::Refused),
        ("S. 0:0(0) ack 1 win 5840 <mss 1000,FO 01020304>", SynData::Unknown),
        ("S. 0:0(0) ack 2 win 5840 <mss 1000>", SynData::Taken),
        ("S. 0:0(0) ack 501 win 5840 <mss 1000>", SynData::Taken),
    ] {
        let mut t = waiting();
        t.peer(syn_ack);
        assert_eq!(taught(&mut t), Some(taught_by_it), "{syn_ack}");
    }
}

#[test]
fn s4_1_3_1_data_was_refused_if_nobody_answers_or_an_error_is_reported() {
    let mut t = waiting();
    t.wait(1_000_000).state(State::Closed);
    assert_eq!(taught(&mut t), Some(SynData::Refused));
    assert!(!t.conn.fast_open().is_opening(), "once");
    let mut t = waiting();
    t.icmp(0, IcmpKind::Unreachable { error: TcpError::HostUnreachable, hard: false });
    assert_eq!(taught(&mut t), Some(SynData::Refused));
}

#[test]
fn s4_1_3_1_a_reset_or_an_application_that_leaves_says_nothing_of_fast_open() {
    let mut t = waiting();
    t.peer("R. 0:0(0) ack 1").state(State::Closed);
    assert_eq!(taught(&mut t), None);
    let mut t = waiting();
    t.abort();
    assert_eq!(taught(&mut t), None);
    // Nor does a request for a cookie that nobody answers: there was no data.
    let mut t = asking(false);
    t.wait(1_000_000).state(State::Closed);
    assert_eq!(t.conn.fast_open().take_outcome(), None);
}

// ---- 4.2.2, client: sending the SYN ----

given! {
    let mut t = with_cookie(None);

    s4_2_2_the_syn_waits_for_the_first_data_and_takes_it_along {
        t.nothing().wait(10_000).nothing();
        assert!(t.conn.fast_open().is_deferred() && t.conn.readiness().contains(Readiness::WRITABLE));
        assert_eq!(t.conn.room_for(usize::MAX), 960);
        t.send(500).expect("S 0:500(500) win 65535 <mss 1000,sackOK,wscale 7,FO abcd1234>")
            .nothing();
        assert!(!t.conn.fast_open().is_deferred() && !t.conn.readiness().contains(Readiness::WRITABLE));
        assert_eq!(t.try_send(10), Err(TcpError::WouldBlock));
    }
    s4_2_2_a_cookie_is_shown_without_data_too {
        t.send_syn().expect("S 0:0(0) <mss 1000,sackOK,wscale 7,FO abcd1234>");
        t.peer("S. 0:0(0) ack 1 win 5840 <mss 900>").expect(". 1:1(0) ack 1");
        assert!(!t.conn.info().syn_data);
    }
    a_deferred_connection_that_is_closed_sends_nothing {
        t.close().nothing().state(State::Closed);
        assert!(t.conn.is_closed());
    }
}

#[test]
fn s4_2_2_data_in_the_syn_fits_the_cached_mss_less_all_options() {
    let mut t = with_cookie(Some(940));
    assert_eq!(t.try_send(2000), Ok(900));
    t.expect("S 0:900(900) <mss 1000,sackOK,wscale 7,FO abcd1234>");
    // A cached MSS that the link does not take.
    let mut t = with_cookie(Some(10_000));
    assert_eq!(t.try_send(2000), Ok(960));
}

#[test]
fn s4_2_2_a_syn_sent_again_has_no_data() {
    let mut t = waiting();
    t.wait(3500);
    t.expect_after(1000, "S 0:0(0) <mss 1000,sackOK,wscale 7>");
    t.expect_after(2000, "S 0:0(0) <mss 1000,sackOK,wscale 7>");
    t.expect_after(3000, "S 0:0(0) <mss 1000,sackOK,wscale 7>");
    assert!(t.conn.fast_open().take_black_hole(), "the third timeout in a row");
    assert!(!t.conn.fast_open().take_black_hole());
    // The data leaves with the acknowledgement, at once.
    t.peer("S. 0:0(0) ack 1 win 5840 <mss 1000,sackOK>").expect("P. 1:501(500) ack 1").nothing();
    assert_eq!(t.conn.fast_open().take_outcome().unwrap().syn_data, SynData::Refused);
    t.peer(". 1:1(0) ack 501").nothing();
    assert!(!t.conn.info().syn_data);
}

// ---- 4.2.2, client: receiving the SYN,ACK ----

given! {
    let mut t = waiting();

    s4_2_2_data_that_the_syn_ack_acknowledges_is_delivered {
        t.wait(20).peer("S. 0:0(0) ack 501 win 5840 <mss 1000,sackOK>")
            .expect(". 501:501(0) ack 1");
        t.nothing().state(State::Established);
        let info = t.conn.info();
        assert!(info.syn_data);
        assert_eq!((info.bytes_acked, info.unacked, info.cwnd), (500, 0, 10_000));
        assert_eq!(info.srtt.as_millis(), 20, "the SYN with data measures the round trip");
        assert_eq!(info.delivered, 1, "it was one segment");
        t.send(1000).expect("P. 501:1501(1000) ack 1");
    }
    s4_2_2_data_that_the_syn_ack_does_not_acknowledge_is_sent_at_once {
        t.wait(30).peer("S. 0:0(0) ack 1 win 5840 <mss 1000,sackOK,FO 01020304>");
        t.expect("P. 1:501(500) ack 1").nothing();
        let info = t.conn.info();
        assert!(!info.syn_data);
        assert_eq!((info.cwnd, info.recoveries, info.timeouts), (10_000, 0, 0), "no congestion");
        assert_eq!(info.srtt.as_millis(), 30);
        let outcome = t.conn.fast_open().take_outcome().unwrap();
        assert!(outcome.cookie.is_some() && outcome.syn_data == SynData::Unknown);
        t.peer(". 1:1(0) ack 501").nothing();
        assert!(!t.conn.info().syn_data);
    }
    s4_2_2_data_of_the_syn_stays_a_segment_of_its_own {
        t.peer("S. 0:0(0) ack 1 win 5840 <mss 1000,sackOK>").expect("P. 1:501(500) ack 1");
        t.send(1000).expect("P. 501:1501(1000) ack 1").nothing();
        t.wait(20).peer(". 1:1(0) ack 1 <sack 501:1501>").wait(20).expect("P. 1:501(500) ack 1");
        t.peer(". 1:1(0) ack 1501").nothing();
    }
    s4_2_2_the_rest_of_data_acknowledged_in_part_is_sent_at_once {
        t.peer("S. 0:0(0) ack 101 win 5840 <mss 200,sackOK>");
        t.expect(". 101:301(200) ack 1").expect("P. 301:501(200) ack 1").nothing();
        assert!(!t.conn.info().syn_data);
        t.peer(". 1:1(0) ack 501").nothing();
        assert_eq!(t.conn.info().bytes_acked, 500);
    }
    /// RFC 9293 section 3.10.7.3: an acknowledgement of what was never sent.
    a_syn_ack_beyond_the_data_is_answered_with_a_reset {
        t.peer_dropped(DropReason::AckUnsent, "S. 0:0(0) ack 502 win 5840 <mss 1000>");
        t.expect("R 502:502(0)").state(State::SynSent);
        assert_eq!(t.conn.fast_open().take_outcome(), None);
    }
    s4_2_2_data_on_the_syn_ack_is_taken {
        t.peer("S. 0:800(800) ack 501 win 5840 <mss 1000,sackOK>").expect(". 501:501(0) ack 801");
        t.read(800);
        let mut t = waiting();
        t.peer("SF. 0:800(800) ack 501 win 5840 <mss 1000,sackOK>").expect(". 501:501(0) ack 802");
        t.state(State::CloseWait).read(800).read(0);
    }
    the_acknowledgement_waits_for_data_that_the_application_has_ready {
        t.conn.fast_open().set_write_pending(true);
        t.peer("S. 0:0(0) ack 501 win 5840 <mss 1000,sackOK>").nothing();
        t.send(100).expect("P. 501:601(100) ack 1").nothing();
        // The application has answered at once: acknowledgements ride on its answers from now on.
        t.peer("P. 1:101(100) ack 601").nothing().read(100).nothing();
        t.wait(40).expect(". 601:601(0) ack 101");
        // But not for ever.
        let mut t = waiting();
        t.conn.fast_open().set_write_pending(true);
        t.peer("S. 0:0(0) ack 501 win 5840 <mss 1000,sackOK>").nothing();
        t.wait(40).expect(". 501:501(0) ack 1");
    }
}

#[test]
fn a_reset_in_answer_to_a_syn_with_data_refuses_the_connection() {
    for ack in [1, 501] {
        let mut t = waiting();
        t.peer(&format!("R. 0:0(0) ack {ack} win 0")).nothing().state(State::Closed);
        assert_eq!(t.conn.take_error(), Some(TcpError::ConnectionRefused));
    }
}

#[test]
fn s4_1_1_a_cookie_nobody_asked_for_is_not_believed() {
    let how = FastOpenConnect { option: None, mss: None, deferred: true };
    let mut t = Test::connecting_fast(plain(), how);
    t.send(500).expect("S 0:500(500) <mss 1000,sackOK,wscale 7>");
    t.peer("S. 0:0(0) ack 501 win 5840 <mss 900,FO 01020304>");
    let outcome = t.conn.fast_open().take_outcome().unwrap();
    assert_eq!((outcome.mss, outcome.cookie), (Some(900), None));
    assert_eq!(outcome.try_experimental, TryExperimental::No);
}

// ---- simultaneous open ----

#[test]
fn two_syns_with_data_that_cross_make_one_connection() {
    let mut t = waiting();
    t.peer("S 0:300(300) win 5840 <mss 1000,sackOK,FO 01020304>");
    t.expect("S. 0:0(0) ack 1 <mss 1000,sackOK>").state(State::SynReceived);
    // The peer took our data.
    t.peer("S. 0:0(0) ack 501 win 5840 <mss 1000,sackOK>").state(State::Established);
    // As Linux, it says that the SYN came twice (RFC 2883).
    t.expect(". 501:501(0) ack 1 <sack 0:1>").nothing();
    t.peer("P. 1:301(300) ack 501").expect(". 501:501(0) ack 301").read(300);
    t.send(10).expect("P. 501:511(10) ack 301");
}

// ---- path MTU (RFC 1191 section 6.3) ----

#[test]
fn a_syn_with_data_that_is_too_big_is_sent_again_at_once_without() {
    let mut t = waiting();
    t.wait(10).icmp(0, IcmpKind::PacketTooBig { mss: 760 });
    t.expect("S 0:0(0) <mss 760,sackOK,wscale 7>").nothing();
    t.peer("S. 0:0(0) ack 1 win 5840 <mss 1000,sackOK>").expect("P. 1:501(500) ack 1");
    // Data after the handshake leaves in segments of the new size, all at once.
    let mut t = with_cookie(None);
    t.send(900).expect("S 0:900(900) <mss 1000,sackOK,wscale 7,FO abcd1234>");
    t.wait(10).icmp(0, IcmpKind::PacketTooBig { mss: 600 });
    t.expect("S 0:0(0) <mss 600,sackOK,wscale 7>").nothing();
    t.peer("S. 0:0(0) ack 1 win 5840 <mss 1000,sackOK>");
    t.expect(". 1:601(600) ack 1");
    t.expect("P. 601:901(300) ack 1").nothing();
    // A SYN without data was not too big.
    let mut t = Test::connecting(plain());
    t.expect("S 0:0(0)").icmp(0, IcmpKind::PacketTooBig { mss: 760 }).nothing();
}

// ---- timestamps ----

/// As Linux: the echo in a SYN,ACK is of a SYN that we sent.
#[test]
fn a_syn_ack_that_echoes_no_timestamp_of_ours_is_answered_with_a_reset() {
    let config = Config { timestamps: true, ..plain() };
    let how = FastOpenConnect { option: Some(cookie()), mss: None, deferred: true };
    let mut t = Test::connecting_fast(config, how);
    t.send(500);
    t.sent();
    t.wait(10);
    for echo in [9999, 10_011, 1] {
        let syn_ack = format!("S. 0:0(0) ack 501 win 5840 <mss 900,sackOK,TS val 7 ecr {echo}>");
        t.peer_dropped(DropReason::Paws, &syn_ack).expect("R 501:501(0)").state(State::SynSent);
    }
    t.peer("S. 0:0(0) ack 501 win 5840 <mss 900,sackOK,TS val 7 ecr 10000>");
    t.expect(". 501:501(0) ack 1 <TS val 10010 ecr 7>").state(State::Established);
}

// ---- 4.2.2, server ----

const SYN: &str = "S 0:300(300) win 10000 <mss 1000,sackOK>";

given! {
    let mut t = Test::accepting_fast(plain(), SYN);

    s4_2_2_a_syn_with_a_good_cookie_is_acknowledged_with_its_data_and_readable_at_once {
        t.expect("S. 0:0(0) ack 301 win 65535 <mss 1000,sackOK>").state(State::SynReceived);
        let ready = t.conn.readiness();
        assert!(ready.contains(Readiness::READABLE | Readiness::WRITABLE));
        assert!(t.conn.info().syn_data);
        t.read(300);
        assert_eq!(t.try_read(10), Err(TcpError::WouldBlock));
        t.peer(". 301:301(0) ack 1").nothing().state(State::Established);
        t.peer("P. 301:401(100) ack 1").expect(". 1:1(0) ack 401").read(100);
    }
    s4_2_2_data_leaves_before_the_handshake_is_complete {
        t.expect("S. 0:0(0) ack 301");
        // The window of the SYN, which is not scaled, and the initial congestion window.
        t.send(12_000);
        assert_eq!(t.sent().len(), 10);
        assert_eq!(t.conn.info().unacked, 10_001);
        // The acknowledgement of the SYN,ACK alone.
        t.peer(". 301:301(0) ack 1 win 20000").nothing().state(State::Established);
        t.peer(". 301:301(0) ack 2001 win 20000");
        t.expect(". 10001:11001(1000) ack 301").expect("P. 11001:12001(1000) ack 301").nothing();
    }
    s4_2_2_an_answer_and_the_handshake_are_acknowledged_together {
        t.expect("S. 0:0(0) ack 301").read(300);
        t.send(100).expect("P. 1:101(100) ack 301").shutdown();
        assert!(t.sent()[0].starts_with('F'), "the end leaves too");
        t.peer("F. 301:301(0) ack 102").expect(". 102:102(0) ack 302").state(State::TimeWait);
    }
    s4_2_2_only_the_syn_ack_is_sent_again_before_the_handshake_is_complete {
        t.expect("S. 0:0(0) ack 301").send(100).expect("P. 1:101(100) ack 301");
        t.wait(1000).expect("S. 0:0(0) ack 301").nothing();
        // The client's SYN again: it did not get our answer.
        t.peer_dropped(DropReason::Duplicate, SYN).expect("S. 0:0(0) ack 301").nothing();
        t.peer_dropped(DropReason::Duplicate, "S 0:0(0) win 10000 <mss 1000,sackOK>");
        t.expect("S. 0:0(0) ack 301").nothing();
        t.peer(". 301:301(0) ack 1").state(State::Established);
        t.wait(3000);
        assert_eq!(t.sent()[0], "P. 1:101(100) ack 301 win 65535");
    }
    a_fast_opened_connection_gets_one_syn_ack_more {
        t.wait(200_000).state(State::Closed);
        assert_eq!(t.sent().len(), 1 + 6);
        t.read(300);
        assert_eq!(t.try_read(1), Err(TcpError::TimedOut));
    }
    a_reset_before_the_handshake_is_complete_leaves_the_data_to_be_read {
        t.expect("S. 0:0(0) ack 301");
        t.peer("R. 301:301(0) ack 1").nothing().state(State::Closed);
        t.read(300);
        assert_eq!(t.try_read(10), Err(TcpError::ConnectionReset));
        assert_eq!(t.try_read(10).unwrap(), [0u8; 0]);
    }
    a_fin_before_the_connection_is_accepted_is_the_end_of_its_data {
        t.expect("S. 0:0(0) ack 301");
        t.peer("F. 301:301(0) ack 1").expect(". 1:1(0) ack 302").state(State::CloseWait);
        t.read(300).read(0).close().state(State::LastAck);
    }
}

#[test]
fn a_syn_without_data_may_open_fast_too() {
    let mut t = Test::accepting_fast(plain(), "S 0:0(0) win 10000 <mss 1000,sackOK>");
    t.expect("S. 0:0(0) ack 1");
    assert!(!t.conn.info().syn_data);
    t.send(100).expect("P. 1:101(100) ack 1");
}

#[test]
fn an_icmp_error_ends_a_connection_that_waits_and_not_one_that_was_accepted() {
    let unreachable = IcmpKind::Unreachable { hard: false, error: TcpError::HostUnreachable };
    let mut t = Test::accepting_fast(plain(), SYN);
    t.expect("S. 0:0(0) ack 301").icmp(5000, unreachable).state(State::SynReceived);
    t.icmp(0, unreachable).state(State::Closed).read(300);
    assert_eq!(t.try_read(10), Err(TcpError::HostUnreachable));
    assert_eq!(t.try_send(10), Err(TcpError::BrokenPipe));

    let mut t = Test::accepting_fast(plain(), SYN);
    t.conn.fast_open().on_accepted();
    t.expect("S. 0:0(0) ack 301").icmp(0, unreachable).state(State::SynReceived);
    t.peer(". 301:301(0) ack 1").state(State::Established);
}

#[test]
fn s4_2_1_a_cookie_is_given_with_the_first_syn_ack_only() {
    let mut t = Test::accepting(plain(), "S 0:0(0) win 10000 <mss 1000,sackOK,FO>");
    t.expect("S. 0:0(0) ack 1");
    let mut t = Test::accepting_with_cookie(plain(), "S 0:0(0) win 10000 <mss 1000>", cookie());
    t.expect("S. 0:0(0) ack 1 <mss 1000,FO abcd1234>");
    t.wait(1000).expect("S. 0:0(0) ack 1 <mss 1000>");
    assert_eq!(link().mss, 1000);
}
