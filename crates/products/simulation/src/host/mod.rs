//! Simulated machines: the state that all of them share, their programs, their clocks, and how calls name them.

pub(crate) mod clock;
pub(crate) mod lifecycle;
pub(crate) mod machine;
pub(crate) mod selectors;
pub(crate) mod world;
