//! Byte path, step R7 through rings: what has arrived is delivered where it lies, or copied.

use pagewire_mem::{CopyReason, Frag, Instant};
use pagewire_stack::{Error, Stack};

use super::{Connection, Engine, Kind, Need, Outcome};
use crate::counters::Counters;
use crate::group::{Group, Memory};
use crate::layout::{COPY_GROUP, Completion, Entry};
use crate::limits::{RUNS_PER_TURN, TAKE_BYTES};
use crate::ring::Producer;

impl Engine {
    /// Delivers what has arrived on a connection, as far as it was asked for and there is room.
    pub(super) fn serve_receive(
        &mut self,
        now: Instant,
        stack: &mut Stack,
        handle: u64,
    ) -> Outcome {
        for _ in 0..RUNS_PER_TURN {
            let Some(socket) = self.sockets.get_mut(handle) else { return Outcome::Idle };
            let (id, Kind::Connection(connection)) = (socket.id, &mut socket.kind) else {
                return Outcome::Idle;
            };
            let Some(receive) = connection.receive else { return Outcome::Idle };
            let need = match (self.completions.free(), self.entries.free()) {
                (0, _) => Some(Need::Completions),
                (_, 0) => Some(Need::Entries),
                _ => None,
            };
            if let Some(need) = need {
                self.counters.ring_waits += 1;
                return Outcome::Stuck(need);
            }
            if connection.pending.is_empty() && connection.end.is_none() {
                let left = receive.left.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(0));
                let taken = stack.tcp_recv_chunks(now, id, left.min(TAKE_BYTES), &mut self.scratch);
                match taken {
                    Ok(0) => connection.end = Some(Ok(())),
                    Ok(_) => {}
                    Err(Error::WouldBlock) => return Outcome::Idle,
                    Err(error) => connection.end = Some(Err(error)),
                }
                connection.pending.extend(self.scratch.drain(..));
            }
            let mut delivery = Delivery {
                groups: &mut self.groups,
                entries: &mut self.entries,
                counters: &mut self.counters,
                left: receive.left.unwrap_or(u64::MAX),
                bytes: 0,
                written: 0,
                copied: false,
            };
            let blocked = delivery.run(stack, connection, receive.group);
            let Delivery { bytes, written, copied, .. } = delivery;
            let end = connection.end.filter(|_| connection.pending.is_empty());
            if bytes == 0 && end.is_none() {
                return blocked.map_or(Outcome::Idle, Outcome::Stuck);
            }
            let mut flags = if copied { Completion::COPIED } else { 0 };
            let mut result = i32::try_from(bytes).unwrap_or(i32::MAX);
            let mut more = receive.multishot;
            if bytes > 0 {
                if let Some(left) = connection.receive.as_mut().and_then(|r| r.left.as_mut()) {
                    *left = left.saturating_sub(bytes);
                    if *left == 0 {
                        flags |= Completion::LIMIT;
                        more = false;
                    }
                }
                let waiting = !connection.pending.is_empty()
                    || stack.tcp_queued(id).is_ok_and(|queued| queued > 0);
                flags |= if waiting { Completion::NONEMPTY } else { 0 };
            } else {
                // The end is told by itself, behind all data; of an error, once.
                more = false;
                if let Some(Err(error)) = end {
                    result = -error.errno();
                }
            }
            flags |= if more { Completion::MORE } else { 0 };
            if !more {
                connection.receive = None;
            }
            let user_data = receive.user_data;
            self.post(Completion { user_data, result, flags, entries: written, handle });
            if let Some(need) = blocked {
                return Outcome::Stuck(need);
            }
        }
        Outcome::Again
    }
}

/// What is needed to deliver, and what became of it.
struct Delivery<'a> {
    groups: &'a mut [Option<Group>],
    entries: &'a mut Producer<Entry>,
    counters: &'a mut Counters,
    /// Bytes that are still wanted. An earlier receive may have taken more than it delivered.
    left: u64,
    bytes: u64,
    written: u32,
    copied: bool,
}

impl Delivery<'_> {
    /// Delivers what is pending, as far as it is wanted; returns what the rest needs, if there is no
    /// room for it.
    fn run(&mut self, stack: &mut Stack, connection: &mut Connection, group: u16) -> Option<Need> {
        while let Some(frag) = connection.pending.front_mut() {
            let wanted = usize::try_from(self.left - self.bytes).unwrap_or(usize::MAX);
            if wanted == 0 {
                return None;
            }
            let room = self.entries.free();
            if room == 0 {
                self.counters.ring_waits += 1;
                return Some(Need::Entries);
            }
            if frag.len() > wanted {
                let front = frag.split_to(wanted);
                connection.pending.push_front(front);
                continue;
            }
            // A receive that names no group wants everything by copy.
            let by_reference = group != COPY_GROUP;
            let owner = self.groups.iter().enumerate().position(|(id, group)| {
                id != 0 && by_reference && group.as_ref().is_some_and(|group| group.owns(frag))
            });
            match owner {
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
                        self.counters.copy_waits += 1;
                        return Some(Need::Copies);
                    }
                    frag.advance(n);
                    self.copied = true;
                    self.counters.copy_bytes += n as u64;
                    self.bytes += n as u64;
                }
            }
            if frag.is_empty() {
                connection.pending.pop_front();
            }
        }
        None
    }

    /// Copies the front of `frag` into the copy group, as far as it has buffers; returns how much.
    fn copy(&mut self, stack: &mut Stack, frag: &Frag, room: usize) -> usize {
        let Some(Some(group)) = self.groups.get_mut(usize::from(COPY_GROUP)) else { return 0 };
        let Memory::Copy { pool, writer, .. } = &mut group.memory else { return 0 };
        // Each page takes an entry, and so may the rest of the page that the last copy ended in.
        let len = room.saturating_sub(1).max(1) * pagewire_mem::PAGE_SIZE;
        let first = if room == 1 { pagewire_mem::PAGE_SIZE - writer.misalignment() } else { len };
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

/// As much of the front as `room` entries can tell of.
fn take_front(frag: &mut Frag, group: &Group, room: usize) -> Frag {
    if group.entries_for(frag) <= room {
        return core::mem::take(frag);
    }
    let page = pagewire_mem::PAGE_SIZE;
    frag.split_to(room * page - frag.addr() % page)
}
