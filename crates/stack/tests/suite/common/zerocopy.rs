//! Sends by reference from A, and what becomes of them.

use std::time::Duration;

use bytes::Bytes;
use pagewire_mem::{Frag, FragVec};
use pagewire_stack::{Error, ErrorEntry, Notification, TcpId, ZeroCopyCall};

use super::{Pair, Verbs, pattern};

pub(crate) fn bytes(len: usize) -> Frag {
    Frag::from_bytes(Bytes::from(pattern(len)))
}

pub(crate) fn told(lo: u32, hi: u32, copied: bool) -> Option<ErrorEntry> {
    Some(ErrorEntry::ZeroCopy(Notification { lo, hi, copied }))
}

pub(crate) fn done(lo: u32, hi: u32) -> Option<ErrorEntry> {
    told(lo, hi, false)
}

/// Sends `frags` by reference, all of it, and says under which id.
pub(crate) fn try_send(
    p: &mut Pair,
    id: TcpId,
    frags: impl IntoIterator<Item = Frag>,
) -> Result<Option<u32>, Error> {
    let (mut frags, mut call) = (FragVec::from_iter(frags), ZeroCopyCall::new());
    p.a.send(p.now, id, (&mut frags, &mut call))?;
    assert!(frags.iter().all(Frag::is_empty), "not everything was taken");
    Ok(call.id())
}

/// Takes all that has arrived at B by copy, so that nothing refers to it any more.
pub(crate) fn read(p: &mut Pair, id: TcpId) -> Vec<u8> {
    let (mut all, mut buf) = (Vec::new(), vec![0; 65_536]);
    while let Ok(n @ 1..) = p.b.recv(p.now, id, &mut buf[..]) {
        all.extend_from_slice(&buf[..n]);
    }
    all
}

/// Lets everything arrive and be acknowledged and read.
pub(crate) fn settle(p: &mut Pair, server: TcpId) -> Vec<u8> {
    let mut all = Vec::new();
    for _ in 0..20 {
        p.run(Duration::from_millis(50));
        all.extend(read(p, server));
    }
    all
}

/// A connection whose client at A has opted in: (client, server).
pub(crate) fn opted_in(p: &mut Pair) -> (TcpId, TcpId) {
    let (client, server, _) = p.connect("10.0.0.2:80");
    p.a.set_zerocopy(client, true).unwrap();
    (client, server)
}

/// The same between two stacks of its own.
pub(crate) fn connected() -> (Pair, TcpId, TcpId) {
    let mut p = Pair::new();
    let (client, server) = opted_in(&mut p);
    (p, client, server)
}
