//! Buffers: how much is queued in each direction, and the readiness that follows (as in Linux).

use crate::support::*;

/// A window of 32,792: super-frames of 16,000.
const SYN_ACK: &str = "S. 0:0(0) ack 1 win 32792 <mss 1000,sackOK,wscale 7>";

#[test]
fn unsent_limit_takes_super_frames_while_less_than_it_waits_unsent() {
    let config = Config { notsent_lowat: 4000, ..plain() };
    let mut t = Test::established_with(config, SUPER, SYN_ACK);
    // 10,000 can leave; 16,000 fill what stays behind.
    assert_eq!(t.try_send(59_000), Ok(26_000));
    assert!(!t.conn.readiness().contains(Readiness::WRITABLE));
    for acked in [2001, 4001, 6001] {
        t.wait(10).peer(&format!(". 1:1(0) ack {acked} win 257"));
        assert!(!t.conn.readiness().contains(Readiness::WRITABLE), "{acked}");
    }
    // Less than half of the limit waits now.
    t.wait(10).peer(". 1:1(0) ack 8001 win 257");
    assert!(t.conn.readiness().contains(Readiness::WRITABLE));
}

#[test]
fn fixed_send_buffer_does_not_grow() {
    let mut t = Test::established_with(plain(), SUPER, SYN_ACK);
    t.set(|c| c.settings().set_send_buffer(20_000));
    assert_eq!(t.try_send(200_000), Ok(26_000));
    t.wait(10).peer(". 1:1(0) ack 10001 win 257").sent();
    assert_eq!(t.conn.info().send_buffer, 20_000);
}

#[test]
fn send_buffer_follows_the_congestion_window_of_a_sender_that_waits_for_room() {
    let config = Config { send_buffer_initial: 50_000, ..plain() };
    let mut t = Test::established_with(config, SUPER, SYN_ACK);
    assert_eq!(t.conn.info().send_buffer, 50_000);
    assert_eq!(t.try_send(59_000), Ok(58_000));
    t.wait(10).peer(". 1:1(0) ack 10001 win 257");
    t.wait(10).peer(". 1:1(0) ack 26001 win 257");
    assert!(t.conn.info().send_buffer >= 2 * 36 * 2304, "{:?}", t.conn.info());
    assert!(t.conn.readiness().contains(Readiness::WRITABLE));
}

#[test]
fn reader_is_woken_when_as_much_is_there_as_it_waits_for() {
    let mut t = Test::established(Config { recv_lowat: 1500, ..plain() });
    t.peer("P. 1:1001(1000) ack 1").sent();
    assert!(!t.conn.readiness().contains(Readiness::READABLE));
    t.peer("P. 1001:1501(500) ack 1").sent();
    assert!(t.conn.readiness().contains(Readiness::READABLE));
    // No more can come after a FIN.
    t.read(1500).peer("FP. 1501:1511(10) ack 1").sent();
    assert!(t.conn.readiness().contains(Readiness::READABLE));
}

#[test]
fn receive_buffer_grows_with_what_is_read_in_a_round_trip() {
    let config = Config { recv_buffer_initial: 20_000, ..plain() };
    let mut t = Test::established_with(config, SUPER, SYN_ACK);
    assert_eq!(t.conn.info().recv_buffer, 20_000);
    let (mut seq, mut widest) = (1, 0);
    for _ in 0..20 {
        let window = t.conn.info().recv_window;
        widest = widest.max(window);
        for _ in 0..window / 1000 {
            t.peer(&format!(". {seq}:{}(1000) ack 1", seq + 1000));
            seq += 1000;
        }
        let queued = t.conn.queued_receive();
        t.read(queued).sent();
        t.wait(10);
    }
    assert!(t.conn.info().recv_buffer > 100_000, "{:?}", t.conn.info());
    assert!(widest > 60_000, "{widest}");
}

#[test]
fn receive_buffer_of_an_application_that_does_not_read_stays() {
    let config = Config { recv_buffer_initial: 20_000, ..plain() };
    let mut t = Test::established_with(config, SUPER, SYN_ACK);
    for i in 0..19 {
        t.wait(10).peer(&format!(". {}:{}(1000) ack 1", 1 + i * 1000, 1001 + i * 1000));
    }
    let info = t.conn.info();
    assert_eq!(info.recv_buffer, 20_000);
    assert!(info.recv_window < 1000 + 128, "{info:?}");
}

#[test]
fn closing_with_a_linger_of_zero_resets() {
    let mut t = Test::established(Config { linger: Some(Duration::ZERO), ..plain() });
    t.send(100).expect("P. 1:101(100)");
    t.close().expect("R. 101:101(0) ack 1").state(State::Closed);
}

#[test]
fn peek_leaves_what_it_shows() {
    let mut t = Test::established(plain());
    t.peer("P. 1:11(10) ack 1").sent();
    assert_eq!(t.try_peek(4).unwrap(), (1..5).map(byte).collect::<Vec<_>>());
    assert_eq!(t.try_read(20).unwrap(), (1..11).map(byte).collect::<Vec<_>>());
    assert_eq!(t.try_peek(4), Err(TcpError::WouldBlock));
}

#[test]
fn end_of_the_stream_counts_one_behind_received_data() {
    let mut t = Test::established(plain());
    t.peer("P. 1:11(10) ack 1").sent();
    assert_eq!(t.conn.queued_receive() + usize::from(t.conn.has_fin()), 10);
    t.peer("F. 11:11(0) ack 1").sent();
    t.read(10);
    assert_eq!(
        (t.conn.queued_receive() + usize::from(t.conn.has_fin()), t.conn.queued_receive()),
        (1, 0)
    );
}

#[test]
fn time_is_accounted_to_what_sending_waits_for() {
    let mut t = Test::established_with(plain(), SUPER, "S. 0:0(0) ack 1 win 0 <mss 1000>");
    t.send(1000).nothing();
    t.wait(100);
    let info = t.conn.info_at(t.now);
    assert_eq!((info.window_limited.as_millis(), info.busy.as_millis()), (100, 100));
    t.sent();
    t.peer(". 1:1(0) ack 1 win 2000").expect("P. 1:1001(1000)");
    t.wait(30).peer(". 1:1(0) ack 1001 win 2000");
    t.wait(50);
    let info = t.conn.info_at(t.now);
    assert_eq!((info.window_limited.as_millis(), info.busy.as_millis()), (100, 130));
    assert_eq!((info.data_segments_out, info.bytes_sent), (1, 1000));
}
