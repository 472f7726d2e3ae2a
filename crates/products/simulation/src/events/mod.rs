//! The order of everything that happens: the queue of what is due, and the loop that works it off.

pub(crate) mod event_loop;
pub(crate) mod queue;
