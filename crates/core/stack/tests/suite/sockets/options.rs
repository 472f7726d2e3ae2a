//! Options: a value that was set is read back, connections inherit their listener's, and each option is spelled
//! as on Linux.

use std::collections::BTreeSet;
use std::time::Duration;

use pagewire_stack::{
    BindOptions, Coalescing, CongestionKind, Error, LinuxOption, MtuDiscover, OptionName,
    PacketMarks, SocketOption, SocketOptions, option,
};

use crate::common::{Pair, addr};

const MS: Duration = Duration::from_millis(1);

/// Options of packets and of queues, which are no settings of a connection.
fn inherited() -> [SocketOption; 6] {
    [
        SocketOption::HopLimit(Some(9)),
        SocketOption::TrafficClass(0x20),
        SocketOption::Mark(7),
        SocketOption::MtuDiscover(MtuDiscover::Probe),
        SocketOption::QueueErrors(true),
        SocketOption::Coalescing(Some(Coalescing::Linux)),
    ]
}

#[test]
fn connection_has_what_its_listener_has() {
    let mut p = Pair::new();
    let listener = p.b.listen(addr("10.0.0.2:80"), 4).unwrap();
    let settings = [
        SocketOption::NoDelay(true),
        SocketOption::Cork(true),
        SocketOption::Linger(Some(Duration::ZERO)),
        SocketOption::SynCount(3),
        SocketOption::ZeroCopy(true),
    ];
    let set: Vec<_> = settings.into_iter().chain(inherited()).collect();
    for &option in &set {
        assert_ne!(p.b.option(listener, option.name()), Ok(option), "a new value");
        p.b.set_option(listener, option).unwrap();
        assert_eq!(p.b.option(listener, option.name()), Ok(option));
    }
    p.a.connect(p.now, addr("10.0.0.2:80"), None).unwrap();
    p.run(5 * MS);
    let (id, _) = p.b.listener(listener).unwrap().accept().unwrap();
    for option in set {
        assert_eq!(p.b.option(id, option.name()), Ok(option));
    }
    assert_eq!(p.b.option(id, option::EveryArrival), Ok(false));
}

#[test]
fn syn_ack_carries_the_marks_of_the_listener() {
    let mut p = Pair::new();
    let listener = p.b.listen(addr("10.0.0.2:80"), 4).unwrap();
    let marks = PacketMarks { traffic_class: 0xb8, hop_limit: Some(7) };
    p.b.set_option(listener, SocketOption::Marks(marks)).unwrap();
    let seen = p.watch(|side, frame| {
        let ip = &frame.head()[14..];
        (side == crate::common::B && ip[0] >> 4 == 4).then_some([ip[1], ip[8]])
    });
    p.a.connect(p.now, addr("10.0.0.2:80"), None).unwrap();
    p.run(5 * MS);
    assert_eq!(*seen.borrow(), [[0xb8, 7]]);
}

#[test]
fn options_of_a_connection_and_of_a_datagram_socket_are_read_back() {
    let mut p = Pair::new();
    p.b.listen(addr("10.0.0.2:80"), 4).unwrap();
    let id = p.a.connect(p.now, addr("10.0.0.2:80"), None).unwrap();
    p.run(5 * MS);
    let settings = [
        SocketOption::NoDelay(true),
        SocketOption::Cork(true),
        SocketOption::UserTimeout(Some(MS)),
        SocketOption::MaxSeg(Some(500)),
        SocketOption::Linger2(MS),
        SocketOption::NotSentLowat(5000),
        SocketOption::RcvLowat(5),
        SocketOption::SendBuffer(20_000),
        SocketOption::RecvBuffer(20_000),
        SocketOption::WindowClamp(Some(9000)),
        SocketOption::Congestion(CongestionKind::NewReno),
        SocketOption::OobInline(true),
        SocketOption::CountCopies(true),
        SocketOption::EveryArrival(true),
        SocketOption::KeepAlive(Some(pagewire_stack::KeepAlive::default())),
    ];
    for option in settings.into_iter().chain(inherited()) {
        p.a.set_option(id, option).unwrap();
        assert_eq!(p.a.option(id, option.name()), Ok(option));
    }
    assert_eq!(p.a.option(id, option::NoDelay), Ok(true));
    assert_eq!(p.a.option(id, option::Link), Ok(None));
    let refused = p.a.set_option(id, SocketOption::FastOpenNoCookie(true));
    assert_eq!(refused, Err(Error::InvalidInput));
    assert_eq!(p.a.set_option(id, SocketOption::Broadcast(true)), Err(Error::NotSupported));
    assert_eq!(p.a.option(id, option::Broadcast), Err(Error::NotSupported));

    let id = p.a.bind_udp(addr("10.0.0.1:53"), BindOptions::default()).unwrap();
    let options = [
        SocketOption::Broadcast(true),
        SocketOption::Segment(700),
        SocketOption::Join(true),
        SocketOption::RecvBuffer(5000),
        SocketOption::MulticastTtlV4(5),
        SocketOption::MulticastHopsV6(6),
        SocketOption::MulticastLoopV6(false),
        SocketOption::MulticastAllV4(false),
        SocketOption::ZeroCopy(true),
    ];
    for option in options.into_iter().chain(inherited()) {
        p.a.set_option(id, option).unwrap();
        assert_eq!(p.a.option(id, option.name()), Ok(option));
    }
    assert_eq!(p.a.option(id, option::MulticastLoopV4), Ok(true));
    assert_eq!(p.a.option(id, option::NoDelay), Err(Error::NotSupported));
    p.a.close(p.now, id);
    assert_eq!(p.a.option(id, option::Join), Err(Error::NoSuchSocket));
}

#[test]
fn owners_remember_the_last_value_and_what_a_new_socket_has() {
    let p = Pair::new();
    let mut set = SocketOptions::default();
    assert_eq!(set.get(option::HopLimit), None);
    assert!(set.value(option::MulticastLoopV4));
    set.set(SocketOption::HopLimit(Some(1)));
    set.set(SocketOption::ReuseAddress(true));
    set.set(SocketOption::HopLimit(Some(2)));
    assert_eq!((set.get(option::HopLimit), set.iter().count()), (Some(Some(2)), 2));
    assert!(set.bind_options().reuse && !set.bind_options().free);
    set.unset(OptionName::HopLimit);
    assert_eq!(set.get(OptionName::HopLimit), None);
    // The stack's settings count, where they say something.
    assert_eq!(p.a.default_option(OptionName::SynCount), SocketOption::SynCount(6));
    assert_eq!(p.a.default_option(OptionName::QuickAck), SocketOption::QuickAck(true));
}

#[test]
fn every_spelling_is_one_of_a_kind_and_reads_what_it_writes() {
    let p = Pair::new();
    let mut spelled = BTreeSet::new();
    for linux in LinuxOption::ALL {
        assert!(spelled.insert((linux.level, linux.number)), "{}: twice", linux.label);
        let found = LinuxOption::find(linux.level, linux.number).unwrap();
        assert_eq!(found.label, linux.label);
        let value = p.a.default_option(linux.name);
        let bytes = (linux.write)(value);
        assert!(bytes.len().is_multiple_of(4), "{}: {bytes:?}", linux.label);
        // Sizes are doubled; links, addresses and lists of keys have no default to write.
        if let Ok(read) = (linux.read)(&bytes)
            && !matches!(linux.name, OptionName::SendBuffer | OptionName::RecvBuffer)
        {
            assert_eq!(read.name(), linux.name);
            assert_eq!((linux.write)(read), bytes, "{}", linux.label);
        }
    }
    assert!(LinuxOption::find(6, 9999).is_none());
}
