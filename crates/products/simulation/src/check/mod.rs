//! Running scenarios: one seed on a thread, or many seeds.

pub(crate) mod jobs;
pub(crate) mod many_seeds;
pub(crate) mod one_seed;
