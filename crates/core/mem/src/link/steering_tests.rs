//! Rules of steering: the flows that each kind of rule names, and fragments of datagrams.

use std::net::SocketAddr;

use super::{Protocol, Rule, Steering};

const PEER: &str = "10.0.0.2:5000";

/// The first bytes of a frame from [`PEER`] to port 9000 of 10.0.0.1.
fn head(protocol: u8, fragment: u16) -> Vec<u8> {
    let mut frame = vec![0; 12];
    frame.extend([0x08, 0x00]);
    frame.extend([0x45, 0, 0, 200, 0, 0]);
    frame.extend(fragment.to_be_bytes());
    frame.extend([64, protocol, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1]);
    frame.extend(5000_u16.to_be_bytes());
    frame.extend(9000_u16.to_be_bytes());
    frame.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0, 0, 0, 0, 0, 0, 0]);
    frame
}

#[test]
fn rules_tell_protocol_port_and_peer_apart() {
    let peer: SocketAddr = PEER.parse().unwrap();
    let other = SocketAddr::new(peer.ip(), 5001);
    let any = |protocol| Rule { protocol, ..Rule::default() };
    let cases = [
        // Rule, whether it names the datagram, whether it names the segment.
        (Rule::udp_port(9000), true, false),
        (Rule::udp_port(9001), false, false),
        (Rule::tcp_port(9000), false, true),
        (Rule::udp_flow(9000, peer), true, false),
        (Rule::udp_flow(9000, other), false, false),
        (Rule::tcp_flow(9000, peer), false, true),
        (any(Some(Protocol::Udp)), true, false),
        (any(Some(Protocol::Tcp)), false, true),
        (any(None), true, true),
    ];
    for (rule, datagram, segment) in cases {
        let mut steering = Steering::new(2);
        steering.steer(rule, 1).unwrap();
        assert_eq!(steering.queue_of(&head(17, 0)), usize::from(datagram), "{rule:?}");
        assert_eq!(steering.queue_of(&head(6, 0)), usize::from(segment), "{rule:?}");
    }
}

#[test]
fn of_a_datagram_in_fragments_only_the_first_is_steered() {
    let mut steering = Steering::new(2);
    steering.steer(Rule::udp_port(9000), 1).unwrap();
    let more_fragments = 0x2000;
    assert_eq!(steering.queue_of(&head(17, more_fragments)), 1);
    assert_eq!(steering.queue_of(&head(17, more_fragments | 185)), 0);
    assert_eq!(steering.queue_of(&head(17, 370)), 0);
}
