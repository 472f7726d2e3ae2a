//! The queue that each bulk flow of a tap gets.

use bytes::Bytes;
use pagewire_testkit::built;
use pagewire_testkit::frames::{ip, received};

use super::super::limits::SPARE_QUEUES;
use super::*;

/// A TCP frame over IPv4 of the flow with these ports.
fn frame(from: u16, to: u16, payload: usize) -> PacketBuf {
    let (source, target) = if from > to { (1, 2) } else { (2, 1) };
    let ends = [source, target].map(|host| [10, 0, 0, host].into());
    let frame = built!(ip([[0xee; 6]; 2], ends, 64).tcp(from, to, 0, 0).ack(0), &vec![7; payload]);
    let mut packet = received(&frame[..54], 54);
    if payload > 0 {
        packet.push_frag(Bytes::from(frame).slice(54..).into()).unwrap();
    }
    packet
}

/// A super-frame that flow `flow` received.
fn bulk(flow: u16) -> PacketBuf {
    frame(1000 + flow, 80, 60_000)
}

/// A frame that acknowledges flow `flow`.
fn answer(flow: u16) -> PacketBuf {
    frame(80, 1000 + flow, 0)
}

#[test]
fn one_bulk_flow_stays_where_it_is() {
    let mut flows = BulkFlows::new(SPARE_QUEUES);
    for i in 0..10_000 {
        assert_eq!(flows.note(0, &bulk(1)), None);
        assert_eq!(flows.note(0, &frame(2000 + i % 50, 80, 100)), None, "little data");
    }
    assert_eq!(flows.queues(), 1);
    assert_eq!(flows.queue_of(&answer(1)), 0);
}

#[test]
fn of_flows_that_take_turns_all_but_one_get_a_queue_and_their_answers_leave_there() {
    let mut flows = BulkFlows::new(SPARE_QUEUES);
    let mut queue = [0; 8];
    for _ in 0..100 {
        for (flow, queue) in queue.iter_mut().enumerate() {
            if let Some(given) = flows.note(*queue, &bulk(flow as u16)) {
                assert_eq!(*queue, 0, "a flow gets a queue once");
                *queue = given;
            }
        }
    }
    let mut queues = queue.to_vec();
    queues.sort_unstable();
    assert_eq!(queues, [0, 1, 2, 3, 4, 5, 6, 7], "each its own");
    for (flow, queue) in queue.into_iter().enumerate() {
        assert_eq!(flows.queue_of(&answer(flow as u16)), queue);
    }
    assert_eq!(flows.queue_of(&answer(99)), 0);
}

#[test]
fn more_flows_than_queues_share_the_first() {
    let mut flows = BulkFlows::new(2);
    let mut given = 0;
    for _ in 0..50 {
        for flow in 0..40 {
            given += usize::from(flows.note(0, &bulk(flow)).is_some());
        }
    }
    assert_eq!((given, flows.queues()), (2, 3));
}

#[test]
fn queue_of_a_flow_that_fell_silent_goes_to_another() {
    let mut flows = BulkFlows::new(1);
    // Lets two flows take turns until one of them gets the queue; which, and after how many frames.
    let mut race = |a: u16, b: u16| {
        let mut frames = [a, b].into_iter().cycle().zip(0..2 * FLOW_IDLE);
        frames.find(|(flow, _)| flows.note(0, &bulk(*flow)) == Some(1))
    };
    assert_eq!(race(1, 2), Some((1, 6)));
    let (heir, frames) = race(2, 3).expect("the queue comes free");
    assert!(frames >= FLOW_IDLE - 1, "after {frames} frames");
    assert_eq!(flows.queue_of(&answer(heir)), 1);
    assert_eq!(flows.queue_of(&answer(1)), 0);
}

#[test]
fn without_spare_queues_nothing_is_given() {
    for mut flows in [BulkFlows::new(0), {
        let mut flows = BulkFlows::new(5);
        flows.give_up_from(1);
        flows
    }] {
        for flow in (0..4).cycle().take(100) {
            assert_eq!(flows.note(0, &bulk(flow)), None);
        }
        assert_eq!(flows.queues(), 1);
    }
}

#[test]
fn frames_that_are_no_tcp_are_nobodys() {
    let mut flows = BulkFlows::new(5);
    let mut strange = PacketBuf::for_rx();
    strange.append(20).unwrap();
    strange.push_frag(Bytes::from(vec![0; 9000]).into()).unwrap();
    for _ in 0..100 {
        assert_eq!(flows.note(0, &strange), None);
        assert_eq!(flows.note(0, &bulk(1)), None);
    }
    assert_eq!(flows.queue_of(&strange), 0);
}
