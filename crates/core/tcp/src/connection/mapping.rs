//! Variant of step R7, by mapping: finds whole pages in the receive queue and takes them.
//!
//! The caller's `prepare` gets the fragments of the pages ([`Parts`]) and finds a place for them.
//! Only after that the bytes are consumed, as by a read.

use pagewire_mem::{FragVec, PAGE_SIZE};

use crate::connection::Connection;
use crate::inbound::InFlags;
use crate::inbound::receive_queue::Parts;
use crate::io_flags::RecvFlags;
use crate::shared::Env;

/// Why nothing is mapped, in the order of the checks. Nothing was consumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum MapRefusal {
    /// The length is 0 or no multiple of the page size.
    #[error("the length of a mapping is a positive multiple of {PAGE_SIZE} bytes")]
    Length,
    /// Fewer bytes are queued, and more may come.
    #[error("fewer bytes are queued")]
    NotEnough,
    /// Fewer bytes are queued, and no more can come.
    #[error("fewer bytes are left before the end of the stream")]
    Ended,
    /// An urgent byte lies in the range.
    #[error("urgent data lies in the range: read past it")]
    Urgent,
    /// The system has no memory for the mapping.
    #[error("out of memory for the mapping")]
    NoMemory,
    /// A part of the range does not lie in whole pages.
    #[error("a part of the range does not lie in whole pages: read it")]
    NotPages,
}

/// The result of [`Connection::map_available`].
#[derive(Debug)]
pub struct Available<P> {
    /// A place and its fragments, whole pages. `None`: the queue does not begin with a page.
    pub mapped: Option<(P, FragVec)>,
    /// Bytes to read by copy before the next page; 0 if all was mapped, or another call can map it.
    pub copy_next: usize,
}

/// Checks the length of a mapping.
pub const fn check_map_len(len: usize) -> Result<(), MapRefusal> {
    match len > 0 && len.is_multiple_of(PAGE_SIZE) {
        true => Ok(()),
        false => Err(MapRefusal::Length),
    }
}

impl Connection {
    /// Takes the next `len` bytes as whole pages, for which `prepare` finds a place.
    ///
    /// # Errors
    /// The first [`MapRefusal`] that applies; then nothing is consumed.
    pub fn map<P>(
        &mut self,
        env: &mut Env<'_>,
        len: usize,
        prepare: impl FnOnce(Parts<'_>) -> Result<P, MapRefusal>,
    ) -> Result<(P, FragVec), MapRefusal> {
        check_map_len(len)?;
        self.inbound.flags.insert(InFlags::MAPS);
        if self.inbound.queue.queued() < len {
            return Err(if self.has_end() { MapRefusal::Ended } else { MapRefusal::NotEnough });
        }
        if self.inbound.urgent_ahead().is_some_and(|ahead| ahead < len) {
            return Err(MapRefusal::Urgent);
        }
        let mut frags = FragVec::new();
        let count = self.inbound.queue.in_order.parts(len).count();
        frags.try_reserve(count).map_err(|_| MapRefusal::NoMemory)?;
        if self.inbound.queue.in_order.whole_pages(len) < len {
            return Err(MapRefusal::NotPages);
        }
        let place = prepare(self.inbound.queue.in_order.parts(len))?;
        self.take_mapped(env, len, &mut frags);
        Ok((place, frags))
    }

    /// Takes as many whole pages as `prepare` finds a place for, up to `max` bytes, and returns how
    /// far the next page is. Handles an urgent byte as a read does. `prepare` also returns for how
    /// many bytes it found a place.
    ///
    /// # Errors
    /// The errors of `prepare`, except `NotPages`.
    pub fn map_available<P>(
        &mut self,
        env: &mut Env<'_>,
        max: usize,
        prepare: impl FnOnce(Parts<'_>) -> Result<(P, usize), MapRefusal>,
    ) -> Result<Available<P>, MapRefusal> {
        self.inbound.flags.insert(InFlags::MAPS);
        let skip =
            if max > 0 { self.inbound.bounds(&self.path, max, RecvFlags::empty()).skip } else { 0 };
        if skip > 0 {
            self.inbound.drop_queued(skip);
            self.inbound.forget_urgent();
        }
        let queued = self.inbound.queue.queued();
        let ahead = self.inbound.urgent_ahead().filter(|&ahead| ahead < queued);
        let reach = max.min(ahead.unwrap_or(queued));
        let whole = self.inbound.queue.in_order.whole_pages(reach);
        let (mut mapped, mut taken) = (None, 0);
        if whole > 0 {
            match prepare(self.inbound.queue.in_order.parts(whole)) {
                Ok((place, placed)) => {
                    let mut frags = FragVec::new();
                    taken = placed.min(whole);
                    self.take_mapped(env, taken, &mut frags);
                    mapped = Some((place, frags));
                }
                Err(MapRefusal::NotPages) => {}
                Err(refusal) => return Err(refusal),
            }
        }
        let next = self.inbound.queue.in_order.to_next_page(0);
        let copy_next = if taken > 0 && taken == max / PAGE_SIZE * PAGE_SIZE {
            0
        } else if taken == 0 && whole > 0 {
            // Pages without a place can be read by copy.
            whole
        } else if max < PAGE_SIZE {
            reach
        } else {
            match ahead.map(|ahead| ahead - taken) {
                None => next,
                // In line: the byte itself, and up to the next page.
                Some(0) => 1 + self.inbound.queue.in_order.to_next_page(1),
                Some(ahead) if next + PAGE_SIZE <= ahead => next,
                Some(ahead) => ahead,
            }
        };
        Ok(Available { mapped, copy_next })
    }

    /// Whether the application has asked for data as whole pages.
    #[inline]
    pub fn maps(&self) -> bool {
        self.inbound.flags.contains(InFlags::MAPS)
    }

    /// Whether `len` bytes will never be queued together, because the window closes before.
    pub fn is_beyond_window(&self, len: usize) -> bool {
        self.inbound.queue.queued() < len
            && !self.has_end()
            && self.path.state().is_synchronized()
            && self.inbound.window_to_offer(&self.path, &self.out.transfer.rtt)
                <= u32::from(self.inbound.mss)
    }

    fn take_mapped(&mut self, env: &mut Env<'_>, len: usize, frags: &mut FragVec) {
        let taken = self.inbound.queue.take(len, frags);
        debug_assert_eq!(taken, len, "the bytes that were checked are there");
        self.after_reading(env);
    }
}
