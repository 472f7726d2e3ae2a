//! Kit with a gateway: a guest (A) whose default route leads to a gateway (B) with a transparent link.
#![allow(dead_code, reason = "each program uses what it needs")]

use std::cell::Cell;
use std::net::SocketAddrV4;
use std::rc::Rc;
use std::time::Duration;

use pagewire_mem::{Instant, PacketBuf};
use pagewire_stack::{
    Answer, BindOptions, Cancel, LinkId, ListenerId, RequestId, StackConfig, SynEvent, SynRequest,
    TcpId,
};
use pagewire_tcp::{Flags, Seq, TcpHeader, TcpOptions};

use super::forge;
use super::{B, Pair, addr, capabilities, config};
use crate::common::Verbs;

/// Somewhere in the world, by both versions.
pub(crate) const FAR: [&str; 2] = ["192.0.2.1:80", "[2001:db8::1]:80"];

pub(crate) fn guest() -> StackConfig {
    let mut a = config(capabilities(1), 1);
    a.gateways = vec!["10.0.0.2".parse().unwrap(), "fd00::2".parse().unwrap()];
    a
}

pub(crate) fn gateway() -> StackConfig {
    let mut b = config(capabilities(2), 2);
    b.transparent = true;
    b
}

/// A guest and its gateway, which know each other.
pub(crate) fn pair() -> Pair {
    let mut p = Pair::with(guest(), gateway());
    greet(&mut p);
    p
}

/// Has the two learn each other's link addresses, and nothing else.
pub(crate) fn greet(p: &mut Pair) {
    for (from, to) in [("10.0.0.1:9", "10.0.0.2:9"), ("[fd00::1]:9", "[fd00::2]:9")] {
        let one = p.a.bind_udp(addr(from), BindOptions::default()).unwrap();
        let other = p.b.bind_udp(addr(to), BindOptions::default()).unwrap();
        p.a.send_to(p.now, one, b"hello", Some(addr(to))).unwrap();
        p.run(Duration::from_millis(1));
        p.b.send_to(p.now, other, b"hello", Some(addr(from))).unwrap();
        p.run(Duration::from_millis(1));
        p.a.close(p.now, one);
        p.b.close(p.now, other);
    }
    p.events.clear();
}

/// Nothing is due at the gateway, once its neighbours are forgotten, and ever.
pub(crate) fn assert_no_timer(p: &mut Pair) {
    p.run(Duration::from_secs(2000));
    assert_eq!(p.b.poll_timeout(), None, "a timer is left");
}

/// The same, with a listener for everything.
pub(crate) fn asking() -> (Pair, ListenerId) {
    let mut p = pair();
    let listener = p.b.listen_every(LinkId::FIRST).unwrap();
    (p, listener)
}

/// The same, after the guest has begun to connect to `to` and that is shown: the guest's connection, and
/// the request.
pub(crate) fn asked(to: &str) -> (Pair, ListenerId, TcpId, SynRequest) {
    let (mut p, listener) = asking();
    let client = p.a.connect(p.now, addr(to), None).unwrap();
    p.run(Duration::from_millis(1));
    let request = only_request(&mut p, listener);
    (p, listener, client, request)
}

/// The events of the listener's requests.
pub(crate) fn events(p: &mut Pair, listener: ListenerId) -> Vec<SynEvent> {
    let mut listener = p.b.listener(listener).unwrap();
    std::iter::from_fn(|| listener.poll_request()).collect()
}

/// The only event, which is a new request.
pub(crate) fn only_request(p: &mut Pair, listener: ListenerId) -> SynRequest {
    match events(p, listener)[..] {
        [SynEvent::New(request)] => request,
        ref other => panic!("{other:?}"),
    }
}

/// The only event, which is the end of a request.
pub(crate) fn only_end(p: &mut Pair, listener: ListenerId) -> (RequestId, Cancel) {
    match events(p, listener)[..] {
        [SynEvent::Cancelled(id, why)] => (id, why),
        ref other => panic!("{other:?}"),
    }
}

pub(crate) fn answer(
    p: &mut Pair,
    listener: ListenerId,
    id: RequestId,
    answer: Answer,
) -> Option<TcpId> {
    p.b.listener(listener).unwrap().answer(p.now, id, answer).unwrap()
}

/// The number of the segment that the gateway sends next. It is lost, and so are those behind it.
pub(crate) fn lost_seq(p: &mut Pair) -> u32 {
    let seen = Rc::new(Cell::new(None));
    let noted = Rc::clone(&seen);
    p.carry = Some(Box::new(move |side, frame| match forge::parse(frame) {
        Some((_, _, header)) if side == B => {
            noted.set(Some(header.seq.0));
            false
        }
        _ => true,
    }));
    p.until("a segment", |_| seen.get().is_some());
    seen.get().unwrap()
}

/// The guest's address.
pub(crate) fn guest_at(port: u16) -> SocketAddrV4 {
    SocketAddrV4::new([10, 0, 0, 1].into(), port)
}

pub(crate) fn far_v4() -> SocketAddrV4 {
    "192.0.2.1:80".parse().unwrap()
}

/// A segment from the guest, as a program with raw sockets would send it.
pub(crate) fn segment(port: u16, flags: Flags, seq: u32) -> PacketBuf {
    let options = TcpOptions { mss: Some(1460), ..TcpOptions::default() };
    let options = if flags.contains(Flags::SYN) { options } else { TcpOptions::default() };
    let header =
        TcpHeader { seq: Seq(seq), flags, window: 65_535, options, ..TcpHeader::default() };
    forge::frame(2, guest_at(port), far_v4(), header)
}

pub(crate) fn syn(port: u16, seq: u32) -> PacketBuf {
    segment(port, Flags::SYN, seq)
}

/// Hands a frame to the gateway.
pub(crate) fn arrive(p: &mut Pair, frame: PacketBuf) {
    arrive_at(p, p.now, frame);
}

/// The same after virtual time has passed to a moment.
pub(crate) fn arrive_at(p: &mut Pair, at: Instant, frame: PacketBuf) {
    p.run(at.saturating_since(p.now));
    p.b.handle_frame(p.now, frame);
}

/// The request that a frame from the guest makes.
pub(crate) fn asks(p: &mut Pair, listener: ListenerId, frame: PacketBuf) -> SynRequest {
    arrive(p, frame);
    only_request(p, listener)
}
