//! A shard's side of the exchange of packets with the others ([`Exchange`]).

use std::collections::VecDeque;

use pagewire_mem::Instant;
use pagewire_stack::{Stack, Stray};

use super::{Inbox, Member};
use crate::devices::RECEIVE_BURST;
use crate::shared::Inner;
use crate::turn::Received;

/// Packets of other shards beside a full burst of own frames.
const STRAYS_BESIDE_A_BURST: usize = RECEIVE_BURST / 16;

/// Own frames for which a shard handles one packet of others that no socket takes: a request for a connection, a
/// fragment, a datagram without a socket. Such a packet may be part of a flood, which another shard receives, and
/// costs as much as several own frames. A shard handles as many of others as of its own in any case: a server that
/// accepts connections all the time is no victim of requests for them.
const FRAMES_FOR_AN_UNTAKEN: usize = 24;

/// Number by which own frames of a round count less in each round without frames. A busy shard has such rounds while
/// it serves the frames.
const FRAMES_FORGOTTEN: usize = 2;

/// Packets on their way from and to the other shards.
pub(crate) struct Exchange {
    member: Member,
    /// Packets that are being sent; empty in between.
    leaving: VecDeque<Stray>,
    /// Packets to handle, by sender.
    arrived: Vec<Arrived>,
    /// Number of packets to handle.
    waiting: usize,
    /// The sender that is first next.
    first: usize,
    /// Own frames of the last round with frames, less with each round since.
    own: usize,
    /// Number of own frames that no socket took, less the packets of others that no socket took; up to a burst.
    credit: usize,
    /// The lost links that this shard knows of.
    lost: u64,
}

/// The packets of other shards in a round, at most. Together with own frames they are hardly more than a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limits {
    all: usize,
    /// Those that no socket takes.
    untaken: usize,
}

/// Packets of one sender. Each is handled where it lies, which is cheaper than to move it.
#[derive(Default)]
struct Arrived {
    packets: VecDeque<Stray>,
    /// Number of those that are handled.
    handled: usize,
}

impl Arrived {
    /// Lets the stack handle the next packet; returns whether a socket took the packet. `None`: there is none.
    #[inline]
    fn handle(&mut self, now: Instant, stack: &mut Stack) -> Option<bool> {
        let stray = self.packets.get_mut(self.handled)?;
        // News are for no socket; a shard sends few.
        let is_taken = stack.handle_stray(now, stray) || stray.is_news();
        self.handled += 1;
        if self.handled == self.packets.len() {
            self.packets.clear();
            self.handled = 0;
        }
        Some(is_taken)
    }
}

impl Exchange {
    pub(crate) fn new(member: Member) -> Self {
        let arrived = member.group.inboxes.iter().map(|_| Arrived::default()).collect();
        Self {
            leaving: VecDeque::new(),
            arrived,
            member,
            waiting: 0,
            first: 0,
            own: 0,
            credit: 0,
            lost: 0,
        }
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

    /// Sends the strays of the stack. Those without room are dropped and counted. Returns the number of all
    /// packets.
    #[inline(never)]
    fn send(&mut self, stack: &mut Stack) -> usize {
        let mut count = 0;
        while let Some(to) = stack.poll_strays(&mut self.leaving) {
            count += self.leaving.iter().filter(|stray| !stray.is_news()).count();
            if let Some(inbox) = self.member.group.inboxes.get(to) {
                inbox.push(self.member.index, &mut self.leaving);
            }
            self.leaving.drain(..).for_each(|stray| stack.drop_stray(stray));
        }
        count
    }

    /// The limits of a round in which own devices had these frames, and `sent` of them were for other shards.
    fn limits(&mut self, received: &Received, sent: usize) -> Limits {
        self.own = match received.all {
            0 => self.own.saturating_sub(FRAMES_FORGOTTEN),
            all => all.saturating_sub(sent),
        };
        let untaken = received.all.saturating_sub(sent + received.taken);
        self.credit = (self.credit + untaken).min(RECEIVE_BURST);
        Limits {
            all: RECEIVE_BURST.saturating_sub(self.own).max(STRAYS_BESIDE_A_BURST),
            untaken: match self.own {
                0 => RECEIVE_BURST,
                own => self.credit.max(1 + own / FRAMES_FOR_AN_UNTAKEN),
            },
        }
    }

    /// Lets the stack handle packets of other shards up to these limits, one of each in turn. Returns how many there
    /// were.
    #[inline(never)]
    fn receive(&mut self, now: Instant, stack: &mut Stack, limits: Limits) -> usize {
        self.collect();
        let (count, mut handled, mut untaken) = (self.arrived.len(), 0, 0);
        while self.waiting > 0 && handled < limits.all && untaken < limits.untaken {
            self.first = if self.first + 1 < count { self.first + 1 } else { 0 };
            let arrived = self.arrived.get_mut(self.first);
            if let Some(is_taken) = arrived.and_then(|arrived| arrived.handle(now, stack)) {
                (self.waiting, handled) = (self.waiting - 1, handled + 1);
                untaken += usize::from(!is_taken);
            }
        }
        self.credit = self.credit.saturating_sub(untaken);
        handled
    }

    /// Takes packets out of the inbox, of senders of whom none are left here.
    fn collect(&mut self) {
        let Some(inbox) = self.member.group.inboxes.get(self.member.index) else { return };
        let mut pending = inbox.pending();
        while pending != 0 {
            let sender = pending.trailing_zeros() as usize;
            pending &= pending - 1;
            let packets = self.arrived.get_mut(sender).map(|arrived| &mut arrived.packets);
            if let Some(packets) = packets.filter(|packets| packets.is_empty()) {
                inbox.take(sender, packets);
                self.waiting += packets.len();
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

    /// Handles packets that other shards have passed on; returns how many there were. `received`: frames of own devices
    /// in this round, of which some may be for other shards.
    #[inline]
    pub(crate) fn receive_strays(&mut self, now: Instant, received: &Received) -> usize {
        let Some(exchange) = &mut self.exchange else { return 0 };
        let sent = exchange.send(&mut self.stack);
        let limits = exchange.limits(received, sent);
        if exchange.is_pending() { exchange.receive(now, &mut self.stack, limits) } else { 0 }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::group::Group;

    fn exchange() -> Exchange {
        Exchange::new(Group::members(2).remove(0))
    }

    /// A round with `all` frames, of which sockets took `taken`.
    fn received(all: usize, taken: usize) -> Received {
        Received { longest: all, all, taken }
    }

    /// The limits of each of these rounds, by frames received and frames passed on: of all, and of those that no socket
    /// takes. Sockets take all that are not passed on.
    fn limits<const N: usize>(rounds: [(usize, usize); N]) -> [(usize, usize); N] {
        let mut exchange = exchange();
        rounds.map(|(all, sent)| {
            let Limits { all, untaken } = exchange.limits(&received(all, all - sent), sent);
            (all, untaken)
        })
    }

    #[test]
    fn a_busy_shard_handles_few_packets_of_others() {
        assert_eq!(limits([(64, 0), (64, 0), (0, 0), (64, 0)]), [(4, 3); 4]);
    }

    #[test]
    fn own_frames_and_packets_of_others_are_a_burst_together() {
        assert_eq!(limits([(0, 0), (24, 0), (200, 0)]), [(64, 64), (40, 2), (4, 9)]);
    }

    #[test]
    fn frames_for_others_are_no_own_ones() {
        assert_eq!(limits([(64, 32), (64, 64), (0, 0)]), [(32, 2), (64, 64), (64, 64)]);
    }

    #[test]
    fn a_shard_handles_as_many_untaken_packets_of_others_as_of_its_own() {
        let mut exchange = exchange();
        let mut untaken = |all, taken, sent| exchange.limits(&received(all, taken), sent).untaken;
        assert_eq!(untaken(40, 20, 10), 10);
        assert_eq!(untaken(0, 0, 0), 10, "none was handled");
        assert_eq!(untaken(50, 0, 0), 60);
        assert_eq!(untaken(50, 0, 0), RECEIVE_BURST, "not more than a burst");
    }

    #[test]
    fn a_shard_without_frames_handles_more_and_more_packets_of_others() {
        let mut rounds = [(0, 0); 40];
        rounds[0] = (64, 0);
        let limits = limits(rounds);
        assert!(limits.is_sorted_by_key(|(all, _)| *all), "{limits:?}");
        assert_eq!([limits[0].0, limits[10].0, limits[39].0], [4, 20, 64]);
        assert_eq!([limits[31].1, limits[32].1], [1, 64]);
    }
}
