//! The relay in virtual time: time limits, and how much one part of a guest's connections leaves to the others.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use pagewire::services::{Error, Instant};

use super::{Dials, Flow, Pair};
use crate::context::Whole;
use crate::dns::Resolver;
use crate::limits::{
    CLIENTS_LEAVE, CONNECTS_BURST, DELIVERY, DIAL_FAIR, DIAL_RETRY, DIALS_PER_DESTINATION,
    KEEPALIVE_IDLE, LEAVES_BURST, LEAVES_PER_SECOND, SETTLED, SWEEP, TURN_BYTES, UNSENT,
};
use crate::policy::{RouteSocket, Rules};
use crate::publish::Publish;
use crate::request::{Ask, How, Verdict};
use crate::splice::PortChange;
use crate::tally::Tally;
use crate::world::{SILENT, Settings, World};

#[test]
fn a_silent_pair_ends_at_its_limit_and_one_that_talks_does_not() {
    let idle = Duration::from_secs(40);
    let mut world = World::new(Settings { idle: Some(idle), ..Settings::default() });
    let silent = world.connect("203.0.113.1:80");
    let talks = world.connect("203.0.113.2:80");
    world.pass(Duration::from_secs(20));
    world.say(talks, b"x");
    // The third check of the age of all pairs finds the silent one.
    world.pass(Duration::from_secs(19));
    assert_eq!((world.error(silent), world.error(talks)), (None, None));
    world.pass(SWEEP);
    assert_eq!(world.error(silent), Some(Error::ConnectionReset));
    assert_eq!(world.far(0).read(&mut [0; 1]).unwrap(), 0, "the far end is closed, too");
    assert_eq!(world.error(talks), None);
    world.pass(idle);
    assert_eq!(world.error(talks), Some(Error::ConnectionReset));
    assert_eq!(world.relay.counters().idle, 2);
    assert_eq!(world.ends(), [How::Idle, How::Idle]);
}

#[test]
fn a_single_pair_ends_at_its_limit() {
    let idle = Some(Duration::from_secs(40));
    let mut world = World::new(Settings { idle, ..Settings::default() });
    let silent = world.connect("203.0.113.1:80");
    world.pass(Duration::from_secs(40) + SWEEP);
    assert_eq!(world.error(silent), Some(Error::ConnectionReset));
}

#[test]
fn without_a_limit_a_pair_stays_and_its_guest_is_probed() {
    let mut world = World::new(Settings::default());
    let id = world.connect("203.0.113.1:80");
    world.pass(SETTLED + SWEEP);
    let before = world.gateway.counters().tx_frames;
    world.pass(KEEPALIVE_IDLE + SWEEP);
    assert!(world.gateway.counters().tx_frames > before, "nothing was sent");
    world.pass(Duration::from_secs(3600));
    assert_eq!(world.error(id), None);
}

#[test]
fn listeners_take_from_the_descriptors_of_the_guests_connections() {
    let mut world = World::new(Settings::default());
    let what: Publish = "127.0.0.1:0:80".parse().unwrap();
    world.relay.publish(world.now, &what, what.open().unwrap()).unwrap();
    world.relay.context.share.all = 2;
    let first = world.connect("203.0.113.1:80");
    let second = world.connect("203.0.113.2:80");
    assert_eq!((world.dialled().len(), world.error(first), world.error(second)), (1, None, None));
    // Without the port there is room for both.
    assert!(world.relay.unpublish(world.now, &what));
    world.pass(DIAL_RETRY);
    assert_eq!(world.dialled().len(), 2);
}

#[test]
fn programs_open_ports_with_half_of_the_descriptors_at_most_whatever_else_is_published() {
    let mut world = World::new(Settings::default());
    let what: Publish = "127.0.0.1:0:80".parse().unwrap();
    for _ in 0..8 {
        world.relay.publish(world.now, &what, what.open().unwrap()).unwrap();
    }
    world.relay.context.share.all = 8;
    let follow = "auto".parse::<Publish>().unwrap().follow().unwrap();
    world.relay.published.follows.push(follow.clone());
    let opened = |port| {
        let opened = what.open().unwrap();
        PortChange::Publish(follow.clone(), port, opened, Vec::new())
    };
    world.relay.change_ports(world.now, (1..=3).map(opened).collect());
    assert_eq!(world.relay.published.followed.len(), 2);
}

#[test]
fn many_listeners_leave_half_of_the_descriptors_to_connections() {
    let mut world = World::new(Settings::default());
    let what: Publish = "127.0.0.1:0:80".parse().unwrap();
    for _ in 0..8 {
        world.relay.publish(world.now, &what, what.open().unwrap()).unwrap();
    }
    world.relay.context.share.all = 4;
    world.connect("203.0.113.1:80");
    assert_eq!(world.dialled().len(), 1);
}

#[test]
fn a_crowded_destination_costs_no_dial_elsewhere() {
    let mut world = World::new(Settings::default());
    world.connect(&format!("198.51.100.1:{SILENT}"));
    world.pass(Duration::from_secs(1));
    for _ in 0..DIALS_PER_DESTINATION {
        world.connect(&format!("203.0.113.1:{SILENT}"));
    }
    world.pass(DIAL_FAIR);
    world.connect(&format!("203.0.113.1:{SILENT}"));
    assert_eq!(world.relay.counters().yielded, 1);
    assert_eq!(world.dialled().len(), DIALS_PER_DESTINATION + 2);
    // The oldest dial of all is for another destination.
    assert!(world.far(0).write(b"x").is_ok(), "its dial was given up");
    assert!(world.far(1).write(b"x").is_err(), "the oldest to the crowded one still lives");
}

#[test]
fn a_guest_that_does_not_read_is_reset_once_its_time_is_over() {
    let mut world = World::new(Settings::default());
    let id = world.connect("203.0.113.1:80");
    world.say(id, b"a question that nobody reads");
    let mut far = world.far(0);
    let pair = |(_, (_, flow)): (usize, &(u32, Flow))| match flow {
        Flow::Pair(pair) => Some(pair.tcp),
        _ => None,
    };
    let tcp = world.relay.flows.iter().find_map(pair).unwrap();
    while Pair::is_delivered(tcp, &mut world.gateway) {
        far.write_all(&[7; 16_384]).unwrap();
        world.settle();
    }
    // With the question unread, the end of the far side is a reset.
    world.far.0.lock().unwrap().clear();
    drop(far);
    world.settle();
    assert_eq!(world.ends(), [How::PeerReset]);
    world.pass(DELIVERY - Duration::from_secs(1));
    assert_eq!(world.relay.connections(), 1, "what was received is still being delivered");
    world.pass(Duration::from_secs(2));
    assert_eq!(world.relay.connections(), 0);
}

#[test]
fn between_two_parts_of_many_bytes_the_host_receives() {
    let mut world = World::new(Settings::default());
    let connections = 2 * TURN_BYTES / UNSENT as usize;
    for nth in 0..connections {
        world.connect(&format!("203.0.113.1:{}", 80 + nth));
    }
    for nth in 0..connections {
        let mut far = world.far(nth);
        far.set_nonblocking(true).unwrap();
        while far.write(&[7; 16_384]).is_ok() {}
    }
    assert!(world.relay.poll());
    world.relay.turn(world.now, &mut world.gateway, &[]);
    let moved = world.relay.counters().bytes_in as usize;
    assert_eq!(moved, TURN_BYTES);
    let due = world.relay.poll_timeout();
    assert!(
        due.is_none_or(|at| at > world.now),
        "the rest would be moved before the host receives"
    );
    assert!(world.relay.poll(), "the host would sleep");
}

#[test]
fn clients_leave_a_part_of_the_connections_to_the_guest() {
    let most = 8;
    let settings = Settings { connections: Some(most), ..Settings::default() };
    let mut world = World::new(settings);
    world.guest.listen("10.0.2.15:80".parse().unwrap(), 64).unwrap();
    let what: Publish = "127.0.0.1:0:80".parse().unwrap();
    let opened = what.open().unwrap();
    let port = opened[0].address().unwrap();
    world.relay.publish(world.now, &what, opened).unwrap();
    let clients: Vec<TcpStream> = (0..most).map(|_| TcpStream::connect(port).unwrap()).collect();
    world.pass(Duration::from_secs(1));
    assert_eq!(world.relay.connections(), most - most / CLIENTS_LEAVE);
    let own = world.connect("203.0.113.1:80");
    assert_eq!(world.dialled().len(), 1);
    world.say(own, b"x");
    assert_eq!(world.far(0).read(&mut [0; 2]).unwrap(), 1);
    drop(clients);
}

#[test]
fn what_nobody_can_judge_is_forgotten_and_asked_again() {
    let rules = Rules::default().deny("host".parse().unwrap());
    let routes = Arc::new(RouteSocket::unavailable());
    let mut world = World::new(Settings { rules, routes, ..Settings::default() });
    let id = world.connect("203.0.113.1:80");
    assert_eq!((world.dialled().len(), world.error(id)), (0, None));
    assert_eq!(world.verdicts(), [Verdict::Drop]);
    // The next SYN asks again.
    world.pass(Duration::from_millis(1500));
    assert_eq!(world.relay.counters().undecided, 2);
    assert!(world.dialled().is_empty());
}

#[test]
fn connections_that_the_guest_ends_first_leave_ports_to_others() {
    let judge = |ask: &Ask| (ask.to.port() < 100).then_some(Verdict::Allow);
    let mut world = World::new(Settings { judge: Some(Arc::new(judge)), ..Settings::default() });
    let there = "203.0.113.1:80".parse().unwrap();
    for _ in 0..LEAVES_BURST {
        world.relay.context.whole.time_wait.note(world.now, there);
    }
    world.connect("203.0.113.1:80");
    world.connect("203.0.113.1:81");
    // No port for the one; the other has ports of its own.
    assert_eq!(world.dialled(), ["203.0.113.1:81".parse().unwrap()]);
    world.pass(Duration::from_secs(1) / LEAVES_PER_SECOND);
    assert_eq!(world.dialled().len(), 2);
}

#[test]
fn no_turn_looks_at_requests_whose_destination_has_no_port_before_it_has_one() {
    let judge = |ask: &Ask| (ask.to.port() < 100).then_some(Verdict::Allow);
    let mut world = World::new(Settings { judge: Some(Arc::new(judge)), ..Settings::default() });
    let there: SocketAddr = "203.0.113.1:80".parse().unwrap();
    for _ in 0..LEAVES_BURST {
        world.relay.context.whole.time_wait.note(world.now, there);
    }
    for _ in 0..3 {
        world.connect("203.0.113.1:80");
    }
    world.connect("203.0.113.1:81");
    assert_eq!(world.relay.dials.lists(), (0, 3));
    let due = world.relay.dials.poll_timeout();
    let interval = Duration::from_secs(1) / LEAVES_PER_SECOND;
    assert_eq!(due, Some(world.now + interval));
    // The oldest request has the first port, before one that comes now.
    world.pass(interval / 2);
    world.connect("203.0.113.1:80");
    assert_eq!((world.relay.dials.lists(), world.relay.dials.poll_timeout()), ((0, 4), due));
    for port in 1..=4 {
        world.pass(interval);
        let free = world.relay.context.whole.time_wait.len(world.now, there) < LEAVES_BURST;
        assert!(free);
        assert!(world.dialled().len() > port, "{port}");
        world.relay.context.whole.time_wait.note(world.now, there);
    }
    assert_eq!((world.relay.dials.lists(), world.relay.dials.poll_timeout()), ((0, 0), None));
}

#[test]
fn the_side_that_ends_first_is_told_apart() {
    let mut world = World::new(Settings::default());
    for guest_first in [true, false] {
        let id = world.connect("203.0.113.1:80");
        let nth = world.dialled().len() - 1;
        let far_ends = |world: &mut World| {
            world.far(nth).shutdown(std::net::Shutdown::Write).unwrap();
            world.settle();
        };
        if !guest_first {
            far_ends(&mut world);
        }
        world.guest.tcp(id).unwrap().shutdown(world.now, std::net::Shutdown::Write).unwrap();
        world.settle();
        if guest_first {
            far_ends(&mut world);
        }
        let there = "203.0.113.1:80".parse().unwrap();
        assert_eq!(
            world.relay.context.whole.time_wait.len(world.now, there),
            1,
            "guest first: {guest_first}"
        );
    }
    assert_eq!(world.ends(), [How::Finished, How::Finished]);
}

#[test]
fn refusals_are_summed_up_once_a_second_and_at_the_end() {
    use crate::limits::DENIAL_LINES_BURST;
    use crate::request::Record;
    let mut world = World::new(Settings { rules: Rules::offline(), ..Settings::default() });
    let socket = world.guest.bind_udp("0.0.0.0:0".parse().unwrap(), Default::default()).unwrap();
    let all = u64::from(DENIAL_LINES_BURST) + 100;
    for _ in 0..all {
        let to = Some("203.0.113.1:9".parse().unwrap());
        // The socket receives the refusals as errors.
        while world.guest.udp(socket).unwrap().send(world.now, b"x", to).is_err() {}
        world.settle();
    }
    assert_eq!(world.verdicts().len(), DENIAL_LINES_BURST as usize);
    assert_eq!(world.relay.counters().denied, all);
    world.pass(Duration::from_secs(1));
    let sums = |world: &World| {
        let count = |record: &Record| match record {
            Record::Denials { count, .. } => Some(*count),
            _ => None,
        };
        world.records.lock().unwrap().iter().filter_map(count).collect::<Vec<u64>>()
    };
    assert_eq!(sums(&world), [100]);
    assert_eq!(
        world.relay.denied().to_string(),
        "1 address was refused; the first: 203.0.113.1:9/udp"
    );
}

#[test]
fn a_guest_that_has_ended_is_not_waited_for_because_of_a_connection_that_nobody_has_accepted() {
    let mut world = World::new(Settings::default());
    assert!(world.relay.is_finished());
    world.connect(&format!("203.0.113.1:{SILENT}"));
    world.pass(Duration::from_secs(1));
    assert_eq!(world.relay.connections(), 1, "it is being dialled");
    assert!(world.relay.is_finished());
    world.connect("203.0.113.1:80");
    assert!(!world.relay.is_finished(), "the guest has not ended that stream");
}

#[test]
fn forwarded_connections_have_the_rate_of_dials_and_failed_ones_cost_more() {
    let mut dials = Dials::new(&Whole::new(&Resolver::None), &Tally::lone());
    let now = Instant::from_millis(1000);
    let begun = (0..2 * CONNECTS_BURST).filter(|_| dials.may_forward(now, 0)).count();
    assert_eq!(begun, CONNECTS_BURST as usize);
    let later = now + Duration::from_secs(1);
    assert!(dials.may_forward(later, 0));
    assert!(!dials.may_forward(later, CONNECTS_BURST as usize / 9 + 1));
}
