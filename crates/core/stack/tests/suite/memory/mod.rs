//! Pages and received memory: who may hold how much, and who waits.

mod held_memory;
mod lend_fill;
mod mapping_properties;
mod page_waiters;
mod receive_memory;
mod unlocked;
