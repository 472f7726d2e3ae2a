//! Sends that only add to a segment that is held back: nothing is polled after them, and the segments
//! that leave are the same.

use proptest::prelude::*;

use crate::support::*;

#[derive(Clone, Debug)]
enum Op {
    /// An application writes.
    Write(usize),
    /// An application sends by reference.
    Send(usize),
    /// The peer acknowledges this many thousandths of what is under way.
    Acknowledge(u32),
    /// The peer reports a hole before the last segment.
    Hole,
    /// The peer sends this many bytes.
    Data(u32),
    Window(u16),
    NoDelay(bool),
    Cork(bool),
    Wait(u64),
    Shutdown,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => (1_usize..600).prop_map(Op::Write),
        4 => (1_usize..5000).prop_map(Op::Write),
        4 => (1_usize..600).prop_map(Op::Send),
        4 => (1_u32..=1000).prop_map(Op::Acknowledge),
        4 => Just(Op::Acknowledge(1000)),
        1 => Just(Op::Hole),
        1 => (1_u32..500).prop_map(Op::Data),
        1 => (0_u16..20_000).prop_map(Op::Window),
        1 => any::<bool>().prop_map(Op::NoDelay),
        1 => any::<bool>().prop_map(Op::Cork),
        2 => (1_u64..400).prop_map(Op::Wait),
        1 => Just(Op::Shutdown),
    ]
}

/// A connection, and what its peer has received and announced.
struct Side {
    t: Test,
    /// Numbers of the peer's, relative.
    una: u32,
    their_end: u32,
    window: u16,
    /// Calls that were made without a clock.
    quick: usize,
}

impl Side {
    fn new(config: &Config, link: LinkLimits) -> Self {
        let syn_ack = "S. 0:0(0) ack 1 win 60000 <mss 1000,sackOK,TS val 1 ecr 0>";
        let t = Test::established_with(config.clone(), link, syn_ack);
        Self { t, una: 1, their_end: 1, window: 60_000, quick: 0 }
    }

    /// How many bytes have left, relative.
    fn nxt(&mut self) -> u32 {
        self.una + (self.t.conn.queued_send() - self.t.conn.queued_unsent()) as u32
    }

    fn answer(&mut self, more: &str) {
        let (end, una, window) = (self.their_end, self.una, self.window);
        let _ = self.t.peer_any(&format!(". {end}:{end}(0) ack {una} win {window} {more}"));
    }

    fn apply(&mut self, op: &Op, quickly: bool) {
        match *op {
            Op::Write(len) => {
                let data = vec![7; len];
                let behind = quickly
                    && self
                        .t
                        .env(|c, env| c.coalesce_copy(env.pool, env.writer, env.ledger, &data));
                if behind {
                    self.quick += 1;
                    assert!(self.t.conn.is_coalescing());
                    self.sends_nothing();
                } else {
                    let _ = self.t.env(|c, env| c.write(env, &data, SendFlags::empty()));
                    self.take_output(quickly);
                }
            }
            Op::Send(len) => {
                let mut frags = FragVec::from_iter([Frag::from_bytes(vec![7; len].into())]);
                let _ = self.t.env(|c, env| c.send(env, &mut frags, SendFlags::empty()));
                self.take_output(quickly);
            }
            Op::Acknowledge(part) => {
                let under_way = self.nxt() - self.una;
                self.una += (u64::from(under_way) * u64::from(part) / 1000) as u32;
                self.answer("");
            }
            Op::Hole => {
                let (una, nxt) = (self.una, self.nxt());
                if nxt - una > 2000 {
                    self.answer(&format!("<sack {}:{nxt}>", nxt - 1000));
                }
            }
            Op::Data(len) => {
                let (at, una, window) = (self.their_end, self.una, self.window);
                self.their_end += len;
                let end = self.their_end;
                let _ = self.t.peer_any(&format!("P. {at}:{end}({len}) ack {una} win {window}"));
            }
            Op::Window(window) => {
                self.window = window;
                self.answer("");
            }
            Op::NoDelay(on) => drop(self.t.set(|c| c.settings().set_nodelay(on))),
            Op::Cork(on) => drop(self.t.set(|c| c.settings().set_cork(on))),
            Op::Wait(ms) => drop(self.t.wait(ms)),
            Op::Shutdown => {
                let _ = self.t.env(|c, env| c.shutdown_write(env));
                self.t.drain();
            }
        }
    }

    fn sends_nothing(&mut self) {
        let segment = self.t.env(|c, env| c.poll_transmit(env));
        assert!(segment.is_none(), "nothing leaves: {segment:?}");
    }

    /// Checks that a connection that coalesces has nothing to send, then takes what leaves.
    fn take_output(&mut self, quickly: bool) {
        if self.t.conn.is_coalescing() {
            self.sends_nothing();
        }
        match quickly {
            true => self.t.drain_burst(),
            false => self.t.drain(),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_collected_without_a_clock_leaves_as_if_it_had_been_written(
        ops in prop::collection::vec(op(), 1..80),
        timestamps in any::<bool>(),
        max_super_payload in prop::sample::select(&[1000, 8000, 100_000][..]),
    ) {
        let config = Config { nagle: true, timestamps, ..plain() };
        let link = LinkLimits::new(1000, max_super_payload);
        let (mut one, mut other) = (Side::new(&config, link), Side::new(&config, link));
        for op in &ops {
            one.apply(op, true);
            other.apply(op, false);
            prop_assert_eq!(one.t.sent(), other.t.sent(), "{:?}", op);
            let (a, b) = (&one.t.conn, &other.t.conn);
            prop_assert_eq!(a.poll_timeout(), b.poll_timeout());
            prop_assert_eq!(a.readiness(), b.readiness());
            prop_assert_eq!(a.room_for(usize::MAX), b.room_for(usize::MAX));
            prop_assert_eq!(format!("{:?}", a.info()), format!("{:?}", b.info()));
        }
    }
}

#[test]
fn pages_are_collected_until_a_segment_is_full() {
    let mut side = Side::new(&nagle(), LinkLimits::new(1000, 1000));
    for _ in 0..9 {
        side.apply(&Op::Write(100), true);
    }
    assert_eq!((side.quick, side.t.sent().len()), (7, 1), "all but the one that begins");
    side.apply(&Op::Write(200), true);
    assert_eq!((side.quick, side.t.sent().len()), (7, 1), "a full segment leaves");
}

/// Super-frames longer than an IP packet: the peer is in the same machine.
const IN_MEMORY: LinkLimits = LinkLimits::new(1000, 100_000);

const ON_A_WIRE: LinkLimits = LinkLimits::new(1000, 64_500);
const SYN_ACK: &str = "S. 0:0(0) ack 1 win 60000 <mss 1000,sackOK>";

/// With so much under way that the peer acknowledges at once.
fn under_way(config: Config) -> Test {
    let mut t = Test::established_with(config, IN_MEMORY, SYN_ACK);
    t.send(2500).expect("P. 1:2501(2500)").nothing();
    t
}

given! {
    let mut t = under_way(nagle());

    in_memory_what_is_sent_meanwhile_waits_for_the_acknowledgement_that_is_owed {
        t.send(3000).nothing();
        t.send(700).nothing();
        t.peer(". 1:1(0) ack 2501 win 60000").expect("P. 2501:6201(3700)").nothing();
    }
    in_memory_the_end_of_the_stream_does_not_wait {
        t.send(3000).nothing();
        t.shutdown().expect("FP. 2501:5501(3000)").nothing();
    }
    in_memory_what_waits_leaves_with_the_timer_if_the_acknowledgement_is_lost {
        t.send(3000).nothing();
        t.wait(250).expect(". 1:1001(1000)").nothing();
        t.peer(". 1:1(0) ack 2501 win 60000").expect("P. 2501:5501(3000)").nothing();
    }
    in_memory_nothing_waits_for_more_than_the_congestion_window_lets_go {
        // A window of ten segments: half of it leaves at a time.
        t.send(25_000).expect("P. 2501:7501(5000)").expect("P. 7501:9501(2000)").nothing();
        t.peer(". 1:1(0) ack 2501 win 60000").expect("P. 9501:15501(6000)").nothing();
    }
}

#[test]
fn in_memory_a_full_super_frame_does_not_wait() {
    let mut t = under_way(Config { initial_cwnd: 100, ..nagle() });
    // Half of the peer's largest window, as in Linux.
    t.send(29_000).nothing();
    t.send(1000).expect("P. 2501:32501(30000)").nothing();
}

#[test]
fn in_memory_nothing_waits_for_an_acknowledgement_that_the_peer_may_delay() {
    let mut t = Test::established_with(nagle(), IN_MEMORY, SYN_ACK);
    t.send(1000).expect("P. 1:1001(1000)").nothing();
    t.send(3000).expect("P. 1001:4001(3000)").nothing();
}

#[test]
fn in_memory_nothing_waits_without_nagles_algorithm() {
    let mut t = under_way(plain());
    t.send(3000).expect("P. 2501:5501(3000)").nothing();
    let mut t = under_way(nagle());
    t.send(3000).nothing();
    t.set(|c| c.settings().set_nodelay(true)).expect("P. 2501:5501(3000)").nothing();
}

#[test]
fn in_memory_the_piece_that_fills_the_send_buffer_does_not_wait() {
    let config =
        Config { send_buffer: 4000, send_buffer_initial: 4000, initial_cwnd: 100, ..nagle() };
    let mut t = under_way(config);
    let taken = t.env(|c, env| c.write(env, &[7; 40_000], SendFlags::empty())).unwrap();
    assert!(taken < 40_000);
    // The rest of the write waits for room, so there is nobody to add to what was taken.
    t.drain();
    assert_eq!(t.conn.queued_unsent(), 0);
}

#[test]
fn in_memory_a_small_rest_leaves_in_the_frame_of_the_full_segments_before_it() {
    let small_under_way = |link| {
        let mut t = Test::established_with(nagle(), link, SYN_ACK);
        t.send(500).expect("P. 1:501(500)").nothing();
        t
    };
    small_under_way(IN_MEMORY).send(2500).expect("P. 501:3001(2500)").nothing();
    // A small one that would be a frame of its own waits.
    small_under_way(IN_MEMORY).send(400).nothing();
    // Who corks means it.
    let mut corked = small_under_way(IN_MEMORY);
    corked.set(|c| c.settings().set_cork(true)).nothing();
    corked.send(2500).expect("P. 501:2501(2000)").nothing();
    corked.set(|c| c.settings().set_cork(false)).nothing();
    // On a wire it would be a packet of its own.
    small_under_way(ON_A_WIRE).send(2500).expect("P. 501:2501(2000)").nothing();
}

#[test]
fn on_a_wire_nothing_waits_for_company() {
    let mut t = Test::established_with(nagle(), ON_A_WIRE, SYN_ACK);
    t.send(2000).expect("P. 1:2001(2000)").nothing();
    t.send(3000).expect("P. 2001:5001(3000)").nothing();
}

/// As [`under_way`], over a path with this round trip.
fn under_way_for(rtt_ms: u64) -> Test {
    let mut t = Test::connecting_over(nagle(), IN_MEMORY);
    let _ = t.sent();
    t.wait(rtt_ms).peer(SYN_ACK).expect(". 1:1(0) ack 1");
    t.send(2500).expect_bytes(1, 2501).nothing();
    t
}

#[test]
fn in_memory_nothing_waits_for_a_peer_that_is_far_behind_the_next_hop() {
    under_way_for(100).send(3000).expect_bytes(2501, 5501).nothing();
    under_way_for(0).send(3000).nothing();
}

#[test]
fn in_memory_nothing_waits_for_a_peer_that_takes_longer_segments_and_may_delay() {
    let syn_ack = "S. 0:0(0) ack 1 win 60000 <mss 9000,sackOK>";
    let mut t = Test::established_with(nagle(), IN_MEMORY, syn_ack);
    t.send(3000).expect("P. 1:3001(3000)").nothing();
    t.send(3000).expect("P. 3001:6001(3000)").nothing();
    t.send(4000).expect("P. 6001:10001(4000)").nothing();
    t.send(3000).nothing();
}

#[test]
fn in_memory_a_super_frame_is_full_when_it_has_all_the_segments_that_it_may_have() {
    let link = LinkLimits::new(1000, 500_000);
    let config = Config { initial_cwnd: 1000, ..nagle() };
    let syn_ack = "S. 0:0(0) ack 1 win 60000 <mss 1000,sackOK,wscale 8>";
    let mut t = Test::established_with(config, link, syn_ack);
    t.peer(". 1:1(0) ack 1 win 60000");
    // The congestion window opens so far that it is not what bounds a super-frame.
    t.send(400_000).expect_bytes(1, 255_001).nothing();
    t.peer(". 1:1(0) ack 255001 win 60000").expect("P. 255001:383001(128000)").nothing();
    t.send(110_500).nothing();
    t.send(500).expect("P. 383001:511001(128000)").nothing();
}

#[test]
fn in_memory_a_small_send_buffer_takes_no_more_than_on_a_wire() {
    let taken = |max_super_payload| {
        let config = Config { send_buffer: 4000, send_buffer_initial: 4000, ..nagle() };
        let link = LinkLimits::new(1000, max_super_payload);
        let syn_ack = "S. 0:0(0) ack 1 win 60000 <mss 1000,sackOK,wscale 8>";
        let mut t = Test::established_with(config, link, syn_ack);
        t.peer(". 1:1(0) ack 1 win 60000");
        t.env(|c, env| c.write(env, &[7; 1_000_000], SendFlags::empty())).unwrap()
    };
    assert_eq!(taken(500_000), taken(64_500));
}

#[test]
fn in_memory_no_more_waits_than_may_wait_unsent() {
    let mut t = under_way(Config { notsent_lowat: 4000, ..nagle() });
    t.send(3000).nothing();
    t.send(1500).expect("P. 2501:7001(4500)").nothing();
}
