//! Drivers beside the kernel, offloads beside an oracle, and model checks of what threads share.

mod loom_spsc;
mod offload;
mod support;
mod tap_kernel;
