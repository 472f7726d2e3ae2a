//! Variant of step R7, through rings: received bytes are delivered in place, or copied.
//!
//! A completion is posted after its entries are written, and entries are written only where there is room.
//! A socket without room is parked (`park.rs`); sockets that have waited for the same room come first. A
//! datagram is delivered whole. The end of a stream is reported alone, after all data.

use std::collections::VecDeque;

use pagewire_mem::{CopyReason, Frag, Instant, PAGE_SIZE};
use pagewire_stack::{Error, RecvFlags, SocketId, Stack};

use super::park::RoomKind;
use super::{Endpoint, Engine, Receive, RoomNeed, Served, SocketKind};
use crate::counters::Counters;
use crate::group::{Group, Memory};
use crate::layout::{COPY_GROUP, Completion, Entry};
use crate::limits::{DATAGRAMS_PER_TURN, RUNS_PER_TURN, TAKE_BYTES};
use crate::ring::Producer;

impl Engine {
    /// Delivers the received bytes of a socket, as far as they are wanted and there is room.
    pub(super) fn serve_receive(&mut self, now: Instant, stack: &mut Stack, handle: u64) -> Served {
        let runs = match self.endpoint(handle) {
            Ok(Endpoint { datagrams: None, .. }) => RUNS_PER_TURN,
            Ok(_) => DATAGRAMS_PER_TURN,
            Err(_) => return Served::Idle,
        };
        for _ in 0..runs {
            if let Some(outcome) = self.receive_some(now, stack, handle) {
                return outcome;
            }
        }
        Served::Again
    }

    /// Delivers the bytes of one completion; returns how this socket's turn ends, if it does.
    fn receive_some(&mut self, now: Instant, stack: &mut Stack, handle: u64) -> Option<Served> {
        let others = [RoomKind::Entries, RoomKind::Copies].map(|what| self.others_wait(what));
        let idle = Some(Served::Idle);
        let Some(socket) = self.sockets.get_mut(handle) else { return idle };
        let (id, SocketKind::Open(endpoint)) = (socket.id, &mut socket.kind) else { return idle };
        let Some(receive) = endpoint.receive else { return idle };
        let mut delivery = Delivery {
            groups: &mut self.groups,
            entries: &mut self.entries,
            counters: &mut self.counters,
            others_wait: others,
            left: receive.left.unwrap_or(u64::MAX),
            bytes: 0,
            written: 0,
            copied: false,
        };
        if self.completions.free() == 0 {
            delivery.counters.ring_waits += 1;
            return Some(Served::Stuck(RoomNeed::some(RoomKind::Completions)));
        }
        // An empty datagram, an error and the end of a datagram socket take no entries.
        if endpoint.datagrams.is_none() && delivery.room() == 0 {
            return Some(Served::Stuck(delivery.wait(RoomKind::Entries, 1)));
        }
        if !endpoint.take(now, stack, id, &receive, &mut self.scratch) {
            return idle;
        }
        if endpoint.datagrams.is_some()
            && let Some(need) = delivery.room_for(&endpoint.pending, receive.group)
        {
            return Some(Served::Stuck(need));
        }
        let blocked = delivery.run(stack, &mut endpoint.pending, receive.group);
        let Delivery { bytes, written, copied, .. } = delivery;
        let mut completion = Completion {
            user_data: receive.user_data,
            result: i32::try_from(bytes).unwrap_or(i32::MAX),
            flags: if copied { Completion::COPIED } else { 0 },
            entries: written,
            handle,
            ..Completion::default()
        };
        let (blocked, over) = match &mut endpoint.datagrams {
            Some(datagrams) => {
                let over = !datagrams.report(stack, id, &mut completion, &mut self.counters);
                // The rest of a datagram was not wanted.
                endpoint.pending.clear();
                // An error is reported once, and the socket goes on.
                let met = endpoint.end.take().filter(|_| over);
                completion.result = error_of(met).unwrap_or(completion.result);
                (None, over)
            }
            None => {
                let end = endpoint.end.filter(|_| endpoint.pending.is_empty());
                if bytes == 0 && end.is_none() {
                    return Some(blocked.map_or(Served::Idle, Served::Stuck));
                }
                // The end is reported alone, after all data; an error once.
                let over = bytes == 0;
                if over {
                    completion.result = error_of(end).unwrap_or(completion.result);
                }
                (blocked, over | endpoint.report(stack, id, bytes, &mut completion))
            }
        };
        if over || !receive.multishot {
            endpoint.receive = None;
        } else {
            completion.flags |= Completion::MORE;
        }
        self.post(completion);
        blocked.map(Served::Stuck)
    }

    /// Counts the datagrams that a closed socket has dropped.
    pub(super) fn count_dropped(
        &mut self,
        stack: &mut Stack,
        id: SocketId,
        endpoint: &mut Endpoint,
    ) {
        if let Some(datagrams) = &mut endpoint.datagrams {
            datagrams.count_dropped(stack, id, &mut self.counters);
        }
    }
}

fn error_of(end: Option<Result<(), Error>>) -> Option<i32> {
    end.and_then(Result::err).map(|error| -error.errno())
}

impl Endpoint {
    /// Takes the next bytes from the receive queue, unless some are pending; `false`: there are none.
    fn take(
        &mut self,
        now: Instant,
        stack: &mut Stack,
        id: SocketId,
        receive: &Receive,
        scratch: &mut Vec<Frag>,
    ) -> bool {
        if self.end.is_some() || !self.pending.is_empty() {
            return true;
        }
        let taken = match &mut self.datagrams {
            Some(datagrams) if datagrams.pending.is_some() => return true,
            Some(datagrams) => stack
                .as_udp(id)
                .and_then(|mut udp| udp.recv(pagewire_stack::Datagram, RecvFlags::empty()))
                .map(|(frags, from)| {
                    let length: usize = frags.iter().map(|frag| frag.len()).sum();
                    datagrams.pending = Some((from, length as u32));
                    self.pending.extend(frags.into_iter().filter(|frag| !frag.is_empty()));
                    Ok(())
                }),
            None => {
                let left = receive.left.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(0));
                let taken = stack.as_tcp(id).and_then(|mut tcp| {
                    tcp.recv(
                        now,
                        pagewire_stack::Chunks { max: left.min(TAKE_BYTES), into: scratch },
                        RecvFlags::empty(),
                    )
                });
                self.pending.extend(scratch.drain(..));
                taken.map(|n| if n == 0 { Err(()) } else { Ok(()) })
            }
        };
        match taken {
            Ok(Ok(())) => {}
            Ok(Err(())) => self.end = Some(Ok(())),
            Err(Error::WouldBlock) => return false,
            Err(error) => self.end = Some(Err(error)),
        }
        true
    }

    /// Reports `bytes` bytes of a stream; `true`: the receive is complete.
    fn report(
        &mut self,
        stack: &mut Stack,
        id: SocketId,
        bytes: u64,
        reported: &mut Completion,
    ) -> bool {
        if bytes == 0 {
            return false;
        }
        let left = self.receive.as_mut().and_then(|receive| receive.left.as_mut());
        let limit = left.is_some_and(|left| {
            *left = left.saturating_sub(bytes);
            *left == 0
        });
        let waiting = !self.pending.is_empty()
            || stack.as_tcp(id).map(|tcp| tcp.queued()).is_ok_and(|n| n > 0);
        reported.flags |= if limit { Completion::LIMIT } else { 0 };
        reported.flags |= if waiting { Completion::NONEMPTY } else { 0 };
        limit
    }
}

/// The delivery of one socket's bytes: the rings and groups that it uses, and its result.
struct Delivery<'a> {
    groups: &'a mut [Option<Group>],
    entries: &'a mut Producer<Entry>,
    counters: &'a mut Counters,
    /// Whether other sockets wait for entries, and for copies, and come first.
    others_wait: [bool; 2],
    /// Bytes that are still wanted. An earlier receive may have taken more than it delivered.
    left: u64,
    bytes: u64,
    written: u32,
    copied: bool,
}

impl Delivery<'_> {
    /// Delivers pending bytes, as far as they are wanted; returns what the rest lacks, if anything.
    fn run(
        &mut self,
        stack: &mut Stack,
        pending: &mut VecDeque<Frag>,
        group: u16,
    ) -> Option<RoomNeed> {
        while let Some(frag) = pending.front_mut() {
            let wanted = usize::try_from(self.left - self.bytes).unwrap_or(usize::MAX);
            if wanted == 0 {
                return None;
            }
            let room = self.room();
            if room == 0 {
                return Some(self.wait(RoomKind::Entries, 1));
            }
            if frag.len() > wanted {
                let front = frag.split_to(wanted);
                pending.push_front(front);
                continue;
            }
            match self.owner(frag, group) {
                Some(id) => {
                    let Some(Some(group)) = self.groups.get_mut(id) else { return None };
                    let part = take_front(frag, group, room);
                    let n = part.len() as u64;
                    self.counters.zc_bytes += n;
                    self.bytes += n;
                    self.hand_over(id as u16, part);
                }
                None => {
                    let n = self.copy(stack, frag, room);
                    if n == 0 {
                        return Some(self.wait(RoomKind::Copies, 1));
                    }
                    frag.advance(n);
                    self.copied = true;
                    self.counters.copy_bytes += n as u64;
                    self.bytes += n as u64;
                }
            }
            if frag.is_empty() {
                pending.pop_front();
            }
        }
        None
    }

    /// The room that is missing to deliver a datagram whole, if any.
    fn room_for(&mut self, pending: &VecDeque<Frag>, group: u16) -> Option<RoomNeed> {
        let wanted = usize::try_from(self.left).unwrap_or(usize::MAX);
        let (mut bytes, mut entries, mut copies) = (0, 0, 0);
        for frag in pending {
            let n = frag.len().min(wanted - bytes);
            bytes += n;
            // The pages that `n` bytes can touch.
            entries += if n > 0 { n / PAGE_SIZE + 2 } else { 0 };
            copies += if self.owner(frag, group).is_some() { 0 } else { n };
        }
        // A datagram that does not fit an empty ring is truncated.
        let entries = entries.min(self.entries.capacity());
        if self.room() < entries {
            return Some(self.wait(RoomKind::Entries, entries));
        }
        (self.room_for_copies() < copies).then(|| self.wait(RoomKind::Copies, copies))
    }

    /// Notes that the socket has to wait.
    fn wait(&mut self, what: RoomKind, least: usize) -> RoomNeed {
        match what {
            RoomKind::Copies => self.counters.copy_waits += 1,
            _ => self.counters.ring_waits += 1,
        }
        RoomNeed { what, least }
    }

    /// Entries that there is room for.
    fn room(&mut self) -> usize {
        let [others_wait, _] = self.others_wait;
        if others_wait { 0 } else { self.entries.free() }
    }

    /// Bytes that can be copied now.
    fn room_for_copies(&self) -> usize {
        let [_, others_wait] = self.others_wait;
        match self.groups.get(usize::from(COPY_GROUP)) {
            Some(Some(Group { memory: Memory::Copy { pool, writer, .. }, .. })) if !others_wait => {
                writer.spare() + pool.stats().free * PAGE_SIZE
            }
            _ => 0,
        }
    }

    /// The group whose memory a fragment lies in, if it is wanted there.
    fn owner(&self, frag: &Frag, group: u16) -> Option<usize> {
        // A receive that names no group wants everything by copy.
        if group == COPY_GROUP {
            return None;
        }
        self.groups.iter().enumerate().position(|(id, group)| {
            id != usize::from(COPY_GROUP) && group.as_ref().is_some_and(|group| group.owns(frag))
        })
    }

    /// Copies the front of `frag` into the copy group, as far as it has buffers; returns the length.
    fn copy(&mut self, stack: &mut Stack, frag: &Frag, room: usize) -> usize {
        let [_, others_wait] = self.others_wait;
        if others_wait {
            return 0;
        }
        let Some(Some(group)) = self.groups.get_mut(usize::from(COPY_GROUP)) else { return 0 };
        let Memory::Copy { pool, writer, .. } = &mut group.memory else { return 0 };
        // Each page takes an entry, and so may the rest of the page that the last copy ended in.
        let len = room.saturating_sub(1).max(1) * PAGE_SIZE;
        let first = if room == 1 { PAGE_SIZE - writer.misalignment() } else { len };
        let part = frag.slice(0..first.min(frag.len()));
        let ledger = stack.ledger_mut();
        let (copies, n) = writer.write_frag(pool, &part, ledger, CopyReason::AppRead);
        for copy in copies {
            self.hand_over(COPY_GROUP, copy);
        }
        n
    }

    fn hand_over(&mut self, id: u16, frag: Frag) {
        let Some(Some(group)) = self.groups.get_mut(usize::from(id)) else { return };
        let Self { entries, written, counters, .. } = self;
        group.deliver(id, frag, |entry| {
            let pushed = entries.push(entry);
            debug_assert!(pushed.is_ok(), "an entry without room");
            *written += 1;
            counters.entries += 1;
        });
    }
}

/// Takes as much of the front as `room` entries can name.
fn take_front(frag: &mut Frag, group: &Group, room: usize) -> Frag {
    if group.entries_for(frag) <= room {
        return core::mem::take(frag);
    }
    frag.split_to(room * PAGE_SIZE - frag.addr() % PAGE_SIZE)
}
