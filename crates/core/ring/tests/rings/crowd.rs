//! Many connections on one ring and one region.

use crate::support::*;

/// For a minute of virtual time 64 connections send pieces of random sizes, one packet in a hundred
/// is lost, and the application keeps buffers for a while.
#[test]
fn sixty_four_connections_share_a_ring_and_a_region_for_a_minute() {
    let rings = EngineConfig::new(config(16));
    let mut world = World::with(30, "loss=1%,delay=5ms,rate=8mbit,cut=yes", rings);
    let group = world.register(4);
    let mut random = FaultRng::new(64);
    for _ in 0..64 {
        world.send(u64::MAX, 1 + random.below(100_000) as usize);
    }
    world.receive_on_all(group, 64);
    world.app.returns = false;
    let minute = world.sim.now() + Duration::from_secs(60);
    let mut turns = 0u32;
    world.run(|world| {
        turns += 1;
        // Every other second it gives nothing back; then some, until all.
        if world.sim.now().as_millis() / 1000 % 2 == 1 {
            let n = world.app.held.len();
            world.app.give_back(1 + n / 2);
        }
        let at = turns as usize % world.senders.len();
        world.senders[at].piece = 1 + random.below(100_000) as usize;
        world.sim.now() >= minute
    });
    // The minute is over: what is still on the way may come to its end.
    for sender in &mut world.senders {
        sender.total = sender.sent;
    }
    world.app.returns = true;
    world.app.give_back_all();
    world.run_to_the_end();
    let total: u64 = world.senders.iter().map(|sender| sender.sent).sum();
    let received: u64 = world.app.flows.values().map(|flow| flow.received).sum();
    assert_eq!(received, total, "every stream whole");
    let counters = world.engine.counters();
    assert!(counters.zc_bytes > 10 * 4 * 256 * 1024, "the region went round: {counters:?}");
    assert!(counters.empty > 10, "emptied and refilled many times: {counters:?}");
    assert_eq!(counters.fills_refused(), 0);
    world.bring_home(group);
}
