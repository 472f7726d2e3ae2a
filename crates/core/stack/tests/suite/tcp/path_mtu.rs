//! Path MTU discovery between two stacks (RFC 1191, RFC 8201): a router in the middle drops packets that are
//! too big, and reports them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use pagewire_mem::PacketBuf;
use pagewire_stack::{
    BindOptions, DropReason, Error, ErrorEntry, ErrorOrigin, ListenerId, MtuDiscover, QueuedError,
    SocketOption, SynCookies, TcpId, UdpId, UdpTarget,
};
use pagewire_tcp::Flags;

use crate::common::{A, B, Pair, STATIONS, Verbs, forge, pattern};
use pagewire_testkit::built;
use pagewire_testkit::frames::{ip, received};

/// Frames of A's that were too big: their IP header and what follows it, as much as is quoted.
type Dropped = Rc<RefCell<VecDeque<Vec<u8>>>>;

/// Bytes of the longest IP packet that a frame holds.
fn ip_len(frame: &PacketBuf) -> usize {
    match frame.gso {
        Some(gso) => usize::from(gso.header_len) + usize::from(gso.size) - 14,
        None => frame.len() - 14,
    }
}

/// From now on the path from A to B takes packets of `mtu` bytes.
fn narrow(p: &mut Pair, mtu: usize) -> Dropped {
    let dropped = Dropped::default();
    let notes = Rc::clone(&dropped);
    p.carry = Some(Box::new(move |side, frame| {
        let fits = side == B || ip_len(frame) <= mtu;
        if !fits {
            notes.borrow_mut().push_back(frame.head()[14..].to_vec());
        }
        fits
    }));
    dropped
}

/// Delivers a router's report to A: a packet was too big. `shift` falsifies the quoted sequence number.
fn report(p: &mut Pair, packet: &[u8], mtu: u16, shift: u8) {
    let v4 = packet[0] >> 4 == 4;
    let mut quote = packet[..packet.len().min(if v4 { 28 } else { 60 })].to_vec();
    let seq = if v4 { 24 } else { 44 };
    quote[seq] ^= shift;
    let (stations, word) = ([STATIONS[1], STATIONS[0]], u32::from(mtu).to_be_bytes());
    let frame = if v4 {
        let ends = [[10, 0, 0, 2].into(), [10, 0, 0, 1].into()];
        built!(ip(stations, ends, 64).icmpv4_raw(3, 4, word), &quote)
    } else {
        let end = |at: usize| IpAddr::from(<[u8; 16]>::try_from(&packet[at..at + 16]).unwrap());
        built!(ip(stations, [end(24), end(8)], 64).icmpv6_raw(2, 0, word), &quote)
    };
    let packet = received(&frame, frame.len());
    p.a.handle_frame(p.now, packet);
}

/// Sends `len` bytes from A to B; every packet that is too big is reported 1 ms later.
fn transfer(p: &mut Pair, ends: (TcpId, TcpId), len: usize, mtu: u16, dropped: &Dropped) {
    let data = pattern(len);
    let (mut sent, mut got) = (0, Vec::new());
    let mut buf = vec![0; 65_536];
    for _ in 0..100_000 {
        if let Ok(n) = p.a.send(p.now, ends.0, &data[sent..]) {
            sent += n;
        }
        p.run(Duration::from_millis(1));
        while let Some(packet) = { dropped.borrow_mut().pop_front() } {
            report(p, &packet, mtu, 0);
        }
        while let Ok(n) = p.b.recv(p.now, ends.1, &mut buf[..]) {
            got.extend_from_slice(&buf[..n]);
        }
        if got.len() == data.len() {
            assert!(got == data);
            return;
        }
    }
    panic!("{} of {len} bytes arrived", got.len());
}

fn established(to: &str) -> (Pair, (TcpId, TcpId), ListenerId) {
    let mut p = Pair::met();
    let (client, server, listener) = p.connect(to);
    (p, (client, server), listener)
}

#[test]
fn what_is_too_big_for_the_path_is_sent_again_in_smaller_segments_and_is_no_congestion() {
    for (to, mtu) in [("10.0.0.2:80", 1200), ("[fd00::2]:80", 1300)] {
        let (mut p, ends, _) = established(to);
        assert_eq!(p.a.tcp(ends.0).map(|tcp| tcp.path_mtu()), Ok(1500));
        let dropped = narrow(&mut p, mtu);
        transfer(&mut p, ends, 300_000, mtu as u16, &dropped);
        let info = p.a.tcp(ends.0).unwrap().info();
        assert_eq!(p.a.tcp(ends.0).map(|tcp| tcp.path_mtu()), Ok(mtu), "{to}");
        assert_eq!((info.timeouts, info.recoveries), (0, 0), "{to}: {info:?}");
        assert!(info.cwnd_segments >= 10, "{to}: {info:?}");
    }
}

#[test]
fn other_connections_over_the_path_know_too_and_the_path_is_tried_again_in_time() {
    let (mut p, ends, listener) = established("10.0.0.2:80");
    let to: SocketAddr = "10.0.0.2:80".parse().unwrap();
    let other = p.a.connect(p.now, to, None).unwrap();
    p.run(Duration::from_millis(10));
    let (other_server, _) = p.b.accept(listener).unwrap();
    let dropped = narrow(&mut p, 1200);
    transfer(&mut p, ends, 50_000, 1200, &dropped);
    assert_eq!(p.a.path_mtu(to.ip()), 1200);
    // Another one sends nothing that is too big.
    dropped.borrow_mut().clear();
    p.a.send(p.now, other, &pattern(20_000)).unwrap();
    p.run(Duration::from_millis(10));
    assert!(dropped.borrow().is_empty());
    assert_eq!(p.b.tcp(other_server).map(|tcp| tcp.queued()), Ok(20_000));
    // RFC 1191 section 6.3, RFC 8201 section 4: after ten minutes.
    p.carry = None;
    p.run(Duration::from_secs(599));
    assert_eq!(p.a.path_mtu(to.ip()), 1200);
    p.run(Duration::from_secs(2));
    assert_eq!(p.a.path_mtu(to.ip()), 1500);
    let dropped = narrow(&mut p, 1500);
    transfer(&mut p, ends, 20_000, 1500, &dropped);
    assert_eq!(p.a.tcp(ends.0).map(|tcp| tcp.path_mtu()), Ok(1500));
}

/// RFC 8201 section 5.4: "The value sent in the TCP MSS option is independent of the PMTU".
#[test]
fn what_is_announced_is_what_the_link_takes_whatever_was_reported_of_the_path() {
    for syn_cookies in [SynCookies::WhenFull, SynCookies::Always] {
        let mut p = Pair::changed(|a, _| a.syn_cookies = syn_cookies);
        p.meet();
        let (client, server, _) = p.connect("10.0.0.2:80");
        let dropped = narrow(&mut p, 1200);
        transfer(&mut p, (client, server), 50_000, 1200, &dropped);
        let announced = p.watch(|side, frame| {
            let (_, _, header) = forge::parse(frame).filter(|_| side == A)?;
            header.flags.contains(Flags::SYN).then_some((header.flags, header.options.mss))
        });
        // A's SYN, and A's SYN,ACK.
        p.a.listen("10.0.0.1:81".parse().unwrap(), 8).unwrap();
        let active = p.a.connect(p.now, "10.0.0.2:80".parse().unwrap(), None).unwrap();
        p.b.connect(p.now, "10.0.0.1:81".parse().unwrap(), None).unwrap();
        p.run(Duration::from_millis(10));
        let syn_ack = Flags::SYN | Flags::ACK;
        let expected = [(Flags::SYN, Some(1460)), (syn_ack, Some(1460))];
        let mut announced = announced.take();
        announced.sort_by_key(|(flags, _)| *flags == syn_ack);
        assert_eq!(announced, expected, "{syn_cookies:?}");
        assert_eq!(p.a.tcp(active).unwrap().info().announced_mss, 1460);
        assert_eq!(p.a.tcp(active).map(|tcp| tcp.path_mtu()), Ok(1200), "and is not what is sent");
    }
}

#[test]
fn what_is_announced_follows_a_path_mtu_that_was_set() {
    let mut p = Pair::met();
    p.a.set_path_mtu("10.0.0.2".parse().unwrap(), Some(1000));
    let (client, ..) = p.connect("10.0.0.2:80");
    assert_eq!(p.a.tcp(client).unwrap().info().announced_mss, 960);
}

/// RFC 5927 section 7.2.
#[test]
fn a_report_that_quotes_what_is_not_under_way_changes_nothing() {
    let (mut p, ends, _) = established("10.0.0.2:80");
    let dropped = narrow(&mut p, 1200);
    p.a.send(p.now, ends.0, &pattern(20_000)).unwrap();
    p.run(Duration::from_millis(1));
    let packet = dropped.borrow_mut().pop_front().unwrap();
    report(&mut p, &packet, 1200, 0x80);
    assert_eq!(p.a.tcp(ends.0).map(|tcp| tcp.path_mtu()), Ok(1500));
    assert_eq!(p.a.path_mtu("10.0.0.2".parse().unwrap()), 1500);
    assert_eq!(p.a.counters().tcp_icmp_outside_window, 1);
}

#[test]
fn a_connection_may_keep_out_of_it() {
    let (mut p, ends, _) = established("10.0.0.2:80");
    let flags = p.watch(|side, frame| {
        let sent = side == A && frame.head()[12..14] == [8, 0];
        sent.then(|| (frame.head()[20] & 0x40 != 0, frame.head()[14..].to_vec()))
    });
    p.a.send(p.now, ends.0, b"1").unwrap();
    p.run(Duration::from_millis(50));
    assert!(flags.borrow().iter().all(|(df, _)| *df), "routers may not cut");
    flags.borrow_mut().clear();
    let option = SocketOption::MtuDiscover(MtuDiscover::Dont);
    p.a.tcp(ends.0).unwrap().set_option(p.now, option).unwrap();
    p.a.send(p.now, ends.0, b"2").unwrap();
    p.flush();
    let (df, packet) = flags.borrow()[0].clone();
    assert!(!df, "routers may cut");
    report(&mut p, &packet, 1200, 0);
    assert_eq!(p.a.tcp(ends.0).map(|tcp| tcp.path_mtu()), Ok(1500), "reports are ignored");
}

#[test]
fn a_path_whose_mtu_is_set_has_it_whatever_is_reported() {
    let mut p = Pair::met();
    let remote = "10.0.0.2".parse().unwrap();
    p.a.set_path_mtu(remote, Some(1000));
    let (client, server, _) = p.connect("10.0.0.2:80");
    assert_eq!(p.a.tcp(client).map(|tcp| tcp.path_mtu()), Ok(1000));
    p.transfer((A, client), (B, server), &pattern(50_000));
    p.run(Duration::from_secs(3600));
    assert_eq!(p.a.path_mtu(remote), 1000);
    p.a.set_path_mtu(remote, None);
    assert_eq!(p.a.path_mtu(remote), 1500);
}

// Datagrams.

/// Two datagram sockets, A's connected to B's, over a path that takes packets of `mtu` bytes; bytes of
/// headers, and what the path dropped.
struct Datagrams {
    p: Pair,
    ends: (UdpId, UdpId),
    to: SocketAddr,
    mtu: usize,
    headers: usize,
    dropped: Dropped,
}

/// A pair with datagram sockets, for each version of IP.
fn datagrams(how: MtuDiscover) -> impl Iterator<Item = Datagrams> {
    [("10.0.0.2:53", 1200, 28), ("[fd00::2]:53", 1300, 48)].into_iter().map(
        move |(to, mtu, headers)| {
            let mut p = Pair::met();
            let to: SocketAddr = to.parse().unwrap();
            let server = p.b.bind_udp(to, BindOptions::default()).unwrap();
            let client = p.a.bind_udp("[::]:0".parse().unwrap(), BindOptions::default()).unwrap();
            p.a.udp(client).unwrap().connect(to).unwrap();
            p.a.set_option(client, SocketOption::MtuDiscover(how)).unwrap();
            p.a.udp(client).unwrap().queue_errors(true);
            p.send_and_deliver(client, b"hello", None);
            p.b.recv_from(server, pagewire_stack::Datagram).unwrap();
            let dropped = narrow(&mut p, mtu);
            Datagrams { p, ends: (client, server), to, mtu, headers, dropped }
        },
    )
}

impl Datagrams {
    /// Sends `len` bytes; returns the number that B got, if any.
    fn send(&mut self, len: usize) -> Result<Option<usize>, Error> {
        let p = &mut self.p;
        p.a.send_to(p.now, self.ends.0, &pattern(len), None)?;
        p.run(Duration::from_millis(1));
        let mut buf = vec![0; 65_536];
        let got = p.b.recv_from(self.ends.1, &mut buf[..]).ok();
        assert!(got.is_none_or(|(n, _)| buf[..n] == pattern(len)));
        Ok(got.map(|(n, _)| n))
    }

    /// The router tells of the packet that it dropped last.
    fn report(&mut self) {
        let packet = self.dropped.borrow_mut().pop_back().expect("a packet was dropped");
        report(&mut self.p, &packet, self.mtu as u16, 0);
    }

    fn path_mtu(&mut self) -> Result<usize, Error> {
        self.p.a.udp(self.ends.0)?.path_mtu()
    }

    fn queued(&mut self) -> Option<ErrorEntry> {
        self.p.a.poll_error_queue(self.ends.0)
    }

    fn too_long(&self, origin: ErrorOrigin, mtu: usize) -> Option<ErrorEntry> {
        let (error, mtu, to) = (Error::MessageTooLong, mtu as u32, Some(self.to));
        Some(ErrorEntry::Network(QueuedError { error, origin, mtu, to, about: None }))
    }
}

/// Flags of IPv4 in the packets that A sends: (DF, MF, offset in bytes).
fn flags_sent(p: &mut Pair) -> Rc<RefCell<Vec<(bool, bool, usize)>>> {
    p.watch(|side, frame| {
        let word = u16::from_be_bytes([frame.head()[20], frame.head()[21]]);
        let (df, mf) = (word & 0x4000 != 0, word & 0x2000 != 0);
        let sent = side == A && frame.head()[12..14] == [8, 0];
        sent.then_some((df, mf, usize::from(word & 0x1fff) * 8))
    })
}

#[test]
fn datagram_that_may_not_be_cut_is_refused_once_the_path_is_known_and_the_sender_learns_how_long() {
    for mut d in datagrams(MtuDiscover::Do) {
        assert_eq!(d.path_mtu(), Ok(1500));
        assert_eq!(d.send(1501 - d.headers), Err(Error::MessageTooLong), "the link's MTU is known");
        assert_eq!(d.queued(), d.too_long(ErrorOrigin::Local, 1500));
        assert_eq!(d.send(1500 - d.headers), Ok(None), "the path drops it");
        d.report();
        assert_eq!(d.path_mtu(), Ok(d.mtu));
        assert_eq!(d.p.a.take_error(d.ends.0), Some(Error::MessageTooLong), "it is connected");
        assert_eq!(d.queued(), d.too_long(ErrorOrigin::Icmp, d.mtu));
        assert_eq!(d.send(d.mtu - d.headers + 1), Err(Error::MessageTooLong));
        assert_eq!(d.queued(), d.too_long(ErrorOrigin::Local, d.mtu));
        assert_eq!(d.p.a.take_error(d.ends.0), None, "what a call said is not said again");
        assert_eq!(d.send(d.mtu - d.headers), Ok(Some(d.mtu - d.headers)));
        assert_eq!(d.queued(), None);
    }
}

#[test]
fn datagram_that_we_may_cut_is_cut_to_the_path_once_that_is_known() {
    for how in [MtuDiscover::Want, MtuDiscover::Dont] {
        for mut d in datagrams(how) {
            assert_eq!(d.send(1400), Ok(None), "{how:?}");
            d.report();
            // A socket without path MTU discovery gets no report.
            let told = how == MtuDiscover::Want;
            let entry = d.too_long(ErrorOrigin::Icmp, d.mtu).filter(|_| told);
            assert_eq!(d.queued(), entry, "{how:?}");
            let error = Some(Error::MessageTooLong).filter(|_| told);
            assert_eq!(d.p.a.take_error(d.ends.0), error, "{how:?}");
            for len in [1400, 5000] {
                assert_eq!(d.send(len), Ok(Some(len)), "{how:?}");
            }
            assert_eq!(d.queued(), None);
        }
    }
}

#[test]
fn probes_are_as_long_as_the_link_takes_whatever_is_known_of_the_path() {
    for mut d in datagrams(MtuDiscover::Probe) {
        assert_eq!(d.send(1500 - d.headers), Ok(None));
        d.report();
        assert_eq!(d.path_mtu(), Ok(d.mtu));
        assert_eq!(d.queued(), d.too_long(ErrorOrigin::Icmp, d.mtu));
        assert_eq!(d.p.a.take_error(d.ends.0), Some(Error::MessageTooLong));
        d.p.carry = None;
        assert_eq!(d.send(1500 - d.headers), Ok(Some(1500 - d.headers)), "tried again");
        assert_eq!(d.send(1501 - d.headers), Err(Error::MessageTooLong));
        assert_eq!(d.queued(), d.too_long(ErrorOrigin::Local, 1500));
    }
}

#[test]
fn reports_are_nothing_to_who_believes_the_link_only() {
    for how in [MtuDiscover::Interface, MtuDiscover::Omit] {
        for mut d in datagrams(how) {
            assert_eq!(d.send(1400), Ok(None));
            d.report();
            assert_eq!(d.path_mtu(), Ok(1500), "{how:?}");
            assert_eq!((d.queued(), d.p.a.take_error(d.ends.0)), (None, None), "{how:?}");
            d.p.carry = None;
            assert_eq!(d.send(1500 - d.headers), Ok(Some(1500 - d.headers)));
            let longer = match how {
                MtuDiscover::Omit => Ok(Some(1501 - d.headers)),
                _ => Err(Error::MessageTooLong),
            };
            assert_eq!(d.send(1501 - d.headers), longer);
        }
    }
}

#[test]
fn routers_may_cut_ipv4_datagrams_of_who_says_so_and_what_was_cut_already() {
    let whole = |df| vec![(df, false, 0)];
    let cut = vec![(false, true, 0), (false, false, 1480)];
    for (how, one, longer) in [
        (MtuDiscover::Dont, whole(false), cut.clone()),
        (MtuDiscover::Want, whole(true), cut.clone()),
        (MtuDiscover::Do, whole(true), vec![]),
        (MtuDiscover::Probe, whole(true), vec![]),
        (MtuDiscover::Interface, whole(false), vec![]),
        (MtuDiscover::Omit, whole(false), cut.clone()),
    ] {
        let mut d = datagrams(how).next().unwrap();
        let flags = flags_sent(&mut d.p);
        let _ = d.send(1472);
        assert_eq!(flags.take(), one, "{how:?}");
        let _ = d.send(1473);
        assert_eq!(flags.take(), longer, "{how:?}");
    }
}

#[test]
fn nobody_shortens_the_path_of_who_sends_short_datagrams() {
    for mut d in datagrams(MtuDiscover::Want) {
        // The forger knows both ends.
        d.p.carry = Some(Box::new(|_, _| true));
        assert_eq!(d.send(d.mtu - d.headers), Ok(Some(d.mtu - d.headers)));
        let notes = narrow(&mut d.p, 60);
        d.p.a.send_to(d.p.now, d.ends.0, &[1; 500], None).unwrap();
        d.p.run(Duration::from_millis(1));
        let packet = notes.borrow_mut().pop_front().unwrap();
        report(&mut d.p, &packet, d.mtu as u16, 0);
        assert_eq!(d.path_mtu(), Ok(1500));
        assert_eq!((d.queued(), d.p.a.take_error(d.ends.0)), (None, None));
        assert_eq!(d.p.a.counters().drops(DropReason::IcmpQuoteNotOurs), 1);
        // The socket has sent a packet of that length.
        d.p.carry = None;
        d.send(d.mtu - d.headers + 1).unwrap();
        report(&mut d.p, &packet, d.mtu as u16, 0);
        assert_eq!(d.path_mtu(), Ok(d.mtu));
    }
}

#[test]
fn socket_without_a_peer_learns_of_a_path_in_its_error_queue() {
    for mut d in datagrams(MtuDiscover::Do) {
        d.p.a.udp(d.ends.0).unwrap().disconnect();
        assert_eq!(d.path_mtu(), Err(Error::NotConnected));
        let to = Some(d.to);
        d.p.a.send_to(d.p.now, d.ends.0, &[1; 1400], to).unwrap();
        d.p.run(Duration::from_millis(1));
        d.report();
        assert_eq!(d.queued(), d.too_long(ErrorOrigin::Icmp, d.mtu));
        assert_eq!(d.p.a.path_mtu(d.to.ip()), d.mtu);
        let sent = d.p.a.send_to(d.p.now, d.ends.0, &[1; 1400], to);
        assert_eq!(sent, Err(Error::MessageTooLong));
        assert_eq!(d.queued(), d.too_long(ErrorOrigin::Local, d.mtu));
    }
}

#[test]
fn segments_of_one_call_are_bounded_by_what_one_datagram_is() {
    for (how, longest) in [
        (MtuDiscover::Want, 1200),
        (MtuDiscover::Do, 1200),
        (MtuDiscover::Probe, 1500),
        (MtuDiscover::Interface, 1500),
    ] {
        let mut d = datagrams(how).next().unwrap();
        d.p.a.set_path_mtu(d.to.ip(), Some(1200));
        let fits = longest - d.headers;
        for (size, sent) in [(fits, Ok(5000)), (fits + 1, Err(Error::MessageTooLong))] {
            let to = UdpTarget { segment: Some(size as u16), ..UdpTarget::default() };
            let done = d.p.a.send_to(d.p.now, d.ends.0, &[1; 5000], to);
            assert_eq!(done, sent, "{how:?}: {size} bytes each");
        }
    }
}

#[test]
fn fragments_of_two_datagrams_are_told_apart_however_the_socket_discovers_the_path() {
    for how in [MtuDiscover::Want, MtuDiscover::Dont, MtuDiscover::Omit] {
        for mut d in datagrams(how) {
            let at = if d.to.is_ipv4() { 18..20 } else { 58..62 };
            let ids = d
                .p
                .watch(move |side, frame| (side == A).then(|| frame.head()[at.clone()].to_vec()));
            for _ in 0..2 {
                assert_eq!(d.send(2000), Ok(Some(2000)));
            }
            let ids = ids.take();
            assert_eq!(ids.len(), 4);
            assert!(ids[0] == ids[1] && ids[2] == ids[3] && ids[0] != ids[2], "{how:?}: {ids:?}");
        }
    }
}
