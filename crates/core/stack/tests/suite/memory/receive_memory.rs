//! The limit on unread data of all connections together.

use std::time::Duration;

use bytes::Bytes;
use pagewire_device::Capabilities;
use pagewire_mem::{Frag, FragVec};
use pagewire_stack::{BindOptions, DropReason, TcpId, UdpId};
use pagewire_tcp::DropReason as TcpDropReason;

use crate::common::{A, B, Pair, Verbs, capabilities, config, pattern, ready};

/// Bytes of the memory that received data may take: three quarters of all.
const BUDGET: usize = 8 << 20;

/// `n` connections from A to B, which has little memory: (A's ends, B's ends).
fn many(n: usize) -> (Pair, Vec<TcpId>, Vec<TcpId>) {
    let mut b = config(capabilities(2), 2);
    b.memory = BUDGET * 4 / 3;
    if n == 1 {
        // As after a while of reading fast.
        b.tcp.recv_buffer_initial = b.tcp.recv_buffer;
    }
    let mut p = Pair::with(config(capabilities(1), 1), b);
    p.meet();
    let to = "10.0.0.2:80".parse().unwrap();
    let listener = p.b.listen(to, 4096).unwrap();
    let clients: Vec<_> = (0..n).map(|_| p.a.connect(p.now, to, None).unwrap()).collect();
    let mut servers = Vec::new();
    p.until("the handshakes", |p| {
        while let Ok((server, _)) = p.b.accept(listener) {
            servers.push(server);
        }
        servers.len() == n
    });
    // In the order of the clients.
    let by_port = |p: &Pair, c: &TcpId| p.a.local_addr(*c).unwrap();
    let servers = clients
        .iter()
        .map(|c| {
            let at = by_port(&p, c);
            *servers.iter().find(|s| p.b.remote_addr(**s) == Ok(at)).unwrap()
        })
        .collect();
    (p, clients, servers)
}

/// Everybody sends what may be sent, by reference: the sender's own pool is not what is tested.
fn push(p: &mut Pair, clients: &[TcpId], data: &Bytes) {
    for client in clients {
        let mut frags = FragVec::from_iter([Frag::from_bytes(data.clone())]);
        let _ = ready(p.a.send(p.now, *client, &mut frags));
    }
}

#[test]
fn peers_of_programs_that_never_read_stay_within_the_budget() {
    let (mut p, clients, servers) = many(200);
    let data = Bytes::from(pattern(64 << 10));
    let mut most = 0;
    for _ in 0..300 {
        push(&mut p, &clients, &data);
        p.run(Duration::from_millis(10));
        most = most.max(p.b.receive_memory_used());
    }
    println!("{most} bytes pinned of {BUDGET}");
    assert!(most <= BUDGET, "{most} bytes pinned of {BUDGET}");
    assert!(most > BUDGET / 2, "{most}: the test fills it");
    // Data that was invited when connections were few, and was refused, comes again, ever more rarely.
    let dropped = p.b.counters().tcp_drops(TcpDropReason::HostMemory);
    p.run(Duration::from_secs(60));
    let again = p.b.counters().tcp_drops(TcpDropReason::HostMemory) - dropped;
    assert!(again <= 10 * 200, "{again} segments refused in a minute");
    for server in servers {
        p.b.close(p.now, server);
    }
    p.run(Duration::from_secs(1));
    assert_eq!(p.b.receive_memory_used(), 0, "what was held is given back");
}

/// Each of `n` clients sends 256 KiB. Of the servers' programs, every second reads, or each one; all that came
/// every 5 ms. Returns the most memory in use.
fn crowd(n: usize, half_reads: bool) -> usize {
    let (mut p, clients, servers) = many(n);
    let data = Bytes::from(pattern(256 << 10));
    let (mut buf, mut most) = (vec![0; 64 << 10], 0);
    let mut sent = vec![0; n];
    let mut came = vec![0; n];
    let reads = |i: usize| !half_reads || i.is_multiple_of(2);
    for _ in 0..4000 {
        for (sent, client) in sent.iter_mut().zip(&clients).filter(|(sent, _)| **sent < data.len())
        {
            let mut frags = FragVec::from_iter([Frag::from_bytes(data.slice(*sent..))]);
            *sent += ready(p.a.send(p.now, *client, &mut frags)).unwrap_or(0);
        }
        p.run(Duration::from_millis(5));
        most = most.max(p.b.receive_memory_used());
        for (i, server) in servers.iter().enumerate().filter(|(i, _)| reads(*i)) {
            let now = p.now;
            while let Some(read @ 1..) = ready(p.b.recv(now, *server, &mut buf[..])) {
                came[i] += read;
            }
        }
        p.run(Duration::from_micros(10));
        if (0..n).all(|i| !reads(i) || came[i] == data.len()) {
            break;
        }
    }
    assert!((0..n).all(|i| !reads(i) || came[i] == data.len()), "not all came: {came:?}");
    let counters = [p.a.counters(), p.b.counters()];
    let timeouts: u64 = counters.iter().map(|c| c.tcp_timeouts).sum();
    assert_eq!(p.b.counters().tcp_drops(TcpDropReason::HostMemory), 0, "segments were refused");
    assert_eq!(timeouts, 0, "waits ended by timeouts");
    most
}

#[test]
fn crowd_that_is_read_loses_nothing_for_memory() {
    for n in [50, 150, 250] {
        let most = crowd(n, false);
        assert!(most <= BUDGET, "{n} connections: {most} bytes");
    }
}

#[test]
fn crowd_of_which_half_is_never_read_loses_nothing_for_memory_and_the_others_get_on() {
    for n in [50, 150, 250] {
        let most = crowd(n, true);
        assert!(most <= BUDGET, "{n} connections: {most} bytes");
    }
}

#[test]
fn refused_data_is_answered_with_a_window_of_zero_which_opens_when_the_program_reads() {
    let (mut p, clients, servers) = many(1);
    let (client, server) = (clients[0], servers[0]);
    let send = |p: &mut Pair| {
        let mut frags = FragVec::from_iter([Frag::from_bytes(Bytes::from(pattern(1000)))]);
        assert_eq!(p.a.send(p.now, client, &mut frags), Ok(1000));
        p.run(Duration::from_millis(1));
        p.a.tcp(client).unwrap().info().send_window
    };
    assert!(send(&mut p) > 0);
    p.b.set_receive_room(0);
    assert_eq!(send(&mut p), 0, "the peer waits");
    assert_eq!(p.b.counters().tcp_drops(TcpDropReason::HostMemory), 1);
    p.b.set_receive_room(usize::MAX);
    let mut buf = [0; 1000];
    for wait in [0, 1000] {
        p.run(Duration::from_millis(wait));
        let now = p.now;
        assert_eq!(p.b.recv(now, server, &mut buf[..]), Ok(1000));
        assert_eq!(buf[..], pattern(1000)[..]);
    }
    assert_eq!(p.a.counters().tcp_timeouts, 0, "the window opened when the program read");
}

#[test]
fn reader_gets_on_beside_hundreds_that_do_not_read() {
    let (mut p, clients, servers) = many(300);
    let (reader, others) = clients.split_last().unwrap();
    let end = *servers.last().unwrap();
    let data = Bytes::from(pattern(64 << 10));
    for _ in 0..200 {
        push(&mut p, others, &data);
        p.run(Duration::from_millis(10));
    }
    let before = p.now;
    let much = Bytes::from(pattern(4 << 20));
    p.transfer_by_reference((A, *reader), (B, end), much, 64 << 10);
    let took = p.now.saturating_since(before);
    println!("4 MiB beside {} full connections took {took:?}", others.len());
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert!(p.b.receive_memory_used() <= BUDGET);
}

#[test]
fn connection_alone_has_its_whole_window() {
    let (mut p, clients, _) = many(1);
    let data = Bytes::from(pattern(256 << 10));
    for _ in 0..200 {
        push(&mut p, &clients, &data);
        p.run(Duration::from_millis(1));
    }
    let held = p.b.receive_memory_used();
    assert!(held >= BUDGET / 8, "{held} bytes of {BUDGET}, an eighth is allowed at first");
    assert_eq!(p.b.counters().tcp_drops(TcpDropReason::HostMemory), 0);
}

#[test]
fn reader_gets_on_beside_thousands_that_hold_a_segment_each() {
    // More of them than the budget has room for: each segment is within any share.
    let (mut p, clients, servers) = many(7000);
    let (reader, others) = clients.split_last().unwrap();
    let end = *servers.last().unwrap();
    // The reader has read before the flood came.
    p.transfer_by_reference((A, *reader), (B, end), Bytes::from(pattern(10_000)), 10_000);
    let data = Bytes::from(pattern(1448));
    for _ in 0..3 {
        push(&mut p, others, &data);
        p.run(Duration::from_millis(10));
    }
    let used = p.b.receive_memory_used();
    assert!(used > BUDGET / 16 * 14, "{used}: they fill it");
    let before = p.now;
    p.transfer_by_reference((A, *reader), (B, end), Bytes::from(pattern(1 << 20)), 64 << 10);
    let took = p.now.saturating_since(before);
    println!("1 MiB beside {} full connections took {took:?}", others.len());
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert!(p.b.receive_memory_used() <= BUDGET);
}

/// Capabilities of a pair link: frames by reference, thirty times as long as on a wire.
fn in_memory(mac: u8) -> Capabilities {
    Capabilities { mtu: 61_512, max_super_frame: 2_097_120, ..capabilities(mac) }
}

#[test]
fn reader_gets_on_beside_those_that_stopped_to_read_where_frames_stay_in_memory() {
    let mut b = config(in_memory(2), 2);
    b.memory = 64 << 20;
    let mut p = Pair::with(config(in_memory(1), 1), b);
    p.meet();
    let mut ends = Vec::new();
    // Every receiver has read fast, and invited its peer to send much.
    let much = Bytes::from(pattern(24 << 20));
    for n in 0..30 {
        let (client, server, _) = p.connect(&format!("10.0.0.2:{}", 80 + n));
        p.transfer_by_reference((A, client), (B, server), much.clone(), 256 << 10);
        ends.push((client, server));
    }
    let (client, server) = ends.pop().unwrap();
    let others: Vec<_> = ends.iter().map(|&(client, _)| client).collect();
    let data = much.slice(..6 << 20);
    for _ in 0..20 {
        push(&mut p, &others, &data);
        p.run(Duration::from_millis(100));
    }
    let before = p.now;
    p.transfer_by_reference((A, client), (B, server), much.slice(..16 << 20), 256 << 10);
    let took = p.now.saturating_since(before);
    println!("16 MiB beside {} full connections took {took:?}", others.len());
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert!(p.b.receive_memory_used() <= 48 << 20);
}

#[test]
fn datagrams_that_nobody_reads_take_nothing_from_streams() {
    let (mut p, clients, servers) = many(2);
    let sinks: Vec<UdpId> = (0..64)
        .map(|i| {
            p.b.bind_udp(format!("10.0.0.2:{}", 5000 + i).parse().unwrap(), BindOptions::default())
                .unwrap()
        })
        .collect();
    let source = p.a.bind_udp("10.0.0.1:0".parse().unwrap(), BindOptions::default()).unwrap();
    let data = Bytes::from(pattern(1400));
    // A megabyte for each, which is eight times the budget.
    for _ in 0..750 {
        for i in 0..64 {
            let to = format!("10.0.0.2:{}", 5000 + i).parse().unwrap();
            let frags = FragVec::from_iter([Frag::from_bytes(data.clone())]);
            p.a.send_to(p.now, source, frags, Some(to)).unwrap();
        }
        p.run(Duration::from_micros(100));
    }
    let held = p.b.receive_memory_used();
    println!("{held} bytes of {BUDGET} for datagrams");
    assert!((BUDGET / 3..=BUDGET / 2).contains(&held), "{held} bytes of {BUDGET}");
    let told: u64 = sinks.iter().map(|&sink| u64::from(p.b.udp(sink).unwrap().dropped())).sum();
    let dropped = |reason| p.b.counters().drops(reason);
    assert!(dropped(DropReason::UdpHostMemory) > 0);
    // Each socket can say how many of those were its own.
    assert_eq!(told, dropped(DropReason::UdpHostMemory) + dropped(DropReason::UdpQueueFull));
    // Streams have their windows, and nothing that they invited is refused.
    for (client, server) in clients.iter().zip(&servers) {
        p.transfer_by_reference(
            (A, *client),
            (B, *server),
            Bytes::from(pattern(4 << 20)),
            64 << 10,
        );
    }
    assert_eq!(p.b.counters().tcp_drops(TcpDropReason::HostMemory), 0);
    // Each of the sinks has about as much as the others.
    for sink in &sinks {
        let mut n = 0;
        while p.b.recv_from(*sink, pagewire_stack::Datagram).is_ok() {
            n += 1;
        }
        let fair = held / 64 / 1400;
        assert!((fair / 2..fair * 2).contains(&n), "{n} datagrams, {fair} are fair");
    }
    assert_eq!(p.b.receive_memory_used(), 0, "what is read is given back");
    for sink in sinks {
        let to = p.b.local_addr(sink).unwrap();
        p.a.send_to(p.now, source, &[1; 1400], Some(to)).unwrap();
        p.run(Duration::from_micros(100));
        p.b.close(p.now, sink);
    }
    assert_eq!(p.b.receive_memory_used(), 0, "and what is closed");
}

#[test]
fn datagram_comes_in_beside_streams_that_nobody_reads() {
    let (mut p, clients, _servers) = many(200);
    let data = Bytes::from(pattern(64 << 10));
    for _ in 0..300 {
        push(&mut p, &clients, &data);
        p.run(Duration::from_millis(10));
    }
    assert!(p.b.receive_memory_used() > BUDGET / 16 * 11);
    let (source, sink) = p.datagram_sockets("0.0.0.0");
    for _ in 0..100 {
        p.send_and_deliver(source, &[1; 1400], Some("10.0.0.2:53".parse().unwrap()));
        assert!(p.b.recv_from(sink, pagewire_stack::Datagram).is_ok());
    }
    assert!(p.b.receive_memory_used() <= BUDGET);
}
