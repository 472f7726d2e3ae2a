//! Submissions: checked field by field, and refused if they are invalid.

use std::net::{Shutdown, SocketAddr};

use pagewire_mem::{Completion as Hold, Frag, FragVec, Instant};
use pagewire_stack::{Error, Readiness, SendFlags, Stack};

use super::park::RoomKind;
use super::{
    Accept, EBADF, EBUSY, ECANCELED, EFAULT, EINVAL, ENOBUFS, ENOENT, EOPNOTSUPP, Endpoint, Engine,
    Receive, RoomNeed, Send, Served, Socket, SocketKind,
};
use crate::layout::{COPY_GROUP, Completion, Op, Submission};
use crate::limits::{MAX_SEND_BYTES, MAX_SENDS};

/// The answer to a submission: none yet, or a result.
pub(super) type Answer = Result<Option<i32>, i32>;

/// Checks the fields of a submission; returns whether it is multishot, and its address.
fn check(op: Op, submission: &Submission) -> Result<(bool, Option<SocketAddr>), i32> {
    let Submission { flags, group, reserved, address, reserved_word, .. } = *submission;
    let multishot = flags & Submission::MULTISHOT != 0;
    let takes_address = matches!(op, Op::Connect | Op::Bind | Op::Send);
    if reserved != 0
        || reserved_word != 0
        || flags & !Submission::MULTISHOT != 0
        || multishot && !matches!(op, Op::Accept | Op::Receive)
        || group != COPY_GROUP && !matches!(op, Op::Receive | Op::Send)
        || !(address.is_none() || takes_address && address.socket().is_some())
    {
        return Err(EINVAL);
    }
    Ok((multishot, address.socket()))
}

impl Engine {
    /// Takes submissions as long as there is room to answer them.
    pub(super) fn submit(&mut self, now: Instant, stack: &mut Stack) {
        for _ in 0..self.submissions.capacity() {
            if !self.can_answer() {
                break;
            }
            let Some(submission) = self.submissions.pop() else { break };
            self.counters.submissions += 1;
            let answer = self.execute(now, stack, submission);
            let result = match answer {
                Ok(None) => continue,
                Ok(Some(result)) => result,
                Err(errno) => {
                    let refused = matches!(errno, EINVAL | EBADF | EFAULT | EOPNOTSUPP);
                    self.counters.submissions_refused += u64::from(refused);
                    -errno
                }
            };
            let (user_data, handle) = (submission.user_data, submission.target);
            self.post(Completion { user_data, result, handle, ..Completion::default() });
        }
        self.submissions.release();
    }

    /// Whether there is room to answer a submission.
    pub(super) fn can_answer(&mut self) -> bool {
        // Room for the answer and for the operations that a close or a cancel ends; completions that
        // wait come first.
        self.completions.free() >= 4 && self.waiting.is_empty()
    }

    fn execute(&mut self, now: Instant, stack: &mut Stack, submission: Submission) -> Answer {
        let Submission { op, group, user_data, target, argument, .. } = submission;
        let op = Op::from_number(op).ok_or(EINVAL)?;
        let (multishot, address) = check(op, &submission)?;
        match op {
            Op::Nop => Ok(Some(0)),
            Op::Accept => self.accept(target, Accept { user_data, multishot }),
            Op::Receive => {
                if !self.can_receive_into(group) {
                    return Err(EINVAL);
                }
                let left = (argument > 0).then_some(argument);
                self.receive(now, stack, target, Receive { user_data, multishot, group, left })
            }
            Op::Send => self.send(target, group, argument, address, user_data),
            Op::Shutdown => {
                let endpoint = self.endpoint(target)?;
                if endpoint.datagrams.is_some() {
                    return Err(EOPNOTSUPP);
                }
                endpoint.shutdown = true;
                self.mark_ready(target);
                Ok(Some(0))
            }
            Op::Close => self.close(now, stack, target),
            Op::Cancel if target == 0 => self.cancel_connect(now, stack, argument),
            Op::Cancel => self.cancel(target, argument),
            Op::Connect if target == 0 => {
                self.connect(now, stack, address.ok_or(EINVAL)?, user_data)
            }
            Op::Connect => self.set_peer(stack, target, address),
            Op::Bind => self.bind(now, stack, address.ok_or(EINVAL)?, user_data),
        }
    }

    pub(super) fn endpoint(&mut self, handle: u64) -> Result<&mut Endpoint, i32> {
        match &mut self.sockets.get_mut(handle).ok_or(EBADF)?.kind {
            SocketKind::Open(endpoint) => Ok(endpoint),
            SocketKind::Listener { .. } => Err(EOPNOTSUPP),
            SocketKind::Connecting { .. } => Err(EBADF),
        }
    }

    fn accept(&mut self, target: u64, wanted: Accept) -> Answer {
        let socket = self.sockets.get_mut(target).ok_or(EBADF)?;
        let SocketKind::Listener { accept } = &mut socket.kind else { return Err(EINVAL) };
        if accept.is_some() {
            return Err(EBUSY);
        }
        *accept = Some(wanted);
        self.mark_ready(target);
        Ok(None)
    }

    fn receive(&mut self, now: Instant, stack: &mut Stack, target: u64, wanted: Receive) -> Answer {
        let endpoint = self.endpoint(target)?;
        if endpoint.receive.is_some() {
            return Err(EBUSY);
        }
        endpoint.receive = Some(wanted);
        self.bound(now, stack, target, Some(wanted.group));
        self.mark_ready(target);
        Ok(None)
    }

    fn send(
        &mut self,
        target: u64,
        group: u16,
        argument: u64,
        to: Option<SocketAddr>,
        user_data: u64,
    ) -> Answer {
        let (offset, len) = ((argument >> 32) as usize, argument as u32 as usize);
        let endpoint = self.endpoint(target)?;
        let datagram = endpoint.datagrams.is_some();
        if endpoint.shutdown {
            return Err(Error::BrokenPipe.errno());
        }
        if to.is_some() && !datagram {
            return Err(EINVAL);
        }
        if endpoint.sends.len() >= MAX_SENDS {
            return Err(ENOBUFS);
        }
        let memory = self.send_groups.get(usize::from(group)).and_then(Option::as_ref);
        let memory = memory.ok_or(EINVAL)?;
        if len > MAX_SEND_BYTES {
            return Err(EINVAL);
        }
        // An empty send on a stream does nothing; a datagram may be empty.
        if len == 0 && !datagram {
            return Ok(Some(0));
        }
        let frag = memory.frag(offset, len).map_err(|_| EFAULT)?;
        let send = Send { user_data, frags: FragVec::new(), to, hold: None, sent: 0, error: None };
        let owner = self.sends.insert(send).map_err(|_| ENOBUFS)?;
        let hold = Hold::new(&self.let_go, owner, 0);
        if let Some(send) = self.sends.get_mut(owner) {
            send.frags.push(hold.attach(frag));
            send.hold = Some(hold);
        }
        self.endpoint(target)?.sends.push_back(owner);
        self.mark_ready(target);
        Ok(None)
    }

    pub(super) fn close(&mut self, now: Instant, stack: &mut Stack, target: u64) -> Answer {
        self.bound(now, stack, target, None);
        let socket = self.sockets.remove(target).ok_or(EBADF)?;
        self.handle_of.remove(&socket.id);
        let canceled = |user_data| Completion {
            user_data,
            result: -ECANCELED,
            handle: target,
            ..Completion::default()
        };
        match socket.kind {
            SocketKind::Listener { accept: Some(accept) } => self.post(canceled(accept.user_data)),
            SocketKind::Listener { .. } => {}
            SocketKind::Connecting { user_data } => {
                self.connecting.retain(|handle| *handle != target);
                self.post(Completion { handle: 0, ..canceled(user_data) });
            }
            SocketKind::Open(mut endpoint) => {
                self.count_dropped(stack, socket.id, &mut endpoint);
                if let Some(receive) = endpoint.receive {
                    self.post(canceled(receive.user_data));
                }
                for owner in endpoint.sends {
                    self.end_send(owner, Some(Error::ConnectionAborted));
                }
            }
        }
        stack.close(now, socket.id);
        Ok(Some(0))
    }

    fn cancel(&mut self, target: u64, what: u64) -> Answer {
        let socket = self.sockets.get_mut(target).ok_or(EBADF)?;
        let found = match &mut socket.kind {
            SocketKind::Listener { accept } => {
                accept.take_if(|accept| accept.user_data == what).is_some()
            }
            SocketKind::Open(endpoint) => {
                endpoint.receive.take_if(|receive| receive.user_data == what).is_some()
            }
            // The application does not have the handle yet.
            SocketKind::Connecting { .. } => return Err(EBADF),
        };
        if !found {
            return Err(ENOENT);
        }
        let (user_data, result, handle) = (what, -ECANCELED, target);
        self.post(Completion { user_data, result, handle, ..Completion::default() });
        Ok(Some(0))
    }

    /// Accepts queued connections.
    pub(super) fn serve_listener(
        &mut self,
        now: Instant,
        stack: &mut Stack,
        handle: u64,
    ) -> Served {
        loop {
            let Some(socket) = self.sockets.get_mut(handle) else { return Served::Idle };
            let (id, SocketKind::Listener { accept }) = (socket.id, &mut socket.kind) else {
                return Served::Idle;
            };
            let Some(Accept { user_data, multishot }) = *accept else { return Served::Idle };
            if self.completions.free() == 0 {
                self.counters.ring_waits += 1;
                return Served::Stuck(RoomNeed::some(RoomKind::Completions));
            }
            let accepted = match stack.as_listener(id).and_then(|mut listener| listener.accept()) {
                Err(Error::WouldBlock) => return Served::Idle,
                accepted => accepted,
            };
            let adopted = accepted.and_then(|(connection, _)| {
                let handle = self.own(now, stack, connection, SocketKind::Open(Box::default()))?;
                self.mark_ready(handle);
                Ok(handle)
            });
            let goes_on = multishot && adopted.is_ok();
            if !goes_on
                && let Some(Socket { kind: SocketKind::Listener { accept }, .. }) =
                    self.sockets.get_mut(handle)
            {
                *accept = None;
            }
            let flags = if goes_on { Completion::MORE } else { 0 };
            let (result, new) = match adopted {
                Ok(new) => (0, new),
                Err(error) => (-error.errno(), 0),
            };
            self.post(Completion {
                user_data,
                result,
                flags,
                handle: new,
                ..Completion::default()
            });
        }
    }

    /// Queues the outstanding sends, then ends the direction if that was requested.
    pub(super) fn serve_sends(&mut self, now: Instant, stack: &mut Stack, handle: u64) {
        loop {
            let Some(socket) = self.sockets.get_mut(handle) else { return };
            let (id, SocketKind::Open(endpoint)) = (socket.id, &mut socket.kind) else { return };
            let Some(&owner) = endpoint.sends.front() else {
                if endpoint.shutdown {
                    let writable = stack
                        .readiness(id)
                        .is_ok_and(|ready| !ready.contains(Readiness::WRITE_CLOSED));
                    if writable {
                        let _ =
                            stack.as_tcp(id).and_then(|mut tcp| tcp.shutdown(now, Shutdown::Write));
                    }
                }
                return;
            };
            let Some(send) = self.sends.get_mut(owner) else {
                endpoint.sends.pop_front();
                continue;
            };
            let sent = match endpoint.datagrams {
                None => stack
                    .as_tcp(id)
                    .and_then(|mut tcp| tcp.send(now, &mut send.frags, SendFlags::empty())),
                // A datagram is queued whole or not at all, and never later.
                Some(_) => stack
                    .as_udp(id)
                    .and_then(|mut udp| udp.send(now, core::mem::take(&mut send.frags), send.to)),
            };
            match sent {
                Ok(n) => send.sent = send.sent.saturating_add(n as u32),
                Err(Error::WouldBlock) if endpoint.datagrams.is_none() => return,
                Err(error) => {
                    endpoint.sends.pop_front();
                    self.end_send(owner, Some(error));
                    continue;
                }
            }
            if send.frags.iter().all(Frag::is_empty) {
                endpoint.sends.pop_front();
                self.end_send(owner, None);
            }
        }
    }

    /// Ends the queueing of a send, which is reported when its memory is released.
    fn end_send(&mut self, owner: u64, error: Option<Error>) {
        if let Some(send) = self.sends.get_mut(owner) {
            send.error = error;
            send.frags.clear();
            send.hold = None;
        }
    }

    /// Reports sends whose memory was released.
    pub(super) fn report_sends(&mut self) {
        if self.let_go.is_pending() {
            self.let_go.drain(&mut self.drained);
        }
        for done in self.drained.drain(..) {
            let Some(send) = self.sends.remove(done.owner) else { continue };
            let result = match send.error {
                Some(error) if send.sent == 0 => -error.errno(),
                _ => i32::try_from(send.sent).unwrap_or(i32::MAX),
            };
            let flags = if done.copied { Completion::COPIED } else { 0 };
            let user_data = send.user_data;
            let completion = Completion { user_data, result, flags, ..Completion::default() };
            self.waiting.push_back(completion);
        }
    }
}
