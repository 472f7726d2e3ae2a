//! Several shards of one host, on the network layer.

use super::*;
use crate::shards::{BOUND, PortClaim, PortKind, Shard};
use crate::sockets::tuple::Tuple;

/// Two shards of one host.
fn shards() -> [Host; 2] {
    let mut places = Shard::all(2, &config().secret).unwrap().into_iter();
    [(); 2].map(|()| Host::changed(|config| config.shard = places.next()))
}

/// The ends of a connection whose home is the first of the shards.
fn at_home(a: &Host) -> Tuple {
    let tuples = (40_000..).map(|port| Tuple {
        local: US_V4.into(),
        remote: PEER_V4.into(),
        local_port: port,
        remote_port: 80,
    });
    tuples.into_iter().find(|tuple| a.net.foreign_home(PortKind::Tcp, tuple).is_none()).unwrap()
}

#[test]
fn a_connection_is_not_opened_once_its_packets_would_go_to_another_shard() {
    let [mut a, mut b] = shards();
    let tuple = at_home(&a);
    // Between the choice of the port and the claim, another shard opens a socket for every port.
    assert!(b.net.claim_port(PortKind::Tcp, 0, BOUND));
    assert!(!a.net.claim_home(PortKind::Tcp, &tuple, PortClaim::Connection));
    // Nothing of the claim is left.
    assert!(b.net.claim_port(PortKind::Tcp, tuple.local_port, BOUND));
    b.net.release_port(PortKind::Tcp, tuple.local_port, BOUND);
    b.net.release_port(PortKind::Tcp, 0, BOUND);
    assert!(a.net.claim_home(PortKind::Tcp, &tuple, PortClaim::Connection));
    assert!(!b.net.claim_port(PortKind::Tcp, 0, BOUND), "a connection is in the way");
    assert!(b.net.claim_port(PortKind::Tcp, 0, PortClaim::WithAll));
    assert_eq!(a.net.foreign_home(PortKind::Tcp, &tuple), None);
}
