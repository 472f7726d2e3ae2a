//! What a connection needs whose data was received on another.
//!
//! Between two connections over which nothing but data goes, that data is passed on where it arrives,
//! once for each burst: from one receive queue to the other send queue, in the same turn of output that
//! acknowledges it, with no event and no owner asked ([`Flow`]). Everything else is the owner's
//! business as before, who is told of it by events: beginnings, ends, resets, urgent bytes, and who
//! waits for room or for memory. Where the owner has to look, nothing is passed on behind its back that
//! it would not have passed on itself.

use std::sync::Arc;

use pagewire_mem::Instant;
use pagewire_tcp::Env;

use super::flow::{Flow, Passed, Way};
use super::handles::Tcp;
use super::ids::{SocketId, TcpId};
use super::tcp::TcpSocket;
use crate::error::Error;
use crate::event::Readiness;
use crate::limits::{FORWARD_LEAST, FORWARD_RESERVE};
use crate::net::Mem;
use crate::stack::Core;

impl Core {
    /// From now on, what either of two connections sends is memory that the other received. It is
    /// charged to the budget of receive memory
    /// ([`StackConfig::receive_memory`](crate::StackConfig::receive_memory)) until it is
    /// acknowledged, because its pages are missing for what arrives; and it counts as unread for the
    /// connection that it came by, whose window opens only as far as its share.
    pub(crate) fn join_forwarding(&mut self, a: TcpId, b: TcpId) -> Result<(), Error> {
        self.tcp(b.into())?;
        self.tcp(a.into())?.socket.forwards = Some(b.into());
        self.tcp(b.into())?.socket.forwards = Some(a.into());
        Ok(())
    }

    /// From now on, what either of two connections that forward to each other receives is sent on the
    /// other at once, as long as nothing but data comes and there is room and memory for it. What
    /// client `a` sends goes up, what upstream `b` sends down.
    pub(crate) fn begin_flow(&mut self, now: Instant, [a, b]: [TcpId; 2], passed: &Arc<Passed>) {
        for (id, way) in [(a, Way::Up), (b, Way::Down)] {
            let Ok(Tcp { socket, .. }) = self.tcp(id.into()) else { continue };
            let flow = || Flow { due: false, passed: Arc::clone(passed), way, at: now };
            socket.conn.set_forwards();
            socket.flow.get_or_insert_with(|| Box::new(flow()));
        }
    }

    /// The owner passes on everything itself again.
    pub(crate) fn end_flow(&mut self, ids: [TcpId; 2]) {
        for id in ids {
            if let Ok(Tcp { id, socket, work, .. }) = self.tcp(id.into())
                && socket.flow.take().is_some_and(|flow| flow.due)
            {
                work.queue_report(id.index(), &mut socket.unchecked);
            }
        }
    }

    /// Byte path, from R6 to S2: what a burst has brought the connection at `index` goes on, before that
    /// is asked for output; and if the burst made room, what the other one received.
    pub(crate) fn pass_on(&mut self, now: Instant, index: u32) {
        let Self { sockets, mem, .. } = self;
        let Some(socket) = sockets.table.tcp_mut(index) else { return };
        let Some(flow) = &mut socket.flow else { return self.release_for(now, index) };
        if !core::mem::replace(&mut flow.due, false) {
            return;
        }
        let other = socket.forwards;
        let two = other.and_then(|other| sockets.table.tcp_two_mut(index, other));
        let (Some(other), Some([this, that])) = (other.map(SocketId::index), two) else {
            return sockets.touch_to_report(index);
        };
        if this.conn.queued_receive() == 0 && that.conn.queued_receive() == 0 {
            // An acknowledgement, and nothing waited for it.
            release(now, mem, this, that);
            let (rests, owes_ack) = (this.rests(), that.conn.owes_ack());
            if rests {
                sockets.touch_to_report(index);
            }
            if owes_ack {
                sockets.touch_to_send(other);
            }
            return;
        }
        let (mut up, mut down) = (None, None);
        // Who has to wait for memory, and who has to make place: the owner decides.
        if !is_short(mem, 1) && this.may_flow() && that.may_flow() {
            (up, down) = (pass(now, mem, this, that), pass(now, mem, that, this));
        }
        release(now, mem, this, that);
        release(now, mem, that, this);
        let tried = up.is_some() || down.is_some();
        // What stays has to wait for something: the owner sees to that.
        let reports = [this.rests(), tried && that.rests()];
        // Who gave has a timer to set: what it is empty of goes after a while.
        let moved = [up, down].into_iter().flatten().any(|bytes| bytes > 0);
        let sends = [moved || this.conn.owes_ack(), moved || that.conn.owes_ack()];
        for ((index, reports), sends) in [index, other].into_iter().zip(reports).zip(sends) {
            if reports {
                sockets.touch_to_report(index);
            }
            if sends {
                sockets.touch_to_send(index);
            }
        }
    }

    /// The connection at `index` may have had something acknowledged: tells the one that this came by.
    /// Where the owner passes on, it has nothing to do then.
    fn release_for(&mut self, now: Instant, index: u32) {
        let Self { sockets, mem, .. } = self;
        let Some(other) = sockets.table.tcp(index).and_then(|socket| socket.forwards) else {
            return;
        };
        let Some([this, that]) = sockets.table.tcp_two_mut(index, other) else { return };
        release(now, mem, this, that);
        if that.conn.owes_ack() {
            sockets.touch_to_send(other.index());
        }
    }

    /// Tells the connection at `index` what is still to be sent of what it received.
    pub(super) fn note_held(&mut self, now: Instant, index: u32) {
        let Some(socket) = self.sockets.table.tcp(index) else { return };
        let Some(other) = socket.forwards else { return };
        // What is passed on by the stack tells it when that is done. Between, it matters where memory
        // is refused.
        if socket.flow.is_some() && !is_short(&self.mem, FORWARD_RESERVE / 2) {
            return;
        }
        // After the end of the other, nothing is held.
        let held = self.tcp(other).map_or(0, |other| other.socket.conn.send_charge());
        if let Some(socket) = self.sockets.table.tcp_mut(index) {
            set_held(now, &mut self.mem, socket, held);
        }
    }

    /// When something that the connection received was last passed on at once.
    pub(crate) fn flowed_at(&self, id: TcpId) -> Option<Instant> {
        Some(self.sockets.table.tcp(id.index())?.flow.as_ref()?.at)
    }

    /// Bytes of receive memory that are charged for the connection.
    pub(crate) fn forward_charge(&self, id: TcpId) -> usize {
        self.sockets.table.tcp(id.index()).map_or(0, TcpSocket::charged)
    }

    /// Whether fewer than so many reserves are left of the receive memory.
    pub(crate) fn is_receive_memory_short(&self, reserves: usize) -> bool {
        is_short(&self.mem, reserves)
    }
}

impl Tcp<'_> {
    /// How many of `wanted` bytes a send would take now; 0 also where it would fail.
    pub fn send_room(&self, wanted: usize) -> usize {
        self.socket.conn.room_for(wanted)
    }

    /// How much more the connection may hold of what others sent.
    pub(crate) fn forward_share(&self) -> usize {
        share(self.mem, self.socket)
    }
}

impl TcpSocket {
    /// Whether data may be passed on at once from it and to it. Not while an application that had it
    /// before holds something of what it received: that is counted where it is read.
    fn may_flow(&self) -> bool {
        self.flow.is_some() && self.holdings.is_none()
    }

    /// Whether there is more to look after than data that goes on: data that stays, an end, a wait.
    fn rests(&self) -> bool {
        self.conn.queued_receive() > 0 || !self.conn.gives() || !self.conn.takes()
    }
}

/// Moves what one connection received to the send queue of the other: how many bytes, as far as there is
/// room and memory. `None`: that is for the owner to do.
fn pass(now: Instant, mem: &mut Mem, from: &mut TcpSocket, to: &mut TcpSocket) -> Option<usize> {
    if from.conn.queued_receive() == 0 || !from.conn.gives() || !to.conn.takes() {
        return None;
    }
    let share = share(mem, to);
    if share < FORWARD_LEAST {
        return None;
    }
    let Mem { pool, writer, ledger, shared } = mem;
    let mut env = Env { now, ledger, pool, writer, shared };
    let moved = from.conn.forward(&mut env, &mut to.conn, share);
    from.charge(shared);
    to.charge(shared);
    // As after a read: what stays, and what comes, is news to the owner.
    from.reported &= !Readiness::READABLE;
    if let Some(flow) = from.flow.as_mut().filter(|_| moved > 0) {
        flow.passed.count(flow.way, moved);
        flow.at = now;
    }
    Some(moved)
}

/// Tells `from` what `to` still has to send of what it received. If that is less than it was, for some was
/// acknowledged, a window that was closed for it opens: nothing that comes would have it told.
fn release(now: Instant, mem: &mut Mem, to: &TcpSocket, from: &mut TcpSocket) {
    set_held(now, mem, from, to.conn.send_charge());
}

fn set_held(now: Instant, mem: &mut Mem, from: &mut TcpSocket, held: usize) {
    if from.conn.set_held(held) {
        let Mem { pool, writer, ledger, shared } = mem;
        from.conn.after_release(&mut Env { now, ledger, pool, writer, shared });
    }
}

fn is_short(mem: &Mem, reserves: usize) -> bool {
    let receive = &mem.shared.receive;
    let reserve = receive.limit() / FORWARD_RESERVE;
    receive.used() > receive.limit().saturating_sub(reserves * reserve)
}

/// How much more the connection may hold of what others sent: its share of the receive memory that is
/// free, less what it holds. Where it holds nothing, something may always follow.
fn share(mem: &Mem, to: &TcpSocket) -> usize {
    let held = to.conn.send_charge();
    let share = mem.shared.receive.allowance();
    if held == 0 { share.max(FORWARD_LEAST) } else { share.saturating_sub(held) }
}
