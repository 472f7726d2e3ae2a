//! Devices that take nothing: time goes on all the same.

use std::time::Duration;

use pagewire_stack::{Error, Forwarder, TcpId};

use super::world::*;
use crate::common::Verbs;

/// Far more than timers of a few connections go off in an hour.
const MANY: usize = 1000;

const HOUR: Duration = Duration::from_secs(3600);

/// Lets an hour pass and returns how often somebody had something to do.
fn hour(world: &mut World) -> usize {
    let limit = world.now + HOUR;
    (0..MANY).find(|_| !world.step(limit)).unwrap_or(MANY)
}

#[test]
fn what_is_due_is_done_once_while_no_device_takes_anything() {
    let mut world = World::three();
    let (west, left) = world.connect((MIDDLE, LEFT), addr("10.0.0.2:80"));
    world.meet();
    // The first connection is to acknowledge soon, the other waits for an answer to its SYN.
    world.stacks[LEFT].send(world.now, left, b"news").unwrap();
    let east = world.stacks[MIDDLE].connect(world.now, addr("10.0.1.2:80"), None).unwrap();
    world.flush();
    world.set_stuck(WEST, true);
    world.set_stuck(EAST, true);
    assert!(hour(&mut world) < MANY, "somebody always has something to do at {:?}", world.now);
    assert_eq!(world.middle().take_error(east), Some(Error::TimedOut));
    assert_eq!(world.middle().take_error(west), None);
    assert_eq!(world.middle().tcp(west).map(|tcp| tcp.queued()), Ok(4));
}

#[test]
fn a_neighbour_that_was_not_found_is_reported_while_no_device_takes_anything() {
    let mut world = World::three();
    world.set_stuck(WEST, true);
    world.set_stuck(EAST, true);
    let near = world.stacks[LEFT].connect(world.now, addr("10.0.0.77:80"), None).unwrap();
    // The packet waits for the neighbour's address.
    let mut frames = std::collections::VecDeque::new();
    world.stacks[LEFT].poll_transmit(world.now, &mut frames);
    assert!(hour(&mut world) < MANY, "somebody always has something to do at {:?}", world.now);
    assert_eq!(world.stacks[LEFT].take_error(near), Some(Error::HostUnreachable));
}

#[test]
fn timers_go_on_for_connections_that_wait_for_one_device_of_several() {
    let mut world = World::three_with(middle(), plain, plain);
    let ends = world.connections(60);
    let waiting = world.stacks[MIDDLE].connect(world.now, addr("10.0.0.2:79"), None).unwrap();
    world.flush();
    // And then the queue fills.
    world.set_stuck(WEST, true);
    for (near, _) in ends {
        assert_eq!(world.stacks[MIDDLE].send(world.now, near, &[1; 12_000]), Ok(12_000));
    }
    world.run(HOUR);
    // The SYN was sent, and could not be sent again.
    assert_eq!(world.middle().take_error(waiting), Some(Error::TimedOut));
}

/// A connection from the left through the stack between to the right. So much waits for the left
/// device that the connection there has to wait, and what the right one said; what the left one said
/// last is under way.
fn forwarded_and_held_up(last: impl FnOnce(&mut World, TcpId)) -> (World, TcpId) {
    let mut world = World::three_with(middle(), plain, plain);
    let others = world.connections(60);
    let (left, a) = world.connect((LEFT, MIDDLE), addr("10.0.0.1:80"));
    let (b, right) = world.connect((MIDDLE, RIGHT), addr("10.0.1.2:80"));
    world.run(Duration::from_secs(1));
    let mut forwarder = Forwarder::new(Default::default());
    forwarder.join(world.now, &mut world.stacks[MIDDLE], a, b).unwrap();
    world.forwarder = Some(forwarder);
    world.run(Duration::from_secs(1));
    last(&mut world, left);
    world.flush();
    world.set_stuck(WEST, true);
    for (near, _) in others {
        assert_eq!(world.stacks[MIDDLE].send(world.now, near, &[1; 12_000]), Ok(12_000));
    }
    world.flush();
    // The connection is held up before anything comes.
    assert_eq!(world.stacks[MIDDLE].send(world.now, a, b"held up"), Ok(7));
    world.run(Duration::from_secs(1));
    (world, right)
}

#[test]
fn what_comes_for_a_connection_that_waits_for_its_device_is_forwarded() {
    let (mut world, right) = forwarded_and_held_up(|world, left| {
        assert_eq!(world.stacks[LEFT].send(world.now, left, b"news"), Ok(4));
    });
    let (now, mut buffer) = (world.now, [0; 10]);
    assert_eq!(world.stacks[RIGHT].recv(now, right, &mut buffer[..]), Ok(4));
}

#[test]
fn the_reset_of_a_connection_that_waits_for_its_device_is_forwarded() {
    let (mut world, right) = forwarded_and_held_up(|world, left| {
        world.stacks[LEFT].abort(world.now, left);
    });
    assert_eq!(world.stacks[RIGHT].take_error(right), Some(Error::ConnectionReset));
    assert!(world.forwarder.unwrap().is_empty());
}
