//! The queue that each mapped flow of a tap gets.

use pagewire_mem::PacketBuf;
use pagewire_testkit::frames::{ip, to_send};
use pagewire_testkit::{built, given};

use super::super::limits::SPARE_QUEUES;
use super::*;

const NOW: Instant = Instant::from_millis(5);

/// An acknowledgement of flow `flow`, whose application maps what it receives.
fn mapped(flow: u16) -> PacketBuf {
    let mut packet = copied(flow);
    packet.maps = true;
    packet
}

/// An acknowledgement of flow `flow`, whose application reads by copy.
fn copied(flow: u16) -> PacketBuf {
    let ends = [1, 2].map(|host| [10, 0, 0, host].into());
    to_send(&built!(ip([[0xee; 6]; 2], ends, 64).tcp(80, 1000 + flow, 0, 0).ack(0), &[]), 54)
}

given! {
    let mut flows = BulkFlows::new(SPARE_QUEUES);

    a_mapped_flow_alone_stays_where_it_is {
        assert_eq!(flows.way_of(NOW, &mapped(1), false), Way::First);
    }
    readers_by_copy_share_the_first_queue {
        for flow in 0..8 {
            assert_eq!(flows.way_of(NOW, &copied(flow), true), Way::First);
        }
    }
    each_of_several_mapped_flows_gets_a_queue_and_keeps_it {
        for flow in 0..8 {
            assert_eq!(flows.way_of(NOW, &mapped(flow), true), Way::New(usize::from(flow) + 1));
        }
        for flow in 0..8 {
            assert_eq!(flows.way_of(NOW, &mapped(flow), false), Way::Own(usize::from(flow) + 1));
        }
    }
    more_flows_than_queues_share_the_first {
        for flow in 0..SPARE_QUEUES as u16 {
            assert_ne!(flows.way_of(NOW, &mapped(flow), true), Way::First);
        }
        assert_eq!(flows.way_of(NOW, &mapped(99), true), Way::First);
    }
    the_queue_of_a_flow_that_fell_silent_goes_to_another {
        flows.give_up_from(2);
        assert_eq!(flows.way_of(NOW, &mapped(1), true), Way::New(1));
        let at = NOW + QUEUE_IDLE;
        assert_eq!((flows.way_of(at, &mapped(2), true), flows.is_idle(at, 1)), (Way::First, false));
        let at = at + QUEUE_IDLE;
        assert!(flows.is_idle(at, 1));
        assert_eq!(flows.way_of(at, &mapped(2), true), Way::New(1));
        assert_eq!(flows.way_of(at, &mapped(1), true), Way::First);
    }
    a_reserved_queue_is_no_flows_until_it_is_released {
        flows.give_up_from(2);
        flows.reserve(1);
        assert_eq!((flows.way_of(NOW, &mapped(1), true), flows.is_idle(NOW, 1)), (Way::First, false));
        flows.release(1);
        assert_eq!(flows.way_of(NOW, &mapped(1), true), Way::New(1));
    }
    without_spare_queues_nothing_is_given {
        flows.give_up_from(1);
        assert_eq!(flows.way_of(NOW, &mapped(1), true), Way::First);
    }
    frames_that_are_no_tcp_are_nobodys {
        let mut strange = PacketBuf::for_tx();
        strange.push(20).unwrap();
        strange.maps = true;
        assert_eq!(flows.way_of(NOW, &strange, true), Way::First);
    }
}
