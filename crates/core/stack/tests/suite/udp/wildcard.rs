//! Wildcard sockets: datagrams and echo requests to every address and port of a transparent link.

use std::time::Duration;

use pagewire_mem::{CopyLedger, CopyReason, PacketBuf};
use pagewire_stack::limits::{DATAGRAM_EVERY_BYTES, UDP_RECEIVE_DATAGRAMS};
use pagewire_stack::{
    BindOptions, DatagramKind, DropReason, Error, ErrorEntry, ErrorOrigin, Flow, LinkConfig,
    LinkId, Message, MtuDiscover, PacketMarks, QueuedError, Readiness, SocketOption, UdpId,
    UdpMessage, UdpTarget, Unreachable,
};
use pagewire_testkit::built;
use pagewire_testkit::frames::{bytes_of, ip, received};

use crate::common::gateway::{FAR, gateway, greet, guest, pair};
use crate::common::{A, B, Pair, STATIONS, Verbs, addr, forge, pattern};

const MS: Duration = Duration::from_millis(1);
const FIRST: LinkId = LinkId::FIRST;

fn every() -> (Pair, UdpId) {
    let mut p = pair();
    let socket = p.b.bind_every(FIRST, DatagramKind::Udp).unwrap();
    (p, socket)
}

fn client(p: &mut Pair, local: &str) -> UdpId {
    p.a.bind_udp(addr(local), BindOptions::default()).unwrap()
}

fn recv(p: &mut Pair, socket: UdpId) -> Result<UdpMessage, Error> {
    p.b.recv_from(socket, Message(65_535))
}

fn bytes(message: &UdpMessage) -> Vec<u8> {
    message.payload.iter().flat_map(|frag| frag.as_slice().unwrap().to_vec()).collect()
}

fn target(from: &str, to: &str) -> UdpTarget {
    UdpTarget { remote: Some(addr(to)), source: Some(addr(from)), ..UdpTarget::default() }
}

#[test]
fn a_datagram_to_anywhere_comes_with_both_addresses_and_the_answer_has_any_source() {
    for (from, to) in [("10.0.0.1:7000", FAR[0]), ("[fd00::1]:7000", FAR[1])] {
        let (mut p, socket) = every();
        let client = client(&mut p, from);
        p.a.udp(client).unwrap().connect(addr(to)).unwrap();
        p.send_and_deliver(client, b"question", None);
        let message = recv(&mut p, socket).unwrap();
        assert_eq!((message.from, message.to, message.link), (addr(from), addr(to), FIRST));
        assert_eq!((message.hop_limit, message.dont_fragment), (64, true));
        assert_eq!(bytes(&message), b"question");
        p.b.send_to(p.now, socket, b"answer", target(to, from)).unwrap();
        // The client is connected: it hears no other port, and no other address.
        let other = if to.starts_with('[') { "[2001:db8::1]:81" } else { "192.0.2.1:81" };
        p.b.send_to(p.now, socket, b"from elsewhere", target(other, from)).unwrap();
        p.run(MS);
        let mut buf = [0; 64];
        let (n, heard) = p.a.recv_from(client, &mut buf).unwrap();
        assert_eq!((&buf[..n], heard), (&b"answer"[..], addr(to)));
        let more = p.a.recv_from(client, &mut buf);
        assert_ne!(more.map(|(n, _)| n), Ok(14), "from elsewhere");
    }
}

#[test]
fn what_the_guest_says_of_fragments_and_hops_is_passed_on() {
    let (mut p, socket) = every();
    let client = client(&mut p, "10.0.0.1:7000");
    p.a.set_option(client, SocketOption::MtuDiscover(MtuDiscover::Dont)).unwrap();
    let marks = PacketMarks { hop_limit: Some(3), ..PacketMarks::default() };
    p.a.set_option(client, SocketOption::Marks(marks)).unwrap();
    p.a.send_to(p.now, client, b"x", Some(addr(FAR[0]))).unwrap();
    p.send_and_deliver(client, &pattern(4000), Some(addr(FAR[0])));
    let short = recv(&mut p, socket).unwrap();
    assert_eq!((short.hop_limit, short.dont_fragment), (3, false));
    let long = recv(&mut p, socket).unwrap();
    assert_eq!((bytes(&long).len(), long.dont_fragment), (4000, false), "put together");
}

#[test]
fn narrower_sockets_come_first() {
    let (mut p, socket) = every();
    let dns = p.b.bind_udp(addr("10.0.0.2:53"), BindOptions::default()).unwrap();
    let any = p.b.bind_udp(addr("0.0.0.0:123"), BindOptions::default()).unwrap();
    let client = client(&mut p, "10.0.0.1:7000");
    for (to, takes) in
        [("10.0.0.2:53", Some(dns)), ("192.0.2.1:53", None), ("192.0.2.1:123", Some(any))]
    {
        p.send_and_deliver(client, b"x", Some(addr(to)));
        let message = recv(&mut p, takes.unwrap_or(socket)).unwrap();
        assert_eq!(message.to, addr(to));
        assert_eq!(recv(&mut p, socket).err(), Some(Error::WouldBlock));
    }
    // An ordinary one answers from where it was asked, too.
    p.b.send_to(p.now, any, b"y", target("192.0.2.1:0", "10.0.0.1:7000")).unwrap();
    p.run(MS);
    let (_, from) = p.a.recv_from(client, &mut [0; 9]).unwrap();
    assert_eq!(from, addr("192.0.2.1:123"));
    let other_port = p.b.send_to(p.now, any, b"y", target(FAR[0], "10.0.0.1:7000"));
    assert_eq!(other_port, Err(Error::InvalidInput), "but from its own port only");
}

#[test]
fn groups_and_broadcasts_are_not_for_it() {
    let (mut p, socket) = every();
    let client = client(&mut p, "10.0.0.1:7000");
    p.a.set_option(client, SocketOption::Broadcast(true)).unwrap();
    for to in ["10.0.0.255:67", "255.255.255.255:67", "224.0.0.1:5353"] {
        p.a.send_to(p.now, client, b"x", Some(addr(to))).unwrap();
    }
    p.run(MS);
    assert_eq!(recv(&mut p, socket).err(), Some(Error::WouldBlock));
}

#[test]
fn it_needs_a_source_and_sends_by_its_link_only() {
    let (mut p, socket) = every();
    let send = |p: &mut Pair, target| p.b.send_to(p.now, socket, b"x", target);
    let remote = Some(addr("10.0.0.1:1"));
    let none = UdpTarget { remote, ..UdpTarget::default() };
    assert_eq!(send(&mut p, none), Err(Error::InvalidInput));
    for odd in ["224.0.0.1:1", "0.0.0.9:1", "255.255.255.255:1"] {
        assert_eq!(send(&mut p, target(odd, "10.0.0.1:1")), Err(Error::InvalidInput), "{odd}");
    }
    let mixed = target("[2001:db8::1]:1", "10.0.0.1:1");
    assert!(matches!(send(&mut p, mixed), Err(Error::InvalidInput | Error::AddressFamily)));
    assert_eq!(send(&mut p, target("10.0.0.2:9", "10.0.0.1:1")), Ok(1), "our own address");
    assert_eq!(p.b.udp(socket).unwrap().connect(addr("10.0.0.1:1")), Err(Error::InvalidInput));
}

#[test]
fn one_socket_of_each_kind_takes_all_of_a_transparent_link() {
    let (mut p, socket) = every();
    assert_eq!(p.a.bind_every(FIRST, DatagramKind::Udp).err(), Some(Error::InvalidInput));
    assert_eq!(p.b.bind_every(FIRST, DatagramKind::Udp).err(), Some(Error::AddressInUse));
    p.b.bind_every(FIRST, DatagramKind::Echo).unwrap();
    assert_eq!(p.b.bind_every(FIRST, DatagramKind::Echo).err(), Some(Error::AddressInUse));
    p.b.close(p.now, socket);
    p.b.bind_every(FIRST, DatagramKind::Udp).unwrap();
    assert_eq!(p.b.socket_count(), 2);
}

#[test]
fn a_full_queue_drops_and_a_wildcard_has_a_larger_one() {
    let (mut p, socket) = every();
    let client = client(&mut p, "10.0.0.1:7000");
    for _ in 0..300 {
        p.a.send_to(p.now, client, &vec![7; 1400], Some(addr(FAR[0]))).unwrap();
        p.run(MS);
    }
    let count = std::iter::from_fn(|| recv(&mut p, socket).ok()).count();
    assert_eq!(count, 300);
    for _ in 0..UDP_RECEIVE_DATAGRAMS + 10 {
        p.a.send_to(p.now, client, b"x", Some(addr(FAR[0]))).unwrap();
        p.run(Duration::from_micros(100));
    }
    assert_eq!(p.b.counters().drops(DropReason::UdpQueueFull), 10);
    assert_eq!(p.b.udp(socket).unwrap().dropped(), 10);
    p.b.set_option(socket, SocketOption::RecvBuffer(u32::MAX)).unwrap();
    assert_eq!(DATAGRAM_EVERY_BYTES, 4 << 20);
}

#[test]
fn joined_datagrams_have_one_destination() {
    let (mut p, socket) = every();
    p.b.udp(socket).unwrap().set_join(true);
    let client = client(&mut p, "10.0.0.1:7000");
    for to in [FAR[0], FAR[0], "192.0.2.1:81", "192.0.2.2:81"] {
        p.a.send_to(p.now, client, b"1234", Some(addr(to))).unwrap();
    }
    p.run(MS);
    let all: Vec<_> = std::iter::from_fn(|| recv(&mut p, socket).ok()).collect();
    let found: Vec<_> = all.iter().map(|m| (m.to, m.segment, bytes(m).len())).collect();
    let two = (addr(FAR[0]), Some(4), 8);
    assert_eq!(found, [two, (addr("192.0.2.1:81"), None, 4), (addr("192.0.2.2:81"), None, 4)]);
}

#[test]
fn an_error_about_a_datagram_says_which_flow_it_is_about() {
    let (mut p, socket) = every();
    p.b.udp(socket).unwrap().queue_errors(true);
    let to = "10.0.0.1:9";
    p.b.send_to(p.now, socket, b"nobody there", target(FAR[0], to)).unwrap();
    p.run(MS);
    assert!(p.b.readiness(socket).unwrap().contains(Readiness::ERROR_QUEUE));
    let about = Some(Flow::udp(addr(to), addr(FAR[0])));
    let (error, origin) = (Error::ConnectionRefused, ErrorOrigin::Icmp);
    let entry = QueuedError { error, origin, mtu: 0, to: Some(addr(to)), about };
    assert_eq!(p.b.poll_error_queue(socket), Some(ErrorEntry::Network(entry)));
    assert_eq!(p.b.take_error(socket), None, "it does not fail");
}

#[test]
fn a_report_about_one_flow_changes_the_path_of_no_other() {
    let (mut p, socket) = every();
    p.b.udp(socket).unwrap().queue_errors(true);
    let to = "10.0.0.1:9";
    p.b.send_to(p.now, socket, &vec![1; 1400], target(FAR[0], to)).unwrap();
    let about = Flow::udp(addr(FAR[0]), addr(to));
    let before = p.b.path_mtu(addr(to).ip());
    p.a.send_unreachable(p.now, &about, Unreachable::TooBig { mtu: 600 }, None).unwrap();
    p.run(MS);
    assert_eq!(p.b.path_mtu(addr(to).ip()), before);
    let Some(ErrorEntry::Network(entry)) = p.b.poll_error_queue(socket) else { panic!("no entry") };
    assert_eq!((entry.error, entry.mtu), (Error::MessageTooLong, 600), "the owner judges");
    assert_eq!(entry.about, Some(Flow::udp(addr(to), addr(FAR[0]))));
}

#[test]
fn errors_about_many_flows_find_room() {
    let (mut p, socket) = every();
    p.b.udp(socket).unwrap().queue_errors(true);
    for n in 0..500 {
        let about = Flow::udp(addr(FAR[0]), addr(&format!("10.0.0.1:{}", 1000 + n)));
        p.a.send_unreachable(p.now, &about, Unreachable::Port, None).unwrap();
    }
    p.run(MS);
    assert_eq!(std::iter::from_fn(|| p.b.poll_error_queue(socket)).count(), 500);
}

#[test]
fn without_pages_a_fill_waits_and_what_others_left_to_be_filled_is_used() {
    let mut b = gateway();
    b.memory = 1 << 20;
    let mut p = Pair::with(guest(), b);
    greet(&mut p);
    let socket = p.b.bind_every(FIRST, DatagramKind::Udp).unwrap();
    p.run(MS);
    let (held, _) = p.b.copy_in(&vec![7; 4 << 20]);
    let fill = |p: &mut Pair| {
        p.b.udp(socket).unwrap().fill(p.now, usize::MAX, |spare| {
            assert_eq!(spare.len(), 65_535);
            None
        })
    };
    assert_eq!(fill(&mut p), Err(Error::NoBuffers));
    p.flush();
    p.events.clear();
    drop(held);
    p.run(100 * MS);
    assert!(p.reported(B, socket, Readiness::WRITABLE) > 0);
    assert_eq!(fill(&mut p), Err(Error::WouldBlock), "there is nothing to fill in");
    // The pages are for everybody: copies find all of the pool.
    let (all, copied) = p.b.copy_in(&vec![7; 4 << 20]);
    assert_eq!(fill(&mut p), Err(Error::WouldBlock), "what it holds is there");
    let tcp = p.b.connect(p.now, addr("10.0.0.1:80"), None).unwrap();
    drop((all, tcp));
    assert!(copied >= 1 << 19);
}

#[test]
fn errors_that_the_application_carries_reach_the_guests_socket() {
    for (from, to) in [("10.0.0.1:7000", FAR[0]), ("[fd00::1]:7000", FAR[1])] {
        let v6 = to.starts_with('[');
        let (mut p, socket) = every();
        let client = client(&mut p, from);
        p.a.udp(client).unwrap().connect(addr(to)).unwrap();
        p.a.udp(client).unwrap().queue_errors(true);
        let router = if v6 { "2001:db8::ff" } else { "198.51.100.7" }.parse().unwrap();
        for (why, source, error) in [
            (Unreachable::Port, None, Error::ConnectionRefused),
            (Unreachable::Host, Some(router), Error::HostUnreachable),
            (Unreachable::TimeExceeded, Some(router), Error::HostUnreachable),
            (Unreachable::TooBig { mtu: 1400 }, Some(router), Error::MessageTooLong),
        ] {
            p.a.send_to(p.now, client, &vec![1; 1450], None).unwrap();
            p.run(MS);
            let message = recv(&mut p, socket).unwrap();
            let about = Flow::udp(message.from, message.to);
            p.b.send_unreachable(p.now, &about, why, source).unwrap();
            p.run(MS);
            let Some(ErrorEntry::Network(entry)) = p.a.poll_error_queue(client) else {
                panic!("{to} {why:?}");
            };
            assert_eq!(entry.error, error, "{to}");
            p.a.take_error(client);
        }
    }
}

#[test]
fn a_datagram_is_filled_and_sent_without_a_copy_of_ours() {
    let (mut p, socket) = every();
    let client = client(&mut p, "10.0.0.1:7000");
    let data = pattern(30_000);
    let (mut ledger, now) = (CopyLedger::new(), p.now);
    let before = p.b.ledger().ours();
    let to = UdpTarget { segment: Some(1400), ..target(FAR[0], "10.0.0.1:7000") };
    let sent = p.b.udp(socket).unwrap().fill(now, 65_000, |spare| {
        assert_eq!(spare.len(), 65_000);
        Some((spare.put(&data, &mut ledger, CopyReason::SocketRx), to))
    });
    assert_eq!(sent, Ok(30_000));
    assert_eq!(p.b.udp(socket).unwrap().fill(now, 100, |_| None), Err(Error::WouldBlock));
    p.run(MS);
    assert_eq!(p.b.ledger().ours(), before);
    let mut got = Vec::new();
    let mut buf = [0; 2000];
    while let Ok((n, from)) = p.a.recv_from(client, &mut buf) {
        assert_eq!(from, addr(FAR[0]));
        got.extend_from_slice(&buf[..n]);
    }
    assert!(got == data);
}

#[test]
fn its_end_comes_with_its_link() {
    let (mut p, socket) = every();
    let echo = p.b.bind_every(FIRST, DatagramKind::Echo).unwrap();
    assert!(p.b.remove_link(FIRST));
    for socket in [socket, echo] {
        assert_eq!(recv(&mut p, socket).err(), Some(Error::NetworkDown));
    }
    let mut config = LinkConfig::new(crate::common::capabilities(2), Vec::new());
    config.addresses = vec!["10.0.0.2/24".parse().unwrap()];
    config.transparent = true;
    let link = p.b.add_link(p.now, &config).unwrap();
    assert_eq!(recv(&mut p, socket).err(), Some(Error::NetworkDown), "it stays over");
    p.b.bind_every(link, DatagramKind::Udp).unwrap();
    p.b.close(p.now, socket);
    assert_eq!(p.b.bind_every(link, DatagramKind::Udp).err(), Some(Error::AddressInUse));
}

// Echo.

fn v4_ping(to: [u8; 4], ident: u16, seq: u16, payload: &[u8]) -> PacketBuf {
    let ip = ip(STATIONS, [[10, 0, 0, 1].into(), to.into()], 9);
    received(&built!(ip.icmpv4_echo_request(ident, seq), payload), 100)
}

fn v6_ping(to: &str, ident: u16, seq: u16, payload: &[u8]) -> PacketBuf {
    let ip = ip(STATIONS, ["fd00::1", to].map(|end| end.parse().unwrap()), 9);
    received(&built!(ip.icmpv6_echo_request(ident, seq), payload), 100)
}

#[test]
fn an_echo_request_is_shown_and_the_reply_has_the_far_address() {
    for (len, v6) in [(0, false), (56, false), (1400, false), (0, true), (56, true), (1400, true)] {
        let mut p = pair();
        let socket = p.b.bind_every(FIRST, DatagramKind::Echo).unwrap();
        let payload = pattern(len);
        let ping = match v6 {
            false => v4_ping([192, 0, 2, 1], 0x1234, 7, &payload),
            true => v6_ping("2001:db8::1", 0x1234, 7, &payload),
        };
        p.b.handle_frame(p.now, ping);
        let message = recv(&mut p, socket).unwrap();
        assert_eq!((message.from.port(), message.to.port(), message.hop_limit), (0x1234, 0, 9));
        assert_eq!(message.to.ip(), addr(FAR[usize::from(v6)]).ip());
        let data = bytes(&message);
        assert_eq!((&data[..2], &data[2..]), (&[0, 7][..], &payload[..]));
        // The reply, as the frame that leaves: its checksum is right.
        let seen = p.watch(|side, frame| (side == B).then(|| bytes_of(frame)));
        let target = UdpTarget {
            remote: Some(message.from),
            source: Some(message.to),
            ..UdpTarget::default()
        };
        p.b.send_to(p.now, socket, message.payload, target).unwrap();
        p.run(MS);
        let frames = seen.borrow();
        let reply = frames.last().expect("a reply left");
        let at = if v6 { 14 + 40 } else { 14 + 20 };
        assert_eq!(reply[at], if v6 { 129 } else { 0 });
        assert_eq!(reply[at + 4..at + 8], [0x12, 0x34, 0, 7]);
        assert_eq!(&reply[at + 8..], &payload[..]);
        assert_eq!(p.b.counters().icmp_echo_answered, 0, "not by the stack");
        assert_eq!(p.drops(A, DropReason::IcmpEchoReply), 1, "the checksum is right");
    }
}

#[test]
fn an_echo_request_in_a_frame_to_many_is_for_nobody() {
    let mut p = pair();
    let socket = p.b.bind_every(FIRST, DatagramKind::Echo).unwrap();
    let mut ping = v6_ping("2001:db8::1", 1, 1, b"x");
    ping.head_mut()[..6].copy_from_slice(&[0x33, 0x33, 0, 0, 0, 1]);
    p.b.handle_frame(p.now, ping);
    assert_eq!(recv(&mut p, socket).err(), Some(Error::WouldBlock));
    assert_eq!(p.b.counters().icmp_echo_answered, 0);
    assert_eq!(p.b.counters().drops(DropReason::IcmpBroadcast), 1);
}

#[test]
fn an_echo_request_that_fails_is_told_by_an_error_that_quotes_it() {
    let mut p = pair();
    let socket = p.b.bind_every(FIRST, DatagramKind::Echo).unwrap();
    p.b.handle_frame(p.now, v4_ping([192, 0, 2, 1], 77, 3, b"ping"));
    let message = recv(&mut p, socket).unwrap();
    let about = Flow::echo(message.from, message.to.ip(), 3);
    let seen = p.watch(|side, frame| (side == B).then(|| frame.head().to_vec()));
    p.b.send_unreachable(p.now, &about, Unreachable::TimeExceeded, None).unwrap();
    p.run(MS);
    let frames = seen.borrow();
    let error = &frames[0];
    assert_eq!(error[26..30], [10, 0, 0, 2], "from us");
    assert_eq!(error[34..36], [11, 0]);
    assert_eq!(error[42 + 12..42 + 20], [10, 0, 0, 1, 192, 0, 2, 1], "the quoted addresses");
    assert_eq!(error[62..70], [8, 0, 0, 0, 0, 77, 0, 3]);
}

#[test]
fn a_router_on_the_path_to_the_far_host_may_be_named() {
    let mut p = Pair::with(guest(), gateway());
    greet(&mut p);
    let about = Flow::udp(addr("10.0.0.1:33434"), addr(FAR[0]));
    let seen = p.watch(|side, frame| {
        assert!(forge::parse(frame).is_none());
        (side == B).then(|| frame.head().to_vec())
    });
    let router = Some("198.51.100.7".parse().unwrap());
    p.b.send_unreachable(p.now, &about, Unreachable::TimeExceeded, router).unwrap();
    p.run(MS);
    assert_eq!(seen.borrow()[0][26..30], [198, 51, 100, 7]);
}
