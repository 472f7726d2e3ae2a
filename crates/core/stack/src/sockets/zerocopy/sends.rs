//! The state of one socket's zero-copy sends ([`ZeroCopySends`]), and the public handle of one call
//! ([`ZeroCopyCall`]).

use std::sync::{Arc, Weak};

use pagewire_mem::{Charge, Completion, Frag};
use pagewire_tcp::Seq;

use crate::config::Coalescing;
use crate::limits::{MAX_SHARED_BYTES, MAX_SHARED_SENDS};

/// A call that sends by reference, over all its tries: all data of the call has one id. The value holds the
/// call's completion, so no id is reported between two tries.
///
/// When the memory has no more references, a [`Notification`](crate::Notification) of the call's id
/// comes through [`Stack::poll_error_queue`](crate::Stack::poll_error_queue). Fragments are not
/// joined: after 17 of them a segment is pushed, and the next begins. Datagrams of one call
/// ([`UdpTarget::segment`](crate::UdpTarget::segment)) have one id.
///
/// On a socket that has not [opted in](crate::Stack::set_zerocopy) the data is copied, and there is
/// no id. Memory without an owner ([`Frag::lent`]) has to stay until the notification. If the
/// connection is closed first, the stack copies what is not acknowledged (or resets the connection
/// without pages for that); devices and local receivers still refer to it.
///
/// Such a send may also fail with `TooManyNotifications` and `TooManyPagesHeld` (both `ENOBUFS`). A
/// call that queues nothing takes no id.
#[derive(Debug, Default)]
pub struct ZeroCopyCall {
    pub(crate) completion: Option<Arc<Completion>>,
    pub(crate) id: Option<u32>,
}

impl ZeroCopyCall {
    /// A call that has sent nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// The call's id, once something is queued; `None` for no bytes, and without opting in.
    pub fn id(&self) -> Option<u32> {
        self.id
    }
}

/// The sends by reference of a socket.
#[derive(Default)]
pub(crate) struct ZeroCopySends {
    pub(crate) next_id: u32,
    /// Outstanding completions.
    pub(crate) live: usize,
    /// The last completion.
    pub(crate) last: Weak<Completion>,
    /// Number of bytes that the last completion covers.
    pub(crate) last_bytes: usize,
    /// Sequence number behind the last byte of the last send.
    pub(crate) last_end: Option<Seq>,
    /// Whether some of the memory is borrowed from the caller, without an owner.
    pub(crate) lends: bool,
    /// The rule by which notifications are merged; `None`: the stack's setting.
    pub(crate) coalescing: Option<Coalescing>,
}

/// A send that may still fail.
pub(crate) struct BegunSend {
    pub(crate) completion: Arc<Completion>,
    pub(crate) charge: Charge,
    pub(crate) id: u32,
    pub(crate) joined: bool,
}

impl BegunSend {
    /// Nothing was queued: gives the id back.
    pub(crate) fn give_up(self) {
        self.completion.leave();
    }
}

impl ZeroCopySends {
    /// Whether `next` continues the last send in memory.
    pub(crate) fn is_continued_by(&self, next: Option<&Frag>) -> bool {
        let last = self.last.upgrade();
        last.zip(next).is_some_and(|(last, next)| last.is_continued_by(next))
    }

    pub(crate) fn is_last(&self, completion: &Completion) -> bool {
        // The completion lives, so no other has its address.
        core::ptr::eq(self.last.as_ptr(), completion)
    }

    /// Whether a call of `bytes` bytes may complete together with the last one. Ids do not wrap.
    pub(crate) fn may_share(&self, last: &Completion, bytes: usize) -> bool {
        self.last_bytes.saturating_add(bytes) <= MAX_SHARED_BYTES
            && last.count() < MAX_SHARED_SENDS
            && last.next_id() == self.next_id
            && self.next_id != 0
    }

    /// Something was queued: takes the id.
    pub(crate) fn commit(&mut self, begun: BegunSend, bytes: usize, call: &mut ZeroCopyCall) {
        begun.completion.charge(begun.charge);
        self.next_id = begun.id.wrapping_add(1);
        if begun.joined {
            self.last_bytes = self.last_bytes.saturating_add(bytes);
        } else {
            self.live += 1;
            self.last = Arc::downgrade(&begun.completion);
            self.last_bytes = bytes;
        }
        self.lends |= begun.completion.lends();
        call.id = Some(begun.id);
        call.completion = Some(begun.completion);
    }
}
