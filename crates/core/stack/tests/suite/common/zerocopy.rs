//! Kit for zero-copy tests: sends by reference from A, and their notifications.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use pagewire_mem::{Frag, FragVec, Instant, PageBudget};
use pagewire_stack::{
    Coalescing, Error, ErrorEntry, Notification, Stack, TcpId, UdpId, UdpTarget, ZeroCopyCall,
};

use super::{Pair, Verbs, capabilities, config, pattern};

pub(crate) fn bytes(len: usize) -> Frag {
    Frag::from_bytes(Bytes::from(pattern(len)))
}

pub(crate) fn told(lo: u32, hi: u32, copied: bool) -> Option<ErrorEntry> {
    Some(ErrorEntry::ZeroCopy(Notification { lo, hi, copied }))
}

pub(crate) fn done(lo: u32, hi: u32) -> Option<ErrorEntry> {
    told(lo, hi, false)
}

pub(crate) fn copied(lo: u32, hi: u32) -> Option<ErrorEntry> {
    told(lo, hi, true)
}

/// Buffers, and how many of them were released.
#[derive(Default)]
pub(crate) struct Buffers {
    made: Cell<u64>,
    live: Live,
}

impl Buffers {
    pub(crate) fn make(&self, len: usize) -> Frag {
        let number = self.made.replace(self.made.get() + 1);
        self.live.lock().unwrap().insert(number, 1);
        Frag::from_bytes(Bytes::from_owner(Noted(pattern(len), number, Arc::clone(&self.live))))
    }

    /// Fails if one is released twice.
    pub(crate) fn released(&self) -> usize {
        self.made.get() as usize - self.live.lock().unwrap().len()
    }
}

/// Buffers that somebody refers to, by call.
pub(crate) type Live = Arc<Mutex<BTreeMap<u64, usize>>>;

/// Two stacks that have met. A pins pages of `budget`, and queues up to `notifications` notifications.
pub(crate) fn pair(
    linux: bool,
    looped: bool,
    budget: &Arc<PageBudget>,
    notifications: usize,
) -> Pair {
    let mut a = config(capabilities(1), 1);
    a.zerocopy.coalescing = if linux { Coalescing::Linux } else { Coalescing::SameKind };
    a.zerocopy.looped_copy = looped;
    a.zerocopy.pages = Arc::clone(budget);
    a.zerocopy.notification_bytes = notifications * 704;
    let mut p = Pair::with(a, config(capabilities(2), 2));
    p.meet();
    p
}

/// Strikes off the calls (by id) that are reported: each is reported once, when nobody refers to it.
pub(crate) fn tell(done: Notification, outstanding: &mut BTreeMap<u32, u64>, live: &Live) {
    assert!(done.lo <= done.hi);
    for id in done.lo..=done.hi {
        let call = outstanding.remove(&id);
        let call = call.unwrap_or_else(|| panic!("{id} is told twice"));
        assert!(!live.lock().unwrap().contains_key(&call), "{id} is told, and referred to");
    }
}

/// A buffer that notes its release, and is overwritten by it, so that a later read shows.
pub(crate) struct Noted(pub(crate) Vec<u8>, pub(crate) u64, pub(crate) Live);

impl AsRef<[u8]> for Noted {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        self.0.fill(0xee);
        let mut live = self.2.lock().unwrap();
        let count = live.get_mut(&self.1).expect("it was live");
        *count -= 1;
        if *count == 0 {
            live.remove(&self.1);
        }
    }
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

/// Sends a datagram by reference: how much of it, and under which id.
pub(crate) fn send_to(
    stack: &mut Stack,
    now: Instant,
    id: UdpId,
    data: impl IntoIterator<Item = Frag>,
    to: impl Into<UdpTarget>,
) -> Result<(usize, Option<u32>), Error> {
    let mut call = ZeroCopyCall::new();
    let data = FragVec::from_iter(data);
    let sent = stack.udp(id)?.send(now, (data, &mut call), to)?;
    Ok((sent, call.id()))
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
