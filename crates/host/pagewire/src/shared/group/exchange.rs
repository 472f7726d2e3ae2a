//! A shard's side of the exchange of packets with the others ([`Exchange`]).

use std::collections::VecDeque;

use pagewire_mem::Instant;
use pagewire_stack::{Stack, Stray};

use super::{Inbox, Member};
use crate::devices::RECEIVE_BURST;
use crate::shared::Inner;

/// Packets of other shards in a round in which a device had a full burst. A flood that comes in at another shard so
/// takes at most a tenth of this one's packets.
const STRAYS_BESIDE_A_BURST: usize = RECEIVE_BURST / 10;

/// Packets on their way from and to the other shards.
pub(crate) struct Exchange {
    member: Member,
    /// Packets that are being sent; empty in between.
    leaving: VecDeque<Stray>,
    /// Packets to handle, by sender.
    arrived: Vec<VecDeque<Stray>>,
    /// Number of packets to handle.
    waiting: usize,
    /// The sender that is first next.
    first: usize,
    /// The lost links that this shard knows of.
    lost: u64,
}

impl Exchange {
    pub(crate) fn new(member: Member) -> Self {
        let arrived = member.group.inboxes.iter().map(|_| VecDeque::new()).collect();
        Self { leaving: VecDeque::new(), arrived, member, waiting: 0, first: 0, lost: 0 }
    }

    pub(crate) fn member(&self) -> &Member {
        &self.member
    }

    fn inbox(&self) -> Option<&Inbox> {
        self.member.group.inboxes.get(self.member.index)
    }

    /// Whether packets wait to be handled.
    pub(crate) fn is_pending(&self) -> bool {
        self.waiting > 0 || self.inbox().is_some_and(|inbox| inbox.pending() != 0)
    }

    /// Sends the strays of the stack. Those without room are dropped and counted.
    #[inline(never)]
    fn send(&mut self, stack: &mut Stack) {
        while let Some(to) = stack.poll_strays(&mut self.leaving) {
            if let Some(inbox) = self.member.group.inboxes.get(to) {
                inbox.push(self.member.index, &mut self.leaving);
            }
            self.leaving.drain(..).for_each(|stray| stack.drop_stray(stray));
        }
    }

    /// Lets the stack handle up to `max` packets of other shards, one of each in turn. Returns how many there were.
    #[inline(never)]
    fn receive(&mut self, now: Instant, stack: &mut Stack, max: usize) -> usize {
        self.collect();
        let (count, mut handled) = (self.arrived.len(), 0);
        while self.waiting > 0 && handled < max {
            self.first = if self.first + 1 < count { self.first + 1 } else { 0 };
            if let Some(stray) = self.arrived.get_mut(self.first).and_then(VecDeque::pop_front) {
                stack.handle_stray(now, stray);
                (self.waiting, handled) = (self.waiting - 1, handled + 1);
            }
        }
        handled
    }

    /// Takes packets out of the inbox, of senders of whom none are left here.
    fn collect(&mut self) {
        let Some(inbox) = self.member.group.inboxes.get(self.member.index) else { return };
        let mut pending = inbox.pending();
        while pending != 0 {
            let sender = pending.trailing_zeros() as usize;
            pending &= pending - 1;
            if let Some(arrived) = self.arrived.get_mut(sender).filter(|queue| queue.is_empty()) {
                inbox.take(sender, arrived);
                self.waiting += arrived.len();
            }
        }
    }
}

/// # Packets of other shards
impl Inner {
    /// Passes packets on that belong to other shards.
    #[inline]
    pub(crate) fn send_strays(&mut self) {
        if let Some(exchange) = &mut self.exchange {
            exchange.send(&mut self.stack);
        }
    }

    /// Handles packets that other shards have passed on; returns how many there were. `beside_a_burst`: own devices
    /// have more frames than one round takes.
    #[inline]
    pub(crate) fn receive_strays(&mut self, now: Instant, beside_a_burst: bool) -> usize {
        let max = if beside_a_burst { STRAYS_BESIDE_A_BURST } else { RECEIVE_BURST };
        match &mut self.exchange {
            Some(exchange) if exchange.is_pending() => exchange.receive(now, &mut self.stack, max),
            _ => 0,
        }
    }

    /// Fails, or loses links, as another shard of the host did.
    pub(crate) fn follow_group(&mut self, now: Instant) {
        let Some(exchange) = &mut self.exchange else { return };
        let lost = exchange.member.lost();
        if exchange.member.has_failed() && !self.failed {
            self.give_up();
        } else if exchange.lost != lost {
            exchange.lost = lost;
            self.lose_links(now, lost);
        }
    }
}
