//! Views of sockets for tools.

use std::time::Duration;

use pagewire_mem::CopyReason;
use pagewire_stack::{
    BindOptions, SocketCounts, SocketId, SocketOption, SocketView, Stack, TcpState, ViewOf,
};

use crate::common::{A, Pair, Verbs};

fn pair() -> Pair {
    let mut pair = Pair::new();
    pair.meet();
    pair
}

/// All sockets, read in pages of `places` slots, and the number of pages.
fn all(stack: &Stack, now: pagewire_mem::Instant, places: usize) -> (Vec<SocketView>, usize) {
    let (mut sockets, mut pages, mut next) = (Vec::new(), 0, Some(0));
    while let Some(from) = next {
        let page = stack.sockets_from(now, from, places);
        assert!(page.sockets.len() <= places);
        sockets.extend(page.sockets);
        (pages, next) = (pages + 1, page.next);
    }
    (sockets, pages)
}

#[test]
fn a_connection_tells_its_ends_queues_path_age_and_copies() {
    let mut p = pair();
    let listener = p.b.listen(([10, 0, 0, 2], 80).into(), 8).expect("a listener");
    let client = p.a.connect(p.now, ([10, 0, 0, 2], 80).into(), None).expect("a connection");
    p.run(Duration::from_millis(50));
    let (server, _) = p.b.accept(listener).expect("it is there");
    p.run(Duration::from_secs(3));
    p.a.tcp(client).unwrap().set_option(p.now, SocketOption::CountCopies(true)).unwrap();
    p.a.send(p.now, client, &[7; 1000]).unwrap();

    let (sockets, _) = all(&p.a, p.now, 100);
    let [ours] = &sockets[..] else { panic!("{sockets:?}") };
    assert_eq!(ours.id, SocketId::from(client));
    assert_eq!(ours.remote, Some(([10, 0, 0, 2], 80).into()));
    assert_eq!(ours.link, p.a.links().next());
    assert_eq!((ours.receive_queue, ours.send_queue), (0, 1000));
    let ViewOf::Tcp(tcp) = &ours.of else { panic!("{ours:?}") };
    assert_eq!(tcp.info.state, TcpState::Established);
    assert!(tcp.info.srtt > Duration::ZERO && tcp.info.cwnd > 0);
    assert_eq!(tcp.age, Duration::from_secs(3));
    assert_eq!(tcp.copies.expect("counted").get(CopyReason::AppWrite), 1000);

    p.run(Duration::from_millis(50));
    let (sockets, _) = all(&p.b, p.now, 100);
    let theirs = sockets.iter().find(|s| s.id == server).expect("it is among them");
    assert_eq!((theirs.receive_queue, theirs.send_queue), (1000, 0));
}

#[test]
fn listeners_datagram_sockets_and_time_wait_are_sockets_too() {
    let mut p = pair();
    let listener = p.b.listen(([10, 0, 0, 2], 80).into(), 8).expect("a listener");
    p.b.bind_udp(([10, 0, 0, 2], 53).into(), BindOptions::default()).expect("a socket");
    let client = p.a.connect(p.now, ([10, 0, 0, 2], 80).into(), None).expect("a connection");
    let waiting = p.a.connect(p.now, ([10, 0, 0, 2], 80).into(), None).expect("a connection");
    p.run(Duration::from_millis(50));
    let (server, _) = p.b.accept(listener).expect("it is there");
    let now = p.now;
    p.b.close(now, server);
    p.run(Duration::from_millis(50));
    p.a.close(now, client);
    p.run(Duration::from_millis(50));

    let counts = SocketCounts { connections: 1, time_wait: 1, listeners: 1, datagrams: 1 };
    assert_eq!(p.b.socket_counts(), counts);
    let (sockets, _) = all(&p.b, p.now, 100);
    let is = |what: fn(&ViewOf) -> bool| sockets.iter().filter(|s| what(&s.of)).count();
    assert_eq!(is(|of| matches!(of, ViewOf::TimeWait)), 1);
    assert_eq!(is(|of| matches!(of, ViewOf::Udp { datagrams: 0, every: None, .. })), 1);
    let listener = sockets.iter().find(|s| s.id == listener).expect("it is among them");
    assert_eq!((listener.receive_queue, listener.send_queue, listener.remote), (1, 8, None));
    let (ours, _) = all(&p.a, p.now, 100);
    assert_eq!(ours.len(), 1);
    assert_eq!(ours[0].id, SocketId::from(waiting));
}

#[test]
fn pages_show_every_socket_once_and_gaps_cost_no_more_than_places() {
    let mut p = pair();
    let bind = |p: &mut Pair, port| {
        p.stack(A).bind_udp(([10, 0, 0, 1], port).into(), BindOptions::default()).expect("a port")
    };
    let ids: Vec<_> = (1000..1100).map(|port| bind(&mut p, port)).collect();
    // Only every tenth is left.
    for id in ids.iter().enumerate().filter(|(i, _)| i % 10 != 0).map(|(_, id)| *id) {
        p.a.close(p.now, id);
    }
    let (sockets, pages) = all(&p.a, p.now, 7);
    assert_eq!(pages, 15, "100 places, 7 at once");
    let left: Vec<SocketId> = ids.iter().step_by(10).map(|id| SocketId::from(*id)).collect();
    assert_eq!(sockets.iter().map(|s| s.id).collect::<Vec<_>>(), left);
    let beyond = p.a.sockets_from(p.now, u32::MAX, 10);
    assert!(beyond.sockets.is_empty() && beyond.next.is_none());
}
