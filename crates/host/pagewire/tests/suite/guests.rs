//! Guests on ports of one host, each port a link with addresses of its own.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use pagewire::device::{FrontEndLimits, VhostMonitor, VhostUser};
use pagewire::{Host, Link};
use pagewire_device::vhost_user::double::{Guest, GuestConfig};
use pagewire_testkit::{built, frames};

use crate::card::Card;
use crate::support::exchange;

/// The link address of the third guest.
const MAC: [u8; 6] = [2, 0, 0, 0, 9, 3];

/// How much guests send each other.
const LEN: usize = 1 << 20;

/// A port, what watches it, and a guest's stack in network `net` behind it, its gateway the host.
fn plugged(net: u8) -> (VhostUser, VhostMonitor, Host) {
    let (ours, theirs) = UnixStream::pair().expect("a socket");
    let port = VhostUser::builder().over(ours).expect("a port");
    let monitor = port.monitor();
    let guest = Host::builder()
        .device(Card::new(theirs, [2, 0, 0, 0, 9, net]).expect("a guest is plugged in"))
        .address(format!("10.0.{net}.2/24"))
        .gateway(format!("10.0.{net}.1"))
        .start()
        .expect("a guest's stack");
    (port, monitor, guest)
}

/// The host of ports, which forwards between their networks, from 10.0.1.0/24 on.
fn switched<const PORTS: usize>(ports: [VhostUser; PORTS]) -> Host {
    let mut links = (1..).zip(ports).map(|(net, port)| (port, format!("10.0.{net}.1/24")));
    let (first, address) = links.next().expect("a port");
    let host = Host::builder().device(first).address(address).ip_forwarding(true);
    let host = links.fold(host, |host, (port, at)| host.link(Link::new(port).address(at)));
    host.start().expect("host")
}

/// The first guest connects to the second, and both say all they have to say.
fn meet(first: &Host, second: &Host) {
    let listener = second.listen("10.0.2.2:80").expect("listen");
    let near = first.connect("10.0.2.2:80").expect("connect");
    let (far, from) = listener.accept().expect("accept");
    assert_eq!(from, near.local_addr().expect("address"), "no address is translated");
    exchange(near, far, LEN);
}

#[test]
fn guests_on_two_ports_reach_each_other_by_the_hosts_forwarding() {
    let (one, one_seen, first) = plugged(1);
    let (two, two_seen, second) = plugged(2);
    let host = switched([one, two]);
    meet(&first, &second);
    let stats = host.stats();
    assert!(stats.counters.forwarded_bytes > 2 * LEN as u64, "{stats}");
    for seen in [one_seen, two_seen] {
        let counters = seen.counters();
        assert_eq!(counters.lies(), 0, "{counters:?}");
        assert!(counters.referenced > 500, "bulk frames stay in the guest's memory: {counters:?}");
    }
}

/// A request for the address of the host, from 10.0.3.2; its answer interrupts the guest.
fn arp() -> Vec<u8> {
    let mut frame = frames::arp(1, MAC, [10, 0, 3, 2], [0; 6], [10, 0, 3, 1]);
    frame.resize(60, 0);
    frame
}

/// A front end that makes the eventfd that it is interrupted by wait, and fills it, would stop every
/// port of the host, and with it all that holds its lock.
#[test]
fn a_front_end_that_does_not_let_itself_be_interrupted_stops_no_other_port() {
    let (one, one_seen, first) = plugged(1);
    let (two, two_seen, second) = plugged(2);
    let (ours, theirs) = UnixStream::pair().expect("a socket");
    let jammed = VhostUser::builder().over(ours).expect("a third port");
    let jammed_seen = jammed.monitor();
    let host = switched([one, two, jammed]);
    let mut guest = Guest::over(theirs, GuestConfig::default()).expect("a guest is plugged in");
    guest.jam_interrupts().expect("its eventfds are full");
    guest.ask_interrupts();
    assert!(guest.send(&arp()));
    while guest.receive().is_none() {
        thread::yield_now();
    }
    meet(&first, &second);
    assert!(jammed_seen.counters().calls > 0, "{:?}", jammed_seen.counters());
    for seen in [one_seen, two_seen] {
        assert_eq!(seen.counters().lies(), 0, "{:?}", seen.counters());
    }
    drop(host);
}

/// A datagram of 1,400 bytes from 10.0.3.2 to port 9 of 10.0.3.1, whose link address is `to`.
fn datagram(to: [u8; 6]) -> Vec<u8> {
    let ip = frames::ip([MAC, to], [[10, 0, 3, 2].into(), [10, 0, 3, 1].into()], 64);
    built!(ip.udp(1024, 9), &[7; 1400])
}

/// Memory that a front end has shared, had held and taken back counts until the last of it is gone,
/// also in the next session: it is refused in the end, and nobody else is.
#[test]
fn a_front_end_that_has_its_memory_held_and_takes_it_back_uses_up_its_own_share_only() {
    const PORT: [u8; 6] = [2, 0, 0, 0, 8, 3];
    let (one, _, first) = plugged(1);
    let (two, _, second) = plugged(2);
    let path = std::env::temp_dir().join(format!("pagewire-beside-{}.sock", std::process::id()));
    let limits = FrontEndLimits { mappings: 8, ..FrontEndLimits::default() };
    let builder = VhostUser::builder().front_end_limits(limits).mac(PORT);
    let hostile = builder.listen(&path).expect("a third port");
    let seen = hostile.monitor();
    let host = switched([one, two, hostile]);
    // Nobody reads it: what comes stays.
    let unread = host.udp("10.0.3.1:9").expect("a socket");
    // Beside what the guest has itself.
    for (session, room) in [(1, 7), (2, 0)] {
        let mut guest = Guest::connect(&path, GuestConfig::default()).expect("it may come again");
        for n in 1..=room {
            let beside = guest.send_from_beside(&datagram(PORT)).expect("there is room");
            while seen.counters().referenced < n {
                thread::yield_now();
            }
            guest.take_back(&beside).expect("it is its own");
            assert_eq!(seen.counters().mappings, n + 1);
        }
        assert!(guest.send_from_beside(&datagram(PORT)).is_err());
        assert_eq!(seen.counters().bad_memory, session);
    }
    meet(&first, &second);
    drop(unread);
    let mut guest = Guest::connect(&path, GuestConfig::default()).expect("it may come again");
    assert!(guest.send_from_beside(&datagram(PORT)).is_ok(), "what was held is gone");
}

/// Plugs guests in that send what no guest sends, and pulls them out in the middle of it, until `end`
/// is set, and at least `least` times; returns the number of times.
fn torment(path: PathBuf, end: &AtomicBool, least: u32) -> u32 {
    let mut times = 0;
    while times < least || !end.load(Ordering::Relaxed) {
        times += 1;
        let mut guest = Guest::connect(&path, GuestConfig::default()).expect("it may come again");
        for n in 0..400u32 {
            let noise =
                |i: u32| (i.wrapping_mul(2_654_435_761) ^ n.wrapping_mul(40_503) ^ times) as u8;
            // Kinds of segmentation that there are not, lengths that are beyond the frame.
            let header = std::array::from_fn(|i| noise(i as u32) | 0x88);
            let frame: Vec<u8> = (0..n * 9 % 3000).map(noise).collect();
            guest.send_with(header, &frame);
        }
    }
    times
}

#[test]
fn a_guest_that_lies_and_comes_and_goes_disturbs_no_other_port() {
    let (one, one_seen, first) = plugged(1);
    let (two, two_seen, second) = plugged(2);
    let path = std::env::temp_dir().join(format!("pagewire-guests-{}.sock", std::process::id()));
    let hostile = VhostUser::listen(&path).expect("a third port");
    let hostile_seen = hostile.monitor();
    let host = switched([one, two, hostile]);
    let end = AtomicBool::new(false);
    thread::scope(|scope| {
        let tormentor = scope.spawn(|| torment(path.clone(), &end, 20));
        for _ in 0..3 {
            meet(&first, &second);
        }
        end.store(true, Ordering::Relaxed);
        assert!(tormentor.join().expect("the hostile guest") >= 20);
    });
    for seen in [one_seen, two_seen] {
        assert_eq!(seen.counters().lies(), 0, "{:?}", seen.counters());
    }
    let counters = hostile_seen.counters();
    assert!(counters.lies() > 0 && counters.sessions >= 20, "{counters:?}");
    assert_eq!(host.stats().links.len(), 3);
}
