//! Marks that an owner sets for packets: traffic class and hop limit.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use pagewire_stack::{BindOptions, PacketMarks, SocketOption};

use crate::common::{A, Pair, Verbs, addr};

/// Has `(traffic class, hop limit)` of every IPv4 and IPv6 packet from A noted.
fn watch(p: &mut Pair) -> Rc<RefCell<Vec<(u8, u8)>>> {
    p.watch(|side, frame| {
        let ip = &frame.head()[14..];
        match (side, ip[0] >> 4, ip[6]) {
            (A, 4, _) => Some((ip[1], ip[8])),
            // Not neighbour discovery.
            (A, 6, 6 | 17) => Some((ip[0] << 4 | ip[1] >> 4, ip[7])),
            _ => None,
        }
    })
}

#[test]
fn the_packets_of_a_stream_carry_its_class_and_hop_limit_and_its_own_congestion_bits() {
    for to in ["10.0.0.2:80", "[fd00::2]:80"] {
        let mut p = Pair::new();
        p.b.listen(addr(to), 4).unwrap();
        let id = p.a.connect(p.now, addr(to), None).unwrap();
        p.run(Duration::from_millis(5));
        let seen = watch(&mut p);
        p.a.send(p.now, id, b"plain").unwrap();
        p.run(Duration::from_millis(5));
        let marks = PacketMarks { traffic_class: 0xb8 | 0b11, hop_limit: Some(7) };
        p.a.set_option(id, SocketOption::Marks(marks)).unwrap();
        p.a.send(p.now, id, b"marked").unwrap();
        p.run(Duration::from_millis(5));
        assert_eq!(*seen.borrow(), [(0, 64), (0xb8, 7)]);
    }
}

#[test]
fn datagrams_carry_the_whole_class() {
    let mut p = Pair::new();
    let server = addr("10.0.0.2:53");
    p.b.bind_udp(server, BindOptions::default()).unwrap();
    let id = p.a.bind_udp(addr("0.0.0.0:0"), BindOptions::default()).unwrap();
    p.a.send_to(p.now, id, b"plain", Some(server)).unwrap();
    p.run(Duration::from_millis(5));
    let seen = watch(&mut p);
    let marks = PacketMarks { traffic_class: 0x2a, hop_limit: Some(1) };
    p.a.set_option(id, SocketOption::Marks(marks)).unwrap();
    p.a.send_to(p.now, id, b"marked", Some(server)).unwrap();
    p.run(Duration::from_millis(5));
    assert_eq!(*seen.borrow(), [(0x2a, 1)]);
}
