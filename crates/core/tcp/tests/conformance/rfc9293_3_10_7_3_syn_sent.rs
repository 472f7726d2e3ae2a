//! RFC 9293 section 3.10.7.3: segments that arrive in SYN-SENT.

use crate::support::*;

fn syn_sent() -> Test {
    let mut t = Test::connecting(plain());
    t.expect("S 0:0(0) win 65535 <mss 1000,sackOK,wscale 7>");
    t
}

given! {
    let mut t = syn_sent();

    syn_ack_establishes_and_is_acknowledged {
        t.peer("S. 0:0(0) ack 1 win 1000 <mss 1000>").state(State::Established);
        t.expect(". 1:1(0) ack 1").nothing();
    }
    ack_that_does_not_acknowledge_our_syn_elicits_rst_with_its_number {
        t.peer_dropped(DropReason::AckUnsent, "S. 0:0(0) ack 2 win 1000").state(State::SynSent);
        t.expect("R 2:2(0)").nothing();
        t.peer_dropped(DropReason::AckUnsent, ". 0:0(0) ack 0 win 1000").state(State::SynSent);
        t.expect("R 0:0(0)").nothing();
    }
    rst_that_acknowledges_our_syn_refuses_the_connection {
        t.peer("R. 0:0(0) ack 1").state(State::Closed).nothing();
        assert_eq!(t.conn.take_error(), Some(TcpError::ConnectionRefused));
        assert!(t.conn.is_closed());
    }
    segment_with_neither_syn_nor_rst_is_dropped {
        t.peer_dropped(DropReason::Flags, ". 0:0(0) ack 1").state(State::SynSent).nothing();
    }
    syn_without_ack_leads_to_syn_received_and_a_syn_ack {
        t.peer("S 0:0(0) win 1000 <mss 1000>").state(State::SynReceived);
        t.expect("S. 0:0(0) ack 1").nothing();
    }
    text_on_a_syn_ack_is_taken {
        t.peer("S. 0:10(10) ack 1 win 1000 <mss 1000>").state(State::Established);
        t.expect(". 1:1(0) ack 11").nothing();
        assert_eq!(t.conn.queued_receive(), 10);
    }
    fin_on_a_syn_ack_is_taken {
        t.peer("SF. 0:0(0) ack 1 win 1000 <mss 1000>").state(State::CloseWait);
        t.expect(". 1:1(0) ack 2").nothing();
    }
    close_forgets_the_attempt_without_a_word {
        t.close().state(State::Closed).nothing();
        assert!(t.conn.is_closed());
    }
    send_would_block {
        assert_eq!(t.try_send(1), Err(TcpError::WouldBlock));
        assert_eq!(t.try_read(1), Err(TcpError::WouldBlock));
    }
}

#[test]
fn rst_with_unacceptable_ack_or_none_is_dropped_silently() {
    for rst in ["R. 0:0(0) ack 2", "R 0:0(0)"] {
        let mut t = syn_sent();
        t.peer_dropped(DropReason::RstInvalid, rst).state(State::SynSent).nothing();
    }
}

#[test]
fn simultaneous_open_is_completed_by_the_peers_syn_ack_or_a_bare_ack() {
    // Figure 8. As Linux, the SYN that came once more is acknowledged.
    for (last, again) in [("S. 0:0(0) ack 1 win 1000 <mss 1000>", true), (". 1:1(0) ack 1", false)]
    {
        let mut t = syn_sent();
        t.peer("S 0:0(0) win 1000 <mss 1000>").expect("S. 0:0(0) ack 1");
        t.peer(last).state(State::Established);
        if again {
            t.expect(". 1:1(0) ack 1");
        }
        t.nothing();
    }
}
