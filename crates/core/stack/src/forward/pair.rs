//! [`Pair`]: two connections, and the pumps between them.

use core::time::Duration;
use std::net::{Shutdown, SocketAddr};

use pagewire_mem::{Frag, FragVec, Instant};

use super::{ForwardConfig, ForwardCounters};
use crate::limits::FORWARD_LEAST;
use crate::stack::Stack;
use crate::{Chunks, Error, Readiness, RecvFlags, SendFlags, TcpId};

/// Two connections whose bytes go from one to the other.
pub(super) struct Pair {
    client_side: Side,
    upstream_side: Side,
    pub(super) client: SocketAddr,
    pub(super) upstream: SocketAddr,
    /// The upstream has answered.
    pub(super) connected: bool,
    /// The pair is on the list of those that wait for memory.
    pub(super) waits_for_memory: bool,
    /// Sets the pair apart from earlier ones in the same slot.
    pub(super) serial: u32,
    /// When it began, or last forwarded a byte.
    active_at: Instant,
}

pub(super) struct Side {
    id: TcpId,
    /// Taken from the other side and not queued here: only if the send queue took too little.
    pending: FragVec,
    /// The whole stream of this side, with the end, was forwarded.
    ended: bool,
}

/// The next step for a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PairStep {
    /// Nothing, until something happens.
    Wait,
    /// Waits for memory, for which there is no event.
    WaitForMemory,
    /// Both sides have ended.
    Finished,
    /// At least one side is gone.
    Broken,
    /// No connection to the upstream.
    Refused(Error),
}

/// Why a pump stopped.
enum PumpStop {
    Dry,
    NoMemory,
}

impl Pair {
    pub(super) fn new(
        [a, b]: [TcpId; 2],
        client: SocketAddr,
        upstream: SocketAddr,
        now: Instant,
    ) -> Self {
        let side = |id| Side { id, pending: FragVec::new(), ended: false };
        Self {
            client_side: side(a),
            upstream_side: side(b),
            client,
            upstream,
            connected: false,
            waits_for_memory: false,
            serial: 0,
            active_at: now,
        }
    }

    pub(super) fn ids(&self) -> [TcpId; 2] {
        [self.client_side.id, self.upstream_side.id]
    }

    /// Whether the stack may forward by itself: no data is between the connections' queues.
    pub(super) fn may_splice(&self) -> bool {
        self.connected
            && self.client_side.pending.is_empty()
            && self.upstream_side.pending.is_empty()
    }

    /// When a byte was last forwarded, here or by the stack.
    fn active_at(&self, stack: &Stack) -> Instant {
        let flowed = self.ids().map(|id| stack.cx.spliced_at(id));
        flowed.into_iter().flatten().fold(self.active_at, Instant::max)
    }

    /// When it is reset if nothing is forwarded until then.
    pub(super) fn deadline(&self, stack: &Stack, config: &ForwardConfig) -> Option<Instant> {
        if self.connected {
            config.idle_timeout.map(|limit| self.active_at(stack) + limit)
        } else {
            Some(self.active_at + config.connect_timeout)
        }
    }

    /// Whether nothing was forwarded for this time.
    pub(super) fn stalls_since(&self, stack: &Stack, now: Instant, limit: Duration) -> bool {
        self.active_at(stack) + limit <= now
    }

    /// Forwards in both directions.
    pub(super) fn work(
        &mut self,
        now: Instant,
        stack: &mut Stack,
        scratch: &mut Vec<Frag>,
        counters: &mut ForwardCounters,
    ) -> PairStep {
        // First: after the error is taken, a broken connection looks like the end of its stream.
        if stack.take_error(self.client_side.id).is_some() {
            return PairStep::Broken;
        }
        if let Some(error) = stack.take_error(self.upstream_side.id) {
            return if self.connected { PairStep::Broken } else { PairStep::Refused(error) };
        }
        if !self.connected {
            match stack.readiness(self.upstream_side.id) {
                Ok(ready) if ready.contains(Readiness::CONNECTED) => self.connected = true,
                Ok(_) => return PairStep::Wait,
                Err(error) => return PairStep::Refused(error),
            }
            self.active_at = now;
        }
        let (a, b) = (&mut self.client_side, &mut self.upstream_side);
        let (mut up, mut down) = (0, 0);
        let pumped = pump(now, stack, a, b, scratch, &mut up)
            .and_then(|first| Ok([first, pump(now, stack, b, a, scratch, &mut down)?]));
        counters.bytes_up += up;
        counters.bytes_down += down;
        if up + down > 0 {
            self.active_at = now;
        }
        match pumped {
            Err(_) => PairStep::Broken,
            Ok(_) if a.ended && b.ended => PairStep::Finished,
            Ok([PumpStop::Dry, PumpStop::Dry]) => PairStep::Wait,
            Ok(_) => PairStep::WaitForMemory,
        }
    }
}

/// Moves fragments as far as there is room. An event of the send queue reports more room.
fn pump(
    now: Instant,
    stack: &mut Stack,
    from: &mut Side,
    to: &mut Side,
    scratch: &mut Vec<Frag>,
    moved: &mut u64,
) -> Result<PumpStop, Error> {
    loop {
        if !to.pending.is_empty() {
            match stack.tcp(to.id)?.send(now, &mut to.pending, SendFlags::empty()) {
                Ok(n) => *moved += n as u64,
                Err(Error::WouldBlock) => return Ok(PumpStop::Dry),
                Err(error) => return Err(error),
            }
            continue;
        }
        if from.ended {
            return Ok(PumpStop::Dry);
        }
        let queued = stack.tcp(from.id)?.inq();
        if queued == 0 {
            return Ok(PumpStop::Dry);
        }
        let room = stack.tcp(to.id)?.send_room(queued);
        if room == 0 {
            // A send that fails makes an event when there is room.
            return match stack.tcp(to.id)?.send(now, &mut to.pending, SendFlags::empty()) {
                Ok(_) | Err(Error::WouldBlock) => Ok(PumpStop::Dry),
                Err(error) => Err(error),
            };
        }
        let share = stack.tcp(to.id)?.forward_share();
        if share < room.min(FORWARD_LEAST) {
            return Ok(PumpStop::NoMemory);
        }
        let chunks = Chunks { max: room.min(share), into: scratch };
        match stack.tcp(from.id)?.recv(now, chunks, RecvFlags::empty()) {
            Ok(0) => {
                from.ended = true;
                stack.tcp(to.id)?.shutdown(now, Shutdown::Write)?;
            }
            Ok(_) => to.pending.extend(scratch.drain(..)),
            Err(Error::WouldBlock) => return Ok(PumpStop::Dry),
            Err(error) => return Err(error),
        }
    }
}
