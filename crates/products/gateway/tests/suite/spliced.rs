//! Connections between the loopback of a namespace and that of this machine: published ports that lead to the former,
//! and forwarded ones that lead to the latter.

use std::fs;
use std::io::{BufRead as _, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use pagewire_gateway::limits::LARGE_BUFFERS;
use pagewire_gateway::netns::{
    InsideNetwork, ListeningPort, ListensAt, Namespace, NsSockets, Program, Users,
};
use pagewire_gateway::sandbox::{SandboxPlan, close_doors};
use pagewire_gateway::{
    Ask, Direction, Forward, GuestConfig, How, LocalClients, Protocol, Publish, Record, Rules,
    Verdict,
};
use pagewire_testkit::{Need, Netns, RECORD, can, ip, skip};
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::helper::helper;
use crate::support::{PATIENCE, World, eventually, far, pattern, rest, world, world_with};

const LOCALHOST: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// A namespace for the programs of a guest, and the guest. `None`: the test cannot run here.
fn both(config: impl FnOnce(GuestConfig) -> GuestConfig) -> Option<(Netns, NsSockets, World)> {
    both_with(Rules::default(), config)
}

fn both_with(
    rules: Rules,
    config: impl FnOnce(GuestConfig) -> GuestConfig,
) -> Option<(Netns, NsSockets, World)> {
    let (netns, sockets) = namespace()?;
    let guest = "10.0.2.15".parse().unwrap();
    let inside = sockets.clone();
    let settings = |c: GuestConfig| {
        config(c.guest(guest).inside(inside).local_clients(LocalClients::Loopback))
    };
    let world = world_with(|builder| builder.rules(rules), settings);
    Some((netns, sockets, world))
}

fn namespace() -> Option<(Netns, NsSockets)> {
    if !can(&[Need::Root]) {
        return None;
    }
    let netns = Netns::new();
    let place = Namespace::Path(netns.path());
    let sockets = NsSockets::by_helper(&helper(), &place, None).expect("a helper");
    Some((netns, sockets))
}

fn publish(world: &World, what: &str) -> SocketAddr {
    let what: Publish = what.parse().unwrap();
    world.guest.publish(&what).unwrap()[0]
}

/// A listener in the namespace.
fn listen(netns: &Netns, at: &str) -> TcpListener {
    netns.inside(|| TcpListener::bind(at).unwrap())
}

/// A service in the namespace, on its loopback only, and where clients find it.
fn published(netns: &Netns, world: &World) -> (TcpListener, SocketAddr) {
    (listen(netns, "127.0.0.1:80"), publish(world, "127.0.0.1:0:80"))
}

/// A client of the port, and the service's end of its connection.
fn joined(listener: &TcpListener, at: SocketAddr) -> (TcpStream, TcpStream) {
    let client = TcpStream::connect(at).unwrap();
    let (served, from) = listener.accept().unwrap();
    assert!(from.ip().is_loopback());
    for end in [&client, &served] {
        end.set_read_timeout(Some(PATIENCE)).unwrap();
        end.set_write_timeout(Some(PATIENCE)).unwrap();
    }
    (client, served)
}

fn reset(stream: TcpStream) {
    set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
}

#[track_caller]
fn expect_reset(mut stream: &TcpStream) {
    let error = stream.read(&mut [0]).expect_err("reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

/// Number of descriptors of this process.
fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_service_on_the_namespaces_loopback_only_is_reached() {
    let Some((netns, _, world)) = both(|config| config) else { return };
    let (listener, at) = published(&netns, &world);
    let (mut client, mut served) = joined(&listener, at);
    client.write_all(b"question").unwrap();
    let mut got = [0; 8];
    served.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"question");
    served.write_all(b"answer").unwrap();
    drop(served);
    assert_eq!(rest(&client), b"answer");
    drop(client);
    assert_eq!(world.journal.wait_for_ends(1), [How::Finished]);
    let all = world.journal.all();
    let kinds: Vec<&str> = all.iter().map(kind).collect();
    assert_eq!(kinds, ["verdict", "opened", "closed"]);
    let Some(Record::Closed { bytes_out, bytes_in, ask, .. }) = all.last() else { panic!() };
    assert_eq!((*bytes_out, *bytes_in, ask.direction), (6, 8, Direction::In));
    assert!(matches!(&all[1], Record::Opened { peer, .. } if *peer == (LOCALHOST, 80).into()));
    let counters = world.guest.counters();
    assert_eq!((counters.clients, counters.opened, counters.spliced), (1, 1, 1));
    assert_eq!((counters.finished, counters.bytes_out, counters.bytes_in), (1, 6, 8));
    assert_eq!(world.guest.connections(), 0);
}

fn kind(record: &Record) -> &'static str {
    match record {
        Record::Verdict { .. } => "verdict",
        Record::Opened { .. } => "opened",
        Record::Closed { .. } => "closed",
        _ => "other",
    }
}

/// A namespace whose programs have the guest's address, joined with local clients at that address.
fn at_the_guests_address() -> Option<(Netns, World)> {
    let (netns, _, world) = both(|config| config.local_clients(LocalClients::Spliced))?;
    netns.inside(|| {
        ip("link set lo up");
        ip("address add 10.0.2.15/32 dev lo");
    });
    Some((netns, world))
}

#[test]
fn a_local_client_is_joined_with_the_guests_address_and_comes_from_there() {
    let Some((netns, world)) = at_the_guests_address() else { return };
    let listener = listen(&netns, "10.0.2.15:80");
    let client = TcpStream::connect(publish(&world, "127.0.0.1:0:80")).unwrap();
    let (mut served, from) = listener.accept().unwrap();
    assert_eq!(from.ip().to_string(), "10.0.2.15");
    served.write_all(b"answer").unwrap();
    drop(served);
    assert_eq!(rest(&client), b"answer");
    drop(client);
    assert_eq!(world.journal.wait_for_ends(1), [How::Finished]);
    assert_eq!(world.guest.counters().spliced, 1);
}

#[test]
fn a_local_client_whom_the_guest_resets_at_once_does_not_come_again() {
    let Some((netns, world)) = at_the_guests_address() else { return };
    let listener = listen(&netns, "10.0.2.15:80");
    let inside = world.inside.listen("10.0.2.15:80").unwrap();
    let at = publish(&world, "127.0.0.1:0:80");
    for number in 1..=20 {
        let client = TcpStream::connect(at).unwrap();
        reset(listener.accept().unwrap().0);
        expect_reset(&client);
        let ends = world.journal.wait_for_ends(number);
        assert_eq!(ends.last(), Some(&How::GuestReset));
    }
    inside.set_nonblocking(true).unwrap();
    assert_eq!(inside.accept().expect_err("nobody").kind(), ErrorKind::WouldBlock);
}

#[test]
fn a_local_client_of_a_port_on_the_namespaces_loopback_only_is_refused_at_the_guests_address() {
    let Some((netns, world)) = at_the_guests_address() else { return };
    let _listener = listen(&netns, "127.0.0.1:80");
    let client = TcpStream::connect(publish(&world, "127.0.0.1:0:80")).unwrap();
    expect_reset(&client);
    assert_eq!(world.journal.wait_for_ends(1), [How::Refused]);
}

/// A local client of a port of the guest, which is answered over the link.
fn goes_over_the_link(world: &World) {
    let listener = world.inside.listen("10.0.2.15:80").unwrap();
    let mut client = TcpStream::connect(publish(world, "127.0.0.1:0:80")).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let (mut served, from) = listener.accept().unwrap();
    assert_eq!(from.ip().to_string(), "10.0.2.2");
    served.write_all(b"answer").unwrap();
    drop(served);
    let mut got = Vec::new();
    client.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"answer");
    drop(client);
    assert_eq!(world.journal.wait_for_ends(1), [How::Finished]);
    let counters = world.guest.counters();
    assert_eq!((counters.clients, counters.spliced), (1, 0));
    assert_eq!(world.guest.connections(), 0);
}

#[test]
fn a_local_client_goes_over_the_link_if_the_namespace_does_not_have_the_guests_address() {
    let spliced = |config: GuestConfig| config.local_clients(LocalClients::Spliced);
    let Some((_netns, _, world)) = both(spliced) else { return };
    goes_over_the_link(&world);
}

#[test]
fn a_local_client_goes_over_the_link_if_the_helper_is_gone() {
    let spliced = |config: GuestConfig| config.local_clients(LocalClients::Spliced);
    let Some((_netns, sockets, world)) = both(spliced) else { return };
    let helper = Pid::from_raw(sockets.helper() as i32).unwrap();
    kill_process(helper, Signal::KILL).unwrap();
    goes_over_the_link(&world);
}

#[test]
fn a_local_client_of_another_address_than_the_guests_goes_over_the_link() {
    let Some((netns, world)) = at_the_guests_address() else { return };
    // The namespace has the address, and the guest is not said to.
    let _ = netns.inside(|| ip("address add 10.0.2.16/32 dev lo"));
    let inside = listen(&netns, "10.0.2.16:80");
    inside.set_nonblocking(true).unwrap();
    let what = "127.0.0.1:0:80".parse::<Publish>().unwrap().to_guest("10.0.2.16".parse().unwrap());
    let client = TcpStream::connect(world.guest.publish(&what).unwrap()[0]).unwrap();
    drop(client);
    assert_eq!(inside.accept().expect_err("nobody").kind(), ErrorKind::WouldBlock);
    assert_eq!(world.guest.counters().spliced, 0);
}

#[test]
fn a_service_with_the_other_version_of_ip_is_reached_too() {
    let Some((netns, _, world)) = both(|config| config) else { return };
    let listener = listen(&netns, "[::1]:80");
    let at = publish(&world, "127.0.0.1:0:80");
    let (_client, served) = joined(&listener, at);
    assert!(served.local_addr().unwrap().is_ipv6());
    let listener = listen(&netns, "127.0.0.1:81");
    let at = publish(&world, "[::1]:0:81");
    let (_client, served) = joined(&listener, at);
    assert!(served.local_addr().unwrap().is_ipv4());
}

#[test]
fn a_client_of_a_unix_socket_is_joined_too() {
    let Some((netns, _, world)) = both(|config| config) else { return };
    let listener = listen(&netns, "127.0.0.1:80");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("guest.sock");
    world.guest.publish(&format!("{}:80", path.display()).parse().unwrap()).unwrap();
    let mut client = UnixStream::connect(&path).unwrap();
    let (mut served, _) = listener.accept().unwrap();
    client.write_all(&pattern(1 << 20)).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert!(rest(&served) == pattern(1 << 20));
    served.write_all(b"thanks").unwrap();
    drop(served);
    assert_eq!(rest(client), b"thanks");
    assert_eq!(world.journal.wait_for_ends(1), [How::Finished]);
}

#[test]
fn either_side_may_end_its_stream_first() {
    let Some((netns, _, world)) = both(|config| config) else { return };
    let (listener, at) = published(&netns, &world);
    for client_first in [true, false] {
        let (client, served) = joined(&listener, at);
        let (mut first, mut second) =
            if client_first { (&client, &served) } else { (&served, &client) };
        first.write_all(b"all that I have").unwrap();
        first.shutdown(Shutdown::Write).unwrap();
        assert_eq!(rest(second), b"all that I have");
        second.write_all(b"and all of mine").unwrap();
        second.shutdown(Shutdown::Write).unwrap();
        assert_eq!(rest(first), b"and all of mine");
    }
    assert_eq!(world.journal.wait_for_ends(2), [How::Finished; 2]);
    assert!(world.guest.finish(Duration::ZERO, PATIENCE));
}

#[test]
fn a_reset_passes_with_the_data_before_it() {
    let Some((netns, _, world)) = both(|config| config) else { return };
    let (listener, at) = published(&netns, &world);
    for (client_resets, how) in [(true, How::PeerReset), (false, How::GuestReset)] {
        let (client, served) = joined(&listener, at);
        let (mut resets, hears) = if client_resets { (client, served) } else { (served, client) };
        resets.write_all(b"last").unwrap();
        let mut got = [0; 4];
        (&hears).read_exact(&mut got).unwrap();
        reset(resets);
        expect_reset(&hears);
        assert_eq!(world.journal.wait_for_ends(1 + usize::from(!client_resets)).last(), Some(&how));
    }
}

#[test]
fn a_reset_waits_for_what_was_sent_before_it() {
    let Some((netns, _, world)) = both(|config| config) else { return };
    let (listener, at) = published(&netns, &world);
    for client_resets in [true, false] {
        let (client, served) = joined(&listener, at);
        let (mut resets, mut hears) =
            if client_resets { (client, served) } else { (served, client) };
        let before = world.guest.counters();
        let moved = || {
            let now = world.guest.counters();
            (now.bytes_in + now.bytes_out) - (before.bytes_in + before.bytes_out)
        };
        // More than the reader's buffer has room for, so the rest waits in the gateway's.
        let all = pattern(1 << 20);
        resets.write_all(&all).unwrap();
        eventually(|| moved() == all.len() as u64);
        reset(resets);
        let mut got = vec![0; all.len()];
        hears.read_exact(&mut got).unwrap();
        assert!(got == all);
        expect_reset(&hears);
    }
    assert_eq!(world.journal.wait_for_ends(2), [How::PeerReset, How::GuestReset]);
}

#[test]
fn a_reset_behind_the_end_of_a_stream_passes() {
    let Some((netns, _, world)) = both(|config| config) else { return };
    let (listener, at) = published(&netns, &world);
    let (client, served) = joined(&listener, at);
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(rest(&served), b"");
    reset(client);
    eventually(|| (&served).write_all(b"?").is_err());
    assert_eq!(world.journal.wait_for_ends(1), [How::PeerReset]);
}

#[test]
fn urgent_data_passes_and_does_not_stop_the_stream() {
    let Some((netns, _, world)) = both(|config| config) else { return };
    let (listener, at) = published(&netns, &world);
    let (mut client, served) = joined(&listener, at);
    for round in 0..3 {
        client.write_all(b"before").unwrap();
        assert_eq!(send(&client, b"!", SendFlags::OOB), Ok(1));
        let mut got = [0; 6];
        (&served).read_exact(&mut got).unwrap();
        let mut urgent = [0; 1];
        eventually(|| recv(&served, &mut urgent[..], RecvFlags::OOB).is_ok());
        assert_eq!((&got, &urgent), (b"before", b"!"), "round {round}");
        client.write_all(b"behind").unwrap();
        (&served).read_exact(&mut got).unwrap();
        assert_eq!(&got, b"behind", "round {round}");
    }
    drop(client);
    assert_eq!(rest(&served), b"");
}

#[test]
fn the_end_of_a_stream_behind_an_urgent_byte_passes() {
    let Some((netns, _, world)) = both(|config| config) else { return };
    let (listener, at) = published(&netns, &world);
    for n in 1..20 {
        let (mut client, served) = joined(&listener, at);
        client.write_all(b"last").unwrap();
        assert_eq!(send(&client, b"!", SendFlags::OOB), Ok(1));
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(rest(&served), b"last");
        drop((client, served));
        world.journal.wait_for_ends(n);
    }
    assert!(world.journal.ends().iter().all(|how| *how == How::Finished));
}

#[test]
fn a_client_of_a_port_that_nobody_serves_is_reset() {
    let Some((_netns, _, world)) = both(|config| config) else { return };
    let client = TcpStream::connect(publish(&world, "127.0.0.1:0:80")).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    expect_reset(&client);
    assert_eq!(world.journal.wait_for_ends(1), [How::Refused]);
    assert_eq!(world.guest.counters().refused, 1);
    eventually(|| world.guest.connections() == 0);
}

#[test]
fn a_service_that_does_not_accept_in_its_time_resets_the_client() {
    let Some((netns, _, world)) = both(|config| config) else { return };
    // A backlog without room drops further requests.
    let (listener, at) = published(&netns, &world);
    rustix::net::listen(&listener, 0).unwrap();
    let _first = netns.inside(|| TcpStream::connect("127.0.0.1:80").unwrap());
    let client = TcpStream::connect(at).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    expect_reset(&client);
    assert_eq!(world.journal.wait_for_ends(1), [How::PeerTimedOut]);
    assert_eq!(world.guest.counters().silent, 1);
}

#[test]
fn a_client_that_rules_forbid_is_reset() {
    let Some((netns, _, world)) = both_with(Rules::offline(), |config| config) else { return };
    let (listener, at) = published(&netns, &world);
    let client = TcpStream::connect(at).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    expect_reset(&client);
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err());
    assert_eq!(world.guest.counters().denied, 1);
}

#[test]
fn without_the_setting_clients_reach_the_guests_address() {
    let Some((netns, sockets)) = namespace() else { return };
    let guest = "10.0.2.15".parse().unwrap();
    let world = world_with(|b| b, |config| config.guest(guest).inside(sockets));
    let _service = listen(&netns, "127.0.0.1:80");
    let listener = world.inside.listen("10.0.2.15:80").unwrap();
    let _client = TcpStream::connect(publish(&world, "127.0.0.1:0:80")).unwrap();
    let (_served, from) = listener.accept().unwrap();
    assert_eq!(from.ip().to_string(), "10.0.2.2");
}

#[test]
fn much_data_passes_in_both_directions_at_once() {
    let Some((netns, _, world)) = both(|config| config) else { return };
    let (listener, at) = published(&netns, &world);
    let (client, served) = joined(&listener, at);
    const MUCH: usize = 64 << 20;
    let send = |mut to: &TcpStream| {
        let part = pattern(1 << 20);
        for _ in 0..MUCH / part.len() {
            to.write_all(&part).unwrap();
        }
        to.shutdown(Shutdown::Write).unwrap();
    };
    let check = |mut from: &TcpStream| {
        let (whole, mut part, mut n) = (pattern(1 << 20), vec![0; 1 << 20], 0);
        while from.read_exact(&mut part).is_ok() {
            assert!(part == whole);
            n += part.len();
        }
        assert_eq!(n, MUCH);
    };
    thread::scope(|scope| {
        scope.spawn(|| send(&client));
        scope.spawn(|| send(&served));
        scope.spawn(|| check(&client));
        check(&served);
    });
    drop((client, served));
    assert_eq!(world.journal.wait_for_ends(1), [How::Finished]);
    let counters = world.guest.counters();
    assert_eq!((counters.bytes_in, counters.bytes_out), (MUCH as u64, MUCH as u64));
}

#[test]
fn one_that_never_reads_does_not_keep_others_waiting() {
    let Some((netns, _, world)) = both(|config| config) else { return };
    let (listener, at) = published(&netns, &world);
    let stuck: Vec<_> = (0..20).map(|_| joined(&listener, at)).collect();
    for (client, served) in &stuck {
        for mut end in [client, served] {
            end.set_nonblocking(true).unwrap();
            eventually(|| end.write(&[7; 1 << 20]).is_err());
        }
    }
    let (mut client, mut served) = joined(&listener, at);
    served.write_all(b"here").unwrap();
    client.read_exact(&mut [0; 4]).unwrap();
    // A reset is seen, also behind data that nobody takes.
    let mut served = Vec::new();
    for (client, end) in stuck {
        reset(client);
        served.push(end);
    }
    eventually(|| {
        served
            .iter()
            .all(|mut end| matches!(end.write(b"x"), Err(e) if e.kind() != ErrorKind::WouldBlock))
    });
    drop(served);
    world.journal.wait_for_ends(20);
}

#[test]
fn a_thousand_at_once_leave_nothing_behind() {
    let Some((netns, _, world)) = both(|config| config) else { return };
    let (listener, at) = published(&netns, &world);
    drop(joined(&listener, at));
    eventually(|| world.guest.connections() == 0);
    let before = descriptors();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let n = if limit.is_none_or(|limit| limit > 12_000) { 1000 } else { 50 };
    let mut all: Vec<_> = (0..n).map(|_| joined(&listener, at)).collect();
    assert_eq!(world.guest.connections(), n);
    for (client, served) in &mut all {
        client.write_all(b"ping").unwrap();
        served.read_exact(&mut [0; 4]).unwrap();
    }
    for (at, (client, served)) in all.into_iter().enumerate() {
        if at % 2 == 0 { drop((client, served)) } else { reset(client) }
    }
    world.journal.wait_for_ends(n + 1);
    assert_eq!(world.guest.connections(), 0);
    // A few pipes are kept.
    assert!(descriptors() <= before + 40, "{before} {}", descriptors());
}

#[test]
fn many_connections_have_small_buffers() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    if limit.is_some_and(|limit| limit < 12_000) {
        return skip("this process may have few descriptors");
    }
    let Some((netns, _, world)) = both(|config| config) else { return };
    let (listener, at) = published(&netns, &world);
    // What the kernel takes of a client whose service reads nothing.
    let fill = |client: &TcpStream| {
        client.set_nonblocking(true).unwrap();
        let mut taken = 0;
        // The gateway moves what it may, meanwhile.
        let mut idle = 0;
        while idle < 50 {
            match (&*client).write(&[0; 65_536]) {
                Ok(n) => (taken, idle) = (taken + n, 0),
                Err(_) => idle += 1,
            }
            thread::park_timeout(Duration::from_millis(1));
        }
        taken
    };
    let (first, _served) = joined(&listener, at);
    let much = fill(&first);
    let _all: Vec<_> = (0..LARGE_BUFFERS).map(|_| joined(&listener, at)).collect();
    let (last, _served) = joined(&listener, at);
    let little = fill(&last);
    assert!(little + (1 << 20) < much, "{little} {much}");
}

#[test]
fn the_end_of_the_guest_resets_its_connections() {
    let Some((netns, _, world)) = both(|config| config) else { return };
    let (listener, at) = published(&netns, &world);
    let (client, served) = joined(&listener, at);
    let World { guest, journal, .. } = world;
    drop(guest);
    expect_reset(&client);
    expect_reset(&served);
    assert_eq!(journal.ends(), [How::Removed]);
}

#[test]
fn what_a_guest_has_sent_is_delivered_after_its_end() {
    let Some((netns, _, world)) = both(|config| config) else { return };
    let (listener, at) = published(&netns, &world);
    let (client, mut served) = joined(&listener, at);
    // The client reads none of it yet, and leaves its own stream open.
    served.write_all(&pattern(1 << 20)).unwrap();
    drop(served);
    let World { guest, .. } = world;
    assert!(guest.finish(Duration::ZERO, PATIENCE));
    drop(guest);
    assert!(rest(&client) == pattern(1 << 20));
}

#[test]
fn a_silent_connection_is_reset_after_its_time() {
    let limit = Duration::from_millis(100);
    let Some((netns, _, world)) = both(|config| config.idle(Some(limit))) else { return };
    let (listener, at) = published(&netns, &world);
    let (client, served) = joined(&listener, at);
    client.set_read_timeout(None).unwrap();
    expect_reset(&client);
    expect_reset(&served);
    assert_eq!(world.journal.wait_for_ends(1), [How::Idle]);
    assert_eq!(world.guest.counters().idle, 1);
}

#[test]
fn a_killed_helper_leaves_connections_alone_and_new_clients_are_reset() {
    let Some((netns, sockets, world)) = both(|config| config) else { return };
    let (listener, at) = published(&netns, &world);
    let (mut client, mut served) = joined(&listener, at);
    let helper = Pid::from_raw(sockets.helper() as i32).unwrap();
    kill_process(helper, Signal::KILL).unwrap();
    eventually(|| sockets.socket(Protocol::Tcp, false).is_err());
    client.write_all(b"still").unwrap();
    served.read_exact(&mut [0; 5]).unwrap();
    let late = TcpStream::connect(at).unwrap();
    late.set_read_timeout(Some(PATIENCE)).unwrap();
    expect_reset(&late);
    assert_eq!(world.journal.wait_for_ends(1), [How::Exhausted]);
    served.write_all(b"there").unwrap();
    client.read_exact(&mut [0; 5]).unwrap();
    let error = world.guest.forward(&"8080".parse().unwrap()).expect_err("no helper");
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
}

#[test]
fn a_stopped_helper_is_given_up() {
    let Some((_netns, sockets)) = namespace() else { return };
    let helper = Pid::from_raw(sockets.helper() as i32).unwrap();
    kill_process(helper, Signal::STOP).unwrap();
    for _ in 0..2 {
        let error = sockets.socket(Protocol::Tcp, false).expect_err("no answer");
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    }
}

#[test]
fn the_helper_has_no_rights_and_ends_with_its_last_owner() {
    let Some((_netns, sockets)) = namespace() else { return };
    let id = sockets.helper();
    sockets.socket(Protocol::Tcp, false).expect("a socket");
    let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().to_owned()
    };
    // To bind ports below 1024, which is number 10.
    assert_eq!(u64::from_str_radix(&field("CapPrm:"), 16), Ok(1 << 10));
    assert_eq!(u64::from_str_radix(&field("CapEff:"), 16), Ok(1 << 10));
    assert_eq!(u64::from_str_radix(&field("CapBnd:"), 16), Ok(0));
    assert_eq!((&*field("NoNewPrivs:"), &*field("Seccomp:")), ("1", "2"));
    // It has its wire only, once it has closed its end of the socket above.
    eventually(|| fs::read_dir(format!("/proc/{id}/fd")).unwrap().count() == 1);
    let other = sockets.clone();
    drop(sockets);
    assert!(other.socket(Protocol::Udp, true).is_ok());
    drop(other);
    assert!(!fs::exists(format!("/proc/{id}")).unwrap());
}

#[test]
fn sockets_are_of_the_namespace_and_do_not_block() {
    let Some((netns, sockets)) = namespace() else { return };
    let at = SocketAddr::from((LOCALHOST, 80));
    let listener: TcpListener = sockets.listen(Protocol::Tcp, at).expect("a low port").into();
    assert_eq!(listener.accept().expect_err("nobody").kind(), ErrorKind::WouldBlock);
    let client = netns.inside(|| TcpStream::connect(at)).expect("a connection");
    listener.accept().expect("the client");
    let taken = sockets.listen(Protocol::Tcp, at).expect_err("taken");
    assert_eq!(taken.kind(), ErrorKind::AddrInUse);
    let ports = sockets.listening(Protocol::Tcp).unwrap();
    assert_eq!(
        ports.iter().map(|p| (p.port, p.at)).collect::<Vec<_>>(),
        [(80, ListensAt::Loopback)]
    );
    let any = SocketAddr::from(([0, 0, 0, 0], 53));
    let _udp = sockets.listen(Protocol::Udp, any).expect("a port");
    let ports = sockets.listening(Protocol::Udp).unwrap();
    assert_eq!(ports.iter().map(|p| (p.port, p.at)).collect::<Vec<_>>(), [(53, ListensAt::Any)]);
    drop(client);
}

/// A service of this machine, and a guest whose namespace has its port.
fn forwarded(rules: Rules) -> Option<(Netns, World, TcpListener, SocketAddr)> {
    let (netns, _, world) = both_with(rules, |config| config)?;
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = service.local_addr().unwrap().port();
    world.guest.forward(&format!("8080:{port}").parse::<Forward>().unwrap()).unwrap();
    Some((netns, world, service, (LOCALHOST, 8080).into()))
}

#[test]
fn a_forwarded_port_leads_to_this_machines_loopback() {
    let Some((netns, world, service, at)) = forwarded(Rules::default()) else { return };
    for at in [at, "[::1]:8080".parse().unwrap()] {
        let mut client = netns.inside(|| TcpStream::connect(at).unwrap());
        let (mut served, from) = service.accept().unwrap();
        assert!(from.ip().is_loopback());
        client.write_all(b"from inside").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(rest(&served), b"from inside");
        served.write_all(b"out here").unwrap();
        drop(served);
        assert_eq!(rest(client), b"out here");
    }
    assert_eq!(world.journal.wait_for_ends(2), [How::Finished; 2]);
    let all = world.journal.all();
    let Some(Record::Closed { bytes_out, bytes_in, ask, .. }) = all.last() else { panic!() };
    assert_eq!((*bytes_out, *bytes_in, ask.direction), (11, 8, Direction::Out));
    assert_eq!(world.guest.counters().spliced, 2);
}

#[test]
fn a_denial_of_a_forwarded_port_holds_and_so_does_offline() {
    let denied = Rules::default().deny("127.0.0.0/8".parse().unwrap());
    let denied = denied.deny("::1".parse().unwrap());
    for rules in [denied, Rules::offline()] {
        let Some((netns, world, service, at)) = forwarded(rules) else { return };
        let client = netns.inside(|| TcpStream::connect(at).unwrap());
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        expect_reset(&client);
        service.set_nonblocking(true).unwrap();
        assert!(service.accept().is_err());
        assert_eq!(world.guest.counters().denied, 1);
    }
}

#[test]
fn a_new_denial_ends_joined_connections_and_they_are_listed_until_then() {
    let Some((netns, world, service, at)) = forwarded(Rules::default()) else { return };
    let mut client = netns.inside(|| TcpStream::connect(at).unwrap());
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let (mut served, _) = service.accept().unwrap();
    client.write_all(b"from inside").unwrap();
    served.read_exact(&mut [0; 11]).unwrap();
    let flows = world.guest.flows();
    let seen: Vec<_> = flows.iter().map(|flow| (flow.peer, flow.bytes_out, flow.open)).collect();
    assert_eq!(seen, [(service.local_addr().unwrap(), 11, true)]);
    world.guest.set_rules(Rules::default().deny("127.0.0.1".parse().unwrap())).unwrap();
    expect_reset(&client);
    assert_eq!(world.journal.wait_for_ends(1), [How::Prohibited]);
    assert!(world.guest.flows().is_empty());

    // Listing changes nothing, and other rules let new ones in.
    world.guest.set_rules(Rules::default()).unwrap();
    let client = netns.inside(|| TcpStream::connect(at).unwrap());
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let _served = service.accept().unwrap();
    let [flow] = &world.guest.flows()[..] else { panic!("one flow") };
    assert!(world.guest.kill(flow.flow) && !world.guest.kill(flow.flow));
    expect_reset(&client);
    assert_eq!(world.journal.wait_for_ends(2), [How::Prohibited, How::Killed]);
}

#[test]
fn a_client_from_the_namespace_is_told_from_one_of_ours() {
    let Some((netns, _)) = namespace() else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let client = || UnixStream::connect(&path).unwrap();
    let is_ours = || pagewire_gateway::netns::is_ours(listener.accept().unwrap().0.as_fd());
    let _inside = netns.inside(client);
    assert!(!is_ours());
    let _outside = client();
    assert!(is_ours());
}

#[test]
fn a_forwarded_range_leaves_out_what_it_says() {
    let Some((netns, sockets, world)) = both(|config| config) else { return };
    world.guest.forward(&"8000-8004:9000-9004,~8001-8002".parse().unwrap()).unwrap();
    let ports = sockets.listening(Protocol::Tcp).unwrap();
    let ports: Vec<u16> = ports.iter().map(|found| found.port).collect();
    assert_eq!(ports, [8000, 8003, 8004]);
    let taken = netns.inside(|| TcpListener::bind("127.0.0.1:8003")).expect_err("taken");
    assert_eq!(taken.kind(), ErrorKind::AddrInUse);
    let again = world.guest.forward(&"8004".parse().unwrap()).expect_err("taken");
    assert_eq!(again.kind(), ErrorKind::AddrInUse);
}

#[test]
fn a_judge_may_lead_a_forwarded_port_elsewhere() {
    let Some((netns, sockets)) = namespace() else { return };
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    let there = service.local_addr().unwrap();
    let judge =
        move |ask: &Ask| Some(if ask.to == there { Verdict::Allow } else { Verdict::To(there) });
    let world = world_with(|b| b.judge(judge), |config| config.inside(sockets));
    world.guest.forward(&"7:9".parse().unwrap()).unwrap();
    let _client = netns.inside(|| TcpStream::connect("127.0.0.1:7").unwrap());
    service.accept().unwrap();
}

/// Runs a test in a namespace that stands for this machine.
fn alone(test: impl FnOnce() + Send) {
    if can(&[Need::Root, Need::Program("ip")]) {
        Netns::new().inside(|| {
            ip("link set lo up");
            test();
        });
    }
}

#[test]
fn ports_of_programs_inside_are_published_as_long_as_they_listen() {
    alone(|| {
        let Some((netns, _, world)) = both(|config| config) else { return };
        assert_eq!(world.guest.publish(&"auto,~81".parse().unwrap()).unwrap(), []);
        let (first, _left_out) = (listen(&netns, "127.0.0.1:80"), listen(&netns, "0.0.0.0:81"));
        let at = SocketAddr::from((LOCALHOST, 80));
        eventually(|| TcpStream::connect(at).is_ok());
        first.accept().unwrap();
        let second = listen(&netns, "[::]:82");
        drop(first);
        let other = SocketAddr::from((LOCALHOST, 82));
        eventually(|| TcpStream::connect(at).is_err() && TcpStream::connect(other).is_ok());
        second.accept().unwrap();
        assert!(TcpStream::connect((LOCALHOST, 81)).is_err());
    });
}

#[test]
fn ports_of_programs_out_here_are_forwarded_as_long_as_they_listen() {
    alone(|| {
        let Some((netns, sockets, world)) = both(|config| config) else { return };
        world.guest.forward(&"auto".parse().unwrap()).unwrap();
        let service = TcpListener::bind("127.0.0.1:80").unwrap();
        let connect = || netns.inside(|| TcpStream::connect("127.0.0.1:80"));
        eventually(|| connect().is_ok());
        service.accept().unwrap();
        drop(service);
        eventually(|| sockets.listening(Protocol::Tcp).unwrap().is_empty());
        assert!(connect().is_err());
    });
}

#[test]
fn what_the_gateway_has_opened_itself_is_not_opened_on_the_other_side() {
    alone(|| {
        let Some((netns, sockets, world)) = both(|config| config) else { return };
        world.guest.publish(&"auto".parse().unwrap()).unwrap();
        world.guest.forward(&"auto".parse().unwrap()).unwrap();
        publish(&world, "127.0.0.1:7:70");
        world.guest.forward(&"9:90".parse().unwrap()).unwrap();
        let (_in, _out) = (listen(&netns, "127.0.0.1:80"), TcpListener::bind("127.0.0.1:81"));
        let ports = |found: std::io::Result<Vec<ListeningPort>>| {
            let mut ports: Vec<u16> = found.unwrap().iter().map(|found| found.port).collect();
            ports.dedup();
            ports
        };
        let inside = || ports(sockets.listening(Protocol::Tcp));
        let outside = || ports(sockets.listening_outside(Protocol::Tcp));
        eventually(|| inside() == [9, 80, 81] && outside() == [7, 80, 81]);
        // Further looks change nothing: a new port shows that they have been.
        for port in [82, 83] {
            let _one = listen(&netns, &format!("127.0.0.1:{port}"));
            eventually(|| outside().contains(&port));
            assert_eq!((inside(), outside()), (vec![9, 80, 81, port], vec![7, 80, 81, port]));
            drop(_one);
            eventually(|| outside() == [7, 80, 81]);
        }
    });
}

#[test]
fn a_port_that_is_taken_is_published_once_it_is_free() {
    alone(|| {
        let Some((netns, _, world)) = both(|config| config) else { return };
        let taken = TcpListener::bind("0.0.0.0:80").unwrap();
        world.guest.publish(&"auto".parse().unwrap()).unwrap();
        let (one, two) = (listen(&netns, "127.0.0.1:80"), listen(&netns, "127.0.0.1:81"));
        eventually(|| TcpStream::connect((LOCALHOST, 81)).is_ok());
        two.accept().unwrap();
        drop(taken);
        eventually(|| TcpStream::connect((LOCALHOST, 80)).is_ok());
        one.accept().unwrap();
    });
}

fn ask(client: &UdpSocket, service: &UdpSocket, at: SocketAddr) {
    for socket in [client, service] {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    let mut room = [0; 100];
    for question in [&b"question"[..], b"", b"another"] {
        client.send_to(question, at).unwrap();
        let (n, from) = service.recv_from(&mut room).unwrap();
        assert_eq!(&room[..n], question);
        service.send_to(b"answer", from).unwrap();
        let (n, from) = client.recv_from(&mut room).unwrap();
        assert_eq!((&room[..n], from), (&b"answer"[..], at));
    }
}

#[test]
fn datagrams_reach_the_namespaces_loopback_and_their_answers_the_client() {
    alone(|| {
        let Some((netns, _, world)) = both(|config| config) else { return };
        let service = netns.inside(|| UdpSocket::bind("127.0.0.1:53").unwrap());
        let v6 = netns.inside(|| UdpSocket::bind("[::1]:54").unwrap());
        for what in ["127.0.0.1:1053:53/udp", "1054:53/udp", "127.0.0.1:1055:54/udp"] {
            publish(&world, what);
        }
        for port in [1053, 1054] {
            let client = UdpSocket::bind("127.0.0.1:0").unwrap();
            ask(&client, &service, (LOCALHOST, port).into());
        }
        // The service has the other version of IP.
        ask(&UdpSocket::bind("127.0.0.1:0").unwrap(), &v6, (LOCALHOST, 1055).into());
        // They are counted when they have left.
        eventually(|| {
            let counters = world.guest.counters();
            let bytes = (counters.bytes_in, counters.bytes_out);
            (counters.datagrams_in, counters.datagrams_out, bytes) == (9, 9, (3 * 15, 9 * 6))
        });
        let World { guest, journal, .. } = world;
        drop(guest);
        assert_eq!(journal.ends(), [How::Removed; 3]);
        let verdicts = journal.all().into_iter().filter(|record| kind(record) == "verdict").count();
        assert_eq!(verdicts, 3);
    });
}

#[test]
fn datagrams_that_a_client_sends_together_arrive_one_by_one() {
    alone(|| {
        let Some((netns, _, world)) = both(|config| config) else { return };
        let service = netns.inside(|| UdpSocket::bind("127.0.0.1:53").unwrap());
        service.set_read_timeout(Some(PATIENCE)).unwrap();
        publish(&world, "1053:53/udp");
        // The gateway of this client sends its datagrams to the kernel as one message.
        let sender = self::world();
        let client = sender.inside.udp("10.0.2.15:0").unwrap();
        client.set_segment_size(100).unwrap();
        client.send_to(&pattern(1050), far(1053)).unwrap();
        let mut room = [0; 2000];
        for part in pattern(1050).chunks(100) {
            let n = service.recv(&mut room).unwrap();
            assert!(room[..n] == *part, "{n}");
        }
    });
}

#[test]
fn no_datagram_of_a_fast_client_goes_astray() {
    alone(|| {
        let Some((netns, _, world)) = both(|config| config) else { return };
        let service = netns.inside(|| UdpSocket::bind("127.0.0.1:53").unwrap());
        service.set_nonblocking(true).unwrap();
        publish(&world, "1053:53/udp");
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        // A program at the guest's address would take what is not for it.
        let other = world.inside.udp("10.0.2.15:53").unwrap();
        other.set_nonblocking(true).unwrap();
        let mut room = [0; 8];
        for _ in 0..400 {
            for _ in 0..50 {
                client.send_to(b"x", "127.0.0.1:1053").unwrap();
            }
            while service.recv(&mut room).is_ok() {}
        }
        eventually(|| {
            client.send_to(b"last", "127.0.0.1:1053").unwrap();
            service.recv(&mut room).is_ok_and(|n| n == 4)
        });
        assert_eq!(other.recv(&mut room).expect_err("nothing").kind(), ErrorKind::WouldBlock);
    });
}

#[test]
fn datagrams_of_other_clients_reach_the_guests_address() {
    alone(|| {
        ip("link add outer type veth peer name other");
        ip("address add 198.51.100.1/24 dev outer");
        ip("link set outer up");
        let Some((netns, _, world)) = both(|config| config) else { return };
        let _service = netns.inside(|| UdpSocket::bind("0.0.0.0:53").unwrap());
        let inner = world.inside.udp("10.0.2.15:53").unwrap();
        publish(&world, "1053:53/udp");
        let client = UdpSocket::bind("198.51.100.1:0").unwrap();
        client.send_to(b"question", "198.51.100.1:1053").unwrap();
        inner.set_read_timeout(Some(PATIENCE)).unwrap();
        let (n, _) = inner.recv_from(&mut [0; 16]).unwrap();
        assert_eq!(n, 8);
    });
}

#[test]
fn datagrams_of_the_namespace_reach_this_machines_loopback() {
    let Some((netns, _, world)) = both(|config| config) else { return };
    let service = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = service.local_addr().unwrap().port();
    world.guest.forward(&format!("53:{port}/udp").parse().unwrap()).unwrap();
    for at in ["127.0.0.1", "::1"] {
        let client = netns.inside(|| UdpSocket::bind((at, 0)).unwrap());
        ask(&client, &service, (at.parse::<std::net::IpAddr>().unwrap(), 53).into());
    }
    // They are counted when they have left.
    eventually(|| {
        let counters = world.guest.counters();
        (counters.datagrams_out, counters.datagrams_in) == (6, 6)
    });
}

#[test]
fn a_port_that_new_rules_deny_takes_no_datagrams_until_others_permit_it() {
    let Some((netns, _, world)) = both_with(Rules::default(), |config| config) else { return };
    let service = UdpSocket::bind("127.0.0.1:0").unwrap();
    service.set_read_timeout(Some(PATIENCE)).unwrap();
    let port = service.local_addr().unwrap().port();
    world.guest.forward(&format!("8080:{port}/udp").parse().unwrap()).unwrap();
    let client = netns.inside(|| UdpSocket::bind("127.0.0.1:0").unwrap());
    let at: SocketAddr = (LOCALHOST, 8080).into();
    client.send_to(b"1", at).unwrap();
    service.recv(&mut [0; 8]).unwrap();
    let denied = Rules::default().deny("127.0.0.0/8".parse().unwrap());
    world.guest.set_rules(denied).unwrap();
    assert_eq!(world.journal.wait_for_ends(1), [How::Prohibited]);
    client.send_to(b"2", at).unwrap();
    while world.guest.counters().destinations_refused == 0 {
        std::thread::yield_now();
    }
    assert!(world.guest.flows().is_empty());
    world.guest.set_rules(Rules::default()).unwrap();
    client.send_to(b"3", at).unwrap();
    let mut room = [0; 8];
    assert_eq!(service.recv(&mut room).map(|n| room[..n].to_vec()).unwrap(), b"3");
}

#[test]
fn a_denied_port_takes_no_datagrams() {
    let denied = Rules::default().deny("127.0.0.0/8".parse().unwrap());
    let Some((netns, sockets, world)) = both_with(denied, |config| config) else { return };
    world.guest.forward(&"53:9/udp".parse().unwrap()).unwrap();
    eventually(|| {
        let found = sockets.listening(Protocol::Udp).unwrap();
        found.iter().all(|found| found.port != 53) || world.guest.counters().denied > 0
    });
    let client = netns.inside(|| UdpSocket::bind("127.0.0.1:0").unwrap());
    client.connect("127.0.0.1:53").unwrap();
    client.send(b"?").unwrap();
    assert_eq!(client.send(b"?").expect_err("refused").kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn ports_for_datagrams_follow_programs_too() {
    alone(|| {
        let Some((netns, sockets, world)) = both(|config| config) else { return };
        world.guest.publish(&"auto/udp".parse().unwrap()).unwrap();
        world.guest.forward(&"auto/udp".parse().unwrap()).unwrap();
        let inner = netns.inside(|| UdpSocket::bind("127.0.0.1:53").unwrap());
        let outer = UdpSocket::bind("127.0.0.1:54").unwrap();
        let has = |found: std::io::Result<Vec<ListeningPort>>, port| {
            found.unwrap().iter().any(|found| found.port == port)
        };
        eventually(|| has(sockets.listening_outside(Protocol::Udp), 53));
        eventually(|| has(sockets.listening(Protocol::Udp), 54));
        let clients = (
            UdpSocket::bind("127.0.0.1:55").unwrap(),
            netns.inside(|| UdpSocket::bind("127.0.0.1:56").unwrap()),
        );
        ask(&clients.0, &inner, (LOCALHOST, 53).into());
        ask(&clients.1, &outer, (LOCALHOST, 54).into());
        drop((inner, outer));
        eventually(|| !has(sockets.listening_outside(Protocol::Udp), 53));
        eventually(|| !has(sockets.listening(Protocol::Udp), 54));
    });
}

#[test]
fn a_port_that_is_followed_no_more_is_closed() {
    alone(|| {
        let Some((netns, sockets, world)) = both(|config| config) else { return };
        let auto: Forward = "auto".parse().unwrap();
        world.guest.forward(&auto).unwrap();
        let _service = TcpListener::bind("127.0.0.1:80").unwrap();
        eventually(|| netns.inside(|| TcpStream::connect("127.0.0.1:80")).is_ok());
        world.guest.unforward(&auto).unwrap();
        eventually(|| sockets.listening(Protocol::Tcp).unwrap().is_empty());
    });
}

#[test]
fn ports_that_are_published_as_programs_listen_are_closed_with_their_rule() {
    alone(|| {
        let Some((netns, sockets, world)) = both(|config| config) else { return };
        let auto: Publish = "auto".parse().unwrap();
        world.guest.publish(&auto).unwrap();
        assert_eq!(world.guest.published(), std::slice::from_ref(&auto));
        let _service = listen(&netns, "127.0.0.1:80");
        eventually(|| TcpStream::connect((LOCALHOST, 80)).is_ok());
        assert!(world.guest.unpublish(&auto) && !world.guest.unpublish(&auto));
        // One that was opened at this moment is closed when the relay gets it.
        eventually(|| sockets.listening_outside(Protocol::Tcp).unwrap().is_empty());
        assert!(world.guest.published().is_empty());
    });
}

#[test]
fn forwarded_ports_are_closed_by_their_name() {
    let Some((_netns, sockets, world)) = both(|config| config) else { return };
    let [what, other]: [Forward; 2] = ["9000-9001:90", "9002"].map(|text| text.parse().unwrap());
    world.guest.forward(&what).unwrap();
    assert!(!sockets.listening(Protocol::Tcp).unwrap().is_empty());
    world.guest.unforward(&what).unwrap();
    assert!(sockets.listening(Protocol::Tcp).unwrap().is_empty());
    assert_eq!(world.guest.unforward(&other).expect_err("not there").kind(), ErrorKind::NotFound);
}

#[test]
fn a_forwarded_range_of_which_a_port_is_taken_is_not_forwarded_at_all() {
    let Some((netns, sockets, world)) = both(|config| config) else { return };
    let _taken = listen(&netns, "127.0.0.1:9001");
    let refused = world.guest.forward(&"9000-9001:90".parse().unwrap()).expect_err("taken");
    assert_eq!(refused.kind(), ErrorKind::AddrInUse);
    let left = sockets.listening(Protocol::Tcp).unwrap();
    assert_eq!(left.iter().map(|found| found.port).collect::<Vec<_>>(), [9001]);
}

#[test]
fn a_port_for_datagrams_outlives_others_that_lead_to_the_same_port() {
    alone(|| {
        let Some((netns, sockets, world)) = both(|config| config) else { return };
        let service = netns.inside(|| UdpSocket::bind("127.0.0.1:53").unwrap());
        let [kept, closed]: [Publish; 2] =
            ["127.0.0.1:1053:53/udp", "127.0.0.1:1054:53/udp"].map(|text| text.parse().unwrap());
        for what in [&kept, &closed] {
            world.guest.publish(what).unwrap();
        }
        // A program's port that is followed is a third.
        world.guest.publish(&"auto/udp".parse().unwrap()).unwrap();
        let outside = || {
            let found = sockets.listening_outside(Protocol::Udp).unwrap();
            found.iter().map(|found| found.port).collect::<std::collections::BTreeSet<_>>()
        };
        eventually(|| outside() == [53, 1053, 1054].into());
        assert!(world.guest.unpublish(&closed));
        drop(service);
        eventually(|| outside() == [1053].into());
        let service = netns.inside(|| UdpSocket::bind("127.0.0.1:53").unwrap());
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        ask(&client, &service, (LOCALHOST, 1053).into());
    });
}

#[test]
fn a_port_for_datagrams_that_is_not_published_is_free() {
    alone(|| {
        let Some((_netns, _, world)) = both(|config| config) else { return };
        publish(&world, "1053:53/udp");
        let refused = world.guest.publish(&"1054:53/udp".parse().unwrap()).expect_err("twice");
        assert_eq!(refused.kind(), ErrorKind::AddrInUse);
        UdpSocket::bind("0.0.0.0:1054").expect("the port is free");
    });
}

#[test]
fn a_port_that_is_not_published_any_more_may_be_a_programs() {
    alone(|| {
        let Some((netns, _, world)) = both(|config| config) else { return };
        world.guest.forward(&"auto".parse().unwrap()).unwrap();
        let what: Publish = "127.0.0.1:80:8080".parse().unwrap();
        world.guest.publish(&what).unwrap();
        assert!(world.guest.unpublish(&what));
        let service = TcpListener::bind("127.0.0.1:80").unwrap();
        eventually(|| netns.inside(|| TcpStream::connect("127.0.0.1:80")).is_ok());
        service.accept().unwrap();
    });
}

#[test]
fn a_port_that_a_program_has_for_one_version_of_ip_is_not_taken_for_the_other() {
    alone(|| {
        let Some((netns, _, world)) = both(|config| config) else { return };
        let _service = TcpListener::bind("[::1]:80").unwrap();
        let (_first, second) = (listen(&netns, "127.0.0.1:80"), listen(&netns, "127.0.0.1:81"));
        world.guest.publish(&"auto".parse().unwrap()).unwrap();
        eventually(|| TcpStream::connect((LOCALHOST, 81)).is_ok());
        second.accept().unwrap();
        let refused = TcpStream::connect((LOCALHOST, 80)).expect_err("not published");
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    });
}

#[test]
fn a_published_port_that_leads_to_a_forwarded_one_is_no_circle() {
    alone(|| {
        let Some((netns, _, world)) = both(|config| config) else { return };
        publish(&world, "127.0.0.1:9000:8080");
        world.guest.forward(&"8080:9000".parse().unwrap()).unwrap();
        let client = TcpStream::connect((LOCALHOST, 9000)).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        expect_reset(&client);
        assert_eq!(world.guest.counters().clients, 1);
        // Datagrams.
        publish(&world, "127.0.0.1:9000:8080/udp");
        world.guest.forward(&"8080:9000/udp".parse().unwrap()).unwrap();
        let client = netns.inside(|| UdpSocket::bind("127.0.0.1:0").unwrap());
        client.connect("127.0.0.1:8080").unwrap();
        client.send(b"?").unwrap();
        assert_eq!(client.send(b"?").expect_err("refused").kind(), ErrorKind::ConnectionRefused);
    });
}

#[test]
fn a_program_that_runs_in_a_namespace_has_sockets_there() {
    if !can(&[Need::Tap]) {
        return;
    }
    let network = InsideNetwork {
        tap: "pw0".into(),
        mtu: 1500,
        addresses: vec!["10.0.2.15/24".into()],
        routers: vec!["10.0.2.2".parse().unwrap()],
        resolvers: Vec::new(),
        ..InsideNetwork::default()
    };
    let (program, _tap) =
        Program::by_helper(&helper(), &network, Users::Same, &["true".into()]).unwrap();
    let sockets = program.sockets().unwrap();
    let at = "10.0.2.15:80".parse().unwrap();
    let _listener = sockets.listen(Protocol::Tcp, at).expect("a port of the program's address");
    let ports = sockets.listening(Protocol::Tcp).unwrap();
    assert_eq!(ports.iter().map(|p| (p.port, p.at)).collect::<Vec<_>>(), [(80, ListensAt::Other)]);
}

/// Asks the test below to start a helper.
const HOLDS: &str = "PAGEWIRE_TEST_SPLICED_HOLDS";

#[test]
fn a_helper_ends_with_its_process() {
    if !can(&[Need::Root]) {
        return;
    }
    let mut probe = Command::new(helper());
    probe.args(["--exact", "spliced::holds", "--nocapture"]).env(HOLDS, "1");
    let mut probe = probe.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(probe.stdout.take().unwrap()).lines();
    let id = lines.find_map(|line| Some(line.unwrap().split_once("helper ")?.1.to_owned()));
    let status = format!("/proc/{}/stat", id.expect("its number"));
    assert!(fs::exists(&status).unwrap());
    probe.kill().unwrap();
    probe.wait().unwrap();
    // Somebody else waits for it, or nobody.
    eventually(|| !fs::read_to_string(&status).is_ok_and(|text| !text.contains(") Z ")));
}

/// The part of the test above that is killed.
#[test]
fn holds() {
    if std::env::var_os(HOLDS).is_none() {
        return;
    }
    let (_netns, sockets) = namespace().expect("root");
    println!("helper {}", sockets.helper());
    let _ = std::io::stdin().read(&mut [0]);
}

/// Asks the test below to act, as an ordinary user.
const AS_A_USER: &str = "PAGEWIRE_TEST_SPLICED_USER";

#[test]
fn an_ordinary_user_has_sockets_of_the_namespaces_that_it_owns() {
    let needs = [Need::Root, Need::Program("setpriv"), Need::Program("unshare")];
    if !can(&needs) {
        return;
    }
    // The user may not be able to read the directory of this program.
    let dir = tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o755)).tempdir();
    let program = dir.as_ref().unwrap().path().join("program");
    fs::copy(helper(), &program).unwrap();
    let mut probe = Command::new("setpriv");
    probe.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--"]).arg(program);
    probe.args(["--exact", "spliced::as_a_user", "--nocapture"]).env(AS_A_USER, "1");
    probe.current_dir("/").env_remove(RECORD);
    let done = probe.output().unwrap();
    let text = [done.stdout, done.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    if text.contains("may not make namespaces") {
        return skip("ordinary users may not make user namespaces here");
    }
    assert!(done.status.success() && text.contains("all of it"), "{text}");
}

/// The part of the test above that is done by the user.
#[test]
fn as_a_user() {
    if std::env::var_os(AS_A_USER).is_none() {
        return;
    }
    let mut program = Command::new("unshare");
    program.args(["--user", "--map-root-user", "--net", "--", "cat"]);
    let mut program = program.stdin(Stdio::piped()).spawn().unwrap();
    let place = format!("/proc/{}/ns/net", program.id());
    let own = fs::read_link("/proc/self/ns/net").unwrap();
    eventually(|| {
        let other = fs::read_link(&place).is_ok_and(|other| other != own);
        other || program.try_wait().is_ok_and(|ended| ended.is_some())
    });
    if program.try_wait().unwrap().is_some() {
        return println!("may not make namespaces");
    }
    let sockets = NsSockets::by_helper(&helper(), &Namespace::Process(program.id()), None).unwrap();
    let at = SocketAddr::from((LOCALHOST, 80));
    let _listener = sockets.listen(Protocol::Tcp, at).expect("a low port");
    assert_eq!(sockets.listening(Protocol::Tcp).unwrap().len(), 1);
    drop(program.stdin.take());
    program.wait().unwrap();
    println!("all of it");
}

/// Asks the test below to act, in a process of its own.
const SANDBOXED: &str = "PAGEWIRE_TEST_SPLICED";

#[test]
fn in_a_sandbox_all_of_it_works() {
    if !can(&[Need::Root, Need::Program("ip")]) {
        return;
    }
    let mut probe = Command::new(helper());
    probe.args(["--exact", "spliced::sandboxed", "--nocapture"]).env(SANDBOXED, "1");
    let done = probe.output().unwrap();
    let text = [done.stdout, done.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(done.status.success() && text.contains("all of it"), "{text}");
}

/// The part of the test above that has to be alone in its process.
#[test]
fn sandboxed() {
    if std::env::var_os(SANDBOXED).is_none() {
        return;
    }
    const MUCH: usize = 64 << 20;
    alone(|| {
        let (netns, sockets) = namespace().expect("root");
        let (listener, late) = (listen(&netns, "127.0.0.1:80"), listen(&netns, "127.0.0.1:8081"));
        let echo = |listener: TcpListener| {
            let (mut served, _) = listener.accept().unwrap();
            let mut to = served.try_clone().unwrap();
            std::io::copy(&mut served, &mut to).unwrap();
            to.shutdown(Shutdown::Write).unwrap();
        };
        let outside = TcpListener::bind("127.0.0.1:9000").unwrap();
        // Clients and services are outside of the sandbox.
        let (begin, begun) = std::sync::mpsc::channel::<SocketAddr>();
        let (begin_late, begun_late) = std::sync::mpsc::channel::<SocketAddr>();
        let client = |begun: std::sync::mpsc::Receiver<SocketAddr>, n: usize| {
            let at = begun.recv().unwrap();
            eventually(|| {
                TcpStream::connect(at).is_ok_and(|client| {
                    let whole = pattern(n);
                    thread::scope(|scope| {
                        scope.spawn(|| {
                            let _ = (&client).write_all(&whole);
                            let _ = client.shutdown(Shutdown::Write);
                        });
                        let mut got = Vec::new();
                        let _ = (&client).read_to_end(&mut got);
                        got == whole
                    })
                })
            });
        };
        thread::scope(|scope| {
            for listener in [listener, outside] {
                scope.spawn(move || echo(listener));
            }
            // The looks that ask for the port also connect to it.
            scope.spawn(move || {
                loop {
                    let Ok((mut served, _)) = late.accept() else { return };
                    let mut all = Vec::new();
                    served.read_to_end(&mut all).unwrap();
                    let _ = served.write_all(&all);
                    if !all.is_empty() {
                        return;
                    }
                }
            });
            let clients = [
                scope.spawn(move || client(begun, MUCH)),
                scope.spawn(move || client(begun_late, 1000)),
            ];
            let forwarded = {
                let (begin, begun) = std::sync::mpsc::channel::<SocketAddr>();
                let netns = &netns;
                (begin, scope.spawn(move || netns.inside(|| client(begun, MUCH))))
            };
            let what: Publish = "127.0.0.1:8080:80".parse().unwrap();
            let first = what.open().unwrap();
            let sandbox = scope.spawn(move || {
                let mut plan = SandboxPlan::default();
                (plan.listens, plan.splices) = (true, true);
                let report = close_doors(&plan).unwrap();
                assert!(report.missing.is_empty(), "{report:?}");
                let guest = "10.0.2.15".parse().unwrap();
                let world = world_with(
                    |b| b,
                    |c| c.guest(guest).inside(sockets).local_clients(LocalClients::Loopback),
                );
                world.guest.serve(&what, first).unwrap();
                world.guest.publish(&"auto,~80".parse().unwrap()).unwrap();
                world.guest.forward(&"9000".parse().unwrap()).unwrap();
                begin.send((LOCALHOST, 8080).into()).unwrap();
                forwarded.0.send((LOCALHOST, 9000).into()).unwrap();
                begin_late.send((LOCALHOST, 8081).into()).unwrap();
                for client in clients {
                    client.join().unwrap();
                }
                forwarded.1.join().unwrap();
                let counters = world.guest.counters();
                assert!(counters.spliced >= 3 && counters.bytes_in >= MUCH as u64);
                drop(world);
            });
            sandbox.join().unwrap();
        });
        println!("all of it");
    });
}
