//! Variant of step S1 for memory sent by reference with a notification, and the end of step S7, where
//! the notification reaches the socket: the contract of Linux's MSG_ZEROCOPY.
//!
//! ```text
//!   send --> ErrorQueue::begin_send: budgets, Completion --> send queue, frames, devices, receivers
//!                                                                |  last release, any thread
//!   poll_error_queue <-- error queue <-- drain_completions <-- CompletionQueue
//! ```

pub(crate) mod borrowed;
pub(crate) mod sends;

use std::sync::Arc;

use pagewire_mem::{Completed, Completion, CopyReason, Frag, FragVec, Instant};
use pagewire_tcp::{Connection, Env, Merge, SendFlags};

use super::ids::SocketId;
use super::table::Socket;
use super::{Tcp, Udp};
use crate::config::Coalescing;
use crate::error::Error;
use crate::event::{Notification, Readiness};
use crate::sockets::Context;
use crate::sockets::udp::send::joined;
use crate::sockets::udp::target::UdpTarget;
use sends::{BegunSend, ZeroCopyCall};

/// Adds a call's memory to the fragment that was queued last, and returns the call's id.
type Grow<'a> = &'a mut dyn FnMut(&mut Frag) -> Option<u32>;

impl Tcp<'_> {
    /// Queues memory with a notification, see [`ZeroCopyCall`].
    pub(super) fn send_by_reference(
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
            // No room, or an error: there is nothing that needs an id.
            let mut nothing = FragVec::new();
            return self.with(now, |conn, env| conn.send(env, &mut nothing, SendFlags::empty()));
        }
        if !socket.reporting.zerocopy && call.completion.is_none() {
            return self.send_copied(now, frags, flags);
        }
        let config = &self.work.zerocopy;
        let errors = socket.extra.get_or_insert_default().errors.get_or_insert_default();
        let linux = errors.coalescing(config) == Coalescing::Linux;
        // The last completion has unsent bytes: the next bytes can share a segment with them.
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
            // Super-segments with completions of their own do not merge.
            _ => Merge::Adjacent,
        };
        // The first fragment may continue the memory of the call before, or of the last try of this call.
        let mut behind = !linux && begun.as_ref().is_none_or(|begun| begun.joined);
        // As Linux: data on a SYN is copied, because its memory would be held for long.
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
        self.or_wait_for_pages(now, sent)
    }

    /// Records whether a call of `len` bytes has queued something.
    fn note_sent(
        &mut self,
        begun: Option<BegunSend>,
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

    /// Queues one fragment that only adds to coalescing data and continues the last call in memory.
    #[inline]
    pub(super) fn coalesce_by_reference(
        &mut self,
        frags: &mut FragVec,
        call: &mut ZeroCopyCall,
    ) -> Option<usize> {
        let behind = |conn: &mut Connection, len, grow: Grow<'_>| conn.coalesce(len, grow);
        self.join_last_send(frags, call, behind)
    }

    /// Makes a call of one fragment, which continues the last call's memory, complete with it.
    fn join_last_send(
        &mut self,
        frags: &mut FragVec,
        call: &mut ZeroCopyCall,
        send: impl FnOnce(&mut Connection, usize, Grow<'_>) -> Option<u32>,
    ) -> Option<usize> {
        let [frag] = frags.as_mut_slice() else { return None };
        let config = &self.work.zerocopy;
        let socket = &mut *self.socket;
        let plain = socket.reporting.zerocopy && socket.forwarding.is_none() && call.id.is_none();
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

    /// Waits for pages if there was room, but no free page for a copy.
    fn or_wait_for_pages(
        &mut self,
        now: Instant,
        sent: Result<usize, Error>,
    ) -> Result<usize, Error> {
        if sent == Ok(0) {
            self.wait_for_pages(now);
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
        let wanted = total(frags);
        let Some(share) = self.share(now, wanted) else {
            // A connection that cannot send at all has an error of its own.
            let nothing = self.with_sender(now, |conn, env| conn.write(env, &[], flags));
            return nothing.and(Err(Error::WouldBlock));
        };
        let mut left = share;
        let copy = |env: &mut Env<'_>, part: Frag| {
            let part = part.slice(0..left.min(part.len()));
            let copies = env.writer.write_frag(env.pool, &part, env.ledger, CopyReason::AppWrite).0;
            left -= total(&copies);
            copies
        };
        let copied = self
            .with_sender(now, |conn, env| conn.send_with(env, frags, Merge::Adjacent, flags, copy));
        self.after_share(share, wanted);
        self.or_wait_for_pages(now, copied)
    }
}

impl Udp<'_> {
    /// Sends a datagram by reference with a notification, see [`ZeroCopyCall`].
    pub(super) fn send_by_reference(
        &mut self,
        now: Instant,
        data: FragVec,
        call: &mut ZeroCopyCall,
        to: UdpTarget,
    ) -> Result<usize, Error> {
        let len = total(&data);
        let ends = self.spec_for(to, len)?;
        if len == 0 || !self.socket.reporting.zerocopy {
            let data = joined(&mut self.net.mem, &data, len, CopyReason::AppWrite)?;
            return self.put(now, (ends, to.more), data, len);
        }
        let (config, queue) = (&self.work.zerocopy, &self.work.completions);
        let errors = self.socket.errors.get_or_insert_default();
        // As Linux: calls that make one datagram complete together.
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

impl Context {
    /// Moves completions to the error queues of their sockets.
    #[inline]
    pub(crate) fn drain_completions(&mut self) {
        if self.work.completions.is_pending() {
            self.drain_pending();
        }
    }

    #[cold]
    fn drain_pending(&mut self) {
        let mut drained = core::mem::take(&mut self.drained);
        self.work.completions.drain(&mut drained);
        for done in drained.drain(..) {
            self.completed(done);
        }
        self.drained = drained;
    }

    /// Adds a notification to the socket's error queue, if the socket is still there.
    fn completed(&mut self, done: Completed) {
        let id = SocketId::from_token(done.owner);
        let Some(errors) = self.table.get_mut(id).ok().and_then(Socket::errors_mut) else { return };
        let coalescing = errors.coalescing(&self.work.zerocopy);
        errors.sends.live = errors.sends.live.saturating_sub(1);
        let Completed { lo, hi, copied, .. } = done;
        errors.notify(Notification { lo, hi, copied }, coalescing);
        self.report_new_entry(id.index());
    }

    /// An entry of the error queue was taken: reports again if there are more.
    pub(crate) fn after_error_read(&mut self, id: SocketId) {
        let Ok(socket) = self.table.get_mut(id) else { return };
        let left = socket.errors_mut().is_some_and(|errors| !errors.is_empty());
        if left {
            self.report_again(id, Readiness::ERROR_QUEUE);
        } else {
            let readiness = socket.readiness();
            if let Some(reporting) = socket.reporting() {
                reporting.reported &= readiness;
            }
        }
    }
}

fn total(frags: &FragVec) -> usize {
    frags.iter().map(Frag::len).sum()
}

#[cfg(test)]
mod tests;
