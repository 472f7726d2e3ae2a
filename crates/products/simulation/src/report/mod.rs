//! How a run ended: the report, the failure, and which tasks still wait.

pub(crate) mod outcome;
pub(crate) mod stalled;
