//! Hosts that are treated badly: by their device, their peer or their program. Without threads, so
//! that nothing depends on a clock.

use std::io;
use std::time::Duration;

use pagewire::Host;
use pagewire::Pair;
use pagewire::device::{DeviceError, PairConfig};

use crate::support::{Odd, builders_on, pair};

#[test]
fn a_turn_fills_the_room_that_the_device_has() {
    let (left, right) =
        Pair::with(PairConfig { queue_frames: 4, ..Default::default() }).expect("pair");
    let (server, client) = builders_on((left, right));
    let server = server.manual().start().expect("host");
    let client = client.manual().start().expect("host");
    let one = server.udp("10.0.0.1:53").expect("bind");
    let two = client.udp("10.0.0.2:53").expect("bind");
    one.set_nonblocking(true).expect("set");
    let receive = || {
        server.turn();
        std::iter::from_fn(|| one.recv(&mut [0; 9]).ok()).count()
    };
    two.send_to(b"resolve", "10.0.0.1:53").expect("send");
    for _ in 0..9 {
        client.turn();
        server.turn();
    }
    receive();
    for i in 0..20u8 {
        two.send_to(&[i], "10.0.0.1:53").expect("send");
    }
    assert_eq!(receive(), 4, "what the link held");
    for _ in 0..4 {
        client.turn();
        assert_eq!(receive(), 4, "one turn, all the room there was");
    }
}

/// The other side has gone: the device's descriptor is ready for ever, as that of a tap whose
/// interface was deleted.
#[test]
fn a_device_that_is_gone_is_not_waited_for_busily() {
    // The writer is dropped: the reader polls as hung up.
    let ready = Some(io::pipe().expect("pipe").0);
    let gone = Odd { end: pair().0, acts: || Err(DeviceError::Closed), ready };
    let host = Host::builder().device(gone).address("10.0.0.1/24").manual().start().expect("host");
    host.turn();
    // The announcements of a new address are the only timers; they are two seconds apart.
    let (limit, start) = (Duration::from_millis(20), std::time::Instant::now());
    host.wait_turn(limit);
    assert!(start.elapsed() >= limit, "woken at once by a descriptor that is always ready");
    assert!(host.stats().device_error.is_some_and(|e| e.contains("closed")));
}
