//! Splicing: forwarding between two connections inside the stack.
//!
//! While a forwarded pair has only data to pass on, the stack does so without an event: once for
//! each burst, from one receive queue to the other send queue, in the turn of output that
//! acknowledges it ([`SpliceState`]). The owner (`forward/`) gets events for all else: beginnings, ends,
//! resets, urgent bytes, and waits for room or memory; it does the forwarding then.

pub(crate) mod state;

use std::sync::Arc;

use pagewire_mem::Instant;
use pagewire_tcp::Env;

use super::Tcp;
use super::ids::{SocketId, TcpId};
use crate::error::Error;
use crate::event::Readiness;
use crate::limits::{FORWARD_LEAST, FORWARD_RESERVE};
use crate::net::{Mem, Net};
use crate::sockets::Context;
use crate::sockets::tcp::socket::TcpSocket;
use state::{Forwarding, SpliceDirection, SpliceState, SplicedBytes};

impl Context {
    /// From now on, what either connection sends is memory that the other received. It is charged
    /// to [`StackConfig::memory`](crate::StackConfig::memory) until it is
    /// acknowledged; and it counts as unread for the other one, whose window opens only as far as
    /// its share.
    pub(crate) fn join_forwarding(&mut self, a: TcpId, b: TcpId) -> Result<(), Error> {
        self.tcp(b)?;
        self.tcp(b)?;
        for (id, other) in [(a, b), (b, a)] {
            self.tcp(id)?.socket.forwarding =
                Some(Box::new(Forwarding { other: other.into(), splice: None }));
        }
        Ok(())
    }

    /// The stack forwards between client `a` and upstream `b` as long as there is only data.
    pub(crate) fn begin_splice(
        &mut self,
        now: Instant,
        [a, b]: [TcpId; 2],
        passed: &Arc<SplicedBytes>,
    ) {
        for (id, direction) in [(a, SpliceDirection::Up), (b, SpliceDirection::Down)] {
            let Ok(Tcp { socket, .. }) = self.tcp(id) else { continue };
            let Some(forwarding) = &mut socket.forwarding else { continue };
            let flow =
                || SpliceState { due: false, passed: Arc::clone(passed), direction, at: now };
            forwarding.splice.get_or_insert_with(flow);
            socket.conn.set_forwards();
        }
    }

    /// From now on the owner forwards everything itself.
    pub(crate) fn end_splice(&mut self, ids: [TcpId; 2]) {
        for id in ids {
            if let Ok(Tcp { id, socket, work, .. }) = self.tcp(id)
                && let Some(forwarding) = &mut socket.forwarding
                && forwarding.splice.take().is_some_and(|flow| flow.due)
            {
                work.queue_report(id.index(), &mut socket.reporting);
            }
        }
    }

    /// Forwards what a burst has brought the connection, or the other one if it made room.
    pub(crate) fn forward_spliced(&mut self, now: Instant, index: u32) {
        let Some(socket) = self.table.tcp_mut(index) else { return };
        let Some(forwarding) = socket.forwarding.as_deref_mut() else { return };
        let other = forwarding.other;
        let Some(flow) = &mut forwarding.splice else { return self.release_for(now, index, other) };
        if !core::mem::replace(&mut flow.due, false) {
            return;
        }
        let Self { table, net: Net { mem, .. }, .. } = self;
        let Some([this, that]) = table.tcp_two_mut(index, other) else {
            return self.touch_to_report(index);
        };
        let other = other.index();
        if this.conn.queued_receive() == 0 && that.conn.queued_receive() == 0 {
            // An acknowledgement, and no data waits for room.
            release(now, mem, this, that);
            let (needs_owner, ack_due) = (this.needs_owner(), that.conn.ack_due());
            if needs_owner {
                self.touch_to_report(index);
            }
            if ack_due {
                self.touch_to_send(other);
            }
            return;
        }
        let (mut up, mut down) = (None, None);
        // When memory is short, the owner decides which connection waits or ends.
        if !is_short(mem, 1) && this.may_splice() && that.may_splice() {
            (up, down) = (pass(now, mem, this, that), pass(now, mem, that, this));
        }
        release(now, mem, this, that);
        release(now, mem, that, this);
        let tried = up.is_some() || down.is_some();
        // The owner takes care of data that has to wait.
        let reports = [this.needs_owner(), tried && that.needs_owner()];
        // The sender of the data has a timer to set, too.
        let moved = [up, down].into_iter().flatten().any(|bytes| bytes > 0);
        let sends = [moved || this.conn.ack_due(), moved || that.conn.ack_due()];
        for ((index, reports), sends) in [index, other].into_iter().zip(reports).zip(sends) {
            if reports {
                self.touch_to_report(index);
            }
            if sends {
                self.touch_to_send(index);
            }
        }
    }

    /// The peer may have acknowledged data: updates the connection that received it.
    fn release_for(&mut self, now: Instant, index: u32, other: SocketId) {
        let Self { table, net: Net { mem, .. }, .. } = self;
        let Some([this, that]) = table.tcp_two_mut(index, other) else { return };
        release(now, mem, this, that);
        if that.conn.ack_due() {
            self.touch_to_send(other.index());
        }
    }

    /// Updates how much of what the connection at `index` received is still to be sent.
    pub(super) fn note_unsent(&mut self, now: Instant, index: u32) {
        let Some(socket) = self.table.tcp(index) else { return };
        let Some(&Forwarding { other, ref splice }) = socket.forwarding.as_deref() else { return };
        // Forwarding in the stack updates it. In between it matters only if memory is short.
        if splice.is_some() && !is_short(&self.net.mem, FORWARD_RESERVE / 2) {
            return;
        }
        // Once the other connection has ended, nothing is.
        let unsent = self.tcp(TcpId(other)).map_or(0, |other| other.socket.conn.send_charge());
        if let Some(socket) = self.table.tcp_mut(index) {
            set_unsent(now, &mut self.net.mem, socket, unsent);
        }
    }

    /// When the stack last forwarded data of the connection.
    pub(crate) fn spliced_at(&self, id: TcpId) -> Option<Instant> {
        Some(self.table.tcp(id.index())?.splice()?.at)
    }

    /// Bytes of receive memory that are charged for the connection.
    pub(crate) fn forward_charge(&self, id: TcpId) -> usize {
        self.table.tcp(id.index()).map_or(0, TcpSocket::charged)
    }

    /// Whether less than `reserves` reserves are left of the receive memory.
    pub(crate) fn is_receive_memory_short(&self, reserves: usize) -> bool {
        is_short(&self.net.mem, reserves)
    }
}

impl Tcp<'_> {
    /// How many of `wanted` bytes a send would take now; 0 also if it would fail.
    pub fn send_room(&self, wanted: usize) -> usize {
        self.socket.conn.room_for(wanted)
    }

    /// How many more bytes of the other connection this one may queue.
    pub(crate) fn forward_share(&self) -> usize {
        share(self.mem, self.socket)
    }
}

/// Moves data between two connections as far as possible; `None`: the owner has to act.
fn pass(now: Instant, mem: &mut Mem, from: &mut TcpSocket, to: &mut TcpSocket) -> Option<usize> {
    if from.conn.queued_receive() == 0 || !from.conn.gives() || !to.conn.takes() {
        return None;
    }
    let share = share(mem, to);
    if share < FORWARD_LEAST {
        return None;
    }
    let Mem { pool, writer, ledger, shared, .. } = mem;
    let mut env = Env { now, ledger, pool, writer, shared };
    let moved = from.conn.forward(&mut env, &mut to.conn, share);
    from.charge(shared);
    to.charge(shared);
    // As after a read: later data is reported.
    from.reporting.reported &= !Readiness::READABLE;
    if let Some(flow) = from.splice_mut().filter(|_| moved > 0) {
        flow.passed.count(flow.direction, moved);
        flow.at = now;
    }
    Some(moved)
}

/// Updates how much of `from`'s data `to` still has to send. If less, a closed window opens.
fn release(now: Instant, mem: &mut Mem, to: &TcpSocket, from: &mut TcpSocket) {
    set_unsent(now, mem, from, to.conn.send_charge());
}

fn set_unsent(now: Instant, mem: &mut Mem, from: &mut TcpSocket, unsent: usize) {
    if from.conn.set_held(unsent) {
        let Mem { pool, writer, ledger, shared, .. } = mem;
        from.conn.after_release(&mut Env { now, ledger, pool, writer, shared });
    }
}

fn is_short(mem: &Mem, reserves: usize) -> bool {
    let receive = &mem.shared.memory;
    let reserve = receive.limit() / FORWARD_RESERVE;
    receive.taken() > receive.promisable().saturating_sub(reserves * reserve)
}

/// How many more bytes this one may queue: its share of the free memory, less what is queued.
fn share(mem: &Mem, to: &TcpSocket) -> usize {
    let queued = to.conn.send_charge();
    let share = mem.shared.memory.allowance();
    if queued == 0 { share.max(FORWARD_LEAST) } else { share.saturating_sub(queued) }
}
