//! Hosts that are treated badly: by their device, their peer or their program. Without threads, so
//! that nothing depends on a clock.


use pagewire::Host;
use pagewire::device::{Pair, PairConfig};

#[test]
fn a_turn_fills_the_room_that_the_device_has() {
    let (left, right) =
        Pair::new(PairConfig { queue_frames: 4, ..Default::default() }).expect("pair");
    let server =
        Host::builder().device(left).address("10.0.0.1/24").manual().start().expect("host");
    let client =
        Host::builder().device(right).address("10.0.0.2/24").manual().start().expect("host");
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
