//! Connections that an application on rings opens.

use crate::support::*;

const CONNECT: u64 = 50;

fn peer(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 2], port))
}

/// Connects, and returns the answer.
fn connect(world: &mut World, to: SocketAddr) -> Completion {
    world.app.submit(Submission::connect(to, CONNECT));
    world.run(|world| world.app.others.iter().any(|done| done.user_data == CONNECT));
    let at = world.app.others.iter().position(|done| done.user_data == CONNECT).unwrap();
    world.app.others.remove(at)
}

#[test]
fn a_client_lives_on_rings_alone() {
    let mut world = World::new(40, "delay=1ms,loss=1%");
    let listener = world.sim.node_mut(world.client).stack.listen(peer(PORT), 8).unwrap();
    let memory = Region::memfd_shared("send", GROUP).unwrap();
    let bytes = Stream(STREAM).bytes(0, 100_000);
    memory.copy_shared_in(0, &bytes).unwrap();
    let out = world.engine.register_send(memory).unwrap();
    let group = world.register(4);

    let done = connect(&mut world, peer(PORT));
    assert_eq!(done.result, 0);
    let handle = done.handle;
    world.app.flows.insert(handle, Default::default());
    world.app.submit(Submission::receive(handle, group, 0, RECEIVE).multishot());
    world.app.submit(Submission::send(handle, out, 0, 100_000, 51));
    world.app.submit(Submission::new(Op::Shutdown, handle, 52));

    // The peer echoes everything.
    let (mut accepted, mut buffer, mut echoed, mut waiting) = (None, vec![0; 4096], 0, Vec::new());
    world.run(|world| {
        let now = world.sim.now();
        let stack = &mut world.sim.node_mut(world.client).stack;
        accepted = accepted.or_else(|| stack.accept(listener).ok().map(|(id, _)| id));
        let Some(socket) = accepted else { return false };
        loop {
            if !waiting.is_empty() {
                let Ok(n) = stack.send(now, socket, &waiting) else {
                    break;
                };
                waiting.drain(..n);
                echoed += n;
                continue;
            }
            match stack.recv(now, socket, &mut buffer[..]) {
                Ok(0) => {
                    let _ = stack.shutdown(now, socket, std::net::Shutdown::Write);
                    break;
                }
                Ok(n) => waiting.extend_from_slice(&buffer[..n]),
                Err(_) => break,
            }
        }
        world.flow().over.last().is_some_and(|over| over.result == 0)
    });
    assert_eq!((echoed, world.flow().received), (100_000, 100_000));
}

#[test]
fn an_address_goes_through_a_ring_as_it_is() {
    let addresses =
        ["10.0.0.2:80", "[fd00::1:2:3:4]:65535", "[::]:0", "[fe80::1%7]:1", "255.255.255.255:1"];
    for text in addresses {
        let address: SocketAddr = text.parse().unwrap();
        assert_eq!(Submission::connect(address, 0).address.socket(), Some(address));
        let words = Submission::connect(address, 0).to_words();
        assert_eq!(Submission::from_words(words), Submission::connect(address, 0));
    }
}

#[test]
fn a_connect_that_is_refused_or_makes_no_sense_says_so() {
    let mut world = World::new(41, "delay=1ms");
    assert_eq!(connect(&mut world, peer(9)).result, -111, "ECONNREFUSED");
    assert_eq!(connect(&mut world, peer(0)).result, -22, "EINVAL");
    let nowhere = "192.0.2.1:80".parse().unwrap();
    assert_eq!(connect(&mut world, nowhere).result, -101, "ENETUNREACH");
}

#[test]
fn a_connect_can_be_cancelled_before_it_has_a_handle() {
    let mut world = World::new(42, "delay=1ms,loss=100%");
    world.app.submit(Submission::connect(peer(PORT), CONNECT));
    world.pass(Duration::from_millis(10));
    world.app.submit(Submission::cancel(0, CONNECT + 1, 60));
    world.app.submit(Submission::cancel(0, CONNECT, 61));
    world.turn();
    let results = |user_data| {
        let mut found = world.app.others.iter().filter(|done| done.user_data == user_data);
        (found.next().map(|done| (done.result, done.handle)), found.next())
    };
    assert_eq!(results(60), (Some((-2, 0)), None), "ENOENT");
    assert_eq!(results(61), (Some((0, 0)), None));
    assert_eq!(results(CONNECT), (Some((-125, 0)), None), "ECANCELED");
}

#[test]
fn a_connect_that_nobody_answers_times_out() {
    let mut world = World::new(43, "loss=100%");
    let done = connect(&mut world, peer(PORT));
    assert!([-110, -113].contains(&done.result), "ETIMEDOUT or EHOSTUNREACH: {done:?}");
    assert_eq!(done.handle, 0);
}
