//! The hosts that are the shards of one host ([`Group`]): how packets pass between them, and what ends them all.
//!
//! ```text
//!   shard 0: turn -> its stack -> poll_strays --> inbox of shard 1 --> shard 1: turn -> handle_stray
//!                                                    \--> wakes the driver of shard 1, if that sleeps
//! ```
//!
//! Each shard has its own lock. A shard that holds the lock takes only locks besides under which no other is taken: of
//! a lane of an inbox (`inbox.rs`), of a shared device, of the table of neighbours. So no two shards wait for each other. What holds for the host as a whole is an atomic here: a
//! shard that failed fails all, and no shard lets go of its devices before the shutdown of all is over, because a
//! packet for one shard may come in at any.

mod exchange;
mod inbox;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use pagewire_stack::LinkId;

use crate::devices::link_bit;
use crate::shared::{DriverWaker, Shared, next_id};

pub(crate) use exchange::Exchange;
use inbox::Inbox;

/// The hosts that are the shards of one host.
pub(crate) struct Group {
    /// The host's number in this process.
    id: u64,
    inboxes: Box<[Inbox]>,
    /// All shards in their order, once they have started.
    members: OnceLock<Box<[Weak<Shared>]>>,
    /// The shards whose part of the shutdown is over, a bit for each.
    over: AtomicU32,
    failed: AtomicBool,
    /// The links that are lost, a bit for each of the first.
    lost: AtomicU64,
}

/// The place of a host in its group.
#[derive(Clone)]
pub(crate) struct Member {
    group: Arc<Group>,
    index: usize,
}

impl Group {
    /// A place for each of `count` shards.
    pub(crate) fn members(count: usize) -> Vec<Member> {
        let group = Arc::new(Self {
            id: next_id(),
            inboxes: (0..count).map(|_| Inbox::new(count)).collect(),
            members: OnceLock::new(),
            over: AtomicU32::new(0),
            failed: AtomicBool::new(false),
            lost: AtomicU64::new(0),
        });
        (0..count).map(|index| Member { group: Arc::clone(&group), index }).collect()
    }
}

impl Member {
    /// The number of the host, which all shards have.
    pub(crate) fn host_id(&self) -> u64 {
        self.group.id
    }

    /// Tells the group of its shards, which have started.
    pub(crate) fn set_members(&self, shards: &[Arc<Shared>]) {
        let _ = self.group.members.set(shards.iter().map(Arc::downgrade).collect());
    }

    /// Lets packets of the other shards wake this one's driver.
    pub(crate) fn set_waker(&self, waker: DriverWaker) {
        if let Some(inbox) = self.group.inboxes.get(self.index) {
            inbox.set_waker(waker);
        }
    }

    /// The other shards that still run.
    pub(crate) fn others(&self) -> impl Iterator<Item = Arc<Shared>> + use<'_> {
        let members = self.group.members.get().into_iter().flatten().enumerate();
        members.filter(|(index, _)| *index != self.index).filter_map(|(_, shard)| shard.upgrade())
    }

    /// This shard's part of the shutdown is over. Returns whether that of all is.
    pub(crate) fn end(&self) -> bool {
        let (bit, all) = (1 << self.index, u32::MAX >> (32 - self.group.inboxes.len()));
        let over = self.group.over.fetch_or(bit, Ordering::AcqRel) | bit;
        over == all || self.has_failed()
    }

    /// Fails all shards, each in its next turn.
    pub(crate) fn fail(&self) {
        if !self.group.failed.swap(true, Ordering::AcqRel) {
            self.others().for_each(|shard| shard.wake_driver());
        }
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.group.failed.load(Ordering::Acquire)
    }

    /// Loses a link of all shards, each in its next turn.
    pub(crate) fn lose(&self, link: LinkId) {
        let bit = link_bit(link);
        if self.group.lost.fetch_or(bit, Ordering::AcqRel) & bit == 0 {
            self.others().for_each(|shard| shard.wake_driver());
        }
    }

    /// A link that is removed is not lost any more.
    pub(crate) fn forget_lost(&self, link: LinkId) {
        self.group.lost.fetch_and(!link_bit(link), Ordering::AcqRel);
    }

    /// The links that are lost, a bit for each.
    pub(crate) fn lost(&self) -> u64 {
        self.group.lost.load(Ordering::Acquire)
    }
}

impl Shared {
    /// The other shards of the host, if it has several.
    pub(crate) fn others(&self) -> impl Iterator<Item = Arc<Shared>> + use<'_> {
        self.member.iter().flat_map(Member::others)
    }

    /// Whether a wait of this thread has to drive other shards, because nobody else does.
    pub(crate) fn drives_others(&self) -> bool {
        self.member.is_some() && self.others().any(|shard| shard.is_driven_by_waits())
    }

    /// Takes a turn of each other shard that nobody drives but the waits of this thread, or a task that may wait for
    /// them: a packet for this shard may come in there. Returns whether anything came in.
    pub(crate) fn turn_others(&self) -> bool {
        let mut any = false;
        let to_drive = |shard: &Arc<Self>| shard.is_driven_by_waits() || shard.is_driven_by_task();
        for shard in self.others().filter(to_drive) {
            // A lock that another thread holds is no loss: that thread takes turns, too.
            let Some(mut inner) = shard.try_lock() else { continue };
            let worked = inner.turn(shard.now());
            shard.unlock_and_wake(inner);
            if worked {
                // A loop that waits for the shard has lost its wake-up to this turn.
                shard.hand_back();
            }
            any |= worked;
        }
        any
    }
}
