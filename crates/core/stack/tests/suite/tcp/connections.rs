//! Connections between two stacks: streams, readiness, errors, closing.

use std::net::{IpAddr, Shutdown};
use std::time::Duration;

use bytes::Bytes;
use pagewire_mem::CopyReason;
use pagewire_stack::{BindOptions, DropReason, Error, Readiness, SocketOption, TcpConfig};

use crate::common::{A, B, Pair, Verbs, config, is_left_out, pattern, plain};

const V4: &str = "10.0.0.2:80";
const V6: &str = "[fd00::2]:80";

#[test]
fn a_connection_opens_and_echoes_over_both_ip_versions() {
    for to in [V4, V6] {
        let mut p = Pair::new();
        let (client, server, _) = p.connect(to);
        assert_eq!(p.a.remote_addr(client).unwrap(), to.parse().unwrap());
        assert_eq!(p.b.local_addr(server).unwrap(), to.parse().unwrap());
        assert_eq!(p.a.local_addr(client), p.b.remote_addr(server));
        p.transfer((A, client), (B, server), b"hello");
        p.transfer((B, server), (A, client), b"hello yourself");
    }
}

#[test]
fn bulk_by_copy_arrives_in_both_directions_and_is_counted() {
    let mut p = Pair::new();
    let (client, server, _) = p.connect(V4);
    let data = pattern(20_000_000);
    p.transfer((A, client), (B, server), &data);
    p.transfer((B, server), (A, client), &data);
    for stack in [&p.a, &p.b] {
        assert_eq!(stack.ledger().get(CopyReason::AppWrite), data.len() as u64);
        assert_eq!(stack.ledger().get(CopyReason::AppRead), data.len() as u64);
        assert_eq!(stack.ledger().ours(), 2 * data.len() as u64);
    }
}

#[test]
fn bulk_by_reference_copies_nothing() {
    for (to, chunk) in [(V4, 1 << 20), (V6, 1 << 20), (V4, 4096), (V6, 100_000)] {
        let mut p = Pair::new();
        let (client, server, _) = p.connect(to);
        let data = Bytes::from(pattern(20_000_000));
        p.transfer_by_reference((A, client), (B, server), data.clone(), chunk);
        p.transfer_by_reference((B, server), (A, client), data, chunk);
        assert_eq!(p.a.ledger().ours(), 0);
        assert_eq!(p.b.ledger().ours(), 0);
        assert_eq!(p.a.counters().tcp_retransmits, 0);
    }
}

#[test]
fn bulk_passes_a_device_without_any_offload() {
    let mut p = Pair::with(config(plain(1), 1), config(plain(2), 2));
    let (client, server, _) = p.connect(V4);
    let data = Bytes::from(pattern(3_000_000));
    p.transfer_by_reference((A, client), (B, server), data.clone(), 1 << 20);
    p.transfer((B, server), (A, client), &data);
    assert_eq!(p.b.counters().total_drops(), 0, "{}", p.b.counters());
}

#[test]
fn a_lossy_wire_delays_the_stream_and_changes_nothing() {
    let mut p = Pair::new();
    let (client, server, _) = p.connect(V4);
    let mut n = 0u32;
    p.carry = Some(Box::new(move |_, _| {
        n = n.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        n >> 24 > 12
    }));
    p.transfer((A, client), (B, server), &pattern(3_000_000));
    let info = p.a.tcp(client).unwrap().info();
    let counters = p.a.counters();
    assert!(counters.tcp_retransmits > 0 && counters.tcp_fast_recoveries > 0, "{counters}");
    assert_eq!(counters.tcp_retransmits, u64::from(info.retransmits));
    assert_eq!(counters.tcp_timeouts, u64::from(info.timeouts));
}

#[test]
fn half_close_ends_one_direction_and_leaves_the_other() {
    let mut p = Pair::new();
    let (client, server, _) = p.connect(V4);
    p.a.send(p.now, client, b"last words").unwrap();
    p.a.shutdown(p.now, client, Shutdown::Write).unwrap();
    assert_eq!(p.a.send(p.now, client, b"more"), Err(Error::BrokenPipe));
    let mut buf = [0; 64];
    p.run(Duration::from_millis(1));
    assert_eq!(p.b.recv(p.now, server, &mut buf[..]), Ok(10));
    assert_eq!(p.b.recv(p.now, server, &mut buf[..]), Ok(0));
    assert!(p.b.readiness(server).unwrap().contains(Readiness::READ_CLOSED));
    p.transfer((B, server), (A, client), &pattern(500_000));
    p.b.close(p.now, server);
    p.run(Duration::from_millis(1));
    assert_eq!(p.a.recv(p.now, client, &mut buf[..]), Ok(0));
}

#[test]
fn what_was_queued_is_delivered_after_the_owner_let_go() {
    let tcp = TcpConfig { send_buffer_initial: 4 << 20, ..TcpConfig::default() };
    let mut p = Pair::with_tcp(tcp);
    let (client, server, listener) = p.connect(V4);
    let data = pattern(1_000_000);
    assert_eq!(p.a.send(p.now, client, &data), Ok(data.len()));
    assert!(!p.a.is_quiet());
    p.a.close(p.now, client);
    assert_eq!(p.a.readiness(client), Err(Error::NoSuchSocket));
    let (mut got, mut buf) = (Vec::new(), vec![0; 100_000]);
    p.until("the end of the stream", |p| {
        while let Some(n) = crate::common::ready(p.b.recv(p.now, server, &mut buf[..])) {
            if n == 0 {
                return true;
            }
            got.extend_from_slice(&buf[..n]);
        }
        false
    });
    assert!(got == data);
    p.b.close(p.now, server);
    p.b.close(p.now, listener);
    p.run(Duration::from_secs(1));
    assert!(p.a.is_quiet() && p.b.is_quiet());
    // The side that closed first waits for twice the life of a segment, the other is gone.
    assert_eq!((p.a.socket_count(), p.b.socket_count()), (1, 0));
    p.run(Duration::from_secs(120));
    assert_eq!(p.a.socket_count(), 0);
    assert!(p.a.pool_audit().is_conserved());
    assert_eq!(p.a.poll_timeout(), p.a.poll_timeout().filter(|&at| at > p.now));
}

#[test]
fn a_connection_to_a_port_where_nobody_listens_is_refused() {
    for to in [V4, V6] {
        let mut p = Pair::new();
        let client = p.a.connect(p.now, to.parse().unwrap(), None).unwrap();
        p.run(Duration::from_millis(10));
        assert!(p.a.readiness(client).unwrap().intersects(Readiness::FOR_WRITE));
        assert_eq!(p.a.take_error(client), Some(Error::ConnectionRefused));
        assert_eq!(p.a.take_error(client), None);
        assert_eq!(p.drops(B, DropReason::TcpNoSocket), 1);
        assert_eq!(p.count(B, |c| c.tcp_resets_sent), 1);
        assert_eq!(p.a.counters().tcp_attempts_failed, 1);
    }
}

#[test]
fn a_connection_to_a_host_that_is_not_there_fails_when_its_address_is_not_found() {
    let mut p = Pair::new();
    let client = p.a.connect(p.now, "10.0.0.77:80".parse().unwrap(), None).unwrap();
    p.run(Duration::from_secs(10));
    assert_eq!(p.a.take_error(client), Some(Error::HostUnreachable));
}

#[test]
fn a_destination_without_a_route_is_refused_at_once() {
    let mut p = Pair::new();
    let to = "192.0.2.1:80".parse().unwrap();
    assert_eq!(p.a.connect(p.now, to, None), Err(Error::NetworkUnreachable));
}

#[test]
fn an_aborted_connection_resets_the_peer() {
    let mut p = Pair::new();
    let (client, server, _) = p.connect(V4);
    p.a.abort(p.now, client);
    p.run(Duration::from_millis(1));
    let mut buf = [0; 8];
    assert_eq!(p.b.recv(p.now, server, &mut buf[..]), Err(Error::ConnectionReset));
    assert_eq!(p.b.counters().tcp_established_resets, 1);
    // The id stays until its owner lets go.
    assert!(p.a.readiness(client).unwrap().contains(Readiness::WRITE_CLOSED));
    p.a.close(p.now, client);
    assert_eq!(p.a.socket_count(), 0);
}

#[test]
fn a_stale_or_mistaken_id_is_an_error_in_every_verb() {
    let mut p = Pair::new();
    let (client, _, listener) = p.connect(V4);
    let udp = p.b.bind_udp("0.0.0.0:9".parse().unwrap(), BindOptions::default()).unwrap();
    let now = p.now;
    let mut buf = [0; 8];
    assert_eq!(p.b.as_tcp(udp.into()).map(|tcp| tcp.id()), Err(Error::NotSupported));
    assert_eq!(p.b.as_tcp(listener.into()).map(|tcp| tcp.id()), Err(Error::NotConnected));
    assert_eq!(p.b.as_listener(udp.into()).map(|listener| listener.id()), Err(Error::InvalidInput));
    assert_eq!(p.b.as_udp(listener.into()).map(|udp| udp.id()), Err(Error::NotSupported));
    assert_eq!(p.b.as_listener(listener.into()).map(|listener| listener.id()), Ok(listener));
    assert_eq!(p.b.as_udp(udp.into()).map(|udp| udp.id()), Ok(udp));
    assert_eq!(p.a.as_tcp(client.into()).map(|tcp| tcp.id()), Ok(client));
    p.a.abort(now, client);
    p.a.close(now, client);
    p.run(Duration::from_millis(1));
    let gone = Error::NoSuchSocket;
    let again = p.a.connect(p.now, V4.parse().unwrap(), None).unwrap();
    assert_ne!(client, again);
    let (now, v4) = (p.now, V4.parse().unwrap());
    assert_eq!(p.a.recv(now, client, &mut buf[..]), Err(gone));
    assert_eq!(p.a.send(now, client, &buf), Err(gone));
    assert_eq!(p.a.send(now, client, &mut Default::default()), Err(gone));
    assert_eq!(
        p.a.recv(now, client, pagewire_stack::Chunks { max: 1, into: &mut Vec::new() }),
        Err(gone)
    );
    assert_eq!(p.a.shutdown(now, client, Shutdown::Both), Err(gone));
    assert_eq!(p.a.as_tcp(client.into()).map(|tcp| tcp.id()), Err(gone));
    assert_eq!(p.a.as_udp(client.into()).map(|udp| udp.id()), Err(gone));
    assert_eq!(p.a.as_listener(client.into()).map(|listener| listener.id()), Err(gone));
    p.b.close(now, listener);
    assert_eq!(p.b.accept(listener), Err(gone));
    p.b.close(now, udp);
    assert_eq!(p.a.tcp(client).map(|tcp| tcp.info()), Err(gone));
    assert_eq!(
        p.a.tcp(client).and_then(|mut tcp| tcp.set_option(now, SocketOption::NoDelay(true))),
        Err(gone)
    );
    assert_eq!(p.b.udp(udp).and_then(|mut udp| udp.connect(v4)), Err(gone));
    assert_eq!(p.b.send_to(now, udp, &buf, Some(v4)), Err(gone));
    assert_eq!(p.b.recv_from(udp, &mut buf[..]), Err(gone));
    assert_eq!(p.a.local_addr(client), Err(gone));
    assert_eq!(p.a.remote_addr(client), Err(gone));
    assert_eq!(p.a.readiness(client), Err(gone));
    assert_eq!(p.a.take_error(client), None);
    assert_eq!(p.a.poll_error_queue(client), None);
    p.a.close(now, client);
    p.a.abort(now, client);
    assert!(p.a.readiness(again).is_ok());
}

#[test]
fn ephemeral_ports_run_out_with_an_error() {
    if is_left_out("shards share the ephemeral ports to one peer") {
        return;
    }
    let mut p = Pair::new();
    let span = usize::from(
        pagewire_stack::limits::EPHEMERAL_LAST - pagewire_stack::limits::EPHEMERAL_FIRST,
    ) + 1;
    let (to, other) = (V4.parse().unwrap(), "10.0.0.2:81".parse().unwrap());
    for _ in 0..span {
        p.a.connect(p.now, to, None).unwrap();
    }
    assert_eq!(p.a.connect(p.now, to, None), Err(Error::AddressNotAvailable));
    // Another remote port has all of them again.
    p.a.connect(p.now, other, None).unwrap();
}

#[test]
fn a_chosen_local_port_is_used_and_the_same_connection_cannot_be_twice() {
    let mut p = Pair::new();
    let (to, from) = (V4.parse().unwrap(), "0.0.0.0:5000".parse().unwrap());
    let client = p.a.connect(p.now, to, Some(from)).unwrap();
    assert_eq!(p.a.local_addr(client), Ok("10.0.0.1:5000".parse().unwrap()));
    assert_eq!(p.a.connect(p.now, to, Some(from)), Err(Error::AddressNotAvailable));
    let foreign = "10.0.0.9:5000".parse().unwrap();
    assert_eq!(p.a.connect(p.now, to, Some(foreign)), Err(Error::AddressNotAvailable));
    let v6 = "[fd00::1]:5000".parse().unwrap();
    assert_eq!(p.a.connect(p.now, to, Some(v6)), Err(Error::AddressFamily));
    // The same port towards another peer is another connection.
    let other = "10.0.0.2:81".parse().unwrap();
    assert!(p.a.connect(p.now, other, Some(from)).is_ok());
}

#[test]
fn a_connection_to_ourselves_loops_back_and_its_payload_is_private() {
    let mut p = Pair::new();
    let own: IpAddr = "10.0.0.1".parse().unwrap();
    let listener = p.a.listen((own, 80).into(), 4).unwrap();
    let client = p.a.connect(p.now, (own, 80).into(), None).unwrap();
    p.run(Duration::from_millis(10));
    let (server, _) = p.a.accept(listener).unwrap();
    let data = Bytes::from(pattern(1_000_000));
    p.transfer_by_reference((A, client), (A, server), data.clone(), 100_000);
    assert_eq!(p.a.ledger().ours(), p.a.ledger().get(CopyReason::LoopPrivate));
    assert!(p.a.ledger().get(CopyReason::LoopPrivate) >= data.len() as u64);
    assert_eq!(p.carried, 0, "nothing leaves");
}

#[test]
fn a_reader_is_told_once_for_a_batch() {
    let mut p = Pair::new();
    let (client, server, _) = p.connect(V4);
    p.run(Duration::from_millis(100));
    p.events.clear();
    for _ in 0..30 {
        p.a.send(p.now, client, &[7; 3000]).unwrap();
    }
    p.run(Duration::from_millis(100));
    assert_eq!(p.reported(B, server, Readiness::READABLE), 1);
    // After a read to the end, new data is reported again, even if both happen between two polls.
    let mut buf = vec![0; 200_000];
    assert_eq!(p.b.recv(p.now, server, &mut buf[..]), Ok(90_000));
    assert_eq!(p.b.recv(p.now, server, &mut buf[..]), Err(Error::WouldBlock));
    p.a.send(p.now, client, &[7; 10]).unwrap();
    p.run(Duration::from_millis(100));
    assert_eq!(p.reported(B, server, Readiness::READABLE), 2);
}

#[test]
fn a_writer_is_told_when_there_is_room_again() {
    let tcp = TcpConfig { send_buffer: 100_000, ..TcpConfig::default() };
    let mut p = Pair::with_tcp(tcp);
    let (client, server, _) = p.connect(V4);
    p.flush();
    p.events.clear();
    // A super-frame is begun while there is room, and then filled.
    let taken = p.a.send(p.now, client, &[1; 200_000]).unwrap();
    assert!((100_000..165_536).contains(&taken), "{taken}");
    assert_eq!(p.a.send(p.now, client, &[1; 1]), Err(Error::WouldBlock));
    p.run(Duration::from_millis(100));
    let told: Vec<_> = p.events.iter().filter(|(side, _)| *side == A).collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].1.gained == Readiness::WRITABLE && told[0].1.socket == client);
    let mut buf = vec![0; 200_000];
    assert_eq!(p.b.recv(p.now, server, &mut buf[..]), Ok(taken));
}

#[test]
fn a_writer_is_not_woken_while_there_are_no_pages_for_it() {
    // The send buffer has room for more than the pool.
    let (pool, buffer) = (1 << 20, 4 << 20);
    let mut p = Pair::changed(|a, _| (a.memory, a.tcp.send_buffer_initial) = (pool, buffer));
    let (client, _, _) = p.connect(V4);
    // Nothing is acknowledged, so all pages stay.
    p.carry = Some(Box::new(|_, _| false));
    let write = |p: &mut Pair| p.a.send(p.now, client, &[0; 4096]);
    while write(&mut p).is_ok() {}
    while p.a.poll_event().is_some() {}
    let queued = p.a.tcp(client).unwrap().queued_send().0;
    assert!(queued < 1 << 20, "its share of the pool is the limit");
    for _ in 0..3 {
        assert_eq!(write(&mut p), Err(Error::WouldBlock));
        assert_eq!(p.a.poll_event(), None, "a task that is woken now would try for ever");
        let readiness = p.a.readiness(client).unwrap();
        assert!(!readiness.contains(Readiness::WRITABLE), "and so would one that asks");
    }
}

#[test]
fn a_writer_gets_pages_back_from_a_peer_that_reads() {
    // The payload is more than the pool, and arrives by reference.
    let mut p = Pair::changed(|a, _| (a.memory, a.tcp.send_buffer_initial) = (1 << 20, 4 << 20));
    let (client, server, _) = p.connect(V4);
    p.transfer((A, client), (B, server), &pattern(4 << 20));
}

#[test]
fn copies_are_counted_for_one_connection_where_asked() {
    let mut p = Pair::new();
    let (client, server, _) = p.connect(V4);
    assert_eq!(p.a.tcp(client).map(|tcp| tcp.ledger()), Ok(None));
    p.a.tcp(client).unwrap().set_option(p.now, SocketOption::CountCopies(true)).unwrap();
    p.transfer((A, client), (B, server), &pattern(10_000));
    let ledger = p.a.tcp(client).unwrap().ledger().unwrap();
    assert_eq!(ledger.get(CopyReason::AppWrite), 10_000);
    assert_eq!(ledger, *p.a.ledger());
}

#[test]
fn keep_alive_finds_out_that_the_peer_is_gone() {
    let mut p = Pair::new();
    let (client, _, _) = p.connect(V4);
    let keepalive = pagewire_stack::KeepAlive {
        idle: Duration::from_secs(10),
        interval: Duration::from_secs(1),
        probes: 3,
    };
    p.a.tcp(client).unwrap().set_option(p.now, SocketOption::KeepAlive(Some(keepalive))).unwrap();
    p.run(Duration::from_secs(60));
    assert_eq!(p.a.take_error(client), None, "the peer answers");
    p.carry = Some(Box::new(|_, _| false));
    p.run(Duration::from_secs(30));
    assert_eq!(p.a.take_error(client), Some(Error::TimedOut));
}

#[test]
fn resets_are_sent_at_a_bounded_rate() {
    let mut p = Pair::new();
    p.connect("10.0.0.2:1");
    for port in 0..1000u16 {
        let to = std::net::SocketAddr::new("10.0.0.2".parse().unwrap(), 1000 + port);
        p.a.connect(p.now, to, None).unwrap();
    }
    p.run(Duration::from_millis(5));
    let limited = p.drops(B, DropReason::TcpResetRateLimited);
    assert_eq!(p.count(B, |c| c.tcp_resets_sent) + limited, 1000);
    // Each shard has a limit of its own.
    let burst = pagewire_stack::limits::RESETS_BURST as u64 * crate::SHARDS as u64;
    assert!(limited > 0 && 1000 - limited <= burst + 10, "{limited}");
}

#[test]
fn ten_thousand_connections_open_speak_and_close() {
    if is_left_out("shards share the ephemeral ports to one peer") {
        return;
    }
    let mut p = Pair::new();
    let listener = p.b.listen(V4.parse().unwrap(), 4096).unwrap();
    let (mut clients, mut servers) = (Vec::new(), Vec::new());
    for batch in 0..10 {
        for _ in 0..1000 {
            clients.push(p.a.connect(p.now, V4.parse().unwrap(), None).unwrap());
        }
        p.until("all handshakes", |p| {
            while let Ok((server, _)) = p.b.accept(listener) {
                servers.push(server);
            }
            servers.len() == 1000 * (batch + 1)
        });
    }
    for client in &clients {
        p.a.send(p.now, *client, b"0123456789").unwrap();
    }
    let mut open = servers.clone();
    p.until("all words", |p| {
        let mut buf = [0; 16];
        open.retain(|s| crate::common::ready(p.b.recv(p.now, *s, &mut buf[..])).is_none());
        open.is_empty()
    });
    for client in &clients {
        p.a.close(p.now, *client);
    }
    p.run(Duration::from_secs(1));
    for server in &servers {
        assert_eq!(p.b.recv(p.now, *server, &mut [0; 1]), Ok(0));
        p.b.close(p.now, *server);
    }
    p.run(Duration::from_secs(200));
    assert_eq!((p.a.socket_count(), p.b.socket_count()), (0, 1));
}

#[test]
fn a_stack_is_quiet_when_the_last_of_its_connections_is_whoever_asked_before() {
    let mut p = Pair::new();
    let both = [p.connect(V4), p.connect("10.0.0.2:81")];
    for order in [[0, 1], [1, 0]] {
        assert!(p.a.is_quiet());
        for at in order {
            p.a.send(p.now, both[at].0, b"x").unwrap();
            p.flush();
            assert!(!p.a.is_quiet(), "{at} has sent something");
        }
        p.run(Duration::from_secs(1));
        assert!(p.a.is_quiet(), "all is acknowledged");
    }
}
