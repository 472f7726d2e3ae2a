//! RFC 5482: how long something may go unanswered.

use crate::support::*;

fn impatient() -> Config {
    Config { user_timeout: Some(Duration::from_secs(3)), ..plain() }
}

given! {
    let mut t = Test::established(impatient());

    data_unanswered_for_the_user_timeout_ends_the_connection {
        t.send(100).expect("P. 1:101(100)");
        // The first retransmission after 200 ms, from which it is counted.
        t.wait(3150).state(State::Established);
        t.wait(100).state(State::Closed);
        assert_eq!(t.conn.take_error(), Some(TcpError::TimedOut));
    }
    answer_begins_the_user_timeout_anew {
        t.send(100).send(100).wait(2000).peer(". 1:1(0) ack 101");
        t.wait(2500).state(State::Established);
        t.wait(2500).state(State::Closed);
    }
    closed_window_ends_the_connection_after_the_user_timeout_although_probes_are_answered {
        t.peer(". 1:1(0) ack 1 win 0").send(100);
        for _ in 0..40 {
            t.wait(100);
            for _ in t.sent_segments() {
                t.peer_any(". 1:1(0) ack 1 win 0");
            }
        }
        t.state(State::Closed);
    }
}

#[test]
fn attempt_to_connect_lasts_no_longer_than_the_user_timeout() {
    let mut t = Test::connecting(impatient());
    t.wait(3900).state(State::SynSent);
    t.wait(300).state(State::Closed);
    assert_eq!(t.conn.take_error(), Some(TcpError::TimedOut));
}

#[test]
fn keep_alive_gives_up_after_the_user_timeout_not_after_its_count() {
    let (idle, interval) = (Duration::from_secs(1), Duration::from_secs(1));
    let keepalive = Some(KeepAlive { idle, interval, probes: 100 });
    let mut t = Test::established(Config { keepalive, ..impatient() });
    t.wait(2900).state(State::Established);
    t.wait(1200).state(State::Closed);
}
