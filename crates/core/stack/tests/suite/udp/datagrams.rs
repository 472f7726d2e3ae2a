//! Datagram sockets, and answers of the network layer itself.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use pagewire_mem::{
    Carver, CopyLedger, CopyReason, Frag, FragVec, PAGE_SIZE, PacketBuf, PagePool, PageWriter,
    RxChecksum,
};
use pagewire_stack::{
    BindOptions, DropReason, Error, ErrorEntry, ErrorOrigin, LinkId, QueuedError, Readiness,
    RecvFlags, SocketOption, UdpMessage, UdpTarget,
};

use crate::common::{B, Pair, STATIONS, Verbs, addr, capabilities, config, pattern, zerocopy};
use pagewire_testkit::built;
use pagewire_testkit::frames::{ip, received};

#[test]
fn a_datagram_goes_there_and_back_over_both_ip_versions() {
    for to in ["10.0.0.2:53", "[fd00::2]:53"] {
        let mut p = Pair::new();
        let (client, server) = p.datagram_sockets("[::]");
        assert_eq!(p.a.send_to(p.now, client, b"question", Some(addr(to))), Ok(8));
        p.run(Duration::from_millis(1));
        let mut buf = [0; 64];
        let (n, from) = p.b.recv_from(server, &mut buf[..]).unwrap();
        assert_eq!(&buf[..n], b"question");
        assert_eq!(from.port(), p.a.local_addr(client).unwrap().port());
        p.b.send_to(p.now, server, b"answer", Some(from)).unwrap();
        p.run(Duration::from_millis(1));
        let (n, from) = p.a.recv_from(client, &mut buf[..]).unwrap();
        assert_eq!((&buf[..n], from), (&b"answer"[..], addr(to)));
        assert_eq!(p.a.recv_from(client, &mut buf[..]), Err(Error::WouldBlock));
    }
}

#[test]
fn a_datagram_by_reference_is_not_copied() {
    let mut p = Pair::new();
    let (client, server) = p.datagram_sockets("0.0.0.0");
    let data = Bytes::from(pattern(1400));
    let frags: FragVec = [Frag::from_bytes(data.clone())].into_iter().collect();
    p.send_and_deliver(client, frags, Some(addr("10.0.0.2:53")));
    let (frags, _) = p.b.recv_from(server, pagewire_stack::Datagram).unwrap();
    assert_eq!(frags.len(), 1);
    assert_eq!(frags[0].addr(), data.as_ptr().addr());
    assert_eq!(p.a.ledger().ours() + p.b.ledger().ours(), 0);
}

#[test]
fn a_datagram_longer_than_the_mtu_is_cut_and_put_together() {
    for (to, longest) in [("10.0.0.2:53", 65_507), ("[fd00::2]:53", 65_527)] {
        let mut p = Pair::new();
        let (client, server) = p.datagram_sockets("[::]");
        let data = pattern(longest);
        let mut buf = vec![0; 70_000];
        for len in [1472, 1473, 3000, longest] {
            p.send_and_deliver(client, &data[..len], Some(addr(to)));
            let (n, _) = p.b.recv_from(server, &mut buf[..]).unwrap();
            assert!(buf[..n] == data[..len], "{to} {len}: got {n}");
        }
        let too_long = vec![0; longest + 1];
        let sent = p.a.send_to(p.now, client, &too_long, Some(addr(to)));
        assert_eq!(sent, Err(Error::MessageTooLong));
    }
}

#[test]
fn a_datagram_in_many_pieces_is_joined_and_the_copy_counted() {
    let mut p = Pair::new();
    let (client, server) = p.datagram_sockets("0.0.0.0");
    let data = Bytes::from(pattern(1000));
    // Pieces in reverse order, so that they do not merge.
    let frags: FragVec =
        (0..50).rev().map(|i| Frag::from_bytes(data.slice(i * 20..i * 20 + 20))).collect();
    let expected: Vec<u8> =
        (0..50).rev().flat_map(|i| data[i * 20..i * 20 + 20].to_vec()).collect();
    p.send_and_deliver(client, frags, Some(addr("10.0.0.2:53")));
    let mut buf = [0; 2000];
    let (n, _) = p.b.recv_from(server, &mut buf[..]).unwrap();
    assert_eq!(&buf[..n], &expected[..]);
    assert_eq!(p.a.ledger().get(CopyReason::DeviceLinearize), 1000);
}

#[test]
fn what_does_not_fit_the_readers_buffer_is_lost() {
    let mut p = Pair::new();
    let (client, server) = p.datagram_sockets("0.0.0.0");
    for word in [b"first", b"other"] {
        p.a.send_to(p.now, client, word, Some(addr("10.0.0.2:53"))).unwrap();
    }
    p.run(Duration::from_millis(1));
    let mut buf = [0; 2];
    assert_eq!(p.b.recv_from(server, &mut buf[..]).unwrap().0, 2);
    assert_eq!(&buf, b"fi");
    assert_eq!(p.b.recv_from(server, &mut buf[..]).unwrap().0, 2);
    assert_eq!(&buf, b"ot");
}

#[test]
fn a_queue_is_bounded_in_bytes_and_in_datagrams() {
    let mut p = Pair::met();
    let (client, server) = p.datagram_sockets("0.0.0.0");
    for round in 0..100 {
        for _ in 0..20 {
            let data = if round < 50 { &[7u8; 1400][..] } else { &[] };
            p.a.send_to(p.now, client, data, Some(addr("10.0.0.2:53"))).unwrap();
        }
        p.run(Duration::from_millis(1));
    }
    let dropped = p.b.counters().drops(DropReason::UdpQueueFull);
    let mut queued = 0;
    while p.b.recv_from(server, pagewire_stack::Datagram).is_ok() {
        queued += 1;
    }
    assert_eq!(queued + dropped, 2000);
    assert_eq!(
        p.b.udp(server).map(|udp| udp.dropped()).map(u64::from),
        Ok(dropped),
        "told of by the socket as well"
    );
    assert!((100..400).contains(&queued), "{queued}");
    // Reading makes room.
    p.a.send_to(p.now, client, &[1; 1400], Some(addr("10.0.0.2:53"))).unwrap();
    p.run(Duration::from_millis(1));
    assert!(p.b.recv_from(server, pagewire_stack::Datagram).is_ok());
    p.b.end_turn();
    p.b.close(p.now, server);
    assert!(p.b.pool_audit().is_conserved());
}

#[test]
fn small_datagrams_do_not_pin_a_page_each() {
    let mut p = Pair::met();
    let (client, server) = p.datagram_sockets("0.0.0.0");
    for _ in 0..1000 {
        p.a.send_to(p.now, client, &[7; 64], Some(addr("10.0.0.2:53"))).unwrap();
    }
    p.run(Duration::from_millis(1));
    p.a.end_turn();
    let mut n = 0;
    while p.b.recv_from(server, pagewire_stack::Datagram).is_ok() {
        n += 1;
    }
    assert_eq!(n, 1000);
    assert_eq!(p.b.ledger().get(CopyReason::SmallSegment), 64_000);
}

/// A datagram to port 53 of host 2, its payload in these fragments.
fn datagram(payload: impl IntoIterator<Item = Frag>) -> PacketBuf {
    let frags: Vec<Frag> = payload.into_iter().collect();
    let len = frags.iter().map(Frag::len).sum();
    let ends = [[10, 0, 0, 1].into(), [10, 0, 0, 2].into()];
    let bytes = built!(ip(STATIONS, ends, 64).udp(1000, 53), &vec![7; len]);
    let mut packet = received(&bytes[..42], 42);
    frags.into_iter().for_each(|frag| packet.push_frag(frag).unwrap());
    packet.rx_checksum = RxChecksum::Valid;
    packet
}

#[test]
fn of_small_datagrams_in_a_port_s_pages_those_are_copied_that_are_not_read_at_once() {
    let mut p = Pair::new();
    let server = p.b.bind_udp(addr("0.0.0.0:53"), BindOptions::default()).unwrap();
    let mut pool = PagePool::new("port", 4 << 20).unwrap();
    let mut carver = Carver::new();
    let mut carved = || {
        // Each alone in its page: what whoever wants to keep all of the memory would send.
        let mut room = carver.room(&mut pool, PAGE_SIZE).unwrap();
        room.bytes_mut().fill(7);
        datagram([room.commit(64..128)])
    };
    let copied = |p: &Pair| p.b.ledger().get(CopyReason::SmallSegment);
    for _ in 0..1000 {
        p.b.handle_frame(p.now, carved());
        let (payload, _) = p.b.recv_from(server, pagewire_stack::Datagram).unwrap();
        assert_eq!(payload.iter().map(Frag::len).sum::<usize>(), 64);
    }
    assert_eq!(copied(&p), 0);
    for _ in 0..500 {
        p.b.handle_frame(p.now, carved());
    }
    let mut kept = Vec::new();
    while let Ok((payload, _)) = p.b.recv_from(server, pagewire_stack::Datagram) {
        assert_eq!(payload[0].as_slice().unwrap(), [7; 64]);
        kept.push(payload);
    }
    assert_eq!(kept.len(), 500);
    let by_reference = kept.iter().filter(|payload| payload[0].is_carved()).count();
    assert!((60..70).contains(&by_reference), "{by_reference}");
    assert_eq!(copied(&p), 64 * (500 - by_reference as u64));
}

#[test]
fn a_small_datagram_in_many_pieces_becomes_one_by_one_copy() {
    let mut p = Pair::new();
    let server = p.b.bind_udp(addr("0.0.0.0:53"), BindOptions::default()).unwrap();
    let mut pool = PagePool::new("device", 1 << 20).unwrap();
    let mut writer = PageWriter::new();
    let mut ledger = CopyLedger::new();
    let mut piece = |seed: u8, len: usize| {
        // The rest of the page is somebody else's.
        let text = [seed; 300];
        let (parts, _) = writer.write(&mut pool, &text, &mut ledger, CopyReason::DeviceRx);
        parts[0].slice(0..len)
    };
    for round in 0..200 {
        p.b.handle_frame(p.now, datagram([piece(1, 10), piece(2, 100), piece(3, 53)]));
        let (payload, _) = p.b.recv_from(server, pagewire_stack::Datagram).unwrap();
        let [whole] = &payload[..] else { panic!("{} pieces", payload.len()) };
        assert_eq!(whole.as_slice().unwrap(), [&[1; 10][..], &[2; 100], &[3; 53]].concat());
        assert_eq!(p.b.ledger().get(CopyReason::SmallSegment), 163 * (round + 1));
        assert_eq!(p.b.ledger().ours(), 163 * (round + 1), "each byte once");
    }
}

#[test]
fn a_closed_port_answers_and_the_connected_sender_is_refused() {
    for to in ["10.0.0.2:53", "[fd00::2]:53"] {
        let mut p = Pair::new();
        let client = p.a.bind_udp(addr("[::]:0"), BindOptions::default()).unwrap();
        p.a.udp(client).unwrap().connect(addr(to)).unwrap();
        p.send_and_deliver(client, b"anybody?", None);
        assert_eq!(p.drops(B, DropReason::UdpNoSocket), 1);
        assert!(p.a.readiness(client).unwrap().contains(Readiness::ERROR));
        let mut buf = [0; 8];
        let refused = Err(Error::ConnectionRefused);
        assert_eq!(p.a.recv_from(client, &mut buf[..]), refused, "{to}");
        assert_eq!(p.a.recv_from(client, &mut buf[..]), Err(Error::WouldBlock));
        p.send_and_deliver(client, b"anybody?", None);
        assert_eq!(p.a.take_error(client), Some(Error::ConnectionRefused));
        assert_eq!(p.a.take_error(client), None);
    }
}

#[test]
fn a_socket_without_a_peer_finds_errors_in_its_queue_if_it_asked() {
    let mut p = Pair::new();
    let client = p.a.bind_udp(addr("0.0.0.0:0"), BindOptions::default()).unwrap();
    p.a.udp(client).unwrap().queue_errors(true);
    p.send_and_deliver(client, b"anybody?", Some(addr("10.0.0.2:53")));
    assert!(p.a.readiness(client).unwrap().contains(Readiness::ERROR_QUEUE));
    let (error, origin) = (Error::ConnectionRefused, ErrorOrigin::Icmp);
    let to = Some(addr("10.0.0.2:53"));
    let entry = QueuedError { error, origin, mtu: 0, to, about: None };
    let entry = ErrorEntry::Network(entry);
    assert_eq!(p.a.poll_error_queue(client), Some(entry));
    assert_eq!(p.a.poll_error_queue(client), None);
    assert!(!p.a.readiness(client).unwrap().contains(Readiness::ERROR_QUEUE));
    assert_eq!(p.a.recv_from(client, pagewire_stack::Datagram).err(), Some(Error::WouldBlock));
}

#[test]
fn an_error_is_reported_while_a_notification_waits_to_be_read() {
    let mut p = Pair::new();
    let client = p.a.bind_udp(addr("0.0.0.0:0"), BindOptions::default()).unwrap();
    p.a.udp(client).unwrap().connect(addr("10.0.0.2:53")).unwrap();
    p.a.set_zerocopy(client, true).unwrap();
    let data = [Frag::from_static(&[7; 64])];
    zerocopy::send_to(&mut p.a, p.now, client, data, None).unwrap();
    p.run(Duration::from_millis(1));
    let reported = |p: &Pair| p.events.iter().fold(Readiness::NONE, |all, (_, e)| all | e.gained);
    assert!(reported(&p).contains(Readiness::ERROR | Readiness::ERROR_QUEUE), "{:?}", p.events);
    // The notification stays unread; the next refusal is news all the same.
    for queue in [false, true] {
        p.a.udp(client).unwrap().queue_errors(queue);
        p.events.clear();
        assert_eq!(p.a.take_error(client), Some(Error::ConnectionRefused));
        p.send_and_deliver(client, b"anybody?", None);
        assert!(reported(&p).contains(Readiness::ERROR), "{:?}", p.events);
        assert_eq!(reported(&p).contains(Readiness::ERROR_QUEUE), queue, "an entry is an event");
    }
}

#[test]
fn a_connected_socket_hears_its_peer_only() {
    let mut p = Pair::new();
    let server = p.b.bind_udp(addr("10.0.0.2:53"), BindOptions::default()).unwrap();
    let stranger = p.b.bind_udp(addr("10.0.0.2:54"), BindOptions::default()).unwrap();
    let client = p.a.bind_udp(addr("10.0.0.1:1000"), BindOptions::default()).unwrap();
    p.a.udp(client).unwrap().connect(addr("10.0.0.2:53")).unwrap();
    assert_eq!(p.a.remote_addr(client), Ok(addr("10.0.0.2:53")));
    let to = Some(addr("10.0.0.1:1000"));
    p.b.send_to(p.now, stranger, b"psst", to).unwrap();
    p.b.send_to(p.now, server, b"here", to).unwrap();
    p.run(Duration::from_millis(1));
    let mut buf = [0; 8];
    assert_eq!(p.a.recv_from(client, &mut buf[..]), Ok((4, addr("10.0.0.2:53"))));
    assert_eq!(&buf[..4], b"here");
    assert_eq!(p.a.recv_from(client, pagewire_stack::Datagram).err(), Some(Error::WouldBlock));
    assert_eq!(p.a.counters().drops(DropReason::UdpNotConnected), 1);
}

#[test]
fn a_datagram_needs_a_destination_of_the_sockets_family() {
    let mut p = Pair::new();
    let v4 = p.a.bind_udp(addr("10.0.0.1:1"), BindOptions::default()).unwrap();
    let any4 = p.a.bind_udp(addr("0.0.0.0:2"), BindOptions::default()).unwrap();
    let v6 = Some(addr("[fd00::2]:9"));
    assert_eq!(p.a.send_to(p.now, v4, b"x", None), Err(Error::DestinationRequired));
    assert_eq!(p.a.send_to(p.now, v4, b"x", v6), Err(Error::AddressFamily));
    assert_eq!(p.a.send_to(p.now, any4, b"x", v6), Err(Error::AddressFamily));
    let nowhere = Some(addr("192.0.2.1:9"));
    assert_eq!(p.a.send_to(p.now, any4, b"x", nowhere), Err(Error::NetworkUnreachable));
    let all = Some(addr("10.0.0.255:9"));
    assert_eq!(p.a.send_to(p.now, any4, b"x", all), Err(Error::PermissionDenied));
    let zero = Some(addr("10.0.0.2:0"));
    assert_eq!(p.a.send_to(p.now, any4, b"x", zero), Err(Error::InvalidInput));
    assert_eq!(p.a.bind_udp(addr("0.0.0.0:1"), BindOptions::default()), Err(Error::AddressInUse));
    assert_eq!(
        p.a.bind_udp(addr("10.0.0.7:1"), BindOptions::default()),
        Err(Error::AddressNotAvailable)
    );
    p.a.close(p.now, v4);
    assert!(p.a.bind_udp(addr("0.0.0.0:1"), BindOptions::default()).is_ok());
}

#[test]
fn a_reader_of_datagrams_is_told_once_for_a_batch() {
    let mut p = Pair::new();
    let (client, server) = p.datagram_sockets("0.0.0.0");
    for _ in 0..10 {
        p.a.send_to(p.now, client, b"x", Some(addr("10.0.0.2:53"))).unwrap();
    }
    p.run(Duration::from_millis(1));
    assert_eq!(p.reported(B, server, Readiness::NONE), 1);
    while p.b.recv_from(server, pagewire_stack::Datagram).is_ok() {}
    p.send_and_deliver(client, b"x", Some(addr("10.0.0.2:53")));
    assert_eq!(p.reported(B, server, Readiness::NONE), 2);
}

#[test]
fn datagram_to_all_hosts_of_a_network_needs_permission() {
    for to in ["10.0.0.255:53", "255.255.255.255:53"] {
        let mut p = Pair::new();
        let server = p.b.bind_udp(addr("0.0.0.0:53"), BindOptions::default()).unwrap();
        let one = p.b.bind_udp(addr("10.0.0.2:54"), BindOptions::default()).unwrap();
        let client = p.a.bind_udp(addr("0.0.0.0:0"), BindOptions::default()).unwrap();
        let send = |p: &mut Pair| p.a.send_to(p.now, client, b"all", Some(addr(to)));
        assert_eq!(send(&mut p), Err(Error::PermissionDenied), "{to}");
        assert_eq!(
            p.a.udp(client).and_then(|mut udp| udp.connect(addr(to))),
            Err(Error::PermissionDenied)
        );
        p.a.set_option(client, SocketOption::Broadcast(true)).unwrap();
        assert_eq!(send(&mut p), Ok(3));
        assert_eq!(p.a.udp(client).and_then(|mut udp| udp.connect(addr(to))), Ok(()));
        p.run(Duration::from_millis(1));
        let message = p.b.recv_from(server, pagewire_stack::Message(100)).unwrap();
        assert_eq!((message.to.ip(), message.from.ip()), (addr(to).ip(), addr("10.0.0.1:1").ip()));
        assert_eq!(p.b.recv_from(one, pagewire_stack::Datagram).err(), Some(Error::WouldBlock));
        p.a.set_option(client, SocketOption::Broadcast(false)).unwrap();
        assert_eq!(send(&mut p), Err(Error::PermissionDenied), "{to}");
    }
}

#[test]
fn datagram_says_which_address_it_was_to_and_the_answer_can_be_from_there() {
    let mut a = config(capabilities(1), 1);
    for more in ["10.0.0.9/24", "fd00::9/64"] {
        a.addresses.push(more.parse().unwrap());
    }
    let mut p = Pair::with(a, config(capabilities(2), 2));
    let server = p.a.bind_udp(addr("[::]:53"), BindOptions::default()).unwrap();
    for to in ["10.0.0.1:53", "10.0.0.9:53", "[fd00::1]:53", "[fd00::9]:53"] {
        let client = p.b.bind_udp(addr("[::]:0"), BindOptions::default()).unwrap();
        p.b.udp(client).unwrap().connect(addr(to)).unwrap();
        p.b.send_to(p.now, client, b"question", None).unwrap();
        p.run(Duration::from_millis(1));
        let seen =
            p.a.udp(server).unwrap().recv(pagewire_stack::Message(100), RecvFlags::PEEK).unwrap();
        let message = p.a.recv_from(server, pagewire_stack::Message(100)).unwrap();
        assert_eq!((message.to, message.link), (addr(to), LinkId::FIRST));
        assert_eq!((seen.to, seen.from, seen.segment), (message.to, message.from, None));
        let (remote, source) = (Some(message.from), Some(message.to));
        let target = UdpTarget { remote, source, ..UdpTarget::default() };
        p.send_and_deliver(server, b"answer", target);
        // The socket is connected, so it would not receive from another address.
        let (_, from) =
            p.b.udp(client)
                .expect("an answer from where it asked")
                .recv(pagewire_stack::Datagram, RecvFlags::empty())
                .expect("an answer from where it asked");
        assert_eq!(from, addr(to));
        for (source, error) in [
            ("10.0.0.7:0", Error::InvalidInput),
            (if addr(to).is_ipv4() { "[fd00::1]:0" } else { "10.0.0.1:0" }, Error::AddressFamily),
        ] {
            let target = UdpTarget { source: Some(addr(source)), ..target };
            assert_eq!(p.a.send_to(p.now, server, b"answer", target), Err(error));
        }
    }
}

#[test]
fn datagrams_of_one_sender_and_size_are_received_as_one_if_the_socket_asks_for_that() {
    let mut p = Pair::met();
    let server = p.b.bind_udp(addr("0.0.0.0:53"), BindOptions::default()).unwrap();
    let [one, other] = [1000, 1001].map(|port| {
        p.a.bind_udp(SocketAddr::new(addr("10.0.0.1:0").ip(), port), BindOptions::default())
            .unwrap()
    });
    let data = pattern(1000);
    let send = |p: &mut Pair| {
        for (from, len) in [
            (one, 1000),
            (one, 1000),
            (one, 1000),
            (one, 300),
            (one, 1000),
            (other, 1000),
            (other, 1001),
            (other, 0),
            (other, 0),
        ] {
            let data = [&data[..], b"x"].concat();
            p.a.send_to(p.now, from, &data[..len], Some(addr("10.0.0.2:53"))).unwrap();
        }
        p.run(Duration::from_millis(1));
    };
    let take = |p: &mut Pair, room| {
        let mut found = Vec::new();
        while let Ok(message) =
            p.b.udp(server)
                .and_then(|mut udp| udp.recv(pagewire_stack::Message(room), RecvFlags::PEEK))
        {
            let again = p.b.recv_from(server, pagewire_stack::Message(room)).unwrap();
            let len = |m: &UdpMessage| m.payload.iter().map(|frag| frag.len()).sum::<usize>();
            assert_eq!((len(&message), message.segment), (len(&again), again.segment));
            found.push((again.from.port(), len(&again), again.segment));
        }
        assert_eq!(p.b.receive_memory_used(), 0);
        found
    };
    send(&mut p);
    let alone = take(&mut p, 65_535);
    assert_eq!(alone.len(), 9);
    assert!(alone.iter().all(|(_, _, segment)| segment.is_none()));
    p.b.udp(server).unwrap().set_join(true);
    send(&mut p);
    let joined = [
        (1000, 3300, Some(1000)),
        (1000, 1000, None),
        (1001, 1000, None),
        (1001, 1001, None),
        (1001, 0, None),
        (1001, 0, None),
    ];
    assert_eq!(take(&mut p, 65_535), joined);
    // Nothing is lost for want of room, but of what is longer by itself.
    send(&mut p);
    let halves = [(1000, 2000, Some(1000)), (1000, 1300, Some(1000))];
    assert_eq!(take(&mut p, 2500)[..3], [halves[0], halves[1], joined[1]]);
    send(&mut p);
    assert_eq!(take(&mut p, 10), alone);
    // A single call sends all of them.
    let target = UdpTarget {
        remote: Some(addr("10.0.0.2:53")),
        segment: Some(1000),
        ..UdpTarget::default()
    };
    p.send_and_deliver(one, &pattern(63_500), target);
    let message = p.b.recv_from(server, pagewire_stack::Message(65_535)).unwrap();
    let bytes: Vec<u8> =
        message.payload.iter().flat_map(|frag| frag.as_slice().unwrap().to_vec()).collect();
    assert!(bytes == pattern(63_500) && message.segment == Some(1000));
    // More than 64 are two frames, and none of them is lost.
    p.send_and_deliver(one, &pattern(64_500), target);
    assert_eq!(take(&mut p, 65_535), [(1000, 64_000, Some(1000)), (1000, 500, None)]);
}

#[test]
fn a_datagram_carries_the_congestion_mark_that_its_call_names_and_its_receiver_learns_it() {
    let mut p = Pair::met();
    let server = p.b.bind_udp(addr("[::]:53"), BindOptions::default()).unwrap();
    p.b.udp(server).unwrap().set_join(true);
    for (from, to) in [("10.0.0.1:0", "10.0.0.2:53"), ("[fd00::1]:0", "[fd00::2]:53")] {
        let client = p.a.bind_udp(addr(from), BindOptions::default()).unwrap();
        let remote = Some(addr(to));
        for ecn in [None, Some(0b10), Some(0b10), Some(0b01), Some(0xff)] {
            let target = UdpTarget { remote, ecn, ..UdpTarget::default() };
            p.a.send_to(p.now, client, b"marked", target).unwrap();
        }
        p.run(Duration::from_millis(1));
        let mut take = || {
            let message = p.b.recv_from(server, pagewire_stack::Message(100)).unwrap();
            let len: usize = message.payload.iter().map(|frag| frag.len()).sum();
            (message.ecn, len)
        };
        // Datagrams of different marks are not joined; of a mark only its two bits count.
        assert_eq!([(); 4].map(|()| take()), [(0, 6), (0b10, 12), (0b01, 6), (0b11, 6)]);
    }
}

#[test]
fn small_datagrams_are_judged_by_the_copies_that_are_kept_and_not_by_their_pages() {
    let mut p = Pair::met();
    let (client, server) = p.datagram_sockets("0.0.0.0");
    // Less than a page, more than all of these.
    p.b.set_option(server, SocketOption::RecvBuffer(4000)).unwrap();
    for _ in 0..4 {
        p.a.send_to(p.now, client, &[7; 100], Some(addr("10.0.0.2:53"))).unwrap();
        p.run(Duration::from_millis(1));
    }
    assert_eq!(p.b.udp(server).map(|udp| udp.dropped()), Ok(0));
}

/// Two stacks whose link takes super-frames of UDP or not, a receiver that joins or not; and what it gets of
/// 2,500 bytes in segments of 1,000: lengths and segment sizes, and the frames that it took.
fn received_of_three(uso: bool, joins: bool, room: usize) -> (Vec<(usize, Option<u16>)>, u64) {
    let mut p = Pair::changed(|a, _| a.capabilities.uso = uso);
    p.meet();
    let (client, server) = p.datagram_sockets("0.0.0.0");
    p.b.udp(server).unwrap().set_join(joins);
    let before = p.carried;
    let (remote, segment) = (Some(addr("10.0.0.2:53")), Some(1000));
    let target = UdpTarget { remote, segment, ..UdpTarget::default() };
    p.send_and_deliver(client, &pattern(2500), target);
    let frames = p.carried - before;
    let (mut found, mut bytes) = (Vec::new(), Vec::new());
    while let Ok(message) = p.b.recv_from(server, pagewire_stack::Message(room)) {
        let part = message.payload.iter().flat_map(|frag| frag.as_slice().unwrap().to_vec());
        let before = bytes.len();
        bytes.extend(part);
        found.push((bytes.len() - before, message.segment));
    }
    assert!(bytes == pattern(2500));
    assert_eq!(p.b.receive_memory_used(), 0);
    (found, frames as u64)
}

#[test]
fn the_datagrams_of_one_call_are_one_frame_where_the_device_takes_that_and_arrive_the_same() {
    let alone = vec![(1000, None), (1000, None), (500, None)];
    for (uso, frames) in [(true, 1), (false, 3)] {
        assert_eq!(received_of_three(uso, false, 65_535), (alone.clone(), frames));
        assert_eq!(received_of_three(uso, true, 65_535), (vec![(2500, Some(1000))], frames));
        let halves = vec![(2000, Some(1000)), (500, None)];
        assert_eq!(received_of_three(uso, true, 2400), (halves, frames));
        assert_eq!(received_of_three(uso, true, 10), (alone.clone(), frames));
    }
}

#[test]
fn datagrams_of_one_call_that_come_as_one_are_taken_one_by_one_by_who_asks_for_one() {
    let mut p = Pair::met();
    let (client, server) = p.datagram_sockets("0.0.0.0");
    p.b.udp(server).unwrap().set_join(true);
    let (remote, segment) = (Some(addr("10.0.0.2:53")), Some(1000));
    let target = UdpTarget { remote, segment, ..UdpTarget::default() };
    p.send_and_deliver(client, &pattern(2500), target);
    assert_eq!(p.b.udp(server).unwrap().next_len(), 1000);
    let mut buffer = [0; 2000];
    for want in [&pattern(2500)[..1000], &pattern(2500)[1000..2000], &pattern(2500)[2000..]] {
        let (seen, _) = p.b.udp(server).unwrap().recv(&mut buffer, RecvFlags::PEEK).unwrap();
        let (taken, _) = p.b.recv_from(server, &mut buffer).unwrap();
        assert!(seen == taken && buffer[..taken] == *want);
    }
    assert_eq!(p.b.receive_memory_used(), 0);
}

#[test]
fn a_super_frame_of_more_datagrams_than_a_call_may_send_is_dropped() {
    let mut p = Pair::met();
    let (_, server) = p.datagram_sockets("0.0.0.0");
    let datagrams = |size| {
        let ends = ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse().unwrap());
        let bytes = built!(ip(STATIONS, ends, 64).udp(1000, 53), &[7; 1280]);
        let mut frame = received(&bytes, 42);
        let kind = pagewire_mem::GsoKind::Udp;
        frame.gso = Some(pagewire_mem::Gso { kind, size, header_len: 42 });
        frame.rx_checksum = RxChecksum::Valid;
        frame
    };
    for size in [0, 1, 9] {
        p.b.handle_frame(p.now, datagrams(size));
        assert!(p.b.recv_from(server, pagewire_stack::Datagram).is_err(), "{size}");
    }
    assert_eq!(p.b.counters().drops(DropReason::UdpLength), 3);
    p.b.handle_frame(p.now, datagrams(10));
    let taken = std::iter::from_fn(|| p.b.recv_from(server, pagewire_stack::Datagram).ok());
    assert_eq!(taken.count(), 128);
}

#[test]
fn a_call_of_many_pieces_leaves_in_frames_that_hold_them_and_arrives_whole() {
    let mut p = Pair::met();
    let (client, server) = p.datagram_sockets("0.0.0.0");
    p.b.udp(server).unwrap().set_join(true);
    let data = pattern(30_000);
    let frags: FragVec = data.chunks(700).map(|c| Frag::from(Bytes::copy_from_slice(c))).collect();
    let (remote, segment) = (Some(addr("10.0.0.2:53")), Some(1000));
    let target = UdpTarget { remote, segment, ..UdpTarget::default() };
    let before = p.carried;
    p.send_and_deliver(client, frags, target);
    assert!(p.carried - before < 8, "{} frames", p.carried - before);
    let mut bytes = Vec::new();
    while let Ok((payload, _)) = p.b.recv_from(server, pagewire_stack::Datagram) {
        payload.iter().for_each(|frag| bytes.extend_from_slice(frag.as_slice().unwrap()));
    }
    assert!(bytes == data);
}
