//! Flags of a send (more follows, a record ends here), and other reasons to hold data back.

use crate::support::*;

const MORE: SendFlags = SendFlags::MORE;
const RECORD: SendFlags = SendFlags::END_OF_RECORD;

given! {
    let mut t = Test::established(plain());

    data_that_more_follows_waits_for_it {
        t.send_with(40, MORE).nothing().wait(5).send_with(60, MORE).nothing();
        t.wait(5).send(10).expect("P. 1:111(110)").nothing();
    }
    data_that_more_follows_waits_200_ms_at_most_and_is_pushed {
        t.send_with(40, MORE).nothing();
        t.wait(300).expect_after(200, "P. 1:41(40)");
    }
    full_segments_of_what_more_follows_leave_without_a_push {
        t.send_with(2100, MORE).expect(". 1:1001(1000)").expect(". 1001:2001(1000)").nothing();
        // As in Linux: the next acknowledgement lets the rest go.
        t.peer(". 1:1(0) ack 2001").expect(". 2001:2101(100)").nothing();
    }
    records_are_sent_again_apart {
        for i in 0..3 {
            let (from, to) = (1 + i * 100, 101 + i * 100);
            t.send_with(100, RECORD).expect(&format!("P. {from}:{to}(100)"));
        }
        t.wait(1000);
        t.expect("P. 1:101(100)");
    }
}

#[test]
fn turning_nagle_off_sends_what_the_cork_holds() {
    let mut t = Test::established(Config { cork: true, nagle: true, ..plain() });
    t.send(40).nothing().send(40).nothing();
    t.set(|c| c.settings().set_nodelay(true)).expect("P. 1:81(80)").nothing();
    t.send(40).nothing();
    t.set(|c| c.settings().set_cork(false)).expect("P. 81:121(40)").nothing();
}

#[test]
fn record_shares_no_segment_with_what_follows() {
    let mut t = Test::established_over(plain(), SUPER);
    t.send(10_400).expect("P. 1:5001(5000)").expect("P. 5001:10001(5000)");
    // The window is full: what is queued now could all go together.
    for _ in 0..3 {
        t.send_with(400, RECORD);
    }
    t.send(2000).wait(10).peer(". 1:1(0) ack 10001");
    t.expect("P. 10001:10801(800)").expect("P. 10801:11201(400)").expect("P. 11201:11601(400)");
    t.expect("P. 11601:13601(2000)").nothing();
}

#[test]
fn push_is_set_where_a_write_ends_and_on_every_super_frame() {
    let mut t = Test::established_over(plain(), SUPER);
    t.send(1500).expect("P. 1:1501(1500)");
    let mut t = Test::established(plain());
    t.send(1500).expect(". 1:1001(1000)").expect("P. 1001:1501(500)");
}
