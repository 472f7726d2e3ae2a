//! Byte path, steps S1 and S7 for memory sent by reference with a notification: the contract of
//! Linux's MSG_ZEROCOPY.
//!
//! ```text
//!   tcp_send_zc --> Sends::begin: budgets, Completion --> send queue, frames, devices, receivers
//!                                                                |  last release, any thread
//!   poll_error_queue <-- error queue <-- drain_completions <-- CompletionQueue
//! ```
//!
//! Read [`ZeroCopyConfig`] (settings), then the verbs.

use core::time::Duration;
use std::sync::{Arc, Weak};

use pagewire_mem::{
    Charge, Completed, Completion, CompletionQueue, CopyReason, Frag, FragVec, Instant, PageBudget,
};
use pagewire_tcp::{Connection, Env, Merge, SendFlags, Seq};

use super::error_queue::ErrorQueue;
use super::handles::{Tcp, Udp};
use super::table::SocketId;
use super::udp_segments::UdpTarget;
use super::udp_send::joined;
use super::{Socket, Sockets};
use crate::error::Error;
use crate::event::{Notification, Readiness};
use crate::limits::{
    DEFAULT_NOTIFICATION_BYTES, MAX_SHARED_BYTES, MAX_SHARED_SENDS, NOTIFICATION_CHARGE,
    RECEIVED_DEADLINE,
};
use crate::stack::{Core, Stack};

/// Which notifications become one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coalescing {
    /// Those that follow each other and say the same about copies. Each send completes by itself,
    /// but for those that follow each other in memory, too: they complete together while the earlier
    /// one has bytes that were never sent, up to 512 KiB.
    #[default]
    SameKind,
    /// As Linux: all that follow each other; the oldest says whether there were copies. Sends that
    /// follow each other complete together while the earlier one has bytes that were never sent, up
    /// to 512 KiB; data of two completions does not share a segment.
    Linux,
}

/// Settings of zero-copy sends.
#[derive(Clone, Debug)]
pub struct ZeroCopyConfig {
    /// Pages that sends hold. Shared by all stacks of one user; no limit by default, because a
    /// stack cannot know the user's (`RLIMIT_MEMLOCK`).
    pub pages: Arc<PageBudget>,
    /// Bytes that one socket's notifications may take, those unread and those to come: 704 for
    /// each (Linux's `optmem_max`). 1 MiB by default.
    pub notification_bytes: usize,
    /// Which notifications become one, on sockets that have no setting of their own
    /// ([`Stack::set_coalescing`]).
    pub coalescing: Coalescing,
    /// Whether frames count as looped to a local receiver, which has private copies of what was
    /// sent by reference: what Linux does on a tun device, and tests against Linux's traces expect.
    pub looped_copy: bool,
    /// How long received memory that is a sender's own (the pair link passes it by reference) may
    /// wait to be read before it is replaced by a private copy, so that the sender gets it back;
    /// never more than twice as long. `None`: for ever. A second by default.
    pub received_deadline: Option<Duration>,
}

impl Default for ZeroCopyConfig {
    fn default() -> Self {
        Self {
            pages: Arc::new(PageBudget::new(usize::MAX)),
            notification_bytes: DEFAULT_NOTIFICATION_BYTES,
            coalescing: Coalescing::default(),
            looped_copy: false,
            received_deadline: Some(RECEIVED_DEADLINE),
        }
    }
}

/// One call that sends by reference, from try to try: a call that waits for room keeps it, so that
/// all of its data has one id. Until all of it is queued, it does not complete before this is dropped.
///
/// When nobody refers to the memory any more, a [`Notification`] of the call's id comes through
/// [`Stack::poll_error_queue`]. Each fragment stays one: a segment that has 17 of them is pushed, and
/// the next begins. Datagrams of one call ([`UdpTarget::segment`]) have one id.
///
/// On a socket that has not [opted in](Stack::set_zerocopy) the data is copied, and there is no
/// id. Memory that nothing keeps ([`Frag::lent`]) has to stay until the notification. If the
/// connection is closed first, the stack makes a private copy of what is not acknowledged (and
/// resets the connection if it has no pages for that); frames that are with the device by then,
/// and receivers that got it by reference, still refer to it.
///
/// Such a send may also meet [`Error::TooManyNotifications`] and [`Error::TooManyPagesHeld`] (both
/// `ENOBUFS`). A call that queues nothing takes no id.
#[derive(Debug, Default)]
pub struct ZeroCopyCall {
    completion: Option<Arc<Completion>>,
    id: Option<u32>,
}

impl ZeroCopyCall {
    /// A call that has sent nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The id under which the call completes, once something is queued; `None` on a socket that has
    /// not opted in, and for a call of no bytes.
    pub fn id(&self) -> Option<u32> {
        self.id
    }
}

/// What a socket has sent by reference.
#[derive(Default)]
pub(super) struct Sends {
    next_id: u32,
    /// Completions to come.
    live: usize,
    /// The last one, and how many bytes it covers.
    last: Weak<Completion>,
    last_bytes: usize,
    /// Sequence number behind its last byte.
    last_end: Option<Seq>,
    /// Some of the memory was the caller's.
    lends: bool,
    /// Which notifications become one; `None`: as the stack's settings say.
    coalescing: Option<Coalescing>,
}

/// What adds a call's memory to the fragment that was queued last, and returns the call's id.
type Grow<'a> = &'a mut dyn FnMut(&mut Frag) -> Option<u32>;

/// A send that may still fail.
struct Begun {
    completion: Arc<Completion>,
    charge: Charge,
    id: u32,
    joined: bool,
}

impl Begun {
    /// Nothing was queued: the id is as if never taken.
    fn give_up(self) {
        self.completion.leave();
    }
}

impl ErrorQueue {
    /// Prepares a call of `bytes` bytes. With `shared`, it may complete together with the last one.
    fn begin_send(
        &mut self,
        config: &ZeroCopyConfig,
        queue: &Arc<CompletionQueue>,
        owner: SocketId,
        bytes: usize,
        shared: bool,
    ) -> Result<Begun, Error> {
        let unread = self.unread();
        let sends = &mut self.sends;
        let charge = || config.pages.charge(bytes).ok_or(Error::TooManyPagesHeld);
        if shared
            && let Some(last) = sends.last.upgrade()
            && sends.may_share(&last, bytes)
        {
            let charge = charge()?;
            let id = last.join();
            return Ok(Begun { completion: last, charge, id, joined: true });
        }
        let taken = (sends.live + unread + 1).saturating_mul(NOTIFICATION_CHARGE);
        if taken > config.notification_bytes {
            return Err(Error::TooManyNotifications);
        }
        let (charge, id) = (charge()?, sends.next_id);
        let completion = Completion::new(queue, owner.token(), id);
        Ok(Begun { completion, charge, id, joined: false })
    }
}

impl ErrorQueue {
    /// Whether memory of the caller's was sent.
    pub(super) fn lends(&self) -> bool {
        self.sends.lends
    }

    /// What of its socket becomes one.
    fn coalescing(&self, config: &ZeroCopyConfig) -> Coalescing {
        self.sends.coalescing.unwrap_or(config.coalescing)
    }
}

impl Sends {
    /// Whether `next` goes on in memory where the last send ended.
    fn is_continued_by(&self, next: Option<&Frag>) -> bool {
        let last = self.last.upgrade();
        last.zip(next).is_some_and(|(last, next)| last.is_continued_by(next))
    }

    /// Whether this is the completion of the last send.
    fn is_last(&self, completion: &Completion) -> bool {
        // It lives, so no other has its address.
        core::ptr::eq(self.last.as_ptr(), completion)
    }

    /// Whether a call of `bytes` more bytes may complete together with the last one.
    fn may_share(&self, last: &Completion, bytes: usize) -> bool {
        self.last_bytes.saturating_add(bytes) <= MAX_SHARED_BYTES
            && last.count() < MAX_SHARED_SENDS
            && last.next_id() == self.next_id
    }

    /// Something was queued: the id is taken.
    fn commit(&mut self, begun: Begun, bytes: usize, call: &mut ZeroCopyCall) {
        begun.completion.charge(begun.charge);
        self.next_id = begun.id.wrapping_add(1);
        if begun.joined {
            self.last_bytes = self.last_bytes.saturating_add(bytes);
        } else {
            self.live += 1;
            self.last = Arc::downgrade(&begun.completion);
            self.last_bytes = bytes;
        }
        self.lends |= begun.completion.lends();
        call.id = Some(begun.id);
        call.completion = Some(begun.completion);
    }
}

/// Verbs of the application.
impl Stack {
    /// Opts a socket in to zero-copy sends, or out again: sends made before still complete. A
    /// listener's connections have what it had when they came.
    pub fn set_zerocopy(&mut self, id: impl Into<SocketId>, on: bool) -> Result<(), Error> {
        match self.core.sockets.table.get_mut(id.into())? {
            Socket::Tcp(socket) => socket.zerocopy = on,
            Socket::Listener(socket) => socket.zerocopy = on,
            Socket::Udp(socket) => socket.zerocopy = on,
            Socket::TimeWait(_) => {}
        }
        Ok(())
    }

    /// Which notifications of a connection or a datagram socket become one from now on, whatever the
    /// stack's settings say: for layers that promise their callers what Linux does.
    ///
    /// # Errors
    /// `NotSupported` for a listener.
    pub fn set_coalescing(
        &mut self,
        id: impl Into<SocketId>,
        coalescing: Coalescing,
    ) -> Result<(), Error> {
        let errors = match self.core.sockets.table.get_mut(id.into())? {
            Socket::Tcp(socket) => {
                socket.extra.get_or_insert_default().errors.get_or_insert_default()
            }
            Socket::Udp(socket) => socket.errors.get_or_insert_default(),
            Socket::Listener(_) | Socket::TimeWait(_) => return Err(Error::NotSupported),
        };
        errors.sends.coalescing = Some(coalescing);
        Ok(())
    }

    /// Whether a socket has opted in.
    pub fn zerocopy(&self, id: impl Into<SocketId>) -> Result<bool, Error> {
        Ok(match self.core.sockets.table.get(id.into())? {
            Socket::Tcp(socket) => socket.zerocopy,
            Socket::Listener(socket) => socket.zerocopy,
            Socket::Udp(socket) => socket.zerocopy,
            Socket::TimeWait(_) => false,
        })
    }

    /// Takes the oldest notification of the socket, whatever else its error queue has.
    pub fn poll_notification(&mut self, id: impl Into<SocketId>) -> Option<Notification> {
        let id = id.into();
        self.core.drain_completions();
        let notification =
            self.core.sockets.table.get_mut(id).ok()?.errors_mut()?.pop_notification()?;
        self.core.sockets.after_error_read(id);
        Some(notification)
    }

    /// Notifications that are to come on a socket, those not read left out.
    pub fn sends_outstanding(&self, id: impl Into<SocketId>) -> Result<usize, Error> {
        Ok(self.core.sockets.table.get(id.into())?.errors().map_or(0, |errors| errors.sends.live))
    }

    /// The queue through which completions come home: whoever drives this stack has itself woken
    /// by it ([`CompletionQueue::set_waker`]) when another thread lets go of memory.
    pub fn completions(&self) -> &Arc<CompletionQueue> {
        &self.core.sockets.work.completions
    }
}

impl Tcp<'_> {
    /// Queues memory with a notification, see [`ZeroCopyCall`].
    pub(super) fn send_lent(
        &mut self,
        now: Instant,
        frags: &mut FragVec,
        call: &mut ZeroCopyCall,
        flags: SendFlags,
    ) -> Result<usize, Error> {
        let behind = |conn: &mut Connection, len, grow: Grow<'_>| conn.extend_last(now, len, grow);
        if flags.is_empty()
            && let Some(len) = self.join_last_send(frags, call, behind)
        {
            self.after_queueing();
            return Ok(len);
        }
        let len = total(frags);
        let socket = &mut *self.socket;
        if len == 0 || socket.conn.room_for(1) == 0 {
            // No room, or an error, and nothing to give an id to.
            let mut nothing = FragVec::new();
            return self.with(now, |conn, env| conn.send(env, &mut nothing, SendFlags::empty()));
        }
        if !socket.zerocopy && call.completion.is_none() {
            return self.send_copied(now, frags, flags);
        }
        let config = &self.work.zerocopy;
        let errors = socket.extra.get_or_insert_default().errors.get_or_insert_default();
        let linux = errors.coalescing(config) == Coalescing::Linux;
        // Bytes of the last completion that were never sent: what follows can share a segment.
        let open = call.completion.is_none()
            && errors.sends.last_end.is_some_and(|end| socket.conn.send_next().lt(end))
            && errors.sends.last.strong_count() > 0;
        let shared = open && (linux || errors.sends.is_continued_by(frags.first()));
        let begun = match &call.completion {
            Some(_) => None,
            None => {
                Some(errors.begin_send(config, &self.work.completions, self.id, len, shared)?)
            }
        };
        let Some(completion) =
            begun.as_ref().map(|b| &b.completion).or(call.completion.as_ref()).map(Arc::clone)
        else {
            return Err(Error::InvalidInput);
        };
        let merge = match &begun {
            Some(begun) if linux && open && !begun.joined => Merge::NewSegment,
            _ if linux => Merge::Never,
            // Pieces of their own do not join.
            _ => Merge::Adjacent,
        };
        // What comes first may go on where the send before ended, or the last try of this one.
        let mut behind = !linux && begun.as_ref().is_none_or(|begun| begun.joined);
        // As Linux: what goes along with a SYN is copied, because the memory would be held until
        // somebody answers, or nobody does.
        let with_syn = socket.conn.fast_open().is_deferred();
        let attach = |conn: &mut Connection, env: &mut Env<'_>| {
            let attach = |env: &mut Env<'_>, part: Frag| -> FragVec {
                if !with_syn {
                    let attached = match core::mem::take(&mut behind) {
                        true => completion.attach_behind(part),
                        false => completion.attach(part),
                    };
                    return FragVec::from_iter([attached]);
                }
                completion.mark_copied();
                let Env { writer, pool, ledger, .. } = env;
                let copies = writer.write_frag(pool, &part, ledger, CopyReason::AppWrite).0;
                copies.into_iter().map(|copy| completion.attach(copy)).collect()
            };
            conn.send_with(env, frags, merge, flags, attach)
        };
        let sent = self.with_sender(now, attach);
        self.note_sent(begun, &completion, call, len, matches!(sent, Ok(n) if n > 0));
        self.unless_starved(now, sent)
    }

    /// A call of `len` bytes has queued something or nothing, under a completion that it has begun or had
    /// before.
    fn note_sent(
        &mut self,
        begun: Option<Begun>,
        completion: &Completion,
        call: &mut ZeroCopyCall,
        len: usize,
        queued: bool,
    ) {
        let socket = &mut *self.socket;
        let end = socket.conn.send_end();
        let sends = socket.extra.as_mut().and_then(|e| e.errors.as_mut()).map(|e| &mut e.sends);
        match (begun, sends) {
            (Some(begun), Some(sends)) if queued => {
                sends.commit(begun, len, call);
                sends.last_end = Some(end);
            }
            (Some(begun), _) => begun.give_up(),
            (None, Some(sends)) => {
                sends.last_end = Some(end);
                sends.lends |= completion.lends();
            }
            (None, None) => {}
        }
    }

    /// Queues all of one fragment, if it only adds to what waits to become a full segment, and goes on
    /// in memory where the last call ended: nothing follows from it, and no clock is needed. `None`: it
    /// has to be sent as any other.
    #[inline]
    pub(super) fn collect_lent(
        &mut self,
        frags: &mut FragVec,
        call: &mut ZeroCopyCall,
    ) -> Option<usize> {
        let behind = |conn: &mut Connection, len, grow: Grow<'_>| conn.coalesce(len, grow);
        self.join_last_send(frags, call, behind)
    }

    /// One more call, of one fragment, completes together with the last, whose memory the fragment
    /// continues, if `send` can queue it behind that.
    fn join_last_send(
        &mut self,
        frags: &mut FragVec,
        call: &mut ZeroCopyCall,
        send: impl FnOnce(&mut Connection, usize, Grow<'_>) -> Option<u32>,
    ) -> Option<usize> {
        let [frag] = frags.as_mut_slice() else { return None };
        let config = &self.work.zerocopy;
        let socket = &mut *self.socket;
        let plain = socket.zerocopy && socket.forwards.is_none() && call.id.is_none();
        let errors = socket.extra.as_mut()?.errors.as_mut()?;
        if !plain || errors.coalescing(config) == Coalescing::Linux {
            return None;
        }
        let sends = &mut errors.sends;
        let len = frag.len();
        let mut grow = |last: &mut Frag| {
            let completion = last.completion()?;
            let shares = sends.is_last(completion) && sends.may_share(completion, len);
            shares.then(|| last.join_call(frag, &config.pages))?
        };
        let joined = send(&mut socket.conn, len, &mut grow)?;
        frags.pop();
        sends.next_id = joined.wrapping_add(1);
        sends.last_bytes += len;
        sends.last_end = Some(socket.conn.send_end());
        call.id = Some(joined);
        Some(len)
    }

    /// There was room, but no page for a copy: the socket waits for pages.
    fn unless_starved(&mut self, now: Instant, sent: Result<usize, Error>) -> Result<usize, Error> {
        if sent == Ok(0) {
            self.starve(now);
            return Err(Error::WouldBlock);
        }
        sent
    }

    /// Queues private copies of the fragments, as far as there is room.
    fn send_copied(
        &mut self,
        now: Instant,
        frags: &mut FragVec,
        flags: SendFlags,
    ) -> Result<usize, Error> {
        let copy = |env: &mut Env<'_>, part: Frag| {
            env.writer.write_frag(env.pool, &part, env.ledger, CopyReason::AppWrite).0
        };
        let copied = self
            .with_sender(now, |conn, env| conn.send_with(env, frags, Merge::Adjacent, flags, copy));
        self.unless_starved(now, copied)
    }
}

impl Udp<'_> {
    /// Sends a datagram by reference with a notification, see [`ZeroCopyCall`].
    pub(super) fn send_lent(
        &mut self,
        now: Instant,
        data: FragVec,
        call: &mut ZeroCopyCall,
        to: UdpTarget,
    ) -> Result<usize, Error> {
        let len = total(&data);
        let ends = self.ends(to, len)?;
        if len == 0 || !self.socket.zerocopy {
            let data = joined(self.mem, &data, len, CopyReason::AppWrite)?;
            return self.put(now, (ends, to.more), data, len);
        }
        let (config, queue) = (&self.work.zerocopy, &self.work.completions);
        let errors = self.socket.errors.get_or_insert_default();
        // As Linux: what becomes one datagram completes together.
        let shared = errors.coalescing(config) == Coalescing::Linux && self.socket.cork.is_some();
        let begun = errors.begin_send(config, queue, self.id, len, shared)?;
        let data = data.into_iter().map(|frag| begun.completion.attach(frag)).collect();
        let sent = self.put(now, (ends, to.more), data, len);
        match (&sent, &mut self.socket.errors) {
            (Ok(_), Some(errors)) => errors.sends.commit(begun, len, call),
            _ => begun.give_up(),
        }
        sent
    }
}

impl Core {
    /// Moves what was let go since the last time to the error queues of its sockets.
    #[inline]
    pub(crate) fn drain_completions(&mut self) {
        if self.sockets.work.completions.is_pending() {
            self.sockets.drain_completions();
        }
    }
}

impl Sockets {
    #[cold]
    fn drain_completions(&mut self) {
        let mut drained = core::mem::take(&mut self.drained);
        self.work.completions.drain(&mut drained);
        for done in drained.drain(..) {
            self.completed(done);
        }
        self.drained = drained;
    }

    /// Tells the owner, if it is still there, that memory was let go.
    fn completed(&mut self, done: Completed) {
        let id = SocketId::from_token(done.owner);
        let Some(errors) = self.table.get_mut(id).ok().and_then(Socket::errors_mut) else { return };
        let coalescing = errors.coalescing(&self.work.zerocopy);
        errors.sends.live = errors.sends.live.saturating_sub(1);
        let Completed { lo, hi, copied, .. } = done;
        errors.notify(Notification { lo, hi, copied }, coalescing);
        self.report_news(id.index());
    }

    /// An entry of the error queue was taken: if there are more, they are reported again.
    pub(crate) fn after_error_read(&mut self, id: SocketId) {
        let Ok(socket) = self.table.get_mut(id) else { return };
        let left = socket.errors_mut().is_some_and(|errors| !errors.is_empty());
        if left {
            self.report_again(id, Readiness::ERROR_QUEUE);
        } else {
            let readiness = socket.readiness();
            if let Some((_, reported)) = socket.report_state() {
                *reported &= readiness;
            }
        }
    }
}

fn total(frags: &FragVec) -> usize {
    frags.iter().map(Frag::len).sum()
}

#[cfg(test)]
#[path = "zerocopy_tests.rs"]
mod tests;
