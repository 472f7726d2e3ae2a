//! Data that the stack forwards by itself, and the events at which it stops. A
//! forwarder that is taken away from its stack cannot have had a part in what happens meanwhile.

use std::net::Shutdown;
use std::time::Duration;

use bytes::Bytes;
use pagewire_device::FaultRng;
use pagewire_mem::{Frag, FragVec};
use pagewire_stack::{Error, ForwardConfig, KeepAlive, SendFlags};
use pagewire_testkit::sim::{Station, Verbs};

use crate::forwarding::peers::Program;
use crate::forwarding::single::{End, Line, STREAM, fill};

/// Takes the forwarder away from its stack.
fn part(line: &mut Line) -> Program {
    line.settle();
    std::mem::replace(&mut line.sim.node_mut(line.proxy).app, Program::Manual)
}

fn join(line: &mut Line, proxy: Program) {
    line.sim.node_mut(line.proxy).app = proxy;
}

/// Checks what has come of the stream; `Err` at its end.
fn check(line: &mut Line, end: End, at: &mut u64) -> Result<(), Error> {
    match line.take(end, 40_000, at) {
        Ok(0) => Err(Error::BrokenPipe),
        Ok(_) | Err(Error::WouldBlock) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Sends and receives until a number of bytes has arrived.
fn pass(line: &mut Line, from: End, to: End) {
    const ALL: u64 = 3_000_000;
    let (mut sent, mut got) = (0, 0);
    while got < ALL {
        while sent < ALL {
            match line.send(from, sent, 50_000.min((ALL - sent) as usize)) {
                0 => break,
                n => sent += n,
            }
        }
        let before = got;
        line.settle();
        while got < sent {
            let at = got;
            check(line, to, &mut got).expect("it stands");
            if got == at {
                break;
            }
        }
        assert!(got > before, "{got} bytes came, {sent} were sent");
    }
}

#[test]
fn data_flows_both_ways_and_nobody_asks_the_forwarder() {
    let mut line = Line::usual();
    let [ours, theirs] = line.connect();
    let proxy = part(&mut line);
    pass(&mut line, ours, theirs);
    pass(&mut line, theirs, ours);
    join(&mut line, proxy);
    let counters = line.proxy().counters();
    assert_eq!((counters.bytes_up, counters.bytes_down), (3_000_000, 3_000_000));
    let stack = &line.sim.node(line.proxy).stack;
    assert_eq!(stack.ledger().ours(), 0, "payload bytes copied by the proxy");
    line.settle();
    assert_eq!(line.sim.node(line.proxy).stack.receive_memory_used(), 0);
}

#[test]
fn data_flows_over_a_network_that_loses_and_nobody_asks_the_forwarder() {
    let faults = "loss=2%,reorder=2%,dup=1%,delay=1ms";
    let mut line = Line::new(Default::default(), faults, 48 << 20);
    let [ours, theirs] = line.connect();
    let proxy = part(&mut line);
    pass(&mut line, ours, theirs);
    join(&mut line, proxy);
    assert_eq!(line.proxy().counters().bytes_up, 3_000_000);
    assert_eq!(line.sim.node(line.proxy).stack.ledger().ours(), 0);
}

#[test]
fn one_way_flows_on_when_the_other_has_ended() {
    let mut line = Line::usual();
    let [ours, theirs] = line.connect();
    line.shutdown(ours);
    assert_eq!(line.read(theirs), Ok(Vec::new()), "the end");
    let proxy = part(&mut line);
    pass(&mut line, theirs, ours);
    join(&mut line, proxy);
    line.shutdown(theirs);
    assert_eq!(line.read(ours), Ok(Vec::new()), "the end");
    assert!(line.proxy().is_empty());
    assert_eq!(line.proxy().counters().bytes_down, 3_000_000);
}

#[test]
fn an_end_comes_behind_all_that_was_queued_before_it() {
    let mut line = Line::usual();
    let [ours, theirs] = line.connect();
    let sent = fill(&mut line, ours);
    let (stack, now) = line.stack(ours.0);
    stack.shutdown(now, ours.1, Shutdown::Write).expect("it stands");
    stack.close(now, ours.1);
    let mut got = 0;
    while check(&mut line, theirs, &mut got).is_ok() {
        line.settle();
    }
    assert_eq!(got, sent);
    line.abort(theirs);
    assert!(line.proxy().is_empty());
    assert_eq!(line.sim.node(line.proxy).stack.receive_memory_used(), 0);
}

#[test]
fn who_was_held_up_flows_again() {
    let mut line = Line::usual();
    let [ours, theirs] = line.connect();
    let (sent, mut got) = (fill(&mut line, ours), 0);
    while got < sent {
        check(&mut line, theirs, &mut got).expect("it stands");
        line.settle();
    }
    let proxy = part(&mut line);
    line.send(ours, sent, 50_000);
    line.settle();
    while got < sent + 50_000 {
        let before = got;
        check(&mut line, theirs, &mut got).expect("it stands");
        assert!(got > before, "it does not flow");
    }
    join(&mut line, proxy);
}

#[test]
fn behind_an_urgent_byte_data_flows_again() {
    let mut line = Line::usual();
    let [ours, theirs] = line.connect();
    line.send_urgent(ours);
    line.write(ours, b"a");
    assert_eq!(line.read(theirs), Ok(b"!a".to_vec()));
    let proxy = part(&mut line);
    line.write(ours, b"b");
    assert_eq!(line.read(theirs), Ok(b"b".to_vec()));
    join(&mut line, proxy);
}

#[test]
fn a_reset_is_not_passed_on_by_itself_and_the_forwarder_is_told_of_it() {
    let mut line = Line::usual();
    for by_client in [true, false] {
        let [ours, theirs] = line.connect();
        line.write(ours, b"x");
        assert_eq!(line.read(theirs), Ok(b"x".to_vec()));
        let (by, reader) = if by_client { (ours, theirs) } else { (theirs, ours) };
        line.write(by, b"last words");
        line.abort(by);
        let mut result = line.read(reader);
        if result.is_ok() {
            result = line.read(reader);
        }
        assert_eq!(result, Err(Error::ConnectionReset));
    }
    assert!(line.proxy().is_empty());
    assert_eq!(line.proxy().counters().broken, 2);
}

/// One direction of a conversation in which anything may happen.
struct Way {
    from: End,
    to: End,
    all: u64,
    sent: u64,
    got: u64,
    said_end: bool,
    seen_end: bool,
    /// One of the two ends has reset the connection.
    cut: bool,
}

impl Way {
    fn say(&mut self, line: &mut Line, len: u64, urgent: bool) -> bool {
        let (node, id) = self.from;
        let len = len.min(self.all - self.sent);
        let (stack, now) = line.stack(node);
        if len == 0 {
            let ends = self.sent == self.all && !self.said_end;
            if ends {
                self.said_end = true;
                let ended = stack.shutdown(now, id, Shutdown::Write);
                assert!(ended.is_ok() || self.cut, "{ended:?}");
            }
            return ends;
        }
        let piece = Bytes::from(STREAM.bytes(self.sent, len as usize));
        let mut frags = FragVec::from_elem(Frag::from_bytes(piece), 1);
        let flags = if urgent { SendFlags::URGENT } else { SendFlags::empty() };
        match stack.tcp(id).and_then(|mut tcp| tcp.send(now, &mut frags, flags)) {
            Ok(n) => {
                self.sent += n as u64;
                n > 0
            }
            Err(Error::WouldBlock) => false,
            Err(error) => {
                assert!(self.cut, "{error}");
                self.sent = self.all;
                false
            }
        }
    }

    fn hear(&mut self, line: &mut Line, most: usize) -> bool {
        if self.seen_end {
            return false;
        }
        match line.take(self.to, most, &mut self.got) {
            Err(Error::WouldBlock) => return false,
            Err(error) => {
                assert!(self.cut, "{error}");
                self.seen_end = true;
            }
            Ok(0) => {
                self.seen_end = true;
                assert!(self.cut || (self.said_end && self.got == self.all), "{}", self.got);
            }
            Ok(_) => {}
        }
        true
    }
}

/// Sends, reads, ends, resets and urgent bytes at random moments, of a few connections at once.
fn anything(seed: u64) {
    let mut rng = FaultRng::new(seed);
    let faults = ["delay=1ms", "delay=1us", "loss=2%,reorder=2%,dup=1%,delay=1ms"];
    let faults = faults[rng.below(3) as usize];
    let memory = [512 << 10, 2 << 20, 48 << 20][rng.below(3) as usize];
    let (in_memory, small) = (rng.below(2) == 0, rng.below(3) == 0);
    // A reset may be lost; keepalive probes then end the wait.
    let second = Duration::from_secs(1);
    let keepalive = Some(KeepAlive { idle: second, interval: second, probes: 9 });
    let forward = ForwardConfig { stall_timeout: None, keepalive, ..ForwardConfig::default() };
    let mut line = Line::over(forward, faults, memory, |config| {
        config.tcp.keepalive = keepalive;
        if in_memory {
            (config.capabilities.mtu, config.capabilities.max_super_frame) = (61_512, 2_097_120);
        }
        if small {
            (config.tcp.send_buffer, config.tcp.send_buffer_initial) = (20_000, 20_000);
        }
    });
    let mut ways = Vec::new();
    for _ in 0..3 {
        let [ours, theirs] = line.connect();
        for (from, to) in [(ours, theirs), (theirs, ours)] {
            let all = 1 + rng.below(600_000);
            let (sent, got, cut) = (0, 0, false);
            let (said_end, seen_end) = (false, false);
            ways.push(Way { from, to, all, sent, got, said_end, seen_end, cut });
        }
    }
    for _ in 0..150 {
        let at = rng.below(6) as usize;
        match rng.below(100) {
            0..40 => drop(ways[at].say(&mut line, 1 + rng.below(100_000), false)),
            40..45 => drop(ways[at].say(&mut line, 1, true)),
            45..85 => drop(ways[at].hear(&mut line, 1 + rng.below(100_000) as usize)),
            85 if rng.below(4) == 0 => {
                let (node, id) = ways[at].from;
                for way in [at, at ^ 1] {
                    ways[way].cut = true;
                }
                let (stack, now) = line.stack(node);
                stack.abort(now, id);
            }
            _ => {}
        }
        line.drive(Duration::from_micros(rng.below(2) * rng.below(3000)));
        assert!(line.sim.node(line.proxy).stack.receive_memory_used() <= memory);
    }
    // Now both ends do all they can: nobody is forgotten.
    let limit = line.sim.now() + Duration::from_secs(60);
    while ways.iter().any(|way| !way.seen_end) {
        let mut moved = false;
        for way in &mut ways {
            moved |= way.say(&mut line, 200_000, false) | way.hear(&mut line, 1 << 20);
        }
        if !moved {
            line.drive(Duration::from_millis(1));
        }
        let left: Vec<_> = ways.iter().map(|w| (w.all, w.sent, w.got, w.cut, w.seen_end)).collect();
        assert!(line.sim.now() < limit, "seed {seed}, {faults}, {memory}: {left:?}");
    }
    for way in &ways {
        let (stack, now) = line.stack(way.to.0);
        stack.close(now, way.to.1);
    }
    line.drive(10 * second);
    assert!(line.proxy().is_empty(), "seed {seed}");
    let stack = &line.sim.node(line.proxy).stack;
    assert_eq!(stack.receive_memory_used(), 0, "seed {seed}");
}

#[test]
fn whatever_both_ends_do_all_that_was_sent_arrives_and_all_memory_comes_back() {
    for seed in 0..100 {
        anything(seed);
    }
}

/// Reads what has come within the next moment.
fn soon(line: &mut Line, end: End, got: &mut u64) {
    line.drive(Duration::from_micros(5));
    check(line, end, got).expect("it stands");
}

#[test]
fn over_links_in_memory_nothing_that_is_forwarded_waits_for_a_timer() {
    const MOST: Duration = Duration::from_millis(2);
    let mut rng = FaultRng::new(1);
    for send_buffer in [4 << 20, 100_000] {
        let mut line = Line::over(ForwardConfig::default(), "delay=1us", 48 << 20, |config| {
            (config.capabilities.mtu, config.capabilities.max_super_frame) = (61_512, 2_097_120);
            config.tcp.nagle = false;
            config.tcp.send_buffer = send_buffer;
            config.tcp.send_buffer_initial = config.tcp.send_buffer_initial.min(send_buffer);
        });
        let [ours, theirs] = line.connect();
        let ends = [ours, theirs];
        let (mut sent, mut got) = ([0; 2], [0; 2]);
        for turn in 0..600 {
            let side = turn % 2;
            let (from, to) = (ends[side], ends[1 - side]);
            for _ in 0..=rng.below(3) {
                let most = [2000, 130_000, 900_000][rng.below(3) as usize];
                let (end, begun) = (sent[side] + 1 + rng.below(most), line.sim.now());
                while got[side] < end {
                    while sent[side] < end {
                        let len = (end - sent[side]).min(200_000) as usize;
                        match line.send(from, sent[side], len) {
                            0 => break,
                            n => sent[side] += n,
                        }
                    }
                    // Another piece may follow while some is under way.
                    if sent[side] == end && rng.below(3) == 0 {
                        break;
                    }
                    soon(&mut line, to, &mut got[side]);
                    let took = line.sim.now().saturating_since(begun);
                    assert!(took < MOST, "{turn}: {took:?}, send buffer {send_buffer}");
                }
            }
            let begun = line.sim.now();
            while got[side] < sent[side] {
                soon(&mut line, to, &mut got[side]);
                let took = line.sim.now().saturating_since(begun);
                assert!(took < MOST, "{turn}: the end, {took:?}, send buffer {send_buffer}");
            }
        }
    }
}

/// A window that is closed because what came waits to be acknowledged elsewhere opens with that
/// acknowledgement: nobody has to probe for it.
#[test]
fn with_a_small_share_of_memory_nothing_that_is_forwarded_waits_for_a_timer() {
    const ALL: u64 = 5_000_000;
    for (mtu, max_super_frame) in [(1500, 65_535), (61_512, 2_097_120)] {
        for receive_memory in [1 << 20, 2 << 20, 3 << 20, 5 << 20, 8 << 20] {
            let mut line = Line::over(Default::default(), "delay=1us", receive_memory, |config| {
                (config.capabilities.mtu, config.capabilities.max_super_frame) =
                    (mtu, max_super_frame);
                config.tcp.nagle = false;
            });
            let [ours, theirs] = line.connect();
            let (mut sent, mut got, mut last) = (0, 0, line.sim.now());
            while got < ALL {
                while sent < ALL {
                    match line.send(ours, sent, 200_000.min((ALL - sent) as usize)) {
                        0 => break,
                        n => sent += n,
                    }
                }
                let before = got;
                soon(&mut line, theirs, &mut got);
                let now = line.sim.now();
                if got > before {
                    last = now;
                }
                let silence = now.saturating_since(last);
                let what = format!("{got} bytes, MTU {mtu}, {receive_memory} bytes of memory");
                assert!(silence < Duration::from_millis(100), "{silence:?} at {what}");
            }
        }
    }
}

#[test]
fn all_that_flows_can_be_reset_and_places_are_used_again() {
    let mut line = Line::usual();
    let proxy = line.proxy;
    for _ in 0..5 {
        let pairs: Vec<_> = (0..3).map(|_| line.connect()).collect();
        for &[ours, theirs] in &pairs {
            line.send(ours, 0, 200_000);
            line.send(theirs, 0, 200_000);
        }
        line.drive(Duration::from_micros(2500));
        let now = line.sim.now();
        let Station { stack, app, .. } = line.sim.node_mut(proxy);
        assert!(stack.receive_memory_used() > 0, "some is under way");
        app.proxy_mut().abort_all(now, stack);
        line.settle();
        for (node, id) in pairs.into_iter().flatten() {
            let (stack, now) = line.stack(node);
            assert_eq!(stack.take_error(id), Some(Error::ConnectionReset));
            stack.close(now, id);
        }
        assert!(line.proxy().is_empty());
        assert_eq!(line.sim.node(proxy).stack.receive_memory_used(), 0);
    }
}
