//! Memory, fragments, packets and pools; under `--cfg loom`, the model checks and nothing else.

#[cfg(not(loom))]
mod carve;
#[cfg(not(loom))]
mod checksum;
#[cfg(not(loom))]
mod completion;
#[cfg(not(loom))]
mod frag;
#[cfg(not(loom))]
mod lease;
#[cfg(loom)]
mod loom;
#[cfg(not(loom))]
mod mapping;
#[cfg(not(loom))]
mod packet;
#[cfg(not(loom))]
mod pool_model;
#[cfg(not(loom))]
mod region;
#[cfg(not(loom))]
mod threads;
