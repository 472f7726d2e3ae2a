//! Requirements of a host of several stacks.

use pagewire_stack::ConnectOptions;

use super::*;
use crate::wire::Wire;

fn host(address: &str, count: usize) -> Stacks {
    let addresses = vec![address.parse().expect("an address")];
    let mut config = StackConfig::new(Wire::capabilities(1500), addresses, [0x5a; 32]);
    config.announce = false;
    Stacks::new(Instant::ZERO, &config, count).expect("stacks")
}

#[test]
fn packets_come_to_any_stack_and_are_passed_on_to_the_one_with_the_sockets() {
    let (mut host, mut peer) = (host("10.0.0.1/24", 3), host("10.0.0.2/24", 1));
    let at = "10.0.0.1:80".parse().expect("an address");
    let listener = host.main.listen(at, 64).expect("a listener");
    let now = Instant::ZERO;
    for _ in 0..30 {
        peer.main.connect(now, at, ConnectOptions::default()).expect("connects");
    }
    let (mut wire, mut frames) = (Wire::new().expect("a wire"), VecDeque::new());
    loop {
        let mut any = peer.poll_transmit(now, &mut frames) | !frames.is_empty();
        carry(&mut wire, &mut frames).into_iter().for_each(|frame| host.handle_frame(now, frame));
        any |= host.poll_transmit(now, &mut frames) | !frames.is_empty();
        carry(&mut wire, &mut frames).into_iter().for_each(|frame| peer.handle_frame(now, frame));
        if !any {
            break;
        }
    }
    let accept = |host: &mut Stacks| host.main.listener(listener).expect("listens").accept().ok();
    assert_eq!(std::iter::from_fn(|| accept(&mut host)).count(), 30);
    // Two of three packets came elsewhere, of 60 or more.
    let taken = host.main.counters().strays_taken;
    assert!(taken > 25, "{taken}");
}

/// Sends packets over the wire.
fn carry(wire: &mut Wire, frames: &mut VecDeque<PacketBuf>) -> Vec<PacketBuf> {
    frames.drain(..).for_each(|frame| assert!(wire.outbound(Instant::ZERO, &frame), "room"));
    let sent: Vec<_> = std::iter::from_fn(|| wire.sniff()).collect();
    sent.iter().map(|packet| wire.inbound(&packet.bytes).expect("memory")).collect()
}
